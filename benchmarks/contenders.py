"""What `make bench` compares: runs of train.py, the peers, and calls alone, each measured in slots.

All of them stay alive through a whole part of it, and all but the one being measured stand still. So
a slot costs no start-up, and many short slots can alternate. The two servers, the peers and the calls,
wait for their next line. A run of train.py is stopped and continued with signals, as Ctrl-Z does: the
training process first, so that no environment process is left with half a request.
"""

import contextlib
import csv
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import time
from typing import IO, Any, NamedTuple

import numpy as np

from a3c.play import curves
from a3c.store import games
from benchmarks import calibration, machine

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEER_PYTHON = ROOT / ".peer/bin/python"
SECONDS_PER_ROW = 1.0
WARM_UP_ROWS = 5
START_SECONDS = 300.0  # none is this slow
SILENCE_SECONDS = 60.0


class Task(NamedTuple):
    """What is trained: an environment, and the flags that its users give train.py."""

    env_id: str
    flags: tuple[str, ...]


# Pong's two are named for their networks.
TASKS = {
    "nature": Task(calibration.PONG, ("--network=nature",)),
    "small": Task(calibration.PONG, ("--network=small",)),
    "CartPole": Task("CartPole-v1", ("--preset=cartpole",)),
    "HalfCheetah": Task("HalfCheetah-v5", ("--preset=mujoco",)),
}
# The program that a speed of today is compared with. Its flags were not yet in a preset.
THEN = "243b5dc"
FLAGS_THEN = {
    "CartPole": (
        *("--initial_lr=7e-4", "--rmsprop_initial=0", "--max_grad_norm=0.5"),
        *("--initial_weights=orthogonal", "--entropy_bonus=0"),
    )
}


class Setting(NamedTuple):
    """A setting of ours: workers × environments each, and the task."""

    n_workers: int
    envs_per_worker: int
    task: str
    revision: str = ""  # of the program, if it is not today's

    @property
    def flags(self) -> list[str]:
        """The flags of train.py."""
        of_task = FLAGS_THEN[self.task] if self.revision else TASKS[self.task].flags
        sizes = (f"--{name}={getattr(self, name)}" for name in ("n_workers", "envs_per_worker"))
        return [*of_task, *sizes]

    def __str__(self) -> str:
        at = f" at {self.revision}" if self.revision else ""
        return f"{self.n_workers} × {self.envs_per_worker} {self.task}{at}"


# C++ environments, which lean.py uses; Stable-Baselines3 has the others.
CPP = "AtariVectorEnv"


class PeerSetting(NamedTuple):
    """A setting of a peer; see peer.py."""

    vec: str
    n_envs: int
    n_threads: int
    task: str

    def __str__(self) -> str:
        program = "torch" if self.vec == CPP else "SB3"
        threads = "1 thread" if self.n_threads == 1 else f"{self.n_threads} threads"
        return f"{program} A2C, {self.n_envs} environments, {self.vec}, {threads} {self.task}"


class CallsSetting(NamedTuple):
    """Workers of one environment that only act and learn; see calls.py."""

    n_workers: int
    task: str

    def __str__(self) -> str:
        return f"{self.n_workers} × 1 {self.task}, acting and learning alone"


class Slot(NamedTuple):
    """The result of one slot."""

    n_steps: int
    seconds: float
    env_cpu_seconds: float | None  # per step, of a run's environment processes


class Row(NamedTuple):
    """The columns of progress.csv that are needed here."""

    steps: int
    updates: int
    score: float  # mean of the last 100 games


class ContenderError(Exception):
    """A measured program failed; the message has its last lines."""


def end_on_signals() -> None:
    """Make a signal that ends this program end what it started, too, as Ctrl-C already does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup leaves it
            signal.signal(number, lambda number, _: sys.exit(128 + number))


class Trainer:
    """One run of train.py."""

    def __init__(
        self, flags: list[str], folder: pathlib.Path, env_id: str, root: pathlib.Path = ROOT
    ) -> None:
        """Start the program that lies in `root`; `folder` will be its run folder."""
        self._folder, self._progress = folder, folder / "progress.csv"
        self._output = folder.with_suffix(".output")
        command = [sys.executable, "train.py", *flags, f"--log_dir={folder}", env_id]
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                cwd=root,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The training process's id, and its session's."""
        return self._process.pid

    def rows(self) -> list[Row]:
        """All complete rows of progress.csv so far."""
        if not self._progress.exists():
            return []
        text = self._progress.read_text(encoding="utf-8")
        return [
            Row(
                int(row["misc/steps"]),
                int(row["misc/updates"]),
                float(row["rl/episode_reward_mean_100"]),
            )
            for row in csv.DictReader(text[: text.rfind("\n") + 1].splitlines())
        ]

    def wait_for_rows(self, n_rows: int, seconds: float) -> list[Row]:
        """Wait until progress.csv has so many rows, and return all of them.

        ContenderError if the run ends first, or takes longer.
        """
        until, size = time.monotonic() + seconds, -1
        while True:
            # Only its size is looked at: reading the file again and again would be measured, too.
            size_now = self._progress.stat().st_size if self._progress.exists() else 0
            if size_now != size and len(rows := self.rows()) >= n_rows:
                return rows
            size = size_now
            if self._process.poll() is not None or time.monotonic() > until:
                raise ContenderError(f"train.py made no progress; it said:\n{self.last_words()}")
            time.sleep(0.02)

    def warm_up(self) -> None:
        """Wait until the run has trained for some seconds."""
        n_rows = 1
        while (
            sum(row.steps > 0 for row in self.wait_for_rows(n_rows, START_SECONDS)) < WARM_UP_ROWS
        ):
            n_rows = len(self.rows()) + 1

    def measure(self, seconds: float) -> Slot:
        """Measure from the appearance of one row to that of another.

        The first new row began before the pause, and the second one warms up the caches, so neither
        counts.
        """
        before = self.wait_for_rows(len(self.rows()) + 2, SILENCE_SECONDS)
        start, cpu = time.perf_counter(), self._env_cpu()
        time.sleep(seconds)
        after = self.wait_for_rows(len(self.rows()) + 1, SILENCE_SECONDS)
        elapsed, cpu = time.perf_counter() - start, self._env_cpu() - cpu
        n_steps = after[-1].steps - before[-1].steps
        if not n_steps:
            raise ContenderError("train.py did not learn anything in a whole slot")
        return Slot(n_steps, elapsed, cpu / n_steps)

    def pause(self) -> None:
        """Stop it once every request to an environment is answered.

        With an open request, the environment would seem to be silent for as long as the pause.
        """
        os.kill(self.pid, signal.SIGSTOP)
        n_looks_at_rest = 0
        until = time.monotonic() + SILENCE_SECONDS
        while n_looks_at_rest < 3 and time.monotonic() < until:
            time.sleep(0.05)
            envs = machine.environment_processes(self.pid)
            at_rest = all(process.state == "S" for process in envs)
            n_looks_at_rest = n_looks_at_rest + 1 if at_rest else 0
        os.killpg(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Undo `pause`."""
        os.killpg(self.pid, signal.SIGCONT)

    def wait(self) -> int:
        """Wait for its own end; returns its exit status."""
        return self._process.wait()

    def steps_to(self, score: float) -> int | None:
        """Wait until the mean of the last 100 games reaches a score; at which step it did, if it did."""
        while True:
            has_ended = self._process.poll() is not None
            path = self._folder / "monitor.csv"
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            played = games.merge([games.parse_monitor(text[: text.rfind("\n") + 1])])
            has_reached = curves.trailing_mean(played.scores, 100) >= score
            if has_reached.any():
                return int(played.steps[99 + np.argmax(has_reached)])
            if has_ended:
                if self._process.returncode:
                    raise ContenderError(f"train.py failed; it said:\n{self.last_words()}")
                return None
            time.sleep(1.0)

    def close(self) -> None:
        """End it, with everything that it started."""
        _end(self._process)

    def _env_cpu(self) -> float:
        return sum(process.cpu for process in machine.environment_processes(self.pid))

    def last_words(self) -> str:
        """The last lines of its output."""
        return "\n".join(self._output.read_text(encoding="utf-8").splitlines()[-20:])


def start_for_slots(setting: Setting, folder: pathlib.Path, *more_flags: str) -> Trainer:
    """Train under a setting, with a row each second and nothing saved meanwhile."""
    flags = [*setting.flags, *more_flags, "--n_steps=1e12", "--ckpt_interval_seconds=1e9"]
    interval = "manager_wake" if setting.revision else "log"
    flags.append(f"--{interval}_interval_seconds={SECONDS_PER_ROW}")
    root = ROOT
    if setting.revision:
        root = folder.with_suffix(".source")
        with tarfile.open(fileobj=io.BytesIO(archive(setting.revision))) as source:
            source.extractall(root, filter="data")
    return Trainer(flags, folder, TASKS[setting.task].env_id, root)


def archive(revision: str) -> bytes:
    """The program of a revision, as a tar file; empty if this clone has no such revision."""
    command = ["git", "archive", revision, "a3c", "train.py"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).stdout


class Server:
    """A program that answers lines of its input with measurements: peer.py, calls.py."""

    def __init__(self, python: str | pathlib.Path, module: str, output: pathlib.Path) -> None:
        self._output = output
        with output.open("wb") as errors:
            self._process = subprocess.Popen(
                [str(python), "-m", module],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process's id, and its session's."""
        return self._process.pid

    def measure(self, setting: PeerSetting | CallsSetting, seconds: float) -> Slot:
        """Let it work with a setting; it warms up by itself."""
        measured = self._answer(setting, seconds=seconds)
        n_weights = calibration.n_weights(setting.task)
        if measured.get("n_weights", n_weights) != n_weights:
            raise ContenderError(f"{setting} has {measured['n_weights']} weights, ours {n_weights}")
        return Slot(measured["n_steps"], measured["seconds"], env_cpu_seconds=None)

    def steps_to(
        self, setting: PeerSetting, score: float, most_steps: float, seed: int
    ) -> int | None:
        """Let it learn anew until the mean of its last 100 games reaches a score, as `Trainer` does."""
        answer = self._answer(setting, score=score, most_steps=most_steps, seed=seed)
        n_steps: int | None = answer["n_steps"]
        return n_steps

    def _answer(self, setting: PeerSetting | CallsSetting, **wanted: float) -> dict[str, Any]:
        line = json.dumps(setting._asdict() | wanted)
        requests, answers = self._pipes()
        with contextlib.suppress(BrokenPipeError):  # then there will be no answer
            print(line, file=requests, flush=True)
        answer = answers.readline()
        if not answer:
            words = self._output.read_text(encoding="utf-8").splitlines()[-20:]
            raise ContenderError(f"{setting} failed; it said:\n" + "\n".join(words))
        return dict(json.loads(answer))

    def close(self) -> None:
        """End it, with everything that it started."""
        _end(self._process)

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self._process.stdin
        assert self._process.stdout
        return self._process.stdin, self._process.stdout


def _end(leader: subprocess.Popen[Any]) -> None:
    """Kill the leader of a session, and its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGKILL)
    leader.wait()
