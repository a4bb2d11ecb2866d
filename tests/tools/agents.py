"""Checkpoints of untrained agents and empty run folders, for tests of what plays and saves them."""

import pathlib

import numpy as np

from a3c.agent import network
from a3c.contract import Counts, Snapshot, Subject
from a3c.play.agent import Agent
from a3c.store import checkpoint, run_folder
from a3c.store.checkpoint import Checkpoint
from a3c.store.run_folder import RunFolder

CARTPOLE = Subject("CartPole-v1", "generic", "mlp", (4,), 2)
SHORT_PONG = Subject("tests.tools.toys:toys/ShortPong-v0", "generic", "small", (84, 84, 4), 6)


def make_weights(subject: Subject, seed: int = 0) -> dict[str, np.ndarray]:
    shapes = network.weight_shapes(subject.network, subject.observation_shape, subject.n_actions)
    return network.initial_weights(shapes, "glorot", np.random.default_rng(seed))


def make_agent(subject: Subject, greedy: bool = False) -> Agent:
    agent = Agent(subject, greedy)
    agent.set_weights(make_weights(subject))
    return agent


def save(
    folder: pathlib.Path, subject: Subject = CARTPOLE, *, weights_only: bool = False
) -> Checkpoint:
    """A checkpoint as training writes it at its step 70, or with weights only."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = make_weights(subject)
    mean_squares = {} if weights_only else {n: np.ones_like(a) for n, a in weights.items()}
    snapshot = Snapshot(Counts(70, 14, 3, 71), weights, mean_squares)
    checkpoint.write(Checkpoint(checkpoint.path_of(folder, 70), subject, {}, snapshot))
    return checkpoint.read(checkpoint.path_of(folder, 70))


def make_folder(path: pathlib.Path) -> RunFolder:
    """A run's folder that holds what lets it be locked, and nothing else."""
    (path / "checkpoints").mkdir(parents=True)
    for name in (run_folder.ARGS, run_folder.LOCK):
        (path / name).touch()
    return run_folder.open_existing(path)
