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
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from a3c.agent import network
from a3c.agent.worker import sample_actions
from a3c.envs import make
from a3c.envs.make import EnvDescription, EnvSettings
from a3c.envs.pool import EnvProcesses, GameResult, StepResult
from a3c.machine import seeding
from a3c.machine.stopping import StopFlag, Stopped, kept_from_new_threads
from a3c.play import atari_scores
from a3c.store import checkpoint
from a3c.store.checkpoint_files import Info, Subject

N_GAMES = 30
MAX_N_NOOPS = 30
MAX_FRAMES = 108_000
ATARI_FPS = 60.0
# As the number of a worker, which no training has so many of: so no game here has the random
# numbers of one that was trained on, whatever the seeds.
WORKER = 1 << 16


class Game(NamedTuple):
    """One game; its length in decisions of the agent."""

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


class Decision(NamedTuple):
    """What a policy made of one observation."""

    action: int
    probabilities: np.ndarray  # (n_actions,)
    value: float


class Policy:
    """A network with weights of its own. Many threads may decide at once, with equal results."""

    def __init__(
        self,
        subject: Subject,
        greedy: bool = False,
        weights: dict[str, tf.Variable] | None = None,
    ) -> None:
        """Without weights, they are zeros yet."""
        if weights is None:
            shapes = network.weight_shapes(
                subject.network, subject.observation_shape, subject.n_actions
            )
            weights = {name: tf.Variable(tf.zeros(shape)) for name, shape in shapes.items()}
        self.weights = weights
        self.subject = subject
        self._greedy = greedy
        dtype = tf.float32 if subject.network == "mlp" else tf.uint8

        def predict(observations: tf.Tensor) -> tf.Tensor:
            predictions = network.forward(subject.network, self.weights, observations)
            return tf.concat([predictions.logits, predictions.values[:, None]], axis=1)

        spec = tf.TensorSpec((1, *subject.observation_shape), dtype)
        self._predict: Any = tf.function(predict, input_signature=[spec]).get_concrete_function()

    def decide(self, observation: np.ndarray, generator: np.random.Generator) -> Decision:
        """Draw an action from the policy, or take the likeliest."""
        predictions = self._predict(tf.convert_to_tensor(observation[None])).numpy()
        logits = predictions[:, :-1]
        exponentials = np.exp(logits[0] - logits[0].max())
        if self._greedy:
            action = int(np.argmax(logits[0]))
        else:
            action = int(sample_actions(logits, generator)[0])
        return Decision(action, exponentials / exponentials.sum(), float(predictions[0, -1]))


class OneEnvironment(Protocol):
    """An environment as `play_game` sees it; `EnvProcesses` with one, or `EnvHere`."""

    observations: np.ndarray  # (1, 1, ...)
    n_frames: int

    def reset(self, slot: int = 0) -> None: ...
    def step(self, actions: np.ndarray, slot: int) -> StepResult: ...


class EnvHere:
    """The environment of one game in this process, whose every frame is shown to `see`."""

    def __init__(
        self, settings: EnvSettings, number: int, see: Callable[[np.ndarray], None]
    ) -> None:
        self._env = make.make_env(settings, WORKER, first_game=number, see=see)
        self.observations = np.empty((1, 1), object)
        self.n_frames = 0

    def reset(self, slot: int = 0) -> None:
        """Start the game."""
        self._show(self._env.reset()[0])

    def step(self, actions: np.ndarray, slot: int) -> StepResult:
        """Step; after its end the game must not go on."""
        observation, reward, terminated, truncated, _ = self._env.step(actions[0])
        self._show(observation)
        games = self._env.get_wrapper_attr("take_finished")()
        return StepResult(
            np.array([reward], np.float32),
            np.array([terminated]),
            np.array([truncated]),
            [GameResult(WORKER, 0, *game) for game in games],
        )

    def close(self) -> None:
        self._env.close()

    def _show(self, observation: np.ndarray) -> None:
        self.observations = observation[None, None]
        self.n_frames = self._env.get_wrapper_attr("n_frames")


def settings_of(subject: Subject, seed: int) -> EnvSettings:
    """How the environments of an evaluation differ from those of training."""
    return EnvSettings(
        subject.env_id,
        seed,
        preprocessing=subject.preprocessing,
        max_n_noops=MAX_N_NOOPS,
        clip_rewards=False,
        end_on_life_loss=False,
    )


def frames_per_second(settings: EnvSettings, description: EnvDescription) -> float:
    """How fast the game goes for a person."""
    if description.kind == "image":
        return ATARI_FPS
    with contextlib.closing(make.make_env(settings)) as bare:
        return float(bare.metadata.get("render_fps") or ATARI_FPS)


def load_policy(info: Info, greedy: bool = False) -> Policy:
    """The policy of a checkpoint."""
    policy = Policy(info.subject, greedy)
    checkpoint.restore_weights(info, policy.weights)
    return policy


def play_game(
    policy: Policy,
    environment: OneEnvironment,
    seed: int,
    number: int,
    *,
    stop: StopFlag | None = None,
    watch: Callable[[np.ndarray, Decision], None] = lambda observation, decision: None,
    max_frames: int = MAX_FRAMES,
) -> Game | None:
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
        decision = policy.decide(observation, generator)
        watch(observation, decision)
        step = environment.step(np.array([decision.action], np.int32), slot=0)
        score += float(step.rewards[0])
        if step.terminated[0] or step.truncated[0]:
            # As Monitor counted it, rewards of the random start included; a game that ended within
            # its start came before.
            ended = step.games[-1]
            return Game(number, ended.score, ended.length, bool(step.truncated[0]))
        if environment.n_frames >= max_frames:
            return Game(number, score, length, True)
    raise AssertionError("counting has no end")


def play(
    policy: Policy,
    settings: EnvSettings,
    number: int,
    stop: StopFlag | None = None,
    timeout_seconds: float = 60.0,
) -> Game | None:
    """Play one game in an environment process of its own; None if it was stopped."""
    subject = policy.subject
    description = EnvDescription(
        *("vector", subject.observation_shape, "float32", subject.n_actions, (), 0.0)
        if subject.network == "mlp"
        else ("image", subject.observation_shape, "uint8", subject.n_actions, (), 0.0)
    )
    processes = EnvProcesses(
        *(settings, WORKER, 1, description),
        n_slots=1,
        timeout_seconds=timeout_seconds,
        first_games=[number],
        is_stopped=stop.is_set if stop is not None else lambda: False,
    )
    try:
        return play_game(policy, processes, settings.seed, number, stop=stop)
    except Stopped:
        return None
    finally:
        processes.close()


def play_many(
    policy: Policy, settings: EnvSettings, n_games: int, n_at_once: int
) -> Generator[Game, None, None]:
    """Play games 0 to n_games - 1, some at once, each in a thread; yields each as it ends."""
    stop = StopFlag()
    with concurrent.futures.ThreadPoolExecutor(n_at_once) as players:
        try:
            with kept_from_new_threads():
                games = [
                    players.submit(play, policy, settings, number, stop)
                    for number in range(n_games)
                ]
            for game in concurrent.futures.as_completed(games):
                if (played := game.result()) is not None:
                    yield played
        finally:
            stop.set()
            players.shutdown(wait=False, cancel_futures=True)


def summarise(env_id: str, games: Sequence[Game]) -> Summary:
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
