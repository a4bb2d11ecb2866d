"""CartPole without its velocities: they must be remembered from one step to the next.

PYTHONPATH=examples python3 train.py --preset cartpole --lstm_units 64 --wrapper positions_only:wrap CartPole-v1
"""

import gymnasium
from gymnasium.wrappers import TransformObservation

POSITIONS = [0, 2]  # of the cart, and the angle of the pole


def wrap(env: gymnasium.Env) -> gymnasium.Env:
    space = env.observation_space
    assert isinstance(space, gymnasium.spaces.Box)
    seen = gymnasium.spaces.Box(space.low[POSITIONS], space.high[POSITIONS])
    return TransformObservation(env, lambda observation: observation[POSITIONS], seen)
