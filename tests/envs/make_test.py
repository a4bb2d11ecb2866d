"""Tests of a3c/envs/make.py and a3c/envs/pool.py: one environment, and a worker's environments in processes."""

import contextlib
import csv
import itertools
import json
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest

from a3c.envs.make import EnvSettings, UnsupportedEnv, describe_env, make_env
from a3c.envs.pool import EnvProcesses
from a3c.envs.score import Monitor
from a3c.machine import seeding
from tests.tools import toys

TOY = "tests.tools.toys:toys/"
ATARI = ["PongNoFrameskip-v4", "BreakoutNoFrameskip-v4", "ALE/Pong-v5"]


def n_noops_of(env, toy):
    """The number of no-ops of the next game's random start, as the toy sees it."""
    env.reset()
    return len(toy.actions) - 1 - 12  # less Max's and the stack's


def noop_sequence(worker, env, seed=0, first_game=0, n_games=6, max_n_noops=30):
    settings = EnvSettings(TOY + "Numbers-v0", seed, max_n_noops=max_n_noops)
    made = make_env(settings, worker, env, first_game)
    return tuple(n_noops_of(made, made.unwrapped) for _ in range(n_games))


@contextlib.contextmanager
def processes(name, n_envs=1, worker=0, n_slots=2, **kwargs):
    """A worker's processes, reset, and always closed."""
    arguments = {
        key: kwargs.pop(key) for key in ("timeout_seconds", "first_games") if key in kwargs
    }
    settings = EnvSettings(name, seed=0, **kwargs)
    envs = EnvProcesses(settings, worker, n_envs, describe_env(settings), n_slots, **arguments)
    try:
        yield envs
    finally:
        envs.close()


# What can be made


@pytest.mark.parametrize("name", ["PongNoFrameskip-v4", "ALE/Pong-v5", TOY + "Side-v0"])
@pytest.mark.parametrize("preprocessing", ["generic", "pong"])
def test_image_environments(name, preprocessing):
    """Analytic: shape, type and space of what the agent sees and does."""
    settings = EnvSettings(name, 0, preprocessing=preprocessing)
    if "toys" in name and preprocessing == "pong":
        with pytest.raises(UnsupportedEnv, match="is for frames of Pong"):
            describe_env(settings)
        return
    description = describe_env(settings)
    assert description.kind == "image"
    assert description.observation_shape == (84, 84, 4)
    assert description.observation_dtype == "uint8"
    assert description.n_actions == len(description.action_meanings) > 2
    assert description.action_meanings[0] == "NOOP"
    assert description.sticky_actions == (0.25 if name == "ALE/Pong-v5" else 0)
    env = make_env(settings)
    observation, _ = env.reset()
    for action in range(description.n_actions):
        assert env.observation_space.contains(observation)
        observation, reward, terminated, truncated, _ = env.step(action)
        assert reward in (-1.0, 0.0, 1.0)
        assert not terminated
        assert not truncated


def test_cartpole():
    """Analytic: vectors pass through; every step counts, the time limit of the id is kept."""
    settings = EnvSettings("CartPole-v1", 0)
    assert describe_env(settings) == ("vector", (4,), "float32", 2, (), 0.0)
    env = make_env(settings)
    observation, _ = env.reset()
    assert env.observation_space.contains(observation)
    limits = [layer for layer in layers(env) if isinstance(layer, gymnasium.wrappers.TimeLimit)]
    assert [limit._max_episode_steps for limit in limits] == [500]


def test_vectors_are_neither_clipped_nor_skipped_nor_stacked():
    """Analytic: the toy's own observations and rewards, as float32."""
    env = make_env(EnvSettings(TOY + "Vector-v0", 0))
    for game in range(2):
        observation, _ = env.reset()
        np.testing.assert_array_equal(observation, [0, game])
        for step in range(1, 6):
            observation, reward, terminated, truncated, _ = env.step(1)
            assert observation.dtype == np.float32
            np.testing.assert_array_equal(observation, [step, game])
            assert (reward, terminated, truncated) == (10, step == 5, False)


def test_the_emulator_skips_no_frames_of_its_own():
    """Analytic: 1 frame a step below all layers, 4 a decision above them, for both kinds of id."""
    for name in ATARI:
        env = make_env(EnvSettings(name, 0))
        env.reset()
        emulator = inner(env).ale
        before = emulator.getEpisodeFrameNumber()
        env.step(1)
        assert emulator.getEpisodeFrameNumber() - before == 4


def inner(env) -> Any:
    """The environment under all layers, whatever it is."""
    return env.unwrapped


def layers(env):
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env


def test_order_of_the_layers():
    """Golden: DESIGN's order, outermost first, without Gymnasium's checking layers."""
    names = [type(layer).__name__ for layer in layers(make_env(EnvSettings(ATARI[0], 0)))]
    assert names == [
        "ClipRewards",
        "EndEpisodeOnLifeLoss",
        "FrameStack",
        "FrameSkip",
        "ExtractLuminanceAndScale",
        "Max",
        "RandomStart",
        "ColourNumbers",
        "SeedGames",
        "Monitor",
    ]
    settings = EnvSettings(
        *(ATARI[0], 0, "pong"), clip_rewards=False, end_on_life_loss=False, number_frames=True
    )
    names = [type(layer).__name__ for layer in layers(make_env(settings))]
    assert names == [
        "FrameStack",
        "FrameSkip",
        "ExtractPongFeatures",
        "RandomStart",
        "NumberFrames",
        "Rgb",
        "SeedGames",
        "Monitor",
    ]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("PongNoFrameskp-v4", r"did you mean PongNoFrameskip-v4 or \S+ or \S+\?$"),
        ("tests.tools.toys:Pong-v9", r"did you mean Pong-v\d or"),
        ("cartpole-v1", "did you mean CartPole-v1 or"),
        ("CartPole-v77", "did you mean CartPole-v1 or"),
        ("qqqqqqqq", "unknown environment qqqqqqqq"),
        ("", "unknown environment"),
        ("no_such_module:Some-v0", "No module named 'no_such_module'"),
        (TOY + "Nonesuch-v0", "unknown environment"),
        ("Pong-v4", "skips frames itself"),
        ("Pendulum-v1", "actions Box.*supported are"),
        ("FrozenLake-v1", "observations Discrete.*supported are"),
        (TOY + "Continuous-v0", "actions Box.*supported are"),
        (TOY + "FromOne-v0", "start=1.*supported are"),
        (TOY + "Dictionary-v0", "observations Dict.*supported are"),
        (TOY + "Bytes-v0", "observations Box.*supported are"),
        (TOY + "Camera-v0", "observations Box.*supported are"),
        (TOY + "RamPong-v0", "shows no frames.*supported are"),
    ],
)
def test_what_is_not_supported_is_said_in_one_line(name, reason):
    """Analytic: the reason, and the nearest names or what is supported."""
    with pytest.raises(UnsupportedEnv, match=reason) as error:
        describe_env(EnvSettings(name, 0))
    assert "\n" not in str(error.value)


def test_pong_features_are_for_frames_of_pong():
    """Analytic: not for vectors."""
    with pytest.raises(UnsupportedEnv, match="is for frames of Pong, not for CartPole-v1"):
        describe_env(EnvSettings("CartPole-v1", 0, preprocessing="pong"))


def test_making_an_environment_says_nothing():
    """Analytic: neither the emulator's banner nor Gymnasium's remarks on old ids, in a new process."""
    code = "from a3c.envs.make import *; make_env(EnvSettings('PongNoFrameskip-v0', 0)).reset()"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")


def test_the_registry_keeps_its_settings():
    """Analytic: leaving out Gymnasium's checks is our own affair."""
    make_env(EnvSettings("CartPole-v1", 0))
    assert gymnasium.spec("CartPole-v1").order_enforce


# Randomness


def test_no_two_environments_share_their_random_starts():
    """Analytic: 16 workers of 4, and every game of one environment has its own number."""
    sequences = [noop_sequence(worker, env) for worker in range(16) for env in range(4)]
    assert len(set(sequences)) == 64
    everything = set(itertools.chain(*sequences))
    assert everything == set(range(31))
    assert all(len(set(sequence)) > 1 for sequence in sequences)


def test_random_starts_repeat_with_the_seed_and_differ_without():
    """Analytic: the same key, the same sequence."""
    assert noop_sequence(1, 2) == noop_sequence(1, 2)
    assert noop_sequence(1, 2) != noop_sequence(1, 2, seed=1)


def test_a_later_first_game_picks_up_the_sequence():
    """Analytic: starting at game 2 leaves out two games and no more."""
    assert noop_sequence(0, 0, first_game=2, n_games=4) == noop_sequence(0, 0)[2:]


def test_random_starts_keep_to_their_limit():
    """Analytic: 0 means none; 1 means none or one."""
    assert set(noop_sequence(0, 0, max_n_noops=0, n_games=20)) == {0}
    assert set(noop_sequence(0, 0, max_n_noops=1, n_games=20)) == {0, 1}


def test_other_environments_are_seeded_with_each_game():
    """Parity: the seeds are those of the emulator's streams, game by game."""
    env = make_env(EnvSettings(TOY + "Vector-v0", 3), worker=1, env=2, first_game=5)
    for _ in range(3):
        env.reset()
    expected = [
        seeding.seed_sequence(3, seeding.Purpose.EMULATOR, 1, 2, game).generate_state(1)[0]
        for game in (5, 6, 7)
    ]
    assert inner(env).seeds == expected


def test_atari_is_seeded_once(monkeypatch):
    """Analytic: a seeded reset reloads the ROM, so only the first is."""
    env = make_env(EnvSettings("PongNoFrameskip-v4", 0))
    seeds = []
    emulator = env.unwrapped
    reset = emulator.reset

    def recording_reset(*, seed, options):
        seeds.append(seed)
        return reset(seed=seed, options=options)

    monkeypatch.setattr(emulator, "reset", recording_reset)
    for _ in range(3):
        env.reset()
    assert seeds[0] is not None
    assert seeds[1:] == [None, None]


# A worker's environments


def test_observations_and_results_of_several_environments():
    """Parity: processes against the same environments made here, over ends and resets."""
    name = TOY + "NumbersWithLives-v0"
    settings = EnvSettings(name, seed=0)
    here = [make_env(settings, 1, env) for env in range(3)]
    with processes(name, n_envs=3, worker=1, n_slots=4) as envs:
        envs.reset(slot=3)
        for env, local in enumerate(here):
            np.testing.assert_array_equal(envs.observations[3, env], local.reset()[0])
        rng = np.random.default_rng(0)
        games = []
        for step in range(60):
            actions = rng.integers(4, size=3)
            result = envs.step(actions, slot=step % 4)
            assert result.rewards.dtype == np.float32
            for env, local in enumerate(here):
                observation, reward, terminated, truncated, _ = local.step(actions[env])
                if terminated or truncated:
                    observation, _ = local.reset()
                np.testing.assert_array_equal(envs.observations[step % 4, env], observation)
                assert result.rewards[env] == reward
                assert result.terminated[env] == terminated
                assert result.truncated[env] == truncated
            games += result.games
        monitors = [
            layer for local in here for layer in layers(local) if isinstance(layer, Monitor)
        ]
        assert envs.n_frames == sum(monitor.n_frames for monitor in monitors)
        finished = [monitor.take_finished() for monitor in monitors]
    for env, own in enumerate(finished):
        assert len(own) >= 2
        assert [game[:4] for game in games if game.env == env] == [(1, env, *g[:2]) for g in own]


def test_other_slots_are_left_alone():
    """Analytic: a step writes its slot and no other."""
    with processes(TOY + "Vector-v0", n_envs=2, n_slots=3) as envs:
        envs.observations[:] = -1
        envs.reset(slot=1)
        envs.step(np.array([0, 0]), slot=2)
        assert envs.observations[:, :, 0].tolist() == [[-1, -1], [0, 0], [1, 1]]


@pytest.mark.parametrize("name", ["TruncatedVector-v0", "Vector-v0"])
def test_the_final_observation_survives_the_reset(name):
    """Analytic: at a truncation it is the last one seen, and the slot has the next game's first."""
    with processes(TOY + name, n_envs=2) as envs:
        envs.reset()
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


def test_the_final_image_of_a_truncated_game():
    """Analytic: through all layers; frame 64 ends it, within the skip that began at 61 or later."""
    with processes(TOY + "TruncatedNumbers-v0", max_n_noops=0) as envs:
        envs.reset()
        n_steps = 0
        while True:
            result = envs.step(np.array([1]), slot=0)
            n_steps += 1
            if result.truncated[0]:
                break
        assert not result.terminated[0]
        assert n_steps == 13  # 13 frames of start, 51 more
        assert toys.read_numbers(envs.final_observations[0, ..., 3]) == {63, 64}
        assert toys.read_numbers(envs.final_observations[0, ..., 0]) == {52, 53}
        assert toys.read_numbers(envs.observations[0, 0, ..., 0]) == {0, 1}
        assert [game[:4] for game in result.games] == [(0, 0, sum(range(65)), 13)]


def test_the_emulators_own_time_limit_is_a_truncation():
    """Analytic: Pong limited to 150 frames, as the ids' limit of 108,000 is."""
    with processes(TOY + "ShortPong-v0", max_n_noops=0) as envs:
        envs.reset()
        ends = [envs.step(np.array([0]), slot=0)[1:3] for _ in range(40)]
    assert [truncated[0] for _, truncated in ends].count(True) == 1
    assert not any(terminated[0] for terminated, _ in ends)
    assert ends[34][1][0]  # 13 frames of start, then ceil(137 / 4) decisions


def test_monitor_files(tmp_path):
    """Analytic: one file an environment, whole games over lost lives, written while it runs."""
    settings = {"monitor_dir": str(tmp_path), "t_start": 5.0, "max_n_noops": 0}
    name = TOY + "NumbersWithLives-v0"
    with processes(name, n_envs=2, worker=3, **settings) as envs:
        assert list(tmp_path.iterdir()) == []
        envs.reset()
        n_ends = 0
        for _ in range(20):  # 13 frames of start and 77 more end the game of 90 frames
            n_ends += envs.step(np.array([0, 0]), slot=0).terminated.sum()
        assert n_ends == 2 * 3
        names = sorted(path.name for path in tmp_path.iterdir())
        assert names == ["3.0.monitor.csv", "3.1.monitor.csv"]
        header, *rows = (tmp_path / names[1]).read_text().splitlines()
    assert json.loads(header[1:]) == {"t_start": 5.0, "env_id": name}
    rows = list(csv.DictReader(rows))
    assert [(float(row["r"]), int(row["l"])) for row in rows] == [(sum(range(91)), 20)]


def test_first_games():
    """Parity: environments that begin at a later game, against those made here."""
    name = TOY + "Numbers-v0"
    with processes(name, n_envs=2, first_games=[3, 7]) as envs:
        envs.reset()
        for env, first_game in enumerate((3, 7)):
            expected, _ = make_env(EnvSettings(name, 0), 0, env, first_game).reset()
            np.testing.assert_array_equal(envs.observations[0, env], expected)


def test_worker_0_does_not_know_how_many_workers_there_are():
    """Parity: its streams alone, and beside another worker with more environments."""
    name = TOY + "Numbers-v0"
    with (
        processes(name) as alone,
        processes(name, n_envs=2) as wide,
        processes(name, worker=1) as other,
    ):
        for envs in (alone, wide, other):
            envs.reset()
        np.testing.assert_array_equal(alone.observations[0, 0], wide.observations[0, 0])
        assert (alone.observations[0, 0] != other.observations[0, 0]).any()


def test_what_is_supported_is_told():
    """Golden."""
    with pytest.raises(UnsupportedEnv) as error:
        make_env(EnvSettings("Pendulum-v1", 0))
    assert str(error.value).endswith(
        "supported are discrete actions with either Atari frames (*NoFrameskip-v4, ALE/*-v5) or"
        " vector observations (a Box of floats of one dimension)"
    )


def test_an_environment_is_the_first_of_the_first_worker_unless_told(tmp_path):
    """Analytic: by its file, which is in the run's folder and counts from the run's start."""
    settings = EnvSettings("CartPole-v1", 3).in_run(str(tmp_path), 5.5)
    env = make_env(settings)
    env.reset()
    env.close()
    (path,) = tmp_path.iterdir()
    assert path.name == "0.0.monitor.csv"
    assert json.loads(path.read_text().splitlines()[0][1:])["t_start"] == 5.5
    assert settings == EnvSettings("CartPole-v1", 3, monitor_dir=str(tmp_path), t_start=5.5)
