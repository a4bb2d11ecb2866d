"""Tests of a3c/envs/make.py: one environment with all of its layers."""

import itertools
import subprocess
import sys
from typing import Any

import gymnasium
import pytest

from a3c.envs.make import UnsupportedEnv, describe_env, make_env
from a3c.envs.process import EnvError
from a3c.machine import seeding
from a3c.settings.params import Params
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
        assert describe_env(params) == ("vector", (4,), "float32", 2, (), 0.0)
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
        ("Pendulum-v1", "actions Box.*we support"),
        ("FrozenLake-v1", "observations Discrete.*we support"),
        (TOY + "Continuous-v0", "actions Box.*we support"),
        (TOY + "FromOne-v0", "start=1.*we support"),
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
    assert "\n" not in str(error.value)


def test_making_an_environment_says_nothing():
    """Analytic: neither the emulator's banner nor Gymnasium's remarks on old ids, in a new process."""
    code = """
from a3c.envs.make import make_env
from a3c.settings.params import Params
make_env(Params("PongNoFrameskip-v0")).reset()
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")


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
