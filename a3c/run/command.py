"""The program train.py, or a3c-train where the package is installed; there, a sweep starts this module."""

import os
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Train; returns the exit status."""
    # Workers multiply small matrices, each in its own thread, so that NumPy's threads would be in the
    # way. It reads this when it is loaded.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from a3c.machine import appending, stopping

    # Before slow imports, so that Ctrl-C is handled from the start.
    signals = stopping.StopSignals()
    appending.open_what_is_closed()  # before any file is opened

    from a3c.run.start import start

    return start(sys.argv[1:] if argv is None else argv, signals)


if __name__ == "__main__":
    sys.exit(main())
