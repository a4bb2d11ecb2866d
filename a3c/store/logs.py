"""Where games and figures go: `monitor.csv`, `progress.csv`, `log.txt`, TensorBoard, the console.

`progress.csv` and TensorBoard hold the same figures under the same names; the horizontal axis is
agent steps. `monitor.csv` has a row for each finished game, in the form that Stable-Baselines3's
`load_results` reads, in the order in which workers reported them (readers sort by step):

    #{"t_start": 1700000000.0, "env_id": "PongNoFrameskip-v4"}
    r,l,t,step,worker,env
    -21.0,757,12.3,3080,0,0

`r` is the score of the whole game, unclipped, and `l` its length in decisions of the agent; `t` are
seconds from `t_start`, without the time that a resumed run stood still; `step` are the steps of the
run when an update had learned from the game's end.
"""

import csv
import io
import json
import math
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

import numpy as np
from tqdm import tqdm

from a3c.contract import Game
from a3c.machine.appending import Appender, survive_loss_of
from a3c.settings.params import Params
from a3c.store.events import Events
from a3c.store.resume import Start
from a3c.store.run_folder import EVALUATIONS, GAMES, LOG, PROGRESS, RunFolder

_MAX_HEAD = 2**16  # characters; what has a longer first line is no table of ours
GAME_COLUMNS = ("r", "l", "t", "step", "worker", "env")

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
    "rl/episode_reward_mean_100",  # whole games as Score counts them, here and in the next two
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


def _columns_of(path: pathlib.Path) -> Sequence[str]:
    """The columns of a progress.csv that rows are added to, by whichever version it was begun."""
    if not path.exists():
        return FIGURES
    with path.open(encoding="utf-8", errors="replace") as file:
        head = file.readline(_MAX_HEAD)
    return head.rstrip("\n").split(",") if head.endswith("\n") else FIGURES


def _csv_line(cells: Sequence[object]) -> str:
    line = io.StringIO(newline="")
    csv.writer(line).writerow(cells)
    return line.getvalue()


class RunLog:
    """The open logs of one run. Only the main thread writes them."""

    def __init__(self, folder: RunFolder, params: Params, start: Start) -> None:
        path, n_steps_done = folder.path, start.counts.steps
        self._events = Events(path, n_steps_done if start.is_resumed else None)
        self._t_start = start.t_start
        head = json.dumps({"t_start": start.t_start, "env_id": params.env_id})
        self._games = Appender(path / GAMES, f"#{head}\n{','.join(GAME_COLUMNS)}\n")
        self._columns = _columns_of(path / PROGRESS)
        self._progress = Appender(path / PROGRESS, _csv_line(self._columns))
        self._evaluations: Appender | None = None
        self._folder = folder
        self._log = Appender(path / LOG)
        self._broken: set[str] = set()  # what could not be written the last time
        self._console: TextIO = sys.stdout
        self._bar = tqdm(
            total=params.n_steps,
            initial=n_steps_done,
            unit=" steps",
            unit_scale=True,
            smoothing=0.05,
            file=self._console,
            disable=not self._console.isatty(),
            dynamic_ncols=True,
        )
        for name, file in ((GAMES, self._games), (PROGRESS, self._progress), (LOG, self._log)):
            self._note(name, file.write() or file.error)

    def say(self, line: str, *, error: bool = False) -> None:
        """One line to the console, above the bar, and to log.txt; errors to stderr."""
        is_written = self._log.write(line + "\n") or self._log.error
        file = sys.stderr if error else self._console
        with survive_loss_of(file), tqdm.external_write_mode(file=self._console):
            print(line, file=file, flush=True)
        self._note(LOG, is_written)

    def _note(self, name: str, is_written: bool | str | None) -> None:
        """Say where writing begins to fail, and where it works again."""
        if is_written is True and name in self._broken:
            self._broken.remove(name)
            self.say(f"{name} is written again")
        elif is_written is not True and name not in self._broken:
            self._broken.add(name)
            self.say(f"cannot write {name}: {is_written}; training goes on", error=True)

    def n_bytes(self) -> dict[str, int]:
        """The lengths of the files that a resumed run is cut back to; OSError while rows wait."""
        files = {GAMES: self._games, PROGRESS: self._progress, LOG: self._log}
        for name, file in files.items():
            if not file.write():
                raise OSError(f"{name} cannot be written: {file.error}")
        return {name: file.n_bytes() for name, file in files.items()}

    def sync(self) -> None:
        """Have the system write these files down; OSError where it cannot."""
        for file in (self._games, self._progress, self._evaluations, self._log):
            if file is not None:
                file.sync()

    def move_bar(self, n_steps: int, n_games: int, mean_100: float) -> None:
        if not self._bar.disable:
            with survive_loss_of(self._console):
                postfix = f"{n_games} games, last 100: {mean_100:.1f}"
                self._bar.set_postfix_str(postfix, refresh=False)
                self._bar.update(n_steps - self._bar.n)

    def game(self, game: Game) -> None:
        """One row of monitor.csv, and TensorBoard."""
        row = [
            *(f"{round(game.score, 6)}", game.length, f"{game.ended_at - self._t_start:.6f}"),
            *(game.step, game.worker, game.env),
        ]
        self._note(GAMES, self._games.write(",".join(map(str, row)) + "\n") or self._games.error)
        scalars = {"rl/episode_reward_sum": game.score, "rl/episode_length_steps": game.length}
        self._events.scalars(game.step, scalars)

    def figures(self, figures: Mapping[str, float]) -> None:
        """One row. What is not known (no game has ended yet, say) is NaN in the CSV only."""
        row = _csv_line([figures.get(name, math.nan) for name in self._columns])
        self._note(PROGRESS, self._progress.write(row) or self._progress.error)
        known = {name: figures[name] for name in FIGURES if not math.isnan(figures[name])}
        self._events.scalars(int(figures["misc/steps"]), known)
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
        if self._evaluations is None and not self._folder.is_ours():
            return self._note(EVALUATIONS, "another run has its folder there")
        header = _csv_line(["steps", *figures])
        rows = self._evaluations or Appender(self._folder.path / EVALUATIONS, header)
        self._evaluations = rows
        is_written = rows.write(_csv_line([n_steps, *figures.values()]))
        self._note(EVALUATIONS, is_written or rows.error)
        known = {f"eval/{name}": x for name, x in figures.items() if not math.isnan(x)}
        self._events.scalars(n_steps, known)

    def histograms(self, n_steps: int, arrays: Mapping[str, np.ndarray]) -> None:
        self._events.histograms(n_steps, arrays)

    def close(self) -> None:
        with survive_loss_of(self._console):
            self._bar.close()
        self._events.close()
        for rows in (self._games, self._progress, self._evaluations, self._log):
            if rows is not None:
                rows.write()  # what may still wait
                rows.close()
        for file in (self._console, sys.stderr):
            with survive_loss_of(file):
                file.flush()
