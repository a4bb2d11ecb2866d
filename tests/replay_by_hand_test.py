"""The layers of preprocessing against replay_by_hand, which does all of it slowly and from raw frames."""

import contextlib

import numpy as np
import pytest

from a3c.envs.fleet import Fleet
from a3c.envs.pool import Pool
from a3c.settings.params import Params
from tests.tools import replay_by_hand
from tests.tools.pools import TOY, make_pool, sharing
from tests.tools.replay_by_hand import ByHand, Row, play
from tests.tools.toys import numbered_frame

GAMES = ["Pong", "Breakout", "SpaceInvaders", "Qbert", "BeamRider"]


@pytest.mark.parametrize(
    ("name", "game"),
    [
        *(pytest.param("{}NoFrameskip-v4", game, id=f"v4-{game}") for game in GAMES),
        pytest.param("ALE/{}-v5", "Pong", id="v5-Pong"),
        *(
            pytest.param("ALE/{}-v5", game, id=f"v5-{game}", marks=pytest.mark.weekly)
            for game in GAMES
            if game != "Pong"
        ),
    ],
)
def test_a_game_is_the_same_by_hand(name: str, game: str) -> None:
    """Parity: 1,500 decisions of random play, every pixel, reward, end and score; with lives lost, ended games
    and random starts, and one game broken off."""
    number = GAMES.index(game)
    by_hand = play(name.format(game), 1500, seed=2, worker=number, env=2, reset_at=20)
    assert len(by_hand.rows) >= 1
    assert (by_hand.n_lives_lost > 0) == (game != "Pong")


@pytest.mark.parametrize("game", ["Pong", "Seaquest"])
def test_a_game_on_black_is_the_same_by_hand(game: str) -> None:
    """Parity: 500 decisions, every pixel; one game is on grey, the other on dark blue."""
    play(f"{game}NoFrameskip-v4", 500, seed=2, on_black=True)


@pytest.mark.parametrize("name", ["DiesEarly-v0", "CutOffEarly-v0"])
def test_games_that_end_in_the_no_ops_of_their_start(name: str) -> None:
    """Parity: toys of which some games end within the first 43 frames; each leaves a row of no decisions."""
    by_hand = play(TOY + name, 300, reset_at=150)
    assert by_hand.n_false_starts >= 4
    assert Row(1.0, 0) in by_hand.rows
    assert Row(sum(range(91)), 0) not in by_hand.rows
    assert by_hand.n_lives_lost > 10


@pytest.mark.parametrize("name", ["ShortPong-v0", "ShortBreakout-v0", "TruncatedNumbers-v0"])
def test_a_time_limit_truncates(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parity: the emulator's limit of 150 or 500 frames (the latter with sticky actions), and a toy's of 64."""
    truncated = record_truncations(monkeypatch)
    by_hand = play(TOY + name, 300)
    assert len(truncated) == len(by_hand.rows) - by_hand.n_false_starts >= 2
    assert (by_hand.n_lives_lost > 0) == (name == "ShortBreakout-v0")


def record_truncations(monkeypatch: pytest.MonkeyPatch) -> list[replay_by_hand.Seen]:
    """The truncated steps that will be worked out by hand; none may be terminated as well."""
    truncated = []
    step = ByHand.step

    def recording(self: ByHand, action: int) -> replay_by_hand.Seen:
        seen = step(self, action)
        if seen.truncated:
            assert not seen.terminated
            truncated.append(seen)
        return seen

    monkeypatch.setattr(ByHand, "step", recording)
    return truncated


# (id, decisions, settings other than the default, what must have come up)
IN_PROCESSES = {
    "lives": ("BreakoutNoFrameskip-v4", 350, {}, "lives games"),
    "unclipped": ("ALE/SpaceInvaders-v5", 60, {"no_clip_rewards": True}, ""),
    "cut off": (TOY + "ShortBreakout-v0", 250, {"no_end_on_life_loss": True}, "games truncations"),
    "cut off, with lives": (TOY + "ShortBreakout-v0", 250, {}, "lives games truncations"),
    "numbers cut off": (TOY + "TruncatedNumbers-v0", 100, {}, "games truncations"),
    "dies early": (TOY + "DiesEarly-v0", 150, {}, "lives games"),
}


@pytest.mark.parametrize(
    ("env_id", "n_steps", "settings", "needed"), IN_PROCESSES.values(), ids=IN_PROCESSES
)
def test_what_a_worker_gets(env_id: str, n_steps: int, settings: dict, needed: str) -> None:
    """Parity: two environments in processes: slots, final observations, rewards, ends, games and frames."""
    params = Params(env_id, seed=7, **settings)
    with contextlib.closing(make_pool(params, 3, [0, 5], 3, Fleet(1, 2))) as envs:
        compare_processes(envs, params, 3, n_steps, needed)


@pytest.mark.parametrize(
    ("env_id", "n_steps", "needed"),
    [
        (TOY + "ShortBreakout-v0", 250, "lives games truncations"),
        (TOY + "TruncatedNumbers-v0", 100, "games truncations"),
    ],
)
def test_what_workers_get_that_share_a_process(env_id: str, n_steps: int, needed: str) -> None:
    """Parity: the same of two workers with two environments each, all four in one process."""
    params = Params(env_id, seed=7)
    with sharing(params, (3, 4), [0, 5], n_slots=3) as both:
        for worker, envs in zip((3, 4), both, strict=True):
            compare_processes(envs, params, worker, n_steps, needed)


def compare_processes(envs: Pool, params: Params, worker: int, n_steps: int, needed: str) -> None:
    by_hand = [
        ByHand(
            *(params.env_id, params.seed, worker, env, first_game),
            clips=not params.no_clip_rewards,
            ends_on_life_loss=not params.no_end_on_life_loss,
        )
        for env, first_game in enumerate([0, 5])
    ]
    actions_of = np.random.default_rng(7)
    envs.reset(slot=2)
    for k, one in enumerate(by_hand):
        np.testing.assert_array_equal(envs.observations[2, k], one.reset().observation)
    rows: list[list[Row]] = [[], []]
    n_truncations = 0
    for step in range(n_steps):
        slot = step % 3
        actions = actions_of.integers(by_hand[0].emulator.n_actions, size=2)
        result = envs.step(actions, slot)
        assert result.rewards.dtype == np.float32
        for k, one in enumerate(by_hand):
            expected = one.step(int(actions[k]))
            got = result.rewards[k], result.terminated[k], result.truncated[k]
            assert got == expected[1:], f"step {step}"
            if expected.truncated:
                # Read after the reset, which must not have overwritten it.
                np.testing.assert_array_equal(envs.final_observations[k], expected.observation)
                n_truncations += 1
            if expected.terminated or expected.truncated:
                first_again = one.reset()
                if expected.truncated:
                    assert (first_again.observation != expected.observation).any()
                expected = first_again
            np.testing.assert_array_equal(
                envs.observations[slot, k], expected.observation, err_msg=f"step {step}"
            )
        for game in result.games:
            assert game.worker == worker
            rows[game.env].append(Row(game.score, game.length))
        assert envs.n_frames == sum(one.n_frames for one in by_hand)
    assert rows == [one.rows for one in by_hand]
    assert ("games" in needed) <= any(rows)
    assert ("lives" in needed) <= (by_hand[0].n_lives_lost > 0)
    assert ("truncations" in needed) == (n_truncations > 0)


# What is not worked out by hand there


def test_the_image_by_plain_arithmetic() -> None:
    """Parity: OpenCV's two functions, which the replay uses, against the formulas, within a rounding or two."""
    emulator = replay_by_hand.bare_emulator("SpaceInvadersNoFrameskip-v4")
    emulator.reset(0)
    random = np.random.default_rng(0).integers(0, 256, (210, 160, 3), np.uint8)
    for rgb in (emulator.act(0).rgb, random, numbered_frame(37)):
        by_hand = ByHand(TOY + "Numbers-v0", 0)
        by_hand._frames = [replay_by_hand.Frame(rgb, 0.0, 0, False, False)] * 2
        gray = rgb @ np.array([0.299, 0.587, 0.114])
        expected = along(along(gray, 84).T, 84).T
        np.testing.assert_allclose(by_hand._image(1), expected, atol=1.6)
    assert expected.max() > 200


def along(rows: np.ndarray, n: int) -> np.ndarray:
    """Rows scaled to `n`, each at its centre's place between the two nearest, weighed by nearness."""
    places = (np.arange(n) + 0.5) * len(rows) / n - 0.5
    upper = np.floor(places).astype(int)
    share = (places - upper)[:, None]
    return rows[upper] * (1 - share) + rows[upper + 1] * share


@pytest.mark.parametrize(
    ("env_id", "n_games"), [("CartPole-v1", 45), ("tests.tools.toys:toys/TruncatedVector-v0", 333)]
)
def test_vectors_are_handed_on_as_they_are(env_id: str, n_games: int) -> None:
    """Parity: in float32, with rewards and ends; 1,000 steps, of which some end a game."""
    by_hand = replay_by_hand.play(env_id, 1000)
    assert len(by_hand.rows) == n_games
