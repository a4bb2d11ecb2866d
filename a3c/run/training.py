"""Builds everything that a run consists of, and has it watched until it ends."""

import contextlib
import time
from collections.abc import Sequence

import numpy as np

from a3c.agent import moments, network
from a3c.agent.blocks import Receiver
from a3c.agent.learner import Learner
from a3c.agent.shared import SharedState
from a3c.agent.source import local_source
from a3c.agent.worker import MainThreadLink, Worker
from a3c.contract import EnvDescription, Subject, WorkerPosition
from a3c.envs.pool import Pool
from a3c.machine import place, seeding, tensorflow_process
from a3c.machine.stopping import Stopped, StopSignals, kept_from_new_threads
from a3c.play.evaluator import Evaluator
from a3c.run.actor import Setup
from a3c.run.ray_process import RayProcess
from a3c.run.remote import RemoteSource
from a3c.run.watch import Reports, Run, Watch
from a3c.settings.params import Params
from a3c.store import provenance
from a3c.store.checkpoint import UnusableCheckpoint
from a3c.store.logs import RunLog
from a3c.store.resume import Start
from a3c.store.run_folder import RunFolder


def train(
    params: Params,
    subject: Subject,
    pools: Sequence[Pool],
    folder: RunFolder,
    start: Start,
    signals: StopSignals,
    remote: tuple[RayProcess, EnvDescription] | None = None,
) -> int:
    """Train until the run has its steps or is stopped; returns the exit status.

    The first workers have these pools, and any others are remote.
    """
    tensorflow_process.keep_freed_memory()
    with kept_from_new_threads():
        tensorflow_process.start_tensorflow()
    with contextlib.closing(RunLog(folder, params, start)) as log:
        shared = build_shared(params, subject, start)
        run = Run(params, subject, folder, start, signals, log, shared, Reports())
        workers: list[Worker] = []
        if not signals.stop.is_set():  # tracing takes seconds
            workers = build_workers(run, pools)
            if remote is not None:
                workers += build_remote_workers(run, len(pools), *remote)
            with contextlib.suppress(Stopped):
                for pool in pools:
                    pool.wait_until_ready()
        if signals.stop.is_set():
            log.say("stopped before the first update")
            return signals.exit_status
        if params.eval_interval_steps is None:
            return Watch(run, workers).run()
        evaluator = Evaluator(params, subject, shared, folder, run.reports.put)
        with contextlib.closing(evaluator):
            return Watch(run, workers, evaluator).run()


def build_shared(params: Params, subject: Subject, start: Start) -> SharedState:
    """Make the shared state with which the run starts."""
    generator = seeding.generator(params.seed, seeding.Purpose.WEIGHTS)
    weights = network.initial_weights(
        network.weight_shapes(subject), params.initial_weights, generator, params.initial_sd
    )
    first_moments = moments.initial(params, subject.observation_shape)
    shared = SharedState(weights, params, start.counts, first_moments)
    if start.checkpoint:
        try:
            shared.restore(start.checkpoint.snapshot)
        except ValueError as error:
            raise UnusableCheckpoint(f"cannot restore {start.checkpoint.path}: {error}") from None
    return shared


def build_workers(run: Run, pools: Sequence[Pool]) -> list[Worker]:
    """Make the workers; TensorFlow traces its functions once for all of them."""
    params, shared = run.params, run.shared
    start = time.monotonic()
    run.log.say("tracing the network's functions")
    # All pools have this shape.
    learner = Learner(shared, params, run.subject, pools[0].observations)
    run.log.say(f"traced in {time.monotonic() - start:.1f} s")
    main = MainThreadLink(run.signals.stop, run.reports.put)
    workers = []
    for worker, pool in enumerate(pools):
        generator = _generator_of(run, worker)
        source = local_source(learner, pool, params, generator, main.report, main.stop.is_set)
        workers.append(Worker(worker, shared, source, params, main))
    return workers


def build_remote_workers(
    run: Run, first: int, ray_process: RayProcess, description: EnvDescription
) -> list[Worker]:
    """Make the workers from this number on."""
    params, shared = run.params, run.shared
    main = MainThreadLink(run.signals.stop, run.reports.put)
    n_envs = params.envs_per_worker
    receiver = Receiver(shared, params.steps_per_update * n_envs)
    code = provenance.digest_of(place.CODE)

    def is_over() -> bool:
        return main.stop.is_set() or shared.counters.are_complete()

    workers = []
    for number, channel in enumerate(ray_process.channels, start=first):
        state = _generator_of(run, number).bit_generator.state
        position = WorkerPosition(state, run.start.first_games(number, n_envs))
        setup = Setup(params, run.subject, description, number, position, code)
        remote = RemoteSource(setup, receiver, ray_process, channel, main.report, is_over)
        workers.append(Worker(number, shared, remote, params, main))
    return workers


def _generator_of(run: Run, worker: int) -> np.random.Generator:
    """What draws a worker's actions.

    A new run from a checkpoint draws from a new stream, and does not repeat the first run's draws. A
    resumed run continues with the state that was saved.
    """
    n_updates = run.start.counts.updates
    generator = seeding.generator(run.params.seed, seeding.Purpose.ACTIONS, worker, game=n_updates)
    if run.start.position:
        generator.bit_generator.state = run.start.position.workers[worker].generator
    return generator
