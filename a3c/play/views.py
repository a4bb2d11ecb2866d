"""Pictures for people: the game enlarged, and beside it what the agent sees and thinks.

Every picture is an RGB array whose sides are even, as H.264 wants them.
"""

import collections
import functools
from collections.abc import Collection, Sequence
from typing import Any

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from a3c.play.screens import Screen, pictures_at

HEIGHT = 630  # three times an Atari's 210
PANEL_WIDTH = 720
MARGIN = 18
BACKGROUND = (22, 24, 29)
TEXT = (226, 228, 233)
FAINT = (128, 134, 146)
BAR = (86, 156, 214)
CHOSEN = (240, 164, 60)
N_VALUES = 200  # of the value's course: at Atari's rate the last 13 seconds


def enlarged(frame: np.ndarray) -> np.ndarray:
    """A frame as large as fits into HEIGHT, each pixel an even square."""
    return _even(_zoomed(frame, max(1, HEIGHT // frame.shape[0])))


def beside(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Two pictures side by side, the lower one in the middle."""
    height = max(left.shape[0], right.shape[0])
    return np.concatenate([_heightened(left, height), _heightened(right, height)], axis=1)


def _zoomed(image: np.ndarray, zoom: int) -> np.ndarray:
    size = (zoom * image.shape[1], zoom * image.shape[0])
    return cv2.resize(image, size, interpolation=cv2.INTER_NEAREST)


def _even(image: np.ndarray) -> np.ndarray:
    return np.pad(image, ((0, image.shape[0] % 2), (0, image.shape[1] % 2), (0, 0)))


def _heightened(image: np.ndarray, height: int) -> np.ndarray:
    if image.shape[0] == height:
        return image
    canvas = np.empty((height, image.shape[1], 3), np.uint8)
    canvas[:] = BACKGROUND
    top = (height - image.shape[0]) // 2
    canvas[top : top + image.shape[0]] = image
    return canvas


@functools.cache
def _font(size: int) -> Any:
    return ImageFont.load_default(size)


class Panel:
    """A canvas that is filled from top to bottom."""

    def __init__(self, height: int = HEIGHT) -> None:
        self._image = Image.new("RGB", (PANEL_WIDTH, height), BACKGROUND)
        self._draw = ImageDraw.Draw(self._image)
        self.y = MARGIN - 4

    def array(self) -> np.ndarray:
        return np.asarray(self._image)

    def write(
        self, x: float, text: str, colour: tuple[int, int, int] = TEXT, size: int = 16
    ) -> None:
        """A line at this height; what follows is still beside it."""
        self._draw.text((x, self.y), text, colour, _font(size))

    def head(self, text: str) -> None:
        self.write(MARGIN, text, FAINT, 15)
        self.y += 26

    def observation(self, observation: np.ndarray) -> None:
        """A stack of images spread out, oldest on the left; or the numbers of a vector."""
        if observation.ndim == 1:
            for i, number in enumerate(observation):
                self.write(MARGIN, f"[{i}]  {number:+.4f}")
                self.y += 24
            self.y += 12
            return
        n_images = observation.shape[-1]
        gap = 4
        zoom = max(1, (PANEL_WIDTH - 2 * MARGIN - gap * (n_images - 1)) // (84 * n_images))
        spread = _zoomed(spread_stack(observation), zoom)
        for i, image in enumerate(np.split(spread, n_images, axis=1)):
            # In a frame, since images themselves may be black at their edges.
            x, width = MARGIN + i * (image.shape[1] + gap), image.shape[1]
            box = (x - 1, self.y - 1, x + width, self.y + image.shape[0])
            self._draw.rectangle(box, outline=FAINT)
            self._image.paste(Image.fromarray(image), (x, self.y))
        self.y += spread.shape[0] + 14

    def bars(
        self, names: Sequence[str], fractions: Sequence[float], chosen: int, until: int
    ) -> None:
        """A bar for each name, the chosen one in another colour, above y = `until`."""
        row = min(30, (until - self.y) // len(names))
        size = max(9, min(16, row - 4))
        left, right = MARGIN + 150, PANEL_WIDTH - MARGIN - 70
        for i, (name, fraction) in enumerate(zip(names, fractions, strict=True)):
            colour = CHOSEN if i == chosen else BAR
            self.write(MARGIN, name, CHOSEN if i == chosen else TEXT, size)
            length = (right - left) * min(max(float(fraction), 0.0), 1.0)
            self._draw.rectangle((left, self.y + 2, left + length, self.y + row - 4), colour)
            self.write(right + 12, f"{100 * fraction:.1f} %", TEXT, size)
            self.y += row

    def keys(self, keys: Sequence[str], pressed: Collection[str]) -> None:
        """A row of keys, those that are pressed in another colour."""
        x = MARGIN
        for key in keys:
            colour = CHOSEN if key in pressed else FAINT
            width = 24 + 10 * len(key)
            box = (x, self.y, x + width, self.y + 32)
            self._draw.rounded_rectangle(box, 6, outline=colour, width=2)
            font = _font(16)
            self._draw.text((x + width / 2, self.y + 16), key, colour, font, anchor="mm")
            x += width + 10
        self.y += 48

    def course(self, values: Sequence[float]) -> None:
        """A line through the values, the newest on the right, down to the panel's end."""
        top, bottom = self.y + 4, self._image.height - MARGIN
        left, right = MARGIN, PANEL_WIDTH - MARGIN
        low, high = min(*values, -1.0), max(*values, 1.0)

        def place(value: float) -> float:
            return bottom - (value - low) / (high - low) * (bottom - top)

        self._draw.line((left, place(0.0), right, place(0.0)), FAINT)
        step = (right - left) / (N_VALUES - 1)
        first = right - step * (len(values) - 1)
        points = [(first + i * step, place(value)) for i, value in enumerate(values)]
        if len(points) > 1:
            self._draw.line(points, CHOSEN, 2)


class Projector:
    """Shows a game's frames on a screen, and beside them a panel, if there is one.

    `rate` is how many frames a second come in; where the screen wants fewer, some are left out.
    """

    def __init__(self, screen: Screen, rate: float, panel: np.ndarray | None = None) -> None:
        self.panel = panel
        self._screen = screen
        self._is_wanted = pictures_at(rate, screen.fps)
        self._leaves_out = rate > screen.fps
        self._before: np.ndarray | None = None

    def see(self, frame: np.ndarray) -> None:
        """One frame of the game."""
        shown = frame
        # Sprites flicker: of two frames that become one picture, each may hold a half of them.
        if self._leaves_out and self._before is not None:
            shown = np.maximum(self._before, frame)
        self._before = frame
        if next(self._is_wanted):
            picture = enlarged(shown)
            self._screen.show(picture if self.panel is None else beside(picture, self.panel))


class Eyes:
    """The agent's view of a game: what it sees, how likely each action is, and the value."""

    def __init__(self, action_names: Sequence[str]) -> None:
        self._names = action_names
        self._values: collections.deque[float] = collections.deque(maxlen=N_VALUES)

    def draw(
        self, observation: np.ndarray, probabilities: np.ndarray, action: int, value: float
    ) -> np.ndarray:
        """The panel of one decision; the values of those before are drawn with it."""
        self._values.append(value)
        panel = Panel()
        panel.head("what the agent sees")
        panel.observation(observation)
        panel.head("how likely each action is")
        panel.bars(self._names, list(probabilities), action, until=HEIGHT - 132)
        panel.y = HEIGHT - 120
        panel.head(f"what it expects to be paid, discounted:  {value:+.3f}")
        panel.course(list(self._values))
        return panel.array()


def spread_stack(observation: np.ndarray) -> np.ndarray:
    """Return a stack (height, width, n) as one image (height, n * width), oldest on the left."""
    return np.concatenate(np.moveaxis(observation, -1, 0), axis=1)
