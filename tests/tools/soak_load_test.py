"""How a long run is judged: growth and loss of speed are found; a slower machine is not a problem."""

import numpy as np
import pytest

from a3c.contract import Counts, Snapshot, Subject
from a3c.store import checkpoint
from a3c.store.checkpoint import Checkpoint
from tests.tools import soak_load
from tests.tools.soak_load import Look, Part

PART = Part(2, 3, 60.0)


def course(n: int = 120, **of_minute: object) -> list[Look]:
    """Return an hour of looks at a steady run, two a minute; the given fields change with the minute."""
    minutes = np.arange(n) / 2
    fields = {
        "n_steps": lambda m: int(60 * 300 * m),
        "frames_per_second": lambda m: 8000.0,
        "n_bytes": lambda m: int(2e9 if m > 5 else 1e9 + 2e8 * m),  # warming up
        "n_files": lambda m: 100 if m > 5 else 90,
        "n_threads": lambda m: 50,
    } | of_minute
    return [Look(60 * m, *(fields[name](m) for name in Look._fields[1:])) for m in minutes]


STEADY = {
    "what grows in the first ten minutes": {},
    "what updates take for a moment": {
        "n_bytes": lambda m: int(2e9 * (1.1 if m % (1.5 if m > 40 else 5) else 1.0))
    },
    "a machine that slows down, and the calibration loop with it": {
        "n_steps": lambda m: int(60 * 300 * m * (1 - m / 400)),
        "frames_per_second": lambda m: 8000 * (1 - 2 * m / 400),
    },
}


@pytest.mark.parametrize("of_minute", STEADY.values(), ids=STEADY)
def test_what_is_forgiven(of_minute):
    """Analytic: none of these is growth or a loss of speed."""
    assert soak_load.judge(course(**of_minute)) == []
    first, last = soak_load.speeds(course(**of_minute))
    assert last == pytest.approx(first, rel=0.01)


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
    """Analytic: 3 MB a minute, a file in ten minutes, one thread; or a fifth of the speed."""
    (problem,) = soak_load.judge(course(**{"n_steps" if name == "steps" else name: of_minute}))
    assert name in problem


def test_too_few_looks_are_no_pass():
    """Analytic: two looks, an hour apart, do not suffice."""
    (problem,) = soak_load.judge([course()[0], course()[-1]])
    assert "nan" in problem


@pytest.fixture
def left(tmp_path):
    """Write the files of a stopped run of 2 × 3 environments."""
    head = "misc/steps,misc/updates,misc/env_restarts,rl/episodes"
    (tmp_path / "progress.csv").write_text(f"{head}\n150,10,0,3\n300,20,0,6\n")
    games = "".join(f"-21.0,40,12.5,{40 * i},0,{i % 3}\n" for i in range(6))
    (tmp_path / "monitor.csv").write_text(f'#{{"t_start": 0.0}}\nr,l,t,step,worker,env\n{games}')
    (tmp_path / "checkpoints").mkdir()
    path = checkpoint.path_of(tmp_path / "checkpoints", 300)
    subject = Subject("X-v0", "generic", "mlp", (2,), 2)
    checkpoint.write(Checkpoint(path, subject, {}, Snapshot(Counts(300, 20, 6), {}, {})))
    return tmp_path


@pytest.mark.parametrize(
    ("path", "text", "words"),
    [
        ("progress.csv", "314,21,0,6\n", "do not agree"),
        ("progress.csv", "285,19,0,6\n", "fall back"),
        ("progress.csv", "315,21,0,6\n", "differ"),
        ("progress.csv", "300,20,1,6\n", "replaced"),
        ("monitor.csv", "1.0,5", "damaged"),
        ("monitor.csv", "1.0,x,5,300,0,0\n", "damaged"),
        ("monitor.csv", "1.0,1,13.0,300,0,0\n", "7 games"),
        ("monitor.csv", "1.0,100,13.0,300,0,0\n", "more steps"),
    ],
)
def test_what_is_wrong_with_the_files_is_found(left, path, text, words):
    """Analytic: each problem has its message."""
    with (left / path).open("a") as file:
        file.write(text)
    assert any(words in problem for problem in soak_load.check_left(left, PART))


def test_a_lost_game_is_found(left):
    """Analytic: a counted game without a row is a problem; complete files have none."""
    assert soak_load.check_left(left, PART) == []
    path = left / "monitor.csv"
    path.write_text(path.read_text().replace("-21.0,40,12.5,0,0,0\n", ""))
    assert "5 games in monitor.csv, 6 counted" in soak_load.check_left(left, PART)
