"""What workers do with the state of LSTMs: when it is zero, kept, or cut off.

Most tests have a wrong twin: what a likely mistake would give, which has to be something else.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pytest
import tensorflow as tf

from a3c.agent import calls, kernels, network
from a3c.agent.collector import Acted, Rollout
from a3c.agent.kernels import Memory
from a3c.agent.policy import Categorical, policy_of
from a3c.agent.worker import Failure, MainThreadLink
from a3c.contract import Counts, Snapshot, Subject
from a3c.machine.stopping import StopFlag
from tests.tools import oracle
from tests.tools.agents import subject_of
from tests.tools.crews import (
    N_ACTIONS,
    N_INPUTS,
    Call,
    Crew,
    calls_of,
    make_shared,
    make_worker,
    params_with,
    record,
    rollouts_of,
)
from tests.tools.fakes import NumberedEnvs
from tests.tools.pools import TOY, opened

Arrays: TypeAlias = dict[str, np.ndarray]


def test_a_network_of_ones_own_may_have_another_number_of_lstms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Analytic: the state has h and c of each, whatever the network is called."""

    def shared(layer: Any, x: Any, subject: Subject) -> tuple[Any, Any]:
        x = layer.lstm("lstm", x, subject.lstm_units)
        return policy_of(subject).head(layer, x), layer.linear("value", x, 1)

    monkeypatch.setitem(network.NETWORKS, "mlp", shared)
    assert network.state_size(subject_of("mlp", (N_INPUTS,), 2, lstm_units=3)) == 2 * 3


def test_policy_and_value_of_vectors_remember_for_themselves() -> None:
    """Analytic: h and c of both are parts of the state; changing one part changes its own head and its own new part."""
    subject = subject_of("mlp", (N_INPUTS,), 2, hidden_units=(3,), lstm_units=2)
    shapes = network.weight_shapes(subject)
    weights = network.initial_weights(shapes, "glorot", np.random.default_rng(0))
    assert network.state_size(subject) == 8
    x = tf.ones((1, N_INPUTS))

    def changed(part: slice) -> list[np.ndarray]:
        """Which of outputs, value and numbers of the new state depend on this part of the state."""
        state = np.zeros((2, 8), np.float32)
        state[1, part] = 0.5
        one, other = (kernels.forward(subject, weights, x, Memory(s[None])) for s in state)
        parts = zip(one[:3], other[:3], strict=True)
        return [np.ravel(a != b).tolist() for a, b in parts]

    for part in (slice(2), slice(2, 4)):
        assert changed(part) == [[True] * 2, [False], [True] * 4 + [False] * 4]
    for part in (slice(4, 6), slice(6, 8)):
        assert changed(part) == [[False] * 2, [True], [False] * 4 + [True] * 4]


# Workers


STEP = 0.1  # what the cells count by
SUBJECT = subject_of("mlp", (N_INPUTS,), N_ACTIONS, hidden_units=(1,), lstm_units=1)
GAMMA = 0.9


def value(n_seen: Any) -> Any:
    """V, once the cells have counted so many observations of an episode."""
    return np.tanh(STEP * n_seen)


def counting_weights() -> Arrays:
    """A cell for each head, which adds 0.1 at each observation, and whose output is the value."""
    weights = {name: np.zeros(shape) for name, shape in network.weight_shapes(SUBJECT).items()}
    for head in ("policy", "value"):
        # All gates are open, to the last bit.
        weights[f"{head}_lstm_bias"] = np.array([30, 30, 30, np.arctanh(STEP)])
    weights["value_kernel"] += 1
    return weights


class Recorded(NamedTuple):
    """What a worker has done with four environments, of which three have ends or break."""

    calls: list[Call]
    crew: Crew

    def acted(self) -> tuple[np.ndarray, np.ndarray]:
        """Of each step: how many observations of the episode came before, and the state."""
        acts = calls_of(self.calls, "act")
        seen, states = (np.array([call.arguments[i] for call in acts]) for i in (0, 1))
        return seen[:, :, 2] * 8, states


N_STEPS = 3  # of a rollout
ENDS = {
    "terminations": {(1, 0), (5, 0), (10, 0)},  # in a rollout, at an edge, and not at both
    "truncations": {(4, 2), (8, 2), (10, 0)},
    "faults": {(7, 1)},
}


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    """Five rollouts, of which the third loses environment 1."""
    shared = make_shared(10**9, shapes=network.weight_shapes(SUBJECT))
    shared.restore(Snapshot(Counts(), counting_weights(), {}))
    envs = NumberedEnvs(
        N_STEPS + 1, 4, **ENDS, on_step=lambda n: crew.stop.set() if n == 15 else None
    )
    # Without learning, the cells go on counting.
    crew = Crew(shared, [envs], params_with(initial_lr=0.0), subject=SUBJECT)
    calls = record(crew.locals[0])
    crew.run()
    assert not crew.of_kind(Failure)
    assert len(calls_of(calls, "learn")) == 5
    return Recorded(calls, crew)


def test_the_state_is_of_the_episode_so_far(recorded: Recorded) -> None:
    """Analytic: cells that count have counted the episode's observations at every step of every environment: they begin
    at 0 after a termination, a truncation and a fault, and go on over the edges of rollouts.

    The twins: cells that never begin anew, and cells that forget at the edges.
    """
    n_before, states = recorded.acted()
    count = states[:, :, 1] / STEP
    np.testing.assert_allclose(count, n_before, atol=1e-5)
    expected = np.stack([value(count), STEP * count] * 2, axis=2)
    np.testing.assert_allclose(states, expected, atol=1e-6)
    steps = np.arange(len(count))[:, None] + np.zeros(4)
    assert (steps != n_before).any(axis=0).tolist() == [True, True, True, False]
    assert (np.minimum(n_before, steps % N_STEPS) != n_before).any(axis=0).all()


def test_a_rollout_has_the_state_that_it_began_with(recorded: Recorded) -> None:
    """Analytic: that of its first step; where an environment broke, its column is left out. The twins: the state that
    the rollout ended with, and the columns of the first environments.
    """
    _, states = recorded.acted()
    for i, rollout in enumerate(rollouts_of(recorded.calls)):
        whole = [0, 2, 3] if i == 2 else [0, 1, 2, 3]
        at_start, at_end = states[N_STEPS * i], states[N_STEPS * i + N_STEPS - 1]
        np.testing.assert_array_equal(rollout.states, at_start[None, whole])
        assert not np.allclose(rollout.states, at_end[None, whole])
        assert i != 2 or not np.allclose(rollout.states, at_start[None, :3])


def test_the_value_that_a_time_limit_hides_is_of_its_own_episodes_memory(
    recorded: Recorded,
) -> None:
    """Analytic: V of a true last observation comes from the state after the last step, and counts one more. The twins:
    the state before that step, and one that is zero already. The others' states stay: they are in the test above.
    """
    n_before, _ = recorded.acted()
    rollouts = rollouts_of(recorded.calls)
    for n, env in ENDS["truncations"] - ENDS["terminations"]:
        i, t = divmod(n, N_STEPS)
        column = env - 1 if i == 2 else env  # without environment 1
        reward = n + rollouts[i].actions[t, column] / 10 + 100 * env
        added = rollouts[i].rewards[t, column] - reward
        n_seen = n_before[n, env] + 1
        np.testing.assert_allclose(added, GAMMA * value(n_seen + 1), atol=1e-3)
        assert min(abs(added - GAMMA * value(wrong)) for wrong in (n_seen, 1)) > 0.05


def test_the_value_after_a_rollout_is_of_the_state_after_it(recorded: Recorded) -> None:
    """Analytic: the mean advantage of each whole rollout, in closed form. The twins: V(s_T) from a zero state, and from
    the state before the last step. Acting goes on from the state before V(s_T): that is in the test above.
    """
    for i, rollout in enumerate(rollouts_of(recorded.calls)):
        if i == 2:
            continue
        n_seen = rollout.observations[:, :, 2] * 8 + 1  # (T + 1, K)
        measured = recorded.crew.locals[0].measure(rollout).scalars["rl/advantage_mean"]
        expected, of_zero, of_before = (
            mean_advantage(rollout, value(n_seen[:-1]), value(n_last))
            for n_last in (n_seen[-1], np.ones(4), n_seen[-1] - 1)
        )
        assert measured == pytest.approx(expected, abs=1e-3)
        assert min(abs(measured - twin) for twin in (of_zero, of_before)) > 0.01


def mean_advantage(rollout: Rollout, values: np.ndarray, bootstrap: np.ndarray) -> float:
    returns = oracle.n_step_returns(rollout.rewards, rollout.continues, bootstrap, GAMMA)
    return float(np.mean(returns - values))


def test_learning_anew_from_the_same_rollout_is_learning(recorded: Recorded) -> None:
    """Analytic: the gradient's norm is the same if the rollout is packed into one block and if not. The twin begins
    at zero.
    """
    rollout = rollouts_of(recorded.calls)[1]
    local, generator = recorded.crew.locals[0], np.random.default_rng(0)
    drawn = calls.packed(
        {
            n: tf.constant(generator.standard_normal(v.shape), tf.float32)
            for n, v in local.weights.items()
        }
    ).numpy()

    def norm(rollout: Rollout, is_anew: bool) -> float:
        local.take(drawn)
        state, acted = rollout.states[0], []
        for seen, continues in zip(rollout.observations, rollout.continues, strict=False):
            outputs = local.act(seen, state)
            acted.append(outputs.activations)
            state = outputs.state * continues[:, None]
        return float(local.learn(rollout, 0.0, None if is_anew else acted))

    expected = norm(rollout, False)
    assert norm(rollout, True) == pytest.approx(expected, rel=1e-5)
    of_zero = norm(rollout._replace(states=0 * rollout.states), False)
    assert of_zero != pytest.approx(expected, rel=1e-3)


class Counting:
    """A local network that only counts observations: its state is their number."""

    policy, state_size = Categorical(N_ACTIONS), 1

    def __init__(self) -> None:
        self.states: list[float] = []

    def act(self, observations: np.ndarray, state: np.ndarray) -> Acted:
        self.states.append(float(state[0, 0]))
        return Acted(np.zeros((1, N_ACTIONS)), np.zeros(1), state + 1, {})

    def learn(self, *_: object) -> None:
        """It never does."""


def test_a_lost_life_clears_the_state() -> None:
    """Analytic: through all layers of the environment. A game of 20 decisions loses a life at the 5th and the 12th. The
    twin: only the end of the game clears the state.
    """
    local, params = Counting(), params_with(n_steps=40)
    with opened(TOY + "NumbersWithLives-v0", n_slots=N_STEPS + 1, max_n_noops=0) as pool:
        main = MainThreadLink(StopFlag(), lambda report: None)
        generator = np.random.default_rng(0)
        make_worker(1, make_shared(40), local, pool, params, generator, main).run()
    assert local.states[:40] == [*range(5), *range(7), *range(8)] * 2 != [*range(20)] * 2
