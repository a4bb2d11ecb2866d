"""All that more than one thread writes: weights, RMSProp's statistics, counters, and the gate.

What is locked, and why:

- **An update is atomic, and none is lost.** It is one compiled program, and TensorFlow holds the
  mutexes of all variables of such a program while it runs. (TensorFlow does not promise this, so a
  test counts the updates.) With vectors and without LSTMs, all of learning is in this program, so
  one worker learns at a time; it takes a fraction of a millisecond. The paper's Hogwild updates (§4)
  take no locks; on today's CPUs, locks cost almost nothing.
- **The running moments belong to the weights.** Where a run keeps some, one lock is held while an
  update changes the weights and while it adds to the moments, and a worker gets a copy of both.
- **A worker's copy of the weights is of one moment**, because its own update writes it too. The copy
  ages while other workers update the shared weights. That is the asynchrony of A3C.
- **The counters have one lock**, so steps and updates are exact.
- **The gate** lets updates pass until somebody shuts it: the main thread for a checkpoint, a row of
  figures or an evaluation's copy, or a worker whose copy of the weights is old before its first
  rollout. While it is shut, no update runs and none is counted, so everything that is copied then is
  of one moment.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias, TypeVar

import numpy as np
import tensorflow as tf

from a3c.agent import calls, kernels, moments, network, optimizer, vectors
from a3c.agent.kernels import Gradients
from a3c.contract import Counts, Moments, Snapshot
from a3c.settings.params import Params

T = TypeVar("T")
Variables: TypeAlias = Mapping[str, tf.Variable]

POLL_SECONDS = 0.1  # between two looks of a worker that waits for steps


class Gate:
    """A readers-writer lock: many threads may be inside, none while it is shut."""

    def __init__(self) -> None:
        self._shutting = threading.Lock()  # one at a time
        self._changed = threading.Condition()
        self._n_inside = 0
        self._is_shut = False

    def __enter__(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._is_shut)
            self._n_inside += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._n_inside -= 1
            if self._is_shut:
                self._changed.notify_all()

    @contextlib.contextmanager
    def shut(self) -> Iterator[None]:
        with self._shutting:
            try:
                with self._changed:
                    self._is_shut = True
                    self._changed.wait_for(lambda: self._n_inside == 0)
                yield
            finally:
                with self._changed:
                    self._is_shut = False
                    self._changed.notify_all()


class Counters:
    """Exact counts of what all workers have done together.

    A worker reserves a rollout's steps first, so that a run of n steps ends with the first rollout
    that reaches n, and counts them once an update has learned from them. Until the last of them are
    counted, some may come back, and whoever wants steps waits.
    """

    def __init__(self, n_steps_in_all: int, counts: Counts = Counts()) -> None:  # noqa: B008 (immutable)
        self._lock = threading.Lock()
        self._n_steps_in_all = n_steps_in_all
        self._n_reserved = counts.steps
        self._counts = counts
        self._lags: list[int] = []  # one for each update since `take_policy_lag`

    def reserve(self, n_steps: int, is_stopped: Callable[[], bool]) -> bool:
        """Reserve steps for the caller; False once all steps of the run are counted, or it is stopped."""
        while True:
            with self._lock:
                if self._n_reserved < self._n_steps_in_all:
                    self._n_reserved += n_steps
                    return True
            if is_stopped() or self.are_complete():
                return False
            time.sleep(POLL_SECONDS)

    def are_complete(self) -> bool:
        """Whether all steps of the run are counted."""
        with self._lock:
            return self._counts.steps >= self._n_steps_in_all

    def give_back(self, n_steps: int) -> None:
        """Return reserved steps that no update will learn from."""
        with self._lock:
            self._n_reserved -= n_steps

    def add_update(
        self, n_steps: int, n_frames: int, n_updates_at_copy: int, n_games: int = 0
    ) -> Counts:
        """Count an update of weights copied when n_updates_at_copy had been counted."""
        with self._lock:
            self._lags.append(self._counts.updates - n_updates_at_copy)
            self._counts = self._counts._replace(
                steps=self._counts.steps + n_steps,
                updates=self._counts.updates + 1,
                games=self._counts.games + n_games,
                frames=self._counts.frames + n_frames,
            )
            return self._counts

    def read(self) -> Counts:
        with self._lock:
            return self._counts

    def take_policy_lag(self) -> tuple[float, float]:
        """Mean and maximum policy lag of the updates since the last call; NaN if there were none."""
        with self._lock:
            lags, self._lags = self._lags, []
        return (float(np.mean(lags)), float(max(lags))) if lags else (float("nan"), float("nan"))


class SharedState:
    """The global network's weights, RMSProp's statistics, moments, the counters and the gate."""

    def __init__(
        self,
        weights: Mapping[str, np.ndarray],
        params: Params,
        counts: Counts = Counts(),  # noqa: B008 (immutable)
        first_moments: Mapping[str, Moments] = {},
    ) -> None:
        self._shapes = {name: value.shape for name, value in weights.items()}
        held = vectors.held(params.network, weights)
        self.variables = {name: tf.Variable(value, name=name) for name, value in held.items()}
        start = np.float32(params.rmsprop_initial)
        self._mean_squares = {
            name: tf.Variable(tf.fill(value.shape, start)) for name, value in held.items()
        }
        # Never changed, but replaced by others, so whoever has a copy may keep it.
        self.moments = dict(first_moments)
        self._moments_lock = threading.Lock()
        self.counters = Counters(params.n_steps, counts)
        self.gate = Gate()
        self._params = params
        # One compiled pass over nature's 1.7 million weights takes 3 ms. Clipping, TensorFlow's own
        # RMSProp and the copy, one after the other, took 8 ms.
        self._compiled_update = tf.function(self._update, jit_compile=True, autograph=False)

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """A copy of each weight, by name."""
        return self._by_name(self.variables)

    @property
    def mean_squares(self) -> dict[str, np.ndarray]:
        return self._by_name(self._mean_squares)

    def block(self) -> np.ndarray:
        """A copy of all weights as one block, for `take`; of one moment if the gate is shut."""
        block: np.ndarray = calls.packed(dict(self.variables)).numpy()
        return block

    def _by_name(self, variables: Variables) -> dict[str, np.ndarray]:
        arrays = {name: variable.numpy() for name, variable in variables.items()}
        return vectors.by_name(arrays, self._shapes)

    def snapshot(self, read: Callable[[], T]) -> tuple[Snapshot, T]:
        """A copy of the whole state, and what `read` returns, both made while the gate is shut."""
        with self.gate.shut():
            also = read()
            counts = self.counters.read()
            return Snapshot(counts, self.weights, self.mean_squares, self.moments), also

    def restore(self, snapshot: Snapshot) -> None:
        """Take a snapshot's weights, and its statistics and moments, if it has any, before any worker
        runs.

        Its counts are not taken. A snapshot of another network raises ValueError.
        """
        self._assign(self.variables, snapshot.weights)
        if snapshot.mean_squares:
            self._assign(self._mean_squares, snapshot.mean_squares)
        self.moments = {n: snapshot.moments.get(n, first) for n, first in self.moments.items()}

    def _assign(self, variables: Variables, arrays: Mapping[str, np.ndarray]) -> None:
        network.check_shapes(self._shapes, arrays)
        for name, array in vectors.held(self._params.network, arrays).items():
            variables[name].assign(array)

    def update(
        self, learn: Callable[[], object], seen: Mapping[str, Moments]
    ) -> Mapping[str, Moments]:
        """Have a worker learn, and add what its rollout has seen; returns the moments after it.

        If learning raises an error, nothing is added.
        """
        if not self.moments:
            learn()
            return {}
        with self._moments_lock:
            learn()
            self.moments = {
                name: moments.merged(so_far, seen[name]) for name, so_far in self.moments.items()
            }
            return self.moments

    def apply(
        self,
        gradients: Gradients,
        learning_rate: tf.Tensor,
        local: Variables | None,
        is_finite: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Clip, step by RMSProp, copy the weights to `local`; returns the norm before clipping.

        Without `local`, the new weights are returned as well. With `is_finite`, nothing changes unless
        that is true and the norm is finite, too: what XLA compiles cannot raise an error.
        """
        factor, norm = optimizer.clipping_factor(gradients.values(), self._params.max_grad_norm)
        if is_finite is not None:
            is_finite &= tf.math.is_finite(norm)
        return norm, self._compiled_update(gradients, factor, learning_rate, local, is_finite)

    def _update(
        self,
        gradients: Gradients,
        factor: tf.Tensor,
        learning_rate: tf.Tensor,
        local: Variables | None,
        is_finite: tf.Tensor | None,
    ) -> dict[str, tf.Tensor]:
        new = {}
        for name, gradient in gradients.items():
            theta, mean_square = optimizer.rmsprop_step(
                self.variables[name],
                self._mean_squares[name],
                factor * kernels.multiplied(gradient),
                learning_rate=learning_rate,
                decay=self._params.rmsprop_decay,
                epsilon=self._params.rmsprop_epsilon,
            )
            if is_finite is not None:
                theta = tf.where(is_finite, theta, self.variables[name])
                mean_square = tf.where(is_finite, mean_square, self._mean_squares[name])
            self._mean_squares[name].assign(mean_square)
            self.variables[name].assign(theta)
            if local is None:
                new[name] = theta
            else:
                local[name].assign(theta)
        return new
