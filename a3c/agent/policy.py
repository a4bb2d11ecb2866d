"""The policy: how an action is drawn from the network's outputs, how likely it was, and how open the
choice is.

Discrete actions; the outputs are logits, one for each action.
"""

import numpy as np
import tensorflow as tf


def sample_actions(logits: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """One action a row from softmax(logits), by the Gumbel-max trick: (K, n) → (K,) int32."""
    return np.argmax(logits + generator.gumbel(size=logits.shape), axis=1).astype(np.int32)


def log_probabilities(logits: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """log π(a|s) of the actions taken: (T, K, n), (T, K) → (T, K)."""
    return -tf.nn.sparse_softmax_cross_entropy_with_logits(labels=actions, logits=logits)


def entropies(logits: tf.Tensor) -> tf.Tensor:
    """H(π(s)), in nats: (T, K, n) → (T, K)."""
    # log_softmax stays finite for any finite logits; 0 · log 0 comes out as 0, as entropy wants it.
    log_all = tf.nn.log_softmax(logits)
    return -tf.reduce_sum(tf.exp(log_all) * log_all, axis=-1)
