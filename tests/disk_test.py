"""A disk that is full for a while: the run continues, and nothing written before is lost.

A limit on the size of files (RLIMIT_FSIZE) replaces the full disk: it needs no rights.
"""

import contextlib
import csv
import os
import pathlib
import resource
import signal
import subprocess
import sys

import pytest
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

from a3c.contract import Counts
from a3c.store import checkpoint
from tests.tools import processes

TRAIN = processes.ROOT / "train.py"
FLAGS = "--no_xla --n_steps 1e9 --ckpt_interval_seconds 0.5 --log_interval_seconds 0.2"


class Screen:
    """What a process prints, read from a pipe, to which a limit on files does not apply."""

    def __init__(self) -> None:
        self._ours, self.theirs = os.pipe()
        os.set_blocking(self._ours, False)
        self._shown = b""

    def shows(self, text: str) -> bool:
        with contextlib.suppress(BlockingIOError):
            while more := os.read(self._ours, 65536):
                self._shown += more
        return text in self._shown.decode()

    def wait_for(self, *texts: str) -> None:
        for text in texts:
            processes.wait_until(lambda text=text: self.shows(text), text)

    def forget(self) -> None:
        self.shows("")
        self._shown = b""

    def close(self) -> None:
        os.close(self._ours)
        os.close(self.theirs)


def saved(folder: pathlib.Path) -> Counts:
    """The counts of a run's newest checkpoint."""
    return checkpoint.read(checkpoint.find(folder)).snapshot.counts


def n_saved(folder: pathlib.Path) -> int:
    return len(checkpoint.numbered(folder / "checkpoints"))


def let_files_grow(process, to: int) -> None:
    """Limit the files of every process of a run."""
    for pid in processes.members(process.pid):
        with contextlib.suppress(ProcessLookupError):
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (to, hard))


@pytest.mark.slow
def test_a_run_survives_a_full_disk_and_goes_on_when_there_is_room(tmp_path):
    """Analytic: each file is whole before, during and after; ending without room gives status 1."""
    screen = Screen()
    options = {"stdout": screen.theirs, "stderr": screen.theirs}
    with processes.dispositions():
        process = processes.start(
            [TRAIN, "--log_dir", "run", *FLAGS.split(), "tests.tools.toys:toys/Drawn-v0"],
            tmp_path,
            **options,
        )
    folder = tmp_path / "run"
    try:
        # Something of each kind is there.
        processes.wait_until(lambda: n_saved(folder) > 2, "3 saved")
        screen.wait_for("steps/s")
        let_files_grow(process, to=0)
        screen.wait_for(
            "cannot write progress.csv: File too large; training goes on\n",
            "cannot write TensorBoard's events: File too large; training goes on\n",
            "cannot write monitor.csv: File too large; training goes on\n",
            "cannot save a checkpoint: ",
        )
        before = saved(folder)
        screen.forget()
        screen.wait_for(": File too large; earlier checkpoints stay as they are\n")  # again
        assert saved(folder) == before

        let_files_grow(process, to=resource.RLIM_INFINITY)
        screen.wait_for(
            "can write progress.csv again\n",
            "can write monitor.csv again\n",
            "can write TensorBoard's events again\n",
            "checkpoints can be saved again\n",
        )
        after = saved(folder)
        assert after.steps > before.steps

        screen.forget()
        let_files_grow(process, to=0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(processes.DEADLINE_SECONDS) == 1
        screen.wait_for("earlier checkpoints stay as they are\n")
        assert not [*folder.glob("checkpoints/*.tmp")]
    finally:
        processes.end(process)
        screen.close()
    newest = saved(folder)
    assert newest.steps >= after.steps
    with (folder / "progress.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    steps = [int(row["misc/steps"]) for row in rows]
    assert steps == sorted(steps)
    assert all(None not in row and None not in row.values() for row in rows)
    # No game is missing, unless it ended after the last checkpoint.
    games = (folder / "monitor.csv").read_text().splitlines()[2:]
    assert all(game.count(",") == 5 for game in games[:-1])
    assert len(games) >= newest.games
    assert all(path.stat().st_size > 0 for path in folder.glob("events.out.*"))
    events = EventAccumulator(str(folder)).Reload()
    shown = [event.step for event in events.Tensors("misc/steps")]
    assert min(shown) <= before.steps
    assert max(shown) > before.steps


# Root may write everywhere, unless this right is taken from the program before it starts.
WITHOUT_RIGHTS = (
    "import ctypes, os, sys; PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1;"
    "ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE);"
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


@pytest.mark.slow
def test_a_folder_that_is_read_only_for_a_while_is_told(tmp_path):
    """Analytic: saving fails with a message, training continues and saves again later; files that are
    open are still written. A resumption is refused in one line while the folder is read-only.
    """
    screen = Screen()
    with processes.dispositions():
        process = processes.start(
            ["-c", WITHOUT_RIGHTS, TRAIN, "--log_dir", "run", *FLAGS.split(), "CartPole-v1"],
            tmp_path,
            stdout=screen.theirs,
            stderr=screen.theirs,
        )
    folder = tmp_path / "run"
    places = [folder, folder / "checkpoints"]
    try:
        processes.wait_until(lambda: n_saved(folder) > 2, "3 saved")
        for place in places:
            place.chmod(0o555)
        screen.wait_for("cannot save a checkpoint: Permission denied; earlier checkpoints")
        before = saved(folder)
        screen.forget()
        screen.wait_for(": Permission denied; earlier checkpoints stay as they are\n", " steps/s ")
        assert saved(folder) == before
        for place in places:
            place.chmod(0o755)
        screen.wait_for("checkpoints can be saved again\n")
        process.send_signal(signal.SIGTERM)
        assert process.wait(processes.DEADLINE_SECONDS) == 143
        for path in (folder / "lock", *places):
            path.chmod(0o555)
        command = [sys.executable, "-c", WITHOUT_RIGHTS, str(TRAIN), "--resume", "run"]
        refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert refused.returncode == 2
        assert refused.stderr == "train.py: error: cannot open run/lock: Permission denied\n"
    finally:
        for place in places:
            place.chmod(0o755)
        processes.end(process)
        screen.close()
    assert saved(folder).steps > before.steps
