"""What workers share, and what they do not: RMSProp's statistics, on two workers and two updates."""

from collections.abc import Callable

import numpy as np
import pytest

from a3c.agent.shared import SharedState
from tests.agent.worker_test import (
    HYPERPARAMETERS,
    SHAPES,
    act_and_learn,
    make_local,
    make_shared,
    numpy_weights,
    random_rollout,
)
from tests.tools import oracle
from tests.tools.fakes import NumberedEnvs

START, DECAY, EPSILON, RATE = 0.0, 0.9, 1e-5, 0.01
Arrays = dict[str, np.ndarray]


def make() -> SharedState:
    return make_shared(
        100,
        rmsprop_initial=START,
        rmsprop_decay=DECAY,
        rmsprop_epsilon=EPSILON,
        max_grad_norm=1e9,
    )


def second_workers_step(
    between: Callable[[SharedState], None] = lambda shared: None, per_worker: bool = False
) -> tuple[Arrays, Arrays]:
    """By how much the second of two updates, each another worker's, moves the shared weights; and
    the statistics that it leaves.

    Both workers copied their weights before either update, so neither gradient depends on the
    other. With `per_worker`, the second one shares the weights and has statistics of its own.
    """
    shared = make()
    others = shared
    if per_worker:
        others = make()
        others.weights = shared.weights
    one, other = (make_local(state, NumberedEnvs(4, 2)) for state in (shared, others))
    act_and_learn(one, random_rollout(0), RATE)
    between(shared)
    before = numpy_weights(shared.weights)
    act_and_learn(other, random_rollout(1), RATE)
    after = numpy_weights(shared.weights)
    return {n: after[n] - before[n] for n in SHAPES}, numpy_weights(others.mean_squares)


def reset(shared: SharedState) -> None:
    for mean_square in shared.mean_squares.values():
        mean_square.assign(np.full(mean_square.shape, START, np.float32))


def expected(first_counts: bool) -> tuple[Arrays, Arrays]:
    """The same by the oracle: with statistics that have, or have not, seen the first gradient."""
    weights = {n: w.astype(np.float64) for n, w in numpy_weights(make().weights).items()}
    h = HYPERPARAMETERS
    oracles = oracle.Hyperparameters(
        h.discount, h.value_loss_coef, h.entropy_bonus, "mean", np.inf, DECAY, EPSILON
    )
    first, second = (
        oracle.gradients("mlp", weights, oracle.Rollout(*random_rollout(i)), oracles)
        for i in (0, 1)
    )
    steps, mean_squares = {}, {}
    for name in weights:
        left = DECAY * START + (1 - DECAY) * first[name] ** 2 if first_counts else START
        mean_squares[name] = DECAY * left + (1 - DECAY) * second[name] ** 2
        steps[name] = -RATE * second[name] / np.sqrt(mean_squares[name] + EPSILON)
    return steps, mean_squares


def assert_close(found: tuple[Arrays, Arrays], wanted: tuple[Arrays, Arrays]) -> None:
    for one, other in zip(found, wanted, strict=True):
        for name in SHAPES:
            atol = 1e-5 * np.abs(other[name]).max()
            np.testing.assert_allclose(one[name], other[name], rtol=1e-4, atol=atol, err_msg=name)


@pytest.fixture(scope="module")
def with_shared() -> tuple[Arrays, Arrays]:
    return second_workers_step()


def test_a_workers_step_depends_on_the_statistics_that_another_left(with_shared) -> None:
    """Parity: every entry of the second worker's step, and of the statistics it leaves, by the
    oracle, whose statistics have seen both gradients."""
    assert_close(with_shared, expected(first_counts=True))


@pytest.mark.parametrize("twin", [{"between": reset}, {"per_worker": True}], ids=["reset", "own"])
def test_with_statistics_reset_or_of_its_own_a_workers_step_is_another(with_shared, twin) -> None:
    """Parity: negative control: reset in between, or one's own, they have seen one gradient only;
    then most entries of every weight move otherwise."""
    found = second_workers_step(**twin)
    assert_close(found, expected(first_counts=False))
    for name in SHAPES:
        steps = np.abs(with_shared[0][name])
        off = np.abs(found[0][name] - with_shared[0][name])
        assert (off > 1e-3 * steps).mean() > 0.5, name
    with pytest.raises(AssertionError):
        assert_close(found, expected(first_counts=True))


def test_the_rollouts_of_these_tests_move_everything(with_shared) -> None:
    """Analytic: or arrays that never move would agree, whatever was shared."""
    for name in SHAPES:
        assert np.all(with_shared[0][name] != 0), name
        assert np.all(with_shared[1][name] > 0), name
