"""From emulator frames to what the agent sees: one wrapper for each step.

The paper names no preprocessing of its own, so this is that of Mnih et al. 2015 ("Methods,
Preprocessing"): the maximum of two consecutive frames against flicker, luminance, 84x84, every
fourth frame, four of those stacked. In this drawing of one game, frame 0 is the one after the
random start, `m` is a maximum of two frames, and `|` a decision of the agent:

    frames         0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 ...
    Max            m=0,1   m=4,5   m=8,9    m=12,13     m=16,17     m=20,21
    FrameSkip      0       1       2        3     |     4     |     5
    FrameStack     [m0,1 m4,5 m8,9 m12,13] |  [m4,5 m8,9 m12,13 m16,17] |  [m8,9 ...

So observation n of the skipped stream is the maximum of frames 4n and 4n+1, and a decision is
carried out for the frames 4n+2 ... 4n+5 that lead to the next observation. Frames 1 to 13 come from
no-ops of the reset: Max needs a pair of frames, and FrameStack four observations.

Only frames that the agent sees are converted: the layers from Max or ExtractPongFeatures up to
FrameSkip hand on a `Deferred`, a function that makes the pixels when it is called, and FrameSkip
calls the last of four. So a frame must not change later: the emulator must return a new array at
each step, as `ale.getScreen()` and `getScreenRGB()` do.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import cv2
import gymnasium
import numpy as np

NOOP = 0
SIDE = 84
MAX_RESETS_IN_A_ROW = 100  # after so many games that end in their no-ops, we give up

Deferred = Callable[[], np.ndarray]
Info = dict[str, Any]
Step = tuple[Any, Any, bool, bool, Info]


def reset_with_noops(
    reset: Callable[[], tuple[Any, Info]], noop: Callable[[], Step], n_noops: Iterator[int]
) -> tuple[list[Any], Info]:
    """Reset, take the next number of no-ops, and start again if the game ends during them.

    Returns all observations; the first is that of the reset.
    """
    for _ in range(MAX_RESETS_IN_A_ROW):
        observation, info = reset()
        observations = [observation]
        for _ in range(next(n_noops)):
            observation, _, terminated, truncated, info = noop()
            if terminated or truncated:
                break
            observations.append(observation)
        else:
            return observations, info
    raise RuntimeError(f"{MAX_RESETS_IN_A_ROW} games in a row ended in the no-ops of their start")


class SeedGames(gymnasium.Wrapper):
    """Seeds each real reset with the next of `seeds`; at None, its random stream continues."""

    def __init__(self, env: gymnasium.Env, seeds: Iterator[int | None]) -> None:
        super().__init__(env)
        self._seeds = seeds

    def reset(self, **given: Any) -> tuple[Any, Info]:
        """Reset with this game's own seed, whatever seed was given."""
        return self.env.reset(**{**given, "seed": next(self._seeds)})


class ClipActions(gymnasium.ActionWrapper):
    """Clips continuous actions to the bounds of their space, some of which may be infinite.

    They arrive as one vector, whatever the shape of their space. The environment gets an array of
    its own, which it may keep or change.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self._space: Any = env.action_space

    def action(self, action: np.ndarray) -> np.ndarray:
        space = self._space
        return action.reshape(space.shape).clip(space.low, space.high).astype(space.dtype)


class RandomStart(gymnasium.Wrapper):
    """Starts each game with a random number of no-op frames, the next of `n_noops`."""

    def __init__(self, env: gymnasium.Env, n_noops: Iterator[int]) -> None:
        super().__init__(env)
        self._n_noops = n_noops

    def reset(self, **given: Any) -> tuple[Any, Info]:
        observations, info = reset_with_noops(
            lambda: self.env.reset(**given), lambda: self.env.step(NOOP), self._n_noops
        )
        return observations[-1], info


class Max(gymnasium.Wrapper):
    """The pixelwise maximum of each frame and the one before it, because Atari sprites flicker.

    `maximum` computes it from two frames of the layer below; NumPy's maximum is right for RGB.
    """

    def __init__(self, env: gymnasium.Env, maximum: Callable[..., np.ndarray] = np.maximum) -> None:
        super().__init__(env)
        self._maximum = maximum

    def reset(self, **given: Any) -> tuple[Deferred, Info]:
        """Reset and take one no-op, so that there is a pair."""
        (first, second), info = reset_with_noops(
            lambda: self.env.reset(**given), lambda: self.env.step(NOOP), itertools.repeat(1)
        )
        self._newest = second
        return functools.partial(self._maximum, first, second), info

    def step(self, action: Any) -> Step:
        before = self._newest
        self._newest, reward, terminated, truncated, info = self.env.step(action)
        pixels = functools.partial(self._maximum, before, self._newest)
        return pixels, reward, terminated, truncated, info


class ExtractLuminanceAndScale(gymnasium.ObservationWrapper):
    """The luminance of an image, scaled to 84x84."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.observation_space = image_space(SIDE, SIDE)

    def observation(self, observation: Deferred) -> Deferred:
        return lambda: luminance_and_scale(observation())


class BlackBackground(gymnasium.ObservationWrapper):
    """Makes each image's most common shade black, and every other shade its distance from that one.

    On grey, most filters of the first convolution soon give 0 for ever (docs/pong-search.md).
    """

    def observation(self, observation: Deferred) -> Deferred:
        return lambda: on_black(observation())


class ExtractPongFeatures(gymnasium.ObservationWrapper):
    """OCD A3C's hand-made Pong features of single RGB frames; there is no Max below."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.observation_space = image_space(SIDE, SIDE)

    def observation(self, observation: np.ndarray) -> Deferred:
        return lambda: pong_features(observation)


class FrameSkip(gymnasium.Wrapper):
    """Carries out each action for `n_frames` frames, fewer at an episode's end; sums the rewards.

    `on_decision` is called first, so that a game's length includes the decision that ends it.
    """

    def __init__(
        self, env: gymnasium.Env, n_frames: int = 4, on_decision: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(env)
        self._n_frames = n_frames
        self._on_decision = on_decision

    def reset(self, **given: Any) -> tuple[np.ndarray, Info]:
        pixels, info = self.env.reset(**given)
        return pixels(), info

    def step(self, action: Any) -> Step:
        self._on_decision()
        return self.skip(action)

    def skip(self, action: Any) -> Step:
        """Carry out an action without counting a decision: for the no-ops of a reset."""
        reward_sum = 0.0
        for _ in range(self._n_frames):
            pixels, reward, terminated, truncated, info = self.env.step(action)
            reward_sum += float(reward)
            if terminated or truncated:
                break
        return pixels(), reward_sum, terminated, truncated, info


class FrameStack(gymnasium.Wrapper):
    """The last `n_images` observations as the channels of one image, newest last.

    The first stack of a game above a FrameSkip is filled by no-ops, another by its first image.
    """

    def __init__(self, env: gymnasium.Env, n_images: int = 4) -> None:
        super().__init__(env)
        self._skip = env.skip if isinstance(env, FrameSkip) else None
        self._n_images = n_images
        self.observation_space = image_space(SIDE, SIDE, n_images)

    def reset(self, **given: Any) -> tuple[np.ndarray, Info]:
        """Reset and fill the stack."""
        if (skip := self._skip) is None:
            image, info = self.env.reset(**given)
            self._images = [image] * self._n_images
        else:
            n_noops = itertools.repeat(self._n_images - 1)
            self._images, info = reset_with_noops(
                lambda: self.env.reset(**given), lambda: skip(NOOP), n_noops
            )
        return cv2.merge(self._images), info

    def step(self, action: Any) -> Step:
        image, reward, terminated, truncated, info = self.env.step(action)
        self._images = [*self._images[1:], image]
        return cv2.merge(self._images), reward, terminated, truncated, info


class EndEpisodeOnLifeLoss(gymnasium.Wrapper):
    """Ends the episode, but not the game, where a life is lost.

    A life is lost if the emulator's `lives()` falls and the game goes on. The next reset continues
    the game with the observation already seen, as in OCD A3C; Baselines steps a no-op instead.
    """

    def __init__(self, env: gymnasium.Env, emulator: Any) -> None:
        super().__init__(env)
        self._emulator = emulator
        self._lost_life = False

    def reset(self, **given: Any) -> tuple[Any, Info]:
        """Continue the game after a lost life, or else start a new one."""
        if not self._lost_life:
            self._seen = self.env.reset(**given)
            self._lives = self._emulator.lives()
        self._lost_life = False
        return self._seen

    def step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        lives = self._emulator.lives()
        self._lost_life = lives < self._lives and not (terminated or truncated)
        self._lives = lives
        self._seen = observation, info
        return observation, reward, terminated or self._lost_life, truncated, info


class ClipRewards(gymnasium.RewardWrapper):
    """Clips each reward to [-1, 1].

    Mnih et al. 2015 do so. Others take the sign, which is the same for the whole numbers that Atari
    games pay. Clipping leaves the small rewards of other environments as they are.
    """

    def reward(self, reward: Any) -> float:
        return min(max(float(reward), -1.0), 1.0)


def luminance_and_scale(image: np.ndarray, interpolation: int = cv2.INTER_LINEAR) -> np.ndarray:
    """Return an image as (84, 84): luminance, (height, width) or one channel; RGB; or RGBA."""
    if image.ndim == 3 and image.shape[2] > 1:
        image = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)  # of RGBA, too
    return cv2.resize(image, (SIDE, SIDE), interpolation=interpolation)


def on_black(image: np.ndarray) -> np.ndarray:
    """Return the distance of each pixel from the most common shade (the darkest of several)."""
    shade = np.bincount(image.ravel()).argmax()
    return cv2.absdiff(image, np.full_like(image, shade))


def pong_features(rgb: np.ndarray) -> np.ndarray:
    """Return what moves in a frame of Pong, (210, 160, 3), as white on black, (84, 84).

    We take every second pixel of rows 34 to 193, the field. It becomes white if the mean of its
    colours is above 0.4 * 255; their sum, above 0.4 * 255 * 3 = 306, needs no rounding.
    """
    brightness = rgb[34:194:2, ::2].sum(axis=-1, dtype=np.uint16)
    image = np.where(brightness > 306, np.uint8(255), np.uint8(0))
    return np.pad(image, (SIDE - image.shape[0]) // 2)


def image_space(*shape: int) -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(low=0, high=255, shape=shape, dtype=np.uint8)
