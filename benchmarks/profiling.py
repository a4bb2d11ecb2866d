"""Where the time goes: milliseconds a step, by part, in a real run (`make profile`).

    make profile
    make profile PROFILE="--n_workers 4 --envs_per_worker 4 --task small"
    make profile PROFILE="--n_workers 16 --task CartPole"

Without a setting, it profiles those of docs/speed.md and writes the figures to
benchmarks/results/<date>-<cpu>-profile.json and to the table there.

It runs train.py's own `main` with clocks around its parts. Each row is the CPU time of a part, as the
operating system counts it for each thread, divided by the steps that were done. So the rows add up
to the cores times the wall clock; a difference is other programs' time, or a mistake of this table.

A clock cannot measure how long a part holds Python's lock (the GIL). py-spy samples that from
outside, if it is there (`make profile` installs it with the peer).
"""

import argparse
import json
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


# They stand in docs/speed.md.
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
    """Profile one setting, or those of docs/speed.md; returns the exit status."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--n_workers", type=int, help="if it is missing: the settings of docs/speed.md"
    )
    parser.add_argument("--envs_per_worker", type=int, default=1)
    parser.add_argument("--task", choices=TASKS, default="nature")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to measure")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures to this file, too")
    parser.add_argument("--anyway", action="store_true", help="even if the machine is busy")
    argv = sys.argv[1:] if argv is None else argv
    options = parser.parse_args(argv)
    if options.n_workers is None:
        if options.json or (options.envs_per_worker, options.task) != (1, "nature"):
            parser.error("--envs_per_worker, --task and --json need --n_workers")
        return _profile_all(options.seconds, argv, options.anyway)
    setting = Setting(options.n_workers, options.envs_per_worker, options.task)
    with tempfile.TemporaryDirectory() as folder:
        measured = _run(setting, pathlib.Path(folder) / "run", options.seconds)
    if measured is None:
        return 1
    profile = profile_of(setting, *measured)
    print(table(profile))
    if options.json:
        options.json.write_text(json.dumps(profile), encoding="utf-8")
    return 0


def _profile_all(seconds: float, argv: Sequence[str], anyway: bool) -> int:
    """Profile those of docs/speed.md, and write the result; returns the exit status."""
    busy = bench.busy_or_refuse(anyway)
    if busy is None:
        return 1
    result = bench.about("profile", argv, busy) | {"anyway": anyway, "profiles": []}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "profile.json"
        for setting in STANDING:  # each in a process of its own: TensorFlow is set up once
            command = [sys.executable, "-m", "benchmarks.profiling", f"--task={setting.task}"]
            command += [f"--n_workers={setting.n_workers}", f"--seconds={seconds}"]
            command += [f"--envs_per_worker={setting.envs_per_worker}", f"--json={path}"]
            if status := subprocess.run(command, check=False).returncode:
                return status
            result["profiles"].append(json.loads(path.read_text(encoding="utf-8")))
    path = bench.write(result, "profile")
    print(f"\n{report.write('make profile')}\n\nwritten to {path} and docs/speed.md")
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


def profile_of(
    setting: Setting, before: Snapshot, after: Snapshot, gil: dict[str, float] | None
) -> dict[str, Any]:
    """The figures of a profile: milliseconds a step, and shares."""
    n_steps, wall = after.n_steps - before.n_steps, after.wall - before.wall
    cores = after.cores.since(before.cores)
    n_cores = round((cores.idle + cores.busy + cores.stolen) / wall)
    envs = [now - then for now, then in zip(after.envs, before.envs, strict=True)]
    in_process, in_env, in_bare = envs[:3]
    cpu = {part: after.cpu[part] - before.cpu[part] for part in PARTS}
    elapsed = {
        part: (after.elapsed[part] - before.elapsed[part]) / setting.n_workers for part in PARTS
    }
    elapsed["python"] = wall - sum(elapsed.values())
    workers, main_thread = after.workers - before.workers, after.main - before.main
    others = after.trainer - before.trainer - workers - main_thread
    rows: list[tuple[str, float, str | None]] = [
        ("emulator, or bare environment", in_bare, None),
        ("image work and wrappers", in_env - in_bare, None),
        ("transport (and, on vectors, acting), the environments' side", in_process - in_env, None),
        ("transport, the workers' side", cpu["env"], "env"),
        ("acting call", cpu["act"], "act"),
        ("learning call", cpu["learn"], "learn"),
        ("TensorFlow's own threads (learning)", others, None),
        ("Python between the calls", workers - sum(cpu.values()), "python"),
        ("the main thread", main_thread, "rest"),
        ("idle cores (all wait)", cores.idle, None),
        ("taken by the hypervisor", cores.stolen, None),
    ]

    def ms(seconds: float | None) -> float | None:
        return None if seconds is None else round(1000 * seconds / n_steps, 5)

    of_gil = {key: share * wall for key, share in (gil or {}).items()}
    return {
        "setting": str(setting),
        "steps_per_second": round(n_steps / wall, 1),
        "cores": n_cores,
        "cpu": provenance.cpu_model(),
        "parts": [
            {
                "part": name,
                "cpu_ms": ms(seconds),
                "gil_ms": ms(of_gil.get(key or "")),
                "elapsed_ms": ms(elapsed.get(key or "")),
            }
            for name, seconds, key in rows
        ],
        "accounted_for": round(sum(seconds for _, seconds, _ in rows) / (n_cores * wall), 4),
        "gil_held": round(sum(gil.values()), 3) if gil else None,
    }


def table(profile: dict[str, Any]) -> str:
    """A profile in Markdown."""
    keys = ("cpu_ms", "gil_ms", "elapsed_ms")
    head = ["milliseconds a step", "CPU", "holding the GIL", "elapsed in a worker, per step of all"]
    rows = [
        [part["part"], *("" if part[key] is None else f"{part[key]:.3f}" for key in keys)]
        for part in profile["parts"]
    ]
    sums = [sum(part[key] or 0 for part in profile["parts"]) for key in keys]
    rows.append(["**sum**", *(f"{each:.3f}" for each in sums)])
    gil = profile["gil_held"]
    held = "was not sampled (no py-spy)" if gil is None else f"was held {gil:.0%} of the clock"
    return (
        f"{profile['setting']}: {profile['steps_per_second']:.0f} steps/s on {profile['cores']}"
        f" cores ({profile['cpu']})\n\n{documents.table(head, rows)}\n\nThe CPU column accounts for"
        f" {profile['accounted_for']:.1%} of the cores' time; the GIL {held}."
    )


if __name__ == "__main__":
    sys.exit(main())
