"""Pictures for people: the enlarged game, and beside it a panel of what the agent sees and thinks.

Every picture is an RGB array with even sides, which H.264 requires.
"""

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
TRACK = (44, 48, 57)
SPREAD = (50, 84, 112)
N_WRITTEN = 8  # so many numbers of a vector have a line each; more of them are bars
BAR_WIDTH = 6  # at least, with its gap
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

    def __init__(self) -> None:
        self._image = Image.new("RGB", (PANEL_WIDTH, HEIGHT), BACKGROUND)
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
            self._numbers(observation)
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

    def _numbers(self, numbers: np.ndarray) -> None:
        """Write a few numbers; of many, draw as many as there is room for, as bars from a zero line.

        A bar's length is x / (1 + |x|), which shows small numbers, and never leaves its place.
        """
        if len(numbers) <= N_WRITTEN:
            for i, number in enumerate(numbers):
                self.write(MARGIN, f"[{i}]  {number:+.4f}")
                self.y += 24
            self.y += 12
            return
        width = PANEL_WIDTH - 2 * MARGIN
        shown = numbers[: width // BAR_WIDTH]
        n_left_out = len(numbers) - len(shown)
        which = f"the first {len(shown)} of" if n_left_out else "all"
        self.write(MARGIN, f"{which} {len(numbers)} numbers, as x / (1 + |x|)", size=14)
        self.y += 24
        half, step = 40, width // len(shown)
        zero = self.y + half
        for i, length in enumerate(half * shown / (1 + np.abs(shown))):
            left = MARGIN + i * step
            ends = sorted((zero, zero - round(float(length))))
            self._draw.rectangle((left, ends[0], left + max(1, step - 3), ends[1]), BAR)
        self._draw.line((MARGIN, zero, MARGIN + step * len(shown), zero), FAINT)
        self.y += 2 * half + 16

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

    def spreads(
        self,
        names: Sequence[str],
        means: np.ndarray,
        sds: np.ndarray,
        taken: np.ndarray,
        axes: tuple[np.ndarray, np.ndarray],
        until: int,
    ) -> None:
        """Draw for each name its mean, a band of ± one sd, and what was taken, above y = `until`.

        A grey track goes from the low to the high end of its axis. What lies outside is drawn beside
        it or, if that is too far, at the edge.
        """
        row = min(30, (until - self.y) // len(names))
        size = max(9, min(16, row - 4))
        left, right = MARGIN + 100, PANEL_WIDTH - MARGIN - 150
        for i, name in enumerate(names):
            low, high, mean, sd = (float(x[i]) for x in (*axes, means, sds))
            # The track takes the middle two thirds.
            points = np.array([low, high, mean - sd, mean + sd, mean, taken[i]])
            shares = np.clip(((points - low) / (high - low) + 0.25) / 1.5, 0.0, 1.0)
            places = left + (right - left) * shares
            top, bottom = self.y + 2, self.y + row - 4
            self.write(MARGIN, name, TEXT, size)
            self._draw.rectangle((places[0], top, places[1], bottom), TRACK)
            self._draw.rectangle((places[2], top, places[3], bottom), SPREAD)
            for x in places[:2]:
                self._draw.line((x, top, x, bottom), FAINT)
            for x, colour in ((places[4], BAR), (places[5], CHOSEN)):
                self._draw.rectangle((x - 2, top, x + 2, bottom), colour)
            self.write(right + 12, f"{mean:+.2f} ± {sd:.2f}", TEXT, size)
            self.y += row

    def strip(self, cells: np.ndarray) -> None:
        """Draw rows of numbers from −1 to 1, (n_rows, n), as coloured cells, as many as fit."""
        width = PANEL_WIDTH - 2 * MARGIN
        shown = cells[:, :width, None]
        zoom = width // shown.shape[1]
        ends = np.where(shown < 0, BAR, CHOSEN)
        colours = (TRACK + np.minimum(np.abs(shown), 1.0) * (ends - TRACK)).astype(np.uint8)
        for row in colours:
            image = np.broadcast_to(row.repeat(zoom, axis=0), (14, zoom * len(row), 3))
            self._image.paste(Image.fromarray(np.ascontiguousarray(image)), (MARGIN, self.y))
            self.y += 17
        self.y += 8

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
    """Shows the frames of a game on a screen, beside a panel if there is one."""

    def __init__(self, screen: Film | Window, panel: np.ndarray | None = None) -> None:
        self.panel = panel
        self._screen = screen

    def see(self, frame: np.ndarray) -> None:
        picture = enlarged(frame)
        self._screen.show(picture if self.panel is None else beside(picture, self.panel))
