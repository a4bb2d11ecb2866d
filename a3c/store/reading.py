"""What a run has left on the disk, read leniently: its games, its figures, its record.

A run is a run folder of train.py's, of this version or an older one, or else a folder of monitor
files, or one such file, by Stable-Baselines3 or Baselines. Any of these may be zipped (`.gz`).
Scores are those of whole training games, as the files have them. Our `l` counts decisions. So does
Baselines', whose Monitor sits above the frame skip too; Stable-Baselines3's sits below it, so that
in its Atari files `l` counts frames.

Nothing here prints: what was damaged or guessed is in the `words` of what is returned. Reading
needs no knowledge of this version's flags: a published run is read by every later version.
"""

import gzip
import json
import pathlib
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from a3c.machine.appending import one_line
from a3c.settings.params import BadInput
from a3c.store.games import Games, as_counted, merge, parse_monitor
from a3c.store.run_folder import ARGS, LOG, PROGRESS

OLD_GAMES = "monitor"  # the folder of older runs' files, one for each environment
# A million games; nobody's file, zipped or not, should fill the memory.
MAX_FILE_BYTES = 2**25
FRAME_SKIP = 4  # frames in a step of an Atari agent, ours and everybody's


class Progress(NamedTuple):
    """Columns of a progress.csv, and a word for each thing that is wrong with it."""

    columns: dict[str, np.ndarray]
    words: list[str]


class Record(NamedTuple):
    """What an args.json says."""

    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    resumed: Sequence[Mapping[str, Any]]  # a note of each time that the run went on


class Run(NamedTuple):
    """One run, read."""

    path: pathlib.Path
    env_id: str  # empty: not known
    games: Games
    steps_per_l: float | None  # None: a run of others, and nobody said what its files count
    frames_per_step: int
    sticky_actions: float | None  # None: not known
    settings: Mapping[str, Any]  # of args.json; empty for a run of others
    words: Sequence[str]


def read_text(path: pathlib.Path) -> str:
    """A file's text, unzipped where it ends in .gz; BadInput where it cannot be read."""
    try:
        if not path.is_file():  # a pipe or a device may have no end
            raise OSError("it is no file")
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise OSError(f"it holds more than {MAX_FILE_BYTES:,} bytes")
        return data.decode(errors="replace")
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"cannot read {path}: {error}") from None


def run_folder(path: pathlib.Path) -> pathlib.Path | None:
    """The run folder that a path is, or lies in; None for files of others."""
    return next((p for p in (path, *path.parents[:2]) if (p / ARGS).is_file()), None)


def read_record(folder: pathlib.Path) -> Record:
    """Read a run folder's args.json as it is; BadInput where it is damaged.

    Not by run_folder.read_args, which refuses flags that it does not know.
    """
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
    """A run's monitor files, none when it has just begun; of one plain and zipped, the plain one."""
    if path.is_file():
        return [path]
    paths = _monitor_paths(path) or _monitor_paths(path / OLD_GAMES)
    if not paths and not (path / ARGS).is_file():
        raise BadInput(f"{path} holds no monitor files (monitor.csv or *.monitor.csv)")
    return paths


def _monitor_paths(folder: pathlib.Path) -> list[pathlib.Path]:
    zipped_first = [*folder.glob("*monitor.csv.gz"), *folder.glob("*monitor.csv")]
    return sorted({path.name.removesuffix(".gz"): path for path in zipped_first}.values())


def read_run(path: pathlib.Path) -> Run:
    """Read a run; BadInput where its files are of several runs."""
    files, words = [], []
    for file_path in monitor_paths(path):
        try:
            files.append(parse_monitor(read_text(file_path)))
        except BadInput as error:
            words.append(f"{error}: left out")
        else:
            words += [f"{file_path}: {word}" for word in files[-1].words]
    if len(files) > 1 and any(file.steps is not None for file in files):
        raise BadInput(f"{path} holds monitor files of several runs: name one of them")
    env_ids = sorted({file.env_id for file in files if file.env_id})
    if len(env_ids) > 1:
        raise BadInput(f"{path} has games of several environments: {', '.join(env_ids)}")
    games = merge(files) if files else Games(*np.zeros((3, 0)))
    env_id = env_ids[0] if env_ids else ""
    # Registered without sticky actions; others may be made with any.
    sticky = 0.0 if env_id.endswith("NoFrameskip-v4") else None
    others = Run(path, env_id, games, None, 1, sticky, {}, words)
    folder = run_folder(path)
    if folder is None:
        return others
    try:
        record = read_record(folder)
    except BadInput as error:
        return others._replace(words=[*words, f"{error}: taken for a run of others"])
    if files and files[0].steps is None:
        games, more = _with_counts(folder, record, games, is_whole=not path.is_file())
        words += more
    said = record.environment.get("sticky_actions")
    is_vector = record.environment.get("kind", record.settings.get("network")) in ("vector", "mlp")
    return others._replace(
        env_id=one_line(record.settings["env_id"], 100),
        games=games,
        steps_per_l=1.0,  # decisions
        frames_per_step=1 if is_vector else FRAME_SKIP,  # vectors have no frame skip
        sticky_actions=said if isinstance(said, float | int) else sticky,
        settings=record.settings,
        words=words,
    )


def _with_counts(
    folder: pathlib.Path, record: Record, games: Games, is_whole: bool
) -> tuple[Games, list[str]]:
    """The games of an older run with steps as its other files have counted them."""
    if record.settings.get("load_ckpt") is not None:
        log = read_text(folder / LOG) if (folder / LOG).is_file() else ""
        found = re.search(r"^restored .* at (\d[\d,]{,20}) steps$", log, re.MULTILINE)
        n_before = int(found[1].replace(",", "")) if found else 0
        at = f"step {n_before:,}" if found else f"a step that its {LOG} does not say, taken for 0"
        word = f"{folder} went on from a checkpoint at {at}; its games and hours count from there"
        return games._replace(steps=games.steps + n_before), [word]
    try:
        progress = read_progress(folder, ["rl/episodes", "misc/steps"]) if is_whole else None
    except BadInput:
        progress = None
    if progress is None:
        return games, []
    return games._replace(steps=as_counted(games.steps, *progress.columns.values())), []


def read_progress(folder: pathlib.Path, names: Sequence[str]) -> Progress | None:
    """Columns of a run's progress.csv, plain or zipped; BadInput where it cannot be read."""
    plain, zipped = folder / PROGRESS, folder / f"{PROGRESS}.gz"
    text = read_text(zipped if zipped.is_file() and not plain.is_file() else plain)
    return parse_progress(text, names)


def parse_progress(text: str, names: Sequence[str]) -> Progress | None:
    """Read columns of a progress.csv's text; None where it has not all of them."""
    head, *lines = text.split("\n")
    columns = head.strip().split(",")
    if not set(names) <= set(columns):
        return None
    # After the last line's end there is nothing, or a row that was cut.
    words = ["its last line is cut off: left out"] if lines and lines.pop().strip() else []
    rows = [row for line in lines if (row := _parse_row(line, len(columns)))]
    if n_bad := len(lines) - len(rows):
        words.append(f"{n_bad} of its lines are no rows: left out")
    table = np.array(rows, dtype=float).reshape(-1, len(columns))
    return Progress({name: table[:, columns.index(name)] for name in names}, words)


def _parse_row(line: str, n_cells: int) -> list[float] | None:
    """A row's numbers; None where it has others than so many."""
    try:
        row = [float(cell) for cell in line.split(",")]
    except ValueError:
        return None
    return row if len(row) == n_cells else None
