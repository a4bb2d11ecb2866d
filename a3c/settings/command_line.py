"""train.py's command line: from its arguments to checked parameters, and `--help`.

It is derived from the knobs in params.py. Parsing has no side effects; a mistake is a `BadInput`.
"""

import argparse
import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from a3c import __version__
from a3c.machine.appending import BadInput
from a3c.settings import config, params
from a3c.settings.config import PRESETS
from a3c.settings.params import KNOBS, LR_END, TYPES, ParsedParams, flag, shown, taken

# The flags that are not parameters of a run: group, what stands for a value, help.
COMMANDS = {
    "--config": (
        *(params.RUN, "FILE"),
        "start a new run with the settings of a TOML file or of another run (its folder or"
        " args.json); flags on the command line override them",
    ),
    "--print_config": (params.RUN, None, "print these settings as a file for --config, and exit"),
    "--resume": (
        *(params.CKPTS, "FOLDER"),
        "continue the run in this folder; docs/flags.md marks the flags that may be changed",
    ),
}
FLAGS = {*map(flag, KNOBS), *COMMANDS, "--help", "--version"} - {"env_id"}


class Resume(NamedTuple):
    """The command to continue the run in a folder."""

    folder: str
    given: dict[str, Any]  # the other flags, by name; `resumed` checks them


class PrintConfig(NamedTuple):
    """The command to print the settings."""

    toml: str


def parse(
    argv: Sequence[str], tell: Callable[[str], None] = lambda note: None
) -> ParsedParams | Resume | PrintConfig:
    """Turn train.py's arguments (without the program's name) into parameters.

    `--help` and `--version` print and exit with 0; every mistake raises BadInput. `tell` gets a
    line about what --config ignores.
    """
    found, unknown = _parser().parse_known_args(argv)
    if unknown:
        word = unknown[0].split("=")[0]
        raise BadInput(f"unknown argument {word}{config.nearest(word, FLAGS)}")
    given = vars(found)
    path, folder = given.pop("config", None), given.pop("resume", None)
    prints = given.pop("print_config", False)
    if "env_id" not in given and isinstance(given.get("hidden_units", [0])[-1], str):
        given["env_id"] = given["hidden_units"].pop()  # a list takes all words that follow it
    given = {name: taken(name, value) for name, value in given.items()}
    if folder is not None:
        if path is not None or prints:
            raise BadInput(
                "--resume continues an old run; --config and --print_config are for new runs"
            )
        params.check_text("--resume", folder)
        return Resume(folder, given)
    parsed = together({} if path is None else config.read(path, tell), given)
    if parsed.sources["env_id"] == "config" and ":" in parsed.params.env_id:
        asked = f"{path} asks for {parsed.params.env_id}, which runs the code of a module"
        raise BadInput(f"{asked}: if you trust it, name it on the command line too")
    return PrintConfig(config.to_toml(parsed)) if prints else parsed


def _number(text: str) -> int | float | str:
    """The number that a text means, or the text itself, which `taken` refuses."""
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(text)
    return text


def together(asked: dict[str, Any], given: dict[str, Any]) -> ParsedParams:
    """The defaults, overridden by the preset, --config and the command line, in this order."""
    preset = PRESETS[(asked | given).get("preset", KNOBS["preset"].default)]
    values: dict[str, Any] = {}
    sources = dict.fromkeys(KNOBS, "default")
    for source, layer in (("preset", preset), ("config", asked), ("command line", given)):
        values |= layer
        sources |= dict.fromkeys(layer, source)
    if "env_id" not in values:
        raise BadInput("env_id is missing: name an environment, such as PongNoFrameskip-v4")
    found = params.Params(**values)
    derived: dict[str, Any] = {}
    if found.lr_schedule == "linear" and found.lr_decay_to_zero_by_n_steps is None:
        derived[LR_END] = found.n_steps
    if found.debug and not found.no_xla:
        # XLA cannot compile tf.print, and the run's record should say what ran.
        derived["no_xla"] = True
    found = dataclasses.replace(found, **derived)
    params.check(found)
    return ParsedParams(found, sources | dict.fromkeys(derived, "derived"))


def resumed(saved: ParsedParams, given: dict[str, Any]) -> ParsedParams:
    """The parameters of a run that continues; BadInput if a given one would change its training.

    The schedule's end stays, unless --n_steps goes past it: then a new end must be given.
    """
    values = dataclasses.asdict(saved.params)
    changed = {name: value for name, value in given.items() if value != values[name]}
    end, n_steps = values[LR_END], changed.get("n_steps", values["n_steps"])
    is_past_end = end is not None and n_steps > end
    free = [name for name, knob in KNOBS.items() if knob.anew] + [LR_END] * is_past_end
    if kept := next((name for name in changed if name not in free), None):
        was = f"{flag(kept)} is {shown(values[kept])} in the run, and --resume cannot change it"
        raise BadInput(f"{was}; it can change {', '.join(map(flag, free))}")
    if is_past_end and LR_END not in changed:
        given_steps = f"--n_steps {n_steps} goes past the end of the learning rate's schedule"
        raise BadInput(f"{given_steps}, --{LR_END} {end}: give a new end as well")
    found = dataclasses.replace(saved.params, **changed)
    params.check(found)
    return ParsedParams(found, saved.sources | dict.fromkeys(changed, "command line"))


class Parser(argparse.ArgumentParser):
    """The argument parser of all programs here: it raises what is wrong as BadInput."""

    def error(self, message: str) -> NoReturn:
        raise BadInput(message)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        usage="python3 train.py [flags] env_id, or python3 train.py --resume FOLDER [flags]",
        description="Train A3C. The brackets show the default, the presets that differ from it, the"
        f" unit, and where the flag is from. The value {params.NONE} unsets a flag.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--version", action="version", version=f"train.py {__version__}")
    groups: dict[str, Any] = {}
    for name, knob in KNOBS.items():
        if knob.group not in groups:
            groups[knob.group] = parser.add_argument_group(knob.group)
        add = groups[knob.group].add_argument
        if name == "env_id":
            add(name, nargs="?", help=knob.help)
        elif bool in TYPES[name]:
            # argparse must see this form first: it takes the second for a flag without a value.
            add(f"--{name}={params.NONE}", dest=name, action="store_false", help=argparse.SUPPRESS)
            add(f"--{name}", action="store_true", help=_help(name))
        else:
            kind = TYPES[name][0]
            metavar = {int: "N", float: "X", str: "TEXT", tuple: "N"}[kind]
            if knob.choices:
                metavar = "{" + ",".join(knob.choices) + "}"
            read = str if kind is str else _number
            n_values: Any = {"nargs": "+"} if kind is tuple else {}
            add(flag(name), metavar=metavar, type=read, help=_help(name), **n_values)
    for name, (group, value, help) in COMMANDS.items():
        takes: Any = {"metavar": value} if value else {"action": "store_true"}
        groups[group].add_argument(name, help=help, **takes)
    # The flag's name in an earlier OCD A3C.
    old: Any = {"dest": "manager_wake_interval_seconds", "type": _number, "help": argparse.SUPPRESS}
    parser.add_argument("--wake_interval_seconds", **old)
    return parser


def differing(name: str) -> str:
    """The presets that set this flag, with their values."""
    values = {preset: given[name] for preset, given in PRESETS.items() if name in given}
    return ", ".join(f"{preset} {shown(value)}" for preset, value in values.items())


def _help(name: str) -> str:
    knob = KNOBS[name]
    defaults = ", ".join(filter(None, [f"default {shown(knob.default)}", differing(name)]))
    notes = "; ".join(filter(None, [defaults, knob.unit, knob.source]))
    return f"{knob.help} [{notes}]"
