"""All that more than one thread writes: weights, RMSProp's statistics, counters, the gate.

What is locked, and why:

- **An update is atomic, and none is lost.** It is one compiled program, and TensorFlow holds the
  mutexes of all variables that such a program names from its start to its end. (It promises that
  nowhere; what counts is the test that loses nothing.) The paper's Hogwild updates take no locks
  (§4); on a CPU with caches locks cost next to nothing.
- **A copy is of one moment**, since the update that a worker makes also writes its copy. Until its
  next update the others' go on, and the copy ages. That is the asynchrony that A3C is made of.
- **The counters have one lock**, so steps and updates are exact.
- **The gate** is a door that all updates pass and that the main thread can shut: while it is shut,
  no update is under way and none is counted, so what is copied then is of one moment.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import numpy as np
import tensorflow as tf

from a3c.agent import kernels, network, optimizer
from a3c.agent.kernels import Gradient
from a3c.contract import Counts, Snapshot
from a3c.settings.params import Params

T = TypeVar("T")


class Gate:
    """Many may pass at once; `shut()`, for the main thread alone, waits until nobody is inside and
    keeps everybody out."""

    def __init__(self) -> None:
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
        with self._changed:
            self._is_shut = True
            self._changed.wait_for(lambda: self._n_inside == 0)
        try:
            yield
        finally:
            with self._changed:
                self._is_shut = False
                self._changed.notify_all()


class Counters:
    """Exact counts of what all workers did together.

    `reserve` hands out the steps before they are taken, so that a run of n steps ends with the
    first rollout that reaches n, however many workers there are; `add_update` counts them once they
    are learned from, and with them the games that ended in that rollout.
    """

    def __init__(self, n_steps_in_all: int, counts: Counts = Counts()) -> None:  # noqa: B008 (immutable)
        self._lock = threading.Lock()
        self._n_steps_in_all = n_steps_in_all
        self._n_reserved = counts.steps
        self._counts = counts
        self._lags: list[int] = []  # of the updates since they were last taken

    def reserve(self, n_steps: int) -> bool:
        """True, and the steps are the caller's, unless the run has all the steps that it wants."""
        with self._lock:
            if self._n_reserved >= self._n_steps_in_all:
                return False
            self._n_reserved += n_steps
            return True

    def give_back(self, n_steps: int) -> None:
        """Take back steps that were reserved and will not be learned from."""
        with self._lock:
            self._n_reserved -= n_steps

    def add_update(
        self, n_steps: int, n_frames: int, n_updates_at_copy: int, n_games: int = 0
    ) -> Counts:
        """Count one update, made under weights copied when n_updates_at_copy had been counted."""
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
        """Mean and maximum policy lag of the updates since the last call; NaN without any."""
        with self._lock:
            lags, self._lags = self._lags, []
        return (float(np.mean(lags)), float(max(lags))) if lags else (float("nan"), float("nan"))


class SharedState:
    """The global network, RMSProp's shared statistics, the counters and the gate."""

    def __init__(
        self,
        weights: Mapping[str, np.ndarray],
        params: Params,
        counts: Counts = Counts(),  # noqa: B008 (immutable)
    ) -> None:
        self.weights = {name: tf.Variable(value, name=name) for name, value in weights.items()}
        start = np.float32(params.rmsprop_initial)
        self.mean_squares = {
            name: tf.Variable(tf.fill(value.shape, start), name=f"{name}_ms")
            for name, value in weights.items()
        }
        self.counters = Counters(params.n_steps, counts)
        self.gate = Gate()
        self._params = params
        # Clipping, TensorFlow's own RMSProp kernel and the copy passed over memory five times, and
        # took 8 ms for nature's 1.7 million weights. One compiled pass takes 3.
        self._compiled_update = tf.function(self._update, jit_compile=True)

    def snapshot(self, read: Callable[[], T]) -> tuple[Snapshot, T]:
        """A copy of all of one moment, and what `read` gives at that moment: it is called while the
        gate is shut. Workers wait only while these two things are done.
        """
        with self.gate.shut():
            also = read()
            weights, mean_squares = (
                {name: variable.numpy() for name, variable in part.items()}
                for part in (self.weights, self.mean_squares)
            )
            return Snapshot(self.counters.read(), weights, mean_squares), also

    def restore(self, snapshot: Snapshot) -> None:
        """Take over a snapshot's weights, and its statistics if it has some; not its counts, which
        this state was made with. No worker may run yet. ValueError where it is another network's.
        """
        network.assign(self.weights, snapshot.weights)
        if snapshot.mean_squares:
            network.assign(self.mean_squares, snapshot.mean_squares)

    def apply(
        self,
        gradients: Mapping[str, Gradient],
        learning_rate: tf.Tensor,
        local: Mapping[str, tf.Variable],
    ) -> tf.Tensor:
        """Clip, take one RMSProp step, copy the new weights to `local`; returns the norm before.

        For tracing.
        """
        factor, norm = optimizer.clipping_factor(
            list(gradients.values()), self._params.max_grad_norm
        )
        self._compiled_update(gradients, factor, learning_rate, local)
        return norm

    def _update(
        self,
        gradients: Mapping[str, Gradient],
        factor: tf.Tensor,
        learning_rate: tf.Tensor,
        local: Mapping[str, tf.Variable],
    ) -> None:
        for name, gradient in gradients.items():
            theta, mean_square = optimizer.rmsprop_step(
                self.weights[name],
                self.mean_squares[name],
                factor * kernels.multiplied(gradient),
                learning_rate=learning_rate,
                decay=self._params.rmsprop_decay,
                epsilon=self._params.rmsprop_epsilon,
            )
            self.mean_squares[name].assign(mean_square)
            self.weights[name].assign(theta)
            local[name].assign(theta)
