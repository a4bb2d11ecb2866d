"""The folder of a sweep: the record of what was asked, the trials' run folders, `trials.csv`.

    sweep.json         the plan, which --resume reads
    command.txt        the command
    lock               held by the process that runs the sweep
    trials.csv         one row a trial: settings, score, hours, state
    <trial>/           a run folder of train.py
    <trial>.out        what that train.py printed; beside it its errors, <trial>.err

Only the run folder says how far a trial is. trials.csv is read for one thing: which trials were stopped
early.
"""

import contextlib
import csv
import io
import math
import pathlib
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TextIO

from a3c.machine import appending
from a3c.machine.words import BadInput
from a3c.settings.command_line import called
from a3c.store import checkpoint, claim, reading
from a3c.store.resume import GAMES_IN_MEAN
from a3c.sweep import plan as plans
from a3c.sweep.plan import Plan, Trial

PLAN, TRIALS = "sweep.json", "trials.csv"
FILES = ("command.txt", PLAN)  # of a new sweep
# What a trial can be. All but the last two go on with --resume.
STATES = WAITING, RUNNING, FAILED, STOPPED, EARLY, FINISHED = (
    "waiting",
    "running",
    "failed",
    "stopped",
    "stopped early",
    "finished",
)
FIGURES = ("misc/steps", "misc/steps_per_second", "rl/episodes")
COLUMNS = ("state", "steps", "score", "score_of", "games", "hours")


class Standing(NamedTuple):
    """How far a trial is, as the last row of its progress.csv has it."""

    steps: float = 0.0
    steps_per_second: float = math.nan
    games: float = 0.0
    score: float = math.nan  # the plan's metric


class SweepFolder:
    """A sweep's folder, which only this process uses until it closes it or ends."""

    def __init__(self, path: pathlib.Path, plan: Plan, lock: TextIO) -> None:
        self.path, self.plan, self._lock = path, plan, lock

    def of(self, trial: Trial) -> pathlib.Path:
        """The trial's run folder."""
        return self.path / trial.name

    def standing(self, trial: Trial) -> Standing:
        names = [*FIGURES, self.plan.metric]
        with contextlib.suppress(BadInput):  # it has not begun
            columns = reading.read_progress(self.of(trial)).columns
            if columns.keys() >= {*names} and len(columns[names[0]]):
                return Standing(*(float(columns[name][-1]) for name in names))
        return Standing()

    def write_trials(
        self, states: Mapping[str, str], results: Mapping[str, Sequence[object]]
    ) -> None:
        """Write trials.csv, from states and `results_of` by the trials' names."""
        text = io.StringIO()
        searched = list(self.plan.trials[0].searched)
        table = csv.writer(text, lineterminator="\n")
        table.writerow(["folder", "env_id", "seed", *searched, *COLUMNS])
        for trial in self.plan.trials:
            row = [trial.name, trial.env_id, trial.seed, *trial.searched.values()]
            table.writerow([*row, states[trial.name], *results[trial.name]])
        appending.write_atomically(self.path / TRIALS, text.getvalue())

    def results_of(self, trial: Trial, at: Standing) -> Sequence[object]:
        """What trials.csv has of a trial besides its state, by COLUMNS."""
        hours = math.nan
        with contextlib.suppress(BadInput):
            seconds = reading.read_run(self.of(trial)).games.seconds
            hours = float(seconds[-1]) / 3600 if len(seconds) else math.nan
        of = self.plan.metric
        protocol = (
            f"last {min(at.games, GAMES_IN_MEAN):.0f} training games" if of == plans.SCORE else of
        )
        return f"{at.steps:.0f}", f"{at.score:.6g}", protocol, f"{at.games:.0f}", f"{hours:.3f}"

    def close(self) -> None:
        self._lock.close()


def is_finished(folder: pathlib.Path, n_steps: int) -> bool:
    """Whether a run folder has all its steps, as its newest checkpoint's name says."""
    return max(checkpoint.numbered(folder / "checkpoints"), default=-1) >= n_steps


def check_free(path: pathlib.Path) -> None:
    """BadInput where a new sweep cannot have this folder."""
    try:
        held = claim.what_is_in(path, FILES)
    except OSError as error:
        raise BadInput(f"cannot make the folder {path}: {error.strerror}") from None
    if held is not None:
        raise BadInput(f"{path} is in use: it holds {held}; --resume goes on with a sweep")


def create(path: pathlib.Path, plan: Plan, argv: Sequence[str]) -> SweepFolder:
    """Make and lock the folder of a new sweep."""
    check_free(path)
    texts = shlex.join([*called("sweep.py"), *argv]), plans.to_json(plan)
    return SweepFolder(path, plan, claim.claim(path, dict(zip(FILES, texts, strict=True))))


def open_existing(path: pathlib.Path) -> SweepFolder:
    """Lock and read the folder of a sweep that is to be resumed."""
    return SweepFolder(path, read_plan(path), claim.lock(path))


def read_plan(path: pathlib.Path) -> Plan:
    """The plan that a sweep's folder records."""
    if not (path / PLAN).is_file():
        raise BadInput(f"{path} is no folder of a sweep: it has no {PLAN}")
    try:
        return plans.from_json(reading.read_text(path / PLAN))
    except BadInput as error:
        raise BadInput(f"{path / PLAN}: {error}") from None


def recorded_states(path: pathlib.Path) -> dict[str, str]:
    """The states in a folder's trials.csv, by trial; none where it has no such file yet."""
    with contextlib.suppress(BadInput, csv.Error):
        rows = csv.DictReader(io.StringIO(reading.read_text(path / TRIALS)))
        return {row.get("folder") or "": row.get("state") or "" for row in rows}
    return {}
