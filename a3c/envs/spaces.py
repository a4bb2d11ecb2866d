"""Which observations and actions are taken, and what is said of others.

An image is a Box of uint8 from 0 to 255, (height, width) or (height, width, channels). Other
observations become one vector of numbers. An action is one choice or one Box of floats.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from gymnasium.spaces.utils import flatdim

from a3c.machine.words import without_breaks

CHANNELS = (1, 3, 4)
MAX_NUMBERS = 1_000_000  # of a vector; such a network takes a gigabyte


def is_image(space: Any) -> bool:
    """Whether observations are images, not vectors."""
    return _has_pixels(space) and (len(space.shape) == 2 or space.shape[2] in CHANNELS)


def is_continuous(space: Space[Any]) -> bool:
    """Whether an action is a Box of floats, not a choice."""
    return isinstance(space, Box)


def why_not_seen(space: Space[Any]) -> str | None:
    """Why observations are not taken, and what would help; None if they are."""
    if is_image(space):
        return None
    if _has_pixels(space):
        return (
            f"that are images of shape {space.shape}: a gymnasium.wrappers.TransformObservation must make"
            " them (height, width, channels) with 1, 3 or 4 channels"
        )
    if (odd := next(_parts_without_numbers(space), None)) is not None:
        name, what = odd[0], f"of {type(odd[1]).__name__}"
        if odd[1] is space:
            return f"{what}: a gymnasium.ObservationWrapper must turn them into numbers or images"
        return f"{what} among others, in {name}: gymnasium.wrappers.FilterObservation can drop them"
    if not 1 <= flatdim(space) <= MAX_NUMBERS:
        return (
            f"of {flatdim(space):,} numbers, {without_breaks(space, 100)}: a gymnasium.ObservationWrapper"
            f" must make them 1 to {MAX_NUMBERS:,}"
        )
    return None


def why_not_done(space: Space[Any]) -> str | None:
    """Why actions are not taken, and what would help; None if they are."""
    shown = without_breaks(space, 200)
    if isinstance(space, Box):
        if not np.issubdtype(space.dtype, np.floating):
            return f"{shown}: a gymnasium.wrappers.TransformAction can round floats to its numbers"
        return None if space.low.size else f"{shown}, which has no numbers"
    if isinstance(space, Discrete):
        return None
    return (
        f"{shown}, several at once: a gymnasium.wrappers.TransformAction can number them, so that"
        " they are one Discrete"
    )


def _has_pixels(space: Space[Any]) -> bool:
    return (
        isinstance(space, Box)
        and space.dtype == np.uint8
        and len(space.shape) in (2, 3)
        and bool((space.low == 0).all() and (space.high == 255).all())
    )


def _parts_without_numbers(space: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The parts of a space that are no numbers, such as texts and graphs, with their names."""
    if isinstance(space, Dict | Tuple):
        parts = space.spaces if isinstance(space, Dict) else dict(enumerate(space.spaces))
        for key, part in parts.items():
            yield from _parts_without_numbers(part, f"{name}[{key!r}]")
    elif not isinstance(space, Box | Discrete | MultiBinary | MultiDiscrete):
        yield name, space
