"""Scores of random play and of humans in 57 Atari games, for human-normalised scores.

The literature uses these constants since Wang et al. 2016. They are means over whole games with up
to 30 no-op frames at the start, at most 108,000 frames, and unclipped rewards. We took them from
atari_data.py of google-deepmind's dqn_zoo.
"""

import csv
import pathlib
import re
from typing import NamedTuple


class Scale(NamedTuple):
    """Mean scores in one game."""

    random: float
    human: float


with pathlib.Path(__file__).with_suffix(".csv").open(newline="") as _file:
    SCALES = {
        game: Scale(float(random), float(human)) for game, random, human in [*csv.reader(_file)][1:]
    }


def scale_of(env_id: str) -> Scale | None:
    """The scale of an id such as PongNoFrameskip-v4 or ALE/Pong-v5, if its game has one."""
    match = re.fullmatch(r"(?:ALE/)?([A-Za-z]+?)(?:NoFrameskip)?-v[045]", env_id)
    by_id = {game.replace("_", ""): scale for game, scale in SCALES.items()}
    return by_id.get(match[1].lower()) if match else None


def human_normalised(env_id: str, score: float) -> float | None:
    """0 for the score of random play, 1 for a human's; None where the game has no scale."""
    scale = scale_of(env_id)
    return None if scale is None else (score - scale.random) / (scale.human - scale.random)
