"""Tests of a3c/envs/pool.py: a worker's environments, stepped together; what breaks is replaced."""

import functools
import os
import signal
import types

import numpy as np
import pytest

from a3c.envs import pool as pool_module
from a3c.envs.make import make_env
from a3c.envs.pool import Fleet, RestartLimit
from a3c.envs.process import EnvError, EnvProcess, Host
from a3c.envs.serve import RESET
from a3c.machine.stopping import StopFlag, Stopped
from a3c.settings.params import Params
from tests.tools.pools import (
    DEADLINE_SECONDS,
    TOY,
    DeadlyMemory,
    is_running,
    lose_patience,
    opened,
)


def never():
    return False


# A worker's environments


def test_other_slots_are_left_alone():
    """Analytic: a step writes its slot and no other."""
    with opened(TOY + "Vector-v0", n_envs=2, n_slots=3) as envs:
        envs.observations[:] = -1
        envs.reset(slot=1)
        envs.step(np.array([0, 0]), slot=2)
        assert envs.observations[:, :, 0].tolist() == [[-1, -1], [0, 0], [1, 1]]


@pytest.mark.parametrize("name", ["TruncatedVector-v0", "Vector-v0"])
def test_the_final_observation_survives_the_reset(name):
    """Analytic: at a truncation it is the last one seen, and the slot has the next game's first."""
    with opened(TOY + name, n_envs=2) as envs:
        envs.reset(0)
        length = 3 if name.startswith("Truncated") else 5
        for game in range(3):
            for step in range(1, length + 1):
                result = envs.step(np.array([0, 1]), slot=step % 2)
                assert result.rewards.tolist() == [0, 10]
                ended = step == length
                truncated = ended and length == 3
                assert result.truncated.tolist() == [truncated] * 2
                assert result.terminated.tolist() == [ended and not truncated] * 2
                expected = [0, game + 1] if ended else [step, game]
                assert envs.observations[step % 2].tolist() == [expected] * 2
                if truncated:
                    assert envs.final_observations.tolist() == [[length, game]] * 2
            assert [game.length for game in result.games] == [length] * 2


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


# Environments that are replaced


def test_restarts_are_limited_by_the_minute(monkeypatch):
    """Analytic: ten at once, and another as soon as the first of the last ten is a minute old."""
    now = [1000.0]
    monkeypatch.setattr(pool_module, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    limit = RestartLimit()
    allowed = []
    for seconds in [*range(12), 59, 60, 60.5, 61, 62]:
        now[0] = 1000.0 + seconds
        allowed.append(limit.allows_one_more(Host()))
    assert allowed == [True] * 10 + [False] * 3 + [True, False, True, True]


@pytest.mark.parametrize("how", ["killed", "hangs", "raises"])
def test_a_broken_environment_is_replaced(how):
    """Parity: the one in the middle breaks at its third step; the new one is game 2 of its own stream, and
    the others and the frames are as if nothing had happened.
    """
    name = {"killed": "Vector-v0", "hangs": "HangsInStep-v0", "raises": "RaisesInStep-v0"}[how]
    with opened(TOY + name, 3, worker=1, seed=3, restart_limit=RestartLimit()) as envs:
        envs.reset(0)
        for env in (0, 2) if how != "killed" else ():
            break_no_more(envs, env)
        for slot in (1, 0):
            envs.step(np.array([0, 1, 1]), slot)
        assert envs.take_replaced() == []
        pids = envs.pids
        if how == "killed":
            os.kill(pids[1], signal.SIGKILL)
        if how == "hangs":
            lose_patience(envs, 1)
        broken = envs.step(np.array([0, 1, 1]), 1)
        assert not is_running(pids[1])
        assert [pid == old for pid, old in zip(envs.pids, pids, strict=True)] == [True, False, True]
        ((abandoned, why),) = envs.take_replaced()
        assert list(abandoned) == [1]
        assert {"killed": "exit code -9", "hangs": "0.5 s", "raises": "joystick broke"}[how] in why
        assert "worker 1, environment 1" in why
        # No reward, no end; its first observation is in its row.
        assert broken.rewards.tolist() == [0, 0, 10]
        assert not (broken.terminated | broken.truncated).any()
        np.testing.assert_array_equal(envs.observations[1], [[3, 0], [0, 0], [3, 0]])
        assert envs.next_games == [1, 2, 1]  # no step of the new one's first has been taken
        assert envs.n_frames == 8  # its last two steps, and not the third, which nobody heard of
        games = []
        for slot in (0, 1):
            step = envs.step(np.array([0, 1, 1]), slot)
            assert step.rewards.tolist() == [0, 10, 10]
            games += step.games
        assert envs.take_replaced() == []
        np.testing.assert_array_equal(envs.observations[1], [[0, 1], [2, 0], [0, 1]])
        assert [game[:4] for game in games] == [(1, 0, 0, 5), (1, 2, 50, 5)]
        assert envs.n_frames == 14
        assert envs.next_games == [1, 3, 1]


def test_a_game_that_nobody_heard_of_does_not_count():
    """Analytic: it ended, and then its process failed before it could say so."""
    with opened(TOY + "RaisesInReset-v0", restart_limit=RestartLimit()) as envs:
        envs.reset(0)
        for _ in range(5):
            step = envs.step(np.array([1]), 0)
            assert step.games == []
        ((_, why),) = envs.take_replaced()
        assert "coin" in why
        assert step.rewards == [0]
        assert not step.terminated
        assert envs.next_games == [2]


# Of a step that ends an episode by truncation: final observation, first observation of the next,
# reward, terminated, truncated and frames.
N_WRITES = 6


@pytest.mark.parametrize("n_writes", range(1, N_WRITES + 2))
def test_nothing_is_used_of_what_a_process_wrote_before_it_died(monkeypatch, n_writes):
    """Analytic: it dies after each field of its third step; one more, and it would have lived."""
    monkeypatch.setattr(pool_module, "SharedMemory", DeadlyMemory)
    with opened(TOY + "TruncatedVector-v0", restart_limit=RestartLimit()) as envs:
        envs.reset(0)
        for _ in range(2):
            assert envs.step(np.array([1]), 1).rewards == [10]
        assert isinstance(envs._memory, DeadlyMemory)
        envs._memory.n_writes_to_live.value = n_writes
        step = envs.step(np.array([1]), 1)
        lives = n_writes > N_WRITES
        assert len(envs.take_replaced()) == (not lives)
        assert (step.rewards[0], step.truncated[0], len(step.games)) == (10 * lives, lives, lives)
        assert not step.terminated[0]
        assert envs.observations[1].tolist() == [[0, lives]]
        assert (envs.n_frames, envs.next_games) == ((3, [1]) if lives else (2, [2]))
        envs._memory.n_writes_to_live.value = 0
        assert envs.step(np.array([1]), 0).rewards == [10]
        assert envs.observations[0].tolist() == [[1, lives]]
        assert envs.n_frames == 3 + lives


def test_a_reset_forgets_what_the_step_before_brought():
    """Analytic: the reward and end of a game's last step."""
    with opened(TOY + "Vector-v0") as envs:
        envs.reset(0)
        for _ in range(5):
            step = envs.step(np.array([1]), 0)
        assert (step.rewards[0], step.terminated[0]) == (10, True)
        envs.reset(0)
        assert (envs._rows.rewards[0], envs._rows.terminated[0]) == (0, False)
        assert step.rewards == [10]  # what was handed out stays


@pytest.mark.parametrize("how", ["breaks again", "is stopped"])
def test_what_was_replaced_is_told_even_if_the_step_then_fails(how):
    """Analytic: two restarts are one too few for two environments; or the run stops meanwhile."""
    stop = StopFlag()
    name = TOY + ("RaisesInStep-v0" if how == "breaks again" else "HangsInStep-v0")
    limit = RestartLimit(n=1 if how == "breaks again" else 10)
    with opened(name, 2, restart_limit=limit, is_stopped=stop.is_set) as envs:
        envs.reset(0)
        for _ in range(2):
            envs.step(np.array([0, 0]), 0)
        if how == "is stopped":
            lose_patience(envs)
            replace = envs._replace

            def then_stop(*arguments):
                replace(*arguments)
                stop.set()

            envs._replace = then_stop
        with pytest.raises(EnvError if how == "breaks again" else Stopped):
            envs.step(np.array([0, 0]), 0)
        assert [[*replaced.envs] for replaced in envs.take_replaced()] == [[0]]
        assert envs.take_replaced() == []


def break_no_more(envs, env):
    """Let a sound environment take this one's place, at the start of its first game."""
    envs._processes[env].end()
    make = functools.partial(make_env, Params(TOY + "Vector-v0", seed=3), 1, env, 0)
    envs._processes[env] = EnvProcess(
        [make], envs._memory, env, "sound", DEADLINE_SECONDS, never, Host()
    )
    envs._processes[env].receive()
    envs._processes[env].request(RESET, 0)
    envs._processes[env].receive()


def test_a_new_process_has_streams_that_were_not_used():
    """Parity: games 0 and 1 are done with; of 2, which was under way, and 3, which may have been, no more is
    seen; the random start of the new process is game 4's.
    """
    name = TOY + "ShortNumbers-v0"  # of 90 frames
    with opened(name, restart_limit=RestartLimit()) as envs:
        envs.reset(0)
        n_games = 0
        while n_games < 2:
            n_games += len(envs.step(np.array([0]), 0).games)
        os.kill(envs.pids[0], signal.SIGKILL)
        envs.step(np.array([0]), 1)
        assert len(envs.take_replaced()) == 1
        firsts = [make_env(Params(name), 0, 0, game).reset()[0] for game in range(6)]
        equal = [np.array_equal(envs.observations[1, 0], first) for first in firsts]
        assert equal == [False, False, False, False, True, False]


@pytest.mark.parametrize("when", ["before it is built", "before it is reset"])
def test_a_process_that_dies_before_its_first_step_is_replaced_too(when):
    """Analytic: it is told; the first observation is there."""
    with opened(TOY + "Vector-v0", 2, restart_limit=RestartLimit()) as envs:
        if when == "before it is reset":
            envs.wait_until_ready()
        os.kill(envs.pids[1], signal.SIGKILL)
        envs.observations[:] = -1
        envs.reset(1)
        np.testing.assert_array_equal(envs.observations[1], [[0, 0], [0, 0]])
        assert [[*replaced.envs] for replaced in envs.take_replaced()] == [[1]]
        assert envs.step(np.array([1, 1]), 0).rewards.tolist() == [10, 10]
        assert envs.take_replaced() == []


def test_what_cannot_be_built_is_tried_as_often_as_is_allowed():
    """Analytic: three restarts, each of which fails, and then the environment's own error."""
    with opened(TOY + "RaisesInInit-v0", restart_limit=RestartLimit(n=3)) as envs:
        with pytest.raises(EnvError, match="upside down"):
            envs.wait_until_ready()
        assert [[*numbers] for numbers, _ in envs.take_replaced()] == [[0]] * 3


def test_what_breaks_again_and_again_ends_with_its_own_error():
    """Analytic: RaisesInStep's every game breaks; three restarts are allowed, for both environments together."""
    with opened(TOY + "RaisesInStep-v0", 2, restart_limit=RestartLimit(n=3)) as envs:
        envs.reset(0)

        def step_on():
            while True:
                envs.step(np.array([0, 0]), 0)

        with pytest.raises(EnvError, match=r"worker 0, environment 1 failed:\n(.*\n)*.*joystick"):
            step_on()
        assert [[*replaced.envs] for replaced in envs.take_replaced()] == [[0], [1], [0]]
        pids = envs.pids
    assert not any(map(is_running, pids))


# Several environments in one process


def course(name, n_processes, n_steps):
    """All that so many steps of four environments bring, with their processes."""
    with opened(TOY + name, 4, worker=2, seed=1, n_processes=n_processes) as envs:
        pids = envs.pids
        envs.reset(0)
        seen = [envs.observations.copy()]
        told = []
        for n in range(n_steps):
            step = envs.step(np.array([n % 2, 1, 0, n % 2]), n % 2)
            ends = [step.rewards.tolist(), step.terminated.tolist(), step.truncated.tolist()]
            games = [(g.worker, g.env, g.score, g.length) for g in step.games]
            told.append((ends, games, envs.n_frames, list(envs.next_games)))
            seen += [envs.observations.copy(), envs.final_observations.copy()]
    return pids, np.concatenate([s.ravel() for s in seen]), told


@pytest.mark.parametrize("name", ["Vector-v0", "ShortNumbers-v0"])
def test_it_does_not_matter_how_environments_share_processes(name):
    """Parity: one process for all four, two for two each, three (of 2, 1 and 1), and one for each."""
    alone, seen, told = course(name, None, 40)
    assert len(alone) == 4
    assert sum(len(games) for _, games, *_ in told) > 3
    for n_processes in (1, 2, 3):
        pids, *others = course(name, n_processes, 40)
        assert len(pids) == n_processes
        np.testing.assert_array_equal(others[0], seen)
        assert others[1] == told


def test_a_process_of_two_is_replaced_with_both():
    """Analytic: environments 2 and 3 begin new games, with streams of their own; 0 and 1 play on."""
    limit = RestartLimit()
    with opened(TOY + "Vector-v0", 4, worker=1, restart_limit=limit, n_processes=2) as envs:
        envs.reset(0)
        actions = np.array([0, 1, 0, 1])
        for slot in (1, 0):
            envs.step(actions, slot)
        before = envs.pids
        os.kill(before[1], signal.SIGKILL)
        broken = envs.step(actions, 1)
        assert [pid == old for pid, old in zip(envs.pids, before, strict=True)] == [True, False]
        ((abandoned, why),) = envs.take_replaced()
        assert list(abandoned) == [2, 3]
        assert why == "worker 1, environments 2 to 3 died (exit code -9)"
        assert broken.rewards.tolist() == [0, 10, 0, 0]
        np.testing.assert_array_equal(envs.observations[1], [[3, 0], [3, 0], [0, 0], [0, 0]])
        assert envs.next_games == [1, 1, 2, 2]
        assert envs.n_frames == 3 * 2 + 2 * 2
        step = envs.step(actions, 0)
        assert envs.take_replaced() == []
        assert step.rewards.tolist() == [0, 10, 0, 10]


@pytest.mark.parametrize(
    ("n_cores", "n_workers", "n_envs", "expected"),
    [(2, 16, 1, 1), (2, 3, 8, 1), (2, 1, 8, 2), (16, 3, 8, 6), (16, 1, 8, 8), (16, 16, 4, 1)],
)
def test_there_are_as_many_processes_as_use_every_core(
    monkeypatch, n_cores, n_workers, n_envs, expected
):
    """Analytic: cores divided by workers, rounded up; at least one, at most one an environment."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(n_cores)))
    assert Fleet(n_workers, n_envs).n_processes_each == expected


def test_what_is_started_and_what_it_may_come_to(monkeypatch):
    """Analytic: shared processes as many as cores, and one for each worker once they have broken."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    found = [(Fleet(*n).n_processes, Fleet(*n).most_processes) for n in ((16, 1), (3, 8), (1, 8))]
    assert found == [(2, 16), (3, 3), (2, 2)]
