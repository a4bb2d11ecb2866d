"""What the main thread makes of reports, alone."""

import collections
import dataclasses
import math
import pathlib
import signal
import threading
import time
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from a3c.agent.collector import EnvRestart
from a3c.agent.learner import Measurement
from a3c.agent.shared import SharedState
from a3c.agent.worker import Failure, Report
from a3c.contract import Counts, Game, Position, Snapshot, Subject, WorkerPosition
from a3c.play.evaluator import Evaluated
from a3c.run import watch
from a3c.run.remote import RemoteSource
from a3c.settings.params import Params
from a3c.store import checkpoint, logs, resume
from a3c.store.checkpoint import Checkpoint
from a3c.store.resume import Start
from tests.tools import processes
from tests.tools.agents import make_folder

# The figures of an evaluation that are said.
ALL_ONE = dict.fromkeys(("episode_reward_mean", "episode_reward_min", "episode_reward_max"), 1.0)


class FakeLog:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.games: list[Game] = []
        self.moments: list[float] = []
        self.said: list[tuple[str, bool]] = []
        self.at: list[int] = []
        self.of_machines: list[tuple[int, dict[str, float]]] = []
        self.is_disk_full_for = ""  # one of the next two

    def n_bytes(self) -> dict[str, int]:
        if self.is_disk_full_for == "n_bytes":
            raise OSError("rows wait")
        return {"monitor.csv": len(self.games), "progress.csv": len(self.rows)}

    def sync(self) -> None:
        if self.is_disk_full_for == "sync":
            raise OSError("no room")

    @property
    def has_figures(self) -> bool:
        return bool(self.rows)

    def figures(self, figures: dict[str, float], games: str) -> None:
        self.rows.append(dict(figures))
        self.games_in_words = games

    def game(self, game: Game, moment: float) -> None:
        self.games.append(game)
        self.moments.append(moment)

    def say(self, line: str, *, error: bool = False) -> None:
        self.said.append((line, error))

    def histograms(self, n_steps: int, what: dict[str, Any]) -> None:
        self.at.append(n_steps)

    evaluation = histograms

    def machines(self, n_steps: int, steps_per_second: dict[str, float]) -> None:
        self.of_machines.append((n_steps, steps_per_second))

    def move_bar(self, n_steps: int, games: str) -> None:
        pass


class Watched(NamedTuple):
    """The main thread's watch, with what it sees and what it says in our hands."""

    watch: Any
    run: watch.Run
    log: FakeLog
    worker: Any
    clock: list[float]

    def put(self, report: Report) -> None:
        self.run.reports.put(report)

    def saved(self) -> list[int]:
        """The steps of the checkpoints that are there."""
        return list(checkpoint.numbered(self.run.folder.checkpoints))

    def take(self, *reports: Report) -> None:
        for report in reports:
            self.put(report)
        self.watch._take_reports(math.inf)

    def row(self, seconds: float = 1.0) -> dict[str, float]:
        """The next row, so many seconds after the last one."""
        self.clock[0] += seconds
        self.watch._write_row()
        return self.log.rows[-1]


def measurement(**scalars: float) -> Measurement:
    return Measurement({name.replace("__", "/"): x for name, x in scalars.items()}, {}, {})


SUBJECT = Subject("Numbered-v0", "generic", "mlp", (3,), 2)
PARAMS = Params(
    SUBJECT.env_id,
    initial_lr=0.5,
    lr_schedule="linear",
    lr_decay_to_zero_by_n_steps=400,
    n_steps=400,
    keep_ckpts=2,
    detailed_logs=True,
)
COUNTS = Counts(steps=100, updates=20, games=4, frames=400)
POSITION = Position(
    [WorkerPosition(np.random.default_rng(0).bit_generator.state, [3])], {}, 2, 3600
)
THERE = Checkpoint(pathlib.Path("there"), SUBJECT, {}, Snapshot(COUNTS, {}, {}), POSITION)


@pytest.fixture
def make(tmp_path, signals, monkeypatch):
    """Makes a watch over a worker that takes a second; its clock stands at 100 s until it is moved on."""
    clock = [100.0]

    def work() -> None:
        clock[0] += 1

    monkeypatch.setattr(
        watch,
        "time",
        types.SimpleNamespace(monotonic=lambda: clock[0], time=lambda: 1e9 + clock[0]),
    )
    monkeypatch.setattr(watch.cores, "seconds_used", lambda: 18.9)

    def make(start: Start = Start(), more: Sequence[RemoteSource] = ()) -> Watched:  # noqa: B008 (immutable)
        folder, log = make_folder(tmp_path / "run"), FakeLog()
        weights = {"w": np.zeros((2, 3), np.float32)}
        shared = SharedState(weights, PARAMS, COUNTS)
        run = watch.Run(PARAMS, SUBJECT, folder, start, signals, log, shared, watch.Reports())
        worker = types.SimpleNamespace(
            source=None, number=0, run=work, position=POSITION.workers[0], episode_value_mean=9.0
        )
        workers = [worker, *(types.SimpleNamespace(source=source) for source in more)]
        return Watched(watch.Watch(run, workers), run, log, worker, clock)

    return make


@pytest.fixture
def watched(make):
    return make()


def game(step: int, score: float = 3.0, length: int = 5) -> Game:
    return Game(0, 0, score, length, step=step)


def test_what_was_reported_before_a_checkpoint_is_of_its_time(watched, monkeypatch):
    """Analytic: the queue is emptied before the files' lengths are read, without updates meanwhile."""
    gate, read = watched.run.shared.gate, watched.log.n_bytes

    def n_bytes() -> dict[str, int]:
        assert gate._is_shut
        return read()

    monkeypatch.setattr(watched.log, "n_bytes", n_bytes)
    watched.put(game(105))
    watched.put(EnvRestart("why"))
    saved = checkpoint.read(watched.watch._save())
    assert watched.log.games == [game(105)]
    assert watched.log.moments == [1e9 + 100]
    assert saved.snapshot.counts == COUNTS
    assert saved.position == Position(
        POSITION.workers, {"monitor.csv": 1, "progress.csv": 0}, n_env_restarts=1, cpu_seconds=18
    )


def test_no_checkpoint_has_a_negative_cpu_time(watched):
    """Analytic: a program that called us had processes with CPU time, which have gone."""
    watched.run.signals.cpu_seconds_before = 30.0
    assert checkpoint.read(watched.watch._save()).position.cpu_seconds == 0


def test_threads_that_the_system_refuses_are_not_waited_for(watched, monkeypatch):
    """Analytic: of two workers, the second gets no thread: the first is told to stop, and awaited."""
    ended = []

    def work() -> None:
        processes.wait_until(watched.run.signals.stop.is_set, "the stop")
        ended.append(True)

    start, n = threading.Thread.start, [0]

    def start_one(thread: threading.Thread) -> None:
        n[0] += 1
        if n[0] > 1:
            raise RuntimeError("can't start new thread")
        start(thread)

    watched.worker.run = work
    watched.watch._workers *= 2
    monkeypatch.setattr(threading.Thread, "start", start_one)
    with pytest.raises(RuntimeError):
        watched.watch.run()
    assert ended == [True]


@pytest.mark.parametrize("fails", [True, False])
def test_what_is_reported_last_is_heard(watched, monkeypatch, fails):
    """Analytic: a failure, and the evaluation under way, which is abandoned where the run has failed, and when its
    hours are over.
    """
    waited_for = []

    def work() -> None:
        watched.clock[0] += 1
        if fails:
            watched.put(Failure(7, RuntimeError("why"), "Traceback\n"))

    def finish(is_stopped: Callable[[], bool]) -> None:
        waited_for.append(not is_stopped())
        watched.clock[0] = 200
        waited_for.append(not is_stopped())
        watched.put(Evaluated(50, ALL_ONE, None, None))

    watched.worker.run = work
    watched.watch._stop_at = 200.0
    monkeypatch.setattr(watched.watch, "_watch", lambda threads: [t.join() for t in threads])
    watched.watch._evaluator = types.SimpleNamespace(finish=finish)
    assert watched.watch.run() == (1 if fails else 0)
    assert waited_for == [not fails, False]
    first, *said = [line for line, _ in watched.log.said]
    assert first.startswith("checkpoint before the first update: ")
    told = "worker 7 failed at 100 steps: RuntimeError: why; "
    assert [line.startswith(told) for line in said[:2]] == [fails, False]
    assert said[int(fails)].startswith("saved ")
    assert "evaluation at 50 steps: mean score 1.00, 1 to 1" in said
    assert (watched.run.folder.path / "failure/traceback.txt").exists() is fails


def test_rows_and_checkpoints_come_when_their_time_has_come(watched, monkeypatch):
    """Analytic: rows every 2 s where there are new steps, then a fifth of the time later, at most a minute; a
    checkpoint every five minutes; evaluations, too.
    """
    clock, saved = watched.clock, []
    monkeypatch.setattr(watch, "BAR_INTERVAL_SECONDS", 0.001)
    monkeypatch.setattr(watched.watch, "_save", lambda: saved.append(clock[0]))
    at = [103.9, 104.0, 105.9, 106.0, 200.0, 219.9, 220.0, 350.0, 399.9, 400.0]
    times, is_over = iter(at), threading.Event()

    def pass_time() -> None:
        clock[0] = next(times, clock[0])
        if clock[0] not in (103.9, 350.0, 400.0):
            n_steps = int(clock[0]) - watched.run.shared.counters.read().steps
            watched.run.shared.counters.add_update(n_steps, 4, 20)
        if clock[0] == 400.0:
            is_over.set()

    watched.watch._evaluator = types.SimpleNamespace(begin_if_due=pass_time)
    worker = threading.Thread(target=is_over.wait, args=[processes.DEADLINE_SECONDS])
    worker.start()
    watched.watch._watch([worker])
    rows = [row["misc/steps"] for row in watched.log.rows]
    assert (rows, saved) == ([104, 106, 200, 220, 399], [400.0])
    assert [watch.seconds_to_next_row(t, 60.0) for t in (0, 10, 100, 300, 9e9)] == [
        2,
        2,
        20,
        60,
        60,
    ]
    assert watch.seconds_to_next_row(0.0, 0.5) == 0.5


@pytest.mark.parametrize(
    ("n_rows", "n_steps", "expected"), [(0, 0, [100]), (1, 0, [100]), (1, 5, [100, 105])]
)
def test_the_last_row_repeats_none(watched, monkeypatch, n_rows, n_steps, expected):
    """Analytic: it is left out where nothing was learned since the row before, but a run has one row; the
    last checkpoint knows of all.
    """

    def pass_time(threads: list[threading.Thread]) -> None:
        for thread in threads:
            thread.join()
        for _ in range(n_rows):
            watched.row()
        watched.run.shared.counters.add_update(n_steps, n_steps, 20)
        watched.clock[0] += 1

    monkeypatch.setattr(watched.watch, "_watch", pass_time)
    assert watched.watch.run() == 0
    assert [row["misc/steps"] for row in watched.log.rows] == expected
    saved = checkpoint.read(checkpoint.path_of(watched.run.folder.checkpoints, 100 + n_steps))
    assert saved.position.n_bytes["progress.csv"] == len(expected)


def test_a_run_stops_after_its_hours(watched, signals, monkeypatch):
    """Analytic: half an hour after the process was started; it is no signal, so the status is 0."""
    signals.began = 50.0
    watched.watch._stop_at = watch.stop_time(
        signals, dataclasses.replace(PARAMS, stop_after_hours=0.5)
    )
    monkeypatch.setattr(watch, "BAR_INTERVAL_SECONDS", 0.001)
    times, is_stopped = iter([1849.0, 1850.0]), []

    def pass_time() -> None:
        is_stopped.append(signals.stop.is_set())
        watched.clock[0] = next(times, watched.clock[0])

    watched.watch._evaluator = types.SimpleNamespace(begin_if_due=pass_time)
    worker = threading.Thread(target=processes.wait_until, args=[signals.stop.is_set, "the stop"])
    worker.start()
    watched.watch._watch([worker])
    assert is_stopped[:2] == [False, False]
    assert signals.stop.is_set()
    assert watched.watch._conclude() == 0
    assert watched.log.said[-1][0].startswith("stopped at 100 steps")


def test_that_saving_works_again_is_said_once(watched):
    """Golden: after it had failed, here because a file had the folder's name for a while."""
    folder = watched.run.folder.checkpoints
    folder.rmdir()
    folder.touch()
    for _ in range(2):
        assert watched.watch._save() is None
    folder.unlink()
    for _ in range(2):
        assert watched.watch._save() is not None
    assert [is_error for _, is_error in watched.log.said] == [True, True, False]


def test_figures_are_means_over_the_interval(watched):
    """Analytic: of the finite values since the last row; of episode values, only the latest."""
    watched.take(
        measurement(rl__policy_entropy=0.5, rl__explained_variance=1.0),
        measurement(rl__policy_entropy=0.75, rl__explained_variance=-math.inf),
        measurement(rl__policy_entropy=1.0, rl__explained_variance=math.nan),
    )
    row = watched.row()
    assert list(row) == list(logs.FIGURES)
    assert row["rl/policy_entropy"] == 0.75
    assert row["rl/explained_variance"] == 1.0
    assert row["rl/episode_value_mean"] == 9.0
    assert math.isnan(row["loss/loss_policy"])
    watched.take(measurement(rl__policy_entropy=0.25, rl__explained_variance=math.nan))
    row = watched.row()
    assert row["rl/policy_entropy"] == 0.25
    assert math.isnan(row["rl/explained_variance"])


def test_an_interval_in_which_nothing_happened(watched):
    """Analytic: counters stay, steps per second are 0, and what was not measured is unknown."""
    row = watched.row()
    known = {
        "misc/steps": 100,
        "misc/frames": 400,
        "misc/updates": 20,
        "misc/steps_per_second": 0,
        "misc/lr": 0.375,  # a quarter of the way down
        "misc/cpu_hours": 18.9 / 3600,
        "misc/env_restarts": 0,
        "misc/remote_workers": 0,
        "misc/remote_restarts": 0,
        "rl/episodes": 4,
        "rl/episode_value_mean": 9.0,  # of the latest episode, whenever that ended
    }
    assert {name: value for name, value in row.items() if not math.isnan(value)} == known
    assert watched.log.at == []  # no measurement, no histograms


def test_a_row_has_the_games_of_its_steps(watched):
    """Analytic: a worker has counted its update, and reports the game that ended in it only when the row begins."""
    shared, is_counted = watched.run.shared, threading.Event()

    def update() -> None:
        with shared.gate:
            shared.counters.add_update(5, 5, 20, 1)
            is_counted.set()
            until = time.monotonic() + 2
            while not shared.gate._is_shut and time.monotonic() < until:
                time.sleep(0.01)
            watched.put(game(105, 7.0))

    worker = threading.Thread(target=update)
    worker.start()
    is_counted.wait(processes.DEADLINE_SECONDS)
    row = watched.row()
    worker.join()
    names = "misc/steps", "rl/episodes", "rl/episode_reward_mean_100"
    assert [row[name] for name in names] == [105, 5, 7.0]


def test_figures_go_on_after_a_resumption(make):
    """Analytic: CPU time includes the hour before the resumption; so do last games and restarts."""
    watched = make(Start(THERE, is_resumed=True, last_games=[(3.0, 5), (5.0, 8)]))
    watched.take(game(105, 10.0, 5))
    watched.run.signals.cpu_seconds_before = 8.0  # of the process that called us
    row = watched.row()
    assert row["misc/cpu_hours"] == pytest.approx(1 + 10.9 / 3600)
    assert row["rl/episode_reward_mean_100"] == 6.0
    assert row["rl/episode_length_mean_100"] == 6.0
    assert row["misc/env_restarts"] == 2


def test_steps_a_second_are_those_of_the_interval(watched):
    """Analytic: restored steps are not counted, nor are those of earlier intervals."""
    for n_steps, seconds, expected in ((30, 10, 3.0), (40, 80, 0.5), (0, 1, 0.0)):
        watched.run.shared.counters.add_update(n_steps, 4 * n_steps, 20)
        assert watched.row(seconds)["misc/steps_per_second"] == expected


def test_policy_lag_is_of_the_interval(watched):
    """Analytic: copies made 0, 2 and 4 updates before; then none."""
    for n_updates_before in (0, 2, 4):
        n_updates = watched.run.shared.counters.read().updates
        watched.run.shared.counters.add_update(1, 1, n_updates - n_updates_before)
    row = watched.row()
    assert (row["misc/policy_lag_mean"], row["misc/policy_lag_max"]) == (2.0, 4.0)
    assert math.isnan(watched.row()["misc/policy_lag_max"])


def test_games_are_averaged_over_the_last_hundred(watched):
    """Analytic: of 130 games the first 30 do not count, however many intervals ago they were; and
    it is said how many are meant.
    """
    watched.row()
    assert watched.log.games_in_words == "4 games"  # of the run before, of which no score is known
    for first in (0, 65):
        watched.take(*(game(n, float(n), 3 * n) for n in range(first, first + 65)))
        row = watched.row()
        if first == 0:
            assert watched.log.games_in_words == "4 games, last 65: 32.00"
    assert watched.log.games_in_words == "4 games, last 100: 79.50"
    assert row["rl/episode_reward_mean_100"] == np.mean(range(30, 130))
    assert row["rl/episode_length_mean_100"] == 3 * np.mean(range(30, 130))
    assert watched.log.games == [game(n, float(n), 3 * n) for n in range(130)]
    assert resume.GAMES_IN_MEAN == 100


def test_restarts_are_counted_and_told(watched):
    """Analytic: all since the run began, one line for each with the reason; they bring no score."""
    watched.take(EnvRestart("worker 3, environment 0 died (exit code -9)"), EnvRestart("it hangs"))
    assert watched.row()["misc/env_restarts"] == 2
    watched.take(EnvRestart("worker 1, environment 0 failed:\nTraceback\nRuntimeError: so\n"))
    row = watched.row()
    assert row["misc/env_restarts"] == 3
    assert math.isnan(row["rl/episode_reward_mean_100"])
    told = "restarted an environment process, and dropped its episodes: "
    assert watched.log.said == [
        (f"{told}worker 3, environment 0 died (exit code -9)", False),
        (f"{told}it hangs", False),
        (f"{told}worker 1, environment 0 failed:\nTraceback\nRuntimeError: so", False),
    ]


class FakeRemote(RemoteSource):
    """A worker's remote end, with its figures in our hands."""

    def __init__(self) -> None:
        self.machine: str | None = None
        self.steps = collections.Counter[str]()


def test_machines_have_the_steps_of_their_workers(make):
    """Analytic: those of the interval, also of a machine that a worker has left; who waits is told when that
    changes, but not at the end.
    """
    remote = [FakeRemote() for _ in range(3)]
    watched = make(more=remote)
    remote[0].machine = remote[1].machine = "a"
    remote[0].steps["a"], remote[1].steps["a"] = 40, 60
    row = watched.row(10)
    assert row["misc/remote_workers"] == 2
    remote[0].machine = remote[2].machine = "b"
    remote[0].steps |= {"a": 50, "b": 30}
    remote[2].steps["b"] = 10
    assert watched.row(20)["misc/remote_workers"] == 3
    assert watched.log.of_machines == [(100, {"a": 10.0}), (100, {"a": 0.5, "b": 2.0})]
    told = "remote workers that are not at work yet:"
    assert watched.log.said == [(f"{told} 1", False), (f"{told} 0", False)]
    remote[0].machine = None
    watched.run.shared.counters.add_update(300, 0, 20)
    watched.row()
    assert len(watched.log.said) == 2


def test_a_traceback_is_told_once(watched):
    """Analytic: through the same lines of code, whatever its error says and whose it is; after that it has one
    line. Another traceback is told as well.
    """

    def failed(worker: int, line: int, error: str) -> str:
        places = f'Traceback:\n  File "a.py", line 3, in f\n  File "b.py", line {line}, in g'
        return f"worker {worker}, environment 0 failed:\n{places}\n{error}"

    for worker, line, error in ((0, 4, "E: 1"), (1, 4, "E: 2"), (0, 5, "E: 1"), (0, 4, "E: 3")):
        watched.take(EnvRestart(failed(worker, line, error)))
    told = [said.partition("episodes: ")[2] for said, _ in watched.log.said]
    assert told == [
        failed(0, 4, "E: 1"),
        "worker 1, environment 0 failed: … E: 2",
        failed(0, 5, "E: 1"),
        "worker 0, environment 0 failed: … E: 3",
    ]


@pytest.mark.parametrize("what_fails", ["n_bytes", "sync"])
def test_each_save_deletes_what_nobody_can_go_back_to(watched, what_fails):
    """Analytic: all but two checkpoints, and what was no longer the best when the older was saved; but
    nothing while rows are not on the disk.
    """
    checkpoints, best = watched.run.folder.checkpoints, watched.run.folder.best
    best.mkdir()
    for n_steps in (60, 70):
        checkpoint.path_of(checkpoints, n_steps).touch()
    for n_steps in (30, 50, 65, 99):
        checkpoint.path_of(best, n_steps).touch()
    watched.log.is_disk_full_for = what_fails
    assert watched.watch._save() is None
    assert (watched.saved(), len(checkpoint.numbered(best))) == ([60, 70], 4)
    watched.log.is_disk_full_for = ""
    watched.watch._save()
    assert watched.saved() == [70, 100]
    assert list(checkpoint.numbered(best)) == [65, 99]


def test_a_best_that_cannot_be_saved_is_told_in_a_line(watched):
    """Analytic: as an error, after the figures."""
    watched.take(Evaluated(50, ALL_ONE, None, "cannot save x: no room"))
    assert watched.log.said == [
        ("evaluation at 50 steps: mean score 1.00, 1 to 1", False),
        ("it is the best so far, but cannot save x: no room", True),
    ]


def test_a_failure_outranks_the_signal_that_came_with_it(watched, signals):
    """Analytic: and the first failure is reported, because it causes those that follow."""
    signal.raise_signal(signal.SIGTERM)
    assert signals.stop.is_set()
    assert watched.watch._conclude() == 143
    watched.take(*(Failure(n, RuntimeError(), "Traceback\n") for n in (2, 0, 1)))
    assert watched.watch._conclude() == 1
    assert watched.watch._failure.worker == 2


def test_a_flood_of_reports_does_not_hold_up_the_watch(watched, monkeypatch):
    """Analytic: handling ends when its time is over, and the next call takes the rest."""
    clock = watched.clock

    def slow_game(*_: object) -> None:
        clock[0] += 1.0

    monkeypatch.setattr(watched.log, "game", slow_game)
    for _ in range(100):
        watched.put(game(100))
    before = clock[0]
    watched.watch._take_reports(10.0)
    assert clock[0] - before == 10.0
    watched.watch._take_reports(math.inf)
    assert clock[0] - before == 100.0


def test_a_signal_in_the_last_moment_of_a_wait_does_not_make_it_last(watched, monkeypatch):
    """Analytic: where its handler ends after the time is over, the wait ends, too."""
    monkeypatch.setattr(watch, "time", time)
    before = signal.signal(signal.SIGALRM, lambda *_: time.sleep(0.2))
    rescue = threading.Timer(10.0, watched.put, [game(100)])
    try:
        rescue.start()
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        start = time.monotonic()
        watched.watch._take_reports(0.2)
        assert 0.2 <= time.monotonic() - start < 5.0
    finally:
        rescue.cancel()
        signal.signal(signal.SIGALRM, before)
