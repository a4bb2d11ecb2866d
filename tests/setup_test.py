"""The set-up: the lock installs the same everywhere, and make goes on where it was. Nothing is installed here."""

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

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PIPFILE = tomllib.loads((ROOT / "Pipfile").read_text(encoding="utf-8"))
LOCK = json.loads((ROOT / "Pipfile.lock").read_text(encoding="utf-8"))

SECTIONS = {"packages": "default", "dev-packages": "develop"}  # in Pipfile: in Pipfile.lock
TENSORFLOWS = ("tensorflow-cpu", "tensorflow")
INDEX = re.compile(
    r"https?://[^\s\"']*/simple|index[-_]url|find[-_]links|extra[-_]index|\[\[source\]\]|pypi|file://"
)


def variable(name: str) -> str:
    """A variable's value in the Makefile."""
    found = re.search(rf"^{name} [:?]?= (.*)$", MAKEFILE, flags=re.MULTILINE)
    assert found, f"the Makefile does not set {name}"
    return found[1]


# --- the lock ---------------------------------------------------------------------------------


def problems_of_lock(lock: dict[str, Any], pipfile: dict[str, Any]) -> list[str]:
    """What keeps a lock from installing the same packages everywhere, one line each."""
    problems = []
    if lock["_meta"].get("sources") != []:
        problems.append("the list of sources is missing or not empty")
    if "://" in json.dumps(lock) or "source" in pipfile:
        problems.append("names an index")
    for in_pipfile, in_lock in SECTIONS.items():
        for package, entry in lock[in_lock].items():
            if not re.fullmatch(r"==[\w.!+]+", entry.get("version", "")):
                problems.append(f"{package} has no exact version")
            hashes = entry.get("hashes", [])
            if not hashes or not all(re.fullmatch(r"sha256:[0-9a-f]{64}", h) for h in hashes):
                problems.append(f"{package} has no hashes")
            if "index" in entry:
                problems.append(f"{package} names an index")
            if "platform" in entry.get("markers", "") and package not in TENSORFLOWS:
                problems.append(f"{package} is for some platforms only")
        for package, wanted in pipfile[in_pipfile].items():
            entry = lock[in_lock].get(package)
            if entry is None:
                problems.append(f"{package} is not locked")
            elif isinstance(wanted, dict) and (
                wanted["version"] != entry.get("version") or wanted["markers"] != entry["markers"]
            ):
                problems.append(f"{package} is locked otherwise than pinned")
    return problems


def test_lock() -> None:
    """Analytic: the lock holds every package of Pipfile, with version and hashes, and no index."""
    assert problems_of_lock(LOCK, PIPFILE) == []
    assert set(TENSORFLOWS) <= set(LOCK["default"])


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("_meta", "sources"), None, "the list of sources is missing or not empty"),
        (("_meta", "sources"), [{"url": "https://x.org/simple"}], "names an index"),
        (("default", "numpy"), None, "numpy is not locked"),
        (("develop", "pytest", "index"), "x", "pytest names an index"),
        (("default", "tensorflow", "version"), None, "tensorflow has no exact version"),
        (("default", "tensorflow", "hashes"), None, "tensorflow has no hashes"),
        (("default", "tensorflow-cpu", "version"), "==2.20.0", "-cpu is locked otherwise"),
        (("default", "keras", "markers"), "platform_machine == 'x'", "keras is for some platforms"),
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
    assert problem in "\n".join(problems_of_lock(lock, PIPFILE))


def test_each_platform_gets_one_tensorflow() -> None:
    """Analytic: of the two markers exactly one holds: tensorflow-cpu's where it has a wheel."""
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


@pytest.mark.parametrize(
    "path", ["Makefile", "Pipfile", "pyproject.toml", ".ci/run", ".github/workflows/ci.yml"]
)
def test_no_index_in_the_set_up(path: str) -> None:
    """Analytic: pip's own configuration decides where packages come from, on every machine."""
    text = (ROOT / path).read_text(encoding="utf-8")
    words = re.sub(r"^\s*#.*", "", text, flags=re.MULTILINE)
    assert INDEX.findall(words) == []
    for guilty in ("url = https://x.org/simple", "pip install --index-url x", "[[source]]"):
        assert INDEX.search(guilty)


# --- the Makefile, run with stand-ins for Python and pipenv -----------------------------------

# Stands in for every program: writes down its call, and makes the files that the call should make.
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
test "$*" != "$FAIL"
"""
INSTALL_PIPENV = [
    "fake-python -m venv .pipenv",
    ".pipenv/bin/python -m pip install --quiet --disable-pip-version-check pipenv=="
    + variable("PIPENV_VERSION"),
]
TRAIN = ".venv/bin/python train.py " + variable("ARGS")
TEST = ".venv/bin/python -m pytest " + variable("SIDE_BY_SIDE")


class Project:
    """A folder with the Makefile, a lock, and a stand-in for Python."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        shutil.copy(ROOT / "Makefile", folder)
        for name in ("Pipfile", "Pipfile.lock"):
            (folder / name).touch()
        python = folder / "fake-python"
        python.write_text(STAND_IN, encoding="utf-8")
        python.chmod(python.stat().st_mode | stat.S_IXUSR)

    def make(
        self, *arguments: str, version: str = "3.11", fail: str = "-"
    ) -> tuple[list[str], str]:
        """Run make; what it called, and what it wrote to stderr."""
        environment = {
            "PATH": os.environ["PATH"],
            "PROJECT": str(self.folder),
            "FAKE_VERSION": version,
            "FAIL": fail,
        }
        calls = self.folder / "calls"
        calls.write_text("", encoding="utf-8")
        ended = subprocess.run(
            ["make", f"PYTHON={self.folder}/fake-python", *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (ended.returncode == 0) == (ended.stderr == ""), ended.stderr
        return calls.read_text(encoding="utf-8").splitlines(), ended.stderr


@pytest.fixture
def project(tmp_path: pathlib.Path) -> Project:
    """A fresh clone, as far as the Makefile can see."""
    return Project(tmp_path)


def test_a_second_call_installs_nothing(project: Project) -> None:
    """Analytic: of `make train` and `make test`, until the lock is newer than what is installed."""
    sync = ".pipenv/bin/pipenv sync"
    assert project.make("train") == ([*INSTALL_PIPENV, sync, TRAIN], "")
    assert project.make("train") == ([TRAIN], "")
    assert project.make("test") == ([f"{sync} --dev", TEST], "")
    assert project.make("test") == ([TEST], "")
    assert project.make("train") == ([TRAIN], "")
    for stamp in (project.folder / ".venv").glob("ready-*"):
        os.utime(stamp, (1, 1))
    assert project.make("train", "ARGS=X-v1")[0] == [sync, ".venv/bin/python train.py X-v1"]


@pytest.mark.parametrize(("failing", "begun_again"), [(0, 0), (1, 0), (2, 2), (3, 3)])
def test_an_interrupted_set_up_goes_on(project: Project, failing: int, begun_again: int) -> None:
    """Analytic: a step that failed is not taken for done; a half pipenv is made from the start."""
    steps = [*INSTALL_PIPENV, ".pipenv/bin/pipenv sync", ".pipenv/bin/pipenv sync --dev", TEST]
    arguments = steps[failing].split(" ", 1)[1]
    calls, error = project.make("test", fail=arguments)
    assert calls == steps[: failing + 1]
    assert "Error 1" in error
    half = project.folder / ".pipenv/half"
    half.touch()
    assert project.make("test") == (steps[begun_again:], "")
    assert half.exists() == (begun_again > 0)


@pytest.mark.parametrize("version", ["3.10", "3.14", "sh: no such program"])
def test_another_python_ends_with_one_line(project: Project, version: str) -> None:
    """Analytic: nothing is called, and the one line names both what is needed and what is there."""
    calls, error = project.make("train", version=version)
    assert calls == []
    assert error.count("\n") == 1
    assert f"Python {variable('PYTHON_VERSIONS')} is needed" in error
    assert version in error


def test_clean_keeps_runs(project: Project) -> None:
    """Analytic: set-up goes, runs stay."""
    project.make("test")
    kept = project.folder / "runs"
    kept.mkdir()
    project.make("clean")
    assert kept.exists()
    assert not (project.folder / ".venv").exists()
    assert not (project.folder / ".pipenv").exists()
