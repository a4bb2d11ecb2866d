"""Gradient clipping, the RMSProp step, and the learning rate's schedule.

The formula that matters (paper §4, equations 8 and 9), with ε inside the root:

    m ← α·m + (1 − α)·g²
    θ ← θ − η·g / √(m + ε)

ε outside the root is another algorithm: where m is small, it takes steps up to 1/√ε times larger or
smaller.
"""

from collections.abc import Sequence

import tensorflow as tf


def learning_rate(
    initial_lr: float, n_steps_done: int, decay_to_zero_by_n_steps: int | None
) -> float:
    """Constant; or, with an end, linear from initial_lr at step 0 to 0 there, and 0 after."""
    if decay_to_zero_by_n_steps is None:
        return initial_lr
    return initial_lr * max(0.0, 1.0 - n_steps_done / decay_to_zero_by_n_steps)


def clip_by_global_norm(
    gradients: Sequence[tf.Tensor], max_norm: float
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Scale all gradients by one factor so that their joint norm is at most max_norm; the norm
    before comes second.

    A norm that is not finite raises InvalidArgumentError here, before anything that needs these
    gradients can run.
    """
    norm = tf.debugging.check_numerics(tf.linalg.global_norm(gradients), "gradient not finite")
    scale = max_norm / tf.maximum(norm, max_norm)
    return [gradient * scale for gradient in gradients], norm


def rmsprop_step(
    variable: tf.Variable,
    mean_square: tf.Variable,
    unused_momentum: tf.Variable,
    gradient: tf.Tensor,
    *,
    learning_rate: tf.Tensor,
    decay: float,
    epsilon: float,
) -> None:
    """The module's formula as TensorFlow's fused kernel: one pass over memory, under the
    variable's lock.

    The kernel keeps a momentum buffer whatever its momentum; ours is 0, so the buffer only ever
    holds the last step.
    """
    tf.raw_ops.ResourceApplyRMSProp(
        var=variable.handle,
        ms=mean_square.handle,
        mom=unused_momentum.handle,
        lr=learning_rate,
        rho=decay,
        momentum=0.0,
        epsilon=epsilon,
        grad=gradient,
        use_locking=True,
    )
