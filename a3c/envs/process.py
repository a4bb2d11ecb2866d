"""Environment processes as a run sees them: how they start, answer and end.

We do not use Gymnasium's AsyncVectorEnv: it needs a process for each environment, does not pass on
an error's text, cannot replace a process, and resets before it copies the final observation.

A fork server starts the processes. It has loaded `a3c.envs.make` and no TensorFlow; a fork of the
training process would lack the threads of TensorFlow. Processes of multiprocessing would import the
program that started them. Ours do not, because it may load TensorFlow or do its work on import.
"""

import atexit
import contextlib
import functools
import json
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import forkserver, resource_tracker, spawn
from typing import Any

import numpy as np

from a3c.envs.serve import ANSWER, ERROR, PICTURE, REQUEST, SIZE, Share, serve
from a3c.machine import place
from a3c.machine.stopping import Stopped, kept_from_new_threads

CLOSING_SECONDS = 2.0
# A process that builds its environments may have to wait for a core behind dozens of others.
LEAST_BUILDING_SECONDS = 60.0
POLL_SECONDS = 0.5  # how late a stop may be noticed while we wait for an answer
# Held while a process is started or waited for. Starting one collects the exit codes of all that
# have ended, also of one that another thread waits for. It also changes a function of
# multiprocessing for a moment and, the first time, our environment variables.
_PROCESSES = threading.Lock()


class EnvError(Exception):
    """An environment process failed, fell silent or died; the message names it."""


class EnvProcess:
    """A process for the shares of one or more workers; it starts when it has `n_shares` of them."""

    def __init__(self, n_shares: int = 1) -> None:
        self._n_shares = n_shares
        self._shares: list[tuple[socket.socket, Share]] = []
        self._frames: list[np.ndarray] = []  # of each share, in its memory
        self._process: Any = None

    def add(self, worker: socket.socket, share: Share) -> None:
        """Add a share, with the process's end of its connection; the last one starts the process."""
        self._shares.append((worker, share))
        self._frames.append(share.memory.rows().n_frames[share.envs.start : share.envs.stop])
        if len(self._shares) < self._n_shares:
            return
        try:
            with _PROCESSES, _without_the_program():
                process = _context().Process(target=serve, args=(self._shares,), name=share.name)
                process.start()
                # The server that forks it may be older than this process's set of cores.
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(process.pid, os.sched_getaffinity(0))
        finally:
            self._close_sockets()
        self._process = process

    @property
    def n_frames(self) -> int:
        """Frames that its environments have stepped. While one of them hangs, there are no more."""
        return sum(int(frames.sum()) for frames in self._frames)

    def end(self, seconds: float = CLOSING_SECONDS) -> int | None:
        """Wait this long for the process to end, and then kill it; returns its exit code."""
        self._close_sockets()
        if self._process is None:  # it never got all of its shares, and never started
            return None
        with _PROCESSES:
            self._process.join(seconds)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
            return self._process.exitcode

    def _close_sockets(self) -> None:
        for worker, _ in self._shares:
            worker.close()
        self._shares = []


class Connection:
    """A worker's connection to the process that holds a share of its environments.

    Call `receive` once after the start, when the environments are built, and after each request.
    """

    def __init__(
        self,
        share: Share,
        process: EnvProcess,
        timeout_seconds: float,
        is_stopped: Callable[[], bool],
        see: Callable[[np.ndarray], None] | None = None,
    ) -> None:
        """`see` gets the pictures, if the share has some."""
        self.share, self.process, self._see = share, process, see
        self._timeout_seconds = timeout_seconds
        self._patience_seconds = max(timeout_seconds, LEAST_BUILDING_SECONDS)
        self._is_stopped = is_stopped
        try:
            self._socket, theirs = socket.socketpair()
            self._socket.settimeout(POLL_SECONDS)
            process.add(theirs, share)
        except (OSError, EOFError) as error:  # EOFError where the fork server could not fork
            why = getattr(error, "strerror", None) or error
            raise EnvError(f"{share.name} cannot be started: {why}") from error
        # Multiprocessing waits for all processes at exit, and this one waits for us to hang up.
        atexit.register(self.end)

    def request(self, what: int, n: int, more: bytes = b"") -> None:
        """Ask for a RESET, or a STEP with the actions in the memory; observations go to slot n.

        Or ask for a COLLECT, with n more bytes.
        """
        # If the process is dead, `receive` will say so, and can still read its last message.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(REQUEST.pack(what, n) + more)

    def receive(self) -> Any:
        """Wait for the bell, and return its message: the games that ended in a step, if any, or what
        the collector says.

        EnvError if the process broke, Stopped if the run was stopped meanwhile.
        """
        kind, content = PICTURE, b""
        try:
            while kind == PICTURE:
                kind, n_bytes = ANSWER.unpack(self._receive_exactly(ANSWER.size))
                content = self._receive_exactly(n_bytes)
                if kind == PICTURE:
                    assert self._see is not None
                    size = SIZE.unpack_from(content)
                    self._see(np.frombuffer(content, np.uint8, offset=SIZE.size).reshape(*size, 3))
        except (EOFError, ConnectionResetError):
            code = self.process.end()
            raise EnvError(f"{self.share.name} died (exit code {code})") from None
        if kind == ERROR:
            raise EnvError(content.decode().strip())
        self._patience_seconds = self._timeout_seconds
        return json.loads(content) if content else None

    def _receive_exactly(self, n_bytes: int) -> bytes:
        data, n_polls, n_frames = b"", 0, -1  # which nobody knows before the first poll is over
        while len(data) < n_bytes:
            try:
                more = self._socket.recv(n_bytes - len(data))
            except TimeoutError:
                if self._is_stopped():
                    raise Stopped from None
                # Polls are counted, because the time may include a suspension of the machine. Counting
                # begins anew with each step that this process makes, for whichever worker.
                n_before, n_frames = n_frames, self.process.n_frames
                n_polls = n_polls + 1 if n_frames == n_before else 0
                if n_polls * POLL_SECONDS >= self._patience_seconds:
                    seconds = f"{self._patience_seconds:g} s"
                    raise EnvError(f"{self.share.name} has not answered for {seconds}") from None
                continue
            if not more:
                raise EOFError
            data += more
        return data

    def hang_up(self) -> None:
        """Tell the process to end, even if it serves other workers too, without waiting for it."""
        self._socket.close()

    def end(self, deadline: float | None = None) -> None:
        """Tell the process to end, and kill it at the deadline, or after CLOSING_SECONDS."""
        atexit.unregister(self.end)
        self.hang_up()
        left = CLOSING_SECONDS if deadline is None else deadline - time.monotonic()
        self.process.end(max(0.0, left))


@functools.cache
def _context() -> Any:
    """Start the fork server, and return the context whose processes it starts."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["a3c.envs.make", "a3c.envs.serve"])
    # Otherwise the server would look for this package only in the working directory, and NumPy
    # would start a thread for each core in each process.
    path = place.python_path()
    wanted = {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", "OPENBLAS_NUM_THREADS": "1"}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        # Ctrl-C reaches every process of the terminal, but only the main process is to act on it.
        # The server would start the tracker as well, but that start lets signals in again.
        for module in (resource_tracker, forkserver):
            with kept_from_new_threads():
                module.ensure_running()
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value
    return context


@contextlib.contextmanager
def _without_the_program() -> Iterator[None]:
    """Processes that are started inside do not import this program.

    Multiprocessing has no setting for it, but they import only what `get_preparation_data` names.
    """
    complete = spawn.get_preparation_data
    spawn.get_preparation_data = lambda name: {
        key: value for key, value in complete(name).items() if not key.startswith("init_main_from_")
    }
    try:
        yield
    finally:
        spawn.get_preparation_data = complete
