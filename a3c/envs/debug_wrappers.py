"""Layers that help to see: numbers drawn on frames, and every frame shown to a watcher."""

from collections.abc import Callable
from typing import Any

import cv2
import gymnasium
import numpy as np


class NumberFrames(gymnasium.ObservationWrapper):
    """Draws each frame's number within its game on the frame: 0 is the one of the reset."""

    def reset(self, **given: Any) -> tuple[np.ndarray, dict[str, Any]]:
        """Reset, and count from 0 again."""
        self._n_frames = 0
        return super().reset(**given)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        self._n_frames += 1
        return draw_number(observation, self._n_frames - 1)


class WatchFrames(gymnasium.ObservationWrapper):
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

    def observation(self, observation: Any) -> Any:
        self._see(self._picture(observation))
        return observation


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
