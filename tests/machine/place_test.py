"""Tests of where the code lies."""

import os
import subprocess
import sys

import pytest

from a3c.machine import place
from tests.tools.processes import ROOT


@pytest.mark.parametrize("before", [None, "/elsewhere"])
def test_another_process_finds_this_code_and_what_it_found_before(tmp_path, monkeypatch, before):
    """Analytic: from another folder, and this code first."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if before:
        monkeypatch.setenv("PYTHONPATH", before)
    assert place.python_path().split(os.pathsep) == [str(ROOT), *([before] if before else [])]
    program = [sys.executable, "-c", "import a3c; print(a3c.__file__)"]
    environment = os.environ | {"PYTHONPATH": place.python_path()}
    found = subprocess.check_output(program, cwd=tmp_path, env=environment, text=True)
    assert found.strip() == str(ROOT / "a3c/__init__.py")
