"""The arrays in the files that `tf.train.Checkpoint` writes, read without TensorFlow.

Whoever restores a checkpoint that somebody else made should at worst be told that it cannot be
used. TensorFlow's own reader, given a file made for the purpose, ends the whole process (`Check
failed`), or takes the sizes it finds there at their word. So we read the two files ourselves, and
take nothing from them but float32 arrays of the names and shapes that we ask for.

    ckpt-5000.index                 a table of LevelDB's form: keys and values in blocks; the values
                                    are protocol buffers that say where an array is
    ckpt-5000.data-00000-of-00001   the arrays' bytes, one behind the other

TensorFlow's checksums of blocks and arrays are left alone: our JSON has one of each whole file.
"""

import math
import pathlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

# So that nobody's file takes more time or memory than one of ours; of 20 arrays an index has 2,000.
MAX_INDEX_BYTES = 2**20
MAX_KEY_BYTES = 1000
_FOOTER_BYTES = 48
_MAGIC = bytes.fromhex("57fb808b247547db")
_FLOAT = 1  # TensorFlow's number for float32

Field = int | bytes


def read(prefix: pathlib.Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """The arrays of these names and shapes; ValueError, in one line, where one is not there so."""
    index = prefix.with_name(prefix.name + ".index")
    if index.stat().st_size > MAX_INDEX_BYTES:
        raise ValueError(f"{index.name} is larger than any index")
    entries = dict(_entries(index.read_bytes()))
    header = _Fields(entries.get(b"", b""))  # a BundleHeaderProto: 1 data files, 2 endianness
    if (header.number(1), header.number(2)) != (1, 0):
        raise ValueError(f"{index.name} is not of one file with the lowest bytes first")
    data = prefix.with_name(prefix.name + ".data-00000-of-00001")
    n_bytes, arrays = data.stat().st_size, {}
    with data.open("rb") as file:
        for name, shape in shapes.items():
            if (key := name.encode()) not in entries:
                raise ValueError(f"{name} is missing")
            place = _place(name, shape, entries[key])
            if place.offset + place.size > n_bytes:
                raise ValueError(f"{name} lies outside of {data.name}")
            file.seek(place.offset)
            arrays[name] = np.frombuffer(file.read(place.size), "<f4").reshape(shape)
            if not np.isfinite(arrays[name]).all():
                raise ValueError(f"{name} holds a number that is not finite")
    return arrays


class _Place(NamedTuple):
    """Where in the data file an array is."""

    offset: int
    size: int


def _place(name: str, shape: tuple[int, ...], value: bytes) -> _Place:
    """What BundleEntryProto says: 1 dtype, 2 shape, 3 shard, 4 offset, 5 size, 6 checksum, 7 parts."""
    fields = _Fields(value)
    if fields.number(1) != _FLOAT:
        raise ValueError(f"{name} is not of float32")
    # A TensorShapeProto: 2 its sides, and of each 1 the length.
    sides = tuple(_Fields(side).number(1) for side in _Fields(fields.text(2)).texts(2))
    if sides != shape:
        raise ValueError(f"{name} has the shape {str(sides)[:100]} where {shape} is needed")
    place = _Place(fields.number(4), fields.number(5))
    if fields.number(3) != 0 or fields.texts(7) or place.size != 4 * math.prod(shape):
        raise ValueError(f"{name} is not stored as one array")
    return place


class _Fields:
    """The fields of a protocol buffer, by their numbers; what a reader should skip is kept as well."""

    def __init__(self, message: bytes) -> None:
        self._fields: dict[int, list[Field]] = {}
        reader = _Reader(message)
        while reader.n_left:
            tag = reader.varint()
            value: Field
            match tag & 7:
                case 0:
                    value = reader.varint()
                case 1:
                    value = reader.take(8)
                case 2:
                    value = reader.take(reader.varint())
                case 5:
                    value = reader.take(4)
                case _:
                    raise ValueError("the index is damaged: a field of no known form")
            self._fields.setdefault(tag >> 3, []).append(value)

    def number(self, field: int) -> int:
        """The last value, as it counts; 0 where there is none."""
        value = self._fields.get(field, [0])[-1]
        if not isinstance(value, int):
            raise ValueError("the index is damaged: bytes in the place of a number")
        return value

    def texts(self, field: int) -> list[bytes]:
        """All values."""
        values = self._fields.get(field, [])
        return [value for value in values if isinstance(value, bytes)]

    def text(self, field: int) -> bytes:
        """The last value; empty where there is none."""
        return (self.texts(field) or [b""])[-1]


class _Reader:
    """Takes bytes off the front, and never more than there are."""

    def __init__(self, data: bytes) -> None:
        self._data, self._position = data, 0

    @property
    def n_left(self) -> int:
        return len(self._data) - self._position

    def take(self, n: int) -> bytes:
        if n > self.n_left:
            raise ValueError("the index is damaged: it ends too early")
        self._position += n
        return self._data[self._position - n : self._position]

    def varint(self) -> int:
        """Seven bits a byte, lowest first; the top bit says that there are more."""
        number = 0
        for shift in range(0, 70, 7):
            (byte,) = self.take(1)
            number |= (byte & 127) << shift
            if byte < 128:
                return number
        raise ValueError("the index is damaged: a number without end")


def _entries(index: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Every key and value of the table, by way of the block that lists the others."""
    footer = index[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or not footer.endswith(_MAGIC):
        raise ValueError("the index is none")
    reader = _Reader(footer)
    _handle(reader)  # of a block for filters, of which there are none
    n_bytes_left = len(index)
    for _, value in _block(index, *_handle(reader)):
        start, size = _handle(_Reader(value))
        n_bytes_left -= size
        if n_bytes_left < 0:
            raise ValueError("the index is damaged: its blocks overlap")
        yield from _block(index, start, size)


def _handle(reader: _Reader) -> tuple[int, int]:
    """Where a block starts, and its size."""
    return reader.varint(), reader.varint()


def _block(index: bytes, start: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a block; each key is the one before it up to some length, and more."""
    reader = _Reader(index[start : start + size + 1])
    data, compression = reader.take(size), reader.take(1)
    if compression != b"\0":
        raise ValueError("the index is compressed, which TensorFlow does not do")
    n_restarts = int.from_bytes(data[-4:], "little")
    entries = _Reader(data[: max(0, len(data) - 4 - 4 * n_restarts)])
    key = b""
    while entries.n_left:
        n_shared, n_more, n_value = (entries.varint() for _ in range(3))
        key = key[:n_shared] + entries.take(n_more)
        if len(key) > MAX_KEY_BYTES:
            raise ValueError("the index is damaged: a name without end")
        yield key, entries.take(n_value)
