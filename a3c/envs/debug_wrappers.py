"""Layers for people who watch: they number the frames, or show each one to a watcher."""

from collections.abc import Callable
from typing import Any

import cv2
import gymnasium
import numpy as np


class NumberFrames(gymnasium.ObservationWrapper):
    """Draws on each frame its number within the game; the frame of the reset has number 0."""

    def reset(self, **given: Any) -> tuple[np.ndarray, dict[str, Any]]:
        self._n_frames = 0
        return super().reset(**given)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        self._n_frames += 1
        return draw_number(observation, self._n_frames - 1)


class WatchFrames(gymnasium.ObservationWrapper):
    """Calls `see` with pictures of the frames, those of a random start included.

    If it is to see only a fraction of them, the others are not even drawn, because drawing may be slow.
    But sprites flicker: some are drawn in every second frame only. So where there are sprites and frames
    are left out, a picture has the brighter pixels of its frame and the one before it.
    """

    def __init__(
        self,
        env: gymnasium.Env,
        see: Callable[[np.ndarray], None],
        fraction: float = 1.0,
        has_sprites: bool = False,
    ) -> None:
        super().__init__(env)
        self._see, self._fraction = see, fraction
        self._merges = has_sprites and fraction < 1
        self._due = 0.0
        self._before: np.ndarray | None = None

    def observation(self, observation: Any) -> Any:
        self._due += self._fraction
        is_due = self._due >= 1.0 - 1e-9
        if is_due or self._merges:
            # An environment without a render mode has frames as observations.
            frame = as_rgb(observation if self.render_mode is None else self.render())
        if is_due:
            self._due -= 1.0
            self._see(frame if self._before is None else np.maximum(self._before, frame))
        if self._merges:
            self._before = frame
        return observation


def as_rgb(picture: Any) -> np.ndarray:
    """A picture of any environment in RGB, (height, width, 3)."""
    channels = np.atleast_3d(picture)
    return channels[..., :3] if channels.shape[2] > 1 else channels.repeat(3, axis=2)


def draw_number(frame: np.ndarray, number: int) -> np.ndarray:
    """Return a copy of a frame with a number in white on black across its middle.

    Every kind of preprocessing keeps the middle, and the number is large enough to be read after
    the frame has been scaled down.
    """
    image = np.ascontiguousarray(frame).copy()
    height, width = image.shape[:2]
    scale = width / 130
    thickness = max(1, round(scale))
    text, font = str(number), cv2.FONT_HERSHEY_SIMPLEX
    (text_width, text_height), _ = cv2.getTextSize(text, font, scale, thickness)
    left, bottom = (width - text_width) // 2, (height + text_height) // 2
    margin = 2 * thickness
    lower_left = left - margin, bottom + margin
    upper_right = left + text_width + margin, bottom - text_height - margin
    cv2.rectangle(image, lower_left, upper_right, (0, 0, 0), cv2.FILLED)
    cv2.putText(image, text, (left, bottom), font, scale, (255, 255, 255), thickness)
    return image
