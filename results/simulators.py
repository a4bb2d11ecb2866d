"""ChainerRL's figure: scores with 1, 2, 4 and 8 workers of one environment, over steps and over time.

Time is that of the clock, since all runs had the machine alone.
"""

import pathlib
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from a3c.play import curves
from results.folders import Published, n_workers_of

TASKS = ("CartPole-v1", "Pendulum-v1", "Hopper-v5", "Reacher-v5", "HalfCheetah-v5")
N_GAMES = 20  # HalfCheetah plays only 200


def draw(runs: Sequence[Published], path: pathlib.Path) -> None:
    """A column for each task, a row for each axis, a curve for each run."""
    with matplotlib.rc_context(curves.STYLE):
        figure = Figure(figsize=(17, 6.6), dpi=110, layout="constrained")
        rows = figure.subplots(2, len(TASKS), sharey="col")
        for row, title in zip(rows, ("agent steps", "minutes"), strict=True):
            for axes in row:
                axes.set_xlabel(title)
            row[0].set_ylabel(f"score, mean of {N_GAMES} games")
        for axes, task in zip(rows[0], TASKS, strict=True):
            axes.set_title(task)
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        for one in sorted(runs, key=n_workers_of):
            draw_run(rows[:, TASKS.index(one.facts["env_id"])], one)
        handles, _ = rows[0, 0].get_legend_handles_labels()
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
        figure.savefig(path)


def draw_run(column: Sequence[Any], published: Published) -> None:
    """A run's curve in both rows of its task."""
    n_workers = n_workers_of(published)
    curve = curves.smooth(published.run, "steps", N_GAMES)
    hours = curves.smooth(published.run, "hours", N_GAMES).x
    look = {
        "color": curves.COLOURS[n_workers.bit_length() - 1],
        "label": f"{n_workers} worker{'s' * (n_workers > 1)}",
        "lw": 1.3,
    }
    for axes, x in zip(column, (curve.x, 60 * hours), strict=True):
        axes.plot(x, curve.y, **look)
