"""Sweeps with real Ray and real trainings; `make cluster-test` runs them."""

import contextlib
import csv
import json
import os
import pathlib
import signal
import types

import pytest

from a3c.machine import cluster
from a3c.machine.stopping import StopFlag
from a3c.machine.words import BadInput
from a3c.sweep import folder as folders
from a3c.sweep import plan as plans
from a3c.sweep import tuner
from a3c.sweep.board import Board
from tests.tools import processes

pytestmark = pytest.mark.cluster

SWEEP, TRAIN = processes.ROOT / "sweep.py", processes.ROOT / "train.py"
ONE_WORKER = [
    *("--preset", "cartpole", "--n_workers", "1", "--no_xla"),
    *("--log_interval_seconds", "0.5", "--ckpt_interval_seconds", "1"),
]


@pytest.fixture
def sweep(tmp_path, tmpdir_for_ray):
    """Starts sweep.py; at the end, it and all trials in the test's folder are killed.

    It and Ray use two cores, so that no more than two trials run at once; TMPDIR has their cores' locks.
    """
    started, usable = [], os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(usable)[:2])

    def start(*words):
        with processes.dispositions():
            started.append(processes.start([SWEEP, *words], tmp_path))
        return started[-1]

    yield start
    for process in started:
        processes.end(process)
    for pid in trainings(tmp_path):
        processes.kill(pid)
    os.sched_setaffinity(0, usable)


def commands(folder: pathlib.Path) -> dict[int, list[str]]:
    """The words of each train.py that runs in the folder, and of its shell, by process."""
    found = {}
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")
            is_training = any(word.endswith("/train.py") for word in words)
            cwd = os.readlink(path / "cwd")  # where its run folder is named from
            if is_training and any(f"{cwd}/{word}".startswith(str(folder)) for word in words):
                found[int(path.name)] = words
    return found


def trainings(folder: pathlib.Path) -> list[int]:
    """Those processes, and all that they have started."""
    sessions = set()
    for pid in commands(folder):
        with contextlib.suppress(OSError):
            sessions.add(processes.state_parent_and_session(pid)[2])
    return [pid for session in sessions for pid in processes.members(session)]


def table(folder: pathlib.Path) -> list[dict[str, str]]:
    with (folder / "trials.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def steps_of(folder: pathlib.Path) -> int:
    """The steps in the last whole row of a run's progress.csv."""
    path = folder / "progress.csv"
    lines = path.read_text().split("\n")[1:-1] if path.exists() else []
    return int(lines[-1].split(",")[0]) if lines else 0


def games(folder: pathlib.Path) -> list[list[str]]:
    """Score, length and step of each game."""
    rows = [line.split(",") for line in (folder / "monitor.csv").read_text().splitlines()[2:]]
    return [[row[0], row[1], row[3]] for row in rows]


def test_six_trials_that_are_killed_stopped_and_resumed(tmp_path, sweep):
    """Analytic: they lose nothing, and one equals the run that was started by hand."""
    folder = tmp_path / "sweep"
    (tmp_path / "six.toml").write_text(
        'envs = ["CartPole-v1"]\nseeds = 3\n[search]\ninitial_lr = [1e-3, 1e-4]\n'
    )
    flags = [*ONE_WORKER, "--n_steps", "20000"]
    process = sweep(tmp_path / "six.toml", "--out", folder, "--", *flags)
    trials = plans.make(plans.read(str(tmp_path / "six.toml"))).trials
    folders = [folder / trial.name for trial in trials]

    # kill -9 of the sweep, in the middle of its first trials
    processes.wait_until(lambda: any(steps_of(path) > 0 for path in folders), "a trial to train")
    process.kill()
    process.wait()
    processes.wait_until(lambda: not trainings(tmp_path), "the trials to end")
    begun = {path: steps_of(path) for path in folders if path.exists()}
    assert any(begun.values())

    # SIGTERM for the whole group, in spite of Ray's own handler
    process = sweep("--resume", folder)
    processes.wait_until(lambda: sum(path.exists() for path in folders) > len(begun), "more trials")
    in_use = sweep("--resume", folder)
    assert in_use.wait(processes.DEADLINE_SECONDS) == 2
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(processes.DEADLINE_SECONDS) == 143, processes.outputs(tmp_path)
    processes.wait_until(lambda: not trainings(tmp_path), "the trials to end", 5)
    assert {row["state"] for row in table(folder)} <= {"finished", "stopped", "waiting"}

    process = sweep("--resume", folder)
    assert process.wait(processes.DEADLINE_SECONDS) == 0, processes.outputs(tmp_path)
    assert [row["state"] for row in table(folder)] == ["finished"] * 6
    assert [row["steps"] for row in table(folder)] == ["20000"] * 6
    resumed = [
        len(json.loads((path / "args.json").read_text()).get("resumed", [])) for path in folders
    ]
    assert any(resumed)
    untouched = next(i for i, n in enumerate(resumed) if n == 0)
    by_hand = [
        "--log_dir",
        "by_hand",
        *flags,
        "--initial_lr",
        str(trials[untouched].searched["initial_lr"]),
    ]
    with processes.dispositions():
        words = [TRAIN, *by_hand, "--seed", str(trials[untouched].seed), "CartPole-v1"]
        process = processes.start(words, tmp_path)
    assert process.wait(processes.DEADLINE_SECONDS) == 0
    assert games(folders[untouched]) == games(tmp_path / "by_hand") != []


def test_a_trial_that_no_machine_has_cores_for_is_refused():
    """Analytic: a machine that has left does not count."""
    alive, gone = ({"Alive": a, "Resources": {"CPU": n}} for a, n in ((True, 2), (False, 9)))
    ray = types.SimpleNamespace(nodes=lambda: [alive, gone])
    plan = plans.make({"envs": ["CartPole-v1"], "cores": 2}, [])
    tuner.check_cores(ray, plan)
    with pytest.raises(BadInput, match="a trial takes 3 cores, but no machine has more than 2"):
        tuner.check_cores(ray, plan._replace(cores=3))


class TuneTrial(types.SimpleNamespace):
    """What a rule asks of one."""

    __hash__ = object.__hash__


@pytest.mark.parametrize("rule", ["asha", "median"])
def test_a_rule_stops_a_trial_that_falls_behind(rule):
    """Analytic: once it has its grace steps, and the others have, too."""
    asked = {"envs": ["CartPole-v1"], "seeds": 4, "early_stopping": rule, "grace_steps": 1000}
    scheduler = tuner._scheduler_of(plans.make(asked, ["--n_steps", "4000"]))
    told = []
    for number, score in enumerate([9.0, 8.0, 7.0, 1.0]):
        trial = TuneTrial(trial_id=str(number), last_result={}, status="RUNNING")
        scheduler.on_trial_add(None, trial)
        for steps in (500, 1000):
            result = {"steps": steps, "metric": score, "training_iteration": steps}
            told.append(scheduler.on_trial_result(None, trial, result))
    assert told[-1] == "STOP"
    assert told[:2] == ["CONTINUE", "CONTINUE"]
    assert told[-2] == "CONTINUE"


@pytest.mark.parametrize("rule", ["asha", "median"])
def test_trials_that_fall_behind_are_stopped_and_the_others_finish(tmp_path, sweep, rule):
    """Analytic: nothing is restarted, and what finishes has its evaluation of the last step."""
    folder = tmp_path / "sweep"
    (tmp_path / "five.toml").write_text(
        f'envs = ["CartPole-v1"]\nearly_stopping = "{rule}"\ngrace_steps = 1000\n'
        "[search]\ninitial_lr = [1e-3, 7e-4, 1e-12, 2e-12, 3e-12]\n"
    )
    flags = ["--n_steps", "4000", "--eval_interval_steps", "4000", "--eval_episodes", "100"]
    process = sweep(tmp_path / "five.toml", "--out", folder, "--", *ONE_WORKER, *flags)
    assert process.wait(processes.DEADLINE_SECONDS) == 0, processes.outputs(tmp_path)
    rows = table(folder)
    # Whether any is stopped in time depends on the machine; the test above has the rules.
    assert {row["state"] for row in rows} <= {"finished", "stopped early"}
    for row in rows:
        run = folder / row["folder"]
        assert "resumed" not in json.loads((run / "args.json").read_text())
        if row["state"] == "finished":
            assert len((run / "evaluations.csv").read_text().splitlines()) > 1


def test_a_trial_that_ends_after_its_hours_goes_on_later(tmp_path, sweep):
    """Analytic: it ended by itself before it was finished, and nobody stopped it for what it scored."""
    folder = tmp_path / "sweep"
    flags = [*ONE_WORKER, "--n_steps", "1e8", "--stop_after_hours", "0.001"]
    process = sweep("--envs", "CartPole-v1", "--out", folder, "--", *flags)
    assert process.wait(processes.DEADLINE_SECONDS) == 0, processes.outputs(tmp_path)
    (row,) = table(folder)
    assert row["state"] == "stopped"
    process = sweep("--resume", folder)
    assert process.wait(processes.DEADLINE_SECONDS) == 0, processes.outputs(tmp_path)
    (again,) = table(folder)
    assert again["state"] == "stopped"
    assert int(again["steps"]) > int(row["steps"])


def test_what_was_stopped_early_stays_so(tmp_path):
    """Analytic: the resumed sweep is stopped while such a trial tells Ray its rows again; another trial had
    all its steps, and was stopped while it evaluated.
    """
    plan = plans.make({"envs": ["CartPole-v1"]}, ["--n_steps", "100"])
    (trial,) = plan.trials
    stop = StopFlag()
    stop.set()
    with contextlib.closing(folders.create(tmp_path / "x", plan, [])) as sweep:
        board = Board(sweep, {trial.name: folders.EARLY})
        watcher = tuner._watcher({"its plan": trial}, board, stop)
        for result in ({}, {"is_finished": True}):
            of_tune = types.SimpleNamespace(config={"trial": "its plan"}, last_result=result)
            watcher.on_trial_start(of_tune)
            watcher.on_trial_complete(of_tune)
    assert board.states == {trial.name: folders.EARLY}


def test_a_trial_that_fails_is_tried_again_and_stops_no_other(tmp_path, sweep):
    """Analytic: one of two environments breaks at every third step; the end says so with status 1."""
    toys = [f"tests.tools.toys:toys/{name}-v0" for name in ("RaisesInStep", "Drawn")]
    folder = tmp_path / "sweep"
    flags = [*("--n_steps", "300", "--no_xla", "--log_interval_seconds", "0.5")]
    process = sweep("--envs", *toys, "--max_failures", "1", "--out", folder, "--", *flags)
    processes.wait_until(lambda: trainings(tmp_path) or process.poll() is not None, "a trial")
    ports = processes.open_ports(processes.members(process.pid))
    assert [port for port in ports if "0100007F:" not in port] == []  # none but this machine's own
    assert ports
    assert process.wait(processes.DEADLINE_SECONDS) == 1, processes.outputs(tmp_path)
    broken, whole = table(folder)
    assert (broken["state"], whole["state"]) == ("failed", "finished")
    out = processes.outputs(tmp_path)["stdout"]
    assert f"{broken['folder']} is tried again: status 1: worker 0 failed" in out
    assert f"{broken['folder']} failed for good: status 1: worker 0 failed" in out
    assert "the joystick broke" in out
    # The second try continued the first one, from its checkpoint.
    record = json.loads((folder / broken["folder"] / "args.json").read_text())
    assert len(record["resumed"]) == 1


def test_a_trial_moves_on_when_its_machine_dies(tmp_path, sweep):
    """Analytic: one of two nodes is killed, and one joins later; code comes by --ship_code."""
    ray = cluster.load("auto")
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "include_dashboard": False}
    nodes = Cluster(initialize_head=True, head_node_args=node | {"num_cpus": 0})
    try:
        first = nodes.add_node(**node)
        folder = tmp_path / "sweep"
        asked = ["--envs", "CartPole-v1", "--seeds", "2", "--out", folder]
        where = ["--address", nodes.address, "--ship_code"]
        process = sweep(*asked, *where, "--", *ONE_WORKER, "--n_steps", "50000")
        a, b = (folder / f"CartPole-v1_s{seed}" for seed in (0, 1))
        processes.wait_until(lambda: steps_of(a) > 0 or process.poll() is not None, "a trial")
        assert process.poll() is None, processes.outputs(tmp_path)
        assert not b.exists()  # one machine has one core
        before, words, pids = steps_of(a), sum(commands(a).values(), []), trainings(a)
        for pid in pids:  # or it might have all its steps before its machine is dead
            processes.kill(pid, signal.SIGSTOP)
        nodes.remove_node(first, allow_graceful=False)
        for pid in pids:
            processes.kill(pid, signal.SIGCONT)
        processes.wait_until(lambda: not trainings(tmp_path), "the trial to end", 60)
        nodes.add_node(**node)
        assert process.wait(processes.DEADLINE_SECONDS) == 0, processes.outputs(tmp_path)
        assert [row["state"] for row in table(folder)] == ["finished"] * 2
        assert "is tried again" in processes.outputs(tmp_path)["stdout"]
        (note,) = json.loads((a / "args.json").read_text())["resumed"]
        assert note["n_steps"] >= before > 0
        assert words
        assert str(TRAIN) not in words
    finally:
        nodes.shutdown()
        ray.shutdown()
