"""Tests of a3c/envs/process.py's Host: a process that serves the environments of several workers."""

import contextlib
import os
import signal

import numpy as np
import pytest

from a3c.envs.make import describe_env
from a3c.envs.pool import Fleet, Pool, RestartLimit, close_all
from a3c.envs.process import EnvError, Host
from a3c.settings.params import Params
from tests.tools.pools import TOY, is_running, lose_patience, opened, wait_for_end


@contextlib.contextmanager
def workers(name, n, *, n_envs=1, n_parts=None, restart_limit=None):
    """So many workers' environments in one process, or one that waits for yet more of them."""
    description = describe_env(Params(TOY + "Vector-v0"))
    fleet = Fleet(restart_limit=restart_limit)
    fleet.hosts = dict.fromkeys(range(n), Host(n_parts or n))
    made = []
    try:
        for worker in range(n):
            params, first_games = Params(TOY + name, seed=1), [0] * n_envs
            made.append(Pool(params, description, worker, n_envs, 2, first_games, fleet))
        yield made
    finally:
        close_all(made)


def course(all_envs, n_steps=30):
    """What so many steps bring each worker."""
    told = [[] for _ in all_envs]
    for envs in all_envs:
        envs.reset(0)
    for n in range(n_steps):
        for envs, of_worker in zip(all_envs, told, strict=True):
            step = envs.step(np.array([n % 2, 1]), n % 2)
            arrays = [step.rewards, step.terminated, step.truncated, envs.observations]
            of_worker.append([array.tolist() for array in arrays])
            of_worker.append([game._replace(ended_at=0) for game in step.games])
            of_worker.append((envs.n_frames, list(envs.next_games)))
    return told


def test_workers_that_share_a_process_get_what_they_would_alone():
    """Parity: three workers of two environments, in one process and in one each."""
    with workers("Vector-v0", 3, n_envs=2) as together:
        (pid,) = {pid for envs in together for pid in envs.pids}
        found = course(together)
        assert is_running(pid)
    assert not is_running(pid)
    expected = []
    for worker in range(3):
        with opened(TOY + "Vector-v0", 2, worker=worker, seed=1) as alone:
            expected += course([alone])
    assert found == expected


def test_a_process_that_is_given_up_before_it_started_is_told_as_dead():
    """Analytic: nobody waits for workers whose process waited for another that never came."""
    with workers("Vector-v0", 1, n_parts=2) as (envs,):
        envs._processes[0].host.end(0)
        with pytest.raises(EnvError, match=r"^worker 0, environment 0 died"):
            envs.reset(0)


def test_each_is_served_as_it_asks():
    """Analytic: the second steps on while the first asks for nothing."""
    with workers("Vector-v0", 2) as (first, second):
        first.reset(0)
        second.reset(0)
        for _ in range(20):
            second.step(np.array([1]), 0)
        assert (first.n_frames, second.n_frames) == (0, 20)
        assert first.step(np.array([1]), 0).rewards == [10]


def test_what_breaks_a_process_breaks_it_for_all_and_counts_once():
    """Analytic: a limit of one is enough for three workers; each has a process of its own then, and the steps
    of before.
    """
    with workers("Vector-v0", 3, restart_limit=RestartLimit(n=1)) as all_envs:
        for envs in all_envs:
            envs.reset(0)
            envs.step(np.array([1]), 1)
        before = {pid for envs in all_envs for pid in envs.pids}
        os.kill(*before, signal.SIGKILL)
        for worker, envs in enumerate(all_envs):
            step = envs.step(np.array([1]), 0)
            (replaced,) = envs.take_replaced()
            assert replaced.why == f"worker {worker}, environment 0 died (exit code -9)"
            assert step.rewards == [0]
            assert (envs.n_frames, envs.next_games) == (1, [2])
            assert envs.step(np.array([1]), 1).rewards == [10]
        after = {pid for envs in all_envs for pid in envs.pids}
        assert len(after) == 3
        assert not before & after
        os.kill(all_envs[1].pids[0], signal.SIGKILL)
        with pytest.raises(EnvError, match=r"^worker 1, environment 0 died"):
            all_envs[1].step(np.array([1]), 0)


def test_an_error_names_whose_it_is_to_all():
    """Analytic: worker 1's joystick breaks at its third step, whoever hears of it."""
    with workers("RaisesInStep-v0", 2) as (first, second):
        for envs in (first, second):
            envs.reset(0)
        for _ in range(2):
            second.step(np.array([0]), 0)
        broke = r"worker 1, environment 0 failed:\n(.*\n)*.*joystick broke$"
        with pytest.raises(EnvError, match="^" + broke):
            second.step(np.array([0]), 0)
        with pytest.raises(EnvError, match="^worker 0, environment 0 shared its process: " + broke):
            first.step(np.array([0]), 0)


def test_what_cannot_be_built_is_told_to_all():
    """Analytic: the first fails, before the second was tried."""
    with workers("RaisesInInit-v0", 2) as all_envs:
        for envs in all_envs:
            with pytest.raises(
                EnvError, match=r"worker 0, environment 0 failed:(.*\n)*.*upside down"
            ):
                envs.wait_until_ready()


def test_one_that_hangs_is_ended_by_who_waits_first():
    """Analytic: the other's environment is replaced as well, though it would have answered."""
    limit = RestartLimit(n=1)
    with workers("HangsInStep-v0", 2, restart_limit=limit) as (first, second):
        for envs in (first, second):
            envs.reset(0)
        for _ in range(2):
            first.step(np.array([0]), 0)
        lose_patience(first)
        first.step(np.array([0]), 0)
        (replaced,) = first.take_replaced()
        assert replaced.why == "worker 0, environment 0 has not answered for 0.5 s"
        second.step(np.array([0]), 0)
        (replaced,) = second.take_replaced()
        assert replaced.why == "worker 1, environment 0 died (exit code -9)"


def test_a_worker_that_leaves_ends_the_process():
    """Analytic: at once; the other learns of it from the end of its connection."""
    with workers("Vector-v0", 2) as (first, second):
        first.reset(0)
        second.reset(0)
        first.hang_up()
        wait_for_end(second.pids)
        with pytest.raises(EnvError, match=r"^worker 1, environment 0 died \(exit code 0\)$"):
            second.step(np.array([0]), 0)


def test_a_process_that_never_started_can_be_closed():
    """Analytic: two of three have come, when the run ends; no end of a connection stays open."""
    with workers("Vector-v0", 2, n_parts=3) as both:
        ends = [envs._processes[0]._socket for envs in both]
        ends += [part.worker for part in both[0]._processes[0].host._parts]
    assert [end.fileno() for end in ends] == [-1] * 4


def test_a_process_that_cannot_be_started_again_counts_each_time(monkeypatch):
    """Analytic: three tries are allowed, and the system's own words come out."""
    limit = RestartLimit(n=3)
    with workers("Vector-v0", 2, restart_limit=limit) as (first, _):
        first.reset(0)
        os.kill(first.pids[0], signal.SIGKILL)
        tries = []

        def refuse(host, part):
            tries.append(part.name)
            part.worker.close()
            if len(tries) > 3:
                pytest.fail("it goes on for ever")
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(Host, "add", refuse)
        with pytest.raises(EnvError, match="cannot be started: Too many open files"):
            first.step(np.array([0]), 0)
        assert len(tries) == 3


@pytest.mark.parametrize(
    ("n_cores", "n_workers", "n_envs", "expected"),
    [
        (2, 16, 1, [8, 8]),
        (2, 5, 1, [3, 2]),
        (2, 3, 1, None),
        (2, 1, 2, None),
        (16, 16, 1, None),
        (1, 200, 1, [50, 50, 50, 50]),
    ],
)
def test_many_workers_share_as_many_processes_as_there_are_cores(
    monkeypatch, n_cores, n_workers, n_envs, expected
):
    """Analytic: contiguous shares; none where workers are few or have several processes each."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(n_cores)))
    hosts = Fleet(n_workers, n_envs).hosts
    if expected is None:
        assert hosts == {}
        return
    assert [*hosts] == [*range(n_workers)]
    of_workers = [*hosts.values()]
    n_of_each = {host: of_workers.count(host) for host in of_workers}
    assert [*n_of_each.values()] == expected
    assert [host._n_parts for host in n_of_each] == expected
    assert of_workers == [host for host, n in n_of_each.items() for _ in range(n)]
