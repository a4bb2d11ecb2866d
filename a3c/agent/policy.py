"""What the policy's outputs mean: the head of the network, drawing, log-probability, entropy.

    Categorical   discrete actions: the outputs are a logit for each
    Gaussian      continuous actions: the outputs are the mean and the log of the standard deviation
                  (sd) in each dimension

Drawing is NumPy's, from a generator that is handed in. What is differentiated is TensorFlow's; it is
imported only there, because environment processes draw actions too, and they never load it.
"""

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from a3c.contract import Subject

if TYPE_CHECKING:
    import tensorflow as tf

LIMIT_OF_LOG_SD = 20.0  # within e^±20, losses and gradients stay finite


class Categorical:
    """π(a|s) = softmax(logits)[a]. An action is a number."""

    dtype = np.dtype(np.int32)
    shape: tuple[int, ...] = ()  # of one action

    def __init__(self, n_actions: int) -> None:
        self._n_actions = n_actions

    def head(self, layer: Any, x: Any) -> Any:
        """The policy's outputs, from the last hidden layer."""
        return layer.linear("policy", x, self._n_actions)

    def noise(self, generator: np.random.Generator, *shape: int) -> np.ndarray:
        """Draw what so many actions need: (..., n)."""
        return generator.gumbel(size=(*shape, self._n_actions))

    def chosen(self, logits: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """One action a row, by the Gumbel-max trick: (K, n), (K, n) → (K,)."""
        return (logits + noise).argmax(axis=1).astype(np.int32)

    def likeliest(self, logits: np.ndarray) -> np.ndarray:
        return np.argmax(logits, axis=1).astype(np.int32)

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """π(s): (..., n) → (..., n)."""
        exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True))

    def log_probabilities(self, logits: "tf.Tensor", actions: "tf.Tensor") -> "tf.Tensor":
        """log π(a|s) of the actions taken: (T, K, n), (T, K) → (T, K)."""
        import tensorflow as tf

        return -tf.nn.sparse_softmax_cross_entropy_with_logits(labels=actions, logits=logits)

    def entropies(self, logits: "tf.Tensor") -> "tf.Tensor":
        """H(π(s)), in nats: (T, K, n) → (T, K)."""
        import tensorflow as tf

        # log_softmax is finite for all finite logits, so 0 · log 0 gives 0, as it should.
        log_all = tf.nn.log_softmax(logits)
        return -tf.reduce_sum(tf.exp(log_all) * log_all, axis=-1)


class Gaussian:
    """Independent normal distributions, one for each of the n dimensions of an action.

    The means are linear in the last hidden layer. The sd is either one free weight a dimension, the
    same in all states, as in ChainerRL and OpenAI Baselines; or, as in the paper (§9), there is one
    variance for all dimensions, the softplus of a linear output.
    """

    dtype = np.dtype(np.float32)

    def __init__(self, n_dimensions: int, sd_per_state: bool) -> None:
        self.shape = (n_dimensions,)
        self._n, self._sd_per_state = n_dimensions, sd_per_state

    def head(self, layer: Any, x: Any) -> Any:
        """The policy's outputs, from the last hidden layer."""
        means = layer.linear("policy", x, self._n)
        if self._sd_per_state:
            return layer.with_log_sd_of_variance(means, layer.linear("policy_variance", x, 1))
        return layer.with_free_log_sd("policy_log_sd", means, self._n)

    def split(self, outputs: Any) -> tuple[Any, Any]:
        """The means and the logs of the sd, each (..., n), of NumPy's or TensorFlow's outputs."""
        return outputs[..., : self._n], outputs[..., self._n :]

    def noise(self, generator: np.random.Generator, *shape: int) -> np.ndarray:
        """Draw what so many actions need: (..., n)."""
        return generator.standard_normal((*shape, self._n))

    def chosen(self, outputs: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """One action a row: (K, 2n), (K, n) → (K, n)."""
        means, log_sds = self.split(outputs)
        return (means + np.exp(log_sds) * noise).astype(np.float32)

    def likeliest(self, outputs: np.ndarray) -> np.ndarray:
        return self.split(outputs)[0]

    def log_probabilities(self, outputs: "tf.Tensor", actions: "tf.Tensor") -> "tf.Tensor":
        """log π(a|s) of the actions taken: (T, K, 2n), (T, K, n) → (T, K)."""
        import tensorflow as tf

        means, log_sds = self.split(outputs)
        z = (actions - means) * tf.exp(-log_sds)
        return -tf.reduce_sum(0.5 * tf.square(z) + log_sds + 0.5 * math.log(2 * math.pi), axis=-1)

    def entropies(self, outputs: "tf.Tensor") -> "tf.Tensor":
        """H(π(s)), in nats: (T, K, 2n) → (T, K)."""
        import tensorflow as tf

        _, log_sds = self.split(outputs)
        return tf.reduce_sum(log_sds + 0.5 * math.log(2 * math.pi * math.e), axis=-1)


Policy: TypeAlias = Categorical | Gaussian


def policy_of(subject: Subject) -> Policy:
    if subject.policy == "categorical":
        return Categorical(subject.n_actions)
    return Gaussian(subject.n_actions, sd_per_state=subject.policy == "per_state")
