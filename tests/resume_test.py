"""Going on in the same folder: bit for bit where games begin, and in clear words where it cannot."""

import csv
import pathlib
import signal

import pytest
import tensorflow as tf

import train
from a3c import checkpoint, training

DRAWN = "tests.toys:toys/Drawn-v0"
PONG = "tests.toys:toys/ShortPong-v0"


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch):
    """Runs of train.py's main in this process, each in a folder below an empty one."""
    monkeypatch.setattr(network, "compute_in_calling_threads", lambda: None)
    monkeypatch.chdir(tmp_path)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield tmp_path
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def run(*arguments: str) -> int:
    return train.main(["--no_xla", *arguments] if "--resume" not in arguments else arguments)


def games(folder: str) -> list[tuple[str, ...]]:
    """File, score and length of every game."""
    return [
        (path.name, *line.split(",")[:2])
        for path in sorted(pathlib.Path(folder, "monitor").iterdir())
        for line in path.read_text().splitlines()[2:]
    ]


def tensors(folder: str) -> dict[str, bytes]:
    """Weights and statistics of the newest checkpoint."""
    reader = tf.train.load_checkpoint(str(checkpoint.find(pathlib.Path(folder))))
    return {
        name: reader.get_tensor(name).tobytes()
        for name in sorted(reader.get_variable_to_shape_map())
        if name.startswith(("weights/", "mean_squares/"))
    }


def info(folder: str) -> checkpoint.Info:
    return checkpoint.read_info(checkpoint.find(pathlib.Path(folder)))


def rows(folder: str) -> list[dict[str, str]]:
    with pathlib.Path(folder, "progress.csv").open(newline="") as file:
        return list(csv.DictReader(file))


# Bit for bit


@pytest.mark.parametrize(
    ("env_id", "flags", "n_steps"),
    [
        (DRAWN, "--network mlp", (60, 120, 200)),
        (DRAWN, "--network mlp --envs_per_worker 2 --seed 3", (200, 400)),
        (PONG, "--network small --steps_per_update 35 --max_n_noops 0", (105, 210)),
    ],
    ids=["vectors", "two environments", "frames"],
)
def test_a_run_that_is_resumed_where_games_begin_is_the_one_never_stopped(env_id, flags, n_steps):
    """Golden: weights, statistics, games, counters, and where draws and games stand; to the bit."""
    assert run(*flags.split(), "--log_dir", "whole", "--n_steps", str(n_steps[-1]), env_id) == 0
    first, *more = map(str, n_steps)
    assert run(*flags.split(), "--log_dir", "parts", "--n_steps", first, env_id) == 0
    for n in more:
        assert run("--resume", "parts", "--n_steps", n) == 0
    assert len(tensors("whole")) >= 20
    assert tensors("whole") == tensors("parts")
    assert games("whole") == games("parts")
    assert len(games("whole")) >= 6
    one, other = info("whole"), info("parts")
    assert one.counters["steps"] == n_steps[-1]
    assert {**one.counters, "frames": 0} == {**other.counters, "frames": 0}
    assert one.position.workers == other.position.workers
    # The window of the last 100 games goes on, too.
    mean = "rl/episode_reward_mean_100"
    assert rows("whole")[-1][mean] == rows("parts")[-1][mean]
