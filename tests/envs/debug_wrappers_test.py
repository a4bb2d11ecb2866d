"""Tests of a3c/envs/debug_wrappers.py."""

import numpy as np
import pytest

from a3c.envs import debug_wrappers, wrappers
from a3c.envs.make import make_env
from a3c.settings.params import Params
from tests.tools import toys


def test_numbers_start_anew_with_each_game():
    """Parity: each frame against the bare one with its number drawn on it."""
    game = debug_wrappers.NumberFrames(toys.Numbers())
    for _ in range(2):
        frame, _ = game.reset()
        expected = debug_wrappers.draw_number(toys.numbered_frame(0), 0)
        np.testing.assert_array_equal(frame, expected)
        for number in range(1, 12):
            frame, reward, terminated, truncated, _ = game.step(0)
            expected = debug_wrappers.draw_number(toys.numbered_frame(number), number)
            np.testing.assert_array_equal(frame, expected)
            assert (reward, terminated, truncated) == (number, False, False)


def test_each_image_of_a_stack_has_the_numbers_of_its_two_frames():
    """Parity: Pong's bare frames, numbered, and of each four the brighter pixels of two."""
    bare: list[np.ndarray] = []
    params = Params("PongNoFrameskip-v4", max_n_noops=0, debug=True)
    game = make_env(params, see=bare.append)
    observation, _ = game.reset()
    for decision in range(30):
        for i in range(4):
            n = 4 * (decision + i)
            numbered = [debug_wrappers.draw_number(bare[n + j], n + j) for j in (0, 1)]
            expected = wrappers.luminance_and_scale(np.maximum(*numbered))
            np.testing.assert_array_equal(observation[..., i], expected)
        observation, *_ = game.step(decision % 6)
    game.close()


def test_what_flickers_is_not_lost_where_frames_are_left_out():
    """Analytic: every fourth picture has the blocks of two frames; if all are shown, of one."""
    some: list[np.ndarray] = []
    every: list[np.ndarray] = []
    for pictures, fraction in ((some, 0.25), (every, 1.0)):
        game = debug_wrappers.WatchFrames(
            toys.Numbers(), pictures.append, fraction, has_sprites=True
        )
        game.reset()
        for _ in range(11):
            game.step(0)
    assert [toys.read_numbers(picture) for picture in some] == [{2, 3}, {6, 7}, {10, 11}]
    assert [toys.read_numbers(picture) for picture in every] == [{n} for n in range(12)]


@pytest.mark.parametrize(("rate", "fps"), [(60, 60), (60, 15), (50, 15), (240, 60), (125, 15.625)])
def test_the_right_share_of_frames_is_drawn(rate, fps):
    """Analytic: over ten seconds, at most one more or less, evenly spaced; the others are not drawn."""
    toy, drawn, shown = toys.Painted("rgb_array"), [], []
    game = debug_wrappers.WatchFrames(toy, shown.append, fps / rate)
    toy.render = lambda: drawn.append(toy._n_steps) or np.zeros((2, 2, 3), np.uint8)
    for _ in range(10 * rate):
        game.step(np.zeros(2))
    assert abs(len(drawn) - 10 * fps) <= 1
    assert len(shown) == len(drawn)
    assert len(set(np.diff(drawn))) <= 2


@pytest.mark.parametrize("shape", [(210, 160, 3), (84, 84, 3)])
def test_every_number_looks_different(shape):
    """Analytic: no two numbers give the same picture, not even after preprocessing."""
    black = np.zeros(shape, np.uint8)
    frames = [debug_wrappers.draw_number(black, number) for number in range(200)]
    assert len({frame.tobytes() for frame in frames}) == 200
    small = {wrappers.luminance_and_scale(frame).tobytes() for frame in frames}
    assert len(small) == 200
    if shape[0] == 210:
        assert len({wrappers.pong_features(frame).tobytes() for frame in frames}) == 200


def test_a_frame_that_is_a_view_can_be_drawn_on():
    """Analytic: OpenCV draws on contiguous memory only, and frames may be slices."""
    frame = np.zeros((210, 320, 3), np.uint8)[:, ::2]
    expected = debug_wrappers.draw_number(np.zeros((210, 160, 3), np.uint8), 5)
    np.testing.assert_array_equal(debug_wrappers.draw_number(frame, 5), expected)
