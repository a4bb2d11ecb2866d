"""The pictures of published runs, as anybody could draw most of them with plot_runs.py."""

import functools
import pathlib
from collections.abc import Callable, Sequence

import matplotlib
from matplotlib.figure import Figure

from a3c.play import curves
from a3c.sweep import plot_command as plot_runs
from results import simulators
from results.folders import (
    ABLATIONS,
    CONTINUOUS,
    GAMES,
    INSIDE,
    LONG,
    MEMORY,
    PONG,
    PRESETS,
    ROBUSTNESS,
    SIMULATORS,
    WORKERS,
    Published,
    learning_rate_of,
    n_workers_of,
    named,
    training_score,
    workers,
)
from results.over_games import OURSELVES, over_games

IMAGES = pathlib.Path(__file__).resolve().parent.parent / "images"


def curves_of(
    runs: Sequence[Published],
    path: pathlib.Path,
    beginnings: Sequence[str],
    flags: Sequence[str] = (),
) -> None:
    """Draw as anybody would with plot_runs.py; over hours only runs that had the machine alone."""
    found = [run for run in named(runs, beginnings) if run.is_alone or "hours" not in flags]
    labels = []
    if beginnings == WORKERS:
        found.sort(key=n_workers_of)
        labels = [f"--label={workers(published)}" for published in found]
    paths = [str(published.folder) for published in found]
    plot_runs.plot(plot_runs.parse([*paths, "--out", str(path), *labels, *flags]))


def draw_over_games(runs: Sequence[Published], path: pathlib.Path) -> None:
    """A dot for each row of the table, and a bar for its interval."""
    rows = over_games(runs)
    with matplotlib.rc_context(curves.STYLE):
        figure = Figure(figsize=(9, 0.4 * len(rows) + 1), dpi=110, layout="constrained")
        axes = figure.subplots()
        for y, each in enumerate(rows):
            colour = curves.COLOURS[0] if each.who == OURSELVES else "0.4"
            axes.plot(each.interquartile_mean, y, "o", color=colour)
            if interval := each.interval:
                axes.plot(interval, (y, y), color=colour, lw=8, alpha=0.35, solid_capstyle="butt")
        labels = [f"{each.who.strip('*')}: {each.of}" for each in rows]
        axes.set_yticks(range(len(rows)), labels, fontsize="small")
        axes.invert_yaxis()
        axes.set_xlim(left=0)
        axes.set_xlabel("interquartile mean of human-normalised scores; bar: 95 % interval")
        axes.grid(visible=False, axis="y")
        figure.savefig(path)


def draw_robustness(runs: Sequence[Published], path: pathlib.Path) -> None:
    """A dot for each run: its score over its learning rate."""
    with matplotlib.rc_context(curves.STYLE):
        figure = Figure(figsize=(9, 4), dpi=110, layout="constrained")
        axes = figure.subplots()
        found = named(runs, ROBUSTNESS)
        rates, scores = map(learning_rate_of, found), map(training_score, found)
        axes.plot([*rates], [*scores], "o", color=curves.COLOURS[0])
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("learning rate")
        axes.set_ylabel("mean score of the last 100 games")
        axes.set_title("Breakout after 3M steps, one seed for each rate")
        figure.savefig(path)


def drawn(
    beginnings: Sequence[str], *flags: str
) -> Callable[[Sequence[Published], pathlib.Path], None]:
    return functools.partial(curves_of, beginnings=beginnings, flags=flags)


# PFRL's scores are of 50M steps.
OF_15_HOURS = ("--references", "random", "human", "paper", "ocd")
# How each picture is drawn.
PICTURES: dict[str, Callable[[Sequence[Published], pathlib.Path], None]] = {
    "over-games.png": draw_over_games,
    "breakout-long.png": drawn([*LONG, "breakout-s"], "--references"),
    "pong.png": drawn(PONG, "--x", "hours", *OF_15_HOURS),
    "pong-steps.png": drawn(["pong-black-s", "pong-nature-s", "pong-fast-s", *PRESETS]),
    "pong-inside.png": drawn(["pong-nature-s1"], "--figures", *INSIDE),
    "presets.png": drawn(PRESETS, *OF_15_HOURS, "--figures", "entropy", "value", "gradients"),
    "workers.png": drawn(WORKERS, "--curves", "100"),
    "workers-hours.png": drawn(WORKERS, "--x", "hours", "--curves", "100"),
    "ablations.png": drawn(ABLATIONS, "--curves", "100"),
    "robustness.png": draw_robustness,
    "continuous.png": drawn(CONTINUOUS, "--curves", "100"),
    "memory.png": drawn(MEMORY, "--curves", "100"),
    "memory-pong.png": drawn(["pong-lstm-s", "pong-fast-s"]),
    "simulators.png": lambda runs, path: simulators.draw(named(runs, SIMULATORS), path),
    **{f"{game.rpartition('-')[0]}.png": drawn([game], *OF_15_HOURS) for game in GAMES},
}
