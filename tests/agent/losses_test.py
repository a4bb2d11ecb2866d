"""Returns and losses: closed forms, the oracle, and the edges of float32.

tests/properties_test.py has returns of any rollout.
"""

import math

import numpy as np
import pytest
import tensorflow as tf

from a3c.agent import losses
from a3c.agent.policy import Categorical
from tests.tools import oracle


def returns_of_three_steps(continues: list[int]) -> np.ndarray:
    """Rewards 1, 2, 3 and then a value of 8, at γ = ½."""
    columns = (tf.constant(x, tf.float32) for x in ([[1], [2], [3]], np.c_[continues], [8]))
    return losses.n_step_returns(*columns, 0.5).numpy()[:, 0]


def test_returns_are_discounted_sums_with_a_bootstrap() -> None:
    """Analytic: without an end."""
    expected = [1 + 0.5 * 2 + 0.25 * 3 + 0.125 * 8, 2 + 1.5 + 2, 3 + 4]
    np.testing.assert_array_equal(returns_of_three_steps([1, 1, 1]), expected)


def test_an_episode_that_ends_mid_rollout_cuts_the_sum() -> None:
    """Analytic: the docstring's example, where nothing after the end counts for what was before it."""
    np.testing.assert_array_equal(returns_of_three_steps([1, 0, 1]), [2, 2, 7])


N_STEPS, N_ENVS, N_ACTIONS = 4, 3, 5


def example(scale: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Logits within ±scale, values, actions, returns."""
    generator = np.random.default_rng(seed)
    logits = generator.uniform(-scale, scale, (N_STEPS, N_ENVS, N_ACTIONS)).astype(np.float32)
    values, returns = generator.standard_normal((2, N_STEPS, N_ENVS)).astype(np.float32)
    actions = generator.integers(0, N_ACTIONS, (N_STEPS, N_ENVS)).astype(np.int32)
    return logits, values, actions, returns


def losses_of(
    logits: object, values: object, actions: object, returns: object, **settings: object
) -> losses.Losses:
    settings = {"entropy_bonus": 0.01, "value_loss_coef": 0.5, "loss_reduction": "mean"} | settings
    policy = Categorical(N_ACTIONS)
    log_probabilities = policy.log_probabilities(logits, actions)
    return losses.a3c_losses(
        log_probabilities, policy.entropies(logits), values, returns, **settings
    )


@pytest.mark.parametrize("scale", [0.01, 1, 30, 1000])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_losses_equal_plain_numpy(scale: float, reduction: str) -> None:
    """Parity: every loss, by the oracle, for logits up to ±1000, where gradients are finite too."""
    inputs = example(scale)
    logits = tf.constant(inputs[0])
    with tf.GradientTape() as tape:
        tape.watch(logits)
        result = losses_of(
            logits, *inputs[1:], entropy_bonus=0.3, value_loss_coef=0.7, loss_reduction=reduction
        )
    assert np.isfinite(tape.gradient(result.combined, logits)).all()

    _, values, actions, returns = inputs
    empty = np.empty(0)
    expected = oracle.losses(
        inputs[0].reshape(-1, N_ACTIONS).astype(np.float64),
        values.reshape(-1, 1).astype(np.float64),
        oracle.Rollout(empty, actions, empty, empty),
        oracle.Hyperparameters(0.9, 0.7, 0.3, reduction, math.inf, 0.99, 0.1),
        oracle.Targets(returns.astype(np.float64), returns.astype(np.float64) - values),
    )
    of_policy = expected.policy - 0.3 * expected.entropy
    entropy = expected.entropy / (N_STEPS * N_ENVS if reduction == "sum" else 1)
    np.testing.assert_allclose(result.policy, of_policy, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(result.value, 0.7 * expected.value, rtol=1e-5)
    np.testing.assert_allclose(result.combined, expected.total, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(result.entropy, entropy, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(result.advantages, returns - values, rtol=1e-6)


def test_the_entropy_bonus_pushes_towards_uniform() -> None:
    """Analytic: without an advantage, the gradient of −β·H is β·π·(log π + H)."""
    p = np.array([0.25, 0.75])
    logits = tf.constant(np.log(p)[None, None], tf.float32)
    zeros = tf.zeros((1, 1))
    with tf.GradientTape() as tape:
        tape.watch(logits)
        result = losses_of(logits, zeros, tf.constant([[0]]), zeros, entropy_bonus=0.1)
    entropy = -(p * np.log(p)).sum()
    gradient = tape.gradient(result.combined, logits).numpy()[0, 0]
    np.testing.assert_allclose(gradient, 0.1 * p * (np.log(p) + entropy), rtol=1e-5)
    assert gradient[0] < 0 < gradient[1]  # a descent step raises the rarer action


def test_no_gradient_crosses_from_policy_to_value_or_into_returns() -> None:
    """Analytic: the policy's loss does not depend on the values, the value's not on the logits, and neither on the
    returns."""
    logits, values, actions, returns = (tf.constant(x) for x in example(1))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([logits, values, returns])
        result = losses_of(logits, values, actions, returns)
    assert tape.gradient(result.policy, values) is None
    assert tape.gradient(result.value, logits) is None
    assert tape.gradient(result.combined, returns) is None
    # Negative control: the other gradients exist.
    assert np.abs(tape.gradient(result.policy, logits)).min() > 0
    assert np.abs(tape.gradient(result.value, values)).min() > 0
