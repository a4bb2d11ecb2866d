"""Signals: the first one asks, a second Ctrl-C ends the run, and ignored ones stay ignored.

No signal is handled on a stack where TensorFlow computes.
"""

import concurrent.futures
import os
import pathlib
import signal
import subprocess

import pytest

from a3c.machine.stopping import SIGNALS, STARTER, kept_from_new_threads
from tests.tools import processes

# A small run: when it is asked to stop, it continues until it is told that everything is saved.
SCRIPT = """
import pathlib, signal, time
from a3c.machine.stopping import StopSignals
signals = StopSignals()
print("ready", flush=True)
while not pathlib.Path("saved").exists():
    if signals.stop.is_set() and not pathlib.Path("stopping").exists():
        pathlib.Path("stopping").touch()
    time.sleep(0.002)
raise SystemExit(signals.exit_status)
"""


@pytest.fixture
def run(tmp_path):
    """Starts the script, waits until its handlers are installed, and returns the process."""
    started: list[subprocess.Popen] = []

    def start(**dispositions: signal.Handlers) -> subprocess.Popen:
        with processes.dispositions(**dispositions):
            started.append(processes.start(["-c", SCRIPT], tmp_path))
        processes.wait_for_line(tmp_path / "stdout", "ready", started[-1])
        return started[-1]

    yield start
    for process in started:
        processes.end(process)


def wait_until_stopping(folder: pathlib.Path) -> None:
    processes.wait_until((folder / "stopping").exists, "the run to notice the signal")


def finish(folder: pathlib.Path, process: subprocess.Popen) -> int:
    (folder / "saved").touch()
    return process.wait(processes.DEADLINE_SECONDS)


def test_a_second_ctrl_c_is_an_exception_in_a_program_that_goes_on(tmp_path):
    """Analytic: a notebook's kernel must not end."""
    code = """
import signal
from a3c.machine.stopping import StopSignals
signals = StopSignals(may_exit=False)
signal.raise_signal(signal.SIGTERM)
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("goes on")
"""
    with processes.dispositions():
        process = processes.start(["-c", code], tmp_path)
    assert process.wait(processes.DEADLINE_SECONDS) == 0
    assert (tmp_path / "stdout").read_text() == "goes on\n"


STATUSES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}


@pytest.mark.parametrize("first", STATUSES)
def test_a_ctrl_c_after_any_signal_ends_the_run(tmp_path, run, first):
    """Analytic: although it has not saved."""
    process = run()
    process.send_signal(getattr(signal, first))
    wait_until_stopping(tmp_path)
    process.send_signal(signal.SIGINT)
    assert process.wait(processes.DEADLINE_SECONDS) == 130


@pytest.mark.parametrize("first", STATUSES)
def test_the_first_signal_asks_and_any_other_but_ctrl_c_changes_nothing(tmp_path, run, first):
    """Analytic: the run reaches its own end, and its status names the first signal."""
    process = run()
    process.send_signal(getattr(signal, first))
    wait_until_stopping(tmp_path)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGHUP)
    assert finish(tmp_path, process) == STATUSES[first]


@pytest.mark.parametrize("name", ["SIGHUP", "SIGINT"])
def test_what_was_ignored_at_the_start_stays_ignored(tmp_path, run, name):
    """Analytic: under nohup a closed terminal stops nothing; other signals still do."""
    process = run(**{name: signal.SIG_IGN})
    process.send_signal(getattr(signal, name))
    process.send_signal(signal.SIGTERM)
    wait_until_stopping(tmp_path)
    assert finish(tmp_path, process) == 143


def test_the_end_of_its_starter_stops_a_run(tmp_path):
    """Analytic: however the starter ends, the system closes its end of the pipe; the status is SIGTERM's."""
    environment = {**os.environ, "PYTHONPATH": str(processes.ROOT), STARTER: "1"}
    options = {"env": environment, "stdin": subprocess.PIPE}
    process = processes.start(["-c", SCRIPT], tmp_path, **options)
    try:
        processes.wait_for_line(tmp_path / "stdout", "ready", process)
        process.stdin.write(b"words mean nothing")
        process.stdin.flush()
        process.stdin.close()
        wait_until_stopping(tmp_path)
        assert finish(tmp_path, process) == 143
    finally:
        processes.end(process)


def test_without_a_signal_the_status_is_0(tmp_path, run):
    """Analytic: a run that ends by itself."""
    assert finish(tmp_path, run()) == 0


# Where handlers run

STACK = """
import ctypes, signal
from a3c.machine import stopping

class Stack(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]

class Action(ctypes.Structure):
    _fields_ = [
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_char * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    ]

SS_DISABLE, SA_ONSTACK = 2, 0x08000000
stopping.StopSignals()
libc, stack, actions = ctypes.CDLL(None), Stack(), [Action() for _ in stopping.SIGNALS]
libc.sigaltstack(None, ctypes.byref(stack))
for number, action in zip(stopping.SIGNALS, actions):
    libc.sigaction(int(number), None, ctypes.byref(action))
print(not stack.flags & SS_DISABLE, stack.size, [bool(a.flags & SA_ONSTACK) for a in actions])
"""
# What the system writes for a handler: 11 kB with all registers of the largest processors.
FRAME_BYTES = 12 * 1024


def test_handlers_run_on_a_stack_of_their_own(tmp_path):
    """Analytic: where its thread's stack pointer points, TensorFlow keeps what it computes with."""
    with processes.dispositions():
        process = processes.start(["-c", STACK], tmp_path)
    assert process.wait(processes.DEADLINE_SECONDS) == 0, processes.outputs(tmp_path)
    is_there, size, are_used = processes.outputs(tmp_path)["stdout"].split(maxsplit=2)
    assert (is_there, are_used) == ("True", "[True, True, True]\n")
    assert int(size) >= FRAME_BYTES


def test_a_thread_that_is_started_inside_gets_no_signal():
    """Analytic: what it blocks; afterwards its starter and new threads block what they did before."""

    def blocked() -> set[signal.Signals]:
        return signal.pthread_sigmask(signal.SIG_BLOCK, ())

    def blocked_in_a_thread() -> set[signal.Signals]:
        with concurrent.futures.ThreadPoolExecutor() as threads:
            return threads.submit(blocked).result()

    before = blocked()
    assert before.isdisjoint(SIGNALS)
    with kept_from_new_threads():
        assert blocked_in_a_thread() == before | set(SIGNALS)
    assert blocked() == blocked_in_a_thread() == before


def test_a_signal_that_arrives_inside_is_handled_afterwards():
    """Analytic: it waits, and is not lost."""
    seen = []
    before = signal.signal(signal.SIGHUP, lambda *_: seen.append("heeded"))
    try:
        with kept_from_new_threads():
            signal.raise_signal(signal.SIGHUP)
            seen.append("let in")
        assert seen == ["let in", "heeded"]
    finally:
        signal.signal(signal.SIGHUP, before)
