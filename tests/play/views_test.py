"""Pictures for people: which frames are shown, how large, and what a panel says."""

import pathlib

import numpy as np
import pytest
from PIL import Image

from a3c.play import views

# Made by `.venv/bin/python -c "from tests.play.views_test import *; example().save(EXAMPLE)"`, and looked at.
EXAMPLE = pathlib.Path(__file__).resolve().parent.parent / "pinned/panel.png"


class Kept:
    """A screen that keeps what it is shown."""

    def __init__(self, fps: float) -> None:
        self.fps = fps
        self.images: list[np.ndarray] = []

    def show(self, image: np.ndarray) -> None:
        self.images.append(image)


def flickering(n_frames: int) -> list[np.ndarray]:
    """Two sprites, each in every second frame only; the frame's number is in the corner."""
    frames = np.zeros((n_frames, 630, 4, 3), np.uint8)
    frames[0::2, 10, 0] = 200
    frames[1::2, 10, 2] = 200
    frames[:, 0, 0, 0] = np.arange(n_frames)
    return list(frames)


def test_what_flickers_is_not_lost_where_frames_are_left_out():
    """Analytic: every fourth picture has the brighter pixels of two frames; if all are shown, of one."""
    some, all_ = Kept(15.0), Kept(60.0)
    for screen in (some, all_):
        projector = views.Projector(screen, 60.0)
        for frame in flickering(12):
            projector.see(frame)
    assert [int(image[0, 0, 0]) for image in some.images] == [3, 7, 11]
    for image in some.images:
        assert image[10, 0, 0] == image[10, 2, 0] == 200
    np.testing.assert_array_equal(np.stack(all_.images), np.stack(flickering(12)))


def test_a_panel_stands_beside_the_game():
    """Analytic: each in the middle of the taller one's height."""
    screen = Kept(60.0)
    panel = np.full((700, 10, 3), 7, np.uint8)
    projector = views.Projector(screen, 60.0, panel)
    projector.see(np.full((210, 160, 3), 99, np.uint8))
    (image,) = screen.images
    assert image.shape == (700, 490, 3)
    assert (image[:, 480:] == 7).all()
    assert (image[35:665, :480] == 99).all()
    assert (image[:35, :480] == views.BACKGROUND).all()


@pytest.mark.parametrize(
    ("shape", "large"),
    [
        ((210, 160), (630, 480)),
        ((400, 601), (400, 602)),
        ((84, 84), (588, 588)),
        ((7, 3), (630, 270)),
    ],
)
def test_sides_are_even_and_pixels_square(shape, large):
    """Analytic: as many times as fit; H.264 takes no odd sides."""
    frame = np.random.default_rng(0).integers(0, 255, (*shape, 3), np.uint8)
    image = views.enlarged(frame)
    assert image.shape == (*large, 3)
    zoom = 630 // shape[0]
    np.testing.assert_array_equal(
        image[zoom // 2 : zoom * shape[0] : zoom, zoom // 2 : zoom * shape[1] : zoom], frame
    )


@pytest.mark.parametrize(("rate", "fps"), [(60, 60), (60, 15), (50, 15), (240, 60), (50, 60)])
def test_the_right_share_of_pictures_is_shown(rate, fps):
    """Analytic: over ten seconds, at most one more or less; never more than there are."""
    screen = Kept(fps)
    projector = views.Projector(screen, rate)
    for _ in range(10 * rate):
        projector.see(np.zeros((2, 2, 3), np.uint8))
    assert abs(len(screen.images) - 10 * min(rate, fps)) <= 1


def example() -> Image.Image:
    """A panel with everything that it can have, and the eyes on a vector, side by side."""
    images = np.zeros((84, 84, 4), np.uint8)
    images[20:50, 10:40] = np.arange(50, 250, 50)
    panel = views.Panel()
    panel.head("What it sees")
    panel.observation(images)
    panel.keys(["left", "up", "space"], {"up"})
    panel.bars(["NOOP", "FIRE", "DOWN"], [0.05, 0.9, 0.05], 1, panel.y + 100)
    panel.bars([f"{i}" for i in range(9)], [1.5, -0.5, *[0.0] * 7], 0, panel.y + 120)
    panel.head("What it thinks")
    panel.course(np.sin(np.arange(views.N_VALUES) / 20) * 2 + 0.5)
    eyes = views.Eyes(["left", "right"])
    for value in np.cos(np.arange(views.N_VALUES + 50) / 20) * 3:
        seen, likely = np.array([0.5, -1.25, 3.0], np.float32), np.array([0.25, 0.75])
        drawn = eyes.draw(seen, likely, 1, value)
    return Image.fromarray(views.beside(panel.array(), drawn))


def test_a_panel_looks_as_it_did():
    """Golden: every pixel, letters included; another version of Pillow may draw these differently."""
    np.testing.assert_array_equal(np.asarray(example()), np.asarray(Image.open(EXAMPLE)))


def test_bars_are_as_long_as_their_fractions():
    """Analytic: in pixels; the chosen one has a colour of its own."""
    panel = views.Panel()
    y = panel.y
    panel.bars(["a", "b"], [0.25, 0.75], chosen=1, until=400)
    image = panel.array()
    lengths = [
        int((image[y + 30 * i + 10] == colour).all(axis=-1).sum())
        for i, colour in enumerate((views.BAR, views.CHOSEN))
    ]
    whole = views.PANEL_WIDTH - 2 * views.MARGIN - 220
    np.testing.assert_allclose(lengths, [0.25 * whole, 0.75 * whole], atol=2)


def test_keys_stand_in_a_row_with_their_names_inside():
    """Analytic: the first 34 pixels wide, the second 44, which is pressed, ten apart; both 32 high."""
    panel = views.Panel()
    y, x = panel.y, views.MARGIN
    panel.keys(["a", "bb"], pressed={"bb"})
    image = panel.array()
    for colour, left, right in ((views.FAINT, x, x + 34), (views.CHOSEN, x + 44, x + 88)):
        rows, columns = np.nonzero((image == colour).all(axis=-1))
        assert (rows.min(), rows.max()) == (y, y + 32)
        assert (columns.min(), columns.max()) == (left, right)
        is_name = (abs(rows - (y + 16)) < 8) & (abs(columns - (left + right) / 2) < 10)
        assert is_name.any()
    assert panel.y == y + 48


@pytest.mark.parametrize("n_actions", [2, 6, 18])
def test_the_eyes_have_room_for_every_action(n_actions):
    """Analytic: nothing is drawn over the value's course, whose head stays where it is."""
    names = ["DOWNRIGHTFIRE"] * n_actions
    eyes = views.Eyes(names)
    drawn = [
        eyes.draw(np.zeros((84, 84, 4), np.uint8), np.full(n_actions, 1 / n_actions), 0, value)
        for value in (0.5, -0.5)
    ]
    top = views.HEIGHT - 124
    assert (drawn[0][top - 6 : top] == views.BACKGROUND).all()
    np.testing.assert_array_equal(drawn[0][:top], drawn[1][:top])
    assert (drawn[0][top:] != drawn[1][top:]).any()
