"""A remote worker as the run sees it: a source of rollouts like `LocalSource`.

Environments, acting and gradients are in an actor of Ray elsewhere (`actor.py`). Here are its copy of
the weights, and the update. A rollout has a number, and is applied at most once: the next one is asked
for only when it has been, and nothing that a lost actor did counts.
"""

import collections
import math
from collections.abc import Callable, Mapping

import numpy as np

from a3c.agent.blocks import Receiver
from a3c.agent.collector import EnvRestart
from a3c.agent.learner import Measurement
from a3c.agent.worker import RemoteRestart, Report
from a3c.contract import Collected, Moments, WorkerPosition
from a3c.machine.stopping import Stopped
from a3c.run.actor import Setup
from a3c.run.ray_process import (
    POLL_SECONDS,
    Begin,
    Begun,
    Channel,
    Collect,
    Done,
    Failed,
    Lost,
    RayProcess,
)

# A worker that has lost so many actors in a row, without a rollout in between, will lose the next one, too.
MOST_FALSE_STARTS = 3


class RemoteError(Exception):
    """A remote worker cannot go on."""


class RemoteSource:
    """Implements `worker.Source`."""

    def __init__(
        self,
        setup: Setup,
        receiver: Receiver,
        ray_process: RayProcess,
        channel: Channel,
        report: Callable[[Report], None],
        is_over: Callable[[], bool],
    ) -> None:
        """Once the run `is_over`, a wait ends with `Stopped`."""
        self._setup, self._receiver = setup, receiver
        self._ray_process, self._connection = ray_process, channel.connection
        self._report, self._is_over = report, is_over
        self._blocks = channel.blocks(receiver.n_weights)
        self._blocks[0], self._apply = receiver.new_worker()
        self.n_steps_per_rollout = setup.params.steps_per_update * setup.params.envs_per_worker
        self.machine: str | None = None  # where its actor is; None: nowhere
        self.steps = collections.Counter[str]()  # applied, by machine
        self._n_rollouts = 0
        self._n_false_starts = 0
        self._latest: Done | None = None  # collected, but not applied yet

    @property
    def position(self) -> WorkerPosition:
        """Where its latest applied rollout ended."""
        return self._setup.position

    def begin(self) -> None:
        """Get an actor; wait for as long as no machine has room for it."""
        while self.machine is None:
            answer = self._ask(Begin(self._setup, self._receiver.n_weights))
            if isinstance(answer, Lost):
                self._lose(answer)
            else:
                assert isinstance(answer, Begun)
                self.machine = answer.machine

    def collect(self, moments: Mapping[str, Moments]) -> Collected | None:
        """Have a rollout collected; None if its actor is lost."""
        self._n_rollouts += 1
        answer = self._ask(Collect(self._n_rollouts, moments))
        if isinstance(answer, Lost):
            self._lose(answer)
            return None
        assert isinstance(answer, Done)
        if problem := self._problem_of(answer, moments):
            raise RemoteError(f"remote worker {self._setup.worker} answered wrongly: {problem}")
        for why in answer.answer.env_restarts:
            self._report(EnvRestart(why))
        self._latest, self._n_false_starts = answer, 0
        return answer.answer.collected

    def take(self, weights: np.ndarray) -> None:
        self._blocks[0] = weights

    def learn(self, learning_rate: float) -> None:
        """Apply the rollout's gradients, by the same update as a local worker's."""
        assert self._latest is not None
        assert self.machine is not None
        (answer, n), self._latest = self._latest, None
        self._blocks[0] = self._apply(self._blocks[1, :n], learning_rate)
        self._setup = self._setup._replace(position=answer.collected.position)
        self.steps[self.machine] += answer.collected.n_steps

    def measure(self) -> Measurement:
        raise NotImplementedError("only worker 0 measures, and it is never remote")

    def arrays(self) -> dict[str, np.ndarray]:
        """They are elsewhere."""
        return {}

    def end(self) -> None:
        """Its actor ends with the run's connection to Ray."""
        self.machine = None

    def _lose(self, lost: Lost) -> None:
        self.machine = None
        self._n_false_starts += 1
        told = f"remote worker {self._setup.worker} was lost"
        if self._n_false_starts >= MOST_FALSE_STARTS:
            again = f"{MOST_FALSE_STARTS} times without a rollout in between"
            raise RemoteError(f"{told} {again}, the last time: {lost.why}")
        self._report(RemoteRestart(f"{told}, and another takes its place: {lost.why}"))

    def _ask(self, request: Begin | Collect) -> Begun | Done | Lost:
        try:
            self._connection.send(request)
            while not self._connection.poll(POLL_SECONDS):
                if self._is_over():
                    raise Stopped
            answer: Begun | Done | Lost | Failed = self._connection.recv()
        except (EOFError, OSError):
            if self._is_over():
                raise Stopped from None
            raise RemoteError(self._ray_process.last_words()) from None
        if isinstance(answer, Failed):
            raise RemoteError(answer.traceback)
        return answer

    def _problem_of(self, done: Done, moments: Mapping[str, Moments]) -> str | None:
        """What is wrong with an answer, before any of it is applied.

        Applying the gradients checks that they are finite, as for a local worker.
        """
        number, collected, _ = done.answer
        n_steps, unit = collected.n_steps, self._setup.params.steps_per_update
        if number != self._n_rollouts:
            return f"rollout {number} instead of {self._n_rollouts}"
        if n_steps not in range(unit, self.n_steps_per_rollout + 1, unit):
            return f"{n_steps} steps"
        if done.n_gradients not in self._receiver.sizes:
            return f"{done.n_gradients} numbers of gradients"
        if not all(math.isfinite(x) for game in collected.games for x in game[2:]):
            return "a game that is not finite"
        if collected.seen.keys() != moments.keys():
            return f"moments of {[*collected.seen]}"
        for name, (n, *arrays) in collected.seen.items():
            shape = moments[name].mean.shape
            if n != n_steps or any(x.shape != shape or x.dtype != np.float64 for x in arrays):
                return f"moments of {name} of other data"
            if not all(np.isfinite(x).all() for x in arrays):
                return f"moments of {name} that are not finite"
        return None
