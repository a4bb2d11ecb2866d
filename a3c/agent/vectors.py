"""What makes the network for vectors fast. A reader may skip it.

Such a network is so small that handing arrays to TensorFlow takes longer than its arithmetic. So it
acts in NumPy, in the environments' processes (see `process_collector`), and a worker learns in one
call with few arguments: all weights are one block, all of RMSProp's statistics another, and a rollout
a third. (Each variable costs a compiled call about as much as its arithmetic.)
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from a3c.agent import network as networks
from a3c.agent.collector import Acted
from a3c.agent.policy import LIMIT_OF_LOG_SD, policy_of
from a3c.contract import Subject

BLOCK = "block"  # takes the place of the weights' names


def held(network: str | None, weights: Mapping[str, Any]) -> dict[str, Any]:
    """Weights, or statistics, as a run holds them: those of the network for vectors as one block."""
    if network != "mlp":
        return dict(weights)
    return {BLOCK: np.concatenate([np.ravel(weights[name]) for name in sorted(weights)])}


def by_name(
    held: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    """The weights of these shapes, as views of what is held."""
    if BLOCK not in held:
        return dict(held)
    views, start = {}, 0
    for name in sorted(shapes):
        end = start + int(np.prod(shapes[name]))
        views[name] = held[BLOCK][start:end].reshape(shapes[name])
        start = end
    return {name: views[name] for name in shapes}


class Network:
    """A network for vectors in NumPy; implements `collector.Network`."""

    def __init__(
        self,
        subject: Subject,
        weights: Mapping[str, np.ndarray],
        dump: Callable[..., None] = lambda purpose, **arrays: None,
    ) -> None:
        """The weights may change. What is computed is handed to `dump`."""
        self.policy, self.state_size = policy_of(subject), networks.state_size(subject)
        self.dump = dump
        self._subject, self._weights = subject, weights

    def act(self, observations: np.ndarray, state: np.ndarray) -> Acted:
        return self._forward("act", observations, state)

    def evaluate_last(self, observations: np.ndarray, state: np.ndarray) -> np.ndarray:
        return self._forward("last", observations, state).values

    def _forward(self, purpose: str, observations: np.ndarray, state: np.ndarray) -> Acted:
        remembered = {"state": state} if self.state_size else {}
        self.dump(purpose, observations=observations, **remembered)
        layers = _Layers(self._weights, state)
        # What is not finite is found in the loss.
        with np.errstate(all="ignore"):
            outputs, values = networks.NETWORKS["mlp"](layers, observations, self._subject)
        return Acted(outputs, values[:, 0], layers.new_state(), {})


class _Layers:
    """The layers of `kernels.Layers` for one step."""

    def __init__(self, weights: Mapping[str, np.ndarray], state: np.ndarray) -> None:
        self._weights, self._state = weights, state
        self._new_states: list[np.ndarray] = []

    def relu(self, name: str, x: np.ndarray, units: int) -> np.ndarray:
        y = self.linear(name, x, units)
        return np.maximum(y, 0, out=y)

    def tanh(self, name: str, x: np.ndarray, units: int) -> np.ndarray:
        y = self.linear(name, x, units)
        return np.tanh(y, out=y)

    def linear(self, name: str, x: np.ndarray, units: int) -> np.ndarray:
        y: np.ndarray = x @ self._weights[f"{name}_kernel"]
        y += self._weights[f"{name}_bias"]
        return y

    def lstm(self, name: str, x: np.ndarray, units: int) -> np.ndarray:
        start = units * len(self._new_states)
        h, c = (self._state[:, n : n + units] for n in (start, start + units))
        gates = x @ self._weights[f"{name}_input_kernel"]
        gates += h @ self._weights[f"{name}_recurrent_kernel"]
        gates += self._weights[f"{name}_bias"]
        # σ(x) = ½ + ½·tanh(½x), which does not overflow.
        i, f, o = np.split(0.5 + 0.5 * np.tanh(0.5 * gates[:, : 3 * units]), 3, axis=1)
        c = f * c + i * np.tanh(gates[:, 3 * units :])
        h = o * np.tanh(c)
        self._new_states += [h, c]
        return h

    def new_state(self) -> np.ndarray:
        return np.concatenate(self._new_states, axis=1) if self._new_states else self._state

    def with_free_log_sd(self, name: str, means: np.ndarray, n: int) -> np.ndarray:
        log_sd = np.minimum(np.maximum(self._weights[name], -LIMIT_OF_LOG_SD), LIMIT_OF_LOG_SD)
        return self._with_log_sd(means, log_sd)

    def with_log_sd_of_variance(self, means: np.ndarray, x: np.ndarray) -> np.ndarray:
        x = np.maximum(x, -2 * LIMIT_OF_LOG_SD)
        return self._with_log_sd(means, 0.5 * np.log(np.logaddexp(0, x)))

    def _with_log_sd(self, means: np.ndarray, log_sd: np.ndarray) -> np.ndarray:
        outputs = np.empty((len(means), 2 * means.shape[1]), np.float32)
        outputs[:, : means.shape[1]] = means
        outputs[:, means.shape[1] :] = log_sd
        return outputs
