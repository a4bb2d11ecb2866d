"""Environments in a process of their own, and how a worker talks to them.

Process and worker share one socket pair (what they say to each other: `env_serving`). A process may
hold several environments of a worker, which it steps one after the other, and may serve several
workers, each as it asks (`Host`).

A process that dies, raises or falls silent can be replaced by a new one with the same rows of
the memory; `RestartLimit` says how often. One that serves several workers has one fate: what breaks
it breaks it for all of them, and each gets a process of its own then.

Why not Gymnasium's AsyncVectorEnv: it has a process for each environment, an error while building
must arrive in words, a process must be replaceable, and it resets before it copies the final
observation.

Processes come from a fork server that has loaded `a3c.envs.make` and no TensorFlow; never by a fork of
the training process, whose TensorFlow threads would be missing in the child.
"""

import atexit
import collections
import contextlib
import functools
import math
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import pathlib
import resource
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np

from a3c.envs.serve import (
    HEAD,
    RESET,
    Answer,
    Part,
    SharedObservations,
    least_n_bytes,
    receive_exactly,
    request_struct,
    serve,
    unpack,
)
from a3c.machine import cores
from a3c.machine.stopping import Stopped, kept_from_new_threads

CLOSING_SECONDS = 2.0
# The fork server takes no more files with one process than 256, three of each worker.
MOST_IN_A_HOST = 64
WORKERS_A_CORE_TO_SHARE = 2  # with fewer, those of one process wait for each other
FILES_PER_PROCESS = 3  # of the run's main process
FILES_BESIDES = 64  # what it opens itself, more at times
# Building waits for a processor, too: on a small machine, behind dozens of others.
LEAST_BUILDING_SECONDS = 60.0
# How long a stop may go unnoticed while an answer is awaited.
POLL_SECONDS = 0.5


class EnvError(Exception):
    """An environment process failed, fell silent or died; the message names it."""


class RestartLimit:
    """So many processes a minute that may break, of a whole run; safe in any thread."""

    def __init__(self, n: int = 10, seconds: float = 60.0) -> None:
        self._lock = threading.Lock()
        self._seconds = seconds
        self._latest: collections.deque[float] = collections.deque(maxlen=n)
        self._counted: weakref.WeakSet[Host] = weakref.WeakSet()

    def allows_one_more(self, broken: "Host") -> bool:
        """Count one that broke, unless there have been too many in too short a time.

        Those that it served each ask; it counts once.
        """
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


def processes_per_worker(n_workers: int, n_envs: int) -> int:
    """As many as let all workers together use every core, and no more.

    A process that steps several environments finds its code and data in the caches for all but the
    first: eight in one process take a fifth less time each than in eight processes.
    """
    return min(n_envs, math.ceil(cores.n_usable() / n_workers))


def hosts(n_workers: int, n_processes: int) -> "list[Host | None]":
    """Of each worker, the process that it shares with others; None where it has its own.

    Workers of one process each share as many processes as there are cores, for the same reason.
    """
    n_hosts = max(cores.n_usable(), math.ceil(n_workers / MOST_IN_A_HOST))
    if n_processes > 1 or n_workers < WORKERS_A_CORE_TO_SHARE * n_hosts:
        return [None] * n_workers
    shares = [len(share) for share in np.array_split(range(n_workers), n_hosts)]
    return [host for n in shares for host in [Host(n)] * n]


class Host:
    """A process that starts when all of its parts are there, and serves each as its worker asks."""

    def __init__(self, n_parts: int = 1) -> None:
        self._n_parts = n_parts
        self._parts: list[Part] = []
        self._process: Any = None

    def add(self, part: Part) -> None:
        """The last one starts the process; OSError or EOFError where the system cannot."""
        assert self._process is None
        self._parts.append(part)
        if len(self._parts) < self._n_parts:
            return
        try:
            with _PROCESSES:
                process = _context().Process(target=serve, args=(self._parts,), name=part.name)
                process.start()
        finally:
            self._close_parts()
        self._process = process

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """Of a process that is ending; None if it takes too long, or never was."""
        if self._process is None:
            return None
        with _PROCESSES:
            self._process.join(CLOSING_SECONDS)
            return self._process.exitcode

    def end(self, seconds: float) -> None:
        """Wait so long for the process, which was told to end; then make it."""
        self._close_parts()
        if self._process is None:
            return
        with _PROCESSES:
            self._process.join(seconds)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()

    def _close_parts(self) -> None:
        for part in self._parts:
            part.worker.close()
        self._parts = []


class EnvProcess:
    """Environments made by `makes` in a process; they write to `memory` from row `first` on.

    Each request is followed by one `receive`; so is the start.
    """

    def __init__(
        self,
        makes: Sequence[Callable[[], gymnasium.Env]],
        memory: SharedObservations,
        first: int,
        name: str,
        timeout_seconds: float,
        is_stopped: Callable[[], bool],
        host: Host | None = None,
    ) -> None:
        """Start the process, or add to a host; the environments are made after this has returned."""
        self._n_envs = len(makes)
        self._request = request_struct(self._n_envs)
        self._name = name
        self._timeout_seconds = timeout_seconds
        self._patience_seconds = max(timeout_seconds, LEAST_BUILDING_SECONDS)
        self._n_polls = 0
        self._is_stopped = is_stopped
        self._hung_up_at: float | None = None
        self.host = host or Host()
        try:
            self._socket, theirs = socket.socketpair()
            try:
                self._socket.settimeout(POLL_SECONDS)
                self.host.add(Part(theirs, makes, memory, first, name))
            except (OSError, EOFError):
                self._socket.close()
                raise
        except (OSError, EOFError) as error:  # the latter where the fork server's fork was refused
            why = getattr(error, "strerror", None) or error
            raise EnvError(f"{name} cannot be started: {why}") from error
        # A program that ends without closing would otherwise wait for a process that waits for it.
        atexit.register(self.end)

    def request_reset(self, slot: int) -> None:
        """Ask for new games whose first observations go to `slot`."""
        self._send(slot, [RESET] * self._n_envs)

    def request_step(self, slot: int, actions: Sequence[int]) -> None:
        """Ask for a step, one action each, whose observations go to `slot`."""
        self._send(slot, actions)

    def receive(self) -> list[Answer]:
        """Wait for the answer; EnvError if there will be none, Stopped if nobody wants it now."""
        self._n_polls = 0
        n_bytes = least_n_bytes(self._n_envs)
        try:
            message = receive_exactly(self._socket, n_bytes, self._poll)
            is_error, n_bytes_in_all = HEAD.unpack_from(message)
            message += receive_exactly(self._socket, n_bytes_in_all - n_bytes, self._poll)
        except (EOFError, ConnectionResetError):
            words = f"{self._name} died (exit code {self.host.exit_code()})"
            raise EnvError(words) from None
        if is_error:
            text = message[HEAD.size :].decode().strip()
            is_ours = text.startswith(f"{self._name} ")
            raise EnvError(text if is_ours else f"{self._name} shared its process: {text}")
        self._patience_seconds = self._timeout_seconds
        return unpack(message, self._n_envs)

    def hang_up(self) -> None:
        """Tell the process to end, for whoever it serves, without waiting for it."""
        self._hung_up_at = self._hung_up_at or time.monotonic()
        self._socket.close()

    def end(self) -> None:
        """Wait until a moment after it was told for the process to end, then make it."""
        atexit.unregister(self.end)
        self.hang_up()
        assert self._hung_up_at is not None
        self.host.end(max(0.0, self._hung_up_at + CLOSING_SECONDS - time.monotonic()))

    def _poll(self) -> None:
        """Called while an answer is awaited, every POLL_SECONDS."""
        if self._is_stopped():
            raise Stopped
        # Counted, not timed: while the whole machine, or the run with its processes, was suspended,
        # nobody has fallen silent.
        self._n_polls += 1
        if self._n_polls * POLL_SECONDS >= self._patience_seconds:
            raise EnvError(f"{self._name} has not answered for {self._patience_seconds:g} s")

    def _send(self, slot: int, actions: Sequence[int]) -> None:
        # That the process is dead is for `receive` to say, which can read its last words as well.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(self._request.pack(slot, *actions))


# Starting a process looks after all others that have ended, and so takes away the exit code of one
# that another thread is just waiting for. And the first one starts the fork server, which changes
# this process's environment variables meanwhile.
_PROCESSES = threading.Lock()


@functools.cache
def _context() -> Any:
    """Return the way to start processes: a fork server that holds `a3c.envs.make`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["a3c.envs.make", "a3c.envs.serve"])
    # What a shell allows is often 1024.
    with contextlib.suppress(ValueError, OSError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # Ctrl-C goes to every process of the terminal, but only the main process is to act on it.
    with kept_from_new_threads():
        # First, for its start lets signals in again.
        multiprocessing.resource_tracker.ensure_running()
    with kept_from_new_threads(), _server_environment():
        multiprocessing.forkserver.ensure_running()
    return context


def check_limit_of_files(n_processes: int) -> None:
    """EnvError where this process may not open as many files as so many processes take."""
    needed = FILES_BESIDES + FILES_PER_PROCESS * n_processes
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and needed > most:
        raise EnvError(
            f"{n_processes} environment processes take {needed} open files,"
            f" and the system allows {most} (ulimit -Hn)"
        )


@contextlib.contextmanager
def _server_environment() -> Iterator[None]:
    """Let a fork server that starts meanwhile find this package, and have NumPy use one thread.

    It looks for the modules it is to load in the working directory only, which need not be ours;
    and cores are shared out among the processes already.
    """
    root = str(pathlib.Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    wanted = {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
