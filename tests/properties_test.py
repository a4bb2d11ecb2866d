"""What holds for any rewards and ends, gradients, schedules and records.

Hypothesis chooses the examples: the same ones each time, but new ones in `make test-slow`.
"""

import contextlib
import csv
import io
import math
import pathlib
import tempfile
import types
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from a3c.agent import losses, optimizer
from a3c.agent.collector import Acted
from a3c.agent.policy import Categorical
from a3c.agent.shared import Counters, Gate
from a3c.agent.worker import MainThreadLink
from a3c.contract import Replaced, Step
from a3c.envs.score import Score
from a3c.machine.stopping import StopFlag
from a3c.play import evaluator
from a3c.settings.params import Params
from a3c.store import logs
from a3c.store.resume import Start
from a3c.store.run_folder import RunFolder
from tests.tools import oracle
from tests.tools.crews import make_worker

quick = settings(max_examples=settings.default.max_examples // 2)
rewards = st.floats(-50, 50, width=32)
ends = st.tuples(st.booleans(), st.booleans())  # terminated, truncated
discounts = st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0])


# Any sequence of rewards, ends and truncations


class Scripted:
    """K environments that follow a script of (reward, terminated, truncated) and show numbers that count up."""

    def __init__(self, n_slots: int, script: np.ndarray) -> None:
        n_envs = script.shape[1]
        self.observations = np.zeros((n_slots, n_envs, 1), np.float32)
        self.final_observations = np.zeros((n_envs, 1), np.float32)
        self.n_frames = 0
        self.next_games = [0] * n_envs
        self.shown: list[np.ndarray] = []  # after the reset and after each step
        self.final: list[np.ndarray] = []  # after each step, before the reset if it ended
        self._script, self._n_shown = script, 0

    def _new(self) -> np.ndarray:
        n_envs = self._script.shape[1]
        self._n_shown += n_envs
        return np.arange(self._n_shown - n_envs, self._n_shown, dtype=np.float32)[:, None]

    def reset(self, slot: int) -> None:
        self.shown.append(self._new())
        self.observations[slot] = self.shown[-1]

    def step(self, actions: np.ndarray, slot: int) -> Step:
        reward, terminated, truncated = np.moveaxis(self._script[len(self.final)], -1, 0)
        ended = (terminated + truncated) > 0
        self.final.append(self._new())
        self.final_observations[truncated > 0] = self.final[-1][truncated > 0]
        self.shown.append(np.where(ended[:, None], self._new(), self.final[-1]))
        self.observations[slot] = self.shown[-1]
        return Step(reward.astype(np.float32), terminated > 0, truncated > 0, [])

    def take_replaced(self) -> Sequence[Replaced]:
        return ()


def value_of(observations: np.ndarray) -> np.ndarray:
    """A value that differs between all observations."""
    return np.sqrt(observations[..., 0] + 2.0)


class Ruler:
    """A local network with values as above and two equally likely actions, which keeps the rollouts.

    The activations of its only layer are the observations.
    """

    def __init__(self) -> None:
        self.rollouts: list[Any] = []
        self.weights: dict[str, Any] = {}

    policy, state_size = Categorical(2), 0

    def act(self, observations: np.ndarray, state: np.ndarray) -> Acted:
        outputs = np.zeros((len(observations), 2), np.float32)
        return Acted(outputs, value_of(observations), state, {"layer": np.array(observations)})

    def evaluate_last(self, observations: np.ndarray, state: np.ndarray) -> np.ndarray:
        return value_of(observations)

    def learn(self, rollout: Any, learning_rate: float, acted: list[Any]) -> None:
        self.rollouts.append(tf.nest.map_structure(np.copy, rollout))
        acted_on = [step["layer"] for step in acted]
        np.testing.assert_array_equal(acted_on, rollout.observations[:-1])


def by_the_oracle(envs: Scripted, script: np.ndarray, n_steps: int, discount: float) -> np.ndarray:
    """The returns of all rollouts; a truncation that is no termination is paid the value that it hides."""
    rewards, terminated, truncated = np.moveaxis(script, -1, 0)
    hidden = np.where((truncated > 0) & (terminated == 0), value_of(np.array(envs.final)), 0)
    rewards, continues = rewards + discount * hidden, (terminated + truncated) == 0
    return np.concatenate(
        [
            oracle.n_step_returns(
                rewards[at], continues[at], value_of(envs.shown[at.stop]), discount
            )
            for at in (slice(t, t + n_steps) for t in range(0, len(script), n_steps))
        ]
    )


@st.composite
def scripts(draw: st.DrawFn) -> tuple[int, np.ndarray]:
    """The steps of a rollout, and the script of a few rollouts of a few environments."""
    n_steps, n_rollouts, n_envs = (draw(st.integers(1, n)) for n in (5, 3, 3))
    often = draw(st.sampled_from([0.1, 0.5]))
    entry = st.tuples(rewards, st.floats(0, 1), st.floats(0, 1))
    n = n_steps * n_rollouts * n_envs
    flat = np.array(draw(st.lists(entry, min_size=n, max_size=n)))
    flat[:, 1:] = flat[:, 1:] < often
    return n_steps, flat.reshape(n_steps * n_rollouts, n_envs, 3)


@quick
@given(scripts(), discounts)
def test_any_sequence_gives_the_returns_of_the_oracle(
    steps_and_script: tuple[int, np.ndarray], discount: float
) -> None:
    """Parity: from scripted environments through the worker and `n_step_returns`, against the oracle."""
    n_steps, script = steps_and_script
    envs, ruler = Scripted(n_steps + 1, script), Ruler()
    params = Params(env_id="toys/Scripted", steps_per_update=n_steps, discount=discount)
    shared = types.SimpleNamespace(
        counters=Counters(script.shape[0] * script.shape[1]),
        gate=Gate(),
        moments={},
        update=lambda learn, seen: learn() or {},
    )
    failures: list[Any] = []
    main = MainThreadLink(StopFlag(), failures.append)
    parts: Any = (shared, ruler, envs, params)
    make_worker(1, *parts, np.random.default_rng(0), main).run()
    assert failures == []
    returns = [
        losses.n_step_returns(r.rewards, r.continues, value_of(r.observations[-1]), discount)
        for r in ruler.rollouts
    ]
    expected = by_the_oracle(envs, script, n_steps, discount)
    np.testing.assert_allclose(np.concatenate(returns), expected, rtol=1e-5, atol=1e-4)
    seen = np.concatenate([r.observations[:-1] for r in ruler.rollouts])
    np.testing.assert_array_equal(seen, envs.shown[:-1])


# Clipping and the schedule


arrays = hnp.arrays(
    np.float32, hnp.array_shapes(max_dims=2, max_side=4), elements=st.floats(-1e3, 1e3, width=32)
)


@quick
@given(st.lists(arrays, min_size=1, max_size=4), st.sampled_from([0.5, 5.0, 40.0]))
@example(gradients=[np.array([3.6e-24], np.float32)], limit=0.5)
def test_clipping_shortens_and_never_turns(gradients: list[np.ndarray], limit: float) -> None:
    """Analytic: the norm becomes at most the limit; the factor is 1 if it was below."""
    factor, norm = optimizer.clipping_factor([tf.constant(g) for g in gradients], limit)
    before = np.concatenate([g.ravel() for g in gradients]).astype(np.float64)
    after = float(factor) * before
    length = np.sqrt((before**2).sum())
    # There are at most 64 squares, each of which vanishes below the smallest normal number.
    vanished = float(64 * np.finfo(np.float32).tiny) ** 0.5
    assert float(norm) == pytest.approx(length, rel=1e-5, abs=vanished)
    assert np.sqrt((after**2).sum()) <= limit * (1 + 1e-5)
    assert float(factor) == pytest.approx(min(1.0, limit / length) if length else 1.0, rel=1e-5)
    if length < limit * (1 - 1e-5):
        assert factor == 1


@given(st.floats(1e-6, 1), st.integers(1, 10**9), st.lists(st.integers(0, 2 * 10**9), min_size=2))
def test_the_schedule_is_a_line_that_ends_at_zero(
    initial: float, end: int, steps: list[int]
) -> None:
    """Analytic: initial · (1 − n / end), and 0 after the end; it never rises, and stays in [0, initial]."""
    rates = [optimizer.learning_rate(initial, n, end) for n in sorted(steps)]
    assert rates == sorted(rates, reverse=True)
    for n, rate in zip(sorted(steps), rates, strict=True):
        assert 0 <= rate <= initial
        assert (rate == 0) == (n >= end)
        assert rate == pytest.approx(initial * max(0.0, 1 - n / end), abs=1e-9 * initial)
    assert {optimizer.learning_rate(initial, n, None) for n in steps} == {initial}


# Records


@quick
@given(st.lists(st.tuples(st.lists(rewards, min_size=1, max_size=6), ends), max_size=5))
def test_any_games_are_counted_and_read_back(
    games: list[tuple[list[float], tuple[bool, bool]]],
) -> None:
    """Parity: scores and lengths of the games that ended, in order: by termination or truncation, but not those
    that were abandoned."""
    assume(games)
    goes_on = (False, False)
    script = iter(
        [
            (reward, *(end if i == len(paid) - 1 else goes_on))
            for paid, end in games
            for i, reward in enumerate(paid)
        ]
    )
    env = gymnasium.Env()
    env.reset = lambda **_: (None, {})  # type: ignore[method-assign]
    env.step = lambda action: (None, *next(script), {})  # type: ignore[method-assign]
    score = Score(env, worker=3, number=5, counts_own_steps=True)
    for paid, _ in games:
        score.reset()
        for _ in paid:
            score.step(0)
    with open_log() as (folder, log):
        for step, game in enumerate(score.take_finished()):
            log.game(game._replace(step=step), 0.0)
        rows = list(csv.DictReader((folder / "monitor.csv").read_text().splitlines()[1:]))
    ended = [paid for paid, end in games if any(end)]
    assert [int(row["l"]) for row in rows] == [len(paid) for paid in ended]
    assert [int(row["step"]) for row in rows] == [*range(len(ended))]
    assert {(row["worker"], row["env"]) for row in rows} <= {("3", "5")}
    scores = [float(row["r"]) for row in rows]
    np.testing.assert_allclose(scores, [sum(paid) for paid in ended], atol=1e-6)


@contextlib.contextmanager
def open_log(progress: str | None = None) -> Iterator[tuple[pathlib.Path, logs.RunLog]]:
    """A run's logs, in a folder that may already have a progress.csv."""
    with (
        tempfile.TemporaryDirectory() as temporary,
        contextlib.redirect_stdout(io.StringIO()),
        # TensorBoard's files would take most of the time.
        mock.patch.object(
            logs, "Events", return_value=mock.Mock(file=mock.Mock(error=None, n_lost=0))
        ),
    ):
        folder = pathlib.Path(temporary)
        if progress is not None:
            (folder / "progress.csv").write_text(progress)
        log = logs.RunLog(RunFolder(folder, io.StringIO()), Params("X-v0"), Start())
        with contextlib.closing(log):
            yield folder, log


# What a column may hold; NaN stands for an unknown figure.
figures = st.one_of(st.floats(), st.just(math.nan), st.integers(0, 10**12))
EVALUATED = ("episode_reward_mean", "episode_reward_sd", "n_cut_off", "seconds")


def rows_of(names: Sequence[str]) -> st.SearchStrategy:
    """A few rows: the steps, and a figure for each name."""
    row = st.tuples(*[figures] * len(names)).map(lambda row: dict(zip(names, row, strict=True)))
    return st.lists(st.tuples(st.integers(0, 10**12), row), max_size=3)


def read_back(path: pathlib.Path) -> list[dict[str, float]]:
    with path.open(newline="", encoding="utf-8") as file:
        return [{name: float(x) for name, x in row.items()} for row in csv.DictReader(file)]


@quick
@given(rows_of(logs.FIGURES), rows_of(EVALUATED), st.sets(st.sampled_from(logs.FIGURES[1:])))
def test_any_figures_are_read_back_from_progress_and_evaluations(
    progress: list[tuple[int, dict]], evaluations: list[tuple[int, dict]], new: set[str]
) -> None:
    """Parity: every row to the last bit, NaN too, in a file that an older version began. It keeps its columns: one that
    is gone, but not those that are `new`. And what a resumed run reads of the evaluations."""
    progress = [(n, row | {"misc/steps": n}) for n, row in progress]
    old = [name for name in (*logs.FIGURES, "gone") if name not in new]
    head = f"{','.join(old)}\r\n{','.join('7' for _ in old)}\r\n"
    with open_log(head) as (folder, log):
        for _, row in progress:
            log.figures(row, "")
        for n, row in evaluations:
            log.evaluation(n, row)
        first, *rows = read_back(folder / "progress.csv")
        means = evaluator.read_evaluations(folder)
        evaluated = read_back(folder / "evaluations.csv") if evaluations else []
    np.testing.assert_equal(first, dict.fromkeys(old, 7))
    known = [{name: row.get(name, math.nan) for name in old} for _, row in progress]
    np.testing.assert_equal(rows, known)
    np.testing.assert_equal(evaluated, [{"steps": n} | row for n, row in evaluations])
    np.testing.assert_equal(means, {n: row["episode_reward_mean"] for n, row in evaluations})
