"""The policy over discrete actions, from one logit for each: drawing, log-probability, entropy."""

import numpy as np
import tensorflow as tf


def sample_actions(logits: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Draw one action a row from softmax(logits), by the Gumbel-max trick: (K, n) → (K,) int32."""
    return np.argmax(logits + generator.gumbel(size=logits.shape), axis=1).astype(np.int32)


def log_probabilities(logits: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """log π(a|s) of the actions taken: (T, K, n), (T, K) → (T, K)."""
    return -tf.nn.sparse_softmax_cross_entropy_with_logits(labels=actions, logits=logits)


def entropies(logits: tf.Tensor) -> tf.Tensor:
    """H(π(s)), in nats: (T, K, n) → (T, K)."""
    # log_softmax is finite for all finite logits, so 0 · log 0 gives 0, as it should.
    log_all = tf.nn.log_softmax(logits)
    return -tf.reduce_sum(tf.exp(log_all) * log_all, axis=-1)
