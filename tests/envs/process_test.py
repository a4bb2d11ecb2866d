"""Tests of a3c/envs/process.py: what becomes of processes that fail, fall silent or are left alone."""

import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import threading
import time
import types
from multiprocessing import resource_tracker
from typing import Any

import numpy as np
import pytest

from a3c.envs import process as process_module
from a3c.envs.pool import close_all
from a3c.envs.process import EnvError, EnvProcess
from a3c.envs.serve import ANSWER, BELL, STEP
from a3c.machine.stopping import SIGNALS
from tests.tools.pools import DEADLINE_SECONDS, TOY, is_running, opened, pids_of, wait_for_end
from tests.tools.processes import ROOT, state_parent_and_session, wait_until


def parent_of(pid):
    return state_parent_and_session(pid)[1]


def is_deaf_to(pid, number):
    """Whether a process ignores the signal, or blocks it."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    masks = [int(status.partition(f"{name}:")[2].split()[0], 16) for name in ("SigIgn", "SigBlk")]
    return bool((masks[0] | masks[1]) & (1 << (number - 1)))


def test_stop_signals_do_not_reach_it_from_birth():
    """Analytic: neither the process nor the server it is forked from, nor the tracker that Python starts with
    that, because Ctrl-C reaches every process of a terminal; the parent is as before.
    """
    handlers = [signal.getsignal(number) for number in SIGNALS]
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with opened(TOY + "Vector-v0") as envs:
        envs.reset(0)
        (pid,) = pids_of(envs)
        for number in SIGNALS:
            assert is_deaf_to(pid, number)
            assert is_deaf_to(parent_of(pid), number)
            assert is_deaf_to(resource_tracker._resource_tracker._pid, number)
            os.kill(pid, number)
        assert envs.step(np.array([1]), 0).rewards == [10]
    assert [signal.getsignal(number) for number in SIGNALS] == handlers
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == blocked


def test_a_signal_that_comes_while_the_server_is_started_is_not_lost():
    """Analytic: sent within both starts, of Python's tracker and of the server, it is handled by their end. What
    the server gets in its environment does not stay in ours.
    """
    code = """
import multiprocessing.forkserver, multiprocessing.resource_tracker, os, signal
from a3c.envs import process
got, before = [], dict(os.environ)
signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
def with_a_signal(start):
    def starting():
        os.kill(os.getpid(), signal.SIGTERM)
        start()
    return starting
for module in (multiprocessing.resource_tracker, multiprocessing.forkserver):
    module.ensure_running = with_a_signal(module.ensure_running)
process._context()
print(len(got) >= 2, dict(os.environ) == before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.stdout, done.stderr) == ("True True\n", "")


def test_a_process_has_the_cores_of_now_and_not_those_of_its_server():
    """Analytic: the server was started with all cores; then this process keeps one."""
    with opened(TOY + "Vector-v0") as envs:
        envs.reset(0)
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mine)})
    try:
        with opened(TOY + "Vector-v0") as envs:
            envs.reset(0)
            assert os.sched_getaffinity(pids_of(envs)[0]) == {min(mine)}
    finally:
        os.sched_setaffinity(0, mine)


def test_the_server_is_started_by_one_thread_alone(monkeypatch):
    """Analytic: two workers begin at once; the second waits, or would come in meanwhile."""
    now, most = [], []
    both = threading.Event()
    context = process_module._context

    def slow():
        now.append(1)
        most.append(len(now))
        if len(now) == 2:
            both.set()
        both.wait(0.5)
        now.pop()
        return context()

    monkeypatch.setattr(process_module, "_context", slow)

    def begin(worker):
        with opened(TOY + "Vector-v0", worker=worker) as envs:
            envs.reset(0)

    threads = [threading.Thread(target=begin, args=(worker,)) for worker in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1]


@pytest.mark.parametrize(
    ("name", "n_envs"), [(TOY + "Vector-v0", 3), ("PongNoFrameskip-v4", 2)], ids=["built", "not"]
)
def test_close_ends_every_process(monkeypatch, name, n_envs):
    """Analytic: none is left when it returns, built or not, nor anything to do when Python ends; a second
    close does no harm.
    """
    at_exit: set[Any] = set()
    fake = types.SimpleNamespace(register=at_exit.add, unregister=at_exit.discard)
    monkeypatch.setattr(process_module, "atexit", fake)
    with opened(name, n_envs) as envs:
        pids = pids_of(envs)
        if n_envs == 3:
            envs.reset(0)
        assert all(map(is_running, pids))
        assert at_exit
        envs.close()
        assert not any(map(is_running, pids))
        assert not at_exit


def test_closing_takes_one_moment_however_many_cannot_listen(monkeypatch):
    """Analytic: stopped processes do not see that their worker hung up; the three of two workers are waited for
    as long as one, and killed.
    """
    waited = []
    with opened(TOY + "Vector-v0", n_envs=2) as one, opened(TOY + "Vector-v0") as other:
        for envs in (one, other):
            envs.reset(0)
            for connection in envs._connections:
                process = connection.process._process
                os.kill(process.pid, signal.SIGSTOP)
                wait_until(lambda pid=process.pid: state_parent_and_session(pid)[0] == "T")

                def record(timeout=None, join=process.join):
                    waited.append(timeout or 0.0)
                    join(timeout)

                monkeypatch.setattr(process, "join", record)
        close_all([one, other])
        assert len(waited) >= 3
        assert sum(waited) < process_module.CLOSING_SECONDS + 0.1
        assert not any(map(is_running, pids_of(one) + pids_of(other)))


def test_what_the_system_cannot_start_is_said_in_one_line():
    """Analytic: where a process may open no more files, say."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with opened(TOY + "Vector-v0") as envs:  # the fork server is there
        envs.wait_until_ready()
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
            with pytest.raises(EnvError, match="environment 0 cannot be started: Too many open fi"):
                envs._connect(range(1), EnvProcess())
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

    monkeypatch.setattr(process_module, "_context", lambda: types.SimpleNamespace(Process=Refused))
    words = r"environment 0 cannot be started: (unexpected EOF|Try again)$"
    with pytest.raises(EnvError, match=words), opened(TOY + "Vector-v0"):
        pass


@pytest.mark.parametrize(
    ("name", "words"),
    [("RaisesInInit-v0", "upside down"), ("LosesConnection-v0", "the game server is gone")],
)
def test_an_error_while_building_arrives_in_words(name, words):
    """Analytic: name and traceback; an EOFError of its own is not taken for the worker's."""
    with opened(TOY + name, worker=2) as envs:
        with pytest.raises(EnvError, match=words) as error:
            envs.wait_until_ready()
        assert str(error.value).startswith("worker 2, environment 0 failed:\nTraceback")


def test_a_process_killed_while_it_steps_is_named_at_once():
    """Analytic: long before the timeout, although it owes an answer."""
    with opened(TOY + "HangsInStep-v0") as envs:
        envs.reset(0)
        for _ in range(2):
            envs.step(np.array([0]), 0)
        envs._connections[0].request(STEP, 0)
        begun = time.monotonic()
        os.kill(pids_of(envs)[0], signal.SIGKILL)
        with pytest.raises(EnvError, match=r"died \(exit code -9\)"):
            envs._connections[0].receive()
        assert time.monotonic() - begun < DEADLINE_SECONDS / 2


def test_building_has_its_time_whatever_a_step_has():
    """Analytic: the timeout is for steps; a process that starts may wait for a processor first."""
    with opened(TOY + "Vector-v0") as envs:
        (connection,) = envs._connections
        assert connection._patience_seconds == process_module.LEAST_BUILDING_SECONDS
        envs.wait_until_ready()
        assert connection._patience_seconds == DEADLINE_SECONDS


class Pieces:
    """A connection that delivers two bytes at a time, then ends."""

    def __init__(self, data):
        self._data = data

    def recv(self, n_bytes):
        n_bytes = min(n_bytes, 2)
        piece, self._data = self._data[:n_bytes], self._data[n_bytes:]
        return piece

    def close(self):
        pass


def test_answers_that_arrive_in_pieces():
    """Analytic: a bell and its text may be split anywhere; an end within one is an end."""
    game = (3, 1, 2.5, 4, 1e9, 0)
    text = json.dumps([game]).encode()
    with opened(TOY + "Vector-v0") as envs:
        (connection,) = envs._connections
        connection.hang_up()
        whole = ANSWER.pack(BELL, len(text)) + text
        connection._socket = Pieces(whole + ANSWER.pack(BELL, 9) + text)
        assert connection.receive() == [[*game]]
        connection._socket = Pieces(ANSWER.pack(BELL, 99) + text)
        with pytest.raises(EnvError, match="died"):
            connection.receive()


PROGRAM = """
import resource, sys
import numpy as np
from a3c.envs.fleet import Fleet
from a3c.envs.serve import STEP
from a3c.settings.params import Params
from tests.tools.pools import make_pool, pids_of

name, ending = sys.argv[1:]
fleet = Fleet(1, 2)
fleet.n_processes_each = 2
envs = make_pool(Params(name), 0, [0, 0], 2, fleet)
envs.reset(0)
if ending == "files":
    print(*resource.getrlimit(resource.RLIMIT_NOFILE))
else:
    print(*pids_of(envs), flush=True)
if ending == "hang":
    for _ in range(2):
        envs.step(np.array([0, 0]), 0)
    for connection in envs._connections:
        connection.request(STEP, 0)
if ending in ("hang", "wait"):
    print("waiting", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def program(tmp_path):
    """Start the program above, from another directory than the repository's."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    started, everybody = [], []

    def start(name, ending):
        process = subprocess.Popen(
            [sys.executable, str(path), name, ending],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
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
    other thread can run beside it. The shared memory has no name, so nothing of it stays.
    """
    process, pids = program(TOY + name, ending)
    maps = pathlib.Path(f"/proc/{pids[0]}/maps").read_text().splitlines()
    shared = [line for line in maps if "/pym-" in line]
    assert shared
    assert all(line.endswith("(deleted)") for line in shared)
    process.kill()
    process.wait()
    wait_for_end(pids)


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


def test_a_program_that_forgets_to_close_still_ends(program):
    """Analytic: its processes end with it."""
    process, pids = program(TOY + "Vector-v0", "exit")
    assert process.wait(DEADLINE_SECONDS) == 0
    wait_for_end(pids)


WITHOUT_GUARD = """
import numpy as np
import tensorflow
from a3c.envs.make import describe_env
from a3c.envs.fleet import Fleet
from a3c.envs.pool import Pool
from a3c.settings.params import Params
from tests.tools.processes import has_mapped

print("once", tensorflow.__name__, flush=True)
params = Params("mine:Mine-v0")
pool = Pool(params, describe_env(params), 0, 2, [0, 0], Fleet(1, 2))
pool.reset(0)
print(*pool.step(np.array([0, 1]), 1).rewards)
for pid in {connection.process._process.pid for connection in pool._connections}:
    print(has_mapped(pid, "tensorflow"), has_mapped(pid, "ale_py"))
pool.close()
"""


def test_a_process_does_not_run_the_program_that_started_it(tmp_path):
    """Analytic: a script without a guard runs once, and what it loads, its environment processes do not; they
    import the module that its environment is named with, and this package whatever the working directory has.
    """
    scripts, folder = tmp_path / "scripts", tmp_path / "folder"
    (folder / "a3c").mkdir(parents=True)
    (folder / "a3c/__init__.py").write_text("raise SystemExit('another package')")
    scripts.mkdir()
    (scripts / "script.py").write_text(WITHOUT_GUARD)
    (scripts / "mine.py").write_text(
        "import gymnasium\ngymnasium.register('Mine-v0', 'tests.tools.toys:Vector')\n"
    )
    done = subprocess.run(
        [sys.executable, scripts / "script.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    once, rewards, *maps = done.stdout.splitlines()
    assert (once, rewards) == ("once tensorflow", "0.0 10.0")
    assert set(maps) == {"False True"}
    assert done.returncode == 0
