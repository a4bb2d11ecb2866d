"""Where games and figures go: `monitor.csv`, `progress.csv`, `log.txt`, TensorBoard, the console.

`progress.csv` and TensorBoard hold the same figures under the same names; their horizontal axis is
agent steps. `monitor.csv` has a row for each finished game, in the form that Stable-Baselines3's
`load_results` reads, in the order in which workers reported them (readers sort by step):

    #{"t_start": 1700000000.0, "env_id": "PongNoFrameskip-v4"}
    r,l,t,step,worker,env
    -21.0,757,12.3,3080,0,0

`r` is the unclipped score of the whole game, `l` its length in decisions of the agent, `t` the
seconds since `t_start`, without the time that a resumed run stood still, and `step` the run's count
when an update had learned from the end of the game.
"""

import json
import math
import pathlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO

import numpy as np
from tqdm import tqdm

from a3c.contract import Game
from a3c.machine.appending import Appender, survive_loss_of
from a3c.settings.params import KNOBS, Params, shown
from a3c.store.events import Events
from a3c.store.resume import Start
from a3c.store.run_folder import EVALUATIONS, GAMES, LOG, PROGRESS, RunFolder

_MAX_HEAD = 2**16  # characters of the first line of a table
GAME_COLUMNS = ("r", "l", "t", "step", "worker", "env")

FIGURES = (
    "misc/steps",
    "misc/frames",  # emulator frames stepped, resets included
    "misc/updates",
    "misc/steps_per_second",
    "misc/lr",
    "misc/policy_lag_mean",  # updates by others since a worker copied the weights
    "misc/policy_lag_max",
    "misc/cpu_hours",  # of all processes on all cores, since the run's first start
    "misc/env_restarts",  # how often a worker got a new environment process
    "misc/remote_workers",  # at work at this moment
    "misc/remote_restarts",  # how often a remote worker was lost since this start
    "rl/episode_reward_mean_100",  # this and the next two are of whole games, as Score counts them
    "rl/episode_length_mean_100",
    "rl/episodes",
    "rl/policy_entropy",  # most from here on are means over the measured updates of the interval
    "rl/advantage_mean",
    "rl/episode_value_mean",  # of worker 0's latest finished training episode
    "rl/explained_variance",
    *("loss/loss_policy", "loss/loss_value", "loss/loss_combined"),
    *("loss/grads_norm_policy", "loss/grads_norm_value", "loss/grads_norm_combined"),
    "loss/grads_norm_combined_clipped",
)


def shown_settings(params: Params) -> dict[str, float | str]:
    """What TensorBoard shows of the settings: the seed, the steps, and what changes training."""
    names = [name for name in KNOBS if KNOBS[name].changes_training or name in ("n_steps", "seed")]
    values = {name: getattr(params, name) for name in names}
    return {n: v if isinstance(v, bool | int | float) else shown(v) for n, v in values.items()}


def _columns_of(path: pathlib.Path) -> Sequence[str]:
    """The columns of a progress.csv, which are other ones if another version began it."""
    if not path.exists():
        return FIGURES
    with path.open(encoding="utf-8", errors="replace") as file:
        head = file.readline(_MAX_HEAD)
    return head.rstrip("\n").split(",") if head.endswith("\n") else FIGURES


def _csv_line(cells: Iterable[object]) -> str:
    return ",".join(map(str, cells)) + "\r\n"


class RunLog:
    """The open logs of one run. Only the main thread writes them."""

    def __init__(self, folder: RunFolder, params: Params, start: Start) -> None:
        path, n_steps_done = folder.path, start.counts.steps
        self._folder, self._t_start = folder, start.t_start
        self._events = Events(path, n_steps_done if start.is_resumed else None)
        self._events.settings(shown_settings(params))
        self._columns = _columns_of(path / PROGRESS)
        head = json.dumps({"t_start": start.t_start, "env_id": params.env_id})
        self._files = {  # those that a resumed run is cut back to
            GAMES: Appender(path / GAMES, f"#{head}\n{','.join(GAME_COLUMNS)}\n"),
            PROGRESS: Appender(path / PROGRESS, _csv_line(self._columns)),
            LOG: Appender(path / LOG),
        }
        self._evaluations: Appender | None = None
        self._broken: set[str] = set()  # the files that could not be written the last time
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
        for name, file in self._files.items():
            self._write(name, file)

    def say(self, line: str, *, error: bool = False) -> None:
        """Print one line, above the bar, and add it to log.txt; errors go to stderr."""
        file = sys.stderr if error else self._console
        with survive_loss_of(file), tqdm.external_write_mode(file=self._console):
            print(line, file=file, flush=True)
        self._write(LOG, self._files[LOG], line + "\n")

    def _write(self, name: str, file: Appender, text: str = "") -> None:
        """Add to a file; report when writing begins to fail, and when it works again."""
        if file.write(text) and name in self._broken:
            self._broken.remove(name)
            lost = f"; lost entries: {file.n_lost:,}" if file.n_lost else ""
            file.n_lost = 0
            self.say(f"can write {name} again{lost}")
        elif file.error and name not in self._broken:
            self._broken.add(name)
            self.say(f"cannot write {name}: {file.error}; training goes on", error=True)

    def n_bytes(self) -> dict[str, int]:
        """The lengths of the files that a resumed run is cut back to; OSError while rows wait."""
        for name, file in self._files.items():
            if not file.write():
                raise OSError(f"cannot write {name}: {file.error}")
        return {name: file.n_bytes() for name, file in self._files.items()}

    def sync(self) -> None:
        """Have the system store these files on the disk; OSError where it cannot."""
        for file in self._files.values():
            file.sync()

    def move_bar(self, n_steps: int, games: str) -> None:
        """Show on the console how far the run is; `games` says it of its games."""
        if not self._bar.disable:
            with survive_loss_of(self._console):
                self._bar.set_postfix_str(games, refresh=False)
                self._bar.update(n_steps - self._bar.n)

    def game(self, game: Game, moment: float) -> None:
        """One row of monitor.csv, and TensorBoard; `moment` is in seconds since the epoch."""
        seconds = f"{moment - self._t_start:.6f}"
        row = round(game.score, 6), game.length, seconds, game.step, game.worker, game.env
        self._write(GAMES, self._files[GAMES], ",".join(map(str, row)) + "\n")
        scalars = {"rl/episode_reward_sum": game.score, "rl/episode_length_steps": game.length}
        self._events.scalars(game.step, scalars)

    def figures(self, figures: Mapping[str, float], games: str) -> None:
        """One row of progress.csv, and TensorBoard, which leaves out unknown figures (NaN).

        Where there is no bar, the console gets a line; `games` is its end.
        """
        row = _csv_line([figures.get(name, math.nan) for name in self._columns])
        self._write(PROGRESS, self._files[PROGRESS], row)
        known = {name: figures[name] for name in FIGURES if not math.isnan(figures[name])}
        self._events.scalars(int(figures["misc/steps"]), known)
        self._write("TensorBoard's events", self._events.file)
        if self._bar.disable:
            self.say(
                f"{figures['misc/steps']:,.0f} steps  "
                f"{figures['misc/steps_per_second']:.0f} steps/s  {games}"
            )

    @property
    def has_figures(self) -> bool:
        """Whether progress.csv has a row, be it of an earlier start."""
        return self._files[PROGRESS].n_bytes() > len(_csv_line(self._columns).encode())

    def machines(self, n_steps: int, steps_per_second: Mapping[str, float]) -> None:
        """TensorBoard only, because tables have a fixed number of columns."""
        named = {f"machines/{name}/steps_per_second": x for name, x in steps_per_second.items()}
        self._events.scalars(n_steps, named)

    def evaluation(self, n_steps: int, figures: Mapping[str, float]) -> None:
        """One row of evaluations.csv, which begins with its first row, and TensorBoard."""
        if self._evaluations is None:
            if not self._folder.is_ours():
                where = f"another run has its folder where {self._folder} was"
                return self.say(f"cannot write {EVALUATIONS}: {where}", error=True)
            path = self._folder.path / EVALUATIONS
            self._evaluations = Appender(path, _csv_line(["steps", *figures]))
        row = _csv_line([n_steps, *figures.values()])
        self._write(EVALUATIONS, self._evaluations, row)
        known = {f"eval/{name}": x for name, x in figures.items() if not math.isnan(x)}
        self._events.scalars(n_steps, known)

    def histograms(self, n_steps: int, arrays: Mapping[str, np.ndarray]) -> None:
        self._events.histograms(n_steps, arrays)

    def close(self) -> None:
        with survive_loss_of(self._console):
            self._bar.close()
        self._events.close()
        for file in (*self._files.values(), self._evaluations):
            if file is not None:
                file.write()  # what still waits
                file.close()
        for console in (self._console, sys.stderr):
            with survive_loss_of(console):
                console.flush()
