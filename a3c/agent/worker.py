"""One worker: copy the weights, collect a rollout, compute gradients, apply them; again and again.

A rollout of T = steps_per_update steps of the worker's K environments takes T + 1 calls into traced
functions (`traced`): `act` T times and `learn` once.

Two rare calls come on top: `act` on the true last observations where an episode was cut off by a
time limit, for the value that the limit hides; and `measure`, for every 100th rollout of worker 0.

An environment whose process broke during a rollout is taken out of it: the update is made of the
other environments' columns alone, as if the worker had no more of them (`learn_anew`, which goes
forward too), and where none is left the rollout is thrown away and its steps are collected anew. So
a fault is no terminal state and no reward, and `mean` divides by what is left.

Rollouts run on through ends of episodes; the paper's pseudo-code (Algorithm S3) ends a rollout
there. With K > 1 all rollouts must have one length, and a batch of always the same shape is traced
once.
"""

import contextlib
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from a3c.agent import optimizer
from a3c.agent.learner import Activations, Hyperparameters, LocalNetwork, Rollout
from a3c.agent.shared import SharedState
from a3c.contract import WorkerPosition
from a3c.machine.stopping import StopFlag, Stopped

MEASURE_EVERY_N_UPDATES = 100


class Game(NamedTuple):
    """A game that ended; score, length and seconds as Monitor counted them."""

    n_steps: int  # agent steps of the whole run, with those of the rollout that it ended in
    score: float
    length: int


class EnvRestart(NamedTuple):
    """A process of environments broke; its games were abandoned, and a new one took its place."""

    why: str  # names the environments


class Measurement(NamedTuple):
    """Figures of one update of worker 0, by their names in the logs."""

    scalars: dict[str, float]
    gradients: dict[str, np.ndarray]  # per weight, and
    activations: dict[str, np.ndarray]  # per hidden layer; both empty without --detailed_logs


class Failure(NamedTuple):
    """A worker's last words."""

    worker: int
    error: BaseException
    traceback: str
    # The rollout, how much of it was collected, and the worker's own weights.
    arrays: Mapping[str, np.ndarray] | None = None


Report = Game | EnvRestart | Measurement | Failure


class GameResult(Protocol):
    """A game that ended, as Monitor counted it."""

    @property
    def env(self) -> int: ...
    @property
    def score(self) -> float: ...
    @property
    def length(self) -> int: ...


class Replaced(Protocol):
    """A process of environments that broke and was replaced."""

    @property
    def envs(self) -> Sequence[int]: ...
    @property
    def why(self) -> str: ...


class StepResult(Protocol):
    """What a step of K environments gives back."""

    @property
    def rewards(self) -> np.ndarray: ...
    @property
    def terminated(self) -> np.ndarray: ...
    @property
    def truncated(self) -> np.ndarray: ...
    @property
    def games(self) -> Sequence[GameResult]: ...
    @property
    def replaced(self) -> Sequence[Replaced]: ...


class Environments(Protocol):
    """The K environments of one worker, as it sees them; `worker_envs.EnvProcesses` is the real one."""

    observations: np.ndarray  # (T + 1, K, ...)
    final_observations: np.ndarray  # (K, ...)
    n_frames: int
    next_games: list[int]

    def reset(self, slot: int) -> None: ...
    def step(self, actions: np.ndarray, slot: int) -> StepResult: ...


def sample_actions(logits: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """One action a row from softmax(logits), by the Gumbel-max trick: (K, n) → (K,) int32."""
    return np.argmax(logits + generator.gumbel(size=logits.shape), axis=1).astype(np.int32)


class Worker:
    """One thread's work: `run` is the thread's function; all else is made before it starts."""

    def __init__(
        self,
        number: int,
        shared: SharedState,
        local: LocalNetwork,
        envs: Environments,
        hyperparameters: Hyperparameters,
        generator: np.random.Generator,
        stop: StopFlag,
        report: Callable[[Report], None],
        n_rows: Sequence[int] | None = None,
    ) -> None:
        """`n_rows`: of each environment, the games that its monitor file has already."""
        self.number = number
        self._shared, self._local, self._envs = shared, local, envs
        self._hyperparameters = hyperparameters
        self._generator = generator
        self._stop = stop
        self._report = report
        n_steps, n_envs = hyperparameters.steps_per_update, envs.observations.shape[1]
        self._n_steps_per_rollout = n_steps * n_envs
        self._rollout = Rollout(
            envs.observations,
            np.zeros((n_steps, n_envs), np.int32),
            np.zeros((n_steps, n_envs), np.float32),
            np.zeros((n_steps, n_envs), np.float32),
        )
        self._n_collected = 0  # steps of it that are this rollout's
        self._activations: list[Activations] = []  # of these
        # Of each environment: have all its steps of this rollout been made by one process?
        self._is_whole = np.ones(n_envs, bool)
        # Of each environment's training episode under way: the values estimated so far, for
        # rl/episode_value_mean.
        self._value_sums = np.zeros(n_envs)
        self._n_values = np.zeros(n_envs, np.int64)
        # Of the latest that ended; the main thread reads it for the logs.
        self.episode_value_mean = float("nan")
        # Of the rollout under way. A game counts when its last step has been learned from.
        self._games: list[GameResult] = []
        self._n_rows = list(n_rows or [0] * n_envs)
        # As of the last update; the main thread reads it while the gate is shut.
        self.position = self._position()
        # The local network was copied when it was made, before any worker ran.
        self._n_updates_at_copy = shared.counters.read().updates

    def run(self) -> None:
        """Work until the run has its steps or is stopped; the first error stops everybody."""
        try:
            # Into the last slot, since every rollout begins with what the one before ended with.
            self._envs.reset(slot=self._hyperparameters.steps_per_update)
            self._work()
        except Stopped:
            return
        except BaseException as error:
            self._stop.set()  # before anything slow: nobody is to learn after this
            text, arrays = traceback.format_exc(), {}
            with contextlib.suppress(Exception):  # of memory, there may be none left
                arrays = self._arrays()
            self._report(Failure(self.number, error, text, arrays))

    def _arrays(self) -> dict[str, np.ndarray]:
        return {
            "n_steps_collected": np.array(self._n_collected),
            **{name: array.copy() for name, array in self._rollout._asdict().items()},
            **{f"weights/{name}": v.numpy() for name, v in self._local.weights.items()},
        }

    def _work(self) -> None:
        n_rollouts = n_frames_counted = 0
        while not self._stop.is_set() and self._shared.counters.reserve(self._n_steps_per_rollout):
            if not self._collect():
                return
            rollout, n_steps = self._rollout, self._n_steps_per_rollout
            if not self._is_whole.all():
                rollout = Rollout(*(part[:, self._is_whole] for part in self._rollout))
                n_steps = rollout.rewards.size
                self._shared.counters.give_back(self._n_steps_per_rollout - n_steps)
                if n_steps == 0:
                    continue
            elif self.number == 0 and n_rollouts % MEASURE_EVERY_N_UPDATES == 0:
                self._measure()
            with self._shared.gate:
                if self._stop.is_set():
                    return
                n_steps_done = self._shared.counters.read().steps
                try:
                    rate = self._learning_rate(n_steps_done)
                    if rollout is self._rollout:
                        self._local.learn(rollout, rate, self._activations)
                    else:
                        self._local.learn_anew(rollout, rate)
                except BaseException:
                    self._stop.set()  # here already, where others wait for their turn
                    raise
                n_frames = self._envs.n_frames
                counts = self._shared.counters.add_update(
                    n_steps,
                    n_frames - n_frames_counted,
                    self._n_updates_at_copy,
                    len(self._games),
                )
                n_frames_counted, self._n_updates_at_copy = n_frames, counts.updates
                self._count_games(counts.steps)
                self.position = self._position()
            n_rollouts += 1

    def _count_games(self, n_steps: int) -> None:
        for game in self._games:
            self._n_rows[game.env] += 1
            self._report(Game(n_steps, game.score, game.length))
        self._games.clear()

    def _position(self) -> WorkerPosition:
        return WorkerPosition(
            self._generator.bit_generator.state,
            list(self._envs.next_games),
            list(self._n_rows),
        )

    def _learning_rate(self, n_steps_done: int) -> np.float32:
        h = self._hyperparameters
        return np.float32(
            optimizer.learning_rate(h.initial_lr, n_steps_done, h.lr_decay_to_zero_by_n_steps)
        )

    def _collect(self) -> bool:
        """Fill the rollout, going on where the last one ended. False if stopped on the way."""
        observations, actions, rewards, continues = self._rollout
        observations[0] = observations[-1]
        self._n_collected = 0
        self._activations.clear()
        self._is_whole[:] = True
        for t in range(len(actions)):
            if self._stop.is_set():
                return False
            outputs, activations = self._local.act(observations[t])
            self._activations.append(activations)
            predictions = outputs.numpy()
            values = predictions[:, -1]
            actions[t] = sample_actions(predictions[:, :-1], self._generator)
            step = self._envs.step(actions[t], slot=t + 1)
            ended = step.terminated | step.truncated
            rewards[t] = step.rewards
            continues[t] = ~ended
            only_truncated = step.truncated & ~step.terminated
            if only_truncated.any():
                outputs, _ = self._local.evaluate_last(self._envs.final_observations)
                hidden = outputs.numpy()[:, -1]
                rewards[t] += self._hyperparameters.discount * np.where(only_truncated, hidden, 0)
            self._note_values(values, ended)
            self._games.extend(step.games)
            for replaced in step.replaced:
                for env in replaced.envs:
                    self._is_whole[env] = False
                    self._value_sums[env] = self._n_values[env] = 0
                self._report(EnvRestart(replaced.why))
            self._n_collected = t + 1
        return True

    def _note_values(self, values: np.ndarray, ended: np.ndarray) -> None:
        self._value_sums += values
        self._n_values += 1
        for k in np.flatnonzero(ended):
            self.episode_value_mean = float(self._value_sums[k] / self._n_values[k])
            self._value_sums[k] = self._n_values[k] = 0

    def _measure(self) -> None:
        scalars, gradients, activations = self._local.measure(self._rollout)
        figures = {name: float(value) for name, value in scalars.items()}
        self._report(Measurement(figures, _numpy(gradients), _numpy(activations)))


def _numpy(tensors: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in tensors.items()}
