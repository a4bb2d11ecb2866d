"""Throughput and memory over workers, and over environments a worker (`make bench-scaling`).

    make bench-scaling
    make bench-scaling BENCH="--tasks CartPole HalfCheetah"

Each point is its own run of train.py; the points take turns in rounds, as in `make bench`. The
figures go to benchmarks/results/<date>-<cpu>-scaling.json and to the table in docs/speed.md. It
takes about 20 minutes on 2 cores.
"""

import argparse
import pathlib
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from benchmarks import bench, contenders, machine, report
from benchmarks.contenders import Setting

WORKERS = (1, 2, 4, 8, 16)
ENVS_PER_WORKER = (1, 2, 4, 8, 16, 32)


def settings(cores: int, task: str) -> list[Setting]:
    """All points of one task, each once."""
    points = [Setting(n_workers, 1, task) for n_workers in WORKERS]
    points += [Setting(max(2, cores), n_envs, task) for n_envs in ENVS_PER_WORKER]
    fewer = (max(2, cores // 2), max(2, cores // 4))
    points += [Setting(n_workers, ENVS_PER_WORKER[-1], task) for n_workers in fewer]
    return list(dict.fromkeys(points))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the JSON and the table; returns the exit status."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--anyway", action="store_true", help="also on a busy machine")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a slot")
    parser.add_argument(
        "--tasks", nargs="+", choices=contenders.TASKS, default=["nature", "small"], metavar="TASK"
    )
    argv = sys.argv[1:] if argv is None else argv
    options = parser.parse_args(argv)
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    contenders.end_on_signals()
    busy = bench.busy_or_refuse(options.anyway)
    if busy is None:
        return 1
    cores = machine.n_cores()
    result = bench.about("bench-scaling", argv, busy) | {"anyway": options.anyway, "rounds": []}
    turns = [point for task in options.tasks for point in settings(cores, task)]
    try:
        for number in range(options.rounds):
            order = turns if number % 2 == 0 else turns[::-1]
            slots = [measure(setting, options.seconds) for setting in order]
            result["rounds"].append({"slots": slots})
    except contenders.ContenderError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    path = bench.write(result, "scaling")
    print(f"\n{report.write('make bench-scaling', cores)}\n\nwritten to {path} and docs/speed.md")
    return 0


def measure(setting: Setting, seconds: float) -> dict[str, Any]:
    """Throughput and memory of one run, once it is warm."""
    with tempfile.TemporaryDirectory() as name:
        trainer = contenders.start_for_slots(setting, pathlib.Path(name) / "run")
        try:
            trainer.warm_up()
            slot = trainer.measure(seconds)
            pids = [process.pid for process in machine.processes(trainer.pid)]
            n_bytes = machine.resident_bytes(pids)
        finally:
            trainer.close()
    speed = slot.n_steps / slot.seconds
    print(f"{setting}: {speed:.0f} steps/s, {n_bytes / 2**20:.0f} MiB", flush=True)
    return {
        "setting": str(setting),
        **setting._asdict(),
        "n_steps": slot.n_steps,
        "seconds": slot.seconds,
        "steps_per_second": speed,
        "bytes": n_bytes,
    }


if __name__ == "__main__":
    sys.exit(main())
