"""An environment process, and what passes between it and a worker.

The worker and the processes of its K environments share memory: arrays with a row for each
environment (`memory.Rows`). A socket only says whose turn it is: requests go to the process, and bells
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

With a collector in the process, the worker asks for whole rollouts instead, and the bell says what
came of it:

    COLLECT, n bytes, and these    ->        steps slots 1 to T
                                   <- bell

Where somebody watches, pictures of the frames come before the bell, and a game's end is the last
picture: no other game begins.

Each side writes only in its own turn. Where an episode ends, the step resets the environment as
well: `observations` has the first of the next episode, and `final_observations` the last before a
truncation. A bell may carry a message: the games that ended, what the collector says, or an error.
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
from typing import Any, NamedTuple, TypeAlias

import cv2
import gymnasium
import numpy as np

from a3c.contract import Collecting, Game, Replaced, Step
from a3c.envs.memory import SharedMemory
from a3c.envs.score import Score
from a3c.machine.stopping import SIGNALS, Stopped

RESET, STEP, COLLECT = range(3)
REQUEST = struct.Struct("=BI")  # RESET or STEP, and the slot; COLLECT, and how many bytes follow
BELL, ERROR, PICTURE = range(3)
ANSWER = struct.Struct("=BI")  # BELL, ERROR or PICTURE, and how many bytes follow
SIZE = struct.Struct("=HH")  # of a picture: its height and width, before its RGB pixels


class NotFinite(Exception):
    """A reward or an observation is not finite; names the environment, its step and the value."""


class Share(NamedTuple):
    """The part of a worker's environments that one process holds."""

    envs: range  # their rows in the memory
    makes: Sequence[Callable[..., gymnasium.Env]]
    memory: SharedMemory
    name: str  # of the worker and the environments, for messages
    fraction_seen: float = 0.0  # of the frames, the fraction whose pictures the worker gets
    collecting: Collecting | None = None


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
            each.ring((prefix + error).encode(errors="backslashreplace"), is_error=True)


_Env: TypeAlias = tuple[int, gymnasium.Env, Score]  # with its row in the memory


class _Server:
    """What a process does for one of its workers; implements `contract.Environments` for a collector."""

    def __init__(self, worker: socket.socket, share: Share) -> None:
        self._worker = worker
        self.share = share
        self._envs: list[_Env] = []
        self._ended = select.poll()
        self._ended.register(worker, select.POLLIN)

    def build(self) -> None:
        memory, envs = self.share.memory, self.share.envs
        self._rows, self._ours = memory.rows(), slice(envs.start, envs.stop)
        self.observations = self._rows.observations[:, self._ours]
        self.final_observations = self._rows.final_observations[self._ours]
        self._unstepped = list(envs)  # environments without a step in their present game
        watched: dict[str, Any] = {}
        if self.share.fraction_seen:
            # Pygame, which draws CartPole, looks for a display even to draw in memory, and greets.
            os.environ |= {"SDL_VIDEODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
            watched = {"see": self._show, "fraction_seen": self.share.fraction_seen}
        for row, make in zip(envs, self.share.makes, strict=True):
            env = make(**watched)
            score: Any = env
            while not isinstance(score, Score):
                score = score.env
            score.n_frames = int(self._rows.n_frames[row])  # by processes that this one replaces
            self._envs.append((row, env, score))
        if self.share.collecting:
            self._collect = self.share.collecting.collector(
                self, memory.arrays(), self._ours, self._is_hung_up
            )
        self.ring()

    def answer(self) -> bool:
        """Do what the next request asks for; False if the worker has hung up instead."""
        request = self._receive(REQUEST.size)
        if not request:
            return False
        what, n = REQUEST.unpack(request)
        told: object = None
        if what == RESET:
            self.reset(n)
        elif what == STEP:
            told = self._step_all(n)
        elif asked := self._receive(n):
            try:
                told = self._collect(json.loads(asked))
            except Stopped:
                return False
        self.ring(json.dumps(told).encode() if told else b"")
        return True

    def _receive(self, n_bytes: int) -> bytes:
        with contextlib.suppress(OSError):
            return self._worker.recv(n_bytes, socket.MSG_WAITALL)
        return b""

    def _is_hung_up(self) -> bool:
        """Asked while the worker waits for a rollout, and sends nothing else."""
        return bool(self._ended.poll(0))

    @property
    def n_frames(self) -> int:
        return int(self._rows.n_frames[self._ours].sum())

    @property
    def next_games(self) -> list[int]:
        return self._rows.next_games[self._ours].tolist()

    def take_replaced(self) -> Sequence[Replaced]:
        return ()

    def reset(self, slot: int) -> None:
        self._reset(slot, self._envs)
        self._count_frames()

    def step(self, actions: np.ndarray, slot: int) -> Step:
        rows, ours = self._rows, self._ours
        rows.actions[ours] = actions
        games = self._step_all(slot)
        return Step(rows.rewards[ours], rows.terminated[ours], rows.truncated[ours], games)

    def _step_all(self, slot: int) -> list[Game]:
        """Step each environment, and reset those whose episode ended; returns the games that ended."""
        if self._unstepped:
            self._rows.next_games[self._unstepped] += 1
            self._unstepped = []
        self._reset(slot, self._step(slot))
        self._count_frames()
        games = []
        for row, _, score in self._envs:
            for game in score.take_finished():
                games.append(game)
                if game.length:
                    self._unstepped.append(row)
                else:  # it ended during the no-ops of its start
                    self._rows.next_games[row] += 1
        return games

    def _count_frames(self) -> None:
        for row, _, score in self._envs:
            self._rows.n_frames[row] = score.n_frames

    def _step(self, slot: int) -> list[_Env]:
        """Step each environment; returns those whose episode ended and that go on."""
        rows, ended = self._rows, []
        actions = rows.actions.tolist() if rows.actions.ndim == 1 else rows.actions
        for each in self._envs:
            row, env, _ = each
            seen, reward, terminated, truncated, _ = env.step(actions[row])
            self._put(seen, slot, row)
            if truncated:
                rows.final_observations[row] = seen
            if terminated or truncated:
                ended.append(each)
            rows.rewards[row] = reward
            rows.terminated[row] = terminated
            rows.truncated[row] = truncated
        self._check("reward", rows.rewards)
        self._check("observation", rows.observations[slot])
        return [] if self.share.fraction_seen else ended

    def _reset(self, slot: int, envs: list[_Env]) -> None:
        for row, env, _ in envs:
            self._put(env.reset()[0], slot, row)
        if envs:
            self._check("observation", self._rows.observations[slot])

    def _put(self, seen: np.ndarray, slot: int, row: int) -> None:
        if np.shape(seen) != (shape := self._rows.observations.shape[2:]):
            # NumPy would repeat a single number.
            raise ValueError(f"an observation has the shape {np.shape(seen)}, its space {shape}")
        self._rows.observations[slot, row] = seen

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

    def ring(self, message: bytes = b"", is_error: bool = False) -> None:
        self._send(ERROR if is_error else BELL, message)

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
