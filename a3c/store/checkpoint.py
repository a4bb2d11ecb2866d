"""A checkpoint on the disk: one file, `ckpt-<steps>.safetensors`.

Its arrays are the shared state at one moment: `weights/<name>`; RMSProp's statistics,
`mean_squares/<name>`, which a published agent lacks; and, if the run keeps running moments,
`moments/<name>_n`, `_mean` and `_squares`. Its metadata hold one JSON text under the key `a3c`:

    format_version   subject   params   counts   position   checksum

`checksum` is the SHA-256 of the JSON without it and of every array's name, type, shape and bytes.

A file is written whole under another name, synced and renamed, so a reader finds all of it or
nothing. Reading one runs no code and trusts no size that the file states.
"""

import contextlib
import hashlib
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from a3c.contract import Counts, Moments, Position, Snapshot, Subject, WorkerPosition
from a3c.machine.appending import write_atomically
from a3c.machine.words import one_line
from a3c.settings.config import OF_ONE_RUN

FORMAT_VERSION = 3
READABLE_VERSIONS = (2, 3)
# What a subject of version 2 lacks. At that time there was no choice.
_ADDED: dict[str, Any] = {
    name: list(value) if isinstance(value, tuple) else value
    for name, value in Subject._field_defaults.items()
}
# What one of version 3 may lack, and in which a run may differ from its checkpoint.
_ADDED_LATER = ("env_kwargs", "wrapper", "max_episode_steps")
KEY = "a3c"  # of the JSON in the file's metadata
SUFFIX = ".safetensors"
_NAME = re.compile(r"ckpt-(0|[1-9][0-9]{0,17})" + re.escape(SUFFIX))
OLD_FORM_IS_READ_BY = "243b5dc"  # the last revision whose checkpoints were TensorFlow's

# Our headers have a few thousand bytes, our files up to 20 MB. The limits protect the memory.
MAX_HEADER_BYTES = 2**24
MAX_FILE_BYTES = 2**30
MAX_WEIGHTS = 10**8  # with their statistics, they fit into such a file


class UnusableCheckpoint(Exception):
    """A checkpoint is missing, damaged or does not fit; the message is one line."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message, 800))


class OtherVersion(ValueError):
    """A checkpoint has the format of another version of this project."""


class Checkpoint(NamedTuple):
    """What one file holds."""

    path: pathlib.Path
    subject: Subject
    params: Mapping[str, Any]  # the settings of the run, by name
    snapshot: Snapshot
    position: Position | None = None  # None: a published agent, or the best evaluated

    @property
    def n_steps(self) -> int:
        """How many agent steps its weights have learned from."""
        return self.snapshot.counts.steps

    def check_fits(self, subject: Subject) -> None:
        """Raise, naming both values, unless the checkpoint was made for this subject."""
        for name, wanted in subject._asdict().items():
            saved = getattr(self.subject, name)
            if saved != wanted and name not in _ADDED_LATER:
                raise UnusableCheckpoint(
                    f"{self.path} was made with {name.replace('_', ' ')} {saved!r},"
                    f" this run has {wanted!r}"
                )


# One file


def path_of(folder: pathlib.Path, n_steps: int) -> pathlib.Path:
    """The path of the checkpoint of so many steps."""
    return folder / f"ckpt-{n_steps}{SUFFIX}"


def write(checkpoint: Checkpoint) -> None:
    """Write a checkpoint to its path; if that fails, it raises OSError and changes nothing."""
    position = checkpoint.position
    content = {
        "format_version": FORMAT_VERSION,
        "subject": checkpoint.subject._asdict(),
        "params": dict(checkpoint.params),
        "counts": checkpoint.snapshot.counts._asdict(),
        "position": position
        and position._asdict() | {"workers": [worker._asdict() for worker in position.workers]},
    }
    tensors = {
        f"{part}/{name}": np.asarray(array, order="C")
        for part in ("weights", "mean_squares")
        for name, array in getattr(checkpoint.snapshot, part).items()
    }
    for name, moments in checkpoint.snapshot.moments.items():
        for part, value in moments._asdict().items():
            tensors[f"moments/{name}_{part}"] = np.asarray(value, order="C")
    for name, array in tensors.items():
        if not np.isfinite(array).all():  # `read` would refuse it
            raise OSError(f"{name} holds a number that is not finite")
    content["checksum"] = _checksum(content, tensors)
    data = safetensors.numpy.save(tensors, {KEY: json.dumps(content)})
    write_atomically(checkpoint.path, data)


def write_agent(saved: Checkpoint, folder: pathlib.Path) -> None:
    """Write the weights alone, which is enough to play, and no path of the machine."""
    snapshot = saved.snapshot._replace(mean_squares={})
    params = {name: value for name, value in saved.params.items() if name not in OF_ONE_RUN}
    path = folder / saved.path.name
    write(saved._replace(path=path, params=params, snapshot=snapshot, position=None))


def read(path: pathlib.Path) -> Checkpoint:
    """Read and verify a whole checkpoint."""
    try:
        data = _read_bytes(path)
        content = _content_of(data)
        tensors = safetensors.numpy.load(data)
        if content.pop("checksum", None) != _checksum(content, tensors):
            raise ValueError("it is damaged: its checksum does not match its content")
        return _checked(path, content, tensors)
    except (OSError, ValueError, KeyError, RecursionError, safetensors.SafetensorError) as error:
        raise UnusableCheckpoint(f"cannot read {path}: {error}") from error


def _read_bytes(path: pathlib.Path) -> bytes:
    if not path.is_file():  # a pipe or a device has no end
        raise ValueError("it is not a file" if path.exists() else "there is no such file")
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ValueError(f"it is larger than {MAX_FILE_BYTES:,} bytes")
    return path.read_bytes()


def _content_of(data: bytes) -> dict[str, Any]:
    """The JSON in a file's metadata, checked before the library sees the file."""
    n_bytes = int.from_bytes(data[:8], "little")
    if len(data) < 8 or n_bytes > min(MAX_HEADER_BYTES, len(data) - 8):
        raise ValueError("it is damaged: its header is longer than it may be")
    header = json.loads(data[8 : 8 + n_bytes])
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    text = metadata.get(KEY) if isinstance(metadata, dict) else None
    content = json.loads(text) if isinstance(text, str) else None
    if not isinstance(content, dict):
        raise ValueError("it is not a checkpoint of this project")
    version = content.get("format_version")
    if type(version) is not int or version not in READABLE_VERSIONS:
        raise OtherVersion(
            f"its format_version is {str(version)[:40]!r};"
            f" this revision reads {' and '.join(map(str, READABLE_VERSIONS))}"
        )
    return content


def _checksum(content: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
    for name, array in sorted(tensors.items()):
        digest.update(f"\n{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _checked(
    path: pathlib.Path, content: dict[str, Any], tensors: Mapping[str, np.ndarray]
) -> Checkpoint:
    """The checkpoint that a file holds; ValueError where `write` cannot have written it."""
    if isinstance(content.get("subject"), dict):
        names = _ADDED if content["format_version"] == 2 else _ADDED_LATER
        content["subject"] = {name: _ADDED[name] for name in names} | content["subject"]
    for name, form in _FORMS.items():
        if name not in content or not _has_form(content[name], form):
            raise ValueError(f"its {name} is missing or of the wrong type")
    parts: dict[str, dict[str, np.ndarray]] = {"weights": {}, "mean_squares": {}, "moments": {}}
    for full_name, array in tensors.items():
        part, _, name = full_name.partition("/")
        dtype: Any = np.float32
        if part == "moments":
            dtype = np.int64 if name.endswith("_n") else np.float64
        if part not in parts or array.dtype != dtype:
            raise ValueError(f"it holds {full_name} of type {array.dtype}")
        if not np.isfinite(array).all():
            raise ValueError(f"{full_name} holds a number that is not finite")
        parts[part][name] = array
    subject = Subject(**content["subject"])
    position = content["position"] and Position(**content["position"])
    if position:
        workers = [WorkerPosition(**worker) for worker in content["position"]["workers"]]
        position = position._replace(workers=workers)
    return Checkpoint(
        path,
        subject._replace(
            observation_shape=tuple(subject.observation_shape),
            hidden_units=tuple(subject.hidden_units),
            env_kwargs=tuple(subject.env_kwargs),
        ),
        content["params"],
        Snapshot(
            Counts(**content["counts"]),
            parts["weights"],
            parts["mean_squares"],
            _moments(subject, parts["moments"]),
        ),
        position,
    )


def _moments(subject: Subject, arrays: Mapping[str, np.ndarray]) -> dict[str, Moments]:
    found, left = {}, dict(arrays)
    for name, shape in (("observations", tuple(subject.observation_shape)), ("returns", ())):
        parts = [f"{name}_{part}" for part in Moments._fields]
        if left.keys() >= {*parts}:
            n, mean, squares = map(left.pop, parts)
            if n.shape or {mean.shape, squares.shape} != {shape}:
                raise ValueError(f"its moments of {name} have the wrong shape")
            if int(n) not in _COUNT or (squares < 0).any():
                raise ValueError(f"its moments of {name} are out of range")
            found[name] = Moments(int(n), mean, squares)
    if left:
        raise ValueError(f"it holds moments/{min(left)}, which is unknown or lacks its other parts")
    return found


# A form is a type, a range of integers, a list of one form, an object of named forms ({str: form}:
# whatever the names), a tuple of forms of which one has to fit, or the value itself.
_COUNT = range(10**15)  # far from 64 bits, so that the run can count on from there
_GENERATOR = {  # NumPy's PCG64, as `bit_generator.state` gives and takes it
    "bit_generator": "PCG64",
    "state": {"state": range(2**128), "inc": range(1, 2**128, 2)},
    "has_uint32": range(2),
    "uinteger": range(2**32),
}
_POSITION = {
    "workers": [{"generator": _GENERATOR, "next_games": [range(2**62)]}],
    "n_bytes": {str: range(2**62)},
    "n_env_restarts": _COUNT,
    "cpu_seconds": _COUNT,
}
_FORMS: dict[str, Any] = {
    "subject": {
        **dict.fromkeys(("env_id", "preprocessing", "network"), str),
        "observation_shape": [_COUNT[1:]],
        "n_actions": _COUNT[1:],
        "policy": ("categorical", "per_dimension", "per_state"),
        "hidden_units": [_COUNT[1:]],
        "activation": ("tanh", "relu"),
        "lstm_units": _COUNT,
        "env_kwargs": [str],
        "wrapper": (None, str),
        "max_episode_steps": (None, _COUNT[1:]),
    },
    "params": dict,
    "counts": dict.fromkeys(Counts._fields, _COUNT),
    "position": (None, _POSITION),
}


def _has_form(value: Any, form: Any) -> bool:
    match form:
        case type():
            return isinstance(value, form)
        case range():
            return type(value) is int and value in form
        case list():
            return isinstance(value, list) and all(_has_form(each, form[0]) for each in value)
        case dict() if isinstance(value, dict):
            forms = dict.fromkeys(value, form[str]) if str in form else form
            return value.keys() == forms.keys() and all(
                _has_form(value[name], forms[name]) for name in forms
            )
        case tuple():
            return any(_has_form(value, each) for each in form)
    return bool(value == form)


# A folder of them


def numbered(folder: pathlib.Path) -> dict[int, pathlib.Path]:
    """The checkpoints of a folder by their steps, the oldest first."""
    found = [(_NAME.fullmatch(path.name), path) for path in folder.glob(f"ckpt-*{SUFFIX}")]
    return dict(sorted((int(match[1]), path) for match, path in found if match))


def find(path: pathlib.Path) -> pathlib.Path:
    """This path if it is a checkpoint, or the newest of a run's folder or of checkpoints/."""
    try:
        if path.is_file() and path.suffix == SUFFIX:
            return path
        folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
        if found := numbered(folder):
            return [*found.values()][-1]
        is_old = (path.parent / f"{path.stem}.index").exists() or any(folder.glob("ckpt-*.index"))
    except (OSError, ValueError) as error:  # an impossible name, a folder that we may not read
        raise UnusableCheckpoint(f"no checkpoint at {path}: {error}") from error
    hint = f"; revision {OLD_FORM_IS_READ_BY} reads those of TensorFlow's form" if is_old else ""
    where = f"in {folder}" if path.is_dir() else f"at {path}"
    raise UnusableCheckpoint(f"no checkpoint {where}{hint}")


def read_newest(path: pathlib.Path) -> tuple[Checkpoint, Sequence[str]]:
    """Read the checkpoint of this path; of a folder, the newest whole one, as `newest_whole` does."""
    newest = find(path)
    return (read(path), []) if newest == path else newest_whole(newest.parent)


def newest_whole(folder: pathlib.Path) -> tuple[Checkpoint, Sequence[str]]:
    """The newest whole checkpoint of a folder, and what is wrong with each newer one."""
    problems: list[str] = []
    for n_steps, path in reversed(numbered(folder).items()):
        try:
            found = read(path)
            if found.n_steps == n_steps:
                return found, problems
            problems.append(f"{path} is of {found.n_steps:,} steps")
        except UnusableCheckpoint as error:
            if isinstance(error.__cause__, OSError | OtherVersion):
                raise  # it may be whole, so we do not fall back to an older one
            problems.append(str(error))
    why = problems[0] if problems else "there is none"
    raise UnusableCheckpoint(f"no checkpoint in {folder} is whole: {why}")


def delete_all_but(folder: pathlib.Path, n: int) -> None:
    """Delete all but the n newest; those that cannot be deleted stay."""
    delete_older(folder, min([*numbered(folder)][-n:], default=0))


def delete_older(folder: pathlib.Path, n_steps: int) -> None:
    """Keep the newest one of at most so many steps and all later ones; delete the rest."""
    for path in [path for steps, path in numbered(folder).items() if steps <= n_steps][:-1]:
        with contextlib.suppress(OSError):
            path.unlink()


def take_away_newer(folder: pathlib.Path, n_steps: int, *, rename: bool = False) -> None:
    """Delete unfinished files; delete all of more steps, or `rename` them so that none is read."""
    for path in folder.glob(f"ckpt-*{SUFFIX}.tmp"):
        path.unlink()
    for path in [path for steps, path in numbered(folder).items() if steps > n_steps]:
        path.replace(path.with_name(f"damaged-{path.name}")) if rename else path.unlink()
