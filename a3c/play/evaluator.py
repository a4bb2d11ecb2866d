"""Evaluates the policy while it trains, and keeps the best weights so far.

When training passes a multiple of --eval_interval_steps, the shared weights are copied while the
gate is shut, as for a checkpoint, and a thread plays games with the copy, one at a time. This takes
as much computing time as one more worker, and does not change the result of training by a bit.

All evaluations of a run play the same games, those of the run's seed, so only the policy makes their
scores differ, and `run_checkpoint.py` can repeat them. The best weights were chosen by these games;
expect a slightly lower score with another seed.
"""

import math
import pathlib
import threading
import time
import traceback
from collections.abc import Callable
from typing import NamedTuple

from a3c.agent.shared import SharedState
from a3c.contract import Snapshot, Subject
from a3c.machine.stopping import StopFlag, kept_from_new_threads
from a3c.machine.words import BadInput
from a3c.play import evaluation
from a3c.play.agent import Agent
from a3c.settings.params import Params, as_in_json
from a3c.store import checkpoint, reading
from a3c.store.checkpoint import Checkpoint
from a3c.store.run_folder import EVALUATIONS, RunFolder

LOOK_INTERVAL_SECONDS = 0.2
SHOWN = ("mean", "sd", "median", "min", "max")  # of an evaluation's summary


class Evaluated(NamedTuple):
    """The result of an evaluation."""

    n_steps: int  # of the run, when its weights were copied
    figures: dict[str, float]
    best: pathlib.Path | None  # where the weights were saved, if they are the run's best so far
    problem: str | None = None  # why they could not be saved


class EvaluationFailed(NamedTuple):
    """An evaluation that failed."""

    n_steps: int
    traceback: str


class Evaluator:
    """Starts evaluations and waits for them. Only the main thread calls it."""

    def __init__(
        self,
        params: Params,
        subject: Subject,
        shared: SharedState,
        folder: RunFolder,
        report: Callable[[Evaluated | EvaluationFailed], None],
    ) -> None:
        """In a resumed run, the best mean so far and the last evaluation's step come from its folder."""
        assert params.eval_interval_steps is not None
        self._params, self._interval = params, params.eval_interval_steps
        self._subject, self._shared, self._folder, self._report = subject, shared, folder, report
        means = read_evaluations(folder.path)
        # A run with the weights of another begins beyond multiples that are none of its own.
        first_step = 0 if params.load_ckpt is None else shared.counters.read().steps
        self._n_steps_at_last = max(means, default=first_step)
        if means:  # the run may have been killed between saving a best one and writing its score
            checkpoint.take_away_newer(folder.best, max(means))
        # A score counts as the best only while its checkpoint is there.
        self._best_mean = means.get(max(checkpoint.numbered(folder.best), default=-1))
        self._agent = Agent(subject)
        self._stop = StopFlag()
        self._thread: threading.Thread | None = None

    def begin_if_due(self) -> bool:
        """Start an evaluation if training has passed a multiple of the interval; True if so."""
        n_steps = self._shared.counters.read().steps
        if self._is_busy() or n_steps // self._interval == self._n_steps_at_last // self._interval:
            return False
        snapshot, _ = self._shared.snapshot(lambda: None)
        self._n_steps_at_last = snapshot.counts.steps
        self._thread = threading.Thread(target=self._evaluate, args=(snapshot,), name="evaluation")
        try:
            with kept_from_new_threads():
                self._thread.start()
        except RuntimeError:  # the system refuses more threads
            self._thread = None
            self._report(EvaluationFailed(snapshot.counts.steps, traceback.format_exc()))
        return True

    def _is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def finish(self, is_stopped: Callable[[], bool]) -> None:
        """Complete the evaluations that are under way or due, unless the run is stopped meanwhile."""
        while not is_stopped() and (self._is_busy() or self.begin_if_due()):
            if self._thread is not None:
                self._thread.join(LOOK_INTERVAL_SECONDS)
        self.close()

    def close(self) -> None:
        """Abandon the evaluation under way, and wait until its thread has ended."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _evaluate(self, snapshot: Snapshot) -> None:
        n_steps = snapshot.counts.steps
        try:
            start = time.monotonic()
            self._agent.take(snapshot)
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
                path = checkpoint.path_of(self._folder.best, n_steps)
                settings = as_in_json(self._params)
                try:
                    self._folder.save(Checkpoint(path, self._subject, settings, snapshot))
                    best, self._best_mean = path, summary.mean
                except OSError as error:
                    problem = f"it cannot be saved: {error.strerror or error}"
            figures = {
                **{f"episode_reward_{name}": getattr(summary, name) for name in SHOWN},
                "episode_length_mean": sum(game.length for game in games) / len(games),
                "n_cut_off": sum(game.cut_off for game in games),
                "seconds": time.monotonic() - start,
            }
            self._report(Evaluated(n_steps, figures, best, problem))
        except Exception:  # a failed evaluation must not end a long run
            self._report(EvaluationFailed(n_steps, traceback.format_exc()))


def read_evaluations(folder: pathlib.Path) -> dict[int, float]:
    """Return the mean score of each row of evaluations.csv by its steps, without damaged rows."""
    try:
        columns = reading.read_progress(folder, EVALUATIONS).columns
        rows = zip(columns["steps"], columns["episode_reward_mean"], strict=True)
    except (BadInput, KeyError):  # there is no such file yet, or its head is damaged
        return {}
    return {int(steps): float(mean) for steps, mean in rows if math.isfinite(steps)}
