"""Workers for tests, with one shared state, environments in this process, and recorded calls."""

import dataclasses
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from a3c.agent import network
from a3c.agent.collector import Collector, Rollout
from a3c.agent.learner import Learner
from a3c.agent.local import LocalNetwork, local_network
from a3c.agent.shared import SharedState
from a3c.agent.source import LocalSource
from a3c.agent.worker import MainThreadLink, Report, Worker
from a3c.contract import Counts, Subject
from a3c.machine.stopping import StopFlag
from a3c.settings.params import Params
from tests.tools.agents import subject_of
from tests.tools.fakes import NumberedEnvs

TIMEOUT_SECONDS = 120  # of a test that would otherwise hang; none comes near it

N_INPUTS, N_ACTIONS = 3, 4
SUBJECT = subject_of("mlp", (N_INPUTS,), N_ACTIONS)
IMAGE_SUBJECT = subject_of("small", (84, 84, 4), N_ACTIONS)
SHAPES = network.weight_shapes(SUBJECT)
IMAGE_SHAPES = network.weight_shapes(IMAGE_SUBJECT)

PARAMS = Params(
    env_id="toys/Numbers",
    network="mlp",
    steps_per_update=3,
    discount=0.9,
    max_grad_norm=0.5,
    initial_lr=0.01,
    no_xla=True,
)


def params_with(**changes: Any) -> Params:
    return dataclasses.replace(PARAMS, **changes)


def make_shared(
    n_steps: int,
    counts: Counts = Counts(),  # noqa: B008 (immutable)
    shapes: dict[str, tuple[int, ...]] = SHAPES,
    **changes: float,
) -> SharedState:
    weights = network.initial_weights(shapes, "torch", np.random.default_rng(0))
    kind = "small" if "conv1_kernel" in shapes else "mlp"
    return SharedState(weights, params_with(n_steps=n_steps, network=kind, **changes), counts)


def make_local(
    shared: SharedState, observations: np.ndarray, params: Params = PARAMS
) -> LocalNetwork:
    subject = SUBJECT if observations.ndim == 3 else IMAGE_SUBJECT
    return local_network(Learner(shared, params, subject, observations))


def act_and_learn(local: LocalNetwork, rollout: Rollout, rate: float) -> tf.Tensor:
    """What a worker does to collect this rollout and to learn from it."""
    state = rollout.states[0]
    activations = [local.act(seen, state).activations for seen in rollout.observations[:-1]]
    return local.learn(rollout, rate, activations)


def random_rollout(
    seed: int, n_steps: int = 3, n_envs: int = 2, images: bool = False, ends: bool = True
) -> Rollout:
    """Random observations, actions and rewards; with `ends`, one step of one environment ends."""
    generator = np.random.default_rng(seed)
    continues = np.ones((n_steps, n_envs), np.float32)
    if ends:
        continues[seed % n_steps, seed % n_envs] = 0
    if images:
        observations = generator.integers(0, 256, (n_steps + 1, n_envs, 84, 84, 4)).astype(np.uint8)
    else:
        observations = generator.standard_normal((n_steps + 1, n_envs, N_INPUTS)).astype(np.float32)
    return Rollout(
        observations,
        generator.integers(0, N_ACTIONS, (n_steps, n_envs)).astype(np.int32),
        generator.standard_normal((n_steps, n_envs)).astype(np.float32),
        continues,
        np.zeros((1, n_envs, 0), np.float32),
    )


def make_worker(
    number: int,
    shared: Any,
    local: Any,
    envs: Any,
    params: Params,
    generator: np.random.Generator,
    main: MainThreadLink,
) -> Worker:
    collector = Collector(local, envs, params, generator, main.report, main.stop.is_set)
    return Worker(number, shared, LocalSource(local, collector, envs), params, main)


class Crew:
    """Workers with one shared state, their reports, and the flag that stops them.

    Only a worker 0 measures. A `learner` that was traced before must be of this shared state.
    """

    def __init__(
        self,
        shared: SharedState,
        envs: list[Any],
        params: Params = PARAMS,
        first_number: int = 1,
        learner: Learner | None = None,
        subject: Subject = SUBJECT,
    ) -> None:
        self.shared, self.envs = shared, envs
        self.reports: list[Report] = []
        self.stop = StopFlag()
        self.learner = learner or Learner(shared, params, subject, envs[0].observations)
        self.locals = [local_network(self.learner) for _ in envs]
        main = MainThreadLink(self.stop, self.reports.append)
        self.workers = [
            make_worker(number, shared, local, e, params, np.random.default_rng([0, number]), main)
            for number, (local, e) in enumerate(
                zip(self.locals, envs, strict=True), start=first_number
            )
        ]

    def run(self) -> None:
        threads = [threading.Thread(target=w.run, daemon=True) for w in self.workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_SECONDS)
            assert not thread.is_alive()

    def of_kind(self, kind: type) -> list[Any]:
        return [report for report in self.reports if isinstance(report, kind)]


def crew_of_one(n_steps: int, envs: Any, params: Params = PARAMS, number: int = 1) -> Crew:
    return Crew(make_shared(n_steps), [envs], params, number)


def crew_in_turn(n_steps: int, params: Params = PARAMS) -> Crew:
    """Two workers to run one after the other. The first stops when there have been two updates."""

    class FirstStop(StopFlag):
        def is_set(self) -> bool:
            return crew.shared.counters.read().updates >= 2

    crew = Crew(make_shared(n_steps), [NumberedEnvs(4, 1), NumberedEnvs(4, 1)], params)
    crew.workers[0]._stop = FirstStop()
    return crew


class Call(NamedTuple):
    """A call of a local network's method, with copies of the arguments."""

    name: str
    arguments: tuple
    result: Any
    weights: dict[str, np.ndarray]  # the local ones before the call


def record(local: LocalNetwork) -> list[Call]:
    """All calls of this network from now on."""
    calls: list[Call] = []

    def recorded(name: str) -> Any:
        method = getattr(local, name)

        def call(*arguments: object) -> object:
            copies = tf.nest.map_structure(lambda x: None if x is None else np.array(x), arguments)
            weights = numpy_weights(local.weights)
            calls.append(Call(name, copies, method(*arguments), weights))
            return calls[-1].result

        return call

    for name in ("act", "evaluate_last", "learn", "measure"):
        setattr(local, name, recorded(name))
    return calls


def calls_of(calls: list[Call], name: str) -> list[Call]:
    return [call for call in calls if call.name == name]


def rollouts_of(calls: list[Call]) -> list[Rollout]:
    return [call.arguments[0] for call in calls_of(calls, "learn")]


def numpy_weights(weights: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Copies of arrays, or of variables."""
    return {name: np.array(weight) for name, weight in weights.items()}


def assert_same_weights(actual: Any, expected: Any) -> None:
    assert actual.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(actual[name], expected[name], err_msg=name)
