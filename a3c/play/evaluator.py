"""Evaluations while training: of one moment's weights, in a thread of their own; the best stays.

An evaluation begins when training passes a multiple of --eval_interval_steps and none is under way.
What it needs of the shared state is copied in one go while the gate is shut, as for a checkpoint,
and from then on it shares nothing with the workers but the machine: training's result does not
change by a bit. It plays one game at a time, as much work as one more worker that does not learn.

All evaluations of a run play the same games (those of the run's seed), so that their scores differ
by the policy alone, and `run_checkpoint.py` plays them again. The best was chosen by these games:
with another seed it will do a little worse.
"""

import csv
import pathlib
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from a3c.agent.shared import Counters, SharedState
from a3c.machine.stopping import StopFlag, kept_from_new_threads
from a3c.play import evaluation
from a3c.store import checkpoint_files
from a3c.store.checkpoint import CannotSave, Checkpointer
from a3c.store.checkpoint_files import Subject

CSV = "evaluations.csv"
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
        subject: Subject,
        params: Mapping[str, Any],
        shared: SharedState,
        folder: pathlib.Path,
        report: Callable[[Evaluated | EvaluationFailed], None],
        is_taken_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """`folder` is the run's; if it has evaluations already, the best of them is to be beaten, and
        one that is due since the last of them is made up for.
        """
        self._shared = shared
        self._report = report
        self._seed, self._n_games = params["seed"], params["eval_episodes"]
        self._interval = params["eval_interval_steps"]
        self._timeout_seconds = params["env_timeout_seconds"]
        best_mean, n_steps_at_last = read_evaluations(folder / CSV)
        now = shared.counters.read().steps
        self._n_steps_at_last = now if n_steps_at_last is None else n_steps_at_last
        self._best_folder = folder / "checkpoints" / checkpoint_files.BEST
        # What is not there any more is not to be beaten.
        self._best_mean = best_mean if any(self._best_folder.glob("ckpt-*.json")) else None
        # What the weights and statistics of one moment are copied to.
        self._frozen = SharedState(
            {name: variable.numpy() for name, variable in shared.weights.items()},
            rmsprop_initial=0.0,
            rmsprop_decay=0.0,
            rmsprop_epsilon=0.0,
            max_grad_norm=0.0,
            counters=Counters(0),
        )
        self._checkpointer = Checkpointer(
            self._best_folder,
            self._frozen,
            subject,
            params,
            n_kept=None,
            is_taken_over=is_taken_over,
        )
        self._policy = evaluation.Policy(subject, weights=self._frozen.weights)
        self._settings = evaluation.settings_of(subject, self._seed)
        self._stop = StopFlag()
        self._thread: threading.Thread | None = None

    def begin_if_due(self) -> bool:
        """Begin an evaluation if training has passed a multiple of the interval; True if so."""
        n_steps = self._shared.counters.read().steps
        is_busy = self._thread is not None and self._thread.is_alive()
        if is_busy or n_steps // self._interval == self._n_steps_at_last // self._interval:
            return False
        with self._shared.gate.shut():
            counts = self._shared.counters.read()
            for part in ("weights", "mean_squares"):
                for name, variable in getattr(self._shared, part).items():
                    getattr(self._frozen, part)[name].assign(variable)
        self._frozen.counters = Counters(counts.steps, counts)
        self._n_steps_at_last = counts.steps
        self._thread = threading.Thread(
            target=self._evaluate, args=(counts.steps,), name="evaluation"
        )
        try:
            with kept_from_new_threads():
                self._thread.start()
        except RuntimeError:  # the system has no thread to give
            self._thread = None
            self._report(EvaluationFailed(counts.steps, traceback.format_exc()))
        return True

    def forget(self, n_steps: int) -> None:
        """Delete what was the best before the one that it was at so many steps.

        A run that is killed goes on from a checkpoint, with what was its best by then.
        """
        checkpoint_files.delete_older(self._best_folder, n_steps)

    def finish(self, is_stopped: Callable[[], bool]) -> None:
        """Bring those to their end that are due, unless stopped meanwhile."""
        while not is_stopped():
            if not self.begin_if_due() and (self._thread is None or not self._thread.is_alive()):
                break
            if self._thread is not None:
                self._thread.join(LOOK_INTERVAL_SECONDS)
        self.stop()

    def stop(self) -> None:
        """Give up the evaluation under way, which counts for nothing then, and wait for that."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _evaluate(self, n_steps: int) -> None:
        try:
            start = time.monotonic()
            games = []
            for number in range(self._n_games):
                game = evaluation.play(
                    self._policy, self._settings, number, self._stop, self._timeout_seconds
                )
                if game is None:
                    return
                games.append(game)
            summary = evaluation.summarise(self._settings.env_id, games)
            best = problem = None
            if self._best_mean is None or summary.mean > self._best_mean:
                try:
                    best, self._best_mean = self._checkpointer.save(), summary.mean
                except CannotSave as error:
                    problem = str(error)
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


def read_evaluations(path: pathlib.Path) -> tuple[float | None, int | None]:
    """The best mean score of an evaluations.csv, and the steps of its last row; None of none."""
    means, n_steps = [], None
    try:
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            # Without quotes, of which we write none: a damaged byte that looks like one would take
            # in all that comes after.
            for row in csv.DictReader(file, quoting=csv.QUOTE_NONE):
                try:
                    means.append(float(row["episode_reward_mean"]))
                    n_steps = int(row["steps"])
                except (KeyError, TypeError, ValueError):  # a row that was cut short
                    continue
    except FileNotFoundError:
        return None, None
    except csv.Error:  # a line that is longer than any of ours
        pass
    return max((mean for mean in means if mean == mean), default=None), n_steps
