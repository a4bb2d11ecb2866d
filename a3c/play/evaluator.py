"""Evaluations while training: of one moment's weights, in a thread of their own; the best stays.

An evaluation begins when training passes a multiple of --eval_interval_steps and none is under way.
What it needs of the shared state is copied in one go while the gate is shut, as for a checkpoint,
and from then on it shares nothing with the workers but the machine: training's result does not
change by a bit. It plays one game at a time, as much work as one more worker that does not learn.

All evaluations of a run play the same games (those of the run's seed), so that their scores differ
by the policy alone, and `run_checkpoint.py` plays them again. The best was chosen by these games:
with another seed it will do a little worse.
"""

import contextlib
import csv
import dataclasses
import pathlib
import threading
import time
import traceback
from collections.abc import Callable
from typing import NamedTuple

from a3c.agent.shared import SharedState
from a3c.contract import Snapshot, Subject
from a3c.machine.stopping import StopFlag, kept_from_new_threads
from a3c.play import evaluation
from a3c.play.agent import Agent
from a3c.settings.params import Params
from a3c.store import checkpoint
from a3c.store.checkpoint import Checkpoint
from a3c.store.run_folder import EVALUATIONS, RunFolder

LOOK_INTERVAL_SECONDS = 0.2


class Evaluated(NamedTuple):
    """An evaluation that ended, as the logs want it."""

    n_steps: int  # of the run, when its weights were copied
    figures: dict[str, float]
    best: pathlib.Path | None  # where the weights were saved, if they are the run's best so far
    problem: str | None = None  # why they could not be


class EvaluationFailed(NamedTuple):
    """An evaluation that broke."""

    n_steps: int
    traceback: str


class Evaluator:
    """Begins evaluations and ends them. Used by the main thread alone, but for what it starts."""

    def __init__(
        self,
        params: Params,
        subject: Subject,
        shared: SharedState,
        folder: RunFolder,
        report: Callable[[Evaluated | EvaluationFailed], None],
    ) -> None:
        """If the run's folder has evaluations already, the best one that is saved is to be beaten, and
        one that is due since the last of them is made up for.
        """
        assert params.eval_interval_steps is not None
        self._params, self._interval = params, params.eval_interval_steps
        self._subject, self._shared, self._folder, self._report = subject, shared, folder, report
        means = read_evaluations(folder.path / EVALUATIONS)
        self._n_steps_at_last = max(means, default=shared.counters.read().steps)
        # What was never saved, or is not there any more, is not to be beaten.
        self._best_mean = means.get(max(checkpoint.numbered(folder.best), default=-1))
        self._agent = Agent(subject)
        self._stop = StopFlag()
        self._thread: threading.Thread | None = None

    def begin_if_due(self) -> bool:
        """Begin an evaluation if training has passed a multiple of the interval; True if so."""
        n_steps = self._shared.counters.read().steps
        is_busy = self._thread is not None and self._thread.is_alive()
        if is_busy or n_steps // self._interval == self._n_steps_at_last // self._interval:
            return False
        snapshot, _ = self._shared.snapshot(lambda: None)
        self._n_steps_at_last = snapshot.counts.steps
        self._thread = threading.Thread(target=self._evaluate, args=(snapshot,), name="evaluation")
        try:
            with kept_from_new_threads():
                self._thread.start()
        except RuntimeError:  # the system has no thread to give
            self._thread = None
            self._report(EvaluationFailed(snapshot.counts.steps, traceback.format_exc()))
        return True

    def finish(self, is_stopped: Callable[[], bool]) -> None:
        """Bring those to their end that are due, unless stopped meanwhile."""
        while not is_stopped():
            if not self.begin_if_due() and (self._thread is None or not self._thread.is_alive()):
                break
            if self._thread is not None:
                self._thread.join(LOOK_INTERVAL_SECONDS)
        self.close()

    def close(self) -> None:
        """Give up the evaluation under way, which counts for nothing then, and wait for that."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _evaluate(self, snapshot: Snapshot) -> None:
        n_steps = snapshot.counts.steps
        try:
            start = time.monotonic()
            self._agent.set_weights(snapshot.weights)
            params = evaluation.params_of(self._subject, self._params.seed)
            games = []
            for number in range(self._params.eval_episodes):
                timeout = self._params.env_timeout_seconds
                game = evaluation.play(self._agent, params, number, self._stop, timeout)
                if game is None:
                    return
                games.append(game)
            summary = evaluation.summarise(self._subject.env_id, games)
            best = problem = None
            if self._best_mean is None or summary.mean > self._best_mean:
                try:
                    best, self._best_mean = self._save(snapshot), summary.mean
                except OSError as error:
                    problem = f"it cannot be saved: {error.strerror or error}"
            figures = {
                "episode_reward_mean": summary.mean,
                "episode_reward_sd": summary.sd,
                "episode_reward_median": summary.median,
                "episode_reward_min": summary.min,
                "episode_reward_max": summary.max,
                "episode_length_mean": sum(game.length for game in games) / len(games),
                "n_cut_off": sum(game.cut_off for game in games),
                "seconds": time.monotonic() - start,
            }
            self._report(Evaluated(n_steps, figures, best, problem))
        except Exception:
            # A long run is worth more than one of its evaluations.
            self._report(EvaluationFailed(n_steps, traceback.format_exc()))

    def _save(self, snapshot: Snapshot) -> pathlib.Path:
        path = checkpoint.path_of(self._folder.best, snapshot.counts.steps)
        as_dict = dataclasses.asdict(self._params)
        self._folder.save(Checkpoint(path, self._subject, as_dict, snapshot))
        return path


def read_evaluations(path: pathlib.Path) -> dict[int, float]:
    """The mean score of each row of an evaluations.csv by its steps; a damaged row is left out."""
    means: dict[int, float] = {}
    try:
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            # Without quotes, of which we write none: a damaged byte that looks like one would take
            # in all that comes after.
            for row in csv.DictReader(file, quoting=csv.QUOTE_NONE):
                with contextlib.suppress(KeyError, TypeError, ValueError):
                    means[int(row["steps"])] = float(row["episode_reward_mean"])
    except (FileNotFoundError, csv.Error):  # the latter: a line that is longer than any of ours
        pass
    return means
