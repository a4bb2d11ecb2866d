"""Runs the tests against the mutants of a3c/ and keeps a list of those that were noticed.

    make mutants                                         all that tests/mutants.txt does not tell yet
    make mutants MUTANTS="--minutes 60 --jobs 1"         for an hour, on one core; goes on the next time
    python3 tests/tools/mutants.py a3c/agent/losses.py   one module again, whatever the list says of it
    python3 tests/tools/mutants.py --survivors           only mutants that survived and have no excuse
    python3 tests/tools/mutants.py --score               prints the score and how much is left to run

We have a tool of our own because those that are maintained are too slow here: mutmut forks after the
tests have run once, together with TensorFlow's threads; cosmic-ray starts a new process for each
mutant, which takes five seconds to load TensorFlow.

This tool forks, for each mutant, a process that has loaded TensorFlow but not used it, and so has a
single thread. The tests run in a copy of the tree that holds the mutant, so environment processes and
programs that tests start load it as well. First those tests of the module run that entered the mutant's
function in a run of the right source; if they notice nothing, others follow, up to a limit of time. A
mutant is noticed if a test fails or hangs.

The list has one line for each function (or statement outside of functions): a key, the seconds that
its mutants took, a letter for each mutant in the source's order, and the name. The key is a hash of
the code without docstrings, types and error messages. So a function keeps its line when it moves or
when only its comments change, and another function's change costs it nothing. The list is written
after every mutant; a run can be stopped at any time and goes on later.

Every mutant of the modules IN_FULL is run, and a sample of the others: mutants are drawn when their
function is first seen, until the sample has SAMPLE_SIZE. We write a test for each mutant of the sample
that survives; the list then marks the mutant as noticed since. This says nothing about the mutants
outside of the sample, so the confidence interval only counts those that were noticed at first.

A mutant that nobody could notice is an equivalent one: tests/mutants_equivalent.txt has the reason.
"""

import argparse
import contextlib
import ctypes
import fcntl
import functools
import json
import math
import os
import pathlib
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LIST = ROOT / "tests" / "mutants.txt"
EQUIVALENT = ROOT / "tests" / "mutants_equivalent.txt"
if str(ROOT) not in sys.path:  # instead of tests/tools, where programs would find "toys"
    sys.path[0] = str(ROOT)

from tests.tools import mutation  # noqa: E402 (needs the path)

SAMPLE = "In a sample from the others"
# Every mutant of these modules is run; of the others, a sample.
IN_FULL = (
    *(
        "losses",
        "optimizer",
        "shared",
        "network",
        "kernels",
        "vectors",
        "learner",
        "collector",
        "worker",
        "policy",
        "moments",
    ),
    *("score", "wrappers", "screen"),
)
SAMPLE_SIZE = 300
SAMPLE_SEED = 2

# Test files that may notice a module's mutants, besides its own; the quick ones come first.
MORE_TESTS = {
    "losses": ("properties", "worker", "oracle_replay", "learning"),
    "optimizer": ("properties", "shared", "worker", "sharing", "oracle_replay"),
    "shared": ("learner", "optimizer", "worker", "checkpoint", "sharing", "oracle_replay"),
    "network": ("memory", "imports", "policy", "worker", "checkpoint", "oracle_replay", "pins"),
    "kernels": ("network", "memory", "learner", "optimizer", "oracle_replay", "pins"),
    "vectors": ("learner", "memory", "shared", "process_collector", "oracle_replay", "pins"),
    "calls": ("kernels", "learner", "remote", "pins"),
    "local": ("learner", "memory", "worker", "vectors", "remote", "pins"),
    "source": ("process_collector", "worker", "failure", "remote", "oracle_replay"),
    "process_collector": ("pool", "remote", "pins"),
    "policy": ("agent", "imports", "losses", "worker", "evaluation", "oracle_replay"),
    "moments": ("worker", "shared", "oracle_replay", "pins"),
    "learner": ("memory", "worker", "failure", "properties", "learning", "shared", "oracle_replay"),
    "worker": (
        "memory",
        "moments",
        "failure",
        "properties",
        "learning",
        "training",
        "oracle_replay",
    ),
    "collector": (
        "memory",
        "moments",
        "worker",
        "process_collector",
        "failure",
        "properties",
        "learning",
        "oracle_replay",
    ),
    "blocks": ("remote",),
    "debug_dump": ("properties", "worker", "show_debug_data"),
    "contract": ("worker", "checkpoint", "resume"),
    "score": ("wrappers", "properties", "make", "pool", "replay_by_hand"),
    "wrappers": ("properties", "make", "replay_by_hand"),
    "screen": ("wrappers", "make", "replay_by_hand"),
    "debug_wrappers": ("make", "wrappers"),
    "make": ("preprocessing_play", "replay_by_hand"),
    "base": ("make",),
    "spaces": ("make",),
    "pool": ("process_collector", "process", "fleet", "replay_by_hand"),
    "fleet": ("pool",),
    "process": ("process_collector", "pool", "env_fault", "replay_by_hand"),
    "memory": ("pool", "process_collector"),
    "serve": ("process_collector", "pool", "process", "env_fault"),
    "appending": ("disk", "logs", "resume"),
    "seeding": ("properties", "make", "training"),
    "stopping": ("train",),
    "params": ("command_line", "config", "run_folder", "resume"),
    "naming": ("run_folder", "plan"),
    "command_line": ("config", "params", "resume", "train"),
    "config": ("command_line", "params"),
    "checkpoint": ("evaluator", "resume", "training", "train"),
    "events": ("logs", "resume"),
    "games": ("resume", "plot_runs"),
    "logs": ("training", "train"),
    "provenance": ("resume", "train"),
    "reading": ("plot_runs", "resume"),
    "resume": ("watch", "train"),
    "claim": ("run_folder", "board", "trial", "resume", "safety"),
    "run_folder": ("failure", "resume", "safety", "train"),
    "agent": ("evaluation", "run_checkpoint", "python"),
    "api": ("python",),
    "command": ("run_checkpoint", "train", "sweep"),
    "showing": ("run_checkpoint",),
    "plot_command": ("plot_runs",),
    "atari_scores": ("evaluation",),
    "curves": ("plot_runs",),
    "windows": ("plot_runs",),
    "evaluation": ("evaluator", "run_checkpoint"),
    "evaluator": ("training", "resume"),
    "screens": ("views", "preprocessing_play", "run_checkpoint"),
    "eyes": ("run_checkpoint",),
    "opengl": ("run_checkpoint",),
    "views": ("eyes", "preprocessing_play", "run_checkpoint"),
    "run/start": ("train", "training"),
    "sweep/start": ("board", "sweep"),
    "folder": ("trial", "board"),
    "tuner": ("trial",),
    "training": ("resume", "train"),
    "actor": ("remote",),
    "ray_process": ("remote",),
    "watch": ("training", "train"),
    "__init__": ("setup", "train"),
}
OTHERS_SECONDS = 40.0
# The right source has to pass again after so many mutants: on a machine that has become too slow or
# whose disk is full, the tests would fail for every mutant.
CHECKED_EVERY = 50
# Of a process: a mutant may ask for any amount, and the system would end other programs for it.
MAX_BYTES = 2**33
SECONDS_PER_MUTANT = 15.0  # an estimate, until the list has measured it
FAILED, INTERRUPTED, NO_SUCH_TEST = 1, 2, 4  # pytest's
SUBREAPER = 36  # of prctl: orphans of our processes become our children

# The letters of the list. NOTICED_SINCE: it survived at first, and tests of a later day noticed it.
# AGAIN: it survived, and the tests of today have not run yet.
KILLED, TIMEOUT, SURVIVED, NOTICED_SINCE = "k", "t", "s", "n"
TO_RUN, AGAIN, NOT_SAMPLED = "?", "a", "."


class Function(NamedTuple):
    """A function of today, or a statement outside of functions, and what the list tells of it."""

    path: str
    part: mutation.Part
    seconds: float
    states: str

    @property
    def name(self) -> str:
        return f"{module_name(self.path)}.{self.part.name}"

    @property
    def mutant_names(self) -> list[str]:
        """Names that no other module has, as EQUIVALENT gives them."""
        return [f"{module_name(self.path)}.{mutant.name}" for mutant in self.part.mutants]

    @property
    def is_in_full(self) -> bool:
        return is_in_full(self.path)

    def left(self) -> list[int]:
        """Return the numbers of the mutants that are to be run."""
        return [i for i, state in enumerate(self.states) if state in (TO_RUN, AGAIN)]

    def with_state(self, i: int, state: str, seconds: float = 0.0) -> "Function":
        """Return it with one mutant's state changed."""
        states = self.states[:i] + state + self.states[i + 1 :]
        return self._replace(states=states, seconds=self.seconds + seconds)


Functions = dict[str, Function]  # by key


# The list


def module_name(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def is_in_full(path: str) -> bool:
    return pathlib.Path(path).stem in IN_FULL


@functools.cache  # a run is about the sources that it began with
def parts_of_today() -> dict[str, tuple[str, mutation.Part]]:
    """Return path and part of each function of a3c/, by key; twins have keys of their own."""
    found: dict[str, tuple[str, mutation.Part]] = {}
    for path in sorted(ROOT.glob("a3c/**/*.py")):
        for part in mutation.parts_of(path.read_text()):
            key = part.key
            while key in found:
                key += "+"
            found[key] = str(path.relative_to(ROOT)), part
    return found


def read_list(text: str) -> dict[str, tuple[float, str]]:
    """Return seconds and states, by key."""
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return {key: (float(seconds), states) for key, seconds, states, _ in lines}


def functions_of_today(text: str) -> Functions:
    """Return all functions of a3c/, with what the list tells of them; draw the sample of new ones."""
    told = read_list(text)
    functions = {}
    drawn_from: list[tuple[str, int]] = []
    n_drawn = 0
    for key, (path, part) in parts_of_today().items():
        n = len(part.mutants)
        seconds, states = told.get(key, (0.0, ""))
        if len(states) != n:  # a new function, or the kinds of mutants have changed
            seconds, states = 0.0, NOT_SAMPLED * n
            drawn_from += [] if is_in_full(path) else [(key, i) for i in range(n)]
        if is_in_full(path):
            states = states.replace(NOT_SAMPLED, TO_RUN)
        else:
            n_drawn += n - states.count(NOT_SAMPLED)
        functions[key] = Function(path, part, seconds, states)
    # The order depends on the function alone.
    drawn_from.sort(key=lambda drawn: mutation.hash_of(f"{SAMPLE_SEED} {drawn}"))
    for key, i in drawn_from[: max(0, SAMPLE_SIZE - n_drawn)]:
        functions[key] = functions[key].with_state(i, TO_RUN)
    return functions


def text_of(functions: Functions, excused: Mapping[str, str]) -> str:
    """Return the list."""
    lines = ["# Made by `make mutants`; tests/tools/mutants.py explains it."]
    lines += [f"# {line}" for line in score(functions.values(), excused)]
    for key, function in sorted(functions.items(), key=lambda item: (item[1].name, item[0])):
        name = function.name.replace(" ", "")
        lines.append(f"{key} {function.seconds:.0f} {function.states} {name}")
    return "\n".join(lines) + "\n"


def read_equivalent(text: str) -> dict[str, str]:
    """Return the reasons by the mutants' names: each block is a line with the name and the reason."""
    reasons = {}
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if not line.startswith("#")]
        if lines:
            assert len(lines) > 1, f"{lines[0]}: no reason"
            reasons[lines[0]] = " ".join(line.strip() for line in lines[1:])
    return reasons


def score(functions: Iterable[Function], excused: Mapping[str, str]) -> Iterator[str]:
    """Yield how much is left to run and which share of the mutants was noticed."""
    functions = list(functions)
    n_run = sum(len(f.states) - f.states.count(NOT_SAMPLED) - len(f.left()) for f in functions)
    n_left = sum(len(f.left()) for f in functions)
    n_whole = sum(not f.left() for f in functions)
    seconds = sum(f.seconds for f in functions)
    each = seconds / n_run if n_run else SECONDS_PER_MUTANT
    yield f"{n_whole} of {len(functions)} functions need no run; {n_run} mutants ran."
    yield f"{n_left} mutants are left to run: about {n_left * each / 3600:.1f} hours of one core."
    for name, some in (
        ("In the modules where all are made", [f for f in functions if f.is_in_full]),
        (SAMPLE, [f for f in functions if not f.is_in_full]),
    ):
        n = {state: sum(f.states.count(state) for f in some) for state in "ktsn"}
        n_excused = sum(name in excused for f in some for name in survivors(f))
        noticed, counted = n["k"] + n["t"] + n["n"], sum(n.values()) - n_excused
        if not counted:
            continue
        yield (
            f"{name}, tests notice {noticed} of {counted} ({noticed / counted:.1%});"
            f" {n_excused} more cannot be noticed, as they change nothing."
        )
        if name == SAMPLE:
            low, high = wilson(noticed - n["n"], counted)
            share = (noticed - n["n"]) / counted
            yield (
                f"Before we wrote tests for {n['n']} of the sample, it was {share:.1%}"
                f" (95 % interval: {low:.1%} to {high:.1%})."
            )


def survivors(function: Function) -> list[str]:
    """Return the names of the mutants that survived."""
    mutants = zip(function.mutant_names, function.states, strict=True)
    return [name for name, state in mutants if state == SURVIVED]


def wilson(k: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Return Wilson's interval for a share of k in n."""
    centre = (k + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(k * (n - k) / n + z * z / 4)
    return centre - half, centre + half


def to_run_again(
    functions: Functions, files: Sequence[str], only_survivors: bool, excused: Mapping[str, str]
) -> Functions:
    """Return the functions with those mutants marked that the user wants to run again."""

    def marked(state: str, name: str) -> str:
        if only_survivors:
            return AGAIN if state == SURVIVED and name not in excused else state
        again = {KILLED: TO_RUN, TIMEOUT: TO_RUN, SURVIVED: AGAIN, NOTICED_SINCE: AGAIN}
        return again.get(state, state)

    def of(function: Function) -> Function:
        mutants = zip(function.states, function.mutant_names, strict=True)
        return function._replace(states="".join(marked(*mutant) for mutant in mutants))

    return {
        key: of(function) if not files or function.path in files else function
        for key, function in functions.items()
    }


def files_of_tests(path: str) -> list[str]:
    """Return the test files of a module, its own first."""
    module = pathlib.PurePath(path).relative_to("a3c").with_suffix("")
    own = ROOT / f"tests/{module}_test.py"
    names = MORE_TESTS.get(str(module), MORE_TESTS.get(module.name, ()))
    files = [file for name in names for file in sorted(ROOT.glob(f"tests/**/{name}_test.py"))]
    return [str(file.relative_to(ROOT)) for file in (own, *files) if file.exists()]


# Running


class Outcome(NamedTuple):
    """How one run of tests ended."""

    code: int | None  # pytest's, or None where it took too long
    failed: str  # the first test that failed
    seconds: float


class Plugin:
    """Notes for each test how long it took and which marked functions it entered."""

    def __init__(self, out: pathlib.Path) -> None:
        self.out = out
        self.failed = ""
        self.seconds: dict[str, float] = {}
        self.seconds_of_setups = 0.0
        self.entered: dict[str, list[str]] = {}
        self._now: set[str] = set()

    def mark(self, function: str) -> None:
        self._now.add(function)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.when == "setup":
            self.seconds_of_setups += report.duration
        if report.failed and not self.failed:
            self.failed = report.nodeid
            self.write()
        if report.when == "teardown":
            self.entered[report.nodeid] = sorted(self._now)
            self._now.clear()

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = f"{report.nodeid}(import)"

    def write(self) -> None:
        told = {
            "failed": self.failed,
            "seconds": self.seconds,
            "entered": self.entered,
            "seconds_of_setups": self.seconds_of_setups,
        }
        self.out.write_text(json.dumps(told))


class Workshop:
    """A copy of the tree in which files are changed and tests run."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        files = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True)
        for name in files.stdout.splitlines():
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        self._time = 1_000_000_000

    def put(self, path: str, source: str) -> None:
        """Write a file, with a time of its own, by which cached bytecode of another is known."""
        self._time += 10
        (self.folder / path).write_text(source)
        os.utime(self.folder / path, (self._time, self._time))

    def run(
        self, tests: Iterable[str], seconds: float, marks: bool = False
    ) -> tuple[Outcome, dict]:
        """Run tests until one fails, in a fork of this process."""
        out = self.folder / "outcome.json"
        out.unlink(missing_ok=True)
        start = time.monotonic()
        assert len(os.listdir("/proc/self/task")) == 1, "TensorFlow's threads would be missing"
        pid = os.fork()
        if pid == 0:
            self._child(list(tests), out, marks)
        try:
            code = self._wait(pid, seconds)
        finally:
            end_children()
        told = json.loads(out.read_text()) if out.exists() else {"failed": ""}
        return Outcome(code, told["failed"] or "-", time.monotonic() - start), told

    def _child(self, tests: list[str], out: pathlib.Path, marks: bool) -> None:
        code = 99
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.setpgid(0, 0)  # not setsid(), which would end our low priority
            resource.setrlimit(resource.RLIMIT_DATA, (MAX_BYTES, MAX_BYTES))
            os.chdir(self.folder)
            sys.path[0] = str(self.folder)
            for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "a3c")]:
                del sys.modules[name]
            log = os.open(self.folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for descriptor in (1, 2):
                os.dup2(log, descriptor)
            import builtins

            import pytest

            plugin = Plugin(out)
            builtins.mutants_mark = plugin.mark  # type: ignore[attr-defined]
            options = ["-q", "-p", "no:cacheprovider", "--no-header", "--tb=short"]
            code = int(pytest.main([*options, *([] if marks else ["-x"]), *tests], [plugin]))
            plugin.write()
        finally:
            os._exit(code)

    def _wait(self, pid: int, seconds: float) -> int | None:
        """Return the exit code; None, and the process killed, if it takes longer."""
        descriptor = os.pidfd_open(pid)
        try:
            ended = select.select([descriptor], [], [], seconds)[0]
        finally:
            os.close(descriptor)
        if not ended:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        return os.waitstatus_to_exitcode(status) if ended else None


def end_children() -> None:
    """End all processes that tests have left, in whatever session: orphans come to us."""
    while True:
        path = pathlib.Path("/proc/self/task") / str(os.getpid()) / "children"
        children = [int(pid) for pid in path.read_text().split()]
        if not children:
            return
        for pid in children:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


class Baseline(NamedTuple):
    """The tests of one file on the right source, the quickest first."""

    seconds: dict[str, float]
    entered: dict[str, list[str]]
    seconds_of_setups: float  # what several tests share is set up by the first of them

    def entering(self, function: str) -> list[str]:
        return [test for test in self.seconds if function in self.entered.get(test, ())]

    def limit(self, tests: Iterable[str]) -> float:
        """Return how long to wait for these tests: a busy machine is five times slower."""
        return 60 + 5 * (self.seconds_of_setups + sum(self.seconds[test] for test in tests))


class RightSource:
    """A copy of the tree without a mutant, whose functions say that they were entered."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._workshop = Workshop(folder)
        self._files: dict[str, Baseline] = {}
        header = (
            "import builtins\nmutants_mark = getattr(builtins, 'mutants_mark', lambda _: None)\n"
        )
        # After the docstring and imports from __future__ would be neater; we have none of the latter.
        for file in ROOT.glob("a3c/**/*.py"):
            path = str(file.relative_to(ROOT))
            marked = mutation.functions_marked(file.read_text(), "mutants_mark", path)
            self._workshop.put(path, header + marked)

    def run(self, file: str) -> Baseline:
        """Run all tests of a file, which must pass."""
        outcome, told = self._workshop.run([file], 3600, marks=True)
        if outcome.code != 0:
            log = (self._workshop.folder / "log.txt").read_text(errors="replace")
            raise SystemExit(f"{file} fails without any change: {outcome}\n{log[-4000:]}")
        seconds = dict(sorted(told["seconds"].items(), key=lambda item: item[1]))
        return Baseline(seconds, told["entered"], told["seconds_of_setups"])

    def baseline(self, file: str) -> Baseline:
        """Return what is known of a file, which runs when that is first needed."""
        if file not in self._files:
            self._files[file] = self.run(file)
        return self._files[file]


Round = tuple[Baseline, list[str]]  # some tests of one file


def rounds(right: RightSource, function: str, files: Sequence[str]) -> Iterator[Round]:
    """Yield the tests of the module's own file, which is the first, that entered the function; as many
    of the other files as take OTHERS_SECONDS; then so much of its own file again, whatever it
    entered: what is cached, one test enters for all. What no test entered, because it runs in other
    processes or on import, all may notice."""
    own = right.baseline(files[0])
    entering = own.entering(function)
    yield own, entering or [*own.seconds]
    is_entered = bool(entering)
    for others in within(map(right.baseline, files[1:]), lambda other: other.entering(function)):
        is_entered = True
        yield others
    if not is_entered:
        yield from within(map(right.baseline, files[1:]), lambda other: other.seconds)
    if entering:
        yield from within([own], lambda own: own.seconds.keys() - entering)


def within(
    baselines: Iterable[Baseline], choose: Callable[[Baseline], Iterable[str]]
) -> Iterator[Round]:
    """Yield the quickest of the chosen tests of each file, in all as many as take OTHERS_SECONDS."""
    left = OTHERS_SECONDS
    for baseline in baselines:
        tests = []
        for test in sorted(choose(baseline), key=baseline.seconds.__getitem__):
            if baseline.seconds[test] < left:
                left -= baseline.seconds[test]
                tests.append(test)
        if tests:
            yield baseline, tests


def judge(workshop: Workshop, right: RightSource, function: str, files: Sequence[str]) -> Outcome:
    """Run the tests of these files against the mutant in place until one notices it."""
    seconds = 0.0
    outcome = Outcome(0, "-", 0.0)
    for baseline, tests in rounds(right, function, files):
        outcome, _ = workshop.run(tests, baseline.limit(tests))
        seconds += outcome.seconds
        if outcome.code != 0:
            break
    if outcome.code == NO_SUCH_TEST:  # a case is named by something that the mutant changed
        outcome, _ = workshop.run(files, 3600)
        seconds += outcome.seconds
    return outcome._replace(seconds=seconds)


def state_of(outcome: Outcome) -> str:
    """What a run of tests says of the mutant. One that ended otherwise than tests do says nothing."""
    if outcome.code is None:
        return TIMEOUT
    if outcome.code == 0:
        return SURVIVED
    has_failed = outcome.code in (FAILED, INTERRUPTED) and outcome.failed != "-"
    has_crashed = outcome.code < 0 and outcome.code != -signal.SIGKILL  # that is for want of memory
    if has_failed or has_crashed:
        return KILLED
    raise SystemExit(f"pytest ended with {outcome.code}, and no test had failed")


class OutOfTime(Exception):
    """The minutes that the user gave are over."""


def run_module(
    path: str,
    functions: Functions,
    right: RightSource,
    save: Callable[[str, Function], None],
    end: float,
) -> None:
    """Run the mutants that are left of one module; hand on the function after each."""
    todo = [(key, i) for key, f in functions.items() if f.path == path for i in f.left()]
    if not todo:
        return
    source, files = (ROOT / path).read_text(), files_of_tests(path)
    with tempfile.TemporaryDirectory() as folder:
        workshop = Workshop(pathlib.Path(folder))
        print(f"{path}: {len(todo)} mutants", flush=True)
        for number, (key, i) in enumerate(todo, start=1):
            if time.monotonic() > end:
                raise OutOfTime
            function = functions[key]
            mutant = function.part.mutants[i]
            workshop.put(path, mutant.apply(source))
            outcome = judge(workshop, right, f"{path}:{function.part.name}", files)
            state = state_of(outcome)
            if function.states[i] == AGAIN and state != SURVIVED:
                state = NOTICED_SINCE
            functions[key] = function.with_state(i, state, outcome.seconds)
            line = f"{number}/{len(todo)} {state} {outcome.seconds:.0f} s {outcome.failed}"
            print(f"{line} | {path}:{mutant.line} {function.mutant_names[i]}", flush=True)
            save(key, functions[key])
            if number % CHECKED_EVERY == 0:
                right.run(files[0])


def shares(functions: Functions, paths: Sequence[str], n_jobs: int) -> list[list[str]]:
    """Return the modules of each job, with about as many mutants to run in each."""
    n_left = {
        path: sum(len(f.left()) for f in functions.values() if f.path == path) for path in paths
    }
    found: list[list[str]] = [[] for _ in range(n_jobs)]
    for path in sorted(paths, key=lambda path: -n_left[path]):
        min(found, key=lambda share: sum(n_left[path] for path in share)).append(path)
    return found


def warm_up() -> None:
    """Load what the tests will need, so that forks have it."""
    # These start threads when loaded; pandas, which comes with Ray, loads pyarrow.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    ctypes.CDLL(None).prctl(SUBREAPER, 1)
    import ale_py  # noqa: F401
    import cv2  # noqa: F401
    import gymnasium  # noqa: F401
    import hypothesis  # noqa: F401
    import matplotlib.figure  # noqa: F401
    import pytest  # noqa: F401
    import safetensors.numpy  # noqa: F401
    import tensorboard.backend.event_processing.plugin_event_accumulator  # noqa: F401
    import tensorflow  # noqa: F401
    import tqdm  # noqa: F401


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Run the tests against mutants of a3c/.")
    parser.add_argument(
        "files", nargs="*", help="modules to run again, such as a3c/agent/losses.py"
    )
    parser.add_argument("--survivors", action="store_true", help="run again only what survived")
    parser.add_argument("--score", action="store_true", help="print the score and run nothing")
    parser.add_argument("--jobs", type=int, default=1, help="how many modules run at a time")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after this time")
    parser.add_argument("--share", help=argparse.SUPPRESS)  # the modules of this job
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    end = time.monotonic() + 60 * given.minutes
    excused = read_equivalent(EQUIVALENT.read_text()) if EQUIVALENT.exists() else {}

    def read() -> Functions:
        return functions_of_today(LIST.read_text() if LIST.exists() else "")

    def save(key: str, function: Function) -> None:
        with LIST.open("a") as lock:  # another job may be writing
            fcntl.flock(lock, fcntl.LOCK_EX)
            LIST.write_text(text_of(read() | {key: function}, excused))

    functions = read()
    if given.files or given.survivors:
        functions = to_run_again(functions, given.files, given.survivors, excused)
    all_paths = dict.fromkeys(function.path for function in functions.values())
    paths = given.files or sorted(all_paths, key=lambda path: not is_in_full(path))
    status = 0
    if given.jobs > 1 and given.share is None and not given.score:
        # A job for each share: a job kills all the children it has.
        commands = [
            [sys.executable, __file__, *arguments, f"--share={','.join(share)}"]
            for share in shares(functions, paths, given.jobs)
        ]
        jobs = [subprocess.Popen(command) for command in commands]
        try:
            status = max(abs(job.wait()) for job in jobs)  # negative: killed
        finally:
            for job in jobs:
                job.terminate()
    elif not given.score:
        os.nice(10)
        warm_up()
        with contextlib.suppress(OutOfTime), tempfile.TemporaryDirectory() as folder:
            right = RightSource(pathlib.Path(folder))
            for path in paths if given.share is None else filter(None, given.share.split(",")):
                run_module(path, functions, right, save, end)
    if given.share is None:
        functions = read()
        print(*score(functions.values(), excused), sep="\n")
        known = {name for f in functions.values() for name in f.mutant_names}
        for name in sorted(excused.keys() - known):
            print(f"{EQUIVALENT.name} gives a reason for a mutant that does not exist: {name}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
