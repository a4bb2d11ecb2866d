"""A trained policy: a network with weights of its own that chooses actions."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from a3c.agent import moments, network
from a3c.agent.kernels import Memory
from a3c.agent.policy import policy_of
from a3c.contract import Moments, Snapshot, Subject
from a3c.store.checkpoint import Checkpoint, UnusableCheckpoint


class Decision(NamedTuple):
    """What a policy decided on one observation."""

    observation: np.ndarray  # as the network saw it: normalised, if the agent was trained so
    action: np.ndarray  # a number or, if actions are continuous, (n,)
    outputs: np.ndarray  # (n_outputs,), the policy's
    value: float
    state: np.ndarray  # (1, n_state), for the next observation of the same game


class Agent:
    """Chooses actions with its weights, which start as zeros. Many threads may use it at once.

    Each observation goes through the network alone: in a batch, the last bits of its logits could
    depend on the size of the batch, and so could a sampled action.
    """

    def __init__(self, subject: Subject, greedy: bool = False) -> None:
        self.subject = subject
        self._greedy = greedy
        self.policy = policy_of(subject)
        self._moments: Mapping[str, Moments] = {}
        shapes = network.weight_shapes(subject)
        self._weights = {name: tf.Variable(tf.zeros(shape)) for name, shape in shapes.items()}
        dtype = tf.float32 if subject.network == "mlp" else tf.uint8

        def predict(observations: tf.Tensor, state: tf.Tensor) -> tuple[tf.Tensor, ...]:
            predictions = network.forward(subject, self._weights, observations, Memory(state))
            return predictions.outputs, predictions.values, predictions.state

        # What the agent remembers at the start of a game.
        self.first_state = np.zeros((1, network.state_size(subject)), np.float32)
        specs = [
            tf.TensorSpec((1, *subject.observation_shape), dtype),
            tf.TensorSpec(self.first_state.shape, tf.float32),
        ]
        traced = tf.function(predict, input_signature=specs, autograph=False)
        self._predict: Any = traced.get_concrete_function()

    def take(self, snapshot: Snapshot) -> None:
        """Take a snapshot's weights and moments; ValueError if these are another network's."""
        network.assign(self._weights, snapshot.weights)
        self._moments = snapshot.moments

    def decide(
        self, observation: np.ndarray, state: np.ndarray, generator: np.random.Generator
    ) -> Decision:
        """Sample an action from the policy or, if greedy, take the likeliest.

        `state` is that of the last decision in the same game, or `first_state`.
        """
        seen = moments.seen(observation[None], self._moments)
        predictions = self._predict(tf.convert_to_tensor(seen), tf.convert_to_tensor(state))
        outputs, values, state = (tensor.numpy() for tensor in predictions)
        if self._greedy:
            actions = self.policy.likeliest(outputs)
        else:
            actions = self.policy.sample(outputs, generator)
        return Decision(seen[0], actions[0], outputs[0], float(values[0]), state)


def load(checkpoint: Checkpoint, greedy: bool = False) -> Agent:
    """Return the agent of a checkpoint."""
    try:
        # A file may state any sizes, so nothing of them is made before its weights have them.
        held = {name: array.shape for name, array in checkpoint.snapshot.weights.items()}
        if held != network.weight_shapes(checkpoint.subject):
            raise ValueError("its weights have other names or shapes")
        agent = Agent(checkpoint.subject, greedy)
        agent.take(checkpoint.snapshot)
    except (KeyError, ValueError) as error:  # an unknown network, or weights that do not fit it
        what = f"{checkpoint.path}, of network {checkpoint.subject.network!r}"
        raise UnusableCheckpoint(f"cannot restore {what}: {error}") from None
    return agent
