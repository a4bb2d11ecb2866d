"""The policy and value networks: their layers, the shapes of their weights, and initial weights.

    nature   Mnih et al. 2015      conv 32 8×8/4 → conv 64 4×4/2 → conv 64 3×3/1 → dense 512 ⇉ heads
    small    Mnih et al. 2016, §8  conv 16 8×8/4 → conv 32 4×4/2 → dense 256 ⇉ heads
    mlp      vector observations   two tanh layers of 64 for each head

The heads are the policy's outputs (a logit for each action) and the value.

A network is a function that calls the layers it is given: those of `kernels.Layers` compute outputs
and gradients, those of `_Shapes` shapes. `tests/tools/oracle.py` has the networks in plain NumPy.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from a3c.agent import kernels
from a3c.agent.kernels import Activations, Weights


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


NETWORKS = {"nature": nature, "small": small, "mlp": mlp}


class _Shapes:
    """Layers that get a shape instead of an observation, and collect the shapes of their weights."""

    def __init__(self) -> None:
        self.of_weights: dict[str, tuple[int, ...]] = {}

    def conv(self, name: str, x: Any, filters: int, size: int, stride: int) -> tuple[int, ...]:
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
    NETWORKS[network](layer, observation_shape, n_outputs)
    return layer.of_weights


class Predictions(NamedTuple):
    """What a network computes for B observations."""

    logits: tf.Tensor  # (B, n_outputs)
    values: tf.Tensor  # (B,)
    activations: dict[str, tf.Tensor]  # each hidden layer's output


def forward(
    network: str, weights: Weights, observations: tf.Tensor, computed: Activations | None = None
) -> Predictions:
    """Observations: (B, 84, 84, 4) uint8 or (B, n) float32; `computed` is as in `kernels.Layers`."""
    layers = kernels.Layers(weights, computed)
    logits, values = NETWORKS[network](layers, observations, weights["policy_bias"].shape[0])
    return Predictions(logits, values[:, 0], layers.activations)


def assign(variables: Mapping[str, tf.Variable], arrays: Mapping[str, np.ndarray]) -> None:
    """Assign to each variable the array of its name; ValueError if names or shapes differ."""
    if different := variables.keys() ^ arrays.keys():
        raise ValueError(f"only one side has {', '.join(sorted(different))}")
    for name, variable in variables.items():
        variable.assign(arrays[name])


def initial_weights(
    shapes: Mapping[str, tuple[int, ...]], scheme: str, generator: np.random.Generator
) -> dict[str, np.ndarray]:
    """Draw all weights, in their order, from one generator.

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
    """A matrix with an orthonormal shorter side, drawn uniformly from all such matrices."""
    square = generator.standard_normal((max(n_rows, n_columns), min(n_rows, n_columns)))
    q, r = np.linalg.qr(square)
    q *= np.sign(np.diag(r))  # QR's own choice of signs is not uniform
    return q if n_rows >= n_columns else q.T
