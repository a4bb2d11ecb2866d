"""Thousands of inputs that make no sense: each is accepted, or refused in one clear line (see fuzz.py)."""

import itertools
import re
import signal
import subprocess
import sys

import pytest

from a3c.settings import command_line, params
from a3c.store import checkpoint, games, run_folder
from tests.tools import fuzz, soak_fuzz


def test_thousands_of_inputs_end_in_success_or_one_line():
    """Analytic: no traceback, crash, hang or large memory; and each class has inputs that are accepted."""
    command = [sys.executable, "-m", "tests.tools.soak_fuzz", "--inputs", "4000", "--jobs", "2"]
    done = subprocess.run(command, cwd=soak_fuzz.ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    lines = done.stdout.splitlines()
    assert len(lines) == len(fuzz.CLASSES) == 5
    counts = [
        [int(n.replace(",", "")) for n in re.findall(r"([\d,]+) (?:inputs|taken|refused)", line)]
        for line in lines
    ]
    assert [n for n, _, _ in counts] == [980, 980, 980, 980, 80]
    for n, n_taken, n_refused in counts:
        assert n_taken + n_refused == n
        assert min(n_taken, n_refused) > n / 50


def test_a_hang_is_no_refusal(tmp_path, monkeypatch):
    """Analytic: negative control: a reader that never ends."""
    monkeypatch.setattr(checkpoint, "_checked", lambda *_: [None for _ in itertools.count()])
    monkeypatch.setattr(soak_fuzz, "HANG_SECONDS", 0.1)
    monkeypatch.setattr(command_line, "_parser", command_line._parser)
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGPROF)
    findings = soak_fuzz.run_chunk("checkpoint bytes", 0, 10, 0)["findings"]
    signal.signal(signal.SIGPROF, before)
    assert any("no end after 0.1 s" in what for _, what in findings)


def traceback_instead_of_a_line(*_: object) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("name", fuzz.CLASSES)
def test_what_must_not_happen_is_found(tmp_path, monkeypatch, name):
    """Analytic: negative control: a reader that raises anything else is found."""
    for module, function in (
        (params, "check"),
        (run_folder, "from_json"),
        (checkpoint, "_checked"),
        (fuzz.debug_dump, "_parse"),
        (games, "parse_game"),
    ):
        monkeypatch.setattr(module, function, traceback_instead_of_a_line)
    monkeypatch.chdir(tmp_path)
    n_found = 0
    for number in range(40):
        try:
            soak_fuzz.attempt(name, number, 0, tmp_path)
        except ZeroDivisionError:
            n_found += 1
    assert n_found > 5
