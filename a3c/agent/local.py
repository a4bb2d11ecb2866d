"""A worker's own copy of the weights, and what it does with them, by calls of the `Learner`."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from a3c.agent import calls, network, vectors
from a3c.agent.collector import Acted, Rollout
from a3c.agent.kernels import Activations, Weights
from a3c.agent.learner import Learner, Measurement


class LocalNetwork:
    """That of an image network; implements `collector.Network`."""

    def __init__(self, learner: Learner) -> None:
        self.policy, self.state_size = learner.policy, learner.state_size
        self._learner, self.dump = learner, learner.dump
        self._local: Weights = learner.copy_of_shared()
        self.weights: Mapping[str, np.ndarray | tf.Variable] = self._local  # by name
        self._act = calls.bound(learner.act, self._local)
        self._learn_whole = calls.bound(learner.learn, self._local)
        # Without LSTMs, the state is empty. It is converted once, as that takes a twentieth of acting.
        self._empty = None if self.state_size else tf.zeros(learner.state_shape)

    def act(self, observations: np.ndarray, state: np.ndarray) -> Acted:
        state = state if self._empty is None else self._empty
        joined, activations = self._act(observations, state)
        n, predictions = self.state_size, joined.numpy()
        return Acted(predictions[:, n:-1], predictions[:, -1], predictions[:, :n], activations)

    def evaluate_last(self, observations: np.ndarray, state: np.ndarray) -> np.ndarray:
        """The values of true last observations: (K, ...), and the state before them → (K,)."""
        joined, _ = self._learner.evaluate_last(self._local, observations, state)
        return joined.numpy()[:, -1]

    def learn(
        self, rollout: Rollout, learning_rate: float, acted: Sequence[Activations] | None = None
    ) -> tf.Tensor:
        """Update the shared weights and copy them here; returns the gradient's norm before clipping.

        `acted` are the activations of acting at each step. Without them, the network goes forward
        once more, and the rollout may have any number of environments.
        """
        rate = np.float32(learning_rate)
        if acted is None:
            told, loss, new = self._learner.learn_anew(self._local, rollout, rate)
        else:
            learn = self._learner.first_alone
            told, loss, new = learn(self._learn_whole, rollout, rate, acted)
        _raise_unless_finite(loss, "loss")
        if not told.shape.rank:
            _raise_unless_finite(told, "gradient")
        if new:
            self._keep(new)
        return told

    def take(self, block: np.ndarray) -> None:
        """Replace all weights by those of which `calls.packed` made this block."""
        network.assign(self.weights, calls.unpacked(block, self._local))

    def measure(self, rollout: Rollout) -> Measurement:
        measured = self._learner.measure(self._local, rollout)
        scalars, *arrays = tf.nest.map_structure(lambda tensor: tensor.numpy(), measured)
        return Measurement({name: float(x) for name, x in scalars.items()}, *arrays)

    def _keep(self, new: Weights) -> None:
        """Learning has copied them into the variables of an image network."""


class LocalVectorNetwork(vectors.Network, LocalNetwork):
    """That of the network for vectors, whose weights are one tensor and, to act, one array."""

    def __init__(self, learner: Learner, block: np.ndarray | None = None) -> None:
        """The array may be given, because others act with it as well."""
        self._learner = learner
        self._learn = calls.bound(learner.learn)
        new = learner.copy_of_shared()
        size = new[vectors.BLOCK].shape
        self._block = np.empty(size, np.float32) if block is None else block
        self._keep(new)
        self.weights = vectors.by_name({vectors.BLOCK: self._block}, learner.shapes)
        vectors.Network.__init__(self, learner.subject, self.weights, learner.dump)

    def take(self, block: np.ndarray) -> None:
        self._keep(calls.unpacked(block, self._local))

    def _learn_whole(
        self, rollout: Rollout, rate: np.float32, acted: Sequence[Activations]
    ) -> tuple[tf.Tensor, tf.Tensor, Weights]:
        parts = [part.ravel() for part in rollout]
        block = np.concatenate([*parts, [rate]], dtype=np.float32)
        return self._learn(self._local, block)

    def _keep(self, new: Weights) -> None:
        self._local = new
        self._block[:] = np.frombuffer(new[vectors.BLOCK], np.float32)


def local_network(learner: Learner, block: np.ndarray | None = None) -> LocalNetwork:
    return LocalVectorNetwork(learner, block) if learner.is_vector else LocalNetwork(learner)


def _raise_unless_finite(number: tf.Tensor, name: str) -> None:
    """What XLA has compiled could not raise it."""
    if not math.isfinite(number.numpy()):
        tf.debugging.check_numerics(number, f"{name} not finite")
