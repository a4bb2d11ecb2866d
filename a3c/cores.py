"""How many processors there are to share."""

import os


def n_usable() -> int:
    """As many as the system lets this process use at a time."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
