"""Two workers share weights and RMSProp's statistics, and each learns at its own copy of the weights."""

import numpy as np
import pytest

from a3c.agent import network
from a3c.agent.learner import Learner
from a3c.agent.local import local_network
from a3c.contract import Subject
from tests.tools import oracle, oracle_replay
from tests.tools.crews import (
    IMAGE_SUBJECT,
    SUBJECT,
    act_and_learn,
    make_shared,
    numpy_weights,
    params_with,
    random_rollout,
)

DECAY, EPSILON, RATE = 0.9, 1e-5, 0.01


@pytest.mark.parametrize(
    ("subject", "tolerance"),
    [(SUBJECT, 1e-5), (IMAGE_SUBJECT, 1e-4)],
    ids=["vectors", "images"],
)
def test_a_workers_step_depends_on_the_statistics_that_another_left(
    subject: Subject, tolerance: float
) -> None:
    """Parity: the second worker's step and the statistics after it, by the oracle's RMSProp of both
    gradients. The statistics of the second gradient alone are far from these, and so are those with a
    second gradient at the shared weights.

    Both workers copied their weights before either update, so neither gradient depends on the other.
    """
    flags = {"rmsprop_decay": DECAY, "rmsprop_epsilon": EPSILON, "max_grad_norm": 1e9}
    shapes = network.weight_shapes(subject)
    shared = make_shared(100, shapes=shapes, rmsprop_initial=0.0, **flags)
    start = {n: w.astype(np.float64) for n, w in numpy_weights(shared.weights).items()}
    rollouts = [random_rollout(seed, images=subject is IMAGE_SUBJECT) for seed in (0, 1)]
    params = params_with(network=subject.network)
    learner = Learner(shared, params, subject, rollouts[0].observations)
    one, other = local_network(learner), local_network(learner)
    act_and_learn(one, rollouts[0], RATE)
    before = {n: w.astype(np.float64) for n, w in numpy_weights(shared.weights).items()}
    act_and_learn(other, rollouts[1], RATE)

    hyperparameters = oracle_replay.hyperparameters(params_with(**flags))
    first, second, at_shared = (
        oracle.gradients(
            oracle.Network(subject.network), weights, oracle.Rollout(*rollout), hyperparameters
        )
        for weights, rollout in zip((start, start, before), [*rollouts, rollouts[1]], strict=True)
    )
    settings = {"learning_rate": RATE, "decay": DECAY, "epsilon": EPSILON}
    for name, shape in shapes.items():
        zeros = np.zeros(shape)
        _, left = oracle.rmsprop(zeros, zeros, first[name], **settings)
        step, mean_squares = oracle.rmsprop(zeros, left, second[name], **settings)
        for found, wanted in (
            (shared.mean_squares[name], mean_squares),
            (shared.weights[name] - before[name], step),
        ):
            if subject is SUBJECT:  # ReLUs leave some of an image network's at 0
                assert np.all(found != 0), name
            atol = tolerance * np.abs(wanted).max()
            np.testing.assert_allclose(found, wanted, 10 * tolerance, atol, err_msg=name)
        for statistics, gradient in ((zeros, second[name]), (left, at_shared[name])):
            _, wrong = oracle.rmsprop(zeros, statistics, gradient, **settings)
            is_far = np.abs(mean_squares - wrong) > 1e-3 * mean_squares
            assert is_far[mean_squares > 0].mean() > 0.5, name
