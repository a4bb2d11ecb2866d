"""The interquartile mean and its interval."""

import tracemalloc

import numpy as np
import pytest

from a3c.sweep.statistics import bootstrap_interval, interquartile_mean


@pytest.mark.parametrize(
    ("scores", "mean"),
    [([3.0], 3.0), ([1, 2, 6], 3.0), ([100, 1, 3, -50], 2.0), ([0, 1, 2, 3, 4, 5, 6, 100], 3.5)],
)
def test_the_mean_of_the_middle_half(scores, mean):
    """Analytic: by hand; a quarter, rounded down, is left out at either end."""
    assert interquartile_mean([np.array(scores, dtype=float)]) == mean


def test_each_game_has_the_same_weight():
    """Analytic: 0 4, 1 1 without the ends; then 0 0 0, 6 8 10, 2 2 2 without two at either end."""
    assert interquartile_mean([np.array([0.0, 4.0]), np.array([1.0])]) == 1.0
    games = [np.array([0.0]), np.array([6.0, 8.0, 10.0]), np.array([2.0])]
    assert interquartile_mean(games) == (0 + 2 + 2 + 2 + 6) / 5


def test_games_that_differ_add_nothing_to_the_interval():
    """Analytic: seeds are drawn within each game; of 0 0 0 1 1 1 10 10 10, two are left out at either end."""
    games = [np.full(3, level) for level in (0.0, 1.0, 10.0)]
    assert bootstrap_interval(games, np.random.default_rng(0)) == (2.6, 2.6)


def test_the_interval_of_one_game_with_two_seeds():
    """Analytic: a resample is 0 0, 0 1, 1 0 or 1 1, so its mean is 0, ½, ½ or 1, a quarter each."""
    game = np.array([0.0, 1.0])
    assert bootstrap_interval([game], np.random.default_rng(0)) == (0.0, 1.0)
    assert bootstrap_interval([game], np.random.default_rng(0), within=0.4) == (0.5, 0.5)


def test_the_interval_of_games_with_different_numbers_of_seeds_takes_little_memory():
    """Analytic: 10, 9, 8 and 7 seeds have a common multiple of 2,520; all resamples at once take a gigabyte."""
    games = [np.full(n, 1.0) for n in (10, 9, 8, 7)]
    tracemalloc.start()
    try:
        assert bootstrap_interval(games, np.random.default_rng(0)) == (1.0, 1.0)
        assert tracemalloc.get_traced_memory()[1] < 1e8
    finally:
        tracemalloc.stop()


def test_the_interval_of_many_seeds():
    """Parity: of normal scores, near the mean ± 1.96 standard errors of the interquartile mean."""
    rng = np.random.default_rng(1)
    game = rng.normal(size=400)
    low, high = bootstrap_interval([game], np.random.default_rng(2))
    by_sampling = np.std([interquartile_mean([rng.normal(size=400)]) for _ in range(2000)])
    assert (high - low) / 2 == pytest.approx(1.96 * by_sampling, rel=0.15)
    assert (high + low) / 2 == pytest.approx(interquartile_mean([game]), abs=0.02)
