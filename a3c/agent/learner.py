"""The functions that TensorFlow traces, once a run, and a worker's own weights for them.

    act      logits and values of K observations, and what acting computed in every layer
    learn    the value of the last K observations, returns, losses, gradients, clipping, RMSProp on
             the shared weights, and the copy of those back to the worker's own
    learn_anew   the same of a rollout of any number of environments, going forward once more
    measure  what `learn` would do, in figures; it reads and never writes

The weights that learn are those that acted, on the same observations. So `learn` is given what
acting computed, and only goes backward through it.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from a3c.agent import debug_dump, losses, network, optimizer
from a3c.agent.shared import SharedState

ROWS_OF_A_PRODUCT = 8  # with more, it is quicker to multiply

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
            result, returns, values, activations = self._losses(weights, rollout, known)
        gradients = _gradients(tape, result.combined, weights, activations)
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
        self.act = bound(traced.act, self.weights)
        self.evaluate_last = functools.partial(traced.evaluate_last, self.weights)
        self.learn = bound(traced.learn, self.weights)
        self.learn_anew = functools.partial(traced.learn_anew, self.weights)
        self.measure = functools.partial(traced.measure, self.weights)


def bound(function: Any, weights: Weights | Sequence[Weights]) -> Callable:
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


def _gradients(
    tape: tf.GradientTape, loss: tf.Tensor, weights: Weights, activations: Activations
) -> dict[str, optimizer.Gradient]:
    """Of each weight; where rows are few, the dense kernel's as a product, which saves writing and
    reading it: with one environment, an eighth of learning.
    """
    dense = activations.get("dense")
    if dense is None or dense.shape[0] is None or dense.shape[0] > ROWS_OF_A_PRODUCT:
        return tape.gradient(loss, weights)
    others = {name: weight for name, weight in weights.items() if name != "dense_kernel"}
    gradients, d_dense = tape.gradient(loss, (others, dense))
    product = optimizer.Product(*network.dense_factors(activations, d_dense))
    return {name: gradients.get(name, product) for name in weights}


def _copy_of(weights: Weights) -> Weights:
    return {name: tf.Variable(variable) for name, variable in weights.items()}
