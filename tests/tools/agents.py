"""Untrained agents, their checkpoints and run folders, for tests of what plays and saves them."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from a3c.agent import network
from a3c.agent.kernels import Memory
from a3c.contract import Counts, Moments, Snapshot, Subject
from a3c.envs.make import make_env
from a3c.machine import seeding
from a3c.play import evaluation
from a3c.play.agent import Agent
from a3c.play.evaluation import Played
from a3c.store import checkpoint, claim, run_folder
from a3c.store.checkpoint import Checkpoint
from a3c.store.run_folder import RunFolder

CARTPOLE = Subject("CartPole-v1", "generic", "mlp", (4,), 2)
SHORT_PONG = Subject("tests.tools.toys:toys/ShortPong-v0", "generic", "small", (84, 84, 4), 6)
# Continuous actions and a memory; with MOMENTS, its observations are normalised.
PAINTED = Subject(
    "tests.tools.toys:toys/Painted-v0",
    *("generic", "mlp", (12,), 2),
    policy="per_state",
    hidden_units=(8,),
    lstm_units=4,
)
MOMENTS = {"observations": Moments(10, np.linspace(-1, 1, 12), np.full(12, 40.0))}

# Of networks without an LSTM. It is no tensor, because test files run in forks of a process that must not use
# TensorFlow before.
FORGETFUL = Memory(np.zeros((1, 0), np.float32))


def subject_of(network: str, shape: tuple[int, ...], n_actions: int, **more: Any) -> Subject:
    return Subject("toys/Any", "generic", network, shape, n_actions, **more)


def make_weights(subject: Subject, seed: int = 0) -> dict[str, np.ndarray]:
    shapes = network.weight_shapes(subject)
    return network.initial_weights(shapes, "glorot", np.random.default_rng(seed))


def moments_of(subject: Subject) -> Mapping[str, Moments]:
    return MOMENTS if subject == PAINTED else {}


def make_agent(subject: Subject) -> Agent:
    agent = Agent(subject)
    agent.take(Snapshot(Counts(), make_weights(subject), {}, moments_of(subject)))
    return agent


def play_here(agent: Agent, number: int, seed: int = 0) -> tuple[Played, list[np.ndarray]]:
    """A game of an evaluation, in this process, and every frame that a person would see of it."""
    frames: list[np.ndarray] = []
    params, key = evaluation.params_of(agent.subject, seed), seeding.Purpose.EVALUATION
    env = make_env(params, evaluation.WORKER, first_game=number, see=frames.append)
    generator = seeding.generator(seed, key, evaluation.WORKER, game=number)
    (observation, _), state, truncated = env.reset(), agent.first_state, False
    while not (games := env.get_wrapper_attr("take_finished")()):
        decision = agent.act(observation, state, generator=generator)
        observation, _, _, truncated, _ = env.step(decision.action)
        state = decision.state
    env.close()
    return Played(number, games[-1].score, games[-1].length, truncated), frames


def save(
    folder: pathlib.Path, subject: Subject = CARTPOLE, *, weights_only: bool = False
) -> Checkpoint:
    """A checkpoint as training writes it at step 70, or with weights only."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = make_weights(subject)
    mean_squares = {} if weights_only else {n: np.ones_like(a) for n, a in weights.items()}
    snapshot = Snapshot(Counts(70, 14, 3, 71), weights, mean_squares, moments_of(subject))
    checkpoint.write(Checkpoint(checkpoint.path_of(folder, 70), subject, {}, snapshot))
    return checkpoint.read(checkpoint.path_of(folder, 70))


def make_folder(path: pathlib.Path) -> RunFolder:
    """A run's folder that can be locked, and holds nothing else."""
    (path / "checkpoints").mkdir(parents=True)
    for name in (run_folder.ARGS, claim.LOCK):
        (path / name).touch()
    return run_folder.open_existing(path)
