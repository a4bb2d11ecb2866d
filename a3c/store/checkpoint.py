"""What a checkpoint is on the disk: one file, `ckpt-<steps>.safetensors`.

Its arrays are the shared state of one moment: `weights/<name>`, and with them
`mean_squares/<name>`, RMSProp's statistics (a published agent has none). Its metadata hold one
JSON text under the key `a3c`:

    format_version   subject   params   counts   position   checksum

`checksum` is the SHA-256 of that JSON without it and of every array's name, type, shape and bytes.

A file is written whole under another name, synced and renamed, so a reader finds a whole one or
none. Reading one runs no code and takes no size that it states at its word.
"""

import contextlib
import hashlib
import json
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy

from a3c.contract import Counts, Position, Snapshot, Subject, WorkerPosition
from a3c.machine.appending import one_line, write_atomically

FORMAT_VERSION = 2
KEY = "a3c"  # of the JSON in the file's metadata
SUFFIX = ".safetensors"
OLD_FORM_IS_READ_BY = "243b5dc"  # the last revision whose checkpoints were TensorFlow's

# Ours have some thousand bytes of header and, for `nature`, 14 MB; nobody's should fill the memory.
MAX_HEADER_BYTES = 2**24
MAX_FILE_BYTES = 2**30


class UnusableCheckpoint(Exception):
    """A checkpoint that is missing, damaged or of something else; says so in one line."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message, 800))


class OtherVersion(ValueError):
    """A checkpoint's form is that of another version of this project."""


class Checkpoint(NamedTuple):
    """What one file holds."""

    path: pathlib.Path
    subject: Subject
    params: Mapping[str, Any]  # the settings of the run, by name
    snapshot: Snapshot
    position: Position | None = None  # None: a published agent, or the best of an evaluation

    @property
    def n_steps(self) -> int:
        """How many agent steps its weights have learned from."""
        return self.snapshot.counts.steps

    def check_fits(self, subject: Subject) -> None:
        """Raise, naming both values, unless the checkpoint was made for this subject."""
        for name, wanted in subject._asdict().items():
            saved = getattr(self.subject, name)
            if saved != wanted:
                raise UnusableCheckpoint(
                    f"{self.path} was made with {name.replace('_', ' ')} {saved!r},"
                    f" this run has {wanted!r}"
                )


# One file


def path_of(folder: pathlib.Path, n_steps: int) -> pathlib.Path:
    """Where the checkpoint of so many steps is, or would be."""
    return folder / f"ckpt-{n_steps}{SUFFIX}"


def write(checkpoint: Checkpoint) -> None:
    """Write a checkpoint to its path; OSError where that fails, and then nothing has changed."""
    content = {
        "format_version": FORMAT_VERSION,
        "subject": checkpoint.subject._asdict(),
        "params": dict(checkpoint.params),
        "counts": checkpoint.snapshot.counts._asdict(),
        "position": _position_to_json(checkpoint.position),
    }
    tensors = {
        f"{part}/{name}": np.asarray(array, order="C")
        for part in ("weights", "mean_squares")
        for name, array in getattr(checkpoint.snapshot, part).items()
    }
    for name, array in tensors.items():
        if not np.isfinite(array).all():  # nobody could read it
            raise OSError(f"{name} holds a number that is not finite")
    content["checksum"] = _checksum(content, tensors)
    data = safetensors.numpy.save(tensors, {KEY: json.dumps(content)})
    write_atomically(checkpoint.path, data)


def read(path: pathlib.Path) -> Checkpoint:
    """Read and verify a whole checkpoint."""
    try:
        data = _read_bytes(path)
        content = _content_of(data)
        tensors = safetensors.numpy.load(data)
        if content.pop("checksum", None) != _checksum(content, tensors):
            raise ValueError("it is damaged: its checksum does not fit what it holds")
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
    """Return the JSON of a file's metadata, before the library sees the file."""
    n_bytes = int.from_bytes(data[:8], "little")
    if len(data) < 8 or n_bytes > min(MAX_HEADER_BYTES, len(data) - 8):
        raise ValueError("it is damaged: its header is longer than it may be")
    header = json.loads(data[8 : 8 + n_bytes])
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    text = metadata.get(KEY) if isinstance(metadata, dict) else None
    content = json.loads(text) if isinstance(text, str) else None
    if not isinstance(content, dict):
        raise ValueError("it is no checkpoint of this project")
    version = content.get("format_version")
    if type(version) is not int or version != FORMAT_VERSION:
        raise OtherVersion(
            f"its format_version is {str(version)[:40]!r}, this code reads {FORMAT_VERSION}"
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
    """Return a checkpoint of the file's content; ValueError where `write` has not written it."""
    for name, is_right in _IS_RIGHT.items():
        if name not in content or not is_right(content[name]):
            raise ValueError(f"its {name} is missing or of the wrong type")
    parts: dict[str, dict[str, np.ndarray]] = {"weights": {}, "mean_squares": {}}
    for full_name, array in tensors.items():
        part, _, name = full_name.partition("/")
        if part not in parts or array.dtype != np.float32:
            raise ValueError(f"it holds {full_name} of type {array.dtype}")
        if not np.isfinite(array).all():
            raise ValueError(f"{full_name} holds a number that is not finite")
        parts[part][name] = array
    subject = content["subject"] | {
        "observation_shape": tuple(content["subject"]["observation_shape"])
    }
    return Checkpoint(
        path,
        Subject(**subject),
        content["params"],
        Snapshot(Counts(**content["counts"]), parts["weights"], parts["mean_squares"]),
        _position_from_json(content["position"]),
    )


def _position_to_json(position: Position | None) -> dict[str, Any] | None:
    if position is None:
        return None
    return position._asdict() | {"workers": [worker._asdict() for worker in position.workers]}


def _position_from_json(content: dict[str, Any] | None) -> Position | None:
    if content is None:
        return None
    workers = [WorkerPosition(**worker) for worker in content["workers"]]
    return Position(**content | {"workers": workers})


# What the JSON may hold, in the order of its parts

Check = Callable[[Any], bool]


def _count(least: int = 0, below: int = 10**15) -> Check:
    # A run that goes on from there must not reach the end of 64 bits.
    return lambda x: type(x) is int and least <= x < below


def _list_of(check: Check, least: int = 0) -> Check:
    return lambda x: isinstance(x, list) and len(x) >= least and all(map(check, x))


def _object(**checks: Check) -> Check:
    return lambda x: (
        isinstance(x, dict)
        and set(x) == set(checks)
        and all(check(x[name]) for name, check in checks.items())
    )


def _is_text(x: object) -> bool:
    return isinstance(x, str)


_GENERATOR = _object(  # NumPy's PCG64, as `bit_generator.state` gives and takes it
    bit_generator=lambda x: x == "PCG64",
    state=_object(state=_count(below=2**128), inc=lambda x: _count(below=2**128)(x) and x % 2 == 1),
    has_uint32=_count(below=2),
    uinteger=_count(below=2**32),
)
_WORKER = _object(generator=_GENERATOR, next_games=_list_of(_count(below=2**62), least=1))
_POSITION = _object(
    workers=_list_of(_WORKER),
    n_bytes=lambda x: isinstance(x, dict) and all(map(_count(below=2**62), x.values())),
    n_env_restarts=_count(),
    cpu_seconds=_count(),
)
_IS_RIGHT: dict[str, Check] = {
    "subject": _object(
        **dict.fromkeys(("env_id", "preprocessing", "network"), _is_text),
        observation_shape=_list_of(_count(1)),
        n_actions=_count(1),
    ),
    "params": lambda x: isinstance(x, dict),
    "counts": _object(**dict.fromkeys(Counts._fields, _count())),
    "position": lambda x: x is None or _POSITION(x),
}


# A folder of them


def numbered(folder: pathlib.Path) -> dict[int, pathlib.Path]:
    """The checkpoints of a folder by their steps, the oldest first."""
    found = [(_NAME.fullmatch(path.name), path) for path in folder.glob(f"ckpt-*{SUFFIX}")]
    return dict(sorted((int(match[1]), path) for match, path in found if match))


_NAME = re.compile(r"ckpt-(0|[1-9][0-9]{0,17})" + re.escape(SUFFIX))


def find(path: pathlib.Path) -> pathlib.Path:
    """The checkpoint named, or the newest of a run's folder or of a folder of checkpoints."""
    try:
        if path.is_file() and path.suffix == SUFFIX:
            return path
        folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
        if found := numbered(folder):
            return [*found.values()][-1]
        is_old = (path.parent / f"{path.stem}.index").exists() or any(folder.glob("ckpt-*.index"))
    except (OSError, ValueError) as error:  # a name that no file can have, a folder that is closed
        raise UnusableCheckpoint(f"no checkpoint at {path}: {error}") from error
    hint = f"; revision {OLD_FORM_IS_READ_BY} reads those of TensorFlow's form" if is_old else ""
    where = f"in {folder}" if path.is_dir() else f"at {path}"
    raise UnusableCheckpoint(f"no checkpoint {where}{hint}")


def newest_whole(folder: pathlib.Path) -> tuple[Checkpoint, Sequence[str]]:
    """The newest checkpoint of a folder that is whole, and what is wrong with each newer one."""
    problems: list[str] = []
    for n_steps, path in reversed(numbered(folder).items()):
        try:
            found = read(path)
            if found.n_steps == n_steps:
                return found, problems
            problems.append(f"{path} is of {found.n_steps:,} steps")
        except UnusableCheckpoint as error:
            if isinstance(error.__cause__, OSError | OtherVersion):
                raise  # it may be whole
            problems.append(str(error))
    raise UnusableCheckpoint(f"no checkpoint in {folder} is whole: {problems[0]}")


def delete_all_but(folder: pathlib.Path, n: int) -> None:
    """Delete all but the n newest; those that cannot be deleted stay."""
    for path in [*numbered(folder).values()][:-n]:
        with contextlib.suppress(OSError):
            path.unlink()


def delete_older(folder: pathlib.Path, n_steps: int) -> None:
    """Keep the newest one of at most so many steps, and all later ones; delete the rest."""
    for path in [path for steps, path in numbered(folder).items() if steps <= n_steps][:-1]:
        with contextlib.suppress(OSError):
            path.unlink()


def delete_newer(folder: pathlib.Path, n_steps: int) -> None:
    """Delete all beyond so many steps, and what interrupted writing has left."""
    _remove_temporaries(folder)
    for steps, path in numbered(folder).items():
        if steps > n_steps:
            path.unlink()


def set_aside_newer(folder: pathlib.Path, n_steps: int) -> None:
    """Rename all beyond so many steps, which are damaged, so that they are not read again."""
    _remove_temporaries(folder)
    for steps, path in numbered(folder).items():
        if steps > n_steps:
            path.replace(path.with_name(f"damaged-{path.name}"))


def _remove_temporaries(folder: pathlib.Path) -> None:
    for path in folder.glob(f"ckpt-*{SUFFIX}.tmp"):
        path.unlink()
