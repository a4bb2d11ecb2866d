"""Files that are written whole, and lines that are cut off; disk_test.py has the full disk."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from a3c.machine.appending import (
    cut_lines,
    survive_loss_of,
    why_unwritable,
    write_atomically,
)
from tests.tools import processes


def test_a_console_whose_disk_was_full_goes_on_when_there_is_room(tmp_path, monkeypatch):
    """Analytic: `> file` on a disk that others fill and empty; what was printed meanwhile is lost."""
    path = tmp_path / "console"
    with path.open("w") as console:
        monkeypatch.setattr("sys.stdout", console)
        with processes.no_file_grows_beyond(8), survive_loss_of(console):
            print("a line that is too long", flush=True)
        with survive_loss_of(console):
            print("one more", flush=True)
    assert path.read_text() == "a line tone more\n"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("1\n2\n", "1\n2\n"),
        ("1\n2\n3\n4\n", "1\n2\n"),
        ("1\nbad\n2\nbad\n3\n", "1\nbad\n2\n"),
        ("1\n2", "1\n"),
        ("1", ""),
        ("", ""),
    ],
)
def test_what_follows_the_last_line_that_stays_is_cut(tmp_path, text, left):
    """Analytic: no half line stays, and a damaged line only before one that stays."""
    path = tmp_path / "table"
    path.write_text(text)
    cut_lines(path, lambda line: int(line) <= 2)
    assert path.read_text() == left


def test_half_a_line_is_cut_off(tmp_path):
    """Analytic: whole lines stay, whatever they hold."""
    (tmp_path / "log").write_bytes(b"\xff\n" * 20_000 + b"half")
    cut_lines(tmp_path / "log")
    assert (tmp_path / "log").read_bytes() == b"\xff\n" * 20_000


@pytest.mark.parametrize("data", ["new: é", b"new: \xff"])
def test_a_file_is_whole_on_the_disk_before_it_takes_another_ones_place(
    tmp_path, monkeypatch, data
):
    """Analytic: its bytes are synced before, or a power cut could leave an empty file; its folder
    is synced afterwards.
    """
    path = tmp_path / "file"
    path.write_text("old")
    synced = []

    def fsync(number: int) -> None:
        is_folder = os.path.isdir(f"/proc/self/fd/{number}")
        synced.append((is_folder, os.fstat(number).st_size if not is_folder else path.read_bytes()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_atomically(path, data)
    expected = data.encode() if isinstance(data, str) else data
    assert path.read_bytes() == expected
    assert synced == [(False, len(expected)), (True, expected)]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("where", ["fsync", "replace"])
def test_where_writing_fails_the_old_file_stays(tmp_path, monkeypatch, where, error):
    """Analytic: and nothing is left beside it."""
    path = tmp_path / "file"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(*((os, "fsync") if where == "fsync" else (pathlib.Path, "replace")), fail)
    with pytest.raises(type(error)):
        write_atomically(path, "new")
    assert [(each, each.read_text()) for each in tmp_path.iterdir()] == [(path, "old")]


def test_a_process_that_is_killed_while_it_writes_leaves_the_old_file(tmp_path):
    """Analytic: its own part lies beside it, until the next process writes the file."""
    path = tmp_path / "file"
    path.write_text("old")
    script = (
        "import os, pathlib, signal, sys; from a3c.machine import appending;"
        "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL);"
        "appending.write_atomically(pathlib.Path(sys.argv[1]), 'new')"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], cwd=processes.ROOT)
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "old"
    assert (tmp_path / "file.tmp").read_text() == "new"
    write_atomically(path, "newer")
    assert [(each, each.read_text()) for each in tmp_path.iterdir()] == [(path, "newer")]


def test_what_can_be_written_is_left_as_it_is(tmp_path):
    """Analytic: a file keeps its bytes, a missing one is not made; otherwise the reason is given."""
    (tmp_path / "there").write_text("old")
    assert why_unwritable(tmp_path / "there") is None
    assert why_unwritable(tmp_path / "new") is None
    (tmp_path / "link").symlink_to("target")
    assert why_unwritable(tmp_path / "link") is None
    (tmp_path / "link").unlink()  # it was still there
    assert why_unwritable(pathlib.Path("/dev/null")) is None
    assert why_unwritable(tmp_path) == "Is a directory"
    assert why_unwritable(tmp_path / "no" / "file") == "No such file or directory"
    assert why_unwritable(tmp_path / "x\0") == "embedded null byte"
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("there", "old")]


def test_what_the_console_cannot_show_is_escaped():
    """Analytic: printed to a console that knows only ASCII."""
    code = (
        "from a3c.machine import appending; appending.open_what_is_closed();"
        r"print('x\u2026\udcff')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=processes.ROOT,
        env={**os.environ, "PYTHONIOENCODING": "ascii:strict"},
        capture_output=True,
        check=True,
    )
    assert done.stdout == rb"x\u2026\udcff" + b"\n"


def test_the_reader_of_a_pipe_is_kept(tmp_path):
    """Analytic: it reads what is written after the check; /dev/stdout may be such a pipe."""
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE, text=True) as reader:
        assert why_unwritable(tmp_path / "pipe") is None
        (tmp_path / "pipe").write_text("scores")
        assert reader.communicate()[0] == "scores"
    script = (
        "import pathlib; from a3c.machine.appending import why_unwritable;"
        "assert why_unwritable(pathlib.Path('/dev/stdout')) is None"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=processes.ROOT, stdout=subprocess.PIPE, check=False
    )
    assert done.returncode == 0


def test_what_a_program_was_started_without_leads_nowhere(tmp_path):
    """Analytic: without stdin, stdout and stderr, a file does not get their numbers, or what is printed."""
    script = (
        "import os, sys; from a3c.machine import appending; appending.open_what_is_closed();"
        "file = open('file', 'w'); print('lost'); print('lost', file=sys.stderr);"
        "os.write(1, b'lost'); os.write(2, b'lost'); print(file.fileno(), file=file);"
        "assert sys.stdin.read() == ''"
    )
    command = ["-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", script]
    environment = {**os.environ, "PYTHONPATH": str(processes.ROOT)}
    done = subprocess.run(["sh", *command], cwd=tmp_path, env=environment)
    assert done.returncode == 0
    assert int((tmp_path / "file").read_text()) > 2
