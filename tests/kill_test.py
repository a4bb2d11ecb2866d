"""Runs that are killed, again and again: every resume works, and nothing that was saved is lost.

`make soak` does the same at random moments, a hundred times.
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

from a3c.store import checkpoint_files
from tests.tools import processes

TRAIN = processes.ROOT / "train.py"
TOY = [
    *[
        "--no_xla",
        "--network",
        "mlp",
        "--n_workers",
        "2",
        "--envs_per_worker",
        "2",
        "--n_steps",
        "1e9",
    ],
    *["--ckpt_interval_seconds", "0.5", "--manager_wake_interval_seconds", "0.2"],
    "tests.tools.toys:toys/Drawn-v0",
]


def start(outside: pathlib.Path, *command: str) -> subprocess.Popen:
    """Begin the run in `outside`/run, or go on with it where it has begun."""
    begun = (outside / "run/args.json").exists()
    how = ["--resume", "run", command[-1]] if begun else ["--log_dir", "run", *command]
    with processes.dispositions():
        return processes.start([TRAIN, *how], outside)


def kill(process: subprocess.Popen) -> float:
    """Kill the main process alone; the seconds until all that it had started is gone."""
    assert process.poll() is None, f"it ended with {process.returncode}"
    process.kill()
    process.wait()
    since = time.monotonic()
    processes.wait_until(lambda: not processes.members(process.pid), "its processes to end")
    return time.monotonic() - since


def saved(outside: pathlib.Path) -> dict[str, int]:
    """The counters of the newest whole checkpoint; all 0 where there is none yet."""
    folder = outside / "run/checkpoints"
    if not any(folder.glob("ckpt-*.json")):
        return dict.fromkeys(("steps", "updates", "games", "frames"), 0)
    info, _ = checkpoint_files.newest_whole(folder)
    return info.counters


def check_files(outside: pathlib.Path) -> None:
    """Every file of the run parses, but for a last line that the kill cut short."""
    run = outside / "run"
    json.loads((run / "args.json").read_text())
    for path in run.glob("checkpoints/*.json"):
        json.loads(path.read_text())
    if (run / "progress.csv").exists():
        with (run / "progress.csv").open(newline="") as file:
            header, *rows = csv.reader(file)
        assert all(len(row) == len(header) for row in rows[:-1])
        steps = [int(row[0]) for row in rows[:-1]]
        assert steps == sorted(steps)
    for path in run.glob("monitor/*"):
        comment, columns, *rows = path.read_text().splitlines()
        assert json.loads(comment.removeprefix("#"))["t_start"] > 0
        assert columns == "r,l,t"
        times = [float(row.split(",")[2]) for row in rows[:-1]]
        assert times == sorted(times)
        assert all(row.count(",") == 2 for row in rows[:-1])


def is_saving(outside: pathlib.Path) -> bool:
    """Whether a checkpoint is being written just now, the first one aside."""
    folder = outside / "run/checkpoints"
    names = [path.name for path in folder.glob("ckpt-*")] if folder.exists() else []
    indices = {name.split(".")[0].removesuffix("_temp") for name in names}
    return bool(
        indices - {n.removesuffix(".json") for n in names if n.endswith(".json")} - {"ckpt-0"}
    )


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_loses_nothing_that_was_saved(tmp_path):
    """Analytic: while it starts, while it trains, while it saves; then it is stopped in order."""
    outside = tmp_path / "outside"
    outside.mkdir()

    def has_begun() -> bool:
        with contextlib.suppress(FileNotFoundError):
            return "starting TensorFlow" in (outside / "run/log.txt").read_text()
        return False

    moments: dict[str, Callable[[], bool]] = {
        "at the start": has_begun,
        "in training": lambda: saved(outside)["steps"] > before["steps"],
        "while saving": lambda: is_saving(outside),
    }
    before = saved(outside)
    for moment, has_come in moments.items():
        process = start(outside, *TOY)
        try:
            processes.wait_until(
                lambda come=has_come, p=process: p.poll() is not None or come(), moment
            )
            assert kill(process) < 5
        finally:
            processes.end(process)
        after = saved(outside)
        assert all(after[name] >= before[name] for name in after), moment
        check_files(outside)
        before = after
    assert before["steps"] > 0

    process = start(outside, *TOY)
    try:
        processes.wait_until(
            lambda: (
                f"resumed run/checkpoints/ckpt-{before['steps']} at"
                in (processes.outputs(outside)["stdout"])
            ),
            "it to resume",
        )
        processes.wait_until(lambda: saved(outside)["steps"] > before["steps"], "more steps")
        process.send_signal(signal.SIGTERM)
        assert process.wait(processes.DEADLINE_SECONDS) == 143, processes.outputs(outside)
    finally:
        processes.end(process)
    assert processes.outputs(outside)["stderr"] == ""
    check_files(outside)
    after = saved(outside)
    folder = outside / "run"
    rows = [len(path.read_text().splitlines()) - 2 for path in sorted(folder.glob("monitor/*"))]
    # A game that ended after the last update has a row, but does not count.
    assert after["games"] <= sum(rows) <= after["games"] + 2 * len(rows)
    left = [path.name for path in folder.rglob("*") if "tmp" in path.name or "temp" in path.name]
    assert left == []
    # Of one timeline: its rows are in order.
    with (folder / "progress.csv").open(newline="") as file:
        steps = [int(row["misc/steps"]) for row in csv.DictReader(file)]
    assert steps == sorted(steps)
    assert os.path.exists(folder / "lock")
