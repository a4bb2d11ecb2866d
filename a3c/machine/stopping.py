"""How a run is told to stop from outside: Ctrl-C, SIGTERM, SIGHUP.

The first signal asks: the update under way is finished, everything is saved, and the exit status is
128 + the signal's number. A second Ctrl-C does not ask. Imports nothing heavy, so that it stands
before TensorFlow is loaded.

No handler may run on the stack of a thread that computes: TensorFlow's matrix products, compiled on
the spot, let the stack pointer point into ordinary memory, and what the system writes below it for
the handler (kilobytes, with all registers) overwrites what lies there: weights, or the allocator's
own books. So the main thread's handlers get a stack of their own, and all other threads that
compute are started so that they get no signal.
"""

import contextlib
import faulthandler
import os
import signal
from collections.abc import Iterator
from types import FrameType

SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class Stopped(Exception):
    """Whoever waited for something has found the run stopped."""


class StopFlag:
    """Set once, and watched by everybody who works.

    No threading.Event: its lock would be taken by a signal handler that may have interrupted the
    main thread while that held it, and nobody here waits for more than a look at the flag.
    """

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set


class StopSignals:
    """Installed for the rest of the process's life; everybody who works watches `event`."""

    def __init__(self) -> None:
        self.event = StopFlag()  # set by a signal, by a failure, and at the end
        self.received: int | None = None
        give_handlers_a_stack()
        for number in SIGNALS:
            # What was ignored when we started stays ignored: nohup means it.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.received is not None:
            # Environment processes end by themselves when this one is gone.
            os._exit(128 + number)
        self.received = self.received or number
        self.event.set()

    @property
    def exit_status(self) -> int:
        return 0 if self.received is None else 128 + self.received


def give_handlers_a_stack() -> None:
    """Have the main thread, which must call this, run handlers on another stack than its own.

    Python's handlers go there if there is one, but only faulthandler makes one. It also tells where
    the program was, should it crash after all.
    """
    if not faulthandler.is_enabled():
        faulthandler.enable(file=2)


@contextlib.contextmanager
def kept_from_new_threads() -> Iterator[None]:
    """No thread or process that is started meanwhile gets a signal; one that comes now, waits."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
