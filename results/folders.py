"""Published runs, the folders here, as tables and pictures need them.

A training score is the mean of the last 100 games, which are whole games with unclipped rewards.
"""

import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from a3c.machine.words import BadInput
from a3c.play import curves
from a3c.store import reading, run_folder
from a3c.sweep import plot_command as plot_runs
from results import publish

HERE = pathlib.Path(__file__).resolve().parent

N_LAST = 100
# The best of several agents played again, with a new seed; this evaluation replaces the first.
AGAIN = "evaluation-again.json"

# Runs are chosen by how their names below results/ begin.
OURS = ("beamrider-s", "breakout-s", "pong-nature-s", "qbert-s", "spaceinvaders-s")
GAMES = ("beamrider-s", "breakout-s", "qbert-s", "spaceinvaders-s")
LONG = ("breakout-long-s",)
PONG = ("pong-black-s", "pong-black-16-cores-s", "pong-fast-s", "pong-nature-s")
PRESETS = ("pong-ocd-s", "pong-paper-s")
WITH_MEMORY = ("pong-lstm-s", "breakout-lstm-s")
# Studies. The first beginning is what the others are compared with.
WORKERS = ("pong-ocd-s", "workers/")
CONTINUOUS = ("mujoco/",)
MEMORY = ("memory/",)
SIMULATORS = ("simulators/",)
INSIDE = ("entropy", "value", "rl/explained_variance", "speed")  # what moves before the score
ABLATIONS = ("pong-fast-s", "ablations/")
ROBUSTNESS = ("robustness/",)


class Published(NamedTuple):
    """One run of results/."""

    folder: pathlib.Path
    facts: dict[str, Any]  # run.json
    run: reading.Run
    evaluation: dict[str, Any] | None  # evaluation.json, or the one that replaces it
    # The one that the run began on, with its cores unless they are 2, and those that it was resumed on.
    processors: Sequence[str]

    @property
    def name(self) -> str:
        return str(self.folder.relative_to(HERE))

    @property
    def is_alone(self) -> bool:
        """Whether the machine did nothing else, so that hours of the clock count."""
        return self.facts["hours"] is not None


class Moment(NamedTuple):
    """When the mean of 100 games first reached a score."""

    steps: float
    hours: float
    cpu_hours: float


def read(folder: pathlib.Path) -> Published:
    """A published run; BadInput if it is not whole."""
    try:
        facts = json.loads((folder / publish.RUN).read_text(encoding="utf-8"))
        evaluation = evaluation_in(folder, AGAIN) or evaluation_in(folder, publish.EVALUATION)
        versions = (folder / "versions.txt").read_text(encoding="utf-8")
        first = versions.partition("\ncpu: ")[2].partition("\n")[0]
        n_cores = versions.partition("\ncores: ")[2].partition(",")[0]
        first += f", {n_cores} cores" if n_cores != "2" else ""
        resumed = [note["cpu"] for note in reading.read_record(folder).resumed if "cpu" in note]
        run = reading.read_run(folder)
        words = [*run.words, *reading.read_progress(folder).words]
    except (OSError, ValueError) as error:
        raise BadInput(f"{folder} is damaged: {error}") from None
    if words or not len(run.games.scores):
        raise BadInput(f"{folder} is damaged: {' '.join(words) or 'it has no games'}")
    return Published(folder, facts, run, evaluation, [first, *resumed])


def evaluation_in(folder: pathlib.Path, name: str) -> dict[str, Any] | None:
    """An evaluation's file, if there is one."""
    path = folder / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def read_all(here: pathlib.Path = HERE) -> list[Published]:
    """Every folder that has a command, by name."""
    return [read(path.parent) for path in sorted(here.rglob("command.txt"))]


def named(runs: Sequence[Published], beginnings: Sequence[str]) -> list[Published]:
    """The runs whose names begin so, in the order of the beginnings."""
    return [run for one in beginnings for run in runs if run.name.startswith(one)]


def training_score(published: Published, by_steps: float = math.inf) -> float:
    """The mean of the last 100 games that had ended by then."""
    over = curves.axis_of(published.run, "steps") <= by_steps
    return float(published.run.games.scores[over][-N_LAST:].mean())


def reached(published: Published, score: float) -> Moment | None:
    """When the mean of 100 games first was at least this score."""
    curve = curves.smooth(published.run, "steps", N_LAST)
    high = (curve.y >= score).nonzero()[0]
    if not len(high):
        return None
    steps = float(curve.x[high[0]])
    hours = curves.smooth(published.run, "hours", N_LAST).x
    return Moment(steps, float(hours[high[0]]), cpu_hours_at(published, steps))


def cpu_hours_at(published: Published, steps: float) -> float:
    """The processor's hours by then; NaN in older runs, which did not count them."""
    columns = reading.read_progress(published.folder).columns
    if "misc/cpu_hours" not in columns:
        return float("nan")
    return float(np.interp(steps, columns["misc/steps"], columns["misc/cpu_hours"]))


def best_on_the_way(published: Published) -> tuple[int, float]:
    """The highest mean of the evaluations on the way, and its step: the first, if several are as high."""
    columns = reading.read_progress(published.folder, run_folder.EVALUATIONS).columns
    means = columns["episode_reward_mean"]
    best = int(means.argmax())
    return int(columns["steps"][best]), float(means[best])


def evaluation_mean(published: Published) -> float:
    assert published.evaluation
    return float(published.evaluation["summary"]["mean"])


def studies(runs: Sequence[Published], beginnings: Sequence[str]) -> list[list[Published]]:
    """The settings of a study: runs that differ in their seeds alone are one setting."""
    groups: dict[str, list[Published]] = {}
    for published in named(runs, beginnings):
        groups.setdefault(plot_runs.group_name(published.folder), []).append(published)
    return list(groups.values())


def learning_rate_of(published: Published) -> float:
    return float(published.run.settings["initial_lr"])


def n_workers_of(published: Published) -> int:
    return int(published.run.settings["n_workers"])


def workers(published: Published) -> str:
    """What the study of workers calls a run."""
    return f"{n_workers_of(published)} × 1"
