"""Pictures for people: the enlarged game, and beside it what the agent sees and expects.

Every picture is an RGB array with even sides, which H.264 requires.
"""

import collections
import functools
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from a3c.play.screens import Film, Window

HEIGHT = 630  # three times an Atari's 210
PANEL_WIDTH = 720
MARGIN = 18
BACKGROUND = (22, 24, 29)
TEXT = (226, 228, 233)
FAINT = (128, 134, 146)
BAR = (86, 156, 214)
CHOSEN = (240, 164, 60)
N_VALUES = 200  # in the curve of values: the last 13 seconds of an Atari game


def enlarged(frame: np.ndarray) -> np.ndarray:
    """Return a frame as large as fits into HEIGHT, with square pixels and even sides."""
    image = _zoomed(frame, max(1, HEIGHT // frame.shape[0]))
    return np.pad(image, ((0, image.shape[0] % 2), (0, image.shape[1] % 2), (0, 0)))


def beside(*images: np.ndarray) -> np.ndarray:
    """Return images side by side, each vertically centred."""
    height = max(image.shape[0] for image in images)
    width = sum(image.shape[1] for image in images)
    canvas, x = np.full((height, width, 3), BACKGROUND, np.uint8), 0
    for image in images:
        y = (height - image.shape[0]) // 2
        canvas[y : y + image.shape[0], x : x + image.shape[1]] = image
        x += image.shape[1]
    return canvas


def spread_stack(observation: np.ndarray) -> np.ndarray:
    """Return a stack (height, width, n) as one image (height, n * width), oldest on the left."""
    return np.concatenate(np.moveaxis(observation, -1, 0), axis=1)


def _zoomed(image: np.ndarray, zoom: int) -> np.ndarray:
    return image.repeat(zoom, axis=0).repeat(zoom, axis=1)


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
        """Write text at the current height, and stay there."""
        self._draw.text((x, self.y), text, colour, _font(size))

    def head(self, text: str) -> None:
        self.write(MARGIN, text, FAINT, 15)
        self.y += 26

    def observation(self, observation: np.ndarray) -> None:
        """Draw a stack of images, oldest on the left, or the numbers of a vector."""
        if observation.ndim == 1:
            for i, number in enumerate(observation):
                self.write(MARGIN, f"[{i}]  {number:+.4f}")
                self.y += 24
            self.y += 12
            return
        n_images = observation.shape[-1]
        gap = 4
        zoom = max(1, (PANEL_WIDTH - 2 * MARGIN - gap * (n_images - 1)) // (84 * n_images))
        for i in range(n_images):
            image = Image.fromarray(_zoomed(observation[..., i], zoom))
            # The outline shows where an image ends, even if its edges are black.
            x = MARGIN + i * (image.width + gap)
            box = (x - 1, self.y - 1, x + image.width, self.y + image.height)
            self._draw.rectangle(box, outline=FAINT)
            self._image.paste(image, (x, self.y))
        self.y += image.height + 14

    def bars(
        self, names: Sequence[str], fractions: Sequence[float], chosen: int, until: int
    ) -> None:
        """Draw a bar for each name above y = `until`, the chosen one in another colour."""
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
        """Draw a row of keys, the pressed ones in another colour."""
        x = MARGIN
        for key in keys:
            colour = CHOSEN if key in pressed else FAINT
            width = 24 + 10 * len(key)
            box = (x, self.y, x + width, self.y + 32)
            self._draw.rounded_rectangle(box, 6, outline=colour, width=2)
            self._draw.text((x + width / 2, self.y + 16), key, colour, _font(16), anchor="mm")
            x += width + 10
        self.y += 48

    def course(self, values: Sequence[float]) -> None:
        """Draw a line through the values, the newest on the right, down to the panel's end."""
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
    """Shows a game's frames on a screen, beside a panel if there is one.

    `rate` frames a second come in. Where the screen takes fewer, some frames are left out.
    """

    def __init__(self, screen: Film | Window, rate: float, panel: np.ndarray | None = None) -> None:
        self.panel = panel
        self._screen = screen
        self._share = min(1.0, screen.fps / rate)  # of the frames that are shown
        self._due = 0.0
        self._before: np.ndarray | None = None

    def see(self, frame: np.ndarray) -> None:
        """Take the game's next frame."""
        shown = frame
        # Sprites flicker: some are drawn in every second frame only.
        if self._share < 1 and self._before is not None:
            shown = np.maximum(self._before, frame)
        self._before = frame
        self._due += self._share
        if self._due >= 1.0 - 1e-9:
            self._due -= 1.0
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
        """Return the panel of one decision, with the curve of the values up to it."""
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
