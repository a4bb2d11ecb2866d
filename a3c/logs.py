"""Where a run's figures go: TensorBoard, `progress.csv`, `log.txt` and the console.

`progress.csv` and TensorBoard hold the same figures under the same names; the horizontal axis is
agent steps.
"""

import contextlib
import csv
import io
import math
import os
import pathlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TextIO

import numpy as np
import tensorflow as tf
from tqdm import tqdm

FIGURES = (
    "misc/steps",
    "misc/frames",  # emulator frames stepped, resets included
    "misc/updates",
    "misc/steps_per_second",
    "misc/lr",
    "misc/policy_lag_mean",  # updates of others between a worker's copy and its own
    "misc/policy_lag_max",
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


@contextlib.contextmanager
def _survive_loss_of(file: TextIO) -> Iterator[None]:
    """Whoever read our output may be gone (`| tee` dies of the same Ctrl-C): the run is not."""
    try:
        yield
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, file.fileno())
        os.close(nowhere)


def _take_over(path: pathlib.Path) -> list[str]:
    """The columns of a progress.csv, which gets those that the version it is from did not have."""
    if not path.exists() or path.stat().st_size == 0:
        return list(FIGURES)
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        old, *rows = csv.reader(line.replace("\0", "") for line in file)
    columns = [*FIGURES, *(name for name in old if name not in FIGURES)]
    if old != columns:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns, restval="nan", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(dict(zip(old, row, strict=False)) for row in rows)
        temporary = path.with_name(f"{path.name}.tmp")
        temporary.write_text(text.getvalue(), encoding="utf-8", newline="")
        temporary.replace(path)
    return columns


def _hide_events_after(folder: pathlib.Path, n_steps: int) -> None:
    """Tell TensorBoard that a session starts here, so that it drops what others wrote beyond.

    In an events file of its own, whose name comes after those there and before the next one's.
    """
    start = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
    now = time.time()
    with tf.io.TFRecordWriter(str(folder / f"events.out.tfevents.{int(now)}")) as writer:
        for event in (
            tf.compat.v1.Event(wall_time=now, file_version="brain.Event:2"),
            # It drops this step and what comes after.
            tf.compat.v1.Event(wall_time=now, step=n_steps + 1, session_log=start),
        ):
            writer.write(event.SerializeToString())


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
        if resumed:
            _hide_events_after(folder, n_steps_done)
        self._writer = tf.summary.create_file_writer(str(folder))
        self._columns = _take_over(folder / "progress.csv")
        self._progress_file = (folder / "progress.csv").open("a", newline="", encoding="utf-8")
        self._progress = csv.writer(self._progress_file)
        if self._progress_file.tell() == 0:
            self._progress.writerow(self._columns)
            self._progress_file.flush()
        self._log_file = (folder / "log.txt").open("a", encoding="utf-8")
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

    def say(self, line: str, *, error: bool = False) -> None:
        """One line to the console, above the bar, and to log.txt; errors to stderr."""
        print(line, file=self._log_file, flush=True)
        file = sys.stderr if error else self._console
        with _survive_loss_of(file), tqdm.external_write_mode(file=self._console):
            print(line, file=file, flush=True)

    def n_bytes(self) -> int:
        """The length of log.txt."""
        return os.fstat(self._log_file.fileno()).st_size

    def move_bar(self, n_steps: int, n_games: int, mean_100: float) -> None:
        if not self._bar.disable:
            with _survive_loss_of(self._console):
                postfix = f"{n_games} games, last 100: {mean_100:.1f}"
                self._bar.set_postfix_str(postfix, refresh=False)
                self._bar.update(n_steps - self._bar.n)

    def game(self, n_steps: int, score: float, length: int) -> None:
        with self._writer.as_default(step=n_steps):
            tf.summary.scalar("rl/episode_reward_sum", score)
            tf.summary.scalar("rl/episode_length_steps", length)

    def figures(self, figures: Mapping[str, float]) -> None:
        """One row. What is not known (no game has ended yet, say) is NaN in the CSV only."""
        self._progress.writerow([figures.get(name, math.nan) for name in self._columns])
        self._progress_file.flush()
        with self._writer.as_default(step=int(figures["misc/steps"])):
            for name in FIGURES:
                if not math.isnan(figures[name]):
                    tf.summary.scalar(name, figures[name])
        self._writer.flush()
        if self._bar.disable:
            self.say(
                f"{figures['misc/steps']:,.0f} steps  "
                f"{figures['misc/steps_per_second']:.0f} steps/s  "
                f"{figures['rl/episodes']:.0f} games  "
                f"last 100: {figures['rl/episode_reward_mean_100']:.2f}"
            )

    def evaluation(self, n_steps: int, figures: Mapping[str, float]) -> None:
        """One row of evaluations.csv, a file that begins with its first row, and TensorBoard."""
        with (self._folder / "evaluations.csv").open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            if file.tell() == 0:
                writer.writerow(["steps", *figures])
            writer.writerow([n_steps, *figures.values()])
        with self._writer.as_default(step=n_steps):
            for name, value in figures.items():
                if not math.isnan(value):
                    tf.summary.scalar(f"eval/{name}", value)
        self._writer.flush()

    def histograms(self, n_steps: int, arrays: Mapping[str, np.ndarray]) -> None:
        with self._writer.as_default(step=n_steps):
            for name, array in arrays.items():
                tf.summary.histogram(name, array)

    def close(self) -> None:
        with _survive_loss_of(self._console):
            self._bar.close()
        self._writer.close()
        self._progress_file.close()
        self._log_file.close()
