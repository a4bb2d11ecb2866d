"""The policy and value networks: weight shapes, initial weights, and the forward pass.

    nature   Mnih et al. 2015      conv 32 8×8/4 → conv 64 4×4/2 → conv 64 3×3/1 → dense 512 ⇉ heads
    small    Mnih et al. 2016, §8  conv 16 8×8/4 → conv 32 4×4/2 → dense 256 ⇉ heads
    mlp      vector observations   two tanh layers of 64 for each head

The heads are the logits, one for each action, and the value.

A network is a plain dict from weight names to arrays or variables, and one pure function over it.
So the same code serves the shared weights, every worker's local copy and every test, and nothing is
hidden in layers.
"""

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf

MLP_UNITS = 64


class _Conv(NamedTuple):
    filters: int
    size: int
    stride: int


_CONVS = {
    "nature": (_Conv(32, 8, 4), _Conv(64, 4, 2), _Conv(64, 3, 1)),
    "small": (_Conv(16, 8, 4), _Conv(32, 4, 2)),
}
_DENSE_UNITS = {"nature": 512, "small": 256}


class Predictions(NamedTuple):
    """What a network says of a batch of B observations."""

    logits: tf.Tensor  # (B, n_actions)
    values: tf.Tensor  # (B,)
    activations: dict[str, tf.Tensor]  # each hidden layer's output


def start_tensorflow() -> None:
    """Start TensorFlow's threads, in none of which any operation is split; to be called first.

    Many workers share the cores already, and with pools of TensorFlow's own, calls hop from their
    thread to a pool's and back. (Compiled calls run in the thread that made them. Gradients, which
    are not compiled, go to one pool of as many threads as cores, whatever is said here.)

    What a thread lets in of signals is the starting thread's business at that moment; a first
    operation, compiled, leaves none to be started later.
    """
    tf.config.threading.set_inter_op_parallelism_threads(-1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.function(tf.square, jit_compile=True)(tf.ones(()))


def weight_shapes(
    network: str, observation_shape: tuple[int, ...], n_actions: int
) -> dict[str, tuple[int, ...]]:
    """The shape of each weight, in the order in which the forward pass uses them."""
    shapes: dict[str, tuple[int, ...]] = {}

    def layer(name: str, *kernel: int) -> None:
        shapes[f"{name}_kernel"] = kernel
        shapes[f"{name}_bias"] = kernel[-1:]

    if network == "mlp":
        (n_inputs,) = observation_shape
        for head, n_outputs in (("policy", n_actions), ("value", 1)):
            layer(f"{head}_dense1", n_inputs, MLP_UNITS)
            layer(f"{head}_dense2", MLP_UNITS, MLP_UNITS)
            layer(head, MLP_UNITS, n_outputs)
        return shapes

    height, width, channels = observation_shape
    for i, conv in enumerate(_CONVS[network], start=1):
        layer(f"conv{i}", conv.size, conv.size, channels, conv.filters)
        height, width = ((side - conv.size) // conv.stride + 1 for side in (height, width))
        channels = conv.filters
    layer("dense", height * width * channels, _DENSE_UNITS[network])
    layer("policy", _DENSE_UNITS[network], n_actions)
    layer("value", _DENSE_UNITS[network], 1)
    return shapes


def initial_weights(
    shapes: Mapping[str, tuple[int, ...]], scheme: str, generator: np.random.Generator
) -> dict[str, np.ndarray]:
    """Draw every weight, in order, from one generator.

    glorot      TensorFlow 1's default    U(±√(6 / (fan_in + fan_out))), biases 0
    torch       Torch 7's, the author's   U(±1 / √fan_in), biases too
    orthogonal  OpenAI Baselines' A2C     gain √2 (logits: 0.01, value: 1), biases 0
    """
    weights = {}
    for name, shape in shapes.items():
        layer, part = name.rsplit("_", 1)
        kernel_shape = shapes[f"{layer}_kernel"]
        fan_in = int(np.prod(kernel_shape[:-1]))
        if scheme == "torch":
            values = generator.uniform(-(fan_in**-0.5), fan_in**-0.5, shape)
        elif part == "bias":
            values = np.zeros(shape)
        elif scheme == "glorot":
            fan_out = int(np.prod(kernel_shape[:-2])) * kernel_shape[-1]
            limit = (6 / (fan_in + fan_out)) ** 0.5
            values = generator.uniform(-limit, limit, shape)
        else:
            gain = {"policy": 0.01, "value": 1.0}.get(layer, 2**0.5)
            values = gain * _orthogonal(fan_in, shape[-1], generator).reshape(shape)
        weights[name] = values.astype(np.float32)
    return weights


def _orthogonal(n_rows: int, n_columns: int, generator: np.random.Generator) -> np.ndarray:
    """A matrix whose shorter side is orthonormal, uniform over all such matrices."""
    square = generator.standard_normal((max(n_rows, n_columns), min(n_rows, n_columns)))
    q, r = np.linalg.qr(square)
    q *= np.sign(np.diag(r))  # without this, QR's choice of signs makes the draw non-uniform
    return q if n_rows >= n_columns else q.T


def forward(
    network: str,
    weights: Mapping[str, tf.Tensor | tf.Variable],
    observations: tf.Tensor,
    known: Mapping[str, tf.Tensor] | None = None,
) -> Predictions:
    """Logits and values of B observations: (B, 84, 84, 4) uint8, or (B, n) float32 for mlp.

    `known` are the activations that the same weights gave for the same observations before. They
    are taken instead of being computed again, and gradients flow as if they had been.
    """
    activations: dict[str, tf.Tensor] = {}

    def hidden(x: tf.Tensor, layer: str, kind: _Kind, kernel: tf.Tensor) -> tf.Tensor:
        bias = tf.convert_to_tensor(weights[f"{layer}_bias"])
        output = None if known is None else known[layer]
        activations[layer] = _hidden_layer(kind, x, kernel, bias, output)
        return activations[layer]

    def kernel_of(layer: str) -> tf.Tensor:
        return tf.convert_to_tensor(weights[f"{layer}_kernel"])

    def head(x: tf.Tensor, layer: str) -> tf.Tensor:
        return _matmul(x, kernel_of(layer)) + weights[f"{layer}_bias"]

    if network == "mlp":
        outputs = {}
        for name in ("policy", "value"):
            x = observations
            for layer in (f"{name}_dense1", f"{name}_dense2"):
                x = hidden(x, layer, _TANH, kernel_of(layer))
            outputs[name] = head(x, name)
        return Predictions(outputs["policy"], outputs["value"][:, 0], activations)

    x = observations
    for i, conv in enumerate(_CONVS[network], start=1):
        kernel = kernel_of(f"conv{i}")
        # Scaling the first kernel scales the observations to [0, 1], and is less work.
        x = hidden(x, f"conv{i}", _convolution(conv), kernel / 255.0 if i == 1 else kernel)
    x = tf.reshape(x, (-1, weights["dense_kernel"].shape[0]))
    x = hidden(x, "dense", _RELU, kernel_of("dense"))
    return Predictions(head(x, "policy"), head(x, "value")[:, 0], activations)


def dense_factors(
    activations: Mapping[str, tf.Tensor], d_dense: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """What the dense layer's kernel, by far the largest weight of an image network, has as gradient:
    leftᵀ @ right. Given the gradient of the layer's output.
    """
    *_, below, dense = activations.values()
    return tf.reshape(below, (below.shape[0], -1)), _d_relu(dense, d_dense)


class _Kind(NamedTuple):
    """A kind of layer: its forward pass without the bias, and the gradients of all."""

    product: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]  # x, kernel
    d_product: Callable[..., tuple[tf.Tensor | None, tf.Tensor]]  # x, kernel, dy → dx, d_kernel
    activation: Callable[[tf.Tensor], tf.Tensor]
    d_activation: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]  # y, dy → the gradient below


def _hidden_layer(
    kind: _Kind, x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor, known: tf.Tensor | None
) -> tf.Tensor:
    """activation(x · kernel + bias), or what it is known to be."""

    def layer(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tuple[tf.Tensor, object]:
        y = known
        if y is None:
            y = kind.activation(tf.nn.bias_add(kind.product(x, kernel), bias))

        def gradient(dy: tf.Tensor) -> tuple[tf.Tensor | None, tf.Tensor, tf.Tensor]:
            dy = kind.d_activation(y, dy)
            d_x, d_kernel = kind.d_product(x, kernel, dy)
            return d_x, d_kernel, tf.raw_ops.BiasAddGrad(out_backprop=dy)

        return y, gradient

    return tf.custom_gradient(layer)(x, kernel, bias)


def _d_matmul(x: tf.Tensor, kernel: tf.Tensor, dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The gradients of x @ kernel, that of x written as (kernel @ dyᵀ)ᵀ instead of dy @ kernelᵀ.

    The same sums; but for the few rows of a rollout TensorFlow's own form transposes the whole
    kernel first, which for nature's 3136×512 took 11 ms of a 24 ms update, against 1.5 ms this way.
    """
    d_x = tf.transpose(tf.matmul(kernel, dy, transpose_b=True))
    return d_x, tf.matmul(x, dy, transpose_a=True)


@tf.custom_gradient
def _matmul(x: tf.Tensor, kernel: tf.Tensor) -> tuple[tf.Tensor, object]:
    return tf.matmul(x, kernel), functools.partial(_d_matmul, x, kernel)


def _convolution(conv: _Conv) -> _Kind:
    """tf.nn.conv2d without padding, with the gradient of the kernel as one matrix product.

    The same sums; but TensorFlow's gradient of the kernel reaches a tenth of what the machine can
    do, and took 20 of the 33 ms of an update of `small` with 8 environments. Here it takes 3.5,
    and the patches 4.
    """

    def product(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        return tf.nn.conv2d(tf.cast(x, tf.float32), kernel, conv.stride, "VALID")

    def d_product(
        x: tf.Tensor, kernel: tf.Tensor, dy: tf.Tensor
    ) -> tuple[tf.Tensor | None, tf.Tensor]:
        patches = tf.cast(_patches(x, conv.size, conv.stride), tf.float32)
        # (dyᵀ @ patches)ᵀ and not patchesᵀ @ dy: twice as fast where rows are many; and dyᵀ
        # written out, where `transpose_a` would make a fifth more of it.
        dy_columns = tf.transpose(tf.reshape(dy, (-1, conv.filters)))
        d_rows = tf.transpose(tf.matmul(dy_columns, patches))
        d_kernel = _from_rows(d_rows, kernel.shape, conv.stride)
        if not x.dtype.is_floating:
            return None, d_kernel
        d_x = tf.nn.conv2d_transpose(dy, kernel, tf.shape(x), conv.stride, "VALID")
        return d_x, d_kernel

    return _Kind(product, d_product, tf.nn.relu, _d_relu)


def _d_relu(y: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.ReluGrad(gradients=dy, features=y)


def _d_tanh(y: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.TanhGrad(y=y, dy=dy)


_RELU = _Kind(tf.matmul, _d_matmul, tf.nn.relu, _d_relu)
_TANH = _Kind(tf.matmul, _d_matmul, tf.tanh, _d_tanh)


def _patches(x: tf.Tensor, size: int, stride: int) -> tf.Tensor:
    """Each size × size window of x, a row each: (B, H, W, C) → (B·h·w, size²·C).

    Blocks of stride × stride become one place with stride²·C channels; a window then is m × m
    places, m = size / stride, which are m² shifted views of x side by side.
    """
    _, height, width, channels = x.shape  # B may be unknown until a call
    x = tf.reshape(x, (-1, height // stride, stride, width // stride, stride * channels))
    x = tf.transpose(x, (0, 1, 3, 2, 4))
    x = tf.reshape(x, (-1, height // stride, width // stride, stride**2 * channels))
    m = size // stride
    h, w = x.shape[1] - m + 1, x.shape[2] - m + 1
    views = [x[:, i : i + h, j : j + w] for i in range(m) for j in range(m)]
    return tf.reshape(tf.concat(views, axis=3), (-1, size**2 * channels))


def _from_rows(rows: tf.Tensor, shape: tuple[int, ...], stride: int) -> tf.Tensor:
    """A kernel of this shape from the rows that fit the patches' columns."""
    size, _, channels, n_filters = shape
    m = size // stride
    blocks = tf.reshape(rows, (m, m, stride, stride, channels, n_filters))
    return tf.reshape(tf.transpose(blocks, (0, 2, 1, 3, 4, 5)), shape)
