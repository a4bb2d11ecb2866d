"""Where every random draw comes from: one stream for each (run seed, purpose, worker, env, game).

`numpy.random.SeedSequence` mixes this key into the run's seed, so streams with different keys are
independent, and worker 0 draws the same numbers whether it is alone or one of 16. Each game has its
own stream, so a resumed run begins a new game without replaying old ones.
"""

import enum

import numpy as np


class Purpose(enum.IntEnum):
    """What a stream is for; every golden result depends on these numbers, so never change them."""

    WEIGHTS = 0
    ACTIONS = 1
    NOOPS = 2
    EMULATOR = 3
    EVALUATION = 4


def seed_sequence(
    run_seed: int, purpose: Purpose, worker: int = 0, env: int = 0, game: int = 0
) -> np.random.SeedSequence:
    return np.random.SeedSequence(run_seed, spawn_key=(int(purpose), worker, env, game))


def generator(
    run_seed: int, purpose: Purpose, worker: int = 0, env: int = 0, game: int = 0
) -> np.random.Generator:
    """A new generator at the start of one stream."""
    return np.random.default_rng(seed_sequence(run_seed, purpose, worker, env, game))
