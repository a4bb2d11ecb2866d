"""What two rooms say to each other, in plain Python's and NumPy's types alone.

`envs`, `agent` and `store` do not know each other; `run` brings them together.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np


class EnvDescription(NamedTuple):
    """What the network and the run folder must know of an environment."""

    kind: str  # "image" or "vector"
    observation_shape: tuple[int, ...]
    observation_dtype: str
    n_actions: int
    action_meanings: tuple[str, ...]
    sticky_actions: float


class Subject(NamedTuple):
    """What a network was made for: a checkpoint fits another run only where all of these agree."""

    env_id: str
    preprocessing: str
    network: str
    observation_shape: tuple[int, ...]
    n_actions: int


class Game(NamedTuple):
    """One whole game that ended, as Score counted it below every other layer."""

    worker: int
    env: int
    score: float
    length: int  # decisions of the agent
    ended_at: float  # seconds since the epoch
    step: int = 0  # of the run, once an update has learned from the rollout that it ended in


class Replaced(NamedTuple):
    """A process that broke; the games of its environments were abandoned for new ones."""

    envs: Sequence[int]
    why: str


class Step(NamedTuple):
    """What a step of K environments brought, besides observations; arrays are (K,)."""

    rewards: np.ndarray  # float32
    terminated: np.ndarray  # bool
    truncated: np.ndarray  # bool
    games: Sequence[Game]


class Environments(Protocol):
    """The K environments of one worker, as it sees them; `envs.pool.Pool` is the real one.

    `step(actions, slot)` fills one slot of `observations`; an environment whose episode ended shows
    the first observation of the next one there. Where a process was replaced, its environments got
    neither reward nor end in that step.
    """

    observations: np.ndarray  # (n_slots, K, ...)
    # (K, ...): where an episode was truncated in the last step, its true last observation.
    final_observations: np.ndarray
    # Of each environment, the number of the game with which a run that stopped here would go on:
    # the one under way where no step of it has been taken, else the one after it.
    next_games: list[int]

    @property
    def n_frames(self) -> int: ...  # stepped so far, resets included
    def reset(self, slot: int) -> None: ...
    def step(self, actions: np.ndarray, slot: int) -> Step: ...
    def take_replaced(self) -> Sequence[Replaced]: ...  # since the last call


class Counts(NamedTuple):
    """How far a run is. Steps are agent steps that an update has learned from."""

    steps: int = 0
    updates: int = 0
    games: int = 0
    frames: int = 0


class Snapshot(NamedTuple):
    """The shared state of one moment. A published agent has no statistics: `mean_squares` is empty."""

    counts: Counts
    weights: Mapping[str, np.ndarray]
    mean_squares: Mapping[str, np.ndarray]


class WorkerPosition(NamedTuple):
    """Where a worker stands after its last update, besides the weights."""

    generator: Mapping[str, Any]  # the state of the one that draws actions
    next_games: Sequence[int]  # of each environment, as in Environments


class Position(NamedTuple):
    """Where a whole run stands besides its shared state, so that it can go on from just there."""

    workers: Sequence[WorkerPosition]
    n_bytes: Mapping[str, int]  # the lengths of the files that only grow, by name
    n_env_restarts: int  # of those that log.txt tells of
    cpu_seconds: int  # of all its processes
