"""A trained policy decides: what its network says, and what is drawn of that."""

import math
import sys

import numpy as np
import pytest
import tensorflow as tf

from a3c.agent import kernels, moments
from a3c.agent.kernels import Memory
from a3c.contract import Subject
from a3c.envs.make import make_env
from a3c.play import agent, evaluation
from a3c.play.agent import Agent
from a3c.store.checkpoint import UnusableCheckpoint
from tests.tools.agents import (
    CARTPOLE,
    FORGETFUL,
    MOMENTS,
    PAINTED,
    make_agent,
    make_weights,
    save,
)

NUMBERED = Subject("Numbered-v0", "generic", "mlp", (3,), 2)


def test_a_decision_shows_the_network():
    """Parity: softmax in NumPy, the value, and the likeliest action where greedy."""
    player = make_agent(NUMBERED)
    weights = {name: tf.constant(array) for name, array in make_weights(NUMBERED).items()}
    for seed in range(5):
        observation = np.random.default_rng(seed).standard_normal(3).astype(np.float32)
        predictions = kernels.forward(NUMBERED, weights, tf.constant(observation[None]), FORGETFUL)
        logits = predictions.outputs.numpy()[0].astype(np.float64)
        wanted = np.exp(logits) / np.exp(logits).sum()
        decision = player.act(observation, greedy=True)
        np.testing.assert_allclose(decision.probabilities, wanted, rtol=1e-5)
        assert decision.action == np.argmax(logits)
        assert decision.value == pytest.approx(float(predictions.values[0]), rel=1e-5)


def test_actions_are_drawn_as_often_as_they_are_likely():
    """Analytic: 2,000 draws, within 4 standard deviations; the draws are fixed by their seed."""
    player = make_agent(NUMBERED)
    observation = np.array([1.0, -2.0, 3.0], np.float32)
    generator = np.random.default_rng(0)
    decisions = [player.act(observation, generator=generator) for _ in range(2000)]
    likely = float(decisions[0].probabilities[1])
    assert 0.05 < likely < 0.95
    share = np.mean([decision.action for decision in decisions])
    assert abs(share - likely) < 4 * math.sqrt(likely * (1 - likely) / 2000)


def test_a_state_goes_from_decision_to_decision():
    """Parity: five decisions, and the network going through the same five observations at once."""
    player = make_agent(PAINTED)
    seen = np.random.default_rng(1).standard_normal((5, 12)).astype(np.float32)
    weights = {name: tf.constant(array) for name, array in make_weights(PAINTED).items()}
    normalised = moments.normalised(seen, MOMENTS["observations"])
    at_once = kernels.forward(
        PAINTED,
        weights,
        tf.constant(normalised),
        Memory(tf.constant(player.first_state), tf.ones((5, 1))),
    )
    state = None
    for t in range(5):
        decision = player.act(seen[t], state, greedy=True)
        state = decision.state
        outputs = np.concatenate([decision.mean, np.log(decision.sd)])
        np.testing.assert_allclose(outputs, at_once.outputs[t], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(decision.action, decision.mean)
        assert decision.value == pytest.approx(float(at_once.values[t]), rel=1e-5, abs=1e-6)
    np.testing.assert_allclose(state, at_once.state, rtol=1e-5, atol=1e-6)
    assert np.abs(state).min() > 0


@pytest.mark.parametrize("subject", [CARTPOLE, PAINTED], ids=lambda subject: subject.env_id)
@pytest.mark.parametrize("weights_only", [False, True])
def test_an_agent_comes_from_a_checkpoint(tmp_path, subject, weights_only):
    """Golden: it decides by its weights and moments, with RMSProp's statistics beside them or without."""
    loaded = agent.load(save(tmp_path, subject, weights_only=weights_only))
    assert loaded.subject == subject
    observation = np.linspace(-1, 2, subject.observation_shape[0]).astype(np.float32)
    one, other, untrained = (
        player.act(observation, player.first_state, generator=np.random.default_rng(0))
        for player in (make_agent(subject), loaded, Agent(subject))
    )
    for part in ("observation", "action", "probabilities", "mean", "sd", "state"):
        np.testing.assert_array_equal(getattr(one, part), getattr(other, part), err_msg=part)
    assert one.value == other.value != untrained.value


@pytest.mark.parametrize("subject", [CARTPOLE, PAINTED], ids=lambda subject: subject.env_id)
def test_a_batch_is_decided_on_as_each_game_alone(subject):
    """Parity: three games, of which the second has just begun; actions are drawn a row each."""
    player = make_agent(subject)
    seen = np.random.default_rng(1).standard_normal((3, *subject.observation_shape))
    before = player.act_batch(seen.astype(np.float32))
    states = before.state.copy()
    states[1] = 0
    batch = player.act_batch(seen.astype(np.float32), states, greedy=True)
    for k, observation in enumerate(seen.astype(np.float32)):
        alone = player.act(observation, states[k : k + 1], greedy=True)
        for name, part in alone._asdict().items():
            row = getattr(batch, name)
            wanted = None if row is None else row[k]
            if part is not None:
                np.testing.assert_allclose(np.squeeze(part), wanted, rtol=1e-5, atol=1e-6)
    begun = player.act(seen[1].astype(np.float32))
    np.testing.assert_allclose(begun.value, batch.value[1], rtol=1e-5)
    drawn = [player.act_batch(seen.astype(np.float32)).action for _ in range(20)]
    assert len({action.tobytes() for action in drawn}) > 1
    again = [make_agent(subject).act_batch(seen.astype(np.float32)).action for _ in range(2)]
    np.testing.assert_array_equal(*again)


def test_an_agents_environment_is_that_of_its_evaluations():
    """Parity: game 3 of seed 4; a module's environment only if it is named."""
    player = make_agent(CARTPOLE)
    params = evaluation.params_of(CARTPOLE, 4)
    wanted = make_env(params, evaluation.WORKER, first_game=3)
    np.testing.assert_array_equal(player.make_env(seed=4, game=3).reset()[0], wanted.reset()[0])
    with pytest.raises(UnusableCheckpoint, match="runs the code of a module"):
        make_agent(PAINTED).make_env()
    with pytest.raises(UnusableCheckpoint, match="plays CartPole-v1, not Acrobot-v1"):
        player.make_env("Acrobot-v1")
    make_agent(PAINTED).make_env(PAINTED.env_id).close()


@pytest.mark.parametrize("code", [{"wrapper": "this:W"}, {"env_kwargs": ("b=this:W",)}])
def test_neither_runs_a_wrapper_or_an_argument_that_nobody_named(code):
    """Analytic: a foreign agent could name any module; without its own, it plays."""
    player = make_agent(CARTPOLE._replace(**code))
    with pytest.raises(UnusableCheckpoint, match="runs the code of a module"):
        player.make_env()
    assert "this" not in sys.modules
    player.make_env(**dict.fromkeys(code, "none")).close()


def test_weights_of_another_network_are_refused(tmp_path):
    """Analytic: weights that are missing, unknown or of another shape, and unfit or unknown networks."""
    saved = save(tmp_path)
    weights, subject = saved.snapshot.weights, saved.subject
    name, array = next(iter(weights.items()))
    without = {n: a for n, a in weights.items() if n != name}
    for wrong in (without, {**weights, "another": array}, {**weights, name: array[:-1]}):
        wrong_one = saved._replace(snapshot=saved.snapshot._replace(weights=wrong))
        with pytest.raises(
            UnusableCheckpoint, match=f"^cannot restore {saved.path}, of network 'mlp'"
        ):
            agent.load(wrong_one)
    # A layer that no machine could hold is refused before it is made.
    for changed in ({"hidden_units": (10**14,)}, {"n_actions": 10**14}, {"policy": "per_state"}):
        with pytest.raises(UnusableCheckpoint, match="other names or shapes"):
            agent.load(saved._replace(subject=subject._replace(**changed)))
    for network_name in ("nature", "of tomorrow"):
        wrong_one = saved._replace(subject=subject._replace(network=network_name))
        words = f"^cannot restore .*, of network '{network_name}': "
        with pytest.raises(UnusableCheckpoint, match=words):
            agent.load(wrong_one)
