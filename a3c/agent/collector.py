"""A worker's environments and its network's copy: how a rollout is collected, here or elsewhere.

If an environment's process breaks, the rollout goes on with the other environments' columns; if none
is left, it is collected again. So a fault counts neither as an end nor as a reward.

A rollout continues where an episode ends, although the paper's pseudo-code (Algorithm S3) ends it
there. So all rollouts have the same shape, and TensorFlow traces only that one.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from a3c.agent import moments
from a3c.agent.kernels import Activations
from a3c.agent.learner import LocalNetwork, Measurement, Rollout
from a3c.contract import Collected, Environments, Game, Moments, Step, WorkerPosition
from a3c.machine.stopping import Stopped
from a3c.settings.params import Params, kept_moments


class EnvRestart(NamedTuple):
    """A process of environments broke and was replaced; its games were abandoned."""

    why: str  # names the environments


class Collector:
    """Collects rollouts under the local weights, and learns from the latest one."""

    def __init__(
        self,
        local: LocalNetwork,
        envs: Environments,
        params: Params,
        generator: np.random.Generator,
        report: Callable[[EnvRestart], None],
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """`generator` draws the actions. Once `is_stopped`, collecting ends with `Stopped`."""
        self._local, self._envs = local, envs
        self._params, self._generator = params, generator
        self._report, self._is_stopped = report, is_stopped
        n_steps, n_envs = params.steps_per_update, envs.observations.shape[1]
        self.n_steps_per_rollout = n_steps * n_envs
        self._moments: Mapping[str, Moments] = {}  # as of the last update
        self._returns = np.zeros((n_steps, n_envs))  # the discounted rewards of each episode so far
        is_normalised = "observations" in kept_moments(params)
        self._rollout = Rollout(
            # The environments' processes write into theirs.
            np.empty_like(envs.observations) if is_normalised else envs.observations,
            np.zeros((n_steps, n_envs, *local.policy.shape), local.policy.dtype),
            np.zeros((n_steps, n_envs), np.float32),
            np.zeros((n_steps, n_envs), np.float32),
            np.zeros((1, n_envs, local.state_size), np.float32),
        )
        # What the LSTMs remember of each environment's episode.
        self._state = np.zeros((n_envs, local.state_size), np.float32)
        self._acted: list[Activations] = []  # one for each step of the rollout so far
        # For each environment, whether its process is still the one that began this rollout.
        self._is_whole = np.ones(n_envs, bool)
        # Sum and number of the values in each environment's episode so far.
        self._value_sums = np.zeros(n_envs)
        self._n_values = np.zeros(n_envs, np.int64)
        # Their mean in the episode that ended last. The main thread logs it.
        self.episode_value_mean = float("nan")
        self._games: list[Game] = []  # that ended since the last rollout
        self._n_frames_told = 0

    @property
    def position(self) -> WorkerPosition:
        return WorkerPosition(self._generator.bit_generator.state, list(self._envs.next_games))

    def begin(self) -> None:
        """Begin the first games."""
        # Into the last slot, because `_fill` begins with the last slot of the rollout before.
        self._envs.reset(slot=self._params.steps_per_update)
        self._take_replaced()

    def collect(self, moments: Mapping[str, Moments]) -> Collected:
        """Collect a rollout, for which `moments` are the running ones."""
        self._moments = moments
        self._fill()
        while not self._is_whole.any():
            self._fill()
        n_frames, games = self._envs.n_frames, self._games
        new_frames = n_frames - self._n_frames_told
        self._n_frames_told, self._games = n_frames, []
        n_steps = len(self._rollout.rewards) * int(self._is_whole.sum())
        return Collected(n_steps, new_frames, games, self._seen(), self.position)

    def learn(self, learning_rate: float) -> Any:
        """Learn from the rollout, as `LocalNetwork.learn` does."""
        if self._is_whole.all():
            return self._local.learn(self._rollout, learning_rate, self._acted)
        return self._local.learn(self._rollout.of_envs(self._is_whole), learning_rate, None)

    def measure(self) -> Measurement:
        return self._local.measure(self._rollout)

    def arrays(self) -> dict[str, np.ndarray]:
        """For the record of a failure: the rollout, how much of it is new, and the weights."""
        return {
            "n_steps_collected": np.array(len(self._acted)),
            **{name: array.copy() for name, array in self._rollout._asdict().items()},
            **{f"weights/{name}": np.array(v) for name, v in self._local.weights.items()},
        }

    def end(self) -> None:
        # The call that raised may have replaced a process.
        self._take_replaced()

    def _fill(self) -> None:
        """Fill the rollout. Its slot 0 gets the last slot of the rollout before."""
        actions = self._rollout.actions
        raw = self._envs.observations
        raw[0] = raw[-1]
        self._rollout.states[0] = self._state
        self._acted.clear()
        self._is_whole[:] = True
        if self._params.debug:
            for name, used in self._moments.items():
                parts = {f"{name}_{part}": np.asarray(x) for part, x in used._asdict().items()}
                self._local.dump("moments", **parts)
        for t in range(len(actions)):
            if self._is_stopped():
                raise Stopped
            acted = self._local.act(self._seen_in(t), self._state)
            actions[t] = self._local.policy.sample(acted.outputs, self._generator)
            step = self._envs.step(actions[t], slot=t + 1)
            ended = step.terminated | step.truncated
            self._take_rewards(t, step, acted.state)
            self._rollout.continues[t] = ~ended
            self._state = acted.state * self._rollout.continues[t, :, None]
            self._note_values(acted.values, ended)
            self._games.extend(step.games)
            self._take_replaced()
            self._acted.append(acted.activations)
        self._seen_in(len(actions))

    def _seen_in(self, slot: int) -> np.ndarray:
        """The observations of a slot as the network gets them; they also go into the rollout."""
        raw, seen = self._envs.observations, self._rollout.observations
        if seen is not raw:
            seen[slot] = self._as_seen(raw[slot])
        return seen[slot]

    def _as_seen(self, observations: np.ndarray) -> np.ndarray:
        if "observations" in self._moments:
            self._local.dump("raw", observations=observations)
        return moments.seen(observations, self._moments)

    def _take_rewards(self, t: int, step: Step, state: np.ndarray) -> None:
        """Put the rewards of a step into the rollout; `state` is that after its observations."""
        rewards = step.rewards
        if (of_returns := self._moments.get("returns")) is not None:
            self._local.dump("raw", rewards=rewards)
            before = self._returns[t - 1] * self._rollout.continues[t - 1]
            self._returns[t] = self._params.discount * before + rewards
            rewards = moments.scaled(rewards, of_returns)
        self._rollout.rewards[t] = rewards
        only_truncated = step.truncated & ~step.terminated
        if only_truncated.any():
            last = self._as_seen(self._envs.final_observations)
            hidden = self._local.evaluate_last(last, state)
            self._rollout.rewards[t] += self._params.discount * np.where(only_truncated, hidden, 0)

    def _seen(self) -> dict[str, Moments]:
        """What this rollout adds to the moments: nothing of environments that were replaced."""
        data = {"observations": self._envs.observations[:-1], "returns": self._returns}
        rows = {name: data[name][:, self._is_whole] for name in self._moments}
        return {name: moments.of(x.reshape(-1, *x.shape[2:])) for name, x in rows.items()}

    def _take_replaced(self) -> None:
        """Leave out environments that were replaced since the last call, and report that."""
        for replaced in self._envs.take_replaced():
            for env in replaced.envs:
                self._is_whole[env] = False
                self._state[env] = 0
                self._returns[:, env] = 0
                self._value_sums[env] = self._n_values[env] = 0
            self._report(EnvRestart(replaced.why))

    def _note_values(self, values: np.ndarray, ended: np.ndarray) -> None:
        self._value_sums += values
        self._n_values += 1
        for k in np.flatnonzero(ended):
            self.episode_value_mean = float(self._value_sums[k] / self._n_values[k])
            self._value_sums[k] = self._n_values[k] = 0
