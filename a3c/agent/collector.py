"""How a rollout is collected: a network acts in environments, step by step.

This happens in a worker's thread, or, with the network for vectors, in the environments' processes
(see `process_collector`). So nothing here needs TensorFlow.

If an environment's process breaks, the rollout goes on with the other environments' columns; if none
is left, it is collected again. So a fault counts neither as an end nor as a reward.

A rollout continues where an episode ends, although the paper's pseudo-code (Algorithm S3) ends it
there. So all rollouts have the same shape, and TensorFlow traces only that one.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from a3c.agent import moments
from a3c.agent.policy import Policy
from a3c.contract import Environments, Game, Moments, Step
from a3c.machine.stopping import Stopped
from a3c.settings.params import Params, kept_moments


class Rollout(NamedTuple):
    """T steps of K environments. Step t saw observations[t], did actions[t], and got the rest."""

    observations: np.ndarray  # (T + 1, K, ...); the value of the last ones starts the returns
    actions: np.ndarray  # (T, K) int32 or, if they are continuous, (T, K, n) float32
    rewards: np.ndarray  # (T, K) float32; a truncation adds γ·V(true last observation)
    continues: np.ndarray  # (T, K) float32; 0 where the episode ended, for any reason
    # (1, K, n_state) float32: what the LSTMs remembered before step 0; without LSTMs, nothing
    states: np.ndarray

    def of_envs(self, envs: np.ndarray | slice) -> "Rollout":
        """The rollout of some of the environments: those of a slice, or where a mask is True."""
        return Rollout(*(part[:, envs] for part in self))


def fields(
    params: Params, policy: Policy, state_size: int, n_envs: int, observation_shape: tuple[int, ...]
) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
    """Type and shape of each array that a rollout fills, besides the environments' observations."""
    n_steps, number = params.steps_per_update, np.dtype(np.float32)
    arrays = {
        "actions": (policy.dtype, (n_steps, n_envs, *policy.shape)),
        "rewards": (number, (n_steps, n_envs)),
        "continues": (number, (n_steps, n_envs)),
        "states": (number, (1, n_envs, state_size)),
        # The discounted rewards of each episode so far.
        "returns": (np.dtype(np.float64), (n_steps, n_envs)),
    }
    if "observations" in kept_moments(params):
        arrays["seen"] = number, (n_steps + 1, n_envs, *observation_shape)
    return arrays


def rollout_in(arrays: Mapping[str, np.ndarray]) -> Rollout:
    """The rollout in such arrays. Without `seen`, its observations are the environments' own."""
    names = Rollout._fields[1:]
    observations = arrays.get("seen", arrays["observations"])
    return Rollout(observations, **{name: arrays[name] for name in names})


def moments_in(
    arrays: Mapping[str, np.ndarray], is_whole: np.ndarray, names: Iterable[str]
) -> dict[str, Moments]:
    """What a rollout adds to the moments: nothing of environments that were replaced."""
    data = {"observations": arrays["observations"][:-1], "returns": arrays["returns"]}
    rows = {name: data[name][:, is_whole] for name in names}
    return {name: moments.of(x.reshape(-1, *x.shape[2:])) for name, x in rows.items()}


class Acted(NamedTuple):
    """What a worker's network computes for K observations."""

    outputs: np.ndarray  # (K, n_outputs), the policy's
    values: np.ndarray  # (K,)
    state: np.ndarray  # (K, n_state), for the next step of the same episode
    activations: Mapping[str, Any]  # tensors, for `LocalNetwork.learn`


class Network(Protocol):
    """What acts."""

    policy: Policy
    state_size: int

    def act(self, observations: np.ndarray, state: np.ndarray) -> Acted: ...

    # The values of true last observations: (K, ...), and the state before them → (K,).
    def evaluate_last(self, observations: np.ndarray, state: np.ndarray) -> np.ndarray: ...

    @property
    def dump(self) -> Callable[..., None]: ...  # into the debug log


class EnvRestart(NamedTuple):
    """A process of environments broke and was replaced; its games were abandoned."""

    why: str  # names the environments


class Collector:
    """Collects rollouts in environments; each one is in `rollout` until the next."""

    def __init__(
        self,
        network: Network,
        envs: Environments,
        params: Params,
        generator: np.random.Generator,
        report: Callable[[EnvRestart], None],
        is_stopped: Callable[[], bool] = lambda: False,
        arrays: Mapping[str, np.ndarray] | None = None,
        rows: slice = slice(None),
    ) -> None:
        """`generator` draws the actions. Once `is_stopped`, collecting ends with `Stopped`.

        If `arrays` are given, they are of all environments of a worker, and `envs` are these rows of
        them. Actions are drawn for all, and those of these rows are used.
        """
        self._network, self._envs = network, envs
        self._params, self._generator = params, generator
        self._report, self._is_stopped = report, is_stopped
        n_envs = envs.observations.shape[1]
        self._moments: Mapping[str, Moments] = {}  # as of the last update
        if arrays is None:
            shape = envs.observations.shape[2:]
            wanted = fields(params, network.policy, network.state_size, n_envs, shape)
            arrays = {name: np.zeros(shape, dtype) for name, (dtype, shape) in wanted.items()}
            arrays["observations"] = envs.observations
        self.arrays = {name: arrays[name][:, rows] for name in ("observations", "returns")}
        self._returns = self.arrays["returns"]
        self._returns[:] = 0  # a process that was replaced may have left some
        self._n_envs_drawn_for, self._rows = arrays["rewards"].shape[1], rows
        self.rollout = rollout_in(arrays).of_envs(rows)
        # What the LSTMs remember of each environment's episode.
        self._state = np.zeros((n_envs, network.state_size), np.float32)
        self.acted: list[Mapping[str, Any]] = []  # activations of each step of the rollout so far
        # For each environment, whether its process is still the one that began this rollout.
        self.is_whole = np.ones(n_envs, bool)
        # Sum and number of the values in each environment's episode so far.
        self._value_sums = np.zeros(n_envs)
        self._n_values = np.zeros(n_envs, np.int64)
        # In the episode that ended last in this rollout: its step, and the mean of its values.
        self.last_mean = -1, math.nan
        self._games: list[Game] = []  # that ended since the last rollout

    @property
    def n_steps_collected(self) -> int:
        """How much of the rollout is new."""
        return len(self.acted)

    @property
    def generator_state(self) -> Mapping[str, Any]:
        return self._generator.bit_generator.state

    def fill(self, moments: Mapping[str, Moments]) -> list[Game]:
        """Fill the rollout, for which `moments` are the running ones.

        Returns the games that have ended since the last call, with their steps.
        """
        self._moments, self.last_mean = moments, (-1, math.nan)
        self._fill()
        while not self.is_whole.any():
            self._fill()
        games, self._games = self._games, []
        return games

    def _fill(self) -> None:
        """Fill it once, whatever breaks. Slot 0 gets the last slot of the rollout before."""
        actions, policy = self.rollout.actions, self._network.policy
        raw = self._envs.observations
        raw[0] = raw[-1]
        self.rollout.states[0] = self._state
        self.acted.clear()
        self.is_whole[:] = True
        noise = policy.noise(self._generator, len(actions), self._n_envs_drawn_for)[:, self._rows]
        if self._params.debug:
            for name, used in self._moments.items():
                parts = {f"{name}_{part}": np.asarray(x) for part, x in used._asdict().items()}
                self._network.dump("moments", **parts)
        for t in range(len(actions)):
            if self._is_stopped():
                raise Stopped
            acted = self._network.act(self._seen_in(t), self._state)
            actions[t] = policy.chosen(acted.outputs, noise[t])
            step = self._envs.step(actions[t], slot=t + 1)
            self.rollout.rewards[t] = self._scaled(t, step.rewards)
            self.rollout.continues[t] = 1
            self._state = acted.state
            self._value_sums += acted.values
            self._n_values += 1
            ended = step.terminated | step.truncated
            if ended.any():
                self._end_episodes(t, step, ended)
            self._games.extend(game._replace(step=t) for game in step.games)
            self.take_replaced()
            self.acted.append(acted.activations)
        self._seen_in(len(actions))

    def _seen_in(self, slot: int) -> np.ndarray:
        """The observations of a slot as the network gets them; they also go into the rollout."""
        if "observations" in self._moments:  # or else the two are the same memory
            self.rollout.observations[slot] = self._as_seen(self._envs.observations[slot])
        return self.rollout.observations[slot]

    def _as_seen(self, observations: np.ndarray) -> np.ndarray:
        if "observations" in self._moments:
            self._network.dump("raw", observations=observations)
        return moments.seen(observations, self._moments)

    def _scaled(self, t: int, rewards: np.ndarray) -> np.ndarray:
        """The rewards of a step as the rollout gets them."""
        of_returns = self._moments.get("returns")
        if of_returns is None:
            return rewards
        self._network.dump("raw", rewards=rewards)
        before = self._returns[t - 1] * self.rollout.continues[t - 1]
        self._returns[t] = self._params.discount * before + rewards
        return moments.scaled(rewards, of_returns)

    def _end_episodes(self, t: int, step: Step, ended: np.ndarray) -> None:
        """What becomes of a step where episodes have ended; `_state` is that after its observations."""
        only_truncated = step.truncated & ~step.terminated
        if only_truncated.any():
            last = self._as_seen(self._envs.final_observations)
            hidden = self._network.evaluate_last(last, self._state)
            self.rollout.rewards[t] += self._params.discount * np.where(only_truncated, hidden, 0)
        self.rollout.continues[t] = ~ended
        self._state = self._state * self.rollout.continues[t, :, None]
        for k in np.flatnonzero(ended):
            self.last_mean = t, float(self._value_sums[k] / self._n_values[k])
            self._value_sums[k] = self._n_values[k] = 0

    def take_replaced(self) -> None:
        """Leave out environments that were replaced since the last call, and report that."""
        for replaced in self._envs.take_replaced():
            for env in replaced.envs:
                self.is_whole[env] = False
                self._state[env] = 0
                self._returns[:, env] = 0
                self._value_sums[env] = self._n_values[env] = 0
            self._report(EnvRestart(replaced.why))
