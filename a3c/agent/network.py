"""The policy and value networks: their layers, the shapes of their weights, and initial weights.

    nature   Mnih et al. 2015      conv 32 8×8/4 → conv 64 4×4/2 → conv 64 3×3/1 → dense 512 ⇉ heads
    small    Mnih et al. 2016, §8  conv 16 8×8/4 → conv 32 4×4/2 → dense 256 ⇉ heads
    mlp      vector observations   hidden layers for each head, two of 64 units if nobody asks else

The heads are the policy's outputs (`policy` has their meaning) and the value. With --lstm_units, an
LSTM follows the last hidden layer (§5.1); `mlp` has one for each head, since its heads share nothing
(§9).

A network is a function that calls the layers it is given: those of `kernels.Layers` compute outputs
and gradients, those of `vectors` outputs in NumPy, those of `_Shapes` shapes. `tests/tools/oracle.py`
has the networks once more, in plain NumPy.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from a3c.agent.policy import policy_of
from a3c.contract import Subject

if TYPE_CHECKING:
    import tensorflow as tf


def nature(layer: Any, x: Any, subject: Subject) -> tuple[Any, Any]:
    x = layer.conv("conv1", x, filters=32, size=8, stride=4)
    x = layer.conv("conv2", x, filters=64, size=4, stride=2)
    x = layer.conv("conv3", x, filters=64, size=3, stride=1)
    x = layer.relu("dense", x, 512)
    return _heads(layer, x, subject)


def small(layer: Any, x: Any, subject: Subject) -> tuple[Any, Any]:
    x = layer.conv("conv1", x, filters=16, size=8, stride=4)
    x = layer.conv("conv2", x, filters=32, size=4, stride=2)
    x = layer.relu("dense", x, 256)
    return _heads(layer, x, subject)


def _heads(layer: Any, x: Any, subject: Subject) -> tuple[Any, Any]:
    if subject.lstm_units:
        x = layer.lstm("lstm", x, subject.lstm_units)
    return policy_of(subject).head(layer, x), layer.linear("value", x, 1)


def mlp(layer: Any, x: Any, subject: Subject) -> tuple[Any, Any]:
    def hidden(head: str) -> Any:
        y = x
        for i, units in enumerate(subject.hidden_units, 1):
            y = getattr(layer, subject.activation)(f"{head}_dense{i}", y, units)
        return layer.lstm(f"{head}_lstm", y, subject.lstm_units) if subject.lstm_units else y

    policy = policy_of(subject).head(layer, hidden("policy"))
    return policy, layer.linear("value", hidden("value"), 1)


NETWORKS = {"nature": nature, "small": small, "mlp": mlp}
_OURS = dict(NETWORKS)


def is_ours(name: str) -> bool:
    """Whether the network is still ours, so that its layers are known; a program may replace it."""
    return NETWORKS[name] is _OURS[name]


class _Shapes:
    """Layers that get a shape instead of an observation, and collect the shapes of their weights."""

    def __init__(self) -> None:
        self.of_weights: dict[str, tuple[int, ...]] = {}
        self.n_remembered = 0

    def conv(self, name: str, x: Any, filters: int, size: int, stride: int) -> tuple[int, ...]:
        height, width, channels = x
        self._weights(name, size, size, channels, filters)
        return (height - size) // stride + 1, (width - size) // stride + 1, filters

    def linear(self, name: str, x: tuple[int, ...], units: int) -> tuple[int, ...]:
        self._weights(name, int(np.prod(x)), units)
        return (units,)

    relu = tanh = linear

    def lstm(self, name: str, x: tuple[int, ...], units: int) -> tuple[int, ...]:
        self.of_weights[f"{name}_input_kernel"] = (int(np.prod(x)), 4 * units)
        self.of_weights[f"{name}_recurrent_kernel"] = (units, 4 * units)
        self.of_weights[f"{name}_bias"] = (4 * units,)
        self.n_remembered += 2 * units
        return (units,)

    def with_free_log_sd(self, name: str, means: tuple[int, ...], n: int) -> None:
        self.of_weights[name] = (n,)

    def with_log_sd_of_variance(self, means: tuple[int, ...], x: tuple[int, ...]) -> None:
        """It has no weights."""

    def _weights(self, name: str, *kernel: int) -> None:
        self.of_weights[f"{name}_kernel"] = kernel
        self.of_weights[f"{name}_bias"] = kernel[-1:]


def weight_shapes(subject: Subject) -> dict[str, tuple[int, ...]]:
    """The shape of each weight, in the order in which the forward pass uses them."""
    return _shapes(subject).of_weights


def state_size(subject: Subject) -> int:
    """How many numbers the network remembers of each environment: h and c of each LSTM's cells."""
    return _shapes(subject).n_remembered


def _shapes(subject: Subject) -> _Shapes:
    layer = _Shapes()
    NETWORKS[subject.network](layer, subject.observation_shape, subject)
    return layer


def assign(variables: Mapping[str, "tf.Variable"], arrays: Mapping[str, np.ndarray]) -> None:
    """Assign to each variable the array of its name; ValueError if names or shapes differ."""
    check_shapes({name: tuple(variable.shape) for name, variable in variables.items()}, arrays)
    for name, variable in variables.items():
        variable.assign(arrays[name])


def check_shapes(shapes: Mapping[str, tuple[int, ...]], arrays: Mapping[str, np.ndarray]) -> None:
    """Raise ValueError unless there is an array of each name, with its shape, and no other."""
    if different := shapes.keys() ^ arrays.keys():
        raise ValueError(f"only one side has {', '.join(sorted(different))}")
    for name, shape in shapes.items():
        if shape != arrays[name].shape:
            raise ValueError(f"{name} has shape {arrays[name].shape}, not {shape}")


def initial_weights(
    shapes: Mapping[str, tuple[int, ...]],
    scheme: str,
    generator: np.random.Generator,
    initial_sd: float = 1.0,
) -> dict[str, np.ndarray]:
    """Draw all weights, in their order, from one generator.

    glorot      TensorFlow 1's default    U(±√(6 / (fan_in + fan_out))), biases 0
    torch       Torch 7's, the author's   U(±1 / √fan_in), biases too
    orthogonal  OpenAI Baselines' A2C     gain √2 (policy: 0.01; value, LSTM: 1), biases 0

    Except with torch, an LSTM's forget gates start with a bias of 1, as TensorFlow 1's do, so that
    it remembers at first. A Gaussian policy starts with `initial_sd` in all states.
    """
    weights = {}
    for name, shape in shapes.items():
        layer, part = name.rsplit("_", 1)
        kernel_shape = shapes.get(f"{layer}_kernel", shapes.get(f"{layer}_input_kernel", shape))
        fan_in = int(np.prod(kernel_shape[:-1]))
        if name == "policy_log_sd":
            values = np.full(shape, math.log(initial_sd))
        elif layer == "policy_variance":
            # The kernel is 0, and softplus(bias) is the variance in all states.
            variance = initial_sd**2
            inverse = variance + math.log(-math.expm1(-variance))  # softplus⁻¹, without overflow
            values = np.full(shape, inverse if part == "bias" else 0.0)
        elif scheme == "torch":
            values = generator.uniform(-(fan_in**-0.5), fan_in**-0.5, shape)
        elif part == "bias":
            values = np.zeros(shape)
            if layer.endswith("lstm"):
                values[shape[0] // 4 : shape[0] // 2] = 1.0
        elif scheme == "glorot":
            fan_out = int(np.prod(kernel_shape[:-2])) * kernel_shape[-1]
            limit = (6 / (fan_in + fan_out)) ** 0.5
            values = generator.uniform(-limit, limit, shape)
        else:
            gain = {"policy": 0.01, "value": 1.0}.get(layer, 1.0 if "lstm" in layer else 2**0.5)
            values = gain * _orthogonal(fan_in, shape[-1], generator).reshape(shape)
        weights[name] = values.astype(np.float32)
    return weights


def _orthogonal(n_rows: int, n_columns: int, generator: np.random.Generator) -> np.ndarray:
    """A matrix with an orthonormal shorter side, drawn uniformly from all such matrices."""
    square = generator.standard_normal((max(n_rows, n_columns), min(n_rows, n_columns)))
    q, r = np.linalg.qr(square)
    q *= np.sign(np.diag(r))  # QR's own choice of signs is not uniform
    return q if n_rows >= n_columns else q.T
