"""Runs as they are read: ours, those of earlier versions and of others; whole, zipped, damaged."""

import gzip
import json
import pathlib

import numpy as np
import pytest

from a3c.machine.words import BadInput
from a3c.store import reading
from tests.tools.run_files import BREAKOUT, PONG, games_text, steady, write_monitor, write_run


def test_a_runs_games_stand_at_the_steps_that_it_counted(tmp_path):
    """Analytic: a run from a checkpoint begins at that one's steps; args.json says the rest."""
    folder = write_run(
        tmp_path / "a", steady(3), flags=["--load_ckpt", "x"], sticky=0.25, steps_before=1000
    )
    run = reading.read_run(folder)
    np.testing.assert_array_equal(run.games.steps, [1100, 1200, 1300])
    np.testing.assert_array_equal(run.games.seconds, [1, 2, 3])
    assert (run.env_id, run.sticky_actions, run.words) == (PONG, 0.25, [])
    assert (run.steps_per_l, run.frames_per_step) == (1, 4)
    assert run.settings["load_ckpt"] == "x"
    of_its_file = reading.read_run(folder / "monitor.csv")
    np.testing.assert_array_equal(of_its_file.games.steps, run.games.steps)


@pytest.mark.parametrize("name", ["monitor.csv", "monitor/0.3.monitor.csv"])
def test_zipped_files_are_read_and_none_twice(tmp_path, name):
    """Analytic: of a plain and a zipped file of one name, one counts; a cut one is left out. An
    older run has files for each environment in a folder.
    """
    folder = write_run(tmp_path / "a", None)
    path, zipped = folder / name, folder / f"{name}.gz"
    write_monitor(path, steady(3))
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    for _ in range(2):
        run = reading.read_run(folder)
        np.testing.assert_array_equal(run.games.scores, [0, 1, 2])
        np.testing.assert_array_equal(run.games.steps, [100, 200, 300])
        (word,) = run.words
        assert word.endswith("l is added up from 0")
        path.unlink(missing_ok=True)
    zipped.write_bytes(zipped.read_bytes()[:-9])
    run = reading.read_run(folder)
    assert len(run.games.scores) == 0
    (word,) = run.words
    assert f"cannot read {zipped}" in word


def test_what_unzips_to_too_much_is_left_out(tmp_path, monkeypatch):
    """Analytic: a plain file may be as large, as nobody could be surprised by its size."""
    monkeypatch.setattr(reading, "MAX_UNZIPPED_BYTES", 100)
    folder = write_run(tmp_path / "a", steady(9))
    path = folder / "monitor.csv"
    assert len(reading.read_run(folder).games.scores) == 9
    (folder / "monitor.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    run = reading.read_run(folder)
    assert len(run.games.scores) == 0
    assert "holds more than 100 bytes" in run.words[0]


def test_a_path_that_cannot_be_looked_at_is_refused():
    """Analytic: its name is too long; one below a folder that is barred is met by the same code."""
    path = pathlib.Path("x" * 300)
    assert reading.folder_of(path) is None
    with pytest.raises(BadInput, match=r"^cannot read x+: File name too long$"):
        reading.read_run(path)


def test_files_of_several_runs_or_environments_are_no_run(tmp_path):
    """Analytic: they are refused by name; two files of the same environment are one run."""
    for env_id, name in ((PONG, "0"), (PONG, "1")):
        write_monitor(tmp_path / f"{name}.monitor.csv", steady(2), env_id=env_id)
    assert len(reading.read_run(tmp_path).games.scores) == 4
    write_monitor(tmp_path / "2.monitor.csv", steady(2), env_id=BREAKOUT)
    with pytest.raises(BadInput, match=f"several environments: {BREAKOUT}, {PONG}"):
        reading.read_run(tmp_path)
    (tmp_path / "monitor.csv").write_text(games_text([(1.0, 2, 3.0, 4)]))
    with pytest.raises(BadInput, match="several runs"):
        reading.read_run(tmp_path)


@pytest.mark.parametrize(("is_atari", "n_frames"), [(None, 4), (True, 4), (False, 1)])
def test_a_step_is_four_frames_of_atari_alone(tmp_path, is_atari, n_frames):
    """Analytic: an older record of images is one of Atari; images of others have no frame skip."""
    folder = write_run(tmp_path / "a", steady(3), env_id="Images-v0")
    content = json.loads((folder / "args.json").read_text())
    content["environment"] = {"kind": "image"} | (
        {} if is_atari is None else {"is_atari": is_atari}
    )
    (folder / "args.json").write_text(json.dumps(content))
    assert reading.read_run(folder).frames_per_step == n_frames


def test_a_record_of_another_version_is_read(tmp_path):
    """Analytic: it lacks younger flags and has retired ones; the environment's name is enough."""
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
def test_a_damaged_record_is_refused(tmp_path, text):
    """Analytic: nobody could say what the run's steps are."""
    folder = write_run(tmp_path / "a", steady(20))
    (folder / "args.json").write_text(text)
    with pytest.raises(BadInput, match=r"args\.json is damaged"):
        reading.read_run(folder)


def test_progress_without_its_damaged_rows():
    """Analytic: rows that are cut, short or no numbers are left out, with a message; NaN stays."""
    text = "misc/steps,a,b\n1,2,3\n4,nan,6\n7,8\nx,8,9\nmisc/steps,a,b\n10,11,12\n13,14,1"
    table, words = reading.parse_progress(text)
    np.testing.assert_array_equal(table["misc/steps"], [1, 4, 10])
    np.testing.assert_array_equal(table["a"], [2, np.nan, 11])
    assert list(table) == ["misc/steps", "a", "b"]
    assert words == ["its last line is cut off: left out", "left out lines that are no rows: 3"]
    assert reading.parse_progress("misc/steps\n1\n").words == []
    assert "misc/steps" not in reading.parse_progress("").columns
