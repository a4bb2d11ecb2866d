"""An agent in somebody else's loop: `python3 examples/vector_loop.py results/pong-fast-s0 4 300`.

A vector environment of Gymnasium steps four games 300 times, and the agent decides on all of them at
once.
"""

import sys

import gymnasium
import numpy as np

import a3c

path, n_envs, n_steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
agent = a3c.load_agent(path)
envs = gymnasium.vector.SyncVectorEnv(
    [lambda seed=seed: agent.make_env(seed=seed) for seed in range(n_envs)],
    # The step that ends a game returns the first observation of the next one.
    autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
)
observations, _ = envs.reset()
states, rewards_so_far = None, np.zeros(n_envs)
for _ in range(n_steps):
    decision = agent.act_batch(observations, states)
    observations, rewards, terminated, truncated, _ = envs.step(decision.action)
    # In a game that begins, the agent remembers nothing. (Without an LSTM, states are empty.)
    states = decision.state * ~(terminated | truncated)[:, None]
    rewards_so_far += rewards
print(f"rewards of {n_envs} games in {n_steps} steps: {rewards_so_far.tolist()}")
