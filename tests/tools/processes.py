"""Programs of this tree that tests run as processes: to start, watch, signal and inspect them."""

import contextlib
import os
import pathlib
import re
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from a3c.machine import cores
from a3c.machine.stopping import SIGNALS
from benchmarks import machine

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# It ends a test that would hang; nothing takes this long even on a busy machine.
DEADLINE_SECONDS = 240.0


@contextlib.contextmanager
def dispositions(
    **wanted: signal.Handlers,
) -> Iterator[None]:
    """Set what processes that are started meanwhile do on a signal; by default, as if from a shell.

    If a script runs the tests in the background, SIGINT is ignored, and processes would inherit this.
    """
    before = {}
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name)
        # Our handler is never called. A new program resets it to the default; it inherits SIG_IGN.
        handler = wanted.get(name, lambda *_: None)
        before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def handlers_kept() -> Iterator[None]:
    """Restore the handlers of signals afterwards; a run never does this itself."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def start(
    arguments: Sequence[str | pathlib.Path],
    folder: pathlib.Path,
    **options: object,
) -> subprocess.Popen:
    """Start Python with these arguments in a new session; outputs go to files in `folder`.

    They are files and not pipes, so that no process waits for a reader.
    """
    folder.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        return subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            **{"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err, "cwd": folder}
            | {"env": environment, "start_new_session": True}
            | options,
        )


def wait_until(
    condition: Callable[[], object],
    what: str = "a condition",
    seconds: float = DEADLINE_SECONDS,
) -> None:
    """Wait until the condition holds, and fail after some time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        select.select([], [], [], 0.01)


def wait_for_line(path: pathlib.Path, text: str, process: subprocess.Popen) -> None:
    """Wait until a file contains the text; fail if the process that writes it ends before."""

    def is_there() -> bool:
        ended = process.poll() is not None
        if path.exists() and text in path.read_text():
            return True
        assert not ended, f"ended with {process.returncode} before {text!r}: {outputs(path.parent)}"
        return False

    wait_until(is_there, f"{text!r} in {path}")


def outputs(folder: pathlib.Path) -> dict[str, str]:
    """Return what a program started in the folder has printed."""
    return {
        name: (folder / name).read_text(errors="replace")
        for name in ("stdout", "stderr")
        if (folder / name).exists()
    }


def state_parent_and_session(pid: int) -> tuple[str, int, int]:
    """Return the letter of a process's state, its parent and its session."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[1]), int(fields[3])


def has_mapped(pid: int, library: str) -> bool:
    """Whether a process has loaded a library whose file's name has this in it."""
    lines = pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines()
    return any(library in line.rpartition("/")[2] for line in lines if "/" in line)


def members(session: int) -> list[int]:
    """Return the processes of a session, without zombies, also those whose parent has ended."""
    return sorted(p.pid for p in machine.processes(session) if p.state != "Z")


# On one core, several workers share an environment process.
needs_two_cores = pytest.mark.skipif(cores.n_usable() < 2, reason="it needs two cores")


def open_ports(pids: Sequence[int]) -> list[str]:
    """Return the addresses of these processes' TCP and UDP sockets that anybody can reach."""
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has just ended
            for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    inodes |= set(re.findall(r"^socket:\[(\d+)\]$", os.readlink(link)))
    found = []
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            is_open = fields[3] == "0A" or table.startswith("udp")
            if is_open and fields[9] in inodes:
                found.append(f"{table} {fields[1]}")
    return found


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process, unless it has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def end(process: subprocess.Popen) -> None:
    """Kill all processes of the session."""
    for pid in members(process.pid):
        kill(pid)
    process.wait(DEADLINE_SECONDS)


@contextlib.contextmanager
def no_file_grows_beyond(n_bytes: int) -> Iterator[None]:
    """As on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
