"""Where moving pictures go: a window, an MP4 film or a GIF.

All of them take RGB arrays of one size, one after another. Browsers and QuickTime play H.264 in MP4;
OpenCV's own build cannot write it, so imageio-ffmpeg's ffmpeg does. It also writes GIFs, because
Pillow would hold every picture in memory until the end.
"""

import contextlib
import math
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np

from a3c.machine.appending import why_unwritable


class NoScreen(Exception):
    """Pictures cannot be shown or written; says why in one line."""


class Closed(Exception):
    """The user has closed the window, or the film has its full length."""


class Window:
    """A window that shows `fps` pictures a second and waits between them."""

    def __init__(self, title: str, fps: float) -> None:
        self._pygame: Any = open_display()
        self._pygame.display.set_caption(title)
        self._clock = self._pygame.time.Clock()
        self._down: set[str] = set()
        self._tapped: set[str] = set()
        self.fps = fps

    def show(self, image: np.ndarray) -> None:
        """Show a picture, then wait until the next is due; Closed if the user closed the window."""
        pygame = self._pygame
        size = (image.shape[1], image.shape[0])
        surface = pygame.display.get_surface() or pygame.display.set_mode(size)
        surface.blit(pygame.image.frombuffer(image.tobytes(), size, "RGB"), (0, 0))
        pygame.display.flip()
        for event in pygame.event.get():
            key = pygame.key.name(event.key) if hasattr(event, "key") else ""
            if event.type == pygame.QUIT or key == "escape":
                raise Closed
            if event.type == pygame.KEYDOWN:
                self._down.add(key)
                self._tapped.add(key)
            elif event.type == pygame.KEYUP:
                self._down.discard(key)
        self._clock.tick(self.fps)

    def take_keys(self) -> set[str]:
        """Return the keys that are down, and those pressed since the last call."""
        keys, self._tapped = self._down | self._tapped, set()
        return keys

    def close(self) -> None:
        self._pygame.quit()


def has_display() -> bool:
    """Whether a window can be opened."""
    try:
        open_display().quit()
    except NoScreen:
        return False
    return True


def open_display() -> Any:
    """Return pygame with its display initialised; NoScreen where there is no display."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    # No OpenGL: where Mesa renders in software, its LLVM crashes beside TensorFlow's.
    os.environ.setdefault("SDL_FRAMEBUFFER_ACCELERATION", "0")
    import pygame

    is_chosen = "SDL_VIDEODRIVER" in os.environ
    if not is_chosen and sys.platform == "linux":
        # SDL would try all its drivers. Some complain on stderr, and the last ones show nothing.
        displays = {"DISPLAY": "x11", "WAYLAND_DISPLAY": "wayland"}
        drivers = [driver for name, driver in displays.items() if os.environ.get(name)]
        if not drivers:
            raise NoScreen("no display")
        os.environ["SDL_VIDEODRIVER"] = ",".join(drivers)
    try:
        pygame.display.init()
    except pygame.error as error:
        raise NoScreen(f"no display: {error}") from None
    finally:
        if not is_chosen:
            os.environ.pop("SDL_VIDEODRIVER", None)
    return pygame


# ffmpeg's options. Many players support only this pixel format. With the index in front, a film
# plays while it loads.
MP4 = "-c:v libx264 -preset veryfast -crf 20 -pix_fmt yuv420p -movflags +faststart"
# Repeats endlessly. With a palette for each picture, there is room for most games' colours. One
# palette for the whole film makes it much smaller, since only what has changed is written; it has the
# colours of the first pictures, because ffmpeg holds all pictures in memory until it has a palette.
GIF = "-filter_complex split[a][b];[a]{}[p];[b][p]paletteuse={}dither=none -c:v gif -loop 0"
PALETTE_EACH = GIF.format("palettegen=stats_mode=single", "new=1:")
PALETTE_ONCE = GIF.format("trim=end_frame=20,palettegen=max_colors=64", "")
# Pictures a second, about: a screen shows no more of an MP4, and GIFs grow large.
FORMS = {".mp4": (MP4, 60.0), ".gif": (PALETTE_EACH, 15.0)}


def check_film(path: pathlib.Path) -> None:
    """Raise NoScreen if no film can be written to this path."""
    if path.suffix.lower() not in FORMS:
        raise NoScreen(f"{path}: films are .mp4 or .gif")
    if reason := why_unwritable(path):
        raise NoScreen(f"cannot write {path}: {reason}")


class Film:
    """A film of the kind that the path's suffix names; the file is complete after `close`.

    ffmpeg writes each picture at once, so a long film takes no more memory than a short one.
    """

    def __init__(
        self,
        path: pathlib.Path,
        fps: float,
        seconds: float = math.inf,
        has_new_colours: bool = True,
    ) -> None:
        """Of `fps` frames a second, the film shows all, or every second, third, … one.

        After `seconds` of film, `show` raises Closed. If later pictures have new colours, each has a
        palette of its own, which only a GIF needs.
        """
        self._path = path
        self._options, about_fps = FORMS[path.suffix.lower()]
        if self._options == PALETTE_EACH and not has_new_colours:
            self._options = PALETTE_ONCE
        self.fps = fps / max(1, round(fps / about_fps))
        self._n_pictures_left = max(1.0, seconds * self.fps)
        self._ffmpeg: subprocess.Popen[bytes] | None = None
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (open for long)

    def show(self, image: np.ndarray) -> None:
        """Add a picture; all must have the size of the first one."""
        if self._n_pictures_left < 1:
            raise Closed
        self._n_pictures_left -= 1
        if self._ffmpeg is None:
            self._ffmpeg = self._start(image.shape[1], image.shape[0])
        assert self._ffmpeg.stdin is not None
        try:
            self._ffmpeg.stdin.write(image.tobytes())
        except OSError:
            self.close()  # which says why

    def close(self) -> None:
        """Complete the file; NoScreen if ffmpeg failed."""
        if self._ffmpeg is None:
            return
        with contextlib.suppress(OSError):  # then the exit status is not 0
            self._ffmpeg.communicate()
        if self._ffmpeg.wait() != 0:
            self._stderr.seek(0)
            words = _first_line(self._stderr.read().decode(errors="replace"))
            raise NoScreen(f"cannot write {self._path}: {words}")

    def _start(self, width: int, height: int) -> "subprocess.Popen[bytes]":
        import imageio_ffmpeg

        options = (
            f"-y -v error -f rawvideo -pix_fmt rgb24 -s {width}x{height} -r {self.fps:g} -i - -an"
            f" {self._options}"
        )
        try:
            # In a session of its own: Ctrl-C must not end ffmpeg before the film is complete.
            return subprocess.Popen(
                [imageio_ffmpeg.get_ffmpeg_exe(), *options.split(), f"file:{self._path}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                start_new_session=True,
            )
        except (OSError, RuntimeError) as error:  # there is no ffmpeg, or it does not run
            words = _first_line(str(error))
            raise NoScreen(f"cannot write {self._path} without ffmpeg: {words}") from None


def _first_line(words: str) -> str:
    return next((line.strip() for line in words.splitlines() if line.strip()), "ffmpeg failed")
