"""A trained policy: a network with weights of its own that chooses actions."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from a3c.agent import network
from a3c.agent.policy import sample_actions
from a3c.contract import Subject
from a3c.store.checkpoint import Checkpoint, UnusableCheckpoint


class Decision(NamedTuple):
    """What a policy decided on one observation."""

    action: int
    probabilities: np.ndarray  # (n_actions,)
    value: float


class Agent:
    """Chooses actions with its weights, which start as zeros. Many threads may use it at once.

    Each observation goes through the network alone: in a batch, the last bits of its logits could
    depend on the size of the batch, and so could a sampled action.
    """

    def __init__(self, subject: Subject, greedy: bool = False) -> None:
        self.subject = subject
        self._greedy = greedy
        shapes = network.weight_shapes(
            subject.network, subject.observation_shape, subject.n_actions
        )
        self._weights = {name: tf.Variable(tf.zeros(shape)) for name, shape in shapes.items()}
        dtype = tf.float32 if subject.network == "mlp" else tf.uint8

        def predict(observations: tf.Tensor) -> tf.Tensor:
            predictions = network.forward(subject.network, self._weights, observations)
            return tf.concat([predictions.logits, predictions.values[:, None]], axis=1)

        spec = tf.TensorSpec((1, *subject.observation_shape), dtype)
        self._predict: Any = tf.function(predict, input_signature=[spec]).get_concrete_function()

    def set_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Replace the weights; ValueError if these are another network's."""
        network.assign(self._weights, weights)

    def decide(self, observation: np.ndarray, generator: np.random.Generator) -> Decision:
        """Sample an action from the policy or, if greedy, take the likeliest."""
        predictions = self._predict(tf.convert_to_tensor(observation[None])).numpy()
        logits = predictions[:, :-1]
        exponentials = np.exp(logits[0] - logits[0].max())
        if self._greedy:
            action = int(np.argmax(logits[0]))
        else:
            action = int(sample_actions(logits, generator)[0])
        return Decision(action, exponentials / exponentials.sum(), float(predictions[0, -1]))


def load(checkpoint: Checkpoint, greedy: bool = False) -> Agent:
    """Return the agent of a checkpoint."""
    try:
        agent = Agent(checkpoint.subject, greedy)
        agent.set_weights(checkpoint.snapshot.weights)
    except (KeyError, ValueError) as error:  # an unknown network, or weights that do not fit it
        what = f"{checkpoint.path}, of network {checkpoint.subject.network!r}"
        raise UnusableCheckpoint(f"cannot restore {what}: {error}") from None
    return agent
