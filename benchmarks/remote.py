"""What a remote worker costs, and what many machines would reach.

    python3 -m benchmarks.remote measure       updates here and by remote workers → benchmarks/remote.json
    python3 -m benchmarks.remote queue         workers that only sleep, on two nodes → the same file
    python3 -m benchmarks.remote draw          the simulation of the head's queue → images/remote-scaling.png

Local and remote workers take turns in rounds, because other programs may run on this machine; the
figures are medians over all rounds. Nodes are processes of this machine, so no network is measured.
"""

import argparse
import contextlib
import heapq
import json
import pathlib
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks import machine

FOLDER = pathlib.Path(__file__).resolve().parent
MEASURED, PICTURE = FOLDER / "remote.json", FOLDER.parent / "images/remote-scaling.png"
SETTINGS = {
    f"{network} {k}": f"--network {network} --envs_per_worker {k} {env_id}"
    for network, env_id in (
        ("small", "PongNoFrameskip-v4"),
        ("nature", "PongNoFrameskip-v4"),
        ("mlp", "CartPole-v1"),
    )
    for k in (1, 32)
}
N_STEPS = 5
CORES_OF_A_MACHINE = 16
LATENCY_SECONDS = 2e-4  # of a local network, one way
GIGABITS = (1, 10, 25)
QUEUED = ("small 1", "nature 1", "mlp 1")
SLEEPERS, SLEEP_SECONDS = (1, 2, 4, 8, 16), 0.1


class Update(NamedTuple):
    """Seconds of one update, medians over many."""

    worker: float  # a rollout, and for a remote worker its gradients and their way out and back
    apply: float  # clipping, RMSProp and the new copy, and for a local worker its gradients
    run_cpu: float  # processor time in the run's process
    ray_cpu: float  # processor time in the process that talks to Ray


def cpu_seconds(pid: int) -> float:
    process = machine.read_process(machine.PROC / str(pid))
    if process is None:
        raise ProcessLookupError(pid)
    return process.cpu


def time_updates(source: Any, seconds: float, ray_pid: int | None = None) -> Update:
    """Have a source collect, and learn, for so many seconds."""
    spent: list[np.ndarray] = []
    before = (time.process_time(), cpu_seconds(ray_pid) if ray_pid else 0.0)
    until = time.monotonic() + seconds
    while time.monotonic() < until or len(spent) < 3:
        times = [time.perf_counter()]
        source.collect({})
        times.append(time.perf_counter())
        source.learn(1e-5)
        times.append(time.perf_counter())
        spent.append(np.diff(times))
    n = len(spent)
    after = (time.process_time(), cpu_seconds(ray_pid) if ray_pid else 0.0)
    worker, apply = np.median(spent, axis=0)
    return Update(
        float(worker), float(apply), *((b - a) / n for a, b in zip(before, after, strict=True))
    )


@contextlib.contextmanager
def sources(arguments: str, ray_process: Any) -> Iterator[tuple[Any, list[Any]]]:
    """A local source, and remote ones."""
    from a3c.agent import process_collector
    from a3c.agent.blocks import Receiver
    from a3c.agent.learner import Learner
    from a3c.agent.source import local_source
    from a3c.contract import WorkerPosition
    from a3c.envs.fleet import Fleet
    from a3c.envs.make import describe_env
    from a3c.envs.pool import Pool
    from a3c.machine import place
    from a3c.run.actor import Setup
    from a3c.run.remote import RemoteSource
    from a3c.run.start import subject_of
    from a3c.run.training import build_shared
    from a3c.settings import command_line
    from a3c.settings.params import ParsedParams, resolve
    from a3c.store import provenance
    from a3c.store.resume import Start

    asked = command_line.parse(arguments.split())
    assert isinstance(asked, ParsedParams)
    description = describe_env(asked.params)
    params = resolve(asked, description.kind, description.is_continuous).params
    subject, n_envs = subject_of(params, description), params.envs_per_worker
    shared = build_shared(params, subject, Start())
    fleet, games = Fleet(1, n_envs, restarts_a_minute=10), [0] * n_envs
    fleet.n_processes_each = 1  # as in an actor
    how = process_collector.collecting(params, subject)
    pool = Pool(params, description, 0, N_STEPS + 1, games, fleet, how)
    with contextlib.closing(pool):
        generator = np.random.default_rng(0)
        learner = Learner(shared, params, subject, pool.observations)
        here = local_source(learner, pool, params, generator, print)
        here.begin()
        receiver = Receiver(shared, N_STEPS * n_envs)
        position = WorkerPosition(generator.bit_generator.state, games)
        code = provenance.digest_of(place.CODE)
        remote = [
            RemoteSource(
                Setup(params, subject, description, number, position, code),
                *(receiver, ray_process, channel, print, lambda: False),
            )
            for number, channel in enumerate(ray_process.channels, start=1)
        ]
        yield here, remote


def measure(seconds: float, rounds: int) -> None:
    """Measure every setting, and write the figures."""
    from a3c.machine import tensorflow_process

    tensorflow_process.keep_freed_memory()
    with tensorflow_process.hushed():
        tensorflow_process.start_tensorflow()
    from a3c.machine import cluster

    cluster.load("auto")
    from ray.cluster_utils import Cluster

    figures: dict[str, Any] = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
    node = {"num_cpus": 1, "include_dashboard": False}
    for name, arguments in SETTINGS.items():
        nodes = Cluster(initialize_head=True, head_node_args=node | {"num_cpus": 0})
        try:
            nodes.add_node(**node)
            new = measure_one(arguments, nodes.address, seconds, rounds)
            figures[name] = figures.get(name, {}) | new
        finally:
            nodes.shutdown()
        print(name, json.dumps(figures[name]), flush=True)
        MEASURED.write_text(json.dumps(figures, indent=1) + "\n")


def measure_one(arguments: str, address: str, seconds: float, rounds: int) -> dict[str, Any]:
    """One setting, by turns: a worker here, and a remote one on a node of its own."""
    from a3c.run.ray_process import RayProcess

    ray_process = RayProcess(address, 1, 600.0)
    pid = ray_process._process.pid
    with contextlib.closing(ray_process), sources(arguments, ray_process) as (here, (remote,)):
        remote.begin()
        remote.collect({})
        n_bytes = {"out": 4 * remote._receiver.n_weights, "back": 4 * remote._latest.n_gradients}
        remote.learn(1e-5)
        turns: dict[str, list[Any]] = {"local": [], "remote": [], "applied": []}
        for _ in range(rounds):
            turns["local"].append(time_updates(here, seconds))
            turns["remote"].append(time_updates(remote, seconds, pid))
            turns["applied"].append(applied_per_second(remote, seconds / 2))
        medians = {
            kind: Update(*np.median(turns[kind], axis=0).tolist())._asdict()
            for kind in ("local", "remote")
        }
        return medians | {"applied": statistics.median(turns["applied"]), "bytes": n_bytes}


class Sleeper:
    """Takes the place of an actor: it sleeps for a rollout, and needs no core meanwhile."""

    def begin(self, setup: Any) -> str:
        self._setup = setup
        self._block = np.full(setup.description, 1e-6, np.float32)
        return "here"

    def collect(self, number: int, weights: np.ndarray, moments: Any) -> Any:
        from a3c.contract import Collected
        from a3c.run.actor import Answer

        time.sleep(SLEEP_SECONDS)
        collected = Collected(N_STEPS, N_STEPS, [], {}, self._setup.position)
        return self._block, Answer(number, collected, [])

    def is_alive(self) -> None:
        """As an actor's."""


def measure_queue(seconds: float) -> None:
    """How many updates a second 1 to 16 sleepers reach; added to the figures of `measure`."""
    from a3c.machine import cluster, tensorflow_process

    with tensorflow_process.hushed():
        tensorflow_process.start_tensorflow()
    from a3c.run.ray_process import RayProcess

    class OfSleepers(RayProcess):
        program = (
            "from a3c.machine import cluster; cluster.load('auto'); from ray import cloudpickle;"
            "from a3c.run import ray_process; from benchmarks import remote;"
            "cloudpickle.register_pickle_by_value(remote);"
            "ray_process.Actor = remote.Sleeper; ray_process.main()"
        )

    cluster.load("auto")
    from ray.cluster_utils import Cluster

    figures = json.loads(MEASURED.read_text())
    nodes = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    try:
        for _ in range(2):
            nodes.add_node(num_cpus=8, include_dashboard=False)
        for name in QUEUED:
            ray_process = OfSleepers(nodes.address, max(SLEEPERS), 600.0)
            with (
                contextlib.closing(ray_process),
                sources(SETTINGS[name], ray_process) as (_, remote),
            ):
                for source in remote:
                    n = min(source._receiver._functions)
                    source._setup = source._setup._replace(description=n)
                    source.begin()
                updates_per_second(remote, 0.0)
                rates = {n: updates_per_second(remote[:n], seconds) for n in SLEEPERS}
            figures[name]["sleepers"] = rates
            print(name, rates, flush=True)
            MEASURED.write_text(json.dumps(figures, indent=1) + "\n")
    finally:
        nodes.shutdown()


def updates_per_second(remote: Sequence[Any], seconds: float) -> float:
    """Of all remote workers together."""
    until, counts = time.monotonic() + seconds, []

    def work(source: Any) -> None:
        n = 0
        while n == 0 or time.monotonic() < until:
            source.collect({})
            source.learn(1e-5)
            n += 1
        counts.append(n)

    threads = [threading.Thread(target=work, args=(source,)) for source in remote]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.monotonic() - begin)


def applied_per_second(source: Any, seconds: float) -> float:
    """How many blocks the head applies if they lie ready."""
    n, begin = 0, time.monotonic()
    n_gradients = min(source._receiver._functions)
    block = np.full(n_gradients, 1e-6, np.float32)
    while time.monotonic() - begin < seconds:
        source._blocks[0] = source._apply(block, 1e-7)
        n += 1
    return n / (time.monotonic() - begin)


class Costs(NamedTuple):
    """What an update takes, in seconds and bytes."""

    worker: float  # at the worker
    ray: float  # in the process that talks to Ray, which does one after the other
    head: float  # in the run, likewise
    out: int
    back: int


def simulated(
    costs: Costs,
    n_workers: int,
    bytes_per_second: float,
    latency: float = LATENCY_SECONDS,
) -> float:
    """Updates a second of workers that queue for the head's network card, its Ray and its update.

    Each queue serves one after the other, in the order in which they arrive:

        worker → network in → Ray → update → Ray → network out → worker
    """
    generator = np.random.default_rng(0)
    services = [
        ("in", costs.back / bytes_per_second, latency),
        ("ray", costs.ray / 2, 0.0),
        ("head", costs.head, 0.0),
        ("ray", costs.ray / 2, 0.0),
        ("out", costs.out / bytes_per_second, latency),
    ]
    free_at = dict.fromkeys(("in", "ray", "head", "out"), 0.0)
    # Rollouts of one worker differ by a fifth.
    events = [(costs.worker * generator.gamma(25) / 25, number, 0) for number in range(n_workers)]
    heapq.heapify(events)
    n_updates, begin, now = 0, 0.0, 0.0
    n_counted = max(10 * n_workers, 1000)
    while n_updates < 5 * n_workers + n_counted:
        now, number, stage = heapq.heappop(events)
        if stage == len(services):
            n_updates += 1
            if n_updates == 5 * n_workers:  # from here on, nothing is left of the common start
                begin = now
            after, stage = now + costs.worker * generator.gamma(25) / 25, -1
        else:
            queue, service, further = services[stage]
            free_at[queue] = max(free_at[queue], now) + service
            after = free_at[queue] + further
        heapq.heappush(events, (after, number, stage + 1))
    return n_counted / (now - begin)


def costs_of(figures: dict[str, Any]) -> Costs:
    """An update's costs, from what was measured; the worker's are those of a local one, which applies too."""
    remote, n_bytes = figures["remote"], figures["bytes"]
    local = figures["local"]["worker"] + figures["local"]["apply"]
    return Costs(
        max(local - remote["apply"], 1e-4),
        remote["ray_cpu"],
        remote["run_cpu"],
        n_bytes["out"],
        n_bytes["back"],
    )


def draw() -> None:
    """Draw steps a second over machines, and print the tables of docs/scaling.md."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    measured = json.loads(MEASURED.read_text())
    machines = [1, 2, 4, 8, 16, 32, 64]
    figure, panels = pyplot.subplots(2, 3, figsize=(11, 6), sharex=True, layout="constrained")
    rows: dict[str, list[list[str]]] = {"update": [], "head": [], "reach": [], "check": []}
    for panel, (name, figures) in zip(panels.T.flat, measured.items(), strict=True):
        costs, k = costs_of(figures), int(name.split()[1])
        steps, head = N_STEPS * k, f"{name.split()[0]}, K = {k}"
        local, remote = (
            figures[kind]["worker"] + figures[kind]["apply"] for kind in ("local", "remote")
        )
        megabytes = [f"{n / 1e6:.2f}" for n in (costs.out, costs.back)]
        rows["update"].append([head, f"{1e3 * local:.0f}", f"{1e3 * remote:.0f}", *megabytes])
        cpu = [f"{1e3 * figures['remote'][part]:.1f}" for part in ("run_cpu", "ray_cpu")]
        rows["head"].append([head, f"{figures['applied']:.0f}", *cpu])
        reached = []
        for gigabits in GIGABITS:
            rates = [
                steps * simulated(costs, CORES_OF_A_MACHINE * n, gigabits * 1.25e8)
                for n in machines
            ]
            panel.plot(machines, rates, marker="o", ms=3, label=f"{gigabits} Gb/s")
            reached += [f"{rates[machines.index(n)]:,.0f}" for n in (4, 16, 64)]
        rows["reach"].append([head, *reached, slowest_of(costs)])
        ideal = [steps * CORES_OF_A_MACHINE * n / costs.worker for n in machines]
        panel.plot(machines, ideal, "--", color="grey", label="no queue")
        panel.set(title=head, xscale="log", yscale="log")
        panel.set_xticks(machines, [str(n) for n in machines])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
        if "sleepers" in figures:
            rates = figures["sleepers"]
            elsewhere = 1 / rates["1"] - costs.ray - costs.head
            alone = costs._replace(worker=elsewhere, out=0, back=0)  # no network is between them
            expected = [simulated(alone, int(n), 1.0, latency=0.0) for n in rates]
            pairs = zip(rates.values(), expected, strict=True)
            rows["check"].append([head, *(f"{m:.1f} ({e:.1f})" for m, e in pairs)])
    panels[0, 0].legend()
    for panel in panels[1]:
        panel.set_xlabel("machines of 16 cores, a worker each core")
    for panel in panels[:, 0]:
        panel.set_ylabel("agent steps a second")
    figure.savefig(PICTURE, dpi=110)
    for kind, cells in rows.items():
        print(kind, *(f"| {' | '.join(row)} |" for row in cells), sep="\n")


def slowest_of(costs: Costs, bytes_per_second: float = 1.25e9) -> str:
    """What gives way first with 10 Gb/s: the queue that takes longest for an update."""
    queues = {
        "network": max(costs.out, costs.back) / bytes_per_second,
        "Ray's process": costs.ray,
        "update": costs.head,
    }
    return max(queues, key=queues.__getitem__)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("what", choices=["measure", "queue", "draw"])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(argv)
    if options.what == "draw":
        draw()
    elif options.what == "queue":
        measure_queue(options.seconds)
    else:
        measure(options.seconds, options.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
