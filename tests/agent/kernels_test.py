"""What is fast gives what is plain: layers and whole networks, gradients, products, calls."""

import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from a3c.agent import kernels, network, optimizer
from a3c.agent.learner import Learner
from a3c.agent.shared import SharedState
from a3c.settings.params import Params
from tests.tools.crews import make_shared, numpy_weights, params_with, random_rollout

# Whole networks


@functools.cache
def whole(name: str, n_rows: int = 3) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Weights of a network, biases too, and observations."""
    shape = (5,) if name == "mlp" else (84, 84, 4)
    shapes = network.weight_shapes(name, shape, 4)
    weights = network.initial_weights(shapes, "torch", np.random.default_rng(0))
    seen = np.random.default_rng(1).integers(0, 256, (n_rows, *shape))
    x = tf.constant(seen / 100, tf.float32) if name == "mlp" else tf.constant(seen, tf.uint8)
    return {key: tf.constant(value) for key, value in weights.items()}, x


def outcome(
    name: str, layers: Callable[[kernels.Weights], Any]
) -> tuple[network.Predictions, dict[str, tf.Tensor]]:
    """The forward pass, and the gradients of a curved function of it."""
    weights, x = whole(name)
    with tf.GradientTape() as tape:
        tape.watch(weights)
        predictions = network.forward(name, weights, x, layers)
        loss = tf.reduce_sum(tf.sin(predictions.logits)) + tf.reduce_sum(predictions.values**2)
    return predictions, tape.gradient(loss, weights)


def assert_close(ours: tf.Tensor, theirs: tf.Tensor, name: str) -> None:
    largest = np.abs(theirs).max()
    assert largest > 1e-4, name
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5 * largest, err_msg=name)


@pytest.mark.parametrize("name", ["nature", "small", "mlp"])
def test_a_fast_network_is_the_plain_one(name: str) -> None:
    """Parity: logits, values, every hidden layer and the gradient of every weight, from TensorFlow's
    own operations and gradients, and from ours.
    """
    (fast, gradients), (plain, expected) = (
        outcome(name, layers) for layers in (kernels.Layers, network.Plain)
    )
    assert_close(fast.logits, plain.logits, "logits")
    assert_close(fast.values, plain.values, "values")
    assert list(fast.activations) == list(plain.activations)
    for layer, activations in plain.activations.items():
        assert_close(fast.activations[layer], activations, layer)
    for key, gradient in expected.items():
        assert_close(gradients[key], gradient, key)


@pytest.mark.parametrize("name", ["nature", "small", "mlp"])
def test_known_activations_give_the_same_gradients(name: str) -> None:
    """Analytic: to the bit, of the whole network; other activations would give others, so that they
    are not computed again.
    """
    predictions, expected = outcome(name, kernels.Layers)
    known = predictions.activations
    _, actual = outcome(name, functools.partial(kernels.Layers, known=known))
    twice = {key: 2 * value for key, value in known.items()}
    _, doubled = outcome(name, functools.partial(kernels.Layers, known=twice))
    for key in expected:
        np.testing.assert_array_equal(actual[key], expected[key], err_msg=key)
        assert not np.array_equal(doubled[key], expected[key]), key


def test_a_convolution_that_is_not_square_has_tensorflows_gradients() -> None:
    """Parity: values and all three gradients: nothing may take its width for its height."""
    draw = np.random.default_rng(5).standard_normal
    shapes = ((3, 20, 12, 16), (4, 4, 16, 32), (32,))
    inputs = [tf.constant(draw(shape) / 8, tf.float32) for shape in shapes]
    found = []
    for layers in (kernels.Layers, network.Plain):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            x, kernel, bias = inputs
            y = layers({"c_kernel": kernel, "c_bias": bias}).conv("c", x, 32, 4, 2)
            loss = tf.reduce_sum(tf.sin(y))
        found.append([y, *tape.gradient(loss, inputs)])
    for i, (ours, theirs) in enumerate(zip(*found, strict=True)):
        assert_close(ours, theirs, str(i))


# Products


def factors(seed: int, n_rows: int = 5) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return tuple(generator.standard_normal((n_rows, n)).astype(np.float32) for n in (7, 3))


def test_a_product_stands_for_what_it_gives_multiplied_out() -> None:
    """Parity: its entries and its norm, in float64."""
    left, right = factors(0)
    product = kernels.Product(tf.constant(left), tf.constant(right))
    whole = left.T.astype(np.float64) @ right.astype(np.float64)
    np.testing.assert_allclose(kernels.multiplied(product), whole, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(product.squared_norm(), (whole**2).sum(), rtol=1e-5)
    with pytest.raises(ValueError, match="longer"):
        kernels.multiplied(product._replace(left=product.left[:-1]))


def test_rows_that_cancel_leave_no_norm_below_zero() -> None:
    """Analytic: each row is there with either sign; the root of less than nothing is no number."""
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
        optimizer.clipping_factor([kernels.Product(tf.constant(left), tf.constant(right))], 1.0)


# Calls


class WithoutPrivateNames:
    """A traced function, as a TensorFlow would have it in which one of our names is gone."""

    def __init__(self, function: Any, missing: str) -> None:
        self._function, self._missing = function, missing

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __getattr__(self, name: str) -> Any:
        if name == self._missing:
            raise AttributeError(name)
        # What has lost its `call_flat` is as good as anything.
        return types.SimpleNamespace() if name == "inference_fn" else getattr(self._function, name)


@pytest.mark.parametrize("no_xla", [True, False])
@pytest.mark.parametrize("missing", [None, "inference_fn", "call_flat"])
def test_bound_functions_do_what_traced_ones_do(no_xla: bool, missing: str | None) -> None:
    """Differential: acting and learning past TensorFlow's handling of arguments and with it, to the
    bit; also where a private name is missing.
    """
    rollout = random_rollout(3)
    moved = []
    for bind in (kernels.bound, functools.partial):
        shared = make_shared(100, rmsprop_epsilon=0.1)
        learner = Learner(shared, params_with(no_xla=no_xla), rollout.observations)
        local = {name: tf.Variable(weight) for name, weight in shared.weights.items()}
        act, learn = learner.act, learner.learn
        if missing and bind is kernels.bound:
            act, learn = (WithoutPrivateNames(function, missing) for function in (act, learn))
        act, learn = bind(act, local), bind(learn, local)
        acted = [act(seen) for seen in rollout.observations[:-1]]
        norm = learn(rollout, np.float32(0.01), [activations for _, activations in acted])
        figures = {"outputs": acted[0][0].numpy(), "norm": norm.numpy()}
        figures |= {name: x.numpy() for name, x in acted[0][1].items()}
        moved.append(figures | numpy_weights(local))
    assert moved[0]["norm"] > 0
    for name, expected in moved[1].items():
        np.testing.assert_array_equal(moved[0][name], expected, err_msg=name)


def test_calls_go_past_the_handling_of_arguments_where_they_can() -> None:
    """Analytic: or the other way would be taken for ever, and nobody would learn of it."""
    learner = Learner(make_shared(100), params_with(), random_rollout(3).observations)
    assert not isinstance(kernels.bound(learner.act, {}), functools.partial)
