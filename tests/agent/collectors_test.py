"""Rollouts that environment processes collect are those that the worker's thread would collect."""

import contextlib
import os
import pathlib
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from a3c.agent import collectors, moments, network, vectors
from a3c.agent.collector import Collector, EnvRestart, Rollout
from a3c.agent.collectors import Collectors
from a3c.contract import Subject
from a3c.envs import process
from a3c.envs.fleet import Fleet
from a3c.envs.make import describe_env
from a3c.envs.pool import Pool
from a3c.envs.process import EnvError
from a3c.machine.stopping import StopFlag, Stopped
from a3c.run.start import subject_of
from a3c.settings import command_line
from a3c.settings.params import Params, ParsedParams, resolve
from tests.tools.pools import TOY, pids_of


def settings(arguments: str) -> tuple[Params, Subject, Any]:
    asked = command_line.parse(arguments.split())
    assert isinstance(asked, ParsedParams)
    description = describe_env(asked.params)
    params = resolve(asked, description.kind, description.is_continuous).params
    return params, subject_of(params, description), description


class Rig:
    """The environments of one worker, and what collects in them: their processes, or this thread."""

    def __init__(self, arguments: str, in_processes: bool, n_processes: int, **fleet: Any) -> None:
        params, subject, description = settings(arguments)
        self.fleet = Fleet(1, params.envs_per_worker, 30.0, restarts_a_minute=5, **fleet)
        self.fleet.n_processes_each = n_processes
        how = collectors.collecting(params, subject) if in_processes else None
        n_slots, games = params.steps_per_update + 1, [0] * params.envs_per_worker
        self.pool = Pool(params, description, 0, len(games), n_slots, games, self.fleet, how)
        shapes = network.weight_shapes(subject)
        weights = network.initial_weights(shapes, "torch", np.random.default_rng(5), 0.5)
        self.restarts: list[EnvRestart] = []
        generator, report = np.random.default_rng(3), self.restarts.append
        self.collector: Any
        if in_processes:
            self.pool.arrays["weights"][:] = vectors.held("mlp", weights)[vectors.BLOCK]
            self.collector = Collectors(self.pool, generator, report)
        else:
            acting = vectors.Network(subject, weights)
            self.collector = Collector(acting, self.pool, params, generator, report)
        self.params, self.subject = params, subject


@contextlib.contextmanager
def rig(
    arguments: str, in_processes: bool = True, n_processes: int = 1, **fleet: Any
) -> Iterator[Any]:
    made = Rig(arguments, in_processes, n_processes, **fleet)
    with contextlib.closing(made.pool):
        made.collector.begin()
        yield made


def collect(made: Rig, running: Any) -> list[Any]:
    """All that a rollout brings, with copies of its arrays; times are left out."""
    collected = made.collector.collect(running)
    games = [game._replace(ended_at=0.0) for game in collected.games]
    arrays = Rollout(*(part.copy() for part in made.collector.rollout))
    return [arrays, collected._replace(games=games)]


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
    nothing had happened, and the actions are those that would be drawn anyway.
    """
    arguments = f"--network mlp --envs_per_worker 2 --steps_per_update 4 {TOY}Vector-v0"
    with rig(arguments, n_processes=2) as broken, rig(arguments, n_processes=2) as whole:
        for each in (broken, whole):
            collect(each, {})
        os.kill(pids_of(broken.pool)[1], signal.SIGKILL)
        found, told = collect(broken, {})
        expected, all_of_it = collect(whole, {})
        assert broken.collector.is_whole.tolist() == [True, False]
        assert [r.why for r in broken.restarts] == ["worker 0, environment 1 died (exit code -9)"]
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a[:, 0], b[:, 0])
        assert (told.n_steps, all_of_it.n_steps) == (4, 8)
        assert told.position.generator == all_of_it.position.generator
        assert told.position.next_games == [2, 2]  # environment 1's new game has no step
        found, told = collect(broken, {})
        expected, _ = collect(whole, {})
        assert broken.collector.is_whole.all()
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
    with rig(f"--network mlp --steps_per_update 4 {TOY}RaisesInStep-v0") as made:
        with pytest.raises(EnvError, match="the joystick broke"):
            made.collector.collect({})
        made.collector.end()
        assert len(made.restarts) == 5
        assert made.collector.n_steps_collected == 0


@pytest.mark.parametrize("name", ["Naps-v0", "HangsInStep-v0"])
def test_each_step_of_a_rollout_has_the_time_of_one(monkeypatch: Any, name: str) -> None:
    """Analytic: five steps of 0.2 s are waited for, if each may take 0.5 s; one that hangs is not."""
    monkeypatch.setattr(process, "POLL_SECONDS", 0.1)
    with rig(f"--network mlp --steps_per_update 5 {TOY}{name}") as made:
        for connection in made.pool._connections:
            connection._patience_seconds = 0.5
        made.pool._replace = lambda number, slot, error: (_ for _ in ()).throw(error)
        if name == "Naps-v0":
            assert collect(made, {})[1].n_steps == 5
        else:
            with pytest.raises(EnvError, match=r"has not answered for 0\.5 s"):
                made.collector.collect({})


def test_a_stop_ends_the_wait_for_a_rollout() -> None:
    """Analytic: it comes while the environment hangs."""
    stop = StopFlag()
    arguments = f"--network mlp --steps_per_update 5 {TOY}HangsInStep-v0"
    with rig(arguments, is_stopped=stop.is_set) as made:
        stop.set()
        with pytest.raises(Stopped):
            made.collector.collect({})


def test_who_collects() -> None:
    """Analytic: processes do it for vectors, and never load TensorFlow; with --debug the thread does, and for
    images.
    """
    with rig(CARTPOLE) as made:
        collect(made, {})
        (pid,) = pids_of(made.pool)
        assert "tensorflow" not in pathlib.Path(f"/proc/{pid}/maps").read_text()
    for arguments in ("--debug --n_workers 1 CartPole-v1", "PongNoFrameskip-v4"):
        params, subject, _ = settings(arguments)
        assert collectors.collecting(params, subject) is None
