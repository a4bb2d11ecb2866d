"""From emulator frames to what the agent sees: one wrapper for each step.

The paper names no preprocessing of its own; it is that of Mnih et al. 2015 ("Methods,
Preprocessing"): the maximum of two consecutive frames against flicker, luminance, 84x84, every
fourth frame, four of those stacked. Here is what becomes of the frames of one game. Frame 0 is the
one after the random start, `m` is a maximum of two frames, `|` a decision of the agent:

    frames         0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 ...
    Max            m=0,1   m=4,5   m=8,9    m=12,13     m=16,17     m=20,21
    FrameSkip      0       1       2        3     |     4     |     5
    FrameStack     [m0,1 m4,5 m8,9 m12,13] |  [m4,5 m8,9 m12,13 m16,17] |  [m8,9 ...

So observation n of the skipped stream is the maximum of frames 4n and 4n+1, and a decision is
carried out for the frames 4n+2 ... 4n+5 that lead to the next observation. Max takes one no-op at
reset to have a pair (frame 1), FrameStack three skipped ones to have four observations (up to
frame 13).

Frames that nobody sees cost little besides the emulator's time: from Max (for Pong's features, from
these) up to FrameSkip, layers hand on a `Deferred` observation, a function that makes the pixels
when called, and FrameSkip calls only its last. A frame must therefore stay as it is: the emulator
must return a new array each step, as `ale.getScreen()` and `getScreenRGB()` do.
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
# A game that ends this often during the no-ops of its start will never be playable.
MAX_RESETS_IN_A_ROW = 100

Deferred = Callable[[], np.ndarray]
Info = dict[str, Any]
Step = tuple[Any, Any, bool, bool, Info]


class NeverStarts(Exception):
    """Each game ended during the no-ops of its start."""


def reset_with_noops(
    reset: Callable[[], tuple[Any, Info]], noop: Callable[[], Step], n_noops: Iterator[int]
) -> tuple[list[Any], Info]:
    """Reset, take the next of `n_noops` no-ops, and begin anew where the game ends in them.

    Returns all observations, that of the reset first.
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
    raise NeverStarts(
        f"{MAX_RESETS_IN_A_ROW} games in a row ended during the no-ops of their start"
    )


class SeedGames(gymnasium.Wrapper):
    """Seeds each real reset with the next of `seeds`; None lets the emulator draw on."""

    def __init__(self, env: gymnasium.Env, seeds: Iterator[int | None]) -> None:
        super().__init__(env)
        self._seeds = seeds

    def reset(self, **given: Any) -> tuple[Any, Info]:
        """Reset with this game's own seed; a seed given from above does not count."""
        return self.env.reset(**{**given, "seed": next(self._seeds)})


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
    """The pixelwise maximum of each frame and the one before it: Atari sprites flicker.

    `maximum` makes it of two frames as the layer below hands them on; for RGB, plainly.
    """

    def __init__(
        self,
        env: gymnasium.Env,
        maximum: Callable[[np.ndarray, np.ndarray], np.ndarray] = np.maximum,
    ) -> None:
        super().__init__(env)
        self._maximum = maximum
        self._newest: np.ndarray = np.empty(0)

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
    """Luminance of a deferred image, scaled to 84x84, deferred in turn."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.observation_space = _image_space(SIDE, SIDE)

    def observation(self, observation: Deferred) -> Deferred:
        return lambda: luminance_and_scale(observation())


class ExtractPongFeatures(gymnasium.ObservationWrapper):
    """OCD A3C's hand-made Pong features of an RGB frame, deferred; there is no Max below it."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.observation_space = _image_space(SIDE, SIDE)

    def observation(self, observation: np.ndarray) -> Deferred:
        return lambda: pong_features(observation)


class FrameSkip(gymnasium.Wrapper):
    """Carries out each action for `n_frames` frames and sums up their rewards.

    Stops at the end of an episode. Each decision is reported to `on_decision` before it is carried
    out, so that the game it ends is reported with it.
    """

    def __init__(
        self,
        env: gymnasium.Env,
        n_frames: int = 4,
        on_decision: Callable[[], None] = lambda: None,
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
        """Carry out an action that is no decision of the agent's: the no-ops of a reset."""
        reward_sum = 0.0
        for _ in range(self._n_frames):
            pixels, reward, terminated, truncated, info = self.env.step(action)
            reward_sum += float(reward)
            if terminated or truncated:
                break
        return pixels(), reward_sum, terminated, truncated, info


class FrameStack(gymnasium.Wrapper):
    """The last `n_images` observations of a FrameSkip as the channels of one image, newest last."""

    def __init__(self, env: FrameSkip, n_images: int = 4) -> None:
        super().__init__(env)
        self._skip = env.skip
        self._images: list[np.ndarray] = []
        self._n_images = n_images
        self.observation_space = _image_space(SIDE, SIDE, n_images)

    def reset(self, **given: Any) -> tuple[np.ndarray, Info]:
        """Reset and take no-op steps until the stack is full."""
        n_noops = itertools.repeat(self._n_images - 1)
        self._images, info = reset_with_noops(
            lambda: self.env.reset(**given), lambda: self._skip(NOOP), n_noops
        )
        return cv2.merge(self._images), info

    def step(self, action: Any) -> Step:
        image, reward, terminated, truncated, info = self.env.step(action)
        self._images = [*self._images[1:], image]
        return cv2.merge(self._images), reward, terminated, truncated, info


class EndEpisodeOnLifeLoss(gymnasium.Wrapper):
    """Ends the episode, not the game, where a life is lost.

    A life is lost where the emulator's `lives()` falls and the game goes on. The next reset then
    continues the game with the observation already seen, as OCD A3C does; Baselines steps a no-op
    there instead.
    """

    def __init__(self, env: gymnasium.Env, emulator: Any) -> None:
        super().__init__(env)
        self._emulator = emulator
        self._lives = 0
        self._lost_life = False
        self._observation: Any = None
        self._info: dict[str, Any] = {}

    def reset(self, **given: Any) -> tuple[Any, Info]:
        """Go on after a lost life; otherwise start a new game."""
        if self._lost_life:
            self._lost_life = False
            return self._observation, self._info
        observation, info = self.env.reset(**given)
        self._lives = self._emulator.lives()
        return observation, info

    def step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        lives = self._emulator.lives()
        self._lost_life = lives < self._lives and not (terminated or truncated)
        self._lives = lives
        self._observation, self._info = observation, info
        return observation, reward, terminated or self._lost_life, truncated, info


class ClipRewards(gymnasium.RewardWrapper):
    """Clips each reward to [-1, 1].

    Mnih et al. 2015 take the sign. Scores of Atari games are whole numbers, for which the two are
    the same; clipping leaves the small rewards of other environments as they are.
    """

    def reward(self, reward: Any) -> float:
        return min(max(float(reward), -1.0), 1.0)


def luminance_and_scale(image: np.ndarray) -> np.ndarray:
    """Return the luminance of an RGB image, (height, width, 3), as (84, 84), bilinear.

    What has no colours, (height, width), is luminance already.
    """
    gray = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) if image.ndim == 3 else image
    return cv2.resize(gray, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)


def pong_features(rgb: np.ndarray) -> np.ndarray:
    """Return what moves in a frame of Pong, (210, 160, 3), as white on black, (84, 84).

    The field is rows 34 to 193; of it every second pixel, white where the mean of red, green and
    blue is above 0.4 of full. That is a sum above 0.4 * 255 * 3 = 306, which integers say exactly.
    """
    brightness = rgb[34:194:2, ::2].sum(axis=-1, dtype=np.uint16)
    image = np.where(brightness > 306, np.uint8(255), np.uint8(0))
    return np.pad(image, (SIDE - image.shape[0]) // 2)


def _image_space(*shape: int) -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(low=0, high=255, shape=shape, dtype=np.uint8)
