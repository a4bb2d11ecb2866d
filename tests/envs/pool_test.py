"""Tests of a3c/envs/pool.py: a worker's environments, stepped together; what breaks is replaced."""

import contextlib
import itertools
import os
import re
import signal
from types import SimpleNamespace

import numpy as np
import pytest

from a3c.envs import fleet
from a3c.envs import pool as pool_module
from a3c.envs.fleet import Fleet
from a3c.envs.make import make_env
from a3c.envs.process import EnvError, EnvProcess
from a3c.machine.stopping import StopFlag, Stopped
from a3c.settings.params import Params
from tests.tools.pools import (
    TOY,
    DeadlyMemory,
    is_running,
    lose_patience,
    make_pool,
    opened,
    pids_of,
    sharing,
    wait_for_end,
)

VECTOR = Params(TOY + "Vector-v0", seed=1)
ONE = np.array([1])


# A worker's environments


def test_other_slots_are_left_alone():
    """Analytic: a step writes its slot and no other."""
    with opened(TOY + "Vector-v0", n_envs=2, n_slots=3) as envs:
        envs.observations[:] = -1
        envs.reset(slot=1)
        envs.step(np.array([0, 0]), slot=2)
        assert envs.observations[:, :, 0].tolist() == [[-1, -1], [0, 0], [1, 1]]


def test_whoever_watches_sees_each_frame_before_its_step_returns():
    """Analytic: every second frame of one game, whose brightness tells its number; what seeing raises
    is raised.
    """
    seen: list[np.ndarray] = []
    fleet = Fleet(see=seen.append, fraction_seen=0.5)
    with contextlib.closing(make_pool(Params(TOY + "Painted-v0"), 0, [0], 2, fleet)) as envs:
        envs.reset(0)
        for n in range(1, 21):
            step = envs.step(np.zeros((1, 2)), 1)
            assert [picture.shape for picture in seen] == [(40, 40, 3)] * ((n + 1) // 2)
        assert step.truncated.all()  # and no picture of another game
        assert [set(picture.flat) for picture in seen] == [{10 * n} for n in range(1, 21, 2)]

    def refuse(picture: np.ndarray) -> None:
        raise InterruptedError

    fleet = Fleet(see=refuse)
    with contextlib.closing(make_pool(Params(TOY + "ShortNumbers-v0"), 0, [0], 2, fleet)) as envs:
        with pytest.raises(InterruptedError):
            envs.reset(0)
        (pid,) = pids_of(envs)
    assert not is_running(pid)


def test_the_next_game_is_after_those_that_ended_in_the_no_ops_of_their_start():
    """Analytic: the games heard of, and the one under way where a step of it has been taken."""
    with opened(TOY + "DiesEarly-v0", n_envs=2) as envs:
        envs.reset(0)
        n_games, most = np.zeros(2, int), 0
        for _ in range(60):
            games = envs.step(np.array([1, 1]), 0).games
            n_of_each = np.array([[game.env for game in games].count(env) for env in range(2)])
            n_games += n_of_each
            most = max(most, n_of_each.max())
            has_just_begun = [any(g.env == env and g.length for g in games) for env in range(2)]
            assert envs.next_games == (n_games + ~np.array(has_just_begun)).tolist()
        assert most > 1


def test_a_reset_forgets_what_the_step_before_brought():
    """Analytic: the reward and end of a game's last step."""
    with opened(TOY + "Vector-v0") as envs:
        envs.reset(0)
        for _ in range(5):
            step = envs.step(ONE, 0)
        assert (step.rewards[0], step.terminated[0]) == (10, True)
        envs.reset(0)
        assert (envs._rows.rewards[0], envs._rows.terminated[0]) == (0, False)
        assert step.rewards == [10]  # what was handed out stays


# Environments that are replaced


def test_a_process_that_is_killed_is_replaced_with_all_its_environments():
    """Analytic: environments 2 and 3 go on with game 2 of their own; 0 and 1, and the frames, are as if
    nothing had happened.
    """
    with opened(TOY + "Vector-v0", 4, worker=1, restarts=1, n_processes=2) as envs:
        envs.reset(0)
        actions = np.array([0, 1, 0, 1])
        for slot in (1, 0):
            envs.step(actions, slot)
        assert envs.take_replaced() == []
        before = pids_of(envs)
        os.kill(before[1], signal.SIGKILL)
        broken = envs.step(actions, 1)
        assert [pid == old for pid, old in zip(pids_of(envs), before, strict=True)] == [True, False]
        ((abandoned, why),) = envs.take_replaced()
        assert list(abandoned) == [2, 3]
        assert why == "worker 1, environments 2 to 3 died (exit code -9)"
        # No reward, no end; their first observations are in their rows.
        assert broken.rewards.tolist() == [0, 10, 0, 0]
        assert not (broken.terminated | broken.truncated).any()
        np.testing.assert_array_equal(envs.observations[1], [[3, 0], [3, 0], [0, 0], [0, 0]])
        assert envs.next_games == [1, 1, 2, 2]  # no step of the new ones has been taken
        assert envs.n_frames == 3 * 2 + 2 * 2  # without the third step, which nobody heard of
        games = []
        for slot in (0, 1):
            step = envs.step(actions, slot)
            assert step.rewards.tolist() == [0, 10, 0, 10]
            games += step.games
        assert envs.take_replaced() == []
        np.testing.assert_array_equal(envs.observations[1], [[0, 1], [0, 1], [2, 0], [2, 0]])
        assert [game[:4] for game in games] == [(1, 0, 0, 5), (1, 1, 50, 5)]
        assert envs.n_frames == 5 * 2 + 4 * 2
        assert envs.next_games == [1, 1, 3, 3]


def test_continuous_actions_go_to_their_environments_also_after_one_was_replaced():
    """Analytic: a row of float32 for each, which only the environment clips; the toy overwrites its
    own copy. The process of environment 1 is killed before the second step.
    """
    with opened(TOY + "Pushes-v0", 2, restarts=1) as envs:
        assert (envs._rows.actions.shape, envs._rows.actions.dtype) == ((2, 2), np.float32)
        envs.reset(0)
        actions = np.array([[-0.5, 7], [-3, 1.25]], np.float32)
        assert envs.step(actions, 1).rewards.tolist() == [106.5, 100.25]
        os.kill(pids_of(envs)[1], signal.SIGKILL)
        broken = envs.step(actions, 0)
        assert [[*replaced.envs] for replaced in envs.take_replaced()] == [[1]]
        assert broken.rewards.tolist() == [106.5, 0]
        assert envs.step(actions, 1).rewards.tolist() == [106.5, 100.25]
        np.testing.assert_array_equal(envs._rows.actions, actions)
        assert actions.tolist() == [[-0.5, 7], [-3, 1.25]]


@pytest.mark.parametrize(
    ("name", "words"),
    [("HangsInStep-v0", "has not answered for 0.5 s"), ("RaisesInStep-v0", "joystick broke")],
)
def test_one_that_hangs_or_raises_is_replaced(name, words):
    """Analytic: at its third step; its process is gone, the others' games are as before."""
    with opened(TOY + name, restarts=1) as envs:
        envs.reset(0)
        for _ in range(2):
            envs.step(ONE, 0)
        (pid,) = pids_of(envs)
        if name == "HangsInStep-v0":
            lose_patience(envs)
        broken = envs.step(ONE, 1)
        assert not is_running(pid)
        ((_, why),) = envs.take_replaced()
        assert why.startswith("worker 0, environment 0 ")
        assert words in why
        assert (broken.rewards, broken.terminated, broken.truncated) == ([0], [False], [False])
        assert envs.observations[1].tolist() == [[0, 0]]
        assert (envs.next_games, envs.n_frames) == ([2], 2)
        assert envs.step(ONE, 0).rewards == [10]


@pytest.mark.parametrize(
    ("what", "value", "words"),
    [
        ("reward", "NaN", "reward of environment 1 is nan at step 3"),
        ("reward", "1e39", "reward of environment 1 is inf at step 3"),
        ("observation", "-Infinity", r"observation\[1\] of environment 1 is -inf at step 3"),
        ("last", "NaN", r"observation\[1\] of environment 1 is nan at step 3"),
        ("first", "NaN", r"observation\[1\] of environment 1 is nan at step 0"),
    ],
)
def test_what_is_not_finite_is_said_by_name_and_replaced(what, value, words):
    """Analytic: in one line, of the environment that it comes from; also what is too large for float32, what
    comes last before a time limit, and what comes first in the game after it. A negative control is a large value.
    """
    kwargs = (f"what={what}", f"value={value}")
    with opened(TOY + "Spoils-v0", 2, n_processes=1, restarts=1, env_kwargs=kwargs) as envs:
        envs.reset(0)
        for _ in range(2):
            envs.step(np.array([0, 1]), 1)
        assert envs.take_replaced() == []
        envs.step(np.array([0, 1]), 1)
        ((_, why),) = envs.take_replaced()
        assert re.fullmatch(rf"worker 0, environments 0 to 1 failed: {words} of its game", why)
        assert np.isfinite(envs.observations).all()
    with opened(TOY + "Spoils-v0", 2, env_kwargs=("what=reward", "value=1e38")) as envs:
        envs.reset(0)
        steps = [envs.step(np.array([0, 1]), 1) for _ in range(3)]
        assert steps[-1].rewards.tolist() == [0, np.float32(1e38)]


@pytest.mark.parametrize("where", ["reset", "step"])
def test_an_observation_of_another_shape_is_not_repeated_to_fit(where):
    """Analytic: NumPy would take one number for all of them."""
    words = r"an observation has the shape \(1,\), its space \(2,\)"
    kwargs = (f"where={where}",)
    with opened(TOY + "OneForAll-v0", 2, env_kwargs=kwargs) as envs:
        if where == "step":
            envs.reset(0)
        with pytest.raises(EnvError, match=words):
            envs.reset(0) if where == "reset" else envs.step(np.zeros(2, int), 1)


def test_what_is_not_finite_is_found_without_a_0_beside_it():
    """Analytic: of one environment, which pays NaN."""
    with opened(TOY + "Spoils-v0", restarts=1) as envs:
        envs.reset(0)
        for _ in range(3):
            envs.step(ONE, 1)
        ((_, why),) = envs.take_replaced()
        assert "reward of environment 0 is nan at step 3" in why


def test_a_game_that_nobody_heard_of_does_not_count():
    """Analytic: it ended, and then its process failed before it could say so."""
    with opened(TOY + "RaisesInReset-v0", restarts=1) as envs:
        envs.reset(0)
        for _ in range(5):
            step = envs.step(ONE, 0)
            assert step.games == []
        ((_, why),) = envs.take_replaced()
        assert "coin" in why
        assert step.rewards == [0]
        assert not step.terminated
        assert envs.next_games == [2]


# Of a step that ends an episode by truncation: final observation, observation, reward, terminated,
# truncated, first observation of the next episode, and frames.
N_WRITES = 7


@pytest.mark.parametrize("n_writes", range(1, N_WRITES + 2))
def test_nothing_is_used_of_what_a_process_wrote_before_it_died(monkeypatch, n_writes):
    """Analytic: it dies after each field of its third step; one more, and it would have lived."""
    monkeypatch.setattr(pool_module, "SharedMemory", DeadlyMemory)
    with opened(TOY + "TruncatedVector-v0", restarts=1) as envs:
        envs.reset(0)
        for _ in range(2):
            assert envs.step(ONE, 1).rewards == [10]
        assert isinstance(envs._memory, DeadlyMemory)
        envs._memory.n_writes_to_live.value = n_writes
        step = envs.step(ONE, 1)
        lives = n_writes > N_WRITES
        assert len(envs.take_replaced()) == (not lives)
        assert (step.rewards[0], step.truncated[0], len(step.games)) == (10 * lives, lives, lives)
        assert not step.terminated[0]
        assert envs.observations[1].tolist() == [[0, lives]]
        assert (envs.n_frames, envs.next_games) == ((3, [1]) if lives else (2, [2]))
        if lives:
            assert envs.final_observations.tolist() == [[3, 0]]
        envs._memory.n_writes_to_live.value = 0
        assert envs.step(ONE, 0).rewards == [10]
        assert envs.observations[0].tolist() == [[1, lives]]
        assert envs.n_frames == 3 + lives


def test_what_was_replaced_is_told_even_if_the_run_is_stopped_in_that_step():
    """Analytic: both environments hang, and the stop comes after the first has been replaced."""
    stop = StopFlag()
    with opened(TOY + "HangsInStep-v0", 2, restarts=1, is_stopped=stop.is_set) as envs:
        envs.reset(0)
        for _ in range(2):
            envs.step(np.array([0, 0]), 0)
        lose_patience(envs)
        replace = envs._replace

        def then_stop(*arguments):
            replace(*arguments)
            stop.set()

        envs._replace = then_stop
        with pytest.raises(Stopped):
            envs.step(np.array([0, 0]), 0)
        assert [[*replaced.envs] for replaced in envs.take_replaced()] == [[0]]
        assert envs.take_replaced() == []


def test_a_new_process_has_streams_that_were_not_used():
    """Parity: games 0 and 1 have ended and 2 was under way, so it is not seen again, and the random start of the
    new process is game 3's.
    """
    name = TOY + "ShortNumbers-v0"  # of 90 frames
    with opened(name, seed=1, restarts=1) as envs:
        envs.reset(0)
        n_games = 0
        while n_games < 2:
            n_games += len(envs.step(np.array([0]), 0).games)
        os.kill(pids_of(envs)[0], signal.SIGKILL)
        envs.step(np.array([0]), 1)
        assert len(envs.take_replaced()) == 1
        firsts = [make_env(Params(name, seed=1), 0, 0, game).reset()[0] for game in range(6)]
        equal = [np.array_equal(envs.observations[1, 0], first) for first in firsts]
        assert equal == [False, False, False, True, False, False]


@pytest.mark.parametrize("when", ["before it is built", "before it is reset"])
def test_a_process_that_dies_before_its_first_step_is_replaced_too(when):
    """Analytic: it is told; the first observation is there."""
    with opened(TOY + "Vector-v0", 2, restarts=1) as envs:
        if when == "before it is reset":
            envs.wait_until_ready()
        os.kill(pids_of(envs)[1], signal.SIGKILL)
        envs.observations[:] = -1
        envs.reset(1)
        np.testing.assert_array_equal(envs.observations[1], [[0, 0], [0, 0]])
        assert [[*replaced.envs] for replaced in envs.take_replaced()] == [[1]]
        assert envs.step(np.array([1, 1]), 0).rewards.tolist() == [10, 10]
        assert envs.take_replaced() == []


@pytest.mark.parametrize("seconds", [0, 100])
def test_what_cannot_be_built_is_tried_as_often_as_is_allowed(monkeypatch, seconds):
    """Analytic: three restarts, each of which fails, and then the environment's own error; also where each
    takes so long that they are few a minute.
    """
    clock = itertools.count(0, seconds)
    monkeypatch.setattr(fleet, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with opened(TOY + "RaisesInInit-v0", restarts=3) as envs:
        with pytest.raises(EnvError, match="upside down"):
            envs.wait_until_ready()
        assert [[*numbers] for numbers, _ in envs.take_replaced()] == [[0]] * 3


def test_a_process_that_cannot_be_started_again_counts_each_time(monkeypatch):
    """Analytic: three tries are allowed, and the system's own words come out."""
    with opened(TOY + "Vector-v0", restarts=3) as envs:
        envs.reset(0)
        os.kill(pids_of(envs)[0], signal.SIGKILL)
        tries = []

        def refuse(process, worker, share):
            tries.append(share.name)
            worker.close()
            assert len(tries) <= 3
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(EnvProcess, "add", refuse)
        with pytest.raises(EnvError, match="cannot be started: Too many open files"):
            envs.step(np.array([0]), 0)
        assert tries == ["worker 0, environment 0"] * 3


def test_what_breaks_again_and_again_ends_with_its_own_error():
    """Analytic: RaisesInStep's every game breaks; three restarts are allowed, for both environments together."""
    with opened(TOY + "RaisesInStep-v0", 2, restarts=3) as envs:
        envs.reset(0)

        def step_on():
            while True:
                envs.step(np.array([0, 0]), 0)

        with pytest.raises(EnvError, match=r"worker 0, environment 1 failed:\n(.*\n)*.*joystick"):
            step_on()
        assert [[*replaced.envs] for replaced in envs.take_replaced()] == [[0], [1], [0]]
        pids = pids_of(envs)
    assert not any(map(is_running, pids))


# Several environments in one process, several workers in one process


def course(pools, n_envs, n_steps=40):
    """What so many steps bring each worker."""
    told = [[] for _ in pools]
    for envs in pools:
        envs.reset(0)
    for n in range(n_steps):
        for envs, of_worker in zip(pools, told, strict=True):
            step = envs.step(np.array([n % 2, 1, 0, n % 2])[:n_envs], n % 2)
            of_worker += [step.rewards, step.terminated, step.truncated]
            of_worker += [envs.observations.copy(), envs.final_observations.copy()]
            of_worker.append(step.games)
            of_worker.append([envs.n_frames, *envs.next_games])
    return told


@pytest.mark.parametrize("name", ["Vector-v0", "ShortNumbers-v0"])
def test_it_does_not_matter_how_environments_share_processes(name):
    """Parity: one process for all four, two for two each, three (of 2, 1 and 1), and one for each."""
    courses = []
    for n_processes in (4, 1, 2, 3):
        with opened(TOY + name, 4, worker=2, seed=1, n_processes=n_processes) as envs:
            assert len(set(pids_of(envs))) == n_processes
            courses.append(course([envs], 4))
    assert sum(len(games) for games in courses[0][0][5::7]) > 3
    for other in courses[1:]:
        np.testing.assert_equal(other, courses[0])


def test_workers_that_share_a_process_get_what_they_would_alone():
    """Parity: three workers of two environments, in one process and in one each."""
    with sharing(VECTOR, range(3), [0, 0]) as together:
        (pid,) = {pid for envs in together for pid in pids_of(envs)}
        found = course(together, 2)
        assert is_running(pid)
    assert not is_running(pid)
    expected = []
    for worker in range(3):
        with opened(VECTOR.env_id, 2, worker=worker, seed=1) as alone:
            expected += course([alone], 2)
    np.testing.assert_equal(found, expected)


def test_each_is_served_as_it_asks():
    """Analytic: the second steps on while the first asks for nothing."""
    with sharing(VECTOR, range(2)) as (first, second):
        first.reset(0)
        second.reset(0)
        for _ in range(20):
            second.step(ONE, 0)
        assert (first.n_frames, second.n_frames) == (0, 20)
        assert first.step(ONE, 0).rewards == [10]


def test_what_breaks_a_process_breaks_it_for_all_and_counts_once():
    """Analytic: a limit of one is enough for three workers; each has a process of its own then, and the steps
    of before.
    """
    with sharing(VECTOR, range(3), restarts=1) as pools:
        for envs in pools:
            envs.reset(0)
            envs.step(ONE, 1)
        before = {pid for envs in pools for pid in pids_of(envs)}
        os.kill(*before, signal.SIGKILL)
        for worker, envs in enumerate(pools):
            step = envs.step(ONE, 0)
            (replaced,) = envs.take_replaced()
            assert replaced.why == f"worker {worker}, environment 0 died (exit code -9)"
            assert step.rewards == [0]
            assert (envs.n_frames, envs.next_games) == (1, [2])
            assert envs.step(ONE, 1).rewards == [10]
        after = {pid for envs in pools for pid in pids_of(envs)}
        assert len(after) == 3
        assert not before & after
        os.kill(pids_of(pools[1])[0], signal.SIGKILL)
        with pytest.raises(EnvError, match=r"^worker 1, environment 0 died"):
            pools[1].step(ONE, 0)


def test_an_error_names_whose_it_is_to_all():
    """Analytic: worker 1's joystick breaks at its third step, whoever hears of it."""
    with sharing(Params(TOY + "RaisesInStep-v0"), range(2)) as (first, second):
        for envs in (first, second):
            envs.reset(0)
        for _ in range(2):
            second.step(ONE, 0)
        broke = r"worker 1, environment 0 failed:\n(.*\n)*.*joystick broke$"
        with pytest.raises(EnvError, match="^" + broke):
            second.step(ONE, 0)
        with pytest.raises(EnvError, match="^worker 0, environment 0 shared a process: " + broke):
            first.step(ONE, 0)


def test_what_cannot_be_built_is_told_to_all():
    """Analytic: the first fails, before the second was tried."""
    with sharing(Params(TOY + "RaisesInInit-v0"), range(2)) as pools:
        for envs in pools:
            with pytest.raises(EnvError, match=r"worker 0, environment 0 failed:(.*\n)*.*upside"):
                envs.wait_until_ready()


def test_a_worker_that_leaves_ends_the_process():
    """Analytic: at once; the other learns of it from the end of its connection."""
    with sharing(VECTOR, range(2)) as (first, second):
        first.reset(0)
        second.reset(0)
        first._connections[0].hang_up()
        wait_for_end(pids_of(second))
        with pytest.raises(EnvError, match=r"^worker 1, environment 0 died \(exit code 0\)$"):
            second.step(ONE, 0)


def test_nothing_is_left_of_a_pool_that_cannot_be_made(monkeypatch):
    """Analytic: the second of two processes cannot be started, so the first one ends."""
    add, made = EnvProcess.add, []

    def add_one(process, worker, share):
        made.append(process)
        if len(made) == 2:
            worker.close()
            raise OSError(24, "Too many open files")
        add(process, worker, share)

    monkeypatch.setattr(EnvProcess, "add", add_one)
    with pytest.raises(EnvError, match="Too many open files"), opened(TOY + "Vector-v0", 2):
        pass
    assert made[0]._process.exitcode == 0


def test_a_process_that_never_started_can_be_closed():
    """Analytic: two of three workers have come when the run ends; no end of a connection stays open."""
    with sharing(VECTOR, range(2), n_shares=3) as both:
        ends = [envs._connections[0]._socket for envs in both]
        ends += [worker for worker, _ in both[0]._connections[0].process._shares]
    assert [end.fileno() for end in ends] == [-1] * 4
