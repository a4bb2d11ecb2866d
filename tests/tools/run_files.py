"""Run folders and monitor files with known games, for tests of what reads them."""

import csv
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from a3c.settings import command_line, params
from a3c.settings.params import ParsedParams
from a3c.store import checkpoint
from a3c.store.checkpoint import Checkpoint

PONG = "PongNoFrameskip-v4"
BREAKOUT = "BreakoutNoFrameskip-v4"

Game = tuple[float, int, float]  # r, l, t


def steady(
    n_games: int, length: int = 100, seconds: float = 1.0, score: Callable[[int], float] = float
) -> list[Game]:
    """Games of one length and time each; their scores are `score` of their numbers."""
    return [(score(i), length, (i + 1) * seconds) for i in range(n_games)]


def monitor_text(
    games: Sequence[Sequence[float]],
    env_id: str | None = PONG,
    t_start: float = 1000.0,
    end: str = "\n",
    columns: str = "r,l,t",
) -> str:
    """A monitor file's text."""
    head = json.dumps({"t_start": t_start, "env_id": env_id})
    rows = [",".join(map(str, game)) for game in games]
    return f"#{head}\n" + "".join(f"{row}{end}" for row in (columns, *rows))


def games_text(games: Sequence[Sequence[float]], env_id: str | None = PONG) -> str:
    """The text of a run's monitor.csv; games are (r, l, t, step)."""
    rows = [(*game, 0, 0) for game in games]
    return monitor_text(rows, env_id, columns="r,l,t,step,worker,env")


def write_monitor(path: pathlib.Path, games: Sequence[Game], **more: Any) -> pathlib.Path:
    """A file of one environment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(monitor_text(games, **more), newline="")
    return path


def write_run(
    folder: pathlib.Path,
    games: Sequence[Game] | None,
    env_id: str = PONG,
    flags: Sequence[str] = (),
    sticky: float | None = None,
    steps_before: int = 0,
) -> pathlib.Path:
    """A run folder of train.py's, of one environment; None: it has just begun."""
    folder.mkdir(parents=True, exist_ok=True)
    kind = "vector" if env_id.startswith("CartPole") else "image"
    parsed = command_line.parse([*flags, env_id])
    assert isinstance(parsed, ParsedParams)
    environment = {} if sticky is None else {"sticky_actions": sticky}
    record = params.to_json(params.resolve(parsed, kind)) | {"environment": environment}
    (folder / "args.json").write_text(json.dumps(record))
    if games is not None:
        steps = [
            steps_before + sum(length for _, length, _ in games[: i + 1]) for i in range(len(games))
        ]
        rows = [(*game, step) for game, step in zip(games, steps, strict=True)]
        (folder / "monitor.csv").write_text(games_text(rows, env_id))
    return folder


class RunFiles:
    """What a run's folder holds, read anew with each call."""

    def __init__(self, path: str | pathlib.Path) -> None:
        self.path = pathlib.Path(path)

    def rows(self, name: str = "progress.csv") -> list[dict[str, float]]:
        """The whole rows of a table; the last line may be just being written."""
        path = self.path / name
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines if line.endswith("\n")]
        return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(whole)]

    def games(self) -> list[dict[str, float]]:
        """Every game, without its time, in the order of steps."""
        with (self.path / "monitor.csv").open(newline="") as file:
            next(file)
            games = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]
        assert all(list(game) == ["r", "l", "t", "step", "worker", "env"] for game in games)
        games.sort(key=lambda game: [game[name] for name in ("step", "worker", "env")])
        return [game | {"t": 0.0} for game in games]

    def log(self) -> str:
        return (self.path / "log.txt").read_text()

    def saved(self, n_steps: int | None = None) -> Checkpoint:
        """The newest checkpoint, or the one of so many steps."""
        folder = self.path / "checkpoints"
        newest = max(checkpoint.numbered(folder))
        return checkpoint.read(checkpoint.path_of(folder, newest if n_steps is None else n_steps))

    def tensors(self) -> dict[str, bytes]:
        """Weights, statistics and running moments of the newest checkpoint."""
        snapshot = self.saved().snapshot
        parts = {"weights": snapshot.weights, "mean_squares": snapshot.mean_squares}
        parts |= {of: each._asdict() for of, each in snapshot.moments.items()}
        return {
            f"{of}/{name}": np.asarray(value).tobytes()
            for of, part in parts.items()
            for name, value in sorted(part.items())
        }
