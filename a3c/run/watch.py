"""The main thread's watch over the workers, from their start to their end.

It never touches a gradient. It takes the workers' reports off a queue, and in between writes a row
of figures every wake interval and a checkpoint every checkpoint interval.
"""

import collections
import dataclasses
import math
import pathlib
import queue
import re
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from a3c.agent import optimizer
from a3c.agent.learner import Measurement
from a3c.agent.shared import SharedState
from a3c.agent.worker import EnvRestart, Failure, Report, Worker
from a3c.contract import Game, Position, Subject
from a3c.machine import cores
from a3c.machine.appending import one_line
from a3c.machine.stopping import StopSignals, kept_from_new_threads
from a3c.play.evaluator import Evaluated, EvaluationFailed, Evaluator
from a3c.settings.params import Params
from a3c.store import checkpoint, logs
from a3c.store.checkpoint import Checkpoint
from a3c.store.resume import GAMES_IN_MEAN, Start
from a3c.store.run_folder import RunFolder

# Not SimpleQueue, whose `get` before Python 3.13 waits for ever if a signal comes so late that its
# handler ends after the time it had; and after a signal nobody reports any more.
Reports = queue.Queue[Report | Evaluated | EvaluationFailed]
BAR_INTERVAL_SECONDS = 0.5


class Run(NamedTuple):
    """What the parts of one run share."""

    params: Params
    subject: Subject
    folder: RunFolder
    start: Start
    signals: StopSignals
    log: logs.RunLog
    shared: SharedState
    reports: Reports


class Watch:
    """Reports in, figures and checkpoints out."""

    def __init__(
        self, run: Run, workers: Sequence[Worker], evaluator: Evaluator | None = None
    ) -> None:
        self._params, self._shared, self._log = run.params, run.shared, run.log
        self._run, self._workers, self._evaluator = run, workers, evaluator
        # Score and length of each.
        self._last_games = collections.deque(run.start.last_games, maxlen=GAMES_IN_MEAN)
        position = run.start.position
        self._n_env_restarts = position.n_env_restarts if position else 0
        # Of the run before it was resumed.
        self._cpu_seconds_before = position.cpu_seconds if position else 0
        self._is_saved = True  # False while the latest try to save has failed
        self._measured: dict[str, list[float]] = collections.defaultdict(list)
        self._last_measurement: Measurement | None = None
        self._failure: Failure | None = None
        self._row_counts, self._row_time = run.shared.counters.read(), time.monotonic()

    def run(self) -> int:
        """Start the workers, watch them to their end, save; returns the exit status."""
        if self._run.start.position is None and (path := self._save()):
            self._log.say(f"checkpoint before the first update: {path}")
        threads = [
            threading.Thread(target=worker.run, name=f"worker-{worker.number}")
            for worker in self._workers
        ]
        try:
            with kept_from_new_threads():
                for thread in threads:
                    thread.start()
            self._watch(threads)
        finally:
            self._run.signals.event.set()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
        self._take_reports(math.inf)
        if self._failure is not None:
            self._tell_of(self._failure)
        self._write_row()  # first, so that the checkpoint's position has it
        if path := self._save():
            self._log.say(f"saved {path}")
        if self._evaluator is not None:
            self._evaluator.finish(lambda: bool(self._run.signals.received or self._failure))
            self._take_reports(math.inf)
        return self._conclude()

    def _tell_of(self, failure: Failure) -> None:
        n_steps = self._shared.counters.read().steps
        what = f"worker {failure.worker} failed at {n_steps:,} steps: {in_one_line(failure.error)}"
        where = self._run.folder.leave_failure(failure.traceback, failure.arrays or {})
        self._log.say(f"{what}; {where}", error=True)

    def _save(self) -> pathlib.Path | None:
        """Save, or say why that is not possible now; the run is worth going on."""
        run = self._run
        self._take_reports(math.inf)  # so that few are left while the gate is shut
        try:
            snapshot, position = self._shared.snapshot(self._read_position)
            path = checkpoint.path_of(run.folder.checkpoints, snapshot.counts.steps)
            self._log.sync()
            as_dict = dataclasses.asdict(self._params)
            run.folder.save(Checkpoint(path, run.subject, as_dict, snapshot, position))
        except OSError as error:
            self._is_saved = False
            why = error.strerror or error
            self._log.say(
                f"cannot save a checkpoint: {why}; what was saved before is left as it is",
                error=True,
            )
            return None
        if not self._is_saved:
            self._log.say("checkpoints can be saved again")
        self._is_saved = True
        checkpoint.delete_all_but(run.folder.checkpoints, self._params.keep_ckpts)
        # Keep the best as of the oldest checkpoint: a resume may go back to that one.
        oldest = min(checkpoint.numbered(run.folder.checkpoints), default=0)
        checkpoint.delete_older(run.folder.best, oldest)
        return path

    def _read_position(self) -> Position:
        # What workers have reported by now is of the checkpoint's time.
        self._take_reports(math.inf)
        return Position(
            [worker.position for worker in self._workers],
            self._log.n_bytes(),
            self._n_env_restarts,
            int(np.nan_to_num(self._cpu_seconds())),
        )

    def _cpu_seconds(self) -> float:
        return self._cpu_seconds_before + cores.seconds_used()

    def _watch(self, threads: Sequence[threading.Thread]) -> None:
        next_row = time.monotonic() + self._params.manager_wake_interval_seconds
        next_checkpoint = time.monotonic() + self._params.ckpt_interval_seconds
        while any(thread.is_alive() for thread in threads):
            self._take_reports(BAR_INTERVAL_SECONDS)
            if self._evaluator is not None:
                self._evaluator.begin_if_due()
            counts = self._shared.counters.read()
            self._log.move_bar(counts.steps, counts.games, self._means_of_last()[0])
            now = time.monotonic()
            if now >= next_row:
                self._write_row()
                next_row = now + self._params.manager_wake_interval_seconds
            if now >= next_checkpoint:
                self._save()
                next_checkpoint = time.monotonic() + self._params.ckpt_interval_seconds

    def _note_evaluation(self, evaluated: Evaluated) -> None:
        figures = evaluated.figures
        self._log.evaluation(evaluated.n_steps, figures)
        best = f", the best so far: {evaluated.best}" if evaluated.best else ""
        self._log.say(
            f"evaluation at {evaluated.n_steps:,} steps:"
            f" mean score {figures['episode_reward_mean']:.2f},"
            f" {figures['episode_reward_min']:g} to {figures['episode_reward_max']:g}{best}"
        )
        if evaluated.problem:
            self._log.say(f"it is the best so far, but {evaluated.problem}", error=True)

    def _take_reports(self, seconds: float) -> None:
        """Handle reports for so long; with inf, what is in the queue now, without waiting."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            try:
                report = self._run.reports.get(timeout=0 if math.isinf(left) else left)
            except queue.Empty:
                return
            match report:
                case Game():
                    self._last_games.append((report.score, report.length))
                    self._log.game(report)
                case EnvRestart():
                    self._n_env_restarts += 1
                    self._log.say(
                        "what was under way there is abandoned, and not counted;"
                        f" a new process takes its place: {report.why.rstrip()}"
                    )
                case Measurement():
                    self._last_measurement = report
                    for name, value in report.scalars.items():
                        self._measured[name].append(value)
                case Failure():
                    self._failure = self._failure or report
                case Evaluated():
                    self._note_evaluation(report)
                case EvaluationFailed():
                    words = f"the evaluation at {report.n_steps:,} steps failed:"
                    self._log.say(f"{words}\n{report.traceback}".rstrip(), error=True)

    def _means_of_last(self) -> tuple[float, float]:
        """Mean score and length."""
        if not self._last_games:
            return math.nan, math.nan
        score, length = np.mean(self._last_games, axis=0)
        return float(score), float(length)

    def _write_row(self) -> None:
        counts, now = self._shared.counters.read(), time.monotonic()
        lag_mean, lag_max = self._shared.counters.take_policy_lag()
        score, length = self._means_of_last()
        means = {name: _mean_of_finite(values) for name, values in self._measured.items()}
        self._measured.clear()
        figures = dict.fromkeys(logs.FIGURES, math.nan) | means
        figures |= {
            "misc/steps": counts.steps,
            "misc/frames": counts.frames,
            "misc/updates": counts.updates,
            "misc/steps_per_second": (counts.steps - self._row_counts.steps)
            / (now - self._row_time),
            "misc/lr": optimizer.learning_rate(
                self._params.initial_lr, counts.steps, self._params.lr_decay_to_zero_by_n_steps
            ),
            "misc/policy_lag_mean": lag_mean,
            "misc/policy_lag_max": lag_max,
            "misc/cpu_hours": self._cpu_seconds() / 3600,
            "misc/env_restarts": self._n_env_restarts,
            "rl/episode_reward_mean_100": score,
            "rl/episode_length_mean_100": length,
            "rl/episodes": counts.games,
            "rl/episode_value_mean": self._workers[0].episode_value_mean,
        }
        self._row_counts, self._row_time = counts, now
        self._log.figures(figures)
        if self._params.detailed_logs and self._last_measurement:
            self._log.histograms(counts.steps, self._arrays(self._last_measurement))
            self._last_measurement = None

    def _arrays(self, measurement: Measurement) -> dict[str, np.ndarray]:
        shared = self._shared
        return {
            **{f"weights/{name}": v.numpy() for name, v in shared.weights.items()},
            **{f"rmsprop/{name}": v.numpy() for name, v in shared.mean_squares.items()},
            **{f"gradients/{name}": array for name, array in measurement.gradients.items()},
            **{f"activations/{name}": array for name, array in measurement.activations.items()},
        }

    def _conclude(self) -> int:
        if self._failure is not None:
            return 1
        counts = self._shared.counters.read()
        ending = "stopped" if self._run.signals.received else "finished"
        self._log.say(
            f"{ending} at {counts.steps:,} steps, {counts.updates:,} updates,"
            f" {counts.games:,} games"
        )
        return self._run.signals.exit_status if self._is_saved else 1


def _mean_of_finite(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return float(np.mean(finite)) if finite else math.nan


def in_one_line(error: BaseException) -> str:
    """The error's type and the ends of its text; of TensorFlow's, what we had it check."""
    text = str(error)
    if checked := re.search(r"\w+ not finite", text):
        return checked[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    shown = " … ".join(dict.fromkeys(lines[:1] + lines[-1:]))
    return one_line(f"{type(error).__name__}: {shown}", 500)
