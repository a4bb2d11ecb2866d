"""The oracle itself, against finite differences, explicit loops and cases solved by hand."""

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
    Network("mlp", ()),
    Network("mlp", (), lstm_units=3),
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
