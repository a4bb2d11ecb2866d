"""Environment processes of a real run that are killed or stopped in its middle: it goes on.

While it is running, it is also looked at for open ports: there are none.
"""

import math
import os
import pathlib
import re
import signal

import pytest
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from a3c.envs.fleet import Fleet
from benchmarks import machine
from tests.tools import processes
from tests.tools.run_files import RunFiles

TRAIN = processes.ROOT / "train.py"
N_ENVS = 4
N_PROCESSES = Fleet(1, N_ENVS).n_processes


def env_pids(session: int) -> set[int]:
    """The living environment processes of a run."""
    found = machine.environment_processes(session)
    return {process.pid for process in found if process.state != "Z"}


@pytest.mark.slow
@processes.needs_two_cores
def test_a_run_survives_its_environments(tmp_path):
    """Analytic: one is killed, one stopped (it hangs), one of their successors killed; each has a
    successor, a line in the log and a place in the count, and training goes on after each.
    """
    arguments = [
        *("--log_dir", "run", "--no_xla", "--envs_per_worker", str(N_ENVS)),
        *("--log_interval_seconds", "0.2", "--env_timeout_seconds", "3"),
        *("--n_steps", "1e9", "CartPole-v1"),
    ]
    with processes.dispositions():
        run = processes.start([TRAIN, *arguments], tmp_path)

    def wait_for(n_restarts: int) -> set[int]:
        """Wait until the run has as many restarts, all processes, and some steps more since then."""
        steps: list[float] = []

        def has_gone_on() -> bool:
            assert run.poll() is None, processes.outputs(tmp_path)
            last = (RunFiles(tmp_path / "run").rows() or [{}])[-1]
            is_whole = len(env_pids(run.pid)) == N_PROCESSES
            if is_whole and last.get("misc/env_restarts", -1) >= n_restarts:
                steps.append(last["misc/steps"])
            return bool(steps) and steps[-1] > steps[0] + 200

        processes.wait_until(has_gone_on, f"{n_restarts} restarts, and steps after them")
        return env_pids(run.pid)

    try:
        first = wait_for(0)
        assert processes.open_ports(processes.members(run.pid)) == []
        os.kill(min(first), signal.SIGKILL)
        second = wait_for(1)
        os.kill(max((first & second) or second), signal.SIGSTOP)
        wait_for(2)
        os.kill(min(second - first), signal.SIGKILL)
        wait_for(3)
        run.terminate()
        assert run.wait(processes.DEADLINE_SECONDS) == 143
        processes.wait_until(lambda: not processes.members(run.pid), "all processes to end")
    finally:
        processes.end(run)
    check_what_is_left(tmp_path)


def check_what_is_left(outside: pathlib.Path) -> None:
    """The log, the figures and the games of the run agree."""
    outputs, folder = processes.outputs(outside), outside / "run"
    assert outputs["stderr"] == ""
    assert (folder / "log.txt").read_text() == outputs["stdout"]
    told = re.findall(r"worker 0, environments? \d(?: to \d)? (.*)$", outputs["stdout"], re.M)
    # One that was only slow is replaced as well; three are sure.
    assert told.count("died (exit code -9)") == 2
    assert "has not answered for 3 s" in told
    last = RunFiles(folder).rows()[-1]
    assert last["misc/env_restarts"] == len(told)
    # Each update is of 5 steps of all environments, or of those that are left where a process
    # broke; where that was the only one, there is no update.
    n_lost = 5 * N_ENVS * last["misc/updates"] - last["misc/steps"]
    most = 5 * math.ceil(N_ENVS / N_PROCESSES) * len(told) if N_PROCESSES > 1 else 0
    assert (N_PROCESSES > 1) <= n_lost <= most
    assert n_lost % 5 == 0

    events = EventAccumulator(str(folder), size_guidance={"tensors": 0}).Reload()
    counts = [make_ndarray(e.tensor_proto).item() for e in events.Tensors("misc/env_restarts")]
    assert counts == [row["misc/env_restarts"] for row in RunFiles(folder).rows()]
    n_games = len((folder / "monitor.csv").read_text().splitlines()) - 2
    assert n_games == last["rl/episodes"] > 0
