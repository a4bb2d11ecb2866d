"""What the environment processes of a whole run have in common: their number, and their limits."""

import collections
import contextlib
import math
import resource
import threading
import time
import weakref
from collections.abc import Callable

import numpy as np

from a3c.envs.process import EnvError, EnvProcess
from a3c.machine import cores
from a3c.machine.words import counted

FILES_PER_PROCESS = 3  # that the run's main process keeps open
FILES_BESIDES = 64  # at least as many as it opens for anything else
# The fork server hands a process at most 256 open files; it needs two for each worker it serves.
MOST_WORKERS_A_PROCESS = 64
# With fewer workers a core, those that share a process would wait for each other.
WORKERS_A_CORE_TO_SHARE = 2


class Fleet:
    """The environment processes of a run; by default, of one environment alone.

    Once `is_stopped`, waiting for an answer ends with `Stopped`. At most `restarts_a_minute`
    processes that broke are replaced within a minute. EnvError if the system allows too few files.
    `see` is called with pictures of a fraction of the frames of a single game, while we wait for them.
    """

    def __init__(
        self,
        n_workers: int = 1,
        envs_per_worker: int = 1,
        timeout_seconds: float = 60.0,
        is_stopped: Callable[[], bool] = lambda: False,
        restarts_a_minute: int = 0,
        see: Callable[[np.ndarray], None] | None = None,
        fraction_seen: float = 1.0,
    ) -> None:
        self.see, self.fraction_seen = see, fraction_seen
        self.timeout_seconds = timeout_seconds
        self.is_stopped = is_stopped
        self._lock = threading.Lock()
        self.restarts_a_minute = restarts_a_minute
        self._latest_restarts = collections.deque[float](maxlen=restarts_a_minute)
        self._counted = weakref.WeakSet[EnvProcess]()
        # There are just enough processes to use every core with all workers together. A process
        # that steps eight environments takes a fifth less time for each than eight processes do,
        # because its code and data are in the caches after the first.
        self.n_processes_each = min(envs_per_worker, math.ceil(cores.n_usable() / n_workers))
        # By worker, the processes that serve several workers: one for each core, if a worker needs
        # no more than one process and there are many workers.
        self.shared: dict[int, EnvProcess] = {}
        n_shared = max(cores.n_usable(), math.ceil(n_workers / MOST_WORKERS_A_PROCESS))
        if self.n_processes_each == 1 and n_workers >= WORKERS_A_CORE_TO_SHARE * n_shared:
            for workers in np.array_split(range(n_workers), n_shared):
                self.shared |= dict.fromkeys(workers.tolist(), EnvProcess(len(workers)))
        # A worker whose shared process broke gets one of its own.
        most_processes = n_workers * self.n_processes_each
        self.n_processes = len(set(self.shared.values())) or most_processes
        n_files = FILES_BESIDES + FILES_PER_PROCESS * most_processes
        _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit != resource.RLIM_INFINITY and n_files > limit:
            raise EnvError(
                f"{counted(most_processes, 'environment process')} need {n_files} open files,"
                f" and the system allows {limit} (ulimit -Hn)"
            )
        with contextlib.suppress(ValueError, OSError):  # the shell's limit is often 1024
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    def processes_for(self, worker: int) -> list[EnvProcess]:
        """Return the processes, not started yet, that are to hold a worker's environments."""
        if worker in self.shared:
            return [self.shared[worker]]
        return [EnvProcess() for _ in range(self.n_processes_each)]

    def allows_restart(self, broken: EnvProcess) -> bool:
        """Count a process that broke, once for all workers that it served; False if too many did."""
        with self._lock:
            if broken in self._counted:
                return True
            now, latest = time.monotonic(), self._latest_restarts
            if len(latest) == latest.maxlen and (not latest or now - latest[0] < 60):
                return False
            latest.append(now)
            self._counted.add(broken)
            return True
