"""What a checkpoint is on the disk: its files, what its JSON says, and which of them to trust.

One checkpoint is three files in `checkpoints/`:

    ckpt-5000.data-00000-of-00001   weights and RMSProp's statistics,
    ckpt-5000.index                 by tf.train.Checkpoint
    ckpt-5000.json                  what they belong to, the counters, and checksums

TensorFlow writes its two under temporary names and renames them; the JSON comes last, by rename
too, so a checkpoint counts only when it is whole.

Nothing here imports TensorFlow, so that bad input is answered at once.
"""

import contextlib
import glob
import hashlib
import json
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from a3c import contract
from a3c.contract import Position
from a3c.machine.words import one_line

FORMAT_VERSION = 1
BEST = "best"  # within the checkpoints' folder: those that evaluated best, of the same form

# Of ours they have some thousand bytes; nobody's should fill the memory.
MAX_JSON_BYTES = 2**24


class UnusableCheckpoint(Exception):
    """A checkpoint that is missing, damaged or of something else; says so in one line."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message, 800))


class Subject(NamedTuple):
    """What a network was made for: a checkpoint fits another run only where all of these agree."""

    env_id: str
    preprocessing: str
    network: str
    observation_shape: tuple[int, ...]
    n_actions: int


class Info(NamedTuple):
    """What a checkpoint's JSON says."""

    prefix: pathlib.Path  # the path without `.json`, `.index`, …
    subject: Subject
    params: dict[str, Any]
    counters: dict[str, int]
    has_statistics: bool  # False: weights only
    position: Position | None = None  # None: written before there was one


def write_json(
    prefix: pathlib.Path,
    subject: Subject,
    params: Mapping[str, Any],
    counters: Mapping[str, int],
    contains: list[str],
    read: Position | None,
) -> None:
    """What makes tensor files that are there a checkpoint."""
    content: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        **subject._asdict(),
        "params": dict(params),
        "counters": dict(counters),
        "contains": contains,
        "position": read and read.to_json(),
        "files": {path.name: _file_checksum(path) for path in _tensor_files(prefix)},
    }
    content["checksum"] = _checksum(content)
    _write_atomically(prefix.with_name(prefix.name + ".json"), json.dumps(content, indent=1) + "\n")


def newest_whole(folder: pathlib.Path) -> tuple[Info, list[str]]:
    """The newest checkpoint of a folder that is whole, and what is wrong with each newer one."""
    problems: list[str] = []
    for n_steps in sorted(_begun(folder), reverse=True):
        try:
            return read_info(folder / f"ckpt-{n_steps}"), problems
        except UnusableCheckpoint as error:
            problems.append(str(error))
    raise UnusableCheckpoint(
        f"no checkpoint in {folder} is whole: {problems[0]}"
        if problems
        else f"no checkpoint in {folder}"
    )


def delete_unfinished(prefix: pathlib.Path) -> None:
    """Delete what an attempt to write this checkpoint has left, unless it is whole."""
    _remove_temporaries(prefix.parent)
    if not prefix.with_name(prefix.name + ".json").exists():
        _delete(_tensor_files(prefix))


def _remove_temporaries(folder: pathlib.Path) -> None:
    """Delete what writing leaves behind when it fails or is killed."""
    for path in folder.glob("ckpt-*_temp"):
        shutil.rmtree(path, ignore_errors=True)
    _delete([*folder.glob("ckpt-*.tmp"), *folder.glob("ckpt-*.tempstate*")])


def _delete(paths: Iterable[pathlib.Path]) -> None:
    """Delete them, in this order; one that cannot be deleted, and those after it, stay."""
    with contextlib.suppress(OSError):
        for path in paths:
            path.unlink()


def _delete_one(path: pathlib.Path) -> None:
    """Delete the checkpoint whose JSON this is."""
    _delete([path, *_tensor_files(path.with_suffix(""))])


def delete_all_but(folder: pathlib.Path, n: int) -> None:
    """Delete all but the n newest; each one's JSON first, without which it does not count."""
    for _, path in sorted(_numbered(folder))[:-n]:
        _delete_one(path)


def oldest(folder: pathlib.Path) -> int:
    """The steps of a folder's oldest checkpoint; 0 where there is none."""
    return min((n_steps for n_steps, _ in _numbered(folder)), default=0)


def delete_older(folder: pathlib.Path, n_steps: int) -> None:
    """Delete what came before the newest one of at most so many steps."""
    for _, path in sorted(found for found in _numbered(folder) if found[0] <= n_steps)[:-1]:
        _delete_one(path)


def delete_newer(folder: pathlib.Path, n_steps: int) -> None:
    """Delete every file of checkpoints beyond n_steps, whose time is given up."""
    _remove_temporaries(folder)
    for number in _begun(folder):
        if number > n_steps:
            _delete_one(folder / f"ckpt-{number}.json")


def set_aside_newer(folder: pathlib.Path, n_steps: int) -> None:
    """Give every file of checkpoints beyond n_steps, which are damaged, a name that none has."""
    _remove_temporaries(folder)
    for path in folder.glob("ckpt-*"):
        found = _NAME.match(path.name)
        if found and int(found[1]) > n_steps:
            path.replace(path.with_name(f"damaged-{path.name}"))


_NAME = re.compile(r"ckpt-(\d{1,18})\.")


def _begun(folder: pathlib.Path) -> set[int]:
    """The steps of every checkpoint of which there is any file."""
    return {int(found[1]) for path in folder.glob("ckpt-*") if (found := _NAME.match(path.name))}


def find(path: pathlib.Path) -> pathlib.Path:
    """The prefix of the checkpoint named, or of the newest of a run or checkpoints folder."""
    try:
        return _find(path)
    except (OSError, ValueError) as error:  # a name that no file can have, a folder that is closed
        raise UnusableCheckpoint(f"no checkpoint at {path}: {error}") from error


def _find(path: pathlib.Path) -> pathlib.Path:
    if path.is_dir():
        folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
        found = _numbered(folder)
        if not found:
            raise UnusableCheckpoint(f"no checkpoint in {folder}")
        return max(found)[1].with_suffix("")
    for suffix in (".json", ".index", ".data-00000-of-00001"):
        if path.name.endswith(suffix):
            path = path.with_name(path.name.removesuffix(suffix))
    if not path.with_name(path.name + ".json").is_file():
        raise UnusableCheckpoint(f"no checkpoint at {path}")
    return path


def _numbered(folder: pathlib.Path) -> list[tuple[int, pathlib.Path]]:
    """The JSON of each checkpoint in a folder, with the steps in its name."""
    found = [(path.stem.removeprefix("ckpt-"), path) for path in folder.glob("ckpt-*.json")]
    return [(int(steps), path) for steps, path in found if steps.isdecimal()]


def read_info(prefix: pathlib.Path) -> Info:
    """Read and verify a checkpoint's JSON, and the checksums of the files that it names."""
    path = prefix.with_name(prefix.name + ".json")
    try:
        if path.stat().st_size > MAX_JSON_BYTES or not path.is_file():
            raise ValueError("it is no file of ours")
        content = json.loads(path.read_text(encoding="utf-8"))
        _check_content(content)
    except (OSError, ValueError, RecursionError) as error:
        raise UnusableCheckpoint(f"cannot read {path}: {error}") from error
    files = content["files"]
    found = {file.name: _file_checksum(file) for file in _tensor_files(prefix)}
    for name in sorted({f"{prefix.name}.index", *files, *found}):
        if name not in files or files[name] != found.get(name):
            raise UnusableCheckpoint(
                f"{prefix.parent / name} is missing or damaged:"
                f" its checksum is not the one in {path.name}"
            )
    subject = Subject(*(content[name] for name in Subject._fields))
    return Info(
        prefix,
        subject._replace(observation_shape=tuple(subject.observation_shape)),
        content["params"],
        content["counters"],
        "mean_squares" in content["contains"],
        None if (p := content.get("position")) is None else contract.from_json(p),
    )


def _check_content(content: Any) -> None:
    """Raise ValueError unless a JSON's content is as `save` writes it."""
    if not isinstance(content, dict):
        raise ValueError("it holds no object")
    version = content.get("format_version")
    if type(version) is not int or version != FORMAT_VERSION:
        raise ValueError(
            f"its format_version is {str(version)[:40]!r}, this code reads {FORMAT_VERSION}"
        )
    unsealed = {name: value for name, value in content.items() if name != "checksum"}
    if content.get("checksum") != _checksum(unsealed):
        raise ValueError("it is damaged: its checksum does not fit its content")
    for name, is_right in _IS_RIGHT.items():
        if name not in content or not is_right(content[name]):
            raise ValueError(f"its {name} is missing or of the wrong type")
    if content.get("position") is not None:
        contract.from_json(content["position"])


def _is_count(value: object, least: int = 0) -> bool:
    # A run that goes on from there must not come to where 64 bits end.
    return type(value) is int and least <= value < 10**15


_COUNTERS = {"steps", "updates", "games", "frames"}
_IS_RIGHT: dict[str, Callable[[Any], bool]] = {
    "env_id": lambda x: isinstance(x, str),
    "preprocessing": lambda x: isinstance(x, str),
    "network": lambda x: isinstance(x, str),
    "observation_shape": lambda x: isinstance(x, list) and all(_is_count(n, 1) for n in x),
    "n_actions": lambda x: _is_count(x, 1),
    "params": lambda x: isinstance(x, dict),
    "counters": lambda x: (
        isinstance(x, dict) and set(x) == _COUNTERS and all(map(_is_count, x.values()))
    ),
    "contains": lambda x: x in (["weights"], ["weights", "mean_squares"]),
    "files": lambda x: isinstance(x, dict) and all(isinstance(s, str) for s in x.values()),
}


def _tensor_files(prefix: pathlib.Path) -> list[pathlib.Path]:
    return [
        path
        for pattern in ("index", "data-*")
        for path in sorted(prefix.parent.glob(f"{glob.escape(prefix.name)}.{pattern}"))
    ]


def _file_checksum(path: pathlib.Path) -> str | None:
    if not path.is_file():  # a pipe or a device has no end
        return None
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _write_atomically(path: pathlib.Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
