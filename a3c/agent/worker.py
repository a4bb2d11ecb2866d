"""One worker: copy the weights, collect a rollout, compute gradients, apply them; again and again.

A rollout of T = steps_per_update steps of the worker's K environments takes T + 1 calls of the
network (`learner`): `act` T times and `learn` once. Two are rare: `evaluate_last`, where a time
limit cut an episode off, for the value that the limit hides; and `measure`, for every 100th rollout
of worker 0.

An environment whose process broke during a rollout is taken out of it: the update is made of the
other environments' columns alone, and where none is left the rollout is collected anew. So a fault
is no terminal state and no reward, and `mean` divides by what is left.

Rollouts run on through ends of episodes; the paper's pseudo-code (Algorithm S3) ends a rollout
there. With K > 1 all rollouts must have one length, and one shape is traced once.
"""

import contextlib
import traceback
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from a3c.agent import optimizer, policy
from a3c.agent.kernels import Activations
from a3c.agent.learner import LocalNetwork, Measurement, Rollout
from a3c.agent.shared import SharedState
from a3c.contract import Environments, Game, WorkerPosition
from a3c.machine.stopping import StopFlag, Stopped
from a3c.settings.params import Params

MEASURE_EVERY_N_UPDATES = 100


class EnvRestart(NamedTuple):
    """A process of environments broke; its games were abandoned, and a new one took its place."""

    why: str  # names the environments


class Failure(NamedTuple):
    """A worker's last words."""

    worker: int
    error: BaseException
    traceback: str
    # The rollout, how much of it was collected, and the worker's own weights.
    arrays: Mapping[str, np.ndarray] | None = None


# A game's `step` is the run's, with those of the rollout that the game ended in.
Report: TypeAlias = Game | EnvRestart | Measurement | Failure


class MainThread(NamedTuple):
    """What a worker shares with the main thread."""

    stop: StopFlag  # whoever finds that the run is over sets it, and everybody watches it
    report: Callable[[Report], None]


class Worker:
    """One thread's work: `run` is the thread's function; all else is made before it starts."""

    def __init__(
        self,
        number: int,
        shared: SharedState,
        local: LocalNetwork,
        envs: Environments,
        params: Params,
        generator: np.random.Generator,
        main: MainThread,
    ) -> None:
        """`generator` draws the actions."""
        self.number = number
        self._shared, self._local, self._envs = shared, local, envs
        self._params, self._generator = params, generator
        self._stop, self._report = main
        n_steps, n_envs = params.steps_per_update, envs.observations.shape[1]
        self._n_steps_per_rollout = n_steps * n_envs
        self._rollout = Rollout(
            envs.observations,  # where the environments' processes write
            np.zeros((n_steps, n_envs), np.int32),
            np.zeros((n_steps, n_envs), np.float32),
            np.zeros((n_steps, n_envs), np.float32),
        )
        self._n_collected = 0  # how many of its steps are filled
        self._activations: list[Activations] = []  # one entry for each filled step
        # Whether one process has made all steps of an environment in this rollout.
        self._is_whole = np.ones(n_envs, bool)
        # The values estimated so far in each environment's episode, for rl/episode_value_mean.
        self._value_sums = np.zeros(n_envs)
        self._n_values = np.zeros(n_envs, np.int64)
        # The mean over the episode that ended last; the main thread reads it for the logs.
        self.episode_value_mean = float("nan")
        # Games that ended since the last update; they are reported with the next one.
        self._games: list[Game] = []
        # As of the last update; the main thread reads it while the gate is shut.
        self.position = self._position()
        # The local network was copied when it was made, before any worker ran.
        self._n_updates_at_copy = shared.counters.read().updates

    def run(self) -> None:
        """Work until the run has its steps or is stopped; the first error stops everybody."""
        try:
            # Into the last slot, since every rollout begins with what the one before ended with.
            self._envs.reset(slot=self._params.steps_per_update)
            self._take_replaced()
            self._work()
        except Stopped:
            pass
        except BaseException as error:
            self._stop.set()  # before anything slow: nobody is to learn after this
            text, arrays = traceback.format_exc(), {}
            with contextlib.suppress(Exception):  # of memory, there may be none left
                arrays = self._arrays()
            self._report(Failure(self.number, error, text, arrays))
        finally:
            # A process may have been replaced in a call that then raised, or was stopped.
            self._take_replaced()

    def _arrays(self) -> dict[str, np.ndarray]:
        return {
            "n_steps_collected": np.array(self._n_collected),
            **{name: array.copy() for name, array in self._rollout._asdict().items()},
            **{f"weights/{name}": v.numpy() for name, v in self._local.weights.items()},
        }

    def _work(self) -> None:
        n_rollouts = n_frames_counted = 0
        while not self._stop.is_set() and self._shared.counters.reserve(self._n_steps_per_rollout):
            self._collect()
            rollout, n_steps = self._rollout, self._n_steps_per_rollout
            activations: list[Activations] | None = self._activations
            if not self._is_whole.all():
                activations = None
                rollout = Rollout(*(part[:, self._is_whole] for part in self._rollout))
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
                    self._local.learn(rollout, rate, activations)
                except BaseException:
                    self._stop.set()  # before others pass the gate
                    raise
                n_frames = self._envs.n_frames
                counts = self._shared.counters.add_update(
                    n_steps,
                    n_frames - n_frames_counted,
                    self._n_updates_at_copy,
                    len(self._games),
                )
                n_frames_counted, self._n_updates_at_copy = n_frames, counts.updates
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
        """Fill the rollout, going on where the last one ended."""
        observations, actions, rewards, continues = self._rollout
        observations[0] = observations[-1]
        self._n_collected = 0
        self._activations.clear()
        self._is_whole[:] = True
        for t in range(len(actions)):
            if self._stop.is_set():
                raise Stopped
            outputs, values, activations = self._local.act(observations[t])
            self._activations.append(activations)
            actions[t] = policy.sample_actions(outputs, self._generator)
            step = self._envs.step(actions[t], slot=t + 1)
            ended = step.terminated | step.truncated
            rewards[t] = step.rewards
            continues[t] = ~ended
            only_truncated = step.truncated & ~step.terminated
            if only_truncated.any():
                hidden = self._local.evaluate_last(self._envs.final_observations)
                rewards[t] += self._params.discount * np.where(only_truncated, hidden, 0)
            self._note_values(values, ended)
            self._games.extend(step.games)
            self._take_replaced()
            self._n_collected = t + 1

    def _take_replaced(self) -> None:
        """Leave out of the rollout what was replaced since the last call, and report it."""
        for replaced in self._envs.take_replaced():
            for env in replaced.envs:
                self._is_whole[env] = False
                self._value_sums[env] = self._n_values[env] = 0
            self._report(EnvRestart(replaced.why))

    def _note_values(self, values: np.ndarray, ended: np.ndarray) -> None:
        self._value_sums += values
        self._n_values += 1
        for k in np.flatnonzero(ended):
            self.episode_value_mean = float(self._value_sums[k] / self._n_values[k])
            self._value_sums[k] = self._n_values[k] = 0
