"""Returns and losses against sums by hand, against plain NumPy, and at the edges of float32."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from a3c.agent import losses, policy


def returns_of(
    rewards: object, continues: object, bootstrap: object, discount: float
) -> np.ndarray:
    tensors = (tf.constant(x, tf.float32) for x in (rewards, continues, bootstrap))
    return losses.n_step_returns(*tensors, discount).numpy()


def numpy_returns(
    rewards: np.ndarray, continues: np.ndarray, bootstrap: np.ndarray, discount: float
) -> np.ndarray:
    """Forward and from the definition, unlike the module: the sum of what follows each step, discounted."""
    returns = np.zeros(rewards.shape)
    for t, k in np.ndindex(*rewards.shape):
        weight = 1.0
        for s in range(t, len(rewards)):
            returns[t, k] += weight * rewards[s, k]
            weight *= discount * continues[s, k]
        returns[t, k] += weight * bootstrap[k]
    return returns


def test_returns_are_discounted_sums_with_a_bootstrap() -> None:
    """Analytic: 1, 2, 3 and then a value of 8, at γ = ½."""
    returns = returns_of([[1], [2], [3]], [[1], [1], [1]], [8], 0.5)
    np.testing.assert_array_equal(
        returns, [[1 + 0.5 * 2 + 0.25 * 3 + 0.125 * 8], [2 + 1.5 + 2], [3 + 4]]
    )


def test_an_episode_that_ends_mid_rollout_cuts_the_sum() -> None:
    """Analytic: the docstring's example: nothing after the end flows back over it."""
    returns = returns_of([[1], [2], [3]], [[1], [0], [1]], [8], 0.5)
    np.testing.assert_array_equal(returns, [[2], [2], [7]])


@settings(max_examples=settings.default.max_examples // 2)
@given(st.data())
def test_returns_equal_the_definition(data: st.DataObject) -> None:
    """Parity: any T, K, γ and ends of episodes, against the double loop in float64."""
    n_steps, n_envs = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 3))
    floats = st.floats(-100, 100, width=32)
    rewards, continues = (
        np.array(data.draw(st.lists(values, min_size=n_steps * n_envs, max_size=n_steps * n_envs)))
        for values in (floats, st.sampled_from([0.0, 1.0]))
    )
    rewards, continues = rewards.reshape(n_steps, n_envs), continues.reshape(n_steps, n_envs)
    bootstrap = np.array(data.draw(st.lists(floats, min_size=n_envs, max_size=n_envs)))
    discount = data.draw(st.floats(0, 1))
    np.testing.assert_allclose(
        returns_of(rewards, continues, bootstrap, discount),
        numpy_returns(rewards, continues, bootstrap, discount),
        rtol=1e-4,
        atol=1e-3,
    )


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
    log_probabilities = policy.log_probabilities(logits, actions)
    return losses.a3c_losses(
        log_probabilities, policy.entropies(logits), values, returns, **settings
    )


def numpy_losses(
    logits: np.ndarray,
    values: np.ndarray,
    actions: np.ndarray,
    returns: np.ndarray,
    entropy_bonus: float,
    value_loss_coef: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Policy loss, value loss and entropy of each step and environment, in float64."""
    logits = logits.astype(np.float64)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    p = np.exp(log_p)
    entropy = -np.where(p > 0, p * log_p, 0).sum(axis=-1)
    advantages = returns.astype(np.float64) - values
    taken = np.take_along_axis(log_p, actions[..., None], axis=-1)[..., 0]
    return (
        -taken * advantages - entropy_bonus * entropy,
        value_loss_coef * 0.5 * advantages**2,
        entropy,
    )


@pytest.mark.parametrize("scale", [0.01, 1, 30, 1000])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_losses_equal_plain_numpy(scale: float, reduction: str) -> None:
    """Parity: every loss against float64, for logits up to ±1000, where gradients are finite too."""
    inputs = example(scale)
    logits = tf.constant(inputs[0])
    with tf.GradientTape() as tape:
        tape.watch(logits)
        result = losses_of(
            logits, *inputs[1:], entropy_bonus=0.3, value_loss_coef=0.7, loss_reduction=reduction
        )
    assert np.isfinite(tape.gradient(result.combined, logits)).all()
    of_policy, value, entropy = numpy_losses(*inputs, 0.3, 0.7)
    reduce = {"mean": np.mean, "sum": np.sum}[reduction]
    np.testing.assert_allclose(result.policy, reduce(of_policy), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(result.value, reduce(value), rtol=1e-5)
    np.testing.assert_allclose(
        result.combined, reduce(of_policy) + reduce(value), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(result.entropy, entropy.mean(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(result.advantages, inputs[3] - inputs[1], rtol=1e-6)


def test_the_entropy_bonus_pushes_towards_uniform() -> None:
    """Analytic: with no advantage, the gradient of −β·H is β·π·(log π + H)."""
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
    """Analytic: the policy loss is flat in the values, the value loss in the logits, both in the returns."""
    logits, values, actions, returns = (tf.constant(x) for x in example(1))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([logits, values, returns])
        result = losses_of(logits, values, actions, returns)
    assert tape.gradient(result.policy, values) is None
    assert tape.gradient(result.value, logits) is None
    assert tape.gradient(result.combined, returns) is None
    # Negative control: the gradients that there are to be are there.
    assert np.abs(tape.gradient(result.policy, logits)).min() > 0
    assert np.abs(tape.gradient(result.value, values)).min() > 0


def test_sum_is_mean_times_steps_and_environments() -> None:
    """Analytic: every loss and every gradient differ by T·K; entropy and advantages do not."""
    logits, values, actions, returns = (tf.constant(x) for x in example(1))
    results, gradients = [], []
    for reduction in ("mean", "sum"):
        with tf.GradientTape() as tape:
            tape.watch([logits, values])
            result = losses_of(logits, values, actions, returns, loss_reduction=reduction)
        results.append(result)
        gradients.append(tape.gradient(result.combined, [logits, values]))
    n = N_STEPS * N_ENVS
    mean, total = results
    for name in ("policy", "value", "combined"):
        np.testing.assert_allclose(getattr(total, name), n * getattr(mean, name), rtol=1e-5)
    for of_mean, of_sum in zip(*gradients, strict=True):
        np.testing.assert_allclose(of_sum, n * of_mean, rtol=1e-5)
    np.testing.assert_array_equal(mean.entropy, total.entropy)
    np.testing.assert_array_equal(mean.advantages, total.advantages)
