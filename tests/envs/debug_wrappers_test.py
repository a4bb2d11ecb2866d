"""Tests of a3c/envs/debug_wrappers.py."""

import cv2
import numpy as np
import pytest

from a3c.envs import debug_wrappers, make, wrappers
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
    settings = make.EnvSettings("PongNoFrameskip-v4", 0, max_n_noops=0, number_frames=True)
    game = make.make_env(settings, see=bare.append)
    observation, _ = game.reset()
    for decision in range(30):
        for i in range(4):
            n = 4 * (decision + i)
            numbered = [debug_wrappers.draw_number(bare[n + j], n + j) for j in (0, 1)]
            expected = wrappers.luminance_and_scale(np.maximum(*numbered))
            np.testing.assert_array_equal(observation[..., i], expected)
        observation, *_ = game.step(decision % 6)
    game.close()


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


def test_a_number_is_white_on_black_within_the_frame():
    """Analytic: on a gray frame both colours appear, the border stays gray, the source unchanged."""
    gray = np.full((210, 160, 3), 128, np.uint8)
    frame = debug_wrappers.draw_number(gray, 88888)
    assert (gray == 128).all()
    assert (frame == 255).any()
    assert (frame == 0).any()
    for border in (frame[:34], frame[194:], frame[:, :8], frame[:, -8:]):
        assert (border == 128).all()


def test_a_frame_that_is_a_view_can_be_drawn_on():
    """Analytic: OpenCV draws on contiguous memory only, and frames may be slices."""
    frame = np.zeros((210, 320, 3), np.uint8)[:, ::2]
    expected = debug_wrappers.draw_number(np.zeros((210, 160, 3), np.uint8), 5)
    np.testing.assert_array_equal(debug_wrappers.draw_number(frame, 5), expected)


def test_spread_stack():
    """Analytic: image i of the stack is the i-th from the left."""
    images = [np.full((3, 2), i, np.uint8) for i in range(4)]
    spread = debug_wrappers.spread_stack(cv2.merge(images))
    assert spread.shape == (3, 8)
    np.testing.assert_array_equal(spread[0], [0, 0, 1, 1, 2, 2, 3, 3])


def test_a_number_is_white_in_a_black_box_in_the_middle():
    """Analytic: as OpenCV measures the text, and a margin of two lines' width."""
    drawn = debug_wrappers.draw_number(np.full((210, 160, 3), 99, np.uint8), 42)
    assert (drawn == drawn[..., :1]).all()
    assert (drawn.min(), drawn.max()) == (0, 255)
    (width, height), _ = cv2.getTextSize("42", cv2.FONT_HERSHEY_SIMPLEX, 160 / 130, 1)
    left, bottom = (160 - width) // 2, (210 + height) // 2
    rows, columns = np.nonzero((drawn != 99).any(axis=-1))
    assert (rows.min(), rows.max()) == (bottom - height - 2, bottom + 2)
    assert (columns.min(), columns.max()) == (left - 2, left + width + 2)
