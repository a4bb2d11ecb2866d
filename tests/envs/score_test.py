"""Tests of a3c/envs/score.py."""

from a3c.envs.score import Score
from tests.tools import toys


def test_score_and_length_of_whole_games():
    """Analytic: rewards 1 + 2 + ... of every frame; the length is what was reported."""
    env = Score(toys.Numbers(game_lengths=(4, 6)), worker=3, number=2, counts_own_steps=False)
    for length, n_decisions in ((4, 1), (6, 2)):
        env.reset()
        for _ in range(n_decisions):
            env.count_decision()
        for _ in range(length):
            env.step(0)
    assert env.score == 21
    games = env.take_finished()
    assert [game[:4] for game in games] == [(3, 2, 10, 1), (3, 2, 21, 2)]
    assert env.take_finished() == []
    assert env.n_frames == 10
