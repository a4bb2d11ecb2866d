"""Pictures for people: how large they are, and what a panel says."""

import numpy as np
import pytest

from a3c.play import views


class Kept:
    """A screen that keeps what it is shown."""

    def __init__(self) -> None:
        self.images: list[np.ndarray] = []

    def show(self, image: np.ndarray) -> None:
        self.images.append(image)


def test_a_panel_stands_beside_the_game():
    """Analytic: each in the middle of the taller one's height."""
    screen = Kept()
    panel = np.full((700, 10, 3), 7, np.uint8)
    projector = views.Projector(screen, panel)
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


def test_many_numbers_are_bars_from_a_zero_line():
    """Analytic: 0, 1, -1 and 3 have lengths of 0, 1/2, -1/2 and 3/4 of 40 pixels."""
    panel = views.Panel()
    zero, width = panel.y + 24 + 40, (views.PANEL_WIDTH - 2 * views.MARGIN) // 12
    panel.observation(np.array([0, 1, -1, 3, *[0] * 8], np.float32))
    is_bar = (panel.array() == views.BAR).all(axis=-1)
    for i, (above, below) in enumerate(((0, 0), (20, 0), (0, 20), (30, 0))):
        column = is_bar[:, views.MARGIN + i * width + width // 2]
        assert (column[:zero].sum(), column[zero + 1 :].sum()) == (above, below)
    assert panel.y > zero + 40  # what follows stands below them


def test_cells_are_coloured_by_their_numbers():
    """Analytic: -1 is blue, 1 is orange, 0 is neither, and 1/2 halfway; the rows fill the panel."""
    panel = views.Panel()
    y, third = panel.y, (views.PANEL_WIDTH - 2 * views.MARGIN) // 3
    panel.strip(np.array([[-1, 0, 1], [0, 0.5, 0]]))
    image = panel.array().astype(int)
    half = (np.array(views.TRACK) + views.CHOSEN) // 2
    for row, colours in enumerate(
        ((views.BAR, views.TRACK, views.CHOSEN), (views.TRACK, half, views.TRACK))
    ):
        for i, colour in enumerate(colours):
            for x in (views.MARGIN + i * third, views.MARGIN + (i + 1) * third - 1):
                np.testing.assert_allclose(image[y + 17 * row + 7, x], colour, atol=1)
