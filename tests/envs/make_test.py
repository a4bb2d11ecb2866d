"""Tests of a3c/envs/make.py: one environment with all of its layers."""

import itertools
import os
import re
import subprocess
import sys
from typing import Any

import cv2
import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.spaces.utils import flatten

from a3c.contract import EnvDescription
from a3c.envs.base import ATARI as ATARI_ENTRY
from a3c.envs.base import kwargs_of, spec_of
from a3c.envs.make import UnsupportedEnv, describe_env, make_env
from a3c.envs.process import EnvError
from a3c.machine import seeding
from a3c.settings.params import KNOBS, Params
from tests.tools import processes
from tests.tools.pools import TOY, opened

WEIGHTS = [0.299, 0.587, 0.114]  # of red, green and blue in luminance
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
@pytest.mark.parametrize("preprocessing", KNOBS["preprocessing"].choices)
def test_environments_that_are_supported(name, preprocessing):
    """Analytic: shape, type and space of what the agent sees and does."""
    params = Params(name, preprocessing=preprocessing)
    if "Pong" not in name and preprocessing == "pong":
        with pytest.raises(UnsupportedEnv, match=f"is for frames of Pong, not {name}"):
            describe_env(params)
        return
    if name == "CartPole-v1":
        expected = EnvDescription("vector", (4,), "float32", 2, (), 0.0, max_episode_steps=500)
        assert describe_env(params) == expected
        return
    description = describe_env(params)
    assert (description.kind, description.is_atari) == ("image", True)
    assert description.max_episode_steps is None
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
    [
        ("Pendulum-v1", (3,), 1),
        (TOY + "Pushes-v0", (2,), 2),
        (TOY + "Pushes32-v0", (2,), 2),
        (TOY + "Square-v0", (2,), 900),
        (TOY + "Number-v0", (2,), 1),
    ],
)
def test_continuous_actions_are_described_by_their_dimensions(name, shape, n_dimensions):
    """Analytic: whatever their bounds, their shape and the types of the spaces."""
    described = describe_env(Params(name))
    assert described.is_continuous
    assert (described.observation_shape, described.n_actions) == (shape, n_dimensions)


@pytest.mark.parametrize("name", ["Square-v0", "Number-v0"])
def test_continuous_actions_have_the_shape_of_their_space(monkeypatch, name):
    """Analytic: they arrive as one vector, in the order of the matrix, here within its bounds."""
    env, actions = make_env(Params(TOY + name)), []
    space = inner(env).action_space

    def step(action: Any) -> Any:
        actions.append(action)
        return np.zeros(2), 0.0, False, False, {}

    env.reset()
    monkeypatch.setattr(inner(env), "step", step)
    drawn = 0.5 * space.high.reshape(-1).astype(np.float32)
    env.step(drawn)
    assert actions[0] in space
    np.testing.assert_array_equal(actions[0].reshape(-1), drawn)


# What an agent sees of any space


@pytest.mark.parametrize(
    ("name", "n_numbers"),
    [
        ("Choice-v0", 3),
        ("Choices-v0", 10),
        ("Bits-v0", 4),
        ("Table-v0", 4),
        ("Bytes-v0", 128),
        ("Counts-v0", 3),
        ("Dictionary-v0", 7),
        ("Symbols-v0", 147),
    ],
)
def test_what_is_no_image_becomes_one_vector(name, n_numbers):
    """Parity: of floats, as Gymnasium flattens it: one-hot where it is a choice."""
    env = make_env(Params(TOY + name))
    assert describe_env(Params(TOY + name))[:4] == ("vector", (n_numbers,), "float32", 2)
    seen = [env.reset()[0], *(env.step(1)[0] for _ in range(4))]
    space = inner(env).observation_space
    for observation, shown in zip(seen, inner(env).shown, strict=True):
        assert observation.dtype == np.float32
        np.testing.assert_array_equal(observation, flatten(space, shown).astype(np.float32))
    if name == "Choice-v0":
        assert {*map(tuple, seen)} <= {(1, 0, 0), (0, 1, 0), (0, 0, 1)}


@pytest.mark.parametrize("name", ["Camera-v0", "Transparent-v0", "Grey-v0", "Flat-v0"])
def test_an_image_becomes_four_of_luminance(name):
    """Parity: with weights of colours by hand, within rounding: the newest is last, the first fills the stack,
    and each step of the environment is one decision, with its true reward.
    """
    env = make_env(Params(TOY + name, debug=True, no_frame_numbers=True))
    described = describe_env(Params(TOY + name))
    assert described[:4] == ("image", (84, 84, 4), "uint8", 2)
    assert not described.is_atari
    stacks = [env.reset()[0]]
    for _ in range(5):
        stack, reward, *_ = env.step(1)
        stacks.append(stack)
        assert reward == 10
    pictures = []
    for shown in inner(env).shown:
        grey = np.squeeze(shown) if name in ("Grey-v0", "Flat-v0") else shown[..., :3] @ WEIGHTS
        scaled = cv2.resize(grey.astype(np.float32), (84, 84), interpolation=cv2.INTER_AREA)
        pictures.append(scaled)
    for t, stack in enumerate(stacks):
        for i in range(4):
            assert np.abs(stack[..., i] - pictures[max(0, t - 3 + i)]).max() < 2
    numbered = make_env(Params(TOY + name, debug=True))
    first, plain = numbered.reset()[0], stacks[0]
    assert (first != plain).any()
    np.testing.assert_array_equal(first[:10], plain[:10])


def test_actions_are_counted_from_zero():
    """Analytic: an environment that counts from 1 gets 1 and 2 for 0 and 1."""
    env = make_env(Params(TOY + "FromOne-v0"))
    env.reset()
    assert [env.step(action)[1] for action in (0, 1)] == [10, 20]
    assert env.action_space == gymnasium.spaces.Discrete(2)


# Arguments, wrappers, modules


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("8x8", "8x8"), ("", ""), ("a b", "a b"), ("1.5", 1.5), ("-3", -3), ("[1, 2]", [1, 2])),
        *(("true", True), ("False", False), ("None", None), ("null", None), ('{"a": 1}', {"a": 1})),
        *(('"3"', "3"), ("a=b", "a=b"), ("[" * 4000, "[" * 4000)),
    ],
)
def test_arguments_of_an_environment_are_read_as_people_write_them(text, value):
    """Analytic: and what is nothing else is a text."""
    assert kwargs_of([f"x={text}", "y=1"]) == {"x": value, "y": 1}


def test_an_environment_is_made_with_its_arguments():
    """Analytic: a room of another size, and no limit of its own; what we set ourselves is refused."""
    kwargs = ("size=5",)
    described = describe_env(Params(TOY + "Search-v0", env_kwargs=kwargs, max_episode_steps=7))
    assert (described.observation_shape, described.n_actions) == ((20,), 4)
    assert described.max_episode_steps == 7
    for name, text in (
        ("CartPole-v1", "render_mode=human"),
        ("CartPole-v1", "max_episode_steps=3"),
        ("PongNoFrameskip-v4", "disable_env_checker=false"),
        ("PongNoFrameskip-v4", "frameskip=2"),
        ("PongNoFrameskip-v4", "obs_type=ram"),
    ):
        with pytest.raises(UnsupportedEnv, match=f"cannot set {text.split('=')[0]} of {name}"):
            describe_env(Params(name, env_kwargs=(text,)))
    mode = describe_env(Params("PongNoFrameskip-v4", env_kwargs=("repeat_action_probability=0.5",)))
    assert mode.sticky_actions == 0.5


def test_a_limit_that_no_flag_could_ask_for_is_recorded_as_the_highest_that_can():
    """Analytic: so that the agent can be played."""
    gymnasium.register("Endless-v0", CartPoleEnv, max_episode_steps=10**10)
    try:
        described = describe_env(Params("Endless-v0"))
    finally:
        del gymnasium.registry["Endless-v0"]
    assert described.max_episode_steps == 10**9


def test_a_limit_at_play_is_the_environments_own_if_it_has_one():
    """Analytic: whatever the run's is."""
    for limit in (None, 4):
        described = describe_env(Params(TOY + "TruncatedVector-v0", max_episode_steps=limit))
        assert described.max_episode_steps == 3


MODULE = """
import gymnasium
from gymnasium.wrappers import TransformReward
from mine_too import plus_one
from tests.tools.toys import Vector

gymnasium.register("Mine-v0", "mine:Mine", kwargs={"length": 3})

class Mine(Vector):
    pass

def plus(env):
    return TransformReward(env, plus_one)

def double(env):
    return TransformReward(env, lambda reward: 2 * reward)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with modules of the user."""
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("import sys\nx = = 1\n")
    (tmp_path / "mine_too.py").write_text("def plus_one(reward):\n    return reward + 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("mine", "mine_too"):
        sys.modules.pop(name, None)
    gymnasium.registry.pop("Mine-v0", None)


def test_modules_of_the_working_directory_are_found(folder):
    """Analytic: also in environment processes, and what they import; wrappers go round the environment in their
    order, inside of our layers, so that scores include them.
    """
    settings = {"wrapper": "mine:plus,mine:double"}
    env = make_env(Params("mine:Mine-v0", **settings))
    env.reset()
    assert [env.step(action)[1] for action in (0, 1)] == [2, 22]
    with opened("mine:Mine-v0", **settings) as pool:
        pool.reset(0)
        steps = [pool.step(np.array([1]), 0) for _ in range(3)]
        assert [step.rewards for step in steps] == [22, 22, 22]
        assert steps[-1].games[0].score == 66


def test_what_is_installed_comes_before_the_working_directory(folder):
    """Analytic: a file that has the name of a package hides it from nobody."""
    (folder / "safetensors.py").write_text("raise SystemExit('a stranger')")
    sys.modules.pop("safetensors", None)
    with pytest.raises(UnsupportedEnv, match="safetensors registers no Mine-v1"):
        describe_env(Params("safetensors:Mine-v1"))
    sys.modules.pop("mine", None)
    assert describe_env(Params("mine:Mine-v0")).n_actions == 2


@pytest.mark.parametrize(
    ("wrapper", "words"),
    [
        ("mine", "--wrapper mine cannot be used: ValueError: it must be named module:Wrapper"),
        ("mine:nothing", "--wrapper mine:nothing cannot be used: AttributeError: .*'nothing'"),
        ("mine:plus_one", r"mine:plus_one cannot be used: TypeError: .*\(.*mine_too.py, line 2\)"),
        ("broken:X", r"SyntaxError: invalid syntax \(broken.py, line 2\)$"),
        ("builtins:str", "it returned <.*>, which is no gymnasium.Env"),
        ("not_there:X", "--wrapper not_there:X cannot be used: No module named 'not_there'"),
    ],
)
def test_a_wrapper_that_cannot_be_used_is_said_in_one_line(folder, wrapper, words):
    """Analytic: with the place in the user's code."""
    with pytest.raises(UnsupportedEnv, match=words) as error:
        describe_env(Params("CartPole-v1", wrapper=wrapper))
    assert str(error.value).isprintable()


def test_a_wrapper_of_atari_changes_what_the_agent_sees(tmp_path, monkeypatch):
    """Analytic: where a wrapper makes frames white, the stack is white; without it, it is not."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "white.py").write_text(
        "from gymnasium.wrappers import TransformObservation as T\n"
        "def white(env):\n    return T(env, lambda frame: frame * 0 + 255, env.observation_space)\n"
    )
    seen, _ = make_env(Params(ATARI[0], wrapper="white:white")).reset()
    assert seen.shape == (84, 84, 4)
    assert (seen == 255).all()
    assert not (make_env(Params(ATARI[0])).reset()[0] == 255).all()


def test_what_draws_no_pictures_cannot_be_shown():
    """Golden: in one line, whether it has no render mode or does not take it; an image shows itself."""
    for name, words in (
        ("Vector-v0", "cannot be shown: it does not take render_mode='rgb_array'"),
        ("Deaf-v0", "cannot be made: TypeError: .*unexpected keyword argument 'render_mode'"),
    ):
        with pytest.raises(UnsupportedEnv, match=words):
            make_env(Params(TOY + name), see=lambda picture: None)
    for name in ("Grey-v0", "Bytes-v0"):
        pictures: list[np.ndarray] = []
        env = make_env(Params(TOY + name), see=pictures.append)
        env.reset()
        env.step(0)
        assert [picture.shape for picture in pictures] == [(40, 40, 3)] * 2
        assert [set(picture.flat) for picture in pictures] == [{0}, {1}]
    pictures = []
    make_env(
        Params(TOY + "Camera-v0", wrapper="tests.tools.toys:Blind"), see=pictures.append
    ).reset()
    assert [picture.shape for picture in pictures] == [(96, 60, 3)]


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


def test_a_time_limit_counts_the_steps_of_a_game_of_atari_that_a_wrapper_makes_vectors_of():
    """Analytic: each is one frame of the emulator, unless the wrapper skips some."""
    wrapped = Params("PongNoFrameskip-v4", wrapper="tests.tools.toys:Memory", max_episode_steps=3)
    assert describe_env(wrapped).max_episode_steps == 3
    env = make_env(wrapped)
    env.reset()
    assert [env.step(0)[3] for _ in range(3)] == [False, False, True]


def inner(env) -> Any:
    """The environment under all layers, whatever it is."""
    return env.unwrapped


def layers(env):
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env


def test_order_of_the_layers():
    """Golden: the outermost first, without Gymnasium's checking layers."""
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
    on_black = make_env(Params(ATARI[0], preprocessing="black"))
    added = [type(layer).__name__ for layer in layers(on_black)]
    assert added == [*names[:4], "BlackBackground", *names[4:]]
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
        ("PongNoFrameskp-v4", "unknown environment PongNoFrameskp-v4: did you mean PongNoF"),
        ("tests.tools.toys:Pong-v9", "did you mean tests.tools.toys:PongNoFrameskip-v4"),
        ("", "unknown environment"),
        ("no_such_module:Some-v0", "No module named 'no_such_module'"),
        ("tests.tools:Some-v0", "tests.tools registers no Some-v0"),
        (".tools:Some-v0", "unknown environment .tools:Some-v0: TypeError: "),
        ("Some-v0", "is named with its module, module:Some-v0$"),
        ("safetensors/Some-v0", "with its module, safetensors:safetensors/Some-v0$"),
        ("os-v0", "with its module, module:os-v0$"),
        ("Pong-v4", "skips frames itself, but we do that: did you mean PongNoFrameskip-v4"),
        (TOY + "ManyChoices-v0", "actions MultiDiscrete.*TransformAction"),
        (TOY + "NamedActions-v0", "actions Dict.*TransformAction"),
        (TOY + "TwoArrays-v0", "actions Tuple.*TransformAction"),
        (TOY + "Nothing-v0", "actions Box.*has no numbers"),
        (TOY + "WholeNumbers-v0", "actions Box.*int32.*TransformAction"),
        (TOY + "JoystickPong-v0", "Atari's frames and continuous actions"),
        (TOY + "ChannelsFirst-v0", "that are images of shape .*TransformObservation"),
        (TOY + "Text-v0", "observations of Text: .*ObservationWrapper"),
        (TOY + "Graph-v0", "observations of Graph: .*ObservationWrapper"),
        (TOY + "Told-v0", r"of Text among others, in \['mission'\]: .*FilterObservation"),
        (TOY + "Many-v0", "1,000,000,000 numbers.*ObservationWrapper"),
        (TOY + "None-v0", "0 numbers.*ObservationWrapper"),
        (TOY + "RamPong-v0", r"shows no frames: did you mean \S*toys/ShortPong-v0\?$"),
        (TOY + "RaisesInInit-v0", r"RuntimeError: the cartridge.*\(.*toys.py, line \d+\)"),
    ],
)
def test_what_is_not_supported_is_said_in_one_line(name, reason):
    """Analytic: the reason, and what would help: another id, or a wrapper."""
    with pytest.raises(UnsupportedEnv, match=reason) as error:
        describe_env(Params(name))
    assert str(error.value).isprintable()
    assert "\\" not in str(error.value)  # of a line break
    assert len(str(error.value)) < 600


class Spaceless(gymnasium.Env):
    """Nobody has said what its observations are."""

    action_space = gymnasium.spaces.Discrete(2)


def test_an_environment_that_is_not_complete_is_refused_in_a_line():
    """Analytic: the line has its name and the error."""
    gymnasium.register("toys/Spaceless-v0", f"{__name__}:Spaceless")
    with pytest.raises(UnsupportedEnv, match=r"^toys/Spaceless-v0 cannot be used: \w+Error: "):
        describe_env(Params("toys/Spaceless-v0"))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("Breakout", "BreakoutNoFrameskip-v4"),
        ("Breakout-v4", "BreakoutNoFrameskip-v4"),
        ("breakoutdeterministic-v4", "BreakoutNoFrameskip-v4"),
        ("Breakout-ramNoFrameskip-v4", "BreakoutNoFrameskip-v4"),
        ("ALE/Breakout-v4", "ALE/Breakout-v5"),
        ("ALE/Brekout-v5", "ALE/Breakout-v5"),
        ("Pnog-v4", "PongNoFrameskip-v4"),
        ("BreakoutDeterministc-v4", "BreakoutNoFrameskip-v4"),
        ("cartpole", "CartPole-v1"),
        ("CartPole-v7", "CartPole-v1"),
        ("Taxi-v3", "Taxi-v4"),
        ("Pendulm-v1", "Pendulum-v1"),
        ("HalfCheetah", "HalfCheetah-v5"),
        (TOY + "search-v2", TOY + "Search-v0"),
    ],
)
def test_a_suggestion_is_not_refused_in_turn(name, meant):
    """Analytic: it is what the user probably meant, of the kind that we take."""
    with pytest.raises(UnsupportedEnv, match=rf": did you mean {re.escape(meant)}\?"):
        describe_env(Params(name))
    assert describe_env(Params(meant)).n_actions > 0


def test_every_atari_id_is_taken_or_leads_to_one_that_is():
    """Analytic: of all that are registered, 1 to 5 per game."""
    names = [name for name, spec in gymnasium.registry.items() if spec.entry_point == ATARI_ENTRY]
    taken = set()
    for name in [name for name in names if not name.startswith("toys/")]:
        try:
            spec_of(name)
            taken.add(name)
        except UnsupportedEnv as error:
            meant = re.search(r"did you mean (\S+)\?", str(error))
            assert meant is not None, name
            assert spec_of(meant[1]).kwargs["game"] == gymnasium.registry[name].kwargs["game"]
    assert 200 < len(taken) < len(names)


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


@pytest.mark.parametrize(
    ("params", "n_seeded"),
    [
        (Params("PongNoFrameskip-v4"), 0),
        (Params("ALE/Pong-v5"), 1),
        (Params("PongNoFrameskip-v4", wrapper="gymnasium:Wrapper"), 1),
    ],
)
def test_atari_is_seeded_where_something_is_random(monkeypatch, params, n_seeded):
    """Analytic: sticky actions, or a wrapper; a seeded reset reloads the ROM, so only the first is."""
    env = make_env(params)
    seeds = []
    reset = inner(env).reset
    monkeypatch.setattr(inner(env), "reset", lambda *, seed, **more: seeds.append(seed) or reset())
    for _ in range(3):
        env.reset()
    assert [seed is None for seed in seeds] == [n >= n_seeded for n in range(3)]


def test_a_child_process_names_the_way_to_what_the_program_itself_registers():
    """Analytic: there, the program has not run."""
    gymnasium.register("toys/OfTheProgram-v0", "tests.tools.toys:Vector")
    try:
        with (
            opened("toys/OfTheProgram-v0") as pool,
            pytest.raises(
                EnvError, match="unknown environment .* named with its module, module:toys/"
            ),
        ):
            pool.wait_until_ready()
    finally:
        del gymnasium.registry["toys/OfTheProgram-v0"]
