"""RMSProp and clipping against the oracle and numbers worked out by hand."""

from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow as tf

from a3c.agent import optimizer
from a3c.agent.shared import SharedState
from a3c.settings.params import Params
from tests.tools import oracle


def rmsprop(
    theta: np.ndarray,
    mean_square: np.ndarray,
    gradients: Sequence[np.ndarray],
    rate: float,
    decay: float,
    epsilon: float,
) -> tuple[np.ndarray, np.ndarray]:
    """One step for each gradient, compiled as in training."""
    step = tf.function(optimizer.rmsprop_step, jit_compile=True)
    theta, mean_square = tf.constant(theta, tf.float32), tf.constant(mean_square, tf.float32)
    for gradient in gradients:
        theta, mean_square = step(
            theta,
            mean_square,
            tf.constant(gradient, tf.float32),
            learning_rate=tf.constant(rate),
            decay=decay,
            epsilon=epsilon,
        )
    return theta.numpy(), mean_square.numpy()


SHAPE = (6, 5)


@pytest.mark.parametrize("start", [0.0, 1.0])
@pytest.mark.parametrize(("decay", "epsilon"), [(0.99, 1e-5), (0.99, 0.1), (0.9, 1e-8)])
def test_a_thousand_steps_equal_the_formula(start: float, decay: float, epsilon: float) -> None:
    """Parity: weights and statistics by the oracle, from m = 0 and from m = 1. Gradients have sizes from 1e-5 to 1,
    so that ε is negligible for some of them and decides for others."""
    generator = np.random.default_rng(0)
    sizes = 10.0 ** generator.uniform(-5, 0, SHAPE)
    gradients = (sizes * generator.standard_normal((1000, *SHAPE))).astype(np.float32)
    theta = generator.standard_normal(SHAPE).astype(np.float32)
    expected, expected_m = theta.astype(np.float64), np.full(SHAPE, start)
    actual, actual_m = rmsprop(theta, expected_m, gradients, 1e-3, decay, epsilon)
    for gradient in gradients.astype(np.float64):
        expected, expected_m = oracle.rmsprop(expected, expected_m, gradient, 1e-3, decay, epsilon)
    np.testing.assert_allclose(actual_m, expected_m, rtol=1e-3, atol=1e-12)
    np.testing.assert_allclose(actual - theta, expected - theta, rtol=1e-3, atol=1e-4)


def test_epsilon_is_inside_the_root() -> None:
    """Analytic: with m = 0, α = 0.99, ε = 0.1 and g = 1e-4; outside the root, the step would be three times as long."""
    theta, m, gradients = np.zeros(SHAPE), np.zeros(SHAPE), [np.full(SHAPE, 1e-4)]
    actual, _ = rmsprop(theta, m, gradients, 1.0, 0.99, 0.1)
    np.testing.assert_allclose(actual, np.full(SHAPE, -1e-4 / np.sqrt(1e-10 + 0.1)), rtol=1e-6)
    assert np.all(np.abs(-1e-4 / (1e-5 + 0.1) / actual) > 3)


@pytest.mark.parametrize("seed", range(3))
def test_clipping_equals_plain_numpy(seed: int) -> None:
    """Parity: a norm above and below the limit, by the oracle."""
    generator = np.random.default_rng(seed)
    gradients = [
        generator.standard_normal(shape).astype(np.float32)
        for shape in ((8, 8, 4, 16), (16,), (3,))
    ]
    in_float64 = {str(i): g.astype(np.float64) for i, g in enumerate(gradients)}
    norm = oracle.global_norm(in_float64)
    for limit in (0.5 * norm, 2 * norm):
        factor, actual_norm = optimizer.clipping_factor(gradients, limit)
        np.testing.assert_allclose(actual_norm, norm, rtol=1e-5)
        clipped = oracle.clip_by_global_norm(in_float64, limit)
        for gradient, expected in zip(gradients, clipped.values(), strict=True):
            np.testing.assert_allclose(factor * gradient, expected, rtol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_is_never_applied(bad: float) -> None:
    """Analytic: one bad entry in the last array raises, and neither weights nor statistics move."""
    start = {"a": np.ones((2, 3), np.float32), "b": np.ones(4, np.float32)}
    shared = SharedState(start, Params("x", rmsprop_epsilon=0.1, max_grad_norm=40.0))
    apply = tf.function(shared.apply)
    local = {name: tf.Variable(value) for name, value in start.items()}
    gradients = {"a": np.ones((2, 3), np.float32), "b": np.array([1, 1, 1, bad], np.float32)}
    with pytest.raises(tf.errors.InvalidArgumentError, match="gradient not finite :"):
        apply({name: tf.constant(g) for name, g in gradients.items()}, tf.constant(0.1), local)
    for name in start:
        np.testing.assert_array_equal(shared.weights[name], start[name])
        np.testing.assert_array_equal(shared.mean_squares[name], np.ones_like(start[name]))
    # Negative control: with a finite entry, the same call moves everything.
    gradients["b"][-1] = 1
    apply({name: tf.constant(g) for name, g in gradients.items()}, tf.constant(0.1), local)
    for name in start:
        assert np.all(shared.weights[name] < start[name])
