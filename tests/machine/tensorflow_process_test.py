"""How TensorFlow is loaded and started: what standard error gets, and which threads there are."""

import os
import subprocess
import sys

import pytest

from a3c.machine.tensorflow_process import hushed
from tests.tools import processes

CHATTER = "I0000 00:00:1.2 34 port.cc:153] oneDNN custom operations are on. You may see slightly\n"


def test_chatter_is_dropped_and_all_else_passed_on(capfd):
    """Analytic: in its order; afterwards nothing is held back, and no file stays open."""
    before = os.listdir("/proc/self/fd")
    with hushed():
        os.write(2, f"one\n{CHATTER}two\n".encode())
        assert capfd.readouterr().err == ""
    assert capfd.readouterr().err == "one\ntwo\n"
    assert os.listdir("/proc/self/fd") == before
    os.write(2, CHATTER.encode())
    assert capfd.readouterr().err == CHATTER


def test_an_error_is_passed_on_with_what_was_written_before(capfd):
    """Analytic: a library that cannot be loaded says why."""

    def load():
        with hushed():
            os.write(2, b"no such instruction\n")
            raise ImportError

    with pytest.raises(ImportError):
        load()
    assert capfd.readouterr().err == "no such instruction\n"


def test_keras_is_loaded_when_it_is_asked_for() -> None:
    """Analytic: TensorFlow comes without it and its libraries, but a user of `tf.keras` finds it."""
    before, layer, after = said_after_the_start(
        "import sys; loaded = lambda: print({'keras', 'matplotlib', 'pandas'} & {*sys.modules} == set());"
        "loaded(); print(tf.keras.layers.Dense.__name__); loaded()"
    )
    assert (before, layer, after) == ("True", "Dense", "False")


@pytest.mark.parametrize(("asked", "used"), [(None, "1"), ("0", "0")])
def test_onednn_is_asked_for_unless_the_user_decides(
    monkeypatch: pytest.MonkeyPatch, asked: str | None, used: str
) -> None:
    """Analytic: TensorFlow decides by the processor only where nobody asks."""
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    if asked is not None:
        monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", asked)
    with hushed():
        pass
    assert os.environ["TF_ENABLE_ONEDNN_OPTS"] == used


@pytest.mark.parametrize(
    ("script", "status", "told"),
    [
        ("os.abort()", -6, "Fatal Python error: Aborted"),
        ("pass\nos.abort()", -6, "Fatal Python error: Aborted"),
        ("os.write(1, b'in')", 0, ""),
    ],
)
def test_a_crash_is_reported(tmp_path, script, status, told):
    """Analytic: while TensorFlow is loaded, or later."""
    lines = [
        "import faulthandler, os",
        "from a3c.machine.tensorflow_process import hushed",
        "faulthandler.enable(file=2)",
    ]
    process = processes.start(["-c", "\n".join([*lines, f"with hushed(): {script}"])], tmp_path)
    assert process.wait(processes.DEADLINE_SECONDS) == status
    assert told in processes.outputs(tmp_path)["stderr"]


def said_after_the_start(code: str, n_cores: str | None = None) -> list[str]:
    """What a new process prints in which TensorFlow has just been started, which works only once."""
    start = (
        f"import os; from a3c.machine import cores, tensorflow_process; cores.use({n_cores!r})\n"
        "with tensorflow_process.hushed(): import tensorflow as tf\n"
        "tensorflow_process.keep_freed_memory(); tensorflow_process.start_tensorflow();"
    )
    command = [sys.executable, "-c", start + code]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
    done = subprocess.run(
        command, cwd=processes.ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""  # TensorFlow has written nothing
    return done.stdout.split()


@pytest.mark.parametrize("n_cores", ["1", None])
def test_no_operation_is_split_and_gradients_get_a_thread_a_core(n_cores):
    """Analytic: what TensorFlow says after its start, and the names of the threads."""
    inter, intra, n_usable, *names = said_after_the_start(
        "threads = tf.config.threading; print(threads.get_inter_op_parallelism_threads(),"
        " threads.get_intra_op_parallelism_threads(), cores.n_usable());"
        "[print(open(f'/proc/self/task/{t}/comm').read()) for t in os.listdir('/proc/self/task')]",
        n_cores,
    )
    assert (inter, intra) == ("-1", "1")
    assert names.count("tf_Compute") == int(n_cores or n_usable)


def test_starting_leaves_no_thread_to_be_started_later() -> None:
    """Analytic: as many threads before compiled and other operations as after. One that started
    later would not block the signals.
    """
    before, after = said_after_the_start(
        "count = lambda: print(len(os.listdir('/proc/self/task')));"
        "count(); product = lambda x: tf.matmul(x, x); x = tf.ones((64, 64));"
        "[tf.function(product, jit_compile=c)(x) for c in (True, False)]; count()"
    )
    assert before == after


def test_memory_that_a_thread_frees_is_kept_for_the_next_update() -> None:
    """Analytic: the system gives no new pages for a large block if one of its size was freed before."""
    first, second = said_after_the_start(
        """
import ctypes, resource, threading
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
def use():
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    block = ctypes.c_void_p(libc.malloc(ctypes.c_size_t(48 << 20)))
    libc.memset(block, 1, ctypes.c_size_t(48 << 20))
    libc.free(block)
    print(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)
for _ in range(2):
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
"""
    )
    assert int(second) < 10 < int(first)


def test_two_threads_hush_one_after_the_other():
    """Analytic: standard error is as before, though the second came while the first was inside."""
    code = (
        "import os, threading, time\n"
        "from a3c.machine.tensorflow_process import hushed\n"
        "before, inside = os.fstat(2), threading.Event()\n"
        "def first():\n"
        "    with hushed():\n"
        "        inside.set()\n"
        "        time.sleep(0.3)\n"
        "def second():\n"
        "    inside.wait()\n"
        "    with hushed():\n"
        "        time.sleep(0.6)\n"
        "threads = [threading.Thread(target=each) for each in (first, second)]\n"
        "[each.start() for each in threads]\n"
        "[each.join() for each in threads]\n"
        "assert os.path.samestat(before, os.fstat(2))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=processes.ROOT, capture_output=True)
    assert done.returncode == 0
