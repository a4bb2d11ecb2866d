"""How many processors there are to share, and what a run has used of them."""

import collections
import contextlib
import math
import os
import pathlib


def n_usable() -> int:
    """As many as the system lets this process use at a time."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def seconds_used(proc: pathlib.Path = pathlib.Path("/proc")) -> float:
    """Of this process and all that stem from it, those that have ended too, on all processors.

    NaN where the system does not tell (it is not Linux).
    """
    children, ticks = collections.defaultdict(list), {}
    for path in proc.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it may end at any moment
            # The program's name, in parentheses, may hold anything.
            pid, fields = int(path.parent.name), path.read_bytes().rpartition(b")")[2].split()
            # In user and in system mode, its own and of its children that ended.
            ticks[pid] = sum(map(int, fields[11:15]))
            children[int(fields[1])].append(pid)
    if os.getpid() not in ticks:
        return math.nan
    family = [os.getpid()]
    for pid in family:
        family += children[pid]
    return sum(ticks[pid] for pid in family) / os.sysconf("SC_CLK_TCK")
