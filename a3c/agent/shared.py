"""All that more than one thread writes: weights, RMSProp's statistics, counters, the gate.

What is locked, and why:

- **An update is atomic, and none is lost.** It is one compiled program, and TensorFlow holds the
  mutexes of all variables that such a program names from its start to its end. (It promises that
  nowhere; what counts is the test that loses nothing.) The paper's Hogwild updates take no locks
  (§4); on a CPU with caches locks cost next to nothing, and "were updates lost?" has an answer.
- **A copy is of one moment**, since the update that a worker makes also writes its copy. What is
  not locked is the time until the next: meanwhile the others' updates go on, and the copy ages.
  That is the asynchrony A3C is made of, and training tolerates it.
- **The counters have one lock**, so steps and updates are exact.
- **The gate** is a door that all updates pass and that the main thread can shut: while it is shut,
  no update is under way and none is counted, so what is copied then is of one moment.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from a3c.agent import optimizer


class Gate:
    """Many may pass at once; `shut()` waits until nobody is inside and keeps everybody out."""

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
            self._changed.wait_for(lambda: not self._is_shut)
            self._is_shut = True
            self._changed.wait_for(lambda: self._n_inside == 0)
        try:
            yield
        finally:
            with self._changed:
                self._is_shut = False
                self._changed.notify_all()


class Counts(NamedTuple):
    """How far a run is. Steps are agent steps that an update has learned from."""

    steps: int = 0
    updates: int = 0
    games: int = 0
    frames: int = 0


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
        self._lag_sum = self._lag_max = self._n_lags = 0

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
            lag = self._counts.updates - n_updates_at_copy
            self._lag_sum += lag
            self._lag_max = max(self._lag_max, lag)
            self._n_lags += 1
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
            n, total, largest = self._n_lags, self._lag_sum, self._lag_max
            self._lag_sum = self._lag_max = self._n_lags = 0
        return (total / n, float(largest)) if n else (float("nan"), float("nan"))


class SharedState:
    """The global network, RMSProp's shared statistics, the counters and the gate."""

    def __init__(
        self,
        weights: Mapping[str, np.ndarray],
        *,
        rmsprop_initial: float,
        rmsprop_decay: float,
        rmsprop_epsilon: float,
        max_grad_norm: float,
        counters: Counters,
    ) -> None:
        self.weights = {name: tf.Variable(value, name=name) for name, value in weights.items()}
        self.mean_squares = {
            name: tf.Variable(tf.fill(value.shape, np.float32(rmsprop_initial)), name=f"{name}_ms")
            for name, value in weights.items()
        }
        self._decay, self._epsilon = rmsprop_decay, rmsprop_epsilon
        self.max_grad_norm = max_grad_norm
        self.counters = counters
        self.gate = Gate()

    def apply(
        self,
        gradients: Mapping[str, optimizer.Gradient],
        learning_rate: tf.Tensor,
        local: Mapping[str, tf.Variable],
    ) -> tf.Tensor:
        """Clip, take one RMSProp step, copy the new weights to `local`; returns the norm before.

        For tracing.
        """
        factor, norm = optimizer.clipping_factor(list(gradients.values()), self.max_grad_norm)
        self._update(gradients, factor, learning_rate, local)
        return norm

    @functools.cached_property
    def _update(self) -> Callable:
        """All that is done to the shared variables, compiled into one pass over memory.

        Clipping, TensorFlow's own RMSProp kernel and the copy passed over them five times, and took
        8 ms for nature's 1.7 million weights where this takes 3.
        """

        def update(
            gradients: Mapping[str, optimizer.Gradient],
            factor: tf.Tensor,
            learning_rate: tf.Tensor,
            local: Mapping[str, tf.Variable],
        ) -> None:
            for name, gradient in gradients.items():
                if isinstance(gradient, optimizer.Product):
                    gradient = gradient.multiplied()
                theta, mean_square = optimizer.rmsprop_step(
                    self.weights[name],
                    self.mean_squares[name],
                    factor * gradient,
                    learning_rate=learning_rate,
                    decay=self._decay,
                    epsilon=self._epsilon,
                )
                self.mean_squares[name].assign(mean_square)
                self.weights[name].assign(theta)
                local[name].assign(theta)

        return tf.function(update, jit_compile=True)
