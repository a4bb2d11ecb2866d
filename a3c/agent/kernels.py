"""What makes the networks and their training fast; nobody has to read it to understand them.

    Layers    what `network.Plain` computes, with gradients written for the few rows of a rollout,
              and from outputs that acting has computed already
    Product   the gradient of a large kernel as its two factors
    bound     a traced function with a worker's weights, past TensorFlow's sorting of arguments

`tests/agent/kernels_test.py` compares each with its plain form.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

ROWS_OF_A_PRODUCT = 8  # with more, it is quicker to multiply

Weights: TypeAlias = Mapping[str, tf.Tensor | tf.Variable]
Activations: TypeAlias = Mapping[str, tf.Tensor]  # of each hidden layer, in their order


# Layers


class Layers:
    """The layers of one network over its weights, which note what they give.

    `known` are the activations that the same weights gave for the same observations before. They
    are taken instead of being computed again, and gradients flow as if they had been.
    """

    def __init__(self, weights: Weights, known: Activations | None = None) -> None:
        self.activations: dict[str, tf.Tensor] = {}
        self._weights, self._known = weights, known

    def conv(self, name: str, x: tf.Tensor, filters: int, size: int, stride: int) -> tf.Tensor:
        kernel = self._kernel(name)
        if not x.dtype.is_floating:
            # Scaling the kernel scales the pixels to [0, 1], and is less work.
            kernel = kernel / 255.0
        return self._hidden(_convolution(filters, size, stride), name, x, kernel)

    def relu(self, name: str, x: tf.Tensor, units: int) -> tf.Tensor:
        return self._dense(_RELU, name, x)

    def tanh(self, name: str, x: tf.Tensor, units: int) -> tf.Tensor:
        return self._dense(_TANH, name, x)

    def linear(self, name: str, x: tf.Tensor, units: int) -> tf.Tensor:
        return _matmul(x, self._kernel(name)) + self._weights[f"{name}_bias"]

    def _dense(self, kind: "_Kind", name: str, x: tf.Tensor) -> tf.Tensor:
        kernel = self._kernel(name)
        if x.shape.rank != 2:
            x = tf.reshape(x, (-1, kernel.shape[0]))
        return self._hidden(kind, name, x, kernel)

    def _hidden(self, kind: "_Kind", name: str, x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        bias = tf.convert_to_tensor(self._weights[f"{name}_bias"])
        known = None if self._known is None else self._known[name]
        self.activations[name] = _hidden_layer(kind, x, kernel, bias, known)
        return self.activations[name]

    def _kernel(self, name: str) -> tf.Tensor:
        return tf.convert_to_tensor(self._weights[f"{name}_kernel"])


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

    The sums are the same; but with few rows TensorFlow's own form transposes the whole kernel first,
    which for nature's 3136×512 took 11 ms of an update's 24, against 1.5 ms this way.
    """
    d_x = tf.transpose(tf.matmul(kernel, dy, transpose_b=True))
    return d_x, tf.matmul(x, dy, transpose_a=True)


@tf.custom_gradient
def _matmul(x: tf.Tensor, kernel: tf.Tensor) -> tuple[tf.Tensor, object]:
    return tf.matmul(x, kernel), functools.partial(_d_matmul, x, kernel)


def _convolution(filters: int, size: int, stride: int) -> _Kind:
    """tf.nn.conv2d without padding, with the gradient of the kernel as one matrix product.

    The sums are the same; but TensorFlow's own took 20 of the 33 ms of an update of `small` with 8
    environments. Here it takes 3.5, and the patches 4.
    """

    def product(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        return tf.nn.conv2d(tf.cast(x, tf.float32), kernel, stride, "VALID")

    def d_product(
        x: tf.Tensor, kernel: tf.Tensor, dy: tf.Tensor
    ) -> tuple[tf.Tensor | None, tf.Tensor]:
        patches = tf.cast(_patches(x, size, stride), tf.float32)
        # (dyᵀ @ patches)ᵀ and not patchesᵀ @ dy: twice as fast where rows are many; and dyᵀ
        # written out, where `transpose_a` would make a fifth more of it.
        dy_columns = tf.transpose(tf.reshape(dy, (-1, filters)))
        d_rows = tf.transpose(tf.matmul(dy_columns, patches))
        d_kernel = _from_rows(d_rows, kernel.shape, stride)
        if not x.dtype.is_floating:
            return None, d_kernel
        d_x = tf.nn.conv2d_transpose(dy, kernel, tf.shape(x), stride, "VALID")
        return d_x, d_kernel

    return _Kind(product, d_product, tf.nn.relu, _d_relu)


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


def _d_relu(y: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.ReluGrad(gradients=dy, features=y)


def _d_tanh(y: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.TanhGrad(y=y, dy=dy)


_RELU = _Kind(tf.matmul, _d_matmul, tf.nn.relu, _d_relu)
_TANH = _Kind(tf.matmul, _d_matmul, tf.tanh, _d_tanh)


# Gradients


class Product(NamedTuple):
    """A gradient leftᵀ @ right that is not written down: of a large kernel, in a rollout of few rows."""

    left: tf.Tensor  # (B, n)
    right: tf.Tensor  # (B, m)

    def squared_norm(self) -> tf.Tensor:
        """Of the product's entries, without having them."""
        grams = [tf.matmul(x, x, transpose_b=True) for x in self]
        return tf.maximum(tf.reduce_sum(grams[0] * grams[1]), 0.0)  # rounding may give less


Gradient: TypeAlias = tf.Tensor | Product


def gradients(
    tape: tf.GradientTape, loss: tf.Tensor, weights: Weights, activations: Activations
) -> dict[str, Gradient]:
    """Of each weight. Where rows are few, that of the dense kernel, by far the largest weight of an
    image network, is a product: not writing it saves an eighth of learning with one environment.
    """
    dense = activations.get("dense")
    if dense is None or dense.shape[0] is None or dense.shape[0] > ROWS_OF_A_PRODUCT:
        return tape.gradient(loss, weights)
    others = {name: weight for name, weight in weights.items() if name != "dense_kernel"}
    found, d_dense = tape.gradient(loss, (others, dense))
    *_, below, dense = activations.values()
    product = Product(tf.reshape(below, (below.shape[0], -1)), _d_relu(dense, d_dense))
    return {name: found.get(name, product) for name in weights}


def global_norm(gradients: Sequence[Gradient]) -> tf.Tensor:
    """tf.linalg.global_norm, of products too."""
    norm = tf.linalg.global_norm([g for g in gradients if not isinstance(g, Product)])
    for gradient in gradients:
        if isinstance(gradient, Product):
            norm = tf.sqrt(tf.square(norm) + gradient.squared_norm())
    return norm


def multiplied(gradient: Gradient) -> tf.Tensor:
    """The gradient as an array: a product as a sum over rows, which a compiler makes part of what is
    done with it."""
    if not isinstance(gradient, Product):
        return gradient
    rows = zip(tf.unstack(gradient.left), tf.unstack(gradient.right), strict=True)
    return tf.add_n([x[:, None] * y[None, :] for x, y in rows])


# Calls


def bound(function: Any, weights: Any) -> Callable[..., Any]:
    """The traced function with these weights as its first argument.

    TensorFlow's sorting of the arguments takes a fifth of the time of acting on one state, and holds
    the GIL. Past it nothing is checked: the arguments must be as those that were traced. No public
    name leads there; where TensorFlow has renamed what does, the function is called as any other.
    """
    try:
        call_flat = function.inference_fn.call_flat
    except AttributeError:
        return functools.partial(function, weights)
    handles = [variable.handle for variable in tf.nest.flatten(weights)]
    captures = function.captured_inputs

    def call(*arguments: object) -> Any:
        tensors = map(tf.convert_to_tensor, tf.nest.flatten(arguments))
        outputs = call_flat(*handles, *tensors, *captures)
        return tf.nest.pack_sequence_as(function.structured_outputs, outputs)

    return call
