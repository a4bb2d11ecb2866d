"""How a run starts: new, from a checkpoint, or again in its own folder by `train.py --resume`.

To resume a run, everything is read and checked first. Then its folder is cut back to the newest
whole checkpoint: rows beyond the file lengths that this one recorded are cut off, and newer
checkpoints, which are damaged, are renamed. If the cutting is interrupted, the next attempt repeats
it, with the same result. A run that was killed before its first checkpoint starts from the beginning.
"""

import dataclasses
import itertools
import json
import os
import pathlib
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from a3c.contract import Counts, Position, Subject
from a3c.machine.appending import cut_lines
from a3c.machine.words import BadInput
from a3c.settings import command_line, config
from a3c.settings.config import OF_ONE_RUN, code_in
from a3c.settings.params import KNOBS, OF_ONE_START, Params, as_in_json, kept_moments
from a3c.store import checkpoint, reading, run_folder
from a3c.store.checkpoint import Checkpoint, UnusableCheckpoint
from a3c.store.games import parse_game
from a3c.store.reading import read_run
from a3c.store.run_folder import RunArgs, RunFolder

GAMES_IN_MEAN = 100
# Settings that follow from how a run began: args.json and its checkpoints may differ in them.
_OF_ITS_START = {"log_dir", "run_name", "load_ckpt", "lr_decay_to_zero_by_n_steps"}


class Start(NamedTuple):
    """From where a run starts."""

    checkpoint: Checkpoint | None = None  # None: with new random weights
    is_resumed: bool = False  # in its own folder
    t_start: float = 0.0  # games count their seconds from here; pauses are taken out
    last_games: Sequence[tuple[float, int]] = ()  # score and length
    lines: Sequence[str] = ()  # messages for the user

    @property
    def counts(self) -> Counts:
        """How far the run is already."""
        return self.checkpoint.snapshot.counts if self.checkpoint else Counts()

    @property
    def position(self) -> Position | None:
        """Where this run's games and random draws stood; None if they begin anew."""
        return self.checkpoint.position if self.checkpoint and self.is_resumed else None

    def first_games(self, worker: int, n_envs: int) -> list[int]:
        """The number of the first game of each environment of a worker."""
        if self.checkpoint is None:
            return [0] * n_envs
        if self.position:
            return list(self.position.workers[worker].next_games)
        # Begin with games that the first run has not played. Its numbers can be higher than its
        # count of games, because it may have abandoned some.
        played = [self.counts.games + 1]
        if self.checkpoint.position:
            played += [game for w in self.checkpoint.position.workers for game in w.next_games]
        return [max(played)] * n_envs


def begin(params: Params, subject: Subject) -> Start:
    """A new run's start, from the checkpoint that --load_ckpt names if there is one."""
    if params.load_ckpt is None:
        return Start(t_start=time.time())
    found, problems = checkpoint.read_newest(pathlib.Path(params.load_ckpt))
    found.check_fits(subject)
    if found.n_steps >= params.n_steps:
        raise BadInput(
            f"{found.path} is at {found.n_steps:,} steps:"
            f" --n_steps {params.n_steps:,}, which counts them too, leaves none to train; pass a"
            " larger --n_steps"
        )
    lines = [f"{problem}; the one before is used" for problem in problems]
    lines.append(f"restored {found.path} at {found.n_steps:,} steps")
    if not found.snapshot.mean_squares:
        lines.append("it holds weights only: RMSProp's statistics start anew")
    kept, held = kept_moments(params), found.snapshot.moments
    words = "running mean and variance of"
    lines += [f"it holds no {words} {name}: they start anew" for name in kept if name not in held]
    lines += [f"its {words} {name} are not used" for name in held if name not in kept]
    lines += [
        f"  {name}: {found.params[name]!r} there, {value!r} here"
        for name, value in as_in_json(params).items()
        if name not in OF_ONE_RUN.union(OF_ONE_START) and found.params.get(name, value) != value
    ]
    return Start(found, t_start=time.time(), lines=lines)


def settings_at(path: str, tell: Callable[[str], None]) -> dict[str, Any]:
    """The settings of the run that a checkpoint is of: from args.json, or else as it records them."""
    if folder := reading.folder_of(pathlib.Path(path)):
        return config.read(str(folder), tell)
    found, _ = checkpoint.read_newest(pathlib.Path(path))
    return config.of_checkpoint(found.params)


class AlreadyFinished(BadInput):
    """The run has all its steps."""


class Resumption(NamedTuple):
    """A run that can be resumed, and whose folder this process now holds."""

    folder: RunFolder
    args: RunArgs  # with the settings given anew
    checkpoint: Checkpoint | None  # None: it was killed before its first one
    changed: Mapping[str, tuple[Any, Any]]  # settings given anew: before and now
    lines: list[str]  # messages for the user

    def check_fits(self, subject: Subject, environment: Mapping[str, Any]) -> None:
        """Raise unless the environment is the one that the run began with."""
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
    """Lock and read a run folder; BadInput or UnusableCheckpoint if it cannot be resumed."""
    folder = run_folder.open_existing(pathlib.Path(asked.folder))
    try:
        _check_files(folder.path)
        return _read(folder, asked)
    except BaseException:
        folder.close()
        raise


def _read(folder: RunFolder, asked: command_line.Resume) -> Resumption:
    args = run_folder.read_args(folder.path)
    if code := code_in(as_in_json(args.parsed.params), asked.given):
        words = " ".join(code.values())
        raise BadInput(
            f"{folder} trains with {words}, which may run the code of a module: if you trust it, pass"
            f" {words} as well"
        )
    parsed = command_line.resumed(args.parsed, asked.given, asked.folder)
    found = None
    if checkpoint.numbered(folder.checkpoints):
        found, problems = checkpoint.newest_whole(folder.checkpoints)
        _check_same_run(folder, args, found)
        if found.n_steps >= parsed.params.n_steps:
            raise AlreadyFinished(
                f"{folder} is already finished: it has {found.n_steps:,} steps of --n_steps"
                f" {parsed.params.n_steps:,}; pass a larger --n_steps to continue"
            )
        lines = [f"{problem}; it is renamed, and the one before is used" for problem in problems]
        lines.append(f"resumed {found.path} at {found.n_steps:,} steps")
    elif any(folder.checkpoints.glob("*.index")) or len(read_run(folder.path).games.scores):
        # If it started from the beginning, its games would be lost.
        raise UnusableCheckpoint(
            f"{folder} cannot be resumed: it has trained, but has no checkpoint that this revision"
            f" reads ({checkpoint.OLD_FORM_IS_READ_BY} reads those of TensorFlow's form)"
        )
    else:
        lines = ["no checkpoint yet: the run starts from the beginning"]
    before, now = (dataclasses.asdict(each.params) for each in (args.parsed, parsed))
    changed = {name: (before[name], now[name]) for name in KNOBS if before[name] != now[name]}
    lines += [f"  {name}: {old!r} before, {new!r} now" for name, (old, new) in changed.items()]
    lines += [
        f"  {name}: not recorded, taken as {now[name]!r}"
        for name, source in parsed.sources.items()
        if source == "not recorded"
    ]
    return Resumption(folder, args._replace(parsed=parsed), found, changed, lines)


def _check_files(folder: pathlib.Path) -> None:
    """Refuse links and the like: a resumed run writes to files of its folder, and to no others."""
    try:
        for path in folder.rglob("*"):
            if path.is_symlink() or (path.exists() and not (path.is_file() or path.is_dir())):
                raise BadInput(f"{path} is a link or a special file; no run writes through one")
    except OSError as error:
        raise BadInput(f"cannot look through {folder}: {error.strerror}") from None


def _check_same_run(folder: RunFolder, args: RunArgs, found: Checkpoint) -> None:
    """Compare args.json, which carries no checksum, with the checkpoint's own record."""
    values = as_in_json(args.parsed.params)
    for name, saved in found.params.items():
        if name in KNOBS and not KNOBS[name].anew and name not in _OF_ITS_START:
            value = values[name]
            if value != saved or type(value) is not type(saved):
                raise BadInput(
                    f"{folder.path / run_folder.ARGS} has {name} {value!r}, but {found.path} has"
                    f" {saved!r}: one of them was changed"
                )
    p, position = args.parsed.params, found.position
    n_envs = [len(worker.next_games) for worker in position.workers] if position else None
    if n_envs != [p.envs_per_worker] * p.n_workers:
        raise UnusableCheckpoint(f"{found.path} has other numbers of workers or environments")
    if kept_moments(p) != [*found.snapshot.moments]:
        raise UnusableCheckpoint(f"{found.path} has other running means and variances")


def cut_back(run: Resumption, begun: Start, argv: Sequence[str]) -> Start:
    """Cut the folder back to the checkpoint, and note the resumption in args.json.

    If there is no checkpoint yet, the run starts with `begun`.
    """
    folder, n_steps = run.folder, run.checkpoint.n_steps if run.checkpoint else 0
    lengths = {run_folder.GAMES: 0, run_folder.PROGRESS: 0}
    if run.checkpoint and run.checkpoint.position:
        lengths = dict(run.checkpoint.position.n_bytes)
    try:
        checkpoint.take_away_newer(folder.checkpoints, n_steps, rename=True)
        checkpoint.take_away_newer(folder.best, n_steps)
        for name in (run_folder.GAMES, run_folder.PROGRESS, run_folder.LOG):
            path = folder.path / name
            path.touch()
            if path.stat().st_size < lengths.get(name, 0):
                run.lines.append(f"{name} is shorter than at its checkpoint: lines are missing")
                cut_lines(path)
            elif name in lengths:
                os.truncate(path, lengths[name])
        evaluations = folder.path / run_folder.EVALUATIONS
        if evaluations.exists():
            cut_lines(
                evaluations,
                lambda row: row.startswith(b"steps,") or int(row.split(b",")[0]) <= n_steps,
            )
    except OSError as error:
        raise BadInput(f"cannot cut {folder} back to its checkpoint: {error}") from error
    command = shlex.join([*command_line.called("train.py"), *argv])
    note = {"n_steps": n_steps, "command": command, "changed": run.changed}
    run_folder.record_resumption(folder, run.args, note)
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
    """Score, length and seconds of the last games; a line that is no whole row is left out."""
    _, *lines = path.read_bytes().decode(errors="replace").split("\n")
    newest = (game for line in reversed(lines) if (game := parse_game(line, 3)))
    games = [*itertools.islice(newest, GAMES_IN_MEAN)]
    return [(score, int(length), t) for score, length, t in reversed(games)]
