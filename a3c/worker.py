"""One worker: copy the weights, collect a rollout, compute gradients, apply them; again and again.

A rollout of T = steps_per_update steps of the worker's K environments takes T + 1 calls into traced
functions:

    act    logits and values of K observations, T times
    learn  the value of the last K observations, returns, losses, gradients, clipping, RMSProp on
           the shared weights, and the copy of those back to the local ones, once

The weights that learn are those that acted, on the same observations. So `learn` is given what
acting computed in every layer, and only goes backward through it.

Two rare calls come on top: `act` on the true last observations where an episode was cut off by a
time limit, for the value that the limit hides; and `measure`, which reads and never writes, for
every 100th rollout of worker 0.

An environment whose process broke during a rollout is taken out of it: the update is made of the
other environments' columns alone, as if the worker had no more of them (`learn_anew`, which goes
forward too), and where none is left the rollout is thrown away and its steps are collected anew. So
a fault is no terminal state and no reward, and `mean` divides by what is left.

Rollouts run on through ends of episodes; the paper's pseudo-code (Algorithm S3) ends a rollout
there. With K > 1 all rollouts must have one length, and a batch of always the same shape is traced
once.
"""

import functools
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from a3c import debug_dump, losses, network, optimizer
from a3c.position import WorkerPosition
from a3c.shared import SharedState
from a3c.stopping import StopFlag, Stopped

MEASURE_EVERY_N_UPDATES = 100

Weights = dict[str, tf.Variable]
Activations = dict[str, tf.Tensor]


class Hyperparameters(NamedTuple):
    """What an update depends on, beside the shared statistics' own constants."""

    network: str
    steps_per_update: int
    discount: float
    entropy_bonus: float
    value_loss_coef: float
    loss_reduction: str
    initial_lr: float
    lr_decay_to_zero_by_n_steps: int | None


class Rollout(NamedTuple):
    """T steps of K environments. Step t saw observations[t], did actions[t], and got the rest."""

    observations: np.ndarray  # (T + 1, K, ...); the last one bootstraps the returns
    actions: np.ndarray  # (T, K) int32
    # (T, K) float32; the last of a truncated episode has γ·V(its true last observation) added
    rewards: np.ndarray
    continues: np.ndarray  # (T, K) float32; 0 where the episode ended, for any reason


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
    """The K environments of one worker, as it sees them; `env.EnvProcesses` is the real one."""

    observations: np.ndarray  # (T + 1, K, ...)
    final_observations: np.ndarray  # (K, ...)
    n_frames: int
    next_games: list[int]

    def reset(self, slot: int) -> None: ...
    def step(self, actions: np.ndarray, slot: int) -> StepResult: ...


class Traced:
    """The traced functions that all workers call, each with weights of its own; made once a run.

    The first argument of each is a worker's weights, as variables: what acts reads them, and `learn`
    copies the shared ones there. Tracing and compiling took a second and a half for every worker
    when each had functions over its own variables; handing these in costs a call 0.1 ms.

    What is kept are the concrete functions that tracing made. They cannot trace again, and calling
    one takes half the time of going through `tf.function`, which checks for that at each call.
    """

    def __init__(
        self,
        shared: SharedState,
        hyperparameters: Hyperparameters,
        observations: tf.TensorSpec,
        *,
        compile_act: bool = True,
        debug: bool = False,
        detailed: bool = False,
    ) -> None:
        """`observations` is the spec of one rollout's: (T + 1, K, ...)."""
        self._shared = shared
        self._hyperparameters = hyperparameters
        self._debug = debug
        self._detailed = detailed
        self._n_updates = tf.Variable(0, dtype=tf.int64)  # for the debug log's lines
        self.n_traces = 0

        n_steps_and_one, n_envs = observations.shape[:2]
        rollout = Rollout(
            observations,
            tf.TensorSpec((n_steps_and_one - 1, n_envs), tf.int32),
            tf.TensorSpec((n_steps_and_one - 1, n_envs), tf.float32),
            tf.TensorSpec((n_steps_and_one - 1, n_envs), tf.float32),
        )
        one_step = tf.TensorSpec(observations.shape[1:], observations.dtype)
        # Only their shapes count. The shared weights will not do: given as an argument too, a
        # variable that a function holds already would be taken for that argument.
        weights = _copy_of(shared.weights)
        # XLA makes the small forward pass of acting faster and the gradients slower, so only acting
        # is compiled.
        xla = {"jit_compile": True} if compile_act and not debug else {}
        self.act = self._trace(self._act("act"), weights, one_step, **xla)
        self.evaluate_last = (
            self._trace(self._act("last"), weights, one_step) if debug else self.act
        )
        learning_rate = tf.TensorSpec((), tf.float32)
        of_step = self.act.structured_outputs[1]
        activations = [of_step] * (n_steps_and_one - 1)
        self.learn = self._trace(self._learn, weights, rollout, learning_rate, activations)
        # Of any number of environments: some of a rollout's may have broken.
        some = Rollout(*(tf.TensorSpec((s.shape[0], None, *s.shape[2:]), s.dtype) for s in rollout))
        self.learn_anew = self._trace(self._learn, weights, some, learning_rate)
        self.measure = self._trace(self._measure, weights, rollout)
        if xla:  # which compiles at the first call
            self.act(weights, tf.zeros(one_step.shape, one_step.dtype))

    def _trace(self, function: Callable, *arguments: object, **options: bool) -> Any:
        def counted(*arguments: object) -> object:
            self.n_traces += 1
            return function(*arguments)

        return tf.function(counted, **options).get_concrete_function(*arguments)

    def _act(self, purpose: str) -> Callable:
        def act(weights: Weights, observations: tf.Tensor) -> tuple[tf.Tensor, Activations]:
            """(K, ...) → (K, n_actions + 1), the logits and in the last column the value; what the
            layers before them gave.
            """
            if self._debug:
                debug_dump.dump(self._n_updates, purpose, observations=observations)
            predictions = network.forward(self._hyperparameters.network, weights, observations)
            outputs = tf.concat([predictions.logits, predictions.values[:, None]], axis=1)
            return outputs, predictions.activations

        return act

    def _losses(
        self, weights: Weights, rollout: Rollout, known: Sequence[Activations] | None = None
    ) -> tuple[losses.Losses, tf.Tensor, tf.Tensor, Activations]:
        """The rollout's losses; returns and values, both (T, K); activations.

        `known`: those of each step, where acting has computed them.
        """
        h = self._hyperparameters
        n_steps = rollout.rewards.shape[0]
        batch = tf.reshape(rollout.observations[:-1], (-1, *rollout.observations.shape[2:]))
        of_all = None
        if known is not None:
            of_all = {name: tf.concat([x[name] for x in known], axis=0) for name in known[0]}
        predictions = network.forward(h.network, weights, batch, of_all)
        logits = tf.reshape(predictions.logits, (n_steps, -1, predictions.logits.shape[-1]))
        values = tf.reshape(predictions.values, (n_steps, -1))
        # On its own, since no gradient flows into returns.
        bootstrap = network.forward(h.network, weights, rollout.observations[-1]).values
        returns = losses.n_step_returns(rollout.rewards, rollout.continues, bootstrap, h.discount)
        result = losses.a3c_losses(
            logits,
            values,
            rollout.actions,
            returns,
            entropy_bonus=h.entropy_bonus,
            value_loss_coef=h.value_loss_coef,
            loss_reduction=h.loss_reduction,
        )
        return result, returns, values, predictions.activations

    def _learn(
        self,
        weights: Weights,
        rollout: Rollout,
        learning_rate: tf.Tensor,
        known: Sequence[Activations] | None = None,
    ) -> tf.Tensor:
        with tf.GradientTape() as tape:
            result, returns, values, _ = self._losses(weights, rollout, known)
        gradients = tape.gradient(result.combined, weights)
        finite = tf.debugging.check_numerics(result.combined, "loss not finite")
        if self._debug:
            self._dump(rollout, returns, values, result.advantages)
        with tf.control_dependencies([finite]):
            return self._shared.apply(gradients, learning_rate, weights)

    def _dump(
        self, rollout: Rollout, returns: tf.Tensor, values: tf.Tensor, advantages: tf.Tensor
    ) -> None:
        debug_dump.dump(
            self._n_updates,
            "train",
            observations=rollout.observations[:-1],
            actions=rollout.actions,
            rewards=rollout.rewards,
            continues=rollout.continues,
            returns=returns,
            values=values,
            advantages=advantages,
        )
        debug_dump.dump(self._n_updates, "bootstrap", observations=rollout.observations[-1])
        self._n_updates.assign_add(1)

    def _measure(
        self, weights: Weights, rollout: Rollout
    ) -> tuple[dict[str, tf.Tensor], dict, dict]:
        """What `learn` would do with this rollout, in figures, and nothing done."""
        with tf.GradientTape(persistent=True) as tape:
            result, returns, values, activations = self._losses(weights, rollout)
        zeros = tf.UnconnectedGradients.ZERO
        of_policy = tape.gradient(result.policy, weights, unconnected_gradients=zeros)
        of_value = tape.gradient(result.value, weights, unconnected_gradients=zeros)
        gradients = {name: of_policy[name] + of_value[name] for name in weights}
        factor, norm = optimizer.clipping_factor(
            list(gradients.values()), self._shared.max_grad_norm
        )
        unexplained = tf.math.reduce_variance(returns - values) / tf.math.reduce_variance(returns)
        scalars = {
            "rl/policy_entropy": result.entropy,
            "rl/advantage_mean": tf.reduce_mean(result.advantages),
            "rl/explained_variance": 1.0 - unexplained,
            "loss/loss_policy": result.policy,
            "loss/loss_value": result.value,
            "loss/loss_combined": result.combined,
            "loss/grads_norm_policy": tf.linalg.global_norm(list(of_policy.values())),
            "loss/grads_norm_value": tf.linalg.global_norm(list(of_value.values())),
            "loss/grads_norm_combined": norm,
            "loss/grads_norm_combined_clipped": factor * norm,
        }
        return (scalars, gradients, activations) if self._detailed else (scalars, {}, {})


class LocalNetwork:
    """A worker's own weights, and the traced functions with these as their first argument."""

    def __init__(self, shared: SharedState, traced: Traced) -> None:
        self.weights = _copy_of(shared.weights)
        self.act = _bound(traced.act, self.weights)
        self.evaluate_last = functools.partial(traced.evaluate_last, self.weights)
        self.learn = _bound(traced.learn, self.weights)
        self.learn_anew = functools.partial(traced.learn_anew, self.weights)
        self.measure = functools.partial(traced.measure, self.weights)


def _bound(function: Any, weights: Weights) -> Callable:
    """The traced function with these weights, called past TensorFlow's sorting of the arguments.

    That takes a fifth of the time of acting on one state, all of it under Python's lock. So nothing
    is checked: the arguments are as those that were traced. (`inference_fn` is no public name. A
    test sees that both ways give the same, and would tell if the name went.)
    """
    handles = [variable.handle for variable in tf.nest.flatten(weights)]
    captures = function.captured_inputs

    def call(*arguments: object) -> Any:
        tensors = map(tf.convert_to_tensor, tf.nest.flatten(arguments))
        outputs = function.inference_fn.call_flat(*handles, *tensors, *captures)
        return tf.nest.pack_sequence_as(function.structured_outputs, outputs)

    return call


def _copy_of(weights: Weights) -> Weights:
    return {name: tf.Variable(variable) for name, variable in weights.items()}


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
            text = traceback.format_exc()
            self._report(Failure(self.number, error, text, self._arrays()))

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
