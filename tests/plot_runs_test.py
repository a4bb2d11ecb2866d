"""Tests of plot_runs.py: known games and their curves; how reading works is tested in tests/store/."""

import gzip
import pathlib
import re

import matplotlib.pyplot as plt
import numpy as np
import pytest

from a3c.machine.words import BadInput
from a3c.play import curves, windows
from a3c.play.curves import Curve
from a3c.store import logs
from a3c.store.games import Games
from a3c.store.reading import Run
from a3c.sweep import plot_command as plot_runs
from tests.tools.run_files import BREAKOUT, PONG, steady, write_monitor, write_run


def options(*argv, curves=(1, 10, 100)):
    parsed = plot_runs.parse(["run", "--out", "fig.png", *argv])
    parsed.curves = list(curves)
    return parsed


def run_of(scores, steps, env_id=PONG, sticky=0.0):
    """A run that is already read, one step a second."""
    steps = np.asarray(steps, dtype=float)
    games = Games(np.asarray(scores, dtype=float), steps, steps, steps)
    return Run(pathlib.Path("runs/a"), env_id, games, 1.0, 4, sticky, {}, [])


# Axes


def test_one_game_of_ours_is_four_times_as_long_in_stable_baselines3_files(tmp_path):
    """Analytic: l counts decisions in ours and Baselines' files, frames in Stable-Baselines3's."""
    ours = plot_runs.load(write_run(tmp_path / "ours", steady(5, length=250)), None)
    sb3 = write_monitor(tmp_path / "sb3" / "0.monitor.csv", steady(5, length=1000))
    baselines = write_monitor(tmp_path / "b" / "0.0.monitor.csv", steady(5, length=250))
    steps = 250 * np.arange(1, 6)
    for run in (ours, plot_runs.load(sb3, 1), plot_runs.load(baselines.parent, 4)):
        np.testing.assert_allclose(curves.axis_of(run, "steps"), steps)
        np.testing.assert_allclose(curves.axis_of(run, "frames"), 4 * steps)
        np.testing.assert_array_equal(curves.axis_of(run, "games"), [1, 2, 3, 4, 5])
        np.testing.assert_allclose(curves.axis_of(run, "hours"), np.arange(1, 6) / 3600)
    # A flag for files of others leaves ours alone.
    assert plot_runs.load(tmp_path / "ours", 1).steps_per_l == 1


def test_steps_of_strange_files_are_not_guessed(tmp_path):
    """Analytic: an Atari id, or none, says nothing about l; games and hours do not need l."""
    for env_id in (PONG, "ALE/Tetris-v5", "SeaquestDeterministic-v4", "Unknown"):
        folder = tmp_path / str(env_id).replace("/", "-")
        run = plot_runs.load(write_monitor(folder / "monitor.csv", steady(3), env_id=env_id), None)
        for axis in ("steps", "frames"):
            with pytest.raises(BadInput, match="--frames_per_l"):
                curves.axis_of(run, axis)
        assert len(curves.axis_of(run, "hours")) == 3


def test_environments_without_frame_skip(tmp_path):
    """Analytic: CartPole's steps are its frames, whoever wrote the file."""
    sb3 = write_monitor(tmp_path / "sb3" / "monitor.csv", steady(3), env_id="CartPole-v1")
    ours = write_run(tmp_path / "ours", steady(3), env_id="CartPole-v1")
    for run in (plot_runs.load(sb3, 1), plot_runs.load(ours, None)):
        for axis in ("steps", "frames"):
            np.testing.assert_allclose(curves.axis_of(run, axis), [100, 200, 300])


# Smoothing and seeds


@pytest.mark.parametrize("n", [1, 2, 10, 100])
def test_trailing_mean_equals_convolution(n):
    """Parity: numpy.convolve with n equal weights; nothing where there are fewer values."""
    values = np.random.default_rng(1).normal(size=99)
    expected = np.convolve(values, np.full(n, 1 / n), "valid") if n <= 99 else []
    np.testing.assert_allclose(curves.trailing_mean(values, n), expected, atol=1e-12)


def test_a_mean_stands_at_its_last_game():
    """Analytic: scores 0, 1, 2, … by 3: 1 at the third game's step, 2 at the fourth's."""
    curve = curves.smooth(run_of(range(5), [10, 20, 30, 40, 50]), "steps", 3)
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
    mean = curves.align([line(1, [0, 3, 8]), line(3, [2, 4, 5, 10])], shade)
    assert (mean.x[0], mean.x[-1]) == (2, 8)
    np.testing.assert_allclose(mean.y, 2 * mean.x)
    np.testing.assert_allclose(mean.low, (2 - half_width) * mean.x)
    np.testing.assert_allclose(mean.high, (2 + half_width) * mean.x)
    assert curves.align([line(1, [0, 2]), line(1, [2, 4])], shade) is None  # they never meet


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("runs/wide", "wide"),
        ("runs/wide-seed-12_abc1234", "wide_abc1234"),
        ("runs/wide/s2/monitor", "wide"),
        ("runs/Pong-v5_wide_s0_20261125-133000", "Pong-v5_wide"),
        ("runs/Pong-v5_s0_20261125-133000_2", "Pong-v5"),
        ("runs/Pong-v4_20261121-223935_399d18e_s1", "Pong-v4_399d18e"),  # as it was once
        ("runs/wide/0.3.monitor.csv", "wide"),
        ("runs/run2.monitor.csv", "run2"),
        ("runs/workers-4", "workers-4"),
        ("/s1", "run"),
    ],
)
def test_groups_are_named_without_the_seed(path, name):
    """Analytic: a seed's name is removed, every other number stays."""
    assert plot_runs.group_name(pathlib.Path(path)) == name


def test_a_group_is_named_from_inside_its_run(tmp_path, monkeypatch):
    """Analytic: the working directory has a name, too."""
    (tmp_path / "wide_s3").mkdir()
    monkeypatch.chdir(tmp_path / "wide_s3")
    assert plot_runs.group_name(pathlib.Path()) == "wide"


def test_runs_of_one_group_that_are_not_of_one_setting(tmp_path, capsys):
    """Analytic: seeds and what does not change training may differ; other settings get a note,
    other environments are refused.
    """
    a = plot_runs.load(write_run(tmp_path / "a", steady(1)), None)
    flags = ["--seed", "1", "--eval_interval_steps", "9", "--eval_episodes", "3"]
    flags += ["--env_timeout_seconds", "7", "--n_steps", "8"]
    b = plot_runs.load(write_run(tmp_path / "b", steady(1), flags=flags), None)
    plot_runs.check_group("x", [a, b])
    assert capsys.readouterr().err == ""
    plot_runs.check_group("x", [a, b, a])
    assert "group x: several runs have seed 0, and each" in capsys.readouterr().err
    c = plot_runs.load(write_run(tmp_path / "c", steady(1), flags=["--n_workers", "4"]), None)
    plot_runs.check_group("x", [a, c])
    assert "differ in n_workers" in capsys.readouterr().err
    with pytest.raises(BadInput, match=f"{BREAKOUT}, {PONG}"):
        plot_runs.check_group("x", [a, a._replace(env_id=BREAKOUT)])


def test_flags_that_only_some_records_have_get_a_note(tmp_path, capsys):
    """Analytic: a retired flag and a younger one do, but none that does not change training."""
    a = plot_runs.load(write_run(tmp_path / "a", steady(1)), None)
    older = {name: a.settings[name] for name in a.settings if name not in ("no_xla", "keep_ckpts")}
    renamed = older | {"seed": 1, "manager_wake_interval_seconds": older["log_interval_seconds"]}
    plot_runs.check_group("x", [a._replace(settings=s) for s in (older, renamed)])
    assert capsys.readouterr().err == ""
    plot_runs.check_group("x", [a, a._replace(settings=older | {"seed": 1, "n_gone": 1})])
    unknown, missing = capsys.readouterr().err.splitlines()
    assert unknown.endswith("group x: this revision does not know n_gone")
    assert missing.endswith("group x: some of its runs have not recorded n_gone, no_xla")


def test_figures_stand_at_their_steps_on_every_axis():
    """Analytic: games of 100 steps and 100 s each; outside of them nobody knows hours or games."""
    run = run_of(range(4), [100, 200, 300, 400])
    steps = np.array([50, 150, 400, 401])
    expected = {"steps": 1, "frames": 4, "games": 1 / 100, "hours": 1 / 3600}
    for axis, factor in expected.items():
        x = curves.axis_at_steps(run, axis, steps)
        ends = [50, 401] if axis in ("steps", "frames") else [np.nan, np.nan]
        np.testing.assert_allclose(x, np.array([ends[0], 150, 400, ends[1]]) * factor)


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


def test_a_run_without_an_emulator_may_have_negative_scores():
    """Analytic: from -300 to 90; neither frames nor sticky actions are spoken of."""
    run = run_of(10.0 * np.arange(-30, 10), 1000 * np.arange(1, 41), "HalfCheetah-v5")
    figure = plot_runs.draw({"a": [run._replace(frames_per_step=1)]}, options(curves=(1, 10)))
    games, means = (line for line in figure.axes[0].get_lines() if len(line.get_xdata()))
    assert (min(games.get_ydata()), max(games.get_ydata())) == (-300, 90)
    np.testing.assert_allclose(means.get_ydata()[[0, -1]], [-255, 45])
    assert figure.axes[0].get_title() == "HalfCheetah-v5"
    assert figure.axes[0].get_xlabel() == "agent steps"


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


def test_a_run_that_is_too_short_for_a_mean_gets_a_note(capsys):
    """Analytic: of runs with scores 1, 3 and 9, the last has no mean of 10, and none a mean of 100,
    which the legend lacks, too; a mean of seeds ends with the shortest one.
    """

    def shown(sizes: dict[int, int], **more) -> tuple:
        runs = [run_of(np.full(n, score), range(n)) for score, n in sizes.items()]
        figure = plot_runs.draw({"a": runs}, options(**more))
        labels = [text.get_text() for text in figure.legends[0].get_texts()]
        return figure.axes[0], labels, capsys.readouterr().err

    axes, labels, notes = shown({1: 30, 3: 30, 9: 5})
    means = [line for line in axes.get_lines() if len(line.get_xdata()) == 500]
    assert [set(line.get_ydata()) for line in means] == [{2}]
    heights = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (1, 3)
    assert labels == ["a (3 seeds)", "one game", "mean of 10 games", "lowest to highest seed"]
    assert "1 of 3 runs have fewer than 10 games" in notes
    assert "3 of 3 runs have fewer than 100 games" in notes
    *_, notes = shown({1: 60, 2: 30})
    assert "mean of 10 games ends where its shortest run does" in notes
    *_, notes = shown({1: 60, 2: 58}, curves=(10,))
    assert notes == ""  # almost as long
    _, labels, notes = shown({1: 5}, curves=(10,))
    assert labels == ["a"]
    assert "a run has fewer than 10 games" in notes


@pytest.mark.parametrize(
    ("env_id", "heights"),
    [
        (PONG, [-20.7, 14.6, 20.5, 20, 20.9]),
        ("ALE/Pong-v5", [-20.7, 14.6, 20.5, 20, 20.9]),
        (BREAKOUT, [1.7, 30.5, 480, 435, 581]),
        ("SeaquestNoFrameskip-v4", []),
    ],
)
def test_published_scores(env_id, heights, capsys):
    """Analytic: random, human, paper, OCD A3C, PFRL, each with its source; a note where there are none."""
    sticky = 0.25 if env_id.startswith("ALE") else 0.0
    axes = plot_runs.draw(
        {"a": [run_of([1, 2], [1, 2], env_id, sticky)]}, options("--references", curves=(1,))
    ).axes[0]
    lines = [line for line in axes.get_lines() if list(line.get_xdata()) == [0, 1]]
    assert [line.get_ydata()[0] for line in lines] == heights
    for line, source in zip(lines, ("Wang", "Wang", "Figure 4", "its plot", "PFRL"), strict=False):
        assert source in line.get_label()
    words = capsys.readouterr().err
    assert ("no published scores drawn: none are known for Seaquest" in words) == (not heights)
    assert ("without sticky actions" in words) == bool(sticky)


def test_figures_are_drawn_from_progress(tmp_path, capsys):
    """Analytic: a column's values at its steps; a run without it gets a note."""
    folder = write_run(tmp_path / "a", steady(10))
    (folder / "progress.csv.gz").write_bytes(
        gzip.compress(b"misc/steps,misc/lr\n200,0.5\n300,x\n400,0.25\n")
    )
    run = plot_runs.load(folder, None)
    figure = plot_runs.draw({"a": [run]}, options("--figures", "misc/lr", "entropy", "gradients"))
    (drawn,) = figure.axes[1].get_lines()
    np.testing.assert_array_equal(drawn.get_xdata(), [200, 400])
    np.testing.assert_array_equal(drawn.get_ydata(), [0.5, 0.25])
    assert len(figure.axes[2].get_lines()) == 0
    columns = {column for _, columns in plot_runs.FIGURES.values() for column in columns}
    assert columns <= {*logs.FIGURES}
    said = capsys.readouterr().err
    assert "no column 'rl/policy_entropy'; available: misc/steps, misc/lr\n" in said
    assert "no column 'loss/grads_norm_combined' or 'loss/grads_norm_policy' or 'lo" in said
    assert "progress.csv: left out lines that are no rows: 1" in said


# The program


@pytest.mark.parametrize(("ending", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_the_same_runs_give_the_same_file(tmp_path, capsys, ending, magic):
    """Analytic: the ending is the format; a $ in a name starts no formula; no byte differs."""
    runs = [str(write_run(tmp_path / f"$\\nosuch{{$_s{i}", steady(20))) for i in range(2)]
    out = [tmp_path / f"{name}{ending}" for name in "ab"]
    for path in out:
        assert plot_runs.main([*runs, "--out", str(path), "--references"]) == 0
    assert out[0].read_bytes() == out[1].read_bytes()
    assert out[0].read_bytes().startswith(magic)
    said = capsys.readouterr()
    assert f"{runs[0]}: 20 games, 2,000 steps, 0.01 h, mean of the last 20: 9.50" in said.out
    assert "fewer than 100 games" in said.err


def test_what_has_no_games_is_left_out_with_a_note(tmp_path, capsys):
    """Analytic: the other one is drawn; without another one, it is an error."""
    empty, full = write_run(tmp_path / "empty", []), write_run(tmp_path / "full", steady(20))
    begun, sweep = tmp_path / "begun", tmp_path / "sweep"
    write_run(begun, None)
    sweep.mkdir()
    (sweep / "sweep.json").touch()
    out = tmp_path / "fig.png"
    assert plot_runs.main([*map(str, (empty, begun, sweep, full)), "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert f"note: {sweep} is a sweep: left out; --sweep draws it" in said.err
    assert f"note: {empty} has no games yet" in said.err
    assert f"note: {begun} has no games yet" in said.err
    assert "full: " in said.out
    out.unlink()
    assert plot_runs.main([str(empty), "--out", str(out)]) == 2
    assert "error: there are no games to draw yet" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("flag", ["--references", "--figures", "--curves 1"])
@pytest.mark.parametrize("form", ["{flag} {paths}", "{first} {flag} {second}", "{paths} {flag}"])
def test_lists_leave_runs_alone(tmp_path, monkeypatch, flag, form):
    """Analytic: wherever the flag stands, each path is a run, and what is left is all that there is."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        write_run(tmp_path / name, steady(1))
    paths = {"paths": "a b", "first": "a", "second": "b"}
    parsed = plot_runs.parse(form.format(flag=flag, **paths).split())
    assert parsed.paths == [pathlib.Path("a"), pathlib.Path("b")]
    assert parsed.references == (list(plot_runs.REFERENCES) if flag == "--references" else [])
    assert parsed.figures == (list(plot_runs.FIGURES) if flag == "--figures" else [])
    assert parsed.curves == ([1] if flag == "--curves 1" else None)


def test_a_toolkit_that_does_not_work_opens_no_window(monkeypatch):
    """Analytic: as where MPLBACKEND names one that is not installed, or there is no display."""

    def switch(backend):
        raise ImportError("Cannot load backend")

    monkeypatch.setattr("matplotlib.pyplot.switch_backend", switch)
    monkeypatch.setattr("matplotlib.pyplot.get_backend", lambda: "tkagg")
    assert not windows.can_open()
    monkeypatch.setattr("matplotlib.pyplot.switch_backend", lambda backend: None)
    assert windows.can_open()
    monkeypatch.setattr("matplotlib.pyplot.get_backend", lambda: "agg")
    assert not windows.can_open()


def test_without_out_it_is_shown_or_saved_beside_the_run(tmp_path, monkeypatch, capsys):
    """Analytic: one run gives its name to the picture; where there is a display, nothing is written."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.1", "b"):
        write_run(tmp_path / "runs" / name, steady(20))
    before = {*tmp_path.rglob("*")}
    shown = []
    with monkeypatch.context() as patch:
        patch.setattr(plot_runs.windows, "can_open", lambda: True)
        patch.setattr(plt, "show", lambda: shown.extend(plt.get_fignums()))
        assert plot_runs.main(["runs/b"]) == 0
    plt.close("all")
    assert len(shown) == 1
    assert capsys.readouterr().out.endswith("\nshown in a window\n")
    assert {*tmp_path.rglob("*")} == before
    monkeypatch.setattr(plot_runs.windows, "can_open", lambda: False)
    both = "runs/a.1 runs/a.1.png runs/b"  # as runs/* has it after the first picture
    for paths, path in (("runs/a.1/", "runs/a.1.png"), (both, "runs/curves.png")):
        assert plot_runs.main(paths.split()) == 0
        assert capsys.readouterr().out.endswith(f"\nsaved in {path}\n")
        assert (tmp_path / path).read_bytes().startswith(b"\x89PNG")


def test_several_games_have_a_part_of_the_picture_each(tmp_path, capsys):
    """Analytic: their curves, titles and published scores; one label has one colour in all of them."""
    runs = [run_of([score] * 30, range(30), env) for score, env in ((1, PONG), (2, BREAKOUT))]
    cartpole = run_of([3] * 30, range(30), "CartPole-v1", None)._replace(frames_per_step=1)
    chosen = options("--references", "human", curves=(10,))
    figure = plot_runs.draw({"x": [*runs, cartpole], "y": [runs[1]]}, chosen)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == [
        f"{PONG} (no sticky actions)",
        f"{BREAKOUT} (no sticky actions)",
        "CartPole-v1",
    ]
    drawn = [[line for line in axes.get_lines() if len(line.get_xdata())] for axes in figure.axes]
    heights = [[line.get_ydata()[0] for line in lines] for lines in drawn]
    assert heights == [[1, 14.6], [2, 2, 30.5], [3]]
    assert len({lines[0].get_color() for lines in drawn}) == 1
    assert drawn[1][0].get_color() != drawn[1][1].get_color()
    assert "none are known for CartPole" in capsys.readouterr().err


def test_a_column_that_is_not_there_is_met_by_all_that_are(tmp_path, capsys):
    """Analytic: of a run with every column, in one line that is not cut off."""
    folder = write_run(tmp_path / "a", steady(3))
    rows = [logs.FIGURES, ["1"] * len(logs.FIGURES)]
    text = gzip.compress("".join(f"{','.join(row)}\n" for row in rows).encode())
    (folder / "progress.csv.gz").write_bytes(text)
    assert plot_runs.main([str(folder), "--figures", "loss/no_such_loss"]) == 2
    words = re.split(r"[ ;\n]+", capsys.readouterr().err)
    assert {column.partition("/")[2] for column in logs.FIGURES} <= {*words}


def test_flags_once_for_all_paths_or_once_for_each(tmp_path, capsys):
    """Analytic: 20 games of others, of l = 100 each, counted by one flag, then by one for each."""
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


def test_of_several_folders_those_without_a_run_are_left_out(tmp_path, monkeypatch, capsys):
    """Analytic: such as an exported agent among runs/*."""
    monkeypatch.chdir(tmp_path)
    write_run(pathlib.Path("a"), steady(100))
    pathlib.Path("agent").mkdir()
    assert plot_runs.main(["a", "agent", "--out", "f.png"]) == 0
    said = capsys.readouterr()
    assert "note: agent holds no monitor files" in said.err
    assert "a: 100 games" in said.out
    assert pathlib.Path("f.png").exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["a", "--figures", "loss/no"],
            "error: --figures loss/no: there are speed entropy value grad",
        ),
        (
            ["a", "--references", "nobody"],
            "--references nobody: it is none of random, human, paper, ocd, pfrl",
        ),
        (["a", "--curves", "many"], "--curves takes numbers"),
        (["--curves", "a"], "--curves needs numbers"),
        (["damaged", "--out", "f.png"], "damaged/args.json is damaged"),
        (["a", "--out", "f.jpg"], "must end in .png or .svg"),
        (["nowhere", "--out", "f.png"], "there is no nowhere"),
        (["a", "nowhere", "--out", "f.png"], "there is no nowhere"),
        (["x" * 5000, "--out", "f.png"], "4096 characters"),
        (["nothing", "--out", "f.png"], "nothing holds no monitor files"),
        (["mixed", "--out", "f.png"], "mixed has games of several environments"),
        (["a", "--out", "nowhere/f.png"], "nowhere/f.png"),
        (["a", "a/../a", "--out", "f.png"], "given twice"),
        (["a", "a/monitor", "--out", "f.png"], "given twice"),
        (["a", "b", "c", "--out", "f.png", "--label", "x", "--label", "y"], "--label is given 2"),
        (["a", "--out", "f.png", "--frames_per_l", "0"], "--frames_per_l"),
        (["a", "--out", "f.png", "--refer\nences"], "unrecognized"),
    ],
)
def test_bad_input_is_one_line_and_status_2(tmp_path, monkeypatch, capsys, argv, message):
    """Analytic: nothing else is said, nothing written."""
    monkeypatch.chdir(tmp_path)
    pathlib.Path("nothing").mkdir()
    for name in ("a", "damaged"):
        write_run(pathlib.Path(name), steady(100))
    pathlib.Path("damaged/args.json").write_text("{")
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
