"""The games of a run, from its `monitor.csv` or from files of one environment each.

`monitor.csv` (see logs.py) has the step of the run at which each game counted. The files of
Stable-Baselines3, of Baselines and of our runs up to revision 243b5dc do not. For these, the
lengths `l` are added up in order of time, as Stable-Baselines3's own plots do. The sum lacks the
games still under way elsewhere: it is too low by about half a game for each environment.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from a3c.machine.words import one_line


class MonitorFile(NamedTuple):
    """The games of one file, and a message for each thing that is wrong with it."""

    env_id: str | None
    t_start: float | None
    rows: np.ndarray  # r, l, t, and step unless the file is of one environment: (n, 3 or 4)
    words: list[str]

    @property
    def has_steps(self) -> bool:
        return self.rows.shape[1] == 4


class Games(NamedTuple):
    """The games of all environments of a run in the order in which they counted."""

    scores: np.ndarray
    steps: np.ndarray  # of the run when each game ended; in units of `l` for files of others
    seconds: np.ndarray  # never falling
    lengths: np.ndarray  # `l`: of ours, decisions of the agent


def parse_monitor(text: str) -> MonitorFile:
    """Read a monitor file's text; a line that is no whole row is left out, with a message."""
    *lines, rest = text.split("\n")
    words = ["its last line is cut off: left out"] if rest.strip() else []
    env_id, t_start = None, None
    if lines and lines[0].startswith("#"):
        try:
            header = json.loads(lines.pop(0)[1:])
            env_id, t_start = header.get("env_id"), header["t_start"]
            if not abs(t_start) < 1e12:
                raise ValueError
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            t_start = None
            words.append("its first line is damaged: t is taken to count from the run's start")
    columns = lines.pop(0).strip().split(",") if lines else ["r", "l", "t"]
    if columns[:3] != ["r", "l", "t"]:
        lines = []
        words.append("it lacks the line r,l,t of a monitor file: left out")
    n_columns = 4 if columns[3:6] == ["step", "worker", "env"] else 3
    games = [(line, parse_game(line, n_columns)) for line in lines if line.strip()]
    if bad := [line for line, game in games if game is None]:
        words.append(f"left out lines that are no games: {len(bad)} (first: {bad[0][:40]!r})")
    rows = np.array([game for _, game in games if game], dtype=float).reshape(-1, n_columns)
    spans = np.diff(rows[:, 2], prepend=0.0)
    if n_columns == 3 and np.any(spans < 0):  # 10, 30, 5, 15 become 10, 30, 35, 45
        rows[:, 2] = np.cumsum(np.where(spans < 0, rows[:, 2], spans))
        words.append("its t begins again, as after a restart: it is counted on from there")
    # Stable-Baselines3's Monitor writes these where an environment has no id.
    if not isinstance(env_id, str) or env_id in ("None", "Unknown"):
        env_id = None
    env_id = env_id and one_line(env_id, 100)
    return MonitorFile(env_id, t_start, rows, words)


def parse_game(line: str, n_columns: int) -> tuple[float, ...] | None:
    """`r`, `l`, `t` and perhaps `step` of a row; None if they cannot be a game's."""
    try:
        score, length, seconds, *step = game = tuple(map(float, line.split(",")[:n_columns]))
    except ValueError:
        return None
    # Within these bounds, even sums of damaged numbers are finite. NaN is not within them.
    possible = abs(score) < 1e12 and 0 <= length < 1e9 and 0 <= seconds < 1e10
    possible = possible and len(game) == n_columns and all(0 <= n < 1e15 for n in step)
    return game if possible else None


def merge(files: Sequence[MonitorFile]) -> Games:
    """The games of one file with steps, or of files of one environment each."""
    if len(files) == 1 and files[0].has_steps:
        scores, lengths, seconds, steps = (
            files[0].rows[np.argsort(files[0].rows[:, 3], kind="stable")].T
        )
        # A game may have ended a moment after another that counted later.
        return Games(scores, steps, np.maximum.accumulate(seconds), lengths)
    first = min((file.t_start for file in files if file.t_start is not None), default=0.0)
    starts = [0.0 if file.t_start is None else file.t_start - first for file in files]
    rows = np.concatenate(
        [file.rows + np.array([0.0, 0.0, start]) for start, file in zip(starts, files, strict=True)]
    )
    scores, lengths, seconds = rows[np.argsort(rows[:, 2], kind="stable")].T
    return Games(scores, np.cumsum(lengths), seconds, lengths)
