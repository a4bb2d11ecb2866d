"""Runs that are killed again and again: every resume works, and nothing that was saved is lost.

`make soak` does the same a hundred times, at random moments.
"""

import contextlib
import csv
import json
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Callable

import pytest

from a3c.contract import Counts
from a3c.store import checkpoint
from a3c.store.logs import GAME_COLUMNS
from tests.tools import processes

TRAIN = processes.ROOT / "train.py"
TOY = [
    *("--no_xla", "--n_workers", "2", "--envs_per_worker", "2", "--n_steps", "1e9"),
    *("--ckpt_interval_seconds", "0.5", "--log_interval_seconds", "0.2"),
    "tests.tools.toys:toys/Drawn-v0",
]


def start(outside: pathlib.Path, *command: str) -> subprocess.Popen:
    """Start the run in `outside`/run, or resume it where it has begun."""
    begun = (outside / "run/args.json").exists()
    how = ["--resume", "run", command[-1]] if begun else ["--log_dir", "run", *command]
    with processes.dispositions():
        return processes.start([TRAIN, *how], outside)


def kill(process: subprocess.Popen) -> float:
    """Kill the main process; returns the seconds until the processes that it started are gone."""
    assert process.poll() is None, f"it ended with {process.returncode}"
    process.kill()
    process.wait()
    since = time.monotonic()
    processes.wait_until(lambda: not processes.members(process.pid), "its processes to end")
    return time.monotonic() - since


def saved(outside: pathlib.Path) -> Counts:
    """The counts of the newest whole checkpoint; all 0 where there is none yet."""
    folder = outside / "run/checkpoints"
    if not checkpoint.numbered(folder):
        return Counts()
    return checkpoint.newest_whole(folder)[0].snapshot.counts


def is_not_behind(after: Counts, before: Counts) -> bool:
    return all(now >= then for now, then in zip(after, before, strict=True))


def check_files(outside: pathlib.Path) -> None:
    """Every file of the run parses, except for a last line that the kill cut short."""
    run = outside / "run"
    json.loads((run / "args.json").read_text())
    for path in checkpoint.numbered(run / "checkpoints").values():
        checkpoint.read(path)
    if (run / "progress.csv").exists():
        with (run / "progress.csv").open(newline="") as file:
            header, *rows = csv.reader(file)
        assert all(len(row) == len(header) for row in rows[:-1])
        steps = [int(row[0]) for row in rows[:-1]]
        assert steps == sorted(steps)
    if (run / "monitor.csv").exists():
        head, columns, *lines = (run / "monitor.csv").read_text().splitlines()
        assert json.loads(head.removeprefix("#"))["t_start"] > 0
        assert columns == ",".join(GAME_COLUMNS)
        games = [[float(cell) for cell in line.split(",")] for line in lines[:-1]]
        assert all(len(game) == len(GAME_COLUMNS) for game in games)
        for env in {(worker, env) for *_, worker, env in games}:
            of_env = [game[2:4] for game in games if (game[4], game[5]) == env]
            assert [*map(list, zip(*of_env, strict=True))] == [
                sorted(of_column) for of_column in zip(*of_env, strict=True)
            ]


def is_saving(outside: pathlib.Path) -> bool:
    """Whether a checkpoint other than the first is being written."""
    found = (outside / "run/checkpoints").glob("ckpt-*.tmp")
    return any(not path.name.startswith("ckpt-0.") for path in found)


def is_caught_saving(outside: pathlib.Path, process: subprocess.Popen[bytes]) -> bool:
    """The same, and then it is stopped there; otherwise it would often be over before a kill."""
    if not is_saving(outside):
        return False
    os.kill(process.pid, signal.SIGSTOP)
    if is_saving(outside):
        return True
    os.kill(process.pid, signal.SIGCONT)
    return False


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_loses_nothing_that_was_saved(tmp_path):
    """Analytic: while it starts, trains and saves; then it is stopped in order."""
    outside = tmp_path / "outside"
    outside.mkdir()

    def has_begun() -> bool:
        with contextlib.suppress(FileNotFoundError):
            return "starting TensorFlow" in (outside / "run/log.txt").read_text()
        return False

    moments: dict[str, Callable[[], bool]] = {
        "at the start": has_begun,
        "in training": lambda: saved(outside).steps > before.steps,
        "while saving": lambda: is_caught_saving(outside, process),
    }
    before = saved(outside)
    for moment, has_come in moments.items():
        process = start(outside, *TOY)
        try:
            processes.wait_until(
                lambda come=has_come, p=process: p.poll() is not None or come(), moment
            )
            assert kill(process) < processes.DEADLINE_SECONDS / 2
        finally:
            processes.end(process)
        after = saved(outside)
        assert is_not_behind(after, before), moment
        check_files(outside)
        before = after
    assert before.steps > 0

    process = start(outside, *TOY)
    try:
        processes.wait_until(
            lambda: (
                f"resumed run/checkpoints/ckpt-{before.steps}.safetensors at"
                in (processes.outputs(outside)["stdout"])
            ),
            "it to resume",
        )
        processes.wait_until(lambda: saved(outside).steps > before.steps, "more steps")
        process.send_signal(signal.SIGTERM)
        assert process.wait(processes.DEADLINE_SECONDS) == 143, processes.outputs(outside)
    finally:
        processes.end(process)
    assert processes.outputs(outside)["stderr"] == ""
    check_files(outside)
    after = saved(outside)
    folder = outside / "run"
    # One row for each game that counts; a resumption removes those after its checkpoint.
    n_rows = len((folder / "monitor.csv").read_text().splitlines()) - 2
    assert n_rows == after.games > 0
    left = [path.name for path in folder.rglob("*") if "tmp" in path.name or "temp" in path.name]
    assert left == []
    with (folder / "progress.csv").open(newline="") as file:
        steps = [int(row["misc/steps"]) for row in csv.DictReader(file)]
    assert steps == sorted(steps)
    assert os.path.exists(folder / "lock")
