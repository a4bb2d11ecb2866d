"""What is fast gives what is plain; tests/agent/network_test.py has the layers and their gradients."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from a3c.agent import calls, kernels, network, optimizer, policy
from a3c.agent.learner import Learner
from a3c.agent.shared import SharedState
from a3c.settings.params import Params
from tests.tools.agents import FORGETFUL, subject_of
from tests.tools.crews import (
    IMAGE_SHAPES,
    IMAGE_SUBJECT,
    SUBJECT,
    make_shared,
    numpy_weights,
    params_with,
    random_rollout,
)

# Activations that acting has computed


@pytest.mark.parametrize(("name", "lstm_units"), [("nature", 0), ("small", 0), ("small", 8)])
def test_computed_activations_give_the_same_gradients(name: str, lstm_units: int) -> None:
    """Analytic: to the bit. Other activations give other gradients, so they are not computed again."""
    subject = subject_of(name, (84, 84, 4), 4, lstm_units=lstm_units)
    memory = kernels.Memory(tf.zeros((1, network.state_size(subject))), tf.ones((3, 1)))
    shapes = network.weight_shapes(subject)
    weights = network.initial_weights(shapes, "torch", np.random.default_rng(0))
    weights = {key: tf.constant(value) for key, value in weights.items()}
    x = tf.constant(np.random.default_rng(1).integers(0, 256, (3, 84, 84, 4)), tf.uint8)
    activations: kernels.Activations = {}

    def gradients(computed: kernels.Activations | None) -> dict[str, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(weights)
            predictions = kernels.forward(subject, weights, x, memory, computed)
            loss = tf.reduce_sum(tf.sin(predictions.outputs)) + tf.reduce_sum(predictions.values**2)
        activations.update(predictions.activations)
        return tape.gradient(loss, weights)

    expected = gradients(None)
    actual = gradients(dict(activations))
    doubled = gradients({key: 2 * value for key, value in activations.items()})
    for key in expected:
        np.testing.assert_array_equal(actual[key], expected[key], err_msg=key)
        assert not np.array_equal(doubled[key], expected[key]), key


# Products


def factors(seed: int, n_rows: int = 5) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return tuple(generator.standard_normal((n_rows, n)).astype(np.float32) for n in (7, 3))


def test_a_product_stands_for_what_it_gives_multiplied() -> None:
    """Parity: its entries and its norm, in float64."""
    left, right = factors(0)
    product = kernels.Product(tf.constant(left), tf.constant(right))
    whole = left.T.astype(np.float64) @ right.astype(np.float64)
    np.testing.assert_allclose(kernels.multiplied(product), whole, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(product.squared_norm(), (whole**2).sum(), rtol=1e-5)
    with pytest.raises(ValueError, match="longer"):
        kernels.multiplied(product._replace(left=product.left[:-1]))


def test_rows_that_cancel_leave_no_norm_below_zero() -> None:
    """Analytic: each row occurs with both signs, so that rounding makes the squared norm negative."""
    for seed in range(20):
        left, right = factors(seed)
        product = kernels.Product(
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
    for gradient in (whole, kernels.Product(tf.constant(left), tf.constant(right))):
        start = {"kernel": np.ones((7, 3), np.float32), "bias": np.ones(3, np.float32)}
        params = Params("x", rmsprop_initial=0.0, rmsprop_epsilon=1e-3, max_grad_norm=0.5)
        shared = SharedState(start, params)
        local = {name: tf.Variable(value) for name, value in start.items()}
        gradients = {"kernel": gradient, "bias": tf.constant([1.0, 2.0, 3.0])}
        norm, _ = tf.function(shared.apply)(gradients, tf.constant(0.1), local)
        variables = {**shared.weights, **{f"{k}_": v for k, v in shared.mean_squares.items()}}
        after.append([norm, *variables.values(), local["kernel"].numpy()])
    for one, other in zip(*after, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_the_dense_layer_below_an_lstm_has_a_product_too() -> None:
    """Parity: the gradient of every weight of `small` with an LSTM, over three steps, by TensorFlow's tape alone."""
    subject = subject_of("small", (84, 84, 4), 4, lstm_units=8)
    shapes = network.weight_shapes(subject)
    drawn = network.initial_weights(shapes, "torch", np.random.default_rng(0))
    weights = {name: tf.constant(array) for name, array in drawn.items()}
    images = np.random.default_rng(1).integers(0, 256, (3, 84, 84, 4)).astype(np.uint8)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(weights)
        memory = kernels.Memory(tf.fill((1, 16), 0.5), tf.constant([[1.0], [0.0], [1.0]]))
        predictions = kernels.forward(subject, weights, tf.constant(images), memory)
        loss = tf.reduce_sum(tf.sin(predictions.outputs)) + tf.reduce_sum(predictions.values**2)
    assert [*predictions.activations] == ["conv1", "conv2", "dense", "lstm"]
    ours = kernels.gradients(tape, loss, weights, predictions.activations)
    assert [name for name in ours if isinstance(ours[name], kernels.Product)] == ["dense_kernel"]
    for name, expected in tape.gradient(loss, weights).items():
        assert np.abs(expected).max() > 1e-6, name
        found = kernels.multiplied(ours[name])
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-7, err_msg=name)


def test_a_variance_near_zero_has_a_limit() -> None:
    """Analytic: the log of the standard deviation ends at the same limit as a free one."""
    layers = kernels.Layers({}, FORGETFUL)
    made = layers.with_log_sd_of_variance(tf.zeros((2, 1)), tf.constant([[-1e3], [-1e30]]))
    np.testing.assert_allclose(made, [[0, -policy.LIMIT_OF_LOG_SD]] * 2, rtol=1e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_product_that_is_not_finite_is_never_applied(bad: float) -> None:
    """Analytic: the norm's lower bound of 0 does not hide it."""
    left, right = factors(2)
    left[0, 0] = bad
    with pytest.raises(tf.errors.InvalidArgumentError, match="gradient not finite :"):
        optimizer.clipping_factor([kernels.Product(tf.constant(left), tf.constant(right))], 1.0)


# Calls


@pytest.mark.parametrize("no_xla", [True, False])
def test_bound_functions_do_what_traced_ones_do(no_xla: bool) -> None:
    """Parity: acting and learning without TensorFlow's handling of arguments and with it, to the bit."""
    rollout = random_rollout(3, images=True)
    moved = []
    for bind in (calls.bound, functools.partial):
        shared = make_shared(100, shapes=IMAGE_SHAPES, rmsprop_epsilon=0.1)
        params = params_with(network="small", no_xla=no_xla)
        learner = Learner(shared, params, IMAGE_SUBJECT, rollout.observations)
        local = {name: tf.Variable(weight) for name, weight in shared.weights.items()}
        act, learn = bind(learner.act, local), bind(learner.learn, local)
        acted = [act(seen, rollout.states[0]) for seen in rollout.observations[:-1]]
        norm, *_ = learn(rollout, np.float32(0.01), [activations for _, activations in acted])
        figures = {"outputs": acted[0][0].numpy(), "norm": norm.numpy()}
        figures |= {name: x.numpy() for name, x in acted[0][1].items()}
        moved.append(figures | numpy_weights(local))
    assert moved[0]["norm"] > 0
    for name, expected in moved[1].items():
        np.testing.assert_array_equal(moved[0][name], expected, err_msg=name)


def test_without_the_private_name_a_function_is_called_as_usual() -> None:
    """Analytic: and where TensorFlow has the name, it is used, or the fast way could get lost unseen."""

    def renamed(weights: int, x: int) -> int:
        return weights + x

    assert calls.bound(renamed, 1)(2) == calls.bound(renamed)(1, 2) == 3
    learner = Learner(make_shared(100), params_with(), SUBJECT, random_rollout(3).observations)
    assert calls.bound(learner.learn) is not learner.learn
