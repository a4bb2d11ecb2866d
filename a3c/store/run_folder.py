"""The run folder: claimed so that no two runs ever share one, and held while a run is under way.

A figure can be trusted when the folder it came from says what ran. So everything that is needed to
run it again is written into it before training starts:

    args.json         every parameter, where it came from, and what was found of the environment
    command.txt       the command, to be pasted
    git.txt           revision and uncommitted difference of the code
    versions.txt      the code's digest, Python, packages, machine
    lock              held by the process that trains in the folder
    monitor.csv       each finished game, progress.csv: figures, evaluations.csv, log.txt, and
                      TensorBoard's events (see logs.py)
    checkpoints/      and in it best/ (see checkpoint.py)
    failure/          what a worker that failed leaves
"""

import contextlib
import fcntl
import json
import os
import pathlib
import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TextIO

import numpy as np

from a3c.machine import appending
from a3c.settings.params import BadInput, Params, ParsedParams, from_json, to_json
from a3c.store import checkpoint, provenance

ARGS = "args.json"
GAMES = "monitor.csv"
PROGRESS = "progress.csv"
EVALUATIONS = "evaluations.csv"
LOG = "log.txt"
LOCK = "lock"

# Ours has some thousand bytes; nobody's should fill the memory.
MAX_ARGS_BYTES = 2**24


class RunFolder:
    """A run's folder, which this process alone writes to until it is closed or ends.

    However it ends, the system releases the lock. The lock's file stays: if it were removed, two
    processes could hold a lock each.
    """

    def __init__(self, path: pathlib.Path, lock: TextIO) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.best = self.checkpoints / "best"  # those that evaluated best
        self._lock = lock

    def __str__(self) -> str:
        return str(self.path)

    def is_ours(self) -> bool:
        """Whether no other run has its folder where this one's was: it may be moved, or removed.

        Files that are open stay this run's wherever they are; nothing may be opened by its path
        any more once the path is another run's.
        """
        try:
            return os.path.samestat(os.stat(self.path / LOCK), os.fstat(self._lock.fileno()))
        except OSError:  # gone, or closed to us: then nobody else is there
            return True

    def say(self, *lines: str) -> None:
        """Print lines and add them to log.txt, before anything slow opens that for long."""
        with appending.survive_loss_of(sys.stdout):
            print(*lines, sep="\n", flush=True)
        log = appending.Appender(self.path / LOG)
        log.write("".join(f"{line}\n" for line in lines))
        log.close()

    def save(self, saved: checkpoint.Checkpoint) -> None:
        """Write a checkpoint of this run; OSError where that fails."""
        if not self.is_ours():
            raise OSError(f"another run has its folder where {self} was")
        # Not its parents: that the whole folder is gone is for the user to learn.
        saved.path.parent.mkdir(exist_ok=True)
        checkpoint.write(saved)

    def leave_failure(self, traceback: str, arrays: Mapping[str, np.ndarray]) -> str:
        """Write what a worker that failed leaves behind; returns where to look, or why it is not there.

        failure/traceback.txt says where it happened. failure/rollout.npz holds what the update
        would have been made of: the rollout, as far as it was collected (n_steps_collected), and
        under weights/ the worker's own weights; plain arrays, for numpy.load.
        """
        place = self.path / "failure"
        if not self.is_ours():
            return "another run has its folder where this run's was"
        try:
            place.mkdir(exist_ok=True)
            text = place / "traceback.txt"
            text.write_text(traceback, encoding="utf-8", errors="backslashreplace")
            np.savez(place / "rollout.npz", allow_pickle=False, **arrays)
        except OSError as error:
            return f"{place} cannot be written: {error}"
        return f"see {place}/traceback.txt, and numpy.load('{place}/rollout.npz')"

    def close(self) -> None:
        """Release the lock."""
        self._lock.close()


class RunArgs(NamedTuple):
    """What args.json holds."""

    params: Params
    sources: dict[str, str]
    environment: dict[str, Any]
    # Each time that the run went on: from where, by which command and code, on which CPU.
    resumed: Sequence[Any] = ()


def create(
    parsed: ParsedParams,
    argv: Sequence[str],
    environment: Mapping[str, Any] | None = None,
    code: pathlib.Path = provenance.CODE,
) -> RunFolder:
    """Make, fill and lock the folder of a new run.

    `argv` are train.py's arguments, `environment` whatever is worth keeping that only the
    environment itself could tell. A folder that is taken, or cannot be written, is BadInput, and
    nothing is left behind.
    """
    revision = provenance.short_revision(code)
    args = to_json(parsed) | {"environment": dict(environment or {})}
    texts = {
        ARGS: json.dumps(args, indent=2, allow_nan=False),
        "command.txt": shlex.join(["python3", "train.py", *argv]),
        "git.txt": provenance.git_state(code),
        "versions.txt": "\n".join([f"code: {provenance.digest_of(code)}", *provenance.versions()]),
        LOCK: "",
    }
    stem, is_chosen = name_of(parsed.params, revision)
    path, number = pathlib.Path(stem), 1
    while why := _taken(path) or _fill(path, texts):
        if is_chosen or not os.path.lexists(path):
            raise BadInput(why)
        # A name that the user did not choose is ours to change.
        number += 1
        path = pathlib.Path(f"{stem}_{number}")
    return RunFolder(path, _lock(path))


def name_of(params: Params, revision: str) -> tuple[str, bool]:
    """Where a new run's folder is to be, and whether the user chose that."""
    if params.log_dir is not None:
        return params.log_dir, True
    if params.run_name is not None:
        return f"runs/{params.run_name}_{revision}", True
    env = re.sub(r"[^A-Za-z0-9_.-]+", "-", params.env_id).strip(".-")[:100] or "env"
    return f"runs/{env}_{time.strftime('%Y%m%d-%H%M%S')}_{revision}_s{params.seed}", False


def open_existing(path: pathlib.Path) -> RunFolder:
    """Lock the folder of a run that is to go on."""
    if not os.path.isfile(path / ARGS):
        raise BadInput(f"{path} is no run folder: it has no {ARGS}")
    lock = path / LOCK
    if lock.is_symlink() or (lock.exists() and not lock.is_file()):
        raise BadInput(f"{lock} is a link or a special file; a run writes through none")
    if not lock.exists():
        raise BadInput(
            f"{path} cannot go on: it has no {LOCK} file: it was published, or killed while it was made"
        )
    return RunFolder(path, _lock(path))


def _lock(folder: pathlib.Path) -> TextIO:
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


def record_resumption(
    folder: RunFolder,
    args: RunArgs,
    resumed: Mapping[str, Any],
    code: pathlib.Path = provenance.CODE,
) -> None:
    """Write args.json anew, with one more note of how the run went on."""
    note = dict(resumed) | {
        "revision": provenance.short_revision(code),
        "code": provenance.digest_of(code),
        "cpu": provenance.cpu_model(),
        "time": time.strftime("%F %T %z"),
    }
    content = to_json(ParsedParams(args.params, args.sources)) | {
        "environment": args.environment,
        "resumed": [*args.resumed, note],
    }
    path = folder.path / ARGS
    try:
        appending.write_atomically(path, json.dumps(content, indent=2, allow_nan=False) + "\n")
    except OSError as error:
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


def _fill(folder: pathlib.Path, texts: Mapping[str, str]) -> str | None:
    """Claim a folder; returns why it cannot be, if another run has just claimed it."""
    made: list[pathlib.Path] = []
    try:
        _make_folder(folder, made)
        for name, text in texts.items():
            # Exclusive creation, args.json first: of two runs that found the same folder empty,
            # one gets it.
            with open(folder / name, "x", encoding="utf-8", errors="surrogateescape") as file:
                made.append(folder / name)
                file.write(text and text + "\n")
                file.flush()
                os.fsync(file.fileno())
        (folder / "checkpoints").mkdir()
        made.append(folder / "checkpoints")
    except BaseException as error:
        _unmake(made)
        if isinstance(error, FileExistsError):
            return f"{folder} has just been taken by another run"
        if isinstance(error, OSError):
            raise BadInput(f"cannot make the run folder {folder}: {error.strerror}") from None
        raise
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
