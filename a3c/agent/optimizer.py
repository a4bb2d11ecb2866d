"""Gradient clipping, the RMSProp step, and the learning rate's schedule.

RMSProp is the paper's (§4, Optimization):

    m ← α·m + (1 − α)·g²
    θ ← θ − η·g / √(m + ε)

As in the paper, ε is under the root. Libraries that divide by √m + ε implement another algorithm:
where m is small, its steps are up to 1/√ε times larger, so its values of ε do not carry over.
"""

from collections.abc import Collection

import tensorflow as tf

from a3c.agent import kernels
from a3c.agent.kernels import Gradient


def learning_rate(
    initial_lr: float, n_steps_done: int, decay_to_zero_by_n_steps: int | None
) -> float:
    """Constant without an end; else linear from initial_lr at step 0 to 0 there, and 0 after it."""
    if decay_to_zero_by_n_steps is None:
        return initial_lr
    return initial_lr * max(0.0, 1.0 - n_steps_done / decay_to_zero_by_n_steps)


def clipping_factor(
    gradients: Collection[Gradient], max_norm: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """The factor that reduces the joint norm of all gradients to at most max_norm, and that norm.

    A norm that is not finite raises InvalidArgumentError before any operation that uses the factor, but
    not in what XLA compiles, which leaves checks out.
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
    """θ and m after one step."""
    mean_square = decay * mean_square + (1.0 - decay) * tf.square(gradient)
    theta = theta - learning_rate * gradient / tf.sqrt(mean_square + epsilon)
    return theta, mean_square
