"""Small checkpoints for tests that need no network, and files that no run of ours would write."""

import hashlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from a3c.contract import Counts, Moments, Position, Snapshot, Subject, WorkerPosition
from a3c.store import checkpoint
from a3c.store.checkpoint import Checkpoint

SUBJECT = Subject("CartPole-v1", "generic", "mlp", (4,), 2)
PARAMS = {"env_id": "CartPole-v1", "initial_lr": 1e-4, "load_ckpt": None, "n_steps": 1000}
COUNTS = Counts(steps=70, updates=14, games=3, frames=71)
TYPES = {"F32": "float32", "F64": "float64", "I64": "int64"}
SHAPES = {"first_kernel": (2, 3), "first_bias": (3,), "scale": (), "second_kernel": (3, 1)}
MOMENTS = {
    "observations": Moments(70, np.array([0.5, -1e-9, 3e5, 0.0]), np.array([2.0, 1e-7, 1e12, 0.0])),
    "returns": Moments(70, np.array(-0.25), np.array(8.0)),
}
POSITION = Position(
    [WorkerPosition(np.random.default_rng(0).bit_generator.state, [3])],
    {"monitor.csv": 120, "progress.csv": 90, "log.txt": 1000},
    n_env_restarts=7,
    cpu_seconds=50,
)


def make(
    folder: pathlib.Path,
    n_steps: int = COUNTS.steps,
    *,
    seed: int = 0,
    position: Position | None = POSITION,
    params: Mapping[str, Any] = PARAMS,
    moments: Mapping[str, Moments] = {},
) -> Checkpoint:
    """A checkpoint of so many steps, not written yet; its numbers are others for another seed."""
    rng = np.random.default_rng(seed)
    weights, mean_squares = (
        {name: rng.random(shape, np.float32) for name, shape in SHAPES.items()} for _ in range(2)
    )
    snapshot = Snapshot(COUNTS._replace(steps=n_steps), weights, mean_squares, moments)
    path = checkpoint.path_of(folder, n_steps)
    return Checkpoint(path, SUBJECT, params, snapshot, position)


def save(folder: pathlib.Path, n_steps: int = COUNTS.steps, **more: Any) -> pathlib.Path:
    """The same, written."""
    made = make(folder, n_steps, **more)
    checkpoint.write(made)
    return made.path


# The file's form once more, by hand


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """The header of each array, the JSON in the metadata, and all arrays' bytes."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    return header, json.loads(header.pop("__metadata__")["a3c"]), data[end:]


def pack(header: Mapping[str, Any], content: object, arrays: bytes) -> bytes:
    """The inverse of `unpack`, whatever it is given."""
    text = json.dumps({"__metadata__": {"a3c": json.dumps(content)}, **header}).encode()
    return len(text).to_bytes(8, "little") + text + arrays


def sealed(header: Mapping[str, Any], content: Mapping[str, Any], arrays: bytes) -> dict[str, Any]:
    """The content with the checksum that fits it and the arrays."""
    rest = {name: value for name, value in content.items() if name != "checksum"}
    digest = hashlib.sha256(json.dumps(rest, sort_keys=True).encode())
    for name, at in sorted(header.items()):
        start, end = at["data_offsets"]
        dtype = TYPES.get(at["dtype"], "float32")
        digest.update(f"\n{name} {dtype} {tuple(at['shape'])}\n".encode() + arrays[start:end])
    return rest | {"checksum": digest.hexdigest()}


def edit(path: pathlib.Path, **changes: object) -> None:
    """Change entries of a checkpoint's JSON, with a checksum that fits again."""
    header, content, arrays = unpack(path.read_bytes())
    content = {name: value for name, value in (content | changes).items() if value is not TAKEN_OUT}
    path.write_bytes(pack(header, sealed(header, content, arrays), arrays))


TAKEN_OUT = object()
