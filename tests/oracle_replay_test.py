"""Real runs of 100 updates, compared with the oracle step by step: actions, weights and statistics.

tests/tools/recorded_runs.py records what a worker and its environments exchange, and the oracle is trained on that.
tests/tools/oracle_replay.py derives how far float32 may be from the oracle. Every run has ends of episodes and time
limits: CartPole falls or is cut off after 20 steps, Hopper falls or is cut off after 15, Breakout loses lives and is
cut off after 300 frames.
"""

import dataclasses
import functools
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from a3c.machine import seeding
from tests.tools import oracle, oracle_replay, recorded_runs
from tests.tools.oracle_replay import Replay
from tests.tools.recorded_runs import Run

N_UPDATES = 100
# In float32, two actions may change places if their draws are closer than this.
CLOSE = 1e-3


CARTPOLE, BREAKOUT = (f"tests.tools.toys:toys/{x}-v0" for x in ("ShortCartPole", "BriefBreakout"))
HOPPER = "--normalize_observations --scale_rewards --max_episode_steps 15 Hopper-v5"
KINDS = {
    "mlp": CARTPOLE,
    "small": f"--network small {BREAKOUT}",
    "nature": f"--network nature {BREAKOUT}",
    "mlp-lstm": f"--lstm_units 8 --hidden_units 16 --initial_lr 2e-3 {CARTPOLE}",
    "small-lstm": f"--network small --lstm_units 16 --initial_lr 1e-3 {BREAKOUT}",
    "per_dimension": f"--hidden_units 16 8 --activation relu --initial_sd 2 {HOPPER}",
    "per_state": f"--policy_sd per_state --hidden_units 12 --lstm_units 8 {HOPPER}",
}


class Case(NamedTuple):
    kind: str
    reduction: str
    n_envs: int
    n_updates: int = N_UPDATES

    def id(self) -> str:
        return f"{self.kind}-{self.reduction}-{self.n_envs}"

    def arguments(self) -> list[str]:
        """`sum` with the preset paper, `mean` with ocd. With four environments, gradients are clipped, the entropy
        matters, and the statistics start from another number than the preset's."""
        preset, other_start = {"sum": ("paper", "1"), "mean": ("ocd", "0")}[self.reduction]
        more = f"--max_grad_norm 0.5 --entropy_bonus 0.1 --rmsprop_initial {other_start}"
        return [
            *("--preset", preset, "--loss_reduction", self.reduction),
            *("--envs_per_worker", str(self.n_envs)),
            *("--n_steps", str(self.n_updates * 5 * self.n_envs)),
            *(more.split() if self.n_envs > 1 else ()),
            *("--seed", "1", *KINDS[self.kind].split()),
        ]


CASES = [
    Case(kind, reduction, n_envs)
    for kind in KINDS
    for reduction in ("mean", "sum")
    for n_envs in (1, 4)
]
# Those that do not take half a minute to two; and of vectors those that are like others.
SLOW = {Case("small-lstm", "mean", 1)}
FAST = {
    *(Case("mlp", "mean", 4), Case("mlp", "sum", 1)),
    *(Case("mlp-lstm", "sum", 1), Case("per_state", "mean", 4), Case("per_dimension", "sum", 1)),
}


def duration(case: Case) -> tuple[pytest.MarkDecorator, ...]:
    if case in FAST:
        return ()
    return (pytest.mark.slow if case in SLOW else pytest.mark.weekly,)


def by_cases(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "case", [pytest.param(c, marks=duration(c), id=c.id()) for c in cases]
    )


@functools.cache
def record(case: Case) -> Run:
    """The run of a case, recorded once."""
    with tempfile.TemporaryDirectory() as folder:
        return recorded_runs.record(case.arguments(), pathlib.Path(folder))


def start(run: Run) -> Replay:
    is_continuous = run.steps[0].actions.ndim > 1
    return Replay(run.params, run.start["weights"], run.start["mean_squares"], is_continuous)


def worst(run: Run, ours: Replay, part: str) -> dict[str, float]:
    """For each array, the largest distance of an entry from the oracle's, as a fraction of its bound."""
    errors = ours.errors(part, run.end[part])
    return {n: float(np.max(errors[n] / ours.bounds[part][n])) for n in errors}


def too_far(run: Run, ours: Replay, part: str, share: float = 1.0) -> list[str]:
    """The arrays with an entry that is farther from the oracle's than this share of its bound."""
    return [name for name, off in worst(run, ours, part).items() if not off <= share]


def assert_errors_hardly_grow(run: Run, ours: Replay, rollout: oracle.Rollout) -> None:
    """The error of the run's weights changes a gradient by less than its own rounding does."""
    h = ours.oracle.hyperparameters
    gradients, others = (
        oracle.gradients(ours.oracle.network, weights, rollout, h)
        for weights in (ours.oracle.weights, run.end["weights"])
    )
    for name, gradient in gradients.items():
        rounding = ours.rounding * np.abs(gradient).max()
        assert np.abs(others[name] - gradient).max() <= 0.25 * rounding, name


def assert_same_actions(
    ours: Replay, rollout: oracle.Rollout, draws: np.random.Generator, n_close: list[int]
) -> None:
    """The policy's outputs, by the oracle, and the run's draws give the run's actions, except where two are close."""
    (state,) = rollout.states
    for t, (seen, actions) in enumerate(zip(rollout.observations, rollout.actions, strict=False)):
        outputs = oracle.forward(ours.oracle.network, ours.oracle.weights, seen, state)
        state = outputs["state"] * rollout.continues[t, :, None]
        if actions.ndim == 2:
            means, log_sds = np.split(outputs["policy"], 2, axis=1)
            drawn = means + np.exp(log_sds) * draws.standard_normal(size=means.shape)
            np.testing.assert_allclose(actions, drawn, rtol=0, atol=CLOSE)
            continue
        drawn = outputs["policy"] + draws.gumbel(size=outputs["policy"].shape)
        best = drawn.max(axis=1)
        of_taken = drawn[np.arange(len(actions)), actions]
        np.testing.assert_allclose(of_taken, best, rtol=0, atol=CLOSE)
        n_close[0] += int(np.count_nonzero(drawn > best[:, None] - CLOSE)) - len(actions)


@by_cases(CASES)
def test_the_oracle_gets_the_same_actions_weights_and_statistics(case):
    """Parity: each action of 100 updates, and then every entry, within half of a narrow bound."""
    run = record(case)
    assert len(run.steps) == 5 * N_UPDATES
    assert sum(int(step.terminated.sum()) for step in run.steps) >= 5 * case.n_envs
    assert sum(len(step.last) for step in run.steps) >= 5 * case.n_envs
    rewards = set(np.unique([step.rewards for step in run.steps]))
    assert len(rewards) > 100 or rewards == ({1} if case.kind.startswith("mlp") else {0, 1})

    ours, n_close = start(run), [0]
    draws = seeding.generator(run.params.seed, seeding.Purpose.ACTIONS, worker=0)
    for rollout in oracle_replay.rollouts(run, ours):
        assert_same_actions(ours, rollout, draws, n_close)
        ours.update(rollout)
    assert n_close[0] <= 10  # or the actions would prove little
    assert_errors_hardly_grow(run, ours, rollout)
    for part in ("weights", "mean_squares"):
        assert too_far(run, ours, part, 0.5) == []
        for name, change in run.change(part).items():
            assert ours.bounds[part][name].max() < 0.25 * np.abs(change).max(), name


# Replays with one mistake, which are found

MISTAKES: dict[str, Callable[[oracle.Rollout], oracle.Rollout]] = {
    "actions one late": lambda r: r._replace(actions=np.roll(r.actions, 1, axis=0)),
    "rewards one late": lambda r: r._replace(rewards=np.roll(r.rewards, 1, axis=0)),
    "observations one early": lambda r: r._replace(
        observations=np.roll(r.observations, -1, axis=0)
    ),
    "environments mixed up": lambda r: r._replace(actions=r.actions[:, ::-1]),
    "nothing ends": lambda r: r._replace(continues=np.ones_like(r.continues)),
}


def replayed(
    run: Run,
    mistake: Callable[[oracle.Rollout], oracle.Rollout] = lambda rollout: rollout,
    hidden: bool = True,
) -> Replay:
    """The oracle after the rollouts of a run, each changed by the mistake."""
    ours = start(run)
    for rollout in oracle_replay.rollouts(run, ours, hidden=hidden):
        ours.update(mistake(rollout))
    return ours


def assert_far_off(run: Run, **changes: Any) -> None:
    ours = replayed(run, **changes)
    for part in ("weights", "mean_squares"):
        assert max(worst(run, ours, part).values()) > 10


# The first updates of the largest network are enough for each mistake to matter.
CONTROLS = by_cases(
    [Case("mlp", "mean", 4), Case("small", "mean", 4), Case("nature", "mean", 4, N_UPDATES // 3)]
)


@CONTROLS
@pytest.mark.parametrize("mistake", MISTAKES)
def test_other_rollouts_give_other_weights(mistake, case):
    """Parity: negative control, whose weights and statistics are far outside the bound."""
    assert_far_off(record(case), mistake=MISTAKES[mistake])


@CONTROLS
def test_without_the_values_that_time_limits_hide_weights_are_others(case):
    """Parity: negative control."""
    assert_far_off(record(case), hidden=False)


@by_cases([Case("per_state", "mean", 4)])
@pytest.mark.parametrize("mistake", ["forgets at edges", "normalize_observations", "scale_rewards"])
def test_without_memory_across_edges_or_without_statistics_weights_are_others(mistake, case):
    """Parity: negative control."""
    run = record(case)
    if mistake == "forgets at edges":
        assert_far_off(run, mistake=lambda r: r._replace(states=np.zeros_like(r.states)))
    else:
        params = dataclasses.replace(run.params, **{mistake: False})
        assert_far_off(run._replace(params=params))


@by_cases([Case("mlp", "mean", 4), Case("small", "mean", 4), Case("small", "sum", 4)])
@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("discount", 1.001),
        ("entropy_bonus", 1.01),
        ("value_loss_coef", 1.01),
        ("max_grad_norm", 1.01),
        ("initial_lr", 1.01),
        ("rmsprop_decay", 1.001),
        ("rmsprop_epsilon", 1.01),
    ],
)
def test_other_hyperparameters_give_other_weights(name, factor, case):
    """Parity: negative control. A change of the third digit is too far."""
    if name == "rmsprop_epsilon" and case.reduction == "sum":
        factor = 1.1  # the statistics start from 1 there
    run = record(case)
    value = getattr(run.params, name) * factor
    changed = run._replace(params=dataclasses.replace(run.params, **{name: value}))
    assert too_far(run, replayed(changed), "weights") != []
