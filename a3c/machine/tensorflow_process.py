"""How a process loads TensorFlow, and sets its threads and memory.

Call `hushed` around the first import of TensorFlow, then `keep_freed_memory` (in order to train),
then `start_tensorflow`.
"""

import contextlib
import ctypes
import faulthandler
import functools
import os
import sys
import threading
from collections.abc import Iterator

from a3c.machine import cores

# TensorFlow writes these lines at any TF_CPP_MIN_LOG_LEVEL (its issue 100442) on some processors.
CHATTER = (b"oneDNN custom operations are on", b"All log messages before absl::InitializeLog()")

KERAS = "keras.src.optimizers"  # the module by which TensorFlow loads it


_HUSHING = threading.RLock()  # all threads have one standard error


@contextlib.contextmanager
def hushed() -> Iterator[None]:
    """Hold standard error back, and pass it on afterwards without TensorFlow's start-up lines.

    TensorFlow also loads Keras at once, with matplotlib and pandas, which takes two fifths of its
    time and 130 MB. It goes on without Keras if that fails, and loads it when somebody asks for
    `tf.keras`. None makes Python say that there is no such module.

    Without AVX-512, TensorFlow uses oneDNN only if it is asked to. Its gradients of convolutions are
    up to six times as fast as TensorFlow's own.
    """
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with _HUSHING, _held_back():
        yield


@contextlib.contextmanager
def _held_back() -> Iterator[None]:
    is_first = sys.modules.setdefault(KERAS, None) is None  # type: ignore[arg-type]
    stderr, held_back = os.dup(2), os.memfd_create("stderr")
    is_watched = faulthandler.is_enabled()
    if is_watched:
        faulthandler.enable(file=stderr)  # reports a crash at once
    os.dup2(held_back, 2)
    try:
        yield
    finally:
        if is_first:
            sys.modules.pop(KERAS, None)
        os.dup2(stderr, 2)
        if is_watched:
            faulthandler.enable(file=2)
        os.lseek(held_back, 0, os.SEEK_SET)
        with open(held_back, "rb") as lines, contextlib.suppress(OSError):
            for line in lines:
                if not any(chatter in line for chatter in CHATTER):
                    os.write(2, line)
        os.close(stderr)


@functools.cache
def keep_freed_memory() -> None:
    """Make glibc keep large blocks that TensorFlow frees for the next update, and use huge pages.

    The system fills new pages with zeros: that took a sixth of an update of `small` with 8
    environments. The first two settings alone are each worse than neither. By the third, threads
    share one arena: their own would give blocks of 32 MB back at once, which `small` frees with 32
    environments. The free block of 1 GB, from which glibc then takes others, uses no memory itself;
    the block behind it keeps `malloc_trim`, which protobuf calls at times, from giving it back.
    """
    trim_threshold, mmap_max, arena_max, madv_hugepage = -1, -4, -8, 14  # by their names in C
    huge, n_bytes = 2**21, 2**30
    with contextlib.suppress(AttributeError, OSError, TypeError):  # without glibc
        libc = ctypes.CDLL(None)
        libc.malloc.restype = ctypes.c_void_p
        libc.mallopt(trim_threshold, n_bytes)
        libc.mallopt(mmap_max, 0)
        libc.mallopt(arena_max, 1)
        block = libc.malloc(ctypes.c_size_t(n_bytes))
        libc.malloc(ctypes.c_size_t(2**26))  # larger than any gap before the first block
        if block is not None:  # memory may be limited
            start, end = -(-block // huge) * huge, (block + n_bytes) // huge * huge
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), madv_hugepage)
            libc.free(ctypes.c_void_p(block))


def limit_threads() -> None:
    """Set how many threads TensorFlow starts; RuntimeError if it has started, with others."""
    import tensorflow as tf

    os.environ["TF_NUM_INTEROP_THREADS"] = str(cores.n_usable())
    tf.config.threading.set_inter_op_parallelism_threads(-1)
    tf.config.threading.set_intra_op_parallelism_threads(1)


def start_tensorflow() -> None:
    """Start TensorFlow's threads before its first operation, so that no operation is split.

    The workers share the cores already. Compiled calls run in the thread that makes them; gradients
    are not compiled and use one pool, whose size TensorFlow reads only from the environment.

    A thread blocks the signals that its starter blocks at that moment. So all threads are started
    here, by a first compiled operation.
    """
    import tensorflow as tf

    limit_threads()
    tf.function(tf.square, jit_compile=True)(tf.ones(()))
