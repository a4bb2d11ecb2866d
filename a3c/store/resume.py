"""How a run starts: new, from a checkpoint, or again in its own folder: `train.py --resume`.

To go on with a run, everything is first read and checked, and then the folder is cut back to its
newest whole checkpoint: what its files have beyond the lengths that the checkpoint recorded, and
newer checkpoints, which are damaged, belong to a time that is given up. Whatever interrupts the
cutting, the next attempt does it again, and finds the same.

A run that was killed before its first checkpoint begins at its start.
"""

import dataclasses
import json
import math
import os
import pathlib
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from a3c.contract import Counts, Position, Subject
from a3c.machine.appending import cut_lines
from a3c.settings import command_line
from a3c.settings.params import KNOBS, BadInput, Params, ParsedParams
from a3c.store import checkpoint, run_folder
from a3c.store.checkpoint import Checkpoint, UnusableCheckpoint
from a3c.store.run_folder import RunArgs, RunFolder

GAMES_IN_MEAN = 100
# The last games are read from the end of monitor.csv, which has some 50 bytes a game.
_TAIL_BYTES = 2**16
_MAX_HEAD_BYTES = 2**16
# A hundred million steps have some MB of evaluations; nobody's should fill the memory.
_MAX_EVALUATIONS_BYTES = 2**26
# Flags that say where a run came from, not how it goes on.
_OF_ITS_START = {"log_dir", "run_name", "load_ckpt", "lr_decay_to_zero_by_n_steps"}
# What differs between any two runs, and is not worth a line when one begins with another's weights.
_OF_ONE_RUN = {"log_dir", "run_name", "load_ckpt"}


class Start(NamedTuple):
    """From where a run's threads start."""

    checkpoint: Checkpoint | None = None  # None: from weights that are drawn
    is_resumed: bool = False  # in its own folder
    t_start: float = 0.0  # from when games count their seconds, without the time it stood still
    last_games: Sequence[tuple[float, int]] = ()  # score and length
    lines: Sequence[str] = ()  # what to say of it

    @property
    def counts(self) -> Counts:
        """How far the run is already."""
        return self.checkpoint.snapshot.counts if self.checkpoint else Counts()

    @property
    def position(self) -> Position | None:
        """Where games and draws of this very run stood; None where they begin."""
        return self.checkpoint.position if self.checkpoint and self.is_resumed else None

    def first_games(self, worker: int, n_envs: int) -> list[int]:
        """The number of the game with which each environment of a worker begins."""
        if self.checkpoint is None:
            return [0] * n_envs
        if self.position:
            return list(self.position.workers[worker].next_games)
        # Games of its own, after those that the first run played; where games were abandoned,
        # their numbers are higher than the count of those that ended.
        played = [self.counts.games + 1]
        if self.checkpoint.position:
            played += [game for w in self.checkpoint.position.workers for game in w.next_games]
        return [max(played)] * n_envs


def begin(params: Params, subject: Subject) -> Start:
    """A new run's start, from the checkpoint that --load_ckpt names if there is one."""
    if params.load_ckpt is None:
        return Start(t_start=time.time())
    found = checkpoint.read(checkpoint.find(pathlib.Path(params.load_ckpt)))
    found.check_fits(subject)
    if found.n_steps >= params.n_steps:
        raise BadInput(
            f"{found.path} is at {found.n_steps:,} steps:"
            f" --n_steps {params.n_steps:,}, the total, leaves none to go"
        )
    lines = [f"restored {found.path} at {found.n_steps:,} steps"]
    if not found.snapshot.mean_squares:
        lines.append("it holds weights only: RMSProp's statistics start anew")
    lines += [
        f"  {name}: {found.params[name]!r} there, {value!r} here"
        for name, value in dataclasses.asdict(params).items()
        if name not in _OF_ONE_RUN and name in found.params and found.params[name] != value
    ]
    return Start(found, t_start=time.time(), lines=lines)


class Resumption(NamedTuple):
    """A run that can go on, and whose folder this process now holds."""

    folder: RunFolder
    args: RunArgs  # with what was given anew
    checkpoint: Checkpoint | None  # None: it was killed before its first one
    changed: Mapping[str, tuple[Any, Any]]  # what was given anew: before and now
    lines: list[str]  # what to say of all this

    @property
    def parsed(self) -> ParsedParams:
        return ParsedParams(self.args.params, self.args.sources)

    def check_fits(self, subject: Subject, environment: Mapping[str, Any]) -> None:
        """Raise where the environment is not the one that the run began with."""
        for name, now in json.loads(json.dumps(dict(environment))).items():
            before = self.args.environment.get(name, now)
            if before != now:
                raise BadInput(
                    f"{self.folder} began with an environment of {name} {before!r}, which now has"
                    f" {now!r}: are the versions in its versions.txt installed?"
                )
        if self.checkpoint:
            self.checkpoint.check_fits(subject)


def open_run(asked: command_line.Resume) -> Resumption:
    """Lock and read a run folder; BadInput or UnusableCheckpoint where the run cannot go on."""
    folder = run_folder.open_existing(pathlib.Path(asked.folder))
    try:
        _check_files(folder.path)
        return _read(folder, asked)
    except BaseException:
        folder.close()
        raise


def _read(folder: RunFolder, asked: command_line.Resume) -> Resumption:
    args = run_folder.read_args(folder.path)
    if ":" in args.params.env_id and "env_id" not in asked.given:
        raise BadInput(
            f"{folder} is of {args.params.env_id}, which runs the code of a module: if you trust"
            f" that, name it, too"
        )
    parsed = command_line.resumed(ParsedParams(args.params, args.sources), asked.given)
    found = None
    if checkpoint.numbered(folder.checkpoints):
        found, problems = checkpoint.newest_whole(folder.checkpoints)
        _check_same_run(folder, args, found)
        if found.n_steps >= parsed.params.n_steps:
            raise BadInput(
                f"{folder} is already finished: it has {found.n_steps:,} steps of --n_steps"
                f" {parsed.params.n_steps:,}; pass a larger --n_steps to continue"
            )
        lines = [f"{problem}; it is set aside, and the one before is taken" for problem in problems]
        lines.append(f"resumed {found.path} at {found.n_steps:,} steps")
    elif _has_trained(folder):
        raise UnusableCheckpoint(
            f"{folder} has figures or games, but no checkpoint that this revision reads"
            f" ({checkpoint.OLD_FORM_IS_READ_BY} reads those of TensorFlow's form): it cannot go"
            f" on, and is left as it is"
        )
    else:
        origin = args.params.load_ckpt
        if origin is not None and "load_ckpt" not in asked.given:
            raise BadInput(
                f"{folder} has no checkpoint yet, and began with {origin}: if that is to be read"
                f" once more, name it, too: --load_ckpt {shlex.quote(origin)}"
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
    return Resumption(folder, args, found, changed, lines)


def _check_files(folder: pathlib.Path) -> None:
    """Refuse links and the like: to go on writes to files of the folder, and to no others."""
    try:
        for path in folder.rglob("*"):
            if path.is_symlink() or (path.exists() and not (path.is_file() or path.is_dir())):
                raise BadInput(f"{path} is a link or a special file; a run writes through none")
        evaluations = folder / run_folder.EVALUATIONS
        if evaluations.exists() and evaluations.stat().st_size > _MAX_EVALUATIONS_BYTES:
            raise BadInput(f"{evaluations} is larger than any of ours: it is not read")
    except OSError as error:
        raise BadInput(f"cannot look through {folder}: {error.strerror}") from None


def _has_trained(folder: RunFolder) -> bool:
    """Whether there is more than a run leaves that is killed before its first checkpoint."""
    for name, n_head_lines in {run_folder.PROGRESS: 1, run_folder.GAMES: 2}.items():
        path = folder.path / name
        if path.exists():
            with path.open("rb") as file:
                if file.read(_MAX_HEAD_BYTES).count(b"\n") > n_head_lines:
                    return True
    return any((folder.path / "monitor").glob("*")) or any(folder.checkpoints.glob("*.index"))


def _check_same_run(folder: RunFolder, args: RunArgs, found: Checkpoint) -> None:
    """Compare args.json, which carries no checksum, with the checkpoint's own record."""
    for name, saved in found.params.items():
        if name in KNOBS and not KNOBS[name].anew and name not in _OF_ITS_START:
            value = getattr(args.params, name)
            if value != saved or type(value) is not type(saved):
                raise BadInput(
                    f"{folder.path / run_folder.ARGS} says {name} {value!r}, and {found.path}"
                    f" {saved!r}: one of them was changed"
                )
    if found.snapshot.mean_squares.keys() != found.snapshot.weights.keys():
        raise UnusableCheckpoint(f"{found.path} lacks RMSProp's statistics")
    p, position = args.params, found.position
    n_envs = [len(worker.next_games) for worker in position.workers] if position else None
    if n_envs != [p.envs_per_worker] * p.n_workers:
        raise UnusableCheckpoint(f"{found.path} has positions of other workers than the run's")


def cut_back(run: Resumption, begun: Start, argv: Sequence[str]) -> Start:
    """Bring the folder back to the checkpoint, and note in args.json that the run goes on.

    Where there is no checkpoint yet, the run begins as `begun`.
    """
    folder, n_steps = run.folder, run.checkpoint.n_steps if run.checkpoint else 0
    lengths = {run_folder.GAMES: 0, run_folder.PROGRESS: 0}
    if run.checkpoint and run.checkpoint.position:
        lengths = dict(run.checkpoint.position.n_bytes)
    try:
        checkpoint.set_aside_newer(folder.checkpoints, n_steps)
        checkpoint.delete_newer(folder.best, n_steps)
        for name in (run_folder.GAMES, run_folder.PROGRESS, run_folder.LOG):
            path = folder.path / name
            if name not in lengths:
                continue
            if not path.exists():
                if lengths[name]:
                    run.lines.append(f"{name} is missing, which its checkpoint knows of")
            elif path.stat().st_size < lengths[name]:
                run.lines.append(f"{name} is shorter than at its checkpoint: lines are missing")
                cut_lines(path)
            else:
                os.truncate(path, lengths[name])
        evaluations = folder.path / run_folder.EVALUATIONS
        if evaluations.exists():
            cut_lines(
                evaluations,
                lambda row: row.startswith(b"steps,") or int(row.split(b",")[0]) <= n_steps,
            )
    except OSError as error:
        raise BadInput(f"cannot cut {folder} back to its checkpoint: {error}") from error
    run_folder.record_resumption(
        folder,
        run.args,
        {
            "n_steps": n_steps,
            "command": shlex.join(["python3", "train.py", *argv]),
            "changed": run.changed,
        },
    )
    if run.checkpoint is None:
        return begun._replace(lines=[*run.lines, *begun.lines])
    games = _last_games(folder.path / run_folder.GAMES)
    return Start(
        run.checkpoint,
        is_resumed=True,
        t_start=time.time() - max((seconds for *_, seconds in games), default=0.0),
        last_games=[(score, length) for score, length, _ in games],
        lines=run.lines,
    )


def _last_games(path: pathlib.Path) -> list[tuple[float, int, float]]:
    """Score, length and seconds of the last games; what is no whole row is left out."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
        _, *lines = file.read().split(b"\n")  # the first is the head, or cut
    games = []
    for line in lines:
        try:
            score, length, seconds, *_ = line.split(b",")
            game = float(score), int(length), float(seconds)
            if all(map(math.isfinite, game)):
                games.append(game)
        except (ValueError, OverflowError):  # a damaged row
            continue
    return games[-GAMES_IN_MEAN:]
