"""Cores: how many a process may use, what --cores asks for, and what was used."""

import math
import os
import pathlib
import subprocess
import sys

import pytest

from a3c.machine import cores
from a3c.machine.words import BadInput

V1 = "11:memory:/docker/ab\n4:cpu,cpuacct:/docker/ab\n0::/system\n"


@pytest.mark.parametrize(
    ("groups", "files", "n"),
    [
        # Version 2: whole cores, parts of one, no limit.
        ("0::/\n", {"cpu.max": "200000 100000"}, 2),
        ("0::/\n", {"cpu.max": "250000 100000"}, 3),
        ("0::/\n", {"cpu.max": "10000 100000"}, 1),
        ("0::/\n", {"cpu.max": "max 100000"}, 8),
        ("0::/\n", {"cpu.max": "1600000 100000"}, 8),
        # The process's own group and those above it, none beside it; the tightest counts.
        ("0::/a/b\n", {"a/cpu.max": "400000 100000", "a/b/cpu.max": "300000 100000"}, 3),
        ("0::/a/b\n", {"a/cpu.max": "400000 100000", "a/b/cpu.max": "600000 100000"}, 4),
        ("0::/a/b\n", {"cpu.max": "500000 100000"}, 5),
        ("0::/a/b\n", {"c/cpu.max": "100000 100000", "a/b/c/cpu.max": "100000 100000"}, 8),
        ("0::/../../a\n", {"a/cpu.max": "300000 100000", "cpu.max": "max 100000"}, 3),
        ("0::/a:b\n", {"a:b/cpu.max": "300000 100000"}, 3),
        # Version 1: as the machine mounts it, or as a container's own root.
        (V1, {"cpu/docker/ab/cpu.cfs_quota_us": "150000"}, 2),
        (V1, {"cpu/cpu.cfs_quota_us": "250000"}, 3),
        (V1, {"cpu/cpu.cfs_quota_us": "-1"}, 8),
        (V1, {"memory/cpu.cfs_quota_us": "100000", "cpuacct/cpu.cfs_quota_us": "100000"}, 8),
        # Anything else counts for nothing.
        ("0::/\n", {"cpu.max": "max"}, 8),
        ("0::/\n", {"cpu.max": "100000 0"}, 8),
        ("no groups\n", {"cpu.max": "100000 100000"}, 8),
        (None, {"cpu.max": "100000 100000"}, 8),
    ],
)
def test_a_containers_share_counts(tmp_path, monkeypatch, groups, files, n):
    """Analytic: of 8 cores, the number whose time its control groups allow, rounded up."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    if groups is not None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = tmp_path / "sys" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
        if "quota" in name:
            path.with_name("cpu.cfs_period_us").write_text("100000\n")
    assert cores.n_usable(tmp_path / "proc", tmp_path / "sys") == n


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        (None, None),
        ("4", 4),
        ("0-3", {0, 1, 2, 3}),
        ("0,2-3", {0, 2, 3}),
        ("5-5", {5}),
        ("3,1", {1, 3}),
    ],
)
def test_cores_are_asked_for_by_number_or_name(text, asked):
    """Analytic: one number is how many."""
    assert cores.parse(text) == asked


@pytest.mark.parametrize(
    "text",
    ["", "0", "00", "x", "-1", "1-", "0-1-2", "3-1", "1,,2", "1.5", " 2", "²", "123456", "1\n"],
)
def test_what_names_no_cores_is_refused(text):
    """Analytic: with the flag's name."""
    with pytest.raises(BadInput, match="^--cores "):
        cores.parse(text)


def test_a_number_limits_what_is_used(monkeypatch):
    """Analytic: up to what there is; without one, all there is."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(cores, "_shares", lambda *_: [6.0])
    monkeypatch.setattr(cores, "_limit", 8)
    for text, n in (("4", 4), ("6", 6), (None, 6)):
        cores.use(text)
        assert cores.n_usable() == n
    with pytest.raises(BadInput, match="--cores 7: this process may use only 6"):
        cores.use("7")


def test_named_cores_hold_all_threads_and_children():
    """Analytic: the thread that asked, one that ran before, and a process that starts."""
    mine = sorted(os.sched_getaffinity(0))
    script = (
        "import os, subprocess, sys, threading\n"
        "from a3c.machine import cores\n"
        "is_over = threading.Event()\n"
        "other = threading.Thread(target=is_over.wait)\n"
        "other.start()\n"
        f"cores.use('{mine[-1]}-{mine[-1]}')\n"
        "show = 'import os; print(os.sched_getaffinity(0))'\n"
        "print(os.sched_getaffinity(0), os.sched_getaffinity(other.native_id), cores.n_usable())\n"
        "sys.stdout.flush()\n"
        "subprocess.run([sys.executable, '-c', show], check=True)\n"
        "is_over.set()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines() == [f"{ {mine[-1]} } { {mine[-1]} } 1", f"{ {mine[-1]} }"]


def test_cores_that_are_not_there_are_refused(monkeypatch):
    """Golden: the message names the first of them."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 4})
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: pytest.fail("done"))
    with pytest.raises(BadInput, match="--cores 1-4: this process may use 0, 1, 4, but not 2"):
        cores.use("1-4")


def stat(folder: pathlib.Path, pid: int, parent: int, *ticks: int) -> None:
    """A process as /proc shows it, with the time that it used in hundredths of a second."""
    (folder / str(pid)).mkdir()
    fields = " ".join(map(str, ["S", parent, *[7] * 9, *ticks, *[7] * 30]))
    (folder / str(pid) / "stat").write_text(f"{pid} (a) (b 1) {fields}\n")


def test_a_process_and_its_descendants_count(tmp_path, monkeypatch):
    """Analytic: its own time, its child's, its grandchild's, that of ended ones; nobody else's."""
    monkeypatch.setattr(os, "getpid", lambda: 10)
    monkeypatch.setattr(os, "sysconf", lambda _: 100)
    assert math.isnan(cores.seconds_used(tmp_path))
    stat(tmp_path, 9, 1, 5000, 0, 0, 0)
    stat(tmp_path, 10, 9, 100, 20, 3, 0)
    stat(tmp_path, 30, 10, 1000, 200, 30, 4)
    stat(tmp_path, 11, 30, 10000, 0, 0, 0)
    stat(tmp_path, 12, 9, 70000, 0, 0, 0)
    (tmp_path / "13").mkdir()  # a process that has just ended
    assert cores.seconds_used(tmp_path) == pytest.approx(113.57)


def test_what_a_child_uses_counts_while_it_lives_and_after():
    """Analytic: half a second of processor time, by the child's own clock."""
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
