"""Where the time goes: milliseconds a step, by part, in a real run (`make profile`).

    make profile
    make profile PROFILE="--n_workers 4 --envs_per_worker 4 --task small"
    make profile PROFILE="--n_workers 16 --task CartPole"

It runs train.py's own `main` with clocks around its parts. Each row is the CPU time of a part, as the
operating system counts it for each thread, divided by the steps that were done. So the rows add up
to the cores times the wall clock; a difference is other programs' time, or a mistake of this table.

A clock cannot measure how long a part holds Python's lock (the GIL). py-spy samples that from
outside, if it is there (`make profile` installs it with the peer).
"""

import argparse
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from a3c.machine.tensorflow_process import hushed
from a3c.store import provenance
from benchmarks import bench, documents, machine, profiled_env, report
from benchmarks.contenders import TASKS, Setting

WARM_UP_SECONDS = 5.0
SAMPLES_PER_SECOND = 200
PARTS = ("act", "learn", "env")


# Their tables stand in docs/speed.md.
STANDING = (
    Setting(16, 1, "nature"),
    Setting(4, 4, "nature"),
    bench.wide(2, "nature"),
    bench.wide(2, "small"),
    Setting(16, 1, "CartPole"),
    bench.wide(2, "CartPole"),
    Setting(16, 1, "HalfCheetah"),
    bench.wide(2, "HalfCheetah"),
)


class Snapshot(NamedTuple):
    """All clocks of a run at one moment, in seconds."""

    wall: float
    cores: machine.Cores
    trainer: float  # CPU of the training process
    main: float  # of that, its main thread
    workers: float  # and its worker threads
    cpu: dict[str, float]  # of these, within each part
    elapsed: dict[str, float]  # wall clock of the worker threads within each part
    envs: profiled_env.EnvSeconds
    n_steps: int


class Clocks:
    """The worker threads' times so far; each thread writes only its own."""

    def __init__(self) -> None:
        self._threads: dict[int, tuple[int, dict[str, list[float]]]] = {}
        self.shared: Any = None

    def add_this_thread(self, shared: Any) -> None:
        """Register the calling thread as a worker."""
        self.shared = shared
        me = threading.get_ident()
        self._threads[me] = (time.pthread_getcpuclockid(me), {part: [0.0, 0.0] for part in PARTS})

    def timed(self, part: str, function: Any) -> Any:
        """The function, with its time in worker threads counted for the part."""

        def call(*arguments: Any, **options: Any) -> Any:
            thread = self._threads.get(threading.get_ident())
            if thread is None:
                return function(*arguments, **options)
            cpu, wall = time.thread_time(), time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                thread[1][part][0] += time.thread_time() - cpu
                thread[1][part][1] += time.perf_counter() - wall

        # A sampled stack then shows the part.
        name = f"clocked_{part}"
        call.__code__ = call.__code__.replace(co_name=name, co_qualname=name)
        return call

    def read(self, folder: pathlib.Path) -> Snapshot:
        """All clocks now."""
        of_threads = [parts for _, parts in self._threads.values()]
        return Snapshot(
            time.perf_counter(),
            machine.read_cores(),
            time.process_time(),
            time.clock_gettime(time.pthread_getcpuclockid(threading.main_thread().ident or 0)),
            sum(time.clock_gettime(clock) for clock, _ in self._threads.values()),
            {part: sum(parts[part][0] for parts in of_threads) for part in PARTS},
            {part: sum(parts[part][1] for parts in of_threads) for part in PARTS},
            profiled_env.read(folder),
            self.shared.counters.read().steps,
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Profile one setting, or those of docs/speed.md, and print the tables."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--n_workers", type=int, help="if it is missing: the settings of docs/speed.md"
    )
    parser.add_argument("--envs_per_worker", type=int, default=1)
    parser.add_argument("--task", choices=TASKS, default="nature")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to measure")
    parser.add_argument(
        "--write", action="store_true", help="write the tables into docs/speed.md, too"
    )
    options = parser.parse_args(argv)
    if options.n_workers is None:
        for setting in STANDING:  # each in a process of its own: TensorFlow is set up once
            command = [sys.executable, "-m", "benchmarks.profiling", f"--task={setting.task}"]
            command += [f"--n_workers={setting.n_workers}"]
            command += [f"--envs_per_worker={setting.envs_per_worker}"]
            command += [f"--seconds={options.seconds}", *["--write"] * options.write]
            if status := subprocess.run(command, check=False).returncode:
                return status
        return 0
    setting = Setting(options.n_workers, options.envs_per_worker, options.task)
    with tempfile.TemporaryDirectory() as folder:
        measured = _run(setting, pathlib.Path(folder) / "run", options.seconds)
    if measured is None:
        return 1
    about = bench.about("profile", [], busy=0.0)
    text = f"{about['date']}, revision {about['revision']}. {table(setting, *measured)}"
    print(text)
    if options.write:
        name = f"profile {setting.n_workers}x{setting.envs_per_worker} {setting.task}"
        documents.replace_between(report.SPEED, name, text)
    return 0


def _run(
    setting: Setting, folder: pathlib.Path, seconds: float
) -> tuple[Snapshot, Snapshot, dict[str, float] | None] | None:
    """Train until everything is measured; None if the training failed."""
    with hushed():
        import train
        from a3c.agent import local, worker
        from a3c.envs import pool

    clocks = Clocks()
    run = worker.Worker.run

    def clocked_run(self: worker.Worker) -> None:
        clocks.add_this_thread(self._shared)
        run(self)

    patched: Any = (worker.Worker, local.LocalNetwork, pool.Pool, pool)
    patched[0].run = clocked_run
    patched[1].act = clocks.timed("act", local.LocalNetwork.act)
    patched[1].learn = clocks.timed("learn", local.LocalNetwork.learn)
    patched[2].step = clocks.timed("env", pool.Pool.step)
    patched[2].collect = clocks.timed("env", pool.Pool.collect)
    patched[3].make_env = profiled_env.make_env

    measured = []

    def observe() -> None:
        while clocks.shared is None or not clocks.shared.counters.read().updates:
            time.sleep(0.2)
        time.sleep(WARM_UP_SECONDS)
        try:
            before = clocks.read(folder)
            time.sleep(seconds)
            after = clocks.read(folder)
            measured.append((before, after, sample_gil(seconds)))
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # ends the training as Ctrl-C would

    threading.Thread(target=observe, daemon=True).start()
    env_id = TASKS[setting.task].env_id
    train.main([*setting.flags, "--n_steps=1e12", f"--log_dir={folder}", env_id])
    return measured[0] if measured else None


def sample_gil(seconds: float) -> dict[str, float] | None:
    """The share of the time in which each part holds the GIL; None if py-spy cannot tell."""
    beside = pathlib.Path(".peer/bin/py-spy")
    program = str(beside) if beside.exists() else shutil.which("py-spy")
    if program is None:
        return None
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as stacks:
        command = [program, "record", "--gil", "--nonblocking", "--threads", "--format=raw"]
        command += [f"--rate={SAMPLES_PER_SECOND}", f"--duration={max(1, round(seconds))}"]
        command += [f"--output={stacks.name}", f"--pid={os.getpid()}"]
        ended = subprocess.run(command, capture_output=True, check=False)
        lines = stacks.read().splitlines()
    if ended.returncode or not lines:
        return None
    n_samples = max(1, round(seconds)) * SAMPLES_PER_SECOND
    shares = dict.fromkeys((*PARTS, "python", "rest"), 0.0)
    for line in lines:
        stack, _, count = line.rpartition(" ")
        shares[part_of(stack)] += int(count) / n_samples
    return shares


def part_of(stack: str) -> str:
    """Which part a sampled stack, outermost call first, belongs to."""
    if found := re.search(r"clocked_(act|learn|env)\b", stack):
        return found[1]
    return "python" if "clocked_run" in stack else "rest"


def table(setting: Setting, before: Snapshot, after: Snapshot, gil: dict[str, float] | None) -> str:
    """The profile in Markdown."""
    n_steps, wall = after.n_steps - before.n_steps, after.wall - before.wall
    cores = after.cores.since(before.cores)
    n_cores = round((cores.idle + cores.busy + cores.stolen) / wall)
    envs = [now - then for now, then in zip(after.envs, before.envs, strict=True)]
    in_process, in_env, in_bare = envs[:3]
    cpu = {part: after.cpu[part] - before.cpu[part] for part in PARTS}
    elapsed = {
        part: (after.elapsed[part] - before.elapsed[part]) / setting.n_workers for part in PARTS
    }
    workers, main_thread = after.workers - before.workers, after.main - before.main
    others = after.trainer - before.trainer - workers - main_thread
    rows: list[tuple[str, float, str | None, str | None]] = [
        ("emulator, or bare environment", in_bare, None, None),
        ("image work and wrappers", in_env - in_bare, None, None),
        (
            "transport (and, on vectors, acting), the environments' side",
            in_process - in_env,
            None,
            None,
        ),
        ("transport, the workers' side", cpu["env"], "env", "env"),
        ("acting call", cpu["act"], "act", "act"),
        ("learning call", cpu["learn"], "learn", "learn"),
        ("TensorFlow's own threads (learning)", others, None, None),
        ("Python between the calls", workers - sum(cpu.values()), "python", "python"),
        ("the main thread", main_thread, "rest", None),
        ("idle cores (all wait)", cores.idle, None, None),
        ("taken by the hypervisor", cores.stolen, None, None),
    ]
    elapsed["python"] = wall - sum(elapsed.values())
    lines = [
        f"{setting}: {n_steps / wall:.0f} steps/s on {n_cores} cores ({provenance.cpu_model()})",
        "",
        "| milliseconds a step | CPU | holding the GIL | elapsed in a worker, per step of all |",
        "|---|---|---|---|",
    ]

    def shown(seconds: float | None) -> str:
        return "" if seconds is None else f"{1000 * seconds / n_steps:.3f}"

    for name, seconds, gil_key, elapsed_key in rows:
        of_gil = gil[gil_key] * wall if gil and gil_key else None
        of_elapsed = elapsed[elapsed_key] if elapsed_key else None
        lines.append(f"| {name} | {shown(seconds)} | {shown(of_gil)} | {shown(of_elapsed)} |")
    total, wanted = sum(row[1] for row in rows), n_cores * wall
    of_gil = sum(gil.values()) * wall if gil else None
    lines += [
        f"| **sum** | {shown(total)} | {shown(of_gil)} | {shown(sum(elapsed.values()))} |",
        f"| wall clock × {n_cores} cores; wall clock | {shown(wanted)} | {shown(wall)} |"
        f" {shown(wall)} |",
        "",
        f"The CPU column accounts for {100 * total / wanted:.1f} % of the cores' time; the GIL was"
        + (
            f" held {100 * sum(gil.values()):.0f} % of the clock."
            if gil
            else " not sampled (no py-spy)."
        ),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
