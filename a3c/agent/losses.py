"""n-step returns and A3C's losses: pure functions of tensors.

Time is the first axis and environments the second, wherever both appear: (T, K).
"""

from typing import NamedTuple

import tensorflow as tf


def n_step_returns(
    rewards: tf.Tensor, continues: tf.Tensor, bootstrap_values: tf.Tensor, discount: float
) -> tf.Tensor:
    """R_t = r_t + γ · continues_t · R_{t+1}, backward from R_T = V(s_T):
    (T, K), (T, K), (K,) → (T, K).

    One environment, γ = 0.5, and an episode that ends at the second step:

        t           0      1     2     T=3
        reward      1      2     3
        continues   1      0     1
        return      1+½·2  2     3+½·8  8 = V(s_T)
                    = 2    = 2   = 7

    This is the backward loop of the paper's Algorithm S3, continued through ends of episodes.
    """
    following = bootstrap_values
    returns = []
    for t in reversed(range(rewards.shape[0])):
        following = rewards[t] + discount * continues[t] * following
        returns.append(following)
    return tf.stack(returns[::-1])


class Losses(NamedTuple):
    """The scalars to minimise, and what they consist of."""

    policy: tf.Tensor  # −log π(a|s)·(R − V) − β·H, reduced
    value: tf.Tensor  # c_v · ½ (R − V)², reduced
    combined: tf.Tensor  # their sum, whose gradient is taken
    entropy: tf.Tensor  # the policy's mean entropy, in nats
    returns: tf.Tensor  # R, (T, K)
    values: tf.Tensor  # V, (T, K)
    advantages: tf.Tensor  # R − V, (T, K)


def a3c_losses(
    log_probabilities: tf.Tensor,
    entropies: tf.Tensor,
    values: tf.Tensor,
    returns: tf.Tensor,
    *,
    entropy_bonus: float,
    value_loss_coef: float,
    loss_reduction: str,
) -> Losses:
    """The losses of one rollout, from log π(a|s), H(π(s)), V(s) and R, each (T, K).

    Paper §4, and §8 for the entropy bonus β. The paper's pseudo-code has (R − V)² as the value loss
    and leaves its weight open; we take c_v·½(R − V)² with c_v = 0.5, as OCD A3C and PFRL do.
    """
    reduce = {"mean": tf.reduce_mean, "sum": tf.reduce_sum}[loss_reduction]
    # Returns are targets: no gradient flows into them, although they contain the bootstrap's value.
    returns = tf.stop_gradient(returns)
    advantages = returns - values
    policy = reduce(-log_probabilities * tf.stop_gradient(advantages) - entropy_bonus * entropies)
    value = reduce(value_loss_coef * 0.5 * tf.square(advantages))
    entropy = tf.reduce_mean(entropies)
    return Losses(policy, value, policy + value, entropy, returns, values, advantages)
