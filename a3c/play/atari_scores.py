"""What 57 Atari games pay to random play and to a person: the scale of human-normalised scores.

The constants that the literature uses since Wang et al. 2016: whole games with no-op starts of up
to 30 frames, 108,000 frames at most, unclipped. As listed in atari_data.py of google-deepmind's
dqn_zoo.
"""

import csv
import pathlib
import re
from typing import NamedTuple


class Scale(NamedTuple):
    """Mean scores of a game."""

    random: float
    human: float


with pathlib.Path(__file__).with_suffix(".csv").open(newline="") as _file:
    SCALES = {
        game: Scale(float(random), float(human)) for game, random, human in [*csv.reader(_file)][1:]
    }
_BY_ID = {game.replace("_", ""): scale for game, scale in SCALES.items()}


def scale_of(env_id: str) -> Scale | None:
    """The scale of PongNoFrameskip-v4 or ALE/Pong-v5; None where there is none."""
    match = re.fullmatch(r"(?:ALE/)?([A-Za-z]+?)(?:NoFrameskip)?-v[045]", env_id)
    return _BY_ID.get(match[1].lower()) if match else None


def human_normalised(env_id: str, score: float) -> float | None:
    """0 for a score as good as random play, 1 for one as good as a person's."""
    scale = scale_of(env_id)
    return None if scale is None else (score - scale.random) / (scale.human - scale.random)
