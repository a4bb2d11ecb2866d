"""How TensorFlow is loaded, and its threads and memory.

Whoever trains or plays calls these in order: `hushed` around the first import of TensorFlow,
`keep_freed_memory` (for training), `start_tensorflow`.
"""

import contextlib
import ctypes
import faulthandler
import os
from collections.abc import Iterator

from a3c.machine import cores

# TensorFlow writes these lines whatever TF_CPP_MIN_LOG_LEVEL says (its issue 100442), on some
# processors. Standard error is for errors here, and for the dump of --debug.
CHATTER = (b"oneDNN custom operations are on", b"All log messages before absl::InitializeLog()")


@contextlib.contextmanager
def hushed() -> Iterator[None]:
    """Keep what TensorFlow says of itself while it is imported from the console.

    Standard error is held back meanwhile, and passed on without those lines. faulthandler, if it is
    on, reports a crash at once.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    stderr, held_back = os.dup(2), os.memfd_create("stderr")
    is_watched = faulthandler.is_enabled()
    if is_watched:
        faulthandler.enable(file=stderr)
    os.dup2(held_back, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        if is_watched:
            faulthandler.enable(file=2)
        os.lseek(held_back, 0, os.SEEK_SET)
        with open(held_back, "rb") as lines, contextlib.suppress(OSError):
            for line in lines:
                if not any(chatter in line for chatter in CHATTER):
                    os.write(2, line)
        os.close(stderr)


def keep_freed_memory() -> None:
    """Have glibc keep the large blocks that TensorFlow frees for the next update, in huge pages.

    Blocks that glibc gives back to the system return as new pages, which the system has to fill
    with zeros: that took a sixth of an update of `small` with 8 environments. Both settings are
    needed; one of them alone is worse than none.

    Huge pages are asked for a free block of 1 GB, from which glibc takes other blocks, and which
    takes no memory until it is used. Another block behind it, which is never freed, keeps
    `malloc_trim`, which protobuf calls at times, from giving the whole back.
    """
    trim_threshold, mmap_max, madv_hugepage = -1, -4, 14  # by their names in C
    huge, n_bytes = 2**21, 2**30
    with contextlib.suppress(AttributeError, OSError, TypeError):  # where there is no glibc
        libc = ctypes.CDLL(None)
        libc.malloc.restype = ctypes.c_void_p
        libc.mallopt(trim_threshold, n_bytes)
        libc.mallopt(mmap_max, 0)
        block = libc.malloc(ctypes.c_size_t(n_bytes))
        libc.malloc(ctypes.c_size_t(2**26))  # behind it: larger than any gap before it
        if block is not None:  # memory may be limited
            start, end = -(-block // huge) * huge, (block + n_bytes) // huge * huge
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), madv_hugepage)
            libc.free(ctypes.c_void_p(block))


def start_tensorflow() -> None:
    """Start TensorFlow's threads, before its first operation, so that none is split over threads.

    Many workers share the cores already, and with pools of TensorFlow's own, calls would pass from
    their thread to a pool's and back. Compiled calls run in the thread that made them. Gradients,
    which are not compiled, use one pool, whose size TensorFlow takes from the environment alone.

    A thread receives the signals that its starter receives at that moment; a first compiled
    operation here leaves no thread to be started later.
    """
    import tensorflow as tf

    os.environ["TF_NUM_INTEROP_THREADS"] = str(cores.n_usable())
    tf.config.threading.set_inter_op_parallelism_threads(-1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.function(tf.square, jit_compile=True)(tf.ones(()))
