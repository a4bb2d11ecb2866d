"""The debug log's format, written and read in this one place: each tensor is one line.

    A3C-DUMP update=12 purpose=train name=rewards dtype=float32 shape=5,1 [0 0 -1 0 0]

The lines of one update, in this order:

    purpose     name                              what the network was given it for
    act         observations                      each step's, to choose its action
    last        observations                      an episode's true last one, where a time limit cut
                                                  it off: for the value that the limit hides
    train       observations, actions, rewards,   the rollout that the update was made of
                continues, returns, values,
                advantages
    bootstrap   observations                      the one after the rollout, for its value

`tf.print`, inside the traced functions, writes every element, integers whole and each float32 with
enough digits to give the same float32 back, zeros with their sign and infinities too. Two things
are lost: a subnormal becomes a zero of its sign, and one nan is like any other.

A line holds no checksum, because nothing inside a traced function makes one of the text: a digit
turned into another digit is not noticed. Whatever breaks the form is.
"""

import contextlib
import math
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import tensorflow as tf

MARK = "A3C-DUMP"
# Memory stays bounded whatever a log holds, by 8 times this; 500 steps of Atari frames are as long.
MAX_LINE_BYTES = 2**26
# Of each type that is dumped: the form of a number, and the type that it is parsed as, which holds
# whatever has the form. A float32 by way of float64: with the digits that are written, rounding
# twice is rounding once.
_FORMS = {
    "uint8": (rb"\d{1,3}", np.int16),
    "int32": (rb"-?\d{1,10}", np.int64),
    "float32": (rb"-?(?:\d+(?:\.\d+)?(?:e[+-]\d\d)?|inf|nan)", np.float64),
}
_NUMBERS = {
    dtype: (re.compile(rb"(?:%b(?: %b)*+)?" % (form, form)), wide)
    for dtype, (form, wide) in _FORMS.items()
}


def dump(update: "tf.Tensor", purpose: str, **tensors: "tf.Tensor") -> None:
    """Print each tensor, whole, to stderr. Called while tracing; prints at each run."""
    # Here, because reading a log needs none of TensorFlow's seconds to be imported.
    import tensorflow as tf

    for name, tensor in tensors.items():
        if tensor.dtype.name not in _NUMBERS:
            raise TypeError(f"{name} is {tensor.dtype.name}, which the debug log has no form for")
        shape = ",".join(map(str, tensor.shape))
        tf.print(
            f"{MARK} update=",
            update,
            f" purpose={purpose} name={name} dtype={tensor.dtype.name} shape={shape} ",
            tf.reshape(tensor, [-1]),
            sep="",
            summarize=-1,
            output_stream=sys.stderr,
        )


class Record(NamedTuple):
    """One tensor, as it was dumped."""

    number: int  # among the dumps of this log, from 1
    line: int  # of the log, from 1
    update: int
    purpose: str
    name: str
    array: np.ndarray


class Damaged(NamedTuple):
    """A line that is a dump's, or part of one, and cannot be read."""

    line: int  # of the log, from 1
    problem: str


def read(log: BinaryIO) -> Iterator[Record | Damaged]:
    """What a log holds, in its order; other programs' lines are skipped. One line is in memory at a
    time."""
    number = 0
    for line_number, line in enumerate(_lines(log), start=1):
        if not _is_ours(line):
            continue
        try:
            record = _parse(number + 1, line_number, line)
        except ValueError as error:
            yield Damaged(line_number, str(error))
        else:
            number += 1
            yield record


def _lines(log: BinaryIO) -> Iterator[bytes]:
    """Each line, or of one that is too long as much as shows that it is."""
    while line := log.readline(MAX_LINE_BYTES):
        yield line
        while len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
            line = log.readline(MAX_LINE_BYTES)


_MARK = MARK.encode()
# A line that lost one of these still has the others.
_SIGNS = (_MARK, b" purpose=", b" dtype=")
_HEAD = re.compile(
    rb"A3C-DUMP update=(\d{1,18}) purpose=(\w{1,40}) name=(\w{1,40}) dtype=(\w{1,20})"
    rb" shape=((?:\d{1,18}(?:,\d{1,18}){,15})?) \["
)


def _is_ours(line: bytes) -> bool:
    # A log's last line may be cut within the mark.
    return any(sign in line for sign in _SIGNS) or _MARK.startswith(line)


def _parse(number: int, line_number: int, line: bytes) -> Record:
    """ValueError says why it cannot be read."""
    if len(line) == MAX_LINE_BYTES:
        raise ValueError(f"it is longer than {MAX_LINE_BYTES:,} bytes")
    end = len(line.rstrip(b"\r\n")) - 1
    head = _HEAD.match(line)
    if head is None:
        raise ValueError("its head is damaged")
    if line[end] != ord("]"):
        raise ValueError("its end is missing")
    update, purpose, name, dtype, sides = (group.decode() for group in head.groups())
    if dtype not in _NUMBERS:
        raise ValueError(f"its dtype {dtype} is none that is dumped")
    shape = tuple(int(side) for side in sides.split(",")) if sides else ()
    array = _parse_numbers(line[head.end() : end], dtype)
    if math.prod(shape) != array.size:
        raise ValueError(f"it has {array.size} elements where its shape has {math.prod(shape)}")
    # Without elements, ValueError where no array has such sides.
    return Record(number, line_number, int(update), purpose, name, array.reshape(shape))


def _parse_numbers(text: bytes, dtype: str) -> np.ndarray:
    form, wide = _NUMBERS[dtype]
    # The form, because NumPy would take more; a float32 that is too large raises.
    with contextlib.suppress(FloatingPointError), np.errstate(over="raise"):
        if form.fullmatch(text):
            numbers = np.fromstring(text, wide, sep=" ")
            array = numbers.astype(dtype)
            if array.dtype.kind == "f" or np.array_equal(array, numbers):
                return array
    raise ValueError(f"something in it is no {dtype}")
