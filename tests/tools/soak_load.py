"""Long runs of many environments, for soak.py.

Each run trains Pong, is watched from outside at regular times, and is stopped; then the looks and the
files are judged. At each look, a loop steps a bare emulator for a moment. It measures the speed of
the machine, by which we divide steps/s before we compare them.
"""

import json
import math
import os
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from a3c.store import checkpoint
from a3c.store.logs import GAME_COLUMNS
from benchmarks import machine
from tests.tools import processes
from tests.tools.run_files import RunFiles

ENV_ID = "PongNoFrameskip-v4"
STEPS_PER_UPDATE = 5
WARM_UP_SECONDS = 600.0  # memory, files and threads may grow until then
SPEED_SECONDS = 600.0  # the first and the last so many are compared
CALIBRATION_SECONDS = 2.0


class Part(NamedTuple):
    """One run. In a run of ten minutes, the warm-up and the compared spans are a third of it."""

    n_workers: int
    n_envs: int
    seconds: float


PARTS = {
    "64x1": Part(64, 1, 600.0),
    "4x32": Part(4, 32, 600.0),
    "16x1": Part(16, 1, 3600.0),
}


class Look(NamedTuple):
    """What was seen from outside at one time."""

    seconds: float  # since the first steps
    n_steps: int
    frames_per_second: float  # of the calibration loop, in CPU time
    n_bytes: int  # memory of all processes; shared memory counts once
    n_files: int
    n_threads: int


# Judging the looks


def judge(looks: Sequence[Look]) -> list[str]:
    """Return the problems of a run: growth after the warm-up, or loss of speed."""
    problems = []
    for name, (first, last) in growth(looks).items():
        # Memory may grow a little: a buffer grows once, the allocator leaves gaps.
        if last > (1.03 if name == "n_bytes" else 1.0) * first:
            problems.append(f"{name} grew from {first:,.0f} to {last:,.0f}")
    first, last = speeds(looks)
    if not 0.9 <= last / first <= 1 / 0.9:
        problems.append(f"steps per calibrated frame went from {first:.4f} to {last:.4f}")
    return problems


def growth(looks: Sequence[Look]) -> dict[str, tuple[float, float]]:
    """Return memory, files and threads after the warm-up and at the end.

    Files and threads are medians over a third of that time. Memory is the minimum, since updates
    take up to a tenth more for a moment.
    """
    warm = min(WARM_UP_SECONDS, looks[-1].seconds / 3)
    after = [look for look in looks if look.seconds >= warm]
    third = max(1, len(after) // 3)
    return {
        name: tuple(
            float(of([getattr(look, name) for look in some]))
            for some in (after[:third], after[-third:])
        )
        for name, of in (("n_bytes", min), ("n_files", np.median), ("n_threads", np.median))
    }


def speeds(looks: Sequence[Look]) -> tuple[float, float]:
    """Return steps/s divided by the emulator's frames/s, for the first and the last ten minutes.

    The result is NaN if there are not two looks, so no comparison with it passes.
    """
    length = looks[-1].seconds
    span = min(SPEED_SECONDS, length / 3)

    def speed(some: Sequence[Look]) -> float:
        if len(some) < 2:
            return math.nan
        n_steps = some[-1].n_steps - some[0].n_steps
        frames = np.mean([look.frames_per_second for look in some])
        return n_steps / (some[-1].seconds - some[0].seconds) / float(frames)

    return (
        speed([look for look in looks if look.seconds <= span]),
        speed([look for look in looks if look.seconds >= length - span]),
    )


# Judging the files


def check_left(folder: pathlib.Path, part: Part) -> list[str]:
    """Return the problems of a stopped run's files, such as lost steps or games."""
    problems = []
    rows = RunFiles(folder).rows()
    per_update = STEPS_PER_UPDATE * part.n_envs
    if any(row["misc/steps"] != per_update * row["misc/updates"] for row in rows):
        problems.append("steps and updates do not agree")
    if [row["misc/steps"] for row in rows] != sorted(row["misc/steps"] for row in rows):
        problems.append("steps fall back")
    counts, last = checkpoint.newest_whole(folder / "checkpoints")[0].snapshot.counts, rows[-1]
    if (counts.steps, counts.games) != (last["misc/steps"], last["rl/episodes"]):
        problems.append(f"the last row and the last checkpoint differ: {counts}")
    if last["misc/env_restarts"]:
        problems.append(f"{last['misc/env_restarts']:.0f} environments were replaced")
    games = read_games(folder / "monitor.csv", problems)
    if len(games) != last["rl/episodes"]:
        problems.append(f"{len(games)} games in monitor.csv, {last['rl/episodes']:.0f} counted")
    n_envs = part.n_workers * part.n_envs
    if sum(game["l"] for game in games) > last["misc/steps"] + STEPS_PER_UPDATE * n_envs:
        problems.append("more steps in monitor.csv than there were")
    return problems


def read_games(path: pathlib.Path, problems: list[str]) -> list[dict[str, float]]:
    """Return the games of a monitor.csv, which must be complete."""
    try:
        head, columns, *rows = path.read_text().split("\n")
        json.loads(head.removeprefix("#"))
        if columns != ",".join(GAME_COLUMNS) or rows.pop() != "":
            raise ValueError("head or end")
        cells = [map(float, row.split(",")) for row in rows]
        return [dict(zip(GAME_COLUMNS, row, strict=True)) for row in cells]
    except (ValueError, IndexError) as error:
        problems.append(f"{path.name} is damaged: {error}")
        return []


# The run


def run(part: Part, seconds: float, folder: pathlib.Path) -> tuple[str, list[str]]:
    """Train for this time, watch, stop and judge; return a line of figures and the problems."""
    arguments = [
        *("train.py", "--log_dir", folder / "run", "--n_steps", "1e12"),
        *("--n_workers", part.n_workers, "--envs_per_worker", part.n_envs),
        *("--log_interval_seconds", min(30.0, seconds / 20), ENV_ID),
    ]
    with processes.dispositions():
        process = processes.start([processes.ROOT / arguments[0], *arguments[1:]], folder)
    try:
        processes.wait_until(lambda: n_steps_of(folder) or process.poll() is not None, "steps", 600)
        looks = watch(process.pid, seconds, folder, lambda: process.poll() is None)
        rows = [",".join(Look._fields), *(",".join(map(str, look)) for look in looks)]
        (folder / "looks.csv").write_text("\n".join(rows) + "\n")
        process.terminate()
        status = process.wait(processes.DEADLINE_SECONDS)
        processes.wait_until(lambda: not processes.members(process.pid), "processes to end")
    finally:
        processes.end(process)
    problems = [] if status == 143 else [f"status {status}"]
    if stderr := processes.outputs(folder)["stderr"]:
        problems.append(f"on stderr: {stderr[-500:]}")
    problems += [*judge(looks), *check_left(folder / "run", part)]
    return describe(part, looks), problems


def n_steps_of(folder: pathlib.Path) -> int:
    rows = RunFiles(folder / "run").rows()
    return int(rows[-1]["misc/steps"]) if rows else 0


def watch(
    session: int, seconds: float, folder: pathlib.Path, is_running: Callable[[], bool]
) -> list[Look]:
    """Look at the run at each new row of progress.csv, until the time is over."""
    start, looks, n_steps = time.monotonic(), [], n_steps_of(folder)
    emulator = Emulator()
    while is_running() and (not looks or looks[-1].seconds < seconds):
        # The time of the row, since a look takes a while.
        processes.wait_until(lambda n=n_steps: n_steps_of(folder) > n or not is_running(), "a row")
        n_steps, now = n_steps_of(folder), time.monotonic()
        looks.append(Look(now - start, n_steps, emulator.frames_per_second(), *usage_of(session)))
    return looks


def usage_of(session: int) -> tuple[int, int, int]:
    """Return memory, open files and threads of all processes of a session."""
    pids = processes.members(session)

    def n_in(folder: str) -> int:
        return sum(len(os.listdir(f"/proc/{pid}/{folder}")) for pid in pids)

    return machine.resident_bytes(pids), n_in("fd"), n_in("task")


class Emulator:
    """The calibration loop."""

    def __init__(self) -> None:
        import ale_py
        import gymnasium

        gymnasium.register_envs(ale_py)
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self._env = gymnasium.make(ENV_ID).unwrapped
        self._env.reset(seed=0)

    def frames_per_second(self) -> float:
        """Measure in CPU time, which depends least on the run beside it."""
        start, n_frames = time.process_time(), 0
        while time.process_time() - start < CALIBRATION_SECONDS:
            for _ in range(100):
                self._env.ale.act(0)
            if self._env.ale.game_over():
                self._env.ale.reset_game()
            n_frames += 100
        return n_frames / (time.process_time() - start)


def describe(part: Part, looks: Sequence[Look]) -> str:
    """Return one line of figures."""
    first, last = speeds(looks)
    n_steps = looks[-1].n_steps - looks[0].n_steps
    end = looks[-1]
    grown = growth(looks)
    n_bytes, n_files, n_threads = (grown[name] for name in ("n_bytes", "n_files", "n_threads"))
    return (
        f"{part.n_workers} × {part.n_envs}: {end.seconds / 60:.0f} min, {end.n_steps:,} steps,"
        f" {n_steps / (end.seconds - looks[0].seconds):.0f} steps/s, calibrated {last / first:.3f}"
        f" of the first; memory {n_bytes[0] / 1e6:,.0f} → {n_bytes[1] / 1e6:,.0f} MB,"
        f" files {n_files[0]:.0f} → {n_files[1]:.0f}, threads {n_threads[0]:.0f} → {n_threads[1]:.0f}"
    )
