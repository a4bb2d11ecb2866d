"""The process's side of an environment process, and what passes between it and a worker.

    worker                                        environment process
                       <- bell                    the environments are built
    RESET, slot        -> <- bell                 the first observations are in observations[slot]
    STEP, slot         -> <- bell                 the step that `actions` asked for has been taken;
                                                  after the end of an episode, observations[slot]
                                                  has the first of the next episode
    end of file        ->                         ends: the worker closed the socket, or is gone

All that a step brings lies in memory that both share, in arrays with a row for each of the worker's
K environments (`Rows`); the socket only rings. The process writes its rows between a request and its
bell, and at no other time; the worker reads them after the bell. A bell may bring text: the games
that ended, or an error.

The memory has no name, so that a killed run leaves none behind.
"""

import contextlib
import fcntl
import itertools
import json
import math
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

from a3c.contract import EnvDescription, Game
from a3c.envs.score import Score
from a3c.machine.stopping import SIGNALS

RESET, STEP = range(2)
REQUEST = struct.Struct("=BI")  # which, and the slot
BELL = struct.Struct("=?I")  # is this an error? how many bytes of text follow
ALIGNMENT = 64  # bytes


class Rows(NamedTuple):
    """What the processes of one worker's K environments share with it."""

    observations: np.ndarray  # (n_slots, K, ...)
    final_observations: np.ndarray  # (K, ...): the last before a truncation
    actions: np.ndarray  # (K,) int32; the worker's to write, as all else is the processes'
    rewards: np.ndarray  # (K,) float32
    terminated: np.ndarray  # (K,) bool
    truncated: np.ndarray  # (K,) bool
    n_frames: np.ndarray  # (K,) int64: stepped so far, by the processes of before as well

    def clear(self, envs: slice) -> None:
        """Set these environments' rewards to 0 and their ends to False."""
        self.rewards[envs] = 0
        self.terminated[envs] = self.truncated[envs] = False


class SharedMemory:
    """Memory for `Rows`. Can be handed to a process while that is being started, only then."""

    def __init__(self, description: EnvDescription, n_slots: int, n_envs: int) -> None:
        shape, dtype = description.observation_shape, description.observation_dtype
        self._arrays: list[tuple[tuple[int, ...], str]] = [
            ((n_slots, n_envs, *shape), dtype),
            ((n_envs, *shape), dtype),
            ((n_envs,), "int32"),
            ((n_envs,), "float32"),
            ((n_envs,), "bool"),
            ((n_envs,), "bool"),
            ((n_envs,), "int64"),
        ]
        n_bytes = [math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in self._arrays]
        self._room = [-(-n // ALIGNMENT) * ALIGNMENT for n in n_bytes]
        self._bytes = RawArray("B", sum(self._room))

    def rows(self) -> Rows:
        """Return the arrays in it."""
        starts = itertools.accumulate(self._room, initial=0)
        return Rows(
            *(
                np.frombuffer(self._bytes, dtype, math.prod(shape), start).reshape(shape)
                for (shape, dtype), start in zip(self._arrays, starts, strict=False)
            )
        )


class Part(NamedTuple):
    """What one worker has in a process: environments, and the rows of `memory` from `first` on."""

    worker: socket.socket  # the process's end of the pair
    makes: Sequence[Callable[[], gymnasium.Env]]
    memory: SharedMemory
    first: int
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
        return
    except Exception:
        text = f"{part.name} failed:\n{traceback.format_exc()}"
        for each in parts:
            with contextlib.suppress(OSError):
                each.worker.sendall(_bell(text, is_error=True))


class _HungUpError(Exception):
    """A worker wants no more."""


class _Served:
    """The environments of one worker, in their process."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._envs: list[tuple[int, gymnasium.Env, Score]] = []  # with the row of each

    def build(self) -> None:
        for row, make in enumerate(self._part.makes, self._part.first):
            env = make()
            layer: Any = env
            while not isinstance(layer, Score):
                layer = layer.env
            self._envs.append((row, env, layer))
        self._rows = self._part.memory.rows()
        # Frames stepped by earlier processes, if this one replaces one that broke.
        self._n_frames_before = self._rows.n_frames.tolist()
        self._ring()

    def answer(self) -> None:
        """Do what one request asks for."""
        try:
            what, slot = REQUEST.unpack(receive_exactly(self._part.worker, REQUEST.size))
        except (EOFError, OSError):
            raise _HungUpError from None
        if what == RESET:
            for row, env, _ in self._envs:
                self._rows.observations[slot, row], _ = env.reset()
        else:
            self._step(slot)
        games = []
        for row, _, score in self._envs:
            self._rows.n_frames[row] = self._n_frames_before[row] + score.n_frames
            if what == STEP:
                games += score.take_finished()
        self._ring(games)

    def _step(self, slot: int) -> None:
        rows = self._rows
        actions = rows.actions.tolist()
        for row, env, _ in self._envs:
            seen, reward, terminated, truncated, _ = env.step(actions[row])
            if truncated:
                rows.final_observations[row] = seen
            if terminated or truncated:
                seen, _ = env.reset()
            rows.observations[slot, row] = seen
            rows.rewards[row] = reward
            rows.terminated[row] = terminated
            rows.truncated[row] = truncated

    def _ring(self, games: Sequence[Game] = ()) -> None:
        text = json.dumps(games) if games else ""
        try:
            self._part.worker.sendall(_bell(text))
        except OSError:
            raise _HungUpError from None


def _bell(text: str, is_error: bool = False) -> bytes:
    words = text.encode(errors="backslashreplace")
    return BELL.pack(is_error, len(words)) + words


def _end_with_the_run() -> None:
    """Have the system kill this process when the run is gone, whatever the environment does then.

    No thread of ours could do it where the environment hangs in code that holds the GIL. The
    sentinel is a pipe out of which nothing comes but its end, when the parent is gone.
    """
    run = multiprocessing.parent_process()
    if run is None or not hasattr(fcntl, "F_SETSIG"):
        return
    fcntl.fcntl(run.sentinel, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(run.sentinel, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(run.sentinel, fcntl.F_SETFL, os.O_ASYNC)
    if not run.is_alive():  # already, before we had told the system
        os._exit(0)


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
