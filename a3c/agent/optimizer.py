"""Gradient clipping, the RMSProp step, and the learning rate's schedule.

The formula that matters (paper §4, equations 8 and 9), with ε inside the root:

    m ← α·m + (1 − α)·g²
    θ ← θ − η·g / √(m + ε)

ε outside the root is another algorithm: where m is small, it takes steps up to 1/√ε times larger or
smaller.
"""

from collections.abc import Sequence

import tensorflow as tf

from a3c.agent import kernels
from a3c.agent.kernels import Gradient


def learning_rate(
    initial_lr: float, n_steps_done: int, decay_to_zero_by_n_steps: int | None
) -> float:
    """Constant; or, with an end, linear from initial_lr at step 0 to 0 there, and 0 after."""
    if decay_to_zero_by_n_steps is None:
        return initial_lr
    return initial_lr * max(0.0, 1.0 - n_steps_done / decay_to_zero_by_n_steps)


def clipping_factor(gradients: Sequence[Gradient], max_norm: float) -> tuple[tf.Tensor, tf.Tensor]:
    """The one factor that brings the joint norm of all gradients to at most max_norm; and the norm.

    A norm that is not finite raises InvalidArgumentError here, before anything that needs the
    factor can run.
    """
    norm = tf.debugging.check_numerics(kernels.global_norm(gradients), "gradient not finite")
    return max_norm / tf.maximum(norm, max_norm), norm


def rmsprop_step(
    theta: tf.Tensor,
    mean_square: tf.Tensor,
    gradient: tf.Tensor,
    *,
    learning_rate: tf.Tensor,
    decay: float,
    epsilon: float,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The module's formula: θ and m after a step."""
    mean_square = decay * mean_square + (1.0 - decay) * tf.square(gradient)
    theta = theta - learning_rate * gradient / tf.sqrt(mean_square + epsilon)
    return theta, mean_square
