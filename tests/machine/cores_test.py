"""Tests of a3c/machine/cores.py."""

import math
import os
import pathlib
import subprocess
import sys

import pytest

from a3c.machine import cores


def test_only_what_this_process_may_use_counts(monkeypatch):
    """Analytic: its affinity, where the system has such a thing; else all there are, or one."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5}, raising=False)
    assert cores.n_usable() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert cores.n_usable() == 7
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores.n_usable() == 1


def stat(folder: pathlib.Path, pid: int, parent: int, *ticks: int) -> None:
    """A process as Linux tells of it, with what it used in hundredths of a second."""
    (folder / str(pid)).mkdir()
    fields = " ".join(map(str, ["S", parent, *[7] * 9, *ticks, *[7] * 30]))
    (folder / str(pid) / "stat").write_text(f"{pid} (a) (b 1) {fields}\n")


def test_all_that_stem_from_a_process_count(tmp_path, monkeypatch):
    """Analytic: its own, its child's and grandchild's, and those that ended; nobody else's."""
    monkeypatch.setattr(os, "getpid", lambda: 10)
    monkeypatch.setattr(os, "sysconf", lambda _: 100)
    assert math.isnan(cores.seconds_used(tmp_path))
    stat(tmp_path, 9, 1, 5000, 0, 0, 0)
    stat(tmp_path, 10, 9, 100, 20, 3, 0)
    stat(tmp_path, 30, 10, 1000, 200, 30, 4)
    stat(tmp_path, 11, 30, 10000, 0, 0, 0)
    stat(tmp_path, 12, 9, 70000, 0, 0, 0)
    (tmp_path / "13").mkdir()  # it has just ended
    assert cores.seconds_used(tmp_path) == pytest.approx(113.57)


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs Linux")
def test_what_a_child_uses_counts_while_it_lives_and_after():
    """Analytic: half a second of its processor's time, told by its own clock."""
    burn = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    before = cores.seconds_used()
    with subprocess.Popen(
        [sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout
        child.stdout.readline()
        assert cores.seconds_used() - before > 0.4
        child.communicate(b"\n")
    assert 0.4 < cores.seconds_used() - before < 10
