"""Draw learning curves: `python3 plot_runs.py runs/a runs/b`."""

import sys

from a3c.sweep.plot_command import main

if __name__ == "__main__":
    sys.exit(main())
