"""One trial: a train.py in a process of its own, on cores of its own, which is begun or continued.

Whoever runs a trial may be killed at any moment and in any way; train.py then notices that its stdin
has ended, saves and ends (see machine/stopping.py). So nothing here has to be cleaned up:

- Ray kills the children of a worker that ends. So a shell is the child, and train.py is the shell's.
- A core is taken by locking its file, and train.py inherits the lock. The system releases it when
  train.py ends, and no sooner, even if the sweep is gone by then.
- A trial that is tried again may find its old train.py still saving, and waits for the folder's lock.
"""

import contextlib
import fcntl
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from a3c.machine import place
from a3c.machine.stopping import STARTER
from a3c.machine.words import BadInput
from a3c.settings.config import OF_CODE
from a3c.settings.params import OF_ONE_START
from a3c.store import claim, reading, run_folder
from a3c.sweep import plan as plans
from a3c.sweep.folder import is_finished
from a3c.sweep.plan import Plan, Trial

TRAIN = [str(place.CODE / "train.py")] if place.IS_CLONE else ["-m", "a3c.run.command"]
POLL_SECONDS = 1.0


class TrialFailed(Exception):
    """A train.py ended with an error; the message is its status and last line."""


class News(NamedTuple):
    """What a trial has to tell since it last told something."""

    rows: list[tuple[float, float]]  # steps and metric
    is_finished: bool


def run(plan: Plan, trial: Trial, folder: pathlib.Path, is_stopped: bool = False) -> Iterator[News]:
    """Begin or continue a trial; yields every second what is new.

    A trial that continues yields its earlier rows first; one that is finished, or was stopped early,
    yields nothing else.
    """
    n_steps = plans.n_steps_of(plan, trial)
    steps, process, has_ended = 0.0, None, False
    while not has_ended:
        # Its last rows are written before it ends.
        has_ended = process is not None and process.poll() is not None
        is_done = (process is None or has_ended) and is_finished(folder, n_steps)
        rows = rows_after(steps, folder, plan.metric)
        if not is_done:
            # Tune may stop a trial for any row, but after its last step a run may still evaluate.
            rows = [row for row in rows if row[0] < n_steps]
        if rows:
            steps = rows[-1][0]
        yield News(rows, is_done)
        if process is None:
            if is_stopped or is_done:
                return
            if not claim.is_locked(folder) and (cores := lock_cores(plan.cores)):
                arguments = command(plan, trial, folder, list(cores))
                process = start(arguments, folder, list(cores.values()))
        time.sleep(POLL_SECONDS)
    assert process is not None
    if process.returncode:
        *_, last = ["no error printed", *errors_of(folder).read_text(errors="replace").splitlines()]
        raise TrialFailed(f"status {process.returncode}: {last[:500]}")


def command(plan: Plan, trial: Trial, folder: pathlib.Path, cores: Sequence[int]) -> list[str]:
    """train.py's arguments: for a new run, or to resume the one that is in the folder.

    It starts in the sweep's folder, so that its records name no other folder of the machine.
    """
    # A range, since a single number would say how many.
    shared = ["--cores", ",".join(f"{core}-{core}" for core in cores)]
    if (folder / run_folder.ARGS).exists():
        again = plans.words_of(plan, trial, OF_CODE + OF_ONE_START)
        return ["--resume", folder.name, *shared, *again]
    return ["--log_dir", folder.name, *shared, *plans.words_of(plan, trial)]


def start(
    arguments: Sequence[str], folder: pathlib.Path, locks: Sequence[int]
) -> subprocess.Popen[bytes]:
    """Start train.py with these arguments; it stops when the pipe at its stdin ends."""
    # Ray sets it to the number of CPUs of a worker; train.py shall count its own cores.
    environment = {name: text for name, text in os.environ.items() if name != "OMP_NUM_THREADS"}
    words = [sys.executable, *TRAIN, *arguments]
    # Errors of the last try alone, so that the last line says why it failed.
    with output_of(folder).open("ab") as output, errors_of(folder).open("wb") as errors:
        process = subprocess.Popen(
            ["/bin/sh", "-c", '"$@"; exit $?', "sh", *words],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=errors,
            env=environment | {STARTER: "1", "PYTHONUNBUFFERED": "1"},
            cwd=folder.parent,
            pass_fds=locks,
            start_new_session=True,  # Ctrl-C in the terminal is for the sweep alone
        )
    for lock in locks:
        os.close(lock)
    return process


def output_of(folder: pathlib.Path) -> pathlib.Path:
    """The file for what a trial's train.py prints."""
    return folder.with_name(f"{folder.name}.out")


def errors_of(folder: pathlib.Path) -> pathlib.Path:
    """The file for its errors."""
    return folder.with_name(f"{folder.name}.err")


def lock_cores(n: int) -> dict[int, int]:
    """Lock so many cores of this machine; returns an open file for each. Empty: they are in use."""
    folder = pathlib.Path(tempfile.gettempdir()) / f"a3c-cores-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise BadInput(f"{folder} belongs to somebody else")
    locked: dict[int, int] = {}
    for core in sorted(os.sched_getaffinity(0)):
        file = os.open(folder / str(core), os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked[core] = file
        except BlockingIOError:
            os.close(file)
        if len(locked) == n:
            return locked
    for file in locked.values():
        os.close(file)
    return {}


def are_cores_free(n: int) -> bool:
    """Whether so many cores of this machine are not those of other trials."""
    locked = lock_cores(n)
    for file in locked.values():
        os.close(file)
    return bool(locked)


def rows_after(steps: float, folder: pathlib.Path, metric: str) -> list[tuple[float, float]]:
    """Steps and metric of the rows of a run's progress.csv that are beyond `steps`."""
    with contextlib.suppress(BadInput):  # there is none yet
        columns = reading.read_progress(folder).columns
        if columns.keys() >= {"misc/steps", metric}:
            rows = zip(columns["misc/steps"].tolist(), columns[metric].tolist(), strict=True)
            return [(n, value) for n, value in rows if n > steps and math.isfinite(value)]
    return []
