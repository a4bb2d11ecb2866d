"""The memory that a worker shares with the processes of its environments."""

import math
from multiprocessing.sharedctypes import RawArray
from typing import NamedTuple

import numpy as np

from a3c.contract import Collecting, EnvDescription
from a3c.machine.words import BadInput

MOST_BYTES = 2**31 - 2**16  # of all arrays, without what aligns them


class Rows(NamedTuple):
    """The arrays that a worker shares with the processes of its K environments."""

    observations: np.ndarray  # (n_slots, K, ...)
    final_observations: np.ndarray  # (K, ...): the last before a truncation
    # (K,) int32 or, if they are continuous, (K, n) float32; if the worker asks for single steps, it
    # writes these, and the processes all others
    actions: np.ndarray
    rewards: np.ndarray  # (K,) float32
    terminated: np.ndarray  # (K,) bool
    truncated: np.ndarray  # (K,) bool
    n_frames: np.ndarray  # (K,) int64: stepped so far, also by processes that were replaced
    # (K,) int64: the number of the next game, or of the present one if it has no step yet
    next_games: np.ndarray

    def clear(self, envs: slice) -> None:
        """Set these environments' rewards to 0 and their ends to False."""
        self.rewards[envs] = 0
        self.terminated[envs] = self.truncated[envs] = False


def layout_of(
    description: EnvDescription, n_slots: int, n_envs: int, collecting: Collecting | None
) -> np.dtype:
    """The type of a worker's memory as a whole; BadInput if it is larger than such a type can be."""
    shape, dtype = description.observation_shape, description.observation_dtype
    n, is_continuous = description.n_actions, description.is_continuous
    of_actions = ("float32", (n_envs, n)) if is_continuous else ("int32", (n_envs,))
    more = collecting.arrays if collecting else {}
    fields = [
        ("observations", dtype, (n_slots, n_envs, *shape)),
        ("final_observations", dtype, (n_envs, *shape)),
        ("actions", *of_actions),
        ("rewards", "float32", (n_envs,)),
        ("terminated", "bool", (n_envs,)),
        ("truncated", "bool", (n_envs,)),
        ("n_frames", "int64", (n_envs,)),
        ("next_games", "int64", (n_envs,)),
    ]
    of_more = [(name, *of) for name, of in more.items()]
    # NumPy counts in 32 bits, without a word where the sum is too large.
    sizes = (np.dtype(of).itemsize * math.prod(shape) for _, of, shape in (*fields, *of_more))
    if sum(sizes) >= MOST_BYTES:
        raise BadInput(
            f"a rollout of {n_slots - 1:,} steps of {n_envs:,} environments takes more than 2 GiB:"
            " lower --steps_per_update or --envs_per_worker"
        )
    return np.dtype([*fields, ("more", of_more)], align=True)


class SharedMemory:
    """Memory for `Rows`, without a name, so that a killed run leaves none behind.

    It can only be handed to a process while that is being started.
    """

    def __init__(
        self,
        description: EnvDescription,
        n_slots: int,
        n_envs: int,
        collecting: Collecting | None = None,
    ) -> None:
        self._layout = layout_of(description, n_slots, n_envs, collecting)
        self._bytes = RawArray("B", self._layout.itemsize)

    def rows(self) -> Rows:
        whole = np.frombuffer(self._bytes, self._layout)
        return Rows(*(whole[name][0] for name in Rows._fields))

    def arrays(self) -> dict[str, np.ndarray]:
        """What a collector shares with the worker; {} if there is none."""
        more = np.frombuffer(self._bytes, self._layout)["more"]
        if not more.dtype.names:
            return {}
        arrays = {name: more[name].reshape(more.dtype[name].shape) for name in more.dtype.names}
        return arrays | {"observations": self.rows().observations}
