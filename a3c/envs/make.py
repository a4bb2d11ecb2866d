"""Makes one environment with all of its layers, innermost first.

Every random draw of environment `env` of worker `worker` derives from the run's seed, these two
numbers and the number of the game; see machine/seeding.py.
"""

import contextlib
import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import cv2
import gymnasium
import numpy as np
from ale_py.env import AtariEnv
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import (
    DtypeObservation,
    FlattenObservation,
    TransformAction,
    TransformObservation,
)

from a3c.contract import EnvDescription
from a3c.envs import debug_wrappers, screen, spaces, wrappers
from a3c.envs.base import ATARI, UnsupportedEnv, make_base, spec_of, told
from a3c.envs.score import Score
from a3c.machine import seeding
from a3c.settings.params import MOST_EPISODE_STEPS, Params


def describe_env(params: Params) -> EnvDescription:
    """Make an environment only to describe it; UnsupportedEnv if it cannot be trained on."""
    try:
        return _described(params)
    except UnsupportedEnv:
        raise
    except Exception as error:  # such as of an environment that lacks a space
        raise UnsupportedEnv(f"{params.env_id} cannot be used: {told(error)}") from error


def _described(params: Params) -> EnvDescription:
    env: Any = make_env(params)
    with contextlib.closing(env):
        emulator, shape = env.unwrapped, env.observation_space.shape
        is_image = len(shape) == 3
        is_atari = is_image and hasattr(emulator, "ale")
        sticky = 0.0
        if isinstance(emulator, AtariEnv):
            sticky = emulator.ale.getFloat("repeat_action_probability")
        is_continuous = spaces.is_continuous(env.action_space)
        # Scores are those of the environment's own limit, if it has one.
        limit = spec_of(params.env_id).max_episode_steps or params.max_episode_steps
        if limit is not None:
            limit = min(limit, MOST_EPISODE_STEPS)
        return EnvDescription(
            kind="image" if is_image else "vector",
            observation_shape=shape,
            observation_dtype=str(env.observation_space.dtype),
            n_actions=int(np.prod(env.action_space.shape) if is_continuous else env.action_space.n),
            action_meanings=tuple(emulator.get_action_meanings()) if is_atari else (),
            sticky_actions=round(sticky, 6),
            is_continuous=is_continuous,
            is_atari=is_atari,
            max_episode_steps=None if is_atari else limit,
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
    base = make_base(params)
    kind = _kind_of(params, base)
    if see is not None:
        base = _drawn(params, base, kind)
    score = Score(base, worker, env, counts_own_steps=kind != "atari")
    key = (params.seed, worker, env, first_game)
    seeds = _emulator_seeds(*key, _n_games_to_seed(params, base))
    made: gymnasium.Env = wrappers.SeedGames(score, seeds)
    if see is not None:
        made = debug_wrappers.WatchFrames(made, see, fraction_seen, has_sprites=kind == "atari")
    made = _with_our_actions(made)
    if kind == "atari":
        return _preprocess(made, params, _n_noops(*key, params.max_n_noops), score)
    return _as_image(made, params) if kind == "image" else _as_vector(made)


def _with_our_actions(env: gymnasium.Env) -> gymnasium.Env:
    """Have actions counted from 0, or clipped to their bounds."""
    space: Any = env.action_space
    if isinstance(space, Box):
        return wrappers.ClipActions(env)
    if space.start == 0:
        return env
    return TransformAction(env, lambda action: action + space.start, Discrete(space.n))


def _as_vector(env: gymnasium.Env) -> gymnasium.Env:
    """One vector of floats; what is a choice, such as Discrete, is one-hot in it."""
    space = env.observation_space
    if not isinstance(space, Box) or len(space.shape) != 1:
        env = FlattenObservation(env)
    if env.observation_space.dtype == np.float32:
        return env
    with warnings.catch_warnings():  # The bounds of the space may lose precision.
        warnings.simplefilter("ignore", UserWarning)
        return DtypeObservation(env, np.float32)


def _as_image(env: gymnasium.Env, params: Params) -> gymnasium.Env:
    if params.debug and not params.no_frame_numbers:
        env = debug_wrappers.NumberFrames(env)

    def scale(image: np.ndarray) -> np.ndarray:
        return wrappers.luminance_and_scale(image, cv2.INTER_AREA)  # keeps what is small

    space = wrappers.image_space(wrappers.SIDE, wrappers.SIDE)
    return wrappers.FrameStack(TransformObservation(env, scale, space))


def _preprocess(
    env: gymnasium.Env, params: Params, n_noops: Iterator[int], score: Score
) -> gymnasium.Env:
    emulator: Any = env.unwrapped
    numbers_frames = params.debug and not params.no_frame_numbers
    in_numbers = False
    if _shows_screen(params, env):
        # Layers that look at colours need RGB, and so do games with other colours than screen.py's.
        plain = params.preprocessing != "pong" and not numbers_frames
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
    if params.preprocessing == "black":
        env = wrappers.BlackBackground(env)
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


def _n_games_to_seed(params: Params, base: gymnasium.Env) -> float:
    """How many games of an environment begin with a seed of their own.

    Of Atari, as few as possible, because a seeded reset reloads the ROM and takes 150 ms instead of
    6 ms. Only sticky actions draw random numbers there, or a wrapper of the user's; for those, the
    first game's seed is enough.
    """
    emulator: Any = base.unwrapped
    if not isinstance(emulator, AtariEnv):
        return math.inf
    is_sticky = emulator.ale.getFloat("repeat_action_probability") > 0
    return 1 if is_sticky or params.wrapper else 0


def _emulator_seeds(
    run_seed: int, worker: int, env: int, first_game: int, n_games: float
) -> Iterator[int | None]:
    """Yield the emulator's seed for each of so many games, and then None."""
    for game in itertools.count(first_game):
        key = (run_seed, seeding.Purpose.EMULATOR, worker, env, game)
        wanted = game < first_game + n_games
        yield int(seeding.seed_sequence(*key).generate_state(1)[0]) if wanted else None


def _drawn(params: Params, base: gymnasium.Env, kind: str) -> gymnasium.Env:
    """The environment anew, if only one that is made with a render mode draws pictures."""
    if "rgb_array" in base.metadata.get("render_modes", ()):
        base.close()
        base = make_base(params, render_mode="rgb_array")
        _follow_the_body(base)
    if base.render_mode is None and kind == "vector":  # images are pictures themselves
        why = "it does not take render_mode='rgb_array', and draws no pictures"
        raise UnsupportedEnv(f"{params.env_id} cannot be shown: {why}")
    return base


def _follow_the_body(env: gymnasium.Env) -> None:
    """Have MuJoCo's models that have a camera for it followed; Gymnasium's own lets them run away."""
    renderer: Any = getattr(env.unwrapped, "mujoco_renderer", None)
    if renderer is not None and renderer.camera_id == -1:
        import mujoco

        kind = mujoco.mjtObj.mjOBJ_CAMERA
        renderer.camera_id = mujoco.mj_name2id(renderer.model, kind, "track")  # -1: it has none


def _kind_of(params: Params, env: gymnasium.Env) -> str:
    """Whether this is "atari", an "image" or a "vector"; UnsupportedEnv if it is none of them."""
    emulator: Any = env.unwrapped
    seen: Any = env.observation_space
    if _shows_screen(params, env):
        seen = wrappers.image_space(*emulator.ale.getScreenDims(), 3)
    more = "; docs/environments.md says what is taken"
    if why := spaces.why_not_done(env.action_space):
        raise UnsupportedEnv(f"{params.env_id} has actions {why}{more}")
    if why := spaces.why_not_seen(seen):
        raise UnsupportedEnv(f"{params.env_id} has observations {why}{more}")
    if params.preprocessing == "pong" and seen.shape != (210, 160, 3):
        raise UnsupportedEnv(f"--preprocessing pong is for frames of Pong, not {params.env_id}'s")
    if not spaces.is_image(seen):
        return "vector"
    if not hasattr(emulator, "ale"):
        return "image"
    if spaces.is_continuous(env.action_space):  # the no-ops of its layers are action 0
        raise UnsupportedEnv(f"{params.env_id} has Atari's frames and continuous actions{more}")
    return "atari"


def _shows_screen(params: Params, env: gymnasium.Env) -> bool:
    """Whether our layers see the emulator's screen, and not what the environment returns."""
    return env.spec is not None and env.spec.entry_point == ATARI and params.wrapper is None
