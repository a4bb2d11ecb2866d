"""Trains the oracle on what a real run saw and did, and bounds how far float32 may be from it.

The bound holds for each entry. To float32, float64 is exact. In every update, the run rounds

- each weight once, by at most u·|θ| (u = 2⁻²⁴);
- each mean square three times (α itself, its product, the sum), by at most 3u·m;
- the gradient g in a chain of k roundings: at most k terms are summed between the pixels and one
  entry, forward, backward and over all positions of all images, and with an LSTM through all steps. In
  the worst case the error is k·u times the sum of the terms' sizes. Since roundings go either way, it
  is about √k·u times that sum. Terms that cancel make the sum of sizes larger than the largest g of
  the variable, and we assume at most √k times, as if their signs were random. Then k·u·max|g| bounds
  both. (This is not certain. The test asserts that the errors of each run are at most half of the
  bound. What an LSTM remembers of earlier rollouts has errors, too, but forget gates let them fade.)

A gradient that is off by δ moves the step η·g/√(m + ε) by δ·η/√(m + ε), and through m by at most as
much again. So, after n updates,

    |error of θ| ≤ Σ_n u·|θ| + 2·k·u·max|g|·η/√(m + ε)
    |error of m| ≤ Σ_n αⁿ⁻ⁱ·(3u·m + (1 − α)·2·k·u·max|g|·(|g| + k·u·max|g|))

These sums leave out that the weights' errors change the next gradient, by far less than k·u·max|g|.
The test asserts, with a run's last weights, that it is at most a quarter of that.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from a3c.settings.params import Params
from tests.tools import oracle

if TYPE_CHECKING:
    from tests.tools.recorded_runs import Run

Arrays = dict[str, np.ndarray]
UNIT_ROUNDOFF = 2.0**-24  # of float32


def hyperparameters(params: Params) -> oracle.Hyperparameters:
    """The oracle's hyperparameters of a run."""
    return oracle.Hyperparameters(
        params.discount,
        params.value_loss_coef,
        params.entropy_bonus,
        params.loss_reduction,
        params.max_grad_norm,
        params.rmsprop_decay,
        params.rmsprop_epsilon,
    )


def network(params: Params, is_continuous: bool) -> oracle.Network:
    """The oracle's network of a run, whose parameters are resolved."""
    policy = params.policy_sd if is_continuous else "categorical"
    return oracle.Network(
        str(params.network), params.hidden_units, params.activation, params.lstm_units, policy
    )


def learning_rate(params: Params, n_steps_done: int) -> float:
    """The rate of the update after this many steps."""
    end = params.lr_decay_to_zero_by_n_steps
    if end is None:
        return params.initial_lr
    return oracle.linear_learning_rate(params.initial_lr, n_steps_done, end)


def n_roundings(weights: Mapping[str, np.ndarray], n_steps: int, n_envs: int) -> int:
    """k: the longest chain of roundings in one update."""
    chain = 0
    for name, weight in weights.items():
        if name.endswith("_kernel"):
            forward = int(np.prod(weight.shape[:-1]))
            backward = int(np.prod(weight.shape[:-2])) * weight.shape[-1]
            chain += (forward + backward) * (n_steps if name.endswith("_recurrent_kernel") else 1)
    # The first layer's kernel has 20×20 places on 84×84 pixels.
    n_places = 400 if "conv1_kernel" in weights else 1
    return chain + n_places * n_steps * n_envs


class Replay:
    """An oracle, and for each entry a bound of a float32 run's distance from it."""

    def __init__(
        self, params: Params, weights: Arrays, mean_squares: Arrays, is_continuous: bool = False
    ) -> None:
        ours = network(params, is_continuous)
        self.oracle = oracle.Oracle(ours, weights, mean_squares, hyperparameters(params))
        self.bounds = {
            "weights": {name: np.zeros(w.shape) for name, w in weights.items()},
            "mean_squares": {name: np.zeros(w.shape) for name, w in weights.items()},
        }
        self._params = params
        self._n_steps_done = 0
        n_steps, n_envs = params.steps_per_update, params.envs_per_worker
        self._n_steps_per_update = n_steps * n_envs
        self.rounding = UNIT_ROUNDOFF * n_roundings(weights, n_steps, n_envs)

    def update(self, rollout: oracle.Rollout) -> None:
        """Learn from the run's next rollout."""
        rate = learning_rate(self._params, self._n_steps_done)
        alpha, epsilon = self._params.rmsprop_decay, self._params.rmsprop_epsilon
        before = self.oracle.mean_squares.copy()
        self.oracle.update(rollout, rate)
        self._n_steps_done += self._n_steps_per_update
        for name, weight in self.oracle.weights.items():
            m = self.oracle.mean_squares[name]
            size = np.sqrt(np.maximum(m - alpha * before[name], 0) / (1 - alpha))  # |g|
            off = self.rounding * size.max()
            of_weights, of_squares = (self.bounds[part][name] for part in self.bounds)
            of_weights += UNIT_ROUNDOFF * np.abs(weight) + 2 * off * rate / np.sqrt(m + epsilon)
            of_squares *= alpha
            of_squares += 3 * UNIT_ROUNDOFF * m + (1 - alpha) * 2 * off * (size + off)

    def errors(self, part: str, arrays: Arrays) -> Arrays:
        """How far a run's weights or mean squares are from the oracle's."""
        return {n: np.abs(arrays[n] - ours) for n, ours in getattr(self.oracle, part).items()}


def rollouts(run: "Run", replay: Replay, hidden: bool = True) -> Iterator[oracle.Rollout]:
    """A recorded run's rollouts, each with the replay's weights of that moment.

    The statistics are of everything that was seen before the rollout. What LSTMs remember comes from
    the oracle. Where a time limit cut an episode off, the reward gets γ times the value that the limit
    hides, by the oracle. Without `hidden`, it does not, which is a mistake.
    """
    ours, params = replay.oracle, run.params
    raw, rewards = run.seen(), np.stack([step.rewards for step in run.steps]).astype(np.float64)
    ends = np.stack([step.terminated | step.truncated for step in run.steps])
    sums = oracle.discounted_sums(rewards, ~ends, params.discount)
    state = np.zeros((raw.shape[1], ours.network.state_size()))
    for begin in range(0, len(run.steps), params.steps_per_update):
        now = slice(begin, begin + params.steps_per_update)
        continues = (~ends[now]).astype(np.float64)
        seen_before = raw[:begin].reshape(-1, *raw.shape[2:])

        def as_seen(observations: np.ndarray, before: np.ndarray = seen_before) -> np.ndarray:
            if not params.normalize_observations:
                return observations
            return oracle.normalised(observations, before)

        seen = as_seen(raw[begin : now.stop + 1])
        paid = rewards[now].copy()
        if params.scale_rewards:
            paid = oracle.scaled(paid, sums[:begin].ravel())
        remembered = np.zeros((*paid.shape, 0))
        if ours.network.lstm_units:
            acted_on = seen[:-1].reshape(-1, *seen.shape[2:])
            outputs = oracle.forward(ours.network, ours.weights, acted_on, state, continues)
            remembered = outputs["state"].reshape(*paid.shape, -1)
        for t, step in enumerate(run.steps[now]):
            for k in np.flatnonzero(step.truncated & ~step.terminated & hidden):
                last, before = as_seen(step.last[k][None]), remembered[t, k][None]
                outputs = oracle.forward(ours.network, ours.weights, last, before)
                paid[t, k] += params.discount * outputs["value"][0, 0]
        actions = np.stack([step.actions for step in run.steps[now]])
        yield oracle.Rollout(seen, actions, paid, continues, state[None])
        state = remembered[-1] * continues[-1][:, None]
