"""The types that rooms exchange. They need nothing but Python and NumPy.

`envs`, `agent` and `store` do not import each other; `run` brings them together.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np


class EnvDescription(NamedTuple):
    """What the network and the run folder need to know about an environment."""

    kind: str  # "image" or "vector"
    observation_shape: tuple[int, ...]
    observation_dtype: str
    n_actions: int  # or, of continuous actions, their dimensions
    action_meanings: tuple[str, ...]
    sticky_actions: float
    is_continuous: bool = False
    is_atari: bool = False  # an emulator with frames and lives, or what behaves like one
    max_episode_steps: int | None = None  # at play: the environment's own, or else the run's


class Subject(NamedTuple):
    """What a network was made for. A checkpoint fits another run only if it is the same there.

    The arguments, wrappers and limit at the end may differ: they make another environment, and the
    network fits nevertheless.
    """

    env_id: str
    preprocessing: str
    network: str
    observation_shape: tuple[int, ...]
    n_actions: int  # or, of continuous actions, their dimensions
    # Older agents do not record the rest: they have these values.
    policy: str = "categorical"  # or the --policy_sd of continuous actions
    hidden_units: tuple[int, ...] = (64, 64)  # of mlp
    activation: str = "tanh"  # of mlp
    lstm_units: int = 0
    env_kwargs: tuple[str, ...] = ()
    wrapper: str | None = None
    max_episode_steps: int | None = None  # none: the environment's own


class Moments(NamedTuple):
    """Number, mean and sum of squared deviations of what was seen so far, in each dimension."""

    n: int
    mean: np.ndarray  # float64
    squares: np.ndarray  # float64


class Game(NamedTuple):
    """One whole game that ended, as Score, the innermost layer, counted it."""

    worker: int
    env: int
    score: float
    length: int  # decisions of the agent
    step: int = 0  # of the run, after the update that learned from its end; before, of the rollout


class Replaced(NamedTuple):
    """A process broke and was replaced; its environments dropped their games and began new ones."""

    envs: Sequence[int]
    why: str


class Step(NamedTuple):
    """What a step of K environments returns besides observations; arrays are (K,)."""

    rewards: np.ndarray  # float32
    terminated: np.ndarray  # bool
    truncated: np.ndarray  # bool
    games: Sequence[Game]


class Environments(Protocol):
    """The K environments of one worker, as it sees them; `envs.pool.Pool` implements this.

    `step(actions, slot)` fills one slot of `observations`; where an episode ended, with the first
    one of the next. Where a process was replaced, the step has neither reward nor end.
    """

    observations: np.ndarray  # (n_slots, K, ...); step t of a rollout acts on slot t
    final_observations: np.ndarray  # (K, ...): the true last ones where the last step truncated

    # The number of the game that each environment begins in a resumed run: the next one, or the
    # present one if it has no step yet.
    @property
    def next_games(self) -> Sequence[int]: ...
    @property
    def n_frames(self) -> int: ...  # so far, those of resets included
    def reset(self, slot: int) -> None: ...
    def step(self, actions: np.ndarray, slot: int) -> Step: ...
    def take_replaced(self) -> Sequence[Replaced]: ...  # since the last call


class EnvProcesses(Environments, Protocol):
    """The same environments where their processes can collect whole rollouts: `Pool` implements this."""

    # What the processes share with the worker: `observations`, and those of `Collecting`. Empty if
    # they do not collect.
    @property
    def arrays(self) -> Mapping[str, np.ndarray]: ...

    # Give `asked` to the collector in each process, and return its answers, each with the environments
    # that it is about. A process that broke gives none. Then slot -1 has the newest observations.
    # `asked` and the answers are sent as JSON.
    def collect(self, asked: object) -> Sequence[tuple[range, Any]]: ...


class Collecting(NamedTuple):
    """How the processes of a worker's environments collect rollouts; `agent` defines it."""

    # Type and shape of what all of them share.
    arrays: Mapping[str, tuple[np.dtype, tuple[int, ...]]]
    # Called in a process with its environments, these arrays, which of the worker's environments it
    # holds, and what says whether the run is stopped. It returns what is called with everything that
    # is asked, and which raises Stopped.
    collector: Callable[
        [Environments, Mapping[str, np.ndarray], slice, Callable[[], bool]],
        Callable[[Any], object],
    ]


class Counts(NamedTuple):
    """How far a run is. A step is an agent's step that an update has learned from."""

    steps: int = 0
    updates: int = 0
    games: int = 0
    frames: int = 0


class Snapshot(NamedTuple):
    """The shared state at one moment. In a published agent, `mean_squares` is empty."""

    counts: Counts
    weights: Mapping[str, np.ndarray]
    mean_squares: Mapping[str, np.ndarray]
    # Of "observations" if they are normalised, of "returns" if rewards are scaled.
    moments: Mapping[str, Moments] = {}


class WorkerPosition(NamedTuple):
    """Where a worker is after its last update, besides the weights."""

    generator: Mapping[str, Any]  # the state of the generator that draws actions
    next_games: Sequence[int]  # as in Environments


class Collected(NamedTuple):
    """What the run learns of a rollout, besides its gradients."""

    n_steps: int  # fewer than usual if environments broke
    n_frames: int  # stepped since the rollout before, resets included
    games: list[Game]  # that ended since then
    seen: Mapping[str, Moments]  # of what is acted on, for the running moments
    position: WorkerPosition  # after it
    value_mean: float = float("nan")  # in the episode that ended last within it; NaN if none did


class Position(NamedTuple):
    """Where a run is, besides its shared state: what it needs to go on from exactly there."""

    workers: Sequence[WorkerPosition]
    n_bytes: Mapping[str, int]  # the lengths of the files that only grow, by name
    n_env_restarts: int  # those that log.txt reports
    cpu_seconds: int  # of all processes of the run
