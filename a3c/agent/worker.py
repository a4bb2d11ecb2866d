"""One worker: copy the weights, collect a rollout, compute gradients, apply them; again and again.

A rollout of T = steps_per_update steps of the worker's K environments takes T + 1 calls of the
network (`learner`): `act` T times and `learn` once. Two calls are rare: `evaluate_last` where a time
limit cut an episode off, and `measure` for every 100th rollout of worker 0.

If an environment's process breaks, the update uses only the other environments' columns; if none is
left, the rollout is collected again. So a fault counts neither as an end nor as a reward.

A rollout continues where an episode ends, although the paper's pseudo-code (Algorithm S3) ends it
there. So all rollouts have the same shape, and TensorFlow traces only that one.
"""

import contextlib
import functools
import traceback
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from a3c.agent import moments, optimizer
from a3c.agent.kernels import Activations
from a3c.agent.learner import LocalNetwork, Measurement, Rollout
from a3c.agent.shared import SharedState
from a3c.contract import Environments, Game, Moments, Step, WorkerPosition
from a3c.machine.stopping import StopFlag, Stopped
from a3c.settings.params import Params

MEASURE_EVERY_N_UPDATES = 100


class EnvRestart(NamedTuple):
    """A process of environments broke and was replaced; its games were abandoned."""

    why: str  # names the environments


class Failure(NamedTuple):
    """The error that ended a worker."""

    worker: int
    error: BaseException
    traceback: str
    # The rollout, its n_steps_collected, and the worker's weights; empty if memory ran out.
    arrays: Mapping[str, np.ndarray] = {}


Report: TypeAlias = Game | EnvRestart | Measurement | Failure


class MainThreadLink(NamedTuple):
    """How a worker and the main thread reach each other."""

    stop: StopFlag  # every thread watches it, and the first to find that the run is over sets it
    report: Callable[[Report], None]


class Worker:
    """The work of one thread, which calls `run`. Everything is made before the thread starts."""

    def __init__(
        self,
        number: int,
        shared: SharedState,
        local: LocalNetwork,
        envs: Environments,
        params: Params,
        generator: np.random.Generator,
        main: MainThreadLink,
    ) -> None:
        """`generator` draws the actions."""
        self.number = number
        self._shared, self._local, self._envs = shared, local, envs
        self._params, self._generator = params, generator
        self._stop, self._report = main
        n_steps, n_envs = params.steps_per_update, envs.observations.shape[1]
        self._n_steps_per_rollout = n_steps * n_envs
        # As of the last update, and what this rollout adds.
        self._moments: Mapping[str, Moments] = shared.moments
        self._returns = np.zeros((n_steps, n_envs))  # the discounted rewards of each episode so far
        is_normalised = "observations" in self._moments
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
        self._games: list[Game] = []  # that ended since the last update
        # As of the last update. The main thread reads it while the gate is shut.
        self.position = self._position()
        # The local weights were copied before any worker ran.
        self._n_updates_at_copy = shared.counters.read().updates

    def run(self) -> None:
        """Work until the run has its steps or is stopped; the first error stops all workers."""
        try:
            # Into the last slot, because `_collect` begins with the last slot of the one before.
            self._envs.reset(slot=self._params.steps_per_update)
            self._take_replaced()
            self._work()
        except Stopped:
            pass
        except BaseException as error:
            self._stop.set()  # before anything slow: nobody is to learn after this
            text, arrays = traceback.format_exc(), {}
            with contextlib.suppress(Exception):  # there may be no memory left
                arrays = self._arrays()
            self._report(Failure(self.number, error, text, arrays))
        finally:
            # The call that raised may have replaced a process.
            self._take_replaced()

    def _arrays(self) -> dict[str, np.ndarray]:
        return {
            "n_steps_collected": np.array(len(self._acted)),
            **{name: array.copy() for name, array in self._rollout._asdict().items()},
            **{f"weights/{name}": v.numpy() for name, v in self._local.weights.items()},
        }

    def _work(self) -> None:
        n_rollouts = n_frames_counted = 0
        while not self._stop.is_set() and self._shared.counters.reserve(self._n_steps_per_rollout):
            self._collect()
            rollout, n_steps = self._rollout, self._n_steps_per_rollout
            acted: list[Activations] | None = self._acted
            if not self._is_whole.all():
                acted = None
                rollout = self._rollout.of_envs(self._is_whole)
                n_steps = rollout.rewards.size
                self._shared.counters.give_back(self._n_steps_per_rollout - n_steps)
                if n_steps == 0:
                    continue
            elif self.number == 0 and n_rollouts % MEASURE_EVERY_N_UPDATES == 0:
                self._report(self._local.measure(rollout))
            with self._shared.gate:
                if self._stop.is_set():
                    return
                try:
                    rate = self._learning_rate(self._shared.counters.read().steps)
                    learn = functools.partial(self._local.learn, rollout, rate, acted)
                    self._moments = self._shared.update(learn, self._seen())
                except BaseException:
                    self._stop.set()  # before others pass the gate
                    raise
                n_frames = self._envs.n_frames
                new_frames, n_frames_counted = n_frames - n_frames_counted, n_frames
                counts = self._shared.counters.add_update(
                    n_steps, new_frames, self._n_updates_at_copy, len(self._games)
                )
                self._n_updates_at_copy = counts.updates
                for game in self._games:
                    self._report(game._replace(step=counts.steps))
                self._games.clear()
                self.position = self._position()
            n_rollouts += 1

    def _position(self) -> WorkerPosition:
        return WorkerPosition(self._generator.bit_generator.state, list(self._envs.next_games))

    def _learning_rate(self, n_steps_done: int) -> float:
        end = self._params.lr_decay_to_zero_by_n_steps
        return optimizer.learning_rate(self._params.initial_lr, n_steps_done, end)

    def _collect(self) -> None:
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
            if self._stop.is_set():
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

    def _seen(self) -> Mapping[str, np.ndarray]:
        """What this rollout adds to the moments: nothing of environments that were replaced."""
        if not self._moments:
            return {}
        seen = {"observations": self._envs.observations[:-1], "returns": self._returns}
        return {
            name: data[:, self._is_whole].reshape(-1, *data.shape[2:])
            for name, data in seen.items()
        }

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
