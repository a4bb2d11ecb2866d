"""Fuzzing: `python -m tests.tools.soak_fuzz --inputs 10000` gives random inputs to everything that reads.

`make soak PARTS=fuzz` tries a million. Each chunk of inputs runs in a separate process, so that a
crash, a hang and too much memory are found as well. `--again "CLASS" NUMBER` repeats one input.
"""

import argparse
import collections
import concurrent.futures
import functools
import json
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HANG_SECONDS = 10  # of CPU time
MAX_BYTES = 10**9
CHUNK = 10_000


def attempt(name: str, number: int, seed: int, folder: pathlib.Path) -> bool:
    """Try one input; return whether it was accepted, and raise what must not happen."""
    from tests.tools import fuzz

    try:
        return fuzz.CLASSES[name][0](random.Random(f"{seed} {name} {number}"), folder)
    except fuzz.Refused:
        return False


def run_chunk(name: str, first: int, n: int, seed: int) -> dict[str, Any]:
    """Try the inputs from `first` to `first + n` and return the results."""

    def hang(*_: object) -> NoReturn:
        # No OSError, which readers turn into a refusal.
        raise fuzz.Finding(f"no end after {HANG_SECONDS} s")

    from a3c.settings import command_line
    from tests.tools import fuzz

    assert name in fuzz.CLASSES
    # Parsing does not change a parser, and making one takes most of the time of a command line.
    command_line._parser = functools.cache(command_line._parser)
    signal.signal(signal.SIGPROF, hang)
    n_taken, slowest, findings = 0, 0.0, []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for number in range(first, first + n):
            start = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, HANG_SECONDS)
            try:
                n_taken += attempt(name, number, seed, pathlib.Path(folder))
            except Exception:
                findings.append([number, traceback.format_exc()])
            signal.setitimer(signal.ITIMER_PROF, 0)
            slowest = max(slowest, time.process_time() - start)
            if len(findings) == 10:
                break
        os.chdir(ROOT)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if memory > MAX_BYTES:
        findings.append([first, f"{memory:,} bytes of memory"])
    return {"n": n, "taken": n_taken, "slowest": slowest, "memory": memory, "findings": findings}


def start_chunk(name: str, first: int, n: int, seed: int) -> dict[str, Any]:
    """Do the same in a separate process."""
    command = [sys.executable, "-m", "tests.tools.soak_fuzz", "--chunk", name, str(first), str(n)]
    nothing = {"n": n, "taken": 0, "slowest": 0.0, "memory": 0}
    try:
        done = subprocess.run(
            [*command, "--seed", str(seed)], cwd=ROOT, capture_output=True, text=True, timeout=3600
        )
    except subprocess.TimeoutExpired:
        return nothing | {"findings": [[first, "the process does not end"]]}
    if done.returncode != 0:
        why = f"the process ended with {done.returncode}:\n{done.stderr[-2000:]}"
        return nothing | {"findings": [[first, why]]}
    return json.loads(done.stdout)


def chunks_of(n_inputs: int) -> list[tuple[str, int, int]]:
    """Return class, first number and count of each chunk of `n_inputs` in all."""
    from tests.tools import fuzz

    chunks = []
    for name, (_, n_of_million) in fuzz.CLASSES.items():
        n_of_class = -(-n_inputs * n_of_million // 1_000_000)
        chunks += [
            (name, first, min(CHUNK, n_of_class - first)) for first in range(0, n_of_class, CHUNK)
        ]
    return chunks


def main(argv: Sequence[str] | None = None) -> int:
    """Try all inputs and print the results; return 1 if there is a finding."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=10_000, help="how many in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--again", nargs=2, metavar=("CLASS", "NUMBER"))
    parser.add_argument("--chunk", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.again:
        with tempfile.TemporaryDirectory() as folder:
            name, number = options.again
            print(
                "taken"
                if attempt(name, int(number), options.seed, pathlib.Path(folder))
                else "refused"
            )
        return 0
    if options.chunk:
        name, first, n = options.chunk
        print(json.dumps(run_chunk(name, int(first), int(n), options.seed)))
        return 0

    chunks = chunks_of(options.inputs)
    totals: dict[str, dict[str, Any]] = {}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        results = pool.map(lambda chunk: start_chunk(*chunk, options.seed), chunks)
        for (name, _, _), result in zip(chunks, results, strict=True):
            total = totals.setdefault(name, collections.defaultdict(int, findings=[]))
            for key in ("n", "taken", "findings"):
                total[key] += result[key]
            for key in ("slowest", "memory"):
                total[key] = max(total[key], result[key])
            for number, why in result["findings"]:
                print(f"FOUND {name!r} {number}: {why}", flush=True)
    for name, total in totals.items():
        print(
            f"{name:30} {total['n']:9,} inputs  {total['taken']:9,} taken  "
            f"{total['n'] - total['taken']:9,} refused  slowest {total['slowest']:6.3f} s  "
            f"memory {total['memory'] / 1e6:4.0f} MB  {len(total['findings'])} findings"
        )
    return 1 if any(total["findings"] for total in totals.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
