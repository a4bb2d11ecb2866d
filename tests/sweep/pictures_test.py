"""Pictures and tables of sweeps, from trials with known scores."""

import csv
import io

import numpy as np
import pytest

from a3c.machine.words import BadInput
from a3c.play.atari_scores import human_normalised
from a3c.sweep import folder as folders
from a3c.sweep import pictures
from a3c.sweep import plan as plans
from a3c.sweep import plot_command as plot_runs
from tests.tools.run_files import BREAKOUT, PONG, steady, write_run


def sweep_of(path, score, n_games=150, **asked):
    """A sweep's folder, in which every game of a trial has the score `score(trial)`; None: no games."""
    folder = folders.create(path, plans.make(asked), [])
    for trial in folder.plan.trials:
        value = score(trial)
        if value is not None:
            games = steady(n_games, score=lambda _, value=value: value)
            write_run(folder.of(trial), games, trial.env_id)
    folder.close()
    return path


def read(path):
    notes = []
    results = pictures.read(path, notes.append)
    return results, pictures.groups(results, notes.append), notes


LRS = {"initial_lr": [1e-4, 1e-3, 1e-2]}


def test_groups_are_environments_and_settings(tmp_path):
    """Analytic: mean, spread and ends over seeds, by hand."""
    path = sweep_of(
        tmp_path / "x",
        lambda trial: 1e4 * trial.searched["initial_lr"] + trial.seed,
        envs=["CartPole-v1"],
        seeds=[0, 2],
        search=LRS,
    )
    _, found, notes = read(path)
    assert [(g.env_id, g.setting, g.n_seeds, g.mean, g.low, g.high) for g in found] == [
        ("CartPole-v1", (("initial_lr", lr),), 2, 1e4 * lr + 1, 1e4 * lr, 1e4 * lr + 2)
        for lr in LRS["initial_lr"]
    ]
    assert found[0].sd == pytest.approx(np.sqrt(2))
    assert notes == ["6 of 6 trials are not finished: drawn as far as they are"]
    rows = list(csv.DictReader(io.StringIO(pictures.to_csv(found))))
    assert rows[1] == {
        "env_id": "CartPole-v1",
        "initial_lr": "0.001",
        "measure": "last 100 training games",
        "n_seeds": "2",
        "mean": "11",
        "sd": "1.41421",
        "low": "10",
        "high": "12",
    }


def test_a_mean_of_fewer_games_is_told_as_that(tmp_path):
    """Analytic: of two seeds, one has had 30 games so far, the other 150."""
    path = sweep_of(tmp_path / "x", lambda trial: 1.0, envs=["CartPole-v1"], seeds=2)
    write_run(path / "CartPole-v1_s0", steady(30), "CartPole-v1")
    _, found, _ = read(path)
    assert [group.measure for group in found] == ["last 30 to 100 training games"]


def test_the_mean_over_games_is_of_human_normalised_scores(tmp_path):
    """Analytic: of two games with six seeds each, the middle half; the interval holds the mean."""

    def score(trial):
        return trial.seed if trial.env_id == PONG else 10.0 * trial.seed

    path = sweep_of(tmp_path / "x", score, envs=[PONG, BREAKOUT], seeds=6)
    _, found, notes = read(path)
    *_, over_games = found
    scores = [human_normalised(PONG, s) for s in range(6)]
    scores += [human_normalised(BREAKOUT, 10 * s) for s in range(6)]
    assert over_games.env_id == "2 games"
    assert over_games.mean == pytest.approx(np.mean(sorted(scores)[3:-3]))
    assert over_games.low < over_games.mean < over_games.high
    assert not any("seed" in note for note in notes)


def test_too_few_seeds_are_told(tmp_path):
    """Analytic: one seed gives no interval, and three a narrow one."""
    for n, words in ((1, "there is no interval"), (3, "the intervals are too narrow")):
        path = sweep_of(tmp_path / str(n), lambda t: 1.0 + t.seed, envs=[PONG, BREAKOUT], seeds=n)
        _, found, notes = read(path)
        assert np.isfinite(found[-1].low) == (n > 1)
        assert any(words in note for note in notes)


def test_a_setting_that_lacks_a_game_has_no_mean_over_games(tmp_path):
    """Analytic: and it is told; what has no games at all is left out, and told."""

    def score(trial):
        is_missing = trial.env_id == PONG and trial.searched["initial_lr"] == 1e-3
        return None if is_missing else 1.0

    path = sweep_of(tmp_path / "x", score, envs=[PONG, BREAKOUT], search=LRS)
    _, found, notes = read(path)
    over_games = [group for group in found if group.measure == pictures.OVER_GAMES]
    assert [dict(group.setting)["initial_lr"] for group in over_games] == [1e-4, 1e-2]
    assert "1 of 6 trials have no games yet: left out" in notes
    assert "initial_lr 0.001: 1 of 2 games, so no mean over games" in notes


def test_a_finished_trial_without_games_is_not_counted_among_those_drawn(tmp_path):
    """Analytic: of two trials, one has games and is not finished, the other is and has none."""
    path = sweep_of(
        tmp_path / "x", lambda trial: None if trial.seed else 1.0, envs=["CartPole-v1"], seeds=2
    )
    checkpoints = path / "CartPole-v1_s1" / "checkpoints"
    checkpoints.mkdir(parents=True)
    (checkpoints / "ckpt-10000000.safetensors").touch()
    _, _, notes = read(path)
    assert "1 of 2 trials are not finished: drawn as far as they are" in notes


def test_a_damaged_trial_is_told(tmp_path):
    """Analytic: one line is no game; the others count."""
    path = sweep_of(tmp_path / "x", lambda trial: 1.0, envs=["CartPole-v1"])
    with (path / "CartPole-v1_s0/monitor.csv").open("a") as file:
        file.write("garbage\n")
    results, _, notes = read(path)
    assert results[0].score == 1
    assert any("left out lines that are no games: 1" in note for note in notes)


def test_a_folder_without_games_or_without_a_sweep_is_refused(tmp_path):
    """Analytic: BadInput."""
    path = sweep_of(tmp_path / "x", lambda trial: None, envs=["CartPole-v1"])
    with pytest.raises(BadInput, match="no games"):
        read(path)
    with pytest.raises(BadInput, match="no folder of a sweep"):
        read(tmp_path)


def figure_of(path):
    results, found, _ = read(path)
    return pictures.draw(results, found, "steps", "minmax")


def test_the_score_is_over_a_searched_value_and_curves_by_setting(tmp_path):
    """Analytic: a column an environment; a logarithmic axis; a dot a trial, a line a mean."""
    path = sweep_of(
        tmp_path / "x",
        lambda trial: 1e4 * trial.searched["initial_lr"] + trial.seed,
        envs=[PONG, BREAKOUT],
        seeds=2,
        search=LRS | {"network": ["nature"]},
    )
    over, curves, *_, games = figure_of(path).axes
    assert (over.get_title(), over.get_xscale(), over.get_xlabel()) == (PONG, "log", "initial_lr")
    dots, line = over.lines
    np.testing.assert_allclose(sorted(zip(*dots.get_data(), strict=True)), [
        (lr, 1e4 * lr + seed) for lr in LRS["initial_lr"] for seed in (0, 1)
    ])  # fmt: skip
    np.testing.assert_allclose(line.get_data(), [LRS["initial_lr"], [1.5, 10.5, 100.5]])
    ends = [curve.get_data()[1][-1] for curve in curves.lines if len(curve.get_data()[1])]
    np.testing.assert_allclose(ends, [1.5, 10.5, 100.5])
    assert len(curves.collections) == 3
    assert "2 games, 2 seeds each" in games.get_xlabel()


def test_where_no_trial_has_enough_games_the_panel_says_so(tmp_path):
    """Analytic: an axis without a curve would look like a score of 0."""
    path = sweep_of(tmp_path / "x", lambda trial: 7.0, n_games=99, envs=["CartPole-v1"], search=LRS)
    assert any("3 of 3 trials have fewer than 100 games" in note for note in read(path)[2])
    over, curves = figure_of(path).axes
    assert over.lines[0].get_xdata().size == 3
    assert (curves.lines[:], curves.get_xticks().size, curves.get_yticks().size) == ([], 0, 0)
    assert "no trial has 100 games" in curves.texts[0].get_text()


def test_a_value_of_few_sizes_or_below_zero_has_a_plain_axis(tmp_path):
    """Analytic: ε over five decades is logarithmic, γ and an entropy bonus of 0 are not."""
    search = {"discount": [0.9, 0.99], "entropy_bonus": [0, 0.01], "rmsprop_epsilon": [1e-5, 0.1]}
    path = sweep_of(tmp_path / "x", lambda trial: 1.0, envs=["CartPole-v1"], search=search)
    figure = figure_of(path)
    scales = {axes.get_xlabel(): axes.get_xscale() for axes in figure.axes[:3]}
    assert scales == {"discount": "linear", "entropy_bonus": "linear", "rmsprop_epsilon": "log"}
    # A line for each setting of the other two values, which its label tells.
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert len({*labels}) == 4
    assert all("entropy_bonus" in label for label in labels)


def test_of_many_settings_the_best_are_coloured(tmp_path):
    """Analytic: the five with the best score; the others are grey."""
    search = {"initial_lr": [n * 1e-3 for n in range(1, 10)]}
    path = sweep_of(
        tmp_path / "x",
        lambda trial: trial.searched["initial_lr"],
        envs=["CartPole-v1"],
        search=search,
    )
    _, found, _ = read(path)
    looks = pictures.looks_of(found)
    coloured = {
        dict(setting)["initial_lr"] for setting, look in looks.items() if look != pictures.OTHERS
    }
    assert coloured == set(search["initial_lr"][-5:])


def test_the_command_writes_picture_and_table(tmp_path, capsys):
    """Analytic: it prints the groups; flags for runs are refused, and so is --csv without a sweep."""
    path = sweep_of(tmp_path / "x", lambda trial: 7.0, envs=["CartPole-v1"], search=LRS)
    out, table = tmp_path / "fig.svg", tmp_path / "groups.csv"
    words = ["--sweep", str(path), "--out", str(out), "--csv", str(table)]
    assert plot_runs.main(words) == 0
    assert "CartPole-v1, initial_lr 0.001: 7.00 (7.00 to 7.00), n = 1" in capsys.readouterr().out
    assert len(table.read_text().splitlines()) == 4
    first = out.read_bytes()
    assert plot_runs.main(words) == 0
    assert out.read_bytes() == first
    for wrong in (
        [*words, "--curves", "10"],
        [*words, "runs/a"],
        ["runs/a", "--out", str(out), "--csv", str(table)],
        ["--out", str(out)],
    ):
        assert plot_runs.main(wrong) == 2
