"""Evaluations while training: when they begin, with which weights, and what is kept."""

import dataclasses
import signal
import threading
import types
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from a3c.agent import moments
from a3c.agent.shared import SharedState
from a3c.contract import Counts, Snapshot, Subject
from a3c.machine.stopping import SIGNALS, StopFlag
from a3c.play import agent, evaluation, evaluator
from a3c.play.agent import Agent
from a3c.play.evaluation import Played
from a3c.play.evaluator import Evaluated, EvaluationFailed, Evaluator
from a3c.settings.params import Params, as_in_json
from a3c.store import checkpoint
from a3c.store.checkpoint import Checkpoint
from a3c.store.run_folder import RunFolder
from tests.tools import processes
from tests.tools.agents import CARTPOLE, PAINTED, make_folder, make_weights, moments_of

DEADLINE_SECONDS = 120.0
GENERATOR = np.random.default_rng(0)
PARAMS = Params(CARTPOLE.env_id, seed=3, eval_episodes=2, eval_interval_steps=100)


@pytest.fixture
def folder(tmp_path):
    return make_folder(tmp_path / "run")


class Training:
    """Shared state that a test advances, and the evaluations of it."""

    def __init__(
        self,
        folder: RunFolder,
        n_steps: int = 0,
        subject: Subject = CARTPOLE,
        params: Params = PARAMS,
    ) -> None:
        self.folder = folder
        first_moments = moments_of(subject)
        self.shared = SharedState(make_weights(subject), PARAMS, Counts(n_steps), first_moments)
        self.reports: list[Evaluated | EvaluationFailed] = []
        self.evaluator = Evaluator(params, subject, self.shared, folder, self.reports.append)

    def move_on(self, n_steps: int) -> None:
        """Count steps as an update does, and set all weights and statistics to their number."""
        counts = self.shared.counters.add_update(n_steps, n_steps, 0)
        for variable in (*self.shared.variables.values(), *self.shared._mean_squares.values()):
            variable.assign(tf.fill(variable.shape, np.float32(counts.steps)))
        seen = {name: moments.of(np.full((1, 12), counts.steps)) for name in self.shared.moments}
        self.shared.update(lambda: None, seen)

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
    """All of it is as `move_on` left it at that step."""
    assert snapshot.counts.steps == n_steps
    for part in (snapshot.weights, snapshot.mean_squares):
        assert len(part) == 12
        for name, array in part.items():
            np.testing.assert_array_equal(array, np.full_like(array, n_steps), err_msg=name)


@pytest.fixture
def pretend(monkeypatch):
    """Replaces the playing of games by a function that returns a score, or None if it was stopped."""

    def pretend(score_of: Callable[[Agent, StopFlag], float | None]) -> None:
        def play(agent, params, number, stop, timeout_seconds):
            score = score_of(agent, stop)
            return None if score is None else Played(number, score, 10 + 20 * number, number == 1)

        monkeypatch.setattr(evaluation, "play", play)

    return pretend


@pytest.fixture
def scores(pretend):
    """The scores of the next games, which nobody plays."""
    scores: list[float] = []
    pretend(lambda agent, stop: scores.pop(0))
    return scores


def test_an_evaluation_is_due_at_each_multiple_of_the_interval(folder, scores):
    """Analytic: at the first look after it; steps that pass several multiples make one evaluation."""
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
    (folder.path / "evaluations.csv").write_text("steps,episode_reward_mean\n200,0.5\n")
    training = Training(folder, n_steps=250)
    assert not training.evaluator.begin_if_due()
    training.move_on(49)
    assert not training.evaluator.begin_if_due()
    scores[:] = [1.0, 1.0]
    training.move_on(1)
    assert training.evaluate().n_steps == 300


def test_games_are_played_where_no_signal_comes(folder, pretend):
    """Analytic: a signal's handler could damage the memory of a thread that computes."""
    blocked = []
    pretend(lambda agent, stop: blocked.append(signal.pthread_sigmask(signal.SIG_BLOCK, ())) or 1.0)
    training = Training(folder)
    training.move_on(100)
    training.evaluate()
    assert [each >= set(SIGNALS) for each in blocked] == [True, True]


def test_figures_by_hand(folder, scores):
    """Analytic: scores 1 and 4, lengths 10 and 30, the second cut off; sd of the sample √4.5."""
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
            "episode_length_mean": 20.0,
            "n_cut_off": 1,
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
    assert best.params == as_in_json(PARAMS)
    assert_marked(best.snapshot, 200)


def test_the_weights_are_those_of_one_moment(folder, pretend):
    """Analytic: training continues during the evaluation, which sees nothing of it."""
    training = Training(folder)
    has_begun, may_go_on = threading.Event(), threading.Event()

    def score_of(agent: Agent, stop: StopFlag) -> float:
        has_begun.set()
        assert may_go_on.wait(DEADLINE_SECONDS)
        weights = {name: v.numpy() for name, v in agent._weights.items()}
        assert_marked(Snapshot(Counts(100), weights, weights), 100)
        return 1.0

    pretend(score_of)
    training.move_on(100)
    assert training.evaluator.begin_if_due()
    assert has_begun.wait(DEADLINE_SECONDS)
    training.move_on(250)
    assert not training.evaluator.begin_if_due()  # one at a time
    may_go_on.set()
    training.wait()
    assert isinstance(training.reports[-1], Evaluated), training.reports
    assert_marked(training.best().snapshot, 100)


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


def test_an_evaluation_that_gets_no_thread_is_told_and_the_next_one_tried(
    folder, scores, monkeypatch
):
    """Analytic: the system may refuse more threads for a while."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    training = Training(folder)
    scores[:] = [1.0, 1.0]
    training.move_on(100)
    with monkeypatch.context() as context:
        context.setattr(threading.Thread, "start", refuse)
        assert training.evaluator.begin_if_due()
    assert isinstance(training.reports[-1], EvaluationFailed)
    training.move_on(100)
    assert isinstance(training.evaluate(), Evaluated)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_run_ends_with_its_last_evaluation_unless_stopped(folder, pretend, is_stopped):
    """Analytic: evaluations under way or due are completed, or abandoned in a run that is stopped."""
    training = Training(folder)

    pretend(lambda agent, stop: processes.wait_until(stop.is_set) if is_stopped else 1.0)
    training.move_on(100)
    assert training.evaluator.begin_if_due()
    training.move_on(100)
    training.evaluator.finish(lambda: is_stopped)
    assert not training.evaluator._thread.is_alive()
    assert [report.n_steps for report in training.reports] == ([] if is_stopped else [100, 200])


def test_an_evaluation_is_begun_where_one_ends_just_now(folder, scores):
    """Analytic: the one under way is seen alive once, and then it is gone."""
    training, alive = Training(folder), iter([True])
    training.evaluator._thread = types.SimpleNamespace(
        is_alive=lambda: next(alive, False), join=lambda *_: None
    )
    training.move_on(100)
    scores[:] = [1.0, 1.0]
    training.evaluator.finish(lambda: False)
    assert [report.n_steps for report in training.reports] == [100]


def test_a_resumed_run_has_a_best_to_beat(folder, scores):
    """Golden: the one in evaluations.csv whose weights are saved; a row that was cut short is left out."""
    table = folder.path / "evaluations.csv"
    table.write_text(
        "steps,episode_reward_mean,seconds\n100,3.5,1\n200,nan,1\n300,7.25,2\n400,5,2\n500\n600,x"
    )
    assert list(evaluator.read_evaluations(folder.path)) == [100, 200, 300, 400]
    assert evaluator.read_evaluations(folder.best) == {}
    folder.best.mkdir()
    checkpoint.path_of(folder.best, 300).touch()
    training = Training(folder, n_steps=650)
    for score, is_best in ((7.25, False), (7.5, True)):
        training.move_on(100)
        scores[:] = [score] * 2
        assert (training.evaluate().best is not None) is is_best


def test_a_best_without_a_score_is_taken_away(folder, scores):
    """Analytic: the run was killed between the two, so the score to beat is that of the best before."""
    (folder.path / "evaluations.csv").write_text("steps,episode_reward_mean\n100,7.25\n")
    folder.best.mkdir()
    for n_steps in (100, 200):
        checkpoint.path_of(folder.best, n_steps).touch()
    training = Training(folder, n_steps=250)
    assert list(checkpoint.numbered(folder.best)) == [100]
    training.move_on(100)
    scores[:] = [7.0] * 2
    assert training.evaluate().best is None


@pytest.mark.parametrize(
    "damage",
    ['"00', "2" * 200_000, "200,9"],
    ids=["quote", "endless", "too many cells"],
)
def test_a_damaged_evaluation_takes_no_other_with_it(tmp_path, damage):
    """Golden: a byte that became a quote, a line that goes on and on, and one with a cell too many."""
    table = tmp_path / "evaluations.csv"
    table.write_text(f"steps,episode_reward_mean\n100,3.5\n{damage},7.5\n300,4.5\n400,5.0\n")
    assert evaluator.read_evaluations(tmp_path) == {100: 3.5, 300: 4.5, 400: 5.0}


def test_an_evaluation_that_was_abandoned_is_made_up_for(folder, scores):
    """Analytic: in a run that resumes past the next multiple; without its checkpoint, 3.5 is no best."""
    (folder.path / "evaluations.csv").write_text("steps,episode_reward_mean\n100,3.5\n200,3\n")
    assert not Training(folder, n_steps=290).evaluator.begin_if_due()
    scores[:] = [1.0, 1.0]
    assert Training(folder, n_steps=310).evaluate().best == checkpoint.path_of(folder.best, 310)


def test_a_first_evaluation_is_made_up_for_but_none_of_another_run(folder, scores):
    """Analytic: a resumed run is past its first multiple and has none; another begins at that step, and is
    resumed there.
    """
    of_another = dataclasses.replace(PARAMS, load_ckpt="another")
    assert not Training(folder, n_steps=150, params=of_another).evaluator.begin_if_due()
    scores[:] = [1.0, 1.0]
    assert Training(folder, n_steps=150).evaluate().n_steps == 150


def test_a_best_that_cannot_be_saved_is_told_and_its_figures_are_kept(folder, scores, monkeypatch):
    """Analytic: on a full disk, in one line; the next one with this score is saved."""
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


def test_the_moments_are_those_of_the_weights_moment(folder, pretend):
    """Analytic: training adds to its own during the evaluation, which keeps what was copied."""
    training, seen = Training(folder, subject=PAINTED), []

    def score_of(agent: Agent, stop: StopFlag) -> float:
        training.move_on(100)
        decision = agent.act(np.full(12, 7, np.float32), agent.first_state, generator=GENERATOR)
        seen.append(decision.observation)
        return 1.0

    pretend(score_of)
    training.move_on(100)
    copied = training.shared.moments["observations"]
    training.evaluate()
    assert training.shared.moments["observations"].n == copied.n + 2
    for observation in seen:
        wanted = moments.normalised(np.full(12, 7), copied)
        np.testing.assert_array_equal(observation, wanted)
    assert training.best().snapshot.moments["observations"].n == copied.n


@pytest.mark.parametrize("subject", [CARTPOLE, PAINTED], ids=lambda subject: subject.env_id)
def test_run_checkpoint_plays_the_same_games(folder, subject):
    """Golden: an evaluation's scores, by the best checkpoint and the run's seed alone."""
    training = Training(folder, subject=subject)
    training.shared.counters.add_update(100, 100, 0)
    evaluated = training.evaluate()
    best = training.best()
    params = evaluation.params_of(best.subject, PARAMS.seed)
    games = list(evaluation.play_many(agent.load(best), params, 2, 2))
    summary = evaluation.summarise(best.subject.env_id, games)
    assert summary.mean == evaluated.figures["episode_reward_mean"]
    assert summary.max == evaluated.figures["episode_reward_max"]
