"""The process's side of an environment process, and the messages between it and a worker.

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
"""

import contextlib
import fcntl
import multiprocessing
import os
import select
import signal
import socket
import struct
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.sharedctypes import RawArray
from typing import Any, NamedTuple

import cv2
import gymnasium
import numpy as np

from a3c.envs.score import Game, Monitor
from a3c.machine.stopping import SIGNALS

RESET = -1  # for an action
HEAD = struct.Struct("=?I")  # is this an error? how many bytes, with these
ANSWER = struct.Struct("=??dqI")  # terminated, truncated, reward, frames, how many games follow
GAME = struct.Struct("=dqd")  # score, length, seconds


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
        self._slots = RawArray("B", n_slots * n_bytes)
        self._final = RawArray("B", n_bytes)
        self._shape = (n_envs, *shape)
        self._dtype = dtype

    def views(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the slots, (n_slots, n_envs, *shape), and final observations, (n_envs, *shape)."""
        return (
            np.frombuffer(self._slots, self._dtype).reshape(-1, *self._shape),
            np.frombuffer(self._final, self._dtype).reshape(self._shape),
        )


class Part(NamedTuple):
    """What one worker has in a process."""

    worker: socket.socket  # the process's end of the pair
    makes: Sequence[Callable[[], gymnasium.Env]]
    memory: SharedObservations
    first: int  # row of it
    name: str


def serve(parts: Sequence[Part]) -> None:
    """Be one environment process until a worker hangs up."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    _end_with_the_run()
    cv2.setNumThreads(0)
    poll = select.poll()
    served = {}
    for part in parts:
        poll.register(part.worker, select.POLLIN)
        served[part.worker.fileno()] = part, _Served(part)
    part = parts[0]  # who is being served
    try:
        for number in served:
            part, envs = served[number]
            envs.build()
        while True:
            for number, _ in poll.poll():
                part, envs = served[number]
                envs.answer()
    except _HungUpError:
        for _, envs in served.values():
            envs.write_what_waits()
    except Exception:
        text = f"{part.name} failed:\n{traceback.format_exc()}".encode(errors="backslashreplace")
        for each in parts:
            padded = text.ljust(least_n_bytes(len(each.makes)) - HEAD.size)
            with contextlib.suppress(OSError):
                each.worker.sendall(HEAD.pack(True, HEAD.size + len(padded)) + padded)


class _HungUpError(Exception):
    """A worker wants no more."""


class _Served:
    """The environments of one worker, in their process."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._request = request_struct(len(part.makes))
        self._monitors: list[Monitor] = []

    def build(self) -> None:
        part = self._part
        self._envs = [make() for make in part.makes]
        self._monitors = [_find_monitor(env) for env in self._envs]
        self._slots, self._final = part.memory.views()
        self._send([Answer(False, False, 0.0, 0, [])] * len(self._envs))

    def answer(self) -> None:
        """Do what one request asks for."""
        try:
            request = receive_exactly(self._part.worker, self._request.size)
        except (EOFError, OSError):
            raise _HungUpError from None
        slot, *actions = self._request.unpack(request)
        rows = range(self._part.first, self._part.first + len(actions))
        answers = [
            _do(action, env, monitor, self._slots[slot, row], self._final[row])
            for action, env, monitor, row in zip(
                actions, self._envs, self._monitors, rows, strict=True
            )
        ]
        self._send(answers)

    def write_what_waits(self) -> None:
        """Write what a full disk has kept from the monitor files, if there is room now."""
        for monitor in self._monitors:
            monitor.write_what_waits()

    def _send(self, answers: Sequence[Answer]) -> None:
        try:
            self._part.worker.sendall(pack(answers))
        except OSError:
            raise _HungUpError from None


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


def request_struct(n_envs: int) -> struct.Struct:
    """The slot, and of each environment its action or RESET."""
    return struct.Struct(f"={1 + n_envs}i")


def least_n_bytes(n_envs: int) -> int:
    """No message to a worker is shorter, and few are longer: so it is read in one go."""
    return HEAD.size + n_envs * ANSWER.size


def pack(answers: Sequence[Answer]) -> bytes:
    parts = []
    for *step, games in answers:
        parts.append(ANSWER.pack(*step, len(games)))
        parts += [GAME.pack(*game) for game in games]
    body = b"".join(parts)
    return HEAD.pack(False, HEAD.size + len(body)) + body


def unpack(message: bytes, n_envs: int) -> list[Answer]:
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


def receive_exactly(
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
