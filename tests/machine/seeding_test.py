"""Streams of random numbers: none overlap, and each depends only on its key."""

import itertools

import numpy as np

from a3c.envs import make
from a3c.machine import seeding
from a3c.machine.seeding import Purpose


def draws(*key: int) -> tuple[int, ...]:
    run_seed, purpose, *rest = key
    generator = seeding.generator(run_seed, Purpose(purpose), *rest)
    return tuple(generator.integers(2**63, size=4).tolist())


def test_no_two_of_64_workers_with_32_environments_draw_the_same():
    """Analytic: the streams of all workers, environments and purposes of two runs differ, and so do
    all of their first four numbers.
    """
    keys = list(itertools.product((0, 1), Purpose, range(64), range(32)))
    streams = {draws(*key) for key in keys}
    assert len(streams) == len(keys) == 2 * len(Purpose) * 64 * 32
    assert len({number for stream in streams for number in stream}) == 4 * len(keys)


def test_emulators_of_a_run_have_different_seeds():
    """Analytic: the 32-bit seeds of 64 x 32 emulators in ten runs; in one of two thousand runs, two
    seeds are the same by chance.
    """
    for run_seed in range(10):
        seeds = [
            next(make._emulator_seeds(run_seed, *where, 0, 1))
            for where in itertools.product(range(64), range(32))
        ]
        assert len(set(seeds)) >= 64 * 32 - 1


def test_streams_are_those_of_numpys_seed_sequence():
    """Parity: the key is NumPy's spawn key, in this order; golden results depend on it."""
    expected = np.random.SeedSequence(7, spawn_key=(2, 3, 4, 5)).generate_state(8)
    key = {"worker": 3, "env": 4, "game": 5}
    actual = seeding.seed_sequence(7, Purpose.NOOPS, **key).generate_state(8)
    np.testing.assert_array_equal(actual, expected)
    generator = seeding.generator(7, Purpose.NOOPS, **key)
    again = np.random.default_rng(np.random.SeedSequence(7, spawn_key=(2, 3, 4, 5)))
    np.testing.assert_array_equal(generator.random(8), again.random(8))


def test_purposes_keep_their_numbers():
    """Golden: a renumbered purpose would change every run."""
    assert {purpose.name: purpose.value for purpose in Purpose} == {
        "WEIGHTS": 0,
        "ACTIONS": 1,
        "NOOPS": 2,
        "EMULATOR": 3,
        "EVALUATION": 4,
    }
