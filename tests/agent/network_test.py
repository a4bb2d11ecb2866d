"""The networks against the oracle; the initial weights against their distributions."""

from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf

from a3c.agent import kernels, network
from a3c.contract import Subject
from tests.tools import oracle
from tests.tools.agents import subject_of

IMAGE = (84, 84, 4)


def random_weights(subject: Subject) -> dict[str, np.ndarray]:
    """Weights, biases too, that make every layer's output about as large as its input."""
    generator = np.random.default_rng(0)
    weights = {}
    for key, shape in network.weight_shapes(subject).items():
        scale = np.sqrt(2 / np.prod(shape[:-1])) if key.endswith("kernel") else 0.1
        weights[key] = (scale * generator.standard_normal(shape)).astype(np.float32)
    return weights


@pytest.mark.parametrize(("name", "seen"), [("nature", IMAGE), ("small", IMAGE), ("mlp", (4,))])
def test_weights_have_the_shapes_of_the_published_networks(
    name: str, seen: tuple[int, ...]
) -> None:
    """Parity: the oracle's, which its own test counts by hand, in the order of the forward pass."""
    assert list(network.weight_shapes(subject_of(name, seen, 6)).items()) == list(
        oracle.weight_shapes(oracle.Network(name), seen, 6).items()
    )


@pytest.mark.parametrize(
    ("name", "n_units"), [("mlp", 24), ("small", 12), ("nature", 12), ("mlp", 0)]
)
def test_a_memory_has_h_and_c_of_each_unit(name: str, n_units: int) -> None:
    """Analytic: for vectors, policy and value have LSTMs of their own; and without an LSTM there is no state."""
    subject = subject_of(name, (4,) if name == "mlp" else IMAGE, 6, lstm_units=6 if n_units else 0)
    assert network.state_size(subject) == n_units


def test_a_network_that_a_program_replaces_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Analytic: until it is put back."""
    assert network.is_ours("small")
    with monkeypatch.context() as patch:
        patch.setitem(network.NETWORKS, "small", network.nature)
        assert not network.is_ours("small")
    assert network.is_ours("small")


def assert_close(ours: tf.Tensor, expected: np.ndarray, name: str) -> None:
    largest = np.abs(expected).max()
    assert largest > 1e-4, name
    expected = expected.reshape(ours.shape)
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5 * largest, err_msg=name)


def assert_computes_what_the_oracle_does(
    name: str, observations: np.ndarray, continues: np.ndarray | None = None
) -> None:
    """Logits, values, every hidden layer, and the gradient by each weight of Σ sin(logits) + Σ values².

    With `continues` (T, K), the networks have LSTMs, which begin with a state that is not zero.
    """
    n_units, n_envs = (0, 1) if continues is None else (5, continues.shape[1])
    subject = subject_of(name, observations.shape[1:], 6, lstm_units=n_units)
    weights = random_weights(subject)
    watched = {key: tf.constant(weight) for key, weight in weights.items()}
    state = np.random.default_rng(2).uniform(-0.9, 0.9, (n_envs, network.state_size(subject)))
    start = tf.constant(state, tf.float32)
    goes_on = None if continues is None else tf.constant(continues, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch([watched, start])
        memory = kernels.Memory(start, goes_on)
        predictions = kernels.forward(subject, watched, tf.constant(observations), memory)
        loss = tf.reduce_sum(tf.sin(predictions.outputs)) + tf.reduce_sum(predictions.values**2)
    assert predictions.outputs.shape == (len(observations), 6)
    assert predictions.values.shape == (len(observations),)

    ours = oracle.Network(name, lstm_units=n_units)
    in_float64 = {key: weight.astype(np.float64) for key, weight in weights.items()}
    expected = oracle.forward(ours, in_float64, observations, state, continues)
    heads = {"policy": predictions.outputs, "value": predictions.values}
    for layer, x in (predictions.activations | heads).items():
        assert_close(x, expected[layer], layer)
    for layer in predictions.activations:
        assert 0.1 < (expected[layer] > 0).mean() < 0.9  # or a rectifier would not be tested
    slopes = np.cos(expected["policy"]), 2 * expected["value"]
    gradients = oracle.backward(ours, in_float64, expected, *slopes, continues)
    of_weights, of_start = tape.gradient(loss, (watched, start))
    for key, gradient in of_weights.items():
        assert_close(gradient, gradients[key], key)
    if continues is not None:
        remembered = expected["state"][-n_envs:] * continues[-1][:, None]
        np.testing.assert_allclose(predictions.state, remembered, atol=1e-5)
        # To a rollout, the state that it begins with is a constant.
        assert of_start is None


@pytest.mark.parametrize("name", ["nature", "small"])
def test_image_networks_compute_what_plain_numpy_computes(name: str) -> None:
    """Parity: two images that are not square, so that height and width cannot change places."""
    images = np.random.default_rng(1).integers(0, 256, (2, 84, 68, 4), dtype=np.uint8)
    assert_computes_what_the_oracle_does(name, images)


def test_mlp_computes_what_plain_numpy_computes() -> None:
    """Parity: five vectors."""
    vectors = np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32)
    assert_computes_what_the_oracle_does("mlp", vectors)


@pytest.mark.parametrize(("name", "n_envs"), [("mlp", 1), ("mlp", 3), ("small", 3)])
def test_lstms_compute_what_plain_numpy_computes(name: str, n_envs: int) -> None:
    """Parity: five steps, back through time too. Two of them end an episode, one of them at the rollout's edge."""
    continues = np.ones((5, n_envs))
    continues[1, 0] = continues[4, -1] = 0
    generator = np.random.default_rng(1)
    if name == "mlp":
        seen = generator.standard_normal((5 * n_envs, 3)).astype(np.float32)
    else:
        seen = generator.integers(0, 256, (5 * n_envs, 84, 68, 4), dtype=np.uint8)
    assert_computes_what_the_oracle_does(name, seen, continues)


@pytest.mark.parametrize("scheme", ["glorot", "torch"])
@pytest.mark.parametrize(("name", "shape"), [("nature", IMAGE), ("small", IMAGE), ("mlp", (4,))])
def test_a_uniform_scheme_fills_its_interval_evenly(
    name: str, shape: tuple[int, ...], scheme: str
) -> None:
    """Analytic: glorot within ±√(6/(fan_in+fan_out)), biases 0; torch within ±1/√fan_in, biases too."""
    shapes = network.weight_shapes(subject_of(name, shape, 6))
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


def orthogonal(name: str, shape: tuple[int, ...]) -> Iterator[tuple[str, np.ndarray]]:
    """Each kernel of such a network as a matrix without its gain, with more rows than columns."""
    shapes = network.weight_shapes(subject_of(name, shape, 6))
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
        yield key, matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T


@pytest.mark.parametrize(("name", "shape"), [("nature", IMAGE), ("small", IMAGE), ("mlp", (4,))])
def test_orthogonal_is_gram_schmidt_on_normal_draws(name: str, shape: tuple[int, ...]) -> None:
    """Analytic: the columns of each kernel are orthonormal, times gains of √2, 0.01 and 1; biases are 0.

    Parity: the first two columns are those of the draws, made orthonormal by hand. So a seed goes on
    giving the same weights.
    """
    generator = np.random.default_rng(7)
    for key, matrix in orthogonal(name, shape):
        products = matrix.T @ matrix
        np.testing.assert_allclose(products, np.eye(len(products)), atol=1e-5, err_msg=key)
        drawn = generator.standard_normal(matrix.shape)
        first = drawn[:, 0] / np.linalg.norm(drawn[:, 0])
        np.testing.assert_allclose(matrix[:, 0], first, atol=1e-6, err_msg=key)
        if matrix.shape[1] > 1:
            second = drawn[:, 1] - first * (first @ drawn[:, 1])
            second /= np.linalg.norm(second)
            np.testing.assert_allclose(matrix[:, 1], second, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("scheme", ["glorot", "torch", "orthogonal"])
def test_an_lstm_starts_as_its_scheme_says(scheme: str) -> None:
    """Analytic: both kernels as other layers, orthogonal ones with a gain of 1; forget gates have a bias of 1, and the
    others 0. With torch, biases are uniform like the input kernel.
    """
    subject = subject_of("mlp", (4,), 6, hidden_units=(32,), lstm_units=64)
    shapes = network.weight_shapes(subject)
    weights = network.initial_weights(shapes, scheme, np.random.default_rng(5))
    for part, fan_in in (("input", 32), ("recurrent", 64)):
        kernel = weights[f"value_lstm_{part}_kernel"]
        assert kernel.shape == (fan_in, 4 * 64)
        if scheme == "orthogonal":
            np.testing.assert_allclose(kernel @ kernel.T, np.eye(fan_in), atol=1e-5)
        else:
            assert_uniform(
                kernel, fan_in**-0.5 if scheme == "torch" else (6 / (fan_in + 256)) ** 0.5
            )
    bias = weights["value_lstm_bias"]
    if scheme == "torch":
        assert_uniform(bias, 32**-0.5)
    else:
        np.testing.assert_array_equal(bias, np.repeat([0, 1, 0, 0], 64))
