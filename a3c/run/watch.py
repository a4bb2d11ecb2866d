"""The main thread's watch over the workers, from their start to their end.

It never touches a gradient. It takes the workers' reports off a queue, writes rows of figures, the
first ones soon after the start, and saves a checkpoint at every checkpoint interval.
"""

import collections
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
from a3c.agent.collector import EnvRestart
from a3c.agent.learner import Measurement
from a3c.agent.shared import SharedState
from a3c.agent.worker import Failure, RemoteRestart, Report, Worker
from a3c.contract import Game, Position, Subject
from a3c.machine import cores
from a3c.machine.stopping import StopSignals, kept_from_new_threads
from a3c.machine.words import counted, ends_of, one_line
from a3c.play.evaluator import Evaluated, EvaluationFailed, Evaluator
from a3c.run.remote import RemoteSource
from a3c.settings.params import Params, as_in_json
from a3c.store import checkpoint, logs
from a3c.store.resume import GAMES_IN_MEAN, Start
from a3c.store.run_folder import RunFolder

# Before Python 3.13, SimpleQueue.get waits for ever if a signal handler outlasts its timeout.
Reports = queue.Queue[Report | Evaluated | EvaluationFailed]
BAR_INTERVAL_SECONDS = 0.5
FIRST_ROW_SECONDS = 2.0


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
    """Handles reports, and writes figures and checkpoints."""

    def __init__(
        self, run: Run, workers: Sequence[Worker], evaluator: Evaluator | None = None
    ) -> None:
        self._params, self._shared, self._log = run.params, run.shared, run.log
        self._run, self._workers, self._evaluator = run, workers, evaluator
        self._remote = [w.source for w in workers if isinstance(w.source, RemoteSource)]
        self._remote_steps = collections.Counter[str]()  # as of the last row, by machine
        self._n_remote_restarts = self._n_waiting = 0
        self._last_games = collections.deque(run.start.last_games, maxlen=GAMES_IN_MEAN)
        position = run.start.position
        self._n_env_restarts = position.n_env_restarts if position else 0
        self._cpu_seconds_before = position.cpu_seconds if position else 0  # before the resumption
        self._stop_at = stop_time(run.signals, run.params)
        self._is_out_of_time = False
        self._is_saved = True  # False if the latest attempt to save failed
        self._measured: dict[str, list[float]] = collections.defaultdict(list)  # since the last row
        self._last_measurement: Measurement | None = None
        self._traces: set[str] = set()  # the places of tracebacks that were told
        self._failure: Failure | None = None
        self._row_counts, self._row_time = run.shared.counters.read(), time.monotonic()

    def run(self) -> int:
        """Run the workers until they end, then save; returns the exit status."""
        if self._run.start.position is None and (path := self._save()):
            self._log.say(f"checkpoint before the first update: {path}")
        threads = [threading.Thread(target=w.run, name=f"worker-{w.number}") for w in self._workers]
        try:
            with kept_from_new_threads():
                for thread in threads:
                    thread.start()
            self._watch(threads)
        finally:
            self._run.signals.stop.set()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
        self._take_reports(math.inf)
        if failure := self._failure:
            what = f"worker {failure.worker} failed at {self._shared.counters.read().steps:,} steps"
            where = self._run.folder.leave_failure(failure.traceback, failure.arrays)
            self._log.say(f"{what}: {in_one_line(failure.error)}; {where}", error=True)
        # Before saving, so that the checkpoint's position includes this row. It would repeat the last
        # one if nothing was learned since, but a run leaves at least one row.
        if self._shared.counters.read().steps > self._row_counts.steps or not self._log.has_figures:
            self._write_row()
        if path := self._save():
            self._log.say(f"saved {path}")
        if self._evaluator is not None:
            self._evaluator.finish(
                lambda: bool(
                    self._run.signals.received or self._failure or time.monotonic() >= self._stop_at
                )
            )
            self._take_reports(math.inf)
        return self._conclude()

    def _watch(self, threads: Sequence[threading.Thread]) -> None:
        began, interval = time.monotonic(), self._params.log_interval_seconds
        next_row = began + seconds_to_next_row(0.0, interval)
        next_checkpoint = began + self._params.ckpt_interval_seconds
        while any(thread.is_alive() for thread in threads):
            self._take_reports(BAR_INTERVAL_SECONDS)
            if self._evaluator is not None:
                self._evaluator.begin_if_due()
            counts = self._shared.counters.read()
            self._log.move_bar(counts.steps, self._games_in_words(counts.games))
            now = time.monotonic()
            if now >= next_row and counts.steps > self._row_counts.steps:
                self._write_row()
                next_row = now + seconds_to_next_row(now - began, interval)
            if now >= self._stop_at and not self._is_out_of_time:
                self._is_out_of_time = True
                self._run.signals.stop.set()
            if now >= next_checkpoint:
                self._save()
                next_checkpoint = time.monotonic() + self._params.ckpt_interval_seconds

    def _conclude(self) -> int:
        if self._failure is not None:
            return 1
        n = self._shared.counters.read()
        is_stopped = self._run.signals.received or self._is_out_of_time
        ending = "stopped" if is_stopped else "finished"
        self._log.say(
            f"{ending} at {counted(n.steps, 'step')}, {counted(n.updates, 'update')},"
            f" {counted(n.games, 'game')}"
        )
        return self._run.signals.exit_status if self._is_saved else 1

    def _take_reports(self, seconds: float) -> None:
        """Handle reports for this long; with inf, those in the queue now, without waiting."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            try:
                report = self._run.reports.get(timeout=0 if math.isinf(left) else left)
            except queue.Empty:
                return
            match report:
                case Game():
                    self._last_games.append((report.score, report.length))
                    self._log.game(report, time.time())
                case EnvRestart():
                    self._n_env_restarts += 1
                    words = "restarted an environment process, and dropped its episodes:"
                    self._log.say(f"{words} {self._told_once(report.why.rstrip())}")
                case RemoteRestart():
                    self._n_remote_restarts += 1
                    self._log.say(report.told)
                case Measurement():
                    self._last_measurement = report
                    for name, value in report.scalars.items():
                        if math.isfinite(value):
                            self._measured[name].append(value)
                case Failure():
                    self._failure = self._failure or report
                case Evaluated():
                    self._report_evaluation(report)
                case EvaluationFailed():
                    words = f"the evaluation at {report.n_steps:,} steps failed:"
                    self._log.say(f"{words}\n{report.traceback}".rstrip(), error=True)

    def _told_once(self, why: str) -> str:
        """Why an environment broke; a traceback through the same lines of code only once."""
        places = "".join(line for line in why.splitlines() if line.startswith("  File "))
        if places in self._traces:
            return ends_of(why)
        if places:
            self._traces.add(places)
        return why

    def _report_evaluation(self, evaluated: Evaluated) -> None:
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

    def _save(self) -> pathlib.Path | None:
        """Save a checkpoint; if that fails, say why and let the run continue."""
        run = self._run
        self._take_reports(math.inf)  # so that few are left while the gate is shut
        try:
            snapshot, position = self._shared.snapshot(self._read_position)
            path = checkpoint.path_of(run.folder.checkpoints, snapshot.counts.steps)
            self._log.sync()
            as_dict = as_in_json(self._params)
            saved = checkpoint.Checkpoint(path, run.subject, as_dict, snapshot, position)
            run.folder.save(saved)
        except OSError as error:
            self._is_saved = False
            why = f"{error.strerror or error}; earlier checkpoints stay as they are"
            self._log.say(f"cannot save a checkpoint: {why}", error=True)
            return None
        if not self._is_saved:
            self._log.say("checkpoints can be saved again")
            self._is_saved = True
        checkpoint.delete_all_but(run.folder.checkpoints, self._params.keep_ckpts)
        # A resumed run may start from the oldest checkpoint, so keep the best weights up to that.
        oldest = min(checkpoint.numbered(run.folder.checkpoints), default=0)
        checkpoint.delete_older(run.folder.best, oldest)
        return path

    def _read_position(self) -> Position:
        self._take_reports(math.inf)  # what workers have reported belongs to this checkpoint
        return Position(
            [worker.position for worker in self._workers],
            self._log.n_bytes(),
            self._n_env_restarts,
            max(0, int(np.nan_to_num(self._cpu_seconds()))),
        )

    def _cpu_seconds(self) -> float:
        of_this_start = cores.seconds_used() - self._run.signals.cpu_seconds_before
        return self._cpu_seconds_before + of_this_start

    def _means_of_last(self) -> Sequence[float]:
        """The mean score and the mean length of the last games."""
        return np.mean(self._last_games, axis=0).tolist() if self._last_games else [math.nan] * 2

    def _games_in_words(self, n_games: int) -> str:
        """Such as: 32 games, last 32: -20.31."""
        words = counted(n_games, "game")
        if n := len(self._last_games):
            words += f", last {n}: {self._means_of_last()[0]:.2f}"
        return words

    def _write_row(self) -> None:
        with self._shared.gate.shut():  # the row has the games of all steps that it counts
            counts, now = self._shared.counters.read(), time.monotonic()
            self._take_reports(math.inf)
        lag_mean, lag_max = self._shared.counters.take_policy_lag()
        score, length = self._means_of_last()
        lr_end = self._params.lr_decay_to_zero_by_n_steps
        figures = {
            **dict.fromkeys(logs.FIGURES, math.nan),
            **{name: float(np.mean(values)) for name, values in self._measured.items()},
            "misc/steps": counts.steps,
            "misc/frames": counts.frames,
            "misc/updates": counts.updates,
            "misc/steps_per_second": (counts.steps - self._row_counts.steps)
            / (now - self._row_time),
            "misc/lr": optimizer.learning_rate(self._params.initial_lr, counts.steps, lr_end),
            "misc/policy_lag_mean": lag_mean,
            "misc/policy_lag_max": lag_max,
            "misc/cpu_hours": self._cpu_seconds() / 3600,
            "misc/env_restarts": self._n_env_restarts,
            "misc/remote_workers": sum(each.machine is not None for each in self._remote),
            "misc/remote_restarts": self._n_remote_restarts,
            "rl/episode_reward_mean_100": score,
            "rl/episode_length_mean_100": length,
            "rl/episodes": counts.games,
            "rl/episode_value_mean": self._workers[0].episode_value_mean,
        }
        self._tell_of_machines(counts.steps, now - self._row_time)
        self._row_counts, self._row_time = counts, now
        self._measured.clear()
        self._log.figures(figures, self._games_in_words(counts.games))
        if self._params.detailed_logs and self._last_measurement:
            measured, self._last_measurement = self._last_measurement, None
            arrays = {
                "weights": self._shared.weights,
                "rmsprop": self._shared.mean_squares,
                "gradients": measured.gradients,
                "activations": measured.activations,
            }
            named = {f"{part}/{name}": a for part in arrays for name, a in arrays[part].items()}
            self._log.histograms(counts.steps, named)

    def _tell_of_machines(self, n_steps: int, seconds: float) -> None:
        steps = sum((each.steps.copy() for each in self._remote), collections.Counter[str]())
        new = {name: (n - self._remote_steps[name]) / seconds for name, n in steps.items()}
        self._remote_steps = steps
        if new:
            self._log.machines(n_steps, new)
        n_waiting = sum(each.machine is None for each in self._remote)
        is_over = self._run.signals.stop.is_set() or self._shared.counters.are_complete()
        if n_waiting != self._n_waiting and not is_over:
            self._log.say(f"remote workers that are not at work yet: {n_waiting}")
            self._n_waiting = n_waiting


def stop_time(signals: StopSignals, params: Params) -> float:
    """When the run stops by itself, by the monotonic clock."""
    hours = params.stop_after_hours
    return math.inf if hours is None else signals.began + 3600 * hours


def seconds_to_next_row(elapsed: float, interval: float) -> float:
    """The gap after a row: 2 s, from 10 s on a fifth of the time so far, and at most the interval.

    So a run of a minute has about 15 rows, as one of an hour has curves from its first minute on.
    """
    return min(interval, max(FIRST_ROW_SECONDS, elapsed / 5))


def in_one_line(error: BaseException) -> str:
    """The error's type with the first and the last line of its text."""
    text = str(error)
    if checked := re.search(r"\w+ not finite", text):  # TensorFlow adds a long text to ours
        return checked[0]
    return one_line(f"{type(error).__name__}: {ends_of(text)}")
