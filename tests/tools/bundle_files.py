"""Index files such as TensorFlow's, right ones and wrong ones; bundle_test.py tests this as well."""

from collections.abc import Sequence

MAGIC = bytes.fromhex("57fb808b247547db")


def varint(number: int) -> bytes:
    """Seven bits a byte; a negative one as TensorFlow has it, modulo 2^64."""
    number %= 2**64
    data = b""
    while number >= 128:
        data += bytes([number & 127 | 128])
        number >>= 7
    return data + bytes([number])


def block(entries: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A block with every key in full, and its byte for no compression."""
    data = b"".join(
        varint(0) + varint(len(key)) + varint(len(value)) + key + value for key, value in entries
    )
    return data + bytes(4) + (1).to_bytes(4, "little") + b"\0"


def table(blocks: Sequence[bytes], size_added: int = 0) -> bytes:
    """A whole index of these blocks. No checksums: nobody asks for them."""
    data, handles = b"", []
    for each in blocks:
        handles.append((b"z", varint(len(data)) + varint(len(each) - 1 + size_added)))
        data += each + bytes(4)
    top = block(handles)
    footer = varint(0) + varint(0) + varint(len(data)) + varint(len(top) - 1)
    return data + top + bytes(4) + footer.ljust(40, b"\0") + MAGIC


HEADER = (b"", b"\x08\x01\x1a\x02\x08\x01")


def entry(
    sides: Sequence[int], offset: int, size: int, dtype: int = 1, shard: int = 0, more: bytes = b""
) -> bytes:
    """A BundleEntryProto."""
    lengths = [b"\x08" + varint(side) for side in sides]
    shape = b"".join(b"\x12" + varint(len(length)) + length for length in lengths)
    of_file = b"\x18" + varint(shard) + b"\x20" + varint(offset) + b"\x28" + varint(size)
    return b"\x08" + varint(dtype) + b"\x12" + varint(len(shape)) + shape + of_file + more
