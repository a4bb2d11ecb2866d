"""Real runs of train.py, in this process, with everything recorded that an update depends on.

What is recorded is what passes between a worker and its environments, and what the checkpoints
before the first update and at the end hold. Whoever judges a run by these two (pinned weights, the
oracle) knows nothing of what lies between them, and needs no change when that is rewritten.

The worker's thread collects, as with --debug, since nothing would pass otherwise. That processes collect
the same, bit for bit, is what `process_collector_test` and `debug_dump_test` show.
"""

import contextlib
import io
import pathlib
from collections.abc import Callable, Sequence
from typing import NamedTuple
from unittest import mock

import numpy as np

import train
from a3c import contract
from a3c.agent import network, process_collector
from a3c.envs.pool import Pool
from a3c.machine import tensorflow_process
from a3c.run import start, training
from a3c.settings.params import Params
from a3c.store import checkpoint, run_folder
from tests.tools import processes

Arrays = dict[str, np.ndarray]


class Step(NamedTuple):
    """One step of K environments; `seen` is what the next action is chosen by."""

    actions: np.ndarray  # (K,)
    rewards: np.ndarray  # (K,)
    terminated: np.ndarray  # (K,)
    truncated: np.ndarray  # (K,)
    seen: np.ndarray  # (K, ...)
    last: dict[int, np.ndarray]  # of an episode that was truncated: its true last observation


class Run(NamedTuple):
    """One worker's run."""

    params: Params
    first_seen: np.ndarray  # (K, ...)
    steps: list[Step]
    start: dict[str, Arrays]  # "weights" and "mean_squares" before the first update
    end: dict[str, Arrays]

    def seen(self) -> np.ndarray:
        """Every observation that the worker saw: (n_steps + 1, K, ...)."""
        return np.stack([self.first_seen, *(step.seen for step in self.steps)])

    def change(self, part: str) -> Arrays:
        """By how much each array moved, in float64."""
        start, end = self.start[part], self.end[part]
        return {name: end[name].astype(np.float64) - start[name] for name in start}


def record(
    arguments: Sequence[str],
    folder: pathlib.Path,
    *,
    change_initial_weights: Callable[[Arrays], Arrays] = lambda weights: weights,
    change_params: Callable[[Params], Params] = lambda params: params,
) -> Run:
    """Run train.py with one worker, to its end, with `folder`/run as its run folder.

    `change_params` may make of its parameters what train.py refuses.
    """
    steps: list[Step] = []
    first_seen: list[np.ndarray] = []
    draw, train_ = network.initial_weights, training.train

    class Recorder(Pool):
        def reset(self, slot: int = 0) -> None:
            super().reset(slot)
            first_seen.append(self.observations[slot].copy())

        def step(self, actions: np.ndarray, slot: int) -> contract.Step:
            result = super().step(actions, slot)
            cut_off = np.flatnonzero(result.truncated).tolist()
            steps.append(
                Step(
                    actions.copy(),
                    result.rewards.copy(),
                    result.terminated.copy(),
                    result.truncated.copy(),
                    self.observations[slot].copy(),
                    {k: self.final_observations[k].copy() for k in cut_off},
                )
            )
            return result

    run = folder / "run"
    said = io.StringIO()
    with (
        mock.patch.object(start, "Pool", Recorder),
        mock.patch.object(process_collector, "collecting", return_value=None),
        mock.patch.object(network, "initial_weights", lambda *a: change_initial_weights(draw(*a))),
        mock.patch.object(training, "train", lambda p, *a: train_(change_params(p), *a)),
        # Only a process that has not used TensorFlow yet can configure it.
        mock.patch.object(tensorflow_process, "start_tensorflow", return_value=None),
        processes.handlers_kept(),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
    ):
        status = train.main(["--log_dir", str(run), *arguments])
    assert status == 0, said.getvalue()
    (first,) = first_seen
    return Run(
        change_params(run_folder.read_args(run).parsed.params),
        first,
        steps,
        _arrays(checkpoint.path_of(run / "checkpoints", 0)),
        _arrays(checkpoint.find(run)),
    )


def _arrays(path: pathlib.Path) -> dict[str, Arrays]:
    snapshot = checkpoint.read(path).snapshot
    return {
        part: dict(sorted(getattr(snapshot, part).items())) for part in ("weights", "mean_squares")
    }
