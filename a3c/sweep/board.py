"""What a sweep shows while it runs: a table that is renewed, or a line an interval."""

import math
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence

from a3c.machine.appending import survive_loss_of
from a3c.settings.naming import short
from a3c.sweep.folder import (
    FAILED,
    FINISHED,
    RUNNING,
    STATES,
    STOPPED,
    TRIALS,
    Standing,
    SweepFolder,
)
from a3c.sweep.plan import Trial

TABLE_SECONDS, LINE_SECONDS = 2.0, 60.0


class Board:
    """The state of each trial, and how it is shown."""

    def __init__(self, folder: SweepFolder, states: dict[str, str]) -> None:
        self.states = states
        self._folder, self._trials = folder, folder.plan.trials
        self._standings: dict[str, Standing] = {}
        self._results: dict[str, Sequence[object]] = {}  # for trials.csv
        self._renew(self._trials)
        self._is_table = sys.stdout.isatty()
        self._n_lines, self._next = 0, 0.0

    def set(self, trial: Trial, state: str) -> None:
        """A trial's new state; trials.csv follows. Only this trial and those that run have changed."""
        self.states[trial.name] = state
        self._renew([t for t in self._trials if t == trial or self.states[t.name] == RUNNING])
        self._write()

    def _renew(self, trials: Sequence[Trial]) -> None:
        """Read again how these trials stand."""
        for trial in trials:
            at = self._standings[trial.name] = self._folder.standing(trial)
            self._results[trial.name] = self._folder.results_of(trial, at)

    def _write(self) -> None:
        """Write trials.csv; the next change writes it again, so a full disk does not end a sweep."""
        try:
            self._folder.write_trials(self.states, self._results)
        except OSError as error:
            self.say(f"cannot write {self._folder.path / TRIALS}: {error.strerror}")

    def show(self) -> None:
        """Show how the trials stand, if it is time."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (TABLE_SECONDS if self._is_table else LINE_SECONDS)
        for trial in self._trials:
            if self.states[trial.name] == RUNNING:
                self._standings[trial.name] = self._folder.standing(trial)
        if not self._is_table:
            return self._print(self.line())
        size = shutil.get_terminal_size()
        lines = [*self.table(size.lines - 2), self.line()]
        self._print(self._up() + "\n".join(line[: size.columns - 1] for line in lines))
        self._n_lines = len(lines)

    def conclude(self) -> None:
        """Show how all trials ended."""
        self._renew(self._trials)
        self._write()
        lines = [*self.table(len(self._trials) + 3), self.line(), str(self._folder.path / TRIALS)]
        self._print(self._up() + "\n".join(lines))

    def say(self, line: str) -> None:
        """Print a line above the table."""
        self._print(self._up() + line)
        if self._n_lines:
            self._n_lines, self._next = 0, 0.0

    def _up(self) -> str:
        """What a terminal needs to take the table away."""
        return f"\x1b[{self._n_lines}F\x1b[J" if self._n_lines else ""

    def _print(self, text: str) -> None:
        with survive_loss_of(sys.stdout):
            print(text, flush=True)

    def line(self) -> str:
        """All trials in one line."""
        n_of = Counter(self.states.values())
        counts = ", ".join(f"{n_of[state]} {state}" for state in STATES if n_of[state])
        running = [self._standings[name] for name, s in self.states.items() if s == RUNNING]
        speeds = [at.steps_per_second for at in running if math.isfinite(at.steps_per_second)]
        total = sum(at.steps for at in self._standings.values())
        return f"{counts}; {total:,.0f} steps, {sum(speeds):,.0f} steps/s"

    def table(self, n_lines: int) -> list[str]:
        """One line a trial; where they are too many, those that run or failed come first."""
        order = (RUNNING, FAILED, STOPPED, FINISHED)
        ranks = {state: rank for rank, state in enumerate(order)}
        trials = list(self._trials)
        if left := max(0, len(trials) - max(0, n_lines - 3)):
            trials.sort(key=lambda trial: ranks.get(self.states[trial.name], len(ranks)))
            trials = trials[: len(trials) - left]
        searched = list(self._trials[0].searched)
        head = ["env", "seed", *searched, "steps", "steps/s", "score", "state"]
        rows = [head, *(self._row(trial, searched) for trial in trials)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return lines + ([f"… and {left} more"] if left else [])

    def _row(self, trial: Trial, searched: Sequence[str]) -> list[str]:
        at: Standing = self._standings[trial.name]
        is_running = self.states[trial.name] == RUNNING
        figures = (
            (at.steps, "{:,.0f}"),
            (at.steps_per_second if is_running else math.nan, "{:,.0f}"),
        )
        cells = [
            form.format(value) if math.isfinite(value) else "–"
            for value, form in (*figures, (at.score, "{:.2f}"))
        ]
        settings = [short(trial.searched[name]) for name in searched]
        return [trial.env_id, str(trial.seed), *settings, *cells, self.states[trial.name]]
