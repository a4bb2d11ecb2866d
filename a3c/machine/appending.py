"""What a run writes down or prints, however full the disk is, and how it is cut back.

What an `Appender` cannot write waits in memory and goes first when there is room again. Half a line
that was written before the disk was full gets its other half then. Neither this nor printing
raises: a run is worth more than its logs.
"""

import contextlib
import errno
import io
import os
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import BinaryIO, TextIO

MAX_WAITING_BYTES = 2**24  # days of rows and lines; what comes beyond is lost


def one_line(text: str, most: int) -> str:
    """The text on one line: what would not show is escaped, and it has at most so many characters."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return shown if len(shown) <= most else shown[: most - 1] + "…"


class Appender:
    """A file that lines are appended to, unbuffered.

    The first `write` opens the file; `header` goes into one that is empty.
    """

    def __init__(self, path: pathlib.Path, header: str = "") -> None:
        self.path = path
        self.error: str | None = None  # why something waits
        self._header = header.encode()
        self._file: BinaryIO | None = None
        self._waiting = b""

    def write(self, text: str | bytes = "") -> bool:
        """Write what waits and this; False where some of it has to wait, and `error` says why."""
        if len(self._waiting) < MAX_WAITING_BYTES:
            if isinstance(text, str):
                text = text.encode("utf-8", "surrogateescape")
            self._waiting += text
        try:
            if self._file is None:
                self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 (open for long)
                if self._file.tell() == 0:
                    self._waiting = self._header + self._waiting
            while self._waiting:
                self._waiting = self._waiting[self._file.write(self._waiting) :]
        except OSError as error:
            self.error = error.strerror or str(error)
            return False
        self.error = None
        return True

    def n_bytes(self) -> int:
        """The length of the file, once something was written."""
        return os.fstat(self._file.fileno()).st_size if self._file else 0

    def sync(self) -> None:
        """Have the system store the file on the disk; OSError where it cannot."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; what still waits is lost."""
        if self._file is not None:
            self._file.close()
            self._file = None


def cut_lines(path: pathlib.Path, stays: Callable[[bytes], bool] = lambda line: True) -> None:
    """Cut a file after the last whole line that stays; ValueError: the line is damaged.

    A damaged line among those that stay stays as well.
    """
    end = n_bytes = 0
    with path.open("rb+") as file:
        for line in file:
            n_bytes += len(line)
            with contextlib.suppress(ValueError):
                if line.endswith(b"\n") and stays(line):
                    end = n_bytes
        file.truncate(end)


@contextlib.contextmanager
def survive_loss_of(file: TextIO) -> Iterator[None]:
    """Let the run go on where whoever read its output is gone (`| tee` dies of the same Ctrl-C).

    On a full disk what was printed is lost, and the next line is tried again. The lost line is not
    left in the file's buffer, where whoever flushes it, such as the start of a process, would fail.
    """
    try:
        yield
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        number = file.fileno()
        nowhere, before = os.open(os.devnull, os.O_WRONLY), os.dup(number)
        os.dup2(nowhere, number)
        file.flush()
        if is_full:
            os.dup2(before, number)
        os.close(nowhere)
        os.close(before)


def open_what_is_closed() -> None:
    """Have stdin, stdout and stderr lead nowhere where the program was started without them, and
    take whatever is printed.

    The next files to be opened would take their numbers otherwise, and get what is printed.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)  # in its place: the lowest number that is free
            os.set_inheritable(nowhere, True)
            setattr(sys, name, os.fdopen(nowhere, "r" if number == 0 else "w"))
    # A character that the console cannot show, in a folder's name say, must not end a run.
    for file in (sys.stdout, sys.stderr):
        if isinstance(file, io.TextIOWrapper):
            file.reconfigure(errors="backslashreplace")


def write_atomically(path: pathlib.Path, data: str | bytes) -> None:
    """Write a file so that a reader finds the old one or the new one, whole, whatever happens.

    OSError where that fails; then no part of the new one is left.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name, too
        finally:
            os.close(folder)
    except BaseException:  # a second Ctrl-C, too
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def why_unwritable(path: pathlib.Path) -> str | None:
    """Why a file cannot be written, if so: known before an hour of work, and not after it.

    A file that is there keeps its bytes, and one that is not there is not left behind.
    """
    try:
        is_new = not path.exists()
        path.open("ab").close()
        if is_new:
            path.unlink()
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None
