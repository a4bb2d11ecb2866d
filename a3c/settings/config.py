"""Settings in files: the presets, what --config names, what --print_config prints.

A file of settings is TOML that holds flags by their names, and only those that are asked for. A
run's args.json will do as well: what was asked of that run is taken, not what followed from it.
Nothing that is read here runs code, and whatever is wrong is a `BadInput`.
"""

import difflib
import json
import pathlib
import tomllib
from collections.abc import Callable, Iterable
from typing import Any

from a3c.machine.appending import one_line
from a3c.settings.params import (
    KNOBS,
    LR_END,
    NONE,
    PRESETS_FOLDER,
    BadInput,
    ParsedParams,
    check_text,
    shown,
    taken,
)

# Another run has its own folder, beginning and share of its machine.
_OF_ONE_RUN = {"log_dir", "run_name", "load_ckpt", "cores"}


def read(path: str, tell: Callable[[str], None]) -> dict[str, Any]:
    """The settings that --config names: a TOML file, a run folder, or the args.json of one.

    What is not known here of a run's is told, and left out.
    """
    check_text("--config", path)
    file = pathlib.Path(path)
    try:
        if file.is_dir():
            file /= "args.json"
        text = file.read_text(encoding="utf-8")
        if file.suffix != ".json":
            return _of_toml(text)
        record = json.loads(text)
        if not isinstance(record, dict) or not isinstance(record.get("params"), dict):
            raise BadInput('it is no record of a run: it has no "params"')
        if unknown := [name for name in record["params"] if name not in KNOBS]:
            tell(one_line(f"{file}: unknown here, and left out: {', '.join(unknown)}", 500))
        return _asked_of(record)
    except OSError as error:
        raise BadInput(
            f"cannot read {file}: {error.strerror}; --config takes a TOML file, a run folder or its"
            " args.json"
        ) from None
    except (BadInput, ValueError, RecursionError) as error:
        raise BadInput(f"{file}: {error}") from None


def to_toml(parsed: ParsedParams) -> str:
    """What was asked for, as a file of settings: parsed again, it gives the same parameters."""
    return "".join(
        f"{name} = {_in_toml(name, getattr(parsed.params, name))}\n"
        for name, source in parsed.sources.items()
        if source in ("config", "command line")
    )


def nearest(name: str, names: Iterable[str]) -> str:
    """A note that tells the likeliest of the names, if one is near."""
    near = difflib.get_close_matches(name[:100], sorted(names), n=1)
    return f" (nearest: {near[0]})" if near else ""


def _of_toml(text: str) -> dict[str, Any]:
    values = tomllib.loads(text)
    for name in values:
        if name not in KNOBS:
            raise BadInput(f"unknown setting {name}{nearest(name, KNOBS)}")
    return {name: taken(name, value) for name, value in values.items()}


def _asked_of(record: dict[str, Any]) -> dict[str, Any]:
    """What a run was asked for by name, and what its defaults and preset had otherwise than ours."""
    values, sources = record["params"], record.get("sources")
    preset = taken("preset", values.get("preset", KNOBS["preset"].default))
    ours = {name: knob.default for name, knob in KNOBS.items()} | PRESETS[preset]
    # These follow from other values if nobody names them. Until 2026-11-25, records did not say so.
    # The end of a schedule is not that of a run that was resumed with fewer steps.
    follow = {"network", "no_xla"}
    if values.get(LR_END) == values.get("n_steps"):
        follow.add(LR_END)
    asked = {}
    for name in [name for name in values if name in KNOBS and name not in _OF_ONE_RUN]:
        source = sources.get(name) if isinstance(sources, dict) else None
        is_named = source in ("config", "command line")
        if is_named or (name not in follow and values[name] != ours[name]):
            asked[name] = taken(name, values[name])
    return asked


def _in_toml(name: str, value: Any) -> str:
    if value is None:
        return f'"{NONE}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        if any("\ud800" <= c <= "\udfff" for c in value):
            # These are escaped bytes of a name that is no UTF-8, for which TOML has no way.
            raise BadInput(f"--{name} {value!r} is no UTF-8, and cannot stand in TOML")
        return json.dumps(value, ensure_ascii=False)
    short = shown(value)
    return short if float(short) == value else repr(value)


PRESETS: dict[str, dict[str, Any]] = {
    name: _of_toml((PRESETS_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    for name in KNOBS["preset"].choices or ()
}
