"""A worker that fails: what it leaves behind, what is reported, and that no worker learns after it."""

import math

import numpy as np
import pytest
import tensorflow as tf

from a3c.agent import learner
from a3c.agent.worker import Failure
from a3c.run import watch
from a3c.store.run_folder import RunFolder
from tests.tools.agents import make_folder
from tests.tools.crews import Crew, assert_same_weights, make_shared, numpy_weights
from tests.tools.fakes import NumberedEnvs


class Rewarding(NumberedEnvs):
    """Pays what `pay` says for its n-th step."""

    def __init__(self, pay: dict[int, float]) -> None:
        super().__init__(4, 1)
        self._pay = pay

    def step(self, actions, slot):
        n = self.n_steps
        step = super().step(actions, slot)
        return step._replace(rewards=np.full(1, self._pay.get(n, 0.0), np.float32))


def run_and_fail(pay: dict[int, float]) -> tuple[Crew, Failure]:
    """One worker that learns from rollouts of 3 steps until it fails."""
    crew = Crew(make_shared(300), [Rewarding(pay)])
    crew.run()
    (failed,) = crew.of_kind(Failure)
    return crew, failed


def leave(folder: RunFolder, failed: Failure) -> dict[str, np.ndarray]:
    """Write a failure to the folder; returns the content of rollout.npz."""
    where = folder.leave_failure(failed.traceback, failed.arrays)
    place = folder.path / "failure"
    assert where == f"see {place}/traceback.txt, and numpy.load('{place}/rollout.npz')"
    with np.load(place / "rollout.npz", allow_pickle=False) as kept:
        return dict(kept)


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_what_is_not_finite_is_not_applied_and_is_kept(tmp_path, reward):
    """Analytic: after two good updates and a poisoned one, weights and counts are those of two."""
    crew, failed = run_and_fail({7: reward})
    good = Crew(make_shared(6), [Rewarding({})])
    good.run()
    assert_same_weights(numpy_weights(crew.shared.weights), numpy_weights(good.shared.weights))
    for name, variable in good.shared.mean_squares.items():
        np.testing.assert_array_equal(crew.shared.mean_squares[name], variable, err_msg=name)
    assert crew.shared.counters.read() == good.shared.counters.read()
    assert watch.in_one_line(failed.error) in ("loss not finite", "gradient not finite")
    kept = leave(make_folder(tmp_path / "run"), failed)
    np.testing.assert_array_equal(kept["rewards"][:, 0], np.float32([0, reward, 0]))
    assert kept["n_steps_collected"] == 3
    assert kept["observations"].shape == (4, 1, 3)
    for name, weights in numpy_weights(good.shared.weights).items():
        np.testing.assert_array_equal(kept[f"weights/{name}"], weights)
    assert "Traceback" in (tmp_path / "run/failure/traceback.txt").read_text()


def test_a_loss_that_is_not_finite_is_enough(monkeypatch):
    """Analytic: an infinity that is added to the loss and not to gradients stops the first update."""
    original = learner.losses.a3c_losses

    def poisoned(*arguments, **options):
        result = original(*arguments, **options)
        return result._replace(combined=result.combined + tf.constant(math.inf))

    monkeypatch.setattr(learner.losses, "a3c_losses", poisoned)
    crew, failed = run_and_fail({})
    assert watch.in_one_line(failed.error) == "loss not finite"
    assert "loss not finite : Tensor had Inf values" in failed.traceback
    assert crew.shared.counters.read().updates == 0
    assert_same_weights(numpy_weights(crew.shared.weights), numpy_weights(make_shared(1).weights))


@pytest.mark.parametrize("where", ["learning", "playing"])
def test_nobody_learns_after_a_failure(where):
    """Analytic: the others are stopped before the failed worker leaves the gate or reports."""
    stopped: list[tuple[str, bool]] = []

    def fail(n: int) -> None:
        if n == 4 and where == "playing":
            raise RuntimeError("the joystick broke")

    envs = Rewarding({4: math.nan}) if where == "learning" else NumberedEnvs(4, 1, on_step=fail)
    crew = Crew(make_shared(300), [envs])
    gate = crew.shared.gate

    class Watched:
        def __enter__(self):
            return gate.__enter__()

        def __exit__(self, *error):
            stopped.append(("gate", crew.stop.is_set()))
            return gate.__exit__(*error)

    def report(what):
        stopped.append((type(what).__name__, crew.stop.is_set()))

    crew.shared.gate = Watched()
    crew.workers[0]._report = report
    crew.run()
    second = [("gate", True)] if where == "learning" else []
    assert stopped == [("gate", False), *second, ("Failure", True)]


@pytest.mark.parametrize(("n_steps", "n_collected"), [(3, 0), (5, 2)])
def test_a_failure_while_playing_is_kept_as_far_as_it_came(tmp_path, n_steps, n_collected):
    """Analytic: at the first step of the second rollout, or at its third."""

    def fail(n: int) -> None:
        if n == n_steps:
            raise RuntimeError("the joystick broke\nin\ntwo")

    crew = Crew(make_shared(300), [NumberedEnvs(4, 1, on_step=fail)])
    crew.run()
    (failed,) = crew.of_kind(Failure)
    assert watch.in_one_line(failed.error) == "RuntimeError: the joystick broke … two"
    assert leave(make_folder(tmp_path / "run"), failed)["n_steps_collected"] == n_collected


def test_a_failure_before_the_first_rollout_is_kept_as_of_no_step(tmp_path, monkeypatch):
    """Analytic: nothing was played."""
    crew = Crew(make_shared(300), [NumberedEnvs(4, 1)])
    monkeypatch.setattr(crew.shared.counters, "reserve", None)
    crew.run()
    (failed,) = crew.of_kind(Failure)
    assert leave(make_folder(tmp_path / "run"), failed)["n_steps_collected"] == 0


def test_a_run_that_fails_once_more_leaves_the_last_failure(tmp_path):
    """Analytic: as after a resumption; it replaces the first one."""
    folder = make_folder(tmp_path / "run")
    for word in ("first", "second"):
        folder.leave_failure(f"Traceback of the {word}\n", {word: np.zeros(1)})
    assert "second" in (folder.path / "failure/traceback.txt").read_text()
    assert np.load(folder.path / "failure/rollout.npz").files == ["second"]
