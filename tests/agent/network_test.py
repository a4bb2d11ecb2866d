"""The networks against hand counts and plain NumPy; the initial weights against their distributions."""

import pathlib
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from a3c.agent import network

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
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


def numpy_conv(x: np.ndarray, kernel: np.ndarray, bias: np.ndarray, stride: int) -> np.ndarray:
    """Convolution without padding, position by position; then the rectifier."""
    size = kernel.shape[0]
    n_rows, n_columns = ((side - size) // stride + 1 for side in x.shape[1:3])
    out = np.zeros((len(x), n_rows, n_columns, kernel.shape[3]))
    for b in range(len(x)):
        for i in range(n_rows):
            for j in range(n_columns):
                patch = x[b, i * stride : i * stride + size, j * stride : j * stride + size]
                out[b, i, j] = np.tensordot(patch, kernel, axes=3) + bias
    return np.maximum(out, 0)


def numpy_image_network(
    weights: dict[str, np.ndarray], strides: tuple[int, ...], images: np.ndarray
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Logits, values and hidden layers in float64."""
    w = {key: value.astype(np.float64) for key, value in weights.items()}
    hidden = {}
    x = images.astype(np.float64) / 255
    for i, stride in enumerate(strides, start=1):
        x = hidden[f"conv{i}"] = numpy_conv(x, w[f"conv{i}_kernel"], w[f"conv{i}_bias"], stride)
    x = x.reshape(len(x), -1)
    x = hidden["dense"] = np.maximum(x @ w["dense_kernel"] + w["dense_bias"], 0)
    logits = x @ w["policy_kernel"] + w["policy_bias"]
    return logits, (x @ w["value_kernel"] + w["value_bias"])[:, 0], hidden


def test_nature_has_the_shapes_and_the_size_counted_by_hand() -> None:
    """Analytic: 84×84×4 shrinks to 20, 9, 7 pixels a side, and 7·7·64 = 3136."""
    shapes = network.weight_shapes("nature", IMAGE, 6)
    assert shapes == {
        "conv1_kernel": (8, 8, 4, 32),
        "conv1_bias": (32,),
        "conv2_kernel": (4, 4, 32, 64),
        "conv2_bias": (64,),
        "conv3_kernel": (3, 3, 64, 64),
        "conv3_bias": (64,),
        "dense_kernel": (3136, 512),
        "dense_bias": (512,),
        "policy_kernel": (512, 6),
        "policy_bias": (6,),
        "value_kernel": (512, 1),
        "value_bias": (1,),
    }
    n_weights = sum(int(np.prod(shape)) for shape in shapes.values())
    assert n_weights == 8_224 + 32_832 + 36_928 + 1_606_144 + 3_078 + 513


def test_small_has_the_shapes_and_the_size_counted_by_hand() -> None:
    """Analytic: 84×84×4 shrinks to 20 and 9 pixels a side, and 9·9·32 = 2592."""
    shapes = network.weight_shapes("small", IMAGE, 6)
    assert shapes == {
        "conv1_kernel": (8, 8, 4, 16),
        "conv1_bias": (16,),
        "conv2_kernel": (4, 4, 16, 32),
        "conv2_bias": (32,),
        "dense_kernel": (2592, 256),
        "dense_bias": (256,),
        "policy_kernel": (256, 6),
        "policy_bias": (6,),
        "value_kernel": (256, 1),
        "value_bias": (1,),
    }
    n_weights = sum(int(np.prod(shape)) for shape in shapes.values())
    assert n_weights == 4_112 + 8_224 + 663_808 + 1_542 + 257


def test_mlp_has_the_shapes_and_the_size_counted_by_hand() -> None:
    """Analytic: two separate halves of 4 → 64 → 64, and their outputs."""
    shapes = network.weight_shapes("mlp", (4,), 2)
    assert shapes == {
        "policy_dense1_kernel": (4, 64),
        "policy_dense1_bias": (64,),
        "policy_dense2_kernel": (64, 64),
        "policy_dense2_bias": (64,),
        "policy_kernel": (64, 2),
        "policy_bias": (2,),
        "value_dense1_kernel": (4, 64),
        "value_dense1_bias": (64,),
        "value_dense2_kernel": (64, 64),
        "value_dense2_bias": (64,),
        "value_kernel": (64, 1),
        "value_bias": (1,),
    }
    n_weights = sum(int(np.prod(shape)) for shape in shapes.values())
    assert n_weights == 2 * (320 + 4_160) + 130 + 65


@pytest.mark.parametrize(("name", "strides"), [("nature", (4, 2, 1)), ("small", (4, 2))])
def test_image_networks_compute_what_plain_numpy_computes(
    name: str, strides: tuple[int, ...]
) -> None:
    """Parity: logits, values and every hidden layer of two images, against loops in float64."""
    weights = random_weights(name, IMAGE, 6)
    images = np.random.default_rng(1).integers(0, 256, (2, *IMAGE), dtype=np.uint8)
    predictions = network.forward(name, weights, tf.constant(images))
    logits, values, hidden = numpy_image_network(weights, strides, images)

    assert predictions.logits.shape == (2, 6)
    assert predictions.values.shape == (2,)
    np.testing.assert_allclose(predictions.logits, logits, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(predictions.values, values, rtol=1e-4, atol=1e-5)
    assert list(predictions.activations) == list(hidden)
    for layer, expected in hidden.items():
        np.testing.assert_allclose(predictions.activations[layer], expected, rtol=1e-4, atol=1e-5)
        assert 0.1 < (expected > 0).mean() < 0.9  # or the rectifier would not be tested


def test_mlp_computes_what_plain_numpy_computes() -> None:
    """Parity: logits, values and every hidden layer of five vectors, against float64."""
    weights = random_weights("mlp", (3,), 4)
    observations = np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32)
    predictions = network.forward("mlp", weights, tf.constant(observations))

    w = {key: value.astype(np.float64) for key, value in weights.items()}
    for head, actual in (("policy", predictions.logits), ("value", predictions.values[:, None])):
        x = observations.astype(np.float64)
        for layer in (f"{head}_dense1", f"{head}_dense2"):
            x = np.tanh(x @ w[f"{layer}_kernel"] + w[f"{layer}_bias"])
            np.testing.assert_allclose(predictions.activations[layer], x, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            actual, x @ w[f"{head}_kernel"] + w[f"{head}_bias"], rtol=1e-5, atol=1e-6
        )
    assert predictions.logits.shape == (5, 4)
    assert predictions.values.shape == (5,)


def test_pixels_are_scaled_to_one() -> None:
    """Analytic: a white image under a kernel of ones sums to 8·8·4 = 256 ones, and a black one to none."""
    weights = random_weights("small", IMAGE, 2)
    weights["conv1_kernel"] = np.ones_like(weights["conv1_kernel"])
    weights["conv1_bias"] = np.full_like(weights["conv1_bias"], 0.5)
    images = np.stack([np.full(IMAGE, level, np.uint8) for level in (0, 51, 255)])
    conv1 = network.forward("small", weights, tf.constant(images)).activations["conv1"].numpy()
    expected = np.broadcast_to(
        np.array([0, 0.2 * 256, 256])[:, None, None, None] + 0.5, (3, 20, 20, 16)
    )
    np.testing.assert_allclose(conv1, expected, rtol=1e-5)


def test_observations_of_mlp_are_not_scaled() -> None:
    """Analytic: a first layer that passes one input on gives tanh of that input."""
    weights = {key: np.zeros_like(w) for key, w in random_weights("mlp", (2,), 2).items()}
    weights["policy_dense1_kernel"][1, 7] = 1
    observations = np.array([[3, -0.25], [5, 0.5]], np.float32)
    activations = network.forward("mlp", weights, tf.constant(observations)).activations
    expected = np.zeros((2, 64))
    expected[:, 7] = np.tanh([-0.25, 0.5])
    np.testing.assert_allclose(activations["policy_dense1"], expected, rtol=1e-6)


def test_policy_and_value_of_mlp_share_nothing() -> None:
    """Analytic: each output has a gradient for its own half of the weights and none for the other."""
    weights = {key: tf.Variable(w) for key, w in random_weights("mlp", (3,), 2).items()}
    with tf.GradientTape(persistent=True) as tape:
        predictions = network.forward("mlp", weights, tf.ones((4, 3)))
    for output, own in ((predictions.logits, "policy"), (predictions.values, "value")):
        gradients = tape.gradient(output, weights)
        for key, gradient in gradients.items():
            assert (gradient is not None) == key.startswith(own), key


@pytest.mark.parametrize("name", ["nature", "small"])
def test_policy_and_value_of_image_networks_share_all_hidden_layers(name: str) -> None:
    """Analytic: each output has a gradient for every weight but the other's output layer."""
    weights = {key: tf.Variable(w) for key, w in random_weights(name, IMAGE, 2).items()}
    images = tf.constant(np.random.default_rng(2).integers(0, 256, (1, *IMAGE), dtype=np.uint8))
    with tf.GradientTape(persistent=True) as tape:
        predictions = network.forward(name, weights, images)
    for output, other in ((predictions.logits, "value_"), (predictions.values, "policy_")):
        gradients = tape.gradient(output, weights)
        for key, gradient in gradients.items():
            assert (gradient is not None) == (not key.startswith(other)), key


@pytest.mark.parametrize("n_rows", [1, 6])
def test_matmul_has_the_plain_gradient(n_rows: int) -> None:
    """Parity: values and both gradients against TensorFlow's own matmul and against float64 NumPy."""
    generator = np.random.default_rng(3)
    x, kernel, weight = (
        tf.constant(generator.standard_normal(shape), tf.float32)
        for shape in ((n_rows, 30), (30, 20), (n_rows, 20))
    )
    gradients = []
    for matmul in (network._matmul, tf.matmul):
        with tf.GradientTape() as tape:
            tape.watch([x, kernel])
            product = matmul(x, kernel)
            loss = tf.reduce_sum(product * weight)
        gradients.append(tape.gradient(loss, [x, kernel]))
        np.testing.assert_allclose(
            product, x.numpy().astype(float) @ kernel.numpy(), rtol=1e-4, atol=1e-5
        )
    by_hand = (weight.numpy() @ kernel.numpy().T, x.numpy().T @ weight.numpy())
    for ours, plain, expected in zip(*gradients, by_hand, strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)


LAYERS = {  # of one that is not square as well: nothing may take its width for its height
    "conv1": ((84, 84, 4), network._CONVS["nature"][0], lambda *a: tf.nn.conv2d(*a, 4, "VALID")),
    "conv2": ((20, 12, 16), network._CONVS["small"][1], lambda *a: tf.nn.conv2d(*a, 2, "VALID")),
    "conv3": ((9, 9, 64), network._CONVS["nature"][2], lambda *a: tf.nn.conv2d(*a, 1, "VALID")),
}


def layer_and_gradients(layer: Callable[..., tf.Tensor], *inputs: tf.Tensor) -> list[tf.Tensor]:
    """What a layer gives, and the gradients of a curved function of it."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        y = layer(*inputs)
        loss = tf.reduce_sum(tf.sin(y))
    return [y, *tape.gradient(loss, inputs)]


def draw_inputs(name: str) -> list[tf.Tensor]:
    """Three inputs of a layer, a kernel and a bias."""
    if name in LAYERS:
        shape, conv, _ = LAYERS[name]
        kernel = (conv.size, conv.size, shape[-1], conv.filters)
    else:
        shape, kernel = (50,), (50, 20)
    draw = np.random.default_rng(5).standard_normal
    return [tf.constant(draw(s) / 8, tf.float32) for s in ((3, *shape), kernel, kernel[-1:])]


def kind_of(name: str) -> network._Kind:
    if name in LAYERS:
        return network._convolution(LAYERS[name][1])
    return {"relu": network._RELU, "tanh": network._TANH}[name]


@pytest.mark.parametrize("name", [*LAYERS, "relu", "tanh"])
def test_a_hidden_layer_is_tensorflows(name: str) -> None:
    """Parity: values and all three gradients of every kind of layer, against TensorFlow's own operations and
    gradients; and those of a layer whose output is known, which is not computed again.
    """
    inputs, kind = draw_inputs(name), kind_of(name)
    product = LAYERS[name][2] if name in LAYERS else tf.matmul
    activation = tf.tanh if name == "tanh" else tf.nn.relu

    def plain(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
        return activation(product(x, kernel) + bias)

    theirs = layer_and_gradients(plain, *inputs)
    ours = layer_and_gradients(lambda *a: network._hidden_layer(kind, *a, None), *inputs)
    for our, their in zip(ours, theirs, strict=True):
        assert our.shape == their.shape
        np.testing.assert_allclose(our, their, rtol=1e-4, atol=1e-4)

    blind = kind._replace(product=lambda *_: pytest.fail("computed again"))
    known = layer_and_gradients(lambda *a: network._hidden_layer(blind, *a, ours[0]), *inputs)
    for again, our in zip(known, ours, strict=True):
        np.testing.assert_array_equal(again, our)


@pytest.mark.parametrize("name", ["nature", "small", "mlp"])
def test_known_activations_give_the_same_gradients(name: str) -> None:
    """Analytic: of the whole network; other activations would give others."""
    shapes = network.weight_shapes(name, (3,) if name == "mlp" else (84, 84, 4), 4)
    weights = network.initial_weights(shapes, "glorot", np.random.default_rng(0))
    weights = {key: tf.constant(value) for key, value in weights.items()}
    observations = np.random.default_rng(1).integers(
        0, 256, (2, *((3,) if name == "mlp" else (84, 84, 4)))
    )
    x = tf.constant(observations, tf.float32 if name == "mlp" else tf.uint8)

    def gradients(known: dict[str, tf.Tensor] | None) -> tuple[dict, dict]:
        with tf.GradientTape() as tape:
            tape.watch(weights)
            predictions = network.forward(name, weights, x, known)
            loss = tf.reduce_sum(tf.sin(predictions.logits)) + tf.reduce_sum(predictions.values**2)
        return tape.gradient(loss, weights), predictions.activations

    expected, activations = gradients(None)
    actual, _ = gradients(activations)
    doubled, _ = gradients({key: 2 * value for key, value in activations.items()})
    for key in shapes:
        np.testing.assert_array_equal(actual[key], expected[key], err_msg=key)
        assert not np.array_equal(doubled[key], expected[key]), key


def test_a_convolution_of_bytes_has_the_gradient_of_its_kernel_alone() -> None:
    """Parity: bytes are what they are as floats; nothing can be asked of them but to stay."""
    bytes_ = tf.constant(np.random.default_rng(6).integers(0, 256, (2, 84, 84, 4)), tf.uint8)
    kind = network._convolution(network._Conv(3, 8, 4))
    kernel = tf.constant(np.random.default_rng(7).standard_normal((8, 8, 4, 3)) / 1000, tf.float32)
    of_bytes, of_floats = (
        layer_and_gradients(
            lambda kernel, x=x: network._hidden_layer(kind, x, kernel, tf.zeros(3), None), kernel
        )
        for x in (bytes_, tf.cast(bytes_, tf.float32))
    )
    for ours, theirs in zip(of_bytes, of_floats, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_matmul_gradient_agrees_with_finite_differences() -> None:
    """Analytic: float64 central differences of a curved function of the product."""
    generator = np.random.default_rng(4)
    inputs = [tf.constant(generator.standard_normal(shape)) for shape in ((3, 5), (5, 2))]
    theoretical, numerical = tf.test.compute_gradient(
        lambda x, kernel: tf.sin(network._matmul(x, kernel)), inputs, delta=1e-5
    )
    for exact, estimate in zip(theoretical, numerical, strict=True):
        np.testing.assert_allclose(exact, estimate, atol=1e-8)


def fan_in_and_out(shape: tuple[int, ...]) -> tuple[int, int]:
    area = int(np.prod(shape[:-2]))
    return area * shape[-2], area * shape[-1]


@pytest.mark.parametrize(("name", "shape"), [("nature", IMAGE), ("small", IMAGE), ("mlp", (4,))])
def test_glorot_fills_its_interval_evenly(name: str, shape: tuple[int, ...]) -> None:
    """Analytic: all within ±√(6/(fan_in+fan_out)), mean 0, variance limit²/3; biases 0."""
    shapes = network.weight_shapes(name, shape, 6)
    weights = network.initial_weights(shapes, "glorot", np.random.default_rng(5))
    assert {key: w.shape for key, w in weights.items()} == shapes
    for key, values in weights.items():
        assert values.dtype == np.float32
        if key.endswith("bias"):
            np.testing.assert_array_equal(values, 0)
        else:
            fan_in, fan_out = fan_in_and_out(values.shape)
            assert_uniform(values, (6 / (fan_in + fan_out)) ** 0.5)


@pytest.mark.parametrize(("name", "shape"), [("nature", IMAGE), ("small", IMAGE), ("mlp", (4,))])
def test_torch_fills_its_interval_evenly_biases_too(name: str, shape: tuple[int, ...]) -> None:
    """Analytic: kernels and biases within ±1/√fan_in of their layer, mean 0, variance limit²/3."""
    shapes = network.weight_shapes(name, shape, 6)
    weights = network.initial_weights(shapes, "torch", np.random.default_rng(6))
    assert {key: w.shape for key, w in weights.items()} == shapes
    for key, values in weights.items():
        assert values.dtype == np.float32
        kernel = weights[key.replace("bias", "kernel")]
        assert_uniform(values, fan_in_and_out(kernel.shape)[0] ** -0.5)
        assert values.any()


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


def test_orthogonal_favours_no_sign() -> None:
    """Analytic: over 200 draws the first entry is positive half the time, within five standard deviations."""
    shapes = {"value_kernel": (3, 1), "value_bias": (1,)}
    generator = np.random.default_rng(8)
    first = [
        network.initial_weights(shapes, "orthogonal", generator)["value_kernel"][0, 0]
        for _ in range(200)
    ]
    assert abs(np.sum(np.array(first) > 0) - 100) < 5 * 50**0.5


@pytest.mark.parametrize("scheme", ["glorot", "torch", "orthogonal"])
def test_initial_weights_repeat_with_the_seed_and_no_two_layers_are_equal(scheme: str) -> None:
    """Golden: the same generator seed gives the same arrays, another seed others, layers differ."""
    shapes = network.weight_shapes("mlp", (4,), 2)
    one, same, other = (
        network.initial_weights(shapes, scheme, np.random.default_rng(seed)) for seed in (9, 9, 10)
    )
    for key in shapes:
        np.testing.assert_array_equal(one[key], same[key])
        if key.endswith("kernel"):
            assert (one[key] != other[key]).mean() > 0.99
    for layer in ("dense1_kernel", "dense2_kernel"):
        assert (one[f"policy_{layer}"] != one[f"value_{layer}"]).mean() > 0.99


def said_after_the_start(code: str) -> list[str]:
    """What a process of its own prints, in which TensorFlow has just been started: that can be done
    but once.
    """
    start = "import tensorflow as tf; from a3c.agent import network; network.start_tensorflow();"
    command = [sys.executable, "-c", start + code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_no_operation_is_split_over_threads():
    """Analytic: as TensorFlow says after its start."""
    threads = said_after_the_start(
        "threads = tf.config.threading; print(threads.get_inter_op_parallelism_threads(),"
        " threads.get_intra_op_parallelism_threads())"
    )
    assert threads == ["-1", "1"]


def test_starting_leaves_no_thread_to_be_started_later() -> None:
    """Analytic: as many threads after what a run does, compiled and not, as before. One that started
    later would let in the signals that are let in at that moment.
    """
    before, after = said_after_the_start(
        "import os; count = lambda: print(len(os.listdir('/proc/self/task')));"
        "count(); product = lambda x: tf.matmul(x, x); x = tf.ones((64, 64));"
        "[tf.function(product, jit_compile=c)(x) for c in (True, False)]; count()"
    )
    assert before == after
