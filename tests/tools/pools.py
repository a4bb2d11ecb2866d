"""Pools of environments as tests want them: always closed, spread over processes as they say."""

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from multiprocessing.sharedctypes import RawValue
from typing import Any

import numpy as np

from a3c.contract import EnvDescription
from a3c.envs.make import describe_env
from a3c.envs.pool import Fleet, Pool
from a3c.envs.serve import Rows, SharedMemory
from a3c.settings.params import Params
from tests.tools.processes import state_parent_and_session, wait_until

TOY = "tests.tools.toys:toys/"
DEADLINE_SECONDS = 30.0


@contextlib.contextmanager
def opened(
    name: str,
    n_envs: int = 1,
    worker: int = 0,
    *,
    n_slots: int = 2,
    first_games: Sequence[int] | None = None,
    description: EnvDescription | None = None,
    n_processes: int | None = None,
    fleet: Fleet | None = None,
    timeout_seconds: float = DEADLINE_SECONDS,
    restart_limit: Any = None,
    is_stopped: Any = lambda: False,
    **settings: Any,
) -> Iterator[Pool]:
    """A pool with a process for each environment, or so many; toys that break act as vectors do."""
    params = Params(name, **settings)
    if name.startswith(TOY) and description is None and name.removeprefix(TOY) in BROKEN:
        description = describe_env(Params(TOY + "Vector-v0"))
    if fleet is None:
        fleet = Fleet(1, n_envs, timeout_seconds, is_stopped, restart_limit)
        fleet.n_processes_each = n_processes or n_envs
    pool = Pool(
        params,
        description or describe_env(params),
        worker,
        n_envs,
        n_slots,
        first_games or [0] * n_envs,
        fleet,
    )
    with contextlib.closing(pool):
        yield pool


BROKEN = ("RaisesInInit-v0", "LosesConnection-v0")  # not even to be looked at


def lose_patience(pool: Pool, process: int = 0) -> None:
    """Wait a moment only for this one; however slow the machine, the others have all their time."""
    pool._processes[process]._patience_seconds = 0.5


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
