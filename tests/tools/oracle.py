"""The whole of A3C's arithmetic in float64 NumPy, with every derivative written by hand.

An independent second opinion on what TensorFlow computes: written from Mnih et al. 2016 (section 4
and Algorithm S3), Mnih et al. 2015 (the nature network) and the project's design, not from `a3c/`.
It is meant to be obvious, and shares nothing with the code that it checks. No other test derives the
update in NumPy.

    oracle = Oracle("nature", weights, constant(weights, 1.0), hyperparameters)
    for rollout in rollouts:
        oracle.update(rollout, learning_rate)
    oracle.weights, oracle.mean_squares  # after the updates

T is the number of steps of a rollout, K the number of environments, N a batch of states, A the
number of actions. Weights, gradients and statistics are dicts of arrays in TensorFlow's layout:
kernels of convolutions (height, width, in, out), of dense layers (in, out).
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

Array = npt.NDArray[np.float64]
Weights = dict[str, Array]


class Rollout(NamedTuple):
    """T steps of K environments, as a worker collected them under one set of weights."""

    observations: npt.NDArray[Any]  # (T + 1, K, ...): the last is the state to bootstrap from
    actions: npt.NDArray[Any]  # (T, K), integers
    rewards: npt.NDArray[Any]  # (T, K), clipped; bootstraps of truncated episodes included
    continues: npt.NDArray[Any]  # (T, K): 0 where this step ended an episode, else 1


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
N_HIDDEN = {"nature": 512, "small": 256, "mlp": 64}


# Networks.


def weight_shapes(
    network: str, observation_shape: tuple[int, ...], n_actions: int
) -> dict[str, tuple[int, ...]]:
    """The shape of every weight of a network, by name."""
    shapes: dict[str, tuple[int, ...]] = {}

    def add(layer: str, *kernel_shape: int) -> None:
        shapes[f"{layer}_kernel"] = kernel_shape
        shapes[f"{layer}_bias"] = kernel_shape[-1:]

    n_hidden = N_HIDDEN[network]
    if network == "mlp":
        for head, n_outputs in (("policy", n_actions), ("value", 1)):
            add(f"{head}_dense1", *observation_shape, n_hidden)
            add(f"{head}_dense2", n_hidden, n_hidden)
            add(head, n_hidden, n_outputs)
        return shapes

    height, width, channels = observation_shape
    for layer, filters, size, stride in CONVOLUTIONS[network]:
        add(layer, size, size, channels, filters)
        height, width = (height - size) // stride + 1, (width - size) // stride + 1
        channels = filters
    add("dense", height * width * channels, n_hidden)
    add("policy", n_hidden, n_actions)
    add("value", n_hidden, 1)
    return shapes


def forward(
    network: str, weights: Mapping[str, Array], observations: npt.NDArray[Any]
) -> dict[str, Array]:
    """The outputs of every layer for N observations, by name: among them `policy`, logits (N, A), and
    `value` (N, 1).
    """
    if network == "mlp":
        # Two networks that share nothing, each of two tanh layers and a linear one.
        outputs = {"observations": observations.astype(np.float64)}
        for head in ("policy", "value"):
            last = outputs["observations"]
            for layer in (f"{head}_dense1", f"{head}_dense2"):
                last = outputs[layer] = np.tanh(_dense(weights, layer, last))
            outputs[head] = _dense(weights, head, last)
        return outputs

    # Convolutions, flattened as (height, width, channels), one dense layer, two linear heads.
    if observations.dtype != np.uint8:
        raise ValueError(f"images are uint8, not {observations.dtype}")
    last = observations.astype(np.float64) / 255.0
    outputs = {"observations": last}
    for layer, _, _, stride in CONVOLUTIONS[network]:
        kernel, bias = weights[f"{layer}_kernel"], weights[f"{layer}_bias"]
        last = outputs[layer] = _relu(convolve(last, kernel, bias, stride))
    outputs["flat"] = last.reshape(len(last), -1)
    outputs["dense"] = _relu(_dense(weights, "dense", outputs["flat"]))
    outputs["policy"] = _dense(weights, "policy", outputs["dense"])
    outputs["value"] = _dense(weights, "value", outputs["dense"])
    return outputs


def backward(
    network: str,
    weights: Mapping[str, Array],
    outputs: dict[str, Array],
    d_logits: Array,
    d_values: Array,
) -> Weights:
    """The gradient of a loss by every weight, from its gradients by logits (N, A), values (N, 1).

    Here and below, d_x is the derivative of the loss by x.
    """
    gradients: Weights = {}
    if network == "mlp":
        for head, d_head in (("policy", d_logits), ("value", d_values)):
            dense1, dense2 = outputs[f"{head}_dense1"], outputs[f"{head}_dense2"]
            d_dense2 = _dense_backward(weights, head, dense2, d_head, gradients)
            d_dense2 *= 1.0 - dense2**2  # the derivative of tanh by its output
            d_dense1 = _dense_backward(weights, f"{head}_dense2", dense1, d_dense2, gradients)
            d_dense1 *= 1.0 - dense1**2
            _dense_backward(weights, f"{head}_dense1", outputs["observations"], d_dense1, gradients)
        return gradients

    d_dense = _dense_backward(weights, "policy", outputs["dense"], d_logits, gradients)
    d_dense += _dense_backward(weights, "value", outputs["dense"], d_values, gradients)
    d_dense *= _relu_slope(outputs["dense"])
    d_flat = _dense_backward(weights, "dense", outputs["flat"], d_dense, gradients)

    convolutions = CONVOLUTIONS[network]
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


def log_softmax(logits: Array) -> Array:
    shifted = logits - np.max(logits, axis=-1, keepdims=True)
    normaliser = np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))
    return np.asarray(shifted - normaliser)


def targets(
    network: str, weights: Mapping[str, Array], rollout: Rollout, discount: float
) -> Targets:
    """Returns and advantages R_t - V(s_t) of a rollout under the given weights."""
    outputs = forward(network, weights, _check_and_flatten(network, weights, rollout))
    return _targets(outputs["value"], rollout, discount)


def losses(
    logits: Array,
    values: Array,
    rollout: Rollout,
    hyperparameters: Hyperparameters,
    constants: Targets,
) -> Losses:
    """What `gradients` derives: the losses of the logits (T * K, A) and values (T * K, 1) of a
    rollout's states but the last, for given returns and advantages.
    """
    log_policy = log_softmax(logits)
    chosen = log_policy[np.arange(len(log_policy)), rollout.actions.ravel()]
    errors = constants.returns.ravel() - values[:, 0]

    scale = _scale(rollout, hyperparameters)
    policy = scale * float(np.sum(-chosen * constants.advantages.ravel()))
    value = scale * float(np.sum(0.5 * errors**2))
    entropy = scale * float(np.sum(-np.exp(log_policy) * log_policy))
    total = (
        policy
        - hyperparameters.entropy_weight * entropy
        + hyperparameters.value_loss_weight * value
    )
    return Losses(policy, value, entropy, total)


def gradients(
    network: str,
    weights: Mapping[str, Array],
    rollout: Rollout,
    hyperparameters: Hyperparameters,
) -> Weights:
    """The gradient of the total loss by every weight, not clipped.

    With p the policy of a state, H its entropy, e the chosen action's one-hot vector, the
    derivatives by the logits are

        of -log p[a]:  p - e
        of -H:         p * (log p + H)
    """
    outputs = forward(network, weights, _check_and_flatten(network, weights, rollout))
    returns, advantages = _targets(outputs["value"], rollout, hyperparameters.discount)

    # The value of the last state is in the returns; it is not part of the losses.
    n_states = rollout.actions.size
    outputs = {layer: output[:n_states] for layer, output in outputs.items()}
    log_policy = log_softmax(outputs["policy"])
    policy = np.exp(log_policy)
    entropy = -np.sum(policy * log_policy, axis=1, keepdims=True)
    one_hot = np.eye(policy.shape[1])[rollout.actions.ravel()]

    d_logits = (policy - one_hot) * advantages.reshape(-1, 1)
    d_logits += hyperparameters.entropy_weight * policy * (log_policy + entropy)
    d_values = hyperparameters.value_loss_weight * (outputs["value"] - returns.reshape(-1, 1))
    scale = _scale(rollout, hyperparameters)
    return backward(network, weights, outputs, scale * d_logits, scale * d_values)


def _targets(values: Array, rollout: Rollout, discount: float) -> Targets:
    n_steps, n_envs = rollout.actions.shape
    values = values.reshape(n_steps + 1, n_envs)
    returns = n_step_returns(rollout.rewards, rollout.continues, values[-1], discount)
    return Targets(returns, returns - values[:-1])


def _scale(rollout: Rollout, hyperparameters: Hyperparameters) -> float:
    """The factor of the sum over all steps of all environments."""
    return {"mean": 1.0 / rollout.actions.size, "sum": 1.0}[hyperparameters.reduction]


def _check_and_flatten(
    network: str, weights: Mapping[str, Array], rollout: Rollout
) -> npt.NDArray[Any]:
    """The rollout's observations as one batch, ((T + 1) * K, ...), if all shapes are right."""
    observations, actions, rewards, continues = rollout
    n_steps, n_envs = actions.shape
    if observations.shape[:2] != (n_steps + 1, n_envs):
        raise ValueError(f"{observations.shape[:2]} observations for {actions.shape} actions")
    if not rewards.shape == continues.shape == actions.shape:
        raise ValueError(f"rewards {rewards.shape}, continues {continues.shape}: not as actions")
    expected = weight_shapes(network, observations.shape[2:], len(weights["policy_bias"]))
    shapes = {name: weight.shape for name, weight in weights.items()}
    if shapes != expected:
        raise ValueError(f"weights of shapes {shapes} where {network} has {expected}")
    return observations.reshape((n_steps + 1) * n_envs, *observations.shape[2:])


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
        network: str,
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
