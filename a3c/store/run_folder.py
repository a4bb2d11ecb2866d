"""The run folder: claimed so that no two runs share one, and held while a run is under way.

It holds what ran and what came of it. Everything that is needed to run it again is written before
training starts:

    args.json         every parameter, where its value came from, and what the environment is like
    command.txt       the command, ready to be pasted into a shell
    git.txt           revision and uncommitted changes of the code
    versions.txt      a digest of the code; Python, packages, machine
    lock              held by the process that trains in the folder
    monitor.csv       every finished game; beside it progress.csv with figures, evaluations.csv,
                      log.txt and TensorBoard's events (see logs.py)
    checkpoints/      and best/ in it (see checkpoint.py)
    failure/          what a worker that failed left behind
"""

import json
import os
import pathlib
import shlex
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, TextIO

import numpy as np

from a3c.machine import appending, place
from a3c.machine.words import BadInput
from a3c.settings.command_line import called
from a3c.settings.naming import stem_of_run
from a3c.settings.params import ParsedParams, from_json, to_json
from a3c.store import checkpoint, claim, provenance

ARGS = "args.json"
GAMES = "monitor.csv"
PROGRESS = "progress.csv"
EVALUATIONS = "evaluations.csv"
LOG = "log.txt"

MAX_ARGS_BYTES = 2**24  # ours has a few thousand; no file should fill the memory


class RunFolder:
    """A run's folder, to which only this process writes until it closes it or ends.

    However it ends, the system releases the lock. The lock's file stays: if it were removed, two
    processes could hold a lock each.
    """

    def __init__(self, path: pathlib.Path, lock: TextIO) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.best = self.checkpoints / "best"  # the best of the evaluated ones
        self._lock = lock
        self._place = os.open(path, os.O_RDONLY)  # while it is open, no other folder has its number

    def __str__(self) -> str:
        return str(self.path)

    def is_ours(self) -> bool:
        """Whether the path still leads to this run's folder, or to none.

        While a run is under way, its folder may be moved, and another one be put in its place.
        Open files stay this run's, but then it must not open others by their paths.
        """
        try:
            if not os.path.samestat(os.stat(self.path), os.fstat(self._place)):
                return False
            return os.path.samestat(os.stat(self.path / claim.LOCK), os.fstat(self._lock.fileno()))
        except OSError:  # the folder or its lock is gone: no other run can be there
            return True

    def say(self, *lines: str) -> None:
        """Print lines and add them to log.txt, before logs.py opens it for long."""
        with appending.survive_loss_of(sys.stdout):
            print(*lines, sep="\n", flush=True)
        log = appending.Appender(self.path / LOG)
        log.write("".join(f"{line}\n" for line in lines))
        log.close()

    def save(self, saved: checkpoint.Checkpoint) -> None:
        """Write a checkpoint of this run; OSError where that fails."""
        if not self.is_ours():
            raise OSError(f"another run has its folder where {self} was")
        # Not its parents: if the whole folder is gone, saving must fail so that the user learns it.
        saved.path.parent.mkdir(exist_ok=True)
        checkpoint.write(saved)

    def leave_failure(self, traceback: str, arrays: Mapping[str, np.ndarray]) -> str:
        """Write down how a worker failed; returns where to look, or why nothing is there.

        failure/traceback.txt says where it failed. failure/rollout.npz holds what the update would
        have used, as plain arrays: the rollout as far as it was collected (n_steps_collected), and
        under weights/ the worker's own weights.
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
        if not self._lock.closed:
            self._lock.close()
            os.close(self._place)


class RunArgs(NamedTuple):
    """What args.json holds."""

    parsed: ParsedParams
    environment: dict[str, Any]
    # For each time that the run was resumed: from where, by which command and code, on which CPU.
    resumed: Sequence[Any] = ()


def create(
    parsed: ParsedParams,
    argv: Sequence[str],
    environment: Mapping[str, Any] | None = None,
    code: pathlib.Path = place.CODE,
) -> RunFolder:
    """Make, fill and lock the folder of a new run.

    `argv` are train.py's arguments, `environment` what only the environment itself could tell.
    If the folder is taken or cannot be written, it raises BadInput and leaves nothing behind.
    """
    args = to_json(parsed) | {"environment": dict(environment or {})}
    texts = {
        "command.txt": shlex.join([*called("train.py"), *argv]),
        "git.txt": provenance.git_state(code),
        "versions.txt": "\n".join([f"code: {provenance.digest_of(code)}", *provenance.versions()]),
        ARGS: json.dumps(args, indent=2, allow_nan=False),
    }
    stem, is_chosen = name_of(parsed, provenance.short_revision(code))
    path, number = pathlib.Path(stem), 1
    while True:
        why = _taken(path, texts)
        if why is None:
            try:
                return RunFolder(path, claim.claim(path, texts))
            except claim.InUse as error:
                why = str(error)
        if is_chosen or not os.path.lexists(path):
            raise BadInput(why)
        # The user did not choose this name, so it may be changed.
        number += 1
        path = pathlib.Path(f"{stem}_{number}")


def name_of(parsed: ParsedParams, revision: str) -> tuple[str, bool]:
    """The path of a new run's folder, and whether the user chose it."""
    params = parsed.params
    if params.log_dir is not None:
        return params.log_dir, True
    if params.run_name is not None:
        return f"runs/{params.run_name}_{revision}", True
    moment = time.strftime("%Y%m%d-%H%M%S")
    return f"runs/{stem_of_run(parsed)}_s{params.seed}_{moment}", False


def open_existing(path: pathlib.Path) -> RunFolder:
    """Lock the folder of a run that is to be resumed."""
    if not os.path.isfile(path / ARGS):
        raise BadInput(f"{path} is no run folder: it has no {ARGS}")
    return RunFolder(path, claim.lock(path))


def record_resumption(
    folder: RunFolder,
    args: RunArgs,
    resumed: Mapping[str, Any],
    code: pathlib.Path = place.CODE,
) -> None:
    """Write args.json anew, with one more note of how the run was resumed."""
    note = dict(resumed) | {
        "revision": provenance.short_revision(code),
        "code": provenance.digest_of(code),
        "cpu": provenance.cpu_model(),
        "time": time.strftime("%F %T %z"),
    }
    content = to_json(args.parsed) | {
        "environment": args.environment,
        "resumed": [*args.resumed, note],
    }
    path = folder.path / ARGS
    try:
        appending.write_atomically(path, json.dumps(content, indent=2, allow_nan=False) + "\n")
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror}") from None


def read_args(folder: str | os.PathLike[str]) -> RunArgs:
    """Read a run folder's args.json; BadInput where this revision cannot read it."""
    path = pathlib.Path(folder) / ARGS
    try:
        if path.stat().st_size > MAX_ARGS_BYTES or not path.is_file():
            raise ValueError("it is no file of ours")
        content = json.loads(path.read_bytes())
        json.dumps(content, allow_nan=False)  # it may have to be written again
        if not isinstance(content, dict) or not isinstance(content.get("environment"), dict):
            raise ValueError("it does not describe the environment")
        if not isinstance(resumed := content.get("resumed", []), list):
            raise ValueError("its notes of resumptions are no list")
        return RunArgs(from_json(content), content["environment"], tuple(resumed))
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is damaged: {error}") from None
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None


def _taken(folder: pathlib.Path, files: Collection[str]) -> str | None:
    """Why the folder cannot be a new run's; None if it can."""
    try:
        for outer in pathlib.Path(os.path.realpath(folder)).parents:
            if (outer / ARGS).exists() and (outer / "command.txt").exists():
                return f"{folder} is inside {outer}, which holds another run"
        if (folder / ARGS).exists():
            return f"{folder} holds another run"
        if held := claim.what_is_in(folder, files):
            return f"{folder} is not empty (it holds {held}); a run needs a folder of its own"
    except OSError as error:
        return f"cannot make the folder {folder}: {error.strerror}"
    return None
