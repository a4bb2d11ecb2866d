"""Running mean and variance of observations and of discounted returns, in float64.

Both are shared state, like the weights. Each rollout uses one copy from its start to its end, and its
update then adds what the rollout saw.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from a3c.contract import Moments
from a3c.settings.params import Params, kept_moments

LIMIT = 10.0  # of what is normalised or scaled
EPSILON = 1e-8  # added to a variance


def initial(params: Params, observation_shape: Sequence[int]) -> dict[str, Moments]:
    """The moments that a run keeps, without data."""
    shapes = {"observations": tuple(observation_shape), "returns": ()}
    zeros = {name: np.zeros(shapes[name]) for name in kept_moments(params)}
    return {name: Moments(0, zero, zero) for name, zero in zeros.items()}


def of(data: np.ndarray) -> Moments:
    """The moments of these data, (n, ...)."""
    data = data.astype(np.float64)
    mean = data.mean(axis=0)
    return Moments(len(data), mean, np.square(data - mean).sum(axis=0))


def merged(a: Moments, b: Moments) -> Moments:
    """The moments of the data of both, by the method of Chan et al. (1979)."""
    n = a.n + b.n
    difference = b.mean - a.mean
    return Moments(
        n,
        a.mean + difference * (b.n / n),
        a.squares + b.squares + np.square(difference) * (a.n * b.n / n),
    )


def sd(moments: Moments) -> np.ndarray:
    """The standard deviation; 1 without data."""
    if moments.n == 0:
        return np.ones_like(moments.squares)
    return np.sqrt(moments.squares / moments.n + EPSILON)


def seen(observations: np.ndarray, kept: Mapping[str, Moments]) -> np.ndarray:
    """Observations as the network gets them: normalised, if their moments are kept."""
    if "observations" not in kept:
        return observations
    return normalised(observations, kept["observations"])


def normalised(observations: np.ndarray, moments: Moments) -> np.ndarray:
    """Observations with mean 0 and standard deviation 1, limited to ±10, as float32."""
    z = (observations - moments.mean) / sd(moments)
    return np.clip(z, -LIMIT, LIMIT).astype(np.float32)


def scaled(rewards: np.ndarray, moments: Moments) -> np.ndarray:
    """Rewards in units of the discounted returns' standard deviation, limited to ±10, as float32."""
    return np.clip(rewards / sd(moments), -LIMIT, LIMIT).astype(np.float32)
