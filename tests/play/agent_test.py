"""A trained policy decides: what its network says, and what is drawn of that."""

import math

import numpy as np
import pytest
import tensorflow as tf

from a3c.agent import network
from a3c.contract import Subject
from a3c.play import agent
from a3c.play.agent import Agent
from a3c.store.checkpoint import UnusableCheckpoint
from tests.tools.agents import CARTPOLE, make_agent, make_weights, save

NUMBERED = Subject("Numbered-v0", "generic", "mlp", (3,), 2)


def test_a_decision_shows_the_network():
    """Parity: softmax in NumPy, the value, and the likeliest action where greedy."""
    player = make_agent(NUMBERED, greedy=True)
    weights = {name: tf.constant(array) for name, array in make_weights(NUMBERED).items()}
    generator = np.random.default_rng(0)
    for seed in range(5):
        observation = np.random.default_rng(seed).standard_normal(3).astype(np.float32)
        predictions = network.forward("mlp", weights, tf.constant(observation[None]))
        logits = predictions.logits.numpy()[0].astype(np.float64)
        wanted = np.exp(logits) / np.exp(logits).sum()
        decision = player.decide(observation, generator)
        np.testing.assert_allclose(decision.probabilities, wanted, rtol=1e-5)
        assert decision.action == np.argmax(logits)
        assert decision.value == pytest.approx(float(predictions.values[0]), rel=1e-5)


def test_actions_are_drawn_as_often_as_they_are_likely():
    """Analytic: 2,000 draws, within 4 standard deviations; the draws are fixed by their seed."""
    player = make_agent(NUMBERED)
    observation = np.array([1.0, -2.0, 3.0], np.float32)
    generator = np.random.default_rng(0)
    decisions = [player.decide(observation, generator) for _ in range(2000)]
    likely = float(decisions[0].probabilities[1])
    assert 0.05 < likely < 0.95
    share = np.mean([decision.action for decision in decisions])
    assert abs(share - likely) < 4 * math.sqrt(likely * (1 - likely) / 2000)


@pytest.mark.parametrize("weights_only", [False, True])
def test_an_agent_comes_from_a_checkpoint(tmp_path, weights_only):
    """Golden: it decides by its weights, with the statistics beside them or without."""
    wanted, loaded = make_agent(CARTPOLE), agent.load(save(tmp_path, weights_only=weights_only))
    assert loaded.subject == CARTPOLE
    observation = np.array([0.1, -0.2, 0.3, -0.4], np.float32)
    one, other = (
        player.decide(observation, np.random.default_rng(0)) for player in (wanted, loaded)
    )
    np.testing.assert_array_equal(one.probabilities, other.probabilities)
    assert (
        one.value
        == other.value
        != Agent(CARTPOLE).decide(observation, np.random.default_rng(0)).value
    )


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
    for network_name in ("nature", "of tomorrow"):
        wrong_one = saved._replace(subject=subject._replace(network=network_name))
        words = f"^cannot restore .*, of network '{network_name}': "
        with pytest.raises(UnusableCheckpoint, match=words):
            agent.load(wrong_one)
