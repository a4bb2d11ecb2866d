"""Train an A3C agent: `python3 train.py --n_workers 16 PongNoFrameskip-v4`."""

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Train; returns the exit status."""
    from a3c.machine import appending, stopping

    signals = stopping.StopSignals()  # before anything slow: Ctrl-C should find it in place
    appending.open_what_is_closed()  # and before anything opens a file

    from a3c.run.start import start

    return start(sys.argv[1:] if argv is None else argv, signals)


if __name__ == "__main__":
    sys.exit(main())
