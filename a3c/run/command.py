"""The program train.py, or a3c-train where the package is installed."""

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Train; returns the exit status."""
    from a3c.machine import appending, stopping

    # Before slow imports, so that Ctrl-C is handled from the start.
    signals = stopping.StopSignals()
    appending.open_what_is_closed()  # before any file is opened

    from a3c.run.start import start

    return start(sys.argv[1:] if argv is None else argv, signals)
