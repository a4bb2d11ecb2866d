"""Runs as they are read: ours, those of earlier versions and of others; whole, zipped, damaged."""

import gzip
import json

import numpy as np
import pytest

from a3c.settings.params import BadInput
from a3c.store import reading
from tests.tools.run_files import (
    BREAKOUT,
    PONG,
    games_text,
    steady,
    write_monitor,
    write_old_run,
    write_run,
)


def test_a_runs_games_stand_at_the_steps_that_it_counted(tmp_path):
    """Analytic: a run that went on from a checkpoint begins at that one's steps; its record says the rest."""
    folder = write_run(
        tmp_path / "a", steady(3), flags=["--load_ckpt", "x"], sticky=0.25, steps_before=1000
    )
    (folder / "progress.csv").write_text("rl/episodes,misc/steps\n2,9999\n")  # not asked
    run = reading.read_run(folder)
    np.testing.assert_array_equal(run.games.steps, [1100, 1200, 1300])
    np.testing.assert_array_equal(run.games.seconds, [1, 2, 3])
    assert (run.env_id, run.sticky_actions, run.words) == (PONG, 0.25, [])
    assert (run.steps_per_l, run.frames_per_step) == (1, 4)
    assert run.settings["load_ckpt"] == "x"
    of_its_file = reading.read_run(folder / "monitor.csv")
    np.testing.assert_array_equal(of_its_file.games.steps, run.games.steps)


@pytest.mark.parametrize("write", [write_run, write_old_run])
def test_zipped_files_are_read_and_none_twice(tmp_path, write):
    """Analytic: a zipped file's games are the plain one's; of both, one counts; a cut one is left out."""
    plain = reading.read_run(write(tmp_path / "plain", steady(3)))
    folder = write(tmp_path / "zipped", steady(3))
    (path,) = folder.rglob("*monitor.csv")
    zipped = path.with_name(f"{path.name}.gz")
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    for _ in range(2):
        run = reading.read_run(folder)
        for here, there in zip(run.games, plain.games, strict=True):
            np.testing.assert_array_equal(here, there)
        assert not run.words
        path.unlink(missing_ok=True)
    zipped.write_bytes(zipped.read_bytes()[:-9])
    run = reading.read_run(folder)
    assert len(run.games.scores) == 0
    assert f"cannot read {zipped}" in run.words[0]


def test_files_of_several_runs_or_environments_are_no_run(tmp_path):
    """Analytic: refused, by name; two files of one environment each are one run."""
    for env_id, name in ((PONG, "0"), (PONG, "1")):
        write_monitor(tmp_path / f"{name}.monitor.csv", steady(2), env_id=env_id)
    assert len(reading.read_run(tmp_path).games.scores) == 4
    write_monitor(tmp_path / "2.monitor.csv", steady(2), env_id=BREAKOUT)
    with pytest.raises(BadInput, match=f"several environments: {BREAKOUT}, {PONG}"):
        reading.read_run(tmp_path)
    (tmp_path / "monitor.csv").write_text(games_text([(1.0, 2, 3.0, 4)]))
    with pytest.raises(BadInput, match="several runs"):
        reading.read_run(tmp_path)


def test_the_steps_of_an_older_resumed_run_are_those_of_its_progress(tmp_path):
    """Analytic: a resumption left 500 steps in no file, between the second game and the third. Not
    of one environment's file alone or of a run that began elsewhere: the counts are of other games.
    """
    folder = write_old_run(tmp_path / "a", steady(4))
    counts = "rl/episodes,misc/steps\n2,210\n2,700\n4,950\n"
    (folder / "progress.csv.gz").write_bytes(gzip.compress(counts.encode()))
    for path in (folder, folder / "monitor"):
        np.testing.assert_array_equal(reading.read_run(path).games.steps, [100, 200, 700, 800])
    one = reading.read_run(folder / "monitor/0.0.monitor.csv")
    np.testing.assert_array_equal(one.games.steps, [100, 200, 300, 400])
    other = write_old_run(tmp_path / "b", steady(4), flags=["--load_ckpt", "runs/before"])
    (other / "progress.csv").write_text(counts)
    np.testing.assert_array_equal(reading.read_run(other).games.steps, [100, 200, 300, 400])


def test_an_older_run_from_a_checkpoint_counts_on(tmp_path):
    """Analytic: its log.txt says at which step it went on."""
    folder = write_old_run(tmp_path / "a", steady(2), flags=["--load_ckpt", "runs/before"])
    run = reading.read_run(folder)
    np.testing.assert_array_equal(run.games.steps, [100, 200])
    assert "does not say" in run.words[0]
    (folder / "log.txt").write_text("run folder: a\nrestored x/ckpt-7 at 1,234,567 steps\n")
    run = reading.read_run(folder)
    np.testing.assert_array_equal(run.games.steps, [1234667, 1234767])
    assert "at step 1,234,567" in run.words[0]


def test_a_record_of_another_version_is_read(tmp_path):
    """Analytic: without the flags that are younger, with those that are gone; the name of the
    environment is enough.
    """
    folder = write_run(tmp_path / "a", steady(3), env_id="CartPole-v1", sticky=0.25)
    content = json.loads((folder / "args.json").read_text())
    content["params"]["n_gone"] = 1
    del content["params"]["no_xla"], content["sources"]
    (folder / "args.json").write_text(json.dumps(content))
    run = reading.read_run(folder)
    assert (run.frames_per_step, run.sticky_actions, run.settings["n_gone"]) == (1, 0.25, 1)
    (folder / "args.json").write_text('{"params": {"env_id": "X-v0"}}')
    run = reading.read_run(folder)
    assert (run.env_id, run.settings, run.words) == ("X-v0", {"env_id": "X-v0"}, [])


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"params": {}}',
        '{"params": {"env_id": 1}}',
        '{"params": {"env_id": "a"}, "resumed": [1]}',
    ],
)
def test_a_damaged_record_makes_a_run_of_others(tmp_path, text):
    """Analytic: said; and what its steps are is not guessed any more."""
    folder = write_run(tmp_path / "a", steady(20))
    (folder / "args.json").write_text(text)
    run = reading.read_run(folder)
    assert (run.steps_per_l, run.settings) == (None, {})
    assert "args.json is damaged: taken for a run of others" in run.words[0]


def test_progress_without_its_damaged_rows():
    """Analytic: rows that are cut, short or no numbers go, with a word; NaN stays."""
    text = "misc/steps,a,b\n1,2,3\n4,nan,6\n7,8\nx,8,9\nmisc/steps,a,b\n10,11,12\n13,14,1"
    table, words = reading.parse_progress(text, ["misc/steps", "a"])
    np.testing.assert_array_equal(table["misc/steps"], [1, 4, 10])
    np.testing.assert_array_equal(table["a"], [2, np.nan, 11])
    assert words == ["its last line is cut off: left out", "3 of its lines are no rows: left out"]
    assert reading.parse_progress("misc/steps\n1\n", ["misc/steps"]).words == []
    assert reading.parse_progress(text, ["misc/steps", "c"]) is None
    assert reading.parse_progress("", ["misc/steps"]) is None
