"""Makes one environment with all of its layers; `_preprocess` has them in order, innermost first.

Every random draw of environment `env` of worker `worker` derives from the run's seed, these two
numbers and the number of the game; see machine/seeding.py.
"""

import contextlib
import dataclasses
import importlib
import itertools
import multiprocessing
import sys
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
from a3c.machine.appending import one_line
from a3c.settings.params import Params

ATARI = "ale_py.env:AtariEnv"
SUPPORTED = (
    "we support Atari frames (*NoFrameskip-v4, ALE/*-v5) with discrete actions, and vectors of floats"
    " (a Box of one dimension) with actions that are discrete from 0 or a vector of floats"
)


class UnsupportedEnv(Exception):
    """An environment that cannot be trained on, and why, in one line."""

    def __init__(self, why: str) -> None:
        super().__init__(_unwrapped(why, 1000))


def _unwrapped(text: object, most: int) -> str:
    """A text of several lines on one line of at most so many characters."""
    return one_line(" ".join(str(text).split()), most)


def describe_env(params: Params) -> EnvDescription:
    """Make an environment only to describe it; UnsupportedEnv if it cannot be trained on."""
    env: Any = make_env(params)
    with contextlib.closing(env):
        emulator, shape = env.unwrapped, env.observation_space.shape
        is_image, is_atari = len(shape) == 3, isinstance(emulator, AtariEnv)
        is_continuous = isinstance(env.action_space, gymnasium.spaces.Box)
        sticky = emulator.ale.getFloat("repeat_action_probability") if is_atari else 0.0
        return EnvDescription(
            kind="image" if is_image else "vector",
            observation_shape=shape,
            observation_dtype=str(env.observation_space.dtype),
            n_actions=int(env.action_space.shape[0] if is_continuous else env.action_space.n),
            action_meanings=tuple(emulator.get_action_meanings()) if is_image else (),
            sticky_actions=round(sticky, 6),
            is_continuous=is_continuous,
        )


def make_env(
    params: Params,
    worker: int = 0,
    env: int = 0,
    first_game: int = 0,
    see: Callable[[np.ndarray], None] | None = None,
    fraction_seen: float = 1.0,
) -> gymnasium.Env:
    """Make environment `env` of worker `worker`; its first reset starts game `first_game`.

    `see` is called with pictures of this fraction of the frames, in colour.
    """
    limit = params.max_episode_steps
    base = _make_base(params.env_id, limit)
    is_image = _check_supported(params, base)
    if see is not None and "rgb_array" in base.metadata.get("render_modes", ()):
        base.close()  # only an environment that is made with a render mode draws pictures
        base = _make_base(params.env_id, limit, render_mode="rgb_array")
        _follow_the_body(base)
    elif see is not None and not is_image:
        raise UnsupportedEnv(f"{params.env_id} cannot be shown: it draws no pictures")
    score = Score(base, worker, env, counts_own_steps=not is_image)
    key = (params.seed, worker, env, first_game)
    seeds = _emulator_seeds(*key, every_game=not isinstance(base.unwrapped, AtariEnv))
    seeded: gymnasium.Env = wrappers.SeedGames(score, seeds)
    if see is not None:
        seeded = debug_wrappers.WatchFrames(seeded, see, fraction_seen, has_sprites=is_image)
    if is_image:
        return _preprocess(seeded, params, _n_noops(*key, params.max_n_noops), score)
    if isinstance(base.action_space, gymnasium.spaces.Box):
        seeded = wrappers.ClipActions(seeded)
    if base.observation_space.dtype == np.float32:
        return seeded
    with warnings.catch_warnings():  # The bounds of the space may lose precision.
        warnings.simplefilter("ignore", UserWarning)
        return DtypeObservation(seeded, np.float32)


def _preprocess(
    env: gymnasium.Env, params: Params, n_noops: Iterator[int], score: Score
) -> gymnasium.Env:
    emulator: Any = env.unwrapped
    numbers_frames = params.debug and not params.no_frame_numbers
    in_numbers = False
    if _is_atari(env):
        # Layers that look at colours need RGB, and so do games with other colours than screen.py's.
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
    """Yield the length of each game's random start."""
    for game in itertools.count(first_game):
        generator = seeding.generator(run_seed, seeding.Purpose.NOOPS, worker, env, game)
        yield int(generator.integers(max_n_noops, endpoint=True))


def _emulator_seeds(
    run_seed: int, worker: int, env: int, first_game: int, every_game: bool
) -> Iterator[int | None]:
    """Yield the emulator's seed for each game, or for the first game only.

    The first is enough for Atari, where only the sticky actions of v5 draw random numbers. Seeding
    every game would be slow: a seeded reset reloads the ROM and takes 150 ms instead of 6 ms.
    """
    for game in itertools.count(first_game):
        key = (run_seed, seeding.Purpose.EMULATOR, worker, env, game)
        wanted = every_game or game == first_game
        yield int(seeding.seed_sequence(*key).generate_state(1)[0]) if wanted else None


def _make_base(env_id: str, limit: int | None = None, **kwargs: Any) -> gymnasium.Env:
    """Make the bare environment without Gymnasium's checks, with this time limit or its own.

    The limit counts steps of the agent, so it is not for Atari, where the emulator counts frames.
    """
    gymnasium.register_envs(ale_py)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        # A copy, because the registry's own spec must stay as it is. Making an old id from a spec
        # also avoids Gymnasium's warning that there is a newer one.
        spec = dataclasses.replace(
            gymnasium.spec(name), order_enforce=False, disable_env_checker=True
        )
        if limit is not None and spec.entry_point != ATARI:
            spec.max_episode_steps = limit
    except (ImportError, TypeError, ValueError, gymnasium.error.Error) as error:
        why = str(error)
        if isinstance(error, gymnasium.error.Error) and multiprocessing.parent_process():
            why += " An environment that your own program registers must be named module:Id."
        raise UnsupportedEnv(f"unknown environment {env_id}: {why}") from error
    if spec.entry_point == ATARI:
        if spec.kwargs.get("obs_type", "rgb") != "rgb":
            raise UnsupportedEnv(f"{env_id} shows no frames: {SUPPORTED}")
        # The cheapest kind. It is never used, because screen.py reads the emulator's screen.
        kwargs["obs_type"] = "ram"
        if spec.namespace == "ALE":
            kwargs["frameskip"] = 1
        elif spec.kwargs.get("frameskip") != 1:
            raise UnsupportedEnv(f"{env_id} skips frames itself, but we do that: {SUPPORTED}")
    try:
        if "mujoco" in str(spec.entry_point):
            _take_mujocos_warnings()
        return gymnasium.make(spec, **kwargs)
    except (ImportError, gymnasium.error.Error) as error:
        raise UnsupportedEnv(f"{env_id} cannot be made: {error}") from error


def _take_mujocos_warnings() -> None:
    """Print them, except those on old forms in Gymnasium's own models.

    MuJoCo itself would add all of them to a file in the working directory.
    """
    try:
        import mujoco
    except RuntimeError as error:  # it does not know the value of MUJOCO_GL
        raise ImportError(str(error)) from error

    def warn(text: str) -> None:
        if "deprecated" not in text:
            print(f"MuJoCo: {text}", file=sys.stderr, flush=True)

    mujoco.set_mju_user_warning(warn)


def _follow_the_body(env: gymnasium.Env) -> None:
    """Have MuJoCo's models that have a camera for it followed; Gymnasium's own lets them run away."""
    renderer: Any = getattr(env.unwrapped, "mujoco_renderer", None)
    if renderer is not None and renderer.camera_id == -1:
        import mujoco

        kind = mujoco.mjtObj.mjOBJ_CAMERA
        renderer.camera_id = mujoco.mj_name2id(renderer.model, kind, "track")  # -1: it has none


def _check_supported(params: Params, env: gymnasium.Env) -> bool:
    """Return whether observations are images, not vectors; UnsupportedEnv if they are neither."""
    actions, observations = env.action_space, env.observation_space
    is_discrete = isinstance(actions, gymnasium.spaces.Discrete) and actions.start == 0
    is_continuous = isinstance(actions, gymnasium.spaces.Box) and (
        len(actions.shape) == 1
        and actions.shape[0] > 0
        and np.issubdtype(actions.dtype, np.floating)
    )
    if not is_discrete and not is_continuous:
        raise UnsupportedEnv(f"{params.env_id} has actions {_unwrapped(actions, 200)}: {SUPPORTED}")
    emulator: Any = env.unwrapped
    shape: tuple[int, ...] = observations.shape or ()
    dtype: Any = observations.dtype
    if _is_atari(env):  # then our layers see the screen instead
        shape, dtype = (*emulator.ale.getScreenDims(), 3), np.uint8
    is_vector = len(shape) == 1 and np.issubdtype(dtype, np.floating)
    is_frame = len(shape) == 3 and shape[2] == 3 and dtype == np.uint8
    # The layers ask the emulator for the lives, and use action 0 as a no-op.
    if not is_vector and not (is_frame and hasattr(emulator, "ale")):
        seen = _unwrapped(observations, 200)
        raise UnsupportedEnv(f"{params.env_id} has observations {seen}: {SUPPORTED}")
    if is_frame and is_continuous:
        raise UnsupportedEnv(f"{params.env_id} has frames and continuous actions: {SUPPORTED}")
    if params.preprocessing == "pong" and shape != (210, 160, 3):
        raise UnsupportedEnv(f"--preprocessing pong is for frames of Pong, not {params.env_id}'s")
    return is_frame


def _is_atari(env: gymnasium.Env) -> bool:
    """Return whether this is an Atari game of ale_py, without anyone else's wrapper around it."""
    return env.spec is not None and env.spec.entry_point == ATARI
