"""An environment that counts its CPU time by part, for `make profile`.

It runs in the environment processes, so it imports neither TensorFlow nor the trainer. After each
step it writes its counters into a file, which the profiler reads.
"""

import functools
import os
import pathlib
import time
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from a3c.envs import make
from a3c.settings.params import Params

SUFFIX = ".seconds"
_make_env = make.make_env
_make_base = make.make_base


class EnvSeconds(NamedTuple):
    """CPU seconds of one environment process since its start, and what it did in them."""

    process: float  # all of it, up to the end of the latest step
    env: float  # within the environment's step and reset
    bare: float  # within the emulator, or else the bare environment
    n_steps: float
    n_frames: float


def read(folder: pathlib.Path) -> EnvSeconds:
    """The sum over all environment processes of a run."""
    rows = np.array([np.fromfile(path) for path in folder.glob(f"*{SUFFIX}")])
    of_process = {row[0]: 0.0 for row in rows}
    for pid, seconds, *_ in rows:  # a process may have several environments
        of_process[pid] = max(of_process[pid], seconds)
    return EnvSeconds(sum(of_process.values()), *np.sum(rows[:, 2:], axis=0).tolist())


def make_env(params: Params, worker: int = 0, env: int = 0, first_game: int = 0) -> gymnasium.Env:
    """Make the environment that `a3c.envs.make.make_env` makes, with clocks in it."""
    assert params.log_dir is not None
    clock = _EmulatorClock()
    make.make_base = functools.partial(_make_clocked_base, clock)
    made = _make_env(params, worker, env, first_game)
    return _Clocked(made, clock, pathlib.Path(params.log_dir) / f"{worker}.{env}{SUFFIX}")


class _EmulatorClock:
    """Counts the CPU time of calls of the emulator or the bare environment."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.n_frames = 0

    def timed(self, function: Any, is_frame: bool = False) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            start = time.thread_time()
            result = function(*arguments, **options)
            self.seconds += time.thread_time() - start
            self.n_frames += is_frame
            return result

        return call


def _make_clocked_base(clock: _EmulatorClock, params: Params) -> gymnasium.Env:
    base = _make_base(params)
    bare: Any = base.unwrapped
    if hasattr(bare, "ale"):
        bare.ale = _ClockedEmulator(bare.ale, clock)
    else:
        bare.reset, bare.step = clock.timed(bare.reset), clock.timed(bare.step, is_frame=True)
    return base


class _ClockedEmulator:
    """The emulator with clocks around the calls that take time."""

    def __init__(self, ale: Any, clock: _EmulatorClock) -> None:
        self._ale = ale
        self.act = clock.timed(ale.act, is_frame=True)
        self.reset_game = clock.timed(ale.reset_game)
        self.getScreenRGB = clock.timed(ale.getScreenRGB)
        self.getScreen = clock.timed(ale.getScreen)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ale, name)


class _Clocked(gymnasium.Wrapper):
    """Counts the CPU time of steps and resets, and writes all counters into the file."""

    def __init__(self, env: gymnasium.Env, clock: _EmulatorClock, path: pathlib.Path) -> None:
        super().__init__(env)
        self._clock = clock
        self._seconds = 0.0
        self._n_steps = 0
        self._counters = np.memmap(path, np.float64, "w+", shape=(1 + len(EnvSeconds._fields),))

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Reset."""
        start = time.thread_time()
        result = self.env.reset(**options)
        self._seconds += time.thread_time() - start
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step."""
        start = time.thread_time()
        result = self.env.step(action)
        self._seconds += time.thread_time() - start
        self._n_steps += 1
        self._counters[:] = (
            os.getpid(),
            time.process_time(),
            self._seconds,
            self._clock.seconds,
            self._n_steps,
            self._clock.n_frames,
        )
        return result
