"""Curves of runs: scores over steps, frames, games or hours, and the mean of several seeds."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from a3c.machine.words import BadInput
from a3c.store.reading import FRAME_SKIP, Run

AXES = {
    "steps": "agent steps",
    "frames": "emulator frames",
    "games": "games",
    "hours": "hours since the run's start",
}
# Okabe and Ito's colours, which any colour vision can tell apart; then again with other dashes.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.")
STYLE = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "grid.alpha": 0.25,
    "svg.hashsalt": "plot_runs",  # an SVG gets the same ids each time
    "text.parse_math": False,  # a $ in a name does not start a formula
}
N_POINTS = 500  # of a mean of several seeds


class Curve(NamedTuple):
    """Values over one axis; for several seeds, their mean between `low` and `high`."""

    x: np.ndarray
    y: np.ndarray
    low: np.ndarray
    high: np.ndarray


def axis_of(run: Run, axis: str) -> np.ndarray:
    """The x of each game of a run."""
    if axis == "games":
        return np.arange(1.0, len(run.games.scores) + 1)
    if axis == "hours":
        return run.games.seconds / 3600
    if run.steps_per_l is None:
        raise BadInput(
            f"what does l count in {run.path}? Give --frames_per_l 1 (frames, as in"
            f" Stable-Baselines3's Atari files) or {FRAME_SKIP} (decisions, as in Baselines')"
        )
    steps = run.games.steps * run.steps_per_l
    return steps * run.frames_per_step if axis == "frames" else steps


def axis_at_steps(run: Run, axis: str, steps: np.ndarray) -> np.ndarray:
    """The x of given steps of a run; NaN where only its games would tell: before the first, after the last."""
    if axis == "steps":
        return steps
    if axis == "frames":
        return steps * run.frames_per_step
    xs = axis_of(run, axis)
    return np.interp(steps, axis_of(run, "steps"), xs, left=float("nan"), right=float("nan"))


def trailing_mean(values: np.ndarray, n: int) -> np.ndarray:
    """The mean of the last n values, from the n-th value on: 1, 2, 6 by 2 → 1.5, 4."""
    sums = np.concatenate(([0.0], np.cumsum(values)))
    return (sums[n:] - sums[:-n]) / n


def smooth(run: Run, axis: str, n: int) -> Curve:
    """The mean of a run's last n games; empty where it has fewer."""
    y = trailing_mean(run.games.scores, n)
    return Curve(axis_of(run, axis)[n - 1 :], y, y, y)


def align(curves: Sequence[Curve], shade: str) -> Curve | None:
    """The mean of several seeds over the part of the axis that all of them cover; None if none.

    Beyond that part, a mean of the remaining seeds would jump where one ends.
    """
    first, last = max(curve.x[0] for curve in curves), min(curve.x[-1] for curve in curves)
    if first >= last:
        return None
    x = np.linspace(first, last, N_POINTS)
    ys = np.stack([np.interp(x, curve.x, curve.y) for curve in curves])
    mean = ys.mean(axis=0)
    if shade == "minmax":
        return Curve(x, mean, ys.min(axis=0), ys.max(axis=0))
    sd = ys.std(axis=0, ddof=1) if shade == "sd" else 0.0
    return Curve(x, mean, mean - sd, mean + sd)
