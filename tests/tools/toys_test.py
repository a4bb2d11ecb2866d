"""Tests of tests/tools/toys.py: the toys do what the other tests rely on."""

import cv2
import gymnasium
import numpy as np
import pytest

from tests.tools import toys


def test_a_frame_says_its_number():
    """Analytic: the number is read back from the frame, scaled, and from Pong's features; two at once from a maximum,
    and none from an empty frame."""
    for number in range(toys.N_NUMBERS):
        frame = toys.numbered_frame(number)
        assert frame.shape == (210, 160, 3)
        assert toys.read_numbers(frame) == {number}
        assert toys.read_numbers(cv2.resize(frame[..., 0], (84, 84))) == {number}
        field = np.pad(frame[34:194:2, ::2, 0], 2)
        assert toys.read_pong_numbers(field) == {number}
    both = np.maximum(toys.numbered_frame(17), toys.numbered_frame(18))
    assert toys.read_numbers(both) == {17, 18}
    assert toys.read_numbers(np.zeros((210, 160, 3), np.uint8)) == set()


def test_numbers_counts_frames_rewards_actions_and_games():
    """Analytic: frame, reward and end of each step, over two games of different length; and a truncation."""
    env = toys.Numbers(game_lengths=(2, 3))
    for length in (2, 3):
        frame, _ = env.reset(seed=length)
        assert toys.read_numbers(frame) == {0}
        for number in range(1, length + 1):
            frame, reward, terminated, truncated, _ = env.step(number % 4)
            assert toys.read_numbers(frame) == {number}
            assert (reward, terminated, truncated) == (number, number == length, False)
        assert env.actions == [number % 4 for number in range(1, length + 1)]
    assert env.seeds == [2, 3]
    with pytest.raises(AssertionError, match="after the end"):
        env.step(0)
    env = toys.Numbers(game_lengths=(1,), truncates=True)
    env.reset()
    assert env.step(0)[2:4] == (False, True)


def test_numbers_loses_lives():
    """Analytic: a life every three frames, but not the last one."""
    env = toys.Numbers(n_lives=3, frames_per_life=3)
    env.reset()
    lives = [env.ale.lives()]
    for _ in range(10):
        env.step(0)
        lives.append(env.ale.lives())
    assert lives == [3, 3, 3, 2, 2, 2, 1, 1, 1, 1, 1]


def test_side_pays_for_the_white_half():
    """Analytic: naming the white half always pays, naming the other never; three lives of 64."""
    for names_it in (True, False):
        env = toys.Side()
        frame, _ = env.reset(seed=1)
        sides, terminated, n_frames = set(), False, 0
        while not terminated:
            side = int(frame[0, 60, 0] > 0)
            sides.add(side)
            frame, reward, terminated, _, _ = env.step(side + 1 if names_it else 2 - side)
            assert reward == names_it
            n_frames += 1
        assert sides == {0, 1}
        assert n_frames == 3 * 64


def test_vector_counts_steps_and_games():
    """Analytic: two whole games."""
    env = toys.Vector()
    for game in range(2):
        np.testing.assert_array_equal(env.reset()[0], [0, game])
        for step in range(1, 6):
            observation, reward, terminated, truncated, _ = env.step(1)
            np.testing.assert_array_equal(observation, [step, game])
            assert (reward, terminated, truncated) == (10, step == 5, False)


def test_pushes_pays_the_sum_of_an_action_and_overwrites_it():
    """Analytic: within its bounds, and of the type of its space; anything else it does not take."""
    env = toys.Pushes()
    env.reset(seed=0)
    action = np.array([-0.5, 7.0])
    assert env.step(action)[1] == 106.5
    assert np.isnan(action).all()
    for wrong in (np.array([0.2, 0.0]), np.array([0.0, 0.0], np.float32)):
        with pytest.raises(AssertionError):
            env.step(wrong)


def test_painted_pays_its_actions_and_shows_its_step():
    """Analytic: 20 steps, cut off by a time limit."""
    env = toys.Painted("rgb_array")
    env.reset(seed=0)
    for n in range(1, 21):
        observation, reward, terminated, truncated, _ = env.step(np.array([0.5, n]))
        assert observation.shape == env.observation_space.shape
        assert (reward, terminated, truncated) == (0.5 + n, False, n == 20)
        assert env.render().shape == (40, 40, 3)
        assert set(env.render().flat) == {10 * n}


def test_search_is_over_where_agent_and_target_meet():
    """Analytic: from any place, by steps down or up, then right or left, as many as they are apart."""
    env = toys.Search(4)
    for seed in range(30):
        seen, _ = env.reset(seed=seed)
        apart = seen["target"] - seen["agent"]
        actions = [1 if apart[0] > 0 else 2] * abs(apart[0]) + [3 if apart[1] > 0 else 4] * abs(
            apart[1]
        )
        ends = [env.step(action)[1:4] for action in actions]
        assert ends == [(0.0, False, False)] * (len(ends) - 1) + [(1.0, True, False)] * bool(ends)


def test_spoils_is_wrong_once():
    """Analytic: at the third step, or in the reset after it, and only after action 1."""
    env = toys.Spoils("reward", 7.0)
    env.reset()
    assert [env.step(1)[1] for _ in range(4)] == [0, 0, 7, 0]
    for what in ("observation", "last", "first"):
        for action in (0, 1):
            env = toys.Spoils(what, 7.0)
            env.reset()
            seen = [env.step(action) for _ in range(3)]
            assert [step[3] for step in seen] == [False, False, what != "observation"]
            assert [step[0][1] == 7 for step in seen] == [
                False,
                False,
                action == 1 and what != "first",
            ]
            assert (env.reset()[0][1] == 7) == (action == 1 and what == "first")


def test_the_broken_toys_break():
    """Analytic: two cannot be made, one fails at its third step, one at its second reset."""
    with pytest.raises(RuntimeError, match="cartridge"):
        toys.RaisesInInit()
    with pytest.raises(EOFError, match="game server"):
        toys.LosesConnection()
    env = toys.RaisesInStep()
    env.reset()
    env.step(0)
    env.step(0)
    with pytest.raises(RuntimeError, match="joystick"):
        env.step(0)
    env = toys.RaisesInReset()
    env.reset()
    with pytest.raises(RuntimeError, match="coin"):
        env.reset()


def test_a_dot_walks_vanishes_and_pays_for_its_corner():
    """Analytic: frame by frame, where the dot is, and what naming either corner pays."""
    env, twin = toys.Dot(), toys.Dot()
    frame, _ = env.reset(seed=0)
    twin.reset(seed=0)
    corners = set()
    for number in range(200):
        within = number % toys.DOT_CYCLE
        if within == 0:
            side = np.sign(np.argwhere(frame[..., 0]).mean() - 41.5)
            corners.add(side)
        if within < toys.DOT_VANISHES:
            places = np.argwhere(frame.all(axis=-1))
            assert len(places) == 12 * 12
            assert (places.mean(axis=0) == 41.5 + side * 4 * (within + 1)).all()
        else:
            assert not frame.any()
        right, wrong = (2, 1) if side > 0 else (1, 2)
        frame, reward, terminated, truncated, _ = env.step(right)
        assert twin.step(wrong)[1:4] == (0.0, terminated, truncated) == (0.0, False, False)
        assert reward == 0.25 * ((number + 1) % toys.DOT_CYCLE >= toys.DOT_PAYS_FROM)
    assert corners == {-1, 1}


def test_every_toy_is_registered():
    """Analytic: each toy that can be made is made by its name."""
    names = [name for name in gymnasium.registry if name.startswith("toys/")]
    assert len(names) == 58
    unbuildable = {"toys/RaisesInInit-v0", "toys/LosesConnection-v0"}
    for name in set(names) - unbuildable:
        gymnasium.make(name, disable_env_checker=True)
