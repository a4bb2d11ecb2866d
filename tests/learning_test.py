"""Small tasks whose solution is known in closed form and that only a right A3C finds; each with a wrong twin that does
not.

One worker each, run in the test's own thread: nothing here depends on how threads take turns. The
learning rate falls to 0, so that what is reached does not dance around where it should be.
"""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from a3c.agent import losses, network
from a3c.agent.learner import Hyperparameters, LocalNetwork, Traced
from a3c.agent.shared import Counters, SharedState
from a3c.agent.worker import Worker
from a3c.envs.make import EnvSettings, make_env
from a3c.machine.stopping import StopFlag
from tests.tools import toys
from tests.tools.fakes import FakeStep

HYPERPARAMETERS = Hyperparameters(
    network="mlp",
    steps_per_update=3,
    discount=0.9,
    entropy_bonus=0.0,
    value_loss_coef=0.5,
    loss_reduction="mean",
    initial_lr=0.02,
    lr_decay_to_zero_by_n_steps=None,
)


class Move(NamedTuple):
    """What an action leads to."""

    state: int
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False


class TableEnvs:
    """K copies of a task of a few numbered states, shown one-hot, which begins in state 0."""

    def __init__(
        self, n_slots: int, n_envs: int, n_states: int, move: Callable[[int, int], Move]
    ) -> None:
        self.observations = np.zeros((n_slots, n_envs, n_states), np.float32)
        self.final_observations = np.zeros((n_envs, n_states), np.float32)
        self.n_frames = 0
        self.next_games = [0] * n_envs
        self._shown = np.eye(n_states, dtype=np.float32)
        self._move = move
        self._states = [0] * n_envs

    def reset(self, slot: int) -> None:
        self._states = [0] * len(self._states)
        self.observations[slot] = self._shown[self._states]

    def step(self, actions: np.ndarray, slot: int) -> FakeStep:
        moves = [self._move(s, int(a)) for s, a in zip(self._states, actions, strict=True)]
        terminated = np.array([move.terminated for move in moves])
        truncated = np.array([move.truncated for move in moves])
        self._states = [move.state for move in moves]
        self.final_observations[truncated] = self._shown[self._states][truncated]
        for k in np.flatnonzero(terminated | truncated):
            self._states[k] = 0
        self.observations[slot] = self._shown[self._states]
        return FakeStep(np.array([m.reward for m in moves], np.float32), terminated, truncated, [])


class Learned(NamedTuple):
    """What was learned of each observation."""

    probabilities: np.ndarray
    values: np.ndarray


def learn(
    envs: Any,
    n_actions: int,
    n_updates: int,
    change: Callable[[Worker, LocalNetwork], None] = lambda worker, local: None,
    epsilon: float = 1e-3,
    **settings: Any,
) -> SharedState:
    """Train one worker on the environments; `change` may break something first."""
    n_slots, n_envs, *shape = envs.observations.shape
    n_steps = n_updates * (n_slots - 1) * n_envs
    h = HYPERPARAMETERS._replace(
        **{"steps_per_update": n_slots - 1, "lr_decay_to_zero_by_n_steps": n_steps} | settings
    )
    shapes = network.weight_shapes(h.network, tuple(shape), n_actions)
    weights = network.initial_weights(shapes, "orthogonal", np.random.default_rng(0))
    shared = SharedState(
        weights,
        rmsprop_initial=0.0,
        rmsprop_decay=0.99,
        rmsprop_epsilon=epsilon,
        max_grad_norm=40.0,  # never reached: clipping would make medians of means
        counters=Counters(n_steps),
    )
    spec = tf.TensorSpec(envs.observations.shape, envs.observations.dtype)
    local = LocalNetwork(shared, Traced(shared, h, spec, compile_act=False))
    failures: list[Any] = []
    stop, generator = StopFlag(), np.random.default_rng(1)
    worker = Worker(1, shared, local, envs, h, generator, stop, failures.append)
    change(worker, local)
    worker.run()
    assert failures == []
    return shared


def learned(shared: SharedState, observations: np.ndarray, kind: str = "mlp") -> Learned:
    predictions = network.forward(kind, shared.weights, tf.constant(observations))
    return Learned(tf.nn.softmax(predictions.logits).numpy(), predictions.values.numpy())


def of_each_state(shared: SharedState, n_states: int) -> Learned:
    return learned(shared, np.eye(n_states, dtype=np.float32))


def replace_losses(monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., losses.Losses]) -> None:
    monkeypatch.setattr("a3c.agent.learner.losses.a3c_losses", wrong)


# A bandit


PAYS = np.array([0.0, 0.25, 0.5])
BETA = 0.25
SOFTMAX = np.exp(PAYS / BETA) / np.exp(PAYS / BETA).sum()  # 0.09, 0.24, 0.67


def distance_of_the_bandit(
    n_envs: int = 4, beta: float = BETA, kind: type[TableEnvs] = TableEnvs
) -> float:
    """How far the policy is from softmax after so many steps, however many environments share them."""
    envs = kind(4, n_envs, 1, lambda state, action: Move(0, float(PAYS[action]), True))
    shared = learn(envs, 3, 1200 // n_envs, epsilon=0.01, entropy_bonus=beta)
    return float(np.abs(of_each_state(shared, 1).probabilities[0] - SOFTMAX).max())


@pytest.mark.parametrize("n_envs", [4, 1])
def test_a_bandit_with_an_entropy_bonus_is_played_by_softmax(n_envs: int) -> None:
    """Learning: rewards r and an entropy bonus β make softmax(r/β) the best policy; reached within 0.03."""
    assert distance_of_the_bandit(n_envs) < 0.03


@pytest.mark.parametrize("beta", [0.0, BETA / 2, 2 * BETA])
def test_another_entropy_bonus_misses_it(beta: float) -> None:
    """Learning: wrong twin; none, half or twice the bonus."""
    assert distance_of_the_bandit(beta=beta) > 0.09


class MixedUpEnvs(TableEnvs):
    """Each environment is paid what another one has earned."""

    def step(self, actions: np.ndarray, slot: int) -> FakeStep:
        step = super().step(actions, slot)
        return step._replace(rewards=step.rewards[::-1].copy())


def test_paid_for_another_environment_it_misses_it() -> None:
    """Learning: wrong twin, which one environment alone does not have."""
    assert distance_of_the_bandit(kind=MixedUpEnvs) > 0.2


def test_the_surprise_of_the_action_taken_is_no_entropy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learning: wrong twin; −log π(a), whose mean is the entropy but whose gradient has mean 0, does not stop the
    policy from going all the way."""

    def wrong(logits: Any, values: Any, actions: Any, returns: Any, **constants: Any) -> Any:
        right = losses_as_they_are(logits, values, actions, returns, **constants)
        surprise = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=actions, logits=logits)
        advantages = tf.stop_gradient(returns - values)
        policy = tf.reduce_mean(surprise * (advantages - constants["entropy_bonus"]))
        return right._replace(policy=policy, combined=policy + right.value)

    losses_as_they_are = losses.a3c_losses
    replace_losses(monkeypatch, wrong)
    assert distance_of_the_bandit() > 0.2


# A chain whose values are known


N_STATES = 8
GAMMA = HYPERPARAMETERS.discount
CHAIN = GAMMA ** np.arange(N_STATES - 1, -1, -1)  # 0.48 at its start, 1 before its end


def chain(state: int, action: int) -> Move:
    if state == N_STATES - 1:
        return Move(0, 1.0, True)
    return Move(state + 1)


def error_on_the_chain(n_slots: int = 4, n_envs: int = 4, **arguments: Any) -> float:
    """The largest relative error of the values learned, of rollouts much shorter than the chain."""
    shared = learn(TableEnvs(n_slots, n_envs, N_STATES, chain), 2, 400, **arguments)
    return float(np.abs(of_each_state(shared, N_STATES).values / CHAIN - 1).max())


@pytest.mark.parametrize("n_envs", [1, 4])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_chain_gets_the_values_of_its_closed_form(n_envs: int, reduction: str) -> None:
    """Learning: V = γ to the steps to go, within 2 %; the same with one environment and with four.

    Rollouts of 3 steps see the reward from 3 of the 8 states: the rest must come across their edges.
    """
    rate = 0.01 if (n_envs, reduction) == (4, "sum") else 0.02
    assert error_on_the_chain(n_envs=n_envs, loss_reduction=reduction, initial_lr=rate) < 0.02


def wrong_returns(kind: str) -> Callable[..., tf.Tensor]:
    right = losses.n_step_returns

    def wrong(rewards: Any, continues: Any, bootstrap: Any, discount: float) -> tf.Tensor:
        if kind == "no bootstrap":
            return right(rewards, continues, tf.zeros_like(bootstrap), discount)
        if kind == "no ends":
            return right(rewards, tf.ones_like(continues), bootstrap, discount)
        if kind == "discounted once too often":
            return discount * right(rewards, continues, bootstrap, discount)
        assert kind == "no discount"
        return right(rewards, continues, bootstrap, 1.0)

    return wrong


@pytest.mark.parametrize(
    "kind", ["no bootstrap", "no ends", "discounted once too often", "no discount"]
)
def test_wrong_returns_miss_them(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Learning: wrong twin; each is off by a third or more."""
    monkeypatch.setattr("a3c.agent.learner.losses.n_step_returns", wrong_returns(kind))
    assert error_on_the_chain() > 0.3


# A task that is cut off


FOREVER = 1 / (1 - GAMMA)  # 10


def value_of_a_task_cut_off(
    move: Move, change: Callable = lambda worker, local: None, n_envs: int = 1
) -> float:
    """One state, in which every step pays 1; every fourth of an environment ends in what is told."""
    count = itertools.count()

    def step(state: int, action: int) -> Move:
        n_steps, env = divmod(next(count), n_envs)
        return move if (n_steps + env) % 4 == 3 else Move(0, 1.0)

    shared = learn(TableEnvs(4, n_envs, 1, step), 2, 500, change)
    return float(of_each_state(shared, 1).values[0])


@pytest.mark.parametrize("n_envs", [1, 4])
def test_a_task_that_is_cut_off_is_worth_as_if_it_went_on(n_envs: int) -> None:
    """Learning: V = 1/(1 − γ), within 2 %: a time limit is not a death."""
    value = value_of_a_task_cut_off(Move(0, 1.0, truncated=True), n_envs=n_envs)
    assert value == pytest.approx(FOREVER, rel=0.02)


def test_a_task_that_ends_is_worth_less() -> None:
    """Learning: wrong twin; the same ends told as terminations."""
    assert value_of_a_task_cut_off(Move(0, 1.0, terminated=True)) < 0.4 * FOREVER


def test_without_the_value_behind_the_limit_it_is_worth_less() -> None:
    """Learning: wrong twin; the value of the final observation is taken for 0."""

    def change(worker: Worker, local: LocalNetwork) -> None:
        local.evaluate_last = lambda observations: (tf.zeros((len(observations), 3)), {})

    assert value_of_a_task_cut_off(Move(0, 1.0, truncated=True), change) < 0.4 * FOREVER


# A choice that pays beyond the rollout's edge


def patience(state: int, action: int) -> Move:
    """Action 0 ends it for 0.3; action 1 leads, whatever is done, through five more states to 1."""
    if state == 0 and action == 0:
        return Move(0, 0.3, True)
    return Move(0, 1.0, True) if state == 5 else Move(state + 1)


def patience_learned(n_envs: int = 4) -> float:
    """The probability of waiting, learned with rollouts of two steps."""
    shared = learn(TableEnvs(3, n_envs, 6, patience), 2, 2000 // n_envs, entropy_bonus=0.02)
    return float(of_each_state(shared, 6).probabilities[0, 1])


@pytest.mark.parametrize("n_envs", [1, 4])
def test_patience_is_learned_across_the_edge_of_rollouts(n_envs: int) -> None:
    """Learning: what pays 0.59 six steps later is preferred to 0.3 now."""
    assert patience_learned(n_envs) > 0.95


def test_without_the_bootstrap_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learning: wrong twin; rollouts of two steps never see what the choice leads to."""
    monkeypatch.setattr("a3c.agent.learner.losses.n_step_returns", wrong_returns("no bootstrap"))
    assert patience_learned() < 0.2


# A task for the eyes


class VisualEnvs:
    """K copies of the walking dot with all layers of preprocessing; `change` may spoil what they show."""

    def __init__(
        self,
        n_slots: int,
        n_envs: int,
        change: Callable[[np.ndarray], np.ndarray] = lambda image: image,
    ) -> None:
        settings = EnvSettings("tests.tools.toys:toys/Dot-v0", seed=0)
        self._envs = [make_env(settings, 0, env) for env in range(n_envs)]
        self._change = change
        self.observations = np.zeros((n_slots, n_envs, 84, 84, 4), np.uint8)
        self.final_observations = np.zeros((n_envs, 84, 84, 4), np.uint8)
        self.n_frames = 0
        self.next_games = [0] * n_envs
        self.rewards: list[float] = []

    def reset(self, slot: int) -> None:
        for k, env in enumerate(self._envs):
            self.observations[slot, k] = self._change(env.reset()[0])

    def step(self, actions: np.ndarray, slot: int) -> FakeStep:
        steps = [env.step(int(action)) for env, action in zip(self._envs, actions, strict=True)]
        self.observations[slot] = [self._change(step[0]) for step in steps]
        rewards = np.array([step[1] for step in steps], np.float32)
        self.rewards.append(float(rewards.mean()))
        never = np.zeros(len(steps), bool)
        assert not any(step[2] or step[3] for step in steps)
        return FakeStep(rewards, never, never, [])


def share_of_what_can_be_had(n_envs: int, **arguments: Any) -> float:
    """Of the last fifth of training, as what is to be had falls due; after so many steps, however many
    environments share them."""
    envs = VisualEnvs(6, n_envs, **arguments)
    learn(
        envs, 3, 720 // n_envs, epsilon=1e-5, network="small", initial_lr=1e-3, discount=0.5,
        entropy_bonus=0.003,
    )  # fmt: skip
    last = envs.rewards[-len(envs.rewards) // 5 :]
    return float(np.mean(last)) / toys.DOT_PAYS_A_DECISION


def newest_only(stack: np.ndarray) -> np.ndarray:
    return np.repeat(stack[..., 3:], 4, axis=-1)


@pytest.mark.parametrize("n_envs", [12, 4, pytest.param(1, marks=pytest.mark.slow)])
def test_where_a_dot_has_vanished_is_seen_in_the_stack(n_envs: int) -> None:
    """Learning: a dot walks from the middle to one of two corners and vanishes, and what pays then is to name the
    corner; through every layer of the preprocessing and the small network."""
    assert share_of_what_can_be_had(n_envs) > 0.9


@pytest.mark.parametrize("n_envs", [12, 4])
def test_without_the_stack_it_is_a_guess(n_envs: int) -> None:
    """Learning: wrong twin; four times the newest image, which is empty whenever it matters."""
    assert share_of_what_can_be_had(n_envs, change=newest_only) < 0.65
