"""What a run prints and writes, so that a full disk or a closed terminal does not end it.

A run is worth more than its logs: neither `Appender` nor printing in `survive_loss_of` raises.
"""

import contextlib
import errno
import io
import os
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import BinaryIO, TextIO

MAX_WAITING_BYTES = 2**24  # days of rows and lines; what exceeds it is lost


class Appender:
    """A file to which lines are appended without a buffer; an empty one gets `header` first.

    What cannot be written, such as the rest of a line, waits in memory and is written first later.
    """

    def __init__(self, path: pathlib.Path, header: str = "") -> None:
        self.path = path
        self.error: str | None = None  # why something waits
        self.n_lost = 0  # texts that did not fit into MAX_WAITING_BYTES
        self._header = header.encode()
        self._file: BinaryIO | None = None
        self._waiting = b""

    def write(self, text: str | bytes = "") -> bool:
        """Write what waits and this; False if some of it has to wait, and `error` says why."""
        if len(self._waiting) < MAX_WAITING_BYTES:
            if isinstance(text, str):
                text = text.encode("utf-8", "surrogateescape")
            self._waiting += text
        elif text:
            self.n_lost += 1
        try:
            if self._file is None:
                self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 (stays open)
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
        """The length of the file; 0 before the first write."""
        return os.fstat(self._file.fileno()).st_size if self._file else 0

    def sync(self) -> None:
        """Make the system store the file on the disk; OSError if it cannot."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; what still waits is lost."""
        if self._file is not None:
            self._file.close()
            self._file = None


def cut_lines(path: pathlib.Path, stays: Callable[[bytes], bool] = lambda line: True) -> None:
    """Cut a file after its last whole line that stays; a line at which `stays` raises does not."""
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
    """Continue if printing fails; `| tee`, for example, dies of the same Ctrl-C.

    The text is flushed to nowhere, or it would stay in the buffer and fail at the next flush. What
    is printed later is lost too, unless the disk was only full.
    """
    try:
        yield
    except OSError as error:
        number = file.fileno()
        before = os.dup(number)
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), number)
        file.flush()
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            os.dup2(before, number)
        os.close(before)


def open_what_is_closed() -> None:
    """Replace a missing stdin, stdout or stderr, else the next file would get what is printed."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: this one
            os.set_inheritable(nowhere, True)
            setattr(sys, name, os.fdopen(nowhere, "r" if number == 0 else "w"))
    # A character that the console cannot show must not end a run.
    for file in (sys.stdout, sys.stderr):
        if isinstance(file, io.TextIOWrapper):
            file.reconfigure(errors="backslashreplace")


def write_atomically(path: pathlib.Path, data: str | bytes) -> None:
    """Write a file so that a reader always finds a whole one, old or new; OSError if that fails."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)  # stores the new name
        os.close(folder)
    except BaseException:  # also a second Ctrl-C
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def why_unwritable(path: pathlib.Path) -> str | None:
    """Why a file cannot be written; checked before an hour of work, and without changing it."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            # A pipe would lose its reader if it were opened and closed.
            return None if os.access(path, os.W_OK) else os.strerror(errno.EACCES)
        path = path.resolve()  # a link to a new file stays
        is_new = not path.exists()
        path.open("ab").close()
        if is_new:
            path.unlink()
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None
