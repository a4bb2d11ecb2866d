"""Tests of a3c/envs/screen.py against the emulator's own RGB."""

import ale_py
import cv2
import gymnasium
import numpy as np
import pytest

from a3c.envs import screen
from a3c.envs.make import make_env
from a3c.settings.params import Params

gymnasium.register_envs(ale_py)


def emulator(env_id: str) -> gymnasium.Env:
    return gymnasium.make(env_id, disable_env_checker=True).unwrapped


@pytest.mark.parametrize("game", ["Breakout", "BeamRider", "Pong", "Qbert", "SpaceInvaders"])
def test_the_colours_are_the_emulators(game: str) -> None:
    """Parity: colour numbers through our table against the emulator's RGB, in 300 frames."""
    env = emulator(f"{game}NoFrameskip-v4")
    env.reset(seed=0)
    generator = np.random.default_rng(0)
    assert screen.has_ntsc_colours(env.ale)
    for _ in range(300):
        rgb, _, terminated, _, _ = env.step(int(generator.integers(env.action_space.n)))
        np.testing.assert_array_equal(screen.RGB[env.ale.getScreen()], rgb)
        if terminated:
            env.reset()


def test_the_luminance_of_two_screens_is_that_of_their_maximum_in_rgb() -> None:
    """Parity: every pair of colours, and random screens of one shape, through cv2 by way of RGB."""
    generator = np.random.default_rng(1)
    pairs = np.meshgrid(np.arange(256, dtype=np.uint8), np.arange(256, dtype=np.uint8))
    numbers = [generator.integers(0, 256, (210, 160), np.uint8) for _ in range(2)]
    mostly_alike = [numbers[0], np.where(numbers[1] < 9, numbers[1], numbers[0])]
    for first, second in (pairs, numbers, mostly_alike, [numbers[0]] * 2):
        maximum = np.maximum(screen.RGB[first], screen.RGB[second])
        expected = cv2.cvtColor(maximum, cv2.COLOR_RGB2GRAY)
        before = first.copy(), second.copy()
        np.testing.assert_array_equal(screen.luminance_of_maximum(first, second), expected)
        np.testing.assert_array_equal((first, second), before)  # it may be the next pair's first


def test_a_game_of_other_colours_takes_the_plain_way() -> None:
    """Parity: Air Raid is PAL; what the agent sees is the same as by hand from RGB."""
    env = make_env(Params("AirRaidNoFrameskip-v4", max_n_noops=0))
    assert not screen.has_ntsc_colours(env.unwrapped.ale)
    observation, _ = env.reset()
    plain = emulator("AirRaidNoFrameskip-v4")
    plain.reset(seed=0)
    frames = [plain.step(0)[0] for _ in range(13)]  # reset's frame is 0; the newest pair 12, 13
    gray = cv2.cvtColor(np.maximum(frames[11], frames[12]), cv2.COLOR_RGB2GRAY)
    expected = cv2.resize(gray, (84, 84), interpolation=cv2.INTER_LINEAR)
    np.testing.assert_array_equal(observation[..., -1], expected)


def test_an_emulator_of_other_colours_is_refused_in_words() -> None:
    """Analytic: a game's first screen is compared before anything is learned from it."""
    air_raid = emulator("AirRaidNoFrameskip-v4")
    env = screen.ColourNumbers(air_raid, air_raid.ale)
    with pytest.raises(RuntimeError, match="draws with other colours"):
        env.reset(seed=0)
