"""Rollouts of the network for vectors are collected in the environments' processes.

To hand each step of a cheap environment from process to process, and from thread to thread, takes
several times as long as the step. So each process of a worker's environments has a `Collector`, with
a network in NumPy, and the worker asks for whole rollouts:

    worker's thread                          each of its environments' processes
    weights, moments (shared memory)   ->
    the generator's state              ->    acts and steps T times
                                       <-    rollout          (shared memory)
    learns                             <-    games, the generator's state

What decides the course of a run stays in the worker: a process begins each rollout with the generator
that it is given. All processes of a worker draw for all of its environments, and use their rows, so a
rollout is the one that a `Collector` in the worker's thread would collect. If a process breaks, more is
lost than with a `Collector`: the whole rollout of its environments, with the games that ended in it.

With --debug, the worker's thread collects, because it writes the log.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from a3c.agent import collector, moments, network, vectors
from a3c.agent.collector import Collector, EnvRestart, rollout_in
from a3c.agent.policy import policy_of
from a3c.contract import Collecting, Environments, EnvProcesses, Game, Moments, Subject
from a3c.settings.params import Params


def collecting(params: Params, subject: Subject) -> Collecting | None:
    """How the processes of a worker's environments collect rollouts; None if they only step."""
    # They do not know a network with which the program that trains has replaced ours.
    if subject.network != "mlp" or not network.is_ours("mlp") or params.debug:
        return None
    arrays = collector.fields(
        params,
        policy_of(subject),
        network.state_size(subject),
        params.envs_per_worker,
        subject.observation_shape,
    )
    n_weights = sum(math.prod(shape) for shape in network.weight_shapes(subject).values())
    arrays["weights"] = np.dtype(np.float32), (n_weights,)
    for name, first in moments.initial(params, subject.observation_shape).items():
        arrays |= {place: (x.dtype, x.shape) for place, x in _parts_of(name, first).items()}
    return Collecting(arrays, functools.partial(_collector, params, subject))


def _parts_of(name: str, running: Moments) -> dict[str, np.ndarray]:
    return {f"{name}_mean": running.mean, f"{name}_squares": running.squares}


def _collector(
    params: Params,
    subject: Subject,
    envs: Environments,
    arrays: Mapping[str, np.ndarray],
    rows: slice,
    is_stopped: Callable[[], bool],
) -> Callable[[Any], dict[str, Any]]:
    """What collects in a process, with environments that are these rows of a worker's."""
    held = {vectors.BLOCK: arrays["weights"]}
    acting = vectors.Network(subject, vectors.by_name(held, network.weight_shapes(subject)))
    generator = np.random.default_rng()
    # A process cannot replace itself, so it reports nothing.
    made = Collector(
        acting, envs, params, generator, lambda restart: None, is_stopped, arrays, rows
    )

    def collect(asked: dict[str, Any]) -> dict[str, Any]:
        generator.bit_generator.state = asked["generator"]
        running = {
            name: Moments(n, arrays[f"{name}_mean"], arrays[f"{name}_squares"])
            for name, n in asked["n_seen"].items()
        }
        games = made.fill(running)
        state = generator.bit_generator.state
        return {"games": games, "generator": state, "last_mean": made.last_mean}

    return collect


class ProcessCollector:
    """The collectors in the processes of a worker, used as if they were one."""

    def __init__(
        self,
        processes: EnvProcesses,
        generator: np.random.Generator,
        report: Callable[[EnvRestart], None],
    ) -> None:
        self._processes, self._report = processes, report
        self.generator_state = generator.bit_generator.state
        self.arrays, self.rollout = processes.arrays, rollout_in(processes.arrays)
        n_steps, n_envs = self.rollout.rewards.shape
        self.n_steps_collected = 0  # of the rollout
        # This network has no activations to keep.
        self.acted: list[Mapping[str, Any]] = [{}] * n_steps
        self.is_whole = np.ones(n_envs, bool)  # as in `Collector`
        self.last_mean = -1, math.nan  # as in `Collector`

    def fill(self, running: Mapping[str, Moments]) -> list[Game]:
        """Have the rollout filled, as `Collector.fill` does."""
        self.n_steps_collected, self.last_mean = 0, (-1, math.nan)
        self.is_whole[:] = False
        for name, used in running.items():
            for place, x in _parts_of(name, used).items():
                self.arrays[place][...] = x
        n_seen = {name: int(used.n) for name, used in running.items()}
        asked = {"n_seen": n_seen, "generator": self.generator_state}
        games = []
        while not self.is_whole.any():
            for envs, told in self._processes.collect(asked):
                self.is_whole[envs.start : envs.stop] = True
                self.generator_state = told["generator"]
                games += [Game(*game) for game in told["games"]]
                if told["last_mean"][0] >= self.last_mean[0]:
                    self.last_mean = told["last_mean"]
            self.take_replaced()
        self.n_steps_collected = len(self.rollout.rewards)
        games.sort(key=lambda game: (game.step, game.env))  # as one process would tell them
        return games

    def take_replaced(self) -> None:
        """Report what was replaced since the last call."""
        for replaced in self._processes.take_replaced():
            self._report(EnvRestart(replaced.why))
