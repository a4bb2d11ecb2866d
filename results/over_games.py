"""Our scores beside those of others, game by game and over all five games.

Over all games, we take the interquartile mean of human-normalised scores.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from a3c.play.atari_scores import human_normalised
from a3c.sweep import plot_command as plot_runs
from a3c.sweep import statistics
from results.folders import OURS, Published, evaluation_mean, named, training_score

TITLES = ("Beam Rider", "Breakout", "Pong", "Q*bert", "Space Invaders")  # as in plot_runs.GAMES
LAST_GAMES = "last 100 training games"
EVALUATION = "evaluation of the trained agent"
OURSELVES = "**ours**"
SCALE = ("random play", "human")
# Who, budget, seeds, what the score is of, and the scores in the order of TITLES.
# fmt: off
OTHERS: tuple[tuple[str, str, str, str, tuple[str, ...]], ...] = (
    ("Baselines A2C, as quoted by Vel", "10M steps, 16 environments", "", LAST_GAMES,
     ("2469", "290", "18.7", "4461", "727")),
    ("Vel A2C", "10M steps", "", LAST_GAMES, ("4091", "430", "19.5", "12000", "1000")),
    ("Stable-Baselines3 A2C, its zoo", "10M steps", "1", EVALUATION,
     ("2890", "280", "17.3", "3882", "627")),
    ("OCD A3C, read off its plot", "15 h, 16 workers on 16 cores", "3", "training",
     plot_runs.REFERENCES["ocd"][1]),
    ("the paper's A3C, read off Figure 4", "15 h, 16 threads", "", "training, 3 best learning rates",
     plot_runs.REFERENCES["paper"][1]),
    ("DeepMind's A3C, in Noisy Networks", "80M steps", "3", "best evaluation on the way",
     ("9214", "496", "7", "18586", "1034")),
    ("PFRL A3C", "50–80M steps, 16 CPUs", "3", "best evaluation on the way",
     plot_runs.REFERENCES["pfrl"][1]),
    ("random play", "", "", "no-op starts", plot_runs.REFERENCES["random"][1]),
    ("human", "", "", "no-op starts", plot_runs.REFERENCES["human"][1]),
)
# fmt: on


class OverGames(NamedTuple):
    """Human-normalised scores of all games."""

    who: str
    of: str  # what the scores are of
    n_seeds: str
    games: list[np.ndarray]  # in the order of TITLES: of each seed, or one mean of all

    @property
    def interquartile_mean(self) -> float:
        return float(statistics.interquartile_mean(self.games))

    @property
    def interval(self) -> tuple[float, float] | None:
        """That of the mean; None unless the scores of several seeds are known in each game."""
        if min(map(len, self.games)) < 2:
            return None
        return statistics.bootstrap_interval(self.games, np.random.default_rng(0))


def over_games(runs: Sequence[Published]) -> list[OverGames]:
    """Ours, and those of others."""
    with_agents = [run for run in runs if run.evaluation]
    ours: list[tuple[str, Sequence[Published], Callable[[Published], float]]] = [
        (LAST_GAMES, runs, training_score),
        (EVALUATION, with_agents, evaluation_mean),
    ]
    found = []
    for of, known, score in ours:
        seeds = [named(known, [beginning]) for beginning in OURS]
        games = [normalised(i, map(score, each)) for i, each in enumerate(seeds)]
        found.append(OverGames(OURSELVES, of, span(map(len, seeds)), games))
    for who, _, n_seeds, of, texts in OTHERS:
        if who not in SCALE:
            games = [normalised(i, [plot_runs.value_of(text)]) for i, text in enumerate(texts)]
            found.append(OverGames(who, of, n_seeds, games))
    return found


def normalised(game: int, scores: Iterable[float]) -> np.ndarray:
    """Scores in the game of this title, human-normalised."""
    env_id = f"{plot_runs.GAMES[game]}NoFrameskip-v4"
    return np.array([human_normalised(env_id, score) for score in scores], dtype=float)


def span(values: Iterable[float]) -> str:
    """6–10, or the one value that all of them are."""
    found = sorted({*values})
    return "–".join(f"{value:g}" for value in dict.fromkeys([found[0], found[-1]]))
