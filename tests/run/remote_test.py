"""Remote workers, with actors in this process: the same bits, exact counts, and faults."""

import contextlib
import json
import os
import re
import sys
import threading
import types
from multiprocessing.connection import Pipe

import numpy as np
import pytest

from a3c.agent.collector import EnvRestart
from a3c.agent.worker import Failure, RemoteRestart
from a3c.contract import Game, Moments, WorkerPosition
from a3c.machine import cluster, cores, place, tensorflow_process
from a3c.machine.stopping import Stopped
from a3c.machine.words import BadInput
from a3c.run import ray_process
from a3c.run.actor import Actor, Setup
from a3c.run.ray_process import Begin, Channel, Lost, RayProcess, _Server
from a3c.run.remote import RemoteError, RemoteSource
from a3c.settings.params import Params
from tests.tools import processes
from tests.tools.remotes import NUMBER, Actors, Canned, learned, same

TOYS = "tests.tools.toys:toys/"
CARTPOLE = "--preset cartpole --envs_per_worker 2 --n_steps 400 CartPole-v1"


@pytest.fixture(autouse=True)
def whole(monkeypatch):
    """This process stays as it is: an actor would set its threads, its memory and its cores."""
    monkeypatch.setattr(tensorflow_process, "start_tensorflow", lambda: None)
    monkeypatch.setattr(tensorflow_process, "keep_freed_memory", lambda: None)
    monkeypatch.setattr(cores, "use", lambda text: None)


def test_each_of_many_threads_learns_why_the_connection_is_lost(tmp_path):
    """Analytic: all of them ask at once, and read the same file."""
    lost = RayProcess.__new__(RayProcess)
    lost._process = types.SimpleNamespace(wait=lambda seconds: 1)
    told: set[str] = set()
    with (tmp_path / "errors").open("w+b") as lost._errors:
        lost._errors.write(b"Traceback\nRuntimeError: gone\n\n")
        lost._errors.flush()
        threads = [
            threading.Thread(target=lambda: told.update(lost.last_words() for _ in range(200)))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert told == {"the connection to Ray is lost: RuntimeError: gone"}


@pytest.mark.parametrize(
    "arguments",
    [
        # A product of few rows.
        f"--network small --n_steps 500 {TOYS}Side-v0",
        "--envs_per_worker 2 --n_steps 1000 --lstm_units 8 CartPole-v1",
        # Statistics of observations and returns, and truncations.
        "--preset mujoco --n_steps 3200 --steps_per_update 32 --envs_per_worker 1"
        " --max_episode_steps 50 --policy_sd per_state --lstm_units 0 Pendulum-v1",
    ],
)
def test_a_remote_worker_learns_what_a_local_one_does(arguments):
    """Parity: weights, statistics and counts after 100 updates, bit for bit; its games and its position too."""
    with learned(arguments) as (worker, expected, reports):
        pass
    with learned(arguments, Actors()) as (remote, found, remote_reports):
        pass
    assert not [each for each in reports + remote_reports if isinstance(each, Failure)]
    assert found.counts.updates == 100
    same(found, expected)
    assert remote.position == worker.position
    games = [[g for g in r if isinstance(g, Game)] for r in (reports, remote_reports)]
    assert games[0] == games[1]
    assert len(games[0]) == found.counts.games


def test_what_a_lost_actor_did_counts_nowhere():
    """Parity: lost after computing, three times in twelve rollouts. A new actor repeats the rollout from the last
    update on, with new games, and everything is counted once.
    """
    numbers, steps, positions = [], [], []

    def lose(n, done, gradients):
        numbers.append(done.answer.number)
        if n in (1, 5, 6):
            gradients[:] = np.nan  # what it has left in the memory is never used
            return Lost("the machine burnt down")
        steps.append(done.answer.collected.n_steps)
        positions.append(done.answer.collected.position)
        return done

    actors = Actors(lose)
    with learned(CARTPOLE, actors) as (worker, found, reports):
        assert worker.source.steps.total() == 400
    assert not [each for each in reports if isinstance(each, Failure)]
    first, *others = actors.begun
    assert others == [first, positions[2], positions[2]]
    assert actors.n_asked == len(steps) + 3
    assert numbers == [*range(1, actors.n_asked + 1)]  # none is asked for twice
    assert found.counts[:2] == (400, len(steps))
    assert found.counts.games == len([each for each in reports if isinstance(each, Game)]) > 0
    lost = [each for each in reports if isinstance(each, RemoteRestart)]
    assert (
        lost
        == [
            RemoteRestart(
                "remote worker 1 was lost, and another takes its place: the machine burnt down"
            )
        ]
        * 3
    )
    for array in found.weights.values():
        assert np.isfinite(array).all()


def failure_of(fate, arguments=CARTPOLE):
    with learned(arguments, Actors(fate)) as (_, found, reports):
        (failure,) = [each for each in reports if isinstance(each, Failure)]
    return found, str(failure.error)


@contextlib.contextmanager
def canned(fate):
    """A source whose actor needs no environment; it has applied one rollout of five steps."""
    actors, reports = Actors(fate, Canned), []
    params = Params("toys/None", steps_per_update=5)
    setup = Setup(params, None, None, NUMBER, WorkerPosition({}, [0]), "")
    channel = actors.channels[0]
    with contextlib.closing(channel.connection):
        source = RemoteSource(setup, Canned(), actors, channel, reports.append, lambda: False)
        source.begin()
        assert source.collect(NONE).seen["observations"].n == 5
        source.learn(0.1)
        assert source.steps == {"here": 5}
        yield source, reports


NONE = {"observations": Moments(0, np.zeros(2), np.zeros(2))}


def test_an_actor_that_is_lost_again_and_again_ends_the_run():
    """Analytic: three times in a row."""
    fate = lambda n, done, gradients: done if n == 1 else Lost("no memory")  # noqa: E731
    with canned(fate) as (source, reports):
        for _ in range(2):
            assert source.collect(NONE) is None
            source.begin()
        with pytest.raises(
            RemoteError, match=r"^remote worker 1 was lost 3 times without a rollout.*: no memory$"
        ):
            source.collect(NONE)
        assert (
            reports
            == [RemoteRestart("remote worker 1 was lost, and another takes its place: no memory")]
            * 2
        )
        assert source.machine is None


def test_the_end_of_the_connection_ends_the_run():
    """Analytic: the second answer never comes."""
    words = "^the connection to Ray is lost: so it goes$"
    fate = lambda n, done, gradients: done if n == 1 else None  # noqa: E731
    with canned(fate) as (source, _), pytest.raises(RemoteError, match=words):
        source.collect(NONE)


def test_a_stopped_run_waits_for_nobody():
    """Analytic: an actor that never answers."""
    is_over = threading.Event()
    with canned(lambda n, done, gradients: done if n == 1 else is_over.wait()) as (source, _):
        source._is_over = lambda: True
        with pytest.raises(Stopped):
            source.collect(NONE)
        is_over.set()


def changed(done, **changes):
    collected = done.answer.collected._replace(**changes)
    return done._replace(answer=done.answer._replace(collected=collected))


def test_a_gradient_that_is_not_finite_is_not_applied():
    """Analytic: the second of an actor; the run stops with the first update applied."""

    def spoil(n, done, gradients):
        gradients[3 if n == 2 else slice(0)] = np.nan
        return done

    found, error = failure_of(spoil)
    assert found.counts.updates == 1
    assert "gradient not finite" in error
    for array in found.weights.values():
        assert np.isfinite(array).all()


def seen_as(change):
    def spoil(done):
        seen = done.answer.collected.seen
        return changed(done, seen={"observations": change(seen["observations"])})

    return spoil


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda done: done._replace(n_gradients=3), "3 numbers of gradients"),
        (
            lambda done: done._replace(answer=done.answer._replace(number=1)),
            "rollout 1 instead of 2",
        ),
        (lambda done: changed(done, n_steps=7), "7 steps"),
        (lambda done: changed(done, n_steps=0), "0 steps"),
        (
            lambda done: changed(done, games=[Game(1, 0, np.nan, 1)]),
            "a game that is not finite",
        ),
        (lambda done: changed(done, seen={}), "moments of []"),
        (seen_as(lambda m: m._replace(n=m.n + 1)), "moments of observations of other data"),
        (seen_as(lambda m: m._replace(mean=m.mean[:1])), "moments of observations of other data"),
        (
            seen_as(lambda m: m._replace(squares=m.squares + np.inf)),
            "moments of observations that are not finite",
        ),
    ],
)
def test_a_wrong_answer_is_refused(spoil, words):
    """Analytic: the second answer of an actor whose first was right."""
    with canned(lambda n, done, gradients: spoil(done) if n == 2 else done) as (source, _):
        error = re.escape(f"remote worker 1 answered wrongly: {words}")
        with pytest.raises(RemoteError, match=error):
            source.collect(NONE)


def test_an_error_in_an_actor_is_a_workers_failure():
    """Analytic: its environment breaks at every third step, more than ten times in a minute."""
    _, error = failure_of(None, f"--n_steps 1000 --steps_per_update 5 {TOYS}RaisesInStep-v0")
    assert "the joystick broke" in error


@pytest.mark.parametrize("is_clone", [True, False])
def test_a_clone_is_sent_and_an_installed_package_is_not(monkeypatch, is_clone):
    """Analytic: what the process beside the run asks of Ray; a refusal ends it."""
    asked = []

    def connected(address: str | None, ships_code: bool) -> None:
        asked.append((address, ships_code))
        raise BadInput("no room")

    monkeypatch.setattr(cluster, "connected", connected)
    monkeypatch.setattr(os, "_exit", sys.exit)
    monkeypatch.setattr(place, "IS_CLONE", is_clone)
    ours, theirs = Pipe()
    task = json.dumps(["host:1", 1.0, 1, [os.dup(theirs.fileno())]])
    monkeypatch.setattr(sys, "argv", ["-c", task])
    with ours, theirs, processes.handlers_kept():
        with pytest.raises(SystemExit):
            ray_process.main()
        assert ours.recv() == "no room"
    assert asked == [("host:1", is_clone)]


def test_too_few_open_files_are_told(monkeypatch):
    """Analytic: before a process is started."""

    def refuse(name: str) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(BadInput, match="^3 remote workers: Too many open files$"):
        RayProcess("local", 3, 1.0)


def test_an_error_beside_ray_is_answered():
    """Analytic: the memory for the weights cannot be had, and the run must not wait for ever."""
    errors = types.SimpleNamespace(RayTaskError=EOFError, RayError=EOFError)
    memory, other = os.pipe()
    ours, theirs = Pipe()
    server = _Server(types.SimpleNamespace(exceptions=errors), Channel(theirs, memory), 1.0)
    thread = threading.Thread(target=server.serve)
    thread.start()
    ours.send(
        Begin(Setup(Params("toys/None"), None, None, NUMBER, WorkerPosition({}, [0]), ""), 10)
    )
    assert ours.poll(10)
    assert "ftruncate" in ours.recv().traceback
    ours.close()
    thread.join()
    for number in (memory, other):
        os.close(number)


def test_a_machine_with_other_code_is_refused():
    """Analytic: an installed package may be older there, and compute other gradients."""
    setup = Setup(Params("toys/None"), None, None, NUMBER, WorkerPosition({}, [0]), "another")
    with pytest.raises(RuntimeError, match="has another version of a3c than the run"):
        Actor().begin(setup)


def test_environments_that_broke_are_told_of():
    """Analytic: the actor replaces them, and the run hears why with the next rollout."""
    with learned(f"--n_steps 8 --steps_per_update 2 {TOYS}RaisesInStep-v0", Actors()) as (
        _,
        found,
        reports,
    ):
        pass
    restarts = [each for each in reports if isinstance(each, EnvRestart)]
    assert restarts
    assert all("the joystick broke" in each.why for each in restarts)
    assert found.counts.updates == 4
