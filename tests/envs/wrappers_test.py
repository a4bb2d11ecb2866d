"""Tests of a3c/envs/wrappers.py: each layer on frames that say their number, then all together."""

import itertools
import types

import gymnasium
import numpy as np
import pytest

from a3c.envs import screen, wrappers
from a3c.envs.score import Score
from a3c.envs.wrappers import (
    BlackBackground,
    ClipRewards,
    EndEpisodeOnLifeLoss,
    ExtractLuminanceAndScale,
    ExtractPongFeatures,
    FrameSkip,
    FrameStack,
    Max,
    RandomStart,
    SeedGames,
)
from tests.tools import toys

NOOP, FIRE, RIGHT = 0, 1, 2


class Deferring(gymnasium.ObservationWrapper):
    """Hands on frames as FrameSkip expects them, deferred, and notes the numbers of those made."""

    def __init__(self, env):
        super().__init__(env)
        self.made = []

    def observation(self, frame):
        number = self.unwrapped.number
        return lambda: self.made.append(number) or frame


def skipping(**kwargs):
    toy = toys.Numbers(**kwargs)
    return toy, FrameSkip(Deferring(toy))


def generic(toy, n_noops=0, **kwargs):
    """All image layers that have to do with frames."""
    env = RandomStart(toy, itertools.repeat(n_noops))
    return FrameStack(FrameSkip(ExtractLuminanceAndScale(Max(env)), **kwargs))


def stack_numbers(observation, read=toys.read_numbers):
    assert observation.shape == (84, 84, 4)
    assert observation.dtype == np.uint8
    return [read(observation[..., i]) for i in range(4)]


BLACK = types.SimpleNamespace(
    getScreen=lambda: np.zeros((2, 3), np.uint8),
    getScreenRGB=lambda: np.zeros((2, 3, 3), np.uint8),
)


class Recording(toys.Numbers):
    """Keeps what its resets were given."""

    def reset(self, **given):
        self.given = given
        return super().reset(**given)


@pytest.mark.parametrize(
    "layer",
    [
        *(Max, ExtractPongFeatures, ClipRewards),
        lambda env: Score(env, 0, 0, counts_own_steps=False),
        lambda env: RandomStart(env, itertools.repeat(2)),
        lambda env: ExtractLuminanceAndScale(Deferring(env)),
        lambda env: BlackBackground(Deferring(env)),
        lambda env: FrameSkip(Deferring(env)),
        lambda env: FrameStack(FrameSkip(ExtractPongFeatures(env))),
        lambda env: EndEpisodeOnLifeLoss(env, env.ale),
        lambda env: screen.Rgb(env, BLACK),
        lambda env: screen.ColourNumbers(env, BLACK),
    ],
)
def test_seed_and_options_of_a_reset_reach_the_emulator(layer):
    """Analytic: each layer hands both on, as Gymnasium's contract wants it."""
    toy = Recording()
    layer(toy).reset(seed=3, options={"mode": 1})
    assert toy.given == {"seed": 3, "options": {"mode": 1}}
    SeedGames(toy, iter([7])).reset(seed=3, options={"mode": 2})
    assert toy.given == {"seed": 7, "options": {"mode": 2}}


# RandomStart


@pytest.mark.parametrize("n_noops", [0, 1, 30])
def test_random_start_takes_that_many_noops(n_noops):
    """Analytic: the first frame seen is number n, and only no-ops led there."""
    toy = toys.Numbers()
    frame, _ = RandomStart(toy, iter([n_noops])).reset()
    assert toys.read_numbers(frame) == {n_noops}
    assert toy.actions == [NOOP] * n_noops


def test_a_game_that_ends_in_the_random_start_is_reset_with_the_next_number():
    """Analytic: games of 3 and 4 frames end within 3 and 9 no-ops; the third game lives."""
    toy = toys.Numbers(game_lengths=(3, 4, 100))
    frame, _ = RandomStart(toy, iter([3, 9, 2])).reset()
    assert toys.read_numbers(frame) == {2}
    assert toy.game == 2


def test_games_that_never_start_are_an_error():
    """Analytic: the loop gives up."""
    toy = toys.Numbers(game_lengths=(1,))
    with pytest.raises(RuntimeError, match="100 games in a row"):
        RandomStart(toy, itertools.repeat(1)).reset()
    assert toy.game == 99


# Max


def test_max_shows_each_frame_and_the_one_before():
    """Analytic: the reset takes one no-op to have a pair; then pairs overlap by one."""
    toy = toys.Numbers()
    env = Max(toy)
    pixels, _ = env.reset()
    assert toys.read_numbers(pixels()) == {0, 1}
    assert toy.actions == [NOOP]
    for number in range(2, 6):
        pixels, reward, terminated, truncated, _ = env.step(FIRE)
        assert toys.read_numbers(pixels()) == {number - 1, number}
        assert (reward, terminated, truncated) == (number, False, False)
    pixels, _ = env.reset()
    assert toys.read_numbers(pixels()) == {0, 1}


# ExtractLuminanceAndScale, BlackBackground, ExtractPongFeatures


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ([[7, 9, 7], [0, 255, 7]], [[0, 2, 0], [7, 248, 0]]),
        ([[255, 255], [255, 4]], [[0, 0], [0, 251]]),
        ([[0, 0], [0, 4]], [[0, 0], [0, 4]]),  # on black already
        ([[8, 3], [8, 3]], [[5, 0], [5, 0]]),  # equally common: the darker one
    ],
)
def test_the_most_common_shade_becomes_black(image, expected):
    """Analytic: and each other pixel its distance from it."""
    made = wrappers.on_black(np.array(image, np.uint8))
    assert made.dtype == np.uint8
    np.testing.assert_array_equal(made, expected)


def test_pong_features_by_hand():
    """Parity: random frames, and all colours at the edge, against the definition in floats."""
    rng = np.random.default_rng(2)
    for low, high in ((0, 256), (95, 110)):
        frame = rng.integers(low, high, (210, 160, 3), np.uint8)
        frame[40:60] = 102  # mean / 255 is exactly 0.4: black
        frame[60:80] = [102, 102, 103]
        field = frame[34:194][::2, ::2]
        expected = np.zeros((84, 84), np.uint8)
        expected[2:82, 2:82] = np.where(np.mean(field, axis=2) / 255 > 0.4, 255, 0)
        actual = wrappers.pong_features(frame)
        assert actual.dtype == np.uint8
        np.testing.assert_array_equal(actual, expected)
        assert (actual[5:15, 2:82] == 0).all()
        assert (actual[15:25, 2:82] == 255).all()


# FrameSkip


def test_skip_repeats_the_action_and_sums_rewards():
    """Analytic: every fourth frame; rewards n + (n+1) + (n+2) + (n+3)."""
    toy, env = skipping()
    assert toys.read_numbers(env.reset()[0]) == {0}
    for step, action in enumerate([FIRE, RIGHT, NOOP]):
        frame, reward, terminated, truncated, _ = env.step(action)
        assert toys.read_numbers(frame) == {4 * step + 4}
        assert (reward, terminated, truncated) == (16 * step + 10, False, False)
    assert toy.actions == [FIRE] * 4 + [RIGHT] * 4 + [NOOP] * 4


@pytest.mark.parametrize("truncates", [False, True])
@pytest.mark.parametrize("length", [5, 6, 7, 8])
def test_skip_stops_at_the_end_of_the_game(length, truncates):
    """Analytic: only the frames until the end are stepped, summed and seen."""
    toy, env = skipping(game_lengths=(length,), truncates=truncates)
    env.reset()
    env.step(0)
    frame, reward, terminated, truncated, _ = env.step(0)
    assert toys.read_numbers(frame) == {length}
    assert reward == sum(range(5, length + 1))
    assert (terminated, truncated) == (not truncates, truncates)
    assert toy.number == length


def test_skip_reports_each_decision_before_it_is_carried_out():
    """Analytic: `step` reports, `skip` and `reset` do not."""
    toy = toys.Numbers()
    reported_at = []
    env = FrameSkip(Deferring(toy), on_decision=lambda: reported_at.append(toy.number))
    env.reset()
    env.step(0)
    env.skip(0)
    env.step(0)
    assert reported_at == [0, 8]


def test_only_the_frame_that_is_seen_is_converted():
    """Analytic: of the four deferred observations one is made."""
    _, env = skipping(game_lengths=(7,))
    env.reset()
    env.step(0)
    env.step(0)
    assert env.env.made == [0, 4, 7]


# FrameStack, and the indices of all layers together


def test_observation_n_is_the_maximum_of_frames_4n_and_4n_plus_1():
    """Analytic: the module's worked example, with a random start of 7 frames."""
    toy = toys.Numbers()
    env = generic(toy, n_noops=7)
    observation, _ = env.reset()
    expected = [{7 + 4 * n, 7 + 4 * n + 1} for n in range(12)]
    assert stack_numbers(observation) == expected[:4]
    assert toy.actions == [NOOP] * (7 + 1 + 12)
    for step in range(1, 9):
        observation, reward, _, _, _ = env.step(FIRE)
        assert stack_numbers(observation) == expected[step : step + 4]
        first = 7 + 4 * (step + 2) + 2  # frames 4n+2 ... 4n+5 lead from observation n to n+1
        assert reward == sum(range(first, first + 4))
    assert env.observation_space.contains(observation)


def test_observations_once_handed_out_stay_as_they_are():
    """Analytic: a copy of each equals it after the next steps and reset."""
    env = generic(toys.Numbers())
    seen = [env.reset()[0]]
    copies = [seen[0].copy()]
    for _ in range(5):
        seen.append(env.step(0)[0])
        copies.append(seen[-1].copy())
    env.reset()
    np.testing.assert_array_equal(seen, copies)


@pytest.mark.parametrize("length", [1, 4, 5, 6, 12, 13])
def test_a_game_that_ends_in_the_noops_of_the_stack_is_reset(length):
    """Analytic: the stack shows the second game only, from its start."""
    toy = toys.Numbers(game_lengths=(length, 100))
    decisions = []
    env = generic(toy, on_decision=lambda: decisions.append(1))
    assert stack_numbers(env.reset()[0]) == [{0, 1}, {4, 5}, {8, 9}, {12, 13}]
    assert toy.game == 1
    assert decisions == []


def test_pong_features_show_single_frames():
    """Analytic: without Max, observation n is frame 4n."""
    env = FrameStack(FrameSkip(ExtractPongFeatures(toys.Numbers())))
    observation, _ = env.reset()
    assert stack_numbers(observation, toys.read_pong_numbers) == [{0}, {4}, {8}, {12}]
    observation, *_ = env.step(0)
    assert stack_numbers(observation, toys.read_pong_numbers) == [{4}, {8}, {12}, {16}]


# EndEpisodeOnLifeLoss


def lives_env(**kwargs):
    toy = toys.Numbers(**kwargs)
    return toy, EndEpisodeOnLifeLoss(toy, toy.ale)


def test_a_lost_life_ends_the_episode_and_the_game_goes_on():
    """Analytic: lives fall at frames 3 and 6, the game ends at 8; every frame is seen once."""
    toy, env = lives_env(n_lives=3, frames_per_life=3, game_lengths=(8,))
    frame, _ = env.reset()
    for number in range(1, 9):
        frame, reward, terminated, truncated, _ = env.step(FIRE)
        assert toys.read_numbers(frame) == {number}
        assert (reward, terminated, truncated) == (number, number in (3, 6, 8), False)
        if terminated:
            after_reset, _ = env.reset()
            if number == 8:
                assert toys.read_numbers(after_reset) == {0}
                assert toy.game == 1
            else:
                assert after_reset is frame
                assert toy.number == number
                assert toy.game == 0
    assert not env.step(FIRE)[2]


def test_a_life_lost_with_the_game_is_the_games_end():
    """Analytic: where lives fall in the very step that ends the game, reset starts a new game."""
    for truncates in (False, True):
        toy, env = lives_env(game_lengths=(2,), truncates=truncates, n_lives=2, frames_per_life=2)
        env.reset()
        env.step(0)
        assert toy.ale.left == 2
        assert env.step(0)[2:4] == (not truncates, truncates)
        assert toy.ale.left == 1
        env.reset()
        assert toy.game == 1


def test_lives_that_rise_are_no_loss():
    """Analytic: an extra life does not end the episode; losing it again does."""
    toy, env = lives_env(n_lives=3)
    env.reset()
    toy.ale.left = 4
    assert not env.step(0)[2]
    toy.ale.left = 3
    assert env.step(0)[2]


def test_a_second_reset_starts_a_new_game():
    """Analytic: only the reset after the lost life continues the game."""
    toy, env = lives_env(n_lives=3, frames_per_life=1)
    env.reset()
    env.step(0)
    for game in (0, 1):
        env.reset()
        assert toy.game == game


# ClipRewards


def test_rewards_are_clipped():
    """Analytic: whole numbers become their sign, small ones stay."""
    env = ClipRewards(toys.Numbers())
    rewards = (-7.0, -1.0, -0.25, 0.0, 0.5, 1.0, 200.0)
    assert [env.reward(reward) for reward in rewards] == [-1, -1, -0.25, 0, 0.5, 1, 1]
    env.reset()
    assert [env.step(0)[1] for _ in range(2)] == [1, 1]
