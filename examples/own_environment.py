"""An environment of your own. It is in a module, so that environment processes can import it:

    PYTHONPATH=examples python3 train.py --preset cartpole --n_steps 2e4 own_environment:Corridor-v0

In Python, in this folder: `a3c.train("own_environment:Corridor-v0", preset="cartpole", n_steps=2e4)`.
"""

from typing import Any

import gymnasium
import numpy as np

N_CELLS = 10


class Corridor(gymnasium.Env):
    """A corridor of ten cells. The last one pays 1 and ends the episode; each step costs 0.01."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)  # 0: left, 1: right

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._cell = int(self.np_random.integers(N_CELLS - 1))
        return self._seen(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._cell = max(0, self._cell + (1 if action == 1 else -1))
        is_over = self._cell == N_CELLS - 1
        return self._seen(), float(is_over) - 0.01, is_over, False, {}

    def _seen(self) -> np.ndarray:
        return np.array([self._cell / (N_CELLS - 1)], np.float32)


gymnasium.register("Corridor-v0", Corridor, max_episode_steps=100)
