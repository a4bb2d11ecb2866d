"""Tests of a3c/cores.py."""

import os

from a3c import cores


def test_only_what_this_process_may_use_counts(monkeypatch):
    """Analytic: its affinity, where the system has such a thing; else all there are, or one."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5}, raising=False)
    assert cores.n_usable() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert cores.n_usable() == 7
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores.n_usable() == 1
