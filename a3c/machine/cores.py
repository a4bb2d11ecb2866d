"""How many cores there are to share, `--cores`, and what a run has used of them."""

import collections
import contextlib
import math
import os
import pathlib
import re
from collections.abc import Iterator

PROC, CGROUPS = pathlib.Path("/proc"), pathlib.Path("/sys/fs/cgroup")
_RANGES = re.compile(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*", re.ASCII)
_limit: int | None = None


class BadCores(Exception):
    """--cores cannot be followed; the message is one line."""


def n_usable(proc: pathlib.Path = PROC, cgroups: pathlib.Path = CGROUPS) -> int:
    """How many cores this process may use at a time, by the system and by --cores.

    A container's share of the machine's time is rounded up: a core that stands still is worse than
    two threads that take turns.
    """
    shares = [math.ceil(share) for share in _shares(proc, cgroups) if share > 0]
    return max(1, min([len(os.sched_getaffinity(0)), *shares, *([_limit] if _limit else [])]))


def parse(text: str | None) -> int | frozenset[int] | None:
    """What --cores asks for: how many, or which."""
    if text is None:
        return None
    if not _RANGES.fullmatch(text):
        raise BadCores(f"--cores {text!r} must be how many, as 4, or which, as 0-3 or 0,2-3")
    if text.isdigit():
        if int(text) == 0:
            raise BadCores("--cores 0 leaves none: give at least 1")
        return int(text)
    chosen: set[int] = set()
    for part in text.split(","):
        first, last = int(part.split("-")[0]), int(part.split("-")[-1])
        if last < first:
            raise BadCores(f"--cores {text}: the range {part} ends before it begins")
        chosen.update(range(first, last + 1))
    return frozenset(chosen)


def use(text: str | None) -> None:
    """Do what --cores says, in this process and those that it will start; BadCores if it cannot.

    This comes before anything counts cores or starts a process.
    """
    global _limit
    _limit, asked = None, parse(text)
    if isinstance(asked, int):
        if asked > n_usable():
            raise BadCores(f"--cores {text}: there are {n_usable()} that this process may use")
        _limit = asked
    elif asked is not None:
        allowed = os.sched_getaffinity(0)
        if absent := sorted(asked - allowed):
            raise BadCores(
                f"--cores {text}: there is no core {absent[0]} that this process may use"
                f" ({', '.join(map(str, sorted(allowed)))})"
            )
        # Each thread has cores of its own; libraries may have started threads already.
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.sched_setaffinity(int(thread), asked)


def _shares(proc: pathlib.Path, cgroups: pathlib.Path) -> Iterator[float]:
    """How many cores' time each control group above this process may use, where one is limited.

    In a container its own group is often mounted as if it were the root, while /proc names it as
    the machine sees it: so its folder may be missing, and the root's is always looked at.
    """
    with contextlib.suppress(OSError, ValueError):
        for line in (proc / "self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, group = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            parts = [part for part in group.split("/") if part not in ("", "..")]
            # Version 2 of control groups names no controllers.
            for mount in ("cpu", controllers) if controllers else ("", "unified"):
                for depth in range(len(parts) + 1):
                    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
                        yield _share(cgroups.joinpath(mount, *parts[:depth]), bool(controllers))


def _share(group: pathlib.Path, is_v1: bool) -> float:
    """A group that is not limited says -1 in version 1, and "max", which is no number, in version 2."""
    if is_v1:
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        quota, period = ((group / name).read_text() for name in names)
    else:
        quota, period = (group / "cpu.max").read_text().split()
    return int(quota) / int(period)


def seconds_used(proc: pathlib.Path = PROC) -> float:
    """Processor time of this process and all that stem from it, those that have ended too.

    NaN where there is no /proc to tell.
    """
    children, ticks = collections.defaultdict(list), {}
    for path in proc.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it may end at any moment
            # The program's name, in parentheses, may hold anything.
            pid, fields = int(path.parent.name), path.read_bytes().rpartition(b")")[2].split()
            # In user and in system mode, its own and of its children that ended.
            ticks[pid] = sum(map(int, fields[11:15]))
            children[int(fields[1])].append(pid)
    family = [os.getpid()]
    for pid in family:
        family += children[pid]
    return sum(ticks.get(pid, math.nan) for pid in family) / os.sysconf("SC_CLK_TCK")
