"""Running moments: what they are computed of, what uses them, and what they leave alone.

tests/agent/shared_test.py has them under several threads, tests/store/ in checkpoints and resumed runs.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pytest
import tensorflow as tf

from a3c.agent import kernels, moments
from a3c.agent.learner import Learner
from a3c.agent.shared import Counters, SharedState
from a3c.agent.worker import Failure
from a3c.contract import Counts, Game, Moments, Snapshot, Step
from a3c.play.agent import Agent
from tests.tools import oracle
from tests.tools.agents import FORGETFUL, make_weights, subject_of
from tests.tools.crews import (
    PARAMS,
    Call,
    Crew,
    calls_of,
    numpy_weights,
    params_with,
    record,
    rollouts_of,
)
from tests.tools.fakes import LayeredEnvs, NumberedEnvs
from tests.tools.pools import TOY

# Their arithmetic


def assert_moments_of(found: Moments, data: np.ndarray) -> None:
    """Number, mean and squared deviations, by plain NumPy over all of the data, which are in rows."""
    assert (type(found.n), found.n) == (int, len(data))
    data = data.astype(np.float64)
    np.testing.assert_allclose(found.mean, data.mean(axis=0), rtol=1e-12, atol=1e-12)
    squares = ((data - data.mean(axis=0)) ** 2).sum(axis=0)
    np.testing.assert_allclose(found.squares, squares, rtol=1e-6, atol=1e-9)
    sds = np.sqrt(data.var(axis=0) + 1e-8)
    np.testing.assert_allclose(moments.sd(found), sds, rtol=1e-6)


def none_of(*shape: int) -> Moments:
    return Moments(0, np.zeros(shape), np.zeros(shape))


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_moments_of_many_parts_are_those_of_the_whole(offset: float) -> None:
    """Parity: plain NumPy, for parts of 1 to 40 rows, also far from zero; and for numbers without shape."""
    generator = np.random.default_rng(0)
    data = offset + generator.normal(0, [1, 1e-3, 1e3], (500, 3))
    cuts = np.cumsum(generator.integers(1, 40, 20))
    found, of_sums = none_of(3), none_of()
    for part in np.split(data, cuts):
        if len(part):
            found, of_sums = (
                moments.merged(found, moments.of(part)),
                moments.merged(of_sums, moments.of(part[:, 0])),
            )
    assert_moments_of(found, data)
    assert_moments_of(of_sums, data[:, 0])
    # float32 data are summed in float64.
    found = none_of(3)
    for part in np.split(data.astype(np.float32), 50):
        found = moments.merged(found, moments.of(part))
    assert_moments_of(found, data.astype(np.float32))


def test_what_is_normalised_has_mean_0_and_sd_1_and_is_limited() -> None:
    """Analytic: to ±10; without data nothing changes but the limit; a constant gives 0, and not NaN."""
    data = np.random.default_rng(1).normal([3, -50], [2, 0.1], (1000, 2))
    found = moments.merged(none_of(2), moments.of(data))
    z = moments.normalised(data.astype(np.float32), found)
    assert z.dtype == np.float32
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(z.std(axis=0), 1, atol=1e-4)
    far = np.array([[3 + 2e3, -51.0], [-1e30, 1e30]], np.float32)
    np.testing.assert_allclose(moments.normalised(far, found), [[10, -10], [-10, 10]], rtol=0.05)
    np.testing.assert_array_equal(moments.normalised(far, none_of(2)), [[10, -10], [-10, 10]])
    near = np.array([[0.5, -9.5]], np.float32)
    np.testing.assert_array_equal(moments.normalised(near, none_of(2)), near)
    same = moments.merged(none_of(2), moments.of(np.tile(near, (7, 1))))
    np.testing.assert_array_equal(moments.normalised(near, same), [[0, 0]])


def test_scaled_rewards_keep_their_sign_and_are_limited() -> None:
    """Analytic: divided by the sd, without subtracting the mean; to ±10."""
    found = moments.merged(none_of(), moments.of(np.array([98.0, 102.0])))  # sd 2
    rewards = np.array([1, -3, 100, -100, 0], np.float32)
    scaled = moments.scaled(rewards, found)
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled, [0.5, -1.5, 10, -10, 0], rtol=1e-6)
    np.testing.assert_array_equal(moments.scaled(rewards, none_of()), [1, -3, 10, -10, 0])


def test_a_run_keeps_what_it_asks_for() -> None:
    """Analytic: without data at first, and nothing of images."""
    both = params_with(normalize_observations=True, scale_rewards=True)
    for params, names in (
        (PARAMS, []),
        (params_with(normalize_observations=True), ["observations"]),
        (params_with(scale_rewards=True), ["returns"]),
        (both, ["observations", "returns"]),
        (dataclasses.replace(both, network="small"), []),
    ):
        found = moments.initial(params, (3,))
        assert [*found] == names
        for name, each in found.items():
            assert each.n == 0
            assert each.mean.shape == each.squares.shape == ((3,) if name == "observations" else ())
            assert not each.mean.any()
            np.testing.assert_array_equal(moments.sd(each), np.ones_like(each.mean))


# A worker's rollouts: T = 3 steps of K = 2 environments

GAMMA = PARAMS.discount
SUBJECT = subject_of("mlp", (3,), 2, policy="per_dimension", hidden_units=(4,))
START = make_weights(SUBJECT)
Traced: TypeAlias = tuple[SharedState, Learner]


class Recorded(NumberedEnvs):
    """Keeps what was acted on, what came of it, and the true last observations."""

    def __init__(self, **events: Any) -> None:
        super().__init__(4, 2, **events)
        self.acted: list[np.ndarray] = []
        self.steps: list[Step] = []
        self.last: list[np.ndarray] = []

    def step(self, actions: np.ndarray, slot: int) -> Step:
        self.acted.append(self.observations[slot - 1].copy())
        self.steps.append(super().step(actions, slot))
        self.last.append(self.final_observations.copy())
        return self.steps[-1]


@pytest.fixture(scope="module")
def traced() -> Traced:
    """Traced once; each test takes the shared state back to its start."""
    shared = SharedState(START, PARAMS)
    return shared, Learner(shared, PARAMS, SUBJECT, NumberedEnvs(4, 2).observations)


def run(traced: Traced, envs: Any, n_rollouts: int, **flags: bool) -> tuple[Crew, list[Call]]:
    """A worker's rollouts on these environments, with all moments or those of the flags."""
    shared, learner = traced
    params = params_with(**flags or {"normalize_observations": True, "scale_rewards": True})
    shared.restore(Snapshot(Counts(), START, {name: np.ones_like(w) for name, w in START.items()}))
    shared.counters = Counters(n_rollouts * 6)
    shared.moments = moments.initial(params, (3,))
    crew = Crew(shared, [envs], params, learner=learner)
    calls = record(crew.locals[0])
    crew.run()
    return crew, calls


def discounted_sums(
    envs: Recorded, broken: Sequence[tuple[int, int]] = (), restart: bool = True
) -> np.ndarray:
    """r_t + γ·r_{t−1} + γ²·r_{t−2} + …, back to the start of the episode of each environment."""
    continues = np.array([~(step.terminated | step.truncated) for step in envs.steps], float)
    for where in broken:
        continues[where] = 0
    rewards = np.array([step.rewards for step in envs.steps])
    return oracle.discounted_sums(rewards, continues if restart else continues**0, GAMMA)


ENDS: dict[str, Any] = {
    "terminations": {(1, 0), (7, 1)},
    "truncations": {(4, 1), (8, 0), (8, 1), (10, 0)},
}


def test_a_rollout_uses_one_copy_and_adds_what_it_acted_on(traced: Traced) -> None:
    """Parity: every number of four rollouts, by plain NumPy over all data up to the start of each. Acting,
    learning, the value after the rollout and that of a truncation use one mean and one sd. Rewards are
    scaled before γ·V is added, and neither s_T nor true last observations count.
    """
    envs = Recorded(**ENDS)
    crew, calls = run(traced, envs, 4)
    assert not crew.of_kind(Failure)
    raw, sums = np.array(envs.acted), discounted_sums(envs)
    following = np.concatenate([raw[1:], envs.observations[-1:]])
    acts = np.array([call.arguments[0] for call in calls_of(calls, "act")])
    hidden = iter(calls_of(calls, "evaluate_last"))
    for i, learned in enumerate(calls_of(calls, "learn")):
        rollout, start, end = learned.arguments[0], 3 * i, 3 * i + 3
        seen = raw[:start].reshape(-1, 3)
        normalised = functools.partial(oracle.normalised, seen=seen)
        slots = normalised(np.concatenate([raw[start:end], following[end - 1 : end]]))
        np.testing.assert_allclose(rollout.observations, slots, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(acts[start:end], rollout.observations[:-1])
        for t, step in enumerate(envs.steps[start:end]):
            expected = oracle.scaled(step.rewards, sums[:start].reshape(-1))
            cut_off = step.truncated & ~step.terminated
            if cut_off.any():
                (last, _), *_ = next(hidden).arguments, None
                np.testing.assert_allclose(
                    last[cut_off], normalised(envs.last[start + t])[cut_off], rtol=1e-5, atol=1e-5
                )
                values = kernels.forward(
                    SUBJECT, learned.weights, tf.constant(last), FORGETFUL
                ).values
                expected = expected + GAMMA * np.where(cut_off, values, 0)
            np.testing.assert_allclose(rollout.rewards[t], expected, rtol=1e-5, atol=1e-5)
    assert next(hidden, None) is None
    assert_moments_of(crew.shared.moments["observations"], raw.reshape(-1, 3))
    assert_moments_of(crew.shared.moments["returns"], sums.reshape(-1))
    # Negative controls: these would be other numbers.
    assert np.abs(raw.mean(axis=(0, 1)) - following.mean(axis=(0, 1))).max() > 0.01
    assert np.abs(sums - discounted_sums(envs, restart=False)).max() > 1
    # The scores are true.
    assert [game.score for game in crew.of_kind(Game)] == [1, 7]


def test_a_rollout_uses_the_moments_of_its_workers_copy(traced: Traced) -> None:
    """Parity: where another worker has learned since, the rollout is as without; the next one has all."""
    shared, learner = traced
    run(traced, NumberedEnvs(4, 2), 0)  # back to the start
    envs = [Recorded(), Recorded()]
    params = params_with(normalize_observations=True, scale_rewards=True)
    crew = Crew(shared, envs, params, learner=learner)
    calls = record(crew.locals[1])
    for worker in crew.workers:
        shared.counters = Counters(12)
        worker.run()
    first, second = rollouts_of(calls)
    raw, of_other = np.array(envs[1].acted), np.array(envs[0].acted)
    np.testing.assert_array_equal(first.observations[:-1], raw[:3])
    seen = np.concatenate([of_other, raw[:3]]).reshape(-1, 3)
    wanted = oracle.normalised(raw[3:], seen)
    np.testing.assert_allclose(second.observations[:-1], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kept", ["observations", "returns"])
def test_either_is_kept_alone(traced: Traced, kept: str) -> None:
    """Analytic: the other's numbers stay as they came."""
    envs = Recorded()
    flags = {"observations": "normalize_observations", "returns": "scale_rewards"}
    crew, calls = run(traced, envs, 2, **{flags[kept]: True})
    assert [*crew.shared.moments] == [kept]
    assert crew.shared.moments[kept].n == 12
    second = rollouts_of(calls)[1]
    raw, rewards = np.array(envs.acted[3:]), [step.rewards for step in envs.steps[3:]]
    assert np.array_equal(second.observations[:-1], raw) == (kept == "returns")
    assert np.array_equal(second.rewards, rewards) == (kept == "observations")


def test_what_broke_is_not_counted(traced: Traced) -> None:
    """Parity: environment 1 breaks in the second of four rollouts, so only environment 0's rows count; in the
    third both break, so none does. The discounted sums begin again with the replacements.
    """
    broken = [(4, 1), (6, 0), (7, 1)]
    envs = Recorded(faults=broken)
    crew, _ = run(traced, envs, 3)  # three and a half: the steps of what broke are made up for
    assert len(envs.steps) == 15
    counted = np.ones((15, 2), bool)
    counted[3:6, 1] = counted[6:9] = False
    raw, sums = np.array(envs.acted), discounted_sums(envs, broken)
    assert_moments_of(crew.shared.moments["observations"], raw[counted])
    assert_moments_of(crew.shared.moments["returns"], sums[counted])
    # Negative control: sums that go on over the fault would be others.
    assert np.abs(discounted_sums(envs) - sums)[counted].max() > 1


def test_a_failed_update_adds_nothing(traced: Traced) -> None:
    """Analytic: a reward of NaN in the second rollout; the moments are those of the first."""

    class Poisoned(Recorded):
        def step(self, actions: np.ndarray, slot: int) -> Step:
            step = super().step(actions, slot)
            return step._replace(rewards=step.rewards * np.nan) if self.n_steps == 5 else step

    envs = Poisoned()
    crew, calls = run(traced, envs, 4)
    (failure,) = crew.of_kind(Failure)
    assert "not finite" in failure.traceback
    assert len(calls_of(calls, "act")) == 6
    assert_moments_of(crew.shared.moments["observations"], np.array(envs.acted[:3]).reshape(-1, 3))
    assert_moments_of(crew.shared.moments["returns"], discounted_sums(envs)[:3].reshape(-1))


# Continuous actions


def test_an_update_learns_from_what_was_drawn_and_not_from_what_was_carried_out(
    traced: Traced,
) -> None:
    """Parity: the rollout has mean + sd · noise, to the bit; the rewards are those of clipped actions."""
    envs = LayeredEnvs(TOY + "Pushes-v0", 4, 2, more=1)  # the learner takes three numbers
    _, calls = run(traced, envs, 4, normalize_observations=False)
    generator = np.random.default_rng([0, 1])  # as the crew's
    drawn = []
    for call in calls_of(calls, "act"):
        means, log_sds = np.split(call.result.outputs, 2, axis=1)
        noise = generator.standard_normal((2, 2))
        drawn.append((means + np.exp(log_sds) * noise).astype(np.float32))
    learned = np.concatenate([rollout.actions for rollout in rollouts_of(calls)])
    np.testing.assert_array_equal(learned, drawn)
    assert 0.2 < np.mean((learned[..., 0] < -1) | (learned[..., 0] > 0.1)) < 0.8
    carried_out = np.clip(learned[..., 0], -1, 0.1) + learned[..., 1]
    np.testing.assert_allclose(envs.rewards, 100 + carried_out, rtol=1e-6)


# Evaluation


def test_an_agent_at_play_normalises_as_it_was_trained_and_learns_nothing() -> None:
    """Parity: the network on (x − mean) / sd, limited; the same decision again after many others. Twin: the
    raw observation gives others.
    """
    agent = Agent(SUBJECT)
    kept = {
        "observations": Moments(100, np.array([5.0, -2.0, 0.0]), np.array([400.0, 1.0, 0.0])),
        "returns": Moments(100, np.array(3.0), np.array(9.0)),
    }
    agent.take(Snapshot(Counts(), START, {}, kept))
    generator = np.random.default_rng(0)
    seen = np.array([6, -2.05, 0], np.float32)

    def decided() -> np.ndarray:
        decision = agent.act(seen, greedy=True)
        return np.array([*decision.action, decision.value])

    def expected(x: Sequence[float]) -> np.ndarray:
        found = kernels.forward(SUBJECT, START, tf.constant([x], tf.float32), FORGETFUL)
        return np.array([*found.outputs[0, :2], found.values[0]])

    first = decided()
    np.testing.assert_allclose(first, expected([0.5, -0.5, 0]), rtol=1e-4, atol=1e-6)
    assert np.abs(first - expected(seen)).max() > 0.01
    for _ in range(20):
        agent.act(generator.normal(50, 9, 3).astype(np.float32))
    np.testing.assert_array_equal(decided(), first)
    assert agent._moments["observations"].n == 100
    assert numpy_weights(agent._weights).keys() == START.keys()
