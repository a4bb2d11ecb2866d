"""Tests of a3c/envs/process.py: what becomes of processes that fail, fall silent or are left alone."""

import contextlib
import dataclasses
import functools
import os
import pathlib
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types
from multiprocessing import resource_tracker

import numpy as np
import pytest

from a3c.envs import pool
from a3c.envs import process as env_process
from a3c.envs.make import EnvSettings, describe_env, make_env
from a3c.envs.pool import EnvProcesses, close_all
from a3c.envs.process import (
    EnvError,
    EnvProcess,
    Host,
    RestartLimit,
)
from a3c.envs.serve import SharedObservations, receive_exactly
from a3c.machine.stopping import SIGNALS, StopFlag, Stopped
from tests.tools.processes import state_parent_and_session, wait_until

TOY = "tests.tools.toys:toys/"
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DEADLINE_SECONDS = 30.0


def never():
    return False


@contextlib.contextmanager
def opened(settings, worker, n_envs, description=None, **kwargs):
    """Environments of one worker, in processes, always closed; of two slots."""
    description = description or describe_env(settings)
    envs = EnvProcesses(settings, worker, n_envs, description, 2, **kwargs)
    try:
        yield envs
    finally:
        envs.close()


def processes(name, n_envs=1, worker=0, **kwargs):
    """Vector toys, described as what the broken ones would be."""
    description = describe_env(EnvSettings(TOY + "Vector-v0", 0))
    return opened(EnvSettings(name, seed=0), worker, n_envs, description, **kwargs)


def is_running(pid):
    """Whether a process exists and is not a zombie."""
    try:
        return state_parent_and_session(pid)[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def parent_of(pid):
    return state_parent_and_session(pid)[1]


def wait_for_end(pids):
    wait_until(lambda: not any(map(is_running, pids)), "their end", DEADLINE_SECONDS)


def test_no_tensorflow_in_a_process():
    """Analytic: nothing of TensorFlow is mapped, while the emulator is."""
    with processes("CartPole-v1") as envs:
        envs.wait_until_ready()
        for pid in envs.pids:
            maps = pathlib.Path(f"/proc/{pid}/maps").read_text()
            assert "tensorflow" not in maps
            assert "ale_py" in maps


def is_deaf_to(pid, number):
    """Whether a process ignores the signal, or blocks it."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    masks = [int(status.partition(f"{name}:")[2].split()[0], 16) for name in ("SigIgn", "SigBlk")]
    return bool((masks[0] | masks[1]) & (1 << (number - 1)))


def test_stop_signals_do_not_reach_it_from_birth():
    """Analytic: neither the process nor the server it is forked from, nor the tracker that Python starts with
    that; the parent is as before.

    Ctrl-C reaches every process of a terminal.
    """
    handlers = [signal.getsignal(number) for number in SIGNALS]
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with processes(TOY + "Vector-v0") as envs:
        envs.reset()
        for number in SIGNALS:
            assert is_deaf_to(envs.pids[0], number)
            assert is_deaf_to(parent_of(envs.pids[0]), number)
            assert is_deaf_to(resource_tracker._resource_tracker._pid, number)
            os.kill(envs.pids[0], number)
        assert envs.step(np.array([1]), 0).rewards == [10]
    assert [signal.getsignal(number) for number in SIGNALS] == handlers
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == blocked


def test_a_signal_that_comes_while_the_server_is_started_is_not_lost():
    """Analytic: sent within both starts, of Python's tracker and of the server, it is handled by their end."""
    code = """
import multiprocessing.forkserver, multiprocessing.resource_tracker, os, signal
from a3c.envs import process as env_process
got = []
signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
def with_a_signal(start):
    def starting():
        os.kill(os.getpid(), signal.SIGTERM)
        start()
    return starting
for module in (multiprocessing.resource_tracker, multiprocessing.forkserver):
    module.ensure_running = with_a_signal(module.ensure_running)
env_process._context()
print(len(got) >= 2)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_the_server_is_started_by_one_thread_alone(monkeypatch):
    """Analytic: two workers begin at once; the second waits, or would come in meanwhile."""
    now, most = [], []
    both = threading.Event()
    context = env_process._context

    def slow():
        now.append(1)
        most.append(len(now))
        if len(now) == 2:
            both.set()
        both.wait(0.5)
        now.pop()
        return context()

    monkeypatch.setattr(env_process, "_context", slow)

    def begin(worker):
        with processes(TOY + "Vector-v0", worker=worker) as envs:
            envs.reset()

    threads = [threading.Thread(target=begin, args=(worker,)) for worker in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1]


def test_close_ends_every_process():
    """Analytic: none is left when it returns; a second close does no harm."""
    with processes(TOY + "Vector-v0", n_envs=3) as envs:
        pids = envs.pids
        envs.reset()
        assert all(map(is_running, pids))
        envs.close()
        assert not any(map(is_running, pids))


def test_close_ends_even_a_process_that_cannot_listen():
    """Analytic: a stopped process does not see that the worker hung up."""
    with processes(TOY + "Vector-v0") as envs:
        envs.reset()
        pids = envs.pids
        os.kill(pids[0], signal.SIGSTOP)
        wait_until(lambda: state_parent_and_session(pids[0])[0] == "T")
    assert not any(map(is_running, pids))


def test_closing_takes_one_moment_however_many_cannot_listen(monkeypatch):
    """Analytic: two workers' three stopped processes are waited for together for what one would be."""
    waited = []
    with processes(TOY + "Vector-v0", n_envs=3) as one, processes(TOY + "Vector-v0") as other:
        for envs in (one, other):
            envs.reset()
            for process in envs._processes:
                pid = process.host.pid
                os.kill(pid, signal.SIGSTOP)
                wait_until(lambda pid=pid: state_parent_and_session(pid)[0] == "T")
                join = process.host._process.join

                def record(timeout=None, join=join):
                    waited.append(timeout or 0.0)
                    join(timeout)

                monkeypatch.setattr(process.host._process, "join", record)
        close_all([one, other])
        assert len(waited) >= 4
        assert sum(waited) < env_process.CLOSING_SECONDS + 0.1
        assert not any(map(is_running, one.pids + other.pids))


def test_what_the_system_cannot_start_is_said_in_one_line():
    """Analytic: where a process may open no more files, say."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with processes(TOY + "Vector-v0") as envs:  # the fork server is there
        envs.wait_until_ready()
        memory, make = envs._memory, functools.partial(make_env, envs._settings)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
            with pytest.raises(EnvError, match="^number 7 cannot be started: Too many open files$"):
                EnvProcess([make], memory, 0, "number 7", DEADLINE_SECONDS, never)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("error", [EOFError("unexpected EOF"), OSError(11, "Try again")])
def test_a_fork_that_the_system_refuses_is_said_in_one_line(monkeypatch, error):
    """Analytic: the fork server dies of it, which is the first that we hear."""

    class Refused:
        def __init__(self, **_):
            pass

        def start(self):
            raise error

    monkeypatch.setattr(env_process, "_context", lambda: types.SimpleNamespace(Process=Refused))
    words = r"environment 0 cannot be started: (unexpected EOF|Try again)$"
    with pytest.raises(EnvError, match=words), processes(TOY + "Vector-v0"):
        pass


def test_an_environment_that_loses_a_connection_of_its_own_says_so():
    """Analytic: its EOFError is not taken for the worker's."""
    with (
        processes(TOY + "LosesConnection-v0") as envs,
        pytest.raises(EnvError, match="the game server is gone"),
    ):
        envs.wait_until_ready()


def test_close_before_the_environments_are_built():
    """Analytic: nobody waits for an environment that is not wanted any more."""
    with processes("PongNoFrameskip-v4", n_envs=2) as envs:
        pids = envs.pids
    assert not any(map(is_running, pids))


def test_an_error_while_building_arrives_in_words():
    """Analytic: name and traceback."""
    with processes(TOY + "RaisesInInit-v0", worker=2) as envs:
        with pytest.raises(EnvError, match="upside down") as error:
            envs.wait_until_ready()
        assert str(error.value).startswith("worker 2, environment 0 failed:\nTraceback")


def test_an_error_in_a_step_arrives_in_words():
    """Analytic: at the third step, naming the environment."""
    with processes(TOY + "RaisesInStep-v0", n_envs=2) as envs:
        envs.reset()
        for _ in range(2):
            envs.step(np.array([0, 0]), 0)
        with pytest.raises(EnvError, match=r"worker 0, environment 0 failed:\n(.*\n)*.*joystick"):
            envs.step(np.array([0, 0]), 0)


def test_a_killed_process_is_named_at_once():
    """Analytic: the one that died, when it is asked for the next step."""
    with processes(TOY + "Vector-v0", n_envs=2, worker=1) as envs:
        envs.reset()
        os.kill(envs.pids[1], signal.SIGKILL)
        wait_for_end(envs.pids[1:])
        with pytest.raises(EnvError, match=r"^worker 1, environment 1 died \(exit code -9\)$"):
            envs.step(np.array([0, 0]), 0)


def test_a_process_killed_while_it_steps_is_named_at_once():
    """Analytic: long before the timeout, although it owes an answer."""
    with processes(TOY + "HangsInStep-v0") as envs:
        envs.reset()
        for _ in range(2):
            envs.step(np.array([0]), 0)
        envs._processes[0].request_step(0, [0])
        begun = time.monotonic()
        os.kill(envs.pids[0], signal.SIGKILL)
        with pytest.raises(EnvError, match=r"died \(exit code -9\)"):
            envs._processes[0].receive()
        assert time.monotonic() - begun < DEADLINE_SECONDS / 2


def test_a_process_that_hangs_is_named_after_the_timeout_and_killed():
    """Analytic: the third step never returns; close ends it all the same."""
    with processes(TOY + "HangsInStep-v0") as envs:
        envs.reset()
        for _ in range(2):
            envs.step(np.array([0]), 0)
        lose_patience(envs)
        with pytest.raises(EnvError, match=r"worker 0, environment 0 has not answered for 0.5 s"):
            envs.step(np.array([0]), 0)
        pids = envs.pids
    assert not any(map(is_running, pids))


def lose_patience(envs, env=0):
    """Wait a moment only for this one; however slow the machine, the others have all their time."""
    envs._processes[env]._patience_seconds = 0.5


def test_building_has_its_time_whatever_a_step_has():
    """Analytic: the timeout is for steps; a process that starts may wait for a processor first."""
    memory = SharedObservations(1, 1, (2,), "float32")
    make = functools.partial(make_env, EnvSettings(TOY + "Vector-v0", 0))
    process = EnvProcess([make], memory, 0, "the impatient one", 1.5, never)
    try:
        assert process._patience_seconds == env_process.LEAST_BUILDING_SECONDS
        process.receive()
        assert process._patience_seconds == 1.5
    finally:
        process.end()


def test_a_stop_ends_the_waiting():
    """Analytic: for an environment that hangs, long before the timeout."""
    stop = StopFlag()
    with processes(TOY + "HangsInStep-v0", is_stopped=stop.is_set) as envs:
        envs.reset()
        for _ in range(2):
            envs.step(np.array([0]), 0)
        stop.set()
        with pytest.raises(Stopped):
            envs.step(np.array([0]), 0)


# Environments that are replaced


def test_restarts_are_limited_by_the_minute(monkeypatch):
    """Analytic: ten at once, and another as soon as the first of the last ten is a minute old."""
    now = [1000.0]
    monkeypatch.setattr(env_process, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    limit = RestartLimit()
    allowed = []
    for seconds in [*range(12), 59, 60, 60.5, 61, 62]:
        now[0] = 1000.0 + seconds
        allowed.append(limit.allows_one_more(Host()))
    assert allowed == [True] * 10 + [False] * 3 + [True, False, True, True]


@pytest.mark.parametrize("how", ["killed", "hangs", "raises"])
def test_a_broken_environment_is_replaced(tmp_path, how):
    """Parity: the one in the middle breaks at its third step; the new one is game 2 of its own stream, and
    the others, the monitor files and the frames are as if nothing had happened.
    """
    name = (
        TOY + {"killed": "Vector-v0", "hangs": "HangsInStep-v0", "raises": "RaisesInStep-v0"}[how]
    )
    settings = EnvSettings(name, seed=3, monitor_dir=str(tmp_path))
    with opened(
        settings, 1, 3, timeout_seconds=DEADLINE_SECONDS, restart_limit=RestartLimit()
    ) as envs:
        envs.reset(0)
        for env in (0, 2) if how != "killed" else ():
            break_no_more(envs, env, settings)
        for slot in (1, 0):
            assert envs.step(np.array([0, 1, 1]), slot).replaced == []
        pids = envs.pids
        if how == "killed":
            os.kill(pids[1], signal.SIGKILL)
        if how == "hangs":
            lose_patience(envs, 1)
        broken = envs.step(np.array([0, 1, 1]), 1)
        assert not is_running(pids[1])
        assert [pid == old for pid, old in zip(envs.pids, pids, strict=True)] == [True, False, True]
        ((abandoned, why),) = broken.replaced
        assert list(abandoned) == [1]
        assert {"killed": "exit code -9", "hangs": "0.5 s", "raises": "joystick broke"}[how] in why
        assert "worker 1, environment 1" in why
        # No reward, no end; its first observation is in its row.
        assert broken.rewards.tolist() == [0, 0, 10]
        assert not (broken.terminated | broken.truncated).any()
        np.testing.assert_array_equal(envs.observations[1], [[3, 0], [0, 0], [3, 0]])
        assert envs.next_games == [1, 2, 1]  # no step of the new one's first has been taken
        assert envs.n_frames == 8  # its last two steps, and not the third, which nobody heard of
        games = []
        for slot in (0, 1):
            step = envs.step(np.array([0, 1, 1]), slot)
            assert step.replaced == []
            assert step.rewards.tolist() == [0, 10, 10]
            games += step.games
        np.testing.assert_array_equal(envs.observations[1], [[0, 1], [2, 0], [0, 1]])
        assert [(game.env, game.score, game.length) for game in games] == [(0, 0, 5), (2, 50, 5)]
        assert envs.n_frames == 14
        assert envs.next_games == [1, 3, 1]
    rows = {p.name: p.read_text().splitlines()[2:] for p in sorted(tmp_path.iterdir())}
    assert [len(rows[f"1.{env}.monitor.csv"]) for env in range(3)] == [1, 0, 1]
    for file in tmp_path.iterdir():
        assert file.read_text().count("\nr,l,t\n") == 1


def test_a_game_that_nobody_heard_of_is_in_no_file(tmp_path):
    """Analytic: it ended, and then its process failed before it could say so; earlier games stay."""
    path = tmp_path / "0.0.monitor.csv"
    path.write_text('#{"t_start": 0.0, "env_id": "x"}\nr,l,t\n7.0,8,9.0\n')
    before = path.read_text()
    settings = EnvSettings(TOY + "RaisesInReset-v0", seed=0, monitor_dir=str(tmp_path))
    with opened(settings, 0, 1, restart_limit=RestartLimit()) as envs:
        envs.reset(0)
        for _ in range(4):
            assert envs.step(np.array([1]), 0).replaced == []
        step = envs.step(np.array([1]), 0)
        assert "coin" in step.replaced[0].why
        assert step.games == []
        assert path.read_text() == before
        assert envs.next_games == [2]
    make = make_env(settings)
    make.reset()
    for _ in range(5):
        make.step(1)
    assert path.read_text().startswith(before + "50.0,5,")  # what was cut


def test_games_that_a_full_disk_keeps_from_the_file_are_not_lost_with_their_process(tmp_path):
    """Analytic: it dies with one row written, half of the second and nothing of the third; its successor
    writes what is missing, first.
    """
    path = tmp_path / "0.0.monitor.csv"
    settings = EnvSettings(TOY + "Vector-v0", seed=0, monitor_dir=str(tmp_path))
    heard = []
    with opened(settings, 0, 1, restart_limit=RestartLimit()) as envs:

        def play(action):
            while not (games := envs.step(np.array([action]), 0).games):
                pass
            heard.extend((game.score, game.length) for game in games)

        envs.reset(0)
        play(1)
        _, hard = resource.prlimit(envs.pids[0], resource.RLIMIT_FSIZE)
        room = path.stat().st_size + 3
        resource.prlimit(envs.pids[0], resource.RLIMIT_FSIZE, (room, hard))
        play(0)
        play(1)
        assert path.stat().st_size == room
        os.kill(envs.pids[0], signal.SIGKILL)
        assert envs.step(np.array([1]), 0).replaced
        play(0)
    rows = [line.split(",") for line in path.read_text().splitlines()[2:]]
    assert [(float(score), int(length)) for score, length, _ in rows] == heard
    assert len(heard) == 4
    times = [float(seconds) for *_, seconds in rows]
    assert times == sorted(times)


def test_what_waited_for_room_is_written_at_the_end(tmp_path):
    """Analytic: there is a folder again, but no game ends any more before the process is told to end; its
    row is there, and so is that of a broken process before it.
    """
    place = tmp_path / "monitor"
    settings = EnvSettings(TOY + "Vector-v0", seed=0, monitor_dir=str(place))
    with opened(settings, 0, 2, restart_limit=RestartLimit()) as envs:
        envs.reset(0)
        for _ in range(5):
            games = envs.step(np.array([1, 1]), 0).games
        assert len(games) == 2
        os.kill(envs.pids[1], signal.SIGKILL)
        assert envs.step(np.array([1, 1]), 0).replaced
        assert not place.exists()
        place.mkdir()
    for env in range(2):
        text = (place / f"0.{env}.monitor.csv").read_text()
        assert [line.split(",")[:2] for line in text.splitlines()[2:]] == [["50.0", "5"]]


def test_no_process_takes_a_broken_ones_place_in_another_runs_folder():
    """Analytic: it would open that run's files; the error says both."""
    taken = []
    with processes(
        TOY + "Vector-v0", restart_limit=RestartLimit(), is_taken_over=lambda: bool(taken)
    ) as envs:
        envs.reset()
        os.kill(envs.pids[0], signal.SIGKILL)
        assert envs.step(np.array([1]), 0).replaced
        taken.append(True)
        os.kill(envs.pids[0], signal.SIGKILL)
        with pytest.raises(EnvError, match=r"died .*; and another run has its folder where"):
            envs.step(np.array([1]), 0)


def test_a_monitor_file_that_is_closed_to_us_does_not_keep_a_process_from_being_replaced(
    tmp_path, monkeypatch
):
    """Analytic: nobody can tell what is in it, and training goes on; no row is written twice."""
    settings = EnvSettings(TOY + "Vector-v0", seed=0, monitor_dir=str(tmp_path))

    def refused(*arguments):
        raise PermissionError(13, "Permission denied")

    with opened(settings, 0, 1, restart_limit=RestartLimit()) as envs:
        envs.reset(0)
        for _ in range(5):
            envs.step(np.array([1]), 0)
        rows = (tmp_path / "0.0.monitor.csv").read_text().splitlines()[2:]
        assert [row.split(",")[:2] for row in rows] == [["50.0", "5"]]
        monkeypatch.setattr(pool, "cut_back", refused)
        os.kill(envs.pids[0], signal.SIGKILL)
        assert envs.step(np.array([1]), 0).replaced
        assert envs.step(np.array([1]), 0).rewards == [10]
        assert (tmp_path / "0.0.monitor.csv").read_text().splitlines()[2:] == rows


def test_games_that_ended_unheard_are_not_played_again(tmp_path):
    """Analytic: two have rows that nobody was told of, and a third may have been begun: the next is 3."""
    settings = EnvSettings(TOY + "Vector-v0", seed=0, monitor_dir=str(tmp_path))
    with opened(settings, 0, 1, restart_limit=RestartLimit()) as envs:
        envs.reset(0)
        path = tmp_path / "0.0.monitor.csv"
        before = path.read_text()
        path.write_text(before + "1.0,5,0.1\n2.0,5,0.2\n3.0,")
        os.kill(envs.pids[0], signal.SIGKILL)
        assert len(envs.step(np.array([0]), 1).replaced) == 1
        assert envs.next_games == [3]
        assert path.read_text() == before


def break_no_more(envs, env, settings):
    """Let a sound environment take this one's place, at the start of its first game."""
    sound = dataclasses.replace(settings, env_id=TOY + "Vector-v0")
    envs._processes[env].end()
    make = functools.partial(make_env, sound, 1, env, 0)
    envs._processes[env] = EnvProcess([make], envs._memory, env, "sound", DEADLINE_SECONDS, never)
    envs._processes[env].receive()
    envs._processes[env].request_reset(0)
    envs._processes[env].receive()


def test_a_new_process_has_streams_that_were_not_used():
    """Parity: games 0 and 1 are done with; of 2, which was under way, and 3, which may have been, no more is
    seen; the random start of the new process is game 4's.
    """
    name = TOY + "ShortNumbers-v0"  # of 90 frames
    settings = EnvSettings(name, seed=0)
    with opened(settings, 0, 1, restart_limit=RestartLimit()) as envs:
        envs.reset(0)
        n_games = 0
        while n_games < 2:
            n_games += len(envs.step(np.array([0]), 0).games)
        os.kill(envs.pids[0], signal.SIGKILL)
        assert len(envs.step(np.array([0]), 1).replaced) == 1
        firsts = [make_env(settings, 0, 0, game).reset()[0] for game in range(6)]
        equal = [np.array_equal(envs.observations[1, 0], first) for first in firsts]
        assert equal == [False, False, False, False, True, False]


@pytest.mark.parametrize("when", ["before it is built", "before it is reset"])
def test_a_process_that_dies_before_its_first_step_is_replaced_too(when):
    """Analytic: the next step tells of it; the first observation is there."""
    settings = EnvSettings(TOY + "Vector-v0", seed=0)
    with opened(settings, 0, 2, restart_limit=RestartLimit()) as envs:
        if when == "before it is reset":
            envs.wait_until_ready()
        os.kill(envs.pids[1], signal.SIGKILL)
        envs.observations[:] = -1
        envs.reset(1)
        np.testing.assert_array_equal(envs.observations[1], [[0, 0], [0, 0]])
        step = envs.step(np.array([1, 1]), 0)
        assert [[*replaced.envs] for replaced in step.replaced] == [[1]]
        assert step.rewards.tolist() == [10, 10]
        assert envs.step(np.array([1, 1]), 0).replaced == []


def test_what_cannot_be_built_is_tried_as_often_as_is_allowed():
    """Analytic: three restarts, each of which fails, and then the environment's own error."""
    with processes(TOY + "RaisesInInit-v0", restart_limit=RestartLimit(n=3)) as envs:
        with pytest.raises(EnvError, match="upside down"):
            envs.wait_until_ready()
        assert [[*numbers] for numbers, _ in envs._replaced] == [[0]] * 3


def test_what_breaks_again_and_again_ends_with_its_own_error():
    """Analytic: RaisesInStep's every game breaks; three restarts are allowed, for both environments together."""
    settings = EnvSettings(TOY + "RaisesInStep-v0", seed=0)
    limit = RestartLimit(n=3)
    with opened(settings, 0, 2, restart_limit=limit) as envs:
        envs.reset(0)
        replaced = []

        def step_on():
            while True:
                replaced.extend([*r.envs] for r in envs.step(np.array([0, 0]), 0).replaced)

        with pytest.raises(EnvError, match=r"worker 0, environment 1 failed:\n(.*\n)*.*joystick"):
            step_on()
        assert replaced == [[0], [1]]  # the third was environment 0's, in the step that failed
        pids = envs.pids
    assert not any(map(is_running, pids))


# Several environments in one process


def course(name, n_processes, n_steps):
    """All that so many steps of four environments bring, with their processes."""
    settings = EnvSettings(TOY + name, seed=1)
    with opened(settings, 2, 4, n_processes=n_processes) as envs:
        pids = envs.pids
        envs.reset(0)
        seen = [envs.observations.copy()]
        told = []
        for n in range(n_steps):
            step = envs.step(np.array([n % 2, 1, 0, n % 2]), n % 2)
            ends = [step.rewards.tolist(), step.terminated.tolist(), step.truncated.tolist()]
            games = [(g.worker, g.env, g.score, g.length) for g in step.games]
            told.append((ends, games, envs.n_frames, list(envs.next_games)))
            seen += [envs.observations.copy(), envs.final_observations.copy()]
    return pids, np.concatenate([s.ravel() for s in seen]), told


@pytest.mark.parametrize("name", ["Vector-v0", "ShortNumbers-v0"])
def test_it_does_not_matter_how_environments_share_processes(name):
    """Parity: one process for all four, two for two each, three (of 2, 1 and 1), and one for each."""
    alone, seen, told = course(name, None, 40)
    assert len(alone) == 4
    assert sum(len(games) for _, games, *_ in told) > 3
    for n_processes in (1, 2, 3):
        pids, *others = course(name, n_processes, 40)
        assert len(pids) == n_processes
        np.testing.assert_array_equal(others[0], seen)
        assert others[1] == told


def test_a_process_of_two_is_replaced_with_both():
    """Analytic: environments 2 and 3 begin new games, with streams of their own; 0 and 1 play on."""
    settings = EnvSettings(TOY + "Vector-v0", seed=0)
    with opened(settings, 1, 4, restart_limit=RestartLimit(), n_processes=2) as envs:
        envs.reset(0)
        actions = np.array([0, 1, 0, 1])
        for slot in (1, 0):
            envs.step(actions, slot)
        before = envs.pids
        os.kill(before[1], signal.SIGKILL)
        broken = envs.step(actions, 1)
        assert [pid == old for pid, old in zip(envs.pids, before, strict=True)] == [True, False]
        ((abandoned, why),) = broken.replaced
        assert list(abandoned) == [2, 3]
        assert why == "worker 1, environments 2 to 3 died (exit code -9)"
        assert broken.rewards.tolist() == [0, 10, 0, 0]
        np.testing.assert_array_equal(envs.observations[1], [[3, 0], [3, 0], [0, 0], [0, 0]])
        assert envs.next_games == [1, 1, 2, 2]
        assert envs.n_frames == 3 * 2 + 2 * 2
        step = envs.step(actions, 0)
        assert step.replaced == []
        assert step.rewards.tolist() == [0, 10, 0, 10]


def test_an_error_in_one_of_several_arrives_in_words():
    """Analytic: with whatever length, and the names of all that are gone."""
    with processes(TOY + "RaisesInStep-v0", n_envs=3, n_processes=1) as envs:
        envs.reset()
        for _ in range(2):
            envs.step(np.array([0, 0, 0]), 0)
        with pytest.raises(
            EnvError, match=r"^worker 0, environments 0 to 2 failed:\n(.*\n)*.*joystick broke$"
        ):
            envs.step(np.array([0, 0, 0]), 0)


@pytest.mark.parametrize(
    ("n_cores", "n_workers", "n_envs", "expected"),
    [(2, 16, 1, 1), (2, 3, 8, 1), (2, 1, 8, 2), (16, 3, 8, 6), (16, 1, 8, 8), (16, 16, 4, 1)],
)
def test_there_are_as_many_processes_as_use_every_core(
    monkeypatch, n_cores, n_workers, n_envs, expected
):
    """Analytic: cores divided by workers, rounded up; at least one, at most one an environment."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(n_cores)))
    assert env_process.processes_per_worker(n_workers, n_envs) == expected


class Pieces:
    """A connection that delivers two bytes at a time, then ends."""

    def __init__(self, data):
        self._data = data

    def recv(self, n_bytes):
        n_bytes = min(n_bytes, 2)
        piece, self._data = self._data[:n_bytes], self._data[n_bytes:]
        return piece


def test_answers_that_arrive_in_pieces():
    """Analytic: a message may be split anywhere; an end within one is an end."""
    connection = Pieces(b"abcdefgh")
    assert receive_exactly(connection, 3) == b"abc"
    assert receive_exactly(connection, 1) == b"d"
    with pytest.raises(EOFError):
        receive_exactly(connection, 5)


def test_processes_share_rows_of_one_memory():
    """Analytic: each writes its own row; a replacement writes to the same."""
    memory = SharedObservations(2, 3, (2,), "float32")
    slots, _ = memory.views()
    slots[:] = -1
    make = functools.partial(make_env, EnvSettings(TOY + "Vector-v0", 0))
    for _ in range(2):
        process = EnvProcess([make], memory, 1, "the one in the middle", DEADLINE_SECONDS, never)
        process.receive()
        process.request_reset(0)
        assert process.receive() == [(False, False, 0.0, 0, [])]
        np.testing.assert_array_equal(slots[0], [[-1, -1], [0, 0], [-1, -1]])
        process.request_step(1, [1])
        assert process.receive() == [(False, False, 10.0, 1, [])]
        np.testing.assert_array_equal(slots[1, 1], [1, 0])
        process.end()


PROGRAM = """
import os, resource, signal, sys, time
import numpy as np
from a3c.envs.make import EnvSettings, describe_env
from a3c.envs.pool import EnvProcesses

def main():
    global envs
    name, ending = sys.argv[1:]
    settings = EnvSettings(name, 0)
    description = describe_env(settings)
    envs = EnvProcesses(settings, 0, 2, description, 2)
    envs.reset()
    if ending == "files":
        print(*resource.getrlimit(resource.RLIMIT_NOFILE))
        return
    print(*envs.pids, flush=True)
    if ending == "hang":
        for _ in range(2):
            envs.step(np.array([0, 0]), 0)
        envs._processes[0].request_step(0, [0])
        envs._processes[1].request_step(0, [0])
    if ending != "exit":
        print("waiting", flush=True)
        sys.stdin.read()

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def program(tmp_path):
    """Start the program above, from another directory than the repository's."""
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(PROGRAM))
    started, everybody = [], []

    def start(name, ending):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(path), name, ending]
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 2
        if ending not in ("exit", "files"):
            assert process.stdout.readline() == "waiting\n"
            assert all(map(is_running, pids))
            pids.append(parent_of(pids[0]))  # The fork server.
            assert pids[-1] != process.pid
        if ending != "files":
            everybody.extend(pids)
        return process, pids

    yield start
    for process in started:
        process.kill()
        process.wait()
    for pid in filter(is_running, everybody):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("Vector-v0", "wait"),
        ("HangsInStep-v0", "hang"),
        ("HangsHoldingTheLock-v0", "hang"),
    ],
)
def test_processes_end_when_their_parent_is_killed(program, name, ending):
    """Analytic: kill -9 leaves the parent no time to tidy up, even if an environment hangs, and even if no
    other thread can run beside it.
    """
    process, pids = program(TOY + name, ending)
    process.kill()
    process.wait()
    since = time.monotonic()
    wait_for_end(pids)
    assert time.monotonic() - since < 5


def test_a_program_may_open_as_many_files_as_the_system_lets_it(program):
    """Analytic: what it was started with aside."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
        process, limits = program(TOY + "Vector-v0", "files")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert process.wait(DEADLINE_SECONDS) == 0
    assert limits == [hard, hard]


def test_an_environment_keeps_to_one_thread(monkeypatch, program):
    """Analytic: there are as many processes as use every core, so NumPy has none to spread over."""
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)  # of the tests' own
    _, (pid, *_) = program(TOY + "Multiplies-v0", "wait")
    assert len(os.listdir(f"/proc/{pid}/task")) == 1


@pytest.mark.parametrize(
    ("most", "is_enough"), [(88, True), (87, False), (resource.RLIM_INFINITY, True)]
)
def test_more_processes_than_files_allow_are_refused_before_they_start(
    monkeypatch, most, is_enough
):
    """Analytic: three files a process, 64 beside."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, most))
    with contextlib.nullcontext() if is_enough else pytest.raises(EnvError, match="allows 87"):
        env_process.check_limit_of_files(8)


def test_a_program_that_forgets_to_close_still_ends(program):
    """Analytic: its processes end with it."""
    process, pids = program(TOY + "Vector-v0", "exit")
    assert process.wait(DEADLINE_SECONDS) == 0
    wait_for_end(pids)


def test_nothing_is_left_in_shared_memory(program):
    """Analytic: after kill -9, /dev/shm holds what it held before."""
    before = set(os.listdir("/dev/shm"))
    process, pids = program(TOY + "Vector-v0", "wait")
    process.kill()
    process.wait()
    wait_for_end(pids)
    assert {name for name in os.listdir("/dev/shm") if name.startswith("pym-")} <= before
