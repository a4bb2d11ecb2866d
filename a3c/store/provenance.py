"""What a run folder records about code and machine: revision, changes, a digest, versions."""

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import pathlib
import platform
import re
import subprocess

from a3c.machine import cores

INSTALLED = ("site-packages", "dist-packages")  # where pip puts packages
_GIT_SECONDS = 5.0
# Limits, so that a virtual environment that git does not ignore cannot fill git.txt.
_MAX_UNTRACKED_FILES = 50
_MAX_UNTRACKED_BYTES = 100_000
# Where a git hook runs us, these variables point at another repository.
POINTERS = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR"}


def git(code: pathlib.Path, *args: str) -> str | None:
    """The output of a git command in the folder of the code; None where it fails or hangs."""
    if code.name in INSTALLED:
        return None  # a repository around it is somebody else's
    env = {name: value for name, value in os.environ.items() if name not in POINTERS}
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(code), *args]
    try:
        done = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=_GIT_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "surrogateescape") if done.returncode == 0 else None


def short_revision(code: pathlib.Path) -> str:
    return (git(code, "rev-parse", "--short", "--verify", "HEAD") or "nogit").strip()


def git_state(code: pathlib.Path) -> str:
    """Revision and everything that differs from it, untracked modules included."""
    top = git(code, "rev-parse", "--show-toplevel")
    if top is None:
        return "no repository"
    root = pathlib.Path(top.rstrip("\n"))
    revision = git(root, "rev-parse", "--verify", "HEAD") or "no commit yet"
    # In the form that `git apply` takes, whatever the user prefers.
    plain = ("--no-ext-diff", "--no-textconv", "--no-color", "--src-prefix=a/", "--dst-prefix=b/")
    diff = git(root, "diff", "HEAD", "--binary", *plain)
    listed = git(root, "ls-files", "-z", "--others", "--exclude-standard")
    names = sorted(name for name in (listed or "").split("\0") if name)
    shown = listed and "\n".join(f"    {name!r}" for name in names)
    lines = [f"revision: {revision.strip()}", f"root: {root}"]
    for title, text in (("uncommitted difference", diff), ("untracked files", shown)):
        if text is None:
            lines.append(f"{title}: git could not tell")
        else:
            lines += [f"{title}:", text] if text else [f"{title}: none"]
    modules = [root / name for name in names if name.endswith(".py")]
    for module in modules[:_MAX_UNTRACKED_FILES]:
        with contextlib.suppress(OSError):
            if module.is_file() and module.stat().st_size <= _MAX_UNTRACKED_BYTES:
                text = module.read_bytes().decode("utf-8", "surrogateescape")
                lines += [f"untracked {str(module.relative_to(root))!r}:", text]
    return "\n".join(lines)


def digest_of(code: pathlib.Path) -> str:
    """A digest of the package's sources, committed or not; a wheel of them has the same."""
    digest = hashlib.sha256()
    sources = [path for form in ("py", "toml") for path in code.glob(f"a3c/**/*.{form}")]
    for path in sorted(sources):
        with contextlib.suppress(OSError):
            data = path.read_bytes()
            digest.update(f"{path.relative_to(code)} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def versions() -> list[str]:
    lines = [
        f"python: {platform.python_version()} ({platform.python_implementation()})",
        f"platform: {platform.platform()}",
        f"cpu: {cpu_model()}",
        f"cores: {os.cpu_count()}, usable: {cores.n_usable()}",
        "packages:",
    ]
    return lines + [f"    {package}" for package in _packages()]


@functools.cache
def _packages() -> list[str]:
    """All that are installed, because a result can depend on those that the Pipfile's need.

    Each one's metadata are parsed once, which takes a millisecond.
    """
    parsed = (dist.metadata for dist in importlib.metadata.distributions())
    packages = {f"{each['Name']}=={each['Version']}" for each in parsed if each["Name"]}
    return sorted(packages, key=str.lower)


def cpu_model() -> str:
    with contextlib.suppress(OSError):
        text = pathlib.Path("/proc/cpuinfo").read_text(errors="replace")
        if found := re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE):
            return found.group(1)
    return platform.processor() or platform.machine()
