"""One trial: its process, its cores and its ends. A small program stands in for train.py."""

import fcntl
import json
import os
import pathlib
import signal

import pytest

from a3c.envs import base
from a3c.envs.make import UnsupportedEnv
from a3c.machine import cores
from a3c.machine.appending import write_atomically
from a3c.machine.words import BadInput
from a3c.sweep import command, start
from a3c.sweep import plan as plans
from a3c.sweep import trial as trials
from tests.tools import processes

# It makes what a run makes, waits until it may end, and says how it was stopped. Whoever waits for a file
# and then reads it must find a whole one.
STAND_IN = """
import json, os, pathlib, signal, sys, time
from a3c.machine.appending import write_atomically
from a3c.machine.stopping import StopSignals
signals = StopSignals()
folder = pathlib.Path(sys.argv[2])
is_new = sys.argv[1] == "--log_dir"
(folder / "checkpoints").mkdir(parents=True, exist_ok=True)
if is_new:
    (folder / "args.json").touch()
    (folder / "lock").touch()
    (folder / "progress.csv").write_text("misc/steps,rl/episode_reward_mean_100\\n")
with (folder / "progress.csv").open("a") as file:
    for steps, score in [(10, "nan"), (20, 1.5), (30, 2.5)]:
        file.write(f"{steps + 100 * (not is_new)},{score}\\n")
about = {"pid": os.getpid(), "argv": sys.argv[1:], "cores": sorted(os.sched_getaffinity(0))}
write_atomically(folder / "started", json.dumps(about))
while not (folder / "end").exists() and not signals.stop.is_set():
    time.sleep(0.01)
if signals.stop.is_set():
    write_atomically(folder / "saved", str(signals.exit_status))
    raise SystemExit(signals.exit_status)
status = int((folder / "end").read_text())
with (folder / "progress.csv").open("a") as file:
    file.write(f"{40 + 100 * (not is_new)},3.5\\n")
print("error: the last line", file=sys.stderr)
print("saved")
if status == 0:
    (folder / "checkpoints/ckpt-140.safetensors").touch()
while (folder / "evaluating").exists():
    time.sleep(0.01)
raise SystemExit(status)
"""
# Runs a trial as Ray's worker does, until it is killed.
STARTER = """
import pathlib, sys
from a3c.sweep import plan as plans, trial as trials
trials.TRAIN, folder = sys.argv[1:2], pathlib.Path(sys.argv[2])
trials.POLL_SECONDS = 0.01
plan = plans.make({"envs": ["CartPole-v1"]}, ["--n_steps", "140"])
for _ in trials.run(plan, plan.trials[0], folder):
    pass
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Trials of the stand-in, with cores' locks of their own; what is left at the end is killed."""
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(trials, "TRAIN", [str(tmp_path / "stand_in.py")])
    monkeypatch.setattr(trials, "POLL_SECONDS", 0.01)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setenv("PYTHONPATH", str(processes.ROOT))
    yield tmp_path
    for about in tmp_path.glob("*/started"):
        processes.kill(json.loads(about.read_text())["pid"])


@pytest.fixture
def two_cores():
    """All that the test may use."""
    usable = os.sched_getaffinity(0)
    chosen = {*sorted(usable)[:2]}
    os.sched_setaffinity(0, chosen)
    yield chosen
    os.sched_setaffinity(0, usable)


def plan_of(n_steps=140, **asked):
    asked = {"envs": ["CartPole-v1"], "seeds": 1} | asked
    return plans.make(asked, ["--n_steps", str(n_steps)])


def run(plan, folder):
    return trials.run(plan, plan.trials[0], folder)


def started(running, folder):
    """What the stand-in says, once it has started."""
    processes.wait_until(lambda: next(running) is None or (folder / "started").exists())
    return json.loads((folder / "started").read_text())


def end(running, folder, status=0):
    """Let the stand-in end; returns all rows that were still new."""
    write_atomically(folder / "end", str(status))
    return [row for news in running for row in news.rows]


def test_a_trial_is_begun_resumed_and_then_finished(place):
    """Analytic: its commands; each row that has a score comes once, and those of before again. Hours are given
    to each start, because no record hands them on.
    """
    plan, folder = plan_of(settings={"stop_after_hours": 2}), place / "trial"
    running = run(plan, folder)
    words = started(running, folder)["argv"]
    assert words[:2] == ["--log_dir", folder.name]
    assert words[4:] == plans.words_of(plan, plan.trials[0])
    with pytest.raises(trials.TrialFailed, match="status 3: error: the last line"):
        end(running, folder, 3)
    assert list(trials.run(plan, plan.trials[0], folder, is_stopped=True)) != []
    (folder / "end").unlink()
    (folder / "started").unlink()
    running = run(plan, folder)
    assert next(running) == ([(20, 1.5), (30, 2.5), (40, 3.5)], False)
    words = started(running, folder)["argv"]
    assert words[:2] == ["--resume", folder.name]
    assert words[4:] == ["--stop_after_hours=2.0", "CartPole-v1"]
    assert end(running, folder)[-1] == (140, 3.5)
    (folder / "started").unlink()
    ((rows, is_finished),) = run(plan, folder)
    assert [steps for steps, _ in rows] == [20, 30, 40, 120, 130, 140]
    assert is_finished
    assert not (folder / "started").exists()


def test_nobody_hears_of_a_last_step_while_the_run_evaluates(place):
    """Analytic: whoever compares trials would stop this one, and its evaluation would be lost."""
    plan, folder = plan_of(n_steps=40), place / "trial"
    running = run(plan, folder)
    started(running, folder)
    (folder / "evaluating").touch()
    write_atomically(folder / "end", "0")
    last = folder / "checkpoints/ckpt-140.safetensors"
    processes.wait_until(last.exists, "the last checkpoint")
    told = [next(running) for _ in range(20)]
    assert {row for news in told for row in news.rows} <= {(20, 1.5), (30, 2.5)}
    assert not any(news.is_finished for news in told)
    (folder / "evaluating").unlink()
    *_, the_last = running
    assert the_last == ([(40, 3.5)], True)


def test_a_folder_that_is_not_whole_is_begun_again(place):
    """Analytic: a run that was killed while it made its folder cannot be resumed."""
    plan, folder = plan_of(), place / "trial"
    folder.mkdir()
    (folder / "lock").touch()
    running = run(plan, folder)
    assert started(running, folder)["argv"][0] == "--log_dir"
    end(running, folder)


@pytest.mark.parametrize("what", ["the starter", "the shell", "the starter after the shell"])
def test_however_its_starter_ends_a_trial_saves_and_ends(place, what):
    """Analytic: SIGKILL lets nobody say goodbye, and Ray kills a worker's children before it ends."""
    folder = place / "trial"
    words = ["-c", STARTER, place / "stand_in.py", folder]
    starter = processes.start(words, place)
    try:
        processes.wait_until((folder / "started").exists, "the trial to start")
        pid = json.loads((folder / "started").read_text())["pid"]
        _, shell, _ = processes.state_parent_and_session(pid)
        assert processes.state_parent_and_session(shell)[1] == starter.pid
        if "shell" in what:
            os.kill(shell, signal.SIGKILL)
        if what != "the shell":
            starter.kill()
        starter.wait(processes.DEADLINE_SECONDS)
        processes.wait_until(lambda: (folder / "saved").exists(), "it to save")
        assert (folder / "saved").read_text() == "143"
        processes.wait_until(lambda: not pathlib.Path(f"/proc/{pid}/fd/0").exists(), "its end")
    finally:
        processes.end(starter)


@processes.needs_two_cores
def test_trials_get_cores_of_their_own(place, two_cores):
    """Analytic: each core one trial; the next waits until one has ended, not only its starter."""
    plan = plan_of(cores=1)
    folders = [place / "first", place / "second", place / "third"]
    running = [run(plan, folder) for folder in folders]
    first = started(running[0], folders[0])
    taken = cores.parse(first["argv"][3])
    assert len(taken) == 1
    second = cores.parse(started(running[1], folders[1])["argv"][3])
    assert taken | second == two_cores
    for _ in range(20):
        next(running[2])
    assert not folders[2].exists()
    os.kill(first["pid"], signal.SIGSTOP)  # its starter may believe that it has ended
    running[0].close()
    next(running[2])
    assert not folders[2].exists()
    os.kill(first["pid"], signal.SIGKILL)
    assert cores.parse(started(running[2], folders[2])["argv"][3]) == taken
    for one, folder in zip(running[1:], folders[1:], strict=True):
        end(one, folder)


def test_the_locks_of_cores_are_in_a_folder_of_our_own(place, monkeypatch):
    """Analytic: nobody else can write there, and one that another user has made is refused."""
    trials.are_cores_free(1)
    (folder,) = (place / "tmp").glob("a3c-cores-*")
    assert folder.stat().st_mode & 0o077 == 0
    user = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: user)
    with pytest.raises(BadInput, match="belongs to somebody else"):
        trials.lock_cores(1)


def test_cores_are_free_until_a_trial_has_them(place):
    """Analytic: asking does not take them."""
    n = len(os.sched_getaffinity(0))
    assert [trials.are_cores_free(n) for _ in range(2)] == [True, True]
    locked = trials.lock_cores(1)
    assert not trials.are_cores_free(n)
    for file in locked.values():
        os.close(file)
    assert trials.are_cores_free(n)


def test_a_trial_waits_for_its_old_process(place):
    """Analytic: one that is tried again may find the old one still saving in its folder."""
    plan, folder = plan_of(), place / "trial"
    folder.mkdir()
    (folder / "args.json").touch()
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        running = run(plan, folder)
        for _ in range(20):
            assert next(running) == ([], False)
        assert not trials.output_of(folder).exists()
    assert started(running, folder)["argv"][0] == "--resume"
    end(running, folder)


def test_a_trial_sees_the_environment_of_its_starter(place, monkeypatch):
    """Analytic: but not the number of threads that Ray gives to its worker."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    seen = "import os; print(os.environ.get('OMP_NUM_THREADS'), os.environ.get('HOME'))"
    (place / "stand_in.py").write_text(seen)
    process = trials.start([], place / "trial", [])
    assert process.wait(processes.DEADLINE_SECONDS) == 0
    home = os.environ.get("HOME")
    assert trials.output_of(place / "trial").read_text() == f"None {home}\n"


def test_trials_import_what_the_sweep_can(tmp_path, monkeypatch):
    """Analytic: from its working directory and from PYTHONPATH, although they run in another folder."""
    (tmp_path / "beside").mkdir()
    for name in ("found_here", "beside/found_beside"):
        (tmp_path / f"{name}.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["beside", str(processes.ROOT)]))
    monkeypatch.setenv(base.STARTED_IN, "")
    with pytest.raises(UnsupportedEnv):
        start.start(*command.parse(["--envs", "nowhere:None-v0"]), [], None)
    monkeypatch.setattr(
        trials,
        "TRAIN",
        ["-c", "from a3c.envs import base; [*map(base._import, __import__('sys').argv[1:])]"],
    )
    (tmp_path / "sweep").mkdir()
    process = trials.start(["found_here", "found_beside"], tmp_path / "sweep/trial", [])
    status = process.wait(processes.DEADLINE_SECONDS)
    assert status == 0, trials.errors_of(tmp_path / "sweep/trial").read_text()
