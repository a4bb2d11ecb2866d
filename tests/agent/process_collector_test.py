"""Rollouts that environment processes collect are those that the worker's thread would collect."""

import collections
import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import numpy as np
import pytest

from a3c.agent import moments, network, process_collector, vectors
from a3c.agent.collector import Collector, EnvRestart, Rollout
from a3c.agent.process_collector import ProcessCollector
from a3c.agent.source import LocalSource
from a3c.contract import Subject
from a3c.envs import pool, process
from a3c.envs.fleet import Fleet
from a3c.envs.make import describe_env
from a3c.envs.pool import Pool
from a3c.envs.process import EnvError, EnvProcess
from a3c.machine.stopping import StopFlag, Stopped
from a3c.run.start import subject_of
from a3c.settings import command_line
from a3c.settings.params import Params, ParsedParams, resolve
from tests.tools.pools import TOY, lose_patience, pids_of
from tests.tools.processes import has_mapped


def settings(arguments: str) -> tuple[Params, Subject, Any]:
    asked = command_line.parse(arguments.split())
    assert isinstance(asked, ParsedParams)
    description = describe_env(asked.params)
    params = resolve(asked, description.kind, description.is_continuous).params
    return params, subject_of(params, description), description


class Rig:
    """The environments of one worker, and what collects in them: their processes, or this thread."""

    def __init__(
        self,
        arguments: str,
        in_processes: bool = True,
        n_processes: int = 1,
        shared: EnvProcess | None = None,
        timeout: float = 30.0,
        **fleet: Any,
    ) -> None:
        params, subject, description = settings(arguments)
        self.fleet = Fleet(1, params.envs_per_worker, timeout, **{"restarts_a_minute": 5} | fleet)
        self.fleet.n_processes_each = n_processes
        self.fleet.shared = {0: shared} if shared else {}
        how = process_collector.collecting(params, subject) if in_processes else None
        n_slots, games = params.steps_per_update + 1, [0] * params.envs_per_worker
        self.pool = Pool(params, description, 0, n_slots, games, self.fleet, how)
        shapes = network.weight_shapes(subject)
        weights = network.initial_weights(shapes, "torch", np.random.default_rng(5), 0.5)
        self.restarts: list[EnvRestart] = []
        generator, report = np.random.default_rng(3), self.restarts.append
        collector: Any
        if in_processes:
            self.pool.arrays["weights"][:] = vectors.held("mlp", weights)[vectors.BLOCK]
            collector = ProcessCollector(self.pool, generator, report)
        else:
            acting = vectors.Network(subject, weights)
            collector = Collector(acting, self.pool, params, generator, report)
        nothing_learns: Any = None
        self.source = LocalSource(nothing_learns, collector, self.pool)
        self.params, self.subject = params, subject


@contextlib.contextmanager
def rig(arguments: str, *how: Any, **more: Any) -> Iterator[Any]:
    made = Rig(arguments, *how, **more)
    with contextlib.closing(made.pool):
        made.source.begin()
        yield made


def collect(made: Rig, running: Any) -> list[Any]:
    """All that a rollout brings, with copies of its arrays."""
    collected = made.source.collect(running)
    arrays = Rollout(*(part.copy() for part in made.source.collector.rollout))
    return [arrays, collected]


CARTPOLE = "--preset cartpole --envs_per_worker 3 --steps_per_update 20 CartPole-v1"
PENDULUM = (
    "--preset mujoco --envs_per_worker 3 --steps_per_update 7 --lstm_units 4"
    " --max_episode_steps 9 Pendulum-v1"
)


def running_of(made: Rig, n: int) -> Any:
    """Moments that differ from rollout to rollout, if the run keeps some."""
    some = moments.initial(made.params, made.subject.observation_shape)
    drawn = np.random.default_rng(n).normal(size=(9, 3))
    data = {"observations": drawn, "returns": drawn[:, 0]}
    return {name: moments.of(data[name]) for name in some}


@pytest.mark.parametrize("arguments", [CARTPOLE, PENDULUM], ids=["CartPole", "Pendulum"])
def test_processes_collect_what_the_thread_would(arguments: str) -> None:
    """Parity: rollouts, games, frames, moments, positions and mean values over ten rollouts, in which
    episodes end and are cut off; bit for bit with one process. With several, products have other
    numbers of rows, and so do sums of moments.
    """
    with contextlib.ExitStack() as open_rigs:
        ways = [(False, 1), (True, 1), (True, 2), (True, 3)]
        thread, *others = (open_rigs.enter_context(rig(arguments, *way)) for way in ways)
        n_games = 0
        for n in range(10):
            running = running_of(thread, n)
            expected, told = collect(thread, running)
            n_games += len(told.games)
            for i, other in enumerate(others):
                tolerance = 1e-5 * (i > 0)
                found, also = collect(other, running)
                for name, a, b in zip(Rollout._fields, found, expected, strict=True):
                    np.testing.assert_allclose(a, b, tolerance, tolerance, err_msg=name)
                assert [g[:2] + g[3:] for g in also.games] == [g[:2] + g[3:] for g in told.games]
                scores = [[game.score for game in x.games] for x in (also, told)]
                np.testing.assert_allclose(*scores, tolerance)
                assert also.value_mean == pytest.approx(told.value_mean, tolerance, nan_ok=True)
                assert also.position == told.position
                assert (also.n_steps, also.n_frames) == (told.n_steps, told.n_frames)
                assert also.seen.keys() == told.seen.keys()
                for name, (count, *parts) in also.seen.items():
                    assert count == told.seen[name].n
                    np.testing.assert_allclose(
                        parts, told.seen[name][1:], 10 * tolerance, tolerance
                    )
        assert n_games > 3
        assert told.position.generator != np.random.default_rng(3).bit_generator.state


def test_what_breaks_in_a_rollout_is_left_out_and_begins_anew() -> None:
    """Analytic: environment 1's process is killed; the other's column, and what comes next, are as if
    nothing had happened, and the actions are those that would be drawn anyway. Discounted rewards begin
    at 0.
    """
    arguments = "--network mlp --envs_per_worker 2 --steps_per_update 4 --scale_rewards"
    arguments += f" --seed 3 {TOY}Vector-v0"
    with rig(arguments, n_processes=2) as broken, rig(arguments, n_processes=2) as whole:
        running = running_of(whole, 0)
        for each in (broken, whole):
            collect(each, running)
        os.kill(pids_of(broken.pool)[1], signal.SIGKILL)
        found, told = collect(broken, running)
        expected, all_of_it = collect(whole, running)
        assert (told.seen["returns"].n, all_of_it.seen["returns"].n) == (4, 8)
        assert broken.source.collector.is_whole.tolist() == [True, False]
        assert [r.why for r in broken.restarts] == ["worker 0, environment 1 died (exit code -9)"]
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a[:, 0], b[:, 0])
        assert (told.n_steps, all_of_it.n_steps) == (4, 8)
        assert told.position.generator == all_of_it.position.generator
        assert told.position.next_games == [2, 2]  # environment 1's new game has no step
        assert whole.pool.arrays["returns"][-1, 1] > 0
        found, told = collect(broken, running)
        expected, _ = collect(whole, running)
        assert broken.source.collector.is_whole.all()
        paid = 10.0 * found.actions[:, 1]
        returns = [paid[0]]
        for each in paid[1:]:
            returns.append(0.99 * returns[-1] + each)
        np.testing.assert_allclose(broken.pool.arrays["returns"][:, 1], returns)
        np.testing.assert_array_equal(found.actions, expected.actions)
        assert found.observations[:, 1].tolist() == [[n, 0] for n in range(5)]
        assert told.position.next_games == [3, 3]


def test_a_rollout_of_which_nothing_is_left_is_collected_again() -> None:
    """Analytic: with the same draws, since nothing came of them, in new games."""
    arguments = f"--network mlp --steps_per_update 4 {TOY}Vector-v0"
    with rig(arguments) as broken, rig(arguments) as whole:
        for each in (broken, whole):
            collect(each, {})
        os.kill(pids_of(broken.pool)[0], signal.SIGKILL)
        found, told = collect(broken, {})
        expected, all_of_it = collect(whole, {})
        assert len(broken.restarts) == 1
        assert found.observations[:, 0].tolist() == [[n, 0] for n in range(5)]
        assert told.n_steps == 4
        assert told.position.generator == all_of_it.position.generator
        assert expected.observations[0, 0].tolist() == [4, 0]


def test_what_fails_again_and_again_is_an_error() -> None:
    """Analytic: the joystick breaks in every rollout; nothing of any counts."""
    with rig(f"--network mlp --steps_per_update 2 {TOY}RaisesInStep-v0") as made:
        collect(made, {})
        assert made.source.collector.n_steps_collected == 2
        rollouts = (made.source.collect({}) for _ in range(20))
        with pytest.raises(EnvError, match="the joystick broke"):  # in each game's third step
            collections.deque(rollouts)
        made.source.end()
        assert len(made.restarts) == 5
        assert made.source.collector.n_steps_collected == 0


@pytest.fixture
def frequent_polls(monkeypatch: Any) -> None:
    monkeypatch.setattr(process, "POLL_SECONDS", 0.1)


@pytest.mark.usefixtures("frequent_polls")
def test_each_step_of_a_rollout_has_the_time_of_one() -> None:
    """Analytic: 26 steps of 0.2 s are waited for, if each may take 5 s; one that hangs is not, although
    another process of the worker goes on.
    """
    arguments = f"--network mlp --envs_per_worker 2 --steps_per_update 26 {TOY}Naps-v0"
    with rig(arguments, n_processes=2, timeout=5.0, restarts_a_minute=0) as made:
        assert collect(made, {})[1].n_steps == 52
        lose_patience(made.pool)
        os.kill(pids_of(made.pool)[0], signal.SIGSTOP)
        with pytest.raises(EnvError, match="environment 0 has not answered for 0.5 s"):
            made.source.collect({})
        assert made.pool._rows.n_frames[1] < 52


@pytest.mark.usefixtures("frequent_polls")
def test_a_process_may_take_its_time_for_another_worker() -> None:
    """Analytic: of two workers that share a process, one waits for a rollout that takes longer than its
    own step may take.
    """
    shared = EnvProcess(2)
    arguments = f"--network mlp --steps_per_update 16 {TOY}Naps-v0"
    with contextlib.ExitStack() as open_pools:
        both = [Rig(arguments, shared=shared, timeout=3.0) for _ in range(2)]
        for each in both:
            open_pools.callback(each.pool.close)
        for each in both:
            each.source.begin()
        with futures.ThreadPoolExecutor(2) as threads:
            told = list(threads.map(lambda each: collect(each, {})[1], both))
        assert [(x.n_steps, x.n_frames) for x in told] == [(16, 16)] * 2
        assert both[0].restarts == both[1].restarts == []


def test_a_stop_ends_the_wait_for_a_rollout(monkeypatch: Any) -> None:
    """Analytic: it comes in the middle, and the process ends by itself, and without an error. So a worker that
    shares the process, and is not stopped, gets another.
    """
    monkeypatch.setattr(pool, "CLOSING_SECONDS", 60.0)  # nobody kills it before
    stop, shared = StopFlag(), EnvProcess(2)
    arguments = f"--network mlp --steps_per_update {{}} {TOY}Naps-v0"
    stopped = Rig(arguments.format(30), shared=shared, is_stopped=stop.is_set)
    other = Rig(arguments.format(2), shared=shared)
    with contextlib.closing(other.pool):
        with contextlib.closing(stopped.pool):
            stopped.source.begin()
            other.source.begin()
            threading.Timer(0.3, stop.set).start()
            with pytest.raises(Stopped):
                stopped.source.collect({})
        assert collect(other, {})[1].n_steps == 2
    assert [r.why for r in other.restarts] == ["worker 0, environment 0 died (exit code 0)"]


def test_who_collects() -> None:
    """Analytic: processes do it for vectors, and never load TensorFlow; with --debug the thread does, and for
    images.
    """
    with rig(CARTPOLE) as made:
        collect(made, {})
        (pid,) = pids_of(made.pool)
        assert has_mapped(pid, "ale_py")
        assert not has_mapped(pid, "tensorflow")
    for arguments in ("--debug --n_workers 1 CartPole-v1", "PongNoFrameskip-v4"):
        params, subject, _ = settings(arguments)
        assert process_collector.collecting(params, subject) is None
