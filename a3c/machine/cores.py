"""How many cores a run may use, what `--cores` asks for, and how much of their time it has used."""

import collections
import contextlib
import math
import os
import pathlib
import re
import sys
from collections.abc import Iterator

from a3c.machine.words import BadInput

PROC, CGROUPS = pathlib.Path("/proc"), pathlib.Path("/sys/fs/cgroup")
_CORES = re.compile(r"(?!0+$)\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*", re.ASCII)
_limit = sys.maxsize


def n_usable(proc: pathlib.Path = PROC, cgroups: pathlib.Path = CGROUPS) -> int:
    """How many cores this process may use at once: the system and --cores limit it.

    A container's share is rounded up: an idle core is worse than two threads that take turns.
    """
    shares = map(math.ceil, _shares(proc, cgroups))
    return max(1, min([len(os.sched_getaffinity(0)), _limit, *shares]))


def parse(text: str | None) -> int | frozenset[int] | None:
    """What --cores asks for: how many cores, or which ones."""
    if text is None:
        return None
    if not _CORES.fullmatch(text):
        raise BadInput(f"--cores {text!r} must be how many, like 4, or which, like 0-3 or 0,2-3")
    if text.isdigit():
        return int(text)
    chosen: set[int] = set()
    for part in text.split(","):
        first, last = int(part.split("-")[0]), int(part.split("-")[-1])
        if last < first:
            raise BadInput(f"--cores {text}: the range {part} ends before it begins")
        chosen.update(range(first, last + 1))
    return frozenset(chosen)


def use(text: str | None) -> None:
    """Do what --cores says, before anything counts cores or starts a process, or raise BadInput."""
    global _limit
    _limit, asked = sys.maxsize, parse(text)
    if isinstance(asked, int):
        if asked > n_usable():
            raise BadInput(f"--cores {text}: this process may use only {n_usable()}")
        _limit = asked
    elif asked is not None:
        allowed = os.sched_getaffinity(0)
        if absent := sorted(asked - allowed):
            ours = ", ".join(map(str, sorted(allowed)))
            raise BadInput(f"--cores {text}: this process may use {ours}, but not {absent[0]}")
        # Each thread has its own set of cores, and libraries may have started threads already.
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):  # the thread has just ended
                os.sched_setaffinity(int(thread), asked)


def _shares(proc: pathlib.Path, cgroups: pathlib.Path) -> Iterator[float]:
    """How many cores' time each limited control group above this process may use.

    A container may see its own group as the root, although /proc shows the path on the machine.
    """
    with contextlib.suppress(OSError, ValueError):
        for line in (proc / "self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, group = line.split(":", 2)
            is_v1 = "cpu" in controllers.split(",")
            if controllers and not is_v1:
                continue
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if is_v1 else ("cpu.max",)
            parts = [part for part in group.split("/") if part not in ("", "..")]
            for depth in range(len(parts) + 1):
                # No limit is "max" in version 2, which is not a number, and -1 in version 1.
                with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
                    folder = cgroups.joinpath("cpu" if is_v1 else "", *parts[:depth])
                    text = " ".join((folder / name).read_text() for name in names)
                    quota, period = map(int, text.split())
                    if quota > 0:
                        yield quota / period


def seconds_used(proc: pathlib.Path = PROC) -> float:
    """Processor time of this process and its descendants, also ended ones; NaN without /proc."""
    children, ticks = collections.defaultdict(list), {}
    for path in proc.glob("[0-9]*/stat"):
        # A process may end at any moment.
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The program's name, in parentheses, may contain anything.
            pid, fields = int(path.parent.name), path.read_bytes().rpartition(b")")[2].split()
            # In user and system mode, of the process and of its children that ended.
            ticks[pid] = sum(map(int, fields[11:15]))
            children[int(fields[1])].append(pid)
    family = [os.getpid()]
    for pid in family:
        family += children[pid]
    return sum(ticks.get(pid, math.nan) for pid in family) / os.sysconf("SC_CLK_TCK")
