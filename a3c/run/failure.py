"""What a worker leaves behind when it fails: `failure/` in the run folder, and one line.

failure/traceback.txt   where it happened
failure/rollout.npz     what the update would have been made of: the rollout, as far as it was
                        collected (n_steps_collected), and under weights/ the worker's own
                        weights; plain arrays, for numpy.load
"""

import pathlib
import re

import numpy as np

from a3c.agent.worker import Failure
from a3c.machine.words import one_line

FOLDER = "failure"


def leave(folder: pathlib.Path | None, failure: Failure, n_steps: int) -> str:
    """Write it all down, if there is a folder for it; returns the line that says what happened,
    where, and how to look.
    """
    said = f"worker {failure.worker} failed at {n_steps:,} steps: {in_one_line(failure.error)}"
    if folder is None:
        return f"{said}; another run has its folder where this run's was"
    place = folder / FOLDER
    try:
        place.mkdir(exist_ok=True)
        (place / "traceback.txt").write_text(
            f"{said}\n{failure.traceback}", encoding="utf-8", errors="backslashreplace"
        )
        np.savez(place / "rollout.npz", allow_pickle=False, **(failure.arrays or {}))
    except OSError as error:
        return f"{said}; {place} cannot be written: {error}"
    return f"{said}; see {place}/traceback.txt, and numpy.load('{place}/rollout.npz')"


def in_one_line(error: BaseException) -> str:
    """The error's type and the ends of its text; of TensorFlow's, what we had it check."""
    text = str(error)
    if checked := re.search(r"\w+ not finite", text):
        return checked[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    shown = " … ".join(dict.fromkeys(lines[:1] + lines[-1:]))
    return one_line(f"{type(error).__name__}: {shown}", 500)
