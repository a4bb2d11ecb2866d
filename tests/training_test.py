"""Training as a whole, on environments with known answers: what is logged, saved, said and returned."""

import collections
import csv
import math
import os
import pathlib
import re
import shutil
import signal
import threading
import time
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from a3c import checkpoint, evaluation, logs, network, params, resume, stopping, training
from a3c.checkpoint import Subject
from a3c.evaluator import Evaluated
from a3c.shared import Counters, Counts, SharedState
from a3c.stopping import Stopped, StopSignals
from a3c.worker import EnvRestart, Failure, Game, Measurement, Report
from tests import processes
from tests.fakes import NumberedEnvs
from tests.processes import wait_until

SUBJECT = Subject("Numbered-v0", "generic", "mlp", (3,), 2)
DEADLINE_SECONDS = 120.0
ARGUMENTS = ["--network", "mlp", "--no_xla", "--steps_per_update", "4", "--n_steps", "40"]


class Envs(NumberedEnvs):
    """One worker's environments, whose games end after every third step."""

    def __init__(
        self, n_envs: int = 1, *, n_slots: int = 5, on_step: Callable[[int], None] = lambda n: None
    ) -> None:
        super().__init__(n_slots, n_envs, on_step=on_step, terminations=_EveryThird())
        self.is_ready = False

    def wait_until_ready(self) -> None:
        self.is_ready = True

    def reset(self, slot: int) -> None:
        assert self.is_ready
        super().reset(slot)


class _EveryThird(collections.abc.Collection):
    def __contains__(self, item: Any) -> bool:
        return item[0] % 3 == 2

    def __iter__(self) -> Any:
        raise NotImplementedError

    __len__ = __iter__


@pytest.fixture(autouse=True)
def whole(monkeypatch):
    """Threads of TensorFlow's cannot be configured in a process that has used it already."""
    monkeypatch.setattr(network, "start_tensorflow", lambda: None)


@pytest.fixture
def signals():
    """A run's signals; the handlers are put back."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield StopSignals()
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


class Run(NamedTuple):
    """A training that has ended."""

    status: int
    folder: pathlib.Path

    def rows(self) -> list[dict[str, float]]:
        with (self.folder / "progress.csv").open(newline="") as file:
            return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]

    def log(self) -> str:
        return (self.folder / "log.txt").read_text()

    def info(self, name: str = "checkpoints") -> checkpoint.Info:
        return checkpoint.read_info(checkpoint.find(self.folder / name))

    def weights(self, name: str = "checkpoints") -> dict[str, np.ndarray]:
        """Weights and statistics of a checkpoint."""
        reader = tf.train.load_checkpoint(str(checkpoint.find(self.folder / name)))
        suffix = "/.ATTRIBUTES/VARIABLE_VALUE"
        names = [name for name in reader.get_variable_to_shape_map() if name.endswith(suffix)]
        return {
            name.removesuffix(suffix): reader.get_tensor(name)
            for name in sorted(names)
            if name.startswith(("weights/", "mean_squares/"))
        }


def train(
    folder: pathlib.Path,
    signals: StopSignals,
    *envs: Envs,
    more: tuple[str, ...] = (),
    restore_from: checkpoint.Info | None = None,
) -> Run:
    (folder / "checkpoints").mkdir(parents=True)
    parsed = params.parse([*ARGUMENTS, "--n_workers", str(len(envs)), *more, SUBJECT.env_id])
    status = training.train(parsed.params, SUBJECT, envs, folder, signals, restore_from)
    assert not worker_threads()
    return Run(status, folder)


def worker_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("worker-")]


def test_a_run_counts_logs_and_saves(tmp_path, signals, capsys):
    """Analytic: two workers, two environments each, three updates of 8 steps apiece and no more."""
    first = Envs(2)
    # Worker 0 makes at least one update, for only its own are measured.
    envs = [first, Envs(2, on_step=lambda n: wait_until(lambda: first.n_steps > 0))]
    run = train(tmp_path / "run", signals, *envs, more=("--n_steps", "48", "--detailed_logs"))
    assert run.status == 0
    assert signals.event.is_set()
    (row,) = run.rows()
    n_games = 2 * sum(each.n_steps // 3 for each in envs)
    assert row["misc/steps"] == 48 == 2 * sum(each.n_steps for each in envs)
    assert row["misc/updates"] == 6
    assert row["rl/episodes"] == n_games
    assert row["misc/frames"] == sum(each.n_frames for each in envs)
    assert row["misc/lr"] == 1e-4
    assert row["rl/episode_length_mean_100"] == 3
    assert 0 <= row["misc/policy_lag_mean"] <= row["misc/policy_lag_max"] <= 5
    assert row["misc/steps_per_second"] > 0
    assert math.isfinite(row["rl/policy_entropy"])

    frames = int(row["misc/frames"])
    assert run.info().counters == Counts(48, 6, n_games, frames)._asdict()
    assert run.info().subject == SUBJECT
    assert run.info().params["initial_lr"] == 1e-4
    assert run.info("checkpoints/ckpt-0").counters == Counts()._asdict()
    assert {path.name for path in (run.folder / "checkpoints").glob("*.json")} == (
        {"ckpt-0.json", "ckpt-48.json"}
    )
    out, err = capsys.readouterr()
    assert err == ""
    assert out == run.log()
    assert out.splitlines()[2:] == [
        f"checkpoint before the first update: {run.folder}/checkpoints/ckpt-0",
        f"48 steps  {row['misc/steps_per_second']:.0f} steps/s  {n_games} games  "
        f"last 100: {row['rl/episode_reward_mean_100']:.2f}",
        f"saved {run.folder}/checkpoints/ckpt-48",
        f"finished at 48 steps, 6 updates, {n_games} games",
    ]
    check_histograms(run)


def check_histograms(run: Run) -> None:
    """With --detailed_logs there is one of each kind for each layer."""
    events = EventAccumulator(str(run.folder), size_guidance={"tensors": 0}).Reload()
    tags = set(events.Tags()["tensors"]) - set(logs.FIGURES)
    layers = [f"{head}{layer}" for head in ("policy", "value") for layer in ("_dense1", "_dense2")]
    weights = [f"{layer}_{w}" for layer in (*layers, "policy", "value") for w in ("kernel", "bias")]
    assert tags == {
        *(f"{part}/{name}" for part in ("weights", "gradients", "rmsprop") for name in weights),
        *(f"activations/{layer}" for layer in layers),
        *("rl/episode_reward_sum", "rl/episode_length_steps"),
    }
    for tag in tags - {"rl/episode_reward_sum", "rl/episode_length_steps"}:
        assert [event.step for event in events.Tensors(tag)] == [48], tag


def test_rows_and_checkpoints_come_while_the_run_goes_on(tmp_path, signals, monkeypatch):
    """Analytic: each waits for its interval, here a moment; the run waits for two of each."""
    monkeypatch.setattr(training, "BAR_INTERVAL_SECONDS", 0.001)
    folder = tmp_path / "run"

    def wait_for_rows_and_checkpoints(n: int) -> None:
        if n == 30:
            # A header and two rows; of step 0, and one more.
            wait_until(lambda: (folder / "progress.csv").read_text().count("\n") >= 3)
            wait_until(lambda: len(list((folder / "checkpoints").glob("ckpt-*.json"))) >= 2)

    intervals = ("--ckpt_interval_seconds", "0.01", "--manager_wake_interval_seconds", "0.01")
    run = train(folder, signals, Envs(on_step=wait_for_rows_and_checkpoints), more=intervals)
    assert run.status == 0
    steps = [row["misc/steps"] for row in run.rows()]
    assert steps == sorted(steps)
    assert len(steps) >= 3
    assert steps[-1] == 40
    assert run.info().counters["steps"] == 40


@pytest.mark.parametrize("how", ["term", "failure"])
def test_a_run_that_is_cut_short_saves(tmp_path, signals, capsys, how):
    """Analytic: asked to stop, or one worker broken, everybody stops and all is kept.

    At the 17th step 4 updates of 4 steps are done; the rollout under way is given up.
    """
    other_plays, other_may_stop = threading.Event(), threading.Event()

    def cut_short(n: int) -> None:
        if n == 16:
            wait_until(other_plays.is_set)
        if n == 16 and how == "term":
            os.kill(os.getpid(), signal.SIGTERM)
            wait_until(signals.event.is_set)
        elif n == 16:
            raise RuntimeError("the joystick broke")

    def wait_to_be_stopped(n: int) -> None:
        other_plays.set()
        wait_until(signals.event.is_set)
        other_may_stop.set()

    envs = [Envs(on_step=cut_short), Envs(on_step=wait_to_be_stopped)]
    run = train(tmp_path / "run", signals, *envs, more=("--n_steps", "1000"))
    assert run.status == {"term": 143, "failure": 1}[how]
    assert other_may_stop.is_set()
    # The last row, the checkpoint and the words agree on where it ended.
    assert run.rows()[-1]["misc/steps"] == run.info().counters["steps"] == 16
    out, err = capsys.readouterr()
    assert f"saved {run.folder}/checkpoints/ckpt-16\n" in out
    if how == "term":
        assert out.endswith("stopped at 16 steps, 4 updates, 5 games\n")
        assert err == ""
    else:
        assert err == (
            "worker 0 failed at 16 steps: RuntimeError: the joystick broke;"
            f" see {run.folder}/failure/traceback.txt,"
            f" and numpy.load('{run.folder}/failure/rollout.npz')\n"
        )
        assert err in run.log()
        assert "finished" not in run.log()


def test_a_run_that_is_stopped_before_it_began_saves(tmp_path, signals, capsys):
    """Analytic: a signal during the import of TensorFlow ends it in order, before tracing."""
    os.kill(os.getpid(), signal.SIGTERM)
    wait_until(signals.event.is_set)
    run = train(tmp_path / "run", signals, Envs())
    assert run.status == 143
    assert run.info().counters == Counts()._asdict()
    assert [row["misc/steps"] for row in run.rows()] == [0]
    out, err = capsys.readouterr()
    assert out.endswith("stopped at 0 steps, 0 updates, 0 games\n")
    assert err == ""


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_folder_that_is_lost_on_the_way_is_told(tmp_path, signals, capsys, how):
    """Analytic: training goes on to its end, whose status is 1; the folder is not made anew."""
    folder = tmp_path / "run"

    def lose_it(n: int) -> None:
        if n == 10:
            shutil.rmtree(folder if how == "removed" else folder / "checkpoints")
        if n == 10 and how == "replaced":
            (folder / "checkpoints").touch()

    run = train(folder, signals, Envs(on_step=lose_it))
    assert run.status == 1
    out, err = capsys.readouterr()
    assert re.fullmatch(
        rf"cannot save {folder}/checkpoints/ckpt-40: .*(directory|exist).*; what was saved before"
        r" is intact\n",
        err,
    )
    assert "finished at 40 steps" in out
    assert "saved" not in out
    assert folder.exists() == (how == "replaced")


def test_a_stop_while_environments_are_built_saves(tmp_path, signals, capsys):
    """Analytic: the wait for them ends with Stopped, and the run in order."""
    envs = Envs()

    def stop() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(signals.event.is_set)
        raise Stopped

    envs.wait_until_ready = stop
    envs.reset = lambda slot: stop()
    run = train(tmp_path / "run", signals, envs)
    assert run.status == 143
    assert run.info().counters == Counts()._asdict()
    out, err = capsys.readouterr()
    assert out.endswith("stopped at 0 steps, 0 updates, 0 games\n")
    assert err == ""


def test_an_error_of_the_watch_itself_stops_the_workers(tmp_path, signals, monkeypatch):
    """Analytic: a full disk, say, shows as what it is, and no thread trains on."""

    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(logs.RunLog, "move_bar", fail)
    monkeypatch.setattr(training, "BAR_INTERVAL_SECONDS", 0.001)
    envs = Envs(on_step=lambda n: wait_until(signals.event.is_set) if n == 10 else None)
    with pytest.raises(OSError, match="no space"):
        train(tmp_path / "run", signals, envs)
    assert not worker_threads()


def test_a_restored_run_goes_on(tmp_path, signals, capsys):
    """Golden: with what was saved, counters included; it says where its settings differ."""
    first = train(tmp_path / "first", signals, Envs())
    signals.event = stopping.StopFlag()
    capsys.readouterr()
    settings = ("--n_steps", "60", "--initial_lr", "3e-3", "--seed", "5")
    run = train(tmp_path / "run", signals, Envs(), more=settings, restore_from=first.info())
    assert run.status == 0
    assert [row["misc/steps"] for row in run.rows()] == [60]
    before, after = Counts(**first.info().counters), Counts(**run.info().counters)
    # 20 more steps from the first one of a game: 6 games end, and 5 updates are made.
    assert after[:3] == (before.steps + 20, before.updates + 5, before.games + 6)
    assert after.frames > before.frames
    # The seed does not matter where weights are restored.
    restored = run.weights("checkpoints/ckpt-40")
    assert len(restored) == 24
    for name, array in first.weights().items():
        np.testing.assert_array_equal(restored[name], array, err_msg=name)
    out = capsys.readouterr().out
    assert out.startswith(
        f"restored {first.folder}/checkpoints/ckpt-40 at 40 steps\n"
        "  n_steps: 40 there, 60 here\n"
        "  seed: 0 there, 5 here\n"
        "  initial_lr: 0.0001 there, 0.003 here\n"
    )
    assert "weights only" not in out


def test_statistics_start_anew_where_there_are_none(tmp_path, signals, capsys):
    """Golden: of a file with weights only, and a line says so."""
    first = train(tmp_path / "first", signals, Envs())
    signals.event = stopping.StopFlag()
    weights_only = first.info()._replace(has_statistics=False)
    run = train(
        tmp_path / "run", signals, Envs(), more=("--n_steps", "44"), restore_from=weights_only
    )
    assert "it holds weights only: RMSProp's statistics start anew\n" in capsys.readouterr().out
    restored, saved = run.weights("checkpoints/ckpt-40"), first.weights()
    for name, array in restored.items():
        expected = np.ones_like(array) if name.startswith("mean_squares") else saved[name]
        np.testing.assert_array_equal(array, expected, err_msg=name)
    assert not np.array_equal(saved["mean_squares/value_bias"], [1.0])


def test_an_evaluation_does_not_change_the_training_by_a_bit(
    tmp_path, signals, monkeypatch, capsys
):
    """Golden: a run that is evaluated in its middle, while it waits and while it works.

    At step 20 training waits for the evaluation to begin; the evaluation, for training's end.
    """
    monkeypatch.setattr(training, "BAR_INTERVAL_SECONDS", 0.001)
    has_begun = threading.Event()
    evaluated, plain = Envs(), Envs()

    def play(policy: Any, settings: Any, number: int, stop: Any) -> evaluation.Game:
        has_begun.set()
        generator = np.random.default_rng(number)
        n_decisions = 0
        while not stop.is_set() and (evaluated.n_steps < 40 or n_decisions < 50):
            policy.decide(generator.standard_normal(3).astype(np.float32), generator)
            n_decisions += 1
        return evaluation.Game(number, float(number), 10, False)

    evaluated._on_step = lambda n: wait_until(has_begun.is_set) if n == 20 else None
    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "play", play)
        more = ("--eval_interval_steps", "4", "--eval_episodes", "3")
        run = train(tmp_path / "evaluated", signals, evaluated, more=more)
    signals.event = stopping.StopFlag()
    out = capsys.readouterr().out
    assert train(tmp_path / "plain", signals, plain).status == run.status == 0
    expected = Run(0, tmp_path / "plain").weights()
    for name, array in run.weights().items():
        assert array.tobytes() == expected[name].tobytes(), name
    assert run.info().counters == Run(0, tmp_path / "plain").info().counters

    with (run.folder / "evaluations.csv").open(newline="") as file:
        first, last = ({k: float(v) for k, v in row.items()} for row in csv.DictReader(file))
    assert 4 <= first["steps"] <= 20
    assert last["steps"] == 40
    for row in (first, last):
        assert (row["episode_reward_mean"], row["episode_reward_max"]) == (1.0, 2.0)
    best = f"{run.folder}/checkpoints/best/ckpt-{first['steps']:.0f}"
    words = "steps: mean score 1.00, 0 to 2"
    assert f"evaluation at {first['steps']:.0f} {words}, the best so far: {best}\n" in out
    assert f"evaluation at 40 {words}\nfinished at 40 steps" in out
    events = EventAccumulator(str(run.folder), size_guidance={"tensors": 0}).Reload()
    for name in set(first) - {"steps"}:
        shown = {e.step: tf.make_ndarray(e.tensor_proto) for e in events.Tensors(f"eval/{name}")}
        assert shown == {int(row["steps"]): np.float32(row[name]) for row in (first, last)}, name


def test_an_evaluation_that_fails_stops_nothing(tmp_path, signals, monkeypatch, capsys):
    """Analytic: its traceback is told, and the run goes on to its end."""

    def play(*_: object) -> None:
        raise RuntimeError("the joystick broke")

    monkeypatch.setattr(evaluation, "play", play)
    run = train(tmp_path / "run", signals, Envs(), more=("--eval_interval_steps", "40"))
    assert run.status == 0
    assert run.info().counters["steps"] == 40
    err = capsys.readouterr().err
    assert err.startswith("the evaluation at 40 steps failed:\nTraceback")
    assert err.endswith("RuntimeError: the joystick broke\n")
    assert not (run.folder / "evaluations.csv").exists()


class FakeLog:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self.games: list[tuple] = []
        self.said: list[tuple[str, bool]] = []
        self.at: list[int] = []

    def figures(self, figures: dict[str, float]) -> None:
        self.rows.append(dict(figures))

    def game(self, *game: float) -> None:
        self.games.append(game)

    def say(self, line: str, *, error: bool = False) -> None:
        self.said.append((line, error))

    def histograms(self, n_steps: int, arrays: dict[str, np.ndarray]) -> None:
        self.at.append(n_steps)

    def evaluation(self, n_steps: int, figures: dict[str, float]) -> None:
        self.at.append(n_steps)


class Watched(NamedTuple):
    """The main thread's watch, with what it sees and what it says in our hands."""

    watch: Any
    log: FakeLog
    counters: Counters
    put: Callable[[Report], None]
    clock: list[float]

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


@pytest.fixture
def watched(signals, monkeypatch):
    """A watch over nothing; its clock stands still at 100 s until told otherwise."""
    clock = [100.0]
    monkeypatch.setattr(training, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))
    schedule = ["--lr_schedule", "linear", "--lr_decay_to_zero_by_n_steps", "400"]
    more = ["--initial_lr", "0.5", "--n_steps", "400", "--detailed_logs"]
    parsed = params.parse([*schedule, *more, "Numbered-v0"])
    counters = Counters(400, Counts(steps=100, updates=20, games=4, frames=400))
    weights = {"w": np.zeros((2, 3), np.float32)}
    constants = {"rmsprop_decay": 0.99, "rmsprop_epsilon": 0.1, "max_grad_norm": 1.0}
    shared = SharedState(weights, rmsprop_initial=1.0, counters=counters, **constants)
    reports = training.Reports()
    log = FakeLog()
    worker = types.SimpleNamespace(episode_value_mean=9.0)
    folder = pathlib.Path("nowhere")
    watch = training._Watch(
        parsed.params, folder, shared, [worker], None, log, signals, reports, []
    )
    return Watched(watch, log, counters, reports.put, clock)


def test_figures_are_means_over_the_interval(watched):
    """Analytic: of the finite values since the last row; of episode values, the latest alone."""
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
    watched.take(
        measurement(rl__policy_entropy=0.25, rl__explained_variance=math.nan),
    )
    row = watched.row()
    assert row["rl/policy_entropy"] == 0.25
    assert math.isnan(row["rl/explained_variance"])


def test_an_interval_in_which_nothing_happened(watched):
    """Analytic: counters stand, no step a second, and what was not measured is not known."""
    row = watched.row()
    known = {
        "misc/steps": 100,
        "misc/frames": 400,
        "misc/updates": 20,
        "misc/steps_per_second": 0,
        "misc/lr": 0.375,  # a quarter of the way down
        "misc/env_restarts": 0,
        "rl/episodes": 4,
        "rl/episode_value_mean": 9.0,  # of the latest episode, whenever that ended
    }
    assert {name: value for name, value in row.items() if not math.isnan(value)} == known
    assert watched.log.at == []  # no measurement, no histograms


def test_steps_a_second_are_those_of_the_interval(watched):
    """Analytic: restored steps are not counted, nor are those of earlier intervals."""
    for n_steps, seconds, expected in ((30, 10, 3.0), (40, 80, 0.5), (0, 1, 0.0)):
        watched.counters.add_update(n_steps, 4 * n_steps, 20)
        assert watched.row(seconds)["misc/steps_per_second"] == expected


def test_policy_lag_is_of_the_interval(watched):
    """Analytic: copies made 0, 2 and 4 updates before; then none."""
    for n_updates_before in (0, 2, 4):
        n_updates = watched.counters.read().updates
        watched.counters.add_update(1, 1, n_updates - n_updates_before)
    row = watched.row()
    assert (row["misc/policy_lag_mean"], row["misc/policy_lag_max"]) == (2.0, 4.0)
    assert math.isnan(watched.row()["misc/policy_lag_max"])


def test_games_are_averaged_over_the_last_hundred(watched):
    """Analytic: of 130 games the first 30 do not count, however many intervals ago they were."""
    for first in (0, 65):
        watched.take(*(Game(n, score=float(n), length=3 * n) for n in range(first, first + 65)))
        row = watched.row()
    assert row["rl/episode_reward_mean_100"] == np.mean(range(30, 130))
    assert row["rl/episode_length_mean_100"] == 3 * np.mean(range(30, 130))
    assert watched.log.games == [(n, float(n), 3 * n) for n in range(130)]
    assert resume.GAMES_IN_MEAN == 100


def test_restarts_are_counted_and_told(watched):
    """Analytic: all since the run began, and one line for each, with the reason; no score comes of them."""
    assert watched.row()["misc/env_restarts"] == 0
    watched.take(EnvRestart("worker 3, environment 0 died (exit code -9)"), EnvRestart("it hangs"))
    assert watched.row()["misc/env_restarts"] == 2
    watched.take(EnvRestart("worker 1, environment 0 failed:\nTraceback\nRuntimeError: so\n"))
    row = watched.row()
    assert row["misc/env_restarts"] == 3
    assert math.isnan(row["rl/episode_reward_mean_100"])
    told = "what was under way there is abandoned, and not counted; a new process takes its place: "
    assert watched.log.said == [
        (f"{told}worker 3, environment 0 died (exit code -9)", False),
        (f"{told}it hangs", False),
        (f"{told}worker 1, environment 0 failed:\nTraceback\nRuntimeError: so", False),
    ]


def test_each_save_forgets_bests_that_nobody_can_go_back_to(watched, tmp_path):
    """Analytic: it tells the oldest checkpoint that is left; where saving fails, nothing."""
    forgotten: list[int] = []

    def save(_: object) -> pathlib.Path:
        if forgotten:
            raise checkpoint.CannotSave("no room")
        for n_steps in (70, 90):
            (tmp_path / f"ckpt-{n_steps}.json").touch()
        return tmp_path / "ckpt-90"

    watched.watch._checkpointer = types.SimpleNamespace(save=save)
    watched.watch._evaluator = types.SimpleNamespace(forget=forgotten.append)
    assert watched.watch._save() == tmp_path / "ckpt-90"
    assert watched.watch._save() is None
    assert forgotten == [70]


def test_a_best_that_cannot_be_saved_is_told_in_a_line(watched):
    """Analytic: as an error, after the figures."""
    names = ("episode_reward_mean", "episode_reward_min", "episode_reward_max")
    watched.take(Evaluated(50, dict.fromkeys(names, 1.0), None, "cannot save x: no room"))
    assert watched.log.said == [
        ("evaluation at 50 steps: mean score 1.00, 1 to 1", False),
        ("it is the best so far, but cannot save x: no room", True),
    ]


def test_the_first_failure_is_the_one_that_is_told(watched):
    """Analytic: what it broke in others is not the cause."""
    watched.take(
        *(Failure(n, RuntimeError(f"{n}"), f"Traceback\nRuntimeError: {n}\n") for n in (2, 0, 1))
    )
    assert watched.watch._conclude() == 1
    assert watched.watch._failure.worker == 2


def test_a_failure_outranks_the_signal_that_came_with_it(watched, signals):
    """Analytic: a run that broke while it was being stopped did break."""
    signal.raise_signal(signal.SIGTERM)
    assert signals.event.is_set()
    assert watched.watch._conclude() == 143
    watched.take(Failure(0, RuntimeError(), "Traceback\n"))
    assert watched.watch._conclude() == 1


def test_a_flood_of_reports_does_not_hold_up_the_watch(watched):
    """Analytic: handling ends with its time, and the rest is taken next time."""
    clock, log = watched.clock, watched.log

    def slow_game(*_: object) -> None:
        clock[0] += 1.0

    log.game = slow_game
    for _ in range(100):
        watched.put(Game(100, 1.0, 5))
    before = clock[0]
    watched.watch._take_reports(10.0)
    assert clock[0] - before == 10.0
    watched.watch._take_reports(math.inf)
    assert clock[0] - before == 100.0


def test_a_signal_in_the_last_moment_of_a_wait_does_not_make_it_last(watched, monkeypatch):
    """Analytic: a handler that ends after the time is over ends the wait, not begins another."""
    monkeypatch.setattr(training, "time", time)
    before = signal.signal(signal.SIGALRM, lambda *_: time.sleep(0.2))
    rescue = threading.Timer(10.0, watched.put, [Game(100, 1.0, 5)])
    try:
        rescue.start()
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        start = time.monotonic()
        watched.watch._take_reports(0.2)
        assert 0.2 <= time.monotonic() - start < 5.0
    finally:
        rescue.cancel()
        signal.signal(signal.SIGALRM, before)


# Prints of two blocks, the second after all that is free was given back, whether huge pages are
# asked for where they lie.
WHERE = """
import ctypes, pathlib, re
from a3c import training
training._keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
for _ in range(2):
    middle = libc.malloc(ctypes.c_size_t(2**25)) + 2**24
    for area in re.split("\\n(?=[0-9a-f]+-)", pathlib.Path("/proc/self/smaps").read_text()):
        start, end = (int(x, 16) for x in area.split()[0].split("-"))
        if start <= middle < end:
            print(" hg " in re.search("VmFlags:.*", area)[0] + " ")
    libc.malloc_trim(0)
"""


def test_large_blocks_are_kept_on_huge_pages(tmp_path):
    """Analytic: as the system tells of the addresses."""
    process = processes.start(["-c", WHERE], tmp_path)
    assert process.wait(processes.DEADLINE_SECONDS) == 0, processes.outputs(tmp_path)
    can = str(pathlib.Path("/sys/kernel/mm/transparent_hugepage").exists())
    assert processes.outputs(tmp_path)["stdout"].split() == [can, can]
