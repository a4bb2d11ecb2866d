"""A remote worker's other end, an actor of Ray: its environments, and acting and gradients with them.

It applies nothing: that is done where the run is. What it needs is imported when it begins, because
the process that talks to Ray imports this module.
"""

import platform
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from a3c.contract import Collected, EnvDescription, Moments, Subject, WorkerPosition
from a3c.settings.params import Params

CORES = 1  # of each actor


class Setup(NamedTuple):
    """What an actor is to be."""

    params: Params  # resolved
    subject: Subject
    description: EnvDescription
    worker: int
    position: WorkerPosition  # from where it begins
    code: str  # the digest of the run's a3c/


class Answer(NamedTuple):
    """What comes back of a rollout beside its gradients."""

    number: int  # of the rollout, as it was asked for
    collected: Collected
    env_restarts: list[str]  # why


class Actor:
    """Ray makes one of these for each remote worker, in a process of its own."""

    def begin(self, setup: Setup) -> str:
        """Start TensorFlow and the environments; returns the machine's name."""
        from a3c.agent import process_collector
        from a3c.envs.fleet import Fleet
        from a3c.envs.pool import Pool
        from a3c.machine import cores, place, tensorflow_process
        from a3c.machine.stopping import kept_from_new_threads
        from a3c.store import provenance

        if provenance.digest_of(place.CODE) != setup.code:  # its gradients would be of other losses
            raise RuntimeError(f"{platform.node()} has another version of a3c than the run")
        params, n_envs = setup.params, setup.params.envs_per_worker
        cores.use(str(CORES))
        fleet = Fleet(1, n_envs, params.env_timeout_seconds, restarts_a_minute=10)
        n_slots, games = params.steps_per_update + 1, setup.position.next_games
        # The environments are built while TensorFlow is imported.
        how = process_collector.collecting(params, setup.subject)
        self.pool = Pool(params, setup.description, setup.worker, n_slots, games, fleet, how)
        tensorflow_process.keep_freed_memory()
        with tensorflow_process.hushed(), kept_from_new_threads():
            tensorflow_process.start_tensorflow()
        from a3c.agent import blocks, network, vectors
        from a3c.agent.learner import Learner
        from a3c.agent.source import local_source

        shapes = network.weight_shapes(setup.subject)
        zeros = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        sender = blocks.Sender(vectors.held(params.network, zeros))
        learner = Learner(sender, params, setup.subject, self.pool.observations)
        generator = np.random.default_rng()
        generator.bit_generator.state = setup.position.generator
        self._env_restarts: list[str] = []
        self._source = local_source(
            learner,
            self.pool,
            params,
            generator,
            lambda restart: self._env_restarts.append(restart.why),
        )
        self._source.begin()
        return platform.node()

    def collect(
        self, number: int, weights: np.ndarray, moments: Mapping[str, Moments]
    ) -> tuple[np.ndarray, Answer]:
        """Collect a rollout under these weights and moments; returns its gradients as a block."""
        self._source.local.take(weights)
        collected = self._source.collect(moments)
        block: Any = self._source.learn(0.0)  # the rate is for those who apply it
        restarts, self._env_restarts[:] = self._env_restarts[:], []
        return block.numpy(), Answer(number, collected, restarts)

    def is_alive(self) -> None:
        """Answer in a thread of its own, so also while a rollout is being collected."""
