"""The set-up files: the lock, the Makefile's steps, the workflow. Nothing is installed here."""

import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from typing import Any

import pytest
from packaging.markers import Marker

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PIPFILE = tomllib.loads((ROOT / "Pipfile").read_text(encoding="utf-8"))
LOCK = json.loads((ROOT / "Pipfile.lock").read_text(encoding="utf-8"))
WORKFLOW = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")

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


def recipe(target: str) -> list[str]:
    """A target's recipe in the Makefile."""
    found = re.search(rf"^{target}:[^\n]*\n((?:\t[^\n]*\n)+)", MAKEFILE, flags=re.MULTILINE)
    assert found, f"the Makefile has no recipe for {target}"
    return [line.strip() for line in found[1].splitlines()]


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
        (
            ("default", "tensorflow-cpu", "version"),
            "==2.20.0",
            "tensorflow-cpu is locked otherwise",
        ),
        (
            ("default", "keras", "markers"),
            "platform_machine == 'x86_64'",
            "keras is for some platforms",
        ),
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


@pytest.mark.parametrize(
    ("system", "machine", "package"),
    [
        ("linux", "x86_64", "tensorflow-cpu"),
        ("win32", "AMD64", "tensorflow-cpu"),
        ("linux", "aarch64", "tensorflow"),
        ("darwin", "arm64", "tensorflow"),
        ("darwin", "x86_64", "tensorflow"),
    ],
)
def test_each_platform_gets_one_tensorflow(system: str, machine: str, package: str) -> None:
    """Analytic: of the two markers exactly one holds: tensorflow-cpu's where it has a wheel."""
    environment = {"sys_platform": system, "platform_machine": machine}
    chosen = [
        name
        for name in TENSORFLOWS
        if Marker(LOCK["default"][name]["markers"]).evaluate(environment)
    ]
    assert chosen == [package]


def test_tensorflow_is_pinned_the_same_twice() -> None:
    """Analytic: Pipfile pins both packages to one version."""
    versions = {PIPFILE["packages"][name]["version"] for name in TENSORFLOWS}
    assert len(versions) == 1
    assert versions.pop().startswith("==")


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
-c*json*) exec "$PYTHON_HERE" "$@" ;;
-c*) exit 0 ;;
esac
echo "$name $*" >> "$PROJECT/calls"
case "$*" in
"-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
"-m pip install"*) cp "$0" "${0%/*}/pipenv" ;;
sync*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
lock) cp "$PROJECT/new-lock" Pipfile.lock ;;
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
            "PYTHON_HERE": sys.executable,
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
    """Analytic: the calls of `make train` and `make test`, first and second time, in this order."""
    sync = ".pipenv/bin/pipenv sync"
    assert project.make("train") == ([*INSTALL_PIPENV, sync, TRAIN], "")
    assert project.make("train") == ([TRAIN], "")
    assert project.make("test") == ([f"{sync} --dev", TEST], "")
    assert project.make("test") == ([TEST], "")
    assert project.make("train", "ARGS=--seed 1 X-v1") == (
        [".venv/bin/python train.py --seed 1 X-v1"],
        "",
    )


def test_a_changed_lock_is_installed(project: Project) -> None:
    """Analytic: a lock newer than the installation is installed, over what is there."""
    project.make("test")
    for stamp in (project.folder / ".venv").glob("ready-*"):
        os.utime(stamp, (1, 1))
    calls, _ = project.make("train")
    assert calls == [".pipenv/bin/pipenv sync", TRAIN]


def test_train_after_test_installs_nothing(project: Project) -> None:
    """Analytic: the environment of the tests serves training as it is."""
    project.make("test")
    assert project.make("train") == ([TRAIN], "")


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


@pytest.mark.parametrize("version", ["3.10", "3.14", "2.7", "sh: no such program"])
def test_another_python_ends_with_one_line(project: Project, version: str) -> None:
    """Analytic: nothing is called, and the one line names both what is needed and what is there."""
    for target in ("train", "test"):
        calls, error = project.make(target, version=version)
        assert calls == []
        assert error.count("\n") == 1
        assert f"Python {variable('PYTHON_VERSIONS')} is needed" in error
        assert version in error


def test_the_lock_is_made_under_the_oldest_python(project: Project) -> None:
    """Analytic: a newer Python, which may choose versions the oldest cannot install, is refused."""
    oldest, *newer = variable("PYTHON_VERSIONS").split()
    for version in newer:
        calls, error = project.make("lock", version=version)
        assert not any("lock" in call for call in calls)
        assert f"Python {oldest} is needed" in error


def test_the_new_lock_is_clean(project: Project) -> None:
    """Analytic: index and borrowed markers go, all else stays; and a bad lock replaces nothing."""
    pinned = {"version": "==1", "hashes": ["sha256:0"]}
    cpu, other = ({**pinned, "markers": f"platform_machine {sign} 'x'"} for sign in ("==", "!="))
    wanted = {
        "_meta": {"hash": {"sha256": "1"}, "sources": []},
        "default": {
            "numpy": {**pinned, "markers": "python_version >= '3'"},
            "six": pinned,
            "tensorflow": other,
            "tensorflow-cpu": cpu,
        },
        "develop": {"pytest": pinned},
    }
    written = json.loads(json.dumps(wanted))
    written["_meta"]["sources"] = [{"name": "x", "url": "x"}]
    written["default"]["six"]["markers"] = cpu["markers"]
    written["develop"]["pytest"]["index"] = "x"
    (project.folder / "new-lock").write_text(json.dumps(written), encoding="utf-8")
    assert project.make("lock")[1] == ""
    assert json.loads((project.folder / "Pipfile.lock").read_text(encoding="utf-8")) == wanted

    del written["default"]["tensorflow"]["hashes"]
    (project.folder / "new-lock").write_text(json.dumps(written), encoding="utf-8")
    assert "tensorflow is locked without version or hashes" in project.make("lock")[1]
    assert json.loads((project.folder / "Pipfile.lock").read_text(encoding="utf-8")) == wanted


def test_clean_keeps_runs(project: Project) -> None:
    """Analytic: set-up goes, runs stay."""
    project.make("test")
    kept = project.folder / "runs"
    kept.mkdir()
    project.make("clean")
    assert kept.exists()
    assert not (project.folder / ".venv").exists()
    assert not (project.folder / ".pipenv").exists()


# --- what has to agree with each other --------------------------------------------------------


def test_every_target_is_explained() -> None:
    """Analytic: `make help` and CONTRIBUTING.md name every target that is no file."""
    found = re.search(r"^\.PHONY: (.*)$", MAKEFILE, flags=re.MULTILINE)
    assert found
    phony = set(found[1].split())
    explained = set(re.findall(r"^([a-z-]+):.*## ", MAKEFILE, flags=re.MULTILINE))
    assert phony == explained
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`make ([a-z-]+)", contributing))
    assert phony - {"help"} == named


def test_ci_runs_what_a_person_runs() -> None:
    """Analytic: .ci/run and the workflow call targets of the Makefile, check before test."""
    run = ROOT / ".ci/run"
    assert os.access(run, os.X_OK)
    assert re.findall(r"^make (.*)$", run.read_text(encoding="utf-8"), flags=re.MULTILINE) == [
        "check",
        "test",
    ]
    steps = re.findall(r"^ +- run: (.*)$", WORKFLOW, flags=re.MULTILINE)
    assert steps == ["make check", "make test", "make test-slow"]


def test_python_versions_agree() -> None:
    """Analytic: the Makefile accepts what the workflow tests; the tools aim at the oldest."""
    versions = variable("PYTHON_VERSIONS").split()
    found = re.search(r"python: \[(.*)\]", WORKFLOW)
    assert found
    assert re.findall(r'"([\d.]+)"', found[1]) == versions
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    assert tools["mypy"]["python_version"] == versions[0]
    assert tools["ruff"]["target-version"] == "py" + versions[0].replace(".", "")


def test_markers_are_those_of_the_targets() -> None:
    """Analytic: `make check` and `make test` leave out slow tests by markers that exist."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    options = tools["pytest"]["ini_options"]
    assert [marker.split(":")[0] for marker in options["markers"]] == ["slow", "weekly"]
    assert variable("FAST_TESTS") == "not slow and not weekly"
    assert options["addopts"][-2:] == ["-m", "not weekly"]
    assert recipe("check")[-1] == '$(VENV_PYTHON) -m pytest $(SIDE_BY_SIDE) -m "$(FAST_TESTS)"'
    assert recipe("test-slow")[0] == "$(VENV_PYTHON) -m pytest $(SIDE_BY_SIDE) -m weekly"


def test_the_weekly_search_takes_every_test_that_could_find_something() -> None:
    """Analytic: all files with examples of Hypothesis, under the profile that looks for new ones, which
    no test overrides.
    """
    found = [
        path
        for path in (ROOT / "tests").rglob("*_test.py")
        if re.search("^(import|from) hypothesis", path.read_text(), flags=re.MULTILINE)
    ]
    for path in found:
        assert not re.search("derandomize|database|deadline", path.read_text()), path
    assert '--hypothesis-profile "new ones"' in recipe("test-slow")[1]
    named = variable("SEARCHED").split()
    assert sorted(str(path.relative_to(ROOT)) for path in found) == sorted(named)


def test_the_tests_of_a_week_have_an_hour() -> None:
    """Analytic: the workflow ends them then; the rest of its time is for the set-up."""
    weekly = WORKFLOW.partition("  weekly:")[2]
    assert re.findall(r"timeout-minutes: (\d+)", weekly) == ["75", "60"]
