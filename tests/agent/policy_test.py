"""The policy: what is drawn, and how likely it was."""

import numpy as np
import pytest
import tensorflow as tf

from a3c.agent import kernels, network
from a3c.agent.policy import Categorical, Gaussian, policy_of
from a3c.contract import Subject
from tests.tools.agents import FORGETFUL, subject_of


def sample(
    policy: Categorical | Gaussian, outputs: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """An action for each row of outputs."""
    return policy.chosen(outputs, policy.noise(generator, len(outputs)))


# Discrete actions


def test_actions_are_drawn_from_the_softmax() -> None:
    """Analytic: frequencies of 20,000 draws within five standard deviations of the probabilities."""
    logits = np.array([0.0, 1.0, -2.0, 3.0], np.float32)
    n = 20_000
    actions = sample(Categorical(4), np.tile(logits, (n, 1)), np.random.default_rng(0))
    assert actions.shape == (n,)
    assert actions.dtype == np.int32
    p = np.exp(logits.astype(float)) / np.exp(logits.astype(float)).sum()
    frequencies = np.bincount(actions, minlength=4) / n
    assert np.all(np.abs(frequencies - p) < 5 * np.sqrt(p * (1 - p) / n))


def test_certain_logits_leave_no_choice() -> None:
    """Analytic: at ±1000, the likeliest action is always drawn, and nothing overflows."""
    logits = np.array([[-1000, 1000, 0], [0, -1000, -1000], [-1000, -1000, 1000]], np.float32)
    generator = np.random.default_rng(2)
    with np.errstate(all="raise"):
        for _ in range(100):
            np.testing.assert_array_equal(sample(Categorical(3), logits, generator), [1, 0, 2])


@pytest.mark.parametrize("shape", [(2,), (1, 2), (3, 1, 2)])
def test_large_logits_of_any_shape_have_probabilities(shape: tuple[int, ...]) -> None:
    """Analytic: e^1000 is no float, but 1 : 3 are the odds; each row has logits of another size."""
    rows = np.arange(np.prod(shape) // 2).reshape(*shape[:-1], 1)
    logits = np.array([1000.0, 1000.0 + np.log(3)]) - 2000.0 * rows
    expected = np.broadcast_to([0.25, 0.75], shape)
    np.testing.assert_allclose(Categorical(2).probabilities(logits), expected, rtol=1e-6)
    far_apart = np.broadcast_to([-1000.0, 1000.0], shape)
    assert (Categorical(2).probabilities(far_apart) == [0, 1]).all()


def test_the_same_generator_draws_the_same_actions() -> None:
    """Golden: one Gumbel draw for each logit, in order, from the given generator."""
    logits = np.random.default_rng(3).standard_normal((5, 4)).astype(np.float32)
    gumbel = np.random.default_rng(4).gumbel(size=(5, 4))
    np.testing.assert_array_equal(
        sample(Categorical(4), logits, np.random.default_rng(4)), (logits + gumbel).argmax(axis=1)
    )


# Continuous actions

T, K, N = 3, 4, 2
GAUSSIAN = Gaussian(N, sd_per_state=False)


def example(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means, logs of the sd within ±4, and actions up to four sd from the mean; each (T, K, N)."""
    generator = np.random.default_rng(seed)
    means, log_sds, z = generator.uniform(-4, 4, (3, T, K, N)).astype(np.float32)
    return means, log_sds, means + np.exp(log_sds) * z


def test_log_probabilities_and_entropies_are_those_of_the_normal_distribution() -> None:
    """Parity: NumPy in float64, summed over the dimensions of an action."""
    means, log_sds, actions = example()
    outputs = np.concatenate([means, log_sds], axis=-1)
    m, s, a = (x.astype(np.float64) for x in (means, np.exp(log_sds.astype(np.float64)), actions))
    log_p = (-((a - m) ** 2) / (2 * s**2) - np.log(s) - np.log(2 * np.pi) / 2).sum(axis=-1)
    entropies = (np.log(s) + np.log(2 * np.pi * np.e) / 2).sum(axis=-1)
    found = GAUSSIAN.log_probabilities(tf.constant(outputs), tf.constant(actions))
    assert found.shape == GAUSSIAN.entropies(outputs).shape == (T, K)
    np.testing.assert_allclose(found, log_p, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(GAUSSIAN.entropies(outputs), entropies, rtol=1e-5, atol=1e-5)


def test_the_density_integrates_to_one_and_its_entropy_is_minus_the_mean_log_density() -> None:
    """Analytic: sums over a fine grid of two dimensions, whatever the formulas are."""
    axis = np.linspace(-12, 12, 481, dtype=np.float32)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1)
    outputs = np.array([0.5, -1.0, np.log(0.4), np.log(1.5)], np.float32)
    log_p = GAUSSIAN.log_probabilities(tf.constant(outputs), tf.constant(grid)).numpy()
    p = np.exp(log_p.astype(np.float64)) * (axis[1] - axis[0]) ** 2
    assert p.sum() == pytest.approx(1, abs=1e-4)
    assert -(p * log_p).sum() == pytest.approx(float(GAUSSIAN.entropies(outputs)), abs=1e-3)


def test_gradients_of_log_probability_and_entropy() -> None:
    """Analytic: (a − μ)/σ² for the means, ((a − μ)/σ)² − 1 for log σ; the entropy's are 0 and 1."""
    means, log_sds, actions = example(1)
    outputs = tf.constant(np.concatenate([means, log_sds], axis=-1))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(outputs)
        log_p, entropies = GAUSSIAN.log_probabilities(outputs, actions), GAUSSIAN.entropies(outputs)
    sds = np.exp(log_sds.astype(np.float64))
    z = (actions - means) / sds
    expected = np.concatenate([z / sds, z**2 - 1], axis=-1)
    np.testing.assert_allclose(tape.gradient(log_p, outputs), expected, rtol=1e-3, atol=1e-3)
    expected = np.concatenate([np.zeros_like(means), np.ones_like(means)], axis=-1)
    np.testing.assert_array_equal(tape.gradient(entropies, outputs), expected)


def test_what_is_drawn_has_the_mean_and_the_sd_and_its_dimensions_are_independent() -> None:
    """Analytic: 20,000 draws in each of two states, within five standard deviations."""
    n = 20_000
    outputs = np.array([[1, -2, *np.log([0.1, 3])], [0, 50, *np.log([2, 1])]], np.float32)
    drawn = sample(Gaussian(2, False), np.repeat(outputs, n, axis=0), np.random.default_rng(0))
    assert (drawn.shape, drawn.dtype) == ((2 * n, 2), np.float32)
    means, sds = outputs[:, None, :2], np.exp(outputs[:, None, 2:])
    z = (drawn.reshape(2, n, 2) - means).astype(np.float64) / sds
    assert np.abs(z.mean(axis=1)).max() < 5 / np.sqrt(n)
    assert np.abs((z**2).mean(axis=1) - 1).max() < 5 * np.sqrt(2 / n)
    assert np.abs((z**4).mean(axis=1) - 3).max() < 5 * np.sqrt(96 / n)  # normal, not uniform
    columns = np.concatenate(z, axis=1).T
    others = columns @ columns.T / n - np.eye(4)
    assert np.abs(others - np.diag(np.diag(others))).max() < 5 / np.sqrt(n)


def test_the_same_generator_draws_the_same_continuous_actions() -> None:
    """Golden: one normal draw for each dimension of each row, in order; the likeliest is the mean."""
    means, log_sds, _ = example()
    outputs = np.concatenate([means[0], log_sds[0]], axis=-1)
    noise = np.random.default_rng(4).standard_normal((K, N))
    expected = (means[0] + np.exp(log_sds[0]) * noise).astype(np.float32)
    found = sample(GAUSSIAN, outputs, np.random.default_rng(4))
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(GAUSSIAN.likeliest(outputs), means[0])


def continuous(policy_sd: str) -> Subject:
    return subject_of("mlp", (5,), N, policy=policy_sd, hidden_units=(6,))


def outputs_of(subject: Subject, weights: dict, states: np.ndarray) -> tuple[tf.Tensor, tf.Tensor]:
    """The means and the logs of the sd in some states."""
    outputs = kernels.forward(subject, weights, tf.constant(states), FORGETFUL).outputs
    return GAUSSIAN.split(outputs)


STATES = np.random.default_rng(7).normal(0, 3, (8, 5)).astype(np.float32)


@pytest.mark.parametrize("policy_sd", ["per_dimension", "per_state"])
@pytest.mark.parametrize("scheme", ["glorot", "torch", "orthogonal"])
def test_the_sd_starts_as_it_was_asked_for_in_all_states(policy_sd: str, scheme: str) -> None:
    """Analytic: whatever the scheme that draws the other weights; from the smallest to the largest."""
    subject = continuous(policy_sd)
    shapes = network.weight_shapes(subject)
    for initial_sd in (1e-3, 0.3, 1.0, 1e3):
        generator = np.random.default_rng(0)
        weights = network.initial_weights(shapes, scheme, generator, initial_sd)
        means, log_sds = outputs_of(subject, weights, STATES)
        np.testing.assert_allclose(np.exp(log_sds), np.full((8, N), initial_sd), rtol=1e-5)
        assert np.abs(means).min() > 0  # the states differ


def test_a_free_sd_is_one_weight_a_dimension() -> None:
    """Analytic: in all states the same, and the gradient of a sum over 8 states is 8 in each."""
    subject = continuous("per_dimension")
    weights = network.initial_weights(
        network.weight_shapes(subject), "torch", np.random.default_rng(0)
    )
    free = tf.constant([-1.0, 0.5])
    with tf.GradientTape() as tape:
        tape.watch(free)
        _, log_sds = outputs_of(subject, weights | {"policy_log_sd": free}, STATES)
    np.testing.assert_array_equal(log_sds, np.tile(free, (8, 1)))
    np.testing.assert_array_equal(tape.gradient(log_sds, free), [8, 8])


def test_a_variance_per_state_is_the_softplus_of_one_output() -> None:
    """Parity: σ² = log(1 + eˣ) for all dimensions, and d log σ / dx = eˣ / (2 (1 + eˣ) σ²), in float64."""
    subject = continuous("per_state")
    weights = network.initial_weights(
        network.weight_shapes(subject), "torch", np.random.default_rng(0)
    )
    assert weights["policy_variance_kernel"].shape == (6, 1)
    weights["policy_variance_kernel"] += np.arange(6, dtype=np.float32)[:, None] - 2.5
    bias = tf.constant([0.25])
    with tf.GradientTape() as tape:
        tape.watch(bias)
        _, log_sds = outputs_of(subject, weights | {"policy_variance_bias": bias}, STATES)
        by_state = log_sds[:, :1]
    hidden = np.tanh(STATES @ weights["policy_dense1_kernel"] + weights["policy_dense1_bias"])
    x = (hidden @ weights["policy_variance_kernel"] + 0.25).astype(np.float64)
    assert np.ptp(x) > 5
    variance = np.log1p(np.exp(x))
    np.testing.assert_allclose(log_sds, np.tile(np.log(variance) / 2, (1, N)), rtol=1e-4, atol=1e-5)
    expected = (np.exp(x) / (1 + np.exp(x)) / (2 * variance)).sum()
    np.testing.assert_allclose(tape.gradient(by_state, bias), [expected], rtol=1e-4)


@pytest.mark.parametrize(
    ("policy_sd", "name", "value", "log_sd"),
    [
        ("per_dimension", "policy_log_sd", -200.0, -20.0),
        ("per_dimension", "policy_log_sd", 200.0, 20.0),
        ("per_state", "policy_variance_bias", -200.0, -20.0),
        ("per_state", "policy_variance_bias", 100.0, np.log(10)),
        ("per_state", "policy_variance_bias", 1e30, np.log(1e15)),
    ],
)
def test_far_out_everything_stays_finite(
    policy_sd: str, name: str, value: float, log_sd: float
) -> None:
    """Analytic: drawn actions, log-probability, entropy and all gradients, at an sd that float32 cannot
    hold, or whose square it cannot.
    """
    subject = continuous(policy_sd)
    shapes = network.weight_shapes(subject)
    weights = network.initial_weights(shapes, "orthogonal", np.random.default_rng(0))
    weights[name] = np.full(shapes[name], value, np.float32)
    variables = {n: tf.Variable(w) for n, w in weights.items()}
    policy = policy_of(subject)
    with tf.GradientTape() as tape:
        outputs = kernels.forward(subject, variables, tf.constant(STATES), FORGETFUL).outputs
        actions = sample(policy, outputs.numpy(), np.random.default_rng(0))
        loss = policy.log_probabilities(outputs, actions) + policy.entropies(outputs)
    np.testing.assert_allclose(policy.split(outputs)[1], np.full((8, N), log_sd), rtol=1e-5)
    assert np.isfinite(actions).all()
    assert np.isfinite(loss).all()
    of_policy = [v for n, v in variables.items() if n.startswith("policy")]
    for gradient in tape.gradient(loss, of_policy):
        assert np.isfinite(gradient).all()
