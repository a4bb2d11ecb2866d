"""The policy and value networks: their figures, the shapes of their weights, initial weights, and
the forward pass.

    nature   Mnih et al. 2015      conv 32 8×8/4 → conv 64 4×4/2 → conv 64 3×3/1 → dense 512 ⇉ heads
    small    Mnih et al. 2016, §8  conv 16 8×8/4 → conv 32 4×4/2 → dense 256 ⇉ heads
    mlp      vector observations   two tanh layers of 64 for each head

The heads are the outputs of the policy (the logits, one for each action), and the value.

A figure is a function that is handed its layers. `Plain` layers compute with TensorFlow's own
operations; training builds the same figure of `kernels.Layers`, which are faster, and a test says
that forward pass and gradients agree. Weights are a plain dict from names to arrays or variables,
so the same figure serves the shared weights, every worker's local copy and every test.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from a3c.agent import kernels
from a3c.agent.kernels import Weights


def nature(layer: Any, x: Any, n_outputs: int) -> tuple[Any, Any]:
    x = layer.conv("conv1", x, filters=32, size=8, stride=4)
    x = layer.conv("conv2", x, filters=64, size=4, stride=2)
    x = layer.conv("conv3", x, filters=64, size=3, stride=1)
    x = layer.relu("dense", x, 512)
    return layer.linear("policy", x, n_outputs), layer.linear("value", x, 1)


def small(layer: Any, x: Any, n_outputs: int) -> tuple[Any, Any]:
    x = layer.conv("conv1", x, filters=16, size=8, stride=4)
    x = layer.conv("conv2", x, filters=32, size=4, stride=2)
    x = layer.relu("dense", x, 256)
    return layer.linear("policy", x, n_outputs), layer.linear("value", x, 1)


def mlp(layer: Any, x: Any, n_outputs: int) -> tuple[Any, Any]:
    policy = layer.tanh("policy_dense1", x, 64)
    policy = layer.tanh("policy_dense2", policy, 64)
    policy = layer.linear("policy", policy, n_outputs)
    value = layer.tanh("value_dense1", x, 64)
    value = layer.tanh("value_dense2", value, 64)
    return policy, layer.linear("value", value, 1)


FIGURES = {"nature": nature, "small": small, "mlp": mlp}


class Plain:
    """Layers of TensorFlow's own operations; `activations` notes what each hidden one gave."""

    def __init__(self, weights: Weights) -> None:
        self.activations: dict[str, tf.Tensor] = {}
        self._weights = weights

    def conv(self, name: str, x: tf.Tensor, filters: int, size: int, stride: int) -> tf.Tensor:
        if not x.dtype.is_floating:  # pixels
            x = tf.cast(x, tf.float32) / 255.0
        x = tf.nn.conv2d(x, self._weights[f"{name}_kernel"], stride, "VALID")
        return self._noted(name, tf.nn.relu(x + self._weights[f"{name}_bias"]))

    def relu(self, name: str, x: tf.Tensor, units: int) -> tf.Tensor:
        return self._noted(name, tf.nn.relu(self.linear(name, x, units)))

    def tanh(self, name: str, x: tf.Tensor, units: int) -> tf.Tensor:
        return self._noted(name, tf.tanh(self.linear(name, x, units)))

    def linear(self, name: str, x: tf.Tensor, units: int) -> tf.Tensor:
        kernel = self._weights[f"{name}_kernel"]
        x = tf.reshape(x, (-1, kernel.shape[0]))
        return tf.matmul(x, kernel) + self._weights[f"{name}_bias"]

    def _noted(self, name: str, x: tf.Tensor) -> tf.Tensor:
        self.activations[name] = x
        return x


class _Shapes:
    """Layers that are handed a shape instead of an observation, and note the shapes of weights."""

    def __init__(self) -> None:
        self.of_weights: dict[str, tuple[int, ...]] = {}

    def conv(
        self, name: str, x: tuple[int, int, int], filters: int, size: int, stride: int
    ) -> tuple[int, int, int]:
        height, width, channels = x
        self._weights(name, size, size, channels, filters)
        return (height - size) // stride + 1, (width - size) // stride + 1, filters

    def linear(self, name: str, x: tuple[int, ...], units: int) -> tuple[int, ...]:
        self._weights(name, int(np.prod(x)), units)
        return (units,)

    relu = tanh = linear

    def _weights(self, name: str, *kernel: int) -> None:
        self.of_weights[f"{name}_kernel"] = kernel
        self.of_weights[f"{name}_bias"] = kernel[-1:]


def weight_shapes(
    network: str, observation_shape: tuple[int, ...], n_outputs: int
) -> dict[str, tuple[int, ...]]:
    """The shape of each weight, in the order in which the forward pass uses them."""
    layer = _Shapes()
    FIGURES[network](layer, observation_shape, n_outputs)
    return layer.of_weights


class Predictions(NamedTuple):
    """What a network says of a batch of B observations."""

    logits: tf.Tensor  # (B, n_outputs)
    values: tf.Tensor  # (B,)
    activations: dict[str, tf.Tensor]  # each hidden layer's output


def forward(
    network: str,
    weights: Weights,
    observations: tf.Tensor,
    layers: Callable[[Weights], Any] = kernels.Layers,
) -> Predictions:
    """Logits and values of B observations: (B, 84, 84, 4) uint8, or (B, n) float32 for mlp."""
    layer = layers(weights)
    logits, values = FIGURES[network](layer, observations, weights["policy_bias"].shape[0])
    return Predictions(logits, values[:, 0], layer.activations)


def assign(variables: Mapping[str, tf.Variable], arrays: Mapping[str, np.ndarray]) -> None:
    """Give each variable the array of its name; ValueError unless names and shapes are the same."""
    if different := variables.keys() ^ arrays.keys():
        raise ValueError(f"only one side has {', '.join(sorted(different))}")
    for name, variable in variables.items():
        variable.assign(arrays[name])


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
