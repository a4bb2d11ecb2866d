"""Tests of a3c/envs/score.py."""

import csv
import json
import os
import pathlib
import time

import pytest

from a3c.envs.score import Game, Monitor, read_n_rows
from tests.tools import toys


def read(path):
    """Read a monitor file as Stable-Baselines3's load_results does: a JSON comment, then CSV."""
    with open(path, encoding="utf-8") as file:
        comment = file.readline()
        assert comment[0] == "#"
        return json.loads(comment[1:]), list(csv.DictReader(file))


def test_score_and_length_of_whole_games(tmp_path):
    """Analytic: rewards 1 + 2 + ... of every frame; the length is what was reported."""
    path = tmp_path / "0.0.monitor.csv"
    t_start = time.time() - 100
    env = Monitor(toys.Numbers(game_lengths=(4, 6)), "toys/Numbers-v0", path, t_start)
    for length, n_decisions in ((4, 1), (6, 2)):
        env.reset()
        for _ in range(n_decisions):
            env.count_decision()
        for _ in range(length):
            env.step(0)
    header, rows = read(path)
    assert header == {"t_start": t_start, "env_id": "toys/Numbers-v0"}
    assert [(float(row["r"]), int(row["l"])) for row in rows] == [(10, 1), (21, 2)]
    assert all(list(row) == ["r", "l", "t"] for row in rows)
    assert 100 <= float(rows[0]["t"]) <= float(rows[1]["t"]) <= time.time() - t_start
    games = env.take_finished()
    assert [game[:2] for game in games] == [(10, 1), (21, 2)]
    assert [f"{game.seconds:.6f}" for game in games] == [row["t"] for row in rows]
    assert env.take_finished() == []
    assert env.n_frames == 10


def test_truncated_games_count_as_well(tmp_path):
    """Analytic: a time limit ends a game like any other end."""
    env = Monitor(toys.Numbers(game_lengths=(3,), truncates=True))
    env.reset()
    for _ in range(3):
        assert env.take_finished() == []
        env.step(0)
    assert env.take_finished()[0].score == 6


def test_own_steps_as_decisions():
    """Analytic: without a frame skip above, a step is a decision."""
    env = Monitor(toys.Vector(), counts_own_steps=True)
    env.reset()
    for _ in range(5):
        env.step(1)
    assert env.take_finished()[0][:2] == (50, 5)


def test_an_unfinished_game_leaves_no_row(tmp_path):
    """Analytic: a reset in mid-game starts from zero."""
    path = tmp_path / "0.0.monitor.csv"
    env = Monitor(toys.Numbers(game_lengths=(4,)), path=path)
    env.reset()
    env.count_decision()
    env.step(0)
    env.reset()
    for _ in range(4):
        env.step(0)
    assert [(row["r"], row["l"]) for row in read(path)[1]] == [("10.0", "0")]
    assert env.n_frames == 5


def test_the_file_appears_with_the_first_reset_and_each_row_at_once(tmp_path):
    """Analytic: building leaves no trace; a row can be read while the file is still open."""
    path = tmp_path / "0.0.monitor.csv"
    env = Monitor(toys.Numbers(game_lengths=(1,)), path=path)
    assert not path.exists()
    env.reset()
    assert read(path)[1] == []
    env.step(0)
    assert len(read(path)[1]) == 1


def test_a_file_that_cannot_be_made_is_told_at_the_first_reset_and_not_again(tmp_path, capsys):
    """Analytic: before there is any row that would have to wait."""
    path = tmp_path / "nowhere/0.0.monitor.csv"
    env = Monitor(toys.Vector(), path=path)
    env.reset()
    told = capsys.readouterr().err
    assert told == f"cannot write {path}: No such file or directory; its rows wait in memory\n"
    env.reset()
    assert capsys.readouterr().err == ""


def test_a_successor_carries_on_in_the_file(tmp_path):
    """Analytic: a second monitor on the same file adds rows, not a second header."""
    path = tmp_path / "0.0.monitor.csv"
    for _ in range(2):
        env = Monitor(toys.Numbers(game_lengths=(1,)), path=path)
        env.reset()
        env.step(0)
        env.close()
    assert len(path.read_text().splitlines()) == 2 + 2
    assert len(read(path)[1]) == 2


def test_games_of_the_one_before_are_written_once(tmp_path):
    """Analytic: while a decision is made or by the next reset, whichever comes first."""
    path = tmp_path / "0.0.monitor.csv"
    env = Monitor(toys.Vector(), path=path, unwritten=[Game(-1.0, 7, 0.5)])
    for write in (env.write_what_waits, env.write_what_waits, env.reset):
        write()
        assert path.read_text().splitlines()[1:] == ["r,l,t", "-1.0,7,0.500000"]


def test_close_closes_the_file_and_the_environment(tmp_path):
    """Analytic: no descriptor is left, and the environment below hears of it; also where no file was opened."""
    for path in (tmp_path / "0.0.monitor.csv", None):
        toy, closed = toys.Numbers(), []
        toy.close = lambda closed=closed: closed.append(True)
        env = Monitor(toy, path=path)
        env.reset()
        assert is_open_here(path) == (path is not None)
        env.close()
        assert closed == [True]
        assert not is_open_here(path)


def is_open_here(path: pathlib.Path | None) -> bool:
    """Whether this process has the file open."""
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return str(path) in [os.path.realpath(link) for link in links]


def test_without_more_said_time_counts_from_the_epoch():
    """Analytic: a game's seconds are the clock's; the score before any game is 0."""
    env = Monitor(toys.Numbers(game_lengths=(1,)))
    assert env.score == 0
    env.reset()
    before = time.time()
    env.step(0)
    assert before <= env.take_finished()[0].seconds <= time.time()


def test_observations_rewards_and_ends_pass_unchanged():
    """Parity: the monitored environment against a bare one."""
    bare, monitored = toys.Numbers(game_lengths=(3,)), Monitor(toys.Numbers(game_lengths=(3,)))
    assert toys.read_numbers(bare.reset()[0]) == toys.read_numbers(monitored.reset()[0])
    for action in range(3):
        frame, *rest = bare.step(action)
        monitored_frame, *monitored_rest = monitored.step(action)
        assert (frame == monitored_frame).all()
        assert rest == monitored_rest
    with pytest.raises(AssertionError, match="after the end"):
        monitored.step(0)


def test_how_many_games_a_file_holds(tmp_path):
    """Analytic: none if there is no file, or half a head."""
    path = tmp_path / "0.0.monitor.csv"
    found = [read_n_rows(path)]
    for text in ("", "#{}\n", "#{}\nr,l,t\n", "#{}\nr,l,t\n1.0,5,0.1\n2.0,6,0.2\n"):
        path.write_text(text)
        found.append(read_n_rows(path))
    assert found == [0, 0, 0, 0, 2]
