"""Build everything, start the worker threads, watch them, stop them.

The main thread never touches a gradient. It takes the workers' reports off a queue, and in between
writes a row of figures every wake interval and a checkpoint every checkpoint interval.
"""

import collections
import contextlib
import ctypes
import dataclasses
import math
import pathlib
import queue
import threading
import time
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from a3c import checkpoint, failure, logs, network, optimizer, resume, seeding
from a3c.checkpoint import CannotSave, Checkpointer, Info, Subject
from a3c.env import EnvProcesses
from a3c.evaluator import Evaluated, EvaluationFailed, Evaluator
from a3c.params import Params
from a3c.position import Position, WorkerPosition
from a3c.shared import Counters, Counts, SharedState
from a3c.stopping import Stopped, StopSignals, kept_from_new_threads
from a3c.worker import (
    EnvRestart,
    Failure,
    Game,
    Hyperparameters,
    LocalNetwork,
    Measurement,
    Report,
    Traced,
    Worker,
)

# Not SimpleQueue, whose `get` before Python 3.13 waits for ever if a signal comes so late that its
# handler ends after the time it had; and after a signal nobody reports any more.
Reports = queue.Queue[Report | Evaluated | EvaluationFailed]
BAR_INTERVAL_SECONDS = 0.5
# What differs between any two runs, and is not worth a line when one goes on from the other.
_OF_ONE_RUN = {"log_dir", "run_name", "load_ckpt"}


def train(
    params: Params,
    subject: Subject,
    envs: Sequence[EnvProcesses],
    folder: pathlib.Path,
    signals: StopSignals,
    restore_from: Info | None = None,
    standing: resume.Standing | None = None,
) -> int:
    """Train until the run has its steps or is stopped; returns the exit status.

    `standing` is there if the run is resumed in its own folder.
    """
    _keep_freed_memory()
    with kept_from_new_threads():
        network.start_tensorflow()
    counts = Counts(**restore_from.counters) if restore_from else Counts()
    is_resumed = standing is not None
    log = logs.RunLog(folder, counts.steps, params.n_steps, resumed=is_resumed)
    try:
        shared = _build_shared(params, subject, Counters(params.n_steps, counts))
        if restore_from:
            checkpoint.restore(restore_from, shared)
            if not is_resumed:
                _say_what_was_restored(restore_from, params, log)
        reports = Reports()
        generators = _generators(params, counts.updates, standing)
        n_rows = standing.n_rows if standing else [[0] * len(each.next_games) for each in envs]
        positions = [
            WorkerPosition(generator.bit_generator.state, list(processes.next_games), rows)
            for generator, processes, rows in zip(generators, envs, n_rows, strict=True)
        ]
        workers = _build_workers(
            params, subject, envs, generators, n_rows, shared, signals, reports, log
        )
        with contextlib.suppress(Stopped):
            for processes in envs:
                processes.wait_until_ready()
        checkpointer = Checkpointer(
            folder / "checkpoints",
            shared,
            subject,
            dataclasses.asdict(params),
            params.keep_ckpts,
            n_steps_saved=counts.steps if is_resumed and restore_from else None,
        )
        evaluator = None
        if params.eval_interval_steps is not None:
            as_dict = dataclasses.asdict(params)
            evaluator = Evaluator(subject, as_dict, shared, folder, reports.put)
        watch = _Watch(
            params,
            folder,
            shared,
            workers,
            checkpointer,
            log,
            signals,
            reports,
            positions,
            evaluator,
        )
        if standing:
            watch.take_over(standing)
        try:
            return watch.run()
        finally:
            if evaluator is not None:
                evaluator.stop()
    finally:
        log.close()


def _keep_freed_memory() -> None:
    """Have glibc keep the large blocks that TensorFlow frees, for the next update to take again,
    and take them from huge pages, where the system gives these to who asks.

    Given back to the system, they came back as fresh pages that it zeroes first: a sixth of the
    time of an update of `small` with 8 environments. It takes both settings; one of them alone is
    worse than none.

    Huge pages are asked for a free block of 1 GB in glibc's books, of which others are cut, and
    which takes no room until used. One behind it that is never freed keeps it from being given back
    as a whole, as `malloc_trim` would, which protobuf calls when it likes.
    """
    trim_threshold, mmap_max, madv_hugepage = -1, -4, 14  # by their names in C
    huge, n_bytes = 2**21, 2**30
    with contextlib.suppress(AttributeError, OSError, TypeError):  # where there is no glibc
        libc = ctypes.CDLL(None)
        libc.malloc.restype = ctypes.c_void_p
        libc.mallopt(trim_threshold, n_bytes)
        libc.mallopt(mmap_max, 0)
        block = libc.malloc(ctypes.c_size_t(n_bytes))
        libc.malloc(ctypes.c_size_t(2**26))  # behind: more than is free anywhere before
        if block is not None:  # where there is a limit
            start, end = -(-block // huge) * huge, (block + n_bytes) // huge * huge
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), madv_hugepage)
            libc.free(ctypes.c_void_p(block))


def _build_shared(params: Params, subject: Subject, counters: Counters) -> SharedState:
    shapes = network.weight_shapes(subject.network, subject.observation_shape, subject.n_actions)
    generator = seeding.generator(params.seed, seeding.Purpose.WEIGHTS)
    return SharedState(
        network.initial_weights(shapes, params.initial_weights, generator),
        rmsprop_initial=params.rmsprop_initial,
        rmsprop_decay=params.rmsprop_decay,
        rmsprop_epsilon=params.rmsprop_epsilon,
        max_grad_norm=params.max_grad_norm,
        counters=counters,
    )


def _say_what_was_restored(info: Info, params: Params, log: logs.RunLog) -> None:
    log.say(f"restored {info.prefix} at {info.counters['steps']:,} steps")
    if not info.has_statistics:
        log.say("it holds weights only: RMSProp's statistics start anew")
    for name, value in dataclasses.asdict(params).items():
        if name in _OF_ONE_RUN:
            continue
        if name in info.params and info.params[name] != value:
            log.say(f"  {name}: {info.params[name]!r} there, {value!r} here")


def _generators(
    params: Params, n_updates: int, standing: resume.Standing | None
) -> list[np.random.Generator]:
    """Of each worker, the one that draws its actions.

    A restored run draws on from streams of its own, not the first run's once more; a resumed one
    from where it stood.
    """
    generators = [
        seeding.generator(params.seed, seeding.Purpose.ACTIONS, worker=number, game=n_updates)
        for number in range(params.n_workers)
    ]
    if standing and standing.generators:
        for generator, state in zip(generators, standing.generators, strict=True):
            generator.bit_generator.state = state
    return generators


def _build_workers(
    params: Params,
    subject: Subject,
    envs: Sequence[EnvProcesses],
    generators: Sequence[np.random.Generator],
    n_rows: Sequence[Sequence[int]],
    shared: SharedState,
    signals: StopSignals,
    reports: Reports,
    log: logs.RunLog,
) -> list[Worker]:
    hyperparameters = Hyperparameters(
        subject.network,
        *(getattr(params, name) for name in Hyperparameters._fields[1:]),
    )
    if signals.event.is_set():  # tracing takes seconds
        return []
    start = time.monotonic()
    log.say("tracing the network's functions")
    observations = envs[0].observations  # every worker's are alike
    traced = Traced(
        shared,
        hyperparameters,
        tf.TensorSpec(observations.shape, observations.dtype),
        compile_act=not params.no_xla,
        debug=params.debug,
        detailed=params.detailed_logs,
    )
    log.say(f"traced in {time.monotonic() - start:.1f} s")
    return [
        Worker(
            number,
            shared,
            LocalNetwork(shared, traced),
            processes,
            hyperparameters,
            generators[number],
            signals.event,
            reports.put,
            n_rows[number],
        )
        for number, processes in enumerate(envs)
    ]


class _Watch:
    """The main thread's watch over a running training: reports in, figures and checkpoints out."""

    def __init__(
        self,
        params: Params,
        folder: pathlib.Path,
        shared: SharedState,
        workers: Sequence[Worker],
        checkpointer: Checkpointer,
        log: logs.RunLog,
        signals: StopSignals,
        reports: Reports,
        positions: Sequence[WorkerPosition],
        evaluator: Evaluator | None = None,
    ) -> None:
        """`positions`: where each worker starts."""
        self._params, self._shared, self._workers = params, shared, workers
        self._checkpointer, self._evaluator = checkpointer, evaluator
        self._log, self._signals, self._reports = log, signals, reports
        self._folder = folder
        # Score and length of each.
        self._last_games: collections.deque[tuple[float, int]] = collections.deque(
            maxlen=resume.GAMES_IN_MEAN
        )
        self._positions = positions
        self._is_saved = True  # as far as was tried
        self._measured: dict[str, list[float]] = collections.defaultdict(list)
        self._last_measurement: Measurement | None = None
        self._failure: Failure | None = None
        self._n_env_restarts = 0
        self._row_counts, self._row_time = shared.counters.read(), time.monotonic()

    def take_over(self, standing: resume.Standing) -> None:
        """Go on with what the logs need of a run that is resumed."""
        self._last_games.extend(standing.last_games)
        self._n_env_restarts = standing.n_env_restarts

    def run(self) -> int:
        """Start the workers, watch them to their end, save; returns the exit status."""
        if not self._checkpointer.has_saved:
            prefix = self._save()
            if prefix:
                self._log.say(f"checkpoint before the first update: {prefix}")
        threads = [
            threading.Thread(target=worker.run, name=f"worker-{worker.number}")
            for worker in self._workers
        ]
        with kept_from_new_threads():
            for thread in threads:
                thread.start()
        try:
            self._watch(threads)
        finally:
            self._signals.event.set()
            for thread in threads:
                thread.join()
        self._take_reports(math.inf)
        if self._failure is not None:
            n_steps = self._shared.counters.read().steps
            self._log.say(failure.leave(self._folder, self._failure, n_steps), error=True)
        prefix = self._save()
        self._write_row()
        if prefix:
            self._log.say(f"saved {prefix}")
        if self._evaluator is not None:
            self._evaluator.finish(lambda: bool(self._signals.received or self._failure))
            self._take_reports(math.inf)
        return self._conclude()

    def _save(self) -> pathlib.Path | None:
        """Save, or say why that is not possible now; the run is worth going on."""
        try:
            prefix = self._checkpointer.save(self._read_position)
        except CannotSave as error:
            self._is_saved = False
            self._log.say(f"{error}; what was saved before is intact", error=True)
            return None
        if not self._is_saved:
            self._log.say("checkpoints can be saved again")
        self._is_saved = True
        if self._evaluator is not None:
            self._evaluator.forget(checkpoint.oldest(prefix.parent))
        return prefix

    def _read_position(self) -> Position:
        # There are fewer workers, or none, where a signal came while they were being made.
        not_made = self._positions[len(self._workers) :]
        return Position(
            [*(worker.position for worker in self._workers), *not_made],
            self._log.n_bytes(),
            self._n_env_restarts,
        )

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
        """Handle reports for so long, however many there are; forever means all that are there."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            try:
                report = self._reports.get(timeout=0 if math.isinf(left) else left)
            except queue.Empty:
                return
            match report:
                case Game():
                    self._last_games.append((report.score, report.length))
                    self._log.game(report.n_steps, report.score, report.length)
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
            "misc/env_restarts": self._n_env_restarts,
            "rl/episode_reward_mean_100": score,
            "rl/episode_length_mean_100": length,
            "rl/episodes": counts.games,
            # There is no worker where a signal came while they were being made.
            "rl/episode_value_mean": (
                self._workers[0].episode_value_mean if self._workers else math.nan
            ),
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
        ending = "stopped" if self._signals.received else "finished"
        self._log.say(
            f"{ending} at {counts.steps:,} steps, {counts.updates:,} updates,"
            f" {counts.games:,} games"
        )
        return self._signals.exit_status if self._is_saved else 1


def _mean_of_finite(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return float(np.mean(finite)) if finite else math.nan
