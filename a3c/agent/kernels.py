"""What makes the networks and their training fast. A reader may skip it.

    Layers    compute a network's forward pass and gradients, which are fast for the few rows of a
              rollout, and do not compute again what acting has computed
    Product   the gradient of a large kernel, kept as its two factors
    forward   a network's forward pass

`tests/agent/network_test.py` and `kernels_test.py` compare each with its plain form.
"""

import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from a3c.agent import network
from a3c.agent.policy import LIMIT_OF_LOG_SD
from a3c.contract import Subject

ROWS_OF_A_PRODUCT = 8  # with more rows, multiplying the factors is faster

Weights: TypeAlias = Mapping[str, tf.Tensor | tf.Variable]
Activations: TypeAlias = Mapping[str, tf.Tensor]  # each hidden layer's output, first to last


# Layers


class Memory(NamedTuple):
    """What LSTMs begin with. Without LSTMs, n_state is 0."""

    state: tf.Tensor  # (K, n_state): h and c of each LSTM, one beside the other
    # (T, K): 0 where an episode ends, so that the next step starts from zero. None: one step.
    continues: tf.Tensor | None = None


class Layers:
    """A network's layers with its weights; `activations` collects the output of each hidden one.

    The rows of its input are T steps of K environments, step by step. `memory` is what LSTMs begin
    with, and `new_state` what they have after the T steps.

    `computed` are the activations of the same weights for the same observations, if they are known.
    They are not computed again, and gradients flow as if they had been computed here. (An LSTM
    is computed again: the way back through time needs more than its outputs.)
    """

    def __init__(
        self, weights: Weights, memory: Memory, computed: Activations | None = None
    ) -> None:
        self.activations: dict[str, tf.Tensor] = {}
        self._weights, self._computed = weights, computed
        self._memory = memory
        self._new_states: list[tf.Tensor] = []

    def conv(self, name: str, x: tf.Tensor, filters: int, size: int, stride: int) -> tf.Tensor:
        kernel = self._kernel(name)
        if not x.dtype.is_floating:
            # Scaling the kernel instead of the pixels gives the same with less work.
            kernel = kernel / 255.0
        return self._hidden(_convolution(stride), name, x, kernel)

    def relu(self, name: str, x: tf.Tensor, units: int) -> tf.Tensor:
        return self._dense(_RELU, name, x)

    def tanh(self, name: str, x: tf.Tensor, units: int) -> tf.Tensor:
        return self._dense(_TANH, name, x)

    def linear(self, name: str, x: tf.Tensor, units: int) -> tf.Tensor:
        return _matmul(x, self._kernel(name)) + self._weights[f"{name}_bias"]

    def lstm(self, name: str, x: tf.Tensor, units: int) -> tf.Tensor:
        """Hochreiter and Schmidhuber's cells with forget gates, through the T steps of x:

        i, f, o = σ(x·W + h·U + b)    g = tanh(x·W + h·U + b)    c ← f·c + i·g    h ← o·tanh(c)
        """
        state, continues = self._memory
        start = units * len(self._new_states)
        # No gradient flows into the state that a rollout began with.
        h, c = (tf.stop_gradient(state[:, n : n + units]) for n in (start, start + units))
        before: list[tf.Tensor] = []  # h before each step

        @tf.custom_gradient
        def product(x: tf.Tensor, kernel: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, object]:
            def gradient(d_gates: tf.Tensor) -> tuple[Any, ...]:
                # One product over all steps instead of one a step saves a tenth of an update's time.
                d_recurrent = tf.matmul(tf.concat(before, axis=0), d_gates, transpose_a=True)
                return *_d_matmul(x, kernel, d_gates), d_recurrent

            return tf.matmul(x, kernel), gradient

        recurrent = self._kernel(f"{name}_recurrent")
        inputs = product(x, self._kernel(f"{name}_input"), recurrent)
        inputs += self._weights[f"{name}_bias"]
        recurrent = tf.stop_gradient(recurrent)
        n_steps = 1 if continues is None else continues.shape[0]
        hidden = []
        for t, from_input in enumerate(tf.split(inputs, n_steps)):
            before.append(h)
            i, f, o, g = tf.split(from_input + _matmul(h, recurrent), 4, axis=1)
            c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
            h = tf.sigmoid(o) * tf.tanh(c)
            hidden.append(h)
            if continues is not None:
                h, c = continues[t][:, None] * h, continues[t][:, None] * c
        self._new_states += [h, c]
        y = tf.concat(hidden, axis=0)
        if continues is not None:  # acting need not keep what is computed again
            self.activations[name] = y
        return y

    def new_state(self) -> tf.Tensor:
        """(K, n_state) after the T steps; zero where the last one ended an episode."""
        return tf.concat(self._new_states, axis=1) if self._new_states else self._memory.state

    def with_free_log_sd(self, name: str, means: tf.Tensor, n: int) -> tf.Tensor:
        """The means, and beside them the same log of the standard deviation in each row."""
        log_sd = tf.clip_by_value(self._weights[name], -LIMIT_OF_LOG_SD, LIMIT_OF_LOG_SD)
        return tf.concat([means, tf.zeros_like(means) + log_sd], axis=1)

    def with_log_sd_of_variance(self, means: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        """The means, and beside them the log of √softplus(x), for all dimensions the same."""
        log_sd = 0.5 * tf.math.log(tf.nn.softplus(tf.maximum(x, -2 * LIMIT_OF_LOG_SD)))
        return tf.concat([means, tf.zeros_like(means) + log_sd], axis=1)

    def _dense(self, kind: "_Kind", name: str, x: tf.Tensor) -> tf.Tensor:
        kernel = self._kernel(name)
        if x.shape.rank != 2:
            x = tf.reshape(x, (-1, kernel.shape[0]))
        return self._hidden(kind, name, x, kernel)

    def _hidden(self, kind: "_Kind", name: str, x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        """activation(x · kernel + bias), which is taken from `computed` if that is given."""
        computed = None if self._computed is None else self._computed[name]

        @tf.custom_gradient
        def layer(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tuple[tf.Tensor, object]:
            y = computed
            if y is None:
                y = kind.activation(tf.nn.bias_add(kind.product(x, kernel), bias))

            def gradient(dy: tf.Tensor) -> tuple[Any, tf.Tensor, tf.Tensor]:
                dy = kind.d_activation(y, dy)
                d_x, d_kernel = kind.d_product(x, kernel, dy)
                return d_x, d_kernel, tf.raw_ops.BiasAddGrad(out_backprop=dy)

            return y, gradient

        bias = tf.convert_to_tensor(self._weights[f"{name}_bias"])
        self.activations[name] = layer(x, kernel, bias)
        return self.activations[name]

    def _kernel(self, name: str) -> tf.Tensor:
        return tf.convert_to_tensor(self._weights[f"{name}_kernel"])


class _Kind(NamedTuple):
    """A kind of layer: its product and its activation, and the gradients of both."""

    product: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]  # x, kernel
    d_product: Callable[..., tuple[Any, tf.Tensor]]  # x, kernel, dy → d_x, d_kernel
    activation: Callable[[tf.Tensor], tf.Tensor]
    d_activation: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]  # y, dy → the gradient below


def _d_matmul(x: tf.Tensor, kernel: tf.Tensor, dy: tf.Tensor) -> tuple[Any, tf.Tensor]:
    """The gradients of x @ kernel. That of x is (kernel @ dyᵀ)ᵀ, the same sums as dy @ kernelᵀ.

    With few rows, TensorFlow's own form transposes the whole kernel first: for nature's 3136×512,
    that took 11 ms of an update's 24, and this form takes 1.5 ms.
    """
    d_x = tf.transpose(tf.matmul(kernel, dy, transpose_b=True))
    return d_x, tf.matmul(x, dy, transpose_a=True)


@tf.custom_gradient
def _matmul(x: tf.Tensor, kernel: tf.Tensor) -> tuple[tf.Tensor, object]:
    return tf.matmul(x, kernel), functools.partial(_d_matmul, x, kernel)


def _convolution(stride: int) -> _Kind:
    """tf.nn.conv2d without padding."""

    def product(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        return tf.nn.conv2d(tf.cast(x, tf.float32), kernel, stride, "VALID")

    def d_product(x: tf.Tensor, kernel: tf.Tensor, dy: tf.Tensor) -> tuple[Any, tf.Tensor]:
        d_kernel = tf.raw_ops.Conv2DBackpropFilter(
            input=tf.cast(x, tf.float32),
            filter_sizes=kernel.shape,
            out_backprop=dy,
            strides=[1, stride, stride, 1],
            padding="VALID",
        )
        if not x.dtype.is_floating:
            return None, d_kernel
        return tf.nn.conv2d_transpose(dy, kernel, tf.shape(x), stride, "VALID"), d_kernel

    return _Kind(product, d_product, tf.nn.relu, _d_relu)


def _d_relu(y: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.ReluGrad(gradients=dy, features=y)


_RELU = _Kind(tf.matmul, _d_matmul, tf.nn.relu, _d_relu)
_TANH = _Kind(tf.matmul, _d_matmul, tf.tanh, lambda y, dy: tf.raw_ops.TanhGrad(y=y, dy=dy))


# A network


class Predictions(NamedTuple):
    """What a network computes for B observations."""

    outputs: tf.Tensor  # (B, n_outputs), the policy's
    values: tf.Tensor  # (B,)
    state: tf.Tensor  # (K, state_size) after the last of them
    activations: dict[str, tf.Tensor]  # each hidden layer's output


def forward(
    subject: Subject,
    weights: Weights,
    observations: tf.Tensor,
    memory: Memory,
    computed: Activations | None = None,
) -> Predictions:
    """Observations: (B, 84, 84, 4) uint8 or (B, n) float32; `memory` and `computed` are as in `Layers`."""
    layers = Layers(weights, memory, computed)
    outputs, values = network.NETWORKS[subject.network](layers, observations, subject)
    return Predictions(outputs, values[:, 0], layers.new_state(), layers.activations)


# Gradients


class Product(NamedTuple):
    """The gradient leftᵀ @ right of a large kernel, kept as two factors of few rows."""

    left: tf.Tensor  # (B, n)
    right: tf.Tensor  # (B, m)

    def squared_norm(self) -> tf.Tensor:
        """The sum of the squares of the entries, without computing the entries."""
        grams = [tf.matmul(x, x, transpose_b=True) for x in self]
        return tf.maximum(tf.reduce_sum(grams[0] * grams[1]), 0.0)  # rounding can make it negative


Gradient: TypeAlias = tf.Tensor | Product
Gradients: TypeAlias = Mapping[str, Gradient]  # one for each weight


def gradients(
    tape: tf.GradientTape, loss: tf.Tensor, weights: Weights, activations: Activations
) -> Gradients:
    """The gradient for each weight; with few rows, that of the dense kernel is a `Product`.

    It is by far the largest of an image network. Two factors save an eighth of an update's time.
    """
    dense = activations.get("dense")
    if dense is None or dense.shape[0] is None or dense.shape[0] > ROWS_OF_A_PRODUCT:
        return tape.gradient(loss, weights)
    others = {name: weight for name, weight in weights.items() if name != "dense_kernel"}
    found, d_dense = tape.gradient(loss, (others, dense))
    names = [*activations]
    below = activations[names[names.index("dense") - 1]]
    product = Product(tf.reshape(below, (below.shape[0], -1)), _d_relu(dense, d_dense))
    return {name: found.get(name, product) for name in weights}


def global_norm(gradients: Collection[Gradient]) -> tf.Tensor:
    """tf.linalg.global_norm, which takes products as well."""
    norm = tf.linalg.global_norm([g for g in gradients if not isinstance(g, Product)])
    for gradient in gradients:
        if isinstance(gradient, Product):
            norm = tf.sqrt(tf.square(norm) + gradient.squared_norm())
    return norm


def multiplied(gradient: Gradient) -> tf.Tensor:
    """The gradient as an array; a product becomes a sum over rows, which XLA fuses with its use."""
    if not isinstance(gradient, Product):
        return gradient
    rows = zip(tf.unstack(gradient.left), tf.unstack(gradient.right), strict=True)
    return tf.add_n([x[:, None] * y[None, :] for x, y in rows])
