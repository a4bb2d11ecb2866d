"""Checkpoints of untrained agents, for tests of what plays them."""

import pathlib

import numpy as np

from a3c.agent import network
from a3c.agent.shared import Counters, Counts, SharedState
from a3c.store import checkpoint, checkpoint_files
from a3c.store.checkpoint import Checkpointer
from a3c.store.checkpoint_files import Subject

CARTPOLE = Subject("CartPole-v1", "generic", "mlp", (4,), 2)
SHORT_PONG = Subject("tests.tools.toys:toys/ShortPong-v0", "generic", "small", (84, 84, 4), 6)


def make_weights(subject: Subject, seed: int = 0) -> dict[str, np.ndarray]:
    shapes = network.weight_shapes(subject.network, subject.observation_shape, subject.n_actions)
    return network.initial_weights(shapes, "glorot", np.random.default_rng(seed))


def save(
    folder: pathlib.Path, subject: Subject = CARTPOLE, *, weights_only: bool = False
) -> checkpoint_files.Info:
    """A checkpoint as training writes it at its step 70, or with weights only."""
    shared = SharedState(
        make_weights(subject),
        rmsprop_initial=1.0,
        rmsprop_decay=0.99,
        rmsprop_epsilon=0.1,
        max_grad_norm=1.0,
        counters=Counters(1000, Counts(70, 14, 3, 71)),
    )
    info = checkpoint_files.read_info(Checkpointer(folder, shared, subject, {}, 1).save())
    if not weights_only:
        return info
    checkpoint.save_weights(info, shared.weights, folder / "weights")
    return checkpoint_files.read_info(folder / "weights" / info.prefix.name)
