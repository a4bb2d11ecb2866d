"""Where moving pictures go: a window, an MP4 film, a GIF.

All three take RGB arrays of one size, one after another. H.264 in MP4 is what browsers and
QuickTime play as well; OpenCV's own build cannot write it, so ffmpeg does, the one that comes with
imageio-ffmpeg.
"""

import contextlib
import itertools
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

GIF_FPS = 15.0


class NoScreen(Exception):
    """Pictures cannot be shown or written, and why, in one line."""


class Closed(Exception):
    """The person has closed the window."""


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
    driver = os.environ.get("SDL_VIDEODRIVER")
    if driver is None and sys.platform == "linux":
        # SDL would try one driver after another, some of which complain on stderr.
        if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            raise NoScreen("no display")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    # Windows without OpenGL: where Mesa draws in software, it brings an LLVM, which crashes beside
    # TensorFlow's.
    os.environ.setdefault("SDL_FRAMEBUFFER_ACCELERATION", "0")
    import pygame

    try:
        pygame.display.init()
    except pygame.error as error:
        raise NoScreen(f"no display: {error}") from None
    # Drivers that draw for nobody are what SDL falls back on, and none that we want unasked.
    if driver is None and pygame.display.get_driver() in ("dummy", "offscreen"):
        pygame.display.quit()
        raise NoScreen("no display")
    return pygame


def open_film(path: pathlib.Path, fps: float) -> Screen:
    """A film of the kind that the path's ending names; NoScreen where it cannot be written."""
    if path.suffix.lower() not in (".mp4", ".gif"):
        raise NoScreen(f"{path}: films are .mp4 or .gif")
    try:
        path.open("wb").close()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise NoScreen(f"cannot write {path}: {reason}") from None
    return Gif(path) if path.suffix.lower() == ".gif" else Mp4(path, fps)


class Mp4:
    """H.264 in an MP4 file, by ffmpeg; what is shown is in the file once it is closed."""

    def __init__(self, path: pathlib.Path, fps: float) -> None:
        self._path = path
        self.fps = fps
        self._ffmpeg: subprocess.Popen[bytes] | None = None
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 (open for long)

    def show(self, image: np.ndarray) -> None:
        """One more picture; all have the size of the first."""
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

        # yuv420p, because players know no other; the index in front, to play while it loads.
        options = (
            f"-y -v error -f rawvideo -pix_fmt rgb24 -s {width}x{height} -r {self.fps:g} -i - -an"
            " -c:v libx264 -preset veryfast -crf 20 -pix_fmt yuv420p -movflags +faststart"
        )
        try:
            # In a session of its own: Ctrl-C is for us to heed, and the film is to be finished.
            return subprocess.Popen(
                [imageio_ffmpeg.get_ffmpeg_exe(), *options.split(), f"file:{self._path}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._words,
                start_new_session=True,
            )
        except (OSError, RuntimeError) as error:  # there is no ffmpeg, or it does not run
            raise NoScreen(f"cannot write {self._path}: {_first_line(str(error))}") from None

    def _failure(self) -> NoScreen:
        assert self._ffmpeg is not None
        self._ffmpeg.wait()
        self._words.seek(0)
        words = self._words.read().decode(errors="replace")
        return NoScreen(f"cannot write {self._path}: {_first_line(words)}")


def _first_line(words: str) -> str:
    return next((line.strip() for line in words.splitlines() if line.strip()), "ffmpeg failed")


class Gif:
    """A GIF, GIF_FPS pictures a second (browsers slow down faster ones), endlessly repeated."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self.fps = GIF_FPS
        self._images: list[Any] = []

    def show(self, image: np.ndarray) -> None:
        from PIL import Image

        # Atari games have few colours, and 255 are allowed: nothing is dithered.
        picture = Image.fromarray(image).quantize(255, dither=Image.Dither.NONE)
        self._images.append(picture)

    def close(self) -> None:
        if not self._images:
            return
        first, *others = self._images
        # In hundredths of a second, rounded so that errors do not add up.
        ends = [round(100 * i / GIF_FPS) for i in range(len(self._images) + 1)]
        durations = [10 * (end - start) for start, end in itertools.pairwise(ends)]
        try:
            first.save(
                self._path,
                save_all=True,
                append_images=others,
                duration=durations,
                loop=0,
                optimize=False,
            )
        except OSError as error:
            raise NoScreen(f"cannot write {self._path}: {error}") from None


def pictures_at(rate: float, fps: float) -> Iterator[bool]:
    """Which of pictures that come at `rate` a second to show, to have `fps` of them."""
    shown = 0.0
    while True:
        shown += min(1.0, fps / rate)
        yield shown >= 1.0 - 1e-9
        if shown >= 1.0 - 1e-9:
            shown -= 1.0
