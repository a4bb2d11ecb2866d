"""Signals: the first one asks, a second Ctrl-C does not, and what was ignored stays ignored.

And none is handled where TensorFlow computes.
"""

import concurrent.futures
import pathlib
import signal
import subprocess

import pytest

from a3c.machine.stopping import SIGNALS, kept_from_new_threads
from tests.tools import processes

# A run in small: asked to stop, it goes on until it is told that all is saved.
SCRIPT = """
import pathlib, signal, time
from a3c.machine.stopping import StopSignals
signals = StopSignals()
print("ready", flush=True)
while not pathlib.Path("saved").exists():
    if signals.event.is_set() and not pathlib.Path("stopping").exists():
        pathlib.Path("stopping").touch()
    time.sleep(0.002)
raise SystemExit(signals.exit_status)
"""


@pytest.fixture
def run(tmp_path):
    """Starts the script, and waits until its signals are installed; returns the process."""
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
    processes.wait_until((folder / "stopping").exists, "the run to take note")


def finish(folder: pathlib.Path, process: subprocess.Popen) -> int:
    (folder / "saved").touch()
    return process.wait(processes.DEADLINE_SECONDS)


STATUSES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}


@pytest.mark.parametrize("first", STATUSES)
def test_a_ctrl_c_after_any_other_does_not_ask(tmp_path, run, first):
    """Analytic: the run ends though it has not saved, whoever asked first."""
    process = run()
    process.send_signal(getattr(signal, first))
    wait_until_stopping(tmp_path)
    process.send_signal(signal.SIGINT)
    assert process.wait(processes.DEADLINE_SECONDS) == 130


@pytest.mark.parametrize("second", ["SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("first", STATUSES)
def test_the_first_signal_asks_and_any_other_but_ctrl_c_changes_nothing(
    tmp_path, run, first, second
):
    """Analytic: the run goes on to its own end, and then tells which signal was the first."""
    process = run()
    process.send_signal(getattr(signal, first))
    wait_until_stopping(tmp_path)
    assert process.poll() is None
    process.send_signal(getattr(signal, second))
    assert finish(tmp_path, process) == STATUSES[first]


@pytest.mark.parametrize("name", ["SIGHUP", "SIGINT"])
def test_what_was_ignored_at_the_start_stays_ignored(tmp_path, run, name):
    """Analytic: under nohup a closed terminal stops nothing; other signals do."""
    process = run(**{name: signal.SIG_IGN})
    process.send_signal(getattr(signal, name))
    process.send_signal(signal.SIGTERM)
    wait_until_stopping(tmp_path)
    assert finish(tmp_path, process) == 143


def test_without_a_signal_the_status_is_0(tmp_path, run):
    """Analytic: a run that ends by itself."""
    assert finish(tmp_path, run()) == 0


def test_it_stands_before_anything_heavy(tmp_path):
    """Analytic: a signal during the import of TensorFlow is not lost, since nothing comes before it."""
    script = "import sys, a3c.machine.stopping; print('numpy' in sys.modules, 'tensorflow' in sys.modules)"
    process = processes.start(["-c", script], tmp_path)
    assert process.wait(processes.DEADLINE_SECONDS) == 0
    assert processes.outputs(tmp_path) == {"stdout": "False False\n", "stderr": ""}


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
# What the system writes for a handler, with all registers of the largest processors: 11 kB.
FRAME_BYTES = 12 * 1024


def test_handlers_run_on_a_stack_of_their_own(tmp_path):
    """Analytic: what TensorFlow computes with lies where the stack pointer of its thread points."""
    with processes.dispositions():
        process = processes.start(["-c", STACK], tmp_path)
    assert process.wait(processes.DEADLINE_SECONDS) == 0, processes.outputs(tmp_path)
    is_there, size, are_used = processes.outputs(tmp_path)["stdout"].split(maxsplit=2)
    assert (is_there, are_used) == ("True", "[True, True, True]\n")
    assert int(size) >= FRAME_BYTES


def test_a_thread_that_is_started_aside_gets_no_signal():
    """Analytic: what it blocks; afterwards its maker, and threads started then, are as before."""

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


def test_a_signal_that_comes_meanwhile_is_heeded_afterwards():
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
