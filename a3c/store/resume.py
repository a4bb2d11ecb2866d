"""Go on with a run in its own folder, as if nothing had happened: `train.py --resume`.

First everything is read and checked, then the folder is cut back to its newest whole checkpoint:
rows of CSVs, lines of log.txt and newer checkpoints that are damaged belong to a time that is given
up. Whatever interrupts the cutting, the next attempt does it again, and finds the same.

A run that was killed before its first checkpoint begins at its start. One that an older version
wrote goes on too, with less: its checkpoints do not say where games and draws stood.
"""

import dataclasses
import json
import math
import os
import pathlib
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TextIO

from a3c.machine.appending import cut, cut_lines
from a3c.settings import command_line
from a3c.settings.params import KNOBS, BadInput, ParsedParams
from a3c.store import checkpoint_files, run_folder

GAMES_IN_MEAN = 100
MONITOR_HEAD_LINES = 2
# A hundred million steps have some MB of them; nobody's should fill the memory.
MAX_TABLE_BYTES = 2**26
# Flags that say where a run came from, not how it goes on.
_OF_ITS_START = {"log_dir", "run_name", "load_ckpt", "lr_decay_to_zero_by_n_steps"}


class Run(NamedTuple):
    """A run that can go on, and that this process now holds."""

    folder: pathlib.Path
    args: run_folder.RunArgs  # with what was given anew
    info: checkpoint_files.Info | None  # None: it was killed before its first checkpoint
    changed: dict[str, tuple[Any, Any]]  # what was given anew: before and now
    lines: list[str]  # what to say of all this
    lock: TextIO

    @property
    def parsed(self) -> ParsedParams:
        return ParsedParams(self.args.params, self.args.sources)


class Standing(NamedTuple):
    """What the threads need to go on from where the run stands."""

    next_games: list[list[int]] | None  # of each worker's environments; None: not known
    generators: list[Mapping[str, Any]] | None  # states of those that draw each worker's actions
    n_rows: list[list[int]]  # of each worker's environments, games in its monitor file
    last_games: list[tuple[float, int]]  # score and length
    n_env_restarts: int
    cpu_seconds: int
    # From which monitor files count their seconds, the time that the run stood still left out;
    # None: they have none yet.
    t_start: float | None


def open_run(asked: command_line.Resume) -> Run:
    """Lock and read a run folder; BadInput or UnusableCheckpoint where the run cannot go on."""
    folder = pathlib.Path(asked.folder)
    if not os.path.isfile(folder / run_folder.ARGS):
        raise BadInput(f"{folder} is no run folder: it has no {run_folder.ARGS}")
    _check_file(folder, folder / run_folder.LOCK)
    lock = run_folder.lock(folder)
    try:
        _check_files(folder)
        return _read(folder, asked, lock)
    except BaseException:
        lock.close()
        raise


def _read(folder: pathlib.Path, asked: command_line.Resume, lock: TextIO) -> Run:
    args = run_folder.read_args(folder)
    if ":" in args.params.env_id and "env_id" not in asked.given:
        raise BadInput(
            f"{folder} is of {args.params.env_id}, which runs the code of a module: if you trust that,"
            f" name it, too"
        )
    parsed = command_line.resumed(ParsedParams(args.params, args.sources), asked.given)
    checkpoints = folder / run_folder.CHECKPOINTS
    info = None
    if any(checkpoints.glob("ckpt-*.json")):
        info, problems = checkpoint_files.newest_whole(checkpoints)
        _check_same_run(folder, args, info)
        n_steps = info.counters["steps"]
        if n_steps >= parsed.params.n_steps:
            raise BadInput(
                f"{folder} is finished: it has {n_steps:,} steps of --n_steps"
                f" {parsed.params.n_steps:,}; more can be given"
            )
        lines = [f"{p}; it is set aside, and the one before is taken" for p in problems]
        lines.append(f"resumed {info.prefix} at {n_steps:,} steps")
        if info.position is None:
            lines.append(
                "it does not say where games and random draws stood: they begin anew, with numbers"
                " that were not used yet; log.txt stays as it is"
            )
    elif _has_trained(folder):
        raise checkpoint_files.UnusableCheckpoint(
            f"{folder} has figures or games, but no checkpoint with its JSON: it cannot go on, and"
            f" is left as it is"
        )
    else:
        origin = args.params.load_ckpt
        if origin is not None and "load_ckpt" not in asked.given:
            raise BadInput(
                f"{folder} has no checkpoint yet, and began with {origin}: if that is to be read once"
                f" more, name it, too: --load_ckpt {shlex.quote(origin)}"
            )
        lines = ["no checkpoint yet: the run begins at its start"]
    before, now = dataclasses.asdict(args.params), dataclasses.asdict(parsed.params)
    changed = {name: (before[name], now[name]) for name in KNOBS if before[name] != now[name]}
    lines += [f"  {name}: {old!r} before, {new!r} now" for name, (old, new) in changed.items()]
    lines += [
        f"  {name}: not recorded, taken as {now[name]!r}"
        for name, source in parsed.sources.items()
        if source == "not recorded"
    ]
    args = args._replace(params=parsed.params, sources=parsed.sources)
    return Run(folder, args, info, changed, lines, lock)


def _check_files(folder: pathlib.Path) -> None:
    """Going on writes to files of the folder, and cuts them: none may be a way out of it, or no file."""
    try:
        for path in folder.rglob("*"):
            _check_file(folder, path)
    except OSError as error:
        raise BadInput(f"cannot look through {folder}: {error.strerror}") from None


def _check_file(folder: pathlib.Path, path: pathlib.Path) -> None:
    if path.is_symlink() or (path.exists() and not (path.is_file() or path.is_dir())):
        raise BadInput(f"{path} is a link or no file: a run in {folder} could not write there")
    if path.suffix == ".csv" and path.stat().st_size > MAX_TABLE_BYTES:
        raise BadInput(f"{path} is larger than any of ours: it is not read")


def _has_trained(folder: pathlib.Path) -> bool:
    """Whether there is more than a run leaves that is killed before its first checkpoint."""
    tables = {folder / "progress.csv": 1} | dict.fromkeys(
        (folder / run_folder.MONITOR).glob("*"), 2
    )
    return any(path.read_bytes().count(b"\n") > n for path, n in tables.items() if path.is_file())


def _check_same_run(
    folder: pathlib.Path, args: run_folder.RunArgs, info: checkpoint_files.Info
) -> None:
    """args.json carries no checksum, but each checkpoint has the same settings under one."""
    for name, saved in info.params.items():
        if name in KNOBS and not KNOBS[name].anew and name not in _OF_ITS_START:
            value = getattr(args.params, name)
            if value != saved or type(value) is not type(saved):
                raise BadInput(
                    f"{folder / run_folder.ARGS} says {name} {value!r}, and {info.prefix}.json"
                    f" {saved!r}: one of them was changed"
                )
    p, position = args.params, info.position
    if position is not None and [len(worker.n_rows) for worker in position.workers] != (
        [p.envs_per_worker] * p.n_workers
    ):
        raise checkpoint_files.UnusableCheckpoint(
            f"{info.prefix}.json has positions of other workers than the run's"
        )


def check_environment(run: Run, description: Mapping[str, Any]) -> None:
    """Raise BadInput where the environment is not what the run began with."""
    for name, now in json.loads(json.dumps(dict(description))).items():
        before = run.args.environment.get(name, now)
        if before != now:
            raise BadInput(
                f"{run.folder} began with an environment of {name} {before!r}, which now has"
                f" {now!r}: are the versions in its versions.txt installed?"
            )


def cut_back(run: Run, argv: Sequence[str]) -> Standing:
    """Bring the folder back to the checkpoint, and note in args.json that the run goes on."""
    n_steps = run.info.counters["steps"] if run.info else 0
    try:
        for name in (run_folder.MONITOR, run_folder.CHECKPOINTS):
            (run.folder / name).mkdir(exist_ok=True)
        checkpoints = run.folder / run_folder.CHECKPOINTS
        checkpoint_files.set_aside_newer(checkpoints, n_steps if run.info else -1)
        checkpoint_files.delete_newer(checkpoints / checkpoint_files.BEST, n_steps)
        most = {"misc/steps": n_steps, "misc/env_restarts": _n_env_restarts(run)}
        _cut_rows(run, "progress.csv", most)
        _cut_rows(run, "evaluations.csv", {"steps": n_steps})
        _cut_monitor_files(run)
        if run.info and run.info.position:
            cut(run.folder / "log.txt", run.info.position.log_bytes)
    except OSError as error:
        raise BadInput(f"cannot cut {run.folder} back to its checkpoint: {error}") from error
    run_folder.record_resumption(
        run.folder,
        run.args,
        {
            "n_steps": n_steps,
            "command": shlex.join(["python3", "train.py", *argv]),
            "changed": run.changed,
        },
    )
    return _standing(run)


def _standing(run: Run) -> Standing:
    p = run.args.params
    games = {
        (worker, env): list(_read_games(_monitor_file(run.folder, worker, env)))
        for worker in range(p.n_workers)
        for env in range(p.envs_per_worker)
    }
    by_time = sorted((game for found in games.values() for game in found), key=lambda game: game[2])
    workers = run.info.position.workers if run.info and run.info.position else None
    n_rows = [
        [len(games[worker, env]) for env in range(p.envs_per_worker)]
        for worker in range(p.n_workers)
    ]
    starts = [_t_start(_monitor_file(run.folder, *key)) for key in games]
    # Where no game has ended, files that are to come count from the same moment as those there are.
    t_start = next((start for start in starts if start is not None), None)
    if by_time:
        t_start = time.time() - by_time[-1][2]
    return Standing(
        next_games=[worker.next_games for worker in workers] if workers else None,
        generators=[worker.generator for worker in workers] if workers else None,
        n_rows=n_rows,
        last_games=[(score, length) for score, length, _ in by_time[-GAMES_IN_MEAN:]],
        n_env_restarts=_n_env_restarts(run),
        cpu_seconds=run.info.position.cpu_seconds if run.info and run.info.position else 0,
        t_start=t_start,
    )


def _monitor_file(folder: pathlib.Path, worker: int, env: int) -> pathlib.Path:
    return folder / run_folder.MONITOR / f"{worker}.{env}.monitor.csv"


def _n_env_restarts(run: Run) -> int:
    return run.info.position.n_env_restarts if run.info and run.info.position else 0


def _cut_rows(run: Run, name: str, most: Mapping[str, int]) -> None:
    """Cut off the rows that have more in one of these columns, of which the first must be there.

    So go the rows of later steps, and of later restarts at the same steps. A damaged row among
    those that stay stays as well, and so does one whose restarts nobody counted. Where the head is
    damaged, all stay: nobody can tell which are the later ones.
    """
    columns: list[str] = []
    needed = next(iter(most))

    def stays(number: int, fields: list[str]) -> bool:
        if number == 0:
            columns.extend(fields)
            if needed not in columns:
                run.lines.append(f"{name} has no column {needed}: none of its rows is cut")
            return True
        return not any(
            float(fields[columns.index(column)]) > n
            for column, n in most.items()
            if column in columns
        )

    cut_lines(run.folder / name, stays)


def _cut_monitor_files(run: Run) -> None:
    p = run.args.params
    for worker in range(p.n_workers):
        for env in range(p.envs_per_worker):
            path = _monitor_file(run.folder, worker, env)
            cut_lines(path, _row_stays(run, path, worker, env), MONITOR_HEAD_LINES)


def _row_stays(
    run: Run, path: pathlib.Path, worker: int, env: int
) -> Callable[[int, list[str]], bool]:
    if run.info and run.info.position is None:
        # All that an older version's checkpoint tells is when it was written.
        until = os.stat(f"{run.info.prefix}.json").st_mtime - (_t_start(path) or 0.0)
        return lambda number, fields: number < MONITOR_HEAD_LINES or float(fields[2]) <= until
    workers = run.info.position.workers if run.info and run.info.position else None
    n_rows = workers[worker].n_rows[env] if workers else 0
    return lambda number, fields: number < MONITOR_HEAD_LINES + n_rows


def _t_start(path: pathlib.Path) -> float | None:
    """From when a monitor file counts its seconds."""
    try:
        with path.open(encoding="utf-8") as file:
            t_start = json.loads(file.readline(1000).removeprefix("#"))["t_start"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return t_start if isinstance(t_start, float) and math.isfinite(t_start) else None


def _read_games(path: pathlib.Path) -> Iterator[tuple[float, int, float]]:
    """Score, length and time of each row; a damaged one counts as a row whose game is not known."""
    try:
        lines = path.read_bytes().split(b"\n")[2:-1]
    except FileNotFoundError:
        return
    for line in lines:
        try:
            score, length, seconds = line.split(b",")
            game = float(score), int(length), float(seconds)
        except ValueError:
            game = math.nan, 0, 0.0
        yield game
