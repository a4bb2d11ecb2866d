"""Environments in a process of their own, and how a worker talks to them.

Process and worker share one socket pair; a process may hold several environments of the worker,
which it steps one after the other:

    worker                                        environment process
                       <- answer                  the environments are built
    slot, RESET, …     -> <- answer               the first observations are in observations[slot]
    slot, actions      -> <- answer               the next ones are; after the end of an episode,
                                                  the first of the next episode
    end of file        ->                         ends: the worker closed the socket, or is gone

An answer is, for each environment, a step's reward, ends, frames so far and finished games; or the
text of an error.
Observations travel through shared memory: the process writes where the worker's rollout reads.
That memory has no name, so that a killed run leaves none behind.

A process that dies, raises or falls silent can be replaced by a new one with the same rows of
the memory; `RestartLimit` says how often.

Why not Gymnasium's AsyncVectorEnv: it has a process for each environment, an error while building
must arrive in words, a process must be replaceable, and it resets before it copies the final
observation.

Processes come from a fork server that has loaded `a3c.env` and no TensorFlow; never by a fork of
the training process, whose TensorFlow threads would be missing in the child.
"""

import atexit
import collections
import contextlib
import fcntl
import functools
import math
import multiprocessing
import multiprocessing.forkserver
import os
import pathlib
import resource
import signal
import socket
import struct
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import cv2
import gymnasium
import numpy as np

from a3c.monitor import Game, Monitor
from a3c.stopping import SIGNALS, Stopped

RESET = -1
HEAD = struct.Struct("=?I")  # is this an error? how many bytes, with these
ANSWER = struct.Struct("=??dqI")  # terminated, truncated, reward, frames, how many games follow
GAME = struct.Struct("=dqd")  # score, length, seconds
CLOSING_SECONDS = 2.0
FILES_PER_PROCESS = 3  # of the run's main process
FILES_BESIDES = 64  # what it opens itself, more at times
# Building waits for a processor, too: on a small machine, behind dozens of others.
LEAST_BUILDING_SECONDS = 60.0
# How long a stop may go unnoticed while an answer is awaited.
POLL_SECONDS = 0.5


class EnvError(Exception):
    """An environment process failed, fell silent or died; the message names it."""


class RestartLimit:
    """So many restarts a minute, of all environments of a run together; safe in any thread."""

    def __init__(self, n: int = 10, seconds: float = 60.0) -> None:
        self._lock = threading.Lock()
        self._seconds = seconds
        self._latest: collections.deque[float] = collections.deque(maxlen=n)

    def allows_one_more(self) -> bool:
        """Count one restart, unless there have been too many in too short a time."""
        with self._lock:
            now = time.monotonic()
            is_full = len(self._latest) == self._latest.maxlen
            if is_full and now - self._latest[0] < self._seconds:
                return False
            self._latest.append(now)
            return True


def processes_per_worker(n_workers: int, n_envs: int) -> int:
    """As many as let all workers together use every core, and no more.

    A process that steps several environments finds its code and data in the caches for all but the
    first: eight in one process take a fifth less time each than in eight processes.
    """
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(n_envs, math.ceil((n_cores or 1) / n_workers))


class Answer(NamedTuple):
    """What one request brought of one environment, besides the observation."""

    terminated: bool
    truncated: bool
    reward: float
    n_frames: int  # since the process began
    games: list[Game]


class SharedObservations:
    """Memory for the observations of `n_envs` environments that all their processes share.

    Can be handed to a process while that is being started, and at no other time.
    """

    def __init__(self, n_slots: int, n_envs: int, shape: tuple[int, ...], dtype: str) -> None:
        n_bytes = n_envs * int(np.prod(shape)) * np.dtype(dtype).itemsize
        self._slots = _context().RawArray("B", n_slots * n_bytes)
        self._final = _context().RawArray("B", n_bytes)
        self._shape = (n_envs, *shape)
        self._dtype = dtype

    def views(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the slots, (n_slots, n_envs, *shape), and final observations, (n_envs, *shape)."""
        return (
            np.frombuffer(self._slots, self._dtype).reshape(-1, *self._shape),
            np.frombuffer(self._final, self._dtype).reshape(self._shape),
        )


class EnvProcess:
    """Environments made by `makes` in a process of their own; write to `memory` from row `first` on.

    Each request is followed by one `receive`; so is the start.
    """

    def __init__(
        self,
        makes: Sequence[Callable[[], gymnasium.Env]],
        memory: SharedObservations,
        first: int,
        name: str,
        timeout_seconds: float,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Start the process; it makes its environments after this has returned."""
        self._n_envs = len(makes)
        self._request = _request(self._n_envs)
        self._name = name
        self._timeout_seconds = timeout_seconds
        self._patience_seconds = max(timeout_seconds, LEAST_BUILDING_SECONDS)
        self._n_polls = 0
        self._is_stopped = is_stopped
        self._hung_up_at: float | None = None
        try:
            self._socket, theirs = socket.socketpair()
            self._socket.settimeout(POLL_SECONDS)
            with theirs, _PROCESSES:
                self._process = _context().Process(
                    target=_serve, args=(theirs, makes, memory, first), name=name
                )
                self._process.start()
        except OSError as error:
            raise EnvError(f"{name} cannot be started: {error.strerror or error}") from error
        # A program that ends without closing would otherwise wait for a process that waits for it.
        atexit.register(self.end)

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def request_reset(self, slot: int) -> None:
        """Ask for new games whose first observations go to `slot`."""
        self._send(slot, [RESET] * self._n_envs)

    def request_step(self, slot: int, actions: Sequence[int]) -> None:
        """Ask for a step, one action each, whose observations go to `slot`."""
        self._send(slot, actions)

    def receive(self) -> list[Answer]:
        """Wait for the answer; EnvError if there will be none, Stopped if nobody wants it now."""
        self._n_polls = 0
        n_bytes = _least_n_bytes(self._n_envs)
        try:
            message = _receive_exactly(self._socket, n_bytes, self._poll)
            is_error, n_bytes_in_all = HEAD.unpack_from(message)
            message += _receive_exactly(self._socket, n_bytes_in_all - n_bytes, self._poll)
        except (EOFError, ConnectionResetError):
            with _PROCESSES:
                self._process.join(CLOSING_SECONDS)
                words = f"{self._name} died (exit code {self._process.exitcode})"
            raise EnvError(words) from None
        if is_error:
            raise EnvError(f"{self._name} failed:\n{message[HEAD.size :].decode().strip()}")
        self._patience_seconds = self._timeout_seconds
        return _unpack(message, self._n_envs)

    def hang_up(self) -> None:
        """Tell the process to end, without waiting for it."""
        self._hung_up_at = self._hung_up_at or time.monotonic()
        self._socket.close()

    def end(self) -> None:
        """Wait until a moment after it was told for the process to end, then make it."""
        atexit.unregister(self.end)
        self.hang_up()
        assert self._hung_up_at is not None
        with _PROCESSES:
            self._process.join(max(0.0, self._hung_up_at + CLOSING_SECONDS - time.monotonic()))
            if self._process.is_alive():
                self._process.kill()
                self._process.join()

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
# that another thread is just waiting for.
_PROCESSES = threading.Lock()


@functools.cache
def _context() -> Any:
    """Return the way to start processes: a fork server that holds `a3c.env`, or else spawn."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["a3c.env"])
    # What a shell allows is often 1024.
    with contextlib.suppress(ValueError, OSError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with _ignored_signals(), _server_environment():
        multiprocessing.forkserver.ensure_running()
    return context


def check_limit_of_files(n_processes: int) -> None:
    """EnvError where this process may not open as many files as so many processes take."""
    _context()  # which has raised the limit as far as that goes
    needed = FILES_BESIDES + FILES_PER_PROCESS * n_processes
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and needed > most:
        raise EnvError(
            f"{n_processes} environment processes take {needed} open files,"
            f" and the system allows {most} (ulimit -Hn)"
        )


@contextlib.contextmanager
def _ignored_signals() -> Iterator[None]:
    """Ignore the signals that stop a run, for what is started meanwhile inherits that.

    Ctrl-C goes to every process of the terminal, but only the main process is to act on it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Only the main thread may; _serve ignores them too, if a moment later.
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: not set by Python, so not ours to put back.
                signal.signal(number, handler)


@contextlib.contextmanager
def _server_environment() -> Iterator[None]:
    """Let a fork server that starts meanwhile find this package, and keep it single-threaded.

    It looks for the modules it is to load in the working directory only, which need not be ours;
    and what forks should have one thread, while OpenBLAS starts its own when loaded.
    """
    root = str(pathlib.Path(__file__).resolve().parent.parent)
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


def _serve(
    worker: socket.socket,
    makes: Sequence[Callable[[], gymnasium.Env]],
    memory: SharedObservations,
    first: int,
) -> None:
    """Be one environment process until the worker hangs up."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    _end_with_the_run()
    cv2.setNumThreads(0)
    try:
        envs = [make() for make in makes]
        monitors = [_find_monitor(env) for env in envs]
        slots, final = memory.views()
        rows = range(first, first + len(envs))
        request = _request(len(envs))
        worker.sendall(_pack([Answer(False, False, 0.0, 0, [])] * len(envs)))
        while True:
            slot, *actions = request.unpack(_receive_exactly(worker, request.size))
            answers = [
                _do(action, env, monitor, slots[slot, row], final[row])
                for action, env, monitor, row in zip(actions, envs, monitors, rows, strict=True)
            ]
            worker.sendall(_pack(answers))
    except Exception:
        # That the worker has hung up comes here as well: there is nobody left to read this then.
        text = traceback.format_exc().encode(errors="backslashreplace")
        text = text.ljust(_least_n_bytes(len(makes)) - HEAD.size)
        with contextlib.suppress(OSError):
            worker.sendall(HEAD.pack(True, HEAD.size + len(text)) + text)


def _do(
    action: int, env: gymnasium.Env, monitor: Monitor, observation: np.ndarray, final: np.ndarray
) -> Answer:
    """Reset or step one environment, and write what is seen then."""
    if action == RESET:
        observation[...], _ = env.reset()
        return Answer(False, False, 0.0, monitor.n_frames, [])
    seen, reward, terminated, truncated, _ = env.step(action)
    if truncated:
        final[...] = seen
    if terminated or truncated:
        seen, _ = env.reset()
    observation[...] = seen
    games = monitor.take_finished()
    return Answer(terminated, truncated, float(reward), monitor.n_frames, games)


def _end_with_the_run() -> None:
    """Have the system kill this process when the run is gone, whatever the environment does then.

    No thread of ours could do it where the environment hangs in code that holds Python's lock. The
    pipe is the one by which a child sees that its parent is gone: nothing comes out but its end.
    """
    run = multiprocessing.parent_process()
    if run is None or not hasattr(fcntl, "F_SETSIG"):
        return
    fcntl.fcntl(run.sentinel, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(run.sentinel, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(run.sentinel, fcntl.F_SETFL, os.O_ASYNC)
    if not run.is_alive():  # already, before we had told the system
        os._exit(0)


def _request(n_envs: int) -> struct.Struct:
    """The slot, and of each environment its action or RESET."""
    return struct.Struct(f"={1 + n_envs}i")


def _least_n_bytes(n_envs: int) -> int:
    """No message to a worker is shorter, and few are longer: so it is read in one go."""
    return HEAD.size + n_envs * ANSWER.size


def _pack(answers: Sequence[Answer]) -> bytes:
    parts = []
    for *step, games in answers:
        parts.append(ANSWER.pack(*step, len(games)))
        parts += [GAME.pack(*game) for game in games]
    body = b"".join(parts)
    return HEAD.pack(False, HEAD.size + len(body)) + body


def _unpack(message: bytes, n_envs: int) -> list[Answer]:
    answers, at = [], HEAD.size
    for _ in range(n_envs):
        terminated, truncated, reward, n_frames, n_games = ANSWER.unpack_from(message, at)
        at += ANSWER.size
        games = [Game(*GAME.unpack_from(message, at + i * GAME.size)) for i in range(n_games)]
        at += n_games * GAME.size
        answers.append(Answer(terminated, truncated, reward, n_frames, games))
    return answers


def _find_monitor(env: Any) -> Monitor:
    while not isinstance(env, Monitor):
        env = env.env
    return env


def _receive_exactly(
    connection: socket.socket, n_bytes: int, poll: Callable[[], None] = lambda: None
) -> bytes:
    """Receive `n_bytes`; EOFError if the other side hangs up before; `poll` at each timeout."""
    data = b""
    while len(data) < n_bytes:
        try:
            more = connection.recv(n_bytes - len(data))
        except TimeoutError:
            poll()
            continue
        if not more:
            raise EOFError
        data += more
    return data
