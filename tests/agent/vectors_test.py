"""Acting in NumPy: how far it is from what TensorFlow computes when it learns."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from a3c.agent import kernels, network, vectors
from a3c.agent.kernels import Memory
from a3c.agent.policy import LIMIT_OF_LOG_SD
from a3c.contract import Subject
from tests.tools.agents import subject_of

U = 2.0**-24  # of float32
# Of tanh, exp and log, in NumPy and in TensorFlow: at most so many u of the result.
OF_A_FUNCTION = 16


class Bounded(NamedTuple):
    """A layer's exact output, and how far float32 may be from each of its numbers."""

    exact: np.ndarray
    error: np.ndarray

    def plus(self, error: Any) -> "Bounded":
        return Bounded(self.exact, self.error + error)


class BoundedLayers:
    """The layers in float64, with the bound that follows from a rounding after each operation."""

    def __init__(self, weights: dict[str, np.ndarray], state: np.ndarray) -> None:
        self._weights = {name: w.astype(np.float64) for name, w in weights.items()}
        self._state = state.astype(np.float64)
        self.new_states: list[Bounded] = []

    def relu(self, name: str, x: Bounded, units: int) -> Bounded:
        y = self.linear(name, x, units)
        return Bounded(np.maximum(y.exact, 0), y.error)

    def tanh(self, name: str, x: Bounded, units: int) -> Bounded:
        return _tanh(self.linear(name, x, units))

    def linear(self, name: str, x: Bounded, units: int) -> Bounded:
        return self._product(x, f"{name}_kernel", f"{name}_bias")

    def _product(self, x: Bounded, kernel: str, bias: str | None = None) -> Bounded:
        """n products, n sums: each term is rounded at most n + 1 times, in whatever order."""
        w = self._weights[kernel]
        b = self._weights[bias] if bias else np.zeros(w.shape[1])
        sizes = (np.abs(x.exact) + x.error) @ np.abs(w) + np.abs(b)
        return Bounded(x.exact @ w + b, x.error @ np.abs(w) + (len(w) + 1) * U * sizes)

    def lstm(self, name: str, x: Bounded, units: int) -> Bounded:
        start = units * len(self.new_states)
        h, c = (Bounded(self._state[:, n : n + units], 0) for n in (start, start + units))
        parts = (
            self._product(x, f"{name}_input_kernel"),
            self._product(
                h.plus(np.zeros_like(h.exact)), f"{name}_recurrent_kernel", f"{name}_bias"
            ),
        )
        z = Bounded(parts[0].exact + parts[1].exact, parts[0].error + parts[1].error)
        z = z.plus(2 * U * (np.abs(parts[0].exact) + np.abs(parts[1].exact)))
        i, f, o, g = (
            Bounded(z.exact[:, n : n + units], z.error[:, n : n + units])
            for n in range(0, 4 * units, units)
        )
        i, f, o = map(_sigmoid, (i, f, o))
        c = _sum(_times(f, c), _times(i, _tanh(g)))
        h = _times(o, _tanh(c))
        self.new_states += [h, c]
        return h

    def with_free_log_sd(self, name: str, means: Bounded, n: int) -> Bounded:
        log_sd = np.broadcast_to(self._weights[name], means.exact.shape)
        return _beside(means, Bounded(log_sd, np.zeros_like(log_sd)))

    def with_log_sd_of_variance(self, means: Bounded, x: Bounded) -> Bounded:
        # The slope of ½·log(softplus(x)) is at most ½, and a rounding of softplus(x) moves it by ½.
        log_sd = 0.5 * np.log(np.logaddexp(0, x.exact))
        error = 0.5 * x.error + OF_A_FUNCTION * U * (1 + np.abs(log_sd))
        return _beside(
            means, Bounded(*(np.broadcast_to(p, means.exact.shape) for p in (log_sd, error)))
        )


def _tanh(x: Bounded) -> Bounded:
    y = np.tanh(x.exact)
    return Bounded(y, x.error + OF_A_FUNCTION * U * np.abs(y))


def _sigmoid(x: Bounded) -> Bounded:
    y = 1 / (1 + np.exp(-x.exact))
    return Bounded(y, x.error / 4 + OF_A_FUNCTION * U)


def _times(a: Bounded, b: Bounded) -> Bounded:
    error = a.error * np.abs(b.exact) + b.error * np.abs(a.exact) + a.error * b.error
    return Bounded(a.exact * b.exact, error + U * np.abs(a.exact * b.exact) + U * error)


def _sum(a: Bounded, b: Bounded) -> Bounded:
    return Bounded(a.exact + b.exact, a.error + b.error + U * np.abs(a.exact + b.exact))


def _beside(a: Bounded, b: Bounded) -> Bounded:
    return Bounded(*(np.concatenate(pair, axis=1) for pair in zip(a, b, strict=True)))


KINDS: dict[str, dict[str, Any]] = {
    "tanh": {},
    "relu": {"activation": "relu", "hidden_units": (32, 8, 16)},
    "without a hidden layer": {"hidden_units": ()},
    "memory": {"lstm_units": 8},
    "a free sd": {"policy": "per_dimension"},
    "an sd of the state": {"policy": "per_state", "lstm_units": 8},
}


def drawn(subject: Subject, n_envs: int) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Weights, all of them not 0; observations, up to 10 as normalised ones are; a state."""
    generator = np.random.default_rng(n_envs)
    weights = {
        name: (generator.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        for name, shape in network.weight_shapes(subject).items()
    }
    seen = 10 * generator.uniform(-1, 1, (n_envs, *subject.observation_shape))
    state = generator.uniform(-1, 1, (n_envs, network.state_size(subject)))
    return weights, seen.astype(np.float32), state.astype(np.float32)


def in_numpy(
    subject: Subject, weights: dict[str, np.ndarray], seen: np.ndarray, state: np.ndarray
) -> list[np.ndarray]:
    acted = vectors.Network(subject, weights).act(seen, state)
    return [acted.outputs, acted.values, acted.state]


def in_tensorflow(
    subject: Subject, weights: dict[str, np.ndarray], seen: np.ndarray, state: np.ndarray
) -> list[np.ndarray]:
    given = {name: tf.constant(w) for name, w in weights.items()}
    found = kernels.forward(subject, given, tf.constant(seen), Memory(tf.constant(state)))
    return [found.outputs.numpy(), found.values.numpy(), found.state.numpy()]


def exactly(
    subject: Subject, weights: dict[str, np.ndarray], seen: np.ndarray, state: np.ndarray
) -> list[Bounded]:
    layers = BoundedLayers(weights, state)
    exact = seen.astype(np.float64)
    outputs, values = network.mlp(layers, Bounded(exact, np.zeros_like(exact)), subject)
    new = layers.new_states
    parts = [np.concatenate([s[i] for s in new], axis=1) if new else state for i in (0, 1)]
    return [outputs, Bounded(*(part[:, 0] for part in values)), Bounded(*parts)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_envs", [1, 3, 64])
def test_acting_and_learning_go_forward_alike(kind: str, n_envs: int) -> None:
    """Analytic: outputs, values and state of both are as near to the exact ones as float32's roundings allow, so they
    differ by twice that at most. The bound is narrow: weights that are 0.2 % larger are beyond it.
    """
    subject = subject_of("mlp", (5,), 3, **KINDS[kind])
    weights, seen, state = drawn(subject, n_envs)
    bounds = exactly(subject, weights, seen, state)
    for compute in (in_numpy, in_tensorflow):
        for found, (exact, error) in zip(
            compute(subject, weights, seen, state), bounds, strict=True
        ):
            assert found.shape == exact.shape
            assert (np.abs(found - exact) <= error).all()
    others = {name: w * np.float32(1.002) for name, w in weights.items()}
    found, (exact, error) = in_numpy(subject, others, seen, state)[0], bounds[0]
    assert (np.abs(found - exact) > error).any()


@pytest.mark.parametrize("policy", ["per_dimension", "per_state"])
def test_the_sd_is_limited_as_in_learning(policy: str) -> None:
    """Parity: far beyond both limits, where softplus and its log would overflow or vanish."""
    subject = subject_of("mlp", (5,), 3, policy=policy)
    name = {"per_dimension": "policy_log_sd", "per_state": "policy_variance_bias"}[policy]
    weights, seen, state = drawn(subject, 2)
    for x in (-1000.0, -50.0, 50.0, 1000.0):
        weights[name][:] = x
        ours, theirs = (f(subject, weights, seen, state)[0] for f in (in_numpy, in_tensorflow))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
        assert np.abs(ours[:, 3:]).max() <= LIMIT_OF_LOG_SD


def test_a_block_holds_each_weight_in_its_place() -> None:
    """Analytic: whatever the order in which weights come."""
    shapes = {"value_kernel": (2, 1), "value_bias": (1,), "policy_kernel": (2, 3)}
    weights = {name: np.random.default_rng(n).random(shapes[name]) for n, name in enumerate(shapes)}
    for names in (list(shapes), sorted(shapes)):
        held = vectors.held("mlp", {name: weights[name] for name in names})
        found = vectors.by_name(held, shapes)
        assert list(found) == list(shapes)
        for name, expected in weights.items():
            np.testing.assert_array_equal(found[name], expected)
