"""Where a run stands besides its weights and counters, so that it can go on from just there.

Each worker notes its own after every update, inside the gate, so that a checkpoint holds what
belongs to its weights, and nothing of the rollouts that were under way. Read back, it is only ever
numbers in bounds: whatever else a file may hold is refused.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class WorkerPosition(NamedTuple):
    """One worker's, after its last update; the lists have an entry for each environment."""

    generator: Mapping[str, Any]  # the state of the one that draws actions
    # The game to begin with: the one under way where no step of it has been taken, else the next.
    next_games: list[int]
    n_rows: list[int]  # games in its monitor file


class Position(NamedTuple):
    """A whole run's."""

    workers: list[WorkerPosition]
    log_bytes: int  # length of log.txt
    n_env_restarts: int = 0  # of those that log.txt tells of
    cpu_seconds: int = 0  # of all its processes

    def to_json(self) -> dict[str, Any]:
        return self._asdict() | {"workers": [w._asdict() for w in self.workers]}


def from_json(content: object) -> Position:
    """The inverse of to_json; ValueError on what that could not have written."""
    if not (
        isinstance(content, dict)
        # What has a default was not always counted.
        and set(content) | set(Position._field_defaults) == set(Position._fields)
        and isinstance(content["workers"], list)
        and _are_counts([n for name, n in content.items() if name != "workers"])
        and all(map(_is_worker, content["workers"]))
    ):
        raise ValueError("its position is missing or of the wrong type")
    return Position(**content | {"workers": [WorkerPosition(**w) for w in content["workers"]]})


def _is_worker(content: object) -> bool:
    return (
        isinstance(content, dict)
        and set(content) == set(WorkerPosition._fields)
        and _is_generator(content["generator"])
        and _are_counts(content["next_games"])
        and _are_counts(content["n_rows"])
        and len(content["n_rows"]) == len(content["next_games"]) > 0
    )


def _is_generator(state: object) -> bool:
    """Whether it is a state of NumPy's PCG64, as its `bit_generator.state` gives and takes it."""
    if not isinstance(state, dict) or set(state) != {
        *("bit_generator", "state", "has_uint32", "uinteger")
    }:
        return False
    inner = state["state"]
    return (
        state["bit_generator"] == "PCG64"
        and isinstance(inner, dict)
        and set(inner) == {"state", "inc"}
        and _are_counts([*inner.values()], below=2**128)
        and inner["inc"] % 2 == 1
        and _are_counts([state["has_uint32"]], below=2)
        and _are_counts([state["uinteger"]], below=2**32)
    )


def _are_counts(numbers: Any, below: int = 2**62) -> bool:
    return isinstance(numbers, Sequence) and all(type(n) is int and 0 <= n < below for n in numbers)
