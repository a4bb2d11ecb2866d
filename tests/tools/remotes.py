"""Remote workers without Ray: their actors are in this process, and a test says what becomes of them."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Pipe
from typing import Any

import numpy as np

from a3c.agent import moments, process_collector
from a3c.agent.blocks import Receiver
from a3c.agent.learner import Learner
from a3c.agent.source import local_source
from a3c.agent.worker import MainThreadLink, Report, Source, Worker
from a3c.contract import Collected, Game, Moments, Snapshot, WorkerPosition
from a3c.envs.fleet import Fleet
from a3c.envs.make import describe_env
from a3c.envs.pool import Pool
from a3c.machine import place, seeding
from a3c.machine.stopping import StopFlag
from a3c.run import training
from a3c.run.actor import Actor, Answer, Setup
from a3c.run.ray_process import Begin, Begun, Channel, Collect, Done, Failed
from a3c.run.remote import RemoteSource
from a3c.run.start import subject_of
from a3c.settings import command_line
from a3c.settings.params import ParsedParams, resolve
from a3c.store import provenance
from a3c.store.resume import Start

NUMBER = 1  # of the worker; worker 0 is never remote


class Actors:
    """Stands for `RayProcess`, with one worker. `fate` may change an answer, or lose the actor."""

    def __init__(
        self,
        fate: Callable[[int, Any, np.ndarray], Any] | None = None,
        make: Callable[[], Any] = Actor,
    ) -> None:
        ours, theirs = Pipe()
        memory = os.memfd_create("blocks")
        self.channels = [Channel(ours, memory)]
        self._server = Channel(theirs, os.dup(memory))
        self._fate = fate or (lambda number, answer, gradients: answer)
        self._make = make
        self.begun: list[WorkerPosition] = []  # where each actor began
        self.n_asked = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def last_words(self) -> str:
        return "the connection to Ray is lost: so it goes"

    def _serve(self) -> None:
        connection, actor = self._server.connection, None
        with contextlib.suppress(EOFError, OSError):
            while True:
                request = connection.recv()
                if isinstance(request, Begin):
                    self.close_actor(actor)
                    self.begun.append(request.setup.position)
                    weights, gradients = self._server.blocks(request.n_weights)
                    actor = self._make()
                    answer: Any = Begun(actor.begin(request.setup))
                else:
                    answer = self._collect(actor, request, weights, gradients)
                connection.send(answer)
        self.close_actor(actor)

    def _collect(
        self, actor: Any, request: Collect, weights: np.ndarray, gradients: np.ndarray
    ) -> Any:
        self.n_asked += 1
        try:
            block, answer = actor.collect(request.number, weights, request.moments)
        except Exception as error:
            return Failed(f"Traceback\n{type(error).__name__}: {error}")
        gradients[: len(block)] = block
        done = self._fate(self.n_asked, Done(answer, len(block)), gradients)
        if done is None:
            self._server.connection.close()
        return done

    def close_actor(self, actor: Any) -> None:
        if isinstance(actor, Actor):
            actor.pool.close()


class Canned:
    """An actor without environments, whose rollouts are all alike, and the receiver for its blocks."""

    n_weights, sizes = 4, (4,)

    def begin(self, setup: Setup) -> str:
        self._setup = setup
        return "here"

    def collect(self, number: int, weights: np.ndarray, kept: Mapping[str, Moments]) -> Any:
        n_steps = self._setup.params.steps_per_update
        seen = {name: moments.of(np.ones((n_steps, *m.mean.shape))) for name, m in kept.items()}
        games = [Game(NUMBER, 0, 1.0, 5)]
        collected = Collected(n_steps, n_steps, games, seen, self._setup.position)
        return np.ones(4, np.float32), Answer(number, collected, [])

    def new_worker(self) -> Any:
        return np.zeros(4, np.float32), lambda block, rate: np.zeros(4, np.float32)


@contextlib.contextmanager
def learned(
    arguments: str, actors: Actors | None = None
) -> Iterator[tuple[Worker, Snapshot, list[Report]]]:
    """One worker's training by these arguments of train.py, here or by actors: what it has left."""
    asked = command_line.parse([*arguments.split(), "--no_xla"])
    assert isinstance(asked, ParsedParams)
    description = describe_env(asked.params)
    params = resolve(asked, description.kind, description.is_continuous).params
    subject, n_envs = subject_of(params, description), params.envs_per_worker
    shared = training.build_shared(params, subject, Start())
    reports: list[Report] = []
    main = MainThreadLink(StopFlag(), reports.append)
    generator = seeding.generator(params.seed, seeding.Purpose.ACTIONS, worker=NUMBER)
    games, n_slots = Start().first_games(NUMBER, n_envs), params.steps_per_update + 1
    with contextlib.ExitStack() as open_things:
        if actors is None:
            fleet = Fleet(1, n_envs)
            how = process_collector.collecting(params, subject)
            pool = Pool(params, description, NUMBER, n_slots, games, fleet, how)
            open_things.callback(pool.close)
            learner = Learner(shared, params, subject, pool.observations)
            source: Source = local_source(learner, pool, params, generator, main.report)
        else:
            position = WorkerPosition(generator.bit_generator.state, games)
            code = provenance.digest_of(place.CODE)
            setup = Setup(params, subject, description, NUMBER, position, code)
            receiver, channel = (
                Receiver(shared, params.steps_per_update * n_envs),
                actors.channels[0],
            )
            open_things.callback(channel.connection.close)
            source = RemoteSource(setup, receiver, actors, channel, main.report, main.stop.is_set)
        worker = Worker(NUMBER, shared, source, params, main)
        worker.run()
        yield worker, shared.snapshot(lambda: None)[0], reports


def same(one: Snapshot, other: Snapshot) -> None:
    """Whether two snapshots have the same bits, counts included."""
    assert one.counts == other.counts
    for part in ("weights", "mean_squares"):
        for name, array in getattr(one, part).items():
            assert array.tobytes() == getattr(other, part)[name].tobytes(), name
    assert one.moments.keys() == other.moments.keys()
    for name, (n, *arrays) in one.moments.items():
        assert n == other.moments[name].n
        np.testing.assert_array_equal(arrays, other.moments[name][1:])
