"""Tests of a3c/env_process.py: what becomes of processes that fail, fall silent or are left alone."""

import contextlib
import functools
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from a3c.env import EnvProcesses, EnvSettings, describe_env, make_env
from a3c.env_process import (
    STOP_SIGNALS,
    EnvError,
    EnvProcess,
    SharedObservations,
    _receive_exactly,
)

TOY = "tests.toys:toys/"
ROOT = pathlib.Path(__file__).resolve().parent.parent
DEADLINE_SECONDS = 30.0


@contextlib.contextmanager
def processes(name, n_envs=1, worker=0, timeout_seconds=DEADLINE_SECONDS):
    """Processes of vector toys, always closed; described as what the broken ones would be."""
    description = describe_env(EnvSettings(TOY + "Vector-v0", 0))
    settings = EnvSettings(name, seed=0)
    envs = EnvProcesses(settings, worker, n_envs, description, 2, timeout_seconds)
    try:
        yield envs
    finally:
        envs.close()


def state_and_parent(pid):
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]


def is_running(pid):
    """Whether a process exists and is not a zombie."""
    try:
        return state_and_parent(pid)[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def parent_of(pid):
    return int(state_and_parent(pid)[1])


def wait_until(is_so):
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def wait_for_end(pids):
    wait_until(lambda: not any(map(is_running, pids)))


def test_no_tensorflow_in_a_process():
    """Analytic: nothing of TensorFlow is mapped, while the emulator is."""
    with processes("CartPole-v1") as envs:
        envs.wait_until_ready()
        for pid in envs.pids:
            maps = pathlib.Path(f"/proc/{pid}/maps").read_text()
            assert "tensorflow" not in maps
            assert "ale_py" in maps


def ignores(pid, number):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.partition("SigIgn:")[2].split()[0], 16) & (1 << (number - 1)))


def test_stop_signals_are_ignored_from_birth():
    """Analytic: by the process and by the server it is forked from; the parent is as before.

    Ctrl-C reaches every process of a terminal.
    """
    handlers = [signal.getsignal(number) for number in STOP_SIGNALS]
    with processes(TOY + "Vector-v0") as envs:
        envs.reset()
        for number in STOP_SIGNALS:
            assert ignores(envs.pids[0], number)
            assert ignores(parent_of(envs.pids[0]), number)
            os.kill(envs.pids[0], number)
        assert envs.step(np.array([1]), 0).rewards == [10]
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == handlers


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
        wait_until(lambda: state_and_parent(pids[0])[0] == "T")
    assert not any(map(is_running, pids))


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
        envs._processes[0].request_step(0, 0)
        begun = time.monotonic()
        os.kill(envs.pids[0], signal.SIGKILL)
        with pytest.raises(EnvError, match=r"died \(exit code -9\)"):
            envs._processes[0].receive()
        assert time.monotonic() - begun < DEADLINE_SECONDS / 2


def test_a_process_that_hangs_is_named_after_the_timeout_and_killed():
    """Analytic: the third step never returns; close ends it all the same."""
    with processes(TOY + "HangsInStep-v0", timeout_seconds=0.5) as envs:
        envs._processes[0]._socket.settimeout(DEADLINE_SECONDS)  # Building may take its time.
        envs.reset()
        for _ in range(2):
            envs.step(np.array([0]), 0)
        envs._processes[0]._socket.settimeout(0.5)
        with pytest.raises(EnvError, match=r"worker 0, environment 0 has not answered for 0.5 s"):
            envs.step(np.array([0]), 0)
        pids = envs.pids
    assert not any(map(is_running, pids))


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
    assert _receive_exactly(connection, 3) == b"abc"
    assert _receive_exactly(connection, 1) == b"d"
    with pytest.raises(EOFError):
        _receive_exactly(connection, 5)


def test_processes_share_rows_of_one_memory():
    """Analytic: each writes its own row; a replacement writes to the same."""
    memory = SharedObservations(2, 3, (2,), "float32")
    slots, _ = memory.views()
    slots[:] = -1
    make = functools.partial(make_env, EnvSettings(TOY + "Vector-v0", 0))
    for _ in range(2):
        process = EnvProcess(make, memory, 1, "the one in the middle", DEADLINE_SECONDS)
        process.receive()
        process.request_reset(0)
        assert process.receive() == (False, False, 0.0, 0, [])
        np.testing.assert_array_equal(slots[0], [[-1, -1], [0, 0], [-1, -1]])
        process.request_step(1, 1)
        assert process.receive() == (False, False, 10.0, 1, [])
        np.testing.assert_array_equal(slots[1, 1], [1, 0])
        process.end()


PROGRAM = """
import os, signal, sys, time
import numpy as np
from a3c.env import EnvProcesses, EnvSettings, describe_env

def main():
    global envs
    name, ending = sys.argv[1:]
    settings = EnvSettings(name, 0)
    description = describe_env(settings)
    envs = EnvProcesses(settings, 0, 2, description, 2)
    envs.reset()
    print(*envs.pids, flush=True)
    if ending == "hang":
        for _ in range(2):
            envs.step(np.array([0, 0]), 0)
        envs._processes[0].request_step(0, 0)
        envs._processes[1].request_step(0, 0)
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
        if ending != "exit":
            assert process.stdout.readline() == "waiting\n"
            assert all(map(is_running, pids))
            pids.append(parent_of(pids[0]))  # The fork server.
            assert pids[-1] != process.pid
        everybody.extend(pids)
        return process, pids

    yield start
    for process in started:
        process.kill()
        process.wait()
    for pid in filter(is_running, everybody):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(("name", "ending"), [("Vector-v0", "wait"), ("HangsInStep-v0", "hang")])
def test_processes_end_when_their_parent_is_killed(program, name, ending):
    """Analytic: kill -9 leaves the parent no time to tidy up, even if an environment hangs."""
    process, pids = program(TOY + name, ending)
    process.kill()
    process.wait()
    wait_for_end(pids)


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
