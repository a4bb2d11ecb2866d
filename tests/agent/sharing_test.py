"""Two workers share RMSProp's statistics."""

import numpy as np

from tests.tools import oracle, oracle_replay
from tests.tools.crews import (
    SHAPES,
    act_and_learn,
    make_local,
    make_shared,
    numpy_weights,
    params_with,
    random_rollout,
)
from tests.tools.fakes import NumberedEnvs

DECAY, EPSILON, RATE = 0.9, 1e-5, 0.01


def test_a_workers_step_depends_on_the_statistics_that_another_left() -> None:
    """Parity: the second worker's step and the statistics after it, by the oracle's RMSProp of both gradients. The
    statistics of the second gradient alone are far from these.

    Both workers copied their weights before either update, so neither gradient depends on the other.
    """
    flags = {"rmsprop_decay": DECAY, "rmsprop_epsilon": EPSILON, "max_grad_norm": 1e9}
    shared = make_shared(100, rmsprop_initial=0.0, **flags)
    start = {n: w.astype(np.float64) for n, w in numpy_weights(shared.weights).items()}
    one, other = (make_local(shared, NumberedEnvs(4, 2).observations) for _ in range(2))
    act_and_learn(one, random_rollout(0), RATE)
    before = numpy_weights(shared.weights)
    act_and_learn(other, random_rollout(1), RATE)

    hyperparameters = oracle_replay.hyperparameters(params_with(**flags))
    first, second = (
        oracle.gradients(
            oracle.Network("mlp"), start, oracle.Rollout(*random_rollout(i)), hyperparameters
        )
        for i in (0, 1)
    )
    settings = {"learning_rate": RATE, "decay": DECAY, "epsilon": EPSILON}
    for name in SHAPES:
        zeros = np.zeros(SHAPES[name])
        _, left = oracle.rmsprop(zeros, zeros, first[name], **settings)
        step, mean_squares = oracle.rmsprop(zeros, left, second[name], **settings)
        _, alone = oracle.rmsprop(zeros, zeros, second[name], **settings)
        for found, wanted in (
            (shared.mean_squares[name], mean_squares),
            (shared.weights[name] - before[name], step),
        ):
            assert np.all(found != 0), name
            atol = 1e-5 * np.abs(wanted).max()
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=atol, err_msg=name)
        assert (np.abs(mean_squares - alone) > 1e-3 * mean_squares).mean() > 0.5, name
