"""Makes one environment, with all of its layers, in the order of the lines in `_preprocess`.

Every random draw of environment number `env` of a worker derives from the run's seed, these two
numbers and the number of the game; see machine/seeding.py.
"""

import contextlib
import dataclasses
import difflib
import importlib
import itertools
import multiprocessing
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import ale_py
import gymnasium
import numpy as np
from ale_py.env import AtariEnv
from gymnasium.wrappers import DtypeObservation

from a3c.contract import EnvDescription
from a3c.envs import debug_wrappers, screen, wrappers
from a3c.envs.score import Score
from a3c.machine import seeding
from a3c.settings.params import Params

ATARI = "ale_py.env:AtariEnv"
SUPPORTED = (
    "supported are discrete actions with either Atari frames (*NoFrameskip-v4, ALE/*-v5) "
    "or vector observations (a Box of floats of one dimension)"
)


class UnsupportedEnv(Exception):
    """An environment that cannot be trained on, and why, in one line."""


def describe_env(params: Params) -> EnvDescription:
    """Build one environment, look at it, close it; UnsupportedEnv if it cannot be trained on."""
    with contextlib.closing(make_env(params)) as env:
        assert isinstance(env.action_space, gymnasium.spaces.Discrete)
        assert env.observation_space.shape is not None
        emulator: Any = env.unwrapped
        is_image = len(env.observation_space.shape) == 3
        sticky_actions = 0.0
        if isinstance(emulator, AtariEnv):
            sticky_actions = emulator.ale.getFloat("repeat_action_probability")
        return EnvDescription(
            kind="image" if is_image else "vector",
            observation_shape=env.observation_space.shape,
            observation_dtype=str(env.observation_space.dtype),
            n_actions=int(env.action_space.n),
            action_meanings=tuple(emulator.get_action_meanings()) if is_image else (),
            sticky_actions=round(sticky_actions, 6),
        )


def make_env(
    params: Params,
    worker: int = 0,
    env: int = 0,
    first_game: int = 0,
    see: Callable[[np.ndarray], None] | None = None,
) -> gymnasium.Env:
    """Make environment `env` of worker `worker`; its first reset starts game `first_game`.

    `see` is called with every frame in colour.
    """
    base = _make_base(params.env_id)
    is_image = _check_supported(params, base)
    if see is not None and not is_image:  # an environment is told to draw when it is made
        base.close()
        if "rgb_array" not in base.metadata.get("render_modes", ()):
            raise UnsupportedEnv(f"{params.env_id} cannot be shown: it draws no pictures")
        base = _make_base(params.env_id, render_mode="rgb_array")
    score = Score(base, worker, env, counts_own_steps=not is_image)
    key = (params.seed, worker, env, first_game)
    seeds = _emulator_seeds(*key, every_game=not isinstance(base.unwrapped, AtariEnv))
    seeded: gymnasium.Env = wrappers.SeedGames(score, seeds)
    if see is not None:
        seeded = debug_wrappers.WatchFrames(seeded, see, _picture_of(base, is_image))
    if is_image:
        return _preprocess(seeded, params, _n_noops(*key, params.max_n_noops), score)
    if base.observation_space.dtype == np.float32:
        return seeded
    with warnings.catch_warnings():  # Of the bounds' loss of precision.
        warnings.simplefilter("ignore", UserWarning)
        return DtypeObservation(seeded, np.float32)


def _preprocess(
    env: gymnasium.Env, params: Params, n_noops: Iterator[int], score: Score
) -> gymnasium.Env:
    emulator: Any = env.unwrapped
    numbers_frames = params.debug and not params.no_frame_numbers
    in_numbers = False
    if _is_atari(env):
        # What looks at colours needs RGB, and so do the games in colours that are not ours.
        plain = params.preprocessing == "generic" and not numbers_frames
        in_numbers = plain and screen.has_ntsc_colours(emulator.ale)
        layer = screen.ColourNumbers if in_numbers else screen.Rgb
        env = layer(env, emulator.ale)
    if numbers_frames:
        env = debug_wrappers.NumberFrames(env)
    env = wrappers.RandomStart(env, n_noops)
    if params.preprocessing == "pong":
        env = wrappers.ExtractPongFeatures(env)
    else:
        env = wrappers.Max(env, screen.luminance_of_maximum if in_numbers else np.maximum)
        env = wrappers.ExtractLuminanceAndScale(env)
    env = wrappers.FrameSkip(env, on_decision=score.count_decision)
    env = wrappers.FrameStack(env)
    if not params.no_end_on_life_loss:
        env = wrappers.EndEpisodeOnLifeLoss(env, emulator.ale)
    if not params.no_clip_rewards:
        env = wrappers.ClipRewards(env)
    return env


def _n_noops(
    run_seed: int, worker: int, env: int, first_game: int, max_n_noops: int
) -> Iterator[int]:
    """Yield the length of the random start of one game after the other."""
    for game in itertools.count(first_game):
        generator = seeding.generator(run_seed, seeding.Purpose.NOOPS, worker, env, game)
        yield int(generator.integers(max_n_noops, endpoint=True))


def _emulator_seeds(
    run_seed: int, worker: int, env: int, first_game: int, every_game: bool
) -> Iterator[int | None]:
    """Yield the emulator's seed for one game after the other, or for the first game only.

    A seeded reset of an Atari game reloads its ROM (150 ms against 6 ms), and only the sticky
    actions of v5 draw from the stream, so there once is enough.
    """
    for game in itertools.count(first_game):
        key = (run_seed, seeding.Purpose.EMULATOR, worker, env, game)
        wanted = every_game or game == first_game
        yield int(seeding.seed_sequence(*key).generate_state(1)[0]) if wanted else None


def _picture_of(base: gymnasium.Env, is_image: bool) -> Callable[[Any], Any]:
    """How to get at what a person would see, given an observation."""
    if not is_image:
        return lambda _: base.render()
    if _is_atari(base):
        emulator: Any = base.unwrapped
        return lambda _: emulator.ale.getScreenRGB()
    return lambda frame: frame


def _make_base(env_id: str, **kwargs: Any) -> gymnasium.Env:
    """Make the bare environment, with its time limit but without Gymnasium's checks."""
    gymnasium.register_envs(ale_py)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        # A copy, for the registry's own must keep its settings. Made by its spec, an old id also
        # brings no remark that there is a newer one.
        spec = dataclasses.replace(gymnasium.spec(name))
    except (ImportError, TypeError, ValueError, gymnasium.error.Error) as error:
        raise UnsupportedEnv(_explain_unknown(env_id, error)) from error
    spec.order_enforce = False
    spec.disable_env_checker = True
    if spec.entry_point == ATARI:
        if spec.kwargs.get("obs_type", "rgb") != "rgb":
            raise UnsupportedEnv(f"{env_id} shows no frames: {SUPPORTED}")
        # The cheapest, and nobody sees it: screen.py takes the screen from the emulator itself.
        kwargs["obs_type"] = "ram"
        if spec.namespace == "ALE":
            kwargs["frameskip"] = 1
        elif spec.kwargs.get("frameskip") != 1:
            raise UnsupportedEnv(f"{env_id} skips frames itself, and so do we: {SUPPORTED}")
    try:
        return gymnasium.make(spec, **kwargs)
    except (ImportError, gymnasium.error.Error) as error:
        raise UnsupportedEnv(f"{env_id} cannot be made: {_one_line(error)}") from error


def _explain_unknown(env_id: str, error: Exception) -> str:
    if not isinstance(error, gymnasium.error.Error):
        return f"{env_id}: {_one_line(error)}"
    if multiprocessing.parent_process() is not None:
        return f"unknown environment {env_id}: what your own program registers is named module:Id"
    name = env_id.rpartition(":")[2]
    by_lower_case = {known.lower(): known for known in gymnasium.registry}
    nearest = difflib.get_close_matches(name.lower(), by_lower_case, n=3, cutoff=0.5)
    hint = " or ".join(by_lower_case[known] for known in nearest) or "another"
    return f"unknown environment {env_id}: did you mean {hint}?"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _check_supported(params: Params, env: gymnasium.Env) -> bool:
    """Return whether observations are images; UnsupportedEnv if not these and not vectors."""
    actions, observations = env.action_space, env.observation_space
    if not isinstance(actions, gymnasium.spaces.Discrete) or actions.start != 0:
        raise UnsupportedEnv(f"{params.env_id} has actions {actions}: {SUPPORTED}")
    emulator: Any = env.unwrapped
    shape: tuple[int, ...] = observations.shape or ()
    dtype: Any = observations.dtype
    if _is_atari(env):  # as our layers see it
        shape, dtype = (*emulator.ale.getScreenDims(), 3), np.uint8
    is_vector = len(shape) == 1 and np.issubdtype(dtype, np.floating)
    is_frame = len(shape) == 3 and shape[2] == 3 and dtype == np.uint8
    if not is_vector and not (is_frame and _is_like_atari(emulator)):
        raise UnsupportedEnv(f"{params.env_id} has observations {observations}: {SUPPORTED}")
    if params.preprocessing == "pong" and shape != (210, 160, 3):
        raise UnsupportedEnv(
            f"--preprocessing pong is for frames of Pong, not for {params.env_id}'s observations"
        )
    return is_frame


def _is_atari(env: gymnasium.Env) -> bool:
    """Return whether this is a game of the emulator, with no wrapper of others around it."""
    return env.spec is not None and env.spec.entry_point == ATARI


def _is_like_atari(emulator: Any) -> bool:
    """Return whether the emulator has what the layers ask of it: a no-op and lives."""
    try:
        is_noop = emulator.get_action_meanings()[wrappers.NOOP] == "NOOP"
        return is_noop and callable(emulator.ale.lives)
    except (AttributeError, IndexError):
        return False
