"""One run on several nodes of a real Ray, each with processes of its own; `make cluster-test` runs this."""

import os
import pathlib
import signal
import socket

import numpy as np
import pytest

from a3c.machine import cluster
from a3c.machine.words import BadInput
from a3c.settings.params import KNOBS
from a3c.store import checkpoint, reading
from tests.conftest import descendants
from tests.tools import mortal, processes
from tests.tools.remotes import same

pytestmark = pytest.mark.cluster

TRAIN = processes.ROOT / "train.py"
NODE = {"num_cpus": 1, "include_dashboard": False}
FLAGS = [
    *("--n_workers", "3", "--no_xla", "--n_steps", "1e7", "--env_timeout_seconds", "5"),
    *("--log_interval_seconds", "0.5", "--ckpt_interval_seconds", "2"),
]


@pytest.fixture
def train(tmp_path):
    """Starts train.py; at the end, it and all that it has started are killed."""
    started = []

    def start(*words):
        with processes.dispositions():
            started.append(processes.start([TRAIN, *words], tmp_path))
        return started[-1]

    yield start
    for process in started:
        for pid in [*descendants(process.pid), process.pid]:
            processes.kill(pid)
        process.wait()


@pytest.fixture
def nodes():
    """A cluster: a head without cores, and two nodes with one each."""
    ray = cluster.load("auto")
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args=NODE | {"num_cpus": 0})
    try:
        nodes.machines = [nodes.add_node(**NODE) for _ in range(2)]
        yield nodes
    finally:
        nodes.shutdown()
        ray.shutdown()


def actors(below: int) -> list[int]:
    """The processes of remote workers among those that this one has started."""
    return [pid for pid in descendants(below) if command(pid).startswith("ray::Actor")]


def command(pid: int) -> str:
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


class Watched:
    """A run, as its files show it."""

    def __init__(self, process, folder: pathlib.Path) -> None:
        self.process, self.folder = process, folder

    def latest(self, column: str) -> float:
        try:
            values = reading.read_progress(self.folder).columns[column]
        except BadInput:
            return -1.0
        return float(values[-1]) if len(values) else -1.0

    def wait_until(self, condition, what: str, seconds: float = 120.0) -> None:
        processes.wait_until(lambda: condition() or self.process.poll() is not None, what, seconds)
        assert self.process.poll() is None, processes.outputs(self.folder.parent)

    def wait_for_workers(self, n: int, seconds: float = 120.0) -> None:
        is_so = lambda: self.latest("misc/remote_workers") == n  # noqa: E731
        self.wait_until(is_so, f"{n} remote workers", seconds)

    def wait_for_progress(self) -> None:
        before = self.latest("misc/updates")
        self.wait_until(lambda: self.latest("misc/updates") > before + 20, "more updates")

    def log(self) -> str:
        return (self.folder / "log.txt").read_text()

    def stop(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        status = self.process.wait(processes.DEADLINE_SECONDS)
        assert status == 128 + number, processes.outputs(self.folder.parent)


def check_counts(folder: pathlib.Path) -> None:
    """Every step is in exactly one update, and every game in one row."""
    found, problems = checkpoint.newest_whole(folder / "checkpoints")
    assert not problems
    counts = found.snapshot.counts
    assert counts.steps == 5 * counts.updates > 0
    rows = (folder / "monitor.csv").read_text().splitlines()[2:]
    assert len(rows) == counts.games
    for array in found.snapshot.weights.values():
        assert np.isfinite(array).all()


def test_a_run_ends_although_a_worker_never_gets_a_machine(tmp_path, train):
    """Analytic: embedded Ray has one core, which one of two remote workers keeps; the first worker learns here."""
    folder = tmp_path / "run"
    words = ["--n_workers", "3", "--no_xla", "--n_steps", "30000", "--cores", "1"]
    process = train(*words, "--log_dir", folder, "--ray", "local", "CartPole-v1")
    assert process.wait(processes.DEADLINE_SECONDS) == 0, processes.outputs(tmp_path)
    check_counts(folder)
    assert Watched(process, folder).latest("misc/steps") == 30_000


def test_a_run_on_three_nodes_survives_what_happens_to_them(tmp_path, train, nodes):
    """Analytic: an actor killed, one hung, an environment process killed, a node killed, and a node that joins later;
    nothing is counted twice, nothing is left behind, and the run is resumed without Ray.
    """
    folder = tmp_path / "run"
    process = train(*FLAGS, "--log_dir", folder, "--ray", nodes.address, "CartPole-v1")
    run = Watched(process, folder)
    run.wait_for_workers(2)
    run.wait_for_progress()

    # On a busy machine, an actor may be silent for too long by itself, so restarts are counted from here.
    before = run.latest("misc/remote_restarts")
    processes.kill(actors(os.getpid())[0])
    run.wait_until(lambda: run.latest("misc/remote_restarts") > before, "a lost actor")
    run.wait_for_workers(2)
    assert "and another takes its place" in run.log()

    before = run.latest("misc/env_restarts")
    environments = descendants(actors(os.getpid())[1])
    processes.kill(max(environments))  # the fork server and the tracker came before it
    run.wait_until(lambda: run.latest("misc/env_restarts") > before, "an environment restart")

    before = run.latest("misc/remote_restarts")
    hung = actors(os.getpid())[0]
    processes.kill(hung, signal.SIGSTOP)
    run.wait_for_progress()  # the others go on
    run.wait_until(lambda: run.latest("misc/remote_restarts") > before, "a hung actor")
    assert "it has not answered for 5 s" in run.log()
    processes.wait_until(lambda: not command(hung), "the hung actor's end")
    run.wait_for_workers(2)

    nodes.remove_node(nodes.machines[0], allow_graceful=False)
    run.wait_for_workers(1)
    run.wait_for_progress()
    nodes.add_node(**NODE)
    run.wait_for_workers(2)
    run.wait_for_progress()

    run.stop()
    processes.wait_until(lambda: not actors(os.getpid()), "the actors' end")
    processes.wait_until(lambda: not processes.members(process.pid), "the end of all processes")
    check_counts(folder)
    n_steps = checkpoint.newest_whole(folder / "checkpoints")[0].n_steps + 50
    alone = train("--resume", folder, "--ray", "none", "--n_steps", str(n_steps))
    assert alone.wait(processes.DEADLINE_SECONDS) == 0, processes.outputs(tmp_path)
    check_counts(folder)


# train.py with other actors, which says at its end which rollouts of the remote worker it has applied; or with a
# worker 0 that does nothing. `hushed` sets how TensorFlow computes, here as in actors, before it is first imported.
MORTAL = """
import sys, train
from a3c.machine.tensorflow_process import hushed
from a3c.run.ray_process import RayProcess
with hushed():
    from a3c.run.remote import RemoteSource
RayProcess.program = "from tests.tools.mortal import main; main()"
learn, applied = RemoteSource.learn, []

def noted(self, rate):
    applied.append(self._latest.answer.number)
    learn(self, rate)

RemoteSource.learn = noted
status = train.main(sys.argv[1:])
print("applied", *applied)
sys.exit(status)
"""
IDLE = """
import sys, train
from a3c.machine.tensorflow_process import hushed
with hushed():
    from a3c.agent.worker import Worker
run = Worker.run
Worker.run = lambda self: run(self) if self.number else None
sys.exit(train.main(sys.argv[1:]))
"""


@pytest.fixture
def train_as(tmp_path, train, monkeypatch):
    """Starts one of the programs above in the place of train.py."""

    def start(program: str, *words):
        (tmp_path / "program.py").write_text(program)
        monkeypatch.setitem(globals(), "TRAIN", tmp_path / "program.py")
        return train(*words)

    return start


def test_actors_that_are_slow_or_die_between_computing_and_answering(tmp_path, train_as):
    """Analytic: a slow one is not replaced, and others go on meanwhile; of two that die, one has computed
    a rollout that nobody has got, the other has just answered. Each rollout is applied and counted once, or not at all.
    """
    folder = tmp_path / "run"
    flags = [*FLAGS, "--n_workers", "2", "--ray", "local", "--log_dir", folder, "CartPole-v1"]
    flags += ["--env_timeout_seconds", "20"]  # nothing hangs here
    run = Watched(train_as(MORTAL, *flags), folder)
    have_died = lambda: run.latest("misc/remote_restarts") == 2  # noqa: E731
    run.wait_until(have_died, "two lost actors", processes.DEADLINE_SECONDS)
    run.wait_for_workers(1)
    run.wait_for_progress()
    run.stop()
    check_counts(folder)
    *_, last = processes.outputs(tmp_path)["stdout"].splitlines()
    applied = [int(number) for number in last.removeprefix("applied").split()]
    assert applied == sorted({*applied})
    assert 8 not in applied
    assert {1, 5, 7, 9, 11} <= {*applied}
    assert run.log().count("another takes its place") == 2
    assert "it has not answered" not in run.log()
    seconds = reading.read_run(folder).games.seconds
    assert np.diff(seconds).max() < mortal.SLOW_SECONDS


def test_a_real_actor_learns_what_a_local_worker_does(tmp_path, train_as):
    """Parity: weights, statistics and moments after 100 updates, bit for bit; with memory, continuous actions,
    running statistics and truncations.
    """
    flags = ["--preset", "mujoco", "--lstm_units", "8", "--max_episode_steps", "50", "--no_xla"]
    flags += ["--n_workers", "2", "--envs_per_worker", "2", "--n_steps", "1000"]
    ends = []
    for name, more in ("remote", ["--ray", "local"]), ("local", []):
        process = train_as(IDLE, *flags, *more, "--log_dir", tmp_path / name, "Pendulum-v1")
        assert process.wait(processes.DEADLINE_SECONDS) == 0, processes.outputs(tmp_path)
        found, problems = checkpoint.newest_whole(tmp_path / name / "checkpoints")
        assert not problems
        ends.append(found.snapshot)
    remote, local = ends
    assert remote.counts == local.counts
    assert local.counts.updates == 100
    assert local.moments
    same(local, remote)


def test_the_end_of_the_head_stops_the_run_with_a_good_checkpoint(
    tmp_path, train, nodes, tmpdir_for_ray, monkeypatch
):
    """Analytic: one clear line and status 1; the run goes on with Ray on this machine alone, where nobody else can
    reach a port. After kill -9, nothing is left of it.
    """
    folder = tmp_path / "run"
    # Ray looks for its head for a minute.
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "5")
    process = train(*FLAGS, "--log_dir", folder, "--ray", nodes.address, "CartPole-v1")
    run = Watched(process, folder)
    run.wait_for_workers(2)
    run.wait_for_progress()
    nodes.remove_node(nodes.head_node, allow_graceful=False)
    assert process.wait(processes.DEADLINE_SECONDS) == 1
    (line,) = processes.outputs(tmp_path)["stderr"].splitlines()
    assert "the connection to Ray is lost" in line
    assert not [*tmpdir_for_ray.glob("a3c-*")]
    check_counts(folder)

    process = train("--resume", folder, "--ray", "local", "--remote_workers", "1")
    run = Watched(process, folder)
    run.wait_for_workers(1)
    ours = [process.pid, *descendants(process.pid)]
    ports = processes.open_ports(ours)
    assert [port for port in ports if "0100007F:" not in port] == []  # none but this machine's own
    assert ports
    processes.kill(process.pid)
    processes.wait_until(lambda: not any(map(command, ours)), "the end of all processes")


def test_ctrl_c_ends_a_run_as_without_ray(tmp_path, train):
    """Analytic: before the actors have begun, too; the run saves, and nothing is left."""
    folder = tmp_path / "run"
    flags = [*FLAGS, "--remote_workers", "1", "--ray", "local"]
    process = train(*flags, "--log_dir", folder, "CartPole-v1")
    run = Watched(process, folder)
    run.wait_until(lambda: run.latest("misc/updates") >= 0, "a row")
    ours = descendants(process.pid)
    run.stop(signal.SIGINT)
    assert "saved" in processes.outputs(tmp_path)["stdout"]
    processes.wait_until(lambda: not any(map(command, ours)), "the end of all processes")


def test_a_cluster_that_is_not_there_is_refused(tmp_path, train):
    """Analytic: in one line, before anything is written."""
    assert KNOBS["ray"].anew
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        process = train("--n_workers", "2", "--log_dir", "run", "--ray", address, "CartPole-v1")
        assert process.wait(processes.DEADLINE_SECONDS) == 2
    assert "no Ray answers at" in processes.outputs(tmp_path)["stderr"]
    assert not (tmp_path / "run").exists()


def test_a_signal_ends_a_run_that_waits_for_ray(tmp_path, train):
    """Analytic: somebody answers, but is no Ray, so Ray tries again and again; nothing is written or left."""
    with socket.create_server(
        ("", 0)
    ) as server:  # Ray turns 127.0.0.1 into another address of here
        server.settimeout(processes.DEADLINE_SECONDS)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        process = train("--n_workers", "2", "--log_dir", "run", "--ray", address, "CartPole-v1")
        with server.accept()[0] as connection:
            connection.sendall(b"\0")
        ray_tries = server.accept()[0]
        ours = [process.pid, *descendants(process.pid)]
        process.send_signal(signal.SIGTERM)
        assert process.wait(processes.DEADLINE_SECONDS) == 143, processes.outputs(tmp_path)
        ray_tries.close()
    processes.wait_until(lambda: not any(map(command, ours)), "the end of all processes")
    assert not (tmp_path / "run").exists()
