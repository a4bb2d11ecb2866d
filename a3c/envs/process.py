"""Environments in a process of their own, and how a worker talks to them.

Process and worker share one socket pair and memory (what passes between them: `serve.py`). A
process may hold several environments of a worker, which it steps one after the other, and may serve
several workers, each as it asks (`Host`). Where such a process breaks, it breaks for all of them.

Why not Gymnasium's AsyncVectorEnv: it has a process for each environment, an error while building
must arrive in words, a process must be replaceable, and it resets before it copies the final
observation.

Processes come from a fork server that has loaded `a3c.envs.make` and no TensorFlow. They are never
forks of the training process, whose TensorFlow threads the child would lack. They do not import the
program that started them, as multiprocessing has it: that may be a notebook, do its work at its top
level, or load TensorFlow there.
"""

import atexit
import contextlib
import functools
import json
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import multiprocessing.spawn
import os
import pathlib
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium

from a3c.contract import Game
from a3c.envs.serve import (
    BELL,
    REQUEST,
    Part,
    SharedMemory,
    receive_exactly,
    serve,
)
from a3c.machine.stopping import Stopped, kept_from_new_threads

CLOSING_SECONDS = 2.0
FILES_PER_PROCESS = 3  # of the run's main process
FILES_BESIDES = 64  # what it opens itself, more at times
# Building waits for a processor, too: on a small machine, behind dozens of others.
LEAST_BUILDING_SECONDS = 60.0
# How long a stop may go unnoticed while an answer is awaited.
POLL_SECONDS = 0.5


class EnvError(Exception):
    """An environment process failed, fell silent or died; the message names it."""


class Host:
    """A process that starts once all of its parts are there, and serves each as its worker asks."""

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
            with _PROCESSES, _without_the_program():
                process = _context().Process(target=serve, args=(self._parts,), name=part.name)
                process.start()
        finally:
            self._close_parts()
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        """Wait a moment for the process to end; None if it still runs, or never started."""
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
    """Environments made by `makes` in a process; theirs are the rows of `memory` from `first` on.

    Each request is followed by one `receive`; so is the start.
    """

    def __init__(
        self,
        makes: Sequence[Callable[[], gymnasium.Env]],
        memory: SharedMemory,
        first: int,
        name: str,
        timeout_seconds: float,
        is_stopped: Callable[[], bool],
        host: Host,
    ) -> None:
        """Join a host, which may start now; the environments are made after this has returned."""
        self._name = name
        self._timeout_seconds = timeout_seconds
        self._patience_seconds = max(timeout_seconds, LEAST_BUILDING_SECONDS)
        self._n_polls = 0
        self._is_stopped = is_stopped
        self._hung_up_at: float | None = None
        self.host = host
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

    def request(self, what: int, slot: int) -> None:
        """Ask for RESET, new games, or STEP with the memory's actions; observations go to `slot`."""
        # That the process is dead is for `receive` to say, which can read its last words as well.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(REQUEST.pack(what, slot))

    def receive(self) -> list[Game]:
        """Wait for the bell, and return the games that ended in a step.

        EnvError if it will not ring, Stopped if nobody waits for it any more.
        """
        self._n_polls = 0
        try:
            head = receive_exactly(self._socket, BELL.size, self._poll)
            is_error, n_bytes = BELL.unpack(head)
            text = receive_exactly(self._socket, n_bytes, self._poll).decode() if n_bytes else ""
        except (EOFError, ConnectionResetError):
            raise EnvError(f"{self._name} died (exit code {self.host.exit_code()})") from None
        if is_error:
            is_ours = text.startswith(f"{self._name} ")
            prefix = "" if is_ours else f"{self._name} shared its process: "
            raise EnvError(prefix + text.strip())
        self._patience_seconds = self._timeout_seconds
        return [Game(*game) for game in json.loads(text)] if text else []

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
        # Counted, not timed: a process is not silent because the whole machine was suspended.
        self._n_polls += 1
        if self._n_polls * POLL_SECONDS >= self._patience_seconds:
            raise EnvError(f"{self._name} has not answered for {self._patience_seconds:g} s")


# Starting a process reaps all others that have ended, and so takes the exit code of one that another
# thread waits for. And the first start, of the fork server, changes our environment variables.
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


@contextlib.contextmanager
def _without_the_program() -> Iterator[None]:
    """Processes that this thread starts meanwhile do not import this program.

    Multiprocessing offers no way to say so; but it imports only what a process is told to.
    """
    everything, starter = multiprocessing.spawn.get_preparation_data, threading.get_ident()

    def without_the_program(name: str) -> dict[str, Any]:
        told = everything(name)
        if threading.get_ident() == starter:
            told = {key: told[key] for key in told if not key.startswith("init_main_from_")}
        return told

    multiprocessing.spawn.get_preparation_data = without_the_program
    try:
        yield
    finally:
        multiprocessing.spawn.get_preparation_data = everything


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
    """A fork server that starts meanwhile finds this package, and its NumPy uses one thread.

    By itself it looks in the working directory alone; and other processes use the other cores.
    """
    root = str(pathlib.Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    wanted = {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", "OPENBLAS_NUM_THREADS": "1"}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value
