"""Settings in files: the presets, what --config reads and what --print_config prints.

A file of settings is TOML with flags by name; the args.json of a run stands for what was asked of
that run. Reading one runs no code. A file that cannot be used is a `BadInput`.
"""

import json
import pathlib
import re
import shlex
import tomllib
from collections.abc import Callable, Container, Mapping
from typing import Any

from a3c.machine.words import BadInput, one_line
from a3c.settings.params import (
    ASKED,
    KNOBS,
    LR_END,
    NONE,
    OF_ONE_START,
    PRESET_FILES,
    ParsedParams,
    by_todays_names,
    check_text,
    flag,
    taken,
)
from a3c.settings.suggestions import nearest

# Another run has its own folder, its own start and its own share of the machine.
OF_ONE_RUN = {"log_dir", "run_name", "load_ckpt", "cores", "ray", "remote_workers"}
# Settings that may name code to import, as module:Name; some environments take arguments that do.
OF_CODE = ("env_id", "wrapper", "env_kwargs")


def read(path: str, tell: Callable[[str], None]) -> dict[str, Any]:
    """The settings that --config names: a TOML file, a run folder, or the args.json of one.

    `tell` gets a line about flags of a run that this revision does not know; they are left out.
    """
    check_text("--config", path)
    file = pathlib.Path(path)
    try:
        if file.is_dir():
            file /= "args.json"
        text = file.read_bytes().decode()
        if file.suffix != ".json":
            return _of_toml(text)
        record = json.loads(text)
        if not isinstance(record, dict) or not isinstance(record.get("params"), dict):
            raise BadInput('it is not the record of a run: it has no "params"')
        if unknown := [name for name in by_todays_names(record["params"]) if name not in KNOBS]:
            tell(one_line(f"{file}: ignored unknown flags: {', '.join(unknown)}"))
        return of_record(record)
    except OSError as error:
        takes = "--config takes a TOML file, a run folder or its args.json"
        raise BadInput(f"cannot read {file}: {error.strerror}; {takes}") from None
    except (BadInput, TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"{file}: {error}") from None


def to_toml(parsed: ParsedParams) -> str:
    """A file of settings with what was asked for; it gives the same parameters again."""
    asked = [name for name, source in parsed.sources.items() if source in ASKED]
    return as_toml({name: getattr(parsed.params, name) for name in asked})


def as_toml(values: Mapping[str, Any]) -> str:
    """Settings as a file for --config."""
    # JSON writes numbers, texts and booleans as TOML does.
    texts = {n: json.dumps(NONE if v is None else v, ensure_ascii=False) for n, v in values.items()}
    return "".join(f"{name} = {text}\n" for name, text in texts.items())


def as_words(values: Mapping[str, Any]) -> list[str]:
    """Settings as words of train.py's command line."""
    words = []
    for name, value in values.items():
        if value is True:
            words.append(flag(name))
        elif value is None or value is False or value in ((), []):  # 0 is a value
            words.append(f"{flag(name)}={NONE}")
        elif isinstance(value, list | tuple):
            words += [flag(name), *map(str, value)]
        else:
            words.append(f"{flag(name)}={value}")
    return words


def may_name_code(text: str) -> bool:
    """Whether a setting of OF_CODE could import a module; JSON may write : as \\u003a."""
    return bool(re.search(r"[:\\]", text))


def code_in(values: Mapping[str, Any], named: Container[str]) -> dict[str, str]:
    """Of settings from a file, those that may import code, as words of a command line, by name.

    `named` are the settings that the user named, too. All must be, so that nobody runs a stranger's
    code by accident.
    """
    words = {}
    for name in OF_CODE:
        value = values[name]
        texts = shlex.join(map(str, value if isinstance(value, list | tuple) else [value]))
        if name not in named and may_name_code(texts):
            words[name] = texts if name == "env_id" else f"{flag(name)} {texts}"
    return words


def _of_toml(text: str) -> dict[str, Any]:
    values = by_todays_names(tomllib.loads(text))
    for name in values:
        if name not in KNOBS:
            raise BadInput(f"unknown setting {name}{nearest(name, KNOBS)}")
    return {name: taken(name, value) for name, value in values.items()}


def of_record(record: dict[str, Any]) -> dict[str, Any]:
    """What a run was asked for by name, and those of its defaults that are not today's."""
    values = by_todays_names(record["params"])
    sources = by_todays_names(dict(record.get("sources", {})))
    preset = taken("preset", values.get("preset", KNOBS["preset"].default))
    ours = {name: knob.default for name, knob in KNOBS.items()} | PRESETS[preset]
    # These follow from other values unless somebody names them; records before 2026-11-25 do not
    # mark that. A schedule that ends elsewhere belongs to a run that was resumed with fewer steps, or
    # has the end of its preset.
    follow = {"network"}
    if values.get("debug"):
        follow.add("no_xla")
    if values.get(LR_END) == values.get("n_steps") and LR_END not in PRESETS[preset]:
        follow.add(LR_END)
    named = {name for name in sources if sources[name] in ASKED}
    asked = {
        name: taken(name, values[name])
        for name in values.keys() & KNOBS.keys() - OF_ONE_RUN.union(OF_ONE_START)
        if name in named or name not in follow
    }
    return {name: value for name, value in asked.items() if name in named or value != ours[name]}


def of_checkpoint(params: Mapping[str, Any]) -> dict[str, Any]:
    """The same, of the settings in a checkpoint, which does not say what was asked for by name.

    A network for images counts as that.
    """
    sources = {} if params.get("network") == "mlp" else {"network": "config"}
    return of_record({"params": dict(params), "sources": sources})


def _of_preset(path: pathlib.Path) -> dict[str, Any]:
    """The settings of a preset; those of another, if it names one, come first."""
    values = _of_toml(path.read_bytes().decode())
    base = values.pop("preset", None)
    return values if base is None else _of_preset(path.with_stem(base)) | values


PRESETS: dict[str, dict[str, Any]] = {path.stem: _of_preset(path) for path in PRESET_FILES}
