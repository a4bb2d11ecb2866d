"""Names of folders that say what was run: the environment, and the settings that differ."""

import re
from collections.abc import Mapping
from typing import Any

from a3c.settings.config import OF_ONE_RUN, PRESETS
from a3c.settings.params import ASKED, KNOBS, ParsedParams


def stem_of(env_id: str, settings: Mapping[str, Any], preset: str | None = None) -> str:
    """Such as Pong-v5_wide_initial_lr=0.0003: one part of a path, of at most 150 characters."""
    env = env_id.rpartition(":")[2].removeprefix("ALE/")
    parts = [env, *([preset] if preset else []), *map(_part, settings.items())]
    return re.sub(r"[^A-Za-z0-9_.=,+-]+", "-", "_".join(parts)).strip("-.")[:150] or "env"


def stem_of_run(parsed: ParsedParams) -> str:
    """The same for one run: its preset, and what was asked for that trains in another way."""
    params, sources = parsed
    usual = {name: knob.default for name, knob in KNOBS.items()} | PRESETS[params.preset]
    differing = {
        name: getattr(params, name)
        for name, knob in KNOBS.items()
        if knob.changes_training
        and sources[name] in ASKED
        and name not in OF_ONE_RUN | {"env_id"}
        and getattr(params, name) != usual[name]
    }
    is_default = params.preset == KNOBS["preset"].default
    return stem_of(params.env_id, differing, None if is_default else params.preset)


def _part(setting: tuple[str, Any]) -> str:
    name, value = setting
    return name if value is True else f"{name}={short(value)}"


def short(value: Any) -> str:
    """A setting as tables and folders show it."""
    if isinstance(value, list | tuple):
        return ",".join(map(short, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
