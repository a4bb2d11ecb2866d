"""The environments of one worker, which it steps together, in processes of their own.

A process that breaks is replaced; its worker sees a step without reward or end, and is told.
"""

import collections
import functools
import math
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from a3c.contract import EnvDescription, Game, Replaced, Step
from a3c.envs.make import make_env
from a3c.envs.process import EnvError, EnvProcess, Host
from a3c.envs.serve import RESET, STEP, SharedMemory
from a3c.machine import cores
from a3c.settings.params import Params

# The fork server takes no more files with one process than 256, two of each worker.
MOST_IN_A_HOST = 64
WORKERS_A_CORE_TO_SHARE = 2  # with fewer, those of one process wait for each other


class RestartLimit:
    """How many processes of a run may break within a minute; safe in any thread."""

    def __init__(self, n: int = 10, seconds: float = 60.0) -> None:
        self._lock = threading.Lock()
        self._seconds = seconds
        self._latest: collections.deque[float] = collections.deque(maxlen=n)
        self._counted: weakref.WeakSet[Host] = weakref.WeakSet()

    def allows_one_more(self, broken: Host) -> bool:
        """Count one that broke, unless too many did; each worker that it served asks, it counts once."""
        with self._lock:
            if broken in self._counted:
                return True
            now = time.monotonic()
            is_full = len(self._latest) == self._latest.maxlen
            if is_full and now - self._latest[0] < self._seconds:
                return False
            self._latest.append(now)
            self._counted.add(broken)
            return True


class Fleet:
    """What the pools of a run have in common; by default, what one environment by itself needs.

    Once `is_stopped`, waiting for an answer ends with `Stopped`. Without a `restart_limit`, what
    breaks is not replaced.
    """

    def __init__(
        self,
        n_workers: int = 1,
        n_envs: int = 1,
        timeout_seconds: float = 60.0,
        is_stopped: Callable[[], bool] = lambda: False,
        restart_limit: RestartLimit | None = None,
    ) -> None:
        """`n_envs` is of each worker."""
        self.timeout_seconds = timeout_seconds
        self.is_stopped = is_stopped
        self.restart_limit = restart_limit
        # As many as let all workers together use every core, and no more. A process that steps
        # several environments finds its code and data in the caches for all but the first: eight
        # in one process take a fifth less time each than in eight processes.
        self.n_processes_each = min(n_envs, math.ceil(cores.n_usable() / n_workers))
        self.hosts = _hosts(n_workers, self.n_processes_each)
        # As many as are started, and as there may be once each worker has its own, after faults.
        self.n_processes = len({*self.hosts.values()}) or n_workers * self.n_processes_each
        self.most_processes = n_workers * self.n_processes_each


def _hosts(n_workers: int, n_processes_each: int) -> Mapping[int, Host]:
    """Where each worker needs one process only and there are many workers, they share one a core,
    whose caches then stay warm.
    """
    n_hosts = max(cores.n_usable(), math.ceil(n_workers / MOST_IN_A_HOST))
    if n_processes_each > 1 or n_workers < WORKERS_A_CORE_TO_SHARE * n_hosts:
        return {}
    shares = [share.tolist() for share in np.array_split(range(n_workers), n_hosts)]
    return {worker: host for share in shares for host in [Host(len(share))] for worker in share}


class Pool:
    """The K environments of one worker, stepped together, in processes of their own.

    It is what `contract.Environments` describes, and is used by one thread at a time. With the
    fleet's `restart_limit`, a process that dies, hangs or raises is replaced: a new one begins new
    games in its environments' place. What the broken one was asked for is lost, a game that ended
    just then included. Without a limit, or beyond it, a broken process is an EnvError, after which
    only `take_replaced` and `close` make sense.
    """

    def __init__(
        self,
        params: Params,
        description: EnvDescription,
        worker: int,
        n_envs: int,
        n_slots: int,
        first_games: Sequence[int],
        fleet: Fleet,
    ) -> None:
        """Start the processes; they build their environments after this has returned."""
        assert len(first_games) == n_envs
        self._params, self._worker, self._fleet = params, worker, fleet
        self._memory = SharedMemory(description, n_slots, n_envs)
        self._rows = self._memory.rows()
        self.observations = self._rows.observations
        self.final_observations = self._rows.final_observations
        self.next_games = list(first_games)
        # Environments of whose game under way no step has been taken: that is the next one still.
        self._unstepped = set(range(n_envs))
        # At the latest bell: what a process wrote before it broke does not count.
        self._n_frames_heard = np.zeros(n_envs, np.int64)
        self._replaced: list[Replaced] = []
        self._is_ready = False
        host = fleet.hosts.get(worker)
        n_processes = 1 if host else min(n_envs, fleet.n_processes_each)
        shares = np.array_split(range(n_envs), n_processes)
        self._shares = [range(share[0], share[-1] + 1) for share in shares]
        self._processes = [self._start(share, host) for share in self._shares]

    @property
    def n_frames(self) -> int:
        """Frames stepped so far, resets included; of vectors, steps."""
        return int(self._n_frames_heard.sum())

    @property
    def pids(self) -> list[int]:
        """The process ids, environment 0's first."""
        return [process.host.pid for process in self._processes]

    def wait_until_ready(self) -> None:
        """Wait until every environment is built; an error in building is raised here."""
        if not self._is_ready:
            self._hear_all()
            self._is_ready = True

    def reset(self, slot: int) -> None:
        """Start a new game everywhere.

        Games that end during the no-ops of their start come with the next step's.
        """
        self.wait_until_ready()
        self._rows.clear(slice(None))
        for process in self._processes:
            process.request(RESET, slot)
        self._hear_all(slot)

    def step(self, actions: np.ndarray, slot: int) -> Step:
        """Step every environment; one whose episode ends is reset in the same step.

        What is seen then is in `observations[slot]`.
        """
        rows = self._rows
        rows.actions[:] = actions
        for process in self._processes:
            process.request(STEP, slot)
        games = self._hear_all(slot, is_step=True)
        return Step(rows.rewards.copy(), rows.terminated.copy(), rows.truncated.copy(), games)

    def take_replaced(self) -> list[Replaced]:
        """What was replaced since the last call, whatever has become of the steps since then."""
        replaced, self._replaced = self._replaced, []
        return replaced

    def hang_up(self) -> None:
        """Tell all processes to end, without waiting for them."""
        for process in self._processes:
            process.hang_up()

    def close(self) -> None:
        """End all processes: at once those that listen, by force those that do not."""
        self.hang_up()
        for process in self._processes:
            process.end()

    def _start(self, share: range, host: Host | None = None) -> EnvProcess:
        several = f"environments {share[0]} to {share[-1]}"
        envs = several if len(share) > 1 else f"environment {share[0]}"
        return EnvProcess(
            [
                functools.partial(make_env, self._params, self._worker, env, self.next_games[env])
                for env in share
            ],
            self._memory,
            share[0],
            f"worker {self._worker}, {envs}",
            self._fleet.timeout_seconds,
            self._fleet.is_stopped,
            host or Host(),
        )

    def _hear_all(self, slot: int | None = None, is_step: bool = False) -> list[Game]:
        """Wait for every bell; what is replaced has its first observation in `slot`, if any."""
        games: list[Game] = []
        for number, share in enumerate(self._shares):
            try:
                of_share = self._processes[number].receive()
            except EnvError as error:
                self._replace(number, slot, error)
                continue
            if is_step and self._unstepped:
                for env in self._unstepped.intersection(share):
                    self.next_games[env] += 1
                self._unstepped.difference_update(share)
            for game in of_share:
                if game.length == 0:  # it ended in the no-ops of its start
                    self.next_games[game.env] += 1
                else:
                    self._unstepped.add(game.env)
            games += of_share
        self._n_frames_heard[:] = self._rows.n_frames
        return games

    def _replace(self, number: int, slot: int | None, error: EnvError) -> None:
        """Put a new process in a broken one's place, again and again until it works."""
        share, host = self._shares[number], self._processes[number].host
        limit = self._fleet.restart_limit
        while limit is not None and limit.allows_one_more(host):
            self._processes[number].end()  # before anybody uses its rows
            self._replaced.append(Replaced(share, str(error)))
            self._abandon(share)
            host = Host()
            try:
                self._processes[number] = self._start(share, host)
                self._processes[number].receive()
                if slot is not None:
                    self._processes[number].request(RESET, slot)
                    self._processes[number].receive()
            except EnvError as another:
                error = another
            else:
                return
        raise error

    def _abandon(self, share: range) -> None:
        """Forget the games under way, whose process is gone, and whatever it wrote of them."""
        envs = slice(share.start, share.stop)
        self._rows.clear(envs)
        self._rows.n_frames[envs] = self._n_frames_heard[envs]
        for env in share:
            # The process may have begun the game after that without our hearing of it. So that its
            # random numbers are not used again, that one is skipped as well.
            self.next_games[env] += 2 if env in self._unstepped else 1
            self._unstepped.add(env)


def close_all(pools: Sequence[Pool]) -> None:
    """End the processes of many workers; those that do not listen are waited for once, together."""
    for pool in pools:
        pool.hang_up()
    for pool in pools:
        pool.close()
