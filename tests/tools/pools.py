"""Pools of environments as tests want them: always closed, spread over processes as they say."""

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from multiprocessing.sharedctypes import RawValue
from typing import Any

import numpy as np

from a3c.envs.fleet import Fleet
from a3c.envs.make import describe_env
from a3c.envs.memory import Rows, SharedMemory
from a3c.envs.pool import Pool, close_all
from a3c.envs.process import EnvProcess
from a3c.settings.params import Params
from tests.tools.processes import state_parent_and_session, wait_until

TOY = "tests.tools.toys:toys/"
DEADLINE_SECONDS = 30.0
# Toys that cannot even be described; their description is that of Vector.
BROKEN = ("RaisesInInit-v0", "LosesConnection-v0")


@contextlib.contextmanager
def opened(
    name: str,
    n_envs: int = 1,
    worker: int = 0,
    *,
    n_slots: int = 2,
    n_processes: int | None = None,
    restarts: int = 0,
    is_stopped: Any = lambda: False,
    **settings: Any,
) -> Iterator[Pool]:
    """A pool with a process for each environment, or `n_processes`."""
    fleet = Fleet(1, n_envs, DEADLINE_SECONDS, is_stopped, restarts)
    fleet.n_processes_each = n_processes or n_envs
    pool = make_pool(Params(name, **settings), worker, [0] * n_envs, n_slots, fleet)
    with contextlib.closing(pool):
        yield pool


@contextlib.contextmanager
def sharing(
    params: Params,
    workers: Sequence[int],
    first_games: Sequence[int] = (0,),
    n_slots: int = 2,
    *,
    n_shares: int | None = None,
    restarts: int = 0,
) -> Iterator[list[Pool]]:
    """The pools of several workers in one process, which may wait for `n_shares` of them."""
    fleet, pools = Fleet(restarts_a_minute=restarts), []
    fleet.shared = dict.fromkeys(workers, EnvProcess(n_shares or len(workers)))
    try:
        for worker in workers:
            pools.append(make_pool(params, worker, first_games, n_slots, fleet))
        yield pools
    finally:
        close_all(pools)


def make_pool(
    params: Params, worker: int, first_games: Sequence[int], n_slots: int, fleet: Fleet
) -> Pool:
    is_broken = params.env_id.removeprefix(TOY) in BROKEN
    description = describe_env(Params(TOY + "Vector-v0") if is_broken else params)
    return Pool(params, description, worker, n_slots, first_games, fleet)


def lose_patience(pool: Pool, process: int = 0) -> None:
    """Wait a moment only for this one; however slow the machine, the others have all their time."""
    pool._connections[process]._patience_seconds = 0.5


def pids_of(pool: Pool) -> list[int]:
    """The process ids, environment 0's first."""
    return [connection.process._process.pid for connection in pool._connections]


def is_running(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return state_parent_and_session(pid)[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for_end(pids: Sequence[int]) -> None:
    wait_until(lambda: not any(map(is_running, pids)), "their end", DEADLINE_SECONDS)


class DeadlyMemory(SharedMemory):
    """Memory that kills the process that has written to it so many times; not where that is 0."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.n_writes_to_live = RawValue("i", 0)

    def rows(self) -> Rows:
        rows = super().rows()
        if multiprocessing.parent_process() is None:
            return rows
        deadly = [array.view(DeadlyArray) for array in rows]
        for array in deadly:
            array.n_left = self.n_writes_to_live
        return Rows(*deadly)


class DeadlyArray(np.ndarray):
    n_left: Any

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self.n_left.value -= 1
        if self.n_left.value == 0:
            os.kill(os.getpid(), signal.SIGKILL)
