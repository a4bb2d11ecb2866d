"""Workers of one environment that only act and learn; a server for `make bench`.

It shows what 16 × 1 could reach if emulator, transport and choice of actions took no time: real calls
into TensorFlow with sixteen networks, on constant observations. The calls come from threads as in
training, or one call acts for several workers.

For each line of JSON, {"n_workers", "task", "together", "seconds"}, it answers with one line,
{"n_steps", "seconds"}. An empty line or the end of the input ends it.
"""

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from a3c.agent import calls, network
from a3c.agent.collector import Rollout
from a3c.agent.kernels import Memory, forward
from a3c.agent.learner import Learner
from a3c.agent.local import LocalNetwork
from a3c.agent.shared import SharedState
from a3c.contract import Subject
from a3c.machine import tensorflow_process
from a3c.settings.params import Params

WARM_UP_SECONDS = 2.0
N_STEPS = 5
N_ACTIONS = 6
LEARNING_RATE = 1e-4
OBSERVATION = (84, 84, 4)


class Workers:
    """Networks, each with a rollout."""

    def __init__(self, n_workers: int, name: str) -> None:
        generator = np.random.default_rng(0)
        self._subject = Subject("", "generic", name, OBSERVATION, N_ACTIONS)
        shapes = network.weight_shapes(self._subject)
        weights = network.initial_weights(shapes, "orthogonal", generator)
        params = Params("PongNoFrameskip-v4", network=name, steps_per_update=N_STEPS)
        shared = SharedState(weights, params)
        observations = generator.integers(0, 256, (n_workers, N_STEPS + 1, 1, *OBSERVATION))
        observations = observations.astype(np.uint8)
        learner = Learner(shared, params, self._subject, observations[0])
        self._locals = [LocalNetwork(learner) for _ in range(n_workers)]
        nothing = np.zeros((N_STEPS, 1), np.float32)
        self._rollouts = [
            Rollout(
                each,
                nothing.astype(np.int32),
                nothing,
                1 - nothing,
                np.zeros((1, 1, 0), np.float32),
            )
            for each in observations
        ]

    def rounds(self, together: int) -> list[Callable[[], None]]:
        """One function per thread: a rollout and an update of each of its workers."""
        numbers = np.arange(len(self._locals)).reshape(-1, together).tolist()
        return [self._alone(each[0]) if together == 1 else self._together(each) for each in numbers]

    def _alone(self, number: int) -> Callable[[], None]:
        local, rollout = self._locals[number], self._rollouts[number]

        def one() -> None:
            acted = [local.act(rollout.observations[t], rollout.states[0]) for t in range(N_STEPS)]
            local.learn(rollout, LEARNING_RATE, [of_step.activations for of_step in acted])

        return one

    def _together(self, numbers: Sequence[int]) -> Callable[[], None]:
        """One compiled call acts for all of them; each learns by itself."""

        def act(weights: Any, observations: tf.Tensor) -> Any:
            of_each = [
                forward(self._subject, each, observations[k], Memory(tf.zeros((1, 0))))
                for k, each in enumerate(weights)
            ]
            heads = [tf.concat([p.outputs, p.values[:, None]], axis=1) for p in of_each]
            return tf.stack(heads), [p.activations for p in of_each]

        weights = [self._locals[number].weights for number in numbers]
        spec = tf.TensorSpec((len(numbers), 1, *OBSERVATION), tf.uint8)
        traced = tf.function(act, jit_compile=True).get_concrete_function(weights, spec)
        call = calls.bound(traced, weights)
        observations = np.stack([self._rollouts[number].observations for number in numbers], axis=1)

        def one() -> None:
            activations = []
            for t in range(N_STEPS):
                outputs, of_step = call(observations[t])
                outputs.numpy()
                activations.append(of_step)
            for k, number in enumerate(numbers):
                self._locals[number].learn(
                    self._rollouts[number],
                    LEARNING_RATE,
                    [of_step[k] for of_step in activations],
                )

        return one


def measure(rounds: Sequence[Callable[[], None]], n_steps: int, seconds: float) -> dict[str, float]:
    """Run each function in its own thread; one call of it does `n_steps` steps."""
    n_rounds, stop = [0] * len(rounds), threading.Event()

    def work(thread: int) -> None:
        while not stop.is_set():
            rounds[thread]()
            n_rounds[thread] += 1

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(len(rounds))]
    for thread in threads:
        thread.start()
    time.sleep(WARM_UP_SECONDS)
    start, before = time.perf_counter(), sum(n_rounds)
    time.sleep(seconds)
    elapsed, n = time.perf_counter() - start, sum(n_rounds) - before
    stop.set()
    for thread in threads:
        thread.join()
    return {"n_steps": n * n_steps, "seconds": elapsed}


def main() -> None:
    """Answer the lines of the input."""
    answers = sys.stdout
    made: dict[tuple[int, str], Workers] = {}
    rounds: dict[tuple[int, str, int], list[Callable[[], None]]] = {}
    with contextlib.redirect_stdout(sys.stderr):  # only answers go to the real stdout
        tensorflow_process.keep_freed_memory()
        tensorflow_process.start_tensorflow()
        for line in sys.stdin:
            if not line.strip():
                break
            wanted = json.loads(line)
            key = wanted["n_workers"], wanted["task"]
            together = wanted["together"]
            if key not in made:
                made[key] = Workers(*key)
            if (*key, together) not in rounds:
                rounds[*key, together] = made[key].rounds(together)
            answer = measure(rounds[*key, together], together * N_STEPS, wanted["seconds"])
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
