"""The games of a run, from its `monitor.csv` or from files of one environment each.

`monitor.csv` (see logs.py) says at which step of the run each game counted. The files of our runs
up to revision 243b5dc, of Stable-Baselines3 and of Baselines know the games of one environment
only, so the step has to be put together. Adding up `l` in order of `t` leaves out the games under
way in the other environments: with E environments it reads low by about E/2 games. Instead each
environment is taken to step evenly from one end of a game to its next, and all of them are summed
at each end:

    A   |---------- 900 ----------|------------…       at A's first end, B has done 2/3 of 1200
    B   |----------------- 1200 -----------------|…    steps: the run is at 900 + 800

What remains is how unevenly they stepped. For 2.6M steps of Pong on 16 environments, beside the
true counts in progress.csv: adding up is 11,000 steps low (from 4,200 to 23,900, games being of
1,230 on average); this is off by 40 on average, 930 in standard deviation, 3,200 at most. The game
that an environment has under way at the end counts up to its last game's length.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from a3c.machine.appending import one_line


class MonitorFile(NamedTuple):
    """The games of one file, and a word for each thing that is wrong with it."""

    env_id: str | None
    t_start: float | None
    scores: np.ndarray
    lengths: np.ndarray
    seconds: np.ndarray
    steps: np.ndarray | None  # None: a file of one environment, whose times never fall
    words: list[str]


class Games(NamedTuple):
    """The games of all environments of a run in the order in which they counted."""

    scores: np.ndarray
    steps: np.ndarray  # of the run when each game ended; of files of others, in units of their `l`
    seconds: np.ndarray  # never falling


def parse_monitor(text: str) -> MonitorFile:
    """Read a monitor file's text; what is no whole row is left out, with a word."""
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
            words.append("its first line is damaged: t taken to count from the run's start")
    columns = lines.pop(0).strip().split(",") if lines else ["r", "l", "t"]
    if columns[:3] != ["r", "l", "t"]:
        lines = []
        words.append("it has no line r,l,t where a monitor file has it: left out")
    n_columns = 4 if columns[3:6] == ["step", "worker", "env"] else 3
    games = [(line, parse_game(line, n_columns)) for line in lines if line.strip()]
    if bad := [line for line, game in games if game is None]:
        words.append(f"{len(bad)} of its lines are no games (first: {bad[0][:40]!r}): left out")
    rows = np.array([game for _, game in games if game], dtype=float).reshape(-1, n_columns)
    scores, lengths, seconds = rows.T[:3]
    steps = rows[:, 3] if n_columns == 4 else None
    if steps is None and np.any(np.diff(seconds) < 0):
        seconds = never_falling(seconds)
        words.append("its t falls back, as after a restart: counted on from there")
    # Stable-Baselines3's Monitor writes these where an environment has no id.
    if not isinstance(env_id, str) or env_id in ("None", "Unknown"):
        env_id = None
    env_id = env_id and one_line(env_id, 100)
    return MonitorFile(env_id, t_start, scores, lengths, seconds, steps, words)


def parse_game(line: str, n_columns: int) -> tuple[float, ...] | None:
    """`r`, `l`, `t` and perhaps `step` of a row; None where they cannot be a game's."""
    try:
        score, length, seconds, *step = game = tuple(map(float, line.split(",")[:n_columns]))
    except ValueError:
        return None
    # So that no garbage outgrows a sum; NaN is within no bounds.
    possible = abs(score) < 1e12 and 1 <= length < 1e9 and 0 <= seconds < 1e10
    possible = possible and len(game) == n_columns and all(0 <= n < 1e15 for n in step)
    return game if possible else None


def never_falling(seconds: np.ndarray) -> np.ndarray:
    """Times that began anew go on from there: 10, 30, 5, 15 → 10, 30, 35, 45."""
    spans = np.diff(seconds, prepend=0.0)
    return np.cumsum(np.where(spans < 0, seconds, spans))


def merge(files: Sequence[MonitorFile]) -> Games:
    """The games of one file with steps, or of files of one environment each."""
    if len(files) == 1 and files[0].steps is not None:
        order = np.argsort(files[0].steps, kind="stable")
        # One game may have ended a moment after another that counted later.
        seconds = np.maximum.accumulate(files[0].seconds[order])
        return Games(files[0].scores[order], files[0].steps[order], seconds)
    first = min((file.t_start for file in files if file.t_start is not None), default=0.0)
    starts = [0.0 if file.t_start is None else file.t_start - first for file in files]
    ends = [start + file.seconds for start, file in zip(starts, files, strict=True)]
    order = np.argsort(np.concatenate(ends), kind="stable")
    seconds = np.concatenate(ends)[order]
    total_l = np.zeros(len(seconds))
    for start, end, file in zip(starts, ends, files, strict=True):
        total_l += stepped(file.lengths, start, end, seconds)
    return Games(np.concatenate([file.scores for file in files])[order], total_l, seconds)


def stepped(lengths: np.ndarray, start: float, ends: np.ndarray, at: np.ndarray) -> np.ndarray:
    """What one environment had stepped at the times `at`, if evenly within each game."""
    if not len(lengths):
        return np.zeros(len(at))
    times = np.concatenate(([start], ends))
    totals = np.concatenate(([0.0], np.cumsum(lengths)))
    # One more game like the last: an environment that died adds no more than that.
    times = np.append(times, 2 * times[-1] - times[-2])
    return np.interp(at, times, np.append(totals, 2 * totals[-1] - totals[-2]))


def as_counted(estimates: np.ndarray, n_games: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Estimated steps, each moved with all that follow as little as true counts demand.

    A count says that when so many games had ended, so many steps were done: the next game's end
    comes later, and that of the last of them came before. (Steps of games that a stop cut short
    are in no monitor file, so all estimates after a resumption would read low by these.)
    """
    n_games, steps = (column[np.isfinite(n_games + steps)] for column in (n_games, steps))
    rising = (n_games >= np.maximum.accumulate(n_games)) & (steps >= np.maximum.accumulate(steps))
    n_games, steps = n_games[rising], steps[rising]
    n_counts_before = np.searchsorted(n_games, np.arange(len(estimates)), side="right")
    lowest = np.append(0, steps)[n_counts_before]
    highest = np.append(steps, np.inf)[n_counts_before]
    moved, offset = np.empty(len(estimates)), 0.0
    for i, estimate in enumerate(estimates):
        moved[i] = min(max(estimate + offset, lowest[i]), highest[i])
        offset = moved[i] - estimate
    return moved
