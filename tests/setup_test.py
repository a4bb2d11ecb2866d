"""The set-up: the lock installs the same everywhere, and make continues where it was; nothing is installed here."""

import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import tomllib
from typing import Any

import pytest
from packaging.markers import Marker

from tests.tools import pipfile
from tests.tools.processes import ROOT

PIPFILE = tomllib.loads((ROOT / "Pipfile").read_text(encoding="utf-8"))
LOCK = json.loads((ROOT / "Pipfile.lock").read_text(encoding="utf-8"))
# in Pipfile: in Pipfile.lock
SECTIONS = {"packages": "default", "dev-packages": "develop", "ray": "ray"}
TENSORFLOWS = ("tensorflow-cpu", "tensorflow")


def problems_of_lock(lock: dict[str, Any]) -> list[str]:
    """What keeps a lock from installing the same packages everywhere, one line each."""
    problems = []
    if lock["_meta"].get("sources") != [] or "://" in json.dumps(lock) or "source" in PIPFILE:
        problems.append("names an index, or lacks the empty list of them")
    for in_pipfile, in_lock in SECTIONS.items():
        for package, entry in lock[in_lock].items():
            if not re.fullmatch(r"==[\w.!+]+", entry.get("version", "")):
                problems.append(f"{package} has no exact version")
            if not all(
                re.fullmatch(r"sha256:[0-9a-f]{64}", h) for h in entry.get("hashes") or [""]
            ):
                problems.append(f"{package} has no hashes")
            if "index" in entry:
                problems.append(f"{package} names an index")
            if "platform_machine" in entry.get("markers", "") and package not in TENSORFLOWS:
                problems.append(f"{package} is for some machines only")
        for package in PIPFILE[in_pipfile].keys() - lock[in_lock].keys():
            problems.append(f"{package} is not locked")
    return problems


def test_lock() -> None:
    """Analytic: the lock holds every package of Pipfile, with version and hashes, and no index."""
    assert problems_of_lock(LOCK) == []
    for name in TENSORFLOWS:
        assert PIPFILE["packages"][name].items() <= LOCK["default"][name].items()


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("_meta", "sources"), None, "lacks the empty list"),
        (("_meta", "sources"), [{"url": "https://x.org/simple"}], "names an index"),
        (("default", "numpy"), None, "numpy is not locked"),
        (("develop", "pytest", "index"), "x", "pytest names an index"),
        (("default", "tensorflow", "version"), None, "tensorflow has no exact version"),
        (("default", "tensorflow", "hashes"), None, "tensorflow has no hashes"),
        (("ray", "ray"), None, "ray is not locked"),
        (("default", "keras", "markers"), "platform_machine == 'x'", "keras is for some machines"),
    ],
)
def test_a_wrong_lock_is_found(path: tuple[str, ...], value: object, problem: str) -> None:
    """Analytic: negative control; None takes the entry out."""
    lock = json.loads(json.dumps(LOCK))
    inner = lock
    for key in path[:-1]:
        inner = inner[key]
    inner.pop(path[-1], None)
    if value is not None:
        inner[path[-1]] = value
    assert problem in "\n".join(problems_of_lock(lock))


def test_the_pipfile_has_what_pyproject_declares() -> None:
    """Golden: it is written from there, so each package is declared once."""
    assert (ROOT / "Pipfile").read_text(encoding="utf-8") == pipfile.pipfile()
    assert pipfile.line_of("ray[tune]==2.60.*") == 'ray = {extras = ["tune"], version = "==2.60.*"}'


def test_each_platform_gets_one_tensorflow() -> None:
    """Analytic: exactly one of the two markers holds: tensorflow-cpu's where it has a wheel."""
    for platform, wanted in {
        ("linux", "x86_64"): "tensorflow-cpu",
        ("win32", "AMD64"): "tensorflow-cpu",
        ("linux", "aarch64"): "tensorflow",
        ("darwin", "arm64"): "tensorflow",
        ("darwin", "x86_64"): "tensorflow",
    }.items():
        here = dict(zip(("sys_platform", "platform_machine"), platform, strict=True))
        markers = {name: Marker(LOCK["default"][name]["markers"]) for name in TENSORFLOWS}
        assert [name for name in markers if markers[name].evaluate(here)] == [wanted]


# The Makefile, run with a stand-in for Python and pipenv: it writes down each call, and makes the
# files that the call should make.
STAND_IN = """#!/bin/sh
name=${0#"$PROJECT"/}
case "$*" in
-c*version_info*) echo "$FAKE_VERSION"; exit 0 ;;
-c*) exit 0 ;;
esac
echo "$name $*" >> "$PROJECT/calls"
case "$*" in
"-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
"-m pip install"*) cp "$0" "${0%/*}/pipenv" ;;
sync*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
esac
case "$name $*" in *"$FAIL"*) exit 1 ;; esac
"""
# What the steps of the set-up call, in order, as far as a call is the same on every revision.
STEPS = ["fake-python -m venv .pipenv", ".pipenv/bin/python -m pip install"]
STEPS += [".pipenv/bin/pipenv sync", ".pipenv/bin/pipenv sync --dev", ".venv/bin/python -m pytest"]
TRAIN = ".venv/bin/python train.py"


class Project:
    """A folder with the Makefile, a lock, and a stand-in for Python: a fresh clone for make."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        shutil.copy(ROOT / "Makefile", folder)
        for name in ("Pipfile", "Pipfile.lock"):
            (folder / name).touch()
        python = folder / "fake-python"
        python.write_text(STAND_IN, encoding="utf-8")
        python.chmod(python.stat().st_mode | stat.S_IXUSR)

    def make(self, *arguments: str, version: str = "3.11", fail: str = "?") -> tuple[str, str]:
        """Run make: its calls, with a line for each, and what it wrote to stderr."""
        environment = {"PATH": os.environ["PATH"], "PROJECT": str(self.folder)}
        environment |= {"FAKE_VERSION": version, "FAIL": fail}
        calls = self.folder / "calls"
        calls.write_text("", encoding="utf-8")
        ended = subprocess.run(
            ["make", f"PYTHON={self.folder}/fake-python", *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (ended.returncode == 0) == (ended.stderr == ""), ended.stderr
        return calls.read_text(encoding="utf-8"), ended.stderr


def are(calls: str, steps: list[str]) -> bool:
    """Whether these are the calls, one a line; the last one may have arguments."""
    lines = calls.splitlines()
    return len(lines) == len(steps) and all(map(str.startswith, lines, steps))


@pytest.fixture
def project(tmp_path: pathlib.Path) -> Project:
    return Project(tmp_path)


def test_a_second_call_installs_nothing(project: Project) -> None:
    """Analytic: `make train` and `make test`, until the lock is newer than what is installed."""
    assert are(project.make("train")[0], [*STEPS[:3], TRAIN])
    assert are(project.make("train")[0], [TRAIN])
    assert are(project.make("test")[0], STEPS[3:])
    assert are(project.make("test")[0], STEPS[4:])
    for stamp in (project.folder / ".venv").glob("ready-*"):
        os.utime(stamp, (1, 1))
    assert are(project.make("train", "ARGS=X-v1")[0], [STEPS[2], f"{TRAIN} X-v1"])


def test_ray_is_installed_only_where_it_is_asked_for(project: Project) -> None:
    """Analytic: `make sweep` adds it to what `make train` has installed, once."""
    ray = ".pipenv/bin/pipenv sync --categories ray"
    assert ray not in project.make("train")[0] + project.make("test")[0]
    assert are(project.make("sweep")[0], [ray, ".venv/bin/python sweep.py"])
    assert are(project.make("sweep")[0], [".venv/bin/python sweep.py"])
    assert are(project.make("cluster-test")[0], [".venv/bin/python -m pytest -m cluster"])


@pytest.mark.parametrize(("failing", "begun_again"), [(1, 0), (2, 2), (3, 3)])
def test_an_interrupted_set_up_continues(project: Project, failing: int, begun_again: int) -> None:
    """Analytic: a failed step is done again; a half pipenv is made from the start."""
    calls, error = project.make("test", fail=STEPS[failing])
    assert are(calls, STEPS[: failing + 1])
    assert "Error 1" in error
    half = project.folder / ".pipenv/half"
    half.touch()
    assert are(project.make("test")[0], STEPS[begun_again:])
    assert half.exists() == (begun_again > 0)


@pytest.mark.parametrize("version", ["3.10", "3.14", "sh: no such program"])
def test_another_python_ends_with_one_line(project: Project, version: str) -> None:
    """Analytic: nothing is called, and the line names what is needed and what is there."""
    calls, error = project.make("train", version=version)
    assert calls == ""
    assert error.count("\n") == 1
    assert "Python 3.11 3.12 3.13 is needed" in error
    assert version in error


def test_clean_keeps_runs(project: Project) -> None:
    """Analytic: what set-up made goes, runs stay."""
    project.make("test")
    (project.folder / "runs").mkdir()
    project.make("clean")
    left = {path.name for path in project.folder.iterdir()}
    assert "runs" in left
    assert left.isdisjoint({".venv", ".pipenv"})
