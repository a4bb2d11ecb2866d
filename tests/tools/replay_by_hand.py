"""The preprocessing of any environment replayed by hand, to the pixel.

Two emulators get the same actions. One is under the layers of `a3c/envs/wrappers.py`, and only what
the agent gets from it is looked at. The other is bare (for Atari, ale_py's own interface) and
recorded frame by frame. From this recording alone `ByHand` works out, slowly, what the agent should
have got by the rules below. Nothing here knows how the layers work, and only `play` imports `a3c`.

- A game begins with a random number of no-ops, 0 to 30, and 13 more: one for a pair of frames, and
  three times four for four images. If it ends during these, the next game begins with its own
  number of no-ops.
- A decision is carried out for four frames, or fewer where the game ends. An image is the maximum
  of a decision's last two frames, gray, 84×84; an observation is the last four images. On black,
  each pixel of an image is its distance from the image's most common shade, the darkest of several.
- The images of the start are of the frames 0 and 1, 4 and 5, 8 and 9, 12 and 13 after the random
  no-ops.
- An episode ends with the game, or with a decision that costs a life (lives are compared between
  decisions; those lost in the start do not count). After a lost life the game goes on, and the next
  episode's first observation is the one already seen.
- The reward is the sum over the decision's frames, clipped to [−1, 1].
- A game's row has the rewards of all its frames, unclipped, and the number of its decisions.

Where observations are vectors, a decision is one step, and the agent gets what the environment
returns, with observations in float32. Rewards are not clipped, and each game has its own seed.
"""

import importlib
from typing import Any, NamedTuple

import ale_py
import cv2
import gymnasium
import numpy as np

N_FRAMES_KEPT = 20  # no observation goes back further
# The numbers of the streams of random numbers, as golden results have them; see a3c/machine/seeding.py.
NOOPS, EMULATOR = 2, 3


class Frame(NamedTuple):
    """What a bare emulator shows and says after one frame."""

    rgb: np.ndarray
    reward: float
    lives: int
    terminated: bool
    truncated: bool


class Atari:
    """An Atari game through ale_py's own interface, set up as the environment's id says."""

    def __init__(self, kwargs: dict[str, Any]) -> None:
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.ale = ale_py.ALEInterface()
        self.ale.setFloat("repeat_action_probability", kwargs["repeat_action_probability"])
        self.ale.setInt("max_num_frames_per_episode", kwargs["max_num_frames_per_episode"])
        assert not kwargs.get("full_action_space")
        self._rom = ale_py.roms.get_rom_path(kwargs["game"])
        self.ale.loadROM(self._rom)
        self._actions = self.ale.getMinimalActionSet()
        self.n_actions = len(self._actions)

    def reset(self, seed: int | None) -> Frame:
        if seed is not None:  # a signed 32-bit number, used when a ROM is loaded
            word = np.random.SeedSequence(seed).generate_state(2)[1:]
            self.ale.setInt("random_seed", int(word.view(np.int32)[0]))
            self.ale.loadROM(self._rom)
        self.ale.reset_game()
        return self._frame(0)

    def act(self, action: int) -> Frame:
        return self._frame(self.ale.act(self._actions[action]))

    def _frame(self, reward: int) -> Frame:
        return Frame(
            self.ale.getScreenRGB().copy(),
            float(reward),
            self.ale.lives(),
            self.ale.game_over(with_truncation=False),
            self.ale.game_truncated(),
        )


class Toy:
    """A second environment of the same id, for frames that are not Atari's."""

    def __init__(self, name: str) -> None:
        self._env: Any = gymnasium.make(name, disable_env_checker=True).unwrapped
        self.n_actions = int(self._env.action_space.n)

    def reset(self, seed: int | None) -> Frame:
        rgb, _ = self._env.reset(seed=seed)
        return Frame(rgb.copy(), 0.0, self._env.ale.lives(), False, False)

    def act(self, action: int) -> Frame:
        rgb, reward, terminated, truncated, _ = self._env.step(action)
        return Frame(rgb.copy(), reward, self._env.ale.lives(), terminated, truncated)


def spec_of(env_id: str) -> Any:
    """What Gymnasium knows of an id, whose module is imported."""
    module, _, name = env_id.rpartition(":")
    gymnasium.register_envs(ale_py)
    if module:
        importlib.import_module(module)
    return gymnasium.spec(name)


def bare_emulator(env_id: str) -> "Atari | Toy":
    spec, name = spec_of(env_id), env_id.rpartition(":")[2]
    return Atari(spec.kwargs) if spec.entry_point == "ale_py.env:AtariEnv" else Toy(name)


class Row(NamedTuple):
    """A game that ended."""

    score: float
    length: int


class Seen(NamedTuple):
    """What the agent gets for one decision, and at a reset."""

    observation: np.ndarray
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False


def stream(purpose: int, seed: int, worker: int, env: int, game: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=(purpose, worker, env, game))


def seed_of(purpose: int, seed: int, worker: int, env: int, game: int) -> int:
    return int(stream(purpose, seed, worker, env, game).generate_state(1)[0])


class VectorsByHand:
    """As ByHand, for vectors: a second environment of the same id."""

    def __init__(self, env_id: str, seed: int, worker: int, env: int) -> None:
        self._env: Any = gymnasium.make(spec_of(env_id), disable_env_checker=True)
        self.n_actions = int(self._env.action_space.n)
        self.rows: list[Row] = []
        self.n_frames = self.n_lives_lost = 0
        self._key, self._game = (seed, worker, env), 0
        self._rewards: list[float] = []

    def reset(self) -> Seen:
        seen, _ = self._env.reset(seed=seed_of(EMULATOR, *self._key, self._game))
        self._game += 1
        self._rewards = []
        return Seen(np.array(seen, np.float32))

    def step(self, action: int) -> Seen:
        seen, reward, terminated, truncated, _ = self._env.step(action)
        self.n_frames += 1
        self._rewards.append(float(reward))
        if terminated or truncated:
            self.rows.append(Row(sum(self._rewards), len(self._rewards)))
        return Seen(np.array(seen, np.float32), float(reward), terminated, truncated)


class ByHand:
    """What environment `env` of a worker should give the agent, worked out from a recording."""

    def __init__(
        self,
        env_id: str,
        seed: int,
        worker: int = 0,
        env: int = 0,
        first_game: int = 0,
        *,
        clips: bool = True,
        ends_on_life_loss: bool = True,
        on_black: bool = False,
    ) -> None:
        self.emulator = bare_emulator(env_id)
        self.n_actions = self.emulator.n_actions
        self.rows: list[Row] = []
        self.n_frames = self.n_lives_lost = self.n_false_starts = 0
        self._key = (seed, worker, env)
        self._game = self._first_game = first_game
        self._clips, self._ends_on_life_loss, self._on_black = clips, ends_on_life_loss, on_black
        # The recording of one game, and where in it the images and decisions ended.
        self._frames: list[Frame] = []
        self._image_ends: list[int] = []
        self._decision_ends: list[int] = []
        self._goes_on = False

    def reset(self) -> Seen:
        if self._goes_on:
            self._goes_on = False
            return Seen(self._observation())
        while not self._starts():
            self.n_false_starts += 1
            self.rows.append(self._row())
        return Seen(self._observation())

    def step(self, action: int) -> Seen:
        for _ in range(4):
            last = self._record(action)
            if last.terminated or last.truncated:
                break
        before = self._decision_ends[-1]
        end = len(self._frames) - 1
        self._decision_ends.append(end)
        self._image_ends.append(end)

        reward = sum(frame.reward for frame in self._frames[before + 1 :])
        if self._clips:
            reward = min(1.0, max(-1.0, reward))
        game_ended = last.terminated or last.truncated
        lost_life = last.lives < self._frames[before].lives and not game_ended
        self.n_lives_lost += lost_life
        self._goes_on = lost_life and self._ends_on_life_loss
        if game_ended:
            self.rows.append(self._row())
        return Seen(self._observation(), reward, last.terminated or self._goes_on, last.truncated)

    def _starts(self) -> bool:
        """Begin the next game; False if it ends before the agent sees it."""
        seed = None
        if isinstance(self.emulator, Toy) or self._game == self._first_game:
            seed = seed_of(EMULATOR, *self._key, self._game)
        n_noops = int(np.random.default_rng(stream(NOOPS, *self._key, self._game)).integers(0, 31))
        self._game += 1
        self._frames = [self.emulator.reset(seed)]
        self._decision_ends = []
        for _ in range(n_noops + 13):
            frame = self._record(0)
            if frame.terminated or frame.truncated:
                return False
        self._image_ends = [n_noops + 1, n_noops + 5, n_noops + 9, n_noops + 13]
        self._decision_ends = [n_noops + 13]
        return True

    def _record(self, action: int) -> Frame:
        frame = self.emulator.act(action)
        self.n_frames += 1
        self._frames.append(frame)
        if len(self._frames) > N_FRAMES_KEPT:  # a whole game's pixels would fill the memory
            old = -N_FRAMES_KEPT - 1
            self._frames[old] = self._frames[old]._replace(rgb=np.empty(0))
        return frame

    def _observation(self) -> np.ndarray:
        images = [self._image(end) for end in self._image_ends[-4:]]
        return np.stack(images, axis=-1)

    def _image(self, end: int) -> np.ndarray:
        newest, before = self._frames[end].rgb, self._frames[end - 1].rgb
        rgb = np.where(newest > before, newest, before)
        gray = cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)
        image = cv2.resize(gray, (84, 84), interpolation=cv2.INTER_LINEAR)
        if not self._on_black:
            return image
        shades, counts = np.unique(image, return_counts=True)
        distances = np.abs(image.astype(int) - int(shades[counts.argmax()]))
        return distances.astype(np.uint8)

    def _row(self) -> Row:
        n_decisions = max(0, len(self._decision_ends) - 1)
        return Row(sum(frame.reward for frame in self._frames), n_decisions)


def assert_same(actual: Seen, expected: Seen, what: str) -> None:
    __tracebackhide__ = True
    assert actual[1:] == expected[1:], f"{what}: {actual[1:]} instead of {expected[1:]}"
    assert actual.observation.dtype == expected.observation.dtype, what
    np.testing.assert_array_equal(actual.observation, expected.observation, err_msg=what)


def play(
    env_id: str,
    n_steps: int,
    seed: int = 0,
    worker: int = 0,
    env: int = 0,
    reset_at: int = -1,
    on_black: bool = False,
) -> ByHand | VectorsByHand:
    """Play random actions through the layers and by hand; AssertionError where they differ.

    The game of step `reset_at` is broken off, and does not count.
    """
    from a3c.envs.make import make_env
    from a3c.settings.params import Params

    actions = np.random.default_rng(seed)
    preprocessing = "black" if on_black else "generic"
    made = make_env(Params(env_id, seed=seed, preprocessing=preprocessing), worker, env)
    emulator: Any = made.unwrapped
    is_vector = len(made.observation_space.shape or ()) == 1
    by_hand: ByHand | VectorsByHand
    if is_vector:
        by_hand = VectorsByHand(env_id, seed, worker, env)
    else:
        by_hand = ByHand(env_id, seed, worker, env, on_black=on_black)
    try:
        assert_same(Seen(made.reset()[0]), by_hand.reset(), "first observation")
        for step in range(n_steps):
            action = int(actions.integers(by_hand.n_actions))
            observation, reward, terminated, truncated, _ = made.step(action)
            seen = Seen(observation, reward, terminated, truncated)
            assert_same(seen, by_hand.step(action), f"step {step}")
            if isinstance(by_hand, ByHand) and isinstance(by_hand.emulator, Atari):
                np.testing.assert_array_equal(
                    emulator.ale.getRAM(), by_hand.emulator.ale.getRAM(), f"step {step}: RAM"
                )
            if terminated or truncated:
                assert_same(Seen(made.reset()[0]), by_hand.reset(), f"reset at step {step}")
            elif step == reset_at:
                assert_same(Seen(made.reset()[0]), by_hand.reset(), "reset within a game")
        games = made.get_wrapper_attr("take_finished")()
    finally:
        made.close()
    assert {(game.worker, game.env) for game in games} <= {(worker, env)}
    assert [Row(game.score, game.length) for game in games] == by_hand.rows, "games"
    return by_hand
