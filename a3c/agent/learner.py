"""What a worker does with its network: act, evaluate last observations, learn, measure.

    act            policy outputs and values of K observations
    evaluate_last  values of the last observations of episodes that a time limit cut off
    learn          the value after the rollout, returns, losses, gradients, clipping, RMSProp on the
                   shared weights, which are then copied to the worker's own
    measure        the figures of such an update, without making it

TensorFlow traces each function once a run, in `Learner`. Workers call them, with NumPy's arrays, as
methods of their `LocalNetwork`. A worker learns with the weights that it acted with, so `learn` gets
what acting computed, and only has to go backward.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from a3c.agent import debug_dump, kernels, losses, network, optimizer
from a3c.agent.kernels import Activations, Gradients, Memory, Weights
from a3c.agent.policy import policy_of
from a3c.agent.shared import Variables
from a3c.contract import Subject
from a3c.settings.params import Params


class Rollout(NamedTuple):
    """T steps of K environments. Step t saw observations[t], did actions[t], and got the rest."""

    observations: np.ndarray  # (T + 1, K, ...); the value of the last ones starts the returns
    actions: np.ndarray  # (T, K) int32 or, if they are continuous, (T, K, n) float32
    rewards: np.ndarray  # (T, K) float32; a truncation adds γ·V(true last observation)
    continues: np.ndarray  # (T, K) float32; 0 where the episode ended, for any reason
    # (1, K, n_state) float32: what the LSTMs remembered before step 0; without LSTMs, nothing
    states: np.ndarray

    def of_envs(self, envs: np.ndarray) -> "Rollout":
        """The rollout without the environments where this mask is False."""
        return Rollout(*(part[:, envs] for part in self))


class Target(Protocol):
    """What the gradients are for: the shared state, or `blocks.Sender`, which sends them there."""

    weights: dict[str, tf.Variable]

    def apply(
        self, gradients: Gradients, learning_rate: tf.Tensor, local: Variables
    ) -> tf.Tensor: ...


class Learner:
    """The traced functions, made once a run. All workers call them.

    The first argument of each is the worker's own weights, as variables, into which `learn` copies
    the shared ones. (Tracing them for each worker took 1.5 s each.) They are concrete
    functions, which never trace again and take half the time of a `tf.function` to call.
    """

    def __init__(
        self, shared: Target, params: Params, subject: Subject, observations: np.ndarray
    ) -> None:
        """`observations` have the shape and type of those of a rollout, (T + 1, K, ...)."""
        self._shared, self._params = shared, params
        self.policy = policy_of(subject)
        self.state_size = network.state_size(subject)
        self._forward = functools.partial(network.forward, subject)
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
        weights = copy_of(shared.weights)
        # XLA makes the small forward pass of acting faster, but gradients slower.
        xla = {} if params.no_xla or params.debug else {"jit_compile": True}
        self.act = traced(functools.partial(self._act, "act"), weights, one_step, state, **xla)
        last = functools.partial(self._act, "last")  # the debug log tells the two apart
        self.evaluate_last = traced(last, weights, one_step, state) if params.debug else self.act
        learning_rate = tf.TensorSpec((), tf.float32)
        acted = [self.act.structured_outputs[1]] * n_steps
        self.learn = traced(self._learn, weights, rollout, learning_rate, acted)
        # For rollouts without some of the environments, because their processes broke.
        some = Rollout(*(tf.TensorSpec((s.shape[0], None, *s.shape[2:]), s.dtype) for s in rollout))
        self.learn_anew = traced(self._learn, weights, some, learning_rate)
        self.measure = traced(self._measure, weights, rollout)
        if xla:  # compiles at the first call
            self.act(weights, *(tf.zeros(s.shape, s.dtype) for s in (one_step, state)))

    def dump(self, purpose: str, **tensors: tf.Tensor | np.ndarray) -> None:
        """Write tensors to the debug log, if there is one."""
        if self._params.debug:
            debug_dump.dump(self._n_updates, purpose, **tensors)

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
        weights: Weights,
        rollout: Rollout,
        learning_rate: tf.Tensor,
        acted: Sequence[Activations] | None = None,
    ) -> tf.Tensor:
        with tf.GradientTape() as tape:
            result, activations = self._losses(weights, rollout, acted)
        gradients = kernels.gradients(tape, result.combined, weights, activations)
        finite = tf.debugging.check_numerics(result.combined, "loss not finite")
        if self._params.debug:
            dumped = rollout._replace(observations=rollout.observations[:-1])._asdict()
            if not self.state_size:
                del dumped["states"]
            dumped |= {name: getattr(result, name) for name in ("returns", "values", "advantages")}
            self.dump("train", **dumped)
            self.dump("bootstrap", observations=rollout.observations[-1])
            self._n_updates.assign_add(1)
        with tf.control_dependencies([finite]):
            return self._shared.apply(gradients, learning_rate, weights)

    def _measure(
        self, weights: Weights, rollout: Rollout
    ) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor], Activations]:
        """The figures of the update that `learn` would make; with --detailed_logs, arrays as well."""
        with tf.GradientTape(persistent=True) as tape:
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


class Acted(NamedTuple):
    """What a worker's network computes for K observations."""

    outputs: np.ndarray  # (K, n_outputs), the policy's
    values: np.ndarray  # (K,)
    state: np.ndarray  # (K, n_state), for the next step of the same episode
    activations: Activations  # for `learn`


class Measurement(NamedTuple):
    """Figures of one update of worker 0; the arrays are empty without --detailed_logs."""

    scalars: dict[str, float]  # by their names in the logs
    gradients: dict[str, np.ndarray]  # of each weight
    activations: dict[str, np.ndarray]  # of each hidden layer


class LocalNetwork:
    """A worker's own copy of the weights, and what it does with them."""

    def __init__(self, shared: Target, learner: Learner) -> None:
        self.weights = copy_of(shared.weights)
        self.policy, self.state_size = learner.policy, learner.state_size
        self._act = kernels.bound(learner.act, self.weights)
        # Without LSTMs, the state is empty. It is converted once, as that takes a twentieth of acting.
        self._empty = None if self.state_size else tf.zeros(learner.state_shape)
        self._learn = kernels.bound(learner.learn, self.weights)
        self._learner, self.dump = learner, learner.dump

    def act(self, observations: np.ndarray, state: np.ndarray) -> Acted:
        state = state if self._empty is None else self._empty
        joined, activations = self._act(observations, state)
        n, predictions = self.state_size, joined.numpy()
        return Acted(predictions[:, n:-1], predictions[:, -1], predictions[:, :n], activations)

    def evaluate_last(self, observations: np.ndarray, state: np.ndarray) -> np.ndarray:
        """The values of true last observations: (K, ...), and the state before them → (K,)."""
        joined, _ = self._learner.evaluate_last(self.weights, observations, state)
        return joined.numpy()[:, -1]

    def learn(
        self, rollout: Rollout, learning_rate: float, acted: Sequence[Activations] | None = None
    ) -> tf.Tensor:
        """Update the shared weights and copy them here; returns the gradient's norm before clipping.

        `acted` are the activations of acting at each step. Without them, the network goes forward
        once more, and the rollout may have any number of environments.
        """
        rate = np.float32(learning_rate)
        if acted is None:
            return self._learner.learn_anew(self.weights, rollout, rate)
        return self._learn(rollout, rate, acted)

    def measure(self, rollout: Rollout) -> Measurement:
        measured = self._learner.measure(self.weights, rollout)
        scalars, *arrays = tf.nest.map_structure(lambda tensor: tensor.numpy(), measured)
        return Measurement({name: float(x) for name, x in scalars.items()}, *arrays)


def traced(function: Any, *arguments: object, **options: bool) -> Any:
    # Without the lambda, a concrete function would require arguments that have a default.
    # No loop of ours is over a tensor, and looking for some would make tracing a third slower.
    made = tf.function(lambda *given: function(*given), autograph=False, **options)
    return made.get_concrete_function(*arguments)


def copy_of(weights: Weights) -> Weights:
    return {name: tf.Variable(variable) for name, variable in weights.items()}
