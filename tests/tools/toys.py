"""Toy environments with known frames, rewards and ends; toys_test.py tests them.

Importing this module registers them, so that `tests.tools.toys:toys/Numbers-v0` works anywhere.
"""

import ctypes
import math
import os
import pathlib
import threading
import time
from collections.abc import Sequence
from typing import Any, TypeAlias

import gymnasium
import numpy as np

N_NUMBERS = 100
_BLOCK = 16  # pixels; ten rows of ten blocks fill rows 34 to 193, the field of Pong
_TOP = 34

Beginning: TypeAlias = tuple[Any, dict[str, Any]]
Step: TypeAlias = tuple[Any, float, bool, bool, dict[str, Any]]


class Lives:
    """An emulator that only knows how many lives are left."""

    left = 0

    def lives(self) -> int:
        return self.left


def numbered_frame(number: int) -> np.ndarray:
    """A black frame (210, 160, 3) with one white block, whose place tells the number."""
    frame = np.zeros((210, 160, 3), np.uint8)
    row, column = divmod(number % N_NUMBERS, 10)
    top, left = _TOP + row * _BLOCK, column * _BLOCK
    frame[top : top + _BLOCK, left : left + _BLOCK] = 255
    return frame


def read_numbers(image: np.ndarray) -> set[int]:
    """All numbers in a frame, in a maximum of frames, or in either scaled to (84, 84)."""
    gray = image if image.ndim == 2 else image.max(axis=-1)
    y_scale, x_scale = gray.shape[0] / 210, gray.shape[1] / 160
    found = set()
    for number in range(N_NUMBERS):
        row, column = divmod(number, 10)
        y, x = _TOP + (row + 0.5) * _BLOCK, (column + 0.5) * _BLOCK
        if gray[int(y * y_scale), int(x * x_scale)] > 127:
            found.add(number)
    return found


def read_pong_numbers(image: np.ndarray) -> set[int]:
    """All numbers in a frame that went through the Pong features: half the size, a margin of 2."""
    found = set()
    for number in range(N_NUMBERS):
        row, column = divmod(number, 10)
        if image[2 + row * _BLOCK // 2 + _BLOCK // 4, 2 + column * _BLOCK // 2 + _BLOCK // 4]:
            found.add(number)
    return found


class Numbers(gymnasium.Env):
    """Shows and pays the number of each frame, 0 at reset.

    Game g lasts `game_lengths[g]` frames, or as long as the last entry, and ends by truncation if
    `truncates`. A life is lost every `frames_per_life` frames, but never the last one. `actions`
    holds the actions since the reset, `seeds` the seeds of all resets.
    """

    metadata = {"render_modes": []}
    action_space = gymnasium.spaces.Discrete(4)
    observation_space = gymnasium.spaces.Box(0, 255, (210, 160, 3), np.uint8)

    def __init__(
        self,
        game_lengths: Sequence[int] = (1000,),
        truncates: bool = False,
        n_lives: int = 1,
        frames_per_life: int = 1000,
    ) -> None:
        self.ale = Lives()
        self.number = 0
        self.game = -1
        self.actions: list[int] = []
        self.seeds: list[int | None] = []
        self._game_lengths = game_lengths
        self._truncates = truncates
        self._n_lives = n_lives
        self._frames_per_life = frames_per_life

    def get_action_meanings(self) -> list[str]:
        return ["NOOP", "FIRE", "RIGHT", "LEFT"]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Beginning:
        super().reset(seed=seed)
        self.number = 0
        self.game += 1
        self.actions = []
        self.seeds.append(seed)
        self.ale.left = self._n_lives
        return numbered_frame(0), {}

    def step(self, action: Any) -> Step:
        assert action in self.action_space
        self.actions.append(int(action))
        self.number += 1
        if self.number % self._frames_per_life == 0 and self.ale.left > 1:
            self.ale.left -= 1
        length = self._game_lengths[min(self.game, len(self._game_lengths) - 1)]
        assert self.number <= length, "stepped after the end"
        ends = self.number == length
        terminated, truncated = ends and not self._truncates, ends and self._truncates
        return numbered_frame(self.number), float(self.number), terminated, truncated, {}


class Guess(gymnasium.Env):
    """Draws 0 or 1 every `cycle` frames, and pays where the action is the number plus 1."""

    metadata = {"render_modes": []}
    action_space = gymnasium.spaces.Discrete(3)
    observation_space = gymnasium.spaces.Box(0, 255, (84, 84, 3), np.uint8)
    cycle: int
    frames_per_life: float = math.inf  # of 3 lives

    def __init__(self) -> None:
        self.ale = Lives()
        self._number = self._drawn = 0

    def get_action_meanings(self) -> list[str]:
        return ["NOOP", "LEFT", "RIGHT"]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Beginning:
        super().reset(seed=seed)
        self._number, self.ale.left = 0, 3
        self._drawn = int(self.np_random.integers(2))
        return self._frame(), {}

    def step(self, action: Any) -> Step:
        is_named = action == self._drawn + 1
        self._number += 1
        if self._number % self.cycle == 0:
            self._drawn = int(self.np_random.integers(2))
        if self._number % self.frames_per_life == 0:
            self.ale.left -= 1
        return self._frame(), float(is_named * self._pays()), self.ale.left == 0, False, {}

    def _pays(self) -> float:
        raise NotImplementedError

    def _frame(self) -> np.ndarray:
        raise NotImplementedError


class Side(Guess):
    """A fast little game that can be learned: the left or the right half of the frame is white.

    Each frame pays 1 where the action names the white half. A life is lost every 64 frames.
    """

    cycle = 16
    frames_per_life = 64

    def _pays(self) -> float:
        return 1.0

    def _frame(self) -> np.ndarray:
        frame = np.zeros((84, 84, 3), np.uint8)
        frame[:, 42 * self._drawn : 42 * (self._drawn + 1)] = 255
        return frame


DOT_CYCLE, DOT_VANISHES, DOT_PAYS_FROM = 20, 7, 12
DOT_PAYS_A_DECISION = 4 * (DOT_CYCLE - DOT_PAYS_FROM) / DOT_CYCLE / 4


class Dot(Guess):
    """A dot walks from the middle to one of two corners and vanishes; then naming the corner pays.

    In the first 7 of 20 frames the dot walks, up and left or down and right. From frame 12 on, each
    frame pays ¼. An agent that sees every fourth frame and the one before it, and acts for four,
    then sees a newest image that is empty, but the oldest of its four still shows the dot.
    """

    cycle = DOT_CYCLE

    def _pays(self) -> float:
        return 0.25 * (self._number % DOT_CYCLE >= DOT_PAYS_FROM)

    def _frame(self) -> np.ndarray:
        frame = np.zeros((84, 84, 3), np.uint8)
        within = self._number % DOT_CYCLE
        if within < DOT_VANISHES:
            place = 36 + (1 + within) * 4 * (2 * self._drawn - 1)
            frame[place : place + 12, place : place + 12] = 255
        return frame


class Vector(gymnasium.Env):
    """Shows (steps of this game, games before it) and pays 10 times the action, 5 steps a game."""

    metadata = {"render_modes": []}
    action_space: gymnasium.Space = gymnasium.spaces.Discrete(2)
    observation_space: gymnasium.Space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def __init__(self, length: int = 5, **spaces: gymnasium.Space) -> None:
        vars(self).update(spaces)
        self.seeds: list[int | None] = []
        self._length = length
        self._n_steps = 0
        self._n_games = -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Beginning:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self._n_steps = 0
        self._n_games += 1
        return np.array([0.0, self._n_games]), {}

    def step(self, action: Any) -> Step:
        if self._n_steps == 2:
            self.third_step()
        self._n_steps += 1
        observation = np.array([float(self._n_steps), self._n_games])
        return observation, 10.0 * action, self._n_steps == self._length, False, {}

    def third_step(self) -> None:
        """Toys that break do it here."""


class Drawn(Vector):
    """Shows new random numbers at each step."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Beginning:
        super().reset(seed=seed)
        return self.np_random.normal(size=2), {}

    def step(self, action: Any) -> Step:
        _, reward, *rest = super().step(action)
        return self.np_random.normal(size=2), reward, *rest


class Pushes(Drawn):
    """Takes two numbers as an action, pays 100 and their sum, and overwrites them.

    One number has unequal bounds, the other has none; the space is of float64.
    """

    action_space = gymnasium.spaces.Box(
        np.array([-1.0, -np.inf]), np.array([0.1, np.inf]), dtype=np.float64
    )

    def step(self, action: Any) -> Step:
        assert action in self.action_space
        assert action.dtype == self.action_space.dtype
        observation, _, *rest = super().step(0)
        reward = 100.0 + float(action.sum())
        action[:] = np.nan
        return observation, reward, *rest


class Multiplies(Vector):
    """Multiplies matrices that are large enough for several threads."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Beginning:
        square = np.ones((500, 500))
        assert (square @ square)[0, 0] == 500
        return super().reset(seed=seed)


class Brittle(Drawn):
    """One game in four fails at its last step."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Beginning:
        first = super().reset(seed=seed)
        self._breaks = self.np_random.integers(4) == 0
        return first

    def step(self, action: Any) -> Step:
        if self._breaks and self._n_steps == 4:
            raise RuntimeError("the last coin broke")
        return super().step(action)


class OneForAll(Drawn):
    """Its first observation, or each later one, is one number, and its space has two."""

    def __init__(self, where: str = "reset") -> None:
        super().__init__()
        self._where = where

    def reset(self, *, seed: int | None = None, options: Any = None) -> Beginning:
        seen, info = super().reset(seed=seed)
        return seen[: 1 if self._where == "reset" else 2], info

    def step(self, action: Any) -> Step:
        seen, *rest = super().step(action)
        return seen[: 1 if self._where == "step" else 2], *rest


class Painted(Drawn):
    """Pays the sum of two continuous actions, and draws, with NumPy alone, a square as bright as its step.

    Its 20 steps end with a time limit, and it has more numbers than fit on a few lines.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 40}
    action_space = gymnasium.spaces.Box(np.float32([-1, -np.inf]), np.float32([2, np.inf]))
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (12,), np.float64)

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> Beginning:
        super().reset(seed=seed)
        return self.np_random.normal(size=12), {}

    def step(self, action: Any) -> Step:
        self._n_steps += 1
        reward = float(np.sum(action))
        return self.np_random.normal(size=12), reward, False, self._n_steps == 20, {}

    def render(self) -> Any:
        return np.full((40, 40, 3), 10 * self._n_steps, np.uint8)


class Sampled(Vector):
    """Shows samples of its space, which `shown` keeps; draws a grey picture as bright as its step."""

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode: str | None = None, **spaces: gymnasium.Space) -> None:
        super().__init__(**spaces)
        self.render_mode = render_mode
        self.shown: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Beginning:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.shown.append(self.observation_space.sample())
        return self.shown[-1], {}

    def step(self, action: Any) -> Step:
        _, *rest = super().step(action)
        self.shown.append(self.observation_space.sample())
        return self.shown[-1], *rest

    def render(self) -> Any:
        return np.full((40, 40), self._n_steps, np.uint8)


class Deaf(Vector):
    """Says that it draws pictures, and does not take the mode for it."""

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self) -> None:
        super().__init__()


class Blind(gymnasium.Wrapper):
    """Hides that the environment in it draws pictures."""

    metadata = {"render_modes": []}


class Twice(gymnasium.RewardWrapper):
    """Pays twice as much."""

    def reward(self, reward: Any) -> float:
        return 2 * float(reward)


class Memory(gymnasium.ObservationWrapper):
    """Shows the memory of an Atari game instead of its frames."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(0, 255, (128,), np.uint8)

    def observation(self, observation: Any) -> np.ndarray:
        """The same number of bytes in every game."""
        emulator: Any = self.unwrapped
        return emulator.ale.getRAM()


class Search(gymnasium.Env):
    """Pays 1 where the agent reaches the target, in a room of `size` by `size`; it has no time limit.

    Its observations are a Dict of two places, and its four actions are numbered from 1.
    """

    metadata = {"render_modes": []}
    action_space = gymnasium.spaces.Discrete(4, start=1)

    def __init__(self, size: int = 3) -> None:
        place = gymnasium.spaces.MultiDiscrete([size, size])
        self.observation_space = gymnasium.spaces.Dict({"agent": place, "target": place})
        self._size = size

    def reset(self, *, seed: int | None = None, options: Any = None) -> Beginning:
        super().reset(seed=seed)
        self._agent, self._target = self.np_random.integers(self._size, size=(2, 2))
        return self._seen(), {}

    def step(self, action: Any) -> Step:
        assert action in self.action_space
        moves = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])
        self._agent = np.clip(self._agent + moves[action - 1], 0, self._size - 1)
        is_there = bool((self._agent == self._target).all())
        return self._seen(), float(is_there), is_there, False, {}

    def _seen(self) -> dict[str, np.ndarray]:
        return {"agent": self._agent, "target": self._target}


class Spoils(Vector):
    """Pays or shows a wrong value at its third step, where a game ends by a time limit; or first in
    the next game. Only where it is asked for action 1.
    """

    def __init__(self, what: str = "reward", value: float = math.nan) -> None:
        super().__init__(length=1000)
        self._what, self._value = what, value
        self._is_bad = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Beginning:
        seen, info = super().reset(seed=seed)
        if self._what == "first" and self._is_bad:
            seen[1] = self._value
        return seen, info

    def step(self, action: Any) -> Step:
        seen, *_ = super().step(action)
        self._is_bad = self._n_steps == 3 and action == 1
        is_cut_off = self._n_steps == 3 and self._what in ("last", "first")
        if self._is_bad and self._what in ("observation", "last"):
            seen[1] = self._value
        reward = self._value if self._is_bad and self._what == "reward" else 0.0
        return seen, reward, False, is_cut_off, {}


class RaisesInInit(Vector):
    """Cannot be built."""

    def __init__(self) -> None:
        raise RuntimeError("the cartridge is upside down")


class LosesConnection(Vector):
    """Cannot be built, and raises the error of a connection that was closed."""

    def __init__(self) -> None:
        raise EOFError("the game server is gone")


class RaisesInReset(Vector):
    """Cannot begin its second game."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Beginning:
        if self._n_games == 0:
            raise RuntimeError("the coin fell through")
        return super().reset(seed=seed, options=options)


class Naps(Vector):
    """Takes 0.2 s for each step."""

    def step(self, action: Any) -> Step:
        time.sleep(0.2)
        return super().step(action)


class RaisesInStep(Vector):
    def third_step(self) -> None:
        raise RuntimeError("the joystick broke")


class HangsInStep(Vector):
    """Makes the file that HANGS names, if it names one, when it hangs."""

    def third_step(self) -> None:
        if path := os.environ.get("HANGS"):
            pathlib.Path(path).touch()
        threading.Event().wait()


class HangsHoldingTheLock(Vector):
    def third_step(self) -> None:
        ctypes.PyDLL(None).pause()  # a C function that keeps the GIL


_BOX = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
_NUMBER = gymnasium.spaces.Discrete(3, start=5)


def _pixels(*shape: int, high: int = 255) -> gymnasium.Space:
    return gymnasium.spaces.Box(0, high, shape, np.uint8)


# Vector with other actions.
ACTIONS: dict[str, gymnasium.Space] = {
    "FromOne": gymnasium.spaces.Discrete(2, start=1),
    "ManyChoices": gymnasium.spaces.MultiDiscrete([2, 3]),
    "NamedActions": gymnasium.spaces.Dict({"x": _BOX}),
    "TwoArrays": gymnasium.spaces.Tuple([_BOX, _BOX]),
    # Its text has several lines.
    "Square": gymnasium.spaces.Box(-np.eye(30), np.eye(30), dtype=np.float64),
    "Number": gymnasium.spaces.Box(-1, 1, (), np.float32),
    "Nothing": gymnasium.spaces.Box(-1, 1, (0,), np.float32),
    "WholeNumbers": gymnasium.spaces.Box(-1, 1, (2,), np.int32),
}
# Sampled with these observations.
OBSERVATIONS: dict[str, gymnasium.Space] = {
    "Choice": _NUMBER,
    "Choices": gymnasium.spaces.MultiDiscrete([[2, 3], [4, 1]]),
    "Bits": gymnasium.spaces.MultiBinary(4),
    "Table": gymnasium.spaces.Box(-1, 1, (2, 2), np.float32),
    "Bytes": _pixels(128),  # as RAM
    "Counts": gymnasium.spaces.Box(-100, 100, (3,), np.int64),
    "Dictionary": gymnasium.spaces.Dict(
        {"y": gymnasium.spaces.Tuple([_NUMBER, _BOX]), "x": gymnasium.spaces.MultiBinary(2)}
    ),
    "Symbols": _pixels(7, 7, 3, high=10),
    "Camera": _pixels(96, 60, 3),
    "Transparent": _pixels(64, 64, 4),
    "Grey": _pixels(50, 90, 1),
    "Flat": _pixels(84, 84),
    "ChannelsFirst": _pixels(3, 64, 64),
    "Text": gymnasium.spaces.Text(5),
    "Graph": gymnasium.spaces.Graph(_BOX, None),
    "Told": gymnasium.spaces.Dict({"x": _BOX, "mission": gymnasium.spaces.Text(5)}),
    "Many": gymnasium.spaces.Discrete(10**9),
    "None": gymnasium.spaces.Box(0, 1, (0,), np.float32),
}
VECTORS = (
    Vector,
    Drawn,
    Pushes,
    Multiplies,
    Brittle,
    Painted,
    Deaf,
    Search,
    Spoils,
    Naps,
    OneForAll,
)
FAULTY = (RaisesInInit, LosesConnection, RaisesInReset)
THIRD_STEPS = (RaisesInStep, HangsInStep, HangsHoldingTheLock)


def _register() -> None:
    here = __name__
    # Some of these games end within the no-ops of their start.
    early: dict[str, Any] = {
        "game_lengths": (1, 70, 13, 5, 60, 44, 12, 40, 43, 90),
        "n_lives": 3,
        "frames_per_life": 20,
    }
    variants: dict[str, dict[str, Any]] = {
        "Numbers-v0": {},
        "ShortNumbers-v0": {"game_lengths": (90,)},
        "TruncatedNumbers-v0": {"game_lengths": (64,), "truncates": True},
        "NumbersWithLives-v0": {"game_lengths": (90,), "n_lives": 3, "frames_per_life": 30},
        "DiesEarly-v0": early,
        "CutOffEarly-v0": early | {"truncates": True},
    }
    for name, kwargs in variants.items():
        gymnasium.register(f"toys/{name}", f"{here}:Numbers", kwargs=kwargs)
    for toy in (Side, Dot, *VECTORS, *FAULTY, *THIRD_STEPS):
        gymnasium.register(f"toys/{toy.__name__}-v0", f"{here}:{toy.__name__}")
    for name, space in ACTIONS.items():
        gymnasium.register(f"toys/{name}-v0", f"{here}:Vector", kwargs={"action_space": space})
    for name, space in OBSERVATIONS.items():
        gymnasium.register(
            f"toys/{name}-v0", f"{here}:Sampled", kwargs={"observation_space": space}
        )
    truncated = {"max_episode_steps": 3, "kwargs": {"length": 1000}}
    gymnasium.register("toys/TruncatedVector-v0", f"{here}:Vector", **truncated)
    gymnasium.register("toys/Pushes32-v0", f"{here}:Pushes", kwargs={"action_space": _BOX})
    gymnasium.register(
        "toys/ShortCartPole-v0",
        "gymnasium.envs.classic_control.cartpole:CartPoleEnv",
        max_episode_steps=20,
    )
    for name, game, sticky_actions, more in (
        ("ShortPong", "pong", 0.0, {"max_num_frames_per_episode": 150}),
        ("ShortBreakout", "breakout", 0.25, {"max_num_frames_per_episode": 500}),
        ("BriefBreakout", "breakout", 0.0, {"max_num_frames_per_episode": 300}),
        ("RamPong", "pong", 0.0, {"obs_type": "ram"}),
        ("JoystickPong", "pong", 0.0, {"continuous": True}),
    ):
        kwargs = {"game": game, "frameskip": 1, "repeat_action_probability": sticky_actions}
        gymnasium.register(f"toys/{name}-v0", "ale_py.env:AtariEnv", kwargs=kwargs | more)


_register()
