"""A folder that one process has to itself: the folder of a run or of a sweep.

A process locks the folder, then fills it, and the last file says that it is whole. So a process that is
killed meanwhile leaves a folder that the next one may have.
"""

import contextlib
import fcntl
import os
import pathlib
from collections.abc import Collection, Mapping
from typing import TextIO

from a3c.machine import appending
from a3c.machine.words import BadInput

LOCK = "lock"


class InUse(BadInput):
    """Another process has the folder."""


def what_is_in(folder: pathlib.Path, files: Collection[str]) -> str | None:
    """The name of something because of which `claim` cannot have the folder; OSError if it is none.

    `files` are those that would be written.
    """
    if not os.path.lexists(folder):
        return None
    names = {path.name for path in folder.iterdir()}
    *_, last = files
    if LOCK in names and last not in names:  # its process was killed before the folder was whole
        names -= {LOCK, *files, *(f"{name}.tmp" for name in files)}
    return min(names, default=None)


def claim(folder: pathlib.Path, texts: Mapping[str, str]) -> TextIO:
    """Make a folder, lock it and write these files, or leave nothing; InUse: another was faster."""
    made: list[pathlib.Path] = []
    try:
        for path in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
            with contextlib.suppress(FileExistsError):  # another process makes the same parents
                path.mkdir()
                made.append(path)
        with contextlib.suppress(FileExistsError):
            (folder / LOCK).open("xb").close()
            made.append(folder / LOCK)
        held = lock(folder)
        *_, last = texts
        if (folder / last).exists():
            held.close()
            raise InUse(f"{folder} has just been taken")
        for name, text in texts.items():
            made.append(folder / name)
            data = text and f"{text}\n"
            appending.write_atomically(folder / name, data.encode("utf-8", "surrogateescape"))
    except InUse:
        raise
    except BaseException as error:
        for path in reversed(made):
            with contextlib.suppress(OSError):  # a parent that another process now uses
                path.rmdir() if path.is_dir() else path.unlink()
        if isinstance(error, OSError):
            raise BadInput(f"cannot make the folder {folder}: {error.strerror}") from None
        raise
    return held


def lock(folder: pathlib.Path) -> TextIO:
    """Lock a folder; InUse where another process has it."""
    path = folder / LOCK
    try:
        # Do not make a missing lock, follow a link or wait for a pipe.
        file = open(os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "w")  # noqa: SIM115
    except FileNotFoundError:
        raise BadInput(
            f"{folder} cannot be resumed: it has no {LOCK} file, as after publishing"
        ) from None
    except OSError as error:
        raise BadInput(f"cannot open {path}: {error.strerror}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise InUse(f"{folder} is in use: a run is under way in it") from None
    except OSError as error:
        file.close()
        raise BadInput(f"cannot lock {path}: {error.strerror}") from None
    return file


def is_locked(folder: pathlib.Path) -> bool:
    """Whether a process has the folder."""
    with contextlib.suppress(OSError), (folder / LOCK).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
