"""RMSProp, clipping and the schedule against float64 loops and numbers worked out by hand."""

from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow as tf

from a3c.agent import optimizer
from a3c.agent.shared import Counters, SharedState


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


def test_first_step_from_each_start() -> None:
    """Analytic: g = 3, α = 0.99, ε = 0: m is 0.09 from 0 and 1.08 from 1, and the steps −10η and −3η/√1.08."""
    for start, m, step in ((0.0, 0.09, -10.0), (1.0, 1.08, -3 / 1.08**0.5)):
        theta, mean_square = rmsprop(
            np.zeros(2), np.full(2, start), [np.full(2, 3.0)], rate=0.5, decay=0.99, epsilon=0.0
        )
        np.testing.assert_allclose(mean_square, [m, m], rtol=1e-5)
        np.testing.assert_allclose(theta, [0.5 * step] * 2, rtol=1e-5)


GRADIENTS = (np.array([[3.0, 0.0], [0.0, -4.0]]), np.array([12.0]))  # joint norm 13


@pytest.mark.parametrize(
    ("limit", "factor"), [(6.5, 0.5), (13.0, 1.0), (26.0, 1.0), (13 * 2**-10, 2**-10)]
)
def test_clipping_scales_all_arrays_by_one_factor(limit: float, factor: float) -> None:
    """Analytic: 3, 4 and 12 have the norm 13, below, at and above the limit."""
    actual, norm = optimizer.clipping_factor([tf.constant(g, tf.float32) for g in GRADIENTS], limit)
    np.testing.assert_allclose(norm, 13.0, rtol=1e-6)
    np.testing.assert_allclose(actual, factor, rtol=1e-6)


def test_clipping_leaves_a_zero_gradient_alone() -> None:
    """Analytic: the norm 0 is no division by zero."""
    factor, norm = optimizer.clipping_factor([tf.zeros((2, 2)), tf.zeros(3)], 0.5)
    assert norm == 0
    assert factor == 1


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


def factors(seed: int, n_rows: int = 5) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return tuple(generator.standard_normal((n_rows, n)).astype(np.float32) for n in (7, 3))


def test_a_product_stands_for_what_it_gives_multiplied_out() -> None:
    """Parity: its entries and its norm, in float64."""
    left, right = factors(0)
    product = optimizer.Product(tf.constant(left), tf.constant(right))
    whole = left.T.astype(np.float64) @ right.astype(np.float64)
    np.testing.assert_allclose(product.multiplied(), whole, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(product.squared_norm(), (whole**2).sum(), rtol=1e-5)
    with pytest.raises(ValueError, match="longer"):
        product._replace(left=product.left[:-1]).multiplied()


def test_rows_that_cancel_leave_no_norm_below_zero() -> None:
    """Analytic: each row is there with either sign; the root of less than nothing is no number."""
    for seed in range(20):
        left, right = factors(seed)
        product = optimizer.Product(
            tf.constant(np.concatenate([left, left])), tf.constant(np.concatenate([right, -right]))
        )
        assert 0 <= product.squared_norm() < 1e-3
        _, norm = optimizer.clipping_factor([tf.zeros(2), product], 1.0)
        assert norm < 0.05


def test_a_product_is_clipped_and_applied_as_the_whole_is() -> None:
    """Parity: norm, weights, statistics and copy after an update that clips, beside another array's."""
    left, right = factors(1)
    whole = tf.constant(left.T @ right)
    after = []
    for gradient in (whole, optimizer.Product(tf.constant(left), tf.constant(right))):
        start = {"kernel": np.ones((7, 3), np.float32), "bias": np.ones(3, np.float32)}
        shared = SharedState(
            start,
            rmsprop_initial=0.0,
            rmsprop_decay=0.9,
            rmsprop_epsilon=1e-3,
            max_grad_norm=0.5,
            counters=Counters(100),
        )
        local = {name: tf.Variable(value) for name, value in start.items()}
        gradients = {"kernel": gradient, "bias": tf.constant([1.0, 2.0, 3.0])}
        norm = tf.function(shared.apply)(gradients, tf.constant(0.1), local)
        variables = {**shared.weights, **{f"{k}_": v for k, v in shared.mean_squares.items()}}
        after.append([norm, *(v.numpy() for v in variables.values()), local["kernel"].numpy()])
    for one, other in zip(*after, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_product_that_is_not_finite_is_never_applied(bad: float) -> None:
    """Analytic: as of any gradient; its norm's lower bound hides nothing."""
    left, right = factors(2)
    left[0, 0] = bad
    with pytest.raises(tf.errors.InvalidArgumentError, match="gradient not finite :"):
        optimizer.clipping_factor([optimizer.Product(tf.constant(left), tf.constant(right))], 1.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_is_never_applied(bad: float) -> None:
    """Analytic: one bad entry in the last array raises, and no weight and no statistic has moved."""
    start = {"a": np.ones((2, 3), np.float32), "b": np.ones(4, np.float32)}
    shared = SharedState(
        start,
        rmsprop_initial=1.0,
        rmsprop_decay=0.9,
        rmsprop_epsilon=0.1,
        max_grad_norm=40.0,
        counters=Counters(100),
    )
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


def test_learning_rate_without_an_end_is_constant() -> None:
    """Analytic: the same number at every step."""
    assert [optimizer.learning_rate(7e-4, n, None) for n in (0, 1, 10**9)] == [7e-4] * 3


def test_learning_rate_falls_to_zero_in_a_line_and_stays() -> None:
    """Analytic: all of it at step 0, ¾, ½ and ¼ at the quarters, nothing from the end on."""
    rates = [optimizer.learning_rate(0.8, n, 1000) for n in (0, 250, 500, 750, 1000, 1001, 10**9)]
    np.testing.assert_allclose(rates, [0.8, 0.6, 0.4, 0.2, 0, 0, 0], rtol=1e-12)
