"""Games of monitor files: ours with steps, and files of one environment each, synthetic and damaged."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from a3c.store import games
from tests.tools.run_files import PONG, games_text, monitor_text, steady


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_monitor_file_is_read(end):
    """Analytic: the numbers written are the numbers read, with either line end, columns to spare."""
    text = monitor_text([(-21.0, 757, 12.5), (3.5, 800, 30.25)], end=end)
    text += f'1.0,20,31.0,extra,"columns"{end}'
    file = games.parse_monitor(text)
    assert file[:2] == (PONG, 1000.0)
    np.testing.assert_array_equal(file.scores, [-21, 3.5, 1])
    np.testing.assert_array_equal(file.lengths, [757, 800, 20])
    np.testing.assert_array_equal(file.seconds, [12.5, 30.25, 31])
    assert file.words == []


TWO = monitor_text([(1.0, 10, 1.0), (2.0, 20, 2.0)])
OURS = games_text([(1.0, 10, 1.0, 30), (2.0, 20, 2.0, 20)])


@pytest.mark.parametrize(
    ("text", "scores", "word"),
    [
        (TWO + "3.0,30,3", [1, 2], "last line is cut off"),
        (TWO[:-1], [1], "last line is cut off"),
        (TWO[:12], [], "last line is cut off"),
        (TWO + "\x00\ufffd garbage,,\n3.0,30,3.0\n", [1, 2, 3], "1 of its lines are no games"),
        (TWO + "3.0,30\n3.0,0,3.0\n3.0,30,-1\n", [1, 2], "3 of its lines are no games"),
        (TWO + "nan,30,3.0\n1e400,30,3.0\n3.0,inf,3\n", [1, 2], "3 of its lines are no games"),
        (TWO + "3.0,30,3.0-21.0,40,4.0\n", [1, 2], "1 of its lines are no games"),
        (TWO.replace("{", "", 1), [1, 2], "first line is damaged"),
        (TWO.replace("1000.0", "NaN"), [1, 2], "first line is damaged"),
        (TWO.replace("1000.0", "1" * 400), [1, 2], "first line is damaged"),
        (TWO.replace("1000.0", '"x"'), [1, 2], "first line is damaged"),
        ("#[1]\n" + TWO.split("\n", 1)[1], [1, 2], "first line is damaged"),
        (TWO.replace("r,l,t", "l,r,t"), [], "no line r,l,t"),
        ("misc/steps,misc/frames,x\n1,2,3\n", [], "no line r,l,t"),
    ],
    ids=lambda value: None if isinstance(value, str) and "\n" not in value else "-",
)
def test_damage_is_left_out_with_a_word(text, scores, word):
    """Analytic: whole rows are kept, the rest is named."""
    file = games.parse_monitor(text)
    np.testing.assert_array_equal(file.scores, scores)
    assert len(file.scores) == len(file.lengths) == len(file.seconds)
    assert len(file.words) == 1
    assert word in file.words[0]


@pytest.mark.parametrize("text", ["", TWO.split("r,l,t")[0], TWO.split("1.0,10")[0]])
def test_a_file_without_games_yet_is_nothing_wrong(text):
    """Analytic: empty, or with its head alone."""
    file = games.parse_monitor(text)
    assert len(file.scores) == 0
    assert file.words == []


@settings(max_examples=3 * settings.default.max_examples)
@given(st.sampled_from([TWO, OURS]), st.binary(max_size=60), st.integers(0, 80), st.integers(0, 80))
def test_any_damage_leaves_numbers_in_order(text, garbage, start, stop):
    """Analytic: bytes of a file replaced by any others: finite sums, time and steps never fall."""
    data = text.encode()[:start] + garbage + text.encode()[stop:]
    file = games.parse_monitor(data.decode(errors="replace"))
    merged = games.merge([file] if text == OURS else [file, games.parse_monitor(TWO)])
    for array in merged:
        assert np.all(np.isfinite(array))
    assert np.all(np.diff(merged.seconds) >= 0)
    assert np.all(np.diff(merged.steps) >= 0)


def test_time_that_falls_back_goes_on():
    """Analytic: a file appended to after a restart, which counts t anew."""
    rows = [(0.0, 5, 10.0), (0.0, 5, 30.0), (0.0, 5, 5.0), (0.0, 5, 15.0)]
    file = games.parse_monitor(monitor_text(rows))
    np.testing.assert_array_equal(file.seconds, [10, 30, 35, 45])
    assert "falls back" in file.words[0]


def test_a_runs_games_are_in_order_of_their_steps():
    """Analytic: as the file has steps, nothing is put together; hours do not fall where a game was
    heard of after one that counted later.
    """
    rows = [(1.0, 10, 4.0, 30), (2.0, 20, 3.0, 20), (3.0, 30, 5.0, 20), (4.0, 40, 9.0, 70)]
    file = games.parse_monitor(games_text(rows))
    assert (file.env_id, file.words) == (PONG, [])
    merged = games.merge([file])
    np.testing.assert_array_equal(merged.scores, [2, 3, 1, 4])
    np.testing.assert_array_equal(merged.steps, [20, 20, 30, 70])
    np.testing.assert_array_equal(merged.seconds, [3, 5, 5, 9])


@pytest.mark.parametrize(
    "bad", ["1.0,2,3.0", "1.0,2,3.0,,0,0", "1.0,2,3.0,-1,0,0", "1.0,2,3.0,nan"]
)
def test_a_row_without_its_step_is_no_game(bad):
    """Analytic: in a file that has steps; the others stay."""
    file = games.parse_monitor(games_text([(1.0, 10, 4.0, 30)]) + f"{bad}\n")
    assert len(file.scores) == 1
    assert "1 of its lines are no games" in file.words[0]


def test_games_are_merged_in_order_of_time():
    """Analytic: the module's own drawing, 900 + 2/3 · 1200 steps at A's first end."""
    a = games.parse_monitor(monitor_text([(1.0, 900, 20.0), (3.0, 900, 40.0)]))
    b = games.parse_monitor(monitor_text([(2.0, 1200, 30.0)]))
    merged = games.merge([a, b])
    np.testing.assert_array_equal(merged.scores, [1, 2, 3])
    np.testing.assert_array_equal(merged.seconds, [20, 30, 40])
    np.testing.assert_allclose(merged.steps, [900 + 800, 1350 + 1200, 1800 + 1600])


def test_steps_are_those_of_even_stepping_and_adding_up_is_half_a_game_each_low():
    """Analytic: 16 environments at 50 steps/s each; the truth at time t is 800 t, to the end."""
    rng = np.random.default_rng(0)
    files = []
    for _ in range(16):
        lengths = rng.integers(500, 1500, size=60)
        ends = np.cumsum(lengths) / 50
        rows = [(0.0, length, end) for length, end in zip(lengths, ends, strict=True)]
        files.append(games.parse_monitor(monitor_text(rows)))
    # Environments end at different times, and in files nothing follows.
    last = min(file.seconds[-1] for file in files)
    merged = games.merge(files)
    until = merged.seconds <= last
    truth = 16 * 50 * merged.seconds[until]
    np.testing.assert_allclose(merged.steps[until], truth, rtol=1e-9)
    merged = sorted(
        (t, n) for file in files for n, t in zip(file.lengths, file.seconds, strict=True)
    )
    low = truth - np.cumsum([n for _, n in merged])[until]
    assert 15 / 2 * 900 < np.mean(low) < 15 / 2 * 1200


def test_games_are_moved_as_little_as_true_counts_demand():
    """Analytic: a resumption left 500 steps in no file, between the second game and the third."""
    estimates = np.array([100.0, 200.0, 300.0, 400.0])
    moved = games.as_counted(estimates, np.array([0, 2, 2, 4]), np.array([50, 210, 700, 950]))
    np.testing.assert_array_equal(moved, [100, 200, 700, 800])
    # Too high; and nothing is known after the last count, or of counts that are none.
    moved = games.as_counted(estimates, np.array([1, 2]), np.array([90, 170]))
    np.testing.assert_array_equal(moved, [90, 170, 270, 370])
    garbage = np.array([3, np.nan, np.inf, 1, 4]), np.array([250, 260, 270, 9000, 240])
    moved = games.as_counted(estimates, *garbage)
    np.testing.assert_array_equal(moved, [100, 200, 250, 350])


def test_an_environment_that_died_adds_one_game_at_most():
    """Analytic: B ends one game of 100 and no other; A goes on for ten."""
    a = games.parse_monitor(monitor_text(steady(10)))
    b = games.parse_monitor(monitor_text(steady(1)))
    total = games.merge([a, b]).steps
    np.testing.assert_allclose(total[2:], 200 + 100 * np.arange(2, 11))


def test_each_file_counts_from_its_own_start():
    """Analytic: Stable-Baselines3's files have a t_start each; B began 100 s after A."""
    a = games.parse_monitor(monitor_text([(1.0, 10, 105.0)], t_start=1000.0))
    b = games.parse_monitor(monitor_text([(2.0, 10, 4.0)], t_start=1100.0))
    merged = games.merge([a, b])
    np.testing.assert_array_equal(merged.scores, [2, 1])
    np.testing.assert_allclose(merged.seconds, [104, 105])
    # B had done nothing before its start: at its end, A is at 104/105 of its 10.
    np.testing.assert_allclose(merged.steps[0], 10 + 10 * 104 / 105)
