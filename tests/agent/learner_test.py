"""Acting, learning and measuring against the oracle, and what the debug log has of them."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from a3c.agent import network
from a3c.agent.collector import Rollout
from a3c.agent.learner import Learner
from a3c.agent.local import LocalNetwork
from a3c.agent.policy import policy_of
from a3c.contract import Subject
from a3c.settings.params import Params
from tests.tools import oracle, oracle_replay
from tests.tools.crews import (
    IMAGE_SHAPES,
    IMAGE_SUBJECT,
    SHAPES,
    SUBJECT,
    act_and_learn,
    assert_same_weights,
    calls_of,
    crew_of_one,
    make_local,
    make_shared,
    numpy_weights,
    params_with,
    random_rollout,
    record,
)
from tests.tools.fakes import NumberedEnvs

SEEN = NumberedEnvs(4, 2).observations
MLP = oracle.Network("mlp")
STATE = np.zeros((2, 0), np.float32)  # of networks without an LSTM
IMAGES = np.zeros((4, 2, 84, 84, 4), np.uint8)


def float64(variables: dict[str, tf.Variable]) -> dict[str, np.ndarray]:
    return {name: v.astype(np.float64) for name, v in numpy_weights(variables).items()}


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("limit", [0.5, 40.0])
def test_an_update_equals_the_same_in_float64(reduction: str, limit: float) -> None:
    """Parity: returns, losses, gradients, clipping, RMSProp and copy of three updates, by the oracle, all arrays."""
    params = params_with(loss_reduction=reduction, entropy_bonus=0.3, max_grad_norm=limit)
    shared = make_shared(100, max_grad_norm=limit)
    local = make_local(shared, SEEN, params)
    ours = oracle.Oracle(
        MLP,
        numpy_weights(shared.weights),
        numpy_weights(shared.mean_squares),
        oracle_replay.hyperparameters(params),
    )
    for seed, rate in enumerate((0.1, 0.2, 0.05)):
        rollout, before = random_rollout(seed), dict(ours.weights)
        norm = ours.update(oracle.Rollout(*rollout), rate)
        assert (norm > limit) == (limit == 0.5)
        np.testing.assert_allclose(act_and_learn(local, rollout, rate), norm, rtol=1e-4)
        for name in SHAPES:
            np.testing.assert_allclose(
                shared.mean_squares[name], ours.mean_squares[name], rtol=1e-5
            )
            moved = np.abs(ours.weights[name] - before[name]).max()
            assert moved > 1e-4  # or the next line would prove nothing
            np.testing.assert_allclose(
                shared.weights[name], ours.weights[name], rtol=1e-4, atol=2e-6
            )
    assert_same_weights(local.weights, shared.weights)


def test_acting_gives_outputs_and_values_of_the_local_weights() -> None:
    """Parity: plain and compiled with XLA, by the oracle, and again after the local weights have changed."""
    for no_xla in (True, False):
        params = params_with(no_xla=no_xla, network="small")
        local = make_local(make_shared(100, shapes=IMAGE_SHAPES), IMAGES, params)
        x = random_rollout(5, images=True).observations[0]
        for _ in range(2):
            expected = oracle.forward(oracle.Network("small"), float64(local.weights), x)
            outputs, values, *_ = local.act(x, STATE)
            np.testing.assert_allclose(outputs, expected["policy"], rtol=1e-4, atol=1e-6)
            for given in (values, local.evaluate_last(x, STATE)):
                np.testing.assert_allclose(given, expected["value"][:, 0], rtol=1e-4, atol=1e-6)
            act_and_learn(local, random_rollout(6, images=True), 0.01)


def test_measuring_tells_what_learning_would_do_and_does_nothing() -> None:
    """Parity: every figure, gradients and activations too, by the oracle; no weight and no statistic moves."""
    params = params_with(entropy_bonus=0.3, detailed_logs=True)
    shared = make_shared(100)
    local = make_local(shared, SEEN, params)

    def everything() -> list[np.ndarray]:
        parts = (shared.weights, shared.mean_squares, local.weights)
        return [np.array(weight) for part in parts for weight in part.values()]

    before = everything()
    rollout = random_rollout(7)
    scalars, gradients, activations = local.measure(rollout)
    for a, b in zip(before, everything(), strict=True):
        np.testing.assert_array_equal(a, b)

    w, h = float64(shared.weights), oracle_replay.hyperparameters(params)
    expected = oracle.gradients(MLP, w, oracle.Rollout(*rollout), h)
    norms = {
        part: oracle.global_norm({n: g for n, g in expected.items() if n.startswith(part)})
        for part in ("policy", "value", "")
    }
    targets = oracle.targets(MLP, w, oracle.Rollout(*rollout), 0.9)
    seen = oracle.forward(MLP, w, rollout.observations[:-1].reshape(6, -1))
    of_losses = oracle.losses(seen["policy"], seen["value"], oracle.Rollout(*rollout), h, targets)
    loss_policy = of_losses.policy - 0.3 * of_losses.entropy
    figures = {
        "rl/policy_entropy": of_losses.entropy,
        "rl/advantage_mean": targets.advantages.mean(),
        "rl/explained_variance": 1 - targets.advantages.var() / targets.returns.var(),
        "loss/loss_policy": loss_policy,
        "loss/loss_value": 0.5 * of_losses.value,
        "loss/loss_combined": of_losses.total,
        "loss/grads_norm_policy": norms["policy"],
        "loss/grads_norm_value": norms["value"],
        "loss/grads_norm_combined": norms[""],
        "loss/grads_norm_combined_clipped": min(0.5, norms[""]),
    }
    assert norms[""] > 0.5
    assert scalars.keys() == figures.keys()
    for name, figure in figures.items():
        np.testing.assert_allclose(scalars[name], figure, rtol=1e-4, err_msg=name)
    for name in SHAPES:
        np.testing.assert_allclose(gradients[name], expected[name], rtol=1e-3, atol=1e-6)
    # The activations are of the observations to learn from, without those of the bootstrap.
    assert set(activations) == {"policy_dense1", "policy_dense2", "value_dense1", "value_dense2"}
    for name, layer in activations.items():
        np.testing.assert_allclose(layer, seen[name], rtol=1e-4, atol=1e-6)


def test_measuring_an_image_network_adds_up_the_parts() -> None:
    """Analytic: policy and value share hidden layers, so the norm is that of the sum of both gradients."""
    params = params_with(network="small", steps_per_update=1, detailed_logs=True)
    rollout = random_rollout(8, 1, 1, images=True, ends=False)
    local = make_local(make_shared(100, shapes=IMAGE_SHAPES), rollout.observations, params)
    scalars, gradients, activations = local.measure(rollout)
    norm = oracle.global_norm({name: g.astype(float) for name, g in gradients.items()})
    np.testing.assert_allclose(scalars["loss/grads_norm_combined"], norm, rtol=1e-4)
    np.testing.assert_allclose(act_and_learn(local, rollout, 0.01), norm, rtol=1e-4)
    assert list(activations) == ["conv1", "conv2", "dense"]


def moved_by(
    rollout: Rollout,
    params: Params,
    anew: bool = False,
    n_envs: int | None = None,
    shapes: Mapping[str, tuple[int, ...]] = IMAGE_SHAPES,
) -> dict[str, np.ndarray]:
    """How far one update moves each weight of `small`: `anew` without what acting has computed, and in a
    network for n_envs environments.
    """
    shared = make_shared(100, shapes=shapes, rmsprop_epsilon=0.1)
    start = numpy_weights(shared.weights)
    n_steps, k = rollout.rewards.shape
    local = make_local(shared, np.zeros((n_steps + 1, n_envs or k, 84, 84, 4), np.uint8), params)
    if anew:
        local.learn(rollout, 0.01)
    else:
        act_and_learn(local, rollout, 0.01)
    return {name: v - start[name] for name, v in shared.weights.items()}


def assert_moved_alike(ours: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    for name, movement in expected.items():
        assert np.abs(movement).max() > 1e-6
        np.testing.assert_allclose(ours[name], movement, rtol=1e-4, atol=1e-8, err_msg=name)


def test_learning_from_some_images_is_learning_from_so_many() -> None:
    """Parity: two of three environments in the function for any number, and in the one for two."""
    params = params_with(network="small", steps_per_update=1)
    rollout = random_rollout(9, 1, 3, images=True, ends=False)
    some = rollout.of_envs(np.array([True, False, True]))
    assert_moved_alike(moved_by(some, params, anew=True, n_envs=3), moved_by(some, params))


@pytest.mark.parametrize(
    ("n_steps", "n_envs", "is_product"), [(3, 1, True), (4, 2, True), (3, 3, False)]
)
def test_few_rows_are_not_multiplied_out(n_steps: int, n_envs: int, is_product: bool) -> None:
    """Parity: three, eight or nine rows move the weights as learning with the whole gradient does. With few rows, no
    product of the dense kernel's shape is used.
    """
    params = params_with(network="small", steps_per_update=n_steps)
    rollout = random_rollout(9, n_steps, n_envs, images=True, ends=False)
    assert_moved_alike(moved_by(rollout, params), moved_by(rollout, params, anew=True))
    learner = Learner(
        make_shared(100, shapes=IMAGE_SHAPES), params, IMAGE_SUBJECT, rollout.observations
    )
    n_whole = []
    for function in (learner.learn, learner.learn_anew):
        products = [x for x in function.graph.get_operations() if x.type == "MatMul"]
        used = [x.outputs[0].shape for x in products if x.outputs[0].consumers()]
        n_whole.append(used.count(IMAGE_SHAPES["dense_kernel"]))
    assert n_whole == [0 if is_product else 1, 1]


def test_few_rows_of_another_network_are_learned_from_as_many(monkeypatch) -> None:
    """Parity: a program has replaced `small` by a network whose `dense` is no rectifier, and does not see the layer
    before it.
    """

    def other(layer: Any, x: Any, subject: Subject) -> tuple[Any, Any]:
        x = layer.conv("conv1", x, filters=16, size=8, stride=4)
        for_value = layer.relu("value_dense", x, 4)
        x = layer.tanh("dense", x, 8)
        return policy_of(subject).head(layer, x), layer.linear("value", for_value, 1)

    monkeypatch.setitem(network.NETWORKS, "small", other)
    shapes = network.weight_shapes(IMAGE_SUBJECT)
    params = params_with(network="small", steps_per_update=3)
    rollout = random_rollout(9, 3, 1, images=True, ends=False)
    few, any_number = (moved_by(rollout, params, anew, shapes=shapes) for anew in (False, True))
    assert_moved_alike(few, any_number)


@pytest.mark.parametrize("options", [{"no_xla": False}, {}, {"no_xla": False, "debug": True}])
def test_what_is_compiled_unless_told_or_debugging(options: dict[str, bool]) -> None:
    """Analytic: acting on images, and learning from vectors; by TensorFlow's attribute of each function."""
    of_images = make_shared(100, shapes=IMAGE_SHAPES)
    for learner, compiled in (
        (
            Learner(of_images, params_with(**options), IMAGE_SUBJECT, IMAGES),
            ("act", "evaluate_last"),
        ),
        (Learner(make_shared(100), params_with(**options), SUBJECT, SEEN), ("learn",)),
    ):
        for name in ("act", "evaluate_last", "learn", "learn_anew", "measure"):
            if (function := getattr(learner, name, None)) is not None:
                is_compiled = function.function_def.attr["_XlaMustCompile"].b
                assert is_compiled == (options == {"no_xla": False} and name in compiled), name


@pytest.mark.parametrize("limit", [0.5, 40.0])
def test_compiled_learning_is_plain_learning(limit: float) -> None:
    """Parity: norm, weights, statistics and copy after two updates, with and without XLA."""
    after = []
    for no_xla in (True, False):
        shared = make_shared(100, max_grad_norm=limit, rmsprop_epsilon=0.1)
        params = params_with(no_xla=no_xla, max_grad_norm=limit)
        local = make_local(shared, SEEN, params)
        norms = [act_and_learn(local, random_rollout(i), 0.1).numpy() for i in (0, 1)]
        assert_same_weights(local.weights, shared.weights)
        after.append([np.array(norms), *shared.weights.values(), *shared.mean_squares.values()])
    for plain, compiled in zip(*after, strict=True):
        assert np.abs(plain).max() > 1e-4
        np.testing.assert_allclose(compiled, plain, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("bad", ["loss", "gradient"])
def test_what_is_compiled_applies_nothing_that_is_not_finite(bad: str) -> None:
    """Analytic: an infinite loss; and a finite one, whose gradient's squares are infinite. Nothing moves, and
    the next update is as if that had not been. (XLA leaves out TensorFlow's own checks.)
    """
    rollout, after = random_rollout(3), []
    for is_spoilt in (False, True):
        shared = make_shared(100, rmsprop_epsilon=0.1)
        local = make_local(shared, SEEN, params_with(no_xla=False))
        if is_spoilt:
            rewards = np.zeros_like(rollout.rewards)
            rewards[-1] = {"loss": np.inf, "gradient": 1.6e19}[bad]
            error = f"{bad} not finite"
            with pytest.raises(tf.errors.InvalidArgumentError, match=error):
                act_and_learn(local, rollout._replace(rewards=rewards), 0.1)
            assert_same_weights(shared.weights, make_shared(100).weights)
        act_and_learn(local, rollout, 0.1)
        after.append(
            [*shared.weights.values(), *shared.mean_squares.values(), *local.weights.values()]
        )
    for one, other in zip(*after, strict=True):
        np.testing.assert_array_equal(one, other)


def test_learning_goes_forward_for_the_last_observations_alone() -> None:
    """Analytic: learning computes the two convolutions once, and learning anew also for the rollout."""
    params = params_with(network="small")
    learner = Learner(make_shared(100, shapes=IMAGE_SHAPES), params, IMAGE_SUBJECT, IMAGES)
    n_convolutions = [
        [operation.type for operation in function.graph.get_operations()].count("Conv2D")
        for function in (learner.act, learner.learn, learner.learn_anew)
    ]
    assert n_convolutions == [2, 2, 4]


@pytest.mark.parametrize("images", [False, True], ids=["vectors", "images"])
def test_one_workers_update_moves_the_shared_weights_and_its_own_copy_only(images: bool) -> None:
    """Analytic: the other's copy, and what it computes, stay until its own update, and then include both."""
    shapes = IMAGE_SHAPES if images else SHAPES
    shared = make_shared(100, shapes=shapes)
    params = params_with(network="small" if images else "mlp")
    rollout = random_rollout(0, images=images)
    one, other = (make_local(shared, rollout.observations, params) for _ in range(2))
    x = random_rollout(1, images=images).observations[0]

    def outputs(local: LocalNetwork) -> np.ndarray:
        return np.concatenate(
            [*(part.ravel() for part in local.act(x, STATE)[:2]), local.evaluate_last(x, STATE)]
        )

    at_start = outputs(other)
    start = numpy_weights(shared.weights)
    assert_same_weights(one.weights, start)
    assert_same_weights(other.weights, start)
    act_and_learn(one, rollout, 0.01)
    after_one = numpy_weights(shared.weights)
    for name in shapes:
        assert (after_one[name] != start[name]).mean() > (0.5 if images else 0.9), name
    assert_same_weights(one.weights, after_one)
    assert_same_weights(other.weights, start)
    np.testing.assert_array_equal(outputs(other), at_start)
    assert (outputs(one) != at_start).all()
    act_and_learn(other, rollout, 0.01)
    assert (outputs(other) != outputs(one)).all()
    assert_same_weights(other.weights, shared.weights)
    assert_same_weights(one.weights, after_one)
    assert (shared.weights["value_bias"] != after_one["value_bias"]).all()


# The debug log


def test_what_acts_on_images_is_dumped(capfd: pytest.CaptureFixture[str]) -> None:
    """Parity: the observations and what is remembered of those before, each for its purpose."""
    subject = IMAGE_SUBJECT._replace(lstm_units=2)
    shared = make_shared(100, shapes=network.weight_shapes(subject))
    params = params_with(network="small", lstm_units=2, debug=True)
    images = random_rollout(3, images=True).observations
    local = LocalNetwork(Learner(shared, params, subject, images))
    states = np.random.default_rng(4).normal(size=(2, 2, 4)).astype(np.float32)
    local.act(images[0], states[0])
    local.evaluate_last(images[1], states[1])
    lines = dumped(capfd.readouterr().err)
    assert [line[:3] for line in lines] == [
        (0, purpose, name) for purpose in ("act", "last") for name in ("observations", "state")
    ]
    for (*_, ours), theirs in zip(lines, (images[0], states[0], images[1], states[1]), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def dumped(text: str) -> list[tuple[int, str, str, np.ndarray]]:
    """Update, purpose, name and array of each line, read without a3c.agent.debug_dump."""
    found = []
    for line in text.splitlines():
        match = re.fullmatch(
            r"A3C-DUMP update=(\d+) purpose=(\w+) name=(\w+) dtype=(\w+) shape=([\d,]*) \[(.*)\]",
            line,
        )
        if match:
            update, purpose, name, dtype, shape, values = match.groups()
            array = np.array(values.split(), dtype).reshape(
                [int(side) for side in shape.split(",")]
            )
            found.append((int(update), purpose, name, array))
    return found


def test_debug_dumps_all_that_the_network_was_fed(capfd: pytest.CaptureFixture[str]) -> None:
    """Parity: every line and every number of two rollouts, with a truncation in the second."""
    envs = NumberedEnvs(4, 1, terminations={(1, 0)}, truncations={(3, 0)})
    crew = crew_of_one(6, envs, params_with(debug=True))
    calls = record(crew.locals[0])
    crew.run()
    assert [type(report).__name__ for report in crew.reports] == ["Game"]
    lines = dumped(capfd.readouterr().err)
    train = ["observations", "actions", "rewards", "continues", "returns", "values", "advantages"]

    expected: list[tuple[int, str, str, np.ndarray | None]] = []
    n_updates = 0
    for name, arguments, *_ in calls:
        if name in ("act", "evaluate_last"):
            purpose = {"act": "act", "evaluate_last": "last"}[name]
            expected.append((n_updates, purpose, "observations", arguments[0]))
        elif name == "learn":
            rollout = arguments[0]
            fields = (rollout.observations[:-1], *rollout[1:4], None, None, None)
            expected += [(n_updates, "train", *pair) for pair in zip(train, fields, strict=True)]
            expected.append((n_updates, "bootstrap", "observations", rollout.observations[-1]))
            n_updates += 1
    assert [line[:3] for line in lines] == [line[:3] for line in expected]
    assert [purpose for _, purpose, _, _ in lines].count("last") == 1
    for (_, _, _, ours), (_, _, _, theirs) in zip(lines, expected, strict=True):
        if theirs is not None:
            np.testing.assert_array_equal(ours, theirs)
            assert ours.dtype == theirs.dtype

    # Values of the first rollout are those of acting; returns and advantages are by hand.
    first = {
        name: array for update, purpose, name, array in lines if (update, purpose) == (0, "train")
    }
    values = np.array([call.result.values for call in calls_of(calls, "act")[:3]])
    np.testing.assert_allclose(first["values"], values, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(first["advantages"], first["returns"] - first["values"], rtol=1e-5)
    np.testing.assert_allclose(first["returns"][1], first["rewards"][1], rtol=1e-6)
    np.testing.assert_allclose(
        first["returns"][0], first["rewards"][0] + 0.9 * first["rewards"][1], rtol=1e-6
    )
