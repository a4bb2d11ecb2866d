"""One worker: have a rollout collected, learn from it, count it; again and again.

The rollouts come from a `Collector` in this thread, from those in the environments' processes, or
from another machine. In each case the update is made here, and is counted at once.

A rollout is T = steps_per_update steps of the worker's K environments. If this thread collects it, as
always on images, it calls the network (`learner`) T + 1 times: `act` T times, then `learn`. Elsewhere,
processes act with NumPy, and only `learn` is left. Two calls are rare: `evaluate_last` where a time
limit cut an episode off, and `measure` for every 100th rollout of worker 0, at first every 10th.
"""

import contextlib
import functools
import math
import traceback
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from a3c.agent import optimizer
from a3c.agent.collector import EnvRestart
from a3c.agent.learner import Measurement
from a3c.agent.shared import SharedState
from a3c.contract import Collected, Game, Moments, WorkerPosition
from a3c.machine.stopping import StopFlag, Stopped
from a3c.settings.params import Params


class Failure(NamedTuple):
    """The error that ended a worker."""

    worker: int
    error: BaseException
    traceback: str
    # The rollout, its n_steps_collected, and the worker's weights; empty if memory ran out.
    arrays: Mapping[str, np.ndarray] = {}


class RemoteRestart(NamedTuple):
    """A remote worker was lost, with its rollout, and another takes its place."""

    told: str  # which worker, and why


Report: TypeAlias = Game | EnvRestart | RemoteRestart | Measurement | Failure


class MainThreadLink(NamedTuple):
    """How a worker and the main thread reach each other."""

    stop: StopFlag  # every thread watches it, and the first to find that the run is over sets it
    report: Callable[[Report], None]


class Source(Protocol):
    """Where a worker's rollouts come from: environments here (`source`) or elsewhere."""

    n_steps_per_rollout: int

    @property
    def position(self) -> WorkerPosition: ...
    def begin(self) -> None: ...  # be ready to collect, which may take long
    # None if the rollout was lost with what collected it. Then it must begin again.
    def collect(self, moments: Mapping[str, Moments]) -> Collected | None: ...
    def learn(self, learning_rate: float) -> object: ...  # update the shared weights, copy them
    def take(self, weights: np.ndarray) -> None: ...  # in the place of its copy, as one block
    def measure(self) -> Measurement: ...
    def arrays(self) -> dict[str, np.ndarray]: ...
    def end(self) -> None: ...


class Worker:
    """The work of one thread, which calls `run`. Everything is made before the thread starts."""

    def __init__(
        self,
        number: int,
        shared: SharedState,
        source: Source,
        params: Params,
        main: MainThreadLink,
    ) -> None:
        self.number = number
        self._shared, self.source, self._params = shared, source, params
        self._stop, self._report = main
        self._moments: Mapping[str, Moments] = shared.moments  # as of the last update
        # As of the last update. The main thread reads it while the gate is shut.
        self.position = source.position
        # The local weights were copied before any worker ran.
        self._n_updates_at_copy = shared.counters.read().updates
        # The mean value in the episode that ended last. The main thread logs it.
        self.episode_value_mean = math.nan

    def run(self) -> None:
        """Work until the run has its steps or is stopped; the first error stops all workers."""
        try:
            self._begin()
            self._work()
        except Stopped:
            pass
        except BaseException as error:
            self._stop.set()  # before anything slow: nobody is to learn after this
            text, arrays = traceback.format_exc(), {}
            with contextlib.suppress(Exception):  # there may be no memory left
                arrays = self.source.arrays()
            self._report(Failure(self.number, error, text, arrays))
        finally:
            self.source.end()

    def _begin(self) -> None:
        """Get ready to collect. Others may learn meanwhile: then the copy of the weights is renewed."""
        self.source.begin()
        counters = self._shared.counters
        if counters.read().updates > self._n_updates_at_copy:
            with self._shared.gate.shut():
                self.source.take(self._shared.block())
                self._moments = self._shared.moments
                self._n_updates_at_copy = counters.read().updates

    def _work(self) -> None:
        n_rollouts, n_usual = 0, self.source.n_steps_per_rollout
        counters, is_stopped = self._shared.counters, self._stop.is_set
        while not is_stopped() and counters.reserve(n_usual, is_stopped):
            collected = self.source.collect(self._moments)
            if collected is None:
                counters.give_back(n_usual)
                self._begin()
                continue
            if collected.n_steps < n_usual:
                counters.give_back(n_usual - collected.n_steps)
            elif self.number == 0 and is_measured(n_rollouts):
                self._report(self.source.measure())
            with self._shared.gate:
                if is_stopped():
                    return
                try:
                    rate = self._learning_rate(counters.read().steps)
                    learn = functools.partial(self.source.learn, rate)
                    self._moments = self._shared.update(learn, collected.seen)
                except BaseException:
                    self._stop.set()  # before others pass the gate
                    raise
                counts = counters.add_update(
                    collected.n_steps,
                    collected.n_frames,
                    self._n_updates_at_copy,
                    len(collected.games),
                )
                self._n_updates_at_copy = counts.updates
                for game in collected.games:
                    self._report(game._replace(step=counts.steps))
                self.position = collected.position
                if not math.isnan(collected.value_mean):
                    self.episode_value_mean = collected.value_mean
            n_rollouts += 1

    def _learning_rate(self, n_steps_done: int) -> float:
        end = self._params.lr_decay_to_zero_by_n_steps
        return optimizer.learning_rate(self._params.initial_lr, n_steps_done, end)


def is_measured(n_rollouts: int) -> bool:
    """Whether worker 0 measures the rollout that follows so many: more of them at first.

    So the first rows of figures have losses, too. Measuring takes about as long as learning.
    """
    return n_rollouts % (10 if n_rollouts < 100 else 100) == 0
