"""Programs of this tree run as processes of their own: started, watched, signalled and looked into."""

import contextlib
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from a3c.machine.stopping import SIGNALS
from benchmarks import machine

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Nothing comes near it on a machine that does anything at all; it ends a test that would hang.
DEADLINE_SECONDS = 240.0


@contextlib.contextmanager
def dispositions(
    **wanted: signal.Handlers,
) -> Iterator[None]:
    """What a process that is started meanwhile does on each signal; by default, what a shell's would.

    A test run in the background of a script has SIGINT ignored, and its processes would inherit it.
    """
    before = {}
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name)
        # Ours are never called, and become the default when another program starts; SIG_IGN stays.
        handler = wanted.get(name, lambda *_: None)
        before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def handlers_kept() -> Iterator[None]:
    """Put a run's signals' handlers back: it keeps its own to its end, which is not the tests'."""
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
    """Start Python with these arguments in a process group of its own; outputs go to `folder`.

    To files and not to pipes, so that nothing ever waits for a reader, whoever inherits them.
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
    what: str = "what should come",
    seconds: float = DEADLINE_SECONDS,
) -> None:
    """Wait for it, and fail where it does not come."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        select.select([], [], [], 0.01)


def wait_for_line(path: pathlib.Path, text: str, process: subprocess.Popen) -> None:
    """Wait until a file has a line with the text; the process that writes it must live that long."""

    def is_there() -> bool:
        ended = process.poll() is not None
        if path.exists() and text in path.read_text():
            return True
        assert not ended, f"ended with {process.returncode} before {text!r}: {outputs(path.parent)}"
        return False

    wait_until(is_there, f"{text!r} in {path}")


def outputs(folder: pathlib.Path) -> dict[str, str]:
    """What a program started in the folder has printed, for a failed test to show."""
    return {
        name: (folder / name).read_text(errors="replace")
        for name in ("stdout", "stderr")
        if (folder / name).exists()
    }


def state_parent_and_session(pid: int) -> tuple[str, int, int]:
    """What the system says of a process: its state's letter, its parent's and its session's ids."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[1]), int(fields[3])


def members(session: int) -> list[int]:
    """The processes of a session, zombies aside, whoever their parents are by now."""
    return sorted(p.pid for p in machine.processes(session) if p.state != "Z")


def open_ports(pids: Sequence[int]) -> list[str]:
    """The TCP and UDP sockets of these processes that wait for anybody: their local addresses."""
    inodes = set()
    for pid in pids:
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


def end(process: subprocess.Popen) -> None:
    """Leave nothing behind, whatever a test has found."""
    for pid in members(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait(DEADLINE_SECONDS)
