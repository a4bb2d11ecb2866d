"""Scores of several games in one number: the interquartile mean and its interval.

After Agarwal et al. 2021 ("Deep Reinforcement Learning at the Edge of the Statistical Precipice").
Their library, rliable, would bring eight packages for these lines.
"""

import math
from collections.abc import Sequence

import numpy as np

N_RESAMPLED = 10_000
FEWEST_SEEDS = 5  # with fewer, an interval says little


def interquartile_mean(games: Sequence[np.ndarray]) -> np.ndarray:
    """The mean of the middle half, along the last axis, of all games' scores of seeds together.

    A quarter of the scores, rounded down, is left out at either end: 0 1 2 3 4 5 6 100 → 3.5. Each
    game has the same weight, so those with fewer seeds are repeated: [0 4], [1] counts as 0 4 1 1.
    """
    n_each = math.lcm(*(game.shape[-1] for game in games))
    scores = np.concatenate([np.repeat(g, n_each // g.shape[-1], axis=-1) for g in games], axis=-1)
    n = scores.shape[-1]
    return np.sort(scores, axis=-1)[..., n // 4 : n - n // 4].mean(axis=-1)


def bootstrap_interval(
    games: Sequence[np.ndarray], generator: np.random.Generator, within: float = 0.95
) -> tuple[float, float]:
    """The interval of the interquartile mean of all games' scores, from scores of seeds of each game.

    Seeds are drawn anew for each game by itself (stratified): which games were played is no chance.
    """
    drawn = [game[generator.integers(len(game), size=(N_RESAMPLED, len(game)))] for game in games]
    # A few at a time: their repetitions could fill the memory.
    starts = range(0, N_RESAMPLED, 100)
    means = [interquartile_mean([each[n : n + 100] for each in drawn]) for n in starts]
    low, high = np.quantile(np.concatenate(means), [(1 - within) / 2, (1 + within) / 2])
    return float(low), float(high)
