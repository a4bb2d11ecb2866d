"""Workers of one environment that only act and learn; a server for `make bench`.

It shows what 16 × 1 could reach if emulator, transport and choice of actions took no time: real calls
into TensorFlow with sixteen networks, on constant observations. The calls come from threads as in
training.

For each line of JSON, {"n_workers", "task", "seconds"}, it answers with one line, {"n_steps",
"seconds"}. An empty line or the end of the input ends it.
"""

import contextlib
import functools
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from a3c.agent import network
from a3c.agent.collector import Rollout
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


@functools.cache
def rounds_of(n_workers: int, name: str) -> Sequence[Callable[[], None]]:
    """One function for each worker: a rollout and an update."""
    generator = np.random.default_rng(0)
    subject = Subject("", "generic", name, OBSERVATION, N_ACTIONS)
    shapes = network.weight_shapes(subject)
    weights = network.initial_weights(shapes, "orthogonal", generator)
    params = Params("PongNoFrameskip-v4", network=name, steps_per_update=N_STEPS)
    shared = SharedState(weights, params)
    observations = generator.integers(0, 256, (n_workers, N_STEPS + 1, 1, *OBSERVATION))
    observations = observations.astype(np.uint8)
    learner = Learner(shared, params, subject, observations[0])
    nothing, no_state = np.zeros((N_STEPS, 1), np.float32), np.zeros((1, 1, 0), np.float32)

    def round_of(local: LocalNetwork, seen: np.ndarray) -> Callable[[], None]:
        rollout = Rollout(seen, nothing.astype(np.int32), nothing, 1 - nothing, no_state)

        def one() -> None:
            acted = [local.act(rollout.observations[t], rollout.states[0]) for t in range(N_STEPS)]
            local.learn(rollout, LEARNING_RATE, [of_step.activations for of_step in acted])

        return one

    return [round_of(LocalNetwork(learner), seen) for seen in observations]


def measure(rounds: Sequence[Callable[[], None]], seconds: float) -> dict[str, float]:
    """Run each function again and again in a thread of its own."""
    n_rounds, stop = [0] * len(rounds), threading.Event()

    def work(thread: int) -> None:
        while not stop.is_set():
            rounds[thread]()
            n_rounds[thread] += 1

    with ThreadPoolExecutor(len(rounds)) as pool:
        threads = [pool.submit(work, thread) for thread in range(len(rounds))]
        time.sleep(WARM_UP_SECONDS)
        start, before = time.perf_counter(), sum(n_rounds)
        time.sleep(seconds)
        elapsed, n = time.perf_counter() - start, sum(n_rounds) - before
        stop.set()
        for thread in threads:
            thread.result()  # raises what it raised
    return {"n_steps": n * N_STEPS, "seconds": elapsed}


def main() -> None:
    """Answer the lines of the input."""
    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # only answers go to the real stdout
        tensorflow_process.keep_freed_memory()
        tensorflow_process.start_tensorflow()
        for line in sys.stdin:
            if not line.strip():
                break
            wanted = json.loads(line)
            rounds = rounds_of(wanted["n_workers"], wanted["task"])
            answer = measure(rounds, wanted["seconds"])
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
