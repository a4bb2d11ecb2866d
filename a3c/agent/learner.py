"""A worker's end of the network: act, evaluate last observations, learn, measure.

    act            policy outputs and values of K observations, and what each layer gave
    evaluate_last  values of K observations that a time limit cut an episode off at
    learn          the value of the last K observations, returns, losses, gradients, clipping,
                   RMSProp on the shared weights, and the copy of those back to the worker's own
    measure        what `learn` would do, in figures; it reads and never writes

TensorFlow traces each once a run, in `Learner`; a worker calls them as methods of its
`LocalNetwork`, which take and give NumPy's arrays. The weights that learn are those that acted, on
the same observations. So `learn` is given what acting computed, and only goes backward through it.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from a3c.agent import debug_dump, kernels, losses, network, optimizer, policy
from a3c.agent.kernels import Activations
from a3c.agent.shared import SharedState
from a3c.settings.params import Params

Weights = dict[str, tf.Variable]


class Rollout(NamedTuple):
    """T steps of K environments. Step t saw observations[t], did actions[t], and got the rest."""

    observations: np.ndarray  # (T + 1, K, ...); the last one bootstraps the returns
    actions: np.ndarray  # (T, K) int32
    # (T, K) float32; the last of a truncated episode has γ·V(its true last observation) added
    rewards: np.ndarray
    continues: np.ndarray  # (T, K) float32; 0 where the episode ended, for any reason


class Learner:
    """The traced functions that all workers call, each with weights of its own; made once a run.

    The first argument of each is a worker's weights, as variables, to which `learn` copies the shared
    ones. Tracing took a second and a half a worker when each had functions over its own variables.
    Concrete functions cannot trace again, and a call of one takes half the time of `tf.function`'s.
    """

    def __init__(self, shared: SharedState, params: Params, observations: np.ndarray) -> None:
        """`observations` are as one rollout's, (T + 1, K, ...): their shape and type count."""
        self._shared, self._params = shared, params
        self._n_updates = tf.Variable(0, dtype=tf.int64)  # for the debug log's lines
        spec = tf.TensorSpec(observations.shape, observations.dtype)
        n_steps, n_envs = spec.shape[0] - 1, spec.shape[1]
        actions, numbers = (tf.TensorSpec((n_steps, n_envs), t) for t in (tf.int32, tf.float32))
        rollout = Rollout(spec, actions, rewards=numbers, continues=numbers)
        one_step = tf.TensorSpec(spec.shape[1:], spec.dtype)
        # Copies, not the shared weights, which `learn` captures as well: TensorFlow would take the
        # argument and what is captured for one variable.
        weights = _copy_of(shared.weights)
        # XLA makes the small forward pass of acting faster, and the gradients slower.
        xla = {} if params.no_xla or params.debug else {"jit_compile": True}
        self.act = _traced(functools.partial(self._act, "act"), weights, one_step, **xla)
        self.evaluate_last = self.act
        if params.debug:
            last = functools.partial(self._act, "last")
            self.evaluate_last = _traced(last, weights, one_step)
        learning_rate = tf.TensorSpec((), tf.float32)
        activations = [self.act.structured_outputs[1]] * n_steps
        self.learn = _traced(self._learn, weights, rollout, learning_rate, activations)
        # Of any number of environments: some of a rollout's may have broken.
        some = Rollout(*(tf.TensorSpec((s.shape[0], None, *s.shape[2:]), s.dtype) for s in rollout))
        self.learn_anew = _traced(self._learn, weights, some, learning_rate)
        self.measure = _traced(self._measure, weights, rollout)
        if xla:  # which compiles at the first call
            self.act(weights, tf.zeros(one_step.shape, one_step.dtype))

    def _forward(
        self, weights: Weights, observations: tf.Tensor, known: Activations | None = None
    ) -> network.Predictions:
        layers = functools.partial(kernels.Layers, known=known)
        return network.forward(str(self._params.network), weights, observations, layers)

    def _act(
        self, purpose: str, weights: Weights, observations: tf.Tensor
    ) -> tuple[tf.Tensor, Activations]:
        """(K, ...) → (K, n_outputs + 1), the policy's outputs and in the last column the value; what
        the hidden layers gave.
        """
        if self._params.debug:
            debug_dump.dump(self._n_updates, purpose, observations=observations)
        predictions = self._forward(weights, observations)
        outputs = tf.concat([predictions.logits, predictions.values[:, None]], axis=1)
        return outputs, predictions.activations

    def _losses(
        self, weights: Weights, rollout: Rollout, known: Sequence[Activations] | None = None
    ) -> tuple[losses.Losses, tf.Tensor, tf.Tensor, Activations]:
        """The rollout's losses; returns and values, both (T, K); activations.

        `known`: those of each step, where acting has computed them.
        """
        params = self._params
        n_steps = rollout.rewards.shape[0]
        batch = tf.reshape(rollout.observations[:-1], (-1, *rollout.observations.shape[2:]))
        of_all = None
        if known is not None:
            of_all = {name: tf.concat([x[name] for x in known], axis=0) for name in known[0]}
        predictions = self._forward(weights, batch, of_all)
        logits = tf.reshape(predictions.logits, (n_steps, -1, predictions.logits.shape[-1]))
        values = tf.reshape(predictions.values, (n_steps, -1))
        bootstrap = self._forward(weights, rollout.observations[-1]).values
        returns = losses.n_step_returns(
            rollout.rewards, rollout.continues, bootstrap, params.discount
        )
        result = losses.a3c_losses(
            policy.log_probabilities(logits, rollout.actions),
            policy.entropies(logits),
            values,
            returns,
            entropy_bonus=params.entropy_bonus,
            value_loss_coef=params.value_loss_coef,
            loss_reduction=params.loss_reduction,
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
        gradients = kernels.gradients(tape, result.combined, weights, activations)
        finite = tf.debugging.check_numerics(result.combined, "loss not finite")
        if self._params.debug:
            debug_dump.dump(
                self._n_updates,
                "train",
                observations=rollout.observations[:-1],
                actions=rollout.actions,
                rewards=rollout.rewards,
                continues=rollout.continues,
                returns=returns,
                values=values,
                advantages=result.advantages,
            )
            debug_dump.dump(self._n_updates, "bootstrap", observations=rollout.observations[-1])
            self._n_updates.assign_add(1)
        with tf.control_dependencies([finite]):
            return self._shared.apply(gradients, learning_rate, weights)

    def _measure(
        self, weights: Weights, rollout: Rollout
    ) -> tuple[dict[str, tf.Tensor], Activations, Activations]:
        """What `learn` would do with this rollout, in figures, and nothing done."""
        with tf.GradientTape(persistent=True) as tape:
            result, returns, values, activations = self._losses(weights, rollout)
        zeros = tf.UnconnectedGradients.ZERO
        of_policy = tape.gradient(result.policy, weights, unconnected_gradients=zeros)
        of_value = tape.gradient(result.value, weights, unconnected_gradients=zeros)
        gradients = {name: of_policy[name] + of_value[name] for name in weights}
        factor, norm = optimizer.clipping_factor(
            list(gradients.values()), self._params.max_grad_norm
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
        if not self._params.detailed_logs:
            return scalars, {}, {}
        return scalars, gradients, activations


class Acted(NamedTuple):
    """What a worker's network said of K observations."""

    outputs: np.ndarray  # (K, n_outputs), the policy's
    values: np.ndarray  # (K,)
    activations: Activations  # for `learn`


class Measurement(NamedTuple):
    """Figures of one update of worker 0; arrays only with --detailed_logs."""

    scalars: dict[str, float]  # by their names in the logs
    gradients: dict[str, np.ndarray]  # of each weight
    activations: dict[str, np.ndarray]  # of each hidden layer


class LocalNetwork:
    """A worker's own copy of the weights, and what is done with it."""

    def __init__(self, shared: SharedState, learner: Learner) -> None:
        self.weights = _copy_of(shared.weights)
        self._act = kernels.bound(learner.act, self.weights)
        self._learn = kernels.bound(learner.learn, self.weights)
        self._learner = learner

    def act(self, observations: np.ndarray) -> Acted:
        outputs, activations = self._act(observations)
        predictions = outputs.numpy()
        return Acted(predictions[:, :-1], predictions[:, -1], activations)

    def evaluate_last(self, observations: np.ndarray) -> np.ndarray:
        """The values of episodes' true last observations."""
        outputs, _ = self._learner.evaluate_last(self.weights, observations)
        return outputs.numpy()[:, -1]

    def learn(
        self,
        rollout: Rollout,
        learning_rate: float,
        activations: Sequence[Activations] | None = None,
    ) -> tf.Tensor:
        """Update the shared weights and copy them here; returns the gradient's norm before clipping.

        `activations` are what acting gave at each step. Without them a rollout may be of any number
        of environments, and the network goes forward through it once more.
        """
        rate = np.float32(learning_rate)
        if activations is None:
            return self._learner.learn_anew(self.weights, rollout, rate)
        return self._learn(rollout, rate, activations)

    def measure(self, rollout: Rollout) -> Measurement:
        measured = self._learner.measure(self.weights, rollout)
        scalars, *arrays = tf.nest.map_structure(lambda tensor: tensor.numpy(), measured)
        return Measurement({name: float(x) for name, x in scalars.items()}, *arrays)


def _traced(function: Any, *arguments: object, **options: bool) -> Any:
    # The lambda, because a concrete function wants what has a default as well.
    return tf.function(lambda *given: function(*given), **options).get_concrete_function(*arguments)


def _copy_of(weights: Weights) -> Weights:
    return {name: tf.Variable(variable) for name, variable in weights.items()}
