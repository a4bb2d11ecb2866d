"""Makes one environment, and runs the environments of one worker in processes of their own.

The order of the layers is the order of the lines in `_preprocess`. Every random draw of
environment number `env` of a worker derives from the run's seed, these two numbers and the number
of the game; see seeding.py.

Nothing here imports TensorFlow, so neither do the environment processes, which load this module.
"""

import collections
import contextlib
import dataclasses
import difflib
import functools
import importlib
import itertools
import pathlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import ale_py
import gymnasium
import numpy as np
from ale_py.env import AtariEnv
from gymnasium.wrappers import DtypeObservation

from a3c import colours, debug_wrappers, preprocessing, seeding
from a3c.env_process import Answer, EnvError, EnvProcess, RestartLimit, SharedObservations
from a3c.monitor import Game, Monitor, cut_back, read_n_rows

ATARI = "ale_py.env:AtariEnv"
SUPPORTED = (
    "supported are discrete actions with either Atari frames (*NoFrameskip-v4, ALE/*-v5) "
    "or vector observations (a Box of floats of one dimension)"
)


class UnsupportedEnv(Exception):
    """An environment that cannot be trained on, and why, in one line."""


@dataclasses.dataclass(frozen=True)
class EnvSettings:
    """Everything that a process needs to make its environment."""

    env_id: str
    seed: int
    preprocessing: str = "generic"
    max_n_noops: int = 30
    clip_rewards: bool = True
    end_on_life_loss: bool = True
    number_frames: bool = False
    monitor_dir: str | None = None
    t_start: float = 0.0

    def in_run(self, monitor_dir: str, t_start: float) -> "EnvSettings":
        """Return the settings of a run that began at `t_start`, with the folder for its scores."""
        return dataclasses.replace(self, monitor_dir=monitor_dir, t_start=t_start)

    def monitor_path(self, worker: int, env: int) -> pathlib.Path | None:
        """Return the file for one environment's scores, if they are to be kept."""
        if self.monitor_dir is None:
            return None
        return pathlib.Path(self.monitor_dir) / f"{worker}.{env}.monitor.csv"


class EnvDescription(NamedTuple):
    """What the network and the run folder must know of an environment."""

    kind: str  # "image" or "vector"
    observation_shape: tuple[int, ...]
    observation_dtype: str
    n_actions: int
    action_meanings: tuple[str, ...]
    sticky_actions: float


def describe_env(settings: EnvSettings) -> EnvDescription:
    """Build one environment, look at it, close it; UnsupportedEnv if it cannot be trained on."""
    with contextlib.closing(make_env(settings)) as env:
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
    settings: EnvSettings,
    worker: int = 0,
    env: int = 0,
    first_game: int = 0,
    see: Callable[[np.ndarray], None] | None = None,
    unwritten: Sequence[Game] = (),
) -> gymnasium.Env:
    """Make environment `env` of worker `worker`; its first reset starts game `first_game`.

    `see` is called with every frame in colour; `unwritten` are games that its file lacks.
    """
    base = _make_base(settings.env_id)
    is_image = _check_supported(settings, base)
    if see is not None and not is_image:
        base = _make_rendering(settings.env_id, base)
    path = settings.monitor_path(worker, env)
    monitor = Monitor(
        base, settings.env_id, path, settings.t_start, not is_image, unwritten=unwritten
    )
    key = (settings.seed, worker, env, first_game)
    seeds = _emulator_seeds(*key, every_game=not isinstance(base.unwrapped, AtariEnv))
    seeded: gymnasium.Env = preprocessing.SeedGames(monitor, seeds)
    if see is not None:
        seeded = debug_wrappers.WatchFrames(seeded, see, _picture_of(base, is_image))
    if is_image:
        return _preprocess(seeded, settings, _n_noops(*key, settings.max_n_noops), monitor)
    if base.observation_space.dtype == np.float32:
        return seeded
    with warnings.catch_warnings():  # Of the bounds' loss of precision.
        warnings.simplefilter("ignore", UserWarning)
        return DtypeObservation(seeded, np.float32)


def _preprocess(
    env: gymnasium.Env, settings: EnvSettings, n_noops: Iterator[int], monitor: Monitor
) -> gymnasium.Env:
    emulator: Any = env.unwrapped
    in_numbers = False
    if _is_atari(env):
        # What looks at colours needs RGB, and so do the games in colours that are not ours.
        plain = settings.preprocessing == "generic" and not settings.number_frames
        in_numbers = plain and colours.has_ntsc_colours(emulator.ale)
        layer = colours.ColourNumbers if in_numbers else colours.Rgb
        env = layer(env, emulator.ale)
    if settings.number_frames:
        env = debug_wrappers.NumberFrames(env)
    env = preprocessing.RandomStart(env, n_noops)
    if settings.preprocessing == "pong":
        env = preprocessing.ExtractPongFeatures(env)
    else:
        env = preprocessing.Max(env, colours.luminance_of_maximum if in_numbers else np.maximum)
        env = preprocessing.ExtractLuminanceAndScale(env)
    env = preprocessing.FrameSkip(env, on_decision=monitor.count_decision)
    env = preprocessing.FrameStack(env)
    if settings.end_on_life_loss:
        env = preprocessing.EndEpisodeOnLifeLoss(env, emulator.ale)
    if settings.clip_rewards:
        env = preprocessing.ClipRewards(env)
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

    A seeded reset of an Atari game reloads its ROM, 150 ms against 6 ms, and only the sticky
    actions of v5 draw from the stream: there, once is enough.
    """
    for game in itertools.count(first_game):
        key = (run_seed, seeding.Purpose.EMULATOR, worker, env, game)
        wanted = every_game or game == first_game
        yield int(seeding.seed_sequence(*key).generate_state(1)[0]) if wanted else None


def _make_rendering(env_id: str, base: gymnasium.Env) -> gymnasium.Env:
    """Make it anew, so that it draws what its numbers say."""
    base.close()
    if "rgb_array" not in base.metadata.get("render_modes", ()):
        raise UnsupportedEnv(f"{env_id} cannot be shown: it draws no pictures")
    return _make_base(env_id, render_mode="rgb_array")


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
        # A copy: the registry's own spec must keep its settings for everybody else. Made by its
        # spec, an old id also brings no remark that there is a newer one.
        spec = dataclasses.replace(gymnasium.spec(name))
    except (ImportError, TypeError, ValueError, gymnasium.error.Error) as error:
        raise UnsupportedEnv(_explain_unknown(env_id, error)) from error
    spec.order_enforce = False
    spec.disable_env_checker = True
    if spec.entry_point == ATARI:
        if spec.kwargs.get("obs_type", "rgb") != "rgb":
            raise UnsupportedEnv(f"{env_id} shows no frames: {SUPPORTED}")
        # The cheapest, and nobody sees it: colours.py takes the screen from the emulator itself.
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
    name = env_id.rpartition(":")[2]
    by_lower_case = {known.lower(): known for known in gymnasium.registry}
    nearest = difflib.get_close_matches(name.lower(), by_lower_case, n=3, cutoff=0.5)
    hint = " or ".join(by_lower_case[known] for known in nearest) or "another"
    return f"unknown environment {env_id}: did you mean {hint}?"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _check_supported(settings: EnvSettings, env: gymnasium.Env) -> bool:
    """Return whether observations are images; UnsupportedEnv if not these and not vectors."""
    actions, observations = env.action_space, env.observation_space
    if not isinstance(actions, gymnasium.spaces.Discrete) or actions.start != 0:
        raise UnsupportedEnv(f"{settings.env_id} has actions {actions}: {SUPPORTED}")
    shape, dtype = _shape_and_dtype(env)
    is_vector = len(shape) == 1 and np.issubdtype(dtype, np.floating)
    is_frame = len(shape) == 3 and shape[2] == 3 and dtype == np.uint8
    if not is_vector and not (is_frame and _is_like_atari(env.unwrapped)):
        raise UnsupportedEnv(f"{settings.env_id} has observations {observations}: {SUPPORTED}")
    if settings.preprocessing == "pong" and shape != (210, 160, 3):
        raise UnsupportedEnv(
            f"--preprocessing pong is for frames of Pong, not for {settings.env_id}'s observations"
        )
    return is_frame


def _shape_and_dtype(env: gymnasium.Env) -> tuple[tuple[int, ...], Any]:
    """Of observations as our layers see them; no shape where there are no arrays."""
    if _is_atari(env):
        emulator: Any = env.unwrapped
        return (*emulator.ale.getScreenDims(), 3), np.uint8
    if isinstance(env.observation_space, gymnasium.spaces.Box):
        return env.observation_space.shape, env.observation_space.dtype
    return (), None


def _is_atari(env: gymnasium.Env) -> bool:
    """Return whether this is a game of the emulator as it is, with nothing of others' around it."""
    return env.spec is not None and env.spec.entry_point == ATARI


def _is_like_atari(emulator: Any) -> bool:
    """Return whether the emulator has what the layers ask of it: a no-op and lives."""
    try:
        is_noop = emulator.get_action_meanings()[preprocessing.NOOP] == "NOOP"
        return is_noop and callable(emulator.ale.lives)
    except (AttributeError, IndexError):
        return False


class GameResult(NamedTuple):
    """One game that really ended, as Monitor saw it."""

    worker: int
    env: int
    score: float
    length: int
    seconds: float


class Replaced(NamedTuple):
    """A process that broke; the games of its environments were abandoned for new ones."""

    envs: Sequence[int]
    why: str


class StepResult(NamedTuple):
    """What a step of K environments brought, besides observations; arrays are (K,)."""

    rewards: np.ndarray  # float32
    terminated: np.ndarray  # bool
    truncated: np.ndarray  # bool
    games: list[GameResult]
    replaced: Sequence[Replaced] = ()  # since the last step; they got no reward and no end now


class EnvProcesses:
    """The K environments of one worker, stepped together, in processes of their own.

    Used by one thread at a time. With a `restart_limit`, a process that dies, hangs or raises is
    replaced: a new one begins new games in its environments' place, and the next step says so.
    What the broken one was asked for is lost, a game that ended just then included, whose row is
    taken out of the monitor file again. Without a limit, or beyond it, a broken process is an EnvError,
    after which only `close` makes sense.

    observations: (n_slots, K, *shape), shared memory: `step(actions, slot)` fills one slot.
    final_observations: (K, *shape): where an episode was truncated in the last step, its true last
        observation (the slot already holds the first of the next episode).
    n_frames: frames stepped so far, resets included (vectors: steps).
    next_games: of each environment, the number of the game with which a run that stopped here would
        go on: the one under way where no step of it has been taken, else the one after it.
    """

    def __init__(
        self,
        settings: EnvSettings,
        worker: int,
        n_envs: int,
        description: EnvDescription,
        n_slots: int,
        timeout_seconds: float = 60.0,
        first_games: Sequence[int] | None = None,
        restart_limit: RestartLimit | None = None,
        is_stopped: Callable[[], bool] = lambda: False,
        n_processes: int | None = None,
    ) -> None:
        """Start the processes; they build their environments after this has returned.

        Environments are spread over `n_processes`, or each has its own. What they do does not
        depend on it.
        Once `is_stopped`, waiting for an answer ends with `stopping.Stopped`.
        """
        self._memory = SharedObservations(
            n_slots, n_envs, description.observation_shape, description.observation_dtype
        )
        self.observations, self.final_observations = self._memory.views()
        self.n_frames = 0
        self.next_games = [*(first_games or [0] * n_envs)]
        self._settings, self._worker = settings, worker
        self._timeout_seconds, self._is_stopped = timeout_seconds, is_stopped
        self._restart_limit = restart_limit
        self._ready = False
        # Of each environment: the number of the game under way, the games in its monitor file that
        # we heard of, and the frames of the processes that it has outlived.
        self._games_under_way = list(self.next_games)
        self._monitor_paths = [settings.monitor_path(worker, env) for env in range(n_envs)]
        self._n_rows = [read_n_rows(path) if path else 0 for path in self._monitor_paths]
        # The last of these, which a process that dies while its disk is full has not written.
        self._latest_games = [collections.deque[Game](maxlen=1000) for _ in range(n_envs)]
        # Those of them that a process could not write before it broke.
        self._unwritten: list[list[Game]] = [[] for _ in range(n_envs)]
        self._n_frames_before = [0] * n_envs
        self._n_frames_of_process = [0] * n_envs
        self._replaced: list[Replaced] = []
        shares = np.array_split(range(n_envs), n_processes or n_envs)
        self._shares = [range(share[0], share[-1] + 1) for share in shares]
        self._processes = [self._start(share) for share in self._shares]

    @property
    def pids(self) -> list[int]:
        """The process ids, environment 0's first."""
        return [process.pid for process in self._processes]

    def wait_until_ready(self) -> None:
        """Wait until every environment is built; an error in building is raised here."""
        if not self._ready:
            self._receive()
            self._ready = True

    def reset(self, slot: int = 0) -> None:
        """Start a new game everywhere.

        Games that end during the no-ops of their start come with the next step's.
        """
        self.wait_until_ready()
        for process in self._processes:
            process.request_reset(slot)
        self._receive(slot)

    def step(self, actions: np.ndarray, slot: int) -> StepResult:
        """Step every environment; one whose episode ends is reset in the same step."""
        of_all = actions.tolist()
        for process, share in zip(self._processes, self._shares, strict=True):
            process.request_step(slot, of_all[share.start : share.stop])
        answers = self._receive(slot, is_step=True)
        replaced, self._replaced = self._replaced, []
        return StepResult(
            rewards=np.array([answer.reward for answer in answers], np.float32),
            terminated=np.array([answer.terminated for answer in answers], np.bool_),
            truncated=np.array([answer.truncated for answer in answers], np.bool_),
            games=[
                GameResult(self._worker, env, *game)
                for env, answer in enumerate(answers)
                for game in answer.games
            ],
            replaced=replaced,
        )

    def hang_up(self) -> None:
        """Tell all processes to end, without waiting for them."""
        for process in self._processes:
            process.hang_up()

    def close(self) -> None:
        """End all processes: at once those that listen, by force those that do not."""
        self.hang_up()
        for process in self._processes:
            process.end()

    def _start(self, share: range) -> EnvProcess:
        envs = (
            f"environment {share[0]}"
            if len(share) == 1
            else f"environments {share[0]} to {share[-1]}"
        )
        return EnvProcess(
            [
                functools.partial(
                    make_env,
                    self._settings,
                    self._worker,
                    env,
                    self._games_under_way[env],
                    unwritten=self._unwritten[env],
                )
                for env in share
            ],
            self._memory,
            share[0],
            f"worker {self._worker}, {envs}",
            self._timeout_seconds,
            self._is_stopped,
        )

    def _receive(self, slot: int | None = None, is_step: bool = False) -> list[Answer]:
        """The answer of each; one that is replaced has its first observation in `slot`, if any."""
        answers: list[Answer] = []
        for number, share in enumerate(self._shares):
            try:
                of_share, stepped = self._processes[number].receive(), is_step
            except EnvError as error:
                of_share, stepped = self._replace(number, slot, error), False
            for env, answer in zip(share, of_share, strict=True):
                self._games_under_way[env] += len(answer.games)
                has_begun = stepped and not answer.games
                self.next_games[env] = self._games_under_way[env] + has_begun
                self._n_rows[env] += len(answer.games)
                self._latest_games[env].extend(answer.games)
                self._n_frames_of_process[env] = answer.n_frames
            answers += of_share
        self.n_frames = sum(self._n_frames_before) + sum(self._n_frames_of_process)
        return answers

    def _replace(self, number: int, slot: int | None, error: EnvError) -> list[Answer]:
        """Put a new process in a broken one's place, again and again until it works."""
        share = self._shares[number]
        while self._restart_limit is not None and self._restart_limit.allows_one_more():
            self._processes[number].end()
            self._replaced.append(Replaced(share, str(error)))
            for env in share:
                self._abandon(env)
            try:
                self._processes[number] = self._start(share)
                answers = self._processes[number].receive()
                if slot is not None:
                    self._processes[number].request_reset(slot)
                    answers = self._processes[number].receive()
            except EnvError as another:
                error = another
            else:
                return answers
        raise error

    def _abandon(self, env: int) -> None:
        """Forget the game under way, whose process is gone."""
        path = self._monitor_paths[env]
        n_unheard = cut_back(path, self._n_rows[env]) if path else 0
        n_unwritten = max(0, self._n_rows[env] - read_n_rows(path)) if path else 0
        latest = self._latest_games[env]
        self._unwritten[env] = list(latest)[max(0, len(latest) - n_unwritten) :]
        self._n_frames_before[env] += self._n_frames_of_process[env]
        self._n_frames_of_process[env] = 0
        # The broken process may have begun another game without our hearing of it, or ended some.
        # So that their streams are not used again, these are skipped as well.
        self._games_under_way[env] += 1 + max(1, n_unheard)


def close_all(envs: Sequence[EnvProcesses]) -> None:
    """End the processes of many workers; those that do not listen are waited for once, together."""
    for processes in envs:
        processes.hang_up()
    for processes in envs:
        processes.close()
