"""RMSProp, clipping and the schedule against float64 loops and numbers worked out by hand."""

from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow as tf

from a3c.agent import optimizer
from a3c.agent.shared import SharedState
from a3c.settings.params import Params


def rmsprop(
    theta: np.ndarray,
    mean_square: np.ndarray,
    gradients: Sequence[np.ndarray],
    rate: float,
    decay: float,
    epsilon: float,
) -> tuple[np.ndarray, np.ndarray]:
    """What the module does, compiled as in training, for a row of gradients."""
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


def numpy_rmsprop(
    theta: np.ndarray,
    m: np.ndarray,
    gradients: Sequence[np.ndarray],
    rate: float,
    decay: float,
    epsilon: float,
    epsilon_outside: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Paper §4, equations 8 and 9, in float64; or its lookalike with ε added to the root."""
    theta, m = theta.astype(np.float64), m.astype(np.float64)
    for g in gradients:
        m = decay * m + (1 - decay) * g.astype(np.float64) ** 2
        root = np.sqrt(m) + epsilon if epsilon_outside else np.sqrt(m + epsilon)
        theta = theta - rate * g / root
    return theta, m


SHAPE = (6, 5)


def many_gradients(n: int = 1000) -> np.ndarray:
    """Sizes from 1e-5 to 1, so that ε is now negligible and now everything."""
    generator = np.random.default_rng(0)
    sizes = 10.0 ** generator.uniform(-5, 0, SHAPE)
    return (sizes * generator.standard_normal((n, *SHAPE))).astype(np.float32)


@pytest.mark.parametrize("start", [0.0, 1.0])
@pytest.mark.parametrize(("decay", "epsilon"), [(0.99, 1e-5), (0.99, 0.1), (0.9, 1e-8)])
def test_a_thousand_steps_equal_the_formula(start: float, decay: float, epsilon: float) -> None:
    """Parity: weights and statistics after 1,000 steps, from m = 0 and from m = 1, against float64."""
    theta = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    m = np.full(SHAPE, start, np.float32)
    gradients = many_gradients()
    actual, actual_m = rmsprop(theta, m, gradients, 1e-3, decay, epsilon)
    expected, expected_m = numpy_rmsprop(theta, m, gradients, 1e-3, decay, epsilon)
    np.testing.assert_allclose(actual_m, expected_m, rtol=1e-3, atol=1e-12)
    np.testing.assert_allclose(actual - theta, expected - theta, rtol=1e-3, atol=1e-4)
    # Negative control: the other formula is told apart by these tolerances.
    other, _ = numpy_rmsprop(theta, m, gradients, 1e-3, decay, epsilon, epsilon_outside=True)
    assert not np.allclose(other - theta, expected - theta, rtol=1e-3, atol=1e-4)


def test_epsilon_is_inside_the_root() -> None:
    """Analytic: with m = 0 and g = 1e-4, ε inside the root bounds the step, and outside it does not."""
    theta, m, gradients = np.zeros(SHAPE), np.zeros(SHAPE), [np.full(SHAPE, 1e-4)]
    actual, _ = rmsprop(theta, m, gradients, 1.0, 0.99, 0.1)
    np.testing.assert_allclose(actual, np.full(SHAPE, -1e-4 / np.sqrt(1e-10 + 0.1)), rtol=1e-6)
    # Negative control: the other formula takes another step.
    outside, _ = numpy_rmsprop(theta, m, gradients, 1.0, 0.99, 0.1, epsilon_outside=True)
    assert np.all(np.abs(outside / actual) > 3)


@pytest.mark.parametrize("seed", range(3))
def test_clipping_equals_plain_numpy(seed: int) -> None:
    """Parity: norms of a network's shapes, over and under the limit, in float64."""
    generator = np.random.default_rng(seed)
    gradients = [
        generator.standard_normal(shape).astype(np.float32)
        for shape in ((8, 8, 4, 16), (16,), (3,))
    ]
    norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in gradients))
    for limit in (0.5 * norm, 2 * norm):
        factor, actual_norm = optimizer.clipping_factor(gradients, limit)
        np.testing.assert_allclose(actual_norm, norm, rtol=1e-5)
        np.testing.assert_allclose(factor, min(1, limit / norm), rtol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_is_never_applied(bad: float) -> None:
    """Analytic: one bad entry in the last array raises, and no weight and no statistic has moved."""
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
    # Negative control: the same call with a finite entry moves everything.
    gradients["b"][-1] = 1
    apply({name: tf.constant(g) for name, g in gradients.items()}, tf.constant(0.1), local)
    for name in start:
        assert np.all(shared.weights[name].numpy() < start[name])
