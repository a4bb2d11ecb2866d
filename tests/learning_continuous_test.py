"""Small tasks with continuous actions whose best policy and value are known in closed form."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pytest
import tensorflow as tf

from a3c.agent import kernels, moments
from a3c.agent.policy import Gaussian
from a3c.agent.shared import SharedState
from a3c.contract import Replaced, Step
from tests.learning_test import GAMMA, learn
from tests.tools.agents import FORGETFUL, subject_of

Array: TypeAlias = np.ndarray


class NumberEnvs:
    """K copies of a task whose state is some numbers, which are drawn at the start of each episode.

    `move` gives states and rewards after actions, of all copies at once. An episode is cut off after `length` steps.
    """

    def __init__(
        self,
        n_slots: int,
        n_envs: int,
        n_numbers: int,
        move: Callable[[Array, Array], tuple[Array, Array]],
        length: int,
    ) -> None:
        self.observations = np.zeros((n_slots, n_envs, n_numbers), np.float32)
        self.final_observations = np.zeros((n_envs, n_numbers), np.float32)
        self.n_frames = 0
        self.next_games = [0] * n_envs
        self._move, self._length = move, length
        self._generator = np.random.default_rng(0)
        self._n_steps = np.arange(n_envs)  # so that they do not all end at once

    def reset(self, slot: int) -> None:
        self._states = self._drawn()
        self.observations[slot] = self._states

    def step(self, actions: Array, slot: int) -> Step:
        self._states, rewards = self._move(self._states, actions.astype(np.float64))
        self._n_steps += 1
        ends = self._n_steps % self._length == 0
        self.final_observations[:] = self._states
        self._states = np.where(ends[:, None], self._drawn(), self._states)
        self.observations[slot] = self._states
        return Step(rewards.astype(np.float32), np.zeros_like(ends), ends, [])

    def _drawn(self) -> Array:
        return self._generator.uniform(-1, 1, self.final_observations.shape)

    def take_replaced(self) -> Sequence[Replaced]:
        return ()


def of_states(shared: SharedState, states: Array, policy: str) -> tuple[Array, Array, Array]:
    """The means, sds and values that were learned for some states."""
    n = shared.weights["policy_bias"].shape[0]
    subject = subject_of("mlp", states.shape[1:], n, policy=policy)
    found = kernels.forward(subject, shared.weights, tf.constant(states, tf.float32), FORGETFUL)
    means, log_sds = Gaussian(n, False).split(found.outputs.numpy())
    return means, np.exp(log_sds), found.values.numpy()


# A bandit

BEST = np.array([0.5, -1.0])
STEEPNESS = np.array([1.0, 4.0])
BETA = 0.25
# Where β·H gains as much by a wider policy as the reward loses: k·σ² = β, or Σ k·σ² = 2·β with one σ for both.
BEST_SDS = {
    "per_dimension": np.sqrt(BETA / STEEPNESS),
    "per_state": np.sqrt(2 * BETA / STEEPNESS.sum()),
}


def pay(states: Array, actions: Array) -> tuple[Array, Array]:
    """−Σ k·(a − c)²/2, whatever the state is."""
    return states, -(STEEPNESS * (actions - BEST) ** 2).sum(axis=1) / 2


@pytest.mark.parametrize("policy", BEST_SDS)
def test_a_bandit_gets_its_best_mean_and_the_sd_that_the_entropy_bonus_is_worth(
    policy: str,
) -> None:
    """Learning: the mean within 0.08, the sd within 15 %; of a free sd a dimension, and of one sd for both."""
    envs = NumberEnvs(4, 8, 1, pay, 1)
    settings: dict[str, Any] = {"rmsprop_epsilon": 0.01, "entropy_bonus": BETA, "discount": 0.0}
    shared = learn(envs, 2, 300, policy, **settings)
    means, sds, _ = of_states(shared, np.array([[-0.5], [0.5]]), policy)
    assert np.abs(means - BEST).max() < 0.08
    assert np.abs(sds / BEST_SDS[policy] - 1).max() < 0.15


# A linear system with quadratic costs

A, B, Q, R = 0.9, 0.5, 1.0, 0.5
BONUS = 0.1


def control(states: Array, actions: Array) -> tuple[Array, Array]:
    """x ← A·x + B·u, at a cost of Q·x² + R·u²."""
    return A * states + B * actions, -(Q * states**2 + R * actions**2)[:, 0]


def riccati() -> float:
    """P of the best policy's value −P·x², by iteration from 0."""
    p = 0.0
    for _ in range(1000):
        p = Q + GAMMA * A**2 * p - (GAMMA * A * B * p) ** 2 / (R + GAMMA * B**2 * p)
    return p


P = riccati()  # 1.70
# Of the best action u*, another one u differs by CURVATURE·(u − u*)² in what follows.
CURVATURE = R + GAMMA * B**2 * P
GAIN = GAMMA * A * B * P / CURVATURE  # u* = −0.78·x


@pytest.mark.parametrize("is_normalised", [False, True])
def test_a_linear_system_gets_its_best_linear_policy_and_its_value(is_normalised: bool) -> None:
    """Learning: u = −K·x within 0.12 (K = 0.78), σ² = β/(2·curvature) within 25 %, and V = −P·x² less what σ costs
    within 0.3 (V goes from −0.5 to −2.2), for x from −1 to 1. With normalised observations and scaled rewards,
    values are in units of the returns' sd, and β is worth as much more.
    """
    envs = NumberEnvs(4, 32, 1, control, 3)
    settings: dict[str, Any] = {
        "initial_lr": 0.01,
        "initial_weights": "torch",  # without biases, tanh has no even functions of x
        "value_loss_coef": 4.0,
        "entropy_bonus": BONUS,
        "normalize_observations": is_normalised,
        "scale_rewards": is_normalised,
    }
    shared = learn(envs, 1, 500, "per_dimension", **settings)
    x, unit = np.linspace(-1, 1, 9)[:, None], 1.0
    seen = x
    if is_normalised:
        seen = moments.normalised(x, shared.moments["observations"])
        unit = float(moments.sd(shared.moments["returns"]))
        assert abs(unit - 1) > 0.1  # or it would prove less
    means, sds, values = of_states(shared, seen, "per_dimension")
    variance = BONUS * unit / (2 * CURVATURE)
    best = -P * x[:, 0] ** 2 - CURVATURE * variance / (1 - GAMMA)
    assert np.abs(means + GAIN * x).max() < 0.12
    assert np.abs(sds**2 / variance - 1).max() < 0.25
    assert np.abs(unit * values - best).max() < 0.3
