"""Keeps from the console what TensorFlow says of itself while it is loaded.

Some lines come whatever TF_CPP_MIN_LOG_LEVEL says (tensorflow/tensorflow issue 100442), on some
processors only. Standard error is for errors here, and for the dump of --debug.
"""

import contextlib
import faulthandler
import os
from collections.abc import Iterator

CHATTER = (b"oneDNN custom operations are on", b"All log messages before absl::InitializeLog()")


@contextlib.contextmanager
def hushed() -> Iterator[None]:
    """Hold back standard error, this process's own and its libraries', and pass on the rest then.

    A crash meanwhile is told at once, if faulthandler is on.
    """
    try:
        stderr = os.dup(2)
    except OSError:  # it is closed
        yield
        return
    held_back = os.memfd_create("stderr")
    is_watched = faulthandler.is_enabled()
    if is_watched:
        faulthandler.enable(file=stderr)
    os.dup2(held_back, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        if is_watched:
            faulthandler.enable(file=2)
        os.lseek(held_back, 0, os.SEEK_SET)
        with open(held_back, "rb") as lines, contextlib.suppress(OSError):
            for line in lines:
                if not any(chatter in line for chatter in CHATTER):
                    os.write(2, line)
        os.close(stderr)
