"""The debug log's format, written and read in this one place: each tensor is one line.

    A3C-DUMP update=12 purpose=train name=rewards dtype=float32 shape=5,1 [0 0 -1 0 0]

One update writes these lines, in this order:

    purpose     name                              why the network got it
    act         observations, (state)             to choose an action; one line for each step
    last        observations, (state)             to estimate the value that a time limit hides: the
                                                  true last observation of an episode that it cut off
    train       observations, actions, rewards,   to learn: the rollout, and what was made of it
                continues, (states,) returns,
                values, advantages
    bootstrap   observations                      to estimate the value after the rollout

With LSTMs, `state` is what they remember before an observation, and `states` before the rollout. Where
observations are normalised or rewards scaled, the network gets the results, and there are also

    moments     observations_n, _mean, _squares,  the running moments that this rollout is normalised and
                returns_n, _mean, _squares        scaled by, before its first step
    raw         observations, rewards             what they are applied to: observations right before the
                                                  network gets them, those of `bootstrap` before `train`

`tf.print` writes every element, each float with enough digits to give the same float back, except that
a subnormal becomes a zero of its sign and all nans look alike. Reading finds every line whose form is
damaged, but not a digit that became another digit: a traced function cannot compute a checksum of text.
"""

import math
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import tensorflow as tf

# For each type that is dumped: the form of a number, and a type to parse it with, which holds every
# number of that form (but becomes infinite for the largest floats). Parsing a float32 as a float64
# first gives the same float32, with the digits that `tf.print` writes.
_FORMS = {
    "uint8": (rb"\d{1,3}", np.int16),
    "int32": (rb"-?\d{1,10}", np.int64),
    "int64": (rb"-?\d{1,18}", np.int64),  # no count gets longer
    "float32": (rb"-?(?:\d+(?:\.\d+)?(?:e[+-]\d\d)?|inf|nan)", np.float64),
    "float64": (rb"-?(?:\d+(?:\.\d+)?(?:e[+-]\d{2,3})?|inf|nan)", np.float64),
}
_NUMBERS = {name: re.compile(rb"(?:%b(?: %b)*+)?" % (f, f)) for name, (f, _) in _FORMS.items()}


def dump(update: "tf.Tensor", purpose: str, **tensors: "tf.Tensor | np.ndarray") -> None:
    """Print each whole tensor to stderr: now, or at each run of the function that is being traced."""
    # Imported here, because reading a log does not need TensorFlow, which takes seconds to import.
    import tensorflow as tf

    for name, tensor in tensors.items():
        shape = ",".join(map(str, tensor.shape))
        tf.print(
            "A3C-DUMP update=",
            update,
            f" purpose={purpose} name={name} dtype={tensor.dtype.name} shape={shape} ",
            tf.reshape(tensor, [-1]),
            sep="",
            summarize=-1,
            output_stream=sys.stderr,
        )


class Record(NamedTuple):
    """One tensor, as it was dumped."""

    number: int  # counts the readable dumps of the log, from 1
    line: int  # counts the lines of the log, from 1
    update: int
    purpose: str
    name: str
    array: np.ndarray


class Damaged(NamedTuple):
    """A line that is a dump, or part of one, and cannot be read."""

    line: int
    problem: str


def read(log: BinaryIO) -> Iterator[Record | Damaged]:
    """The dumps of a log, in order; it skips other lines and holds one line in memory at a time."""
    number = 0
    for line_number, line in enumerate(log, start=1):
        if not _is_ours(line):
            continue
        try:
            record = _parse(number + 1, line_number, line)
        except ValueError as error:
            yield Damaged(line_number, str(error))
        else:
            number += 1
            yield record


_MARK = b"A3C-DUMP"
_LINE = re.compile(
    rb"A3C-DUMP update=(\d{1,18}) purpose=(\w{1,40}) name=(\w{1,40}) dtype=(%b)"
    rb" shape=((?:\d{1,18}(?:,\d{1,18}){,15})?) \[([^\n]*)\]\r?\n?" % "|".join(_FORMS).encode()
)


def _is_ours(line: bytes) -> bool:
    """Whether a line is a dump, even if parts of it are missing or it was cut within the mark."""
    return any(x in line for x in (_MARK, b" purpose=", b" dtype=")) or _MARK.startswith(line)


def _parse(number: int, line_number: int, line: bytes) -> Record:
    """A ValueError says why the line cannot be read."""
    parts = _LINE.fullmatch(line)
    if parts is None:
        is_whole = line.rstrip(b"\r\n").endswith(b"]")
        raise ValueError("its head is damaged" if is_whole else "its end is missing")
    update, purpose, name, dtype, sides = (part.decode() for part in parts.group(1, 2, 3, 4, 5))
    shape = tuple(int(side) for side in sides.split(",")) if sides else ()
    array = _parse_numbers(parts[6], dtype)
    if math.prod(shape) != array.size:
        raise ValueError(f"it has {array.size} elements where its shape has {math.prod(shape)}")
    # Without elements, `reshape` can raise as well: a damaged side may be too long for an array.
    return Record(number, line_number, int(update), purpose, name, array.reshape(shape))


def _parse_numbers(text: bytes, dtype: str) -> np.ndarray:
    # NumPy alone would accept more than `tf.print` writes.
    if _NUMBERS[dtype].fullmatch(text):
        numbers = np.fromstring(text, _FORMS[dtype][1], sep=" ")
        with np.errstate(over="ignore"):
            array = numbers.astype(dtype, copy=False)
        # A number that is too large becomes infinite, or another.
        if array.dtype.kind == "f":
            fits = np.count_nonzero(np.isinf(array)) == text.count(b"inf")
        else:
            fits = np.array_equal(array, numbers)
        if fits:
            return array
    raise ValueError(f"something in it is no {dtype}")
