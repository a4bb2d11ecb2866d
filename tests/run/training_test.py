"""Training as a whole, on environments with known answers: what is logged, saved, said and returned."""

import dataclasses
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
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

from a3c.contract import Counts, Position, Subject, WorkerPosition
from a3c.machine import seeding, stopping, tensorflow_process
from a3c.machine.stopping import Stopped, StopSignals
from a3c.play import evaluation
from a3c.run import training, watch
from a3c.settings import command_line
from a3c.settings.params import Params
from a3c.store import checkpoint, resume, run_folder
from a3c.store.resume import Start
from tests.tools.agents import make_folder
from tests.tools.fakes import NumberedEnvs
from tests.tools.processes import wait_until
from tests.tools.run_files import RunFiles

SUBJECT = Subject("Numbered-v0", "generic", "mlp", (3,), 2)
PARAMS = Params(SUBJECT.env_id, network="mlp", no_xla=True, steps_per_update=4, n_steps=40)


class Envs(NumberedEnvs):
    """One worker's environments, whose games end after every third step."""

    def __init__(self, n_envs: int = 1, on_step: Callable[[int], None] = lambda n: None) -> None:
        ends = {(step, env) for step in range(2, 999, 3) for env in range(n_envs)}
        n_slots = PARAMS.steps_per_update + 1
        super().__init__(n_slots, n_envs, on_step=on_step, terminations=ends)
        self.is_ready = False

    def wait_until_ready(self) -> None:
        self.is_ready = True

    def reset(self, slot: int) -> None:
        assert self.is_ready
        super().reset(slot)


@pytest.fixture(autouse=True)
def whole(monkeypatch):
    """Threads of TensorFlow's cannot be configured in a process that has used it already."""
    monkeypatch.setattr(tensorflow_process, "start_tensorflow", lambda: None)
    monkeypatch.setattr(
        watch, "FIRST_ROW_SECONDS", 60.0
    )  # on a busy machine, 2 s pass in the middle


class Run(RunFiles):
    """A training that has ended."""

    def __init__(self, status: int, path: pathlib.Path) -> None:
        super().__init__(path)
        self.status = status


def train(
    path: pathlib.Path, signals: StopSignals, *pools: Envs, start: Start | None = None, **more: Any
) -> Run:
    params = dataclasses.replace(PARAMS, n_workers=len(pools), **more)
    folder = make_folder(path)
    start = start or Start(t_start=time.time())
    status = training.train(params, SUBJECT, pools, folder, start, signals)
    folder.close()
    assert not worker_threads()
    return Run(status, path)


def worker_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("worker-")]


def assert_same(one: Any, other: Any) -> None:
    """Weights, or statistics: bit for bit."""
    assert set(one) == set(other)
    assert len(one) == 12
    for name, array in one.items():
        assert array.tobytes() == other[name].tobytes(), name


def test_each_worker_draws_actions_from_its_own_stream(tmp_path, signals):
    """Golden: before the first update, each generator is as `seeding` gives it for that worker."""
    run = train(tmp_path / "run", signals, Envs(), Envs(), Envs(), seed=5)
    states = [worker.generator for worker in run.saved(0).position.workers]
    expected = [
        seeding.generator(5, seeding.Purpose.ACTIONS, worker=number).bit_generator.state
        for number in range(3)
    ]
    assert states == expected
    assert len({str(state) for state in states}) == 3


def test_each_worker_of_a_resumed_run_goes_on_with_its_own_draws():
    """Analytic: with the state that was saved of it."""
    states = [np.random.default_rng(number).bit_generator.state for number in range(3)]
    saved = Position([WorkerPosition(state, [0]) for state in states], {}, 0, 0)
    run = types.SimpleNamespace(
        params=PARAMS, start=types.SimpleNamespace(position=saved, counts=Counts(40, 10))
    )
    for number, state in enumerate(states):
        assert training._generator_of(run, number).bit_generator.state == state


def test_a_run_counts_logs_and_saves(tmp_path, signals, capsys):
    """Analytic: two workers with two environments each make six updates of 8 steps, and no more."""
    first = Envs(2)
    # Worker 0 must make at least one update, because only its updates are measured.
    envs = [first, Envs(2, on_step=lambda n: wait_until(lambda: first.n_steps > 0))]
    run = train(tmp_path / "run", signals, *envs, n_steps=48, detailed_logs=True)
    assert run.status == 0
    assert signals.stop.is_set()
    (row,) = run.rows()
    n_games = 2 * sum(each.n_steps // 3 for each in envs)
    assert row["misc/steps"] == 48 == 2 * sum(each.n_steps for each in envs)
    assert row["misc/updates"] == 6
    assert row["rl/episodes"] == n_games
    assert row["misc/frames"] == sum(each.n_frames for each in envs)
    assert row["misc/lr"] == PARAMS.initial_lr
    assert row["rl/episode_length_mean_100"] == 3
    assert 0 <= row["misc/policy_lag_mean"] <= row["misc/policy_lag_max"] <= 5
    assert row["misc/steps_per_second"] > 0
    assert math.isfinite(row["rl/policy_entropy"])
    games = run.games()
    assert len(games) == n_games
    assert {game["step"] % 8 for game in games} == {0}
    assert {game["env"] for game in games} == {0, 1}

    saved = run.saved()
    assert saved.snapshot.counts == Counts(48, 6, n_games, int(row["misc/frames"]))
    assert saved.subject == SUBJECT
    assert saved.params["initial_lr"] == PARAMS.initial_lr
    assert run.saved(0).snapshot.counts == Counts()
    assert list(checkpoint.numbered(run.path / "checkpoints")) == [0, 48]
    # A resumed run is cut back to these lengths: all rows, but not the last lines of the log.
    assert saved.position.n_bytes == {
        "monitor.csv": (run.path / "monitor.csv").stat().st_size,
        "progress.csv": (run.path / "progress.csv").stat().st_size,
        "log.txt": run.log().encode().index(b"saved "),
    }
    out, err = capsys.readouterr()
    assert err == ""
    assert out == run.log()
    assert out.splitlines()[2:] == [
        f"checkpoint before the first update: {run.saved(0).path}",
        f"48 steps  {row['misc/steps_per_second']:.0f} steps/s  {n_games} games, "
        f"last {n_games}: {row['rl/episode_reward_mean_100']:.2f}",
        f"saved {saved.path}",
        f"finished at 48 steps, 6 updates, {n_games} games",
    ]
    events = EventAccumulator(str(run.path), size_guidance={"tensors": 0}).Reload()
    for part in ("weights", "gradients", "rmsprop"):
        for name in saved.snapshot.weights:
            assert [event.step for event in events.Tensors(f"{part}/{name}")] == [48]
    assert [event.step for event in events.Tensors("activations/value_dense2")] == [48]


def test_rows_and_checkpoints_come_while_the_run_goes_on(tmp_path, signals, monkeypatch):
    """Analytic: cut to the lengths in a checkpoint, the files hold whole lines of its time alone."""
    monkeypatch.setattr(watch, "BAR_INTERVAL_SECONDS", 0.001)
    path = tmp_path / "run"

    def wait_for_rows_and_checkpoints(n: int) -> None:
        if n % 10 == 9:
            row = f"\n{4 * (n // 4)},"
            wait_until(lambda: row in (path / "progress.csv").read_text())
            wait_until(lambda: max(checkpoint.numbered(path / "checkpoints")) >= 4 * (n // 4))

    envs = Envs(on_step=wait_for_rows_and_checkpoints)
    intervals = {"ckpt_interval_seconds": 0.01, "log_interval_seconds": 0.01}
    run = train(path, signals, envs, keep_ckpts=1000, **intervals)
    assert run.status == 0
    steps = [row["misc/steps"] for row in run.rows()]
    assert steps == sorted(steps)
    assert len(steps) >= 3
    assert steps[-1] == 40
    numbered = checkpoint.numbered(path / "checkpoints")
    assert {0, 8, 16, 28, 36, 40} <= set(numbered)
    for n_steps in numbered:
        saved = run.saved(n_steps)
        parts = {
            name: (path / name).read_bytes()[:n_bytes].decode()
            for name, n_bytes in saved.position.n_bytes.items()
        }
        assert all(text.endswith("\n") for text in parts.values() if text)
        _, _, *games = parts["monitor.csv"].splitlines()
        assert len(games) == saved.snapshot.counts.games == n_steps // 3
        _, *rows = parts["progress.csv"].splitlines()
        assert all(float(row.split(",")[0]) <= n_steps for row in rows)


@pytest.mark.parametrize("how", ["term", "failure"])
def test_a_run_that_is_cut_short_saves(tmp_path, signals, capsys, how):
    """Analytic: at the 17th step, with 4 updates of 4 steps done; the rollout under way is abandoned."""
    other_plays, other_may_stop = threading.Event(), threading.Event()

    def cut_short(n: int) -> None:
        if n == 16:
            wait_until(other_plays.is_set)
        if n == 16 and how == "term":
            os.kill(os.getpid(), signal.SIGTERM)
            wait_until(signals.stop.is_set)
        elif n == 16:
            raise RuntimeError("the joystick broke")

    def wait_to_be_stopped(n: int) -> None:
        other_plays.set()
        wait_until(signals.stop.is_set)
        other_may_stop.set()

    envs = [Envs(on_step=wait_to_be_stopped), Envs(on_step=cut_short)]
    run = train(tmp_path / "run", signals, *envs, n_steps=1000)
    assert run.status == {"term": 143, "failure": 1}[how]
    assert other_may_stop.is_set()
    # The last row, the checkpoint and the words agree on where it ended.
    assert run.rows()[-1]["misc/steps"] == run.saved().n_steps == 16
    out, err = capsys.readouterr()
    assert f"saved {run.saved(16).path}\n" in out
    if how == "term":
        assert out.endswith("stopped at 16 steps, 4 updates, 5 games\n")
        assert err == ""
    else:
        assert err.startswith("worker 1 failed at 16 steps: RuntimeError: the joystick broke;")
        assert err.count("\n") == 1
        assert f"{run.path}/failure/traceback.txt" in err
        assert err in run.log()
        assert "finished" not in run.log()
        assert (run.path / "failure/rollout.npz").exists()


@pytest.mark.parametrize("when", ["importing", "building"])
def test_a_run_that_is_stopped_before_its_first_update_begins_anew(tmp_path, signals, capsys, when):
    """Analytic: a signal while TensorFlow is imported or environments are built ends the run in order.
    There is no checkpoint, and a resumption begins at the run's start.
    """
    envs = Envs()

    def stop() -> None:
        signal.raise_signal(signal.SIGTERM)
        raise Stopped

    if when == "importing":
        signal.raise_signal(signal.SIGTERM)
    else:
        envs.wait_until_ready = stop
    words = ["--log_dir", str(tmp_path / "run"), "--network", "mlp", "--no_xla", SUBJECT.env_id]
    parsed = command_line.parse(words)
    folder = run_folder.create(parsed, words)
    start = Start(t_start=time.time())
    assert training.train(parsed.params, SUBJECT, [envs], folder, start, signals) == 143
    folder.close()
    out, err = capsys.readouterr()
    assert out.endswith("stopped before the first update\n")
    assert err == ""
    assert checkpoint.numbered(folder.checkpoints) == {}
    again = resume.open_run(command_line.Resume(parsed.params.log_dir, {}))
    again.folder.close()
    assert again.checkpoint is None


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_folder_that_is_lost_on_the_way_is_told(tmp_path, signals, capsys, how):
    """Analytic: training continues, but ends with status 1; the folder is not made again."""
    path = tmp_path / "run"

    def lose_it(n: int) -> None:
        if n == 10:
            shutil.rmtree(path if how == "removed" else path / "checkpoints")
        if n == 10 and how == "replaced":
            (path / "checkpoints").touch()

    run = train(path, signals, Envs(on_step=lose_it))
    assert run.status == 1
    out, err = capsys.readouterr()
    assert re.fullmatch(r"cannot save a checkpoint: .*(directory|exist).*\n", err)
    assert "finished at 40 steps" in out
    assert "saved" not in out
    assert path.exists() == (how == "replaced")


def test_a_restored_run_goes_on(tmp_path, signals):
    """Golden: from what was saved, counters included; without saved statistics, these start anew."""
    first = train(tmp_path / "first", signals, Envs()).saved()
    wanted = first.snapshot
    fresh = {name: np.ones_like(array) for name, array in wanted.mean_squares.items()}
    assert not np.array_equal(wanted.mean_squares["value_bias"], fresh["value_bias"])
    for name, mean_squares in (("whole", wanted.mean_squares), ("weights only", {})):
        signals.stop = stopping.StopFlag()
        saved = first._replace(snapshot=wanted._replace(mean_squares=mean_squares))
        start = Start(saved, t_start=time.time())
        # The seed does not matter where weights are restored.
        run = train(tmp_path / name, signals, Envs(), start=start, n_steps=60, seed=5)
        assert run.status == 0
        assert [row["misc/steps"] for row in run.rows()] == [60]
        before, after = wanted.counts, run.saved().snapshot.counts
        # 20 more steps from the first one of a game: 6 games end, and 5 updates are made.
        assert after[:3] == (before.steps + 20, before.updates + 5, before.games + 6)
        assert after.frames > before.frames
        # The first run's draws do not come again.
        generator = seeding.generator(5, seeding.Purpose.ACTIONS, 0, game=before.updates)
        beginning = run.saved(40)
        assert beginning.position.workers[0].generator == generator.bit_generator.state
        restored = beginning.snapshot
        assert_same(restored.weights, wanted.weights)
        assert_same(restored.mean_squares, mean_squares or fresh)


def test_an_evaluation_does_not_change_the_training_by_a_bit(
    tmp_path, signals, monkeypatch, capsys
):
    """Golden: at step 20 training waits for the evaluation to begin, which waits for the end of its worker."""
    monkeypatch.setattr(watch, "BAR_INTERVAL_SECONDS", 0.001)
    has_begun = threading.Event()
    evaluated = Envs(on_step=lambda n: wait_until(has_begun.is_set) if n == 20 else None)

    def play(agent: Any, params: Any, number: int, stop: Any, timeout_seconds: float) -> Any:
        has_begun.set()
        generator = np.random.default_rng(number)
        n_decisions = 0
        while not stop.is_set() and (worker_threads() or n_decisions < 50):
            seen = generator.standard_normal(3).astype(np.float32)
            agent.act(seen, agent.first_state, generator=generator)
            n_decisions += 1
        return evaluation.Played(number, float(number), 10, False)

    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "play", play)
        more = {"eval_interval_steps": 4, "eval_episodes": 3}
        run = train(tmp_path / "evaluated", signals, evaluated, **more)
    signals.stop = stopping.StopFlag()
    out = capsys.readouterr().out
    plain = train(tmp_path / "plain", signals, Envs())
    assert plain.status == run.status == 0
    one, other = run.saved().snapshot, plain.saved().snapshot
    assert_same(one.weights, other.weights)
    assert_same(one.mean_squares, other.mean_squares)
    assert one.counts == other.counts

    first, last = run.rows("evaluations.csv")
    assert 4 <= first["steps"] <= 20
    assert last["steps"] == 40
    for row in (first, last):
        assert (row["episode_reward_mean"], row["episode_reward_max"]) == (1.0, 2.0)
    best = checkpoint.path_of(run.path / "checkpoints/best", int(first["steps"]))
    words = "steps: mean score 1.00, 0 to 2"
    assert f"evaluation at {first['steps']:.0f} {words}, the best so far: {best}\n" in out
    assert f"evaluation at 40 {words}\nfinished at 40 steps" in out
    events = EventAccumulator(str(run.path), size_guidance={"tensors": 0}).Reload()
    for name in set(first) - {"steps"}:
        shown = {e.step: tf.make_ndarray(e.tensor_proto) for e in events.Tensors(f"eval/{name}")}
        assert shown == {int(row["steps"]): np.float32(row[name]) for row in (first, last)}, name


@pytest.mark.parametrize(
    ("load_ckpt", "is_resumed"), [("first", False), ("first", True), (None, True)]
)
def test_a_run_that_begins_with_anothers_weights_does_not_evaluate_them(
    tmp_path, signals, monkeypatch, load_ckpt, is_resumed
):
    """Analytic: unlike one that was killed before the evaluation that was due."""
    monkeypatch.setattr(evaluation, "play", lambda *_: evaluation.Played(0, 1.0, 10, False))
    first = train(tmp_path / "first", signals, Envs()).saved()
    signals.stop = stopping.StopFlag()
    start = Start(first, is_resumed=is_resumed, t_start=time.time())
    more = {"eval_interval_steps": 40, "eval_episodes": 1, "n_steps": 60, "load_ckpt": load_ckpt}
    run = train(tmp_path / "second", signals, Envs(), start=start, **more)
    assert run.status == 0
    assert (run.path / "evaluations.csv").exists() == (load_ckpt is None)


def test_an_evaluation_that_fails_stops_nothing(tmp_path, signals, monkeypatch, capsys):
    """Analytic: its traceback is printed, and the run continues to its end."""

    def play(*_: object) -> None:
        raise RuntimeError("the joystick broke")

    monkeypatch.setattr(evaluation, "play", play)
    run = train(tmp_path / "run", signals, Envs(), eval_interval_steps=40)
    assert run.status == 0
    assert run.saved().n_steps == 40
    err = capsys.readouterr().err
    assert err.startswith("the evaluation at 40 steps failed:\nTraceback")
    assert err.endswith("RuntimeError: the joystick broke\n")
    assert not (run.path / "evaluations.csv").exists()
