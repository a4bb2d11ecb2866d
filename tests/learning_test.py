"""Small tasks with a known solution that only a correct A3C finds; tests/tools/proofs.py has a change for each after
which it does not.

Each has one worker in the test's own thread, so that nothing depends on how threads take turns. The learning rate falls
to 0, so that the solution is approached closely.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from a3c.agent import kernels, moments, network
from a3c.agent.learner import Learner
from a3c.agent.local import local_network
from a3c.agent.shared import SharedState
from a3c.agent.worker import MainThreadLink
from a3c.contract import Replaced, Step
from a3c.machine.stopping import StopFlag
from a3c.settings.params import Params
from tests.tools import toys
from tests.tools.agents import FORGETFUL, subject_of
from tests.tools.crews import make_worker
from tests.tools.fakes import LayeredEnvs

GAMMA = 0.9
PARAMS = Params(
    env_id="toys/Table",
    network="mlp",
    discount=GAMMA,
    entropy_bonus=0.0,
    max_grad_norm=40.0,  # never reached: clipping would turn means into medians
    initial_lr=0.02,
    initial_weights="orthogonal",
    lr_schedule="linear",
    rmsprop_epsilon=1e-3,
    rmsprop_initial=0.0,
    no_xla=True,
)


class Move(NamedTuple):
    """What follows from an action."""

    state: int
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False


class TableEnvs:
    """K copies of a task with a few numbered states, which begins in state 0. Row s of `shown` is what is seen in
    state s.
    """

    def __init__(
        self, n_slots: int, n_envs: int, shown: np.ndarray, move: Callable[[int, int], Move]
    ) -> None:
        self.observations = np.zeros((n_slots, n_envs, shown.shape[1]), np.float32)
        self.final_observations = np.zeros_like(self.observations[0])
        self.n_frames = 0
        self.next_games = [0] * n_envs
        self._shown = shown
        self._move = move
        self._states = [0] * n_envs

    def reset(self, slot: int) -> None:
        self._states = [0] * len(self._states)
        self.observations[slot] = self._shown[self._states]

    def step(self, actions: np.ndarray, slot: int) -> Step:
        moves = [self._move(s, int(a)) for s, a in zip(self._states, actions, strict=True)]
        terminated = np.array([move.terminated for move in moves])
        truncated = np.array([move.truncated for move in moves])
        self._states = [move.state for move in moves]
        self.final_observations[truncated] = self._shown[self._states][truncated]
        for k in np.flatnonzero(terminated | truncated):
            self._states[k] = 0
        self.observations[slot] = self._shown[self._states]
        return Step(np.array([m.reward for m in moves], np.float32), terminated, truncated, [])

    def take_replaced(self) -> Sequence[Replaced]:
        return ()


def learn(
    envs: Any, n_actions: int, n_updates: int, policy: str = "categorical", **settings: Any
) -> SharedState:
    """Train one worker on the environments."""
    n_slots, n_envs, *shape = envs.observations.shape
    n_steps = n_updates * (n_slots - 1) * n_envs
    params = dataclasses.replace(
        PARAMS,
        n_steps=n_steps,
        steps_per_update=n_slots - 1,
        lr_decay_to_zero_by_n_steps=n_steps,
        **settings,
    )
    subject = subject_of(
        str(params.network),
        tuple(shape),
        n_actions,
        policy=policy,
        hidden_units=params.hidden_units,
        lstm_units=params.lstm_units,
    )
    weights = network.initial_weights(
        network.weight_shapes(subject), params.initial_weights, np.random.default_rng(0)
    )
    first_moments = moments.initial(params, shape)
    shared = SharedState(weights, params, first_moments=first_moments)
    local = local_network(Learner(shared, params, subject, envs.observations))
    failures: list[Any] = []
    main = MainThreadLink(StopFlag(), failures.append)
    make_worker(1, shared, local, envs, params, np.random.default_rng(1), main).run()
    assert failures == []
    return shared


def of_each_state(shared: SharedState, n_states: int) -> tuple[np.ndarray, np.ndarray]:
    """The probabilities and values that were learned for each state."""
    states = tf.constant(np.eye(n_states, dtype=np.float32))
    subject = subject_of("mlp", (n_states,), shared.weights["policy_bias"].shape[0])
    predictions = kernels.forward(subject, shared.weights, states, FORGETFUL)
    return tf.nn.softmax(predictions.outputs).numpy(), predictions.values.numpy()


# A bandit


PAYS = np.array([0.0, 0.25, 0.5])
BETA = 0.25
SOFTMAX = np.exp(PAYS / BETA) / np.exp(PAYS / BETA).sum()  # 0.09, 0.24, 0.67


@pytest.mark.parametrize("n_envs", [4, 1])
def test_a_bandit_with_an_entropy_bonus_is_played_by_softmax(n_envs: int) -> None:
    """Learning: with rewards r and an entropy bonus β, softmax(r/β) is the best policy; reached within 0.03."""
    envs = TableEnvs(4, n_envs, np.eye(1), lambda state, action: Move(0, float(PAYS[action]), True))
    shared = learn(envs, 3, 1200 // n_envs, rmsprop_epsilon=0.01, entropy_bonus=BETA)
    probabilities, _ = of_each_state(shared, 1)
    assert np.abs(probabilities[0] - SOFTMAX).max() < 0.03


# A chain whose values are known


N_STATES = 8
CHAIN = GAMMA ** np.arange(N_STATES - 1, -1, -1)  # 0.48 at its start, 1 before its end


def chain(state: int, action: int) -> Move:
    if state == N_STATES - 1:
        return Move(0, 1.0, True)
    return Move(state + 1)


@pytest.mark.parametrize("n_envs", [1, 4])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_chain_gets_the_values_of_its_closed_form(n_envs: int, reduction: str) -> None:
    """Learning: V = γ to the number of steps to go, within 2 %, with one environment and with four.

    Rollouts of 3 steps see the reward from 3 of the 8 states. The others learn it from the bootstrap.
    """
    rate = 0.01 if (n_envs, reduction) == (4, "sum") else 0.02
    envs = TableEnvs(4, n_envs, np.eye(N_STATES), chain)
    shared = learn(envs, 2, 400, loss_reduction=reduction, initial_lr=rate)
    _, values = of_each_state(shared, N_STATES)
    assert np.abs(values / CHAIN - 1).max() < 0.02


# A task that is cut off


FOREVER = 1 / (1 - GAMMA)  # 10


@pytest.mark.parametrize("n_envs", [1, 4])
def test_a_task_that_is_cut_off_is_worth_as_if_it_went_on(n_envs: int) -> None:
    """Learning: V = 1/(1 − γ), within 2 %: a time limit is not a terminal state."""
    count = itertools.count()

    def step(state: int, action: int) -> Move:
        """Pays 1. Every fourth step of an environment is cut off."""
        n_steps, env = divmod(next(count), n_envs)
        return Move(0, 1.0, truncated=(n_steps + env) % 4 == 3)

    shared = learn(TableEnvs(4, n_envs, np.eye(1), step), 2, 500)
    _, values = of_each_state(shared, 1)
    assert values[0] == pytest.approx(FOREVER, rel=0.02)


# A choice that pays beyond the rollout's edge


def patience(state: int, action: int) -> Move:
    """Action 0 ends the episode and pays 0.3. Action 1 leads through five more states to a reward of 1."""
    if state == 0 and action == 0:
        return Move(0, 0.3, True)
    return Move(0, 1.0, True) if state == 5 else Move(state + 1)


@pytest.mark.parametrize("n_envs", [1, 4])
def test_patience_is_learned_across_the_edge_of_rollouts(n_envs: int) -> None:
    """Learning: a reward worth 0.59, six steps later, is preferred to 0.3 now, with rollouts of two steps."""
    shared = learn(TableEnvs(3, n_envs, np.eye(6), patience), 2, 2000 // n_envs, entropy_bonus=0.02)
    probabilities, _ = of_each_state(shared, 6)
    assert probabilities[0, 1] > 0.95


# A task for the memory


@pytest.mark.parametrize(("lstm_units", "is_learned"), [(16, True), (0, False)])
def test_a_cue_is_answered_from_memory(lstm_units: int, is_learned: bool) -> None:
    """Learning: three steps after a cue, naming it pays 1. With an LSTM, over 95 % of the answers are right in the end;
    without one, the same network stays at chance.

    Rollouts have 8 steps and episodes 5, so an episode begins at any place of a rollout, and many rollouts see one from
    its cue to its answer.
    """
    # State 0 shows nothing; then comes one of the two cues, twice nothing, and the same question after both.
    shown = np.zeros((9, 3))
    shown[1, 0] = shown[2, 1] = shown[7:, 2] = 1
    generator, answers = np.random.default_rng(0), []

    def move(state: int, action: int) -> Move:
        if state == 0:
            return Move(1 + int(generator.integers(2)))
        if state < 7:
            return Move(state + 2)
        answers.append(float(action == state - 7))
        return Move(0, answers[-1], terminated=True)

    learn(
        TableEnvs(9, 16, shown, move), 2, 200, initial_lr=0.02, rmsprop_epsilon=1e-5, hidden_units=(8,),
        lstm_units=lstm_units,
    )  # fmt: skip
    share = np.mean(answers[-len(answers) // 5 :])
    assert share > 0.95 if is_learned else abs(share - 0.5) < 0.06


# A task for the eyes


@pytest.mark.parametrize(
    "n_envs", [12, *(pytest.param(n, marks=pytest.mark.weekly) for n in (4, 1))]
)
def test_where_a_dot_has_vanished_is_seen_in_the_stack(n_envs: int) -> None:
    """Learning: a dot walks to one of two corners and vanishes, and then naming the corner pays; through all layers of
    preprocessing and the small network."""
    envs = LayeredEnvs("tests.tools.toys:toys/Dot-v0", 6, n_envs)
    learn(
        envs, 3, 720 // n_envs, rmsprop_epsilon=1e-5, network="small", initial_lr=1e-3, discount=0.5,
        entropy_bonus=0.003,
    )  # fmt: skip
    last_fifth = envs.rewards[-len(envs.rewards) // 5 :]
    assert np.mean(last_fifth) / toys.DOT_PAYS_A_DECISION > 0.9
