"""Tests of plot_runs.py: synthetic files with known curves, and files that are not as they should be."""

import dataclasses
import gzip
import json
import pathlib
import re

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import plot_runs
from a3c.envs.make import EnvSettings, make_env
from a3c.settings import command_line, params
from a3c.settings.params import BadInput
from plot_runs import Curve, Games, Run

PONG = "PongNoFrameskip-v4"
BREAKOUT = "BreakoutNoFrameskip-v4"


def monitor_text(games, env_id=PONG, t_start=1000.0, end="\n"):
    """A monitor file's text; games are (r, l, t)."""
    rows = [f"#{json.dumps({'t_start': t_start, 'env_id': env_id})}\n", f"r,l,t{end}"]
    return "".join(rows + [f"{r},{length},{t}{end}" for r, length, t in games])


def write_monitor(path, games, **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(monitor_text(games, **more), newline="")
    return path


def write_run(folder, *files, env_id=PONG, flags=(), sticky=None):
    """A run folder of train.py's; each file is one environment's games."""
    for i, games in enumerate(files):
        write_monitor(folder / "monitor" / f"0.{i}.monitor.csv", games, env_id=env_id)
    kind = "vector" if env_id.startswith("CartPole") else "image"
    parsed = params.resolve_network(command_line.parse([*flags, env_id]), kind)
    environment = {} if sticky is None else {"sticky_actions": sticky}
    content = params.to_json(parsed) | {"environment": environment}
    (folder / "args.json").write_text(json.dumps(content))
    return folder


def steady(n_games, length=100, seconds=1.0, score=float):
    """Games of one length and time each; their scores are `score` of their numbers."""
    return [(score(i), length, (i + 1) * seconds) for i in range(n_games)]


def options(*argv, curves=(1, 10, 100)):
    parsed = plot_runs.parse(["run", "--out", "fig.png", *argv])
    parsed.curves = list(curves)
    return parsed


def run_of(scores, steps, env_id=PONG, sticky=0.0):
    """A run that is already read, one step a second."""
    steps = np.asarray(steps, dtype=float)
    games = Games(np.asarray(scores, dtype=float), steps, steps)
    return Run(pathlib.Path("runs/a"), env_id, games, 1.0, 4, 0, sticky, {})


# Reading


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_monitor_file_is_read(end):
    """Analytic: the numbers written are the numbers read, with either line end, columns to spare."""
    text = monitor_text([(-21.0, 757, 12.5), (3.5, 800, 30.25)], end=end)
    text += f'1.0,20,31.0,extra,"columns"{end}'
    file = plot_runs.parse_monitor(text)
    assert file[:2] == (PONG, 1000.0)
    np.testing.assert_array_equal(file.scores, [-21, 3.5, 1])
    np.testing.assert_array_equal(file.lengths, [757, 800, 20])
    np.testing.assert_array_equal(file.seconds, [12.5, 30.25, 31])
    assert file.words == []


TWO = monitor_text([(1.0, 10, 1.0), (2.0, 20, 2.0)])


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
    file = plot_runs.parse_monitor(text)
    np.testing.assert_array_equal(file.scores, scores)
    assert len(file.scores) == len(file.lengths) == len(file.seconds)
    assert len(file.words) == 1
    assert word in file.words[0]


@pytest.mark.parametrize("text", ["", TWO.split("r,l,t")[0], TWO.split("1.0,10")[0]])
def test_a_file_without_games_yet_is_nothing_wrong(text):
    """Analytic: empty, or with its head alone."""
    file = plot_runs.parse_monitor(text)
    assert len(file.scores) == 0
    assert file.words == []


@settings(max_examples=3 * settings.default.max_examples)
@given(st.binary(max_size=60), st.integers(0, 80), st.integers(0, 80))
def test_any_damage_leaves_numbers_in_order(garbage, start, stop):
    """Analytic: bytes of a file replaced by any others: finite sums, time and steps never fall."""
    data = TWO.encode()[:start] + garbage + TWO.encode()[stop:]
    file = plot_runs.parse_monitor(data.decode(errors="replace"))
    games = plot_runs.merge([file, plot_runs.parse_monitor(TWO)])
    for array in games:
        assert np.all(np.isfinite(array))
    assert np.all(np.diff(games.seconds) >= 0)
    assert np.all(np.diff(games.total_l) >= 0)


def test_time_that_falls_back_goes_on():
    """Analytic: a file appended to after a restart, which counts t anew."""
    games = [(0.0, 5, 10.0), (0.0, 5, 30.0), (0.0, 5, 5.0), (0.0, 5, 15.0)]
    file = plot_runs.parse_monitor(monitor_text(games))
    np.testing.assert_array_equal(file.seconds, [10, 30, 35, 45])
    assert "falls back" in file.words[0]


def test_zipped_files_are_read_and_none_twice(tmp_path, capsys):
    """Analytic: a zipped file's games are the plain one's; of both, one counts; a cut one is left out."""
    games = [steady(3), steady(4)]
    plain = plot_runs.load(write_run(tmp_path / "plain", *games), None)
    folder = write_run(tmp_path / "zipped", *games)
    for i, path in enumerate(sorted((folder / "monitor").iterdir())):
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        if i == 0:
            path.unlink()
    zipped = plot_runs.load(folder, None)
    for here, there in zip(zipped.games, plain.games, strict=True):
        np.testing.assert_array_equal(here, there)
    assert capsys.readouterr().err == ""
    cut = folder / "monitor" / "0.0.monitor.csv.gz"
    cut.write_bytes(cut.read_bytes()[:-9])
    assert len(plot_runs.load(folder, None).games.scores) == 4
    assert f"cannot read {cut}" in capsys.readouterr().err


# Merging, and the step at which a game ended


def test_games_are_merged_in_order_of_time():
    """Analytic: the module's own drawing, 900 + 2/3 · 1200 steps at A's first end."""
    a = plot_runs.parse_monitor(monitor_text([(1.0, 900, 20.0), (3.0, 900, 40.0)]))
    b = plot_runs.parse_monitor(monitor_text([(2.0, 1200, 30.0)]))
    games = plot_runs.merge([a, b])
    np.testing.assert_array_equal(games.scores, [1, 2, 3])
    np.testing.assert_array_equal(games.seconds, [20, 30, 40])
    np.testing.assert_allclose(games.total_l, [900 + 800, 1350 + 1200, 1800 + 1600])


def test_steps_are_those_of_even_stepping_and_adding_up_is_half_a_game_each_low():
    """Analytic: 16 environments at 50 steps/s each; the truth at time t is 800 t, to the end."""
    rng = np.random.default_rng(0)
    files = []
    for _ in range(16):
        lengths = rng.integers(500, 1500, size=60)
        ends = np.cumsum(lengths) / 50
        games = [(0.0, length, end) for length, end in zip(lengths, ends, strict=True)]
        files.append(plot_runs.parse_monitor(monitor_text(games)))
    # Environments end at different times, and in files nothing follows.
    last = min(file.seconds[-1] for file in files)
    games = plot_runs.merge(files)
    until = games.seconds <= last
    truth = 16 * 50 * games.seconds[until]
    np.testing.assert_allclose(games.total_l[until], truth, rtol=1e-9)
    merged = sorted(
        (t, n) for file in files for n, t in zip(file.lengths, file.seconds, strict=True)
    )
    low = truth - np.cumsum([n for _, n in merged])[until]
    assert 15 / 2 * 900 < np.mean(low) < 15 / 2 * 1200


def test_games_are_moved_as_little_as_true_counts_demand():
    """Analytic: a resumption left 500 steps in no file, between the second game and the third."""
    estimates = np.array([100.0, 200.0, 300.0, 400.0])
    moved = plot_runs.as_counted(estimates, np.array([0, 2, 2, 4]), np.array([50, 210, 700, 950]))
    np.testing.assert_array_equal(moved, [100, 200, 700, 800])
    # Too high; and nothing is known after the last count, or of counts that are none.
    moved = plot_runs.as_counted(estimates, np.array([1, 2]), np.array([90, 170]))
    np.testing.assert_array_equal(moved, [90, 170, 270, 370])
    garbage = np.array([3, np.nan, np.inf, 1, 4]), np.array([250, 260, 270, 9000, 240])
    moved = plot_runs.as_counted(estimates, *garbage)
    np.testing.assert_array_equal(moved, [100, 200, 250, 350])


def test_the_steps_of_a_resumed_run_are_those_of_its_progress(tmp_path):
    """Analytic: as above; not of one environment's file or a run that began
    elsewhere: the counts are of other games, too.
    """
    folder = write_run(tmp_path / "a", steady(4))
    (folder / "progress.csv.gz").write_bytes(
        gzip.compress(b"rl/episodes,misc/steps\n2,210\n2,700\n4,950\n")
    )
    run = plot_runs.load(folder, None)
    np.testing.assert_array_equal(run.games.total_l, [100, 200, 700, 800])
    np.testing.assert_array_equal(
        plot_runs.load(folder / "monitor", None).games.total_l[2:], [700, 800]
    )
    one = plot_runs.load(folder / "monitor/0.0.monitor.csv", None)
    np.testing.assert_array_equal(one.games.total_l, [100, 200, 300, 400])
    other = write_run(tmp_path / "b", steady(4), flags=["--load_ckpt", "runs/before"])
    (other / "progress.csv").write_text("rl/episodes,misc/steps\n2,210\n2,700\n4,950\n")
    np.testing.assert_array_equal(plot_runs.load(other, None).games.total_l, [100, 200, 300, 400])


def test_an_environment_that_died_adds_one_game_at_most():
    """Analytic: B ends one game of 100 and no other; A goes on for ten."""
    a = plot_runs.parse_monitor(monitor_text(steady(10)))
    b = plot_runs.parse_monitor(monitor_text(steady(1)))
    total = plot_runs.merge([a, b]).total_l
    np.testing.assert_allclose(total[2:], 200 + 100 * np.arange(2, 11))


def test_each_file_counts_from_its_own_start():
    """Analytic: Stable-Baselines3's files have a t_start each; B began 100 s after A."""
    a = plot_runs.parse_monitor(monitor_text([(1.0, 10, 105.0)], t_start=1000.0))
    b = plot_runs.parse_monitor(monitor_text([(2.0, 10, 4.0)], t_start=1100.0))
    games = plot_runs.merge([a, b])
    np.testing.assert_array_equal(games.scores, [2, 1])
    np.testing.assert_allclose(games.seconds, [104, 105])
    # B had done nothing before its start: at its end, A is at 104/105 of its 10.
    np.testing.assert_allclose(games.total_l[0], 10 + 10 * 104 / 105)


# Axes


def test_one_game_of_ours_is_four_times_as_long_in_stable_baselines3_files(tmp_path):
    """Analytic: l counts decisions in ours and Baselines' files, frames in Stable-Baselines3's."""
    ours = plot_runs.load(write_run(tmp_path / "ours", steady(5, length=250)), None)
    sb3 = write_monitor(tmp_path / "sb3" / "0.monitor.csv", steady(5, length=1000))
    baselines = write_monitor(tmp_path / "b" / "0.0.monitor.csv", steady(5, length=250))
    steps = 250 * np.arange(1, 6)
    for run in (ours, plot_runs.load(sb3, 1), plot_runs.load(baselines.parent, 4)):
        np.testing.assert_allclose(plot_runs.axis_of(run, "steps"), steps)
        np.testing.assert_allclose(plot_runs.axis_of(run, "frames"), 4 * steps)
        np.testing.assert_array_equal(plot_runs.axis_of(run, "games"), [1, 2, 3, 4, 5])
        np.testing.assert_allclose(plot_runs.axis_of(run, "hours"), np.arange(1, 6) / 3600)
    # A flag for files of others leaves ours alone.
    assert plot_runs.load(tmp_path / "ours", 1).steps_per_l == 1


def test_our_monitor_and_one_below_the_skip_count_the_same_frames(tmp_path):
    """Differential: ten games by all of our layers, and frame by frame with Gymnasium's own counter. Of
    a game's 90 frames, 13 begin it and fill the stack; of the last of 20 decisions it has one frame.
    """
    toy = "tests.tools.toys:toys/ShortNumbers-v0"
    folder = write_run(tmp_path / "ours", [])
    (folder / "monitor" / "0.0.monitor.csv").unlink()
    ours = make_env(EnvSettings(toy, 0, max_n_noops=0, monitor_dir=str(folder / "monitor")))
    below = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make(toy))
    rows = []
    for number in range(10):
        for env in (ours, below):
            env.reset()
            info, is_over = {}, False
            while not is_over:
                *_, terminated, truncated, info = env.step(0)
                is_over = terminated or truncated
        rows.append((float(number), info["episode"]["l"], number + 1.0))
    ours.close()
    sb3 = write_monitor(tmp_path / "sb3" / "0.monitor.csv", rows)
    frames = [
        plot_runs.axis_of(run, "frames")
        for run in (plot_runs.load(folder, None), plot_runs.load(sb3, 1))
    ]
    np.testing.assert_allclose(frames[1], 90 * np.arange(1, 11))
    np.testing.assert_allclose(frames[1] - frames[0], (13 - 3) * np.arange(1, 11))


def test_steps_of_strange_files_are_not_guessed(tmp_path):
    """Analytic: an Atari id, or none, says nothing of l; games and hours need no l."""
    for env_id in (PONG, "ALE/Tetris-v5", "SeaquestDeterministic-v4", "Unknown", None):
        folder = tmp_path / str(env_id).replace("/", "-")
        run = plot_runs.load(write_monitor(folder / "monitor.csv", steady(3), env_id=env_id), None)
        for axis in ("steps", "frames"):
            with pytest.raises(BadInput, match="--frames_per_l"):
                plot_runs.axis_of(run, axis)
        assert len(plot_runs.axis_of(run, "hours")) == 3


def test_environments_without_frame_skip(tmp_path):
    """Analytic: CartPole's steps are its frames, whoever wrote the file."""
    sb3 = write_monitor(tmp_path / "sb3" / "monitor.csv", steady(3), env_id="CartPole-v1")
    ours = write_run(tmp_path / "ours", steady(3), env_id="CartPole-v1")
    for run in (plot_runs.load(sb3, None), plot_runs.load(sb3, 1), plot_runs.load(ours, None)):
        for axis in ("steps", "frames"):
            np.testing.assert_allclose(plot_runs.axis_of(run, axis), [100, 200, 300])


def test_a_run_from_a_checkpoint_counts_on(tmp_path, capsys):
    """Analytic: its log.txt says at which step it went on."""
    folder = write_run(tmp_path / "a", steady(2), flags=["--load_ckpt", "runs/before"])
    run = plot_runs.load(folder, None)
    np.testing.assert_allclose(plot_runs.axis_of(run, "steps"), [100, 200])
    assert "does not say" in capsys.readouterr().err
    (folder / "log.txt").write_text("run folder: a\nrestored x/ckpt-7 at 1,234,567 steps\n")
    run = plot_runs.load(folder, None)
    np.testing.assert_allclose(plot_runs.axis_of(run, "steps"), [1234667, 1234767])
    assert "at step 1,234,567" in capsys.readouterr().err


# Smoothing and seeds


@pytest.mark.parametrize("n", [1, 2, 10, 100])
def test_trailing_mean_equals_convolution(n):
    """Parity: numpy.convolve with n equal weights; nothing where there are fewer values."""
    values = np.random.default_rng(1).normal(size=99)
    expected = np.convolve(values, np.full(n, 1 / n), "valid") if n <= 99 else []
    np.testing.assert_allclose(plot_runs.trailing_mean(values, n), expected, atol=1e-12)


def test_a_mean_stands_at_its_last_game():
    """Analytic: scores 0, 1, 2, … by 3: 1 at the third game's step, 2 at the fourth's."""
    curve = plot_runs.smooth(run_of(range(5), [10, 20, 30, 40, 50]), "steps", 3)
    np.testing.assert_array_equal(curve.x, [30, 40, 50])
    np.testing.assert_allclose(curve.y, [1, 2, 3])


def line(slope, x):
    y = slope * np.asarray(x, dtype=float)
    return Curve(np.asarray(x, dtype=float), y, y, y)


@pytest.mark.parametrize(
    ("shade", "half_width"), [("minmax", 1.0), ("sd", np.std([1, 3], ddof=1)), ("none", 0.0)]
)
def test_seeds_are_compared_where_all_have_values(shade, half_width):
    """Analytic: y = x on 0…8 and y = 3x on 2…10: the mean is 2x on 2…8, its band known."""
    mean = plot_runs.align([line(1, [0, 3, 8]), line(3, [2, 4, 5, 10])], shade)
    assert (mean.x[0], mean.x[-1]) == (2, 8)
    np.testing.assert_allclose(mean.y, 2 * mean.x)
    np.testing.assert_allclose(mean.low, (2 - half_width) * mean.x)
    np.testing.assert_allclose(mean.high, (2 + half_width) * mean.x)


def test_seeds_that_never_meet_have_no_mean():
    """Analytic: one ends where the other begins."""
    assert plot_runs.align([line(1, [0, 2]), line(1, [2, 4])], "minmax") is None


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("runs/wide", "wide"),
        ("runs/wide_s0", "wide"),
        ("runs/wide-seed-12_abc1234", "wide_abc1234"),
        ("runs/wide/seed1/", "wide"),
        ("runs/wide/s2/monitor", "wide"),
        ("runs/wide/0.3.monitor.csv", "wide"),
        ("runs/wide/monitor.csv.gz", "wide"),
        ("runs/run2.monitor.csv", "run2"),
        ("runs/4x4", "4x4"),
        ("runs/workers-4", "workers-4"),
        ("runs/clips5", "clips5"),
        ("/s1", "run"),
    ],
)
def test_groups_are_named_without_the_seed(path, name):
    """Analytic: what names a seed goes, every other number stays."""
    assert plot_runs.group_name(pathlib.Path(path)) == name


def test_runs_of_one_group_that_are_not_of_one_setting(tmp_path, capsys):
    """Analytic: seeds may differ; another setting gets a word, another environment is refused."""
    a = plot_runs.load(write_run(tmp_path / "a", steady(1)), None)
    b = plot_runs.load(write_run(tmp_path / "b", steady(1), flags=["--seed", "1"]), None)
    plot_runs.check_group("x", [a, b])
    assert capsys.readouterr().err == ""
    c = plot_runs.load(write_run(tmp_path / "c", steady(1), flags=["--n_workers", "4"]), None)
    plot_runs.check_group("x", [a, c])
    assert "differ in n_workers" in capsys.readouterr().err
    with pytest.raises(BadInput, match=f"{BREAKOUT}, {PONG}"):
        plot_runs.check_group("x", [a, a._replace(env_id=BREAKOUT)])


# progress.csv


def test_progress_without_its_damaged_rows():
    """Analytic: rows that are cut, short or no numbers go, with a word; NaN stays."""
    text = "misc/steps,a,b\n1,2,3\n4,nan,6\n7,8\nx,8,9\nmisc/steps,a,b\n10,11,12\n13,14,1"
    table, words = plot_runs.parse_progress(text, ["misc/steps", "a"])
    np.testing.assert_array_equal(table["misc/steps"], [1, 4, 10])
    np.testing.assert_array_equal(table["a"], [2, np.nan, 11])
    assert words == ["its last line is cut off: left out", "3 of its lines are no rows: left out"]
    assert plot_runs.parse_progress("misc/steps\n1\n", ["misc/steps"]).words == []
    assert plot_runs.parse_progress(text, ["misc/steps", "c"]) is None
    assert plot_runs.parse_progress("", ["misc/steps"]) is None


def test_figures_stand_at_their_steps_on_every_axis():
    """Analytic: games of 100 steps and 100 s each; nothing is said outside of them."""
    run = run_of(range(4), [100, 200, 300, 400])
    steps = np.array([50, 150, 400, 401])
    expected = {"steps": 1, "frames": 4, "games": 1 / 100, "hours": 1 / 3600}
    for axis, factor in expected.items():
        x = plot_runs.axis_at_steps(run, axis, steps)
        np.testing.assert_allclose(x, [np.nan, 150 * factor, 400 * factor, np.nan])


# The picture


def test_the_picture_shows_the_known_curve(tmp_path):
    """Analytic: scores rise by 1 a game; dots, mean of 10 and mean of 100 are where they must be."""
    run = plot_runs.load(write_run(tmp_path / "a", steady(150)), None)
    figure = plot_runs.draw({"a": [run]}, options("--x", "frames"))
    drawn = [line for line in figure.axes[0].get_lines() if len(line.get_xdata())]
    assert len(drawn) == 3
    for n, line in zip((1, 10, 100), drawn, strict=True):
        games = np.arange(n, 151)
        np.testing.assert_allclose(line.get_xdata(), 400 * games)
        np.testing.assert_allclose(line.get_ydata(), games - 1 - (n - 1) / 2)
    assert figure.axes[0].get_title() == f"{PONG} (no sticky actions)"
    assert figure.axes[0].get_xlabel() == "emulator frames (1 step = 4 frames)"
    assert figure.axes[0].get_ylabel() == "score of a whole training game"
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["a", "one game", "mean of 10 games", "mean of 100 games"]


def test_seeds_are_drawn_as_mean_and_band():
    """Analytic: constant scores 1 and 3: a line at 2, a band from 1 to 3, two groups two colours."""
    steps = 10 * np.arange(1, 31)
    low, high = run_of(np.full(30, 1), steps), run_of(np.full(30, 3), steps)
    other = run_of(np.full(30, 7), steps)
    chosen = options(curves=(10,))
    axes = plot_runs.draw({"_a": [low, high], "b": [other]}, chosen).axes[0]
    mean, single = [line for line in axes.get_lines() if len(line.get_xdata())]
    np.testing.assert_allclose(mean.get_ydata(), 2)
    np.testing.assert_allclose(single.get_ydata(), 7)
    assert mean.get_color() != single.get_color()
    heights = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (1, 3)
    labels = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert labels == ["a (2 seeds)", "b", "mean of 10 games", "lowest to highest seed"]


def test_no_groups_thin_line_hides_anothers_mean():
    """Analytic: of two groups each mean of more games is above every mean of fewer, those above dots."""
    steps = 10 * np.arange(1, 31)
    run = run_of(np.full(30, 1), steps)
    axes = plot_runs.draw({"a": [run], "b": [run]}, options(curves=(1, 5, 10))).axes[0]
    lines = [line for line in axes.get_lines() if len(line.get_xdata())]
    heights = {
        n: {line.get_zorder() for line in lines if len(line.get_xdata()) == n} for n in (30, 26, 21)
    }
    assert max(heights[30]) < min(heights[26]) <= max(heights[26]) < min(heights[21])


def test_a_seed_that_is_too_short_for_a_mean_is_left_out_of_it(capsys):
    """Analytic: of scores 1, 3 and 9 the last has no 10 games; no run has 100, nor the legend."""
    runs = [run_of(np.full(n, score), range(n)) for n, score in ((30, 1), (30, 3), (5, 9))]
    axes = plot_runs.draw({"a": runs}, options()).axes[0]
    means = [line for line in axes.get_lines() if len(line.get_xdata()) == 500]
    assert [set(line.get_ydata()) for line in means] == [{2}]
    heights = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (1, 3)
    labels = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert labels == ["a (3 seeds)", "one game", "mean of 10 games", "lowest to highest seed"]
    words = capsys.readouterr().err
    assert "1 of 3 runs have fewer than 10 games" in words
    assert "3 of 3 runs have fewer than 100 games" in words


def test_a_picture_without_any_curve(capsys):
    """Analytic: where no run is long enough, the legend names the group alone."""
    figure = plot_runs.draw({"a": [run_of(np.ones(5), range(5))]}, options(curves=(10,)))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a"]
    assert "a run has fewer than 10 games" in capsys.readouterr().err


def test_a_curve_that_a_run_is_too_short_for_gets_a_word(capsys):
    """Analytic: 30 games have no mean of 100; and a mean of seeds ends with the shortest one."""
    long, short = run_of(np.ones(60), range(60)), run_of(np.ones(30), range(30))
    plot_runs.draw({"a": [long, short]}, options())
    words = capsys.readouterr().err
    assert "fewer than 100 games" in words
    assert "means of 10 games end where its shortest run does" in words
    plot_runs.draw({"a": [long, run_of(np.ones(58), range(58))]}, options(curves=(10,)))
    assert capsys.readouterr().err == ""  # almost as long


@pytest.mark.parametrize(
    ("env_id", "heights"),
    [
        (PONG, [-20.7, 14.6, 20.5, 20]),
        ("ALE/Pong-v5", [-20.7, 14.6, 20.5, 20]),
        (BREAKOUT, [1.7, 30.5, 480, 435]),
        ("BeamRiderNoFrameskip-v4", [363.9, 16926.5, 14600, 5400]),
        ("QbertNoFrameskip-v4", [163.9, 13455, 11100, 12000]),
        ("SpaceInvadersNoFrameskip-v4", [148, 1668.7, 1430, 810]),
        ("SeaquestNoFrameskip-v4", []),
    ],
)
def test_published_scores(env_id, heights, capsys):
    """Analytic: random, human, paper, OCD A3C, each with its source; a word where there are none."""
    sticky = 0.25 if env_id.startswith("ALE") else 0.0
    axes = plot_runs.draw(
        {"a": [run_of([1, 2], [1, 2], env_id, sticky)]}, options("--references", curves=(1,))
    ).axes[0]
    lines = [line for line in axes.get_lines() if list(line.get_xdata()) == [0, 1]]
    assert [line.get_ydata()[0] for line in lines] == heights
    of_wang = "(no-op starts; Wang et al. 2016)"
    sources = (
        of_wang,
        of_wang,
        "(Figure 4 at 15 h, 16 threads)",
        "(its plot at 15 h, 16 workers, 3 seeds)",
    )
    for line, source in zip(lines, sources, strict=False):
        assert line.get_label().endswith(source)
    words = capsys.readouterr().err
    assert ("no published scores drawn: none are known here of Seaquest" in words) == (not heights)
    assert ("without sticky actions" in words) == bool(sticky)


def test_figures_are_drawn_from_progress(tmp_path, capsys):
    """Analytic: a column's values at its steps; a run without it gets a word."""
    folder = write_run(tmp_path / "a", steady(10))
    (folder / "progress.csv.gz").write_bytes(
        gzip.compress(b"misc/steps,misc/lr\n200,0.5\n300,x\n400,0.25\n")
    )
    run = plot_runs.load(folder, None)
    figure = plot_runs.draw({"a": [run]}, options("--figures", "misc/lr", "entropy"))
    (drawn,) = figure.axes[1].get_lines()
    np.testing.assert_array_equal(drawn.get_xdata(), [200, 400])
    np.testing.assert_array_equal(drawn.get_ydata(), [0.5, 0.25])
    assert len(figure.axes[2].get_lines()) == 0
    said = capsys.readouterr().err
    assert "has no entropy (rl/policy_entropy)" in said
    assert "progress.csv: 1 of its lines are no rows: left out" in said


def test_names_of_figures_are_columns_of_progress():
    """Analytic: every column that a panel needs is among those that a run writes."""
    source = (pathlib.Path(plot_runs.__file__).parent / "a3c/store/logs.py").read_text()
    for _, columns in plot_runs.FIGURES.values():
        for column in columns:
            assert f'"{column}"' in source
    assert '"misc/steps"' in source
    assert {field.name for field in dataclasses.fields(params.Params)} > plot_runs.NO_SETTINGS


# The program


@pytest.mark.parametrize(("ending", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_the_same_runs_give_the_same_file(tmp_path, capsys, ending, magic):
    """Analytic: its ending is its format; names that would be formulas are text; no byte differs."""
    runs = [str(write_run(tmp_path / f"$\\nosuch{{$_s{i}", steady(20))) for i in range(2)]
    out = [tmp_path / f"{name}{ending}" for name in "ab"]
    for path in out:
        assert plot_runs.main([*runs, "--out", str(path), "--references"]) == 0
    assert out[0].read_bytes() == out[1].read_bytes()
    assert out[0].read_bytes().startswith(magic)
    said = capsys.readouterr()
    assert f"{runs[0]}: 20 games, 2,000 steps, 0.01 h, mean of the last 20: 9.50" in said.out
    assert "fewer than 100 games" in said.err


def test_a_run_without_games_is_left_out_with_a_word(tmp_path, capsys):
    """Analytic: the other is drawn; where there is no other, it is an error."""
    empty, full = write_run(tmp_path / "empty", []), write_run(tmp_path / "full", steady(20))
    begun = tmp_path / "begun"
    (begun / "monitor").mkdir(parents=True)
    write_run(begun)  # none of its environments is there yet
    out = tmp_path / "fig.png"
    assert plot_runs.main([str(empty), str(begun), str(full), "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert f"note: {empty} has no games yet" in said.err
    assert f"note: {begun} has no games yet" in said.err
    assert "full: " in said.out
    out.unlink()
    assert plot_runs.main([str(empty), "--out", str(out)]) == 2
    assert "error: there are no games to draw yet" in capsys.readouterr().err
    assert not out.exists()


def test_flags_once_for_all_paths_or_once_for_each(tmp_path, capsys):
    """Analytic: files of others of 20 games whose l is 100 each, counted as one says; then as each says."""
    paths = []
    for name in "ab":
        write_monitor(tmp_path / name / "monitor.csv", steady(20))
        paths.append(str(tmp_path / name))

    def said(*flags: str) -> list[str]:
        assert plot_runs.main([*paths, "--out", str(tmp_path / "fig.png"), *flags]) == 0
        lines = capsys.readouterr().out.splitlines()[:-1]
        return [re.sub(r": .*, ([\d,]+ steps).*", r": \1", line) for line in lines]

    assert said("--frames_per_l", "4") == ["a: 2,000 steps", "b: 2,000 steps"]
    assert said("--label", "x", "--frames_per_l", "1") == ["x: 500 steps"] * 2
    flags = ["--label", "x", "--label", "y", "--frames_per_l", "1", "--frames_per_l", "4"]
    assert said(*flags) == ["x: 500 steps", "y: 2,000 steps"]


def test_curves_that_nobody_asked_for(tmp_path, monkeypatch):
    """Golden: games as dots, but not where several groups' dots would hide each other."""
    drawn = []

    def draw(groups, options):
        drawn.append(options.curves)
        return Unsaved()

    monkeypatch.setattr(plot_runs, "draw", draw)
    runs = [str(write_run(tmp_path / name, steady(20))) for name in ("a-s0", "a-s1", "b")]
    for paths in (runs[:2], runs):
        assert plot_runs.main([*paths, "--out", str(tmp_path / "fig.png")]) == 0
    assert drawn == [[1, 10, 100], [10, 100]]


class Unsaved:
    """A figure that goes nowhere."""

    def savefig(self, *args, **more):
        pass


@pytest.mark.parametrize("text", ["{", "[]", '{"params": {}}', '{"params": 1, "environment": {}}'])
def test_a_damaged_args_json_makes_a_run_of_others(tmp_path, capsys, text):
    """Analytic: said; and its steps are not guessed any more."""
    folder = write_run(tmp_path / "a", steady(20))
    (folder / "args.json").write_text(text)
    assert plot_runs.main([str(folder), "--out", str(tmp_path / "fig.png")]) == 2
    note, error = capsys.readouterr().err.splitlines()
    assert "args.json is damaged" in note
    assert "--frames_per_l" in error


def test_an_args_json_of_another_version_is_read(tmp_path, capsys):
    """Analytic: a flag that came later is missing, one that is gone is there: still a run of ours."""
    folder = write_run(tmp_path / "a", steady(3), sticky=0.25)
    content = json.loads((folder / "args.json").read_text())
    del content["params"]["no_xla"]
    content["params"]["n_gone"] = 1
    (folder / "args.json").write_text(json.dumps(content))
    run = plot_runs.load(folder, None)
    np.testing.assert_allclose(plot_runs.axis_of(run, "frames"), [400, 800, 1200])
    assert run.sticky_actions == 0.25
    plot_runs.check_group("x", [run, plot_runs.load(write_run(tmp_path / "b", steady(3)), None)])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["a"], "--out"),
        (["--out", "f.png"], "paths"),
        (["a", "--out", "f.jpg"], "must end in .png or .svg"),
        (["nowhere", "--out", "f.png"], "nowhere"),
        (["x" * 5000, "--out", "f.png"], "File name too long"),
        (["nothing", "--out", "f.png"], "nothing holds no monitor files"),
        (["mixed", "--out", "f.png"], "mixed has games of several environments"),
        (["a", "--out", "nowhere/f.png"], "nowhere/f.png"),
        (["a", "a/../a", "--out", "f.png"], "given twice"),
        (["a", "a/monitor", "--out", "f.png"], "given twice"),
        (["a", "b", "c", "--out", "f.png", "--label", "x", "--label", "y"], "--label is given 2"),
        (["a", "--out", "f.png", "--frames_per_l", "0"], "--frames_per_l"),
        (["a", "--out", "f.png", "--curves", "ten"], "--curves"),
        (["a", "--out", "f.png", "--x", "epochs"], "--x"),
        (["a", "--out", "f.png", "--references", "mine"], "--references"),
        (["a", "--out", "f.png", "--refer\nences"], "unrecognized"),
    ],
)
def test_bad_input_is_one_line_and_status_2(tmp_path, monkeypatch, capsys, argv, message):
    """Analytic: nothing else is said, nothing written."""
    monkeypatch.chdir(tmp_path)
    pathlib.Path("nothing").mkdir()
    write_run(pathlib.Path("a"), steady(100))
    for i, env_id in enumerate((PONG, BREAKOUT)):
        write_monitor(pathlib.Path(f"mixed/{i}.monitor.csv"), steady(1), env_id=env_id)
    before = sorted(tmp_path.rglob("*"))
    assert plot_runs.main(argv) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (only,) = said.err.splitlines()
    assert only.startswith("plot_runs.py: error: ")
    assert message in only
    assert sorted(tmp_path.rglob("*")) == before
