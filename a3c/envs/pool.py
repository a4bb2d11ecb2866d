"""The environments of one worker, which it steps together, in processes of their own.

What breaks is replaced here, so that a worker sees a step without reward or end, and is told.
"""

import collections
import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from a3c.envs.make import EnvDescription, EnvSettings, make_env
from a3c.envs.process import EnvError, EnvProcess, Host, RestartLimit
from a3c.envs.score import Game, cut_back, read_n_rows
from a3c.envs.serve import Answer, SharedObservations


class GameResult(NamedTuple):
    """One game that really ended, as Monitor saw it."""

    worker: int
    env: int
    score: float
    length: int
    seconds: float


class Replaced(NamedTuple):
    """A process that broke; the games of its environments were abandoned for new ones."""

    envs: Sequence[int]
    why: str


class StepResult(NamedTuple):
    """What a step of K environments brought, besides observations; arrays are (K,)."""

    rewards: np.ndarray  # float32
    terminated: np.ndarray  # bool
    truncated: np.ndarray  # bool
    games: list[GameResult]
    replaced: Sequence[Replaced] = ()  # since the last step; they got no reward and no end now


class EnvProcesses:
    """The K environments of one worker, stepped together, in processes of their own.

    Used by one thread at a time. With a `restart_limit`, a process that dies, hangs or raises is
    replaced: a new one begins new games in its environments' place, and the next step says so.
    What the broken one was asked for is lost, a game that ended just then included, whose row is
    taken out of the monitor file again. Without a limit, or beyond it, a broken process is an EnvError,
    after which only `close` makes sense.

    observations: (n_slots, K, *shape), shared memory: `step(actions, slot)` fills one slot.
    final_observations: (K, *shape): where an episode was truncated in the last step, its true last
        observation (the slot already holds the first of the next episode).
    n_frames: frames stepped so far, resets included (vectors: steps).
    next_games: of each environment, the number of the game with which a run that stopped here would
        go on: the one under way where no step of it has been taken, else the one after it.
    """

    def __init__(
        self,
        settings: EnvSettings,
        worker: int,
        n_envs: int,
        description: EnvDescription,
        n_slots: int,
        timeout_seconds: float = 60.0,
        first_games: Sequence[int] | None = None,
        restart_limit: RestartLimit | None = None,
        is_stopped: Callable[[], bool] = lambda: False,
        n_processes: int | None = None,
        host: Host | None = None,
        is_taken_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Start the processes; they build their environments after this has returned.

        Environments are spread over `n_processes`, or each has its own; with a `host`, all are in
        that, with those of other workers. What they do does not depend on it.
        Once `is_stopped`, waiting for an answer ends with `stopping.Stopped`. Once `is_taken_over`,
        the monitor's folder is another run's, and no process may open a file there.
        """
        self._memory = SharedObservations(
            n_slots, n_envs, description.observation_shape, description.observation_dtype
        )
        self.observations, self.final_observations = self._memory.views()
        self.n_frames = 0
        self.next_games = [*(first_games or [0] * n_envs)]
        self._settings, self._worker = settings, worker
        self._timeout_seconds, self._is_stopped = timeout_seconds, is_stopped
        self._restart_limit, self._is_taken_over = restart_limit, is_taken_over
        self._ready = False
        # Of each environment: the number of the game under way, the games in its monitor file that
        # we heard of, and the frames of the processes that it has outlived.
        self._games_under_way = list(self.next_games)
        self._monitor_paths = [settings.monitor_path(worker, env) for env in range(n_envs)]
        self._n_rows = [read_n_rows(path) if path else 0 for path in self._monitor_paths]
        # The last of these, which a process that dies while its disk is full has not written.
        self._latest_games = [collections.deque[Game](maxlen=1000) for _ in range(n_envs)]
        # Those of them that a process could not write before it broke.
        self._unwritten: list[list[Game]] = [[] for _ in range(n_envs)]
        self._n_frames_before = [0] * n_envs
        self._n_frames_of_process = [0] * n_envs
        self._replaced: list[Replaced] = []
        shares = np.array_split(range(n_envs), 1 if host else n_processes or n_envs)
        self._shares = [range(share[0], share[-1] + 1) for share in shares]
        self._processes = [self._start(share, host) for share in self._shares]

    @property
    def pids(self) -> list[int]:
        """The process ids, environment 0's first."""
        return [process.host.pid for process in self._processes]

    def wait_until_ready(self) -> None:
        """Wait until every environment is built; an error in building is raised here."""
        if not self._ready:
            self._receive()
            self._ready = True

    def reset(self, slot: int = 0) -> None:
        """Start a new game everywhere.

        Games that end during the no-ops of their start come with the next step's.
        """
        self.wait_until_ready()
        for process in self._processes:
            process.request_reset(slot)
        self._receive(slot)

    def step(self, actions: np.ndarray, slot: int) -> StepResult:
        """Step every environment; one whose episode ends is reset in the same step."""
        of_all = actions.tolist()
        for process, share in zip(self._processes, self._shares, strict=True):
            process.request_step(slot, of_all[share.start : share.stop])
        answers = self._receive(slot, is_step=True)
        replaced, self._replaced = self._replaced, []
        return StepResult(
            rewards=np.array([answer.reward for answer in answers], np.float32),
            terminated=np.array([answer.terminated for answer in answers], np.bool_),
            truncated=np.array([answer.truncated for answer in answers], np.bool_),
            games=[
                GameResult(self._worker, env, *game)
                for env, answer in enumerate(answers)
                for game in answer.games
            ],
            replaced=replaced,
        )

    def hang_up(self) -> None:
        """Tell all processes to end, without waiting for them."""
        for process in self._processes:
            process.hang_up()

    def close(self) -> None:
        """End all processes: at once those that listen, by force those that do not."""
        self.hang_up()
        for process in self._processes:
            process.end()

    def _start(self, share: range, host: Host | None = None) -> EnvProcess:
        envs = (
            f"environment {share[0]}"
            if len(share) == 1
            else f"environments {share[0]} to {share[-1]}"
        )
        return EnvProcess(
            [
                functools.partial(
                    make_env,
                    self._settings,
                    self._worker,
                    env,
                    self._games_under_way[env],
                    unwritten=self._unwritten[env],
                )
                for env in share
            ],
            self._memory,
            share[0],
            f"worker {self._worker}, {envs}",
            self._timeout_seconds,
            self._is_stopped,
            host,
        )

    def _receive(self, slot: int | None = None, is_step: bool = False) -> list[Answer]:
        """The answer of each; one that is replaced has its first observation in `slot`, if any."""
        answers: list[Answer] = []
        for number, share in enumerate(self._shares):
            try:
                of_share, stepped = self._processes[number].receive(), is_step
            except EnvError as error:
                of_share, stepped = self._replace(number, slot, error), False
            for env, answer in zip(share, of_share, strict=True):
                self._games_under_way[env] += len(answer.games)
                has_begun = stepped and not answer.games
                self.next_games[env] = self._games_under_way[env] + has_begun
                self._n_rows[env] += len(answer.games)
                self._latest_games[env].extend(answer.games)
                self._n_frames_of_process[env] = answer.n_frames
            answers += of_share
        self.n_frames = sum(self._n_frames_before) + sum(self._n_frames_of_process)
        return answers

    def _replace(self, number: int, slot: int | None, error: EnvError) -> list[Answer]:
        """Put a new process in a broken one's place, again and again until it works."""
        share, host = self._shares[number], self._processes[number].host
        if self._is_taken_over():
            raise EnvError(f"{error}; and another run has its folder where this run's was")
        while self._restart_limit is not None and self._restart_limit.allows_one_more(host):
            self._processes[number].end()
            self._replaced.append(Replaced(share, str(error)))
            for env in share:
                self._abandon(env)
            host = Host()
            try:
                self._processes[number] = self._start(share, host)
                answers = self._processes[number].receive()
                if slot is not None:
                    self._processes[number].request_reset(slot)
                    answers = self._processes[number].receive()
            except EnvError as another:
                error = another
            else:
                return answers
        raise error

    def _abandon(self, env: int) -> None:
        """Forget the game under way, whose process is gone."""
        path = self._monitor_paths[env]
        n_unheard = n_unwritten = 0
        with contextlib.suppress(OSError):  # closed to us: then to the next process as well
            n_unheard = cut_back(path, self._n_rows[env]) if path else 0
            n_unwritten = max(0, self._n_rows[env] - read_n_rows(path)) if path else 0
        latest = self._latest_games[env]
        self._unwritten[env] = list(latest)[max(0, len(latest) - n_unwritten) :]
        self._n_frames_before[env] += self._n_frames_of_process[env]
        self._n_frames_of_process[env] = 0
        # The broken process may have begun another game without our hearing of it, or ended some.
        # So that their streams are not used again, these are skipped as well.
        self._games_under_way[env] += 1 + max(1, n_unheard)


def close_all(envs: Sequence[EnvProcesses]) -> None:
    """End the processes of many workers; those that do not listen are waited for once, together."""
    for processes in envs:
        processes.hang_up()
    for processes in envs:
        processes.close()
