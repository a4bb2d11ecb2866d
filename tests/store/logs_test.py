"""Logs: the same figures in progress.csv and TensorBoard, and a console that fits what it is."""

import csv
import errno
import math
import os
import pathlib
import pty
import re
import sys
import termios

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

from a3c.store import logs

# What a reader of a run finds, in this order.
COLUMNS = [
    "misc/steps",
    "misc/frames",
    "misc/updates",
    "misc/steps_per_second",
    "misc/lr",
    "misc/policy_lag_mean",
    "misc/policy_lag_max",
    "misc/cpu_hours",
    "misc/env_restarts",
    "rl/episode_reward_mean_100",
    "rl/episode_length_mean_100",
    "rl/episodes",
    "rl/policy_entropy",
    "rl/advantage_mean",
    "rl/episode_value_mean",
    "rl/explained_variance",
    "loss/loss_policy",
    "loss/loss_value",
    "loss/loss_combined",
    "loss/grads_norm_policy",
    "loss/grads_norm_value",
    "loss/grads_norm_combined",
    "loss/grads_norm_combined_clipped",
]
# Every figure another number; the second row lacks what is known only once a game has ended, or
# something was measured.
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

    def of(self, tag: str) -> dict[int, np.ndarray]:
        """The values by their steps."""
        return {e.step: tf.make_ndarray(e.tensor_proto) for e in self._events.Tensors(tag)}


def write_all(folder: pathlib.Path) -> None:
    """Everything that a run may log, once or twice."""
    log = logs.RunLog(folder, 0, 3000)
    log.say("traced")
    log.game(17, score=-21.0, length=800)
    log.figures(ROWS[0])
    log.move_bar(700, 2, 0.5)
    log.move_bar(1500, 3, 1.5)
    log.game(1501, score=21.0, length=900)
    log.game(1502, score=20.0, length=901)
    log.say("a worker failed:\nat line 3", error=True)
    log.figures(ROWS[1])
    log.histograms(2000, {"weights/policy_kernel": np.linspace(-1, 3, 1000, dtype=np.float32)})
    log.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder of a log with everything in it, and what TensorBoard shows of it."""
    folder = tmp_path_factory.mktemp("logged")
    write_all(folder)
    return folder, Scalars(folder)


def test_the_columns_are_the_promised_ones(written):
    """Analytic: by their names and in their order; one row for each call."""
    header, *rows = csv.reader((written[0] / "progress.csv").open(newline=""))
    assert header == COLUMNS == list(logs.FIGURES)
    np.testing.assert_array_equal(
        np.array(rows, float), [[row[name] for name in COLUMNS] for row in ROWS]
    )


def test_tensorboard_has_the_same_figures_at_their_steps(written):
    """Parity: each value of the CSV, by the same name; the axis is agent steps; NaN is left out."""
    _, scalars = written
    for name in COLUMNS:
        expected = {
            int(row["misc/steps"]): np.float32(row[name])
            for row in ROWS
            if not math.isnan(row[name])
        }
        assert scalars.of(name) == expected, name
    assert list(scalars.of("loss/loss_policy")) == [1000]


def test_every_game_is_at_its_step(written):
    """Analytic: two scalars a game."""
    _, scalars = written
    assert scalars.of("rl/episode_reward_sum") == {17: -21.0, 1501: 21.0, 1502: 20.0}
    assert scalars.of("rl/episode_length_steps") == {17: 800.0, 1501: 900.0, 1502: 901.0}
    assert set(scalars.tags) == {
        *COLUMNS,
        "rl/episode_reward_sum",
        "rl/episode_length_steps",
        "weights/policy_kernel",
    }


def test_histograms_hold_every_number(written):
    """Analytic: the buckets (left, right, count) span the values and count them all."""
    ((step, buckets),) = written[1].of("weights/policy_kernel").items()
    assert step == 2000
    np.testing.assert_allclose([buckets[0, 0], buckets[-1, 1]], [-1, 3], rtol=1e-6)
    assert buckets[:, 2].sum() == 1000


def test_a_resumed_run_drops_what_tensorboard_has_beyond_its_checkpoint(tmp_path):
    """Analytic: at 20 steps; what comes then is shown."""
    log = logs.RunLog(tmp_path, 0, 3000)
    for n_steps in (10, 30):
        log.game(n_steps, score=1.0, length=5)
    log.close()
    (path,) = tmp_path.glob("events.out.*")
    path.rename(tmp_path / "events.out.tfevents.1700000000.host")  # they are read by their names
    log = logs.RunLog(tmp_path, 20, 3000, resumed=True)
    log.game(25, score=2.0, length=5)
    log.close()
    assert Scalars(tmp_path).of("rl/episode_reward_sum") == {10: 1.0, 25: 2.0}


def test_a_score_beyond_32_bits_is_infinite_in_tensorboard_alone(tmp_path):
    """Analytic: TensorBoard has no more; the run goes on."""
    log = logs.RunLog(tmp_path, 0, 3000)
    log.game(17, score=1e39, length=800)
    log.figures(ROWS[0] | {"rl/episode_reward_mean_100": -1e300})
    log.close()
    (row,) = csv.DictReader((tmp_path / "progress.csv").open(newline=""))
    assert float(row["rl/episode_reward_mean_100"]) == -1e300
    shown = Scalars(tmp_path)
    assert shown.of("rl/episode_reward_sum") == {17: math.inf}
    assert shown.of("rl/episode_reward_mean_100") == {1000: -math.inf}


def test_rows_are_on_disk_before_the_log_is_closed(tmp_path):
    """Analytic: a run that is killed keeps what it had logged, and one under way can be watched."""
    log = logs.RunLog(tmp_path, 0, 3000)
    assert (tmp_path / "progress.csv").read_text().count("\n") == 1
    log.say("traced")
    log.figures(ROWS[0])
    assert len(list(csv.reader((tmp_path / "progress.csv").open(newline="")))) == 2
    assert (tmp_path / "log.txt").read_text().startswith("traced\n1,000 steps")
    assert set(Scalars(tmp_path).tags) == set(COLUMNS)
    log.close()


def test_without_a_terminal_there_is_one_line_an_interval_and_no_bar(tmp_path, capsys):
    """Golden: what goes into a pipe is lines, errors apart, and log.txt has all of them."""
    write_all(tmp_path)
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "traced",
        "1,000 steps  1004 steps/s  1014 games  last 100: 1011.25",
        "2,000 steps  512 steps/s  7 games  last 100: nan",
    ]
    assert err == "a worker failed:\nat line 3\n"
    shown = out.splitlines()
    shown[2:2] = err.splitlines()
    assert (tmp_path / "log.txt").read_text().splitlines() == shown


def on_a_terminal(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a terminal of 200 columns gets to see."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (50, 200))
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        write_all(folder)
        os.set_blocking(ours, False)
        shown = bytearray()
        while not shown.endswith(b"\n"):  # the bar's, which stays behind
            shown += os.read(ours, 100_000)
    os.close(ours)
    return shown.decode().replace("\r\n", "\n")


def test_on_a_terminal_there_is_a_bar_and_no_line_an_interval(tmp_path, monkeypatch, capsys):
    """Golden: done of all, time left, speed, games and the mean of the last 100, on one line."""
    shown = on_a_terminal(tmp_path, monkeypatch)
    last = shown.rstrip("\n").split("\r")[-1].split("\n")[-1]
    number = r"[\d.]+[kMG]?"
    assert re.fullmatch(
        rf" 50%\|[█▌ ]+\| 1\.50k/3\.00k \[00:\d\d<00:\d\d, {number} steps/s,"
        r" 3 games, last 100: 1\.5\]",
        last,
    ), repr(last)
    assert "traced\n" in shown
    assert "1,000 steps" not in shown
    assert capsys.readouterr() == ("", "a worker failed:\nat line 3\n")
    assert (tmp_path / "log.txt").read_text() == "traced\na worker failed:\nat line 3\n"


def test_a_restored_runs_bar_starts_where_that_one_ended(tmp_path, monkeypatch):
    """Analytic: steps done before are done, but did not take any of this run's time."""
    made = []
    monkeypatch.setattr(logs, "tqdm", _recording(logs.tqdm, made))
    log = logs.RunLog(tmp_path, 1000, 3000)
    log.close()
    assert (made[0]["initial"], made[0]["total"]) == (1000, 3000)
    assert made[0]["smoothing"] == 0.05  # tqdm's own 0.3 jumps with each of our updates


def _recording(tqdm: type, made: list[dict]) -> type:
    class Recording(tqdm):
        def __init__(self, **options: object) -> None:
            made.append(options)
            super().__init__(**options)

    return Recording


@pytest.mark.parametrize("damage", ['"5.0', "2" * 200_000], ids=["quote", "endless"])
def test_a_damaged_row_takes_no_other_with_it(tmp_path, damage):
    """Analytic: of a table of an older version, which had one column less: a byte that has become a quote,
    behind which a reader of CSV sees one field, stays in its row; and what no reader takes is left alone.
    """
    path = tmp_path / "progress.csv"
    rows = [",".join([str(i)] * (len(COLUMNS) - 1)) for i in range(4)]
    rows[1] = damage + rows[1][1:]
    path.write_text("\n".join([",".join(COLUMNS[:-1]), *rows]) + "\n")
    before = path.read_bytes()
    log = logs.RunLog(tmp_path, 0, 3000)
    log.figures(ROWS[0])
    log.close()
    *lines, last = path.read_text().splitlines()
    np.testing.assert_array_equal(np.array(last.split(","), float), [*ROWS[0].values()])
    if damage.startswith('"'):
        assert len(lines) == 5
        assert lines[4] == rows[3] + ",nan"
    else:
        assert path.read_bytes().startswith(before)


def test_a_table_that_cannot_be_written_anew_keeps_its_columns(tmp_path, monkeypatch):
    """Analytic: no room for it once more, say: new rows have the old columns, and nothing is left
    beside it.
    """
    path = tmp_path / "progress.csv"
    path.write_text("misc/steps,misc/frames\n1,4\n")
    with monkeypatch.context() as patch:
        patch.setattr(pathlib.Path, "replace", _no_room)
        log = logs.RunLog(tmp_path, 0, 3000)
    log.figures(ROWS[0])
    log.close()
    assert path.read_text().splitlines() == ["misc/steps,misc/frames", "1,4", "1000.0,1001.25"]
    assert not list(tmp_path.glob("*.tmp"))


def _no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_what_can_be_written_or_not_is_said_once_each_time(tmp_path, monkeypatch, capsys):
    """Analytic: of a disk that is full twice, for two rows each."""
    log = logs.RunLog(tmp_path, 0, 3000)
    for has_room in [True, False, False, True, True] * 2:
        monkeypatch.setattr(log._progress, "write", lambda _, has_room=has_room: has_room)
        log._progress.error = "full"
        log.figures(ROWS[0])
    monkeypatch.undo()
    log.close()
    out, err = capsys.readouterr()
    assert out.count("progress.csv is written again\n") == 2
    assert err == "cannot write progress.csv: full; training goes on\n" * 2


def test_an_evaluation_that_cannot_be_written_is_said(tmp_path, capsys):
    """Golden: by the file's name."""
    (tmp_path / "evaluations.csv").mkdir()
    log = logs.RunLog(tmp_path, 0, 3000)
    log.evaluation(50, {"episode_reward_mean": 1.0})
    log.close()
    said = "cannot write evaluations.csv: Is a directory; training goes on\n"
    assert capsys.readouterr().err == said


def test_a_game_is_on_the_disk_at_once(tmp_path):
    """Analytic: before a checkpoint is saved, say, which tells how far the logs had come."""
    log = logs.RunLog(tmp_path, 0, 3000)
    for n in range(3):
        log.game(n, score=-21.0, length=800)
        assert max(Scalars(tmp_path).of("rl/episode_reward_sum")) == n
    log.close()


def test_a_line_is_in_the_pipe_at_once(tmp_path, monkeypatch):
    """Analytic: for `train.py | tee`, whose pipe would hold back some thousand characters."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    with os.fdopen(writer, "w") as console:
        monkeypatch.setattr(sys, "stdout", console)
        log = logs.RunLog(tmp_path, 0, 100)
        log.say("first")
        assert os.read(reader, 100) == b"first\n"
        log.close()
    os.close(reader)


def test_a_console_that_is_gone_takes_nothing_with_it(tmp_path, monkeypatch):
    """Analytic: whoever read our lines has left; the log still has them all, and nothing raises."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as console:
        monkeypatch.setattr(sys, "stdout", console)
        log = logs.RunLog(tmp_path, 0, 100)
        log.say("first")
        log.say("second")
        log.close()
    assert (tmp_path / "log.txt").read_text() == "first\nsecond\n"
