"""Reads what a run has left on the disk, leniently: its games, its figures, its record.

A run is a run folder of train.py, of this version or an older one; or a folder of monitor files,
or one such file, by Stable-Baselines3 or Baselines. Each file may be zipped (`.gz`). Scores are
those of whole training games. Our `l` counts decisions, and so does Baselines', whose Monitor sits
above the frame skip. Stable-Baselines3's sits below it, so in its Atari files `l` counts frames.

Nothing here prints: what was damaged or guessed is in the `words` of what is returned. Nothing here
knows this version's flags, so every later version can read a published run.
"""

import gzip
import json
import os
import pathlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from a3c.machine.words import BadInput, one_line
from a3c.store.games import Games, merge, parse_monitor
from a3c.store.run_folder import ARGS, PROGRESS

OLD_GAMES = "monitor"  # where older runs have a file for each environment
MAX_UNZIPPED_BYTES = 2**28  # eight million games; a small zipped file could fill the memory
FRAME_SKIP = 4  # frames in a step of an Atari agent, here and elsewhere


class NoRun(BadInput):
    """A folder that is there, but has no run."""


class Progress(NamedTuple):
    """Columns of a progress.csv, and a message for each thing that is wrong with it."""

    columns: dict[str, np.ndarray]
    words: list[str]


class Record(NamedTuple):
    """What an args.json says."""

    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    resumed: Sequence[Mapping[str, Any]]  # a note for each time that the run was resumed


class Run(NamedTuple):
    """One run, read."""

    path: pathlib.Path
    env_id: str  # empty: not known
    games: Games
    steps_per_l: float | None  # None: files of others, which do not say what `l` counts
    frames_per_step: int
    sticky_actions: float | None  # None: not known
    settings: Mapping[str, Any]  # of args.json; empty for files of others
    words: Sequence[str]


def read_text(path: pathlib.Path) -> str:
    """A file's text, unzipped where it ends in .gz; BadInput where it cannot be read."""
    try:
        if not path.is_file():  # a pipe or a device may have no end
            raise OSError("it is no file")
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                data = file.read(MAX_UNZIPPED_BYTES + 1)
            if len(data) > MAX_UNZIPPED_BYTES:
                raise OSError(f"it holds more than {MAX_UNZIPPED_BYTES:,} bytes")
        else:
            data = path.read_bytes()
        return data.decode(errors="replace")
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"cannot read {path}: {error}") from None


def folder_of(path: pathlib.Path) -> pathlib.Path | None:
    """The run folder that a path is, or lies in; None for files of others."""
    path = path.absolute()  # such as checkpoints/best/ckpt-70.safetensors
    return next((p for p in (path, *path.parents[:3]) if os.path.isfile(p / ARGS)), None)


def read_record(folder: pathlib.Path) -> Record:
    """Read a run folder's args.json, whatever flags it has; BadInput where it is damaged."""
    try:
        content = json.loads(read_text(folder / ARGS))
        settings = dict(content["params"])
        environment = dict(content.get("environment", {}))
        resumed = [dict(note) for note in content.get("resumed", [])]
        if not isinstance(settings["env_id"], str):
            raise TypeError
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise BadInput(f"{folder / ARGS} is damaged") from None
    return Record(settings, environment, resumed)


def monitor_paths(path: pathlib.Path) -> list[pathlib.Path]:
    """A run's monitor files, none if it has just begun; plain ones are preferred to zipped ones."""
    try:
        if path.is_file():
            return [path]
        for folder in (path, path / OLD_GAMES):
            zipped_first = [*folder.glob("*monitor.csv.gz"), *folder.glob("*monitor.csv")]
            if zipped_first:
                return sorted({p.name.removesuffix(".gz"): p for p in zipped_first}.values())
    except OSError as error:  # an impossible name, a folder that we may not read
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    if not os.path.lexists(path):
        raise BadInput(f"there is no {path}")
    if not os.path.isfile(path / ARGS):
        raise NoRun(f"{path} holds no monitor files (monitor.csv or *.monitor.csv)")
    return []


def read_run(path: pathlib.Path) -> Run:
    """Read a run; BadInput where its files are of several runs or its record is damaged."""
    files, words = [], []
    for file_path in monitor_paths(path):
        try:
            files.append(parse_monitor(read_text(file_path)))
        except BadInput as error:
            words.append(f"{error}: left out")
        else:
            words += [f"{file_path}: {word}" for word in files[-1].words]
    has_steps = any(file.has_steps for file in files)
    if len(files) > 1 and has_steps:
        raise BadInput(f"{path} holds monitor files of several runs: name one of them")
    env_ids = sorted({file.env_id for file in files if file.env_id})
    if len(env_ids) > 1:
        raise BadInput(f"{path} has games of several environments: {', '.join(env_ids)}")
    games = merge(files) if files else Games(*np.zeros((4, 0)))
    env_id = env_ids[0] if env_ids else ""
    # These ids have no sticky actions; other environments may be made with any.
    sticky = 0.0 if env_id.endswith("NoFrameskip-v4") else None
    folder = folder_of(path)
    if folder is None:
        return Run(path, env_id, games, None, 1, sticky, {}, words)
    settings, environment, _ = read_record(folder)
    if len(games.scores) and not has_steps:
        words.append(f"{path} does not say at which steps its games ended: l is added up from 0")
    recorded = environment.get("sticky_actions")
    is_image = environment.get("kind", settings.get("network")) not in ("vector", "mlp")
    return Run(
        path,
        one_line(settings["env_id"], 100),
        games,
        1.0,  # l counts decisions
        FRAME_SKIP if environment.get("is_atari", is_image) else 1,
        recorded if isinstance(recorded, float | int) else sticky,
        settings,
        words,
    )


def read_progress(folder: pathlib.Path, name: str = PROGRESS) -> Progress:
    """A run's progress.csv, or another table of figures, plain or zipped; BadInput if there is none."""
    plain, zipped = folder / name, folder / f"{name}.gz"
    return parse_progress(read_text(zipped if zipped.is_file() and not plain.is_file() else plain))


def parse_progress(text: str) -> Progress:
    """Read a progress.csv's text."""
    head, *lines = text.split("\n")
    names = head.strip().split(",")
    # After the last line's end there is nothing, or a row that was cut.
    words = ["its last line is cut off: left out"] if lines and lines.pop().strip() else []
    rows = [row for line in lines if len(row := _numbers_in(line)) == len(names)]
    if n_bad := len(lines) - len(rows):
        words.append(f"left out lines that are no rows: {n_bad}")
    table = np.array(rows, dtype=float).reshape(-1, len(names))
    return Progress(dict(zip(names, table.T, strict=True)), words)


def _numbers_in(line: str) -> list[float]:
    """A row's numbers; none where a cell is no number."""
    try:
        return [float(cell) for cell in line.split(",")]
    except ValueError:
        return []
