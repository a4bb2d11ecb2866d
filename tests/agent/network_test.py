"""The networks against hand counts and plain NumPy; the initial weights against their distributions."""

import numpy as np
import pytest
import tensorflow as tf

from a3c.agent import network
from tests.tools import oracle

IMAGE = (84, 84, 4)


def random_weights(
    name: str, observation_shape: tuple[int, ...], n_actions: int, seed: int = 0
) -> dict[str, np.ndarray]:
    """Weights that make every layer's output about as large as its input; biases are not zero."""
    generator = np.random.default_rng(seed)
    weights = {}
    for key, shape in network.weight_shapes(name, observation_shape, n_actions).items():
        scale = np.sqrt(2 / np.prod(shape[:-1])) if key.endswith("kernel") else 0.1
        weights[key] = (scale * generator.standard_normal(shape)).astype(np.float32)
    return weights


@pytest.mark.parametrize(("name", "seen"), [("nature", IMAGE), ("small", IMAGE), ("mlp", (4,))])
def test_weights_have_the_shapes_of_the_published_networks(
    name: str, seen: tuple[int, ...]
) -> None:
    """Parity: the oracle's, whose own test counts them by hand; in the order of the forward pass."""
    assert list(network.weight_shapes(name, seen, 6).items()) == list(
        oracle.weight_shapes(name, seen, 6).items()
    )


def assert_computes_what_the_oracle_does(name: str, observations: np.ndarray) -> None:
    """Logits, values and every hidden layer."""
    weights = random_weights(name, observations.shape[1:], 6)
    predictions = network.forward(name, weights, tf.constant(observations))
    expected = oracle.forward(
        name, {n: w.astype(np.float64) for n, w in weights.items()}, observations
    )
    assert predictions.logits.shape == (len(observations), 6)
    assert predictions.values.shape == (len(observations),)
    found = predictions.activations | {
        "policy": predictions.logits,
        "value": predictions.values[:, None],
    }
    for layer, x in found.items():
        np.testing.assert_allclose(x, expected[layer].reshape(x.shape), rtol=1e-4, atol=1e-5)
    for layer in predictions.activations:
        assert 0.1 < (expected[layer] > 0).mean() < 0.9  # or a rectifier would not be tested


@pytest.mark.parametrize("name", ["nature", "small"])
def test_image_networks_compute_what_plain_numpy_computes(name: str) -> None:
    """Parity: two images."""
    images = np.random.default_rng(1).integers(0, 256, (2, *IMAGE), dtype=np.uint8)
    assert_computes_what_the_oracle_does(name, images)


def test_mlp_computes_what_plain_numpy_computes() -> None:
    """Parity: five vectors."""
    vectors = np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32)
    assert_computes_what_the_oracle_does("mlp", vectors)


@pytest.mark.parametrize("scheme", ["glorot", "torch"])
@pytest.mark.parametrize(("name", "shape"), [("nature", IMAGE), ("small", IMAGE), ("mlp", (4,))])
def test_a_uniform_scheme_fills_its_interval_evenly(
    name: str, shape: tuple[int, ...], scheme: str
) -> None:
    """Analytic: glorot within ±√(6/(fan_in+fan_out)), biases 0; torch within ±1/√fan_in of the layer,
    biases too; mean 0, variance limit²/3.
    """
    shapes = network.weight_shapes(name, shape, 6)
    weights = network.initial_weights(shapes, scheme, np.random.default_rng(5))
    assert {key: w.shape for key, w in weights.items()} == shapes
    for key, values in weights.items():
        assert values.dtype == np.float32
        fan_in, fan_out = fan_in_and_out(shapes[key.replace("bias", "kernel")])
        if scheme == "torch":
            assert_uniform(values, fan_in**-0.5)
        elif key.endswith("bias"):
            np.testing.assert_array_equal(values, 0)
        else:
            assert_uniform(values, (6 / (fan_in + fan_out)) ** 0.5)


def fan_in_and_out(shape: tuple[int, ...]) -> tuple[int, int]:
    area = int(np.prod(shape[:-2]))
    return area * shape[-2], area * shape[-1]


def assert_uniform(values: np.ndarray, limit: float) -> None:
    """Within ±limit; mean and variance within five standard errors of U(±limit)'s."""
    assert np.abs(values).max() <= limit * (1 + 1e-6)
    x = values.astype(np.float64).ravel() / limit
    assert abs(x.mean()) < 5 * (1 / 3 / x.size) ** 0.5
    assert (
        abs((x**2).mean() - 1 / 3) < 5 * (4 / 45 / x.size) ** 0.5
    )  # the variance of x² is 1/5 − 1/9


@pytest.mark.parametrize(("name", "shape"), [("nature", IMAGE), ("small", IMAGE), ("mlp", (4,))])
def test_orthogonal_is_orthonormal_times_its_gain(name: str, shape: tuple[int, ...]) -> None:
    """Analytic: the shorter side's products are gain² · identity; gains √2, 0.01 and 1; biases 0."""
    shapes = network.weight_shapes(name, shape, 6)
    if name == "nature":  # its one large layer takes seconds, and shows no more than small's
        shapes = {key: s for key, s in shapes.items() if not key.startswith("dense")}
    weights = network.initial_weights(shapes, "orthogonal", np.random.default_rng(7))
    assert {key: w.shape for key, w in weights.items()} == shapes
    for key, values in weights.items():
        assert values.dtype == np.float32
        if key.endswith("bias"):
            np.testing.assert_array_equal(values, 0)
            continue
        gain = {"policy_kernel": 0.01, "value_kernel": 1.0}.get(key, np.sqrt(2))
        matrix = values.reshape(-1, values.shape[-1]).astype(np.float64) / gain
        products = matrix.T @ matrix if matrix.shape[0] >= matrix.shape[1] else matrix @ matrix.T
        np.testing.assert_allclose(products, np.eye(len(products)), atol=1e-5, err_msg=key)


@pytest.mark.parametrize(("name", "shape"), [("small", IMAGE), ("mlp", (4,))])
def test_orthogonal_is_gram_schmidt_on_normal_draws(name: str, shape: tuple[int, ...]) -> None:
    """Parity: of each kernel's draws, a column for each column of its output (or row, where it has
    fewer), the first two by hand: so a seed goes on giving the weights that it gave.
    """
    shapes = network.weight_shapes(name, shape, 6)
    weights = network.initial_weights(shapes, "orthogonal", np.random.default_rng(3))
    generator = np.random.default_rng(3)
    for key, values in weights.items():
        if key.endswith("bias"):
            continue
        gain = {"policy_kernel": 0.01, "value_kernel": 1.0}.get(key, np.sqrt(2))
        matrix = values.reshape(-1, values.shape[-1]) / gain
        matrix = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
        drawn = generator.standard_normal(matrix.shape)
        first = drawn[:, 0] / np.linalg.norm(drawn[:, 0])
        np.testing.assert_allclose(matrix[:, 0], first, atol=1e-6, err_msg=key)
        if matrix.shape[1] > 1:
            second = drawn[:, 1] - first * (first @ drawn[:, 1])
            second /= np.linalg.norm(second)
            np.testing.assert_allclose(matrix[:, 1], second, atol=1e-6, err_msg=key)
