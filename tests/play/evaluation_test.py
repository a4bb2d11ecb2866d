"""Evaluation: whole games by the published protocol, and the same ones however they are played."""

import contextlib
import math
import signal
import threading
import time

import gymnasium
import numpy as np
import pytest

from a3c.contract import Subject
from a3c.envs import make
from a3c.envs.fleet import Fleet
from a3c.envs.pool import Pool
from a3c.envs.process import EnvError
from a3c.machine.stopping import SIGNALS, StopFlag
from a3c.play import atari_scores, evaluation
from a3c.play.agent import Decision
from a3c.play.evaluation import Played
from a3c.settings.params import MAX_ENVS, Params
from tests.tools.agents import CARTPOLE, PAINTED, SHORT_PONG, make_agent, play_here
from tests.tools.fakes import NumberedEnvs
from tests.tools.processes import wait_until

NUMBERED = Subject("Numbered-v0", "generic", "mlp", (3,), 2)


def play_all(subject: Subject, seed: int, n_games: int, n_at_once: int) -> list[Played]:
    params = evaluation.params_of(subject, seed)
    return sorted(evaluation.play_many(make_agent(subject), params, n_games, n_at_once))


# Human-normalised scores


def test_the_constants_are_those_of_the_references():
    """Golden: three games as papers quote them; 57 in all, with the sums of the published list."""
    assert len(atari_scores.SCALES) == 57
    sums = map(sum, zip(*atari_scores.SCALES.values(), strict=True))
    assert list(sums) == pytest.approx([50864.9, 606494.2], abs=0.01)
    quoted = {
        "BeamRider": (363.9, 16926.5),
        "Breakout": (1.7, 30.5),
        "Pong": (-20.7, 14.6),
    }
    for game, scale in quoted.items():
        assert atari_scores.scale_of(f"{game}NoFrameskip-v4") == scale
        assert atari_scores.scale_of(f"ALE/{game}-v5") == scale


def test_every_game_has_an_environment_and_a_scale():
    """Analytic: by the emulator's own names of the games that the ids stand for."""
    seen = set()
    for env_id, spec in gymnasium.registry.items():
        supported = env_id.endswith("NoFrameskip-v4") or spec.namespace == "ALE"
        if spec.entry_point == "ale_py.env:AtariEnv" and supported:
            game = spec.kwargs["game"]
            assert atari_scores.scale_of(env_id) == atari_scores.SCALES.get(game), env_id
            seen.add(game)
    assert seen >= set(atari_scores.SCALES)


def test_a_person_scores_one_and_random_play_zero():
    """Analytic: the ends and the middle of the scale; other environments have none."""
    for score, wanted in ((-20.7, 0.0), (14.6, 1.0), (-3.05, 0.5)):
        assert atari_scores.human_normalised("PongNoFrameskip-v4", score) == pytest.approx(wanted)
    for env_id in ("CartPole-v1", "x:Pong-v4x", "", "Pongs-v4", "ALE/Pong-v6"):
        assert atari_scores.human_normalised(env_id, 1.0) is None


def test_a_summary_by_hand():
    """Analytic: mean 4, squared distances 9 + 1 + 16 = 26 over n - 1 = 2."""
    games = [Played(n, score, 10, False) for n, score in enumerate((1.0, 3.0, 8.0))]
    assert evaluation.summarise("PongNoFrameskip-v4", games) == (
        *(3, 4.0, math.sqrt(13), 3.0, 1.0, 8.0),
        pytest.approx((4.0 + 20.7) / (14.6 + 20.7)),
    )
    alone = evaluation.summarise("CartPole-v1", games[:1])
    assert (alone.n_games, alone.mean, alone.human_normalised) == (1, 1.0, None)
    assert math.isnan(alone.sd)
    assert math.isnan(evaluation.summarise("CartPole-v1", []).mean)


# Games


def test_a_game_without_end_is_cut_off():
    """Analytic: after 40 frames at most, with the rewards until then."""
    envs, actions = NumberedEnvs(1, 1), []
    envs.n_frames = 2  # of the random start
    game = evaluation.play_game(
        make_agent(NUMBERED),
        envs,
        seed=0,
        number=3,
        watch=lambda decision: actions.append(decision.action),
        max_frames=40,
    )
    # The reset has cost 4 frames on top of 2: 6, 10, … 38 are below 40.
    assert envs.n_frames == 42
    paid = sum(np.float32(n + action / 10) for n, action in enumerate(actions))
    assert game == Played(3, pytest.approx(paid), 9, True)


def test_who_takes_no_more_games_stops_those_under_way(monkeypatch):
    """Analytic: Ctrl-C comes when the first of two has ended; nobody waits for the end of the second."""
    both, ended = threading.Barrier(2, timeout=60), []

    def play(agent, params, number, stop, greedy):
        both.wait()
        if number == 0:
            return Played(0, 1.0, 10, False)
        wait_until(stop.is_set, "the game to be stopped", 10)
        ended.append(number)
        return None

    monkeypatch.setattr(evaluation, "play", play)
    params = evaluation.params_of(CARTPOLE, 0)
    games = evaluation.play_many(make_agent(CARTPOLE), params, n_games=2, n_at_once=2)
    assert next(games).number == 0
    games.close()
    assert ended == [1]


def test_games_at_once_are_played_where_no_signal_comes(monkeypatch):
    """Analytic: a signal's handler could damage the memory of a thread that computes. The first two of four meet."""
    blocked = []
    both = threading.Barrier(2, timeout=60)

    def play(agent, params, number, stop, greedy):
        both.wait()
        blocked.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        return Played(number, 1.0, 10, False)

    monkeypatch.setattr(evaluation, "play", play)
    assert len(play_all(CARTPOLE, seed=0, n_games=4, n_at_once=2)) == 4
    assert [each >= set(SIGNALS) for each in blocked] == [True] * 4


def test_a_game_that_is_stopped_does_not_count():
    """Analytic: it ends at the next decision."""
    stop = StopFlag()
    envs = NumberedEnvs(1, 1, on_step=lambda n: stop.set() if n == 4 else None)
    assert evaluation.play_game(make_agent(NUMBERED), envs, 0, 0, stop=stop) is None
    assert envs.n_steps == 5


def test_an_environment_that_hangs_ends_its_game():
    """Analytic: at once if the game is stopped, and after the timeout of the run otherwise. It hangs after the
    third decision.
    """
    subject = Subject("tests.tools.toys:toys/HangsInStep-v0", "generic", "mlp", (2,), 2)
    params, stop = evaluation.params_of(subject, 0), StopFlag()
    timer, seen = threading.Timer(0.5, stop.set), []

    def watch(decision: Decision) -> None:
        seen.append(decision)
        if len(seen) == 3:
            timer.start()

    since = time.monotonic()
    assert evaluation.play(make_agent(subject), params, 0, stop, 1000.0, watch=watch) is None
    assert time.monotonic() - since < 60
    assert len(seen) == 3
    timer.join()
    with pytest.raises(EnvError, match=r"has not answered for 0\.5 s"):
        evaluation.play(make_agent(subject), params, 0, timeout_seconds=0.5)


def test_what_is_watched_is_what_was_decided_on():
    """Analytic: each observation with the action that followed it, before it is carried out."""
    envs = NumberedEnvs(1, 1, terminations={(6, 0)})
    seen = []

    def watch(decision):
        assert len(seen) == envs.n_steps
        seen.append(decision.observation.copy())

    game = evaluation.play_game(make_agent(NUMBERED), envs, 0, 0, watch=watch)
    np.testing.assert_array_equal(np.stack(seen)[:, 2] * 8, np.arange(7))
    assert (game.score, game.length, game.cut_off) == (6, 7, False)


def test_each_game_has_draws_of_its_own():
    """Analytic: on the same observations, by the game's number and the seed, again and again."""
    agent, drawn = make_agent(NUMBERED), {}
    for seed, number in ((0, 0), (0, 1), (1, 0), (0, 0)):
        actions = []
        evaluation.play_game(
            agent,
            NumberedEnvs(1, 1, terminations={(39, 0)}),
            seed,
            number,
            watch=lambda decision, actions=actions: actions.append(decision.action),
        )
        assert drawn.setdefault((seed, number), actions) == actions
    assert len({tuple(actions) for actions in drawn.values()}) == 3


def test_games_are_played_as_published():
    """Analytic: random starts, unclipped rewards, whole games of at most 108,000 frames.

    The toy pays a frame's number, loses a life every 30 frames, and its games have 90 frames.
    """
    subject = Subject(
        "tests.tools.toys:toys/NumbersWithLives-v0", "generic", "small", (84, 84, 4), 4
    )
    assert evaluation.params_of(subject, seed=5) == Params(
        subject.env_id,
        seed=5,
        preprocessing="generic",
        max_n_noops=30,
        no_clip_rewards=True,
        no_end_on_life_loss=True,
    )
    assert evaluation.MAX_FRAMES == 108_000
    games = play_all(subject, seed=5, n_games=3, n_at_once=3)
    assert [game.score for game in games] == [90 * 91 / 2] * 3
    assert len({game.length for game in games}) > 1  # different starts
    assert not any(game.cut_off for game in games)


def test_a_game_cut_off_by_its_emulator_says_so():
    """Analytic: Atari games have the cap built in; this one of 150 frames."""
    (game,) = play_all(SHORT_PONG, seed=0, n_games=1, n_at_once=1)
    assert game.cut_off
    assert 20 <= game.length <= 150 / 4


def test_a_score_is_not_that_of_a_next_game_which_ends_at_once():
    """Analytic: a game of 100 frames, then, for nobody, games of 2 that end within their random starts."""
    kwargs = ("game_lengths=[100, 2, 2, 2, 1000]",)
    subject = Subject("tests.tools.toys:toys/Numbers-v0", "generic", "small", (84, 84, 4), 4)
    for seed in range(3):
        (game,) = play_all(subject._replace(env_kwargs=kwargs), seed, n_games=1, n_at_once=1)
        assert (game.score, game.cut_off) == (100 * 101 / 2, False)
        assert 100 - 30 <= 4 * game.length <= 100


def test_the_same_seed_gives_the_same_games_however_they_are_played():
    """Golden: one at once, three at once, in this process; another seed gives others."""
    alone = play_all(CARTPOLE, seed=7, n_games=5, n_at_once=1)
    assert [game.number for game in alone] == list(range(5))
    assert len({game.score for game in alone}) > 2
    assert play_all(CARTPOLE, seed=7, n_games=5, n_at_once=3) == alone
    assert play_all(CARTPOLE, seed=8, n_games=5, n_at_once=3) != alone

    for number in (3, 1):
        game, frames = play_here(make_agent(CARTPOLE), number, seed=7)
        assert game == alone[number]
        assert len(frames) == game.length + 1
        assert frames[0].shape == (400, 600, 3)


def test_continuous_actions_and_memory_give_the_same_games_however_they_are_played():
    """Golden: one at once, three at once, and in this process; a game knows nothing of another's state."""
    alone = play_all(PAINTED, seed=7, n_games=3, n_at_once=1)
    assert len({game.score for game in alone}) == 3
    assert [(game.length, game.cut_off) for game in alone] == [(20, True)] * 3
    assert play_all(PAINTED, seed=7, n_games=3, n_at_once=3) == alone
    for number in (2, 1):
        assert play_here(make_agent(PAINTED), number, seed=7)[0] == alone[number]


def test_a_sticky_emulator_gives_the_same_games_too():
    """Golden: v5 draws from the emulator's own stream, which must start anew with each game."""
    subject = Subject("ALE/Freeway-v5", "generic", "small", (84, 84, 4), 3)
    params, agent = evaluation.params_of(subject, 1), make_agent(subject)
    described = make.describe_env(params)
    seen = []
    for number in (0, 1, 1):
        pool = Pool(params, described, evaluation.WORKER, 1, [number], Fleet())
        with contextlib.closing(pool):
            evaluation.play_game(agent, pool, 1, number, max_frames=400)
            seen.append(pool.observations.copy())
    np.testing.assert_array_equal(seen[1], seen[2])
    assert (seen[0] != seen[1]).any()


def test_no_game_is_one_of_trainings():
    """Analytic: the worker's number in the keys of their streams is one that no training has."""
    assert MAX_ENVS <= evaluation.WORKER == 2**16  # another number would change published games
