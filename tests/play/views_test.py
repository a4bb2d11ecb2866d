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
