"""Full games of a policy, played as published scores are: how good is it?

A game begins with 0 to 30 no-op frames, rewards are unclipped, a lost life ends nothing, and after
108,000 frames the game is cut off. `run_checkpoint.py` and training's own evaluations both play
here.

The score of a game depends on the weights, the seed and the game's number alone, not on how many
are played at once or what was played before:

- each game has an environment of its own, made for it, and its random start, its emulator and the
  actions drawn have streams of random numbers of their own;
- each observation goes through the network by itself. In a batch, its logits could differ in their
  last bits with the batch's size, and a drawn action with them.
"""

import concurrent.futures
import contextlib
import itertools
import math
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from a3c.contract import EnvDescription, Step, Subject
from a3c.envs.make import make_env
from a3c.envs.pool import Fleet, Pool
from a3c.machine import seeding
from a3c.machine.stopping import StopFlag, Stopped, kept_from_new_threads
from a3c.play import atari_scores
from a3c.play.agent import Agent, Decision
from a3c.settings.params import Params, taken

N_GAMES = 30
MAX_N_NOOPS = 30
MAX_FRAMES = 108_000
ATARI_FPS = 60.0
# As the number of a worker, which no training has so many of: so no game here has the random
# numbers of one that was trained on, whatever the seeds.
WORKER = 1 << 16


class Played(NamedTuple):
    """One game that was played; its length in decisions of the agent."""

    number: int
    score: float
    length: int
    cut_off: bool  # by a limit of time, instead of an end of its own


class Summary(NamedTuple):
    """What is said of many games; NaN where they are too few to say it."""

    n_games: int
    mean: float
    sd: float  # of the sample, n - 1 below
    median: float
    min: float
    max: float
    human_normalised: float | None  # of the mean; None for other games than the usual 57


class OneEnvironment(Protocol):
    """An environment as `play_game` sees it; a `Pool` of one, or `EnvHere`."""

    observations: np.ndarray  # (1, 1, ...)

    @property
    def n_frames(self) -> int: ...
    def reset(self, slot: int) -> None: ...
    def step(self, actions: np.ndarray, slot: int) -> Step: ...


class EnvHere:
    """The environment of one game in this process, whose every frame is shown to `see`."""

    def __init__(self, params: Params, number: int, see: Callable[[np.ndarray], None]) -> None:
        self._env = make_env(params, WORKER, first_game=number, see=see)
        self.observations = np.empty((1, 1), object)
        self.n_frames = 0

    def reset(self, slot: int = 0) -> None:
        """Start the game."""
        self._show(self._env.reset()[0])

    def step(self, actions: np.ndarray, slot: int) -> Step:
        """Step; after its end the game must not go on."""
        observation, reward, terminated, truncated, _ = self._env.step(actions[0])
        self._show(observation)
        return Step(
            np.array([reward], np.float32),
            np.array([terminated]),
            np.array([truncated]),
            self._env.get_wrapper_attr("take_finished")(),
        )

    def close(self) -> None:
        self._env.close()

    def _show(self, observation: np.ndarray) -> None:
        self.observations = observation[None, None]
        self.n_frames = self._env.get_wrapper_attr("n_frames")


def params_of(subject: Subject, seed: int) -> Params:
    """The settings of an evaluation's environments: whole games, true rewards."""
    return Params(
        env_id=subject.env_id,
        seed=seed,
        preprocessing=taken("preprocessing", subject.preprocessing),
        max_n_noops=MAX_N_NOOPS,
        no_clip_rewards=True,
        no_end_on_life_loss=True,
    )


def frames_per_second(params: Params, description: EnvDescription) -> float:
    """How fast the game goes for a person."""
    if description.kind == "image":
        return ATARI_FPS
    with contextlib.closing(make_env(params)) as bare:
        return float(bare.metadata.get("render_fps") or ATARI_FPS)


def play_game(
    agent: Agent,
    environment: OneEnvironment,
    seed: int,
    number: int,
    *,
    stop: StopFlag | None = None,
    watch: Callable[[np.ndarray, Decision], None] = lambda observation, decision: None,
    max_frames: int = MAX_FRAMES,
) -> Played | None:
    """Play one game to its end, to max_frames, or until stopped: then it does not count.

    `watch` is told of each decision before it is carried out.
    """
    generator = seeding.generator(seed, seeding.Purpose.EVALUATION, WORKER, game=number)
    environment.reset(slot=0)
    score = 0.0
    for length in itertools.count(1):
        if stop is not None and stop.is_set():
            return None
        observation = environment.observations[0, 0]
        decision = agent.decide(observation, generator)
        watch(observation, decision)
        step = environment.step(np.array([decision.action], np.int32), slot=0)
        score += float(step.rewards[0])
        if step.terminated[0] or step.truncated[0]:
            # As Score counted it, rewards of the random start included; a game that ended within
            # its start came before.
            ended = step.games[-1]
            return Played(number, ended.score, ended.length, bool(step.truncated[0]))
        if environment.n_frames >= max_frames:
            return Played(number, score, length, True)
    raise AssertionError("counting has no end")


def play(
    agent: Agent,
    params: Params,
    number: int,
    stop: StopFlag | None = None,
    timeout_seconds: float = 60.0,
) -> Played | None:
    """Play one game in an environment process of its own; None if it was stopped."""
    subject = agent.subject
    kind, dtype = ("vector", "float32") if subject.network == "mlp" else ("image", "uint8")
    description = EnvDescription(
        *(kind, subject.observation_shape, dtype, subject.n_actions, (), 0.0)
    )
    is_stopped = stop.is_set if stop is not None else lambda: False
    fleet = Fleet(timeout_seconds=timeout_seconds, is_stopped=is_stopped)
    pool = Pool(params, description, WORKER, 1, 1, [number], fleet)
    try:
        return play_game(agent, pool, params.seed, number, stop=stop)
    except Stopped:
        return None
    finally:
        pool.close()


def play_many(
    agent: Agent, params: Params, n_games: int, n_at_once: int
) -> Generator[Played, None, None]:
    """Play games 0 to n_games - 1, some at once, each in a thread; yields each as it ends."""
    stop = StopFlag()
    with concurrent.futures.ThreadPoolExecutor(n_at_once) as players:
        try:
            with kept_from_new_threads():
                games = [
                    players.submit(play, agent, params, number, stop) for number in range(n_games)
                ]
            for game in concurrent.futures.as_completed(games):
                if (played := game.result()) is not None:
                    yield played
        finally:
            stop.set()
            players.shutdown(wait=False, cancel_futures=True)


def summarise(env_id: str, games: Sequence[Played]) -> Summary:
    """Mean, spread and extremes of the scores."""
    scores = np.array([game.score for game in games], np.float64)
    if not scores.size:
        return Summary(0, math.nan, math.nan, math.nan, math.nan, math.nan, None)
    mean = float(scores.mean())
    return Summary(
        scores.size,
        mean,
        float(scores.std(ddof=1)) if scores.size > 1 else math.nan,
        float(np.median(scores)),
        float(scores.min()),
        float(scores.max()),
        atari_scores.human_normalised(env_id, mean),
    )
