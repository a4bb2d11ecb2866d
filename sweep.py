"""Train many runs: `python3 sweep.py examples/cartpole.toml`."""

import sys

from a3c.sweep.command import main

if __name__ == "__main__":
    sys.exit(main())
