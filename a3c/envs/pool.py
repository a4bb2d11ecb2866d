"""The environments of one worker: they run in other processes, and it steps them together."""

import functools
import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from a3c.contract import Collecting, EnvDescription, Game, Replaced, Step
from a3c.envs.fleet import Fleet
from a3c.envs.make import make_env
from a3c.envs.memory import SharedMemory
from a3c.envs.process import CLOSING_SECONDS, Connection, EnvError, EnvProcess
from a3c.envs.serve import COLLECT, RESET, STEP, Share
from a3c.settings.params import Params


class Pool:
    """Implements `contract.EnvProcesses`, for one thread at a time.

    A process that dies, hangs or raises is replaced as long as the fleet allows it, and the new one
    begins new games. What the old one was doing is lost: the step, or the whole rollout with the games
    that ended in it. Beyond the fleet's limit, a process that breaks raises EnvError; after that only
    `take_replaced` and `close` may be called.
    """

    def __init__(
        self,
        params: Params,
        description: EnvDescription,
        worker: int,
        n_slots: int,
        first_games: Sequence[int],
        fleet: Fleet,
        collecting: Collecting | None = None,
    ) -> None:
        """Start the processes, without waiting until they have built their environments."""
        n_envs = len(first_games)
        self._params, self._worker, self._fleet = params, worker, fleet
        self._collecting = collecting
        self._memory = SharedMemory(description, n_slots, n_envs, collecting)
        self._rows = self._memory.rows()
        self.observations = self._rows.observations
        self.final_observations = self._rows.final_observations
        self.arrays = self._memory.arrays()
        self._rows.next_games[:] = first_games
        # As of the latest bell: what a process wrote before it broke does not count.
        self.next_games = list(first_games)
        self._n_frames_heard = np.zeros(n_envs, np.int64)
        self._replaced: list[Replaced] = []
        self._is_ready = False
        processes = fleet.processes_for(worker)
        shares = np.array_split(range(n_envs), len(processes))
        self._connections: list[Connection] = []
        try:
            for share, process in zip(shares, processes, strict=True):
                self._connections.append(self._connect(range(share[0], share[-1] + 1), process))
        except BaseException:
            self.close()
            raise

    @property
    def n_frames(self) -> int:
        """Frames stepped so far, resets included; of vector environments, steps."""
        return int(self._n_frames_heard.sum())

    def wait_until_ready(self) -> None:
        """Wait until every environment is built; an error in building is raised here."""
        if not self._is_ready:
            self._hear_all()
            self._is_ready = True

    def reset(self, slot: int) -> None:
        """Start new games; the next step returns those that ended in the no-ops of their start."""
        self.wait_until_ready()
        self._rows.clear(slice(None))
        for connection in self._connections:
            connection.request(RESET, slot)
        self._hear_all(slot)

    def step(self, actions: np.ndarray, slot: int) -> Step:
        """Step every environment, and reset those whose episode ends; fills `observations[slot]`."""
        rows = self._rows
        rows.actions[:] = actions
        for connection in self._connections:
            connection.request(STEP, slot)
        games = [Game(*game) for _, ended in self._hear_all(slot) for game in ended or ()]
        return Step(rows.rewards.copy(), rows.terminated.copy(), rows.truncated.copy(), games)

    def collect(self, asked: object) -> list[tuple[range, Any]]:
        """Have each process collect a rollout; returns what each that did not break says of it."""
        request = json.dumps(asked).encode()
        for connection in self._connections:
            connection.request(COLLECT, len(request), request)
        return self._hear_all(len(self.observations) - 1)

    def take_replaced(self) -> list[Replaced]:
        """Return what was replaced since the last call, also in steps that then failed."""
        replaced, self._replaced = self._replaced, []
        return replaced

    def close(self) -> None:
        """End all processes; those that do not listen are killed after a moment."""
        close_all([self])

    def _connect(self, envs: range, process: EnvProcess) -> Connection:
        makes = [
            functools.partial(make_env, self._params, self._worker, env, int(first))
            for env, first in zip(envs, self._rows.next_games[envs], strict=True)
        ]
        which = (
            f"environments {envs[0]} to {envs[-1]}" if len(envs) > 1 else f"environment {envs[0]}"
        )
        fleet, name = self._fleet, f"worker {self._worker}, {which}"
        fraction_seen = fleet.fraction_seen if fleet.see else 0.0
        share = Share(envs, makes, self._memory, name, fraction_seen, self._collecting)
        return Connection(share, process, fleet.timeout_seconds, fleet.is_stopped, fleet.see)

    def _hear_all(self, slot: int | None = None) -> list[tuple[range, Any]]:
        """Wait for every bell, and return what came with each; replace what broke, whose new games
        begin in `slot`, if given.
        """
        heard = []
        for number, connection in enumerate(self._connections):
            try:
                heard.append((connection.share.envs, connection.receive()))
            except EnvError as error:
                self._replace(number, slot, error)
        self._n_frames_heard[:] = self._rows.n_frames
        self.next_games = self._rows.next_games.tolist()
        return heard

    def _replace(self, number: int, slot: int | None, error: EnvError) -> None:
        """Put a new process in the place of a broken one, again and again until one works."""
        broken = self._connections[number]
        envs, process = broken.share.envs, broken.process
        rows = slice(envs.start, envs.stop)
        # Those that take long to break are few a minute, so a row of them is limited, too.
        for _ in range(self._fleet.restarts_a_minute):
            if not self._fleet.allows_restart(process):
                break
            self._connections[number].end()  # before another process uses its rows
            self._replaced.append(Replaced(envs, str(error)))
            # What the process wrote since the latest bell does not count.
            self._rows.clear(rows)
            self._rows.n_frames[rows] = self._n_frames_heard[rows]
            # The process may have begun that game just before it broke. It is skipped, so that its
            # random numbers are not used twice.
            self._rows.next_games[rows] += 1
            process = EnvProcess()
            try:
                connection = self._connections[number] = self._connect(envs, process)
                connection.receive()
                if slot is not None:
                    connection.request(RESET, slot)
                    connection.receive()
                return
            except EnvError as another:
                error = another
        raise error


def close_all(pools: Sequence[Pool]) -> None:
    """Close many pools, and wait for all of their processes together, at most CLOSING_SECONDS."""
    connections = [connection for pool in pools for connection in pool._connections]
    for connection in connections:
        connection.hang_up()
    deadline = time.monotonic() + CLOSING_SECONDS
    for connection in connections:
        connection.end(deadline)
