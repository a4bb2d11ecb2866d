"""A trained policy: a network with weights of its own that chooses actions."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import tensorflow as tf

from a3c.agent import moments, network
from a3c.agent.kernels import Memory, forward
from a3c.agent.policy import Categorical, policy_of
from a3c.contract import Moments, Snapshot, Subject
from a3c.envs import make
from a3c.play import evaluation
from a3c.store.checkpoint import Checkpoint, UnusableCheckpoint


class Decision(NamedTuple):
    """What a policy decided on one observation or, by `act_batch`, on K: then arrays are (K, ...)."""

    action: Any  # what an environment's `step` takes: a number or, of continuous actions, (n,)
    probabilities: np.ndarray | None  # (n,) of all actions; None where these are continuous
    # (n,), mean and standard deviation in each dimension of an action; None where actions are discrete
    mean: np.ndarray | None
    sd: np.ndarray | None
    value: Any  # V(s): the discounted sum of rewards that it expects
    state: np.ndarray  # what it remembers, for the next observation of the same game: (1, n_state)
    observation: np.ndarray  # as the network saw it: normalised, if the agent was trained so


class Agent:
    """Chooses actions with its weights, which start as zeros.

    Many threads may use it at once if each has a generator of its own.
    """

    def __init__(self, subject: Subject, seed: int = 0) -> None:
        """`seed` is of the generator that draws actions where none is given."""
        self.subject = subject
        self._generator = np.random.default_rng(seed)
        self.policy = policy_of(subject)
        self._moments: Mapping[str, Moments] = {}
        shapes = network.weight_shapes(subject)
        self._weights = {name: tf.Variable(tf.zeros(shape)) for name, shape in shapes.items()}
        dtype = tf.float32 if subject.network == "mlp" else tf.uint8

        def predict(observations: tf.Tensor, state: tf.Tensor) -> tuple[tf.Tensor, ...]:
            predictions = forward(subject, self._weights, observations, Memory(state))
            return predictions.outputs, predictions.values, predictions.state

        # What the agent remembers at the start of a game.
        self.first_state = np.zeros((1, network.state_size(subject)), np.float32)

        def traced(n: int | None) -> Any:
            specs = [
                tf.TensorSpec((n, *subject.observation_shape), dtype),
                tf.TensorSpec((n, self.first_state.shape[1]), tf.float32),
            ]
            function = tf.function(predict, input_signature=specs, autograph=False)
            return function.get_concrete_function()

        self._predict: Any = traced(1)
        self._predict_batch = functools.cache(lambda: traced(None))  # most users need none

    def take(self, snapshot: Snapshot) -> None:
        """Take a snapshot's weights and moments; ValueError if these are another network's."""
        network.assign(self._weights, snapshot.weights)
        self._moments = snapshot.moments

    def act(
        self,
        observation: np.ndarray,
        state: np.ndarray | None = None,
        greedy: bool = False,
        generator: np.random.Generator | None = None,
    ) -> Decision:
        """Sample an action from the policy or, if greedy, take the likeliest.

        `state` is that of the last decision in the same game; None at its start. The observation goes
        through the network alone: in a batch, the last bits of its logits could depend on the size
        of the batch, and so could a sampled action.
        """
        state = self.first_state if state is None else state
        many = self._decide(self._predict, observation[None], state, greedy, generator)
        first: list[Any] = [None if part is None else part[0] for part in many]
        return Decision(*first)._replace(value=float(many.value[0]), state=many.state)

    def act_batch(
        self,
        observations: np.ndarray,
        states: np.ndarray | None = None,
        greedy: bool = False,
        generator: np.random.Generator | None = None,
    ) -> Decision:
        """Decide on K observations of K games at once; row k of everything is of game k.

        At the start of a game, its row of `states` is 0; None: all games start.
        """
        if states is None:
            states = np.repeat(self.first_state, len(observations), axis=0)
        return self._decide(self._predict_batch(), observations, states, greedy, generator)

    def _decide(
        self,
        predict: Any,
        observations: np.ndarray,
        states: np.ndarray,
        greedy: bool,
        generator: np.random.Generator | None,
    ) -> Decision:
        seen = moments.seen(observations, self._moments)
        predictions = predict(tf.convert_to_tensor(seen), tf.convert_to_tensor(states))
        outputs, values, states = (tensor.numpy() for tensor in predictions)
        if greedy:
            actions = self.policy.likeliest(outputs)
        else:
            noise = self.policy.noise(generator or self._generator, len(outputs))
            actions = self.policy.chosen(outputs, noise)
        probabilities = mean = sd = None
        if isinstance(self.policy, Categorical):
            probabilities = self.policy.probabilities(outputs)
        else:
            mean, log_sd = self.policy.split(outputs)
            sd = np.exp(log_sd)
        return Decision(actions, probabilities, mean, sd, values, states, seen)

    def make_env(
        self,
        env_id: str | None = None,
        seed: int = 0,
        game: int = 0,
        see: Callable[[np.ndarray], None] | None = None,
        wrapper: str | None = None,
        env_kwargs: Sequence[str] | None = None,
    ) -> gymnasium.Env:
        """Make the agent's environment as evaluations have it: whole games, true rewards.

        Its first reset starts game number `game` of this seed. `see` is called with a picture of each
        frame. What may run a module's code must be named here: an `env_id` like module:Id, and wrappers
        and arguments of the environment, which may also be others than the agent's own.
        """
        name = self.subject.env_id
        if env_id not in (None, name):
            raise UnusableCheckpoint(f"the agent plays {name}, not {env_id}")
        given = {"env_id": env_id, "wrapper": wrapper, "env_kwargs": env_kwargs}
        subject, code = evaluation.as_named(self.subject, given)
        if code:
            plays = f"the agent plays {' '.join(code.values())}"
            why = "which runs the code of a module: if you trust that, name it"
            raise UnusableCheckpoint(f"{plays}, {why}")
        params = evaluation.params_of(subject, seed)
        return make.make_env(params, evaluation.WORKER, first_game=game, see=see)


def load(checkpoint: Checkpoint, seed: int = 0) -> Agent:
    """Return the agent of a checkpoint."""
    try:
        # A file may state any sizes, so nothing of them is made before its weights have them.
        held = {name: array.shape for name, array in checkpoint.snapshot.weights.items()}
        if held != network.weight_shapes(checkpoint.subject):
            raise ValueError("its weights have other names or shapes")
        agent = Agent(checkpoint.subject, seed)
        agent.take(checkpoint.snapshot)
    except (KeyError, ValueError) as error:  # an unknown network, or weights that do not fit it
        what = f"{checkpoint.path}, of network {checkpoint.subject.network!r}"
        raise UnusableCheckpoint(f"cannot restore {what}: {error}") from None
    return agent
