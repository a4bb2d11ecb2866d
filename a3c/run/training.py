"""Builds all that a run is made of, and has it watched to its end."""

import contextlib
import ctypes
import dataclasses
import pathlib
import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from a3c.agent import network
from a3c.agent.learner import Hyperparameters, LocalNetwork, Traced
from a3c.agent.shared import Counters, Counts, SharedState
from a3c.agent.worker import Worker
from a3c.contract import WorkerPosition
from a3c.envs.pool import EnvProcesses
from a3c.machine import seeding
from a3c.machine.stopping import Stopped, StopSignals, kept_from_new_threads
from a3c.play.evaluator import Evaluator
from a3c.run.watch import Reports, Watch
from a3c.settings.params import Params
from a3c.store import checkpoint, logs, resume
from a3c.store.checkpoint import Checkpointer
from a3c.store.checkpoint_files import Info, Subject

# What differs between any two runs, and is not worth a line when one goes on from the other.
_OF_ONE_RUN = {"log_dir", "run_name", "load_ckpt"}


def train(
    params: Params,
    subject: Subject,
    envs: Sequence[EnvProcesses],
    folder: pathlib.Path,
    signals: StopSignals,
    restore_from: Info | None = None,
    standing: resume.Standing | None = None,
    is_taken_over: Callable[[], bool] = lambda: False,
) -> int:
    """Train until the run has its steps or is stopped; returns the exit status.

    `standing` is there if the run is resumed in its own folder. `is_taken_over`: has another run
    its folder there?
    """
    keep_freed_memory()
    with kept_from_new_threads():
        network.start_tensorflow()
    counts = Counts(**restore_from.counters) if restore_from else Counts()
    is_resumed = standing is not None
    log = logs.RunLog(folder, counts.steps, params.n_steps, resumed=is_resumed)
    try:
        shared = _build_shared(params, subject, Counters(params.n_steps, counts))
        if restore_from:
            checkpoint.restore(restore_from, shared)
            if not is_resumed:
                _say_what_was_restored(restore_from, params, log)
        reports = Reports()
        generators = _generators(params, counts.updates, standing)
        n_rows = standing.n_rows if standing else [[0] * len(each.next_games) for each in envs]
        positions = [
            WorkerPosition(generator.bit_generator.state, list(processes.next_games), rows)
            for generator, processes, rows in zip(generators, envs, n_rows, strict=True)
        ]
        workers = _build_workers(
            params, subject, envs, generators, n_rows, shared, signals, reports, log
        )
        with contextlib.suppress(Stopped):
            for processes in envs:
                processes.wait_until_ready()
        checkpointer = Checkpointer(
            folder / "checkpoints",
            shared,
            subject,
            dataclasses.asdict(params),
            params.keep_ckpts,
            n_steps_saved=counts.steps if _is_own(restore_from, folder) else None,
            is_taken_over=is_taken_over,
        )
        evaluator = None
        if params.eval_interval_steps is not None:
            as_dict = dataclasses.asdict(params)
            evaluator = Evaluator(subject, as_dict, shared, folder, reports.put, is_taken_over)
        watch = Watch(
            params,
            folder,
            shared,
            workers,
            checkpointer,
            log,
            signals,
            reports,
            positions,
            evaluator,
            is_taken_over,
        )
        if standing:
            watch.take_over(standing)
        try:
            return watch.run()
        finally:
            if evaluator is not None:
                evaluator.stop()
    finally:
        log.close()


def keep_freed_memory() -> None:
    """Have glibc keep the large blocks that TensorFlow frees, for the next update to take again,
    and take them from huge pages, where the system gives these to who asks.

    Given back to the system, they came back as fresh pages that it zeroes first: a sixth of the
    time of an update of `small` with 8 environments. It takes both settings; one of them alone is
    worse than none.

    Huge pages are asked for a free block of 1 GB in glibc's books, of which others are cut, and
    which takes no room until used. One behind it that is never freed keeps it from being given back
    as a whole, as `malloc_trim` would, which protobuf calls when it likes.
    """
    trim_threshold, mmap_max, madv_hugepage = -1, -4, 14  # by their names in C
    huge, n_bytes = 2**21, 2**30
    with contextlib.suppress(AttributeError, OSError, TypeError):  # where there is no glibc
        libc = ctypes.CDLL(None)
        libc.malloc.restype = ctypes.c_void_p
        libc.mallopt(trim_threshold, n_bytes)
        libc.mallopt(mmap_max, 0)
        block = libc.malloc(ctypes.c_size_t(n_bytes))
        libc.malloc(ctypes.c_size_t(2**26))  # behind: more than is free anywhere before
        if block is not None:  # where there is a limit
            start, end = -(-block // huge) * huge, (block + n_bytes) // huge * huge
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), madv_hugepage)
            libc.free(ctypes.c_void_p(block))


def _build_shared(params: Params, subject: Subject, counters: Counters) -> SharedState:
    shapes = network.weight_shapes(subject.network, subject.observation_shape, subject.n_actions)
    generator = seeding.generator(params.seed, seeding.Purpose.WEIGHTS)
    return SharedState(
        network.initial_weights(shapes, params.initial_weights, generator),
        rmsprop_initial=params.rmsprop_initial,
        rmsprop_decay=params.rmsprop_decay,
        rmsprop_epsilon=params.rmsprop_epsilon,
        max_grad_norm=params.max_grad_norm,
        counters=counters,
    )


def _is_own(info: Info | None, folder: pathlib.Path) -> bool:
    """Whether a checkpoint is one of the run's own, and not of the run that --load_ckpt names."""
    return info is not None and info.prefix.parent == folder / "checkpoints"


def _say_what_was_restored(info: Info, params: Params, log: logs.RunLog) -> None:
    log.say(f"restored {info.prefix} at {info.counters['steps']:,} steps")
    if not info.has_statistics:
        log.say("it holds weights only: RMSProp's statistics start anew")
    for name, value in dataclasses.asdict(params).items():
        if name in _OF_ONE_RUN:
            continue
        if name in info.params and info.params[name] != value:
            log.say(f"  {name}: {info.params[name]!r} there, {value!r} here")


def _generators(
    params: Params, n_updates: int, standing: resume.Standing | None
) -> list[np.random.Generator]:
    """Of each worker, the one that draws its actions.

    A restored run draws on from streams of its own, not the first run's once more; a resumed one
    from where it stood.
    """
    generators = [
        seeding.generator(params.seed, seeding.Purpose.ACTIONS, worker=number, game=n_updates)
        for number in range(params.n_workers)
    ]
    if standing and standing.generators:
        for generator, state in zip(generators, standing.generators, strict=True):
            generator.bit_generator.state = state
    return generators


def _build_workers(
    params: Params,
    subject: Subject,
    envs: Sequence[EnvProcesses],
    generators: Sequence[np.random.Generator],
    n_rows: Sequence[Sequence[int]],
    shared: SharedState,
    signals: StopSignals,
    reports: Reports,
    log: logs.RunLog,
) -> list[Worker]:
    hyperparameters = Hyperparameters(
        subject.network,
        *(getattr(params, name) for name in Hyperparameters._fields[1:]),
    )
    if signals.event.is_set():  # tracing takes seconds
        return []
    start = time.monotonic()
    log.say("tracing the network's functions")
    observations = envs[0].observations  # every worker's are alike
    traced = Traced(
        shared,
        hyperparameters,
        tf.TensorSpec(observations.shape, observations.dtype),
        compile_act=not params.no_xla,
        debug=params.debug,
        detailed=params.detailed_logs,
    )
    log.say(f"traced in {time.monotonic() - start:.1f} s")
    return [
        Worker(
            number,
            shared,
            LocalNetwork(shared, traced),
            processes,
            hyperparameters,
            generators[number],
            signals.event,
            reports.put,
            n_rows[number],
        )
        for number, processes in enumerate(envs)
    ]
