"""Throughput on Pong, beside a peer's and beside the machine's limit (`make bench`).

    make bench
    make bench BENCH="--anyway --rounds 3"

Our settings and the peer's take turns in rounds; every second round runs in the opposite order. A
machine's speed drifts within minutes, so each ratio is taken within a round, and the median of the
rounds counts. The figures go to benchmarks/results/<date>-<cpu>.json and to the table in
docs/speed.md.
"""

import argparse
import contextlib
import importlib.metadata
import json
import pathlib
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import calibration, contenders, machine, report
from benchmarks.contenders import CallsSetting, PeerSetting, Server, Setting, Trainer

CODE = ("a3c", "train.py", "benchmarks/*.py")
# Ours; requirements.txt has the peer's.
PACKAGES = ("tensorflow-cpu", "tensorflow", "numpy", "gymnasium", "ale-py")
RESULTS = pathlib.Path(__file__).with_name("results")
# The best wide setting found for a number of cores and a network; see docs/speed.md.
BEST_WIDE = {(2, "nature"): (3, 32), (2, "small"): (3, 16)}
ATARI_STEP_SECONDS = 2.0
LOOPS_SECONDS = 8.0
MIN_ROUNDS = 3


def our_settings(cores: int) -> list[Setting]:
    """The settings that are measured everywhere, and the best ones for so many cores."""

    def wide(network: str) -> Setting:
        return Setting(*BEST_WIDE.get((cores, network), (max(2, cores), 8)), network)

    settings = [
        Setting(16, 1, "nature"),
        Setting(4, 4, "nature"),
        wide("nature"),
        Setting(4, 4, "small"),
        Setting(2, 8, "small"),
        wide("small"),
    ]
    return list(dict.fromkeys(settings))


PEER_SETTINGS = [
    PeerSetting(vec, n_threads, network)
    for network in ("nature", "small")
    for vec in ("DummyVecEnv", "SubprocVecEnv")
    for n_threads in (1, 2)
]


# What 16 × 1 could reach at most, and whether one call for several workers' acting would help.
CALLS_SETTINGS = [CallsSetting(16, "nature", together) for together in (1, 8)]
Contender = Setting | PeerSetting | CallsSetting


def in_turns(ours: Sequence[Setting], others: Sequence[Contender]) -> list[Contender]:
    """One of ours, one or more of the others, one of ours, …, those of one network together."""
    turns: list[Contender] = []
    for network in dict.fromkeys(setting.network for setting in ours):
        mine = [setting for setting in ours if setting.network == network]
        theirs = [setting for setting in others if setting.network == network]
        for i, setting in enumerate(mine):
            share = theirs[i * len(theirs) // len(mine) : (i + 1) * len(theirs) // len(mine)]
            turns += [setting, *share]
    return turns


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write the JSON and the table; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--anyway", action="store_true", help="also on a busy machine")
    parser.add_argument("--rounds", type=int, default=4, help=f"at least {MIN_ROUNDS}")
    parser.add_argument("--seconds", type=float, default=15.0, help="length of a slot")
    argv = sys.argv[1:] if argv is None else argv
    options = parser.parse_args(argv)
    if options.rounds < MIN_ROUNDS:
        parser.error(f"a median needs at least {MIN_ROUNDS} rounds")
    contenders.end_on_signals()
    if not contenders.PEER_PYTHON.exists():
        print("bench: error: the peer is not installed: use `make bench`", file=sys.stderr)
        return 1
    busy = busy_or_refuse(options.anyway)
    if busy is None:
        return 1
    result = about("bench", argv, busy) | {"anyway": options.anyway}
    try:
        result["rounds"] = run(options.rounds, options.seconds)
    except (contenders.ContenderError, calibration.LoopError) as error:
        print(f"bench: error: {error}", file=sys.stderr)
        return 1
    path = write(result, "bench")
    print(f"\n{report.write('make bench')}\n\nwritten to {path} and docs/speed.md")
    return 0


def busy_or_refuse(anyway: bool) -> float | None:
    """The share of the machine in use; None, and one line said, where that is too much."""
    busy = machine.busy_share()
    if busy <= machine.MAX_BUSY or anyway:
        return busy
    print(
        f"error: {busy:.0%} of the machine is in use, which would be measured, too;"
        " stop that, or say --anyway",
        file=sys.stderr,
    )
    return None


def about(target: str, argv: Sequence[str], busy: float) -> dict[str, Any]:
    """When, where and of what the figures are."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "command": f"make {target}" + (f' BENCH="{shlex.join(argv)}"' if argv else ""),
        "revision": _git("rev-parse", "--short", "HEAD"),
        # Of code; a benchmark before this one has written its table into the documents.
        "uncommitted": bool(_git("status", "--porcelain", "--untracked-files=no", "--", *CODE)),
        "cpu": machine.cpu_name(),
        "cores": machine.n_cores(),
        "memory_gib": machine.memory_gib(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "busy_before": round(busy, 3),
    }


def write(result: dict[str, Any], kind: str) -> pathlib.Path:
    """Write a result under a name that no other has."""
    words = [
        time.strftime("%Y%m%d-%H%M"),
        *result["cpu"].lower().split(),
        f"{result['cores']}-cores",
    ]
    words += [] if kind == "bench" else [kind]
    name = "-".join("".join(c for c in word if c.isalnum() or c in "-.") for word in words)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return path


def run(n_rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Start everybody, let them take turns, end them."""
    cores = machine.n_cores()
    turns = in_turns(our_settings(cores), [*PEER_SETTINGS, *CALLS_SETTINGS])
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        trainers: dict[Setting, Trainer] = {}
        for number, setting in enumerate(turns):
            if isinstance(setting, Setting):
                print(f"starting {setting}", flush=True)
                trainer = contenders.start_for_slots(setting, folder / str(number))
                stack.callback(trainer.close)
                trainer.warm_up()
                trainer.pause()
                trainers[setting] = trainer
        servers: dict[type, Server] = {
            PeerSetting: Server(contenders.PEER_PYTHON, "benchmarks.peer", folder / "peer.output"),
            CallsSetting: Server(sys.executable, "benchmarks.calls", folder / "calls.output"),
        }
        for server in servers.values():
            stack.callback(server.close)
        print("starting the peer, and calls alone", flush=True)
        # The peer's two of each environment and network make that once.
        all_served: list[PeerSetting | CallsSetting] = [*PEER_SETTINGS[::2], *CALLS_SETTINGS]
        for served in all_served:
            servers[type(served)].measure(served, 0.1)
        rounds = []
        for number in range(n_rounds):
            loops = [calibration.measure_loops(LOOPS_SECONDS)]
            slots = [
                _measure(setting, trainers, servers, seconds, cores)
                for setting in (turns if number % 2 == 0 else turns[::-1])
            ]
            loops.append(calibration.measure_loops(LOOPS_SECONDS))
            rounds.append({"loops": [loop._asdict() for loop in loops], "slots": slots})
            print(f"round {number + 1} of {n_rounds}", flush=True)
            for slot in slots:
                print(f"  {slot['setting']}: {slot['steps_per_second']:.0f} steps/s", flush=True)
    return rounds


def _measure(
    setting: Contender,
    trainers: dict[Setting, Trainer],
    servers: dict[type, Server],
    seconds: float,
    cores: int,
) -> dict[str, Any]:
    """One slot, with what else used the machine meanwhile."""
    if isinstance(setting, Setting):
        trainer = trainers[setting]
        atari_step = [calibration.measure_atari_step(ATARI_STEP_SECONDS, cores)]
        with _others(trainer.pid) as others:
            trainer.go_on()
            slot = trainer.measure(seconds)
            trainer.pause()
        atari_step.append(calibration.measure_atari_step(ATARI_STEP_SECONDS, cores))
        assert slot.env_cpu_seconds is not None
        env_cost = slot.env_cpu_seconds / (
            calibration.FRAMES_PER_STEP * statistics.mean(atari_step)
        )
        of_envs = {
            "atari_step_seconds": atari_step,
            "env_cpu_seconds": slot.env_cpu_seconds,
            "env_cost": env_cost,
        }
    else:
        server = servers[type(setting)]
        with _others(server.pid) as others:
            slot = server.measure(setting, seconds)
        of_envs = {}
    return {
        "setting": str(setting),
        **setting._asdict(),
        "n_steps": slot.n_steps,
        "seconds": slot.seconds,
        "steps_per_second": slot.n_steps / slot.seconds,
        **of_envs,
        **others,
    }


@contextlib.contextmanager
def _others(session: int) -> Iterator[dict[str, float]]:
    """Fills in which share of the machine went neither to this session nor to nobody."""
    share: dict[str, float] = {}
    cores, own = machine.read_cores(), _cpu_of(session)
    yield share
    idle, busy, stolen = machine.read_cores().since(cores)
    others = busy - (_cpu_of(session) - own)
    share["others"] = round(max(0.0, others) / (idle + busy + stolen), 3)
    share["stolen"] = round(stolen / (idle + busy + stolen), 3)


def _cpu_of(session: int) -> float:
    return sum(process.cpu for process in machine.processes(session))


def _version(package: str) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None


def _git(*arguments: str) -> str:
    ended = subprocess.run(
        ["git", *arguments], cwd=contenders.ROOT, capture_output=True, text=True, check=False
    )
    return ended.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
