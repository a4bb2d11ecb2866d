"""What a worker does with its network: act, evaluate last observations, learn, measure.

    act            policy outputs and values of K observations
    evaluate_last  values of the last observations of episodes that a time limit cut off
    learn          the value after the rollout, returns, losses, gradients, clipping, RMSProp on the
                   shared weights, which are then copied to the worker's own
    measure        the figures of such an update, without making it

TensorFlow traces each function once a run, in `Learner`. Workers call them, with NumPy's arrays, as
methods of their `LocalNetwork` (in `local`). A worker learns with the weights that it acted with, so
`learn` gets what acting computed, and only has to go backward. The network for vectors acts in NumPy
instead, and learning goes forward again (see `vectors`).
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from a3c.agent import calls, debug_dump, kernels, losses, network, optimizer, vectors
from a3c.agent.collector import Rollout
from a3c.agent.kernels import Activations, Gradients, Memory, Weights
from a3c.agent.policy import policy_of
from a3c.agent.shared import Variables
from a3c.contract import Subject
from a3c.settings.params import Params


class Target(Protocol):
    """What the gradients are for: the shared state, or `blocks.Sender`, which sends them there."""

    variables: dict[str, tf.Variable]  # the weights

    def apply(
        self,
        gradients: Gradients,
        learning_rate: tf.Tensor,
        local: Variables | None,
        is_finite: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]: ...


class Learner:
    """The traced functions, made once a run. All workers call them.

    The first argument of each is the worker's own weights, as variables, into which `learn` copies
    the shared ones. (Tracing them for each worker took 1.5 s each.) The network for vectors has its
    weights in one tensor instead, and `learn` returns the new ones. They are concrete functions, which
    never trace again and take half the time of a `tf.function` to call.
    """

    def __init__(
        self, shared: Target, params: Params, subject: Subject, observations: np.ndarray
    ) -> None:
        """`observations` have the shape and type of those of a rollout, (T + 1, K, ...)."""
        self._shared, self._params = shared, params
        self.policy = policy_of(subject)
        self.state_size = network.state_size(subject)
        self.subject, self.is_vector = subject, subject.network == "mlp"
        self._forward = functools.partial(kernels.forward, subject)
        self._n_updates = tf.Variable(0, dtype=tf.int64)  # for the debug log
        spec = tf.TensorSpec(observations.shape, observations.dtype)
        n_steps, n_envs = spec.shape[0] - 1, spec.shape[1]
        actions = tf.TensorSpec((n_steps, n_envs, *self.policy.shape), self.policy.dtype)
        numbers = tf.TensorSpec((n_steps, n_envs), tf.float32)
        state = tf.TensorSpec((n_envs, self.state_size), tf.float32)
        states = tf.TensorSpec((1, *state.shape), tf.float32)
        self.state_shape = state.shape
        rollout = Rollout(spec, actions, rewards=numbers, continues=numbers, states=states)
        one_step = tf.TensorSpec(spec.shape[1:], spec.dtype)
        # Traced with a copy: `learn` also captures the shared weights, and TensorFlow would merge
        # them with an argument that is the same variable.
        weights = self.copy_of_shared()
        self.shapes = network.weight_shapes(subject)
        learning_rate = tf.TensorSpec((), tf.float32)
        xla = {} if params.no_xla or params.debug else {"jit_compile": True}
        # XLA would take long to compile the way back through an LSTM's steps.
        self._compiles_learning = bool(xla) and self.is_vector and not self.state_size
        if self.is_vector:
            self._specs = rollout, learning_rate
            size = sum(spec.shape.num_elements() for spec in tf.nest.flatten(self._specs))
            block = tf.TensorSpec((size,), tf.float32)
            self.learn = calls.traced(
                self._learn_packed, weights, block, **xla if self._compiles_learning else {}
            )
        else:
            # XLA makes the small forward pass of acting faster, but gradients slower.
            self.act = calls.traced(
                functools.partial(self._act, "act"), weights, one_step, state, **xla
            )
            last = functools.partial(self._act, "last")  # the debug log tells the two apart
            self.evaluate_last = (
                calls.traced(last, weights, one_step, state) if params.debug else self.act
            )
            acted = [self.act.structured_outputs[1]] * n_steps
            self.learn = calls.traced(self._learn, weights, rollout, learning_rate, acted)
        some = Rollout(*(tf.TensorSpec((s.shape[0], None, *s.shape[2:]), s.dtype) for s in rollout))
        self._of_some = weights, some, learning_rate
        self.first_alone = calls.FirstAlone()  # for `learn`
        self.measure = calls.traced(self._measure, weights, rollout)
        # XLA compiles at the first call.
        if self._compiles_learning:
            self.learn(weights, tf.fill(block.shape, math.nan))  # which changes nothing
        elif xla and not self.is_vector:
            self.act(weights, *(tf.zeros(s.shape, s.dtype) for s in (one_step, state)))

    @functools.cached_property
    def learn_anew(self) -> Callable[..., Any]:
        """For rollouts without some of the environments, because their processes broke.

        It is traced where it is first needed, as few runs need it.
        """
        return calls.traced(self._learn, *self._of_some)

    def copy_of_shared(self) -> Weights:
        """A worker's own weights, equal to the shared ones."""
        shared = self._shared.variables
        if self.is_vector:
            return {name: tf.identity(variable) for name, variable in shared.items()}
        return copy_of(shared)

    def dump(self, purpose: str, **tensors: tf.Tensor | np.ndarray) -> None:
        """Write tensors to the debug log, if there is one."""
        if self._params.debug:
            debug_dump.dump(self._n_updates, purpose, **tensors)

    def _by_name(self, local: Weights) -> Weights:
        if not self.is_vector:
            return local
        specs = {name: tf.TensorSpec(shape) for name, shape in self.shapes.items()}
        return calls.unpacked(local[vectors.BLOCK], specs)

    def _act(
        self, purpose: str, weights: Weights, observations: tf.Tensor, state: tf.Tensor
    ) -> tuple[tf.Tensor, Activations]:
        """(K, ...), (K, n_state) → (K, n_state + n_outputs + 1), the new state, the policy's outputs
        and the value; and the activations.
        """
        remembered = {"state": state} if self.state_size else {}
        self.dump(purpose, observations=observations, **remembered)
        predictions = self._forward(weights, observations, Memory(state))
        parts = [predictions.state, predictions.outputs, predictions.values[:, None]]
        return tf.concat(parts, axis=1), predictions.activations

    def _losses(
        self, weights: Weights, rollout: Rollout, acted: Sequence[Activations] | None = None
    ) -> tuple[losses.Losses, Activations]:
        """`acted` are the activations of each step; without them, they are computed again."""
        params = self._params
        n_steps = rollout.rewards.shape[0]
        batch = tf.reshape(rollout.observations[:-1], (-1, *rollout.observations.shape[2:]))
        computed = None
        if acted is not None:
            computed = {
                name: tf.concat([step[name] for step in acted], axis=0) for name in acted[0]
            }
        memory = Memory(rollout.states[0], rollout.continues)
        predictions = self._forward(weights, batch, memory, computed)
        outputs = tf.reshape(predictions.outputs, (n_steps, -1, predictions.outputs.shape[-1]))
        values = tf.reshape(predictions.values, (n_steps, -1))
        last = self._forward(weights, rollout.observations[-1], Memory(predictions.state))
        bootstrap = last.values
        result = losses.a3c_losses(
            self.policy.log_probabilities(outputs, rollout.actions),
            self.policy.entropies(outputs),
            values,
            losses.n_step_returns(rollout.rewards, rollout.continues, bootstrap, params.discount),
            entropy_bonus=params.entropy_bonus,
            value_loss_coef=params.value_loss_coef,
            loss_reduction=params.loss_reduction,
        )
        return result, predictions.activations

    def _learn(
        self,
        local: Weights,
        rollout: Rollout,
        learning_rate: tf.Tensor,
        acted: Sequence[Activations] | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor, Weights]:
        """What the target returns of it, the loss and, of vectors, the new weights."""
        with tf.GradientTape() as tape:
            tape.watch(local)
            result, activations = self._losses(self._by_name(local), rollout, acted)
        loss = result.combined
        known = activations if network.is_ours(self.subject.network) else {}
        gradients = kernels.gradients(tape, loss, local, known)
        checked = tf.debugging.check_numerics(loss, "loss not finite")  # XLA leaves it out
        if self._params.debug:
            dumped = rollout._replace(observations=rollout.observations[:-1])._asdict()
            if not self.state_size:
                del dumped["states"]
            dumped |= {name: getattr(result, name) for name in ("returns", "values", "advantages")}
            self.dump("train", **dumped)
            self.dump("bootstrap", observations=rollout.observations[-1])
            self._n_updates.assign_add(1)
        copy = None if self.is_vector else local
        is_finite = tf.math.is_finite(loss) if self._compiles_learning else None
        with tf.control_dependencies([checked]):
            told, new = self._shared.apply(gradients, learning_rate, copy, is_finite)
        return told, loss, new

    def _learn_packed(
        self, local: Weights, block: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, Weights]:
        """Learn from a rollout and a learning rate in one block."""
        rollout, learning_rate = calls.unpacked(block, self._specs)
        actions = tf.cast(rollout.actions, self.policy.dtype)
        return self._learn(local, rollout._replace(actions=actions), learning_rate)

    def _measure(
        self, local: Weights, rollout: Rollout
    ) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor], Activations]:
        """The figures of the update that `learn` would make; with --detailed_logs, arrays as well."""
        weights = self._by_name(local)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(weights)
            result, activations = self._losses(weights, rollout)
        zeros = tf.UnconnectedGradients.ZERO
        of_policy = tape.gradient(result.policy, weights, unconnected_gradients=zeros)
        of_value = tape.gradient(result.value, weights, unconnected_gradients=zeros)
        gradients = {name: of_policy[name] + of_value[name] for name in weights}
        factor, norm = optimizer.clipping_factor(gradients.values(), self._params.max_grad_norm)
        unexplained, variance = map(tf.math.reduce_variance, (result.advantages, result.returns))
        scalars = {
            "rl/policy_entropy": result.entropy,
            "rl/advantage_mean": tf.reduce_mean(result.advantages),
            "rl/explained_variance": 1.0 - unexplained / variance,
            "loss/loss_policy": result.policy,
            "loss/loss_value": result.value,
            "loss/loss_combined": result.combined,
            "loss/grads_norm_policy": tf.linalg.global_norm(list(of_policy.values())),
            "loss/grads_norm_value": tf.linalg.global_norm(list(of_value.values())),
            "loss/grads_norm_combined": norm,
            "loss/grads_norm_combined_clipped": factor * norm,
        }
        return (
            (scalars, gradients, activations) if self._params.detailed_logs else (scalars, {}, {})
        )


class Measurement(NamedTuple):
    """Figures of one update of worker 0; the arrays are empty without --detailed_logs."""

    scalars: dict[str, float]  # by their names in the logs
    gradients: dict[str, np.ndarray]  # of each weight
    activations: dict[str, np.ndarray]  # of each hidden layer


def copy_of(weights: Weights) -> Weights:
    return {name: tf.Variable(variable) for name, variable in weights.items()}
