"""The whole of A3C's arithmetic in float64 NumPy, with every derivative written by hand.

An independent second opinion on what TensorFlow computes: written from Mnih et al. 2016 (sections 4,
5.1 and 9, and Algorithm S3), Mnih et al. 2015 (the nature network) and the project's design, not from
`a3c/`. It is meant to be obvious, and shares nothing with the code that it checks. No other test
derives the update in NumPy.

    oracle = Oracle(Network("nature"), weights, constant(weights, 1.0), hyperparameters)
    for rollout in rollouts:
        oracle.update(rollout, learning_rate)
    oracle.weights, oracle.mean_squares  # after the updates

T is the number of steps of a rollout, K the number of environments, N a batch of states, A the
number of the policy's outputs. Weights, gradients and statistics are dicts of arrays in TensorFlow's
layout: kernels of convolutions (height, width, in, out), of dense layers (in, out). What LSTMs
remember is one array: for each LSTM its outputs h, then its cells c.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

Array = npt.NDArray[np.float64]
Weights = dict[str, Array]


HEADS = ("policy", "value")


class Network(NamedTuple):
    """What a network consists of."""

    kind: str  # nature, small or mlp
    hidden_units: tuple[int, ...] = (64, 64)  # of mlp
    activation: str = "tanh"  # of mlp; or relu
    lstm_units: int = 0  # of an LSTM after the last hidden layer; mlp has one for each head
    # Or a Gaussian: with per_dimension, the log of the standard deviation (sd) is a weight of each
    # dimension of an action; with per_state, the state gives one variance for all dimensions.
    policy: str = "categorical"

    def dense_layers(self, head: str) -> list[str]:
        """Of mlp, below a head."""
        return [f"{head}_dense{number + 1}" for number in range(len(self.hidden_units))]

    def below(self, head: str) -> str:
        """The layer that a head sees."""
        if self.lstm_units:
            return f"{head}_lstm" if self.kind == "mlp" else "lstm"
        return ["observations", *self.dense_layers(head)][-1] if self.kind == "mlp" else "dense"

    def lstms(self) -> list[str]:
        return sorted({self.below(head) for head in HEADS}) if self.lstm_units else []

    def state_size(self) -> int:
        """How many numbers LSTMs remember of each environment."""
        return 2 * self.lstm_units * len(self.lstms())


class Rollout(NamedTuple):
    """T steps of K environments, as a worker collected them under one set of weights."""

    observations: npt.NDArray[Any]  # (T + 1, K, ...): the last is the state to bootstrap from
    actions: npt.NDArray[Any]  # (T, K), integers; if they are continuous, (T, K, n)
    rewards: npt.NDArray[Any]  # (T, K), clipped or scaled; values that time limits hid included
    continues: npt.NDArray[Any]  # (T, K): 0 where this step ended an episode, else 1
    states: npt.NDArray[Any] | None = None  # (1, K, n): what LSTMs remembered before step 0


Reduction = Literal["mean", "sum"]


class Hyperparameters(NamedTuple):
    discount: float
    value_loss_weight: float
    entropy_weight: float
    reduction: Reduction  # of the losses, over steps and environments
    max_gradient_norm: float  # infinity: never clipped
    decay: float  # of RMSProp's mean squares
    epsilon: float  # of RMSProp, inside the root


class Losses(NamedTuple):
    """The losses of one rollout. Each part is reduced but not yet weighted; `total` is minimised.

    total = policy - entropy_weight * entropy + value_loss_weight * value
    """

    policy: float
    value: float
    entropy: float
    total: float


class Targets(NamedTuple):
    """What the losses treat as constants, although it depends on the weights. Both (T, K)."""

    returns: Array
    advantages: Array


class Convolution(NamedTuple):
    layer: str
    filters: int
    size: int
    stride: int


CONVOLUTIONS = {
    "nature": [
        Convolution("conv1", filters=32, size=8, stride=4),
        Convolution("conv2", filters=64, size=4, stride=2),
        Convolution("conv3", filters=64, size=3, stride=1),
    ],
    "small": [
        Convolution("conv1", filters=16, size=8, stride=4),
        Convolution("conv2", filters=32, size=4, stride=2),
    ],
}
N_HIDDEN = {"nature": 512, "small": 256}


# Networks.


def weight_shapes(
    network: Network, observation_shape: tuple[int, ...], n_actions: int
) -> dict[str, tuple[int, ...]]:
    """The shape of every weight of a network, by name. Continuous actions have n_actions dimensions."""
    shapes: dict[str, tuple[int, ...]] = {}

    def add(layer: str, *kernel_shape: int) -> None:
        shapes[f"{layer}_kernel"] = kernel_shape
        shapes[f"{layer}_bias"] = kernel_shape[-1:]

    def add_lstm(layer: str, n_inputs: int) -> int:
        n_units = network.lstm_units
        if not n_units:
            return n_inputs
        shapes[f"{layer}_input_kernel"] = (n_inputs, 4 * n_units)
        shapes[f"{layer}_recurrent_kernel"] = (n_units, 4 * n_units)
        shapes[f"{layer}_bias"] = (4 * n_units,)
        return n_units

    def add_head(head: str, n_inputs: int) -> None:
        add(head, n_inputs, n_actions if head == "policy" else 1)
        if head == "policy" and network.policy == "per_dimension":
            shapes["policy_log_sd"] = (n_actions,)
        if head == "policy" and network.policy == "per_state":
            add("policy_variance", n_inputs, 1)

    if network.kind == "mlp":
        for head in HEADS:
            (n_last,) = observation_shape
            for layer, n_units in zip(
                network.dense_layers(head), network.hidden_units, strict=True
            ):
                add(layer, n_last, n_units)
                n_last = n_units
            add_head(head, add_lstm(f"{head}_lstm", n_last))
        return shapes

    height, width, channels = observation_shape
    for layer, filters, size, stride in CONVOLUTIONS[network.kind]:
        add(layer, size, size, channels, filters)
        height, width = (height - size) // stride + 1, (width - size) // stride + 1
        channels = filters
    add("dense", height * width * channels, N_HIDDEN[network.kind])
    n_last = add_lstm("lstm", N_HIDDEN[network.kind])
    for head in HEADS:
        add_head(head, n_last)
    return shapes


def forward(
    network: Network,
    weights: Mapping[str, Array],
    observations: npt.NDArray[Any],
    state: npt.NDArray[Any] | None = None,
    continues: npt.NDArray[Any] | None = None,
) -> dict[str, Array]:
    """The outputs of every layer for N observations, by name: among them `policy` (N, A), logits or a
    Gaussian's means and logs of sds, and `value` (N, 1).

    With LSTMs, the observations are T steps of K environments, step by step, `state` (K, n) is what
    they remember before the first, and where `continues` (T, K) is 0 an episode ended with this step,
    so that nothing is remembered in the next. `state` among the outputs (N, n) is what is remembered
    after each step.
    """
    outputs: dict[str, Array] = {}
    states = iter(np.split(state, len(network.lstms()), axis=1) if network.lstm_units else ())
    if network.kind == "mlp":
        # Two networks that share nothing.
        activate = {"tanh": np.tanh, "relu": _relu}[network.activation]
        outputs["observations"] = observations.astype(np.float64)
        for head in HEADS:
            last = outputs["observations"]
            for layer in network.dense_layers(head):
                last = outputs[layer] = activate(_dense(weights, layer, last))
            if network.lstm_units:
                _lstm(weights, f"{head}_lstm", last, next(states), continues, outputs)
    else:
        # Convolutions, flattened as (height, width, channels), and one dense layer, for both heads.
        if observations.dtype != np.uint8:
            raise ValueError(f"images are uint8, not {observations.dtype}")
        last = outputs["observations"] = observations.astype(np.float64) / 255.0
        for layer, _, _, stride in CONVOLUTIONS[network.kind]:
            kernel, bias = weights[f"{layer}_kernel"], weights[f"{layer}_bias"]
            last = outputs[layer] = _relu(convolve(last, kernel, bias, stride))
        outputs["flat"] = last.reshape(len(last), -1)
        outputs["dense"] = _relu(_dense(weights, "dense", outputs["flat"]))
        if network.lstm_units:
            _lstm(weights, "lstm", outputs["dense"], next(states), continues, outputs)
    outputs["policy"] = _policy(network, weights, outputs)
    outputs["value"] = _dense(weights, "value", outputs[network.below("value")])
    remembered = [outputs[f"{lstm}{part}"] for lstm in network.lstms() for part in ("", "_cells")]
    outputs["state"] = np.concatenate([np.zeros((len(observations), 0)), *remembered], axis=1)
    return outputs


def backward(
    network: Network,
    weights: Mapping[str, Array],
    outputs: dict[str, Array],
    d_policy: Array,
    d_values: Array,
    continues: npt.NDArray[Any] | None = None,
) -> Weights:
    """The gradient of a loss by every weight, from its gradients by the outputs `policy` (N, A) and
    `value` (N, 1). None flows into what was remembered before the first step.

    Here and below, d_x is the derivative of the loss by x.
    """
    gradients: Weights = {}
    seen_by_value = outputs[network.below("value")]
    d_below = {
        "policy": _policy_backward(network, weights, outputs, d_policy, gradients),
        "value": _dense_backward(weights, "value", seen_by_value, d_values, gradients),
    }
    if network.kind == "mlp":
        slope = {"tanh": _tanh_slope, "relu": _relu_slope}[network.activation]
        for head, d_last in d_below.items():
            layers = ["observations", *network.dense_layers(head)]
            if network.lstm_units:
                d_last = _lstm_backward(
                    weights, f"{head}_lstm", layers[-1], outputs, d_last, continues, gradients
                )
            for layer, below in zip(layers[:0:-1], layers[-2::-1], strict=True):
                d_last = d_last * slope(outputs[layer])
                d_last = _dense_backward(weights, layer, outputs[below], d_last, gradients)
        return gradients

    d_last = d_below["policy"] + d_below["value"]
    if network.lstm_units:
        d_last = _lstm_backward(weights, "lstm", "dense", outputs, d_last, continues, gradients)
    d_dense = d_last * _relu_slope(outputs["dense"])
    d_flat = _dense_backward(weights, "dense", outputs["flat"], d_dense, gradients)

    convolutions = CONVOLUTIONS[network.kind]
    d_layer = d_flat.reshape(outputs[convolutions[-1].layer].shape)
    layers_below = ["observations", *(convolution.layer for convolution in convolutions[:-1])]
    for (layer, _, _, stride), below in zip(convolutions[::-1], layers_below[::-1], strict=True):
        d_layer = d_layer * _relu_slope(outputs[layer])
        inputs, kernel = outputs[below], weights[f"{layer}_kernel"]
        gradients[f"{layer}_kernel"] = _convolve_backward_kernel(inputs, kernel, d_layer, stride)
        gradients[f"{layer}_bias"] = d_layer.sum(axis=(0, 1, 2))
        if below != "observations":
            d_layer = _convolve_backward_inputs(inputs, kernel, d_layer, stride)
    return gradients


def _policy(network: Network, weights: Mapping[str, Array], outputs: dict[str, Array]) -> Array:
    """Logits; or the means of a Gaussian, and beside them the logs of its sds."""
    inputs = outputs[network.below("policy")]
    first = _dense(weights, "policy", inputs)
    if network.policy == "categorical":
        return first
    if network.policy == "per_dimension":
        log_sds = np.tile(weights["policy_log_sd"], (len(first), 1))
    else:
        # Paper section 9: the variance is log(1 + exp(x)).
        outputs["policy_variance"] = _dense(weights, "policy_variance", inputs)
        log_sd = 0.5 * np.log(np.logaddexp(0.0, outputs["policy_variance"]))
        log_sds = np.repeat(log_sd, first.shape[1], axis=1)
    return np.concatenate([first, log_sds], axis=1)


def _policy_backward(
    network: Network,
    weights: Mapping[str, Array],
    outputs: dict[str, Array],
    d_policy: Array,
    gradients: Weights,
) -> Array:
    """Put the head's own gradients into `gradients`; return the gradient by its inputs."""
    inputs = outputs[network.below("policy")]
    if network.policy == "categorical":
        return _dense_backward(weights, "policy", inputs, d_policy, gradients)
    d_means, d_log_sds = np.split(d_policy, 2, axis=1)
    d_inputs = _dense_backward(weights, "policy", inputs, d_means, gradients)
    if network.policy == "per_dimension":
        gradients["policy_log_sd"] = d_log_sds.sum(axis=0)
        return d_inputs
    # log sd = 1/2 log v with v = log(1 + exp(x)), whose derivative by x is sigmoid(x).
    x = outputs["policy_variance"]
    d_x = d_log_sds.sum(axis=1, keepdims=True) * 0.5 / np.logaddexp(0.0, x) * _sigmoid(x)
    return d_inputs + _dense_backward(weights, "policy_variance", inputs, d_x, gradients)


def _lstm(
    weights: Mapping[str, Array],
    layer: str,
    inputs: Array,
    state: npt.NDArray[Any],
    continues: npt.NDArray[Any] | None,
    outputs: dict[str, Array],
) -> None:
    """Put into `outputs` what an LSTM computes for inputs (T * K, n) from a state (K, 2 * units).

    In each step (Hochreiter and Schmidhuber 1997, with the forget gates of Gers et al. 2000):

        input, forget, output gate  i, f, o = sigmoid(x W + h U + b)
        what may be added           g = tanh(x W + h U + b)
        cells                       c = f * c + i * g
        outputs                     h = o * tanh(c)

    The columns of W, U and b are those of i, f, o and g.
    """
    h, c = np.split(state.astype(np.float64), 2, axis=1)
    steps = []
    for t, x in enumerate(inputs.reshape(-1, len(state), inputs.shape[1])):
        if t > 0 and continues is not None:
            h, c = continues[t - 1, :, None] * h, continues[t - 1, :, None] * c
        before = h, c
        sums = x @ weights[f"{layer}_input_kernel"] + h @ weights[f"{layer}_recurrent_kernel"]
        *sums_of_gates, sums_of_added = np.split(sums + weights[f"{layer}_bias"], 4, axis=1)
        i, f, o = (_sigmoid(sums) for sums in sums_of_gates)
        g = np.tanh(sums_of_added)
        c = f * c + i * g
        h = o * np.tanh(c)
        steps.append([h, c, *before, i, f, o, g])
    names = ("", "_cells", "_h_before", "_c_before", "_i", "_f", "_o", "_g")
    for name, arrays in zip(names, zip(*steps, strict=True), strict=True):
        outputs[f"{layer}{name}"] = np.concatenate(arrays)


def _lstm_backward(
    weights: Mapping[str, Array],
    layer: str,
    below: str,
    outputs: dict[str, Array],
    d_outputs: Array,
    continues: npt.NDArray[Any] | None,
    gradients: Weights,
) -> Array:
    """Back through the T steps, and not into the state before them; as `_dense_backward`."""
    if continues is None:
        continues = np.ones((1, len(d_outputs)))  # one step
    d_sums = []
    d_h_later = d_c_later = np.zeros(())
    for t in reversed(range(len(continues))):
        at = slice(t * len(continues[t]), (t + 1) * len(continues[t]))
        names = ("_cells", "_c_before", "_i", "_f", "_o", "_g")
        c, c_before, i, f, o, g = (outputs[f"{layer}{name}"][at] for name in names)
        # The next step had nothing of this one's state if an episode ended with this one.
        d_h = d_outputs[at] + continues[t, :, None] * d_h_later
        d_c = d_h * o * _tanh_slope(np.tanh(c)) + continues[t, :, None] * d_c_later
        d_gates = [d_c * g, d_c * c_before, d_h * np.tanh(c)]
        slopes = [gate * (1.0 - gate) for gate in (i, f, o)]
        d_sums_of_gates = [d * slope for d, slope in zip(d_gates, slopes, strict=True)]
        d_sums.append(np.concatenate([*d_sums_of_gates, d_c * i * _tanh_slope(g)], axis=1))
        d_h_later = d_sums[-1] @ weights[f"{layer}_recurrent_kernel"].T
        d_c_later = d_c * f
    d_all = np.concatenate(d_sums[::-1])
    gradients[f"{layer}_input_kernel"] = outputs[below].T @ d_all
    gradients[f"{layer}_recurrent_kernel"] = outputs[f"{layer}_h_before"].T @ d_all
    gradients[f"{layer}_bias"] = d_all.sum(axis=0)
    return d_all @ weights[f"{layer}_input_kernel"].T


def _sigmoid(x: Array) -> Array:
    return 0.5 * (1.0 + np.tanh(0.5 * x))  # without overflow


def _tanh_slope(outputs: Array) -> Array:
    """The derivative of tanh, by its output."""
    return 1.0 - outputs**2


def _relu(inputs: Array) -> Array:
    return np.maximum(inputs, 0.0)


def _relu_slope(outputs: Array) -> Array:
    """The derivative of the rectifier; at 0, where it has none, 0."""
    return (outputs > 0.0).astype(np.float64)


def _dense(weights: Mapping[str, Array], layer: str, inputs: Array) -> Array:
    return inputs @ weights[f"{layer}_kernel"] + weights[f"{layer}_bias"]


def _dense_backward(
    weights: Mapping[str, Array],
    layer: str,
    inputs: Array,
    d_outputs: Array,
    gradients: Weights,
) -> Array:
    """Put the layer's own gradients into `gradients`; return the gradient by its inputs."""
    gradients[f"{layer}_kernel"] = inputs.T @ d_outputs
    gradients[f"{layer}_bias"] = d_outputs.sum(axis=0)
    return d_outputs @ weights[f"{layer}_kernel"].T


def _patches(inputs: Array, size: tuple[int, int], stride: int) -> Array:
    """What each output of a convolution without padding sees: (N, out height, out width, height,
    width, in).
    """
    windows = sliding_window_view(inputs, size, axis=(1, 2))[:, ::stride, ::stride]
    return windows.transpose(0, 1, 2, 4, 5, 3)


def convolve(inputs: Array, kernel: Array, bias: Array, stride: int) -> Array:
    """(N, height, width, in) to (N, out height, out width, out), as TensorFlow's "VALID"."""
    patches = _patches(inputs, (kernel.shape[0], kernel.shape[1]), stride)
    return np.tensordot(patches, kernel, axes=3) + bias


def _convolve_backward_kernel(inputs: Array, kernel: Array, d_outputs: Array, stride: int) -> Array:
    patches = _patches(inputs, (kernel.shape[0], kernel.shape[1]), stride)
    return np.tensordot(patches, d_outputs, axes=((0, 1, 2), (0, 1, 2)))


def _convolve_backward_inputs(inputs: Array, kernel: Array, d_outputs: Array, stride: int) -> Array:
    """Add up, for every input, the gradients of the outputs that saw it."""
    d_patches = np.tensordot(d_outputs, kernel, axes=((3,), (3,)))
    _, n_rows, n_columns, height, width, _ = d_patches.shape
    d_inputs = np.zeros_like(inputs)
    for i in range(height):
        for j in range(width):
            rows = slice(i, i + stride * n_rows, stride)
            columns = slice(j, j + stride * n_columns, stride)
            d_inputs[:, rows, columns] += d_patches[:, :, :, i, j]
    return d_inputs


# Returns and losses.


def n_step_returns(
    rewards: npt.NDArray[Any], continues: npt.NDArray[Any], bootstrap: Array, discount: float
) -> Array:
    """R_t = r_t + discount * continues_t * R_{t+1}, with R_T = V(s_T) = bootstrap (K,).

    One environment, discount 0.5, bootstrap 8, an episode that ends with the second step:

        t           0      1      2
        rewards     1      2      3
        continues   1      0      1
        returns     2      2      7   (1 + 0.5 * 2, 2, 3 + 0.5 * 8)
    """
    # A float32 array would round the discount to float32, too.
    rewards, continues = rewards.astype(np.float64), continues.astype(np.float64)
    returns = np.empty_like(rewards)
    later = bootstrap
    for t in reversed(range(len(rewards))):
        later = rewards[t] + discount * continues[t] * later
        returns[t] = later
    return returns


def log_probabilities_and_entropies(
    outputs: Array, actions: npt.NDArray[Any]
) -> tuple[Array, Array]:
    """Both (N,), of a policy's outputs (N, A) and actions (T, K) or (T, K, n), N = T * K.

    In each dimension, a Gaussian's log density is -1/2 ((a - mean) / sd)^2 - log sd - 1/2 log(2 pi),
    and its entropy (paper section 9) is 1/2 log(2 pi e sd^2).
    """
    if actions.ndim == 2:
        log_policy = log_softmax(outputs)
        entropies = np.sum(-np.exp(log_policy) * log_policy, axis=1)
        return log_policy[np.arange(len(outputs)), actions.ravel()], entropies
    means, log_sds = np.split(outputs, 2, axis=1)
    z = (actions.reshape(means.shape) - means) / np.exp(log_sds)
    log_densities = -0.5 * z**2 - log_sds - 0.5 * np.log(2.0 * np.pi)
    entropies = 0.5 * np.log(2.0 * np.pi * np.e * np.exp(2.0 * log_sds))
    return np.sum(log_densities, axis=1), np.sum(entropies, axis=1)


def log_softmax(logits: Array) -> Array:
    shifted = logits - np.max(logits, axis=-1, keepdims=True)
    normaliser = np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))
    return np.asarray(shifted - normaliser)


def targets(
    network: Network, weights: Mapping[str, Array], rollout: Rollout, discount: float
) -> Targets:
    """Returns and advantages R_t - V(s_t) of a rollout under the given weights."""
    outputs = _forward(network, weights, rollout)
    return _targets(outputs["value"], rollout, discount)


def losses(
    outputs: Array,
    values: Array,
    rollout: Rollout,
    hyperparameters: Hyperparameters,
    constants: Targets,
) -> Losses:
    """What `gradients` derives: the losses of the policy's outputs (T * K, A) and values (T * K, 1) of
    a rollout's states but the last, for given returns and advantages.
    """
    chosen, entropies = log_probabilities_and_entropies(outputs, rollout.actions)
    errors = constants.returns.ravel() - values[:, 0]

    scale = _scale(rollout, hyperparameters)
    policy = scale * float(np.sum(-chosen * constants.advantages.ravel()))
    value = scale * float(np.sum(0.5 * errors**2))
    entropy = scale * float(np.sum(entropies))
    total = (
        policy
        - hyperparameters.entropy_weight * entropy
        + hyperparameters.value_loss_weight * value
    )
    return Losses(policy, value, entropy, total)


def gradients(
    network: Network,
    weights: Mapping[str, Array],
    rollout: Rollout,
    hyperparameters: Hyperparameters,
) -> Weights:
    """The gradient of the total loss by every weight, not clipped."""
    outputs = _forward(network, weights, rollout)
    returns, advantages = _targets(outputs["value"], rollout, hyperparameters.discount)

    # The value of the last state is in the returns; it is not part of the losses.
    outputs = {layer: output[: rollout.rewards.size] for layer, output in outputs.items()}
    d_log_probabilities, d_entropies = _policy_slopes(outputs["policy"], rollout.actions)
    d_policy = -d_log_probabilities * advantages.reshape(-1, 1)
    d_policy -= hyperparameters.entropy_weight * d_entropies
    d_values = hyperparameters.value_loss_weight * (outputs["value"] - returns.reshape(-1, 1))
    scale = _scale(rollout, hyperparameters)
    return backward(
        network, weights, outputs, scale * d_policy, scale * d_values, rollout.continues
    )


def _policy_slopes(outputs: Array, actions: npt.NDArray[Any]) -> tuple[Array, Array]:
    """The derivatives of log probability and entropy by the policy's outputs, both (N, A).

    With p the policy of a state, H its entropy, e the chosen action's one-hot vector, z the distance
    of a continuous action from the mean in sds:

                  logits             means    logs of sds
        log p[a]  e - p              z / sd   z^2 - 1
        H         -p * (log p + H)   0        1
    """
    if actions.ndim == 2:
        log_policy = log_softmax(outputs)
        policy = np.exp(log_policy)
        entropy = -np.sum(policy * log_policy, axis=1, keepdims=True)
        one_hot = np.eye(policy.shape[1])[actions.ravel()]
        return one_hot - policy, -policy * (log_policy + entropy)
    means, log_sds = np.split(outputs, 2, axis=1)
    z = (actions.reshape(means.shape) - means) / np.exp(log_sds)
    return (
        np.concatenate([z / np.exp(log_sds), z**2 - 1.0], axis=1),
        np.concatenate([np.zeros_like(means), np.ones_like(log_sds)], axis=1),
    )


def _targets(values: Array, rollout: Rollout, discount: float) -> Targets:
    n_steps, n_envs = rollout.rewards.shape
    values = values.reshape(n_steps + 1, n_envs)
    returns = n_step_returns(rollout.rewards, rollout.continues, values[-1], discount)
    return Targets(returns, returns - values[:-1])


def _scale(rollout: Rollout, hyperparameters: Hyperparameters) -> float:
    """The factor of the sum over all steps of all environments."""
    n_steps, n_envs = rollout.actions.shape[:2]
    return {"mean": 1.0 / (n_steps * n_envs), "sum": 1.0}[hyperparameters.reduction]


def _forward(network: Network, weights: Mapping[str, Array], rollout: Rollout) -> dict[str, Array]:
    """The outputs for all of a rollout's observations, (T + 1) * K, if all shapes are right.

    The last observations are one more step: they are seen with what is remembered after the rollout.
    """
    observations, actions, rewards, continues, states = rollout
    n_steps, n_envs = rewards.shape
    if observations.shape[:2] != (n_steps + 1, n_envs):
        raise ValueError(f"{observations.shape[:2]} observations for {rewards.shape} rewards")
    n_actions = len(weights["policy_bias"])
    of_one = () if network.policy == "categorical" else (n_actions,)
    if actions.shape != (n_steps, n_envs, *of_one) or continues.shape != rewards.shape:
        raise ValueError(f"actions {actions.shape}, continues {continues.shape}: not as rewards")
    expected = weight_shapes(network, observations.shape[2:], n_actions)
    shapes = {name: weight.shape for name, weight in weights.items()}
    if shapes != expected:
        raise ValueError(f"weights of shapes {shapes} where {network} has {expected}")
    state = np.zeros((n_envs, 0)) if states is None else states[0]
    if state.shape != (n_envs, network.state_size()):
        raise ValueError(f"a state {state.shape} where {network} remembers {network.state_size()}")
    flat = observations.reshape((n_steps + 1) * n_envs, *observations.shape[2:])
    return forward(network, weights, flat, state, continues)


# Running statistics. `seen` is everything that was seen before, in rows: (n, ...).


def normalised(observations: npt.NDArray[Any], seen: npt.NDArray[Any]) -> Array:
    """Observations in standard deviations from the mean, within -10 and 10."""
    mean = seen.astype(np.float64).mean(axis=0) if len(seen) else 0.0
    return np.clip((observations - mean) / _sd(seen), -10.0, 10.0)


def scaled(rewards: npt.NDArray[Any], seen: npt.NDArray[Any]) -> Array:
    """Rewards in standard deviations of the discounted sums `seen`, within -10 and 10."""
    return np.clip(rewards / _sd(seen), -10.0, 10.0)


def _sd(seen: npt.NDArray[Any]) -> Array | float:
    return np.sqrt(seen.astype(np.float64).var(axis=0) + 1e-8) if len(seen) else 1.0


def discounted_sums(
    rewards: npt.NDArray[Any], continues: npt.NDArray[Any], discount: float
) -> Array:
    """At each step, the discounted rewards of its episode so far, the last one included: (n, K)."""
    sums = rewards.astype(np.float64)
    for t in range(1, len(sums)):
        sums[t] += discount * continues[t - 1] * sums[t - 1]
    return sums


# Optimizer.


def global_norm(arrays: Mapping[str, Array]) -> float:
    """The length of all arrays, taken as one vector."""
    return float(np.sqrt(sum(np.sum(array**2) for array in arrays.values())))


def clip_by_global_norm(arrays: Mapping[str, Array], max_norm: float) -> Weights:
    """Scale all arrays by the same factor, so that their global norm is at most `max_norm`."""
    norm = global_norm(arrays)
    factor = max_norm / norm if norm > max_norm else 1.0
    return {name: factor * array for name, array in arrays.items()}


def rmsprop(
    weight: Array,
    mean_square: Array,
    gradient: Array,
    learning_rate: float,
    decay: float,
    epsilon: float,
) -> tuple[Array, Array]:
    """The new weight and mean square: paper section 4, with epsilon inside the root."""
    mean_square = decay * mean_square + (1.0 - decay) * gradient**2
    return weight - learning_rate * gradient / np.sqrt(mean_square + epsilon), mean_square


def linear_learning_rate(initial: float, n_steps_done: int, n_steps: int) -> float:
    """A line from `initial` at step 0 to 0 at `n_steps`, and 0 after it."""
    return initial * max(0.0, 1.0 - n_steps_done / n_steps)


def constant(weights: Mapping[str, npt.NDArray[Any]], number: float) -> Weights:
    """Mean squares that all start from one number."""
    return {name: np.full(weight.shape, number) for name, weight in weights.items()}


class Oracle:
    """One worker, with the weights and statistics as float64 copies."""

    def __init__(
        self,
        network: Network,
        weights: Mapping[str, npt.NDArray[Any]],
        mean_squares: Mapping[str, npt.NDArray[Any]],
        hyperparameters: Hyperparameters,
    ) -> None:
        self.network = network
        self.weights = {name: np.array(w, np.float64) for name, w in weights.items()}
        self.mean_squares = {name: np.array(m, np.float64) for name, m in mean_squares.items()}
        self.hyperparameters = hyperparameters
        if {n: w.shape for n, w in self.weights.items()} != {
            n: m.shape for n, m in self.mean_squares.items()
        }:
            raise ValueError("the mean squares do not have the weights' names and shapes")

    def update(self, rollout: Rollout, learning_rate: float) -> float:
        """Apply one rollout's gradients; return their global norm before clipping."""
        hyper = self.hyperparameters
        raw = gradients(self.network, self.weights, rollout, hyper)
        norm = global_norm(raw)
        if not np.isfinite(norm):
            raise FloatingPointError("a gradient is not finite; nothing was applied")
        for name, gradient in clip_by_global_norm(raw, hyper.max_gradient_norm).items():
            self.weights[name], self.mean_squares[name] = rmsprop(
                self.weights[name],
                self.mean_squares[name],
                gradient,
                learning_rate,
                hyper.decay,
                hyper.epsilon,
            )
        return norm
