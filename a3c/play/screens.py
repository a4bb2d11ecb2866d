"""Where moving pictures go: a window, an MP4 film, a GIF.

All three take RGB arrays of one size, one after another. H.264 in MP4 is what browsers and
QuickTime play as well; OpenCV's own build cannot write it, so ffmpeg does, the one that comes with
imageio-ffmpeg. It writes GIFs too: Pillow would hold every picture of one until it is saved.
"""

import contextlib
import math
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from a3c.machine.appending import why_unwritable


class NoScreen(Exception):
    """Pictures cannot be shown or written, and why, in one line."""


class Closed(Exception):
    """The person has closed the window, or the film is as long as it was to be."""


class Screen(Protocol):
    """What takes pictures. `fps` is how many a second it wants."""

    fps: float

    def show(self, image: np.ndarray) -> None: ...
    def close(self) -> None: ...


class Window:
    """A window that shows `fps` pictures a second, and waits between them to keep that time."""

    def __init__(self, title: str, fps: float) -> None:
        self._pygame: Any = open_display()
        self._pygame.display.set_caption(title)
        self._clock = self._pygame.time.Clock()
        self._surface: Any = None
        self._down: set[str] = set()
        self._tapped: set[str] = set()
        self.fps = fps

    def show(self, image: np.ndarray) -> None:
        """Show a picture at its time; Closed where the person has closed the window."""
        pygame = self._pygame
        size = (image.shape[1], image.shape[0])
        if self._surface is None:
            self._surface = pygame.display.set_mode(size)
        self._surface.blit(pygame.image.frombuffer(image.tobytes(), size, "RGB"), (0, 0))
        pygame.display.flip()
        for event in pygame.event.get():
            if event.type == pygame.QUIT:
                raise Closed
            if event.type in (pygame.KEYDOWN, pygame.KEYUP):
                self._take_key(event.type == pygame.KEYDOWN, pygame.key.name(event.key))
        self._clock.tick(self.fps)

    def _take_key(self, is_down: bool, key: str) -> None:
        if key == "escape":
            raise Closed
        if is_down:
            self._down.add(key)
            self._tapped.add(key)
        else:
            self._down.discard(key)

    def take_keys(self) -> set[str]:
        """The keys that are down, and those that were for a moment since the last call."""
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
    """Pygame, with its display ready; NoScreen where there is none."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    # Windows without OpenGL: where Mesa draws in software, it brings an LLVM, which crashes beside
    # TensorFlow's.
    os.environ.setdefault("SDL_FRAMEBUFFER_ACCELERATION", "0")
    with _only_drivers_with_a_display():
        import pygame

        try:
            pygame.display.init()
        except pygame.error as error:
            raise NoScreen(f"no display: {error}") from None
    # Drivers that draw for nobody are what SDL falls back on, and none that we want unasked.
    if "SDL_VIDEODRIVER" not in os.environ and pygame.display.get_driver() in (
        "dummy",
        "offscreen",
    ):
        pygame.display.quit()
        raise NoScreen("no display")
    return pygame


@contextlib.contextmanager
def _only_drivers_with_a_display() -> Iterator[None]:
    """SDL would try one driver after another, some of which complain on stderr."""
    if "SDL_VIDEODRIVER" in os.environ or sys.platform != "linux":
        yield
        return
    displays = {"DISPLAY": "x11", "WAYLAND_DISPLAY": "wayland"}
    drivers = [driver for name, driver in displays.items() if os.environ.get(name)]
    if not drivers:
        raise NoScreen("no display")
    os.environ["SDL_VIDEODRIVER"] = ",".join(drivers)
    try:
        yield
    finally:
        del os.environ["SDL_VIDEODRIVER"]


class Form(NamedTuple):
    """What ffmpeg is told of a kind of film."""

    options: str
    max_fps: float


FORMS = {
    # yuv420p, because players know no other; the index in front, to play while it loads.
    ".mp4": Form(
        "-c:v libx264 -preset veryfast -crf 20 -pix_fmt yuv420p -movflags +faststart", math.inf
    ),
    # Endlessly repeated; each picture has a palette of its own, since few have more colours than
    # that holds. Browsers slow down faster ones.
    ".gif": Form(
        "-filter_complex split[a][b];[a]palettegen=stats_mode=single[p];[b][p]paletteuse=new=1"
        ":dither=none -c:v gif -loop 0",
        15.0,
    ),
}


def check_film(path: pathlib.Path) -> None:
    """NoScreen where no film can be written there: known before it is played, and not after it."""
    if path.suffix.lower() not in FORMS:
        raise NoScreen(f"{path}: films are .mp4 or .gif")
    if reason := why_unwritable(path):
        raise NoScreen(f"cannot write {path}: {reason}")
    trial = Film(path, fps=1.0, is_trial=True)
    trial.show(np.zeros((64, 64, 3), np.uint8))
    trial.close()


class Film:
    """A film of the kind that the path's ending names; it is whole once it is closed.

    ffmpeg writes it picture by picture, so that a long one takes no more memory than a short one.
    """

    def __init__(
        self,
        path: pathlib.Path,
        fps: float,
        seconds: float = math.inf,
        is_trial: bool = False,
    ) -> None:
        """`seconds` is how long it gets at most; what a trial is shown goes nowhere."""
        self._path = path
        self._form = FORMS[path.suffix.lower()]
        self._is_trial = is_trial
        self.fps = min(fps, self._form.max_fps)
        self._n_pictures_left = max(1.0, seconds * self.fps)
        self._ffmpeg: subprocess.Popen[bytes] | None = None
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 (open for long)

    def show(self, image: np.ndarray) -> None:
        """One more picture; all have the size of the first. Closed where there were enough."""
        if self._n_pictures_left < 1:
            raise Closed
        self._n_pictures_left -= 1
        if self._ffmpeg is None:
            self._ffmpeg = self._start(image.shape[1], image.shape[0])
        assert self._ffmpeg.stdin is not None
        try:
            self._ffmpeg.stdin.write(image.tobytes())
        except OSError:
            raise self._failure() from None

    def close(self) -> None:
        """Finish the file."""
        if self._ffmpeg is None:
            return
        with contextlib.suppress(OSError):  # its exit status says so as well
            self._ffmpeg.communicate()
        if self._ffmpeg.returncode != 0:
            raise self._failure()

    def _start(self, width: int, height: int) -> "subprocess.Popen[bytes]":
        import imageio_ffmpeg

        options = (
            f"-y -v error -f rawvideo -pix_fmt rgb24 -s {width}x{height} -r {self.fps:g} -i - -an"
            f" {self._form.options}"
        )
        out = ["-f", "null", "-"] if self._is_trial else [f"file:{self._path}"]
        try:
            # In a session of its own: Ctrl-C is for us to heed, and the film is to be finished.
            return subprocess.Popen(
                [imageio_ffmpeg.get_ffmpeg_exe(), *options.split(), *out],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._words,
                start_new_session=True,
            )
        except (OSError, RuntimeError) as error:  # there is no ffmpeg, or it does not run
            words = _first_line(str(error))
            raise NoScreen(f"cannot write {self._path} without ffmpeg: {words}") from None

    def _failure(self) -> NoScreen:
        assert self._ffmpeg is not None
        self._ffmpeg.wait()
        self._words.seek(0)
        words = self._words.read().decode(errors="replace")
        return NoScreen(f"cannot write {self._path}: {_first_line(words)}")


def _first_line(words: str) -> str:
    return next((line.strip() for line in words.splitlines() if line.strip()), "ffmpeg failed")


def pictures_at(rate: float, fps: float) -> Iterator[bool]:
    """Which of pictures that come at `rate` a second to show, to have `fps` of them."""
    shown = 0.0
    while True:
        shown += min(1.0, fps / rate)
        yield shown >= 1.0 - 1e-9
        if shown >= 1.0 - 1e-9:
            shown -= 1.0
