"""Throughput beside peers' and beside the machine's limit (`make bench`).

    make bench
    make bench BENCH="--only cartpole halfcheetah --rounds 3"

Our settings and the peers' take turns in rounds; every second round runs in the opposite order. A
machine's speed drifts within minutes, so each ratio is taken within a round, and the median of the
rounds counts. Then the fastest settings on vectors must also learn. The figures of each part go to
benchmarks/results/<date>-<cpu>-<part>.json and to its tables in docs/speed.md.
"""

import argparse
import contextlib
import importlib.metadata
import json
import pathlib
import platform
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from a3c.store import provenance
from benchmarks import calibration, contenders, machine, report
from benchmarks.contenders import CallsSetting, PeerSetting, Server, Setting, Trainer

CODE = ("a3c", "train.py", "benchmarks/*.py")
CHANGES_OF_CODE = ("status", "--porcelain", "--untracked-files=no", "--", *CODE)
# Ours; requirements.txt has the peers'.
PACKAGES = ("tensorflow-cpu", "tensorflow", "numpy", "gymnasium", "ale-py", "mujoco")
# The best wide setting found for a number of cores and a task; see docs/speed.md.
BEST_WIDE = {
    (2, "nature"): (3, 32),
    (2, "small"): (3, 32),
    (2, "CartPole"): (2, 64),
    (2, "HalfCheetah"): (2, 64),
    (16, "nature"): (16, 32),
}
CORES = machine.n_cores()
MANY = max(96, 16 * CORES)  # environments of the other peer, whose best number counts
STEP_SECONDS = 1.0
LOOPS_SECONDS = 8.0
MIN_ROUNDS = 3
N_SEEDS = 3

Contender = Setting | PeerSetting | CallsSetting
PROGRAMS: dict[type, tuple[str | pathlib.Path, str]] = {
    PeerSetting: (contenders.PEER_PYTHON, "benchmarks.peer"),
    CallsSetting: (sys.executable, "benchmarks.calls"),
}


class Part(NamedTuple):
    """A part of the benchmark: its contenders take turns."""

    ours: tuple[Setting, ...]  # besides the wide ones
    others: tuple[PeerSetting | CallsSetting, ...]
    seconds: float  # of a slot
    score: float | None = None  # mean of 100 games that the fastest settings must reach
    most_steps: float = 0.0  # and the steps within which they may

    def of(self, tasks: Sequence[str]) -> "Part":
        """The part with the contenders of these tasks alone."""
        return self._replace(
            ours=tuple(setting for setting in self.ours if setting.task in tasks),
            others=tuple(setting for setting in self.others if setting.task in tasks),
        )

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(setting.task for setting in self.others))

    @property
    def env_id(self) -> str:
        return contenders.TASKS[self.tasks[0]].env_id


def sb3(n_envs: int, task: str) -> list[PeerSetting]:
    """The peer's settings with so many environments, of which the best one counts."""
    vecs, threads = ("DummyVecEnv", "SubprocVecEnv"), sorted({1, 2, CORES})
    return [PeerSetting(vec, n_envs, n_threads, task) for vec in vecs for n_threads in threads]


def of_vectors(task: str, score: float, most_steps: float) -> Part:
    """A part on vector observations."""
    ours = tuple(Setting(*size, task) for size in ((16, 1), (4, 1), (2, 16), (1, 1)))
    others = [setting for n_envs in (4, 16, 64) for setting in sb3(n_envs, task)]
    return Part(ours, tuple(others), 4.0, score, most_steps)


PARTS = {
    "pong": Part(
        ours=(
            *(Setting(16, 1, "nature"), Setting(4, 4, "nature")),
            *(Setting(4, 4, "small"), Setting(2, 8, "small")),
        ),
        others=(
            *sb3(16, "nature"),
            *(PeerSetting(contenders.CPP, n_envs, CORES, "nature") for n_envs in (16, MANY)),
            CallsSetting(16, "nature"),  # what 16 × 1 could reach at most
            *sb3(16, "small"),
            *(PeerSetting(contenders.CPP, n_envs, CORES, "small") for n_envs in (16, MANY // 2)),
        ),
        seconds=10.0,
    ),
    "cartpole": of_vectors("CartPole", score=475.0, most_steps=2e6),
    "halfcheetah": of_vectors("HalfCheetah", score=500.0, most_steps=2e6),
}


def wide(cores: int, task: str) -> Setting:
    """The best wide setting for so many cores."""
    return Setting(*BEST_WIDE.get((cores, task), (max(2, cores), 8)), task)


def our_settings(cores: int, part: Part) -> list[Setting]:
    """The settings that are measured everywhere, and the best ones for so many cores."""
    settings = []
    for task in part.tasks:
        settings += [setting for setting in part.ours if setting.task == task]
        settings.append(wide(cores, task))
        if task in contenders.FLAGS_THEN and contenders.archive(contenders.THEN):
            settings.append(Setting(1, 1, task, contenders.THEN))
    return list(dict.fromkeys(settings))


def in_turns(ours: Sequence[Setting], others: Sequence[Contender]) -> list[Contender]:
    """One of ours, one or more of the others, one of ours, …, those of one task together."""
    turns: list[Contender] = []
    for task in dict.fromkeys(setting.task for setting in ours):
        mine = [setting for setting in ours if setting.task == task]
        theirs = [setting for setting in others if setting.task == task]
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
    names = [*PARTS, *PARTS["pong"].tasks]
    parser.add_argument("--only", nargs="+", choices=names, default=list(PARTS), metavar="PART")
    parser.add_argument("--rounds", type=int, default=4, help=f"at least {MIN_ROUNDS}")
    parser.add_argument("--seconds", type=float, help="length of a slot, if not the part's own")
    parser.add_argument("--seeds", type=int, default=N_SEEDS, help="runs that learn; 0: none")
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
    for name, part in PARTS.items():
        if name not in options.only:
            part = part.of(options.only)
        if not part.others:
            continue
        if options.seconds is not None:
            part = part._replace(seconds=options.seconds)
        result = about("bench", argv, busy) | {"anyway": options.anyway}
        try:
            result |= run(part, options.rounds, options.seeds)
        except (contenders.ContenderError, calibration.LoopError) as error:
            print(f"bench: error: {error}", file=sys.stderr)
            return 1
        path = write(result, name)
        table = report.write(f"make bench, {name}", result["cores"])
        print(f"\n{table}\n\nwritten to {path} and docs/speed.md")
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
    variable = target.partition("-")[0].upper()
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "command": f"make {target}" + (f' {variable}="{shlex.join(argv)}"' if argv else ""),
        "revision": provenance.short_revision(contenders.ROOT),
        # Of code; a benchmark before this one has written its table into the documents.
        "uncommitted": bool(provenance.git(contenders.ROOT, *CHANGES_OF_CODE)),
        "cpu": provenance.cpu_model(),
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
    name = "-".join("".join(c for c in word if c.isalnum() or c in "-.") for word in [*words, kind])
    report.RESULTS.mkdir(exist_ok=True)
    path = report.RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return path


def run(part: Part, n_rounds: int, n_seeds: int) -> dict[str, Any]:
    """Start everybody, let them take turns, and the fastest learn; end them."""
    ours = our_settings(CORES, part)
    turns = in_turns(ours, part.others)
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        trainers: dict[Setting, Trainer] = {}
        for number, setting in enumerate(ours):
            print(f"starting {setting}", flush=True)
            trainer = contenders.start_for_slots(setting, folder / str(number))
            stack.callback(trainer.close)
            trainer.warm_up()
            trainer.pause()
            trainers[setting] = trainer
        servers: dict[type, Server] = {}
        for other in part.others:
            print(f"starting {other}", flush=True)
            if (kind := type(other)) not in servers:
                servers[kind] = Server(*PROGRAMS[kind], folder / f"{kind.__name__}.output")
                stack.callback(servers[kind].close)
            servers[kind].measure(other, 0.1)  # it makes its environments
        rounds = []
        for number in range(n_rounds):
            loops = [calibration.measure_loops(LOOPS_SECONDS, CORES, part.env_id)]
            slots = [
                _measure(setting, trainers, servers, part.seconds)
                for setting in (turns if number % 2 == 0 else turns[::-1])
            ]
            loops.append(calibration.measure_loops(LOOPS_SECONDS, CORES, part.env_id))
            rounds.append({"loops": [loop._asdict() for loop in loops], "slots": slots})
            print(f"round {number + 1} of {n_rounds}", flush=True)
            for slot in slots:
                print(f"  {slot['setting']}: {slot['steps_per_second']:.0f} steps/s", flush=True)
        learned = []
        for seed in range(n_seeds if part.score is not None else 0):
            for is_wanted in (report.is_wide, report.is_sb3):
                name = report.best(rounds, part.tasks[0], is_wanted)
                fastest = next(setting for setting in turns if str(setting) == name)
                learned.append(_learn(part, fastest, servers[PeerSetting], folder, seed))
    return {"rounds": rounds, "learned": learned}


def _learn(
    part: Part, setting: Contender, peers: Server, folder: pathlib.Path, seed: int
) -> dict[str, Any]:
    """The steps that one run takes to the part's score; None if it does not reach it."""
    assert part.score is not None
    start = time.monotonic()
    if isinstance(setting, PeerSetting):
        n_steps = peers.steps_to(setting, part.score, part.most_steps, seed)
    else:
        assert isinstance(setting, Setting)
        flags = [*setting.flags, f"--n_steps={part.most_steps}", f"--seed={seed}"]
        trainer = Trainer(flags, folder / f"learning{seed}", part.env_id)
        with contextlib.closing(trainer):
            n_steps = trainer.steps_to(part.score)
    learned = {"setting": str(setting), "seed": seed, "score": part.score, "n_steps": n_steps}
    print(learned, flush=True)
    return learned | {"most_steps": part.most_steps, "seconds": time.monotonic() - start}


def _measure(
    setting: Contender,
    trainers: dict[Setting, Trainer],
    servers: dict[type, Server],
    seconds: float,
) -> dict[str, Any]:
    """One slot, with what else used the machine meanwhile."""
    if isinstance(setting, Setting):
        trainer, env_id = trainers[setting], contenders.TASKS[setting.task].env_id
        bare_step = [calibration.measure_step(STEP_SECONDS, CORES, env_id)]
        with _others(trainer.pid) as others:
            trainer.go_on()
            slot = trainer.measure(seconds)
            trainer.pause()
        bare_step.append(calibration.measure_step(STEP_SECONDS, CORES, env_id))
        assert slot.env_cpu_seconds is not None
        n_frames = calibration.FRAMES_PER_STEP if env_id == calibration.PONG else 1
        env_cost = slot.env_cpu_seconds / (n_frames * statistics.mean(bare_step))
        of_envs = {
            "bare_step_seconds": bare_step,
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
    """Fills in which shares of the machine other programs used and the hypervisor took away."""
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


if __name__ == "__main__":
    sys.exit(main())
