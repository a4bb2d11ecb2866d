"""Real runs of 100 updates, step by step by the oracle: actions, weights and statistics.

What passed between worker and environments was recorded (tests/tools/recorded_runs.py); the oracle, which
knows nothing of a3c/, is trained on that (tests/tools/oracle_replay.py, which derives how far float32 may
be from it). Every run has ends of episodes and time limits in it: CartPole that falls or is cut off
after 20 steps, Breakout that loses lives and is cut off after 300 frames.
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
# Two actions that the draws left nearer to each other than this may change places in float32.
CLOSE = 1e-3


class Case(NamedTuple):
    network: str
    reduction: str
    n_envs: int
    n_updates: int = N_UPDATES

    def id(self) -> str:
        return f"{self.network}-{self.reduction}-{self.n_envs}"

    def arguments(self) -> list[str]:
        """`sum` under the preset paper, `mean` under ocd; with four environments, clipping is
        reached, the entropy counts, and the statistics start where the preset's do not."""
        preset, other_start = {"sum": ("paper", "1"), "mean": ("ocd", "0")}[self.reduction]
        game = "ShortCartPole" if self.network == "mlp" else "BriefBreakout"
        more = f"--max_grad_norm 0.5 --entropy_bonus 0.1 --rmsprop_initial {other_start}"
        return [
            *("--preset", preset, "--network", self.network, "--loss_reduction", self.reduction),
            *("--envs_per_worker", str(self.n_envs)),
            *("--n_steps", str(self.n_updates * 5 * self.n_envs)),
            *(more.split() if self.n_envs > 1 else ()),
            *("--seed", "1", f"tests.tools.toys:toys/{game}-v0"),
        ]


CASES = [
    Case(network, reduction, n_envs)
    for network in ("mlp", "small", "nature")
    for reduction in ("mean", "sum")
    for n_envs in (1, 4)
]


def duration(case: Case) -> tuple[pytest.MarkDecorator, ...]:
    """Half a minute to two for the larger ones, on a machine of its own."""
    if case.network == "mlp":
        return ()
    is_short = case.network == "small" and case.n_envs == 1
    return (pytest.mark.slow if is_short else pytest.mark.weekly,)


def by_cases(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "case", [pytest.param(c, marks=duration(c), id=c.id()) for c in cases]
    )


@functools.cache
def record(case: Case) -> Run:
    """The case's run, made once."""
    with tempfile.TemporaryDirectory() as folder:
        return recorded_runs.record(case.arguments(), pathlib.Path(folder))


def start(run: Run) -> Replay:
    return Replay(run.params, run.start["weights"], run.start["mean_squares"])


def worst(run: Run, ours: Replay, part: str) -> dict[str, float]:
    """Of each array, the entry that is farthest from the oracle's, in parts of its bound."""
    errors = ours.errors(part, run.end[part])
    return {n: float(np.max(errors[n] / ours.bounds[part][n])) for n in errors}


def too_far(run: Run, ours: Replay, part: str, share: float = 1.0) -> list[str]:
    """The arrays of which an entry is farther off than this share of its bound."""
    return [name for name, off in worst(run, ours, part).items() if not off <= share]


def assert_errors_hardly_grow(run: Run, ours: Replay, rollout: oracle.Rollout) -> None:
    """What the run's weights, off as they are, do to a gradient is little beside its own rounding."""
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
    """The oracle's logits and the run's draws choose the run's actions, close calls aside."""
    for seen, actions in zip(rollout.observations[:-1], rollout.actions, strict=True):
        logits = oracle.forward(ours.oracle.network, ours.oracle.weights, seen)["policy"]
        drawn = logits + draws.gumbel(size=logits.shape)
        best = drawn.max(axis=1)
        of_taken = drawn[np.arange(len(actions)), actions]
        np.testing.assert_allclose(of_taken, best, rtol=0, atol=CLOSE)
        n_close[0] += int(np.count_nonzero(drawn > best[:, None] - CLOSE)) - len(actions)


@by_cases(CASES)
def test_the_oracle_gets_the_same_actions_weights_and_statistics(case):
    """Parity: each action of 100 updates; then every entry, within half of a bound that is narrow."""
    run = record(case)
    assert len(run.steps) == 5 * N_UPDATES
    assert sum(int(step.terminated.sum()) for step in run.steps) >= 5 * case.n_envs
    assert sum(len(step.last) for step in run.steps) >= 5 * case.n_envs
    rewards = {0, 1} if case.network != "mlp" else {1}
    assert set(np.unique([step.rewards for step in run.steps])) == rewards

    ours, n_close = start(run), [0]
    draws = seeding.generator(run.params.seed, seeding.Purpose.ACTIONS, worker=0)
    for rollout in oracle_replay.rollouts(run, ours):
        assert_same_actions(ours, rollout, draws, n_close)
        ours.update(rollout)
    assert n_close[0] <= 10  # or the actions would say little
    assert_errors_hardly_grow(run, ours, rollout)
    for part in ("weights", "mean_squares"):
        assert too_far(run, ours, part, 0.5) == []
        for name, change in run.change(part).items():
            assert ours.bounds[part][name].max() < 0.25 * np.abs(change).max(), name


# Twins that are wrong in one thing, and found


def actions_one_late(rollout: oracle.Rollout) -> oracle.Rollout:
    return rollout._replace(actions=np.roll(rollout.actions, 1, axis=0))


def rewards_one_late(rollout: oracle.Rollout) -> oracle.Rollout:
    return rollout._replace(rewards=np.roll(rollout.rewards, 1, axis=0))


def observations_one_early(rollout: oracle.Rollout) -> oracle.Rollout:
    return rollout._replace(observations=np.roll(rollout.observations, -1, axis=0))


def environments_mixed_up(rollout: oracle.Rollout) -> oracle.Rollout:
    return rollout._replace(actions=rollout.actions[:, ::-1])


def nothing_ends(rollout: oracle.Rollout) -> oracle.Rollout:
    return rollout._replace(continues=np.ones_like(rollout.continues))


def replayed(
    run: Run,
    twin: Callable[[oracle.Rollout], oracle.Rollout] = lambda rollout: rollout,
    hidden: bool = True,
) -> Replay:
    """The oracle, after the rollouts of run as twin changes them."""
    ours = start(run)
    for rollout in oracle_replay.rollouts(run, ours, hidden=hidden):
        ours.update(twin(rollout))
    return ours


def assert_far_off(run: Run, **changes: Any) -> None:
    ours = replayed(run, **changes)
    for part in ("weights", "mean_squares"):
        assert max(worst(run, ours, part).values()) > 10


# Of the largest network the first updates, in which each twin has something to be wrong about.
CONTROLS = by_cases(
    [Case("mlp", "mean", 4), Case("small", "mean", 4), Case("nature", "mean", 4, N_UPDATES // 3)]
)


@CONTROLS
@pytest.mark.parametrize(
    "twin",
    [
        actions_one_late,
        rewards_one_late,
        observations_one_early,
        environments_mixed_up,
        nothing_ends,
    ],
)
def test_other_rollouts_give_other_weights(twin, case):
    """Parity: negative control, whose weights and statistics lie far outside the bound."""
    assert_far_off(record(case), twin=twin)


@CONTROLS
def test_without_the_values_that_time_limits_hide_weights_are_others(case):
    """Parity: negative control, as those before."""
    assert_far_off(record(case), hidden=False)


def replayed_with(case: Case, name: str, factor: float) -> list[str]:
    """The weights that are too far from an oracle with one hyperparameter changed."""
    run = record(case)
    value = getattr(run.params, name) * factor
    changed = run._replace(params=dataclasses.replace(run.params, **{name: value}))
    return too_far(run, replayed(changed), "weights")


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
    """Parity: negative control: the third digit of each is too far."""
    if name == "rmsprop_epsilon" and case.reduction == "sum":
        factor = 1.1  # beside statistics that start from 1
    assert replayed_with(case, name, factor) != []


@by_cases([Case("mlp", "sum", 1), Case("nature", "sum", 1)])
@pytest.mark.parametrize("factor", [1.0, 1.003])
def test_another_learning_rate_gives_other_weights_in_most_layers(factor, case):
    """Parity: negative control, and its own: of the larger network as well, where every entry is
    rounded more often; under a schedule.
    """
    assert record(case).params.lr_decay_to_zero_by_n_steps is not None
    found = replayed_with(case, "initial_lr", factor)
    assert (found == []) if factor == 1 else (len(found) > 10)


@pytest.mark.parametrize(
    ("network", "observation_shape", "k"),
    [
        # Forward 4 + 64 + 64 for each head, back 64 + 64 + 2 and 64 + 64 + 1, and five states.
        ("mlp", (4,), 2 * 132 + 130 + 129 + 5),
        # Forward 256, 256, 2592 and 2·256, back 8·8·16, 4·4·32, 256, 6 and 1, and 400 places each.
        ("small", (84, 84, 4), 3616 + 1024 + 512 + 256 + 7 + 2000),
    ],
)
def test_roundings_by_hand(network, observation_shape, k):
    """Analytic: fan-ins, fan-outs, places of the first layer."""
    n_actions = 2 if network == "mlp" else 6
    shapes = oracle.weight_shapes(network, observation_shape, n_actions)
    weights = {name: np.zeros(shape) for name, shape in shapes.items()}
    assert oracle_replay.n_roundings(weights, 5) == k
