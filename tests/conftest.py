"""Settings for all tests, made before any test module is loaded, and the budgets of `make test`.

Hypothesis takes the same examples in every run, so no push fails by bad luck; `make test-slow` tries
fifty times as many new ones. An example has no time limit, which would test the machine.

NumPy multiplies matrices on one thread. Only the oracle needs it, and on a busy machine several
threads wait for each other ten times as long as they compute.
"""

import collections
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Generator
from typing import NoReturn

import hypothesis
import pytest
from _pytest.runner import runtestprotocol

from a3c.machine import tensorflow_process
from a3c.store import provenance
from benchmarks import machine

sys.modules[tensorflow_process.KERAS] = None  # type: ignore[assignment] (no test needs it)
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy reads it when it is loaded
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow would print a lot about itself
for name in provenance.POINTERS:  # in a hook of git; tests make repositories of their own
    os.environ.pop(name, None)

for name, derandomize, n_examples in (("same every time", True, 100), ("new ones", False, 5000)):
    hypothesis.settings.register_profile(
        name,
        derandomize=derandomize,
        max_examples=n_examples,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
hypothesis.settings.load_profile("same every time")

# Seconds of tests in a whole `make test`, on a machine with two cores; the folder "" holds the test
# files that are in no room. A process on each core leaves `make test` under ten minutes.
SECONDS = {
    "": 560,
    "agent": 200,
    "envs": 75,
    "machine": 35,
    "play": 35,
    "run": 70,
    "settings": 15,
    "store": 75,
    "sweep": 10,
    "tools": 40,
}
GIGABYTES = 4.0  # of all processes together
LOOK_SECONDS = 2.0

COLLECTED = pytest.StashKey[set[str]]()  # the names of all tests but the weekly ones


class Budgets:
    """Adds up the seconds of each room and watches the memory; lives in pytest's first process."""

    def __init__(self) -> None:
        self.seconds: collections.Counter[str] = collections.Counter()
        self.n_bytes = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._end.wait(LOOK_SECONDS):
            pids = descendants(os.getpid())
            self.n_bytes = max(self.n_bytes, machine.resident_bytes([os.getpid(), *pids]))

    def pytest_sessionstart(self) -> None:
        self._thread.start()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        folders = pathlib.PurePath(report.nodeid.partition("::")[0]).parts[1:-1]
        self.seconds[folders[0] if folders else ""] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        self._end.set()
        self._thread.join()
        terminalreporter.section("budgets")
        for line in lines(self.seconds, self.n_bytes):
            terminalreporter.line(line, yellow="OVER" in line)


def descendants(pid: int) -> list[int]:
    """Return the processes that this one has started, and those that they have started."""
    found = []
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it has just ended
            children = [int(child) for child in path.read_text().split()]
            found += [*children, *(below for child in children for below in descendants(child))]
    return found


def lines(seconds: collections.Counter[str], n_bytes: int) -> list[str]:
    """Return what was used beside its budget, a room a line."""
    rows = [(f"tests/{room}", seconds[room], SECONDS.get(room, 0), "s") for room in sorted(seconds)]
    rows.append(("memory", n_bytes / 1e9, GIGABYTES, "GB"))
    return [
        f"{what:15} {used:6.1f} of {budget:5.1f} {unit}{'  OVER' if used > budget else ''}"
        for what, used, budget, unit in rows
    ]


class ProcessAFile:
    """Runs each test file in a process forked for it, which has loaded TensorFlow but not used it.

    TensorFlow never frees what XLA has compiled, so one process for all files grows to 4 GB. Lives in
    xdist's workers.
    """

    def __init__(self) -> None:
        self._child: multiprocessing.connection.Connection | None = None
        self._pid = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        if nextitem is not None and nextitem.path != item.path:
            nextitem = None  # the process tears everything down
        if self._child is None:
            self._child, connection = multiprocessing.Pipe()
            # Python 3.12 warns that the child has none of this process's threads. It needs none.
            with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
                self._pid = os.fork()
            if self._pid == 0:
                self._child.close()
                _serve_tests(item.session, connection)
            connection.close()
        items = item.session.items
        self._child.send((items.index(item), nextitem and items.index(nextitem)))
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        try:
            told = self._child.recv()
        except EOFError:  # it has crashed; xdist reports the test and starts another worker
            os._exit(1)
        for data in told:
            report = item.config.hook.pytest_report_from_serializable(config=item.config, data=data)
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if nextitem is None:
            self._child.close()
            self._child = None
            os.waitpid(self._pid, 0)
        return True


def _serve_tests(
    session: pytest.Session, connection: "multiprocessing.connection.Connection"
) -> NoReturn:
    """Run the tests that are asked for, until no more follow."""
    config = session.config
    for plugin in config.pluginmanager.get_plugins():
        if type(plugin).__name__ == "WorkerInteractor":  # only the parent talks to xdist
            config.pluginmanager.unregister(plugin)
    try:
        with contextlib.suppress(EOFError):
            while True:
                number, following = connection.recv()
                reports = runtestprotocol(
                    session.items[number],
                    log=False,
                    nextitem=None if following is None else session.items[following],
                )
                serialize = config.hook.pytest_report_to_serializable
                connection.send([serialize(config=config, report=report) for report in reports])
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


@pytest.fixture
def no_display(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the display and the settings that whoever runs the tests may have."""
    names = ("DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR", "SDL_VIDEODRIVER", "MUJOCO_GL")
    for name in names:
        monkeypatch.setenv(name, "")  # so that it is put back, whatever happens to it meanwhile
        monkeypatch.delenv(name)


@pytest.fixture
def tmpdir_for_ray(monkeypatch: pytest.MonkeyPatch) -> Generator[pathlib.Path]:
    """TMPDIR, with a short name, which Ray needs for its sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as name:
        monkeypatch.setenv("TMPDIR", name)
        yield pathlib.Path(name)


def uses_tensorflow() -> bool:
    """Whether TensorFlow has started its threads in this process; to import it does not."""
    context = sys.modules.get("tensorflow.python.eager.context")
    found = context and context.context_safe()
    return bool(found and found._initialized)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Refuse a test module that uses TensorFlow when it is imported.

    Its threads do not survive a fork, so every test file would hang in its forked process.
    """
    used_before = uses_tensorflow()
    report = yield
    if isinstance(collector, pytest.Module) and uses_tensorflow() and not used_before:
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} uses TensorFlow at import: use NumPy there"
    return report


@pytest.hookimpl(tryfirst=True)  # before any are deselected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    by_default = (item for item in items if not item.get_closest_marker("weekly"))
    config.stash[COLLECTED] = {item.nodeid for item in by_default}


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(ProcessAFile())
    # Not in a process that runs tests: some of them count its threads.
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Budgets())
