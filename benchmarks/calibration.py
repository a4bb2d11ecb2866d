"""What the machine could do at best: loops of environment and matrix product, and the limit that they set.

    limit = cores / (4·t_frame + FLOP_act/F + FLOP_learn/F)    steps/s of Pong
    limit = cores / (t_env + FLOP_act/F + FLOP_learn/F)        steps/s of others

A program would reach this limit if it did nothing but step environments and multiply on all cores.

- t_frame: one core's CPU time for one emulator frame: `ale.act`, and fetching the screen on two frames
  of four, which an agent must see. Atari wrappers fetch it in RGB. We fetch the emulator's own
  numbers of colours, which is faster, so this gives another limit.
- t_env: one core's CPU time for a step of the bare environment with random actions, and the resets
  that follow, while every core does the same.
- F: one core's FLOP/s in a large matrix product; no convolution reaches it.
- FLOP_act: one forward pass.
- FLOP_learn: forward passes of the n_steps + 1 states of a rollout, and backward passes of n_steps, per
  n_steps. The state after a rollout has only a value, through which no gradient goes.

Workers of Pong with one environment each have another limit. Each has its own weights, which are larger than
a core's caches, so they are read from memory whenever they are used:

    cores / (4·t_frame + (FLOP_act + FLOP_learn)/F + bytes/B)    steps/s

B is what one core reads per second from a gigabyte in a row. The bytes are those of the weights, for
each act, the bootstrap and the backward pass, and of the five arrays that every update needs: weights
and statistics, read and written, and the worker's copy. FLOP_learn has no second forward pass here.

The loops run in processes of their own (`python -m benchmarks.calibration`), one core each, and
count CPU time.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

PONG = "PongNoFrameskip-v4"
FRAMES_PER_STEP = 4  # of Pong
MATRIX_SIDE = 1536
STREAM_BYTES = 2**30  # of memory in one go; caches hold less
# Actions are drawn beforehand and the clock is seldom read: both would count as the emulator's time.
N_ACTIONS_DRAWN = 1009
CALLS_AT_ONCE = 50


class LoopError(Exception):
    """A loop failed; it wrote the reason to stderr."""


class Layer(NamedTuple):
    """A layer: its filters at so many places, each a sum of so many products."""

    places: int
    filters: int
    inputs: int


def _of_vector(n_observed: int, n_actions: int, *more: Layer) -> tuple[Layer, ...]:
    """The `mlp` network, which has two layers of 64 units for each head; they look at the same vector."""
    hidden, heads = (Layer(1, 64, 64),) * 2, (Layer(1, n_actions, 64), Layer(1, 1, 64))
    return (Layer(1, 2 * 64, n_observed), *hidden, *heads, *more)


# For one observation. An image's heads are Pong's 6 actions and the value.
LAYERS = {
    "nature": (
        Layer(20 * 20, 32, 8 * 8 * 4),
        Layer(9 * 9, 64, 4 * 4 * 32),
        Layer(7 * 7, 64, 3 * 3 * 64),
        Layer(1, 512, 7 * 7 * 64),
        Layer(1, 6 + 1, 512),
    ),
    "small": (
        Layer(20 * 20, 16, 8 * 8 * 4),
        Layer(9 * 9, 32, 4 * 4 * 16),
        Layer(1, 256, 9 * 9 * 32),
        Layer(1, 6 + 1, 256),
    ),
    "CartPole": _of_vector(4, 2),
    "HalfCheetah": _of_vector(17, 6, Layer(1, 6, 0)),  # the logs of its 6 sds depend on nothing
}


class Flop(NamedTuple):
    """Floating-point operations per agent step."""

    act: float
    learn: float


class Loops(NamedTuple):
    """What one core does; see the formula above."""

    t_frame: float  # with the screen in RGB; of Pong alone, as the next one
    t_frame_in_numbers: float
    flop_per_second: float
    bytes_per_second: float
    t_env: float = 0.0  # of others


def flop(task: str, steps_per_update: int = 5, again: bool = True) -> Flop:
    """Operations per step; a product and its addition are two.

    Learning goes forward through all states of a rollout, and backward through all but the last. With
    `again` false, it has what acting computed, and goes forward through the last one only.
    """
    layers = [2.0 * places * filters * inputs for places, filters, inputs in LAYERS[task]]
    # The backward pass costs as much for the weights' gradients, and as much for the inputs' gradients;
    # the first layer's input is the observation, which needs none.
    forward = sum(layers)
    backward = 2 * forward - layers[0]
    n_forward = steps_per_update + 1 if again else 1
    return Flop(forward, backward + forward * n_forward / steps_per_update)


def limit(cores: int, task: str, loops: Loops, again: bool = True) -> float:
    """Steps/s of a program that does nothing but step environments and multiply."""
    act, learn = flop(task, again=again)
    env = FRAMES_PER_STEP * loops.t_frame + loops.t_env
    return cores / (env + (act + learn) / loops.flop_per_second)


def limit_in_numbers(cores: int, task: str, loops: Loops) -> float:
    """The same for a program that fetches the screen as ours does."""
    return limit(cores, task, loops._replace(t_frame=loops.t_frame_in_numbers))


def n_weights(task: str) -> int:
    """The number of a network's weights."""
    return sum(filters * (inputs + 1) for _, filters, inputs in LAYERS[task])


def bytes_moved(task: str, steps_per_update: int = 5) -> float:
    """Bytes of weights and statistics, per step of a worker with one environment."""
    return 4 * n_weights(task) * (steps_per_update + 2 + 5) / steps_per_update


def narrow_limit(cores: int, task: str, loops: Loops) -> float:
    """Steps/s of workers with one environment each that emulate, multiply and move weights."""
    seconds = cores / limit(cores, task, loops, again=False)
    return cores / (seconds + bytes_moved(task) / loops.bytes_per_second)


def measure_loops(seconds: float, cores: int, env_id: str) -> Loops:
    """Run the one-core loops, one after the other, in a process of their own; then t_env's, if it counts."""
    loops = Loops(**_ended(_started("loops", seconds, env_id)))
    return (
        loops if loops.t_frame else loops._replace(t_env=measure_step(seconds / 4, cores, env_id))
    )


def measure_step(seconds: float, cores: int, env_id: str) -> float:
    """CPU seconds of one step of the bare environment while every core does the same."""
    started = [_started("step", seconds, env_id) for _ in range(cores)]
    return sum(_ended(process)["seconds"] for process in started) / cores


def _started(loop: str, seconds: float, env_id: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "benchmarks.calibration", loop, str(seconds), env_id]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def _ended(process: "subprocess.Popen[str]") -> dict[str, float]:
    output, _ = process.communicate()
    if process.returncode:
        raise LoopError(f"a calibration loop ended with status {process.returncode}")
    return dict(json.loads(output))


def _per_call(call: Callable[[int], object], seconds: float, at_once: int = 1) -> float:
    """CPU seconds of one call, measured over so many seconds; each call gets its number.

    The clock is read once per `at_once` calls.
    """
    call(0)
    n_calls, start = 0, time.process_time()
    while (used := time.process_time() - start) < seconds or not n_calls:
        for _ in range(at_once):
            call(n_calls)
            n_calls += 1
    return used / n_calls


def _loops(seconds: float, env_id: str) -> dict[str, float]:
    import numpy as np

    t_frame = _frame(seconds / 4, "getScreenRGB") if env_id == PONG else 0.0
    t_frame_in_numbers = _frame(seconds / 4, "getScreen") if env_id == PONG else 0.0
    generator = np.random.default_rng(0)
    matrix = generator.standard_normal((MATRIX_SIDE, MATRIX_SIDE)).astype(np.float32)
    product = np.empty_like(matrix)
    t_product = _per_call(lambda _: np.matmul(matrix, matrix, out=product), seconds / 4)
    stream = np.ones(STREAM_BYTES // 4, np.float32)
    t_stream = _per_call(lambda _: np.dot(stream, stream), seconds / 4)
    flop_per_second, bytes_per_second = 2 * MATRIX_SIDE**3 / t_product, stream.nbytes / t_stream
    return Loops(t_frame, t_frame_in_numbers, flop_per_second, bytes_per_second)._asdict()


def _frame(seconds: float, fetch: str) -> float:
    """CPU seconds of an emulator frame, with the screen fetched by this method on every second one."""
    import ale_py
    import numpy as np
    from ale_py import roms

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(roms.get_rom_path("pong"))
    minimal = ale.getMinimalActionSet()
    drawn = np.random.default_rng(0).integers(len(minimal), size=N_ACTIONS_DRAWN)
    actions = [minimal[i] for i in drawn]
    colours = (3,) if fetch == "getScreenRGB" else ()
    screen, fetch_into = np.empty((*ale.getScreenDims(), *colours), np.uint8), getattr(ale, fetch)

    def one_step(number: int) -> None:
        action = actions[number % N_ACTIONS_DRAWN]
        for frame in range(FRAMES_PER_STEP):
            ale.act(action)
            if frame % 2:
                fetch_into(screen)
        if ale.game_over():
            ale.reset_game()

    return _per_call(one_step, seconds, CALLS_AT_ONCE) / FRAMES_PER_STEP


def _step(seconds: float, env_id: str) -> dict[str, float]:
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    env = gymnasium.make(env_id).unwrapped
    env.reset(seed=0)
    env.action_space.seed(0)
    drawn = [env.action_space.sample() for _ in range(N_ACTIONS_DRAWN)]
    actions = [action if action.ndim else action.item() for action in drawn]

    def one_step(number: int) -> None:
        _, _, terminated, _, _ = env.step(actions[number % N_ACTIONS_DRAWN])
        if terminated:
            env.reset()

    return {"seconds": _per_call(one_step, seconds, CALLS_AT_ONCE)}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one loop and print what it measured as JSON."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("loop", choices=("loops", "step"))
    parser.add_argument("seconds", type=float)
    parser.add_argument("env_id")
    options = parser.parse_args(argv)
    measure = {"loops": _loops, "step": _step}[options.loop]
    measured = measure(options.seconds, options.env_id)
    print(json.dumps(measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
