"""The long checks, which can be interrupted: `make soak`, or `make soak PARTS=kill_toy` for one part.

Each part is tried a number of times. Each try adds one line of JSON to runs/soak.jsonl, also if it
failed, and is not repeated. After a failed try, the program ends with status 1.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

from tests import kill_test
from tests.tools import processes, soak_fuzz, soak_load
from tests.tools.run_files import RunFiles

RESULTS = processes.ROOT / "runs/soak.jsonl"


class Part(NamedTuple):
    """How often something is tried. A try gets its number and a folder that the part's tries share."""

    n_tries: int
    attempt: Callable[[int, pathlib.Path], dict[str, Any]]


def _kill(
    number: int, outside: pathlib.Path, command: list[str], interval_seconds: float, longest: float
) -> dict[str, Any]:
    """Continue a run, kill it at a random moment, and check what is left."""
    generator = random.Random(number)
    before = kill_test.saved(outside)
    began_at = time.time()
    process = kill_test.start(outside, *command)
    try:
        if in_training := generator.random() < 0.75:
            processes.wait_until(lambda: kill_test.saved(outside).steps > before.steps, "steps")
        delay = generator.uniform(0, longest)
        time.sleep(delay)
        killed_at = time.time()
        left_for = kill_test.kill(process)
    finally:
        processes.end(process)
    newest = max(
        outside.glob("run/checkpoints/ckpt-*.safetensors"),
        key=lambda path: path.stat().st_mtime,
        default=None,
    )
    saved_at = newest.stat().st_mtime if newest else 0.0
    # A run without a checkpoint since its start lived for less than an interval, or failed to save.
    lost = killed_at - saved_at if saved_at > began_at else 0.0
    assert lost or not in_training
    after = kill_test.saved(outside)
    kill_test.check_files(outside)
    assert kill_test.is_not_behind(after, before), (before, after)
    assert left_for < 5, f"environment processes lived for {left_for:.1f} s"
    # A checkpoint begins when the interval is over, and is slow on a busy machine.
    assert lost < interval_seconds + 5, f"{lost:.1f} s were lost"
    return {
        "in_training": in_training,
        "lived_seconds": round(killed_at - began_at, 1),
        "lost_seconds": round(lost, 2),
        "left_seconds": round(left_for, 2),
        "steps": after.steps,
    }


PONG = ["--n_workers", "4", "--network", "small", "--ckpt_interval_seconds", "15"]
PONG += ["PongNoFrameskip-v4"]


def _fresh(folder: pathlib.Path) -> pathlib.Path:
    """Return an empty folder, also after an interrupted try."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


PHASES = ("setting up", "importing", "tracing", "training", "saving", "evaluating")
SIGNALS = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}


def stop(number: int, outside: pathlib.Path) -> dict[str, Any]:
    """Stop Pong with 16 workers in some phase by some signal; everything must end within 10 s.

    If other programs run on the machine, the limit is multiplied by their number for each core.
    """
    phase = PHASES[number % len(PHASES)]
    name = [*SIGNALS][number // len(PHASES) % len(SIGNALS)]
    outside = _fresh(outside / str(number))
    shared_before = set(os.listdir("/dev/shm"))
    flags = ["--n_workers", "16", "--ckpt_interval_seconds", "2"]
    flags += ["--log_interval_seconds", "1", "PongNoFrameskip-v4"]
    if phase == "evaluating":
        flags += ["--eval_interval_steps", "50"]
    temporary = tempfile.mkdtemp()
    load = os.getloadavg()[0]  # before the run starts: its own sixteen workers do not count
    with mock.patch.dict(os.environ, TMPDIR=temporary):
        process = kill_test.start(outside, *flags)
    try:

        def has_come() -> bool:
            assert process.poll() is None, processes.outputs(outside)
            shown = processes.outputs(outside)["stdout"]
            match phase:
                case "setting up":  # before there is a run folder
                    return "ale_py" in pathlib.Path(f"/proc/{process.pid}/maps").read_text()
                case "importing":
                    return "starting TensorFlow" in shown
                case "tracing":
                    return "tracing the network" in shown
                case "training":
                    return " steps/s  " in shown
                case "saving":
                    return kill_test.is_saving(outside)
            # An evaluation runs from the 50th step on.
            return any(row["misc/steps"] > 50 for row in RunFiles(outside / "run").rows())

        processes.wait_until(has_come, phase)
        # Short phases get their signal at once.
        time.sleep(0 if phase in ("setting up", "saving") else random.Random(number).uniform(0, 1))
        since = time.monotonic()
        process.send_signal(getattr(signal, name))
        status = process.wait(processes.DEADLINE_SECONDS)
        seconds = time.monotonic() - since
        processes.wait_until(lambda: not processes.members(process.pid), "its processes to end")
        outputs = processes.outputs(outside)
    finally:
        processes.end(process)
    assert status == SIGNALS[name], (status, outputs)
    assert outputs["stderr"] == "", outputs
    assert set(os.listdir("/dev/shm")) <= shared_before
    left = [p.name for p in outside.rglob("*") if "tmp" in p.name or "temp" in p.name]
    assert left == []
    assert os.listdir(temporary) == []
    os.rmdir(temporary)
    if (outside / "run").exists():
        kill_test.check_files(outside)
    steps = kill_test.saved(outside).steps
    is_told = f"stopped at {steps:,} steps" in outputs["stdout"]
    assert is_told or phase in ("setting up", "importing")
    others = max(1.0, load / (os.cpu_count() or 1))
    assert seconds < 10 * others, f"{seconds:.1f} s at a load of {load:.1f}"
    return {
        "phase": phase,
        "signal": name,
        "stopped_seconds": round(seconds, 2),
        "load": round(load, 1),
        "steps": steps,
    }


N_FUZZED = 1_000_000


def fuzz(number: int, outside: pathlib.Path) -> dict[str, Any]:
    """Try ten thousand inputs of one class, in a separate process."""
    name, first, n = soak_fuzz.chunks_of(N_FUZZED)[number]
    result = soak_fuzz.start_chunk(name, first, n, seed=0)
    assert not result["findings"], result["findings"]
    return {"class": name, "first": first} | result


def load(name: str) -> Callable[[int, pathlib.Path], dict[str, Any]]:
    """Return a part that trains for long with many environments and judges the run."""
    part = soak_load.PARTS[name]

    def attempt(number: int, outside: pathlib.Path) -> dict[str, Any]:
        figures, problems = soak_load.run(part, part.seconds, _fresh(outside / str(number)))
        assert problems == [], f"{figures}: {'; '.join(problems)}"
        return {"figures": figures}

    return attempt


PARTS = {
    "kill_toy": Part(100, partial(_kill, command=kill_test.TOY, interval_seconds=0.5, longest=5)),
    "kill_pong": Part(3, partial(_kill, command=PONG, interval_seconds=15, longest=40)),
    "stop": Part(len(PHASES) * len(SIGNALS), stop),
    "fuzz": Part(len(soak_fuzz.chunks_of(N_FUZZED)), fuzz),
    **{f"load_{name}": Part(1, load(name)) for name in soak_load.PARTS},
}


def run(names: list[str], results: pathlib.Path, parts: dict[str, Part]) -> bool:
    """Make the tries that have no line yet; return whether all tries succeeded, earlier ones included."""
    results.parent.mkdir(parents=True, exist_ok=True)
    lines = results.read_text().splitlines() if results.exists() else []
    done = [json.loads(line) for line in lines]
    for name in names:
        outside = results.parent / "soak" / name
        outside.mkdir(parents=True, exist_ok=True)
        made = {entry["try"] for entry in done if entry["part"] == name}
        for number in sorted(set(range(parts[name].n_tries)) - made):
            start = time.monotonic()
            try:
                found = {"ok": True} | parts[name].attempt(number, outside)
            except Exception:
                found = {"ok": False, "error": traceback.format_exc()}
            entry = {
                "part": name,
                "try": number,
                "seconds": round(time.monotonic() - start, 1),
            } | found
            done.append(entry)
            with results.open("a") as file:
                print(json.dumps(entry), file=file)
            print(json.dumps(entry), flush=True)
    for name in names:
        of_part = [entry for entry in done if entry["part"] == name]
        n_failed = sum(not entry["ok"] for entry in of_part)
        print(f"{name}: {len(of_part)} of {parts[name].n_tries} tries made, {n_failed} failed")
    return all(entry["ok"] for entry in done if entry["part"] in names)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "parts", nargs="*", choices=[[], *PARTS], help="the parts to run (default: all)"
    )
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    arguments = parser.parse_args()
    return 0 if run(arguments.parts or [*PARTS], arguments.results, PARTS) else 1


if __name__ == "__main__":
    sys.exit(main())
