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
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from a3c.agent import network
from a3c.agent.shared import Counts
from a3c.machine import seeding, stopping
from a3c.machine.stopping import Stopped, StopSignals
from a3c.play import evaluation
from a3c.run import training, watch
from a3c.settings import command_line
from a3c.store import checkpoint_files, logs
from a3c.store.checkpoint_files import Subject
from tests.tools import processes
from tests.tools.fakes import NumberedEnvs
from tests.tools.processes import wait_until

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
    with processes.handlers_kept():
        yield StopSignals()


class Run(NamedTuple):
    """A training that has ended."""

    status: int
    folder: pathlib.Path

    def rows(self) -> list[dict[str, float]]:
        with (self.folder / "progress.csv").open(newline="") as file:
            return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]

    def log(self) -> str:
        return (self.folder / "log.txt").read_text()

    def info(self, name: str = "checkpoints") -> checkpoint_files.Info:
        return checkpoint_files.read_info(checkpoint_files.find(self.folder / name))

    def weights(self, name: str = "checkpoints") -> dict[str, np.ndarray]:
        """Weights and statistics of a checkpoint."""
        reader = tf.train.load_checkpoint(str(checkpoint_files.find(self.folder / name)))
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
    restore_from: checkpoint_files.Info | None = None,
) -> Run:
    (folder / "checkpoints").mkdir(parents=True)
    parsed = command_line.parse([*ARGUMENTS, "--n_workers", str(len(envs)), *more, SUBJECT.env_id])
    status = training.train(parsed.params, SUBJECT, envs, folder, signals, restore_from)
    assert not worker_threads()
    return Run(status, folder)


def worker_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("worker-")]


def test_each_worker_draws_actions_from_its_own_stream(tmp_path, signals):
    """Golden: before the first update, each generator is as `seeding` gives it for that worker."""
    run = train(tmp_path / "run", signals, Envs(), Envs(), Envs(), more=("--seed", "5"))
    info = checkpoint_files.read_info(run.folder / "checkpoints" / "ckpt-0")
    states = [worker.generator for worker in info.position.workers]
    expected = [
        seeding.generator(5, seeding.Purpose.ACTIONS, worker=number).bit_generator.state
        for number in range(3)
    ]
    assert states == expected
    assert len({str(state) for state in states}) == 3


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
    monkeypatch.setattr(watch, "BAR_INTERVAL_SECONDS", 0.001)
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
        r" is left as it is\n",
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
    assert [worker.n_rows for worker in run.info().position.workers] == [[0]]
    out, err = capsys.readouterr()
    assert out.endswith("stopped at 0 steps, 0 updates, 0 games\n")
    assert err == ""


def test_an_error_of_the_watch_itself_stops_the_workers(tmp_path, signals, monkeypatch):
    """Analytic: a full disk, say, shows as what it is, and no thread trains on."""

    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(logs.RunLog, "move_bar", fail)
    monkeypatch.setattr(watch, "BAR_INTERVAL_SECONDS", 0.001)
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
    monkeypatch.setattr(watch, "BAR_INTERVAL_SECONDS", 0.001)
    has_begun = threading.Event()
    evaluated, plain = Envs(), Envs()

    def play(
        policy: Any, settings: Any, number: int, stop: Any, timeout_seconds: float
    ) -> evaluation.Game:
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


# Prints of two blocks, the second after all that is free was given back, whether huge pages are
# asked for where they lie.
WHERE = """
import ctypes, pathlib, re
from a3c.run import training
training.keep_freed_memory()
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


def test_a_checkpoint_in_its_own_folder_is_a_runs_own(tmp_path):
    """Analytic: so one that is resumed does not save what it has just read; another's it does."""
    for prefix, is_own in (("run/checkpoints/ckpt-4", True), ("other/checkpoints/ckpt-4", False)):
        info = types.SimpleNamespace(prefix=tmp_path / prefix)
        assert training._is_own(info, tmp_path / "run") == is_own
    assert not training._is_own(None, tmp_path / "run")
