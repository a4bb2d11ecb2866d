"""The oracle itself, against finite differences, explicit loops and cases solved by hand."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from tests.tools import oracle
from tests.tools.oracle import Array, Hyperparameters, Network, Oracle, Rollout, Weights

N_ACTIONS = 3
# Small images whose last row and column no kernel sees. They end in 2 x 3 positions, so that height
# and width cannot be confused.
OBSERVATION_SHAPES = {"nature": (45, 54, 2), "small": (30, 38, 2), "mlp": (3,)}

HYPERPARAMETERS = Hyperparameters(
    discount=0.9,
    value_loss_weight=0.7,
    entropy_weight=0.3,
    reduction="mean",
    max_gradient_norm=math.inf,
    decay=0.75,
    epsilon=0.1,
)
STEP = 1e-6  # of finite differences
MLP = Network("mlp")


def random_weights(network: Network, rng: np.random.Generator) -> Weights:
    """Weights that keep signals at their size: a policy far from uniform, few dead units."""
    shapes = oracle.weight_shapes(network, OBSERVATION_SHAPES[network.kind], N_ACTIONS)
    return {
        name: rng.normal(size=shape) * (0.1 if len(shape) == 1 else math.prod(shape[:-1]) ** -0.5)
        for name, shape in shapes.items()
    }


def random_rollout(
    network: Network, rng: np.random.Generator, n_steps: int = 3, n_envs: int = 2
) -> Rollout:
    """In the first environment, the first step ends an episode, in the last one, the last step."""
    shape = (n_steps + 1, n_envs, *OBSERVATION_SHAPES[network.kind])
    continues = np.ones((n_steps, n_envs))
    continues[0, 0] = continues[-1, -1] = 0.0
    rollout = Rollout(
        rng.normal(size=shape) if network.kind == "mlp" else rng.integers(0, 256, shape, np.uint8),
        rng.integers(0, N_ACTIONS, (n_steps, n_envs)),
        rng.normal(size=(n_steps, n_envs)),
        continues,
        rng.normal(size=(1, n_envs, network.state_size())),
    )
    if network.policy != "categorical":
        rollout = rollout._replace(actions=rng.normal(size=(n_steps, n_envs, N_ACTIONS)))
    return rollout


def explicit_return(rollout: Rollout, bootstrap: Array, discount: float, t: int, k: int) -> float:
    """R_t as the discounted sum of all later rewards."""
    total, weight = 0.0, 1.0
    for later in range(t, len(rollout.rewards)):
        total += weight * float(rollout.rewards[later, k])
        weight *= discount * float(rollout.continues[later, k])
    return total + weight * float(bootstrap[k])


# Networks.


def test_weight_shapes() -> None:
    """Analytic: at 84 x 84 x 4, the numbers of weights that the published networks have; the paper's with
    an LSTM (section 5.1), and what it has for continuous actions (section 9)."""
    image = (84, 84, 4)
    mlp = [("_dense1", 4 * 64, 64), ("_dense2", 64 * 64, 64)]
    paper = Network("small", lstm_units=256)
    continuous = Network("mlp", (200,), "relu", 128, "per_state")
    free = Network("mlp", (8,), policy="per_dimension")
    lstm = [("_lstm_input", 200 * 512), ("_lstm_recurrent", 128 * 512), ("_lstm", None, 512)]
    expected = {
        (Network("nature"), image, 6): [
            ("conv1", 8 * 8 * 4 * 32, 32),
            ("conv2", 4 * 4 * 32 * 64, 64),
            ("conv3", 3 * 3 * 64 * 64, 64),
            ("dense", 3136 * 512, 512),
            ("policy", 512 * 6, 6),
            ("value", 512, 1),
        ],
        (Network("small"), image, 6): [
            ("conv1", 8 * 8 * 4 * 16, 16),
            ("conv2", 4 * 4 * 16 * 32, 32),
            ("dense", 2592 * 256, 256),
            ("policy", 256 * 6, 6),
            ("value", 256, 1),
        ],
        (paper, image, 6): [
            ("conv1", 8 * 8 * 4 * 16, 16),
            ("conv2", 4 * 4 * 16 * 32, 32),
            ("dense", 2592 * 256, 256),
            ("lstm_input", 256 * 1024),
            ("lstm_recurrent", 256 * 1024),
            ("lstm", None, 1024),
            ("policy", 256 * 6, 6),
            ("value", 256, 1),
        ],
        (continuous, (11,), 3): [
            ("policy_dense1", 11 * 200, 200),
            *((f"policy{layer}", *n) for layer, *n in lstm),
            ("policy", 128 * 3, 3),
            ("policy_variance", 128, 1),
            ("value_dense1", 11 * 200, 200),
            *((f"value{layer}", *n) for layer, *n in lstm),
            ("value", 128, 1),
        ],
        (free, (4,), 2): [
            ("policy_dense1", 4 * 8, 8),
            ("policy", 8 * 2, 2),
            ("policy_log_sd", 2),
            ("value_dense1", 4 * 8, 8),
            ("value", 8, 1),
        ],
        (MLP, (4,), 2): [
            *((f"policy{layer}", *n) for layer, *n in mlp),
            ("policy", 64 * 2, 2),
            *((f"value{layer}", *n) for layer, *n in mlp),
            ("value", 64, 1),
        ],
    }
    for arguments, layers in expected.items():
        shapes = oracle.weight_shapes(*arguments)
        assert [(name, math.prod(shape)) for name, shape in shapes.items()] == [
            (layer if layer == "policy_log_sd" else f"{layer}_{part}", n)
            for layer, *sizes in layers
            for part, n in zip(("kernel", "bias"), sizes, strict=False)
            if n is not None
        ]


def pixel_by_pixel_convolution(image: Array, kernel: Array, bias: Array, stride: int) -> Array:
    """One image (height, width, in) through a convolution and a rectifier."""
    size = len(kernel)
    n_rows = (image.shape[0] - size) // stride + 1
    n_columns = (image.shape[1] - size) // stride + 1
    outputs = np.empty((n_rows, n_columns, len(bias)))
    for row, column in itertools.product(range(n_rows), range(n_columns)):
        activation = bias.copy()
        for i, j in itertools.product(range(size), range(size)):
            activation += image[stride * row + i, stride * column + j] @ kernel[i, j]
        outputs[row, column] = np.where(activation > 0, activation, 0)
    return outputs


@pytest.mark.parametrize(("kind", "strides"), [("nature", (4, 2, 1)), ("small", (4, 2))])
def test_image_networks_forward(kind: str, strides: tuple[int, ...]) -> None:
    """Parity: against the same networks written with loops over pixels and channels."""
    rng, network = np.random.default_rng(1), Network(kind)
    weights = random_weights(network, rng)
    observations = rng.integers(0, 256, (2, *OBSERVATION_SHAPES[kind]), np.uint8)
    outputs = oracle.forward(network, weights, observations)

    for n, observation in enumerate(observations):
        image = observation / 255
        for number, stride in enumerate(strides, start=1):
            kernel, bias = weights[f"conv{number}_kernel"], weights[f"conv{number}_bias"]
            image = pixel_by_pixel_convolution(image, kernel, bias, stride)
        height, width, channels = image.shape
        assert (height, width) == (2, 3)
        hidden = weights["dense_bias"].copy()
        for row, column, channel in itertools.product(range(2), range(3), range(channels)):
            at = (row * width + column) * channels + channel
            hidden += image[row, column, channel] * weights["dense_kernel"][at]
        hidden = np.where(hidden > 0, hidden, 0)
        for head in ("policy", "value"):
            expected = weights[f"{head}_bias"] + sum(
                hidden[i] * weights[f"{head}_kernel"][i] for i in range(len(hidden))
            )
            np.testing.assert_allclose(outputs[head][n], expected, rtol=1e-11, atol=1e-12)


def by_hand(weights: Weights, layer: str, inputs: list[float]) -> list[float]:
    """A dense layer, unit by unit."""
    kernel, bias = weights[f"{layer}_kernel"], weights[f"{layer}_bias"]
    return [
        float(bias[unit]) + sum(x * float(kernel[i, unit]) for i, x in enumerate(inputs))
        for unit in range(len(bias))
    ]


@pytest.mark.parametrize("network", [MLP, Network("mlp", (5,), "relu"), Network("mlp", (4, 3, 2))])
def test_mlp_forward(network: Network) -> None:
    """Parity: against the same network written unit by unit."""
    rng = np.random.default_rng(2)
    weights = random_weights(network, rng)
    observation = rng.normal(size=3)
    outputs = oracle.forward(network, weights, observation[np.newaxis])
    activate = {"tanh": math.tanh, "relu": lambda x: max(x, 0.0)}[network.activation]
    for head in ("policy", "value"):
        hidden = [float(x) for x in observation]
        for number in range(len(network.hidden_units)):
            hidden = [activate(x) for x in by_hand(weights, f"{head}_dense{number + 1}", hidden)]
        expected = by_hand(weights, head, hidden)
        np.testing.assert_allclose(outputs[head][0], expected, rtol=1e-12, atol=1e-13)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize("kind", ["mlp", "small"])
def test_lstm_forward(kind: str) -> None:
    """Parity: cell by cell, from the layer below, through three steps of two environments, of which one
    begins again after an end."""
    rng, network = np.random.default_rng(3), Network(kind, (5,), lstm_units=2)
    weights, rollout = random_weights(network, rng), random_rollout(network, rng)
    seen, (state,) = rollout.observations[:-1].reshape(6, *OBSERVATION_SHAPES[kind]), rollout.states
    outputs = oracle.forward(network, weights, seen, state, rollout.continues)
    for number, lstm in enumerate(network.lstms()):
        below = {"mlp": lstm.replace("lstm", "dense1"), "small": "dense"}[kind]
        names = {"_kernel": "_input_kernel", "_bias": "_bias"}
        from_input = {name: weights[f"{lstm}{ours}"] for name, ours in names.items()}
        from_h = {"_kernel": weights[f"{lstm}_recurrent_kernel"], "_bias": np.zeros(8)}
        for k in range(2):
            *h, c0, c1 = (float(x) for x in state[k, 4 * number : 4 * number + 4])
            c = [c0, c1]
            for t in range(3):
                inputs = by_hand(from_input, "", [float(x) for x in outputs[below][2 * t + k]])
                sums = [x + y for x, y in zip(inputs, by_hand(from_h, "", h), strict=True)]
                for cell in range(2):
                    i, f, o = (sigmoid(sums[2 * gate + cell]) for gate in range(3))
                    c[cell] = f * c[cell] + i * math.tanh(sums[6 + cell])
                    h[cell] = o * math.tanh(c[cell])
                remembered = outputs["state"][2 * t + k, 4 * number : 4 * number + 4]
                np.testing.assert_allclose(remembered, [*h, *c], rtol=1e-12)
                np.testing.assert_array_equal(outputs[lstm][2 * t + k], remembered[:2])
                if rollout.continues[t, k] == 0:
                    h, c = [0.0, 0.0], [0.0, 0.0]
    for head in ("policy", "value"):
        on_top = by_hand(weights, head, [float(x) for x in outputs[network.below(head)][5]])
        np.testing.assert_allclose(outputs[head][5], on_top, rtol=1e-12)


def test_what_does_not_fit_is_refused() -> None:
    """Analytic: images that were scaled before, shapes that NumPy would broadcast, missing weights."""
    rng = np.random.default_rng(4)
    weights, rollout = random_weights(MLP, rng), random_rollout(MLP, rng)

    def refused(match: str, **changes: Any) -> None:
        with pytest.raises(ValueError, match=match):
            oracle.gradients(MLP, weights, rollout._replace(**changes), HYPERPARAMETERS)

    refused("observations", observations=rollout.observations[:-1])
    refused("observations", rewards=rollout.rewards[:, :1])
    refused("continues", continues=rollout.continues[:1])
    refused("actions", actions=rollout.actions[..., None])
    refused("remembers 0", states=np.zeros((1, 2, 4)))
    for wrong in ({"value_bias": np.zeros(2)}, {"value_bias2": np.zeros(1)}):
        with pytest.raises(ValueError, match="weights of shapes"):
            oracle.gradients(MLP, weights | wrong, rollout, HYPERPARAMETERS)
        with pytest.raises(ValueError, match="mean squares"):
            Oracle(MLP, weights, weights | wrong, HYPERPARAMETERS)
    small = Network("small")
    with pytest.raises(ValueError, match="uint8"):
        oracle.forward(small, random_weights(small, rng), np.zeros((1, 30, 38, 2)))


# Returns and losses.


def test_returns_against_the_explicit_sum() -> None:
    """Parity: every pattern of episode ends over four steps, one environment for each."""
    rng = np.random.default_rng(5)
    continues = np.array(list(itertools.product([0.0, 1.0], repeat=4))).T
    rewards = rng.normal(size=continues.shape)
    bootstrap = rng.normal(size=16)
    returns = oracle.n_step_returns(rewards, continues, bootstrap, 0.9)
    rollout = Rollout(np.empty(0), np.empty(0), rewards, continues)
    expected = [
        [explicit_return(rollout, bootstrap, 0.9, t, k) for k in range(16)] for t in range(4)
    ]
    np.testing.assert_allclose(returns, expected, rtol=1e-13)


def test_log_softmax() -> None:
    """Analytic: probabilities 1/6, 2/6, 3/6, also from logits whose exponentials overflow."""
    logits = np.log([[1.0, 2.0, 3.0]])
    for shift in (0.0, 1000.0, -1000.0):
        np.testing.assert_allclose(
            np.exp(oracle.log_softmax(logits + shift)), [[1 / 6, 2 / 6, 3 / 6]], rtol=1e-12
        )


def test_a_gaussians_log_density_and_entropy() -> None:
    """Parity: the density of each dimension, written by its definition, and the entropy as an integral."""
    means, sds = [0.3, -1.0], [0.5, 2.0]
    outputs = np.array([[*means, *np.log(sds)]])
    action = np.array([[[1.1, 0.4]]])

    def density(x: Array, mean: float, sd: float) -> Array:
        return np.exp(-((x - mean) ** 2) / (2 * sd**2)) / (sd * math.sqrt(2 * math.pi))

    (log_density,), (entropy,) = oracle.log_probabilities_and_entropies(outputs, action)
    pairs = [*zip(means, sds, strict=True)]
    expected = math.prod(density(a, *pair) for a, pair in zip(action[0, 0], pairs, strict=True))
    assert math.exp(log_density) == pytest.approx(expected, rel=1e-12)
    x = np.linspace(-40.0, 40.0, 800_001)
    integrals = 0.0
    for pair in pairs:
        p = density(x, *pair)
        integrals += -np.sum(p * np.log(np.maximum(p, 1e-300))) * (x[1] - x[0])
    assert entropy == pytest.approx(integrals, rel=1e-9)


@pytest.mark.parametrize(("policy", "sd"), [("per_dimension", 2.0), ("per_state", 1.5)])
def test_a_gaussians_standard_deviation(policy: str, sd: float) -> None:
    """Analytic: log 2 as a free weight; softplus(log(e^2.25 - 1)) = 2.25 as a variance."""
    network = Network("mlp", (2,), policy=policy)
    shapes = oracle.weight_shapes(network, (3,), 4)
    weights = {name: np.zeros(shape) for name, shape in shapes.items()}
    if policy == "per_dimension":
        weights["policy_log_sd"][:] = [0.0, math.log(2.0), 0.0, 0.0]
    else:
        weights["policy_variance_bias"][:] = math.log(math.exp(2.25) - 1)
    (outputs,) = oracle.forward(network, weights, np.zeros((1, 3)))["policy"]
    others = 1.0 if policy == "per_dimension" else sd
    np.testing.assert_allclose(np.exp(outputs), [1] * 4 + [others, sd, others, others], rtol=1e-12)


def test_running_statistics() -> None:
    """Analytic: mean 3 and variance 8/3 of 1, 3, 5; sums with discount 0.5 that begin with each episode."""
    seen = np.array([[1.0, 0.0], [3.0, 0.0], [5.0, 0.0]])
    sd = math.sqrt(8 / 3 + 1e-8)
    found = oracle.normalised(np.array([[4.0, 0.0], [1e9, -1.0]]), seen)
    np.testing.assert_allclose(found, [[1 / sd, 0.0], [10.0, -10.0]], rtol=1e-12)
    np.testing.assert_allclose(oracle.scaled(np.array([4.0]), seen[:, 0]), [4 / sd], rtol=1e-12)
    np.testing.assert_array_equal(oracle.scaled(np.array([4.0, -11.0]), seen[:0, 0]), [4, -10])
    np.testing.assert_array_equal(oracle.normalised(seen, seen[:0]), seen)
    rewards, continues = np.array([[1.0], [2.0], [4.0]]), np.array([[1.0], [0.0], [1.0]])
    np.testing.assert_array_equal(
        oracle.discounted_sums(rewards, continues, 0.5), [[1.0], [2.5], [4.0]]
    )


@pytest.mark.parametrize(("reduction", "n_averaged"), [("mean", 6), ("sum", 1)])
def test_losses(reduction: oracle.Reduction, n_averaged: int) -> None:
    """Parity: against the definitions, written state by state."""
    rng = np.random.default_rng(6)
    weights, rollout = random_weights(MLP, rng), random_rollout(MLP, rng)
    outputs = [oracle.forward(MLP, weights, states) for states in rollout.observations]
    logits, values = (
        np.concatenate([output[head] for output in outputs[:-1]]) for head in ("policy", "value")
    )
    losses = oracle.losses(
        logits,
        values,
        rollout,
        HYPERPARAMETERS._replace(reduction=reduction),
        oracle.targets(MLP, weights, rollout, discount=0.9),
    )

    bootstrap = outputs[-1]["value"][:, 0]
    policy_loss = value_loss = entropy = 0.0
    for n, (t, k) in enumerate(itertools.product(range(3), range(2))):
        exponentials = [math.exp(logit) for logit in logits[n]]
        policy = [exponential / sum(exponentials) for exponential in exponentials]
        advantage = explicit_return(rollout, bootstrap, 0.9, t, k) - float(values[n, 0])
        policy_loss += -math.log(policy[rollout.actions[t, k]]) * advantage
        value_loss += advantage**2 / 2
        entropy += sum(-p * math.log(p) for p in policy)
    policy_loss, value_loss, entropy = (
        part / n_averaged for part in (policy_loss, value_loss, entropy)
    )
    total = policy_loss - 0.3 * entropy + 0.7 * value_loss
    np.testing.assert_allclose(losses, [policy_loss, value_loss, entropy, total], rtol=1e-12)


# Gradients.


def sampled_entries(gradient: Array, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """The entry that counts most, and two others."""
    drawn = rng.integers(0, gradient.size, 2)
    return [
        tuple(int(i) for i in np.unravel_index(at, gradient.shape))
        for at in (np.argmax(np.abs(gradient)), *drawn)
    ]


NETWORKS = [
    Network("nature"),
    Network("small"),
    Network("mlp", (9, 8)),
    Network("mlp", (9, 8), "relu", policy="per_dimension"),
    Network("mlp", (5,), policy="per_state"),
    Network("small", lstm_units=3),
    Network("mlp", (5,), lstm_units=3),
    Network("mlp", (6,), "relu", 2, "per_state"),
]


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: "-".join(map(str, network)))
def test_gradients_against_finite_differences(network: Network) -> None:
    """Parity: central differences of the losses, with returns and advantages held fixed.

    With both reductions, each weight as a whole in a random direction, and single entries of it:
    all of the mlp's, a sample of the others'. Rounding leaves an error of about 1e-16 / STEP.
    """
    rng = np.random.default_rng(7)
    weights, rollout = random_weights(network, rng), random_rollout(network, rng)
    both = [HYPERPARAMETERS._replace(reduction="mean"), HYPERPARAMETERS._replace(reduction="sum")]
    means, sums = (oracle.gradients(network, weights, rollout, one) for one in both)
    assert means.keys() == sums.keys() == weights.keys()

    (state,) = rollout.states
    values, remembered = [], state
    for t, seen in enumerate(rollout.observations):
        outputs = oracle.forward(network, weights, seen, remembered)
        values.append(outputs["value"][:, 0])
        remembered = outputs["state"] * rollout.continues[min(t, 2), :, None]
    returns = np.array(
        [[explicit_return(rollout, values[-1], 0.9, t, k) for k in range(2)] for t in range(3)]
    )
    constants = oracle.Targets(returns, returns - np.array(values[:-1]))
    states = rollout.observations[:-1].reshape(6, *OBSERVATION_SHAPES[network.kind])

    def total_losses() -> Array:
        outputs = oracle.forward(network, weights, states, state, rollout.continues)
        heads = outputs["policy"], outputs["value"]
        return np.array([oracle.losses(*heads, rollout, one, constants).total for one in both])

    def slopes(weight: Array, at: tuple[int, ...] | slice, direction: Array | float) -> Array:
        kept = weight[at].copy()
        weight[at] = kept + STEP * direction
        above = total_losses()
        weight[at] = kept - STEP * direction
        below = total_losses()
        weight[at] = kept
        return (above - below) / (2 * STEP)

    for name, weight in weights.items():
        gradients = np.stack([means[name], sums[name]])
        assert gradients.shape == (2, *weight.shape)
        assert np.abs(gradients[0]).max() > 1e-3, f"{name}: the check would be blind"
        entries = sampled_entries(gradients[0], rng)
        if network.kind == "mlp":
            entries = list(np.ndindex(weight.shape))
        direction = rng.normal(size=weight.shape)
        direction /= np.linalg.norm(direction)
        found = [slopes(weight, slice(None), direction)]
        found += [slopes(weight, entry, 1.0) for entry in entries]
        expected = [np.array([np.sum(gradient * direction) for gradient in gradients])]
        expected += [np.array([means[name][at], sums[name][at]]) for at in entries]
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8, err_msg=name)


# Optimizer.


@pytest.mark.parametrize(
    ("max_norm", "factor"),
    [(2.5, 0.5), (4.999, 0.9998), (5.0, 1.0), (5.001, 1.0), (math.inf, 1.0)],
    ids=["above", "just above", "at", "just below", "never"],
)
def test_clipping(max_norm: float, factor: float) -> None:
    """Analytic: two arrays of a global norm of exactly 5, on both sides of the limit."""
    arrays = {"a": np.array([[3.0], [0.0]]), "b": np.array([-4.0])}
    assert oracle.global_norm(arrays) == 5.0
    clipped = oracle.clip_by_global_norm(arrays, max_norm)
    np.testing.assert_allclose(clipped["a"], [[3 * factor], [0.0]], rtol=1e-15)
    np.testing.assert_allclose(clipped["b"], [-4 * factor], rtol=1e-15)


@pytest.mark.parametrize(
    ("start", "mean_square", "step"),
    # 0.75 * 0 + 0.25 * 2**2 = 1, root of 1 + 1.25 = 1.5; 0.75 * 5 + 1 = 4.75, root of 6.
    [(0.0, 1.0, 0.3 * 2 / 1.5), (5.0, 4.75, 0.3 * 2 / math.sqrt(6))],
    ids=["from 0", "from 5"],
)
def test_rmsprop_first_step(start: float, mean_square: float, step: float) -> None:
    """Analytic: one step by hand, from both starts; gradient 2, learning rate 0.3, decay 0.75."""
    weight, after = oracle.rmsprop(
        np.array([10.0]), np.array([start]), np.array([2.0]), 0.3, 0.75, 1.25
    )
    np.testing.assert_allclose(after, [mean_square], rtol=1e-15)
    np.testing.assert_allclose(weight, [10.0 - step], rtol=1e-15)


def test_learning_rate() -> None:
    """Analytic: all of it at first, half of it half way, none at the end and after."""
    rates = [oracle.linear_learning_rate(7e-4, done, 1000) for done in (0, 250, 500, 1000, 1500)]
    assert rates == [7e-4, 7e-4 * 0.75, 7e-4 * 0.5, 0.0, 0.0]


# The whole update.


@pytest.mark.parametrize(
    ("kind", "max_norm", "start"),
    [
        ("mlp", math.inf, 0.0),
        ("mlp", math.inf, 1.0),
        ("mlp", 0.4, 0.0),
        ("mlp", 0.4, 1.0),
        ("small", 0.4, 1.0),
        ("nature", 0.4, 1.0),
    ],
)
def test_two_updates_by_hand(kind: str, max_norm: float, start: float) -> None:
    """Analytic: from weights of zero, only the biases of the two heads move.

    One environment, two steps with actions 0 and 1, rewards 1 and 3; discount 0.9. With values v
    and probabilities p (the same in every state), returns are R_1 = 3 + 0.9 v, R_0 = 1 + 0.9 R_1.
    """
    network = Network(kind)
    shapes = oracle.weight_shapes(network, OBSERVATION_SHAPES[kind], N_ACTIONS)
    zeros = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    learner = Oracle(
        network,
        zeros,
        oracle.constant(zeros, start),
        HYPERPARAMETERS._replace(max_gradient_norm=max_norm),
    )
    rollout = random_rollout(network, np.random.default_rng(11), n_steps=2, n_envs=1)._replace(
        actions=np.array([[0], [1]]), rewards=np.array([[1.0], [3.0]]), continues=np.ones((2, 1))
    )

    theta, mean_squares = [0.0] * 4, [start] * 4  # three logits and the value
    for learning_rate in (0.5, 0.25):
        exponentials = [math.exp(logit) for logit in theta[:3]]
        p = [exponential / sum(exponentials) for exponential in exponentials]
        entropy = -sum(q * math.log(q) for q in p)
        later = 3 + 0.9 * theta[3]
        a0, a1 = 1 + 0.9 * later - theta[3], later - theta[3]
        g = [0.3 * q * (math.log(q) + entropy) for q in p]
        g[0] += ((p[0] - 1) * a0 + p[0] * a1) / 2
        g[1] += (p[1] * a0 + (p[1] - 1) * a1) / 2
        g[2] += (p[2] * a0 + p[2] * a1) / 2
        g.append(-0.7 * (a0 + a1) / 2)
        norm = math.sqrt(sum(x**2 for x in g))
        assert norm > 0.4
        clipped = [x * 0.4 / norm for x in g] if max_norm == 0.4 else g
        mean_squares = [0.75 * m + 0.25 * x**2 for m, x in zip(mean_squares, clipped, strict=True)]
        theta = [
            w - learning_rate * x / math.sqrt(m + 0.1)
            for w, x, m in zip(theta, clipped, mean_squares, strict=True)
        ]
        assert learner.update(rollout, learning_rate) == pytest.approx(norm, rel=1e-13)

    moved = {"policy_bias": slice(0, 3), "value_bias": slice(3, 4)}
    for name in zeros:
        if name in moved:
            np.testing.assert_allclose(learner.weights[name], theta[moved[name]], rtol=1e-13)
            np.testing.assert_allclose(
                learner.mean_squares[name], mean_squares[moved[name]], rtol=1e-13
            )
        else:
            np.testing.assert_array_equal(learner.weights[name], 0.0)
            np.testing.assert_allclose(learner.mean_squares[name], 0.75**2 * start, rtol=1e-15)


def test_a_gradient_that_is_not_finite_is_never_applied() -> None:
    """Analytic: the update fails and leaves everything as it was."""
    rng = np.random.default_rng(14)
    weights, rollout = random_weights(MLP, rng), random_rollout(MLP, rng)
    rollout.rewards[0, 0] = math.nan
    learner = Oracle(MLP, weights, oracle.constant(weights, 1.0), HYPERPARAMETERS)
    with pytest.raises(FloatingPointError, match="not finite"):
        learner.update(rollout, 0.1)
    for name in weights:
        np.testing.assert_array_equal(learner.weights[name], weights[name])
        np.testing.assert_array_equal(learner.mean_squares[name], 1.0)
