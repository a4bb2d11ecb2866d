"""Logs: games in monitor.csv, the same figures in progress.csv and TensorBoard, the console."""

import csv
import io
import json
import math
import os
import pathlib
import pty
import re
import sys
import termios

import numpy as np
import pytest
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.metadata import (
    SESSION_START_INFO_TAG,
    parse_session_start_info_plugin_data,
)
from tensorboard.util.tensor_util import make_ndarray

from a3c.contract import Game
from a3c.machine import appending
from a3c.settings.params import Params
from a3c.store import logs
from a3c.store.resume import Start
from a3c.store.run_folder import RunFolder
from tests.tools import checkpoint_files, processes

# The columns that readers of a run rely on, in this order.
COLUMNS = [
    f"{part}/{name}"
    for part, names in {
        "misc": "steps frames updates steps_per_second lr policy_lag_mean policy_lag_max cpu_hours"
        " env_restarts remote_workers remote_restarts",
        "rl": "episode_reward_mean_100 episode_length_mean_100 episodes policy_entropy"
        " advantage_mean episode_value_mean explained_variance",
        "loss": "loss_policy loss_value loss_combined grads_norm_policy grads_norm_value"
        " grads_norm_combined grads_norm_combined_clipped",
    }.items()
    for name in names.split()
]
# Each figure is another number; the second row lacks some, as before a game's end or a measurement.
ROWS = [
    dict(zip(COLUMNS, np.arange(len(COLUMNS)) * 1.25 + 1000, strict=True)),
    dict(zip(COLUMNS, np.arange(len(COLUMNS)) * 0.5 + 2000, strict=True))
    | {"misc/steps_per_second": 512.4, "rl/episodes": 7.0}
    | {"rl/episode_reward_mean_100": math.nan, "loss/loss_policy": math.nan},
]


class Scalars:
    """What TensorBoard would show of a run folder."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._events = EventAccumulator(str(folder), size_guidance={"tensors": 0})
        self._events.Reload()
        self.tags = self._events.Tags()["tensors"]

    def settings(self) -> dict[str, object]:
        """The hyperparameters."""
        data = self._events.SummaryMetadata(SESSION_START_INFO_TAG).plugin_data.content
        found = parse_session_start_info_plugin_data(data).hparams
        return {name: getattr(value, value.WhichOneof("kind")) for name, value in found.items()}

    def of(self, tag: str) -> dict[int, np.ndarray]:
        """The values by their steps."""
        return {e.step: make_ndarray(e.tensor_proto) for e in self._events.Tensors(tag)}


T_START = 1700000000.0


def open_log(folder: pathlib.Path, start: Start | None = None) -> logs.RunLog:
    params = Params(env_id="Numbered-v0", n_steps=3000)
    run_folder = RunFolder(folder, io.StringIO())
    return logs.RunLog(run_folder, params, start or Start(t_start=T_START))


def resumed_at(n_steps: int, folder: pathlib.Path) -> Start:
    made = checkpoint_files.make(folder, n_steps)
    return Start(made, is_resumed=True, t_start=T_START + 1000)


def add_game(
    log: logs.RunLog, n_steps: int, score: float = -21.0, moment: float | None = None, **more: int
) -> None:
    """A game that ended half a second after each ten steps, or at the moment."""
    game = Game(0, 0, score, 800, n_steps)._replace(**more)
    log.game(game, T_START + n_steps / 20 if moment is None else moment)


def write_all(folder: pathlib.Path) -> None:
    """Log everything that a run may log, once or twice."""
    log = open_log(folder)
    log.say("traced")
    add_game(log, 17)
    log.figures(ROWS[0], "2 games, last 2: 0.50")
    log.move_bar(700, "2 games, last 2: 0.50")
    log.move_bar(1500, "3 games, last 3: 1.50")
    add_game(log, 1501, score=21.0, length=900, worker=1)
    add_game(log, 1502, score=1 / 3, length=901, env=2)
    log.say("a worker failed:\nat line 3", error=True)
    log.figures(ROWS[1], "3 games")
    log.histograms(2000, {"weights/policy_kernel": np.linspace(-1, 3, 1000, dtype=np.float32)})
    log.evaluation(50, {"episode_reward_mean": 1.5, "episode_reward_sd": math.nan})
    log.evaluation(60, {"episode_reward_mean": 2.5, "episode_reward_sd": 1.0})
    log.machines(1000, {"10.0.0.2": 70.5})
    log.machines(2000, {"10.0.0.2": 80.5, "10.0.0.3": 3.0})
    log.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder of a log with everything in it, and what TensorBoard shows of it."""
    folder = tmp_path_factory.mktemp("logged")
    write_all(folder)
    return folder, Scalars(folder)


def test_the_columns_are_the_promised_ones(written):
    """Golden: names and order; one row for each call."""
    header, *rows = csv.reader((written[0] / "progress.csv").open(newline=""))
    assert header == COLUMNS == list(logs.FIGURES)
    np.testing.assert_array_equal(
        np.array(rows, float), [[row[name] for name in COLUMNS] for row in ROWS]
    )


def load_results(folder: pathlib.Path) -> list[dict[str, float]]:
    """Games as Stable-Baselines3's `load_results` reads them: JSON after a #, then a table."""
    rows = []
    for path in folder.glob("*monitor.csv"):
        with path.open(newline="") as file:
            first = file.readline()
            assert first[0] == "#"
            t_start = json.loads(first[1:])["t_start"]
            for row in csv.DictReader(file):
                numbers = {name: float(text) for name, text in row.items()}
                rows.append(numbers | {"t": numbers["t"] + t_start})
    return rows


def test_every_game_is_a_row_that_others_read_too(written):
    """Golden: the file's bytes; parity: what a reader for Stable-Baselines3 makes of them."""
    folder, _ = written
    assert (folder / "monitor.csv").read_bytes() == (
        b'#{"t_start": 1700000000.0, "env_id": "Numbered-v0"}\n'
        b"r,l,t,step,worker,env\n"
        b"-21.0,800,0.850000,17,0,0\n"
        b"21.0,900,75.050000,1501,1,0\n"
        b"0.333333,901,75.100000,1502,0,2\n"
    )
    games = load_results(folder)
    assert [row["r"] for row in games] == [-21.0, 21.0, 0.333333]
    assert [row["l"] for row in games] == [800, 900, 901]
    np.testing.assert_allclose(
        [row["t"] - T_START for row in games], [0.85, 75.05, 75.1], atol=1e-6
    )


def test_a_resumed_run_goes_on_in_its_table(tmp_path):
    """Analytic: one head, which stays; seconds count from the start that the resumption gives."""
    log = open_log(tmp_path)
    add_game(log, 10)
    log.close()
    log = open_log(tmp_path, resumed_at(20, tmp_path))
    add_game(log, 30, moment=T_START + 1002)
    log.close()
    head, columns, *rows = (tmp_path / "monitor.csv").read_text().splitlines()
    assert json.loads(head[1:])["t_start"] == T_START
    assert columns == "r,l,t,step,worker,env"
    assert rows == ["-21.0,800,0.500000,10,0,0", "-21.0,800,2.000000,30,0,0"]


def test_evaluations_are_a_table_of_their_own(written):
    """Analytic: one head and a row for each; TensorBoard leaves out unknown figures."""
    folder, scalars = written
    rows = (folder / "evaluations.csv").read_text().splitlines()
    assert rows == ["steps,episode_reward_mean,episode_reward_sd", "50,1.5,nan", "60,2.5,1.0"]
    assert scalars.of("eval/episode_reward_mean") == {50: 1.5, 60: 2.5}
    assert scalars.of("eval/episode_reward_sd") == {60: 1.0}


def test_tensorboard_has_the_same_figures_at_their_steps(written):
    """Parity: each value of the CSV under the same name, at its agent step; NaN is left out. Only TensorBoard has
    the figures of machines.
    """
    _, scalars = written
    for name in COLUMNS:
        expected = {
            int(row["misc/steps"]): np.float32(row[name])
            for row in ROWS
            if not math.isnan(row[name])
        }
        assert scalars.of(name) == expected, name
    assert list(scalars.of("loss/loss_policy")) == [1000]
    assert scalars.of("machines/10.0.0.2/steps_per_second") == {1000: 70.5, 2000: 80.5}
    assert scalars.of("machines/10.0.0.3/steps_per_second") == {2000: 3.0}


def test_every_game_is_at_its_step(written):
    """Analytic: two scalars a game."""
    _, scalars = written
    assert scalars.of("rl/episode_reward_sum") == {17: -21.0, 1501: 21.0, 1502: np.float32(1 / 3)}
    assert scalars.of("rl/episode_length_steps") == {17: 800.0, 1501: 900.0, 1502: 901.0}
    assert set(scalars.tags) == {
        *COLUMNS,
        *("eval/episode_reward_mean", "eval/episode_reward_sd"),
        *(f"machines/10.0.0.{n}/steps_per_second" for n in (2, 3)),
        "rl/episode_reward_sum",
        "rl/episode_length_steps",
        "weights/policy_kernel",
        SESSION_START_INFO_TAG,
    }


def test_tensorboard_shows_the_settings(written):
    """Parity: as its plugin reads them; numbers stay numbers, and what is no number is a text."""
    values = written[1].settings()
    assert (values["seed"], values["n_steps"], values["discount"]) == (0, 3000, 0.99)
    assert values["no_xla"] is False
    assert (values["env_id"], values["hidden_units"]) == ("Numbered-v0", "64 64")
    assert values["network"] == "none"
    assert {"preset", "log_dir", "keep_ckpts"}.isdisjoint(values)


def test_histograms_hold_every_number(written):
    """Analytic: the buckets (left, right, count) span the values and count them all."""
    ((step, buckets),) = written[1].of("weights/policy_kernel").items()
    assert step == 2000
    np.testing.assert_allclose([buckets[0, 0], buckets[-1, 1]], [-1, 3], rtol=1e-6)
    assert buckets[:, 2].sum() == 1000


@pytest.mark.parametrize("renamed", [False, True])
def test_a_resumed_run_drops_what_tensorboard_has_beyond_its_checkpoint(tmp_path, renamed):
    """Analytic: at 20 steps. What came up to the checkpoint and what comes after the resumption is
    shown, even if both starts fall into one second.
    """
    log = open_log(tmp_path)
    for n_steps in (10, 20, 30, 40):
        add_game(log, n_steps, score=n_steps)
    log.close()
    if renamed:
        (path,) = tmp_path.glob("events.out.*")
        path.rename(tmp_path / "events.out.tfevents.1700000000.host")  # read by their names
    log = open_log(tmp_path, resumed_at(20, tmp_path))
    add_game(log, 25, score=2.0)
    log.close()
    assert Scalars(tmp_path).of("rl/episode_reward_sum") == {10: 10.0, 20: 20.0, 25: 2.0}


def test_a_score_beyond_32_bits_is_infinite_in_tensorboard_alone(tmp_path):
    """Analytic: TensorBoard's numbers have 32 bits; the CSV has the score, and nothing raises."""
    log = open_log(tmp_path)
    add_game(log, 17, score=1e39)
    log.figures(ROWS[0] | {"rl/episode_reward_mean_100": -1e300}, "")
    log.close()
    (row,) = csv.DictReader((tmp_path / "progress.csv").open(newline=""))
    assert float(row["rl/episode_reward_mean_100"]) == -1e300
    shown = Scalars(tmp_path)
    assert shown.of("rl/episode_reward_sum") == {17: math.inf}
    assert shown.of("rl/episode_reward_mean_100") == {1000: -math.inf}


def test_all_is_on_the_disk_at_once(tmp_path):
    """Analytic: a run that is killed keeps what it logged, and one under way can be watched."""
    log = open_log(tmp_path)
    assert (tmp_path / "progress.csv").read_text().count("\n") == 1
    log.say("traced")
    log.figures(ROWS[0], "")
    assert len(list(csv.reader((tmp_path / "progress.csv").open(newline="")))) == 2
    assert (tmp_path / "log.txt").read_text().startswith("traced\n1,000 steps")
    assert set(Scalars(tmp_path).tags) == {*COLUMNS, SESSION_START_INFO_TAG}
    for n in range(2):
        add_game(log, n)
        assert load_results(tmp_path)[-1]["step"] == n
        assert max(Scalars(tmp_path).of("rl/episode_reward_sum")) == n
    log.close()


def test_without_a_terminal_there_is_one_line_an_interval_and_no_bar(tmp_path, capsys):
    """Golden: a pipe gets lines, stderr the errors, and log.txt all of them."""
    write_all(tmp_path)
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "traced",
        "1,000 steps  1004 steps/s  2 games, last 2: 0.50",
        "2,000 steps  512 steps/s  3 games",
    ]
    assert err == "a worker failed:\nat line 3\n"
    shown = out.splitlines()
    shown[2:2] = err.splitlines()
    assert (tmp_path / "log.txt").read_text().splitlines() == shown


def on_a_terminal(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a terminal of 200 columns shows."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (50, 200))
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        write_all(folder)
        terminal.write("END")  # a read may end after any line
        terminal.flush()
        shown = bytearray()
        while not shown.endswith(b"END"):
            shown += os.read(ours, 100_000)
    os.close(ours)
    return shown.decode().removesuffix("END").replace("\r\n", "\n")


def test_on_a_terminal_there_is_a_bar_and_no_line_an_interval(tmp_path, monkeypatch, capsys):
    """Golden: steps done, time left, speed, games and the mean of the last 100, on one line."""
    shown = on_a_terminal(tmp_path, monkeypatch)
    last = shown.rstrip("\n").split("\r")[-1].split("\n")[-1]
    number = r"[\d.]+[kMG]?"
    assert re.fullmatch(
        rf" 50%\|[█▌ ]+\| 1\.50k/3\.00k \[00:\d\d<00:\d\d, {number} steps/s,"
        r" 3 games, last 3: 1\.50\]",
        last,
    ), repr(last)
    assert "traced\n" in shown
    assert "1,000 steps" not in shown
    assert capsys.readouterr() == ("", "a worker failed:\nat line 3\n")
    assert (tmp_path / "log.txt").read_text() == "traced\na worker failed:\nat line 3\n"


def test_a_head_that_was_cut_off_is_no_head(tmp_path):
    """Analytic: its run was killed while it wrote its first line."""
    path = tmp_path / "progress.csv"
    path.write_bytes(b"misc/steps,misc/fra")
    assert logs._columns_of(path) == logs.FIGURES


@pytest.mark.parametrize("head", ["", "misc/steps,misc/frames\r\n"])
def test_rows_of_an_earlier_start_are_known(tmp_path, head):
    """Analytic: of this version or of another; a head is no row."""
    (tmp_path / "progress.csv").write_text(head, newline="")
    log = open_log(tmp_path)
    assert not log.has_figures
    log.figures(ROWS[0], "")
    assert log.has_figures
    log.close()
    log = open_log(tmp_path, resumed_at(20, tmp_path))
    assert log.has_figures
    log.close()


def test_all_that_a_resumption_cuts_is_written_down_before_a_checkpoint(tmp_path, monkeypatch):
    """Analytic: each file is synced whose length a checkpoint records."""
    log = open_log(tmp_path)
    log.say("traced")
    synced = set()
    monkeypatch.setattr(os, "fsync", lambda number: synced.add(os.fstat(number).st_ino))
    log.sync()
    assert synced == {(tmp_path / name).stat().st_ino for name in log.n_bytes()}
    assert len(synced) == 3
    log.close()


# A disk that is full


def test_rows_wait_for_a_full_disk_and_so_do_recorded_lengths(tmp_path, capsys):
    """Analytic: half a row was written and is completed; no length is recorded while a row waits."""
    log = open_log(tmp_path)
    log.say("traced")
    add_game(log, 10)
    files = {name: tmp_path / name for name in ("monitor.csv", "progress.csv", "log.txt")}
    lengths = log.n_bytes()
    assert lengths == {name: path.stat().st_size for name, path in files.items()}
    before = files["monitor.csv"].read_text()
    with processes.no_file_grows_beyond(lengths["monitor.csv"] + 4):
        add_game(log, 20)
        add_game(log, 30)
        assert files["monitor.csv"].read_text() == before + "-21."
        for _ in range(2):
            with pytest.raises(OSError, match=r"cannot write monitor\.csv: File too large"):
                log.n_bytes()
    assert log.n_bytes()["monitor.csv"] == files["monitor.csv"].stat().st_size
    add_game(log, 40)
    log.sync()
    assert [row["step"] for row in load_results(tmp_path)] == [10, 20, 30, 40]
    log.close()
    out, err = capsys.readouterr()
    assert err.count("cannot write monitor.csv: File too large; training goes on\n") == 1
    assert out.count("can write monitor.csv again\n") == 1
    # TensorBoard would read nothing beyond half an event.
    assert list(Scalars(tmp_path).of("rl/episode_reward_sum")) == [10, 20, 30, 40]


def test_rows_that_are_too_many_to_wait_are_counted(tmp_path, monkeypatch, capsys):
    """Analytic: the first row waits, the next three are lost; the message says so once."""
    monkeypatch.setattr(appending, "MAX_WAITING_BYTES", 1)
    (tmp_path / "monitor.csv").mkdir()
    log = open_log(tmp_path)
    for n in range(3):
        add_game(log, n)
    (tmp_path / "monitor.csv").rmdir()
    add_game(log, 3)
    add_game(log, 4)
    log.close()
    assert [row["step"] for row in load_results(tmp_path)] == [0, 4]
    assert capsys.readouterr().out == "can write monitor.csv again; lost entries: 3\n"


def test_an_evaluation_that_cannot_be_written_is_reported(tmp_path, capsys):
    """Golden: with the file's name."""
    (tmp_path / "evaluations.csv").mkdir()
    log = open_log(tmp_path)
    log.evaluation(50, {"episode_reward_mean": 1.0})
    log.close()
    said = "cannot write evaluations.csv: Is a directory; training goes on\n"
    assert capsys.readouterr().err == said


def test_a_line_is_in_the_pipe_at_once(tmp_path, monkeypatch):
    """Analytic: for `train.py | tee`, whose pipe would hold back thousands of characters."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    with os.fdopen(writer, "w") as console:
        monkeypatch.setattr(sys, "stdout", console)
        log = open_log(tmp_path)
        log.say("first")
        assert os.read(reader, 100) == b"first\n"
        log.close()
    os.close(reader)


def test_a_console_that_is_gone_takes_nothing_with_it(tmp_path, monkeypatch):
    """Analytic: the reader of the pipe has left; log.txt has all lines, and nothing raises."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as console:
        monkeypatch.setattr(sys, "stdout", console)
        log = open_log(tmp_path)
        log.say("first")
        log.say("second")
        log.close()
    assert (tmp_path / "log.txt").read_text() == "first\nsecond\n"


def test_no_evaluation_goes_into_another_runs_folder(tmp_path, capsys):
    """Analytic: the run's folder was moved and another one put there before its first evaluation."""
    mine, lock = tmp_path / "mine", "lock"
    mine.mkdir()
    with (mine / lock).open("w") as held:
        log = logs.RunLog(RunFolder(mine, held), Params("X-v0"), Start())
        mine.rename(tmp_path / "moved")
        mine.mkdir()
        (mine / lock).touch()
        log.evaluation(100, {"episode_reward_mean": 1.0})
        log.close()
    assert [path.name for path in mine.iterdir()] == [lock]
    assert "cannot write evaluations.csv: another run" in capsys.readouterr().err
