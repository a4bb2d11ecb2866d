"""Helps to see: numbers drawn on frames, a stack spread out, every frame shown to a watcher."""

from collections.abc import Callable
from typing import Any

import cv2
import gymnasium
import numpy as np


class NumberFrames(gymnasium.Wrapper):
    """Draws each frame's number within its game on the frame: 0 is the one of the reset."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self._n_frames = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Reset, and count from 0 again."""
        frame, info = self.env.reset(seed=seed, options=options)
        self._n_frames = 0
        return draw_number(frame, 0), info

    def step(self, action: Any) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        """Step one frame."""
        frame, reward, terminated, truncated, info = self.env.step(action)
        self._n_frames += 1
        return draw_number(frame, self._n_frames), reward, terminated, truncated, info


class WatchFrames(gymnasium.Wrapper):
    """Calls `see` with every frame as a person would see it, those of a random start included.

    `picture` makes it of an observation, or of what it knows itself.
    """

    def __init__(
        self,
        env: gymnasium.Env,
        see: Callable[[np.ndarray], None],
        picture: Callable[[Any], np.ndarray],
    ) -> None:
        super().__init__(env)
        self._see = see
        self._picture = picture

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset and show the first frame."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._see(self._picture(observation))
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step and show one frame."""
        result = self.env.step(action)
        self._see(self._picture(result[0]))
        return result


def draw_number(frame: np.ndarray, number: int) -> np.ndarray:
    """Return a copy of an RGB frame with a number in white on black across its middle.

    The middle, because every kind of preprocessing keeps it; large, so that it can still be read
    once the frame is scaled down.
    """
    image = np.ascontiguousarray(frame).copy()
    height, width = image.shape[:2]
    scale = width / 130
    thickness = max(1, round(scale))
    text = str(number)
    (text_width, text_height), _ = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, scale, thickness)
    left, bottom = (width - text_width) // 2, (height + text_height) // 2
    margin = 2 * thickness
    cv2.rectangle(
        image,
        (left - margin, bottom + margin),
        (left + text_width + margin, bottom - text_height - margin),
        (0, 0, 0),
        cv2.FILLED,
    )
    cv2.putText(
        image, text, (left, bottom), cv2.FONT_HERSHEY_SIMPLEX, scale, (255, 255, 255), thickness
    )
    return image


def spread_stack(observation: np.ndarray) -> np.ndarray:
    """Return a stack (height, width, n) as one image (height, n * width), oldest on the left."""
    return np.concatenate(np.moveaxis(observation, -1, 0), axis=1)
