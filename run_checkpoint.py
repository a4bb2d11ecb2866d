"""Watch, film, score or export a trained agent: `python3 run_checkpoint.py runs/<run>`."""

import sys

from a3c.play.command import main

if __name__ == "__main__":
    sys.exit(main())
