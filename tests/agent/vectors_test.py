"""Acting in NumPy: how far it is from what TensorFlow computes when it learns."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from a3c.agent import kernels, network, vectors
from a3c.agent.kernels import Memory
from a3c.agent.policy import LIMIT_OF_LOG_SD
from a3c.contract import Subject
from tests.tools import oracle
from tests.tools.agents import subject_of

CLOSE = 1e-5
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
) -> list[np.ndarray]:
    """By the oracle."""
    network = oracle.Network(
        *("mlp", subject.hidden_units, subject.activation, subject.lstm_units, subject.policy)
    )
    in_float64 = {name: w.astype(np.float64) for name, w in weights.items()}
    found = oracle.forward(network, in_float64, seen, state)
    return [found["policy"], found["value"][:, 0], found["state"]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_envs", [1, 3, 64])
def test_acting_and_learning_go_forward_alike(kind: str, n_envs: int) -> None:
    """Parity: outputs, values and state of both are those of plain NumPy in float64, within its roundings. Weights that
    are 0.2 % larger give others.
    """
    subject = subject_of("mlp", (5,), 3, **KINDS[kind])
    given = drawn(subject, n_envs)
    expected = exactly(subject, *given)
    for compute in (in_numpy, in_tensorflow):
        for found, exact in zip(compute(subject, *given), expected, strict=True):
            assert found.shape == exact.shape
            np.testing.assert_allclose(found, exact, rtol=CLOSE, atol=CLOSE)
    others = {name: w * np.float32(1.002) for name, w in given[0].items()}
    found = in_numpy(subject, others, *given[1:])[0]
    assert not np.allclose(found, expected[0], rtol=CLOSE, atol=CLOSE)


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
