"""What is said to standard error while TensorFlow is loaded: its chatter is kept, the rest passed on."""

import os

import pytest

from a3c.machine.tensorflow_process import hushed
from tests.tools import processes

CHATTER = "I0000 00:00:1.2 34 port.cc:153] oneDNN custom operations are on. You may see slightly\n"


def test_chatter_is_dropped_and_all_else_passed_on(capfd):
    """Analytic: in its order, whoever wrote it; afterwards nothing is held back."""
    with hushed():
        os.write(2, f"one\n{CHATTER}two\n".encode())
        assert capfd.readouterr().err == ""
    assert capfd.readouterr().err == "one\ntwo\n"
    os.write(2, CHATTER.encode())
    assert capfd.readouterr().err == CHATTER


def test_an_error_comes_through_with_what_was_said_before(capfd):
    """Analytic: a library that cannot be loaded says why."""

    def load():
        with hushed():
            os.write(2, b"no such instruction\n")
            raise ImportError

    with pytest.raises(ImportError):
        load()
    assert capfd.readouterr().err == "no such instruction\n"


def test_no_file_stays_open(capfd):
    """Analytic: a run that is counted by its files, and one in which much is loaded."""
    before = os.listdir("/proc/self/fd")
    with hushed():
        pass
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize(
    ("script", "status", "told"),
    [
        ("os.abort()", -6, "Fatal Python error: Aborted"),
        ("pass\nos.abort()", -6, "Fatal Python error: Aborted"),
        ("os.write(1, b'in')", 0, ""),
    ],
)
def test_a_crash_is_told(tmp_path, script, status, told):
    """Analytic: while it is loaded, or later."""
    lines = [
        "import faulthandler, os",
        "from a3c.machine.tensorflow_process import hushed",
        "faulthandler.enable(file=2)",
    ]
    process = processes.start(["-c", "\n".join([*lines, f"with hushed(): {script}"])], tmp_path)
    assert process.wait(processes.DEADLINE_SECONDS) == status
    assert told in processes.outputs(tmp_path)["stderr"]


def test_without_standard_error_all_goes_on(tmp_path):
    """Analytic: closed, as `2>&-` leaves it."""
    script = "import os; os.close(2)\nfrom a3c.machine.tensorflow_process import hushed\nwith hushed(): print('loaded')"
    process = processes.start(["-c", script], tmp_path)
    assert process.wait(processes.DEADLINE_SECONDS) == 0
    assert processes.outputs(tmp_path)["stdout"] == "loaded\n"
