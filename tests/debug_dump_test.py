"""The debug log's lines: every tensor whole, and to the bit."""

import re

import numpy as np
import pytest
import tensorflow as tf

from a3c import debug_dump


def lines_of(capfd: pytest.CaptureFixture[str], *arrays: np.ndarray, update: int = 7) -> list[str]:
    """What dumping these arrays writes to stderr, from inside one traced function."""
    names = [f"array{i}" for i in range(len(arrays))]

    @tf.function(input_signature=[tf.TensorSpec(a.shape, a.dtype) for a in arrays])
    def dump(*tensors: tf.Tensor) -> None:
        tensors_by_name = dict(zip(names, tensors, strict=True))
        debug_dump.dump(tf.constant(update, tf.int64), "train", **tensors_by_name)

    dump.get_concrete_function()
    assert capfd.readouterr() == ("", ""), "tracing printed"
    dump(*map(tf.constant, arrays))
    out, err = capfd.readouterr()
    assert out == ""
    assert err.endswith("\n")
    return err.splitlines()


def read(line: str, dtype: type) -> np.ndarray:
    return np.array(re.fullmatch(r".* \[(.*)\]", line).group(1).split(), dtype)


def test_a_line_says_what_it_holds(capfd):
    """Golden: the form that readers of the log rely on; one line a tensor, in order."""
    rewards = np.array([[0], [0], [-1], [0], [0.5]], np.float32)
    frames = np.arange(4, dtype=np.uint8).reshape(1, 2, 2, 1)
    assert lines_of(capfd, rewards, frames, update=12) == [
        "A3C-DUMP update=12 purpose=train name=array0 dtype=float32 shape=5,1 [0 0 -1 0 0.5]",
        "A3C-DUMP update=12 purpose=train name=array1 dtype=uint8 shape=1,2,2,1 [0 1 2 3]",
    ]


def test_every_element_is_there(capfd):
    """Analytic: a stack of frames of two environments is not cut short with dots."""
    frames = np.random.default_rng(0).integers(0, 256, (2, 84, 84, 4), np.uint8)
    (line,) = lines_of(capfd, frames)
    assert "shape=2,84,84,4 [" in line
    np.testing.assert_array_equal(read(line, np.uint8).reshape(frames.shape), frames)


def test_floats_come_back_to_the_bit(capfd):
    """Analytic: any 32 bits that are a normal float32, extremes, infinities and zeros too."""
    bits = np.random.default_rng(0).integers(0, 2**32, 20_000, np.uint32)
    some = bits.view(np.float32)
    limits = np.finfo(np.float32)
    extremes = [limits.max, limits.min, limits.tiny, -limits.tiny, np.inf, -np.inf, 0.0, 1 / 3]
    floats = np.concatenate([some[np.isfinite(some)], np.array(extremes, np.float32)])
    floats = floats[(floats == 0) | (np.abs(floats) >= limits.tiny)]
    assert len(floats) > 19_000
    (line,) = lines_of(capfd, floats)
    np.testing.assert_array_equal(read(line, np.float32), floats)


def test_what_is_no_number_is_shown_and_what_is_subnormal_is_0(capfd):
    """Golden: the two values that do not come back as they were."""
    floats = np.array([np.nan, 1e-40, -1e-45], np.float32)
    (line,) = lines_of(capfd, floats)
    np.testing.assert_array_equal(read(line, np.float32), [np.nan, 0, 0])


def test_integers_come_back_whole(capfd):
    """Analytic: to both ends of their range."""
    integers = np.array([-(2**31), -1, 0, 1, 123_456_789, 2**31 - 1], np.int32)
    (line,) = lines_of(capfd, integers)
    np.testing.assert_array_equal(read(line, np.int32), integers)
