"""Tests of a3c/envs/fleet.py: how many processes a run has, who shares one, how often one may break."""

import resource
import types

import pytest

from a3c.envs import fleet as fleet_module
from a3c.envs.fleet import Fleet
from a3c.envs.process import EnvError, EnvProcess
from a3c.machine import cores


def test_restarts_are_limited_by_the_minute(monkeypatch):
    """Analytic: ten at once, and another as soon as the first of the last ten is a minute old."""
    now = [1000.0]
    monkeypatch.setattr(fleet_module, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    fleet = Fleet(restarts_a_minute=10)
    allowed = []
    for seconds in [*range(12), 59, 60, 60.5, 61, 62]:
        now[0] = 1000.0 + seconds
        allowed.append(fleet.allows_restart(EnvProcess()))
    assert allowed == [True] * 10 + [False] * 3 + [True, False, True, True]
    assert not Fleet().allows_restart(EnvProcess())


@pytest.mark.parametrize(
    ("n_cores", "n_workers", "n_envs", "n_each", "shares"),
    [
        (2, 16, 1, 1, [8, 8]),
        (2, 5, 1, 1, [3, 2]),
        (2, 3, 8, 1, []),
        (2, 1, 8, 2, []),
        (16, 3, 8, 6, []),
        (16, 1, 8, 8, []),
        (16, 16, 1, 1, []),
        (16, 16, 4, 1, []),
        (1, 200, 1, 1, [50, 50, 50, 50]),
    ],
)
def test_the_processes_use_every_core(monkeypatch, n_cores, n_workers, n_envs, n_each, shares):
    """Analytic: a worker has cores divided by workers, rounded up, at most one an environment; many workers
    share one a core, in contiguous shares of at most 64.
    """
    monkeypatch.setattr(cores, "n_usable", lambda: n_cores)
    fleet = Fleet(n_workers, n_envs)
    processes = [fleet.processes_for(worker) for worker in range(n_workers)]
    assert [len(of_worker) for of_worker in processes] == [n_each] * n_workers
    different = list(dict.fromkeys(process for of_worker in processes for process in of_worker))
    assert len(different) == fleet.n_processes
    assert [process._n_shares for process in different] == (shares or [1] * len(different))
    in_order = [process for process in different for _ in range(process._n_shares)]
    assert [process for of_worker in processes for process in of_worker] == in_order


def test_just_enough_open_files_are_enough(monkeypatch):
    """Analytic: three for each of eight processes, and 64; the limit is raised to what is allowed."""
    limits = [64, 87]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.__setitem__(slice(2), new))
    with pytest.raises(EnvError, match="8 environment processes need 88 open files"):
        Fleet(n_workers=8)
    limits[1] = 88
    Fleet(n_workers=8)
    assert limits == [88, 88]
