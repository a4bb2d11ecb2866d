"""Windows are opened where there is a display and keep their time; films grow picture by picture."""

import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from a3c.play import screens
from tests.tools import processes


@pytest.mark.parametrize("name", ["DISPLAY", "WAYLAND_DISPLAY"])
def test_a_display_that_is_not_there_is_none(no_display, monkeypatch, capfd, name):
    """Analytic: nothing on stderr, where SDL's drivers complain of displays that nobody named."""
    monkeypatch.setenv(name, ":987" if name == "DISPLAY" else "wayland-987")
    assert not screens.has_display()
    with pytest.raises(screens.NoScreen, match=r"^no display: \w"):
        screens.open_display()
    if name == "DISPLAY":  # the driver of Wayland, which was named, may have its say
        assert capfd.readouterr() == ("", "")
    assert "SDL_VIDEODRIVER" not in os.environ


def test_a_window_waits_for_its_time(no_display, monkeypatch):
    """Analytic: SDL's dummy driver; pygame's clock is asked to keep the rate after each picture."""
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    window, asked = screens.Window("a title", 25.0), []

    class Clock:
        def tick(self, fps: float) -> None:
            asked.append((fps, window._pygame.display.get_caption()[0]))

    window._clock = Clock()
    for _ in range(3):
        window.show(np.zeros((6, 8, 3), np.uint8))
    window.close()
    assert asked == [(25.0, "a title")] * 3


# Prints how many kB this process and ffmpeg have held at most, after a short film and a long one. For this
# process, `ru_maxrss` would begin with what its parent holds.
FILM = """
import pathlib, re, resource, sys
import numpy as np
from a3c.play import screens
image = np.zeros((400, 600, 3), np.uint8)
for n_pictures in (100, 300):
    film = screens.Film(pathlib.Path(sys.argv[1]), 60.0, has_new_colours=len(sys.argv) < 3)
    for n in range(n_pictures):
        image[n, :, n % 3] = 200
        film.show(image)
    film.close()
    print(re.search("VmHWM:\\s*([0-9]+)", pathlib.Path("/proc/self/status").read_text())[1])
    print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.parametrize(("ending", "more"), [(".gif", []), (".gif", ["once"]), (".mp4", [])])
def test_a_long_film_takes_no_more_memory_than_a_short_one(tmp_path, ending, more):
    """Analytic: 100 pictures, which fill what ffmpeg keeps at hand, and 200 more, which would be 48 MB even with one
    byte a pixel.
    """
    command = [sys.executable, "-c", FILM, str(tmp_path / f"film{ending}"), *more]
    done = subprocess.run(command, cwd=processes.ROOT, check=True, capture_output=True, text=True)
    ours, ffmpegs, ours_then, ffmpegs_then = map(int, done.stdout.split())
    assert ours_then - ours < 20_000
    assert ffmpegs_then - ffmpegs < 20_000


def test_a_film_without_new_colours_is_smaller(tmp_path):
    """Golden: a square, now red and now blue, goes over 16 greys, which are then written only once."""
    greys, paths = np.random.default_rng(0).integers(0, 16, (120, 160, 1), np.uint8) * 8, []
    frames = np.repeat(greys[None], 40, axis=0).repeat(3, axis=-1)
    for n, frame in enumerate(frames):
        frame[50:60, 3 * n : 3 * n + 10] = (250, 0, 0) if n % 2 else (0, 0, 250)
    for has_new_colours in (True, False):
        paths.append(tmp_path / f"{has_new_colours}.gif")
        film = screens.Film(paths[-1], 15.0, has_new_colours=has_new_colours)
        for frame in frames:
            film.show(frame)
        film.close()
        with Image.open(paths[-1]) as film:
            assert film.n_frames == 40
            film.seek(39)
            np.testing.assert_allclose(film.convert("RGB"), frames[39], atol=4)
    assert paths[1].stat().st_size < paths[0].stat().st_size / 5


def test_a_film_that_cannot_be_written_leaves_what_was_there(tmp_path, monkeypatch):
    """Analytic: an older film stays as it is, and no empty file is left."""
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", "/nowhere/ffmpeg")
    before, new = tmp_path / "before.mp4", tmp_path / "NEW.GIF"
    before.write_bytes(b"a film")
    for path in (before, new):
        screens.check_film(path)
        with pytest.raises(screens.NoScreen, match=f"cannot write {path} without ffmpeg: "):
            screens.Film(path, 60.0).show(np.zeros((64, 64, 3), np.uint8))
    assert before.read_bytes() == b"a film"
    assert not new.exists()


def test_checking_a_film_makes_none(tmp_path):
    """Analytic: it only tries whether the file can be written."""
    for name in ("film.mp4", "FILM.GIF"):
        screens.check_film(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
