"""What takes long to measure: memory over a million steps, start-up, a whole run, and the speed of
training beside evaluations (`make bench-long`).

    make bench-long

The figures go to benchmarks/results/<date>-<cpu>-long.json and to the table in docs/speed.md. It
takes half an hour on 2 cores, most of it for the million steps.
"""

import argparse
import contextlib
import math
import pathlib
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import bench, contenders, machine, report
from benchmarks.contenders import Setting, Trainer

N_STARTS = 3
# From which step on memory should not grow, and until which step it is watched.
MEMORY_FROM, MEMORY_TO = 100_000, 1_000_000
# Writing a checkpoint takes memory, which the C library may keep. So a checkpoint must come before
# the first sample (by default the first one comes after five minutes).
CKPT_INTERVAL_SECONDS = 30
CARTPOLE_STEPS = 300_000
EVALUATED = Setting(2, 4, "small")
N_EVALUATED_ROUNDS = 12
EVALUATED_SECONDS = 5.0
CARTPOLE = "--preset=cartpole"  # solves it


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the JSON and the table; returns the exit status."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--anyway", action="store_true", help="also on a busy machine")
    parser.add_argument("--memory_to", type=int, default=MEMORY_TO, help="agent steps")
    argv = sys.argv[1:] if argv is None else argv
    options = parser.parse_args(argv)
    contenders.end_on_signals()
    busy = bench.busy_or_refuse(options.anyway)
    if busy is None:
        return 1
    result = bench.about("bench-long", argv, busy) | {"anyway": options.anyway}
    memory_of = bench.wide(machine.n_cores(), "small")
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            result["seconds_to_first_update"] = [
                seconds_to_first_update(folder / f"start{number}") for number in range(N_STARTS)
            ]
            result["cartpole"] = cartpole(folder / "cartpole")
            result["evaluated_setting"] = str(EVALUATED)
            result["evaluated"] = evaluated(folder)
            result["memory_setting"] = str(memory_of)
            result["memory"] = memory(memory_of, folder / "memory", options.memory_to)
    except contenders.ContenderError as error:
        print(f"bench-long: error: {error}", file=sys.stderr)
        return 1
    path = bench.write(result, "long")
    print(f"\n{report.write('make bench-long')}\n\nwritten to {path} and docs/speed.md")
    return 0


def seconds_to_first_update(folder: pathlib.Path) -> float:
    """From the start of train.py with 16 workers until its log shows an update.

    A row is written at most twice a second, so the result may be half a second too long.
    """
    start = time.monotonic()
    flags = [*Setting(16, 1, "nature").flags, "--log_interval_seconds=0.01"]
    trainer = Trainer(flags, folder, "PongNoFrameskip-v4")
    try:
        n_rows = 1
        while True:
            rows = trainer.wait_for_rows(n_rows, contenders.START_SECONDS)
            if rows[-1].updates:
                seconds = time.monotonic() - start
                print(f"first update after {seconds:.1f} s", flush=True)
                return seconds
            n_rows = len(rows) + 1
    finally:
        trainer.close()


def cartpole(folder: pathlib.Path) -> dict[str, Any]:
    """One whole run as a user sees it, start and end included."""
    start = time.monotonic()
    flags = [CARTPOLE, f"--n_steps={CARTPOLE_STEPS}", "--log_interval_seconds=1"]
    trainer = Trainer(flags, folder, "CartPole-v1")
    try:
        status = trainer.wait()
        seconds = time.monotonic() - start
        rows = trainer.rows()
    finally:
        trainer.close()
    if status or rows[-1].steps < CARTPOLE_STEPS:
        raise contenders.ContenderError(f"CartPole failed; it said:\n{trainer.last_words()}")
    print(f"CartPole after {seconds:.1f} s", flush=True)
    best = max((row.score for row in rows if not math.isnan(row.score)), default=0.0)
    return {"flags": CARTPOLE, "seconds": seconds, "best_mean_of_100": best}


def evaluated(folder: pathlib.Path) -> list[dict[str, float]]:
    """Steps/s of two runs that take turns; one of them is always playing an evaluation."""
    flags = {"without": [], "with": ["--eval_interval_steps=1e3"]}
    with contextlib.ExitStack() as stack:
        trainers: dict[str, Trainer] = {}
        for name, more in flags.items():
            trainer = contenders.start_for_slots(EVALUATED, folder / name, *more)
            stack.callback(trainer.close)
            trainer.warm_up()
            trainer.pause()
            trainers[name] = trainer
        rounds = []
        for number in range(N_EVALUATED_ROUNDS):
            speeds = {}
            for name in list(trainers)[:: 1 if number % 2 == 0 else -1]:
                trainers[name].go_on()
                slot = trainers[name].measure(EVALUATED_SECONDS)
                trainers[name].pause()
                speeds[name] = slot.n_steps / slot.seconds
            print(", ".join(f"{name}: {speeds[name]:.0f} steps/s" for name in flags), flush=True)
            rounds.append(speeds)
    return rounds


def memory(setting: Setting, folder: pathlib.Path, to: int) -> list[dict[str, int]]:
    """Memory of all processes of a run after each 100,000 steps; shared memory counts once."""
    flags = [*setting.flags, "--n_steps=1e12", f"--ckpt_interval_seconds={CKPT_INTERVAL_SECONDS}"]
    trainer = Trainer(flags, folder, "PongNoFrameskip-v4")
    samples: list[dict[str, int]] = []
    try:
        n_rows = 1
        while not samples or samples[-1]["steps"] < to:
            # One row a minute, the default: the log itself must not add to the memory.
            rows = trainer.wait_for_rows(n_rows, contenders.START_SECONDS)
            n_rows = len(rows) + 1
            if rows[-1].steps >= MEMORY_FROM * (len(samples) + 1):
                pids = [process.pid for process in machine.processes(trainer.pid)]
                n_bytes = machine.resident_bytes(pids)
                samples.append({"steps": rows[-1].steps, "bytes": n_bytes})
                print(f"{rows[-1].steps:,} steps: {n_bytes / 2**20:.0f} MiB", flush=True)
    finally:
        trainer.close()
    return samples


if __name__ == "__main__":
    sys.exit(main())
