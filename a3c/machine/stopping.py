"""How a run is told to stop from outside: Ctrl-C, SIGTERM, SIGHUP.

The first signal asks: the update under way is finished, everything is saved, and the exit status is
128 + the signal's number. A second Ctrl-C ends the run at once. This module imports nothing heavy,
because a signal may arrive while TensorFlow is loaded.

No handler may run on the stack of a thread that computes. TensorFlow's matrix products, which are
compiled at run time, let the stack pointer point into ordinary memory; there, the kilobytes that
the system writes below it for a handler would overwrite weights, or the allocator's own records. So
the main thread's handlers get a stack of their own, and the other threads get no signals.
"""

import contextlib
import faulthandler
import os
import signal
from collections.abc import Iterator
from types import FrameType

SIGNALS: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(Exception):
    """The run was stopped while somebody waited for something."""


class StopFlag:
    """Set once, and looked at by everybody who works.

    This is no threading.Event, because a signal handler that sets one would wait for ever for its
    lock if it interrupted the main thread while that held it.
    """

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set


class StopSignals:
    """The handlers of a run's process, for the rest of its life."""

    def __init__(self) -> None:
        self.event = StopFlag()  # set by a signal, by a failure and at the end
        self.received: int | None = None
        give_handlers_a_stack()
        for number in SIGNALS:
            # nohup has SIGHUP ignored when we start, and means it to stay so.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.received is not None:
            # Environment processes end by themselves once this one is gone.
            os._exit(128 + number)
        self.received = self.received or number
        self.event.set()

    @property
    def exit_status(self) -> int:
        return 0 if self.received is None else 128 + self.received


def give_handlers_a_stack() -> None:
    """Have the main thread, which must call this, run handlers on another stack than its own.

    Python uses such a stack if there is one, but only faulthandler makes one.
    """
    if not faulthandler.is_enabled():
        faulthandler.enable(file=2)


@contextlib.contextmanager
def kept_from_new_threads() -> Iterator[None]:
    """Threads and processes that are started meanwhile get no signals; one that arrives waits."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
