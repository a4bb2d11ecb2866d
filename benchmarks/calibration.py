"""What the machine could do at best: loops of emulator and matrix product, and the limit that they set.

    limit = cores / (4·t_frame + FLOP_act/F + FLOP_learn/F)    steps/s

A program would reach this limit if it did nothing but emulate and multiply on all cores.

- t_frame: one core's CPU time for one emulator frame: `ale.act`, and fetching the screen on two frames
  of four, which an agent must see. Atari wrappers fetch it in RGB. We fetch the emulator's own
  numbers of colours, which is faster, so this gives another limit.
- F: one core's FLOP/s in a large matrix product; no convolution reaches it.
- FLOP_act: one forward pass.
- FLOP_learn: forward and backward passes of the n_steps + 1 states of a rollout, per n_steps.

Workers with one environment each have another limit. Each has its own weights, which are larger than
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

FRAMES_PER_STEP = 4
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


# For one observation; the heads are Pong's 6 actions and the value.
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
}


class Flop(NamedTuple):
    """Floating-point operations per agent step."""

    act: float
    learn: float


class Loops(NamedTuple):
    """What one core does; see the formula above."""

    t_frame: float  # with the screen in RGB
    t_frame_in_numbers: float
    flop_per_second: float
    bytes_per_second: float


def flop(network: str, steps_per_update: int = 5, again: bool = True) -> Flop:
    """Operations per step; a product and its addition are two.

    As the paper writes it, learning goes forward and backward through all states of a rollout. With
    `again` false, it goes forward through the last one only, and backward through the others.
    """
    layers = [2.0 * places * filters * inputs for places, filters, inputs in LAYERS[network]]
    # The backward pass costs as much for the weights' gradients, and as much for the inputs' gradients;
    # the first layer's input is the observation, which needs none.
    forward = sum(layers)
    backward = 2 * forward - layers[0]
    if again:
        learn = (forward + backward) * (steps_per_update + 1) / steps_per_update
    else:
        learn = backward + forward / steps_per_update
    return Flop(forward, learn)


def limit(
    cores: int, network: str, loops: Loops, steps_per_update: int = 5, again: bool = True
) -> float:
    """Steps/s of a program that does nothing but emulate and multiply."""
    act, learn = flop(network, steps_per_update, again)
    return cores / (FRAMES_PER_STEP * loops.t_frame + (act + learn) / loops.flop_per_second)


def limit_in_numbers(cores: int, network: str, loops: Loops) -> float:
    """The same for a program that fetches the screen as ours does."""
    return limit(cores, network, loops._replace(t_frame=loops.t_frame_in_numbers))


def n_weights(network: str) -> int:
    """The number of a network's weights, with Pong's 6 actions."""
    return sum(filters * (inputs + 1) for _, filters, inputs in LAYERS[network])


def bytes_moved(network: str, steps_per_update: int = 5) -> float:
    """Bytes of weights and statistics, per step of a worker with one environment."""
    return 4 * n_weights(network) * (steps_per_update + 2 + 5) / steps_per_update


def narrow_limit(cores: int, network: str, loops: Loops) -> float:
    """Steps/s of workers with one environment each that emulate, multiply and move weights."""
    seconds = cores / limit(cores, network, loops, again=False)
    return cores / (seconds + bytes_moved(network) / loops.bytes_per_second)


def measure_loops(seconds: float) -> Loops:
    """Run the one-core loops, one after the other, in a process of their own."""
    return Loops(**_ended(_started("loops", seconds)))


def measure_atari_step(seconds: float, cores: int) -> float:
    """CPU seconds of one `AtariEnv.step` while every core does the same."""
    started = [_started("atari_step", seconds) for _ in range(cores)]
    return sum(_ended(process)["seconds"] for process in started) / cores


def _started(loop: str, seconds: float) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "benchmarks.calibration", loop, str(seconds)]
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


def _loops(seconds: float) -> dict[str, float]:
    import ale_py
    import numpy as np
    from ale_py import roms

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(roms.get_rom_path("pong"))
    generator = np.random.default_rng(0)
    minimal = ale.getMinimalActionSet()
    actions = [minimal[i] for i in generator.integers(len(minimal), size=N_ACTIONS_DRAWN)]
    rgb = np.empty((*ale.getScreenDims(), 3), np.uint8)
    numbers = np.empty(ale.getScreenDims(), np.uint8)

    def frame_with(fetch: Callable[[np.ndarray], None], screen: np.ndarray) -> float:
        def one_step(number: int) -> None:
            action = actions[number % N_ACTIONS_DRAWN]
            for frame in range(FRAMES_PER_STEP):
                ale.act(action)
                if frame % 2:
                    fetch(screen)
            if ale.game_over():
                ale.reset_game()

        return _per_call(one_step, seconds / 4, CALLS_AT_ONCE) / FRAMES_PER_STEP

    matrix = generator.standard_normal((MATRIX_SIDE, MATRIX_SIDE)).astype(np.float32)
    product = np.empty_like(matrix)
    t_product = _per_call(lambda _: np.matmul(matrix, matrix, out=product), seconds / 4)
    t_frame = frame_with(ale.getScreenRGB, rgb)
    t_frame_in_numbers = frame_with(ale.getScreen, numbers)
    stream = np.ones(STREAM_BYTES // 4, np.float32)
    t_stream = _per_call(lambda _: np.dot(stream, stream), seconds / 4)
    flop_per_second, bytes_per_second = 2 * MATRIX_SIDE**3 / t_product, stream.nbytes / t_stream
    return Loops(t_frame, t_frame_in_numbers, flop_per_second, bytes_per_second)._asdict()


def _atari_step(seconds: float) -> dict[str, float]:
    import ale_py
    import gymnasium
    import numpy as np

    gymnasium.register_envs(ale_py)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    env = gymnasium.make("PongNoFrameskip-v4").unwrapped
    env.reset(seed=0)
    actions = np.random.default_rng(0).integers(6, size=N_ACTIONS_DRAWN).tolist()

    def one_step(number: int) -> None:
        _, _, terminated, _, _ = env.step(actions[number % N_ACTIONS_DRAWN])
        if terminated:
            env.reset()

    return {"seconds": _per_call(one_step, seconds, CALLS_AT_ONCE)}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one loop and print what it measured as JSON."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("loop", choices=("loops", "atari_step"))
    parser.add_argument("seconds", type=float)
    options = parser.parse_args(argv)
    measured = {"loops": _loops, "atari_step": _atari_step}[options.loop](options.seconds)
    print(json.dumps(measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
