"""What a run folder records of code and machine, so that a result can be reproduced."""

import os
import pathlib
import re
import subprocess
import sys
import time

import pytest

from a3c.store import provenance


@pytest.fixture(autouse=True)
def outside(tmp_path, monkeypatch):
    """A folder in no repository, wherever the tests run, and whatever their user has told git."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    folder = tmp_path / "outside"
    folder.mkdir()
    return folder


@pytest.fixture
def repository(tmp_path):
    """A repository with one commit."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / ".gitignore").write_text("ignored*\n")
    (folder / "code.py").write_text("lr = 1\n")
    git(folder, "add", ".")
    commit(folder)
    return folder


def git(folder: pathlib.Path, *args: str) -> str:
    done = subprocess.run(
        ["git", "-C", folder, *args], capture_output=True, check=True, encoding="utf-8"
    )
    return done.stdout.strip()


def commit(folder: pathlib.Path) -> None:
    git(folder, "-c", "user.name=n", "-c", "user.email=e@e", "commit", "-q", "-m", "m")


def test_a_difference_can_be_applied_again(repository):
    """Analytic: revision and git.txt give the code that ran, with staged and unstaged changes."""
    (repository / "code.py").write_text("lr = 2\n")
    (repository / "staged.bin").write_bytes(bytes(range(256)))
    git(repository, "add", "staged.bin")
    (repository / "new.py").write_bytes(b"# new \xff\n")
    (repository / "notes.txt").write_text("not code\n")
    (repository / "ignored.py").write_text("secret\n")
    # The user's colours and programs must not get into the record.
    git(repository, "config", "color.ui", "always")
    git(repository, "config", "diff.external", "false")
    git(repository, "config", "diff.noprefix", "true")
    before = git(repository, "status", "--porcelain")
    data = provenance.git_state(repository).encode("utf-8", "surrogateescape")
    assert git(repository, "status", "--porcelain") == before
    assert b"untracked files:\n    'new.py'\n    'notes.txt'\n" in data
    assert b"untracked 'new.py':\n# new \xff\n" in data
    assert b"not code" not in data
    assert b"ignored" not in data
    difference = data.partition(b"uncommitted difference:\n")[2].partition(b"untracked files")[0]
    git(repository, "-c", "color.ui=never", "reset", "-q", "--hard")
    subprocess.run(["git", "-C", repository, "apply"], input=difference, check=True)
    assert (repository / "code.py").read_text() == "lr = 2\n"
    assert (repository / "staged.bin").read_bytes() == bytes(range(256))


def test_untracked_files_cannot_flood_the_record(repository):
    """Analytic: large modules and those beyond the limit are named, without their text."""
    (repository / "a_large.py").write_text("#" * 100_001)
    for i in range(60):
        (repository / f"small{i:02}.py").write_text(f"n = {i}\n")
    text = provenance.git_state(repository)
    assert text.count(".py'\n") == 61
    assert "####" not in text
    assert len(re.findall(r"^n = \d+$", text, re.MULTILINE)) == 49


def test_a_clean_repository_is_its_revision(repository, tmp_path, monkeypatch):
    """Analytic: also where git runs us as a hook, with variables that point elsewhere."""
    revision = git(repository, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "nowhere"))
    assert provenance.git_state(repository) == (
        f"revision: {revision}\nroot: {repository}\nuncommitted difference: none\n"
        "untracked files: none"
    )


def test_no_repository_is_no_failure(outside, monkeypatch):
    """Analytic: outside of a repository, and where git is missing or hangs."""

    def is_told() -> bool:
        told = provenance.git_state(outside), provenance.short_revision(outside)
        return told == ("no repository", "nogit")

    assert is_told()
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(outside))
        assert is_told()
    tool = outside / "git"
    tool.write_text("#!/bin/sh\nexec sleep 600\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{outside}:{os.environ['PATH']}")
    monkeypatch.setattr(provenance, "_GIT_SECONDS", 0.2)
    start = time.monotonic()
    assert is_told()
    assert time.monotonic() - start < 300


def test_a_repository_without_a_commit_is_told(outside):
    """Analytic: the record says so, and lists the files."""
    git(outside, "init", "-q")
    (outside / "new.py").write_text("n = 1\n")
    text = provenance.git_state(outside)
    assert provenance.short_revision(outside) == "nogit"
    assert text.startswith("revision: no commit yet\n")
    assert text.endswith("untracked 'new.py':\nn = 1\n")


def test_versions_tell_python_packages_and_machine():
    """Analytic: this interpreter, a package that is installed, processor and cores."""
    text = "\n".join([*provenance.versions(), ""])
    assert f"python: {sys.version.split()[0]} " in text
    assert f"    pytest=={pytest.__version__}\n" in text
    assert re.search(rf"^cores: {os.cpu_count()}, usable: [1-9]", text, re.MULTILINE)
    model = re.search(
        r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE
    )
    assert re.search(rf"^cpu: {re.escape(model[1]) if model else '.'}", text, re.MULTILINE)
    assert re.search(r"^platform: \S", text, re.MULTILINE)


def digest_of(folder: pathlib.Path, **files: str) -> str:
    """The digest after writing these files; __ in a name stands for a slash."""
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_toml", ".toml").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return provenance.digest_of(folder)


def test_the_codes_digest_is_of_what_trains(tmp_path):
    """Analytic: every byte and name of a3c's modules and presets."""
    what_trains = ["a3c__one_py", "a3c__room__one_py", "a3c__room__sub__two_toml"]
    digests = [digest_of(tmp_path)]
    for name in what_trains:
        digests += [digest_of(tmp_path, **{name: text}) for text in ("", "1", "2")]
    assert len(set(digests)) == len(digests) == 10
    (tmp_path / "a3c/one.py").rename(tmp_path / "a3c/only.py")
    assert provenance.digest_of(tmp_path) not in digests


def test_the_codes_digest_is_of_nothing_else(tmp_path):
    """Analytic: neither of other files nor of the order in which a folder lists them."""
    before = digest_of(tmp_path, a3c__one_py="1", a3c__two_py="2")
    assert digest_of(tmp_path, README="1", train_py="1", tests__one_py="1") == before
    glob = pathlib.Path.glob
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pathlib.Path, "glob", lambda *a: reversed(list(glob(*a))))
        assert provenance.digest_of(tmp_path) == before
