"""An environment process, and what passes between it and a worker.

The worker and the processes of its K environments share memory: arrays with a row for each
environment (`Rows`). A socket only says whose turn it is: requests go to the process, and bells
return. `observations` has slots 0 to T, so that a whole rollout of T steps lies in one array. This
is what happens if the process holds the worker's environments 0 and 1:

    worker                                   process
                                             builds both environments
                                   <- bell
    RESET, slot 0                  ->        observations[0, 0:2] = first of a new game
                                   <- bell
    actions[0:2] = 3, 2
    STEP, slot 1                   ->        observations[1, 0:2], rewards[0:2] and the others
                                   <- bell
    reads these rows; and so on with slot 2, slot 3, ...
    closes the socket              ->        ends

Where somebody watches, pictures of the frames come before the bell, and a game's end is the last
picture: no other game begins.

Each side writes only in its own turn. Where an episode ends, the step resets the environment as
well: `observations` has the first of the next episode, and `final_observations` the last before a
truncation. A bell may carry text: the games that ended, or an error.
"""

import contextlib
import fcntl
import json
import multiprocessing
import os
import select
import signal
import socket
import struct
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.sharedctypes import RawArray
from typing import Any, NamedTuple, TypeAlias

import cv2
import gymnasium
import numpy as np

from a3c.contract import EnvDescription
from a3c.envs.score import Score
from a3c.machine.stopping import SIGNALS

RESET, STEP = range(2)
REQUEST = struct.Struct("=BI")  # RESET or STEP, and the slot
BELL, ERROR, PICTURE = range(3)
ANSWER = struct.Struct("=BI")  # BELL, ERROR or PICTURE, and how many bytes follow
SIZE = struct.Struct("=HH")  # of a picture: its height and width, before its RGB pixels


class NotFinite(Exception):
    """A reward or an observation is not finite; names the environment, its step and the value."""


class Rows(NamedTuple):
    """The arrays that a worker shares with the processes of its K environments."""

    observations: np.ndarray  # (n_slots, K, ...)
    final_observations: np.ndarray  # (K, ...): the last before a truncation
    # (K,) int32 or, if they are continuous, (K, n) float32; the worker writes this one, and the
    # processes the others
    actions: np.ndarray
    rewards: np.ndarray  # (K,) float32
    terminated: np.ndarray  # (K,) bool
    truncated: np.ndarray  # (K,) bool
    n_frames: np.ndarray  # (K,) int64: stepped so far, also by processes that were replaced

    def clear(self, envs: slice) -> None:
        """Set these environments' rewards to 0 and their ends to False."""
        self.rewards[envs] = 0
        self.terminated[envs] = self.truncated[envs] = False


class SharedMemory:
    """Memory for `Rows`, without a name, so that a killed run leaves none behind.

    It can only be handed to a process while that is being started.
    """

    def __init__(self, description: EnvDescription, n_slots: int, n_envs: int) -> None:
        shape, dtype = description.observation_shape, description.observation_dtype
        n, is_continuous = description.n_actions, description.is_continuous
        of_actions = ("float32", (n_envs, n)) if is_continuous else ("int32", (n_envs,))
        self._layout = np.dtype(
            [
                ("observations", dtype, (n_slots, n_envs, *shape)),
                ("final_observations", dtype, (n_envs, *shape)),
                ("actions", *of_actions),
                ("rewards", "float32", (n_envs,)),
                ("terminated", "bool", (n_envs,)),
                ("truncated", "bool", (n_envs,)),
                ("n_frames", "int64", (n_envs,)),
            ],
            align=True,
        )
        self._bytes = RawArray("B", self._layout.itemsize)

    def rows(self) -> Rows:
        whole = np.frombuffer(self._bytes, self._layout)
        return Rows(*(whole[name][0] for name in Rows._fields))


class Share(NamedTuple):
    """The part of a worker's environments that one process holds."""

    envs: range  # their rows in the memory
    makes: Sequence[Callable[..., gymnasium.Env]]
    memory: SharedMemory
    name: str  # of the worker and the environments, for messages
    fraction_seen: float = 0.0  # of the frames, the fraction whose pictures the worker gets


def serve(shares: Sequence[tuple[socket.socket, Share]]) -> None:
    """The main function of an environment process; returns when one of its workers hangs up."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    _end_with_the_run()
    cv2.setNumThreads(0)
    poll = select.poll()
    servers = {worker.fileno(): _Server(worker, share) for worker, share in shares}
    try:
        for number, server in servers.items():
            server.build()
            poll.register(number, select.POLLIN)
        while True:
            for number, _ in poll.poll():
                server = servers[number]
                if not server.answer():
                    return
    except Exception as raised:
        told = f" {raised}" if isinstance(raised, NotFinite) else f"\n{traceback.format_exc()}"
        error = f"{server.share.name} failed:{told}"
        for each in servers.values():
            prefix = "" if each is server else f"{each.share.name} shared a process: "
            each.ring(prefix + error, is_error=True)


_Env: TypeAlias = tuple[int, gymnasium.Env, Score]  # with its row in the memory


class _Server:
    """What a process does for one of its workers."""

    def __init__(self, worker: socket.socket, share: Share) -> None:
        self._worker = worker
        self.share = share
        self._envs: list[_Env] = []

    def build(self) -> None:
        self._rows = self.share.memory.rows()
        watched: dict[str, Any] = {}
        if self.share.fraction_seen:
            # Pygame, which draws CartPole, looks for a display even to draw in memory, and greets.
            os.environ |= {"SDL_VIDEODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
            watched = {"see": self._show, "fraction_seen": self.share.fraction_seen}
        for row, make in zip(self.share.envs, self.share.makes, strict=True):
            env = make(**watched)
            score: Any = env
            while not isinstance(score, Score):
                score = score.env
            score.n_frames = int(self._rows.n_frames[row])  # by processes that this one replaces
            self._envs.append((row, env, score))
        self.ring()

    def answer(self) -> bool:
        """Do what the next request asks for; False if the worker has hung up instead."""
        request = b""
        with contextlib.suppress(OSError):
            request = self._worker.recv(REQUEST.size, socket.MSG_WAITALL)
        if not request:
            return False
        what, slot = REQUEST.unpack(request)
        self._reset(slot, self._envs if what == RESET else self._step(slot))
        games = []
        for row, _, score in self._envs:
            self._rows.n_frames[row] = score.n_frames
            if what == STEP:
                games += score.take_finished()
        self.ring(json.dumps(games) if games else "")
        return True

    def _step(self, slot: int) -> list[_Env]:
        """Step each environment; returns those whose episode ended and that go on."""
        rows, ended = self._rows, []
        actions = rows.actions.tolist() if rows.actions.ndim == 1 else rows.actions
        for each in self._envs:
            row, env, _ = each
            seen, reward, terminated, truncated, _ = env.step(actions[row])
            if truncated:
                rows.final_observations[row] = seen
            if terminated or truncated:
                ended.append(each)
            rows.observations[slot, row] = seen
            rows.rewards[row] = reward
            rows.terminated[row] = terminated
            rows.truncated[row] = truncated
        self._check("reward", rows.rewards)
        self._check("observation", rows.observations[slot])
        return [] if self.share.fraction_seen else ended

    def _reset(self, slot: int, envs: list[_Env]) -> None:
        for row, env, _ in envs:
            self._rows.observations[slot, row], _ = env.reset()
        if envs:
            self._check("observation", self._rows.observations[slot])

    def _check(self, what: str, values: np.ndarray) -> None:
        """Raise NotFinite where a value is not finite, in float32 as the agent gets it."""
        envs = self.share.envs
        if values.dtype.kind != "f" or np.isfinite(values[envs.start : envs.stop]).all():
            return
        for row, _, score in self._envs:
            for place in np.argwhere(~np.isfinite(values[row])):
                which = f"{what}{''.join(f'[{i}]' for i in place)} of environment {row}"
                value = values[row][tuple(place)]
                raise NotFinite(f"{which} is {value} at step {score.length} of its game")

    def ring(self, text: str = "", is_error: bool = False) -> None:
        self._send(ERROR if is_error else BELL, text.encode(errors="backslashreplace"))

    def _show(self, picture: np.ndarray) -> None:
        self._send(PICTURE, SIZE.pack(*picture.shape[:2]) + picture.tobytes())

    def _send(self, kind: int, content: bytes) -> None:
        with contextlib.suppress(OSError):  # the worker has hung up, as `answer` will notice
            self._worker.sendall(ANSWER.pack(kind, len(content)) + content)


def _end_with_the_run() -> None:
    """Have the system kill this process once the run is gone, whatever an environment does then.

    A thread of ours could not do it while the environment hangs in code that holds the GIL. The
    sentinel is a pipe that the system closes when the parent exits.
    """
    run = multiprocessing.parent_process()
    assert run is not None
    fcntl.fcntl(run.sentinel, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(run.sentinel, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(run.sentinel, fcntl.F_SETFL, os.O_ASYNC)
    if not run.is_alive():  # it ended before the system was told
        os._exit(0)
