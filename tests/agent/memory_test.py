"""LSTMs against plain NumPy, and what workers do with their state: when it is zero, kept, or cut off.

Most tests have a wrong twin: what a likely mistake would give, which has to be something else.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pytest
import tensorflow as tf

from a3c.agent import calls, kernels, network
from a3c.agent.collector import Acted, Rollout
from a3c.agent.kernels import Layers, Memory
from a3c.agent.policy import Categorical, policy_of
from a3c.agent.worker import Failure, MainThreadLink
from a3c.contract import Counts, Snapshot, Subject
from a3c.machine.stopping import StopFlag
from tests.tools import oracle
from tests.tools.agents import subject_of
from tests.tools.crews import (
    N_ACTIONS,
    N_INPUTS,
    Call,
    Crew,
    calls_of,
    make_shared,
    make_worker,
    params_with,
    record,
    rollouts_of,
)
from tests.tools.fakes import NumberedEnvs
from tests.tools.pools import TOY, opened

Arrays: TypeAlias = dict[str, np.ndarray]

# The cells


UNITS = 2


def plain_lstm(
    arrays: Arrays, state: np.ndarray, continues: np.ndarray, is_cut: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """x (T, K, n) and the state (K, 2·units) → the hidden values (T, K, units) and the next state, by the
    equations. The twin `is_cut` lets no gradient pass from one step to the one before.
    """
    h, c = np.split(state, 2, axis=1)
    hidden = []
    for x, goes_on in zip(arrays["x"], continues, strict=True):
        z = x @ arrays["lstm_input_kernel"] + h @ arrays["lstm_recurrent_kernel"]
        i, f, o, g = np.split(z + arrays["lstm_bias"], 4, axis=1)
        i, f, o = (1 / (1 + np.exp(-gate)) for gate in (i, f, o))
        c = f * c + i * np.tanh(g)
        h = o * np.tanh(c)
        hidden.append(h)
        h, c = h * goes_on[:, None], c * goes_on[:, None]
        if is_cut:
            h, c = h.real, c.real
    return np.array(hidden), np.concatenate([h, c], axis=1)


def gradients(hidden: Callable[[Arrays], np.ndarray], arrays: Arrays) -> Arrays:
    """Those of Σ sin(hidden), exact in float64: the imaginary part of f(x + iε) is ε·f′(x)."""
    found = {name: np.empty(array.shape) for name, array in arrays.items()}
    for name, array in arrays.items():
        for place in np.ndindex(array.shape):
            moved = array.astype(complex)
            moved[place] += 1e-30j
            found[name][place] = np.sin(hidden(arrays | {name: moved})).sum().imag / 1e-30
    return found


def drawn(n_steps: int, n_envs: int) -> tuple[Arrays, np.ndarray]:
    """Weights and inputs x, and a state that is not zero."""
    generator = np.random.default_rng(0)
    shapes = {
        "lstm_input_kernel": (3, 4 * UNITS),
        "lstm_recurrent_kernel": (UNITS, 4 * UNITS),
        "lstm_bias": (4 * UNITS,),
        "x": (n_steps, n_envs, 3),
    }
    arrays = {name: generator.standard_normal(shape) for name, shape in shapes.items()}
    return arrays, generator.uniform(-0.9, 0.9, (n_envs, 2 * UNITS))


def our_lstm(arrays: Any, x: Any, state: Any, continues: np.ndarray) -> tuple[Any, Any]:
    """As `plain_lstm`; x and the hidden values are (T·K, ...)."""
    layers = Layers(arrays, Memory(state, tf.constant(continues, tf.float32)))
    return layers.lstm("lstm", x, UNITS), layers.new_state()


@pytest.mark.parametrize("n_envs", [1, 3])
def test_an_lstm_computes_its_equations_and_goes_back_through_time(n_envs: int) -> None:
    """Parity: hidden values, next state and all gradients over five steps, of which two end episodes, by plain NumPy.
    The twins: ends that do not clear the state, and gradients that do not go back through time.
    """
    arrays, state = drawn(5, n_envs)
    continues = np.ones((5, n_envs))
    continues[1, 0] = continues[3, -1] = 0
    ours = {name: tf.constant(array, tf.float32) for name, array in arrays.items()}
    with tf.GradientTape() as tape:
        tape.watch(ours)
        x = tf.reshape(ours["x"], (-1, 3))
        hidden, new_state = our_lstm(ours, x, tf.constant(state, tf.float32), continues)
        loss = tf.reduce_sum(tf.sin(hidden))
    found = tape.gradient(loss, ours) | {"hidden": hidden, "state": new_state}

    def plain(*options: Any) -> Arrays:
        hidden, new_state = plain_lstm(arrays, state, *options)
        of_all = gradients(lambda arrays: plain_lstm(arrays, state, *options)[0], arrays)
        return of_all | {"hidden": hidden, "state": new_state}

    unending, cut = plain(np.ones_like(continues)), plain(continues, True)
    for name, expected in plain(continues).items():
        expected = expected.reshape(found[name].shape)
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-5, err_msg=name)
        is_gradient = name in arrays
        for twin in (unending, cut) if is_gradient else (unending,):
            assert np.abs(twin[name].reshape(expected.shape) - expected).max() > 0.01, name


def test_no_gradient_flows_into_the_state_that_a_rollout_began_with() -> None:
    """Parity: of two rollouts of three steps, the gradients of the second one's hidden values, by plain NumPy, to which
    the state between them is a constant. The twin takes both as one rollout of six.
    """
    arrays, state = drawn(6, 2)
    first, second = (arrays | {"x": x} for x in np.split(arrays["x"], 2))
    always = np.ones((3, 2))
    ours = {name: tf.constant(array, tf.float32) for name, array in arrays.items()}
    with tf.GradientTape() as tape:
        tape.watch(ours)
        between = tf.constant(state, tf.float32)
        for x in tf.split(ours["x"], 2):
            hidden, between = our_lstm(ours, tf.reshape(x, (-1, 3)), between, always)
        loss = tf.reduce_sum(tf.sin(hidden))
    found = tape.gradient(loss, ours)

    _, between = plain_lstm(first, state, always)
    expected = gradients(lambda arrays: plain_lstm(arrays, between, always)[0], second)
    as_one = gradients(lambda arrays: plain_lstm(arrays, state, np.ones((6, 2)))[0][3:], arrays)
    np.testing.assert_array_equal(found["x"][:3], 0)
    np.testing.assert_allclose(found["x"][3:], expected.pop("x"), rtol=1e-4, atol=1e-5)
    for name, gradient in expected.items():
        np.testing.assert_allclose(found[name], gradient, rtol=1e-4, atol=1e-5, err_msg=name)
        assert np.abs(as_one[name] - gradient).max() > 0.01, name


def test_a_network_of_ones_own_may_have_another_number_of_lstms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Analytic: the state has h and c of each, whatever the network is called."""

    def shared(layer: Any, x: Any, subject: Subject) -> tuple[Any, Any]:
        x = layer.lstm("lstm", x, subject.lstm_units)
        return policy_of(subject).head(layer, x), layer.linear("value", x, 1)

    monkeypatch.setitem(network.NETWORKS, "mlp", shared)
    assert network.state_size(subject_of("mlp", (N_INPUTS,), 2, lstm_units=3)) == 2 * 3


def test_policy_and_value_of_vectors_remember_for_themselves() -> None:
    """Analytic: h and c of both are parts of the state; changing one part changes its own head and its own new part."""
    subject = subject_of("mlp", (N_INPUTS,), 2, hidden_units=(3,), lstm_units=2)
    shapes = network.weight_shapes(subject)
    weights = network.initial_weights(shapes, "glorot", np.random.default_rng(0))
    assert network.state_size(subject) == 8
    x = tf.ones((1, N_INPUTS))

    def changed(part: slice) -> list[np.ndarray]:
        """Which of outputs, value and numbers of the new state depend on this part of the state."""
        state = np.zeros((2, 8), np.float32)
        state[1, part] = 0.5
        one, other = (kernels.forward(subject, weights, x, Memory(s[None])) for s in state)
        parts = zip(one[:3], other[:3], strict=True)
        return [np.ravel(a != b).tolist() for a, b in parts]

    for part in (slice(2), slice(2, 4)):
        assert changed(part) == [[True] * 2, [False], [True] * 4 + [False] * 4]
    for part in (slice(4, 6), slice(6, 8)):
        assert changed(part) == [[False] * 2, [True], [False] * 4 + [True] * 4]


# Workers


STEP = 0.1  # what the cells count by
SUBJECT = subject_of("mlp", (N_INPUTS,), N_ACTIONS, hidden_units=(1,), lstm_units=1)
GAMMA = 0.9


def value(n_seen: Any) -> Any:
    """V, once the cells have counted so many observations of an episode."""
    return np.tanh(STEP * n_seen)


def counting_weights() -> Arrays:
    """A cell for each head, which adds 0.1 at each observation, and whose output is the value."""
    weights = {name: np.zeros(shape) for name, shape in network.weight_shapes(SUBJECT).items()}
    for head in ("policy", "value"):
        # All gates are open, to the last bit.
        weights[f"{head}_lstm_bias"] = np.array([30, 30, 30, np.arctanh(STEP)])
    weights["value_kernel"] += 1
    return weights


class Recorded(NamedTuple):
    """What a worker has done with four environments, of which three have ends or break."""

    calls: list[Call]
    crew: Crew

    def acted(self) -> tuple[np.ndarray, np.ndarray]:
        """Of each step: how many observations of the episode came before, and the state."""
        acts = calls_of(self.calls, "act")
        seen, states = (np.array([call.arguments[i] for call in acts]) for i in (0, 1))
        return seen[:, :, 2] * 8, states


N_STEPS = 3  # of a rollout
ENDS = {
    "terminations": {(1, 0), (5, 0), (10, 0)},  # in a rollout, at an edge, and not at both
    "truncations": {(4, 2), (8, 2), (10, 0)},
    "faults": {(7, 1)},
}


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    """Five rollouts, of which the third loses environment 1."""
    shared = make_shared(10**9, shapes=network.weight_shapes(SUBJECT))
    shared.restore(Snapshot(Counts(), counting_weights(), {}))
    envs = NumberedEnvs(
        N_STEPS + 1, 4, **ENDS, on_step=lambda n: crew.stop.set() if n == 15 else None
    )
    # Without learning, the cells go on counting.
    crew = Crew(shared, [envs], params_with(initial_lr=0.0), subject=SUBJECT)
    calls = record(crew.locals[0])
    crew.run()
    assert not crew.of_kind(Failure)
    assert len(calls_of(calls, "learn")) == 5
    return Recorded(calls, crew)


def test_the_state_is_of_the_episode_so_far(recorded: Recorded) -> None:
    """Analytic: cells that count have counted the episode's observations at every step of every environment: they begin
    at 0 after a termination, a truncation and a fault, and go on over the edges of rollouts.

    The twins: cells that never begin anew, and cells that forget at the edges.
    """
    n_before, states = recorded.acted()
    count = states[:, :, 1] / STEP
    np.testing.assert_allclose(count, n_before, atol=1e-5)
    expected = np.stack([value(count), STEP * count] * 2, axis=2)
    np.testing.assert_allclose(states, expected, atol=1e-6)
    steps = np.arange(len(count))[:, None] + np.zeros(4)
    assert (steps != n_before).any(axis=0).tolist() == [True, True, True, False]
    assert (np.minimum(n_before, steps % N_STEPS) != n_before).any(axis=0).all()


def test_a_rollout_has_the_state_that_it_began_with(recorded: Recorded) -> None:
    """Analytic: that of its first step; where an environment broke, its column is left out. The twins: the state that
    the rollout ended with, and the columns of the first environments.
    """
    _, states = recorded.acted()
    for i, rollout in enumerate(rollouts_of(recorded.calls)):
        whole = [0, 2, 3] if i == 2 else [0, 1, 2, 3]
        at_start, at_end = states[N_STEPS * i], states[N_STEPS * i + N_STEPS - 1]
        np.testing.assert_array_equal(rollout.states, at_start[None, whole])
        assert not np.allclose(rollout.states, at_end[None, whole])
        assert i != 2 or not np.allclose(rollout.states, at_start[None, :3])


def test_the_value_that_a_time_limit_hides_is_of_its_own_episodes_memory(
    recorded: Recorded,
) -> None:
    """Analytic: V of a true last observation comes from the state after the last step, and counts one more. The twins:
    the state before that step, and one that is zero already. The others' states stay: they are in the test above.
    """
    n_before, _ = recorded.acted()
    rollouts = rollouts_of(recorded.calls)
    for n, env in ENDS["truncations"] - ENDS["terminations"]:
        i, t = divmod(n, N_STEPS)
        column = env - 1 if i == 2 else env  # without environment 1
        reward = n + rollouts[i].actions[t, column] / 10 + 100 * env
        added = rollouts[i].rewards[t, column] - reward
        n_seen = n_before[n, env] + 1
        np.testing.assert_allclose(added, GAMMA * value(n_seen + 1), atol=1e-3)
        assert min(abs(added - GAMMA * value(wrong)) for wrong in (n_seen, 1)) > 0.05


def test_the_value_after_a_rollout_is_of_the_state_after_it(recorded: Recorded) -> None:
    """Analytic: the mean advantage of each whole rollout, in closed form. The twins: V(s_T) from a zero state, and from
    the state before the last step. Acting goes on from the state before V(s_T): that is in the test above.
    """
    for i, rollout in enumerate(rollouts_of(recorded.calls)):
        if i == 2:
            continue
        n_seen = rollout.observations[:, :, 2] * 8 + 1  # (T + 1, K)
        measured = recorded.crew.locals[0].measure(rollout).scalars["rl/advantage_mean"]
        expected, of_zero, of_before = (
            mean_advantage(rollout, value(n_seen[:-1]), value(n_last))
            for n_last in (n_seen[-1], np.ones(4), n_seen[-1] - 1)
        )
        assert measured == pytest.approx(expected, abs=1e-3)
        assert min(abs(measured - twin) for twin in (of_zero, of_before)) > 0.01


def mean_advantage(rollout: Rollout, values: np.ndarray, bootstrap: np.ndarray) -> float:
    returns = oracle.n_step_returns(rollout.rewards, rollout.continues, bootstrap, GAMMA)
    return float(np.mean(returns - values))


def test_learning_anew_from_the_same_rollout_is_learning(recorded: Recorded) -> None:
    """Analytic: the gradient's norm is the same if the rollout is packed into one block and if not. The twin begins
    at zero.
    """
    rollout = rollouts_of(recorded.calls)[1]
    local, generator = recorded.crew.locals[0], np.random.default_rng(0)
    drawn = calls.packed(
        {
            n: tf.constant(generator.standard_normal(v.shape), tf.float32)
            for n, v in local.weights.items()
        }
    ).numpy()

    def norm(rollout: Rollout, is_anew: bool) -> float:
        local.take(drawn)
        state, acted = rollout.states[0], []
        for seen, continues in zip(rollout.observations, rollout.continues, strict=False):
            outputs = local.act(seen, state)
            acted.append(outputs.activations)
            state = outputs.state * continues[:, None]
        return float(local.learn(rollout, 0.0, None if is_anew else acted))

    expected = norm(rollout, False)
    assert norm(rollout, True) == pytest.approx(expected, rel=1e-5)
    of_zero = norm(rollout._replace(states=0 * rollout.states), False)
    assert of_zero != pytest.approx(expected, rel=1e-3)


class Counting:
    """A local network that only counts observations: its state is their number."""

    policy, state_size = Categorical(N_ACTIONS), 1

    def __init__(self) -> None:
        self.states: list[float] = []

    def act(self, observations: np.ndarray, state: np.ndarray) -> Acted:
        self.states.append(float(state[0, 0]))
        return Acted(np.zeros((1, N_ACTIONS)), np.zeros(1), state + 1, {})

    def learn(self, *_: object) -> None:
        """It never does."""


def test_a_lost_life_clears_the_state() -> None:
    """Analytic: through all layers of the environment. A game of 20 decisions loses a life at the 5th and the 12th. The
    twin: only the end of the game clears the state.
    """
    local, params = Counting(), params_with(n_steps=40)
    with opened(TOY + "NumbersWithLives-v0", n_slots=N_STEPS + 1, max_n_noops=0) as pool:
        main = MainThreadLink(StopFlag(), lambda report: None)
        generator = np.random.default_rng(0)
        make_worker(1, make_shared(40), local, pool, params, generator, main).run()
    assert local.states[:40] == [*range(5), *range(7), *range(8)] * 2 != [*range(20)] * 2
