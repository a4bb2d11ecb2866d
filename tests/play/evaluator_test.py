"""Evaluations while training: when they begin, of which weights, what is kept, and what never changes."""

import contextlib
import dataclasses
import signal
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from a3c.agent.shared import SharedState
from a3c.contract import Counts, Snapshot
from a3c.machine.stopping import SIGNALS
from a3c.play import agent, evaluation, evaluator
from a3c.play.agent import Agent
from a3c.play.evaluation import Played
from a3c.play.evaluator import Evaluated, EvaluationFailed, Evaluator
from a3c.settings.params import Params
from a3c.store import checkpoint
from a3c.store.checkpoint import Checkpoint
from a3c.store.run_folder import RunFolder
from tests.tools.agents import CARTPOLE, make_folder, make_weights

DEADLINE_SECONDS = 120.0
PARAMS = Params(CARTPOLE.env_id, seed=3, eval_episodes=2, eval_interval_steps=100)


@pytest.fixture
def folder(tmp_path):
    return make_folder(tmp_path / "run")


class Training:
    """Shared state that a test moves on by hand, and the evaluations of it."""

    def __init__(self, folder: RunFolder, n_steps: int = 0) -> None:
        self.folder = folder
        self.shared = SharedState(make_weights(CARTPOLE), PARAMS, Counts(n_steps))
        self.reports: list[Evaluated | EvaluationFailed] = []
        self.evaluator = Evaluator(PARAMS, CARTPOLE, self.shared, folder, self.reports.append)

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

    def best(self) -> Checkpoint:
        return checkpoint.read(checkpoint.find(self.folder.best))


def assert_marked(snapshot: Snapshot, n_steps: int) -> None:
    """It holds what `move_on` made of everything at that moment."""
    assert snapshot.counts.steps == n_steps
    for part in (snapshot.weights, snapshot.mean_squares):
        assert len(part) == 12
        for name, array in part.items():
            np.testing.assert_array_equal(array, np.full_like(array, n_steps), err_msg=name)


@pytest.fixture
def scores(monkeypatch):
    """The scores of games to come, which nobody plays."""
    scores: list[float] = []

    def play(agent, params, number, stop, timeout_seconds):
        return Played(number, scores.pop(0), 10, False)

    monkeypatch.setattr(evaluation, "play", play)
    return scores


def test_an_evaluation_is_due_at_each_multiple_of_the_interval(folder, scores):
    """Analytic: the first look after it; steps that pass several at once make one."""
    training = Training(folder)
    begun = []
    for n_steps in (99, 1, 50, 49, 1, 350, 49, 1):  # 99, 100, 150, 199, 200, 550, 599, 600
        scores[:] = [1.0, 1.0]
        training.move_on(n_steps)
        begun.append(training.evaluator.begin_if_due())
        if begun[-1]:
            training.wait()
    assert begun == [False, True, False, False, True, True, False, True]
    assert [report.n_steps for report in training.reports] == [100, 200, 550, 600]


def test_a_resumed_run_waits_for_its_next_multiple(folder, scores):
    """Analytic: at 250 steps, 200 is past, and 300 the next."""
    training = Training(folder, n_steps=250)
    assert not training.evaluator.begin_if_due()
    training.move_on(49)
    assert not training.evaluator.begin_if_due()
    scores[:] = [1.0, 1.0]
    training.move_on(1)
    assert training.evaluate().n_steps == 300


def test_games_are_played_where_no_signal_comes(folder, monkeypatch):
    """Analytic: the thread computes; what would handle a signal there could damage what it uses."""
    blocked = []

    def play(agent, params, number, stop, timeout_seconds):
        blocked.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        return Played(number, 1.0, 10, False)

    monkeypatch.setattr(evaluation, "play", play)
    training = Training(folder)
    training.move_on(100)
    training.evaluate()
    assert [each >= set(SIGNALS) for each in blocked] == [True, True]


def test_figures_by_hand(folder, scores):
    """Analytic: scores 1 and 4; sd of the sample √4.5."""
    training = Training(folder)
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
        checkpoint.path_of(folder.best, 100),
    )


def test_the_best_weights_stay(folder, scores):
    """Golden: of means 2, 5, 5 and 3 the first 5, with statistics and counters of its moment."""
    training = Training(folder)
    for mean, is_best in ((2.0, True), (5.0, True), (5.0, False), (3.0, False)):
        scores[:] = [mean - 1, mean + 1]
        training.move_on(100)
        assert (training.evaluate().best is not None) is is_best
    assert list(checkpoint.numbered(folder.best)) == [100, 200]
    best = training.best()
    assert best.snapshot.counts == Counts(200, 2, 0, 200)
    assert best.subject == CARTPOLE
    assert best.params == dataclasses.asdict(PARAMS)
    assert_marked(best.snapshot, 200)


def value(agent: Agent) -> float:
    """What an agent expects tells its weights from others."""
    return agent.decide(np.ones(4, np.float32), np.random.default_rng(0)).value


def marked(n_steps: int) -> Agent:
    """The agent of that moment."""
    agent = Agent(CARTPOLE)
    agent.set_weights({n: np.full_like(a, n_steps) for n, a in make_weights(CARTPOLE).items()})
    return agent


def test_the_weights_are_those_of_one_moment(folder, monkeypatch):
    """Analytic: training goes on under the evaluation, which sees nothing of it."""
    training = Training(folder)
    has_begun, may_go_on, seen = threading.Event(), threading.Event(), []

    def play(agent, params, number, stop, timeout_seconds):
        has_begun.set()
        assert may_go_on.wait(DEADLINE_SECONDS)
        seen.append(value(agent))
        return Played(number, 1.0, 10, False)

    monkeypatch.setattr(evaluation, "play", play)
    training.move_on(100)
    assert training.evaluator.begin_if_due()
    assert has_begun.wait(DEADLINE_SECONDS)
    training.move_on(250)
    assert not training.evaluator.begin_if_due()  # one at a time
    may_go_on.set()
    training.wait()
    assert seen == [value(marked(100))] * 2
    assert_marked(training.best().snapshot, 100)
    assert training.evaluate().n_steps == 350


def test_the_moment_is_one_while_the_gate_is_shut(folder, monkeypatch):
    """Analytic: one update slips in before it shuts and one after it opens; the first counts."""
    training, seen = Training(folder), []

    @contextlib.contextmanager
    def shut():
        training.move_on(7)
        yield
        training.move_on(20)

    def play(agent, params, number, stop, timeout_seconds):
        seen.append(value(agent))
        return Played(number, 1.0, 10, False)

    monkeypatch.setattr(training.shared.gate, "shut", shut)
    monkeypatch.setattr(evaluation, "play", play)
    training.move_on(100)
    assert training.evaluate().n_steps == 107
    assert_marked(training.best().snapshot, 107)
    assert seen == [value(marked(107))] * 2


def test_a_failed_evaluation_is_told_and_the_next_one_tried(folder, scores, monkeypatch):
    """Analytic: a long run is worth more than one of its evaluations."""
    training = Training(folder)
    training.move_on(100)
    report = training.evaluate()  # there are no scores
    assert isinstance(report, EvaluationFailed)
    assert report.n_steps == 100
    assert "IndexError" in report.traceback
    scores[:] = [1.0, 1.0]
    training.move_on(100)
    assert isinstance(training.evaluate(), Evaluated)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_run_ends_with_its_last_evaluation_unless_stopped(folder, monkeypatch, is_stopped):
    """Analytic: what is under way is finished and what is due is begun, or all is given up."""
    training = Training(folder)
    has_begun = threading.Event()

    def play(agent, params, number, stop, timeout_seconds):
        has_begun.set()
        deadline = time.monotonic() + DEADLINE_SECONDS
        while is_stopped and not stop.is_set():
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return None if is_stopped else Played(number, 1.0, 10, False)

    monkeypatch.setattr(evaluation, "play", play)
    training.move_on(100)
    assert training.evaluator.begin_if_due()
    assert has_begun.wait(DEADLINE_SECONDS)
    training.move_on(100)
    training.evaluator.finish(lambda: is_stopped)
    assert not training.evaluator._thread.is_alive()
    assert [report.n_steps for report in training.reports] == ([] if is_stopped else [100, 200])


def test_a_resumed_run_has_a_best_to_beat(folder, scores):
    """Golden: it stands in evaluations.csv; a row that was cut short counts for nothing."""
    table = folder.path / "evaluations.csv"
    table.write_text(
        "steps,episode_reward_mean,seconds\n100,3.5,1\n200,nan,1\n300,7.25,2\n400,5,2\n500\n600,x"
    )
    assert list(evaluator.read_evaluations(table)) == [100, 200, 300, 400]
    assert evaluator.read_evaluations(folder.path / "nothing.csv") == {}
    folder.best.mkdir()
    checkpoint.path_of(folder.best, 300).touch()
    training = Training(folder, n_steps=650)
    for score, is_best in ((7.25, False), (7.5, True)):
        training.move_on(100)
        scores[:] = [score] * 2
        assert (training.evaluate().best is not None) is is_best


@pytest.mark.parametrize(
    ("damage", "found"),
    [('"00', {100: 3.5, 300: 4.5, 400: 5.0}), ("2" * 200_000, {100: 3.5})],
    ids=["quote", "endless"],
)
def test_a_damaged_evaluation_takes_no_other_with_it(tmp_path, damage, found):
    """Golden: a byte that has become a quote, behind which a reader of CSV sees one field; and a line
    that no reader takes, behind which nothing is read.
    """
    table = tmp_path / "evaluations.csv"
    table.write_text(f"steps,episode_reward_mean\n100,3.5\n{damage},7.5\n300,4.5\n400,5.0\n")
    assert evaluator.read_evaluations(table) == found


def test_a_best_that_is_gone_is_not_to_be_beaten(folder, scores):
    """Golden: where evaluations.csv knows of one, but its checkpoint is lost."""
    (folder.path / "evaluations.csv").write_text("steps,episode_reward_mean\n100,3.5\n")
    training = Training(folder, n_steps=150)
    training.move_on(50)
    scores[:] = [1.0, 1.0]
    assert training.evaluate().best == checkpoint.path_of(folder.best, 200)


def test_an_evaluation_that_was_given_up_is_made_up_for(folder, scores):
    """Analytic: the last one was at 200; a run that goes on from 310 evaluates at once, one from 290 not."""
    (folder.path / "evaluations.csv").write_text("steps,episode_reward_mean\n100,3.5\n200,3\n")
    assert not Training(folder, n_steps=290).evaluator.begin_if_due()
    scores[:] = [1.0, 1.0]
    assert Training(folder, n_steps=310).evaluate().n_steps == 310


def test_a_best_that_cannot_be_saved_is_told_and_its_figures_are_kept(folder, scores, monkeypatch):
    """Analytic: on a full disk, in a line and not as a failure; the next one as good is saved."""
    training = Training(folder)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write", fail)
        training.move_on(100)
        scores[:] = [1.0, 4.0]
        evaluated = training.evaluate()
    assert "No space left on device" in evaluated.problem
    assert evaluated.best is None
    assert evaluated.figures["episode_reward_mean"] == 2.5
    training.move_on(100)
    scores[:] = [1.0, 4.0]
    assert training.evaluate().best == checkpoint.path_of(folder.best, 200)


def test_the_best_is_not_saved_where_another_run_has_its_folder(folder, scores, tmp_path):
    """Analytic: its figures are told all the same."""
    training = Training(folder)
    folder.path.rename(tmp_path / "moved")
    make_folder(folder.path)
    scores.extend([1.0, 3.0])
    training.move_on(100)
    evaluated = training.evaluate()
    assert evaluated.figures["episode_reward_mean"] == 2.0
    assert evaluated.best is None
    assert "another run has its folder" in evaluated.problem
    assert not list(tmp_path.rglob("ckpt-*"))


def test_run_checkpoint_plays_the_same_games(folder):
    """Golden: an evaluation's scores, by the best checkpoint and the run's seed alone."""
    training = Training(folder)
    training.shared.counters.add_update(100, 100, 0)
    evaluated = training.evaluate()
    best = training.best()
    params = evaluation.params_of(best.subject, PARAMS.seed)
    games = list(evaluation.play_many(agent.load(best), params, 2, 2))
    summary = evaluation.summarise(best.subject.env_id, games)
    assert summary.mean == evaluated.figures["episode_reward_mean"]
    assert summary.max == evaluated.figures["episode_reward_max"]
