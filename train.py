"""Train an A3C agent: `python3 train.py --n_workers 16 PongNoFrameskip-v4`."""

import sys

from a3c.run.command import main

if __name__ == "__main__":
    sys.exit(main())
