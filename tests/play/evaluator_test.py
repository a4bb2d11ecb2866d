"""Evaluations while training: when they begin, of which weights, what is kept, and what never changes."""

import contextlib
import pathlib
import signal
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from a3c.agent.shared import Counters, Counts, SharedState
from a3c.machine.stopping import SIGNALS
from a3c.play import evaluation, evaluator
from a3c.play.evaluation import Game
from a3c.play.evaluator import Evaluated, EvaluationFailed, Evaluator
from a3c.store import checkpoint, checkpoint_files
from tests.tools.agents import CARTPOLE, make_weights

DEADLINE_SECONDS = 120.0
PARAMS = {"seed": 3, "eval_episodes": 2, "eval_interval_steps": 100, "env_timeout_seconds": 60.0}


class Training:
    """Shared state that a test moves on by hand, and the evaluations of it."""

    def __init__(
        self, folder: pathlib.Path, n_steps: int = 0, *, is_taken_over: bool = False
    ) -> None:
        self.folder = folder
        self.shared = SharedState(
            make_weights(CARTPOLE),
            rmsprop_initial=1.0,
            rmsprop_decay=0.99,
            rmsprop_epsilon=0.1,
            max_grad_norm=1.0,
            counters=Counters(10**9, Counts(n_steps, 0, 0, 0)),
        )
        self.reports: list[Evaluated | EvaluationFailed] = []
        self.evaluator = Evaluator(
            *(CARTPOLE, PARAMS, self.shared, folder, self.reports.append, lambda: is_taken_over)
        )

    def move_on(self, n_steps: int) -> None:
        """As an update does: other weights and statistics, marked by the steps."""
        counts = self.shared.counters.add_update(n_steps, n_steps, 0)
        for variable in (*self.shared.weights.values(), *self.shared.mean_squares.values()):
            variable.assign(tf.fill(variable.shape, np.float32(counts.steps)))

    def wait(self) -> None:
        """Until the evaluation under way is over."""
        self.evaluator._thread.join(DEADLINE_SECONDS)
        assert not self.evaluator._thread.is_alive()

    def evaluate(self) -> Evaluated:
        assert self.evaluator.begin_if_due()
        self.wait()
        return self.reports[-1]

    def best(self) -> checkpoint_files.Info:
        return checkpoint_files.read_info(checkpoint_files.find(self.folder / "checkpoints/best"))


@pytest.fixture
def scores(monkeypatch):
    """The scores of games to come, which nobody plays."""
    scores: list[float] = []

    def play(policy, settings, number, stop, timeout_seconds):
        return Game(number, scores.pop(0), 10, False)

    monkeypatch.setattr(evaluation, "play", play)
    return scores


def test_an_evaluation_is_due_at_each_multiple_of_the_interval(tmp_path, scores):
    """Analytic: the first look after it; steps that pass several at once make one."""
    training = Training(tmp_path)
    begun = []
    for n_steps in (99, 1, 50, 49, 1, 350, 49, 1):  # 99, 100, 150, 199, 200, 550, 599, 600
        scores[:] = [1.0, 1.0]
        training.move_on(n_steps)
        begun.append(training.evaluator.begin_if_due())
        if begun[-1]:
            training.wait()
    assert begun == [False, True, False, False, True, True, False, True]
    assert [report.n_steps for report in training.reports] == [100, 200, 550, 600]


def test_a_resumed_run_waits_for_its_next_multiple(tmp_path, scores):
    """Analytic: at 250 steps, 200 is past, and 300 the next."""
    training = Training(tmp_path, n_steps=250)
    assert not training.evaluator.begin_if_due()
    training.move_on(49)
    assert not training.evaluator.begin_if_due()
    scores[:] = [1.0, 1.0]
    training.move_on(1)
    assert training.evaluate().n_steps == 300


def test_games_are_played_where_no_signal_comes(tmp_path, monkeypatch):
    """Analytic: the thread computes; what would handle a signal there could damage what it uses."""
    blocked = []

    def play(policy, settings, number, stop, timeout_seconds):
        blocked.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        return Game(number, 1.0, 10, False)

    monkeypatch.setattr(evaluation, "play", play)
    training = Training(tmp_path)
    training.move_on(100)
    training.evaluate()
    assert [each >= set(SIGNALS) for each in blocked] == [True, True]


def test_figures_by_hand(tmp_path, scores):
    """Analytic: scores 1 and 4; sd of the sample √4.5."""
    training = Training(tmp_path)
    training.move_on(100)
    scores[:] = [1.0, 4.0]
    evaluated = training.evaluate()
    assert evaluated.figures.pop("seconds") >= 0
    assert evaluated == Evaluated(
        100,
        {
            "episode_reward_mean": 2.5,
            "episode_reward_sd": pytest.approx(4.5**0.5),
            "episode_reward_median": 2.5,
            "episode_reward_min": 1.0,
            "episode_reward_max": 4.0,
            "episode_length_mean": 10.0,
            "n_cut_off": 0,
        },
        tmp_path / "checkpoints/best/ckpt-100",
    )


def test_the_best_weights_stay(tmp_path, scores):
    """Golden: of means 2, 5, 5 and 3 the first 5, with statistics and counters of its moment."""
    training = Training(tmp_path)
    for mean, is_best in ((2.0, True), (5.0, True), (5.0, False), (3.0, False)):
        scores[:] = [mean - 1, mean + 1]
        training.move_on(100)
        assert (training.evaluate().best is not None) is is_best
    info = training.best()
    assert info.counters == Counts(200, 2, 0, 200)._asdict()
    assert info.subject == CARTPOLE
    assert info.params == PARAMS
    # That of 100 steps is the best to go on with from a checkpoint before 200.
    best = info.prefix.parent
    training.evaluator.forget(199)
    assert sorted(path.stem for path in best.glob("*.json")) == ["ckpt-100", "ckpt-200"]
    training.evaluator.forget(200)
    assert len(list(best.iterdir())) == 3
    restored = Training(tmp_path / "other").shared
    checkpoint.restore(info, restored)
    for variable in (*restored.weights.values(), *restored.mean_squares.values()):
        np.testing.assert_array_equal(variable, np.full(variable.shape, 200, np.float32))


def test_the_weights_are_those_of_one_moment(tmp_path, monkeypatch):
    """Analytic: training goes on under the evaluation, which sees nothing of it."""
    training = Training(tmp_path)
    has_begun, may_go_on, seen = threading.Event(), threading.Event(), []

    def play(policy, settings, number, stop, timeout_seconds):
        has_begun.set()
        assert may_go_on.wait(DEADLINE_SECONDS)
        seen.append({name: variable.numpy() for name, variable in policy.weights.items()})
        return Game(number, 1.0, 10, False)

    monkeypatch.setattr(evaluation, "play", play)
    training.move_on(100)
    assert training.evaluator.begin_if_due()
    assert has_begun.wait(DEADLINE_SECONDS)
    training.move_on(250)
    assert not training.evaluator.begin_if_due()  # one at a time
    may_go_on.set()
    training.wait()
    for weights in seen:
        for name, array in weights.items():
            np.testing.assert_array_equal(array, np.full(array.shape, 100), err_msg=name)
    assert len(seen) == 2
    assert training.best().counters["steps"] == 100
    assert training.evaluate().n_steps == 350


def test_the_moment_is_one_while_the_gate_is_shut(tmp_path, scores, monkeypatch):
    """Analytic: one update slips in before it shuts and one after it opens; the first counts."""
    training = Training(tmp_path)

    @contextlib.contextmanager
    def shut():
        training.move_on(7)
        yield
        training.move_on(20)

    monkeypatch.setattr(training.shared.gate, "shut", shut)
    training.move_on(100)
    scores[:] = [1.0, 1.0]
    assert training.evaluate().n_steps == 107
    info = training.best()
    assert info.counters["steps"] == 107
    restored = Training(tmp_path / "other").shared
    checkpoint.restore(info, restored)
    for variable in (*restored.weights.values(), *restored.mean_squares.values()):
        np.testing.assert_array_equal(variable, np.full(variable.shape, 107, np.float32))


def test_a_failed_evaluation_is_told_and_the_next_one_tried(tmp_path, scores, monkeypatch):
    """Analytic: a long run is worth more than one of its evaluations."""
    training = Training(tmp_path)
    training.move_on(100)
    report = training.evaluate()  # there are no scores
    assert isinstance(report, EvaluationFailed)
    assert report.n_steps == 100
    assert "IndexError" in report.traceback
    scores[:] = [1.0, 1.0]
    training.move_on(100)
    assert isinstance(training.evaluate(), Evaluated)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_run_ends_with_its_last_evaluation_unless_stopped(tmp_path, monkeypatch, is_stopped):
    """Analytic: what is under way is finished and what is due is begun, or all is given up."""
    training = Training(tmp_path)
    has_begun = threading.Event()

    def play(policy, settings, number, stop, timeout_seconds):
        has_begun.set()
        deadline = time.monotonic() + DEADLINE_SECONDS
        while is_stopped and not stop.is_set():
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return None if is_stopped else Game(number, 1.0, 10, False)

    monkeypatch.setattr(evaluation, "play", play)
    training.move_on(100)
    assert training.evaluator.begin_if_due()
    assert has_begun.wait(DEADLINE_SECONDS)
    training.move_on(100)
    training.evaluator.finish(lambda: is_stopped)
    assert not training.evaluator._thread.is_alive()
    assert [report.n_steps for report in training.reports] == ([] if is_stopped else [100, 200])


def test_a_resumed_run_has_a_best_to_beat(tmp_path, scores):
    """Golden: it stands in evaluations.csv; a row that was cut short counts for nothing."""
    (tmp_path / "evaluations.csv").write_text(
        "steps,episode_reward_mean,seconds\n100,3.5,1\n200,nan,1\n300,7.25,2\n400,5,2\n500\n600,x"
    )
    assert evaluator.read_evaluations(tmp_path / "evaluations.csv") == (7.25, 400)
    assert evaluator.read_evaluations(tmp_path / "nothing.csv") == (None, None)
    training = Training(tmp_path, n_steps=300)
    training.evaluator._checkpointer.save()
    training = Training(tmp_path, n_steps=650)
    for score, is_best in ((7.25, False), (7.5, True)):
        training.move_on(100)
        scores[:] = [score] * 2
        assert (training.evaluate().best is not None) is is_best


@pytest.mark.parametrize(
    ("damage", "found"),
    [('"00', (7.5, 400)), ("2" * 200_000, (3.5, 100))],
    ids=["quote", "endless"],
)
def test_a_damaged_evaluation_takes_no_other_with_it(tmp_path, damage, found):
    """Golden: a byte that has become a quote, behind which a reader of CSV sees one field; and a line
    that no reader takes, behind which nothing is read.
    """
    table = tmp_path / "evaluations.csv"
    table.write_text(f"steps,episode_reward_mean\n100,3.5\n{damage},7.5\n300,4.5\n400,5.0\n")
    assert evaluator.read_evaluations(table) == found


def test_a_best_that_is_gone_is_not_to_be_beaten(tmp_path, scores):
    """Golden: where evaluations.csv knows of one, but its checkpoint is lost."""
    (tmp_path / "evaluations.csv").write_text("steps,episode_reward_mean\n100,3.5\n")
    training = Training(tmp_path, n_steps=150)
    training.move_on(50)
    scores[:] = [1.0, 1.0]
    assert training.evaluate().best == tmp_path / "checkpoints/best/ckpt-200"


def test_an_evaluation_that_was_given_up_is_made_up_for(tmp_path, scores):
    """Analytic: the last one was at 200; a run that goes on from 310 evaluates at once, one from 290 not."""
    (tmp_path / "evaluations.csv").write_text("steps,episode_reward_mean\n100,3.5\n200,3\n")
    assert not Training(tmp_path, n_steps=290).evaluator.begin_if_due()
    scores[:] = [1.0, 1.0]
    assert Training(tmp_path, n_steps=310).evaluate().n_steps == 310


def test_a_best_that_cannot_be_saved_is_told_and_its_figures_are_kept(
    tmp_path, scores, monkeypatch
):
    """Analytic: on a full disk, in a line and not as a failure; the next one as good is saved."""
    training = Training(tmp_path)

    def fail(*_: object) -> None:
        raise checkpoint.CannotSave("cannot save best/ckpt-100: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.Checkpointer, "save", fail)
        training.move_on(100)
        scores[:] = [1.0, 4.0]
        evaluated = training.evaluate()
    assert evaluated.problem == "cannot save best/ckpt-100: No space left on device"
    assert evaluated.best is None
    assert evaluated.figures["episode_reward_mean"] == 2.5
    training.move_on(100)
    scores[:] = [1.0, 4.0]
    assert training.evaluate().best == tmp_path / "checkpoints/best/ckpt-200"


def test_the_best_is_not_saved_where_another_run_has_its_folder(tmp_path, scores):
    """Analytic: its figures are told all the same."""
    training = Training(tmp_path, is_taken_over=True)
    scores.extend([1.0, 3.0])
    training.move_on(100)
    evaluated = training.evaluate()
    assert evaluated.figures["episode_reward_mean"] == 2.0
    assert evaluated.best is None
    assert "another run has its folder there" in evaluated.problem
    assert not list(tmp_path.rglob("ckpt-*"))


def test_run_checkpoint_plays_the_same_games(tmp_path):
    """Golden: an evaluation's scores, by the best checkpoint and the run's seed alone."""
    training = Training(tmp_path)
    training.shared.counters.add_update(100, 100, 0)
    evaluated = training.evaluate()
    info = training.best()
    settings = evaluation.settings_of(info.subject, PARAMS["seed"])
    games = list(evaluation.play_many(evaluation.load_policy(info), settings, 2, 2))
    summary = evaluation.summarise(info.subject.env_id, games)
    assert summary.mean == evaluated.figures["episode_reward_mean"]
    assert summary.max == evaluated.figures["episode_reward_max"]
