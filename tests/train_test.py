"""train.py as its user meets it: the run folder, exit statuses, signals, bad input, and learning.

Each run is a process that imports TensorFlow, so a few runs, most of them side by side, serve all
tests.
"""

import contextlib
import csv
import json
import os
import pathlib
import pty
import re
import resource
import shlex
import signal
import subprocess
import termios
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pytest
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

import train
from a3c.contract import Counts
from a3c.machine.stopping import SIGNALS
from a3c.store import checkpoint, logs
from a3c.store.checkpoint import Checkpoint
from tests.tools import processes

TRAIN = processes.ROOT / "train.py"
TINY = ["--no_xla", "--n_steps", "600"]
ENDLESS = ["--no_xla", "--n_steps", "1e9", "--manager_wake_interval_seconds", "0.5"]


class Run(NamedTuple):
    """A run of train.py in a folder of its own, whose run folder is `run` in there."""

    process: subprocess.Popen
    outside: pathlib.Path

    @property
    def folder(self) -> pathlib.Path:
        return self.outside / "run"

    def wait(self) -> int:
        return self.process.wait(processes.DEADLINE_SECONDS)

    def out(self) -> str:
        return processes.outputs(self.outside)["stdout"]

    def err(self) -> str:
        return processes.outputs(self.outside)["stderr"]

    def log(self) -> str:
        return (self.folder / "log.txt").read_text()

    def rows(self) -> list[dict[str, str]]:
        with (self.folder / "progress.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    def saved(self) -> Checkpoint:
        return checkpoint.read(checkpoint.find(self.folder))

    def games(self) -> list[list[str]]:
        """Every game: all of it but the time."""
        with (self.folder / "monitor.csv").open(newline="") as file:
            _, columns, *games = csv.reader(file)
        assert columns == ["r", "l", "t", "step", "worker", "env"]
        return [[*game[:2], *game[3:]] for game in games]

    def wait_until_training(self, n_steps: int = 1) -> None:
        """Wait until a row says that the run has as many steps."""

        def is_training() -> bool:
            assert self.process.poll() is None, self.err()
            path = self.folder / "progress.csv"
            return path.exists() and any(
                int(row["misc/steps"] or 0) >= n_steps for row in self.rows()
            )

        processes.wait_until(is_training, "steps")

    def others(self) -> list[int]:
        """Processes of the run besides the main one."""
        return [pid for pid in processes.members(self.process.pid) if pid != self.process.pid]


def start_run(outside: pathlib.Path, *arguments: str | pathlib.Path) -> Run:
    with processes.dispositions():
        return Run(processes.start([TRAIN, "--log_dir", "run", *arguments], outside), outside)


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> Iterator[Callable[..., Run]]:
    """Starts runs, and sees to it that none is left when the tests are over."""
    started: list[Run] = []

    def start(*arguments: str | pathlib.Path) -> Run:
        started.append(start_run(tmp_path_factory.mktemp("outside"), *arguments))
        return started[-1]

    yield start
    for run in started:
        processes.end(run.process)


@pytest.fixture(scope="module")
def finished(start) -> dict[str, Run]:
    """Four short runs with one worker, all ended by themselves."""
    runs = {
        "plain": start(*TINY, "CartPole-v1"),
        "detailed": start(*TINY, "--detailed_logs", "CartPole-v1"),
        "evaluated": start(
            *(*TINY, "--eval_interval_steps", "200", "--eval_episodes", "2"), "CartPole-v1"
        ),
        # That --debug by itself changes no bit of a run, debug_dump_test.py says.
        "other seed": start(*TINY, "--seed", "1", "--debug", "CartPole-v1"),
    }
    for run in runs.values():
        assert run.wait() == 0, run.err()
    return runs


# The run folder, and what is printed


def test_the_run_folder_holds_what_is_promised(finished):
    """Analytic: every file, and nothing else."""
    run = finished["plain"]
    names = {path.name for path in run.folder.iterdir()}
    (events,) = (name for name in names if name.startswith("events.out.tfevents."))
    assert names == {
        *("args.json", "command.txt", "git.txt", "versions.txt", "progress.csv", "log.txt"),
        *("checkpoints", "monitor.csv", "lock", events),
    }
    head = (run.folder / "monitor.csv").read_text().splitlines()[0]
    assert json.loads(head.removeprefix("#"))["env_id"] == "CartPole-v1"
    assert len(run.games()) == int(run.rows()[-1]["rl/episodes"]) > 5
    assert {path.name for path in run.outside.iterdir()} == {"run", "stdout", "stderr"}


def test_the_folder_says_what_ran(finished):
    """Analytic: each value with its source, the command to be pasted, and the environment."""
    run = finished["plain"]
    args = json.loads((run.folder / "args.json").read_text())
    for name, value, source in (
        ("n_steps", 600, "command line"),
        ("no_xla", True, "command line"),
        ("initial_lr", 1e-4, "default"),
        ("discount", 0.99, "default"),
        ("network", "mlp", "derived"),
    ):
        assert (args["params"][name], args["sources"][name]) == (value, source), name
    assert args["environment"]["kind"] == "vector"
    assert args["environment"]["sticky_actions"] == 0.0
    command = shlex.split((run.folder / "command.txt").read_text())
    assert command[:2] == ["python3", "train.py"]
    assert command[2:] == [*run.process.args[2:]]


def test_progress_has_its_rows(finished):
    """Analytic: the promised columns, and the last row is of the end."""
    run = finished["plain"]
    rows = run.rows()
    assert list(rows[0]) == list(logs.FIGURES)
    last = {name: float(value) for name, value in rows[-1].items()}
    assert last["misc/steps"] == 600
    assert last["misc/updates"] == 120
    assert last["misc/frames"] == 600
    assert last["misc/policy_lag_max"] == 0
    assert all(map(np.isfinite, last.values())), last
    assert run.saved().snapshot.counts == Counts(600, 120, int(last["rl/episodes"]), 600)


def test_nothing_but_our_own_lines_is_printed(finished):
    """Golden: stderr is empty, TensorFlow's chatter included; log.txt has what the console had."""
    for name in ("plain", "detailed", "evaluated"):
        assert finished[name].err() == ""
    run = finished["plain"]
    assert run.log() == run.out()
    patterns = [
        "run folder: run",
        "starting TensorFlow and 1 environment processes",
        "tracing the network's functions",
        r"traced in [\d.]+ s",
        "checkpoint before the first update: run/checkpoints/ckpt-0.safetensors",
        r"600 steps  \d+ steps/s  \d+ games  last 100: [\d.]+",
        "saved run/checkpoints/ckpt-600.safetensors",
        r"finished at 600 steps, 120 updates, \d+ games",
    ]
    lines = run.out().splitlines()
    assert len(lines) == len(patterns)
    for pattern, line in zip(patterns, lines, strict=True):
        assert re.fullmatch(pattern, line)


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


def tensors(run: Run) -> dict[str, np.ndarray]:
    """Weights and statistics of a run's newest checkpoint."""
    snapshot = run.saved().snapshot
    return {
        f"{part}/{name}": array
        for part in ("weights", "mean_squares")
        for name, array in sorted(getattr(snapshot, part).items())
    }


def differing(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> list[str]:
    assert list(one) == list(other)
    assert len(one) == 24
    return [name for name in one if one[name].tobytes() != other[name].tobytes()]


def test_a_run_repeats_bit_for_bit_logged_in_detail_or_not(finished):
    """Golden: weights, statistics and games are the same; with another seed they are not."""
    plain, detailed, other = (finished[name] for name in ("plain", "detailed", "other seed"))
    assert differing(tensors(plain), tensors(detailed)) == []
    assert plain.games() == detailed.games()
    changed = differing(tensors(plain), tensors(other))
    assert len([name for name in changed if "kernel" in name]) == 12
    assert plain.games() != other.games()


def test_an_evaluated_run_is_the_same_run(finished):
    """Golden: weights, statistics and games, bit for bit; what is kept beside them is whole."""
    plain, evaluated = finished["plain"], finished["evaluated"]
    assert differing(tensors(plain), tensors(evaluated)) == []
    assert plain.games() == evaluated.games()
    with (evaluated.folder / "evaluations.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[-1]["steps"] == "600"
    best = checkpoint.read(checkpoint.find(evaluated.folder / "checkpoints/best"))
    means = {int(row["steps"]): float(row["episode_reward_mean"]) for row in rows}
    assert means[best.n_steps] == max(means.values())
    assert best.snapshot.mean_squares


def test_tensorboard_shows_what_the_files_say(finished):
    """Parity: by TensorBoard's own reader, the figures of progress.csv, and all that is detailed."""
    run = finished["detailed"]
    events = EventAccumulator(str(run.folder), size_guidance={"tensors": 0}).Reload()
    for name in logs.FIGURES:
        shown = {e.step: float(make_ndarray(e.tensor_proto)) for e in events.Tensors(name)}
        rows = {int(row["misc/steps"]): np.float32(row[name]) for row in run.rows()}
        assert shown == {step: value for step, value in rows.items() if np.isfinite(value)}, name
    # At the steps of the run when the rollout of 5 steps was learned from in which a game ended.
    games = [(float(length), int(step)) for _, length, step, *_ in run.games()]
    late = [step for _, step in games] - np.cumsum([length for length, _ in games])
    assert 0 <= late.min() <= late.max() < 5
    weights = run.saved().snapshot.weights
    layers = {name.removesuffix("_kernel") for name in weights if name.endswith("_kernel")}
    assert {*events.Tags()["tensors"]} - {*logs.FIGURES} == {
        *("rl/episode_reward_sum", "rl/episode_length_steps"),
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


class Terminal:
    """A terminal whose user watches a run, and can press Ctrl-C."""

    # The run becomes the leader of the terminal's foreground processes, as a shell would make it.
    TAKE = (
        "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )

    def __init__(self) -> None:
        self._ours, self.theirs = pty.openpty()
        termios.tcsetwinsize(self.theirs, (50, 160))
        self.settings = termios.tcgetattr(self.theirs)
        self._shown = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(self, outside: pathlib.Path, *arguments: str | pathlib.Path) -> Run:
        with processes.dispositions():
            options = {"stdin": self.theirs, "stdout": self.theirs}
            process = processes.start(
                ["-c", self.TAKE, TRAIN, "--log_dir", "run", *arguments], outside, **options
            )
        return Run(process, outside)

    def shown(self) -> str:
        return self._shown.decode(errors="replace").replace("\r\n", "\n")

    def press_ctrl_c(self) -> None:
        os.write(self._ours, b"\x03")

    def close(self) -> dict[str, object]:
        """What was shown in the end, and whether the terminal is as it was."""
        as_it_was = termios.tcgetattr(self.theirs) == self.settings
        os.close(self.theirs)
        self._reader.join(processes.DEADLINE_SECONDS)
        os.close(self._ours)
        return {"shown": self.shown(), "terminal is as it was": as_it_was}

    def _read(self) -> None:
        try:
            while more := os.read(self._ours, 65536):
                self._shown += more
        except OSError:
            return  # nobody has the other end any more


@pytest.fixture(scope="module")
def ended(start, finished, tmp_path_factory) -> Iterator[dict[str, Ended]]:
    """Five runs, side by side: each trains until it is brought to an end in a way of its own."""
    terminal = Terminal()
    wide = ["--n_workers", "2", "--envs_per_worker", "2"]
    outside = tmp_path_factory.mktemp("outside")
    ctrl_c = terminal.start(outside, *ENDLESS, *wide, "CartPole-v1")
    try:
        term = start(
            *(*ENDLESS, "--initial_lr", "3e-4", "--load_ckpt", finished["plain"].folder),
            "CartPole-v1",
        )
        kill = start(*ENDLESS, *wide, "CartPole-v1")
        broken = start(*ENDLESS, "--n_workers", "2", "tests.tools.toys:toys/RaisesInStep-v0")
        twice = start(*ENDLESS, "CartPole-v1")

        # While TensorFlow is imported, which takes seconds, the first Ctrl-C cannot be heeded yet.
        # Two signals in one moment are one; so on, until one is the second.
        processes.wait_until(lambda: "tensorflow" in libraries(twice.process.pid), "the import")
        n_others = {"twice": len(twice.others())}
        processes.wait_until(lambda: ends_by_another_sigint(twice.process), "the second Ctrl-C")

        ctrl_c.wait_until_training()
        processes.wait_until(lambda: re.search(r" [1-9]\d* games", terminal.shown()), "games")
        notes = {"maps": {pid: libraries(pid) for pid in processes.members(ctrl_c.process.pid)}}
        n_others["ctrl_c"] = len(ctrl_c.others())
        processes.wait_until(lambda: len(busy(threads_of(ctrl_c.process.pid))) > 2, "two workers")
        notes["threads"] = threads_of(ctrl_c.process.pid)
        terminal.press_ctrl_c()

        term.wait_until_training(n_steps=1500)
        n_others["term"] = len(term.others())
        term.process.send_signal(signal.SIGTERM)

        kill.wait_until_training()
        n_others["kill"] = len(kill.others())
        kill.process.kill()

        runs = {"ctrl_c": ctrl_c, "term": term, "kill": kill, "broken": broken, "twice": twice}
        statuses = {name: run.wait() for name, run in runs.items()}
        notes |= terminal.close()
        yield {
            name: Ended(run, statuses[name], n_others.get(name, 0), notes)
            for name, run in runs.items()
        }
    finally:
        processes.end(ctrl_c.process)


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


def libraries(pid: int) -> str:
    return pathlib.Path(f"/proc/{pid}/maps").read_text()


def test_no_environment_process_maps_tensorflow(ended):
    """Analytic: of all processes of a run in training, only the main one does."""
    run, maps = ended["ctrl_c"].run, ended["ctrl_c"].notes["maps"]
    assert [pid for pid in maps if "tensorflow" in maps[pid]] == [run.process.pid]
    # At least a process for each worker's environments, and the server that these come from.
    assert len([pid for pid in maps if pid != run.process.pid and "ale_py" in maps[pid]]) >= 3


def test_no_thread_that_computes_lets_a_signal_in(ended):
    """Analytic: the main thread, whose handlers have a stack of their own, aside. There are others
    that wait for what never comes, like those of NumPy's linear algebra.
    """
    run, threads = ended["ctrl_c"].run, ended["ctrl_c"].notes["threads"]
    stops = sum(1 << (number - 1) for number in SIGNALS)
    assert not threads[run.process.pid].blocked & stops
    open_to_some = {t for t in threads if threads[t].blocked & stops != stops}
    others = busy(threads) - {run.process.pid}
    assert len(others) >= 2  # the workers
    assert not others & open_to_some, threads


def test_a_killed_run_leaves_its_checkpoint(ended):
    """Analytic: SIGKILL asks nobody."""
    assert ended["kill"].status == -signal.SIGKILL
    assert ended["kill"].run.saved().n_steps == 0


@pytest.mark.parametrize(("name", "status"), [("ctrl_c", 130), ("term", 143)])
def test_a_signal_saves_and_gives_its_status(ended, name, status):
    """Analytic: Ctrl-C pressed in a terminal, where every process of the run gets it, and SIGTERM."""
    run, ended_with, _, notes = ended[name]
    assert ended_with == status
    assert run.err() == ""
    # The newest checkpoint is whole, of the run's last row, and said to be where it is.
    counts, last = run.saved().snapshot.counts, run.rows()[-1]
    assert counts.steps == int(last["misc/steps"]) > 0
    assert counts.updates == int(last["misc/updates"])
    assert f"saved run/checkpoints/ckpt-{counts.steps}.safetensors\n" in run.log()
    words = f"stopped at {counts.steps:,} steps, {counts.updates:,} updates,"
    assert run.log().splitlines()[-1].startswith(words)
    assert (words in notes["shown"]) == (name == "ctrl_c")


def test_a_terminal_shows_a_bar_and_stays_usable(ended):
    """Golden: steps, steps/s, time left, games, mean of the last 100 games."""
    notes = ended["ctrl_c"].notes
    number = r"[\d.]+[kMG]?"
    assert re.search(
        rf"\| {number}/1\.00G \[\d\d:\d\d<[\d:days, ?]+, {number} steps/s,"
        r" \d+ games, last 100: [\d.]+\]",
        notes["shown"],
    ), notes["shown"][-2000:]
    assert notes["shown"].endswith("]\n")
    assert notes["terminal is as it was"]


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


def test_a_worker_that_fails_saves_and_gives_1(ended):
    """Analytic: every game breaks; after ten restarts within a minute the environment's own error ends the
    run, in one line on stderr and in the log, though both workers fail; the rest is in files.
    """
    run, status, _, _ = ended["broken"]
    assert status == 1
    assert re.fullmatch(
        r"worker \d failed at 0 steps: EnvError: worker \d, environment 0 failed: …"
        r" RuntimeError: the joystick broke; see run/failure/traceback\.txt,[^\n]*\n",
        run.err(),
    )
    text = (run.folder / "failure/traceback.txt").read_text()
    assert text.endswith("\nRuntimeError: the joystick broke\n")
    assert run.err() in run.log()
    assert run.out().count("\nRuntimeError: the joystick broke\n") == 10
    assert run.out().count("\nwhat was under way there is abandoned, and not counted; a new") == 10
    assert run.rows()[-1]["misc/env_restarts"] == "10"
    assert run.rows()[-1]["rl/episodes"] == "0"
    assert run.saved().snapshot.counts.updates == 0
    assert "saved run/checkpoints/ckpt-0.safetensors\n" in run.out()


def test_a_second_ctrl_c_stops_at_once(ended):
    """Analytic: where the first one cannot be heeded, nothing is saved and nobody is waited for."""
    run, status, _, _ = ended["twice"]
    assert status == 130
    assert re.fullmatch(r"run folder: run\nstarting TensorFlow [^\n]*\n", run.out())
    assert run.err() == ""
    assert run.log() == run.out()


def test_no_process_is_left_behind(ended):
    """Analytic: however a run ended, all of its processes are gone."""
    for name, (run, _, n_others, _) in ended.items():
        if name != "broken":  # which was not looked into: it breaks as soon as it is there
            least = 1
            if name in {"ctrl_c", "kill"}:  # looked into while training: all, and what started them
                (n_envs,) = re.findall(r"TensorFlow and (\d+) environment processes", run.log())
                least = 2 + int(n_envs)
            assert n_others >= least, name
        processes.wait_until(lambda run=run: not run.others(), f"{name}'s processes to end")


# Bad input

CARTPOLE, PONG = "CartPole-v1", "PongNoFrameskip-v4"
# Arguments, and what the line must name.
BAD: dict[str, tuple[list[str], list[str]]] = {
    "no environment": ([], ["env_id"]),
    "unknown environment": (["PongNoFrameskip-v5"], ["PongNoFrameskip-v5", PONG]),
    "no steps to go": (["--load_ckpt", "{plain}", "--n_steps", "600", CARTPOLE], ["600"]),
    "continuous actions": (["Pendulum-v1"], ["Pendulum-v1", "supported"]),
    "a finished run": (["--resume", "{plain}"], ["{plain}", "already finished"]),
    "vectors for Pong's features": (["--preprocessing", "pong", CARTPOLE], ["pong", CARTPOLE]),
    "folder taken": (["--log_dir", "{plain}", CARTPOLE], ["{plain}", "another run"]),
    "folder in a run's": (["--log_dir", "{plain}/x", CARTPOLE], ["{plain}", "another run"]),
    "folder not writable": (["--log_dir", "/proc/run", CARTPOLE], ["/proc/run"]),
    "folder in a file": (["--log_dir", "/dev/null/run", CARTPOLE], ["/dev/null/run"]),
    "no checkpoint": (["--load_ckpt", "missing", CARTPOLE], ["no checkpoint", "missing"]),
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
    plain = finished["plain"].folder
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
    """Analytic: it takes less than 3 seconds of CPU, imports included, though a checkpoint was read."""
    program = "import sys, train; train.main(sys.argv[1:]); sys.exit('tensorflow' in sys.modules)"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    arguments = ["--load_ckpt", finished["plain"].folder, "Acrobot-v1"]
    process = processes.start(["-c", program, *arguments], tmp_path)
    assert process.wait(processes.DEADLINE_SECONDS) == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 3
    outputs = processes.outputs(tmp_path)
    assert outputs["stdout"] == ""
    assert re.fullmatch(r"train\.py: error: [^\n]*Acrobot-v1[^\n]*\n", outputs["stderr"])


def test_more_processes_than_files_are_refused_in_a_line(tmp_path):
    """Analytic: 64 + 3 · 8, where the system allows one less; with as many, it trains."""

    def start(folder: str, limit: int) -> subprocess.Popen:
        def lower() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

        command = [TRAIN, *TINY, "--n_workers", "8", "--eval_interval_steps", "200", "CartPole-v1"]
        return processes.start(command, tmp_path / folder, preexec_fn=lower)

    refused, trained = start("refused", 87), start("trained", 88)
    assert refused.wait(processes.DEADLINE_SECONDS) == 1
    line = "8 environment processes take 88 open files, and the system allows 87 (ulimit -Hn)"
    said = {"stdout": "", "stderr": f"train.py: error: {line}\n"}
    assert processes.outputs(tmp_path / "refused") == said
    assert not (tmp_path / "refused/runs").exists()
    assert trained.wait(processes.DEADLINE_SECONDS) == 0, processes.outputs(tmp_path / "trained")


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
        *("--preset", "cartpole", "--manager_wake_interval_seconds", "1", "--seed", str(seed)),
        CARTPOLE,
    )

    def has_learned() -> bool:
        path = run.folder / "progress.csv"
        rows = run.rows() if path.exists() else []
        return any(
            float(row["rl/episode_reward_mean_100"] or 0) >= 195 and int(row["rl/episodes"]) >= 100
            for row in rows
            if row["rl/episodes"]
        )

    processes.wait_until(lambda: run.process.poll() is not None or has_learned(), "195", 1200)
    if run.process.poll() is None:
        run.process.send_signal(signal.SIGINT)
    assert run.wait() in (0, 130), run.err()
    assert has_learned(), run.rows()[-1]
