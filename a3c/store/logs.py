"""Where a run's figures go: TensorBoard, `progress.csv`, `log.txt` and the console.

`progress.csv` and TensorBoard hold the same figures under the same names; the horizontal axis is
agent steps.
"""

import csv
import io
import math
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

import numpy as np
from tqdm import tqdm

from a3c.machine.appending import Appender, survive_loss_of
from a3c.store.events import Events

FIGURES = (
    "misc/steps",
    "misc/frames",  # emulator frames stepped, resets included
    "misc/updates",
    "misc/steps_per_second",
    "misc/lr",
    "misc/policy_lag_mean",  # updates of others between a worker's copy and its own
    "misc/policy_lag_max",
    "misc/cpu_hours",  # of all processes on all cores, before a resumption too
    "misc/env_restarts",  # times that a worker got a new environment process
    "rl/episode_reward_mean_100",  # whole games as Monitor sees them, here and in the next two
    "rl/episode_length_mean_100",
    "rl/episodes",
    "rl/policy_entropy",  # from here on means over the interval's measured updates
    "rl/advantage_mean",
    "rl/episode_value_mean",  # of worker 0's latest finished training episode
    "rl/explained_variance",
    "loss/loss_policy",
    "loss/loss_value",
    "loss/loss_combined",
    "loss/grads_norm_policy",
    "loss/grads_norm_value",
    "loss/grads_norm_combined",
    "loss/grads_norm_combined_clipped",
)


def _take_over(path: pathlib.Path) -> list[str]:
    """The columns of a progress.csv, which gets those that the version it is from did not have."""
    if not path.exists() or path.stat().st_size == 0:
        return list(FIGURES)
    try:
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            # Without quotes, of which we write none: a damaged byte that looks like one would take
            # in all that comes after.
            lines = (line.replace("\0", "") for line in file)
            old, *rows = csv.reader(lines, quoting=csv.QUOTE_NONE)
    except csv.Error:  # a line that is longer than any of ours
        return list(FIGURES)
    columns = [*FIGURES, *(name for name in old if name not in FIGURES)]
    if old != columns:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns, restval="nan", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(dict(zip(old, row, strict=False)) for row in rows)
        temporary = path.with_name(f"{path.name}.tmp")
        try:
            temporary.write_text(text.getvalue(), encoding="utf-8", newline="")
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            return old
    return columns


def _csv_line(cells: Sequence[object]) -> str:
    line = io.StringIO(newline="")
    csv.writer(line).writerow(cells)
    return line.getvalue()


class RunLog:
    """The open logs of one run. Only the main thread writes them."""

    def __init__(
        self,
        folder: pathlib.Path,
        n_steps_done: int,
        n_steps_in_all: int,
        *,
        resumed: bool = False,
    ) -> None:
        self._folder = folder
        self._events = Events(folder)
        if resumed:
            self._events.start_session(n_steps_done)
        self._columns = _take_over(folder / "progress.csv")
        self._progress = Appender(folder / "progress.csv", _csv_line(self._columns))
        self._evaluations: Appender | None = None
        self._log = Appender(folder / "log.txt")
        self._broken: set[str] = set()  # what could not be written the last time
        self._console: TextIO = sys.stdout
        self._bar = tqdm(
            total=n_steps_in_all,
            initial=n_steps_done,
            unit=" steps",
            unit_scale=True,
            smoothing=0.05,
            file=self._console,
            disable=not self._console.isatty(),
            dynamic_ncols=True,
        )
        self._note("progress.csv", self._progress.write() or self._progress.error)

    def say(self, line: str, *, error: bool = False) -> None:
        """One line to the console, above the bar, and to log.txt; errors to stderr."""
        is_written = self._log.write(line + "\n") or self._log.error
        file = sys.stderr if error else self._console
        with survive_loss_of(file), tqdm.external_write_mode(file=self._console):
            print(line, file=file, flush=True)
        self._note("log.txt", is_written)

    def _note(self, name: str, is_written: bool | str | None) -> None:
        """Say where writing begins to fail, and where it works again."""
        if is_written is True and name in self._broken:
            self._broken.remove(name)
            self.say(f"{name} is written again")
        elif is_written is not True and name not in self._broken:
            self._broken.add(name)
            self.say(f"cannot write {name}: {is_written}; training goes on", error=True)

    def n_bytes(self) -> int:
        """The length of log.txt."""
        return self._log.n_bytes()

    def move_bar(self, n_steps: int, n_games: int, mean_100: float) -> None:
        if not self._bar.disable:
            with survive_loss_of(self._console):
                postfix = f"{n_games} games, last 100: {mean_100:.1f}"
                self._bar.set_postfix_str(postfix, refresh=False)
                self._bar.update(n_steps - self._bar.n)

    def game(self, n_steps: int, score: float, length: int) -> None:
        scalars = {"rl/episode_reward_sum": score, "rl/episode_length_steps": length}
        self._events.scalars(n_steps, scalars)

    def figures(self, figures: Mapping[str, float]) -> None:
        """One row. What is not known (no game has ended yet, say) is NaN in the CSV only."""
        row = _csv_line([figures.get(name, math.nan) for name in self._columns])
        self._note("progress.csv", self._progress.write(row) or self._progress.error)
        known = {name: figures[name] for name in FIGURES if not math.isnan(figures[name])}
        self._events.scalars(int(figures["misc/steps"]), known, anew=True)
        self._note("TensorBoard's events", self._events.error or True)
        if self._bar.disable:
            self.say(
                f"{figures['misc/steps']:,.0f} steps  "
                f"{figures['misc/steps_per_second']:.0f} steps/s  "
                f"{figures['rl/episodes']:.0f} games  "
                f"last 100: {figures['rl/episode_reward_mean_100']:.2f}"
            )

    def evaluation(self, n_steps: int, figures: Mapping[str, float]) -> None:
        """One row of evaluations.csv, a file that begins with its first row, and TensorBoard."""
        header = _csv_line(["steps", *figures])
        rows = self._evaluations or Appender(self._folder / "evaluations.csv", header)
        self._evaluations = rows
        self._note(
            "evaluations.csv", rows.write(_csv_line([n_steps, *figures.values()])) or rows.error
        )
        known = {f"eval/{name}": x for name, x in figures.items() if not math.isnan(x)}
        self._events.scalars(n_steps, known, anew=True)

    def histograms(self, n_steps: int, arrays: Mapping[str, np.ndarray]) -> None:
        self._events.histograms(n_steps, arrays)

    def close(self) -> None:
        with survive_loss_of(self._console):
            self._bar.close()
        self._events.close()
        for rows in (self._progress, self._evaluations):
            if rows is not None:
                rows.write()  # what may still wait
                rows.close()
        self._log.close()
        for file in (self._console, sys.stderr):
            with survive_loss_of(file):
                file.flush()
