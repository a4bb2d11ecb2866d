"""A worker's rollouts from environments on this machine, and what its network learns from them."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from a3c.agent.collector import Collector, EnvRestart, moments_in
from a3c.agent.learner import Learner, Measurement
from a3c.agent.local import LocalNetwork, local_network
from a3c.agent.process_collector import ProcessCollector
from a3c.contract import Collected, Environments, EnvProcesses, Moments, WorkerPosition
from a3c.settings.params import Params


class LocalSource:
    """Implements `worker.Source`."""

    def __init__(
        self, local: LocalNetwork, collector: Collector | ProcessCollector, envs: Environments
    ) -> None:
        self.local, self.collector, self._envs = local, collector, envs
        self.n_steps_per_rollout = collector.rollout.rewards.size
        # A call that raised may have replaced a process.
        self.end = collector.take_replaced
        self._n_frames_told = 0

    @property
    def position(self) -> WorkerPosition:
        return WorkerPosition(self.collector.generator_state, list(self._envs.next_games))

    def begin(self) -> None:
        """Begin the first games."""
        # Into the last slot, because a rollout begins with the last slot of the one before.
        self._envs.reset(slot=len(self.collector.rollout.rewards))
        self.collector.take_replaced()

    def collect(self, moments: Mapping[str, Moments]) -> Collected:
        """Collect a rollout, for which `moments` are the running ones."""
        collector, n_frames_before = self.collector, self._n_frames_told
        games = collector.fill(moments)
        self._n_frames_told = self._envs.n_frames
        n_steps = len(collector.rollout.rewards) * int(collector.is_whole.sum())
        n_frames = self._n_frames_told - n_frames_before
        seen = moments_in(collector.arrays, collector.is_whole, moments)
        return Collected(n_steps, n_frames, games, seen, self.position, collector.last_mean[1])

    def learn(self, learning_rate: float) -> Any:
        """Learn from the rollout, as `LocalNetwork.learn` does."""
        collector = self.collector
        if collector.is_whole.all():
            return self.local.learn(collector.rollout, learning_rate, collector.acted)
        return self.local.learn(collector.rollout.of_envs(collector.is_whole), learning_rate, None)

    def take(self, weights: np.ndarray) -> None:
        self.local.take(weights)

    def measure(self) -> Measurement:
        return self.local.measure(self.collector.rollout)

    def arrays(self) -> dict[str, np.ndarray]:
        """For the record of a failure: the rollout, how much of it is new, and the weights."""
        return {
            "n_steps_collected": np.array(self.collector.n_steps_collected),
            **{name: array.copy() for name, array in self.collector.rollout._asdict().items()},
            **{f"weights/{name}": np.array(v) for name, v in self.local.weights.items()},
        }


def local_source(
    learner: Learner,
    envs: EnvProcesses,
    params: Params,
    generator: np.random.Generator,
    report: Callable[[EnvRestart], None],
    is_stopped: Callable[[], bool] = lambda: False,
) -> LocalSource:
    """The source of a worker with these environments; `generator` draws its actions."""
    local = local_network(learner, envs.arrays.get("weights"))
    if envs.arrays:
        return LocalSource(local, ProcessCollector(envs, generator, report), envs)
    return LocalSource(local, Collector(local, envs, params, generator, report, is_stopped), envs)
