"""Tests of a3c/envs/make.py: one environment with all of its layers."""

import itertools
import os
import re
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest

from a3c.envs.make import UnsupportedEnv, describe_env, make_env
from a3c.envs.process import EnvError
from a3c.machine import seeding
from a3c.settings.params import Params
from tests.tools import processes
from tests.tools.pools import TOY, opened

ATARI = ["PongNoFrameskip-v4", "BreakoutNoFrameskip-v4", "ALE/Pong-v5"]


def noop_sequence(worker, env, seed=0, first_game=0, n_games=6, max_n_noops=30):
    """The number of no-ops of each game's random start, as the toy sees it."""
    params = Params(TOY + "Numbers-v0", seed=seed, max_n_noops=max_n_noops)
    made = make_env(params, worker, env, first_game)
    # Less those of Max and of the stack.
    return tuple(made.reset() and len(inner(made).actions) - 1 - 12 for _ in range(n_games))


# What can be made


@pytest.mark.parametrize(
    "name", ["PongNoFrameskip-v4", "ALE/Pong-v5", TOY + "Side-v0", "CartPole-v1"]
)
@pytest.mark.parametrize("preprocessing", ["generic", "pong"])
def test_environments_that_are_supported(name, preprocessing):
    """Analytic: shape, type and space of what the agent sees and does."""
    params = Params(name, preprocessing=preprocessing)
    if "Pong" not in name and preprocessing == "pong":
        with pytest.raises(UnsupportedEnv, match=f"is for frames of Pong, not {name}"):
            describe_env(params)
        return
    if name == "CartPole-v1":
        assert describe_env(params) == ("vector", (4,), "float32", 2, (), 0.0, False)
        return
    description = describe_env(params)
    assert description.kind == "image"
    assert description.observation_shape == (84, 84, 4)
    assert description.observation_dtype == "uint8"
    assert description.n_actions == len(description.action_meanings) > 2
    assert description.action_meanings[0] == "NOOP"
    assert description.sticky_actions == (0.25 if name == "ALE/Pong-v5" else 0)
    env = make_env(params)
    observation, _ = env.reset()
    for action in range(description.n_actions):
        assert env.observation_space.contains(observation)
        observation, reward, terminated, truncated, _ = env.step(action)
        assert reward in (-1.0, 0.0, 1.0)
        assert not terminated
        assert not truncated


def test_vectors_have_no_layers_of_frames():
    """Golden: in float32 already; the time limit of the id is kept, and the registry's own settings."""
    names = [type(layer).__name__ for layer in layers(make_env(Params("CartPole-v1")))]
    assert names == ["SeedGames", "Score", "TimeLimit"]
    assert gymnasium.spec("CartPole-v1").order_enforce


@pytest.mark.parametrize(
    ("name", "shape", "n_dimensions"),
    [("Pendulum-v1", (3,), 1), (TOY + "Pushes-v0", (2,), 2), (TOY + "Pushes32-v0", (2,), 2)],
)
def test_continuous_actions_are_described_by_their_dimensions(name, shape, n_dimensions):
    """Analytic: whatever their bounds and the types of the spaces."""
    expected = ("vector", shape, "float32", n_dimensions, (), 0.0, True)
    assert describe_env(Params(name)) == expected


@pytest.mark.parametrize(
    ("name", "drawn", "carried_out"),
    [
        ("Pushes-v0", [-3.0, -1e9], [-1.0, -1e9]),
        ("Pushes-v0", [0.5, 7.0], [0.1, 7.0]),  # in float32, 0.1 is more than the bound
        ("Pushes-v0", [0.0625, 0.0], [0.0625, 0.0]),
        ("Pushes32-v0", [1.5, -1.5], [1.0, -1.0]),
    ],
)
def test_continuous_actions_are_clipped_on_their_way(name, drawn, carried_out):
    """Analytic: to each bound, some of which are infinite; in the type of the space, which the toy checks.
    The toy overwrites what it gets, and that harms nobody.
    """
    env, action = make_env(Params(TOY + name)), np.array(drawn, np.float32)
    seen, _ = env.reset()
    assert seen.dtype == np.float32
    for _ in range(2):
        seen, reward, *_ = env.step(action)
        assert seen.dtype == np.float32
        assert reward == 100 + sum(carried_out)
        assert action.tolist() == drawn


@pytest.mark.parametrize(
    ("name", "limit", "length"),
    [
        ("Vector-v0", None, None),
        ("Vector-v0", 3, 3),
        ("TruncatedVector-v0", None, 3),
        ("TruncatedVector-v0", 4, 4),
        ("TruncatedVector-v0", 2, 2),
    ],
)
def test_a_time_limit_replaces_the_environments_own(name, limit, length):
    """Analytic: Vector ends by itself after five steps; the other has a limit of three, which may be raised.
    The registry keeps its own.
    """
    env = make_env(Params(TOY + name, max_episode_steps=limit))
    env.reset()
    ends = [env.step(0)[2:4] for _ in range(length or 5)]
    assert ends == [(False, False)] * (len(ends) - 1) + [(length is None, length is not None)]
    assert gymnasium.spec("toys/TruncatedVector-v0").max_episode_steps == 3


def test_a_time_limit_of_a_preset_does_not_count_frames():
    """Analytic: it is for vectors; the command line refuses it for Atari."""
    names = [type(x).__name__ for x in layers(make_env(Params(ATARI[0], max_episode_steps=9)))]
    assert "TimeLimit" not in names


def inner(env) -> Any:
    """The environment under all layers, whatever it is."""
    return env.unwrapped


def layers(env):
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env


def test_order_of_the_layers():
    """Golden: DESIGN's order, outermost first, without Gymnasium's checking layers."""
    names = [type(layer).__name__ for layer in layers(make_env(Params(ATARI[0])))]
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
        "Score",
    ]
    params = Params(
        ATARI[0], preprocessing="pong", no_clip_rewards=True, no_end_on_life_loss=True, debug=True
    )
    names = [type(layer).__name__ for layer in layers(make_env(params))]
    assert names == [
        "FrameStack",
        "FrameSkip",
        "ExtractPongFeatures",
        "RandomStart",
        "NumberFrames",
        "Rgb",
        "SeedGames",
        "Score",
    ]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("PongNoFrameskp-v4", "unknown environment PongNoFrameskp-v4: .*PongNoFrameskip`"),
        ("tests.tools.toys:Pong-v9", "unknown environment tests.tools.toys:Pong-v9: .*v4"),
        ("", "unknown environment"),
        ("no_such_module:Some-v0", "No module named 'no_such_module'"),
        ("Pong-v4", "skips frames itself"),
        ("FrozenLake-v1", "observations Discrete.*we support"),
        (TOY + "FromOne-v0", "start=1.*we support"),
        (TOY + "ManyChoices-v0", "actions MultiDiscrete.*we support"),
        (TOY + "NamedActions-v0", "actions Dict.*we support"),
        (TOY + "TwoArrays-v0", "actions Tuple.*we support"),
        (TOY + "Square-v0", "actions Box.*….*we support"),
        (TOY + "Number-v0", "actions Box.*we support"),
        (TOY + "Nothing-v0", "actions Box.*we support"),
        (TOY + "WholeNumbers-v0", "actions Box.*int32.*we support"),
        (TOY + "JoystickPong-v0", "frames and continuous actions.*we support"),
        (TOY + "Table-v0", "observations Box.*we support"),
        (TOY + "Dictionary-v0", "observations Dict.*we support"),
        (TOY + "Bytes-v0", "observations Box.*we support"),
        (TOY + "Camera-v0", "observations Box.*we support"),
        (TOY + "RamPong-v0", "shows no frames.*we support"),
    ],
)
def test_what_is_not_supported_is_said_in_one_line(name, reason):
    """Analytic: the reason, and what is supported; Gymnasium itself names the nearest."""
    with pytest.raises(UnsupportedEnv, match=reason) as error:
        describe_env(Params(name))
    assert str(error.value).isprintable()
    assert "\\" not in str(error.value)  # of a line break
    assert len(str(error.value)) < 600


@pytest.mark.parametrize("name", ["PongNoFrameskip-v0", "HalfCheetah-v5"])
def test_making_an_environment_says_nothing(tmp_path, name):
    """Analytic: neither the emulator's banner nor remarks on old ids and models, in a new process."""
    code = f"""
from a3c.envs.make import make_env
from a3c.settings.params import Params
make_env(Params({name!r})).reset()
"""
    process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(processes.ROOT)},
        capture_output=True,
        text=True,
    )
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "camera"), [("Hopper-v5", "track"), ("Reacher-v5", None)])
def test_a_body_that_runs_away_is_followed(name, camera):
    """Analytic: by its model's own camera for that, if it has one; without OpenGL until it draws."""
    env: Any = make_env(Params(name), see=lambda picture: None).unwrapped
    wanted = -1 if camera is None else env.model.camera(camera).id
    assert env.mujoco_renderer.camera_id == wanted


def test_mujocos_warnings_reach_whoever_trains(tmp_path, monkeypatch, capfd):
    """Analytic: a body that gets NaN; once, and no file is written."""
    monkeypatch.chdir(tmp_path)
    env = make_env(Params("InvertedPendulum-v5"))
    env.reset()
    env.unwrapped.data.qpos[:] = np.nan
    env.step(np.zeros(1, np.float32))
    assert re.fullmatch(r"MuJoCo: Nan, Inf or huge value in QPOS.*\n", capfd.readouterr().err)
    assert not list(tmp_path.iterdir())


# Randomness


def test_no_two_environments_share_their_random_starts():
    """Analytic: 16 workers of 4, and every game of one environment has its own number."""
    sequences = [noop_sequence(worker, env) for worker in range(16) for env in range(4)]
    assert len(set(sequences)) == 64
    everything = set(itertools.chain(*sequences))
    assert everything == set(range(31))
    assert all(len(set(sequence)) > 1 for sequence in sequences)


def test_random_starts_repeat_and_keep_to_their_limit():
    """Analytic: the same key and no other, the same sequence, from any game on; none, or none and one."""
    assert noop_sequence(1, 2) == noop_sequence(1, 2) != noop_sequence(1, 2, seed=1)
    assert noop_sequence(0, 0, first_game=2, n_games=4) == noop_sequence(0, 0)[2:]
    assert set(noop_sequence(0, 0, max_n_noops=0, n_games=20)) == {0}
    assert set(noop_sequence(0, 0, max_n_noops=1, n_games=20)) == {0, 1}


def test_other_environments_are_seeded_with_each_game():
    """Parity: the seeds are those of the emulator's streams, game by game."""
    env = make_env(Params(TOY + "Vector-v0", seed=3), worker=1, env=2, first_game=5)
    for _ in range(3):
        env.reset()
    expected = [
        seeding.seed_sequence(3, seeding.Purpose.EMULATOR, 1, 2, game).generate_state(1)[0]
        for game in (5, 6, 7)
    ]
    assert inner(env).seeds == expected


def test_atari_is_seeded_once(monkeypatch):
    """Analytic: a seeded reset reloads the ROM, so only the first is."""
    env = make_env(Params("PongNoFrameskip-v4"))
    seeds = []
    reset = inner(env).reset
    monkeypatch.setattr(inner(env), "reset", lambda *, seed, **more: seeds.append(seed) or reset())
    for _ in range(3):
        env.reset()
    assert seeds[0] is not None
    assert seeds[1:] == [None, None]


def test_a_child_process_names_the_way_to_what_the_program_itself_registers():
    """Analytic: there, the program has not run."""
    gymnasium.register("toys/OfTheProgram-v0", "tests.tools.toys:Vector")
    try:
        with (
            opened("toys/OfTheProgram-v0") as pool,
            pytest.raises(EnvError, match="unknown environment .* must be named module:Id"),
        ):
            pool.wait_until_ready()
    finally:
        del gymnasium.registry["toys/OfTheProgram-v0"]
