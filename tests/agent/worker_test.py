"""Workers on environments with known answers: what a rollout holds, what is counted, and how a run ends."""

import itertools
import threading
import time
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from a3c.agent import kernels, vectors
from a3c.agent.collector import EnvRestart
from a3c.agent.learner import Measurement
from a3c.agent.worker import Failure
from a3c.contract import Counts, Game, Replaced, Snapshot
from a3c.machine.stopping import Stopped
from tests.tools import oracle, oracle_replay
from tests.tools.agents import FORGETFUL
from tests.tools.crews import (
    N_ACTIONS,
    SHAPES,
    SUBJECT,
    TIMEOUT_SECONDS,
    Crew,
    act_and_learn,
    assert_same_weights,
    calls_of,
    crew_in_turn,
    crew_of_one,
    make_local,
    make_shared,
    numpy_weights,
    params_with,
    record,
    rollouts_of,
)
from tests.tools.fakes import NumberedEnvs
from tests.tools.processes import wait_until

# What a rollout holds


def test_the_numbered_environments_say_where_they_are() -> None:
    """Analytic: observations, rewards, ends, games and frames of four steps of the toy, by hand."""
    envs = NumberedEnvs(3, 2, terminations={(1, 0)}, truncations={(2, 1)})
    envs.reset(slot=2)
    np.testing.assert_array_equal(envs.observations[2] * 8, [[0, 0, 0], [1, 0, 0]])
    steps = []
    for n, slot in enumerate((0, 1, 2, 0)):
        steps.append(envs.step(np.array([n, 3]), slot))
    np.testing.assert_array_equal(envs.observations[0] * 8, [[0, 1, 2], [1, 1, 1]])
    np.testing.assert_array_equal(envs.observations[1] * 8, [[0, 1, 0], [1, 0, 2]])
    np.testing.assert_array_equal(envs.observations[2] * 8, [[0, 1, 1], [1, 1, 0]])
    np.testing.assert_array_equal(
        envs.final_observations * [1e-6, 1, 1], [[1, 1e6, 1e6], [0.125e-6, 0, 3 / 8]]
    )
    np.testing.assert_allclose(steps[2].rewards, [2.2, 102.3])
    np.testing.assert_array_equal([s.terminated for s in steps], [[0, 0], [1, 0], [0, 0], [0, 0]])
    np.testing.assert_array_equal([s.truncated for s in steps], [[0, 0], [0, 0], [0, 1], [0, 0]])
    assert [s.games for s in steps] == [[], [Game(0, 0, 1, 2)], [], []]
    assert envs.n_frames == 4 * (2 + 8 + 2)


def test_a_rollout_holds_what_was_seen_done_and_paid() -> None:
    """Analytic: step t saw observations[t], acted on it and got its reward; the next rollout goes on from there."""
    envs = NumberedEnvs(4, 2, terminations={(4, 1)})
    crew = crew_of_one(4 * 6, envs)
    calls = record(crew.locals[0])
    crew.run()

    seen = np.array([call.arguments[0] for call in calls_of(calls, "act")])
    rollouts = rollouts_of(calls)
    assert len(rollouts) == 4
    np.testing.assert_array_equal(np.concatenate([r.observations[:-1] for r in rollouts]), seen)
    for before, after in itertools.pairwise(rollouts):
        np.testing.assert_array_equal(before.observations[-1], after.observations[0])
    # Environment 0 plays on. Environment 1 begins a new episode after step 4.
    steps = np.arange(12)
    np.testing.assert_array_equal(seen[:, 0] * 8, np.stack([0 * steps, 0 * steps, steps], axis=1))
    episodes = np.where(steps < 5, 0, 1)
    np.testing.assert_array_equal(
        seen[:, 1] * 8, np.stack([1 + 0 * steps, episodes, steps - 5 * episodes], axis=1)
    )
    actions, rewards, continues = (
        np.concatenate([getattr(r, name) for r in rollouts])
        for name in ("actions", "rewards", "continues")
    )
    assert set(actions.flat) == set(range(N_ACTIONS))  # or rewards would prove less
    np.testing.assert_allclose(rewards, steps[:, None] + actions / 10 + [0, 100], rtol=1e-6)
    np.testing.assert_array_equal(continues[:, 0], np.ones(12))
    np.testing.assert_array_equal(continues[:, 1], steps != 4)
    types = [np.float32, np.int32, np.float32, np.float32, np.float32]
    assert [part.dtype for part in rollouts[0]] == types
    # The game that ended at step 4 is reported with the steps of the update that learned from it.
    assert crew.of_kind(Game) == [Game(0, 1, score=4, length=5, step=12)]
    assert crew.shared.counters.read() == Counts(steps=24, updates=4, games=1, frames=envs.n_frames)


def test_a_truncation_is_paid_the_value_it_hides_and_a_termination_is_not() -> None:
    """Parity: γ·V(true last observation), not V(the next episode's first). Both ends at once are a termination."""
    envs = NumberedEnvs(
        4, 3, terminations={(1, 0), (4, 0)}, truncations={(1, 1), (4, 0), (4, 2), (5, 1), (5, 2)}
    )
    crew = crew_of_one(2 * 9, envs)
    calls = record(crew.locals[0])
    crew.run()

    first, second = rollouts_of(calls)
    weights = [call.weights for call in calls_of(calls, "learn")]
    added = [
        rollout.rewards - (3 * i + np.arange(3)[:, None] + rollout.actions / 10 + [0, 100, 200])
        for i, rollout in enumerate((first, second))
    ]

    def value(i: int, *observation: int) -> float:
        x = np.array([observation], np.float32) / 8
        return kernels.forward(SUBJECT, weights[i], tf.constant(x), FORGETFUL).values.numpy()[0]

    expected = np.zeros((2, 3, 3))
    expected[0, 1, 1] = 0.9 * value(0, 1, 0, 2)
    expected[1, 1, 2] = 0.9 * value(1, 2, 0, 5)
    expected[1, 2, 1] = 0.9 * value(1, 1, 1, 4)
    expected[1, 2, 2] = 0.9 * value(1, 2, 1, 1)
    assert np.abs(expected[expected != 0]).min() > 1e-3
    np.testing.assert_allclose(added, expected, atol=3e-5)
    np.testing.assert_array_equal(first.continues, [[1, 1, 1], [0, 0, 1], [1, 1, 1]])
    np.testing.assert_array_equal(second.continues, [[1, 1, 1], [0, 1, 0], [1, 0, 0]])
    assert len(calls_of(calls, "evaluate_last")) == 3  # one for each step with a truncation
    assert crew.shared.counters.read().frames == envs.n_frames


def test_a_rollout_takes_one_call_more_than_it_has_steps() -> None:
    """Analytic: act T times and learn once; one more call at a truncation, and one more for each 100th
    rollout, at first for each 10th.
    """
    envs = NumberedEnvs(4, 1, truncations={(4, 0)}, terminations={(7, 0)})
    crew = crew_of_one(112 * 3, envs, number=0)
    calls = record(crew.locals[0])
    crew.run()
    names = [call.name for call in calls]
    plain = ["act", "act", "act", "learn"]
    measured = ["act", "act", "act", "measure", "learn"]
    truncated = ["act", "act", "evaluate_last", "act", "learn"]
    first_hundred = measured + truncated + 8 * plain + 9 * (measured + 9 * plain)
    assert names == first_hundred + measured + 11 * plain


def test_episode_value_mean_is_of_the_latest_finished_episode() -> None:
    """Parity: the mean of the values that acting gave in it, known once an update has learned from its
    end; NaN before the first end.
    """
    means = []
    envs = NumberedEnvs(
        4,
        2,
        terminations={(4, 0)},
        truncations={(6, 0), (8, 1)},
        on_step=lambda n: means.append(crew.workers[0].episode_value_mean),
    )
    crew = crew_of_one(24, envs)
    calls = record(crew.locals[0])
    crew.run()
    values = np.array([call.result.values for call in calls_of(calls, "act")])
    expected = np.full(12, np.nan)
    expected[6:] = values[:5, 0].mean()
    expected[9:] = values[:9, 1].mean()
    np.testing.assert_allclose(means, expected, rtol=1e-5)


# Environments that broke, and were replaced


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_an_update_leaves_out_what_broke(reduction: str) -> None:
    """Parity: environment 1 of three breaks in the second of three rollouts. By the oracle, its update is that of the
    other two alone, and `mean` divides by 6 instead of 9.
    """
    params = params_with(loss_reduction=reduction, max_grad_norm=1e9, rmsprop_epsilon=1.0)
    shared = make_shared(24, max_grad_norm=1e9, rmsprop_epsilon=1.0)
    ours = oracle.Oracle(
        oracle.Network("mlp"),
        numpy_weights(shared.weights),
        numpy_weights(shared.mean_squares),
        oracle_replay.hyperparameters(params),
    )
    crew = Crew(shared, [NumberedEnvs(4, 3, faults={(4, 1)})], params)
    calls = record(crew.locals[0])
    crew.run()
    assert not crew.of_kind(Failure)
    learned = calls_of(calls, "learn")
    assert [call.arguments[2] is None for call in learned] == [False, True, False]
    rollout = learned[1].arguments[0]
    acted = [call.arguments[0] for call in calls_of(calls, "act")]
    np.testing.assert_array_equal(rollout.observations[:3], np.array(acted[3:6])[:, [0, 2]])
    np.testing.assert_array_equal(rollout.observations[3], acted[6][[0, 2]])
    np.testing.assert_array_equal(rollout.rewards.astype(int), [[3, 203], [4, 204], [5, 205]])
    np.testing.assert_array_equal(rollout.continues, np.ones((3, 2)))

    for call, following in itertools.pairwise(learned):
        before = dict(ours.weights)
        ours.update(oracle.Rollout(*call.arguments[0]), call.arguments[1])
        for name in SHAPES:
            moved = following.weights[name] - call.weights[name]
            expected = ours.weights[name] - before[name]
            assert np.abs(expected).max() > 1e-4
            np.testing.assert_allclose(moved, expected, rtol=1e-2, atol=2e-6)
    # Environment 1 is back in the third rollout, in its new episode.
    *_, third = rollouts_of(calls)
    np.testing.assert_array_equal(third.observations[0] * 8, [[0, 0, 6], [1, 1, 1], [2, 0, 6]])
    assert crew.of_kind(EnvRestart) == [EnvRestart("fault at step 4")]
    assert shared.counters.read()[:2] == (9 + 6 + 9, 3)


@pytest.mark.parametrize("n_envs", [1, 2])
def test_a_rollout_of_which_nothing_is_left_is_thrown_away(n_envs: int) -> None:
    """Analytic: every environment breaks in the first rollout and in the third. These give no update, no steps and no
    measurement, and the run still gets its steps.
    """
    faults = {(0, 0), (2, n_envs - 1), (7, 0), (7, n_envs - 1)}
    envs = NumberedEnvs(4, n_envs, faults=faults)
    crew = crew_of_one(2 * 3 * n_envs, envs, number=0)
    start = numpy_weights(crew.shared.weights)
    calls = record(crew.locals[0])
    crew.run()
    assert not crew.of_kind(Failure)
    acts = ["act", "act", "act"]
    names = [call.name for call in calls]
    assert names == [*acts, *acts, "measure", "learn", *acts, *acts, "learn"]
    second, fourth = rollouts_of(calls)
    np.testing.assert_array_equal(second.rewards[:, 0].astype(int), [3, 4, 5])
    np.testing.assert_array_equal(fourth.rewards[:, 0].astype(int), [9, 10, 11])
    assert crew.shared.counters.read() == Counts(6 * n_envs, 2, 0, envs.n_frames)
    assert len(crew.of_kind(EnvRestart)) == len(faults)

    expected = make_shared(100)
    assert_same_weights(numpy_weights(expected.weights), start)
    local = make_local(expected, envs.observations)
    for rollout in (second, fourth):
        act_and_learn(local, rollout, 0.01)
    assert_same_weights(crew.shared.weights, expected.weights)


def test_a_game_that_ended_before_the_fault_counts_once() -> None:
    """Analytic: its rollout is thrown away, so it is counted and reported at the next update."""
    envs = NumberedEnvs(4, 1, terminations={(0, 0)}, faults={(1, 0)})
    crew = crew_of_one(6, envs)
    calls = record(crew.locals[0])
    crew.run()
    assert len(calls_of(calls, "learn")) == 2
    assert crew.of_kind(Game) == [Game(0, 0, score=0, length=1, step=3)]
    assert crew.shared.counters.read()[:3] == (6, 2, 1)


def test_an_abandoned_episode_is_in_no_mean() -> None:
    """Parity: the mean at step 5 does not include the values of the episode that broke at step 2."""
    envs = NumberedEnvs(4, 1, faults={(2, 0)}, terminations={(5, 0)})
    crew = crew_of_one(3, envs)
    calls = record(crew.locals[0])
    crew.run()
    values = [call.result.values[0] for call in calls_of(calls, "act")]
    assert len(values) == 6
    assert crew.workers[0].episode_value_mean == pytest.approx(np.mean(values[3:]), rel=1e-5)
    assert crew.of_kind(Game) == [Game(0, 0, score=5, length=3, step=3)]


# Several workers


def test_two_workers_count_exactly_and_apply_every_update_once() -> None:
    """Analytic: 2 workers × 2 environments × 3 steps: 9 rollouts of 6 reach 50, and then both stop.

    With m held at 1 (α = 1, ε = 0), an update subtracts its gradient, so the weights move by the sum of all.
    """
    ends = {(n, 0) for n in range(2, 100, 5)}
    envs = [NumberedEnvs(4, 2, terminations=ends) for _ in range(2)]
    shared = make_shared(50, rmsprop_decay=1.0, rmsprop_epsilon=0.0, max_grad_norm=1e9)
    start = numpy_weights(shared.weights)
    sums = {name: tf.Variable(tf.zeros_like(v)) for name, v in shared.variables.items()}
    n_applied = tf.Variable(0)
    original = shared.apply

    def apply(
        gradients: dict[str, tf.Tensor], learning_rate: tf.Tensor, *more: Any
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        n_applied.assign_add(1, use_locking=True)
        for name, gradient in gradients.items():
            sums[name].assign_add(learning_rate * gradient, use_locking=True)
        return original(gradients, learning_rate, *more)

    shared.apply = apply
    params = params_with(initial_lr=1e-5)  # small, because the rewards are large
    crew = Crew(shared, envs, params)
    calls = [record(local) for local in crew.locals]
    crew.run()

    n_learned = [len(calls_of(c, "learn")) for c in calls]
    n_games = sum(len([n for n, _ in ends if n < e.n_steps]) for e in envs)
    assert sum(n_learned) == n_applied.numpy() == 9
    assert [e.n_steps for e in envs] == [3 * n for n in n_learned]
    assert shared.counters.read() == Counts(
        steps=54, updates=9, games=n_games, frames=sum(e.n_frames for e in envs)
    )
    assert len(crew.of_kind(Game)) == len(crew.reports) == n_games  # only worker 0 measures
    for name, total in vectors.by_name(numpy_weights(sums), SHAPES).items():
        moved = shared.weights[name] - start[name]
        assert moved.any()
        np.testing.assert_allclose(moved, -total, rtol=1e-2, atol=1e-5)


class CountsAsGames(NumberedEnvs):
    """The number of the next game is the number of steps so far, so that a position tells the steps."""

    def __getattribute__(self, name: str) -> Any:
        return [self.n_steps] if name == "next_games" else super().__getattribute__(name)


def test_a_snapshot_of_working_workers_is_of_one_moment() -> None:
    """Analytic: each update adds 1 to every weight and statistic, so all of them are the number of updates; steps and
    the workers' positions belong to as many.
    """
    shared = make_shared(10**9, rmsprop_initial=0.0)
    everything = [*shared.variables.values(), *shared._mean_squares.values()]
    for variable in everything:
        variable.assign(tf.zeros_like(variable))

    def apply(*_: object) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        for variable in everything:
            variable.assign_add(tf.ones_like(variable), use_locking=True)
        return tf.constant(0.0), {}

    add_update = shared.counters.add_update

    def add_slowly(*update: int) -> Counts:
        time.sleep(0.001)  # lets other threads run between a worker's update, its counting
        counts = add_update(*update)
        time.sleep(0.001)  # and its new position
        return counts

    shared.apply, shared.counters.add_update = apply, add_slowly
    crew = Crew(shared, [CountsAsGames(4, 1) for _ in range(4)])
    taken: list[tuple[Snapshot, int]] = []

    def n_steps() -> int:
        return sum(one.position.next_games[0] for one in crew.workers)

    def take_and_stop() -> None:
        try:
            for n in range(0, 40, 4):
                wait_until(lambda n=n: shared.counters.read().updates >= n)
                taken.append(shared.snapshot(n_steps))
        finally:
            crew.stop.set()

    taker = threading.Thread(target=take_and_stop, daemon=True)
    taker.start()
    crew.run()
    taker.join(TIMEOUT_SECONDS)
    assert not crew.of_kind(Failure)
    assert len(taken) == 10
    for (counts, weights, mean_squares, _), of_positions in taken:
        assert counts.steps == of_positions == 3 * counts.updates
        for array in (*weights.values(), *mean_squares.values()):
            np.testing.assert_array_equal(array, np.full(array.shape, counts.updates, np.float32))


def test_a_restored_run_counts_on() -> None:
    """Analytic: after 88 of 100 steps, two rollouts of 6 are left."""
    crew = Crew(make_shared(100, Counts(88, 20, 5, 1000)), [NumberedEnvs(4, 2)])
    crew.run()
    assert crew.shared.counters.read() == Counts(100, 22, 5, 1000 + crew.envs[0].n_frames)
    assert crew.shared.counters.take_policy_lag() == (0.0, 0.0)


def test_policy_lag_counts_the_others_updates() -> None:
    """Analytic: one worker makes three updates while another is in its first rollout: lags 0, 0, 0 and 3. These updates
    do not change the other's copy, on which it acts.
    """
    locals_seen = []

    def let_the_second_work(n: int) -> None:
        locals_seen.append(numpy_weights(crew.locals[0].weights))
        if n == 1:
            second.start()
            wait_until(lambda: crew.shared.counters.read().updates == 3)

    crew = Crew(
        make_shared(12), [NumberedEnvs(4, 1, on_step=let_the_second_work), NumberedEnvs(4, 1)]
    )
    second = threading.Thread(target=crew.workers[1].run)
    start = numpy_weights(crew.shared.weights)
    crew.workers[0].run()
    second.join()
    assert not crew.of_kind(Failure)
    assert crew.shared.counters.read().updates == 4
    assert crew.shared.counters.take_policy_lag() == (0.75, 3.0)
    assert len(locals_seen) == 3
    for seen in locals_seen:
        assert_same_weights(seen, start)
    assert_same_weights(crew.locals[0].weights, crew.shared.weights)
    assert np.all(crew.locals[1].weights["value_bias"] != crew.shared.weights["value_bias"])


def test_who_begins_late_begins_with_the_weights_of_then() -> None:
    """Analytic: the second worker begins after two updates of the first, and acts on what these have left, with
    the moments of then. It copies both while nobody learns.
    """
    crew = crew_in_turn(9)
    first, second = crew.workers
    calls = record(crew.locals[1])
    begin, take, collect = second.source.begin, second.source.take, second.source.collect
    used = []

    def begin_late() -> None:
        first.run()
        crew.shared.moments = {}
        begin()

    def take_late(weights: np.ndarray) -> None:
        assert crew.shared.gate._is_shut
        take(weights)

    second.source.begin, second.source.take = begin_late, take_late
    second.source.collect = lambda moments: used.append(moments) or collect(moments)
    before = numpy_weights(crew.shared.weights)
    left = {}
    crew.envs[1].on_step = lambda n: left.update(numpy_weights(crew.shared.weights))
    second.run()
    assert not crew.of_kind(Failure)
    assert crew.shared.counters.take_policy_lag() == (0.0, 0.0)
    assert len(calls_of(calls, "learn")) == 1
    assert used[0] is crew.shared.moments
    assert_same_weights(calls[0].weights, left)
    assert np.all(left["value_bias"] != before["value_bias"])


def test_a_lost_rollout_is_collected_again() -> None:
    """Analytic: twice in four rollouts; each time the source begins anew, and every step is counted once."""
    crew = crew_of_one(12, NumberedEnvs(4, 1))
    (worker,) = crew.workers
    begin, collect, begun, n_lost = worker.source.begin, worker.source.collect, [], [1, 3]

    def lose(moments: Any) -> Any:
        collected = collect(moments)
        n_lost[:] = [n - 1 for n in n_lost]
        return None if 0 in n_lost else collected

    def begin_again() -> None:
        begun.append(crew.shared.counters.read().updates)
        begin()

    worker.source.begin, worker.source.collect = begin_again, lose
    crew.run()
    assert not crew.of_kind(Failure)
    assert begun == [0, 0, 1]
    assert crew.shared.counters.read()[:2] == (12, 4)


def test_the_learning_rate_follows_the_steps_of_all_workers() -> None:
    """Analytic: from 0.8 to 0 over 12 steps, in rollouts of 3: two of one worker, and then two of another,
    which collects its first one meanwhile.
    """
    params = params_with(initial_lr=0.8, lr_decay_to_zero_by_n_steps=12)
    crew = crew_in_turn(12, params)
    calls = [record(local) for local in crew.locals]
    first, second = crew.workers
    crew.envs[1].on_step = lambda n: first.run() if n == 1 else None
    second.run()
    rates = [[call.arguments[1] for call in calls_of(made, "learn")] for made in calls]
    np.testing.assert_allclose(rates, [[0.8, 0.6], [0.4, 0.2]], rtol=1e-6)


# Failures and stops


class Broken(Exception):
    pass


def test_a_failing_environment_stops_everybody() -> None:
    """Analytic: its worker reports the error, does not apply its rollout, and the other worker ends."""

    def break_at_4(n: int) -> None:
        if n == 4:
            raise Broken("so it goes")

    crew = Crew(make_shared(10**9), [NumberedEnvs(4, 1), NumberedEnvs(4, 1, on_step=break_at_4)])
    calls = record(crew.locals[1])
    crew.run()  # ends, though the run wants 10⁹ steps
    (failure,) = crew.of_kind(Failure)
    assert failure.worker == 2
    assert isinstance(failure.error, Broken)
    assert "so it goes" in failure.traceback
    assert "break_at_4" in failure.traceback
    assert crew.stop.is_set()
    assert len(calls_of(calls, "learn")) == 1
    assert crew.shared.counters.read().steps == 3 * crew.shared.counters.read().updates
    with crew.shared.gate.shut():
        pass  # nobody is left inside


def test_a_failure_without_memory_for_its_arrays_is_reported_all_the_same() -> None:
    """Analytic: without the report, the run would seem to have finished."""
    crew = crew_of_one(100, NumberedEnvs(4, 1, on_step=lambda n: 1 // 0))

    def no_memory() -> dict[str, np.ndarray]:
        raise MemoryError

    crew.workers[0].source.arrays = no_memory
    crew.run()
    (failure,) = crew.of_kind(Failure)
    assert isinstance(failure.error, ZeroDivisionError)
    assert failure.arrays == {}


def test_a_stop_while_waiting_for_an_environment_is_no_failure() -> None:
    """Analytic: the wait ends with Stopped, in a step or at the start, and the rollout is not applied."""

    def stop(n: int) -> None:
        if n == 4:
            raise Stopped

    crew = crew_of_one(300, NumberedEnvs(4, 1, on_step=stop))
    crew.run()
    assert crew.shared.counters.read().updates == 1
    assert crew.reports == []
    crew.envs[0].reset = lambda slot: stop(4)
    crew.run()
    assert crew.shared.counters.read().updates == 1
    assert crew.reports == []


@pytest.mark.parametrize("error", [Stopped, Broken])
@pytest.mark.parametrize("n_steps", [0, 4])
def test_what_was_replaced_is_reported_however_the_worker_ends(
    error: type[Exception], n_steps: int
) -> None:
    """Analytic: a process was replaced in the call that then raised or was stopped. It is reported once."""

    def replace_and_raise(n: int) -> None:
        if n == n_steps:
            envs.replaced.append(Replaced([0], "it hung"))
            raise error

    envs = NumberedEnvs(4, 1, on_step=replace_and_raise)
    crew = crew_of_one(300, envs)
    crew.run()
    assert crew.of_kind(EnvRestart) == [EnvRestart("it hung")]
    assert len(crew.of_kind(Failure)) == (error is Broken)
    assert envs.replaced == []


@pytest.mark.parametrize(("last_step", "n_updates"), [(1, 0), (3, 1), (4, 1), (5, 1)])
def test_a_stop_during_a_rollout_applies_nothing_of_it(last_step: int, n_updates: int) -> None:
    """Analytic: told to stop in the first rollout, or at any step of the second. Only whole rollouts are measured and
    applied, and there is no failure.
    """
    stop_at = [last_step]
    envs = NumberedEnvs(4, 1, on_step=lambda n: crew.stop.set() if n in stop_at else None)
    crew = crew_of_one(300, envs, number=0)
    calls = record(crew.locals[0])
    crew.run()
    assert envs.n_steps == last_step + 1
    assert len(calls_of(calls, "learn")) == n_updates
    assert crew.shared.counters.read().updates == n_updates
    assert not crew.of_kind(Failure)
    assert len(crew.of_kind(Measurement)) == n_updates
    assert_same_weights(crew.shared.weights, crew.locals[0].weights)


def test_a_worker_told_to_stop_while_the_gate_is_shut_applies_nothing() -> None:
    """Analytic: a worker that waits at the gate when the run is stopped makes no further update."""
    waiting = threading.Event()
    envs = NumberedEnvs(4, 1, on_step=lambda n: waiting.set() if n == 2 else None)
    crew = crew_of_one(300, envs)
    with crew.shared.gate.shut():
        thread = threading.Thread(target=crew.workers[0].run, daemon=True)
        thread.start()
        assert waiting.wait(TIMEOUT_SECONDS)
        crew.stop.set()
    thread.join(TIMEOUT_SECONDS)
    assert not thread.is_alive()
    assert crew.shared.counters.read() == Counts()
