"""The machine as the operating system shows it: cores, clocks, memory, processes (Linux's /proc)."""

import os
import pathlib
import re
import time
from collections.abc import Iterable
from typing import NamedTuple

PROC = pathlib.Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")
# A measurement on a machine that is busier than this would say little about us.
MAX_BUSY = 0.05


class Cores(NamedTuple):
    """Seconds since the machine started, over all cores."""

    idle: float  # also while waiting for a disk
    busy: float
    stolen: float  # the hypervisor gave them to somebody else

    def since(self, before: "Cores") -> "Cores":
        return Cores(*(now - then for now, then in zip(self, before, strict=True)))


def read_cores() -> Cores:
    """What all cores have done so far."""
    first = (PROC / "stat").read_text(encoding="ascii").splitlines()[0]
    user, nice, system, idle, iowait, irq, softirq, steal = (
        int(ticks) / TICKS for ticks in first.split()[1:9]
    )
    return Cores(idle + iowait, user + nice + system + irq + softirq, steal)


def n_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def busy_share(seconds: float = 3.0) -> float:
    """The share of all cores that is in use now, or that the hypervisor withholds."""
    before = read_cores()
    time.sleep(seconds)
    idle, busy, stolen = read_cores().since(before)
    return (busy + stolen) / (idle + busy + stolen)


def memory_gib() -> float:
    """All memory of the machine."""
    found = re.search(r"MemTotal:\s+(\d+) kB", (PROC / "meminfo").read_text(encoding="ascii"))
    assert found
    return round(int(found[1]) / 2**20, 1)


class Process(NamedTuple):
    """A process, what it waits for, and the CPU seconds that it has used."""

    pid: int
    state: str  # S: it sleeps until something arrives; R: it runs, or is ready to run
    parent: int
    session: int
    cpu: float


def processes(session: int) -> list[Process]:
    """The living processes of a session."""
    found = (read_process(path) for path in PROC.glob("[0-9]*"))
    return [process for process in found if process and process.session == session]


def environment_processes(trainer: int) -> list[Process]:
    """The environment processes of a training that leads a session of its own.

    They are the children of its fork server (or of it, where there is none); its other children
    are that server and Python's resource tracker.
    """
    mine = processes(trainer)
    parents = {process.parent for process in mine}
    return [
        process
        for process in mine
        if process.pid != trainer and process.pid not in parents and process.parent != trainer
    ]


def resident_bytes(pids: Iterable[int]) -> int:
    """Memory of processes; shared memory counts once (proportional set size)."""
    return sum(_proportional_kib(pid) for pid in pids) * 1024


def read_process(path: pathlib.Path) -> Process | None:
    try:
        # The program's name, in parentheses, may hold anything.
        fields = (path / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
    except OSError:  # it ended just now
        return None
    words = fields.split()
    return Process(
        int(path.name),
        words[0],
        int(words[1]),
        int(words[3]),
        (int(words[11]) + int(words[12])) / TICKS,
    )


def _proportional_kib(pid: int) -> int:
    try:
        text = (PROC / str(pid) / "smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    found = re.search(r"^Pss:\s+(\d+) kB", text, flags=re.MULTILINE)
    return int(found[1]) if found else 0
