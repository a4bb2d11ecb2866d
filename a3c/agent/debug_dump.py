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
enough digits to give the same float32 back: zeros with their sign, infinities, and nan with its
sign too. Two things are lost: a subnormal becomes a zero of its sign, and nan its payload.

A line holds no checksum, because nothing inside a traced function makes one of the text: a digit
turned into another digit is not noticed. Whatever breaks the form is.
"""

import math
import re
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import tensorflow as tf

MARK = "A3C-DUMP"
# Memory stays bounded whatever a log holds, below 1 GB; 1,000 steps of Atari frames are as long.
MAX_LINE_BYTES = 2**27
PIECE_BYTES = 2**16  # of a line are parsed at a time, for that takes hundred times the room


def dump(update: "tf.Tensor", purpose: str, **tensors: "tf.Tensor") -> None:
    """Print each tensor, whole, to stderr. Called while tracing; prints at each run."""
    # Here, because reading a log needs none of TensorFlow's seconds to be imported.
    import tensorflow as tf

    for name, tensor in tensors.items():
        if tensor.dtype.name not in _PARSERS:
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
        except _NotWhole as error:
            yield Damaged(line_number, str(error))
        else:
            number += 1
            yield record


class _NotWhole(Exception):
    """Why a line cannot be read."""


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
    if len(line) == MAX_LINE_BYTES:
        raise _NotWhole(f"it is longer than {MAX_LINE_BYTES:,} bytes")
    line = line.rstrip(b"\r\n")
    head = _HEAD.match(line)
    if head is None:
        raise _NotWhole("its head is damaged")
    if not line.endswith(b"]"):
        raise _NotWhole("its end is missing")
    update, purpose, name, dtype, sides = (group.decode() for group in head.groups())
    if dtype not in _PARSERS:
        raise _NotWhole(f"its dtype {dtype} is none that is dumped")
    shape = tuple(int(side) for side in sides.split(",")) if sides else ()
    try:
        pieces = _pieces(line, head.end(), len(line) - 1)
        array = np.concatenate([_PARSERS[dtype](piece) for piece in pieces])
    except (ValueError, ArithmeticError):
        raise _NotWhole(f"something in it is no {dtype}") from None
    if math.prod(shape) != array.size:
        raise _NotWhole(f"it has {array.size} elements where its shape has {math.prod(shape)}")
    try:
        array = array.reshape(shape)
    except ValueError:  # of no elements, but of sides that no array has
        raise _NotWhole("its shape is none that an array can have") from None
    return Record(number, line_number, int(update), purpose, name, array)


def _pieces(line: bytes, start: int, end: int) -> Iterator[bytes]:
    """The text between two places of a line, parted at blanks; ValueError where it ends in one."""
    first = start
    while end - start > PIECE_BYTES and (blank := line.find(b" ", start + PIECE_BYTES, end)) >= 0:
        yield line[start:blank]
        start = blank + 1
    if first < start == end:
        raise ValueError
    yield line[start:end]


def _parse_uint8(text: bytes) -> np.ndarray:
    """Whole numbers from 0 to 255, one blank between them.

    Nearly all of a log is pixels, and by way of Python's integers they take nine times as long.
    """
    characters = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(np.append(characters, ord(" ")) == ord(" "))
    n_digits = np.diff(ends, prepend=-1) - 1
    if not text:
        return np.empty(0, np.uint8)
    # Below "0" wraps round to above 9.
    digits = characters - np.uint8(ord("0"))
    if n_digits.min() < 1 or n_digits.max() > 3 or np.count_nonzero(digits > 9) >= len(ends):
        raise ValueError
    numbers = digits[ends - 1].astype(np.uint16)
    for place in (1, 2):
        # Where a number is shorter, what the index points at does not count; but it must exist.
        index = np.maximum(ends - 1 - place, 0)
        numbers += np.where(n_digits > place, digits[index], 0) * np.uint16(10**place)
    if numbers.max() > 255:
        raise ValueError
    return numbers.astype(np.uint8)


def _parse_with(convert: Callable[[bytes], float], dtype: type, form: bytes) -> Callable:
    """A parser of few numbers; Python alone would read 1_0 and +1 as well."""
    numbers = re.compile(rb"(?:%b(?: %b)*)?" % (form, form))

    def parse(text: bytes) -> np.ndarray:
        if not numbers.fullmatch(text):
            raise ValueError
        with np.errstate(over="raise"):  # a number that float32 does not hold
            return np.array([convert(number) for number in text.split()], dtype)

    return parse


_PARSERS: dict[str, Callable[[bytes], np.ndarray]] = {
    "uint8": _parse_uint8,
    "int32": _parse_with(int, np.int32, rb"-?\d+"),
    # By way of float64: with the digits that are written, rounding twice is rounding once.
    "float32": _parse_with(float, np.float32, rb"-?(?:\d+(?:\.\d+)?(?:e[+-]\d\d)?|inf|nan)"),
}
