"""How a long run is judged: growth and loss of speed are found, drift of the machine is not one."""

import json
import pathlib

import numpy as np
import pytest

from a3c.store import checkpoint_files
from tests.tools import soak_load
from tests.tools.soak_load import Look, Part

PART = Part(2, 3, 60.0)


def course(n: int = 120, **of_minute: object) -> list[Look]:
    """An hour of looks, twice a minute, of a steady run; fields given change with the minute."""
    minutes = np.arange(n) / 2
    fields = {
        "n_steps": lambda m: int(60 * 300 * m),
        "frames_per_second": lambda m: 8000.0,
        "n_bytes": lambda m: int(2e9 if m > 5 else 1e9 + 2e8 * m),  # warming up
        "n_files": lambda m: 100 if m > 5 else 90,
        "n_threads": lambda m: 50,
    } | of_minute
    return [Look(60 * m, *(fields[name](m) for name in Look._fields[1:])) for m in minutes]


def test_a_steady_run_is_fine():
    """Analytic: what grows in the first ten minutes is forgiven."""
    assert soak_load.judge(course()) == []
    assert soak_load.speeds(course()) == pytest.approx((300 / 8000, 300 / 8000))


@pytest.mark.parametrize(
    ("name", "of_minute"),
    [
        ("n_bytes", lambda m: int(2e9 + 3e6 * m)),
        ("n_files", lambda m: 100 + int(m / 10)),
        ("n_threads", lambda m: 50 + (m > 40)),
        ("steps", lambda m: int(60 * 300 * m * (1 - m / 400))),
        ("steps", lambda m: int(60 * 300 * m * (1 + m / 400))),
    ],
)
def test_growth_and_loss_of_speed_are_found(name, of_minute):
    """Analytic: 3 MB a minute, a file in ten minutes, one thread; a speed that changes by a fifth."""
    (problem,) = soak_load.judge(course(**{"n_steps" if name == "steps" else name: of_minute}))
    assert name in problem


def test_what_updates_take_for_a_moment_is_no_growth():
    """Analytic: a tenth more memory at most looks of the last third, and at few before."""
    often = {"n_bytes": lambda m: int(2e9 * (1.1 if m % (1.5 if m > 40 else 5) else 1.0))}
    assert soak_load.judge(course(**often)) == []


def test_too_few_looks_are_no_pass():
    """Analytic: of two looks, an hour apart, nothing can be said."""
    (problem,) = soak_load.judge([course()[0], course()[-1]])
    assert "nan" in problem


def test_a_machine_that_slows_down_is_no_fault_of_the_run():
    """Analytic: the calibration loop slows down with it."""
    slower = {
        "n_steps": lambda m: int(60 * 300 * m * (1 - m / 400)),
        "frames_per_second": lambda m: 8000 * (1 - 2 * m / 400),
    }
    assert soak_load.judge(course(**slower)) == []


@pytest.fixture
def left(tmp_path, monkeypatch):
    """The files of a run of 2 × 3 environments that was stopped."""
    head = "misc/steps,misc/updates,misc/env_restarts,rl/episodes"
    (tmp_path / "progress.csv").write_text(f"{head}\n150,10,0,3\n300,20,0,6\n")
    (tmp_path / "monitor").mkdir()
    for worker in range(2):
        for env in range(3):
            path = tmp_path / "monitor" / f"{worker}.{env}.monitor.csv"
            path.write_text(f"#{json.dumps({'t_start': 0.0})}\nr,l,t\n-21.0,40,12.5\n")
    info = checkpoint_files.Info(tmp_path, None, {}, {"steps": 300, "games": 6}, True)
    monkeypatch.setattr(checkpoint_files, "find", lambda folder: folder)
    monkeypatch.setattr(checkpoint_files, "read_info", lambda prefix: info)
    return tmp_path


def test_whole_files_are_fine(left):
    """Analytic: a game whose rollout was not finished may be there and not be counted."""
    assert soak_load.check_left(left, PART) == []
    append(left / "monitor/0.0.monitor.csv", "1.0,50,13.0\n")
    assert soak_load.check_left(left, PART) == []


def append(path: pathlib.Path, text: str) -> None:
    path.write_text(path.read_text() + text)


@pytest.mark.parametrize(
    ("path", "text", "words"),
    [
        ("progress.csv", "314,21,0,6\n", "do not agree"),
        ("progress.csv", "285,19,0,6\n", "fall back"),
        ("progress.csv", "315,21,0,6\n", "differ"),
        ("progress.csv", "300,20,1,6\n", "replaced"),
        ("monitor/0.0.monitor.csv", "1.0,5", "damaged"),
        ("monitor/0.0.monitor.csv", "1.0,x,5\n", "damaged"),
        ("monitor/0.0.monitor.csv", "1.0,1,13.0\n" * 7, "13 games"),
        ("monitor/0.0.monitor.csv", "1.0,100,13.0\n", "more steps"),
        ("monitor/9.0.monitor.csv", "", "7 monitor files"),
    ],
)
def test_what_is_wrong_with_the_files_is_found(left, path, text, words):
    """Analytic: each by its words."""
    path = left / path
    path.touch()
    append(path, text)
    assert any(words in problem for problem in soak_load.check_left(left, PART))


def test_a_lost_game_is_found(left):
    """Analytic: a counted one that is in no file."""
    path = left / "monitor/0.0.monitor.csv"
    path.write_text(path.read_text().replace("-21.0,40,12.5\n", ""))
    assert "5 games in monitor files, 6 counted" in soak_load.check_left(left, PART)
