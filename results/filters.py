"""How many filters of the first convolution an agent does not use, since they give 0 in every state.

    .venv/bin/python -m results.filters runs/<run> ...

The states are every tenth of 400 steps of random play.
"""

import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

import a3c
from a3c.store import checkpoint

N_STEPS, EVERY = 400, 10
STRIDE = 4  # of both image networks


def main(argv: Sequence[str]) -> int:
    """Print it for each run."""
    for path in map(pathlib.Path, argv):
        found, _ = checkpoint.read_newest(path)
        weights = found.snapshot.weights
        kernel, bias = weights["conv1_kernel"], weights["conv1_bias"]
        n_silent = silent(states_of(path), kernel, bias)
        print(f"{path}: {n_silent} of {len(bias)} filters after {found.n_steps:,} steps")
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


def silent(states: np.ndarray, kernel: np.ndarray, bias: np.ndarray) -> int:
    """How many filters give 0, after ReLU, at every place of every state."""
    height, width, _, n_filters = kernel.shape
    windows = sliding_window_view(states, (height, width), axis=(1, 2))[:, ::STRIDE, ::STRIDE]
    sums = np.einsum("bijchw,hwcf->bijf", windows / np.float32(255), kernel, optimize=True)
    return n_filters - int(np.any(sums + bias > 0, axis=(0, 1, 2)).sum())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
