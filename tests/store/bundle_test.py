"""Reading TensorFlow's checkpoint files: what it wrote comes back, and nobody's file does any harm."""

import pathlib
import shutil
import tracemalloc

import numpy as np
import pytest
import tensorflow as tf

from a3c.store import bundle
from tests.tools.bundle_files import HEADER, block, entry, table, varint

SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint that TensorFlow wrote, and what is in it; 60 names, one of them long."""
    generator = np.random.default_rng(0)
    shapes = {f"w{i}_kernel": (i, 3, 2) for i in range(1, 60)} | {"long" * 50: (), "empty": (0, 2)}
    arrays = {name: generator.random(shape, np.float32) for name, shape in shapes.items()}
    prefix = tmp_path_factory.mktemp("saved") / "ckpt-5"
    variables = {name: tf.Variable(array) for name, array in arrays.items()}
    tf.train.Checkpoint(weights=variables, n=tf.Variable(7)).write(str(prefix))
    return prefix, {f"weights/{name}{SUFFIX}": array for name, array in arrays.items()}


def test_what_tensorflow_wrote_comes_back(saved):
    """Parity: every array by its name and shape, bit for bit; also those alone that are asked for."""
    prefix, arrays = saved
    read = bundle.read(prefix, {name: array.shape for name, array in arrays.items()})
    assert list(read) == list(arrays)
    reader = tf.train.load_checkpoint(str(prefix))
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array, err_msg=name)
        np.testing.assert_array_equal(read[name], reader.get_tensor(name), err_msg=name)
        assert read[name].dtype == np.float32
    name = f"weights/w7_kernel{SUFFIX}"
    assert list(bundle.read(prefix, {name: (7, 3, 2)})) == [name]


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        (f"weights/w7_kernel{SUFFIX}", (7, 2, 3), r"has the shape \(7, 3, 2\) where \(7, 2, 3\)"),
        (f"weights/w0_kernel{SUFFIX}", (0, 3, 2), "is missing"),
        (f"n{SUFFIX}", (), "is not of float32"),
        ("_CHECKPOINTABLE_OBJECT_GRAPH", (), "is not of float32"),
    ],
)
def test_what_is_not_there_as_asked_for_is_refused(saved, name, shape, words):
    """Analytic: name, shape and type, before any of its bytes are read."""
    with pytest.raises(ValueError, match=words):
        bundle.read(saved[0], {name: shape})


def put(folder: pathlib.Path, *blocks: bytes, data: bytes = bytes(64), size_added: int = 0):
    """A checkpoint of these blocks, and a data file of 16 zeros."""
    prefix = folder / "ckpt-0"
    (folder / "ckpt-0.index").write_bytes(table(blocks, size_added))
    (folder / "ckpt-0.data-00000-of-00001").write_bytes(data)
    return prefix


def test_an_index_of_ours_is_read(tmp_path):
    """Analytic: the helper's own files, of one block and of two; the tests below are of wrong ones."""
    first, second = (b"a", entry([2, 3], 8, 24)), (b"b", entry([], 60, 4))
    data = np.arange(16, dtype="<f4").tobytes()
    for blocks in ([block([HEADER, first, second])], [block([HEADER, first]), block([second])]):
        read = bundle.read(put(tmp_path, *blocks, data=data), {"a": (2, 3), "b": ()})
        np.testing.assert_array_equal(read["a"], np.arange(2, 8).reshape(2, 3))
        assert read["b"] == 15


# Entries of the array "a", of shape (2, 3).
HOSTILE = {
    "a shape as large as the world": entry([2**31, 2**31], 0, 24),
    "a negative side": entry([-2, -3], 0, 24),
    "many sides": entry([1] * 300, 0, 24),
    "a size that is not the shape's": entry([2, 3], 0, 2**37),
    "a negative size": entry([2, 3], 0, -24),
    "an offset beyond the end": entry([2, 3], 41, 24),
    "an offset as large as the world": entry([2, 3], 2**62, 24),
    "a negative offset": entry([2, 3], -8, 24),
    "another shard": entry([2, 3], 0, 24, shard=1),
    "a negative shard": entry([2, 3], 0, 24, shard=-1),
    "parts": entry([2, 3], 0, 24, more=b"\x3a\x02\x08\x01"),
    **{f"dtype {n}": entry([2, 3], 0, 24, dtype=n) for n in (0, 2, 7, 14, 20, 21, 101, 999)},
    "no protocol buffer": b"\xff" * 20,
    "an unknown form": b"\x0b" * 20,
    "text for a number": b"\x0a\x01x",
    "a number for text": b"\x08\x01\x10\x05",
    "longer than it is": b"\x08\x01\x12\x7f",
    "nothing": b"",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_entry_is_refused(tmp_path, name):
    """Analytic: in one line. (TensorFlow's own reader ends the process at some of these.)"""
    prefix = put(tmp_path, block([HEADER, (b"a", HOSTILE[name])]))
    with pytest.raises(ValueError, match=r"^.{1,200}\Z"):
        bundle.read(prefix, {"a": (2, 3)})


@pytest.mark.parametrize(
    ("number", "words"), [(np.nan, "finite"), (np.inf, "finite"), (-np.inf, "finite")]
)
def test_a_number_that_is_not_finite_is_refused(tmp_path, number, words):
    """Analytic: nothing good can be trained from it."""
    data = np.array([1, 2, number], "<f4").tobytes()
    prefix = put(tmp_path, block([HEADER, (b"a", entry([3], 0, 12))]), data=data)
    with pytest.raises(ValueError, match=words):
        bundle.read(prefix, {"a": (3,)})


GOOD = (b"a", entry([2, 3], 0, 24))
TABLES = {
    "no header": table([block([GOOD])]),
    "two files": table([block([(b"", b"\x08\x02"), GOOD])]),
    "the highest bytes first": table([block([(b"", b"\x08\x01\x10\x01"), GOOD])]),
    "empty": b"",
    "short": table([block([HEADER, GOOD])])[-40:],
    "of another kind": table([block([HEADER, GOOD])])[:-1] + b"\0",
    "compressed": table([block([HEADER, GOOD])[:-1] + b"\1"]),
    "a block that is longer than the file": table([block([HEADER, GOOD])], size_added=10**9),
    "a footer that points nowhere": bytes(40) + table([])[-8:],
    "a value beyond its block": table([varint(0) + varint(1) + varint(99) + b"a" + bytes(9)]),
    "too many restarts": table([block([HEADER, GOOD])[:-5] + b"\xff\xff\xff\xff\0"]),
    "larger than any index": bytes(bundle.MAX_INDEX_BYTES) + table([block([HEADER, GOOD])]),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_hostile_table_is_refused(tmp_path, name):
    """Analytic: in one line."""
    prefix = put(tmp_path)
    (tmp_path / "ckpt-0.index").write_bytes(TABLES[name])
    with pytest.raises(ValueError, match=r"^.{1,200}\Z"):
        bundle.read(prefix, {"a": (2, 3)})


def growing_keys() -> bytes:
    """Each entry's key is the one before it and a byte: half a megabyte gives 10^10 bytes of keys."""
    one = b"".join(varint(n) + varint(1) + varint(0) + b"k" for n in range(100_000))
    return table([one + bytes(4) + (1).to_bytes(4, "little") + b"\0"])


def repeated_blocks() -> bytes:
    """A hundred thousand handles of one large block."""
    large = block([(b"%d" % i, b"") for i in range(2_000)])
    handle = varint(0) + varint(len(large) - 1)
    top = block([(b"", handle)] * 60_000)
    footer = varint(0) + varint(0) + varint(len(large)) + varint(len(top) - 1)
    return large + top + footer.ljust(40, b"\0") + table([])[-8:]


@pytest.mark.parametrize("make", [growing_keys, repeated_blocks])
def test_a_small_file_takes_no_large_memory(tmp_path, make):
    """Analytic: what would grow without end is refused before it does."""
    prefix = put(tmp_path)
    (tmp_path / "ckpt-0.index").write_bytes(make())
    assert len(make()) < bundle.MAX_INDEX_BYTES == 2**20
    assert bundle.MAX_KEY_BYTES == 1000
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="without end|overlap"):
            bundle.read(prefix, {"a": (2, 3)})
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


def test_any_cut_is_noticed(saved, tmp_path):
    """Analytic: of either file, wherever it is cut."""
    prefix, arrays = saved
    shapes = {name: array.shape for name, array in arrays.items()}
    for path in sorted(prefix.parent.iterdir()):
        shutil.copy(path, tmp_path)
    for path in sorted(tmp_path.iterdir()):
        whole = path.read_bytes()
        # Behind the arrays the data file has TensorFlow's own graph of objects, which we leave alone.
        end = len(whole) if path.suffix == ".index" else sum(a.nbytes for a in arrays.values())
        for n in range(0, end, 97):
            path.write_bytes(whole[:n])
            with pytest.raises(ValueError, match=r"^.{1,300}\Z"):
                bundle.read(tmp_path / prefix.name, shapes)
        path.write_bytes(whole)
    bundle.read(tmp_path / prefix.name, shapes)


def test_fields_of_every_form_by_hand():
    """Analytic: a number, eight bytes, a text, four bytes; the last of two values counts."""
    message = b"\x08\x07" + b"\x11eight by" + b"\x1a\x03one" + b"\x1a\x03two" + b"\x25four"
    fields = bundle._Fields(message)
    assert [fields.number(n) for n in (1, 9)] == [7, 0]
    assert [fields.text(n) for n in (2, 3, 4, 9)] == [b"eight by", b"two", b"four", b""]
    assert fields.texts(3) == [b"one", b"two"]
    with pytest.raises(ValueError, match="bytes in the place of a number"):
        fields.number(3)
    with pytest.raises(ValueError, match="no known form"):
        bundle._Fields(b"\x0b")
