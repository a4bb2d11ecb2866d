"""How Ctrl-C, SIGTERM and SIGHUP stop a run, and the end of the program that started it.

After the first signal the run finishes its update, saves everything and exits with the status 128 +
the signal's number. A second Ctrl-C ends it at once. This module imports nothing heavy, because a
signal may arrive while TensorFlow is loaded.

A program that starts a run may be killed before it can send a signal. It can set STARTER and hold
the other end of the run's stdin, which the system closes when it ends, however it ends.

TensorFlow's compiled matrix products let a thread's stack pointer point into ordinary memory, where
a handler's kilobytes of stack would overwrite weights. So the main thread's handlers get a stack of
their own, and the other threads get no signals.
"""

import contextlib
import faulthandler
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

from a3c.machine import cores

SIGNALS: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# While this environment variable is set, the end of stdin counts as SIGTERM.
STARTER = "A3C_STOP_WITH_STDIN"


class Stopped(Exception):
    """The run was stopped while something waited."""


class StopFlag:
    """Tells everybody to stop.

    A threading.Event has a lock. If a signal interrupts the main thread while that holds the lock,
    the handler waits for it for ever.
    """

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set


class StopSignals:
    """The signal handlers of a run, until its process ends or they are given back."""

    def __init__(self, *, may_exit: bool = True) -> None:
        """A second Ctrl-C ends the process; or if it must not exit, it raises KeyboardInterrupt."""
        self.stop = StopFlag()  # set by a signal, by a failure and at the end
        self.received: int | None = None
        self.began = time.monotonic()  # about when the process was started
        # What a caller's process has used so far is not the run's.
        self.cpu_seconds_before = 0.0 if may_exit else cores.seconds_used()
        self._may_exit = may_exit
        self._before: dict[int, Any] = {}
        give_handlers_a_stack()
        for number in SIGNALS:
            # nohup starts a program with SIGHUP ignored, and it must stay so; and what is not
            # Python's (None) could not be put back.
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self._before[number] = signal.signal(number, self._handle)
        if os.environ.pop(STARTER, None):
            with kept_from_new_threads():
                threading.Thread(target=_stop_at_end_of_stdin, daemon=True).start()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.received is not None:
            if not self._may_exit:
                raise KeyboardInterrupt
            os._exit(128 + number)  # then the system kills the environment processes
        self.received = self.received or number
        self.stop.set()

    def give_back(self) -> None:
        """Put the handlers back that were there before, and let them have the signal that came."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self.received is not None:
            signal.raise_signal(self.received)

    @property
    def exit_status(self) -> int:
        return 0 if self.received is None else 128 + self.received


def _stop_at_end_of_stdin() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def give_handlers_a_stack() -> None:
    """Give the main thread, which must call this, faulthandler's stack for handlers."""
    if not faulthandler.is_enabled():
        faulthandler.enable(file=2)


@contextlib.contextmanager
def kept_from_new_threads() -> Iterator[None]:
    """Threads and processes that are started inside get no signals; the main thread's wait."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
