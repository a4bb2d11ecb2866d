"""What a sweep shows: one table that is renewed, or a line an interval; and trials.csv."""

import csv
import json
import re
import types

import pytest

from a3c.machine.words import BadInput
from a3c.sweep import board as boards
from a3c.sweep import folder as folders
from a3c.sweep import plan as plans
from a3c.sweep import start
from a3c.sweep.folder import EARLY, FAILED, FINISHED, RUNNING, WAITING
from tests.tools.run_files import steady, write_run


@pytest.fixture
def sweep(tmp_path):
    """A sweep of four trials: one is finished, one runs, and two have not begun."""
    search = {"initial_lr": [1e-4, 0.123456]}
    asked = {"envs": ["CartPole-v1"], "seeds": 2, "search": search}
    folder = folders.create(tmp_path / "x", plans.make(asked, ["--n_steps", "100"]), [])
    for trial, steps, score in zip(folder.plan.trials, (100, 40), (21.5, 7.25), strict=False):
        path = write_run(folder.of(trial), steady(150, seconds=72), "CartPole-v1")
        columns = "misc/steps,misc/steps_per_second,rl/episodes,rl/episode_reward_mean_100"
        (path / "progress.csv").write_text(f"{columns}\n1,2,3,nan\n{steps},1234,150,{score}\n")
    (folder.of(folder.plan.trials[0]) / "checkpoints").mkdir()
    (folder.of(folder.plan.trials[0]) / "checkpoints/ckpt-100.safetensors").touch()
    yield folder
    folder.close()


def states(sweep, *given):
    return {trial.name: state for trial, state in zip(sweep.plan.trials, given, strict=True)}


def refuse(*_):
    raise OSError(28, "No space left on device")


def use_terminal(monkeypatch, lines, columns):
    size = types.SimpleNamespace(lines=lines, columns=columns)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: size)
    return size


def show(board, capsys):
    board._next = 0.0
    board.show()
    return capsys.readouterr().out


def test_a_terminal_gets_one_table_that_is_renewed(sweep, monkeypatch, capsys):
    """Analytic: settings that differ, steps, steps/s, score, state; each time in the same place."""
    use_terminal(monkeypatch, 24, 80)
    board = boards.Board(sweep, states(sweep, FINISHED, RUNNING, WAITING, WAITING))
    head, *rows, line = show(board, capsys).splitlines()
    assert head.split() == ["env", "seed", "initial_lr", "steps", "steps/s", "score", "state"]
    assert [row.split() for row in rows] == [
        ["CartPole-v1", "0", "0.0001", "100", "–", "21.50", "finished"],
        ["CartPole-v1", "1", "0.0001", "40", "1,234", "7.25", "running"],
        ["CartPole-v1", "0", "0.1235", "0", "–", "–", "waiting"],
        ["CartPole-v1", "1", "0.1235", "0", "–", "–", "waiting"],
    ]
    assert line == "2 waiting, 1 running, 1 finished; 140 steps, 1,234 steps/s"
    again = show(board, capsys)
    assert again.startswith("\x1b[6F\x1b[J")  # six lines up, and clear what is below
    board.say("a line")
    assert capsys.readouterr().out == "\x1b[6F\x1b[Ja line\n"
    assert show(board, capsys).startswith("env")


def test_the_table_fits_into_the_terminal(sweep, monkeypatch, capsys):
    """Analytic: what runs is shown first, and no line is broken."""
    size = use_terminal(monkeypatch, 8, 30)
    board = boards.Board(sweep, states(sweep, FINISHED, WAITING, WAITING, RUNNING))
    lines = show(board, capsys).splitlines()
    assert len(lines) < size.lines
    assert max(map(len, lines)) < size.columns
    assert board.table(6)[1].endswith("running")
    assert board.table(6)[-1] == "… and 1 more"
    assert board.table(2)[1:] == ["… and 4 more"]


def test_elsewhere_a_line_is_printed_an_interval(sweep, capsys):
    """Analytic: nothing before the interval is over."""
    board = boards.Board(sweep, states(sweep, FINISHED, RUNNING, WAITING, FAILED))
    line = "1 waiting, 1 running, 1 failed, 1 finished; 140 steps, 1,234 steps/s\n"
    assert show(board, capsys) == line
    board.show()
    assert capsys.readouterr().out == ""


def test_the_table_of_results(sweep):
    """Analytic: settings in full, the score with its protocol, hours; states are read back."""
    given = states(sweep, FINISHED, RUNNING, EARLY, FAILED)
    boards.Board(sweep, given).set(sweep.plan.trials[2], EARLY)
    with (sweep.path / "trials.csv").open(newline="") as file:
        first, *_, last = csv.DictReader(file)
    assert first == {
        "folder": "CartPole-v1_initial_lr=0.0001_s0",
        "env_id": "CartPole-v1",
        "seed": "0",
        "initial_lr": "0.0001",
        "state": "finished",
        "steps": "100",
        "score": "21.5",
        "score_of": "last 100 training games",
        "games": "150",
        "hours": "3.000",
    }
    assert (last["initial_lr"], last["state"], last["score"]) == ("0.123456", "failed", "nan")
    assert folders.recorded_states(sweep.path) == given


def test_a_table_that_cannot_be_read_has_no_states(sweep):
    """Analytic: a quote that nothing closes, with more behind it than the reader takes."""
    (sweep.path / "trials.csv").write_text('folder,state\n"' + "x" * 200_000)
    assert folders.recorded_states(sweep.path) == {}


def test_the_files_of_a_faster_sweep_stay(tmp_path, monkeypatch):
    """Analytic: both had found the folder free."""
    plan = plans.make({"envs": ["CartPole-v1"]}, [])
    folders.create(tmp_path / "x", plan, []).close()
    before = {path: path.read_bytes() for path in (tmp_path / "x").iterdir()}
    monkeypatch.setattr(folders, "check_free", lambda path: None)
    with pytest.raises(BadInput, match="x has just been taken"):
        folders.create(tmp_path / "x", plan, [])
    assert {path: path.read_bytes() for path in (tmp_path / "x").iterdir()} == before


def test_a_trial_that_ends_is_read_again(sweep):
    """Analytic: its row is of its last steps, not of those when it began."""
    trial = sweep.plan.trials[1]
    board = boards.Board(sweep, states(sweep, FINISHED, RUNNING, WAITING, WAITING))
    with (sweep.of(trial) / "progress.csv").open("a") as file:
        file.write("90,1234,150,8.5\n")
    board.set(trial, FAILED)
    with (sweep.path / "trials.csv").open(newline="") as file:
        _, row, *_ = csv.DictReader(file)
    assert (row["state"], row["steps"]) == ("failed", "90")


def test_a_full_disk_ends_no_sweep(sweep, monkeypatch, capsys):
    """Analytic: a line says it, and the next change writes the table again."""
    board = boards.Board(sweep, states(sweep, *[WAITING] * 4))
    with monkeypatch.context() as context:
        context.setattr(folders.appending, "write_atomically", refuse)
        board.set(sweep.plan.trials[0], RUNNING)
        assert f"cannot write {sweep.path / 'trials.csv'}: No space left" in capsys.readouterr().out
    board.set(sweep.plan.trials[1], RUNNING)
    assert [*folders.recorded_states(sweep.path).values()] == [RUNNING, RUNNING, WAITING, WAITING]


def test_a_folder_is_found_as_it_was_made(sweep):
    """Analytic: the plan, and what is finished; a folder without a plan is no sweep's."""
    assert plans.to_json(folders.read_plan(sweep.path)) == plans.to_json(sweep.plan)
    done = [folders.is_finished(sweep.of(trial), 100) for trial in sweep.plan.trials]
    assert done == [True, False, False, False]
    assert not folders.is_finished(sweep.of(sweep.plan.trials[0]), 101)
    assert json.loads((sweep.path / "sweep.json").read_text())["cores"] == 1
    assert re.match("python3 sweep.py", (sweep.path / "command.txt").read_text())


def test_what_was_stopped_early_is_not_finished(sweep, capsys):
    """Analytic: not even if it had all its steps by then, for its last evaluation was cut off."""
    boards.Board(sweep, states(sweep, *[EARLY] * 4)).set(sweep.plan.trials[0], EARLY)
    assert start._run(sweep, types.SimpleNamespace(received=None), is_here=True) == 0
    assert folders.recorded_states(sweep.path) == states(sweep, *[EARLY] * 4)
