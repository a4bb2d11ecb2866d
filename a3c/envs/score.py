"""The true score and length of every game, taken below every other layer.

Upper layers skip frames, end episodes at lost lives and clip rewards; users want the score of the
whole game. So Monitor sits on the emulator and sums every raw reward from a real reset to the
game's real end, no-ops of a random start included. Only the length comes from above: it counts the
agent's decisions, which the frame skip reports one by one (there, four frames are one decision).

A game is one row of a CSV file that Stable-Baselines3's `load_results` reads as well:

    #{"t_start": 1700000000.0, "env_id": "PongNoFrameskip-v4"}
    r,l,t
    -21.0,757,12.3

`r` score, `l` length in decisions, `t` seconds from `t_start` to the game's end.
"""

import contextlib
import json
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, SupportsFloat

import gymnasium

from a3c.machine.appending import Appender, cut_lines

N_HEAD_LINES = 2


class Game(NamedTuple):
    """One finished game; `seconds` are those from the run's start to the game's end."""

    score: float
    length: int
    seconds: float


def read_n_rows(path: pathlib.Path) -> int:
    """How many games a file holds; none if there is no file yet."""
    return max(0, path.read_bytes().count(b"\n") - N_HEAD_LINES) if path.exists() else 0


def cut_back(path: pathlib.Path, n_rows: int) -> int:
    """Take all but the first so many games out of a file that nobody has open; returns how many."""
    return cut_lines(path, lambda number, _: number < N_HEAD_LINES + n_rows, N_HEAD_LINES)


def _row(game: Game) -> str:
    return f"{round(game.score, 6)},{game.length},{game.seconds:.6f}\n"


class Monitor(gymnasium.Wrapper):
    """Sums up games, writes a row for each, and counts the frames stepped.

    With `counts_own_steps` each step is one decision of the agent (no frame skip above).
    The file is opened at the first reset or step: merely building an environment leaves no trace.
    """

    def __init__(
        self,
        env: gymnasium.Env,
        env_id: str = "",
        path: str | pathlib.Path | None = None,
        t_start: float = 0.0,
        counts_own_steps: bool = False,
        unwritten: Sequence[Game] = (),
    ) -> None:
        """`unwritten`: games of the one before in the same file, which it could not write."""
        super().__init__(env)
        self.n_frames = 0
        self._t_start = t_start
        self._counts_own_steps = counts_own_steps
        header = json.dumps({"t_start": t_start, "env_id": env_id})
        # Appending, so that an environment which replaces a broken one carries on in its file.
        self._rows = Appender(path, f"#{header}\nr,l,t\n") if path is not None else None
        self._rows_wait = False
        self._rows_of_others = "".join(map(_row, unwritten))
        self._score = 0.0
        self._length = 0
        self._finished: list[Game] = []

    @property
    def score(self) -> float:
        """That of the game so far."""
        return self._score

    def count_decision(self) -> None:
        """Take note of one decision of the agent; called before the decision is carried out."""
        self._length += 1

    def take_finished(self) -> list[Game]:
        """Return the games that ended since the last call."""
        games, self._finished = self._finished, []
        return games

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start a new game; one that had not ended leaves no row."""
        self._write(self._rows_of_others)
        self._rows_of_others = ""
        self._score = 0.0
        self._length = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step one frame; the game's last one writes its row."""
        if self._counts_own_steps:
            self._length += 1
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.n_frames += 1
        self._score += float(reward)
        if terminated or truncated:
            self._finish()
        return observation, reward, terminated, truncated, info

    def write_what_waits(self) -> None:
        """Write the games of before that have no row yet, if there is room."""
        if self._rows_wait or self._rows_of_others:
            self._write(self._rows_of_others)
            self._rows_of_others = ""

    def close(self) -> None:
        """Close the file and the environment."""
        if self._rows is not None:
            self._rows.close()
        super().close()

    def _finish(self) -> None:
        game = Game(self._score, self._length, time.time() - self._t_start)
        self._finished.append(game)
        self._write(_row(game))

    def _write(self, row: str) -> None:
        """Write what there is to write; say so, once, where it has to wait."""
        if self._rows is None:
            return
        waited, self._rows_wait = self._rows_wait, not self._rows.write(row)
        if self._rows_wait and not waited:
            # This may go to the same disk.
            with contextlib.suppress(OSError):
                print(
                    f"cannot write {self._rows.path}: {self._rows.error}; its rows wait in memory",
                    file=sys.stderr,
                    flush=True,
                )
