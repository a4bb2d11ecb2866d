"""Lines appended to a file or printed, however full the disk is, and lines cut off again.

What does not fit waits in memory, and goes first when there is room again. Half a line that went
out before the disk was full gets its other half then. Nothing here raises: a run is worth more than
its logs.
"""

import contextlib
import errno
import os
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import BinaryIO, TextIO

# Days of rows and lines; what comes beyond is lost.
MAX_WAITING_BYTES = 2**24


class Appender:
    """A file that lines are appended to, each on its way to the disk at once if it can be.

    The file is opened by the first `write`; `header` goes into one that is empty.
    """

    def __init__(self, path: str | os.PathLike[str], header: str = "") -> None:
        self.path = path
        self.error: str | None = None  # why something waits
        self._header = header
        self._file: BinaryIO | None = None
        self._waiting = b""

    def write(self, text: str = "") -> bool:
        """Write this and what waits; False where it has to wait (on), and `error` says why."""
        if len(self._waiting) < MAX_WAITING_BYTES:
            self._waiting += text.encode("utf-8", "surrogateescape")
        try:
            if self._file is None:
                self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 (open for long)
                if self._file.tell() == 0:
                    self._waiting = self._header.encode() + self._waiting
            while self._waiting:
                self._waiting = self._waiting[self._file.write(self._waiting) :]
        except OSError as error:
            self.error = in_words(error)
            return False
        self.error = None
        return True

    def n_bytes(self) -> int:
        """The length of the file."""
        return os.fstat(self._file.fileno()).st_size if self._file else 0

    def close(self) -> None:
        """Close the file; what still waits is lost."""
        if self._file is not None:
            self._file.close()
            self._file = None


def cut_lines(
    path: pathlib.Path, stays: Callable[[int, list[str]], bool], n_head_lines: int = 1
) -> int:
    """Cut a file after the last whole line that stays, given its number and its fields.

    Where so many lines of the head are not there, nothing stays, so that the head is written anew.
    Returns how many whole lines were cut off.
    """
    n_bytes = end = n_cut = n_lines = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file):
                n_lines += line.endswith(b"\n")
                n_bytes += len(line)
                n_cut += line.endswith(b"\n")
                try:
                    fields = line.decode().rstrip("\r\n").split(",")
                    if line.endswith(b"\n") and stays(number, fields):
                        end, n_cut = n_bytes, 0
                except (ValueError, IndexError):
                    continue
    except FileNotFoundError:
        return 0
    if n_lines < n_head_lines:
        end, n_cut = 0, n_lines
    cut(path, end)
    return n_cut


def cut(path: pathlib.Path, n_bytes: int) -> None:
    """Cut a file that is longer, if there is one."""
    if path.exists() and path.stat().st_size > n_bytes:
        os.truncate(path, n_bytes)


@contextlib.contextmanager
def survive_loss_of(file: TextIO) -> Iterator[None]:
    """Whoever read our output may be gone (`| tee` dies of the same Ctrl-C): the run is not.

    On a full disk what was printed is lost, and the next line is tried again. It is not left in the
    file's buffer, where whoever flushes it, such as the start of a process, would fail as well.
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
    """Have stdin, stdout and stderr lead nowhere where the program was started without them.

    The next files to be opened would be in their place otherwise, and get what is printed.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)  # in its place: the lowest number that is free
            os.set_inheritable(nowhere, True)
            setattr(sys, name, os.fdopen(nowhere, "r" if number == 0 else "w"))


def why_unwritable(path: pathlib.Path) -> str | None:
    """Why a file cannot be written, if so: known before an hour of work, and not after it.

    What is there is left alone, and what is not there stays so.
    """
    try:
        is_new = not path.exists()
        path.open("ab").close()
        if is_new:
            path.unlink()
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


def in_words(error: Exception) -> str:
    """Why something could not be written: what the system said, by way of Python or TensorFlow."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    said = str(error).strip().splitlines() or [type(error).__name__]
    return said[0].rpartition("; ")[2].partition(" [Op:")[0]
