"""Plays whole games with a policy, by the protocol of published scores.

A game begins with 0 to 30 no-op frames (and 13 more, which fill the stack), rewards are unclipped,
a lost life does not end an episode, and the game is cut off after 108,000 frames.
`run_checkpoint.py` and the evaluations during training both play here.

The score of a game depends only on the weights, the seed and the game's number, and not on what
else is played before it or beside it: each game gets a new environment, and its random start, its
emulator and its actions have random streams of their own. (`Agent` decides on each observation
alone for the same reason.)
"""

import concurrent.futures
import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from a3c.contract import EnvDescription, Subject
from a3c.envs.fleet import Fleet
from a3c.envs.pool import Pool
from a3c.machine import seeding
from a3c.machine.stopping import StopFlag, Stopped, kept_from_new_threads
from a3c.play import atari_scores
from a3c.settings.config import code_in
from a3c.settings.params import Params, taken

if TYPE_CHECKING:
    from a3c.play.agent import Agent, Decision

MAX_N_NOOPS = 30
MAX_FRAMES = 108_000
# The worker's number in the keys of the random streams. No training has so many workers, so a game
# here never shares its random numbers with a game of training, whatever the seeds.
WORKER = 1 << 16


class Played(NamedTuple):
    """One finished game."""

    number: int
    score: float
    length: int  # decisions of the agent
    cut_off: bool  # by a time limit


class Summary(NamedTuple):
    """Statistics of the scores of many games; NaN where there are too few games."""

    n_games: int
    mean: float
    sd: float  # of the sample: divided by n - 1
    median: float
    min: float
    max: float
    human_normalised: float | None  # of the mean; None where the game has no scale


def params_of(subject: Subject, seed: int) -> Params:
    """The settings of an evaluation's environments: whole games, true rewards."""
    training = Params(
        env_id=subject.env_id,
        env_kwargs=taken("env_kwargs", subject.env_kwargs),
        wrapper=taken("wrapper", subject.wrapper),
        max_episode_steps=taken("max_episode_steps", subject.max_episode_steps),
        seed=seed,
        preprocessing=taken("preprocessing", subject.preprocessing),
    )
    return whole_games(training)


def as_named(subject: Subject, given: Mapping[str, Any]) -> tuple[Subject, dict[str, str]]:
    """The subject with what the user named instead of its own (None: nothing); and what else of it
    may run code, as words of a command line.
    """
    named = {name: taken(name, value) for name, value in given.items() if value is not None}
    return subject._replace(**named), code_in(subject._asdict(), named)


def whole_games(params: Params) -> Params:
    """The same settings for an evaluation: whole games with their true rewards."""
    return dataclasses.replace(
        params,
        max_n_noops=MAX_N_NOOPS,
        no_clip_rewards=True,
        no_end_on_life_loss=True,
    )


def play_game(
    agent: "Agent",
    environment: Pool,
    seed: int,
    number: int,
    *,
    greedy: bool = False,
    stop: StopFlag | None = None,
    watch: Callable[["Decision"], None] = lambda decision: None,
    max_frames: int = MAX_FRAMES,
) -> Played | None:
    """Play one game to its end or to max_frames; None if it was stopped.

    `watch` is called with each decision before it is carried out.
    """
    generator = seeding.generator(seed, seeding.Purpose.EVALUATION, WORKER, game=number)
    environment.reset(slot=0)
    score, state = 0.0, agent.first_state
    for length in itertools.count(1):
        if stop is not None and stop.is_set():
            return None
        decision = agent.act(environment.observations[0, 0], state, greedy, generator)
        state = decision.state
        watch(decision)
        step = environment.step(decision.action[None], slot=0)
        score += float(step.rewards[0])
        if step.terminated[0] or step.truncated[0]:
            # `Score` includes the rewards of the random start. Games that ended within their random
            # starts, before or after this one, have no steps.
            ended = next(game for game in step.games if game.length)
            return Played(number, ended.score, ended.length, bool(step.truncated[0]))
        if environment.n_frames >= max_frames:
            return Played(number, score, length, True)
    raise AssertionError("itertools.count never ends")


def play(
    agent: "Agent",
    params: Params,
    number: int,
    stop: StopFlag | None = None,
    timeout_seconds: float = 60.0,
    *,
    greedy: bool = False,
    watch: Callable[["Decision"], None] = lambda decision: None,
    see: Callable[[np.ndarray], None] | None = None,
    fraction_seen: float = 1.0,
) -> Played | None:
    """Play one game in an environment process of its own; None if it was stopped.

    `see` is called with pictures of this fraction of the frames.
    """
    subject = agent.subject
    shape, n_actions = subject.observation_shape, subject.n_actions
    kind, dtype = ("vector", "float32") if subject.network == "mlp" else ("image", "uint8")
    is_continuous = subject.policy != "categorical"
    description = EnvDescription(kind, shape, dtype, n_actions, (), 0.0, is_continuous)
    stop = stop or StopFlag()
    fleet = Fleet(
        timeout_seconds=timeout_seconds,
        is_stopped=stop.is_set,
        see=see,
        fraction_seen=fraction_seen,
    )
    with contextlib.closing(Pool(params, description, WORKER, 1, [number], fleet)) as pool:
        try:
            return play_game(
                agent, pool, params.seed, number, greedy=greedy, stop=stop, watch=watch
            )
        except Stopped:
            return None


def play_many(
    agent: "Agent", params: Params, n_games: int, n_at_once: int, greedy: bool = False
) -> Generator[Played, None, None]:
    """Play games 0 to n_games - 1 in n_at_once threads; yield each game when it ends."""
    stop = StopFlag()
    with concurrent.futures.ThreadPoolExecutor(n_at_once) as players:
        try:
            with kept_from_new_threads():
                games = [
                    players.submit(play, agent, params, number, stop, greedy=greedy)
                    for number in range(n_games)
                ]
            for game in concurrent.futures.as_completed(games):
                if (played := game.result()) is not None:
                    yield played
        finally:
            stop.set()
            players.shutdown(wait=False, cancel_futures=True)


def summarise(env_id: str, games: Sequence[Played]) -> Summary:
    """Summarise the scores of games in this environment."""
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
