"""The run folder and its provenance: arguments, command, git state, versions.

A figure can be trusted when the folder it came from says what ran. So every run has a folder of
its own, claimed so that no two runs ever share one, and everything that is needed to run it again
is written into it before training starts:

    args.json     every parameter, where it came from, and what was found out of the environment
    command.txt   the command, to be pasted
    git.txt       revision and uncommitted difference of the code
    versions.txt  the code's digest, Python, packages, machine
    lock          held by the process that trains in the folder
    monitor/      checkpoints/
"""

import contextlib
import fcntl
import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TextIO

from a3c.machine import cores
from a3c.settings.params import BadInput, Params, ParsedParams, from_json, to_json

ARGS = "args.json"
VERSIONS = "versions.txt"
LOCK = "lock"
MONITOR = "monitor"
CHECKPOINTS = "checkpoints"

# Ours has some thousand bytes; nobody's should fill the memory.
MAX_ARGS_BYTES = 2**24

_CODE = pathlib.Path(__file__).resolve().parents[2]
_GIT_SECONDS = 5.0
# Untracked modules are copied into git.txt up to here; a virtual environment that nobody told
# git to ignore should not fill it.
_MAX_UNTRACKED_FILES = 50
_MAX_UNTRACKED_BYTES = 100_000


class RunArgs(NamedTuple):
    """What args.json holds."""

    params: Params
    sources: dict[str, str]
    environment: dict[str, Any]
    resumed: Sequence[
        Any
    ] = ()  # each time that the run went on: from where, by which command and code, on which CPU


def create(
    parsed: ParsedParams,
    argv: Sequence[str],
    environment: Mapping[str, Any] | None = None,
    code: pathlib.Path = _CODE,
) -> pathlib.Path:
    """Make and fill the folder of a new run, and say where it is.

    `argv` are train.py's arguments, `environment` whatever is worth keeping that only the
    environment itself could tell. A folder that is taken, or cannot be written, is BadInput, and
    nothing is left behind.
    """
    folder = _choose(parsed.params, _short_revision(code))
    texts = {
        ARGS: json.dumps(
            to_json(parsed) | {"environment": dict(environment or {})},
            indent=2,
            allow_nan=False,
        ),
        "command.txt": shlex.join(["python3", "train.py", *argv]),
        "git.txt": _git_state(code),
        VERSIONS: "\n".join([f"code: {digest_of(code)}", *_versions()]),
    }
    made: list[pathlib.Path] = []
    try:
        _make_folder(folder, made)
        for name, text in texts.items():
            # Exclusive creation, args.json first: of two runs that found the same folder empty,
            # one gets it.
            with open(folder / name, "x", encoding="utf-8", errors="surrogateescape") as file:
                made.append(folder / name)
                file.write(text + "\n")
        for name in (MONITOR, CHECKPOINTS):
            (folder / name).mkdir()
            made.append(folder / name)
    except BaseException as error:
        _unmake(made)
        if isinstance(error, FileExistsError):
            raise BadInput(f"{folder} has just been taken by another run") from None
        if isinstance(error, OSError):
            raise BadInput(f"cannot make the run folder {folder}: {error.strerror}") from None
        raise
    return folder


def lock(folder: pathlib.Path) -> TextIO:
    """Hold a run folder against every other process, until the file is closed or this one ends.

    However it ends: the system lets go of the lock. The file itself stays, for taking it away
    would let two processes hold a lock each.
    """
    path = folder / LOCK
    try:
        file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (open for long)
    except OSError as error:
        raise BadInput(f"cannot make {path}: {error.strerror}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        if isinstance(error, BlockingIOError):
            raise BadInput(f"{folder} is in use: a run is under way in it") from None
        raise BadInput(f"cannot lock {path}: {error.strerror}") from None
    return file


def is_taken_over(folder: pathlib.Path, held: TextIO) -> bool:
    """Whether another run has its folder where that of this lock was: it was moved, or removed.

    What is open goes on where it is; nothing may be opened there any more.
    """
    try:
        return not os.path.samestat(os.stat(folder / LOCK), os.fstat(held.fileno()))
    except OSError:  # gone, or closed to us: then nobody else is there
        return False


def record_resumption(
    folder: pathlib.Path, args: RunArgs, resumed: Mapping[str, Any], code: pathlib.Path = _CODE
) -> None:
    """Write args.json anew, with one more note of how the run went on."""
    note = dict(resumed) | {
        "revision": _short_revision(code),
        "code": digest_of(code),
        "cpu": _cpu_model(),
        "time": time.strftime("%F %T %z"),
    }
    content = to_json(ParsedParams(args.params, args.sources)) | {
        "environment": args.environment,
        "resumed": [*args.resumed, note],
    }
    path = folder / ARGS
    temporary = folder / f"{ARGS}.tmp"
    text = json.dumps(content, indent=2, allow_nan=False)
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise BadInput(f"cannot write {path}: {error.strerror}") from None


def read_args(folder: str | os.PathLike[str]) -> RunArgs:
    """Read a run folder's args.json; BadInput where there is none or it is damaged."""
    path = pathlib.Path(folder) / ARGS
    try:
        if path.stat().st_size > MAX_ARGS_BYTES or not path.is_file():
            raise ValueError("it is no file of ours")
        content = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(content, allow_nan=False)  # it may have to be written again
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is damaged: {error}") from None
    environment = content.pop("environment", None) if isinstance(content, dict) else None
    if not isinstance(environment, dict):
        raise BadInput(f"{path} is damaged: it lacks what the environment is")
    resumed = content.pop("resumed", [])
    if not isinstance(resumed, list):
        raise BadInput(f"{path} is damaged: what it says of resumptions is no list")
    try:
        return RunArgs(*from_json(content), environment, tuple(resumed))
    except BadInput as error:
        raise BadInput(f"{path} is damaged: {error}") from None


def _choose(params: Params, revision: str) -> pathlib.Path:
    """The folder that the flags ask for, free as far as can be seen before claiming it."""
    if params.log_dir is not None or params.run_name is not None:
        folder = pathlib.Path(params.log_dir or f"runs/{params.run_name}_{revision}")
        if why := _taken(folder):
            raise BadInput(why)
        return folder
    env = re.sub(r"[^A-Za-z0-9_.-]+", "-", params.env_id).strip(".-")[:100] or "env"
    stem = f"runs/{env}_{time.strftime('%Y%m%d-%H%M%S')}_{revision}"
    folder, number = pathlib.Path(stem), 1
    while why := _taken(folder):
        if not os.path.lexists(folder):
            raise BadInput(why)
        # Two runs of one second: a name that the user did not choose is ours to change.
        number += 1
        folder = pathlib.Path(f"{stem}_{number}")
    return folder


def _taken(folder: pathlib.Path) -> str | None:
    """Why the folder cannot be a new run's, if so."""
    try:
        for outer in pathlib.Path(os.path.realpath(folder)).parents:
            if (outer / ARGS).exists() and (outer / "command.txt").exists():
                return f"{folder} is inside {outer}, which holds another run"
        if not os.path.lexists(folder):
            return None
        if not folder.is_dir():
            return f"{folder} is in the way of the run folder: it is no folder"
        if (folder / ARGS).exists():
            return f"{folder} holds another run"
        if held := next(folder.iterdir(), None):
            return f"{folder} is not empty (it holds {held.name}); a run needs a folder of its own"
    except OSError as error:
        return f"cannot make the run folder {folder}: {error.strerror}"
    return None


def _make_folder(folder: pathlib.Path, made: list[pathlib.Path]) -> None:
    missing = [p for p in (folder, *folder.parents) if not p.exists()]
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another run makes the same parents
            path.mkdir()
            made.append(path)


def _unmake(made: list[pathlib.Path]) -> None:
    for path in reversed(made):
        with contextlib.suppress(OSError):  # a parent that another run now uses
            path.rmdir() if path.is_dir() else path.unlink()


def git(code: pathlib.Path, *args: str) -> str | None:
    """The output of a git command in the folder of the code; None where it fails or hangs."""
    # A caller that is itself a git hook has variables that point at another repository.
    pointers = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR"}
    env = {name: value for name, value in os.environ.items() if name not in pointers}
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(code), *args]
    try:
        done = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=_GIT_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return None
    # Bytes that are no UTF-8 come out of the file as they went in.
    return done.stdout.decode("utf-8", "surrogateescape") if done.returncode == 0 else None


def _short_revision(code: pathlib.Path) -> str:
    return (git(code, "rev-parse", "--short", "--verify", "HEAD") or "nogit").strip()


def _git_state(code: pathlib.Path) -> str:
    """Revision and everything that differs from it, untracked modules included."""
    top = git(code, "rev-parse", "--show-toplevel")
    if top is None:
        return "no repository"
    root = pathlib.Path(top.rstrip("\n"))
    revision = git(code, "rev-parse", "--verify", "HEAD")
    lines = [f"revision: {revision.strip() if revision else 'no commit yet'}", f"root: {root}"]
    diff = git(root, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv", "--no-color")
    if diff is None:
        lines.append("uncommitted difference: git could not tell")
    else:
        lines += ["uncommitted difference:", diff] if diff else ["uncommitted difference: none"]
    listed = git(root, "ls-files", "-z", "--others", "--exclude-standard")
    if listed is None:
        return "\n".join([*lines, "untracked files: git could not tell"])
    names = sorted(name for name in listed.split("\0") if name)
    lines += ["untracked files:" if names else "untracked files: none"]
    lines += [f"    {name!r}" for name in names]
    modules = [root / name for name in names if name.endswith(".py")]
    for module in modules[:_MAX_UNTRACKED_FILES]:
        with contextlib.suppress(OSError):
            if module.is_file() and module.stat().st_size <= _MAX_UNTRACKED_BYTES:
                text = module.read_bytes().decode("utf-8", "surrogateescape")
                lines += [f"untracked {str(module.relative_to(root))!r}:", text]
    return "\n".join(lines)


def digest_of(code: pathlib.Path) -> str:
    """Of the sources that train, committed or not: the same only where these are."""
    digest = hashlib.sha256()
    for path in [*sorted(code.glob("a3c/**/*.py")), code / "train.py"]:
        with contextlib.suppress(OSError):
            data = path.read_bytes()
            digest.update(f"{path.relative_to(code)} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def _versions() -> list[str]:
    lines = [
        f"python: {platform.python_version()} ({platform.python_implementation()})",
        f"platform: {platform.platform()}",
        f"cpu: {_cpu_model()}",
        f"cores: {os.cpu_count()}, usable: {cores.n_usable()}",
        "packages:",
    ]
    # All that is installed, not only what Pipfile names: a number can hang on what those need.
    packages = {
        f"    {dist.name}=={dist.version}"
        for dist in importlib.metadata.distributions()
        if dist.name
    }
    return lines + sorted(packages, key=str.lower)


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        text = pathlib.Path("/proc/cpuinfo").read_text(errors="replace")
        if found := re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE):
            return found.group(1)
    return platform.processor() or platform.machine()
