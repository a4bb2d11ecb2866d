"""Ray Tune runs the trials: it finds cores for them on all machines, tries again those that fail,
and stops early those that fall behind. Everything else is in their folders.

Tune's own notes would let it restore a sweep, but they are pickles, which run code when they are
read, and the run folders say the same. So they are deleted.
"""

import contextlib
import json
import math
import pathlib
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from a3c.machine.stopping import StopFlag
from a3c.machine.words import BadInput, one_line
from a3c.sweep import plan as plans
from a3c.sweep import trial as trials
from a3c.sweep.board import Board
from a3c.sweep.folder import (
    EARLY,
    FAILED,
    FINISHED,
    RUNNING,
    STOPPED,
    WAITING,
    SweepFolder,
)
from a3c.sweep.plan import Plan, Trial

NOTES = "tune"


def check_cores(ray: Any, plan: Plan) -> None:
    """BadInput where no machine has the cores of a trial."""
    most = max(
        (node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]), default=0
    )
    if most < plan.cores:
        raise BadInput(f"a trial takes {plan.cores} cores, but no machine has more than {most:g}")


def run(folder: SweepFolder, todo: Sequence[Trial], board: Board, stop: StopFlag) -> None:
    """Run the trials until they end or `stop` is set; the board knows how they ended."""
    from ray import tune

    plan, notes = folder.plan, folder.path / NOTES
    shutil.rmtree(notes, ignore_errors=True)
    of = {plans.to_json(plan._replace(trials=[trial])): trial for trial in todo}
    place = {"folder": str(folder.path.absolute())}
    stopped = [text for text, trial in of.items() if board.states[trial.name] == EARLY]
    try:
        tune.run(
            run_trial,
            config=place | {"stopped": json.dumps(stopped), "trial": tune.grid_search(list(of))},
            resources_per_trial={"cpu": plan.cores},
            scheduler=_scheduler_of(plan),
            max_failures=plan.max_failures,
            stop=_stopper(stop),
            callbacks=[_watcher(of, board, stop)],
            storage_path=place["folder"],
            name=NOTES,
            trial_dirname_creator=lambda trial: trial.trial_id,
            verbose=0,
            raise_on_failed_trial=False,
        )
    finally:
        shutil.rmtree(notes, ignore_errors=True)


def run_trial(config: Mapping[str, str]) -> None:
    """What Tune calls in a process on the trial's machine."""
    from ray import tune

    plan = plans.from_json(config["trial"])
    (trial,) = plan.trials
    folder = pathlib.Path(config["folder"]) / trial.name
    is_stopped = config["trial"] in json.loads(config["stopped"])
    for rows, is_done in trials.run(plan, trial, folder, is_stopped):
        for steps, value in rows:
            tune.report({"steps": steps, "metric": value, "is_finished": is_done})
        tune.report({"is_finished": is_done})  # between two reports, Tune can stop the trial
    tune.report({"is_finished": is_done, "has_ended": True})


def _scheduler_of(plan: Plan) -> Any:
    from ray.tune import schedulers

    n_steps = plans.n_steps_of(plan, plan.trials[0])
    grace = plan.grace_steps or max(1, n_steps // 10)
    by: dict[str, Any] = {"time_attr": "steps", "metric": "metric", "mode": "max"}
    if plan.early_stopping == "asha":
        # A trial ends by itself: after its last row, it still has an evaluation to finish.
        by |= {"max_t": n_steps, "stop_last_trials": False}
        return schedulers.ASHAScheduler(**by, grace_period=grace)
    if plan.early_stopping == "median":

        class Median(schedulers.MedianStoppingRule):
            def on_trial_complete(self, *_: Any) -> None:
                """The last report, that the trial is alive, has no steps to compare."""

        # Without pauses, in which trials take turns: each would restart train.py.
        return Median(**by, grace_period=grace, min_time_slice=math.inf)
    return None


def _stopper(stop: StopFlag) -> Any:
    """Ends the sweep once `stop` is set."""
    from ray import tune

    class Stopper(tune.Stopper):
        def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
            return False

        def stop_all(self) -> bool:
            return stop.is_set()

    return Stopper()


def _watcher(of: Mapping[str, Trial], board: Board, stop: StopFlag) -> Any:
    """Tells the board what becomes of the trials."""
    from ray import tune

    def was_early(trial: Any) -> bool:
        """Whether it was stopped early before, and only tells its rows to Tune again."""
        return board.states[of[trial.config["trial"]].name] == EARLY

    class Watcher(tune.Callback):
        def on_step_end(self, **info: Any) -> None:
            board.show()

        def on_trial_start(self, trial: Any, **info: Any) -> None:
            if not was_early(trial):
                board.set(of[trial.config["trial"]], RUNNING)

        def on_trial_recover(self, trial: Any, **info: Any) -> None:
            board.set(of[trial.config["trial"]], WAITING)
            self._tell(trial, "is tried again")

        def on_trial_error(self, trial: Any, **info: Any) -> None:
            board.set(of[trial.config["trial"]], FAILED)
            self._tell(trial, "failed for good")

        def on_trial_complete(self, trial: Any, **info: Any) -> None:
            one = of[trial.config["trial"]]
            if was_early(trial):
                return
            if trial.last_result.get("is_finished"):
                board.set(one, FINISHED)
            else:
                # A trial with --stop_after_hours may end by itself before it is finished.
                is_stopped = stop.is_set() or trial.last_result.get("has_ended")
                board.set(one, STOPPED if is_stopped else EARLY)

        def _tell(self, trial: Any, what: str) -> None:
            with contextlib.suppress(OSError):
                why = pathlib.Path(trial.error_file).read_text(errors="replace").strip()
                why = one_line(why.splitlines()[-1].rpartition("TrialFailed: ")[2], 300)
                board.say(f"{of[trial.config['trial']].name} {what}: {why}")

    return Watcher()
