"""Weights and gradients as one block of float32 each: so they travel to a remote worker and back.

A remote worker has a `Learner` and a `LocalNetwork` like any other. They only differ in what becomes
of the gradients: a `Sender` makes a block of them, and the `Receiver` applies it here, by the same
update. The gradient of a large dense kernel stays a product of few rows (`kernels.Product`): 73 KB
instead of 6.4 MB, for `nature` and one environment.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from a3c.agent import kernels
from a3c.agent.calls import bound, packed, traced, unpacked
from a3c.agent.kernels import Gradients
from a3c.agent.learner import copy_of
from a3c.agent.shared import SharedState, Variables


class Sender:
    """Takes the place of the shared state where a remote worker learns."""

    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        self.variables = {name: tf.Variable(weight) for name, weight in weights.items()}

    def apply(
        self,
        gradients: Gradients,
        learning_rate: tf.Tensor,
        local: Variables | None,
        is_finite: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        return packed(gradients), {}


class Receiver:
    """The traced functions that apply blocks, made once a run."""

    def __init__(self, shared: SharedState, n_rows: int) -> None:
        """`n_rows` are the steps of a whole rollout of all environments of a worker."""
        self._shared = shared
        shapes = {name: variable.shape for name, variable in shared.variables.items()}
        whole = {name: tf.TensorSpec(shape, tf.float32) for name, shape in shapes.items()}
        self.n_weights = int(sum(spec.shape.num_elements() for spec in whole.values()))
        forms: list[dict[str, Any]] = [whole]
        if "dense_kernel" in whole and n_rows <= kernels.ROWS_OF_A_PRODUCT:
            sides = (tf.TensorSpec((n_rows, n), tf.float32) for n in whole["dense_kernel"].shape)
            forms.append(whole | {"dense_kernel": kernels.Product(*sides)})
        self._functions = {}
        for form in forms:
            specs = tf.nest.flatten(form)
            n = sum(spec.shape.num_elements() for spec in specs)
            self._functions[n] = self._traced(form, n)
        self.sizes = self._functions.keys()  # that a block of gradients may have

    def _traced(self, form: Any, n: int) -> Any:
        def apply(local: Variables, block: tf.Tensor, learning_rate: tf.Tensor) -> tf.Tensor:
            self._shared.apply(unpacked(block, form), learning_rate, local)
            return packed(dict(local))

        specs = tf.TensorSpec((n,), tf.float32), tf.TensorSpec((), tf.float32)
        return traced(apply, copy_of(self._shared.variables), *specs)

    def new_worker(self) -> tuple[np.ndarray, Callable[[np.ndarray, float], np.ndarray]]:
        """A worker's copy of the weights, and what applies its gradients and returns the new copy."""
        local = copy_of(self._shared.variables)
        functions = {n: bound(function, local) for n, function in self._functions.items()}

        def apply(block: np.ndarray, learning_rate: float) -> np.ndarray:
            weights = functions[len(block)](block, np.float32(learning_rate))
            return np.frombuffer(weights, np.float32)  # without a copy

        return self._shared.block(), apply
