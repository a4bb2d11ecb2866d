"""Runs the tests against every mutant of a3c/ and keeps a list of which were noticed.

    make mutants                                    all that tests/mutants.txt does not tell yet, on
                                                    every core
    python3 tests/tools/mutants.py a3c/agent/losses.py          one file, whatever the list has of it
    python3 tests/tools/mutants.py --survivors a3c/agent/losses.py   what survived, against the tests of
                                                    today; not those known to be equivalent
    python3 tests/tools/mutants.py --score                the list in figures

A tool of our own, because those that are kept up cost too much here: mutmut forks after the tests
have run once, TensorFlow's threads and all; cosmic-ray starts a new process for each mutant, which
is five seconds for loading TensorFlow, and then runs one command for them all.

Here, a process that has loaded TensorFlow but not used it, and so has one thread, is forked for
each mutant. The tests run in a copy of the tree with the mutant in its place, so that environment
processes and programs that tests start get it, too. Of the module's tests, those run that entered
the mutant's function on a run of the right source. One that fails or hangs has noticed the mutant.

The list has a section for each file with the hash of the source it is about; with another source,
the section does not count, but for what survived, and is made anew. It is written after every
mutant, so a run can be stopped at any time and goes on where it was. A mutant that changes nothing
that could be seen stands in tests/mutants_equivalent.txt, with the reason.

A test is written for each mutant of the sample that survives, and then notices it: that says
nothing of the mutants outside the sample. So the list keeps which were noticed only since, and the
interval is of those that were noticed when first met. Where much of a3c/ has changed, another
SAMPLE_SEED draws a sample that no test was written for.
"""

import argparse
import contextlib
import ctypes
import fcntl
import hashlib
import itertools
import json
import math
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "tests" / "mutants.txt"
EQUIVALENT = ROOT / "tests" / "mutants_equivalent.txt"
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.tools import mutation  # noqa: E402 (needs the path)

# Of these modules every mutant counts; of the others, a sample.
IN_FULL = (
    "losses",
    "optimizer",
    "score",
    "wrappers",
    "screen",
    "shared",
    "network",
    "learner",
    "worker",
)
SAMPLE_SIZE = 300
SAMPLE_SEED = 1

# Test files beside a module's own that may notice something.
MORE_TESTS = {
    "losses": ("properties", "worker", "oracle_replay", "learning"),
    "optimizer": ("properties", "shared", "worker", "sharing", "oracle_replay"),
    "score": ("properties", "replay_by_hand", "make", "pool"),
    "wrappers": ("properties", "replay_by_hand", "make"),
    "screen": ("make", "wrappers", "replay_by_hand"),
    "shared": ("worker", "checkpoint", "sharing", "oracle_replay"),
    "network": ("worker", "checkpoint", "oracle_replay", "pins"),
    "learner": ("worker", "failure", "properties", "learning", "shared", "oracle_replay"),
    "worker": ("failure", "properties", "learning", "training"),
    "make": ("replay_by_hand", "preprocessing_play"),
    "pool": ("process", "host", "replay_by_hand"),
    "process": ("pool", "host", "env_fault", "replay_by_hand"),
    "serve": ("pool", "process", "host", "env_fault"),
    "seeding": ("properties", "make", "training"),
    "debug_wrappers": ("make", "wrappers"),
    "run_folder": ("resume", "safety", "train"),
    "params": ("command_line", "run_folder", "resume"),
    "command_line": ("params", "train"),
    "logs": ("training", "train"),
    "checkpoint": ("evaluator", "resume", "training", "train"),
    "checkpoint_files": ("checkpoint", "resume", "safety"),
    "stopping": ("train",),
    "training": ("resume", "train"),
    "watch": ("training", "train"),
    "debug_dump": ("properties", "worker", "show_debug_data"),
    "__init__": ("setup", "train"),
    "appending": ("disk", "logs", "score", "resume"),
    "atari_scores": ("evaluation",),
    "evaluation": ("evaluator", "run_checkpoint"),
    "evaluator": ("training", "resume"),
    "resume": ("watch", "train"),
    "screens": ("views", "preprocessing_play", "run_checkpoint"),
    "views": ("preprocessing_play", "run_checkpoint"),
    "events": ("logs", "resume"),
    "contract": ("worker", "checkpoint", "resume"),
}
OTHERS_SECONDS = 40
# After so many mutants, the right source has to pass once more: a machine that has become too slow
# or too full would notice every mutant.
CHECKED_EVERY = 50
FAILED, INTERRUPTED, NO_SUCH_TEST = 1, 2, 4  # pytest's
SUBREAPER = 36  # of prctl: orphans of our processes become our children


class Result(NamedTuple):
    """One line of the list."""

    # killed, timeout, survived; since: noticed by today's tests, survived earlier ones; again:
    # survived earlier ones, has not met today's yet
    status: str
    name: str
    seconds: float
    by: str  # the test that noticed


class Section(NamedTuple):
    """What the list tells of one file."""

    sha: str
    n_mutants: int
    results: dict[str, Result]


# The list


def read_results(text: str) -> dict[str, Section]:
    """Return the sections of the list, by file."""
    sections: dict[str, Section] = {}
    section = Section("", 0, {})
    for line in text.splitlines():
        if line.startswith("== "):
            path, sha, n_mutants = line[3:].split()[:3]
            section = sections[path] = Section(sha, int(n_mutants), {})
        elif line and not line.startswith("#"):
            status, seconds, by, name = line.split(maxsplit=3)
            section.results[name] = Result(status, name, float(seconds), by)
    return sections


def write_results(sections: dict[str, Section], equivalent: dict[str, str]) -> str:
    """Return the list's text."""
    results = [result for section in sections.values() for result in section.results.values()]
    hours = sum(result.seconds for result in results) / 3600
    lines = ["# Made by `make mutants`; see tests/tools/mutants.py. Status, seconds, test, mutant."]
    lines += [f"# {len(results)} mutants took {hours:.1f} hours of one core."]
    lines += [f"# {line}" for line in score(sections, equivalent)]
    for path, section in sorted(sections.items()):
        lines += ["", f"== {path} {section.sha} {section.n_mutants} mutants"]
        for result in section.results.values():
            by = result.by.replace(" ", "_")
            lines.append(f"{result.status:8} {result.seconds:6.1f} {by} {result.name}")
    return "\n".join(lines) + "\n"


def sections_of(now: Mapping[str, str]) -> dict[str, Section]:
    """Return what the list tells of the sources of now; of another source only what survived it."""
    sections = {}
    for path, section in read_results(RESULTS.read_text() if RESULTS.exists() else "").items():
        if path not in now:
            continue
        if section.sha != sha_of(now[path]):
            names = {mutant.name for mutant in mutation.mutants_of(now[path])}
            left = {name: section.results[name] for name in section.results.keys() & names}
            section = Section(sha_of(now[path]), len(names), to_run_again(left, names))
        if section.results:
            sections[path] = section
    return sections


def to_run_again(results: Mapping[str, Result], names: Set[str]) -> dict[str, Result]:
    """A file's results without those of the names, but for the note of what has survived."""
    return {
        name: result._replace(status="again") if name in names else result
        for name, result in results.items()
        if name not in names or result.status in ("survived", "since", "again")
    }


def unexplained(
    path: str, results: Mapping[str, Result], equivalent: Mapping[str, str]
) -> set[str]:
    """The survivors of a file that no reason is given for."""
    return {
        name
        for name, result in results.items()
        if result.status == "survived" and f"{path}: {name}" not in equivalent
    }


def left_to_run(wanted: Set[str], results: Mapping[str, Result]) -> set[str]:
    return {name for name in wanted if name not in results or results[name].status == "again"}


def shares(paths: Sequence[str], todo: Mapping[str, set[str]], n_jobs: int) -> list[list[str]]:
    """Return the paths of each job, about as many mutants to run in each."""
    found: list[list[str]] = [[] for _ in range(n_jobs)]
    n_mutants = [0] * n_jobs
    for path in sorted(paths, key=lambda path: -len(todo[path])):
        least = n_mutants.index(min(n_mutants))
        found[least].append(path)
        n_mutants[least] += len(todo[path])
    return found


def read_equivalent(text: str) -> dict[str, str]:
    """Return the reasons, by file and mutant: a line `path: mutant`, below it the reason."""
    reasons = {}
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if not line.startswith("#")]
        if lines:
            assert len(lines) > 1, f"{lines[0]}: no reason"
            reasons[lines[0]] = " ".join(line.strip() for line in lines[1:])
    return reasons


def score(sections: dict[str, Section], equivalent: dict[str, str]) -> Iterator[str]:
    """Yield what share of the mutants was noticed, file by file and in all."""
    totals = {True: [0] * 5, False: [0] * 5}
    for path, section in sorted(sections.items()):
        run = section.results.values()
        noticed = sum(result.status not in ("survived", "again") for result in run)
        excused = sum(
            result.status == "survived" and f"{path}: {result.name}" in equivalent for result in run
        )
        since = sum(result.status == "since" for result in run)
        figures = [noticed, len(run) - excused, since, excused, len(run)]
        total = totals[pathlib.Path(path).stem in IN_FULL]
        total[:] = [a + b for a, b in zip(total, figures, strict=True)]
        yield f"{path}: {_figures(*figures)} of {section.n_mutants}"
    if totals[True][-1]:
        yield f"in full: {_figures(*totals[True])}"
    if totals[False][-1]:
        yield f"sampled: {_figures(*totals[False])}"
        noticed, n, since, *_ = totals[False]
        share, (low, high) = (noticed - since) / n, wilson(noticed - since, n)
        yield f"sampled, when first met: {share:.1%}, 95 % interval {low:.1%} to {high:.1%}"


def _figures(noticed: int, n: int, since: int, excused: int, n_run: int) -> str:
    share = f" = {noticed / n:.1%}" if n else ""
    return (
        f"{noticed} of {n} noticed{share}, {since} of them since, {excused} equivalent, {n_run} run"
    )


def wilson(k: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Return Wilson's interval for a share of k in n."""
    centre = (k + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(k * (n - k) / n + z * z / 4)
    return centre - half, centre + half


# What to run


def sources() -> dict[str, str]:
    """Return every source of a3c/, by path."""
    return {
        str(path.relative_to(ROOT)): path.read_text() for path in sorted(ROOT.glob("a3c/**/*.py"))
    }


def sha_of(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()[:12]


def sampled(all_sources: dict[str, str]) -> dict[str, set[str]]:
    """Return the names of the mutants to run of each file: all, or those of the sample."""
    names = {
        path: [mutant.name for mutant in mutation.mutants_of(source)]
        for path, source in all_sources.items()
    }
    rest = [
        (path, name)
        for path in names
        if pathlib.Path(path).stem not in IN_FULL
        for name in names[path]
    ]
    # Ranks by hash: a change to one file leaves the sample of the others nearly as it was.
    rest.sort(key=lambda pair: sha_of(f"{SAMPLE_SEED} {pair}"))
    chosen = set(rest[:SAMPLE_SIZE])
    return {
        path: {
            name
            for name in names[path]
            if pathlib.Path(path).stem in IN_FULL or (path, name) in chosen
        }
        for path in names
    }


def files_of_tests(path: str) -> list[str]:
    """Return the test files of a source, its own first."""
    module = pathlib.Path(path).stem
    return [
        str(file.relative_to(ROOT))
        for name in (module, *MORE_TESTS.get(module, ()))
        for file in ROOT.glob(f"tests/**/{name}_test.py")
    ]


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
            os.setsid()
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
    """The tests of one file on the right source."""

    seconds: dict[str, float]
    entered: dict[str, list[str]]
    seconds_of_setups: float  # what several tests share is set up by the first of them

    def rounds(self, function: str, own_file: str) -> list[list[str]]:
        """Return the tests that entered the function, those of the module's own file first, and
        the quickest first in both, and of the others as many as take OTHERS_SECONDS; then so much of
        the module's own file again, whatever it entered: what is cached, one test enters for all.
        What no test entered, because it runs in other processes or on import, all may notice."""
        tests = sorted(self.seconds, key=self.seconds.__getitem__)
        entered = [test for test in tests if function in self.entered.get(test, ())] or tests
        own = [test for test in entered if test.startswith(own_file)]
        others = self._first([test for test in entered if test not in own])
        rest = [test for test in tests if test.startswith(own_file) and test not in own]
        return [tests for tests in (own, others, self._first(rest)) if tests]

    def _first(self, tests: Sequence[str]) -> list[str]:
        """Return as many as take OTHERS_SECONDS."""
        seconds = itertools.accumulate(self.seconds[test] for test in tests)
        return [test for test, sum_ in zip(tests, seconds, strict=True) if sum_ < OTHERS_SECONDS]

    def limit(self, tests: Iterable[str]) -> float:
        """Return how long to wait for tests that took so long: a busy machine is five times slower."""
        return 60 + 5 * (self.seconds_of_setups + sum(self.seconds[test] for test in tests))


def baseline_of(workshop: Workshop, path: str, source: str) -> Baseline:
    """Run all tests of a file, which must pass."""
    marked = mutation.functions_marked(source, "mutants_mark")
    header = "import builtins\nmutants_mark = getattr(builtins, 'mutants_mark', lambda _: None)\n"
    # After the docstring and imports from __future__ would be neater; we have none of the latter.
    workshop.put(path, header + marked)
    outcome, told = workshop.run(files_of_tests(path), 3600, marks=True)
    workshop.put(path, source)
    if outcome.code != 0:
        log = (workshop.folder / "log.txt").read_text(errors="replace")
        raise SystemExit(f"{path}: its tests fail without any change: {outcome}\n{log[-4000:]}")
    return Baseline(told["seconds"], told["entered"], told["seconds_of_setups"])


def judge(workshop: Workshop, baseline: Baseline, function: str, files: Sequence[str]) -> Outcome:
    """Run the tests of these files, the module's own first, against the mutant in place until one
    notices it."""
    seconds = 0.0
    outcome = Outcome(0, "-", 0.0)
    for tests in baseline.rounds(function, files[0]):
        if outcome.code == 0:
            outcome, _ = workshop.run(tests, baseline.limit(tests))
            seconds += outcome.seconds
    if outcome.code == NO_SUCH_TEST:  # a case is named by something that the mutant changed
        outcome, _ = workshop.run(files, baseline.limit(baseline.seconds))
        seconds += outcome.seconds
    return outcome._replace(seconds=seconds)


def status_of(outcome: Outcome) -> str:
    """What a run of tests says of the mutant. One that ended otherwise than tests do says nothing."""
    if outcome.code is None:
        return "timeout"
    if outcome.code == 0:
        return "survived"
    has_failed = outcome.code in (FAILED, INTERRUPTED) and outcome.failed != "-"
    has_crashed = outcome.code < 0 and outcome.code != -signal.SIGKILL  # that is for want of memory
    if has_failed or has_crashed:
        return "killed"
    raise SystemExit(f"pytest ended with {outcome.code}, and no test had failed")


def run_file(
    path: str,
    source: str,
    wanted: set[str],
    old: dict[str, Result],
    save: Callable[[Section], None],
) -> None:
    """Run what old leaves to run of one file's wanted mutants; hand on the results after each."""
    mutants = mutation.mutants_of(source)
    todo = [mutant for mutant in mutants if mutant.name in left_to_run(wanted, old)]
    if not todo:
        return
    with tempfile.TemporaryDirectory() as folder:
        workshop = Workshop(pathlib.Path(folder))
        print(
            f"{path}: {len(todo)} mutants to run; first its tests on the right source", flush=True
        )
        baseline = baseline_of(workshop, path, source)
        print(f"{len(baseline.seconds)} tests, {sum(baseline.seconds.values()):.0f} s", flush=True)
        results = dict(old)
        for number, mutant in enumerate(todo, start=1):
            workshop.put(path, mutant.apply(source))
            outcome = judge(workshop, baseline, mutant.function, files_of_tests(path))
            status = status_of(outcome)
            if mutant.name in old and status != "survived":
                status = "since"
            results[mutant.name] = Result(status, mutant.name, outcome.seconds, outcome.failed)
            line = f"{number}/{len(todo)} {status} {outcome.seconds:.0f} s {outcome.failed}"
            print(f"{line} | {path}:{mutant.line} {mutant.name}", flush=True)
            in_order = {m.name: results[m.name] for m in mutants if m.name in results}
            save(Section(sha_of(source), len(mutants), in_order))
            if number % CHECKED_EVERY == 0:
                baseline = baseline_of(workshop, path, source)


def warm_up() -> None:
    """Load what the tests will need, so that forks have it."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # It starts its threads when loaded.
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    ctypes.CDLL(None).prctl(SUBREAPER, 1)
    import ale_py  # noqa: F401
    import cv2  # noqa: F401
    import gymnasium  # noqa: F401
    import pytest  # noqa: F401
    import tensorflow  # noqa: F401


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Run the tests against mutants of a3c/.")
    parser.add_argument("files", nargs="*", help="such as a3c/agent/losses.py; run anew")
    parser.add_argument("--survivors", action="store_true", help="of the files, only what survived")
    parser.add_argument("--score", action="store_true", help="print the score and run nothing")
    parser.add_argument("--jobs", type=int, default=1, help="so many files at a time")
    parser.add_argument("--share", help=argparse.SUPPRESS)  # the files of this job
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    now = sources()
    equivalent = read_equivalent(EQUIVALENT.read_text()) if EQUIVALENT.exists() else {}
    status = 0
    wanted = sampled(now)
    paths = given.files or sorted(now, key=lambda path: pathlib.Path(path).stem not in IN_FULL)
    old = {path: section.results for path, section in sections_of(now).items()}
    for path, results in old.items():
        if given.survivors:
            old[path] = to_run_again(results, unexplained(path, results, equivalent))
        elif path in given.files:
            old[path] = to_run_again(results, results.keys())
    if given.jobs > 1 and given.share is None and not given.score:
        todo = {path: left_to_run(wanted[path], old.get(path, {})) for path in paths}
        # All of them: a job ends whatever children it has.
        commands = [
            [sys.executable, __file__, *arguments, f"--share={','.join(share)}"]
            for share in shares(paths, todo, given.jobs)
        ]
        jobs = [subprocess.Popen(command) for command in commands]
        try:
            status = max(job.wait() for job in jobs)
        finally:
            for job in jobs:
                job.terminate()
    elif not given.score:
        warm_up()
        for path in paths if given.share is None else filter(None, given.share.split(",")):

            def save(section: Section, path: str = path) -> None:
                with RESULTS.open("a") as lock:  # another job may be about to
                    fcntl.flock(lock, fcntl.LOCK_EX)
                    sections = sections_of(now) | {path: section}
                    RESULTS.write_text(write_results(sections, equivalent))

            run_file(path, now[path], wanted[path], old.get(path, {}), save)
    if given.share is None:
        print(*score(sections_of(now), equivalent), sep="\n")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
