"""How many units of each layer an agent does not use, since they give 0 at every place of every state.

    .venv/bin/python -m results.silent runs/<run> ...

ReLU lets no gradient through to such a unit. The states are every tenth of 400 steps of random play.
"""

import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import a3c
from a3c.contract import Subject
from a3c.store import checkpoint

N_STEPS, EVERY = 400, 10


def main(argv: Sequence[str]) -> int:
    """Print it for each run."""
    for path in map(pathlib.Path, argv):
        found, _ = checkpoint.read_newest(path)
        counts = silent(found.subject, found.snapshot.weights, states_of(path))
        words = [f"{n_silent} of {n} of {layer}" for layer, (n_silent, n) in counts.items()]
        print(f"{path}, after {found.n_steps:,} steps: {', '.join(words)}")
    return 0


def states_of(path: pathlib.Path) -> np.ndarray:
    """(B, 84, 84, 4) of random play, as the agent would see them."""
    env: Any = a3c.load_agent(path).make_env(seed=1)
    generator = np.random.default_rng(0)
    observation, _ = env.reset()
    states = []
    for step in range(N_STEPS):
        observation, _, terminated, truncated, _ = env.step(generator.integers(env.action_space.n))
        if terminated or truncated:
            observation, _ = env.reset()
        if step % EVERY == 0:
            states.append(np.array(observation))
    env.close()
    return np.stack(states)


def silent(
    subject: Subject, weights: Mapping[str, np.ndarray], states: np.ndarray
) -> dict[str, tuple[int, int]]:
    """Of each layer, how many units give 0, after ReLU, at every place of every state; and of how many."""
    import tensorflow as tf

    from a3c.agent import kernels, network

    memory = kernels.Memory(np.zeros((len(states), network.state_size(subject)), np.float32))
    layers = kernels.forward(subject, weights, tf.constant(states), memory).activations
    counts = {}
    for name, layer in layers.items():
        is_used = np.any(layer.numpy() != 0, axis=tuple(range(layer.ndim - 1)))
        counts[name] = int((~is_used).sum()), len(is_used)
    return counts


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
