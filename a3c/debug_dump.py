"""The debug log's format: one line a tensor, written by `tf.print` inside the traced functions.

    A3C-DUMP update=12 purpose=train name=rewards dtype=float32 shape=5,1 [0 0 -1 0 0]

`tf.print` writes integers whole and each float32 with enough digits to give the same float32 back,
except that subnormals come out as 0. Every element is written, however many there are.
"""

import sys

import tensorflow as tf

MARK = "A3C-DUMP"


def dump(update: tf.Tensor, purpose: str, **tensors: tf.Tensor) -> None:
    """Print each tensor, whole, to stderr. Called while tracing; prints at each run."""
    for name, tensor in tensors.items():
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
