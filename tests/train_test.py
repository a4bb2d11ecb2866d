"""train.py as its user meets it: the run folder, exit statuses, signals, bad input, and learning.

Each run is a process that imports TensorFlow, so all tests share a few runs.
"""

import contextlib
import json
import os
import pathlib
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pytest
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.metadata import SESSION_START_INFO_TAG
from tensorboard.util.tensor_util import make_ndarray

import train
from a3c.contract import Counts
from a3c.machine.stopping import SIGNALS
from a3c.store import logs
from tests.tools import processes
from tests.tools.run_files import RunFiles

TRAIN = processes.ROOT / "train.py"
TINY = ["--no_xla", "--n_steps", "600"]
ENDLESS = ["--no_xla", "--n_steps", "1e9", "--log_interval_seconds", "0.5"]


class Run(RunFiles):
    """A run of train.py in a folder of its own, whose run folder is `run` in there."""

    def __init__(self, process: subprocess.Popen, outside: pathlib.Path) -> None:
        super().__init__(outside / "run")
        self.process, self.outside = process, outside

    def wait(self) -> int:
        return self.process.wait(processes.DEADLINE_SECONDS)

    def out(self) -> str:
        return processes.outputs(self.outside)["stdout"]

    def err(self) -> str:
        return processes.outputs(self.outside)["stderr"]

    def wait_until(self, name: str, least: float) -> None:
        """Wait until a row's figure of this name is at least so large."""

        def has_come() -> bool:
            assert self.process.poll() is None, self.err()
            return any(row[name] >= least for row in self.rows())

        processes.wait_until(has_come, f"{name} {least}")

    def others(self) -> list[int]:
        """Processes of the run besides the main one."""
        return [pid for pid in processes.members(self.process.pid) if pid != self.process.pid]


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> Iterator[Callable[..., Run]]:
    """Starts runs, and ends those that still run after the tests."""
    started: list[Run] = []

    def start(*arguments: str | pathlib.Path, n_files: int | None = None) -> Run:
        def limit() -> None:
            if n_files is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (n_files, n_files))

        outside, command = tmp_path_factory.mktemp("outside"), [TRAIN, "--log_dir", "run"]
        with processes.dispositions():
            process = processes.start([*command, *arguments], outside, preexec_fn=limit)
        started.append(Run(process, outside))
        return started[-1]

    yield start
    for run in started:
        processes.end(run.process)


@pytest.fixture(scope="module")
def finished(start) -> dict[str, Run]:
    """Three short runs with one worker that reach their end."""
    runs = {
        "plain": start(*TINY, "CartPole-v1"),
        "observed": start(
            *(*TINY, "--detailed_logs", "--eval_interval_steps", "200", "--eval_episodes", "2"),
            "CartPole-v1",
            n_files=64 + 3,
        ),
        # debug_dump_test.py shows that --debug alone changes no bit of a run.
        "other seed": start(*TINY, "--seed", "1", "--debug", "CartPole-v1"),
    }
    for run in runs.values():
        assert run.wait() == 0, run.err()
    return runs


# The run folder, and what is printed


def test_the_run_folder_holds_what_is_promised(finished):
    """Analytic: every file and nothing else; args.json has each value's source."""
    run = finished["plain"]
    names = {path.name for path in run.path.iterdir()}
    (events,) = (name for name in names if name.startswith("events.out.tfevents."))
    assert names == {
        *("args.json", "command.txt", "git.txt", "versions.txt", "progress.csv", "log.txt"),
        *("checkpoints", "monitor.csv", "lock", events),
    }
    head = (run.path / "monitor.csv").read_text().splitlines()[0]
    assert json.loads(head.removeprefix("#"))["env_id"] == "CartPole-v1"
    last = run.rows()[-1]
    assert list(last) == list(logs.FIGURES)
    for name in logs.FIGURES:  # a row has none where nothing was measured since the row before
        assert any(np.isfinite(row[name]) for row in run.rows()), name
    assert len(run.games()) == last["rl/episodes"] > 5
    counts = Counts(600, 120, int(last["rl/episodes"]), int(last["misc/frames"]))
    assert run.saved().snapshot.counts == counts
    assert {path.name for path in run.outside.iterdir()} == {"run", "stdout", "stderr"}
    args = json.loads((run.path / "args.json").read_text())
    for name, value, source in (
        ("n_steps", 600, "command line"),
        ("initial_lr", 1e-4, "default"),
        ("network", "mlp", "derived"),
    ):
        assert (args["params"][name], args["sources"][name]) == (value, source), name
    assert args["environment"]["kind"] == "vector"
    command = shlex.split((run.path / "command.txt").read_text())
    assert command[:2] == ["python3", "train.py"]
    assert command[2:] == [*run.process.args[2:]]


def test_nothing_but_our_own_lines_is_printed(finished):
    """Golden: stderr is empty, TensorFlow's chatter included; log.txt has what the console had."""
    assert finished["plain"].err() == finished["observed"].err() == ""
    run = finished["plain"]
    assert run.log() == run.out()


def test_debug_dumps_to_stderr_and_talks_on_stdout(finished):
    """Analytic: so that `2> dump` gives a clean dump."""
    run = finished["other seed"]
    lines = run.err().splitlines()
    assert all(re.fullmatch(r"A3C-DUMP update=\d+ \w.* \[[^\]]*\]", line) for line in lines)
    # Each step's observation, once to act; and of each of 120 updates what it learned from.
    purposes = [re.search(r"purpose=(\w+)", line).group(1) for line in lines]
    assert purposes.count("act") >= 600
    assert purposes.count("bootstrap") == 120
    assert "A3C-DUMP" not in run.out() + run.log()
    assert run.out().endswith(" games\n")


def differing(one: Run, other: Run) -> list[str]:
    """The weights and statistics that are not the same."""
    ours, others = one.tensors(), other.tensors()
    assert list(ours) == list(others)
    assert len(ours) == 24
    return [name for name in ours if ours[name] != others[name]]


def test_a_run_repeats_bit_for_bit_logged_in_detail_or_not(finished):
    """Golden: and evaluated or not; with another seed, weights, statistics and games differ."""
    plain, observed, other = finished.values()
    assert differing(plain, observed) == []
    assert plain.games() == observed.games()
    changed = differing(plain, other)
    assert len([name for name in changed if "kernel" in name]) == 12
    assert plain.games() != other.games()


def test_tensorboard_shows_what_the_files_say(finished):
    """Parity: by TensorBoard's own reader, the figures of progress.csv, and all that is detailed."""
    run = finished["observed"]
    events = EventAccumulator(str(run.path), size_guidance={"tensors": 0}).Reload()
    for name in logs.FIGURES:
        shown = {e.step: float(make_ndarray(e.tensor_proto)) for e in events.Tensors(name)}
        known = [row for row in run.rows() if np.isfinite(row[name])]
        assert shown == {row["misc/steps"]: np.float32(row[name]) for row in known}, name
    weights = run.saved().snapshot.weights
    layers = {name.removesuffix("_kernel") for name in weights if name.endswith("_kernel")}
    tags = {tag for tag in events.Tags()["tensors"] if not tag.startswith("eval/")}
    assert tags - {*logs.FIGURES} == {
        *("rl/episode_reward_sum", "rl/episode_length_steps", SESSION_START_INFO_TAG),
        *(f"{part}/{name}" for part in ("weights", "gradients", "rmsprop") for name in weights),
        *(f"activations/{layer}" for layer in layers - {"policy", "value"}),
    }


# How runs end


class Ended(NamedTuple):
    """A run that was brought to an end, and what was seen on the way."""

    run: Run
    status: int
    n_others: int  # processes besides the main one, while it trained
    notes: dict[str, object]


@pytest.fixture(scope="module")
def ended(start, finished) -> dict[str, Ended]:
    """Four runs, side by side; each is ended in a different way while it trains."""
    plain = finished["plain"].path
    runs = {
        "ctrl_c": start(*ENDLESS, "--n_workers", "8", "CartPole-v1", n_files=64 + 3 * 8),
        "term": start(*ENDLESS, "--initial_lr", "3e-4", "--load_ckpt", plain, "CartPole-v1"),
        "broken": start(*ENDLESS, "--n_workers", "2", "tests.tools.toys:toys/RaisesInStep-v0"),
        "twice": start(*ENDLESS, "CartPole-v1"),
    }
    ctrl_c, term, _, twice = runs.values()

    # TensorFlow's import takes seconds, and a Ctrl-C cannot take effect before it ends. Signals
    # that arrive at the same moment count once; so they are sent until one counts as the second.
    processes.wait_until(
        lambda: processes.has_mapped(twice.process.pid, "tensorflow"), "the import"
    )
    n_others = {"twice": len(twice.others())}
    processes.wait_until(lambda: ends_by_another_sigint(twice.process), "the second Ctrl-C")

    ctrl_c.wait_until("rl/episodes", 1)
    pids = processes.members(ctrl_c.process.pid)
    libraries = ("tensorflow", "ale_py")
    notes = {name: [pid for pid in pids if processes.has_mapped(pid, name)] for name in libraries}
    n_others["ctrl_c"] = len(ctrl_c.others())
    processes.wait_until(lambda: len(busy(threads_of(ctrl_c.process.pid))) > 2, "two workers")
    notes["threads"] = threads_of(ctrl_c.process.pid)
    os.killpg(ctrl_c.process.pid, signal.SIGINT)  # to all processes, as a terminal sends it

    term.wait_until("misc/steps", 1500)
    n_others["term"] = len(term.others())
    term.process.send_signal(signal.SIGTERM)
    return {
        name: Ended(run, run.wait(), n_others.get(name, 0), notes) for name, run in runs.items()
    }


def ends_by_another_sigint(process: subprocess.Popen) -> bool:
    process.send_signal(signal.SIGINT)
    return process.poll() is not None


class Thread(NamedTuple):
    """What the system says of a thread."""

    seconds: float  # that it has computed
    blocked: int  # a bit for each signal


def threads_of(pid: int) -> dict[int, Thread]:
    found = {}
    for folder in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            times = (folder / "stat").read_text().rpartition(")")[2].split()[11:13]
            blocked = re.search(r"^SigBlk:\t(\w+)$", (folder / "status").read_text(), re.M)
            seconds = sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
            found[int(folder.name)] = Thread(seconds, int(blocked[1], 16))
    return found


def busy(threads: dict[int, Thread]) -> set[int]:
    """Those that have computed; a moment is nothing."""
    return {number for number, thread in threads.items() if thread.seconds >= 0.05}


def test_no_environment_process_maps_tensorflow(ended):
    """Analytic: of all processes of a run in training, only the main one does."""
    run, notes = ended["ctrl_c"].run, ended["ctrl_c"].notes
    assert notes["tensorflow"] == [run.process.pid]
    # The environment processes, and the server that they come from.
    n_processes = int(re.search(r"and (\d+) environment process", run.log())[1])
    assert len({*notes["ale_py"]} - {run.process.pid}) == n_processes + 1


def test_no_thread_that_computes_lets_a_signal_in(ended):
    """Analytic: except for the main thread; threads that never computed do not matter."""
    run, threads = ended["ctrl_c"].run, ended["ctrl_c"].notes["threads"]
    stops = sum(1 << (number - 1) for number in SIGNALS)
    assert not threads[run.process.pid].blocked & stops
    open_to_some = {t for t in threads if threads[t].blocked & stops != stops}
    others = busy(threads) - {run.process.pid}
    assert len(others) >= 2  # the workers
    assert not others & open_to_some, threads


@pytest.mark.parametrize(("name", "status"), [("ctrl_c", 130), ("term", 143)])
def test_a_signal_saves_and_gives_its_status(ended, name, status):
    """Analytic: Ctrl-C in a terminal, which every process of the run gets, and SIGTERM."""
    run, ended_with, _, _ = ended[name]
    assert ended_with == status
    assert run.err() == ""
    # The newest checkpoint is whole, of the run's last row, and said to be where it is.
    counts, last = run.saved().snapshot.counts, run.rows()[-1]
    assert counts.steps == last["misc/steps"] > 0
    assert counts.updates == last["misc/updates"]
    assert f"saved run/checkpoints/ckpt-{counts.steps}.safetensors\n" in run.log()
    words = f"stopped at {counts.steps:,} steps, {counts.updates:,} updates,"
    last_but_one, last = run.log().splitlines()[-2:]
    assert last_but_one.startswith(words)
    assert re.fullmatch(r"continue with: \S+ \S+/train\.py --resume run", last)


def test_a_restored_run_counts_on_and_says_what_differs(ended, finished):
    """Analytic: in a run folder of its own."""
    run, before = ended["term"].run, finished["plain"].saved()
    lines = run.log().splitlines()
    where = lines.index(f"restored {before.path} at 600 steps")
    assert "  initial_lr: 0.0001 there, 0.0003 here" in lines[where:]
    assert "  n_steps: 600 there, 1000000000 here" in lines[where:]
    assert f"checkpoint before the first update: run/checkpoints/{before.path.name}" in lines
    after = run.saved().snapshot.counts
    assert all(then > now for then, now in zip(after, before.snapshot.counts, strict=True))


@processes.needs_two_cores
def test_a_worker_that_fails_saves_and_gives_1(ended):
    """Analytic: after ten restarts a minute, with the environment's error in one line, for one worker. Its
    traceback is told once, and each restart after that has a line.
    """
    run, status, _, _ = ended["broken"]
    assert status == 1
    assert re.fullmatch(
        r"worker \d failed at 0 steps: EnvError: worker \d, environment 0 failed: …"
        r" RuntimeError: the joystick broke; see run/failure/traceback\.txt,[^\n]*\n",
        run.err(),
    )
    text = (run.path / "failure/traceback.txt").read_text()
    assert text.endswith("\nRuntimeError: the joystick broke\n")
    assert run.err() in run.log()
    assert run.out().count("\nRuntimeError: the joystick broke\n") == 1
    told = r"restarted an environment process, and dropped its episodes: worker \d, environment 0 (.*)\n"
    first, *others = re.findall(told, run.out())
    assert first == "failed:"
    assert others == ["failed: … RuntimeError: the joystick broke"] * 9
    assert run.rows()[-1]["misc/env_restarts"] == 10
    assert run.rows()[-1]["rl/episodes"] == 0
    assert run.saved().snapshot.counts.updates == 0
    assert "saved run/checkpoints/ckpt-0.safetensors\n" in run.out()
    assert run.out().endswith("/train.py --resume run tests.tools.toys:toys/RaisesInStep-v0\n")


def test_a_second_ctrl_c_stops_at_once(ended):
    """Analytic: where the first one cannot be heeded, nothing is saved and nobody is waited for."""
    run, status, _, _ = ended["twice"]
    assert status == 130
    assert re.fullmatch(r"run folder: run\nstarting TensorFlow [^\n]*\n", run.out())
    assert run.err() == ""
    assert run.log() == run.out()


def test_a_signal_ends_the_wait_for_an_environment_that_hangs(start, tmp_path, monkeypatch):
    """Analytic: long before it would be given up."""
    monkeypatch.setenv("HANGS", str(tmp_path / "hangs"))
    more = ["--n_workers", "1", "--env_timeout_seconds", "100"]
    run = start(*ENDLESS, *more, "tests.tools.toys:toys/HangsInStep-v0")
    processes.wait_until((tmp_path / "hangs").exists, "the third step")
    before = time.monotonic()
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 143
    assert time.monotonic() - before < 50


def test_a_run_needs_no_console(tmp_path):
    """Analytic: with standard output and standard error closed, it trains and logs to its end."""
    closed = [
        "/bin/sh",
        "-c",
        'exec "$@" >&- 2>&-',
        "sh",
        sys.executable,
        TRAIN,
        "--log_dir",
        "run",
    ]
    command = [*closed, "--no_xla", "--n_steps", "20", "CartPole-v1"]
    assert subprocess.run(command, cwd=tmp_path, check=False).returncode == 0
    run = RunFiles(tmp_path / "run")
    assert "finished at 20 steps" in run.log()
    assert run.rows()[-1]["misc/steps"] == 20


def test_no_process_is_left_behind(ended):
    """Analytic: however a run ended, all of its processes are gone."""
    for name, (run, _, n_others, _) in ended.items():
        if name != "broken":  # it ends too soon to be looked at
            least = 1
            if name == "ctrl_c":  # looked at while it trained: all of them, and what started them
                (n_envs,) = re.findall(r"TensorFlow and (\d+) environment process", run.log())
                least = 2 + int(n_envs)
            assert n_others >= least, name
        processes.wait_until(lambda run=run: not run.others(), f"{name}'s processes to end")


# Bad input

CARTPOLE = "CartPole-v1"
# Arguments, and what the line must name.
BAD: dict[str, tuple[list[str], list[str]]] = {
    "no environment": ([], ["env_id"]),
    "unknown environment": (["PongNoFrameskip-v5"], ["PongNoFrameskip-v5", "v4"]),
    "no steps to go": (["--load_ckpt", "{plain}", "--n_steps", "600", CARTPOLE], ["600"]),
    "vectors for Pong's features": (["--preprocessing", "pong", CARTPOLE], ["pong", CARTPOLE]),
    "a network that no checkpoint holds": (
        ["--hidden_units", "10000", "10000", CARTPOLE],
        ["200,150,003 weights", "at most 100,000,000"],
    ),
    "a rollout that no array holds": (
        ["--envs_per_worker", "100", "--steps_per_update", "10000", "PongNoFrameskip-v4"],
        ["10,000 steps of 100 environments", "more than 2 GiB", "--steps_per_update"],
    ),
    "rollouts that no array holds together": (
        ["--envs_per_worker", "1024", "--steps_per_update", "73", "PongNoFrameskip-v4"],
        ["73 steps of 1,024 environments", "more than 2 GiB"],
    ),
    "no path": (["--load_ckpt", "x" * 300], ["File name too long"]),
    "a finished run": (["--resume", "{plain}"], ["{plain}", "already finished"]),
    "folder taken": (["--log_dir", "{plain}", CARTPOLE], ["{plain}", "another run"]),
    "damaged checkpoint": (["--load_ckpt", "damaged", CARTPOLE], ["damaged", "ckpt-7"]),
    "another environment's checkpoint": (
        ["--load_ckpt", "{plain}", "Acrobot-v1"],
        [CARTPOLE, "Acrobot-v1"],
    ),
}


@pytest.mark.parametrize(("arguments", "words"), BAD.values(), ids=BAD)
def test_bad_input_gets_one_line_and_status_2(
    finished, tmp_path, monkeypatch, capsys, arguments, words
):
    """Analytic: the line names what is wrong, and nothing is made."""
    plain = finished["plain"].path
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged/ckpt-7.safetensors").write_text('{"format_version": 1}')
    monkeypatch.chdir(tmp_path)
    places = {*tmp_path.rglob("*"), *plain.rglob("*")}
    with processes.handlers_kept():
        assert train.main([word.format(plain=plain) for word in arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert re.fullmatch(r"train\.py: error: [^\n]{1,1000}\n", said.err)
    for word in words:
        assert word.format(plain=plain) in said.err
    assert {*tmp_path.rglob("*"), *plain.rglob("*")} == places


def test_an_answer_does_not_wait_for_tensorflow(finished, tmp_path):
    """Analytic: it is not imported, though a checkpoint is read."""
    program = "import sys, train; train.main(sys.argv[1:]); sys.exit('tensorflow' in sys.modules)"
    process = processes.start(
        ["-c", program, "--load_ckpt", finished["plain"].path, "Acrobot-v1"], tmp_path
    )
    assert process.wait(processes.DEADLINE_SECONDS) == 0
    outputs = processes.outputs(tmp_path)
    assert outputs["stdout"] == ""
    assert re.fullmatch(r"train\.py: error: [^\n]*Acrobot-v1[^\n]*\n", outputs["stderr"])


# Learning


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(0, marks=pytest.mark.slow),
        *(pytest.param(seed, marks=pytest.mark.weekly) for seed in (1, 2, 3, 4)),
    ],
)
def test_cartpole_is_learned(start, seed):
    """Learning: the mean of the last 100 games reaches 195 within 300,000 steps; then it stops."""
    run = start(
        *("--preset", "cartpole", "--log_interval_seconds", "1", "--seed", str(seed)),
        CARTPOLE,
    )

    def has_learned() -> bool:
        return any(
            row["rl/episode_reward_mean_100"] >= 195 and row["rl/episodes"] >= 100
            for row in run.rows()
        )

    processes.wait_until(lambda: run.process.poll() is not None or has_learned(), "195", 1200)
    if run.process.poll() is None:
        run.process.send_signal(signal.SIGINT)
    assert run.wait() in (0, 130), run.err()
    assert has_learned(), run.rows()[-1]
