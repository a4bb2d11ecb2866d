"""Games of monitor files: ours with steps, and files of one environment each, synthetic and damaged."""

import numpy as np
import pytest

from a3c.store import games
from tests.tools.run_files import PONG, games_text, monitor_text


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_monitor_file_is_read(end):
    """Analytic: the numbers written are read, with either line end, and with more columns."""
    text = monitor_text([(-21.0, 757, 12.5), (3.5, 800, 30.25)], end=end)
    text += f'1.0,20,31.0,extra,"columns"{end}'
    file = games.parse_monitor(text)
    assert file[:2] == (PONG, 1000.0)
    np.testing.assert_array_equal(file.rows, [(-21, 757, 12.5), (3.5, 800, 30.25), (1, 20, 31)])
    assert file.words == []


def test_an_environment_without_an_id_has_none():
    """Analytic: Stable-Baselines3 writes a word there; and a game may end in its first second."""
    for word in ("None", "Unknown"):
        file = games.parse_monitor(monitor_text([(1.0, 10, 0.5)]).replace(PONG, word))
        assert (file.env_id, len(file.rows)) == (None, 1)


TWO = monitor_text([(1.0, 10, 1.0), (2.0, 20, 2.0)])
OURS = games_text([(1.0, 10, 1.0, 30), (2.0, 20, 2.0, 20)])


@pytest.mark.parametrize(
    ("text", "scores", "word"),
    [
        (TWO + "3.0,30,3", [1, 2], "last line is cut off"),
        (TWO[:-1], [1], "last line is cut off"),
        (TWO + "\x00\ufffd garbage,,\n3.0,30,3.0\n", [1, 2, 3], "that are no games: 1 "),
        (TWO + "3.0,30\n3.0,-1,3.0\n3.0,30,-1\n", [1, 2], "that are no games: 3 "),
        (TWO + "nan,30,3.0\n1e400,30,3.0\n3.0,inf,3\n", [1, 2], "that are no games: 3 "),
        (TWO + "3.0,30,3.0-21.0,40,4.0\n", [1, 2], "that are no games: 1 "),
        (TWO.replace("{", "", 1), [1, 2], "first line is damaged"),
        (TWO.replace("1000.0", "NaN"), [1, 2], "first line is damaged"),
        (TWO.replace("1000.0", "1" * 400), [1, 2], "first line is damaged"),
        ("#[1]\n" + TWO.split("\n", 1)[1], [1, 2], "first line is damaged"),
        (TWO.replace("r,l,t", "l,r,t"), [], "lacks the line r,l,t"),
        (OURS + "1.0,2,3.0\n1.0,2,3.0,,0,0\n1.0,2,3.0,-1,0,0\n", [1, 2], "no games: 3 "),
    ],
    ids=lambda value: None if isinstance(value, str) and "\n" not in value else "-",
)
def test_damage_is_left_out_with_a_message(text, scores, word):
    """Analytic: whole rows are kept, and one message names the rest; steps are numbers, too."""
    file = games.parse_monitor(text)
    np.testing.assert_array_equal(file.rows[:, 0], scores)
    assert len(file.words) == 1
    assert word in file.words[0]


def test_a_game_may_end_before_its_first_decision():
    """Analytic: in the no-ops of its start, so its length is 0."""
    file = games.parse_monitor(games_text([(-21.0, 0, 1.0, 30), (2.0, 20, 2.0, 40)]))
    assert (file.rows[:, 1].tolist(), file.words) == ([0, 20], [])


@pytest.mark.parametrize("text", ["", TWO.split("r,l,t")[0], TWO.split("1.0,10")[0]])
def test_a_file_without_games_yet_has_nothing_wrong(text):
    """Analytic: it is empty, or only begun."""
    file = games.parse_monitor(text)
    assert len(file.rows) == 0
    assert file.words == []


def test_time_that_falls_back_goes_on():
    """Analytic: the program restarted and appended to its file, counting t from 0."""
    rows = [(0.0, 5, 10.0), (0.0, 5, 30.0), (0.0, 5, 5.0), (0.0, 5, 15.0)]
    file = games.parse_monitor(monitor_text(rows))
    np.testing.assert_array_equal(file.rows[:, 2], [10, 30, 35, 45])
    assert "begins again" in file.words[0]


def test_a_runs_games_are_in_order_of_their_steps():
    """Analytic: hours do not fall where a game was reported after one that counted later."""
    rows = [(1.0, 10, 4.0, 30), (2.0, 20, 3.0, 20), (3.0, 30, 5.0, 20), (4.0, 40, 9.0, 70)]
    file = games.parse_monitor(games_text(rows))
    assert (file.env_id, file.words) == (PONG, [])
    merged = games.merge([file])
    np.testing.assert_array_equal(merged.scores, [2, 3, 1, 4])
    np.testing.assert_array_equal(merged.steps, [20, 20, 30, 70])
    np.testing.assert_array_equal(merged.seconds, [3, 5, 5, 9])


def test_games_of_several_files_are_in_order_of_time():
    """Analytic: each file counts from its own start, and B began 100 s after A; lengths add up."""
    a = games.parse_monitor(monitor_text([(1.0, 10, 5.0), (3.0, 30, 105.0)], t_start=1000.0))
    b = games.parse_monitor(monitor_text([(2.0, 20, 4.0)], t_start=1100.0))
    merged = games.merge([a, b])
    np.testing.assert_array_equal(merged.scores, [1, 2, 3])
    np.testing.assert_array_equal(merged.seconds, [5, 104, 105])
    np.testing.assert_array_equal(merged.steps, [10, 30, 60])
