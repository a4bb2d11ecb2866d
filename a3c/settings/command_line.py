"""train.py's command line: from its arguments to checked parameters, and `--help`.

All of it is derived from the knobs of `params`. Parsing has no side effects, and whatever is wrong
is a `BadInput`.
"""

import argparse
import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from a3c.settings import config
from a3c.settings.config import PRESETS
from a3c.settings.params import (
    CKPTS,
    KNOBS,
    LR_END,
    NONE,
    RUN,
    TYPES,
    BadInput,
    Knob,
    Params,
    ParsedParams,
    check,
    check_text,
    flag,
    shown,
    taken,
)

_RESUME, _CONFIG, _PRINT = "--resume", "--config", "--print_config"
FLAGS = {*map(flag, KNOBS), _RESUME, _CONFIG, _PRINT, "--help"} - {"env_id"}


class Resume(NamedTuple):
    """A command that goes on with the run of a folder."""

    folder: str
    given: dict[str, Any]  # the other flags, by name; `resumed` says whether they may stand


class PrintConfig(NamedTuple):
    """A command that only wants its settings printed."""

    toml: str


def parse(
    argv: Sequence[str], tell: Callable[[str], None] = lambda note: None
) -> ParsedParams | Resume | PrintConfig:
    """Turn train.py's arguments (without the program's name) into parameters.

    `--help` prints and exits with 0; anything wrong raises BadInput. `tell` gets a line about what
    the file that --config names holds and nobody here knows.
    """
    found, unknown = _parser().parse_known_args(argv)
    if unknown:
        first = next((word for word in unknown if word.startswith("-")), unknown[0]).split("=")[0]
        kind = "flag" if first.startswith("-") else "argument"
        raise BadInput(f"unknown {kind} {first}{config.nearest(first, FLAGS)}")
    given = vars(found)
    path, folder = given.pop("config", None), given.pop("resume", None)
    is_to_print = given.pop("print_config", False)
    given = {name: taken(name, _typed(name, value)) for name, value in given.items()}
    if folder is not None:
        if path is not None or is_to_print:
            raise BadInput(
                f"{_CONFIG} and {_PRINT} are for new runs, and {_RESUME} goes on with an old one"
            )
        check_text(_RESUME, folder)
        return Resume(folder, given)
    parsed = _together({} if path is None else config.read(path, tell), given)
    if parsed.sources["env_id"] == "config" and ":" in parsed.params.env_id:
        raise BadInput(
            f"{path} asks for {parsed.params.env_id}, which runs the code of a module: if you trust"
            " that, name it, too"
        )
    return PrintConfig(config.to_toml(parsed)) if is_to_print else parsed


def _typed(name: str, value: str | bool) -> Any:
    """A number where the flag takes one, as a file of settings would have it."""
    if isinstance(value, str) and {int, float} & {*TYPES[name]} and value.isprintable():
        for number in (int, float):
            with contextlib.suppress(ValueError):
                return number(value)
    return value


def _together(asked: dict[str, Any], given: dict[str, Any]) -> ParsedParams:
    """What --config asks for and the command line gives, over the preset, over the defaults."""
    preset = PRESETS[(asked | given).get("preset", KNOBS["preset"].default)]
    values: dict[str, Any] = {}
    sources = dict.fromkeys(KNOBS, "default")
    for source, layer in (("preset", preset), ("config", asked), ("command line", given)):
        values |= layer
        sources |= dict.fromkeys(layer, source)
    if "env_id" not in values:
        raise BadInput("the following arguments are required: env_id")
    params = Params(**values)
    derived: dict[str, Any] = {}
    if params.lr_schedule == "linear" and params.lr_decay_to_zero_by_n_steps is None:
        derived[LR_END] = params.n_steps
    if params.debug and not params.no_xla:
        # tf.print cannot be compiled, and the run's record should say what ran.
        derived["no_xla"] = True
    params = dataclasses.replace(params, **derived)
    check(params)
    return ParsedParams(params, sources | dict.fromkeys(derived, "derived"))


def resumed(saved: ParsedParams, given: dict[str, Any]) -> ParsedParams:
    """The parameters with which a run goes on; BadInput where what is given changes its training.

    The schedule's end stays; steps beyond it need a new end, which must be given.
    """
    values = dataclasses.asdict(saved.params)
    changed = {name: value for name, value in given.items() if value != values[name]}
    end, n_steps = values[LR_END], changed.get("n_steps", values["n_steps"])
    is_past_end = end is not None and n_steps > end
    free = [name for name, knob in KNOBS.items() if knob.anew]
    for name in changed:
        if name not in free and not (name == LR_END and is_past_end):
            raise BadInput(
                f"{flag(name)} is {shown(values[name])} in the run that {_RESUME} names, which goes"
                f" on as it is; what may be given anew: {', '.join(map(flag, free))}; where"
                f" --n_steps goes past the end of the schedule, --{LR_END}"
            )
    if is_past_end and LR_END not in changed:
        raise BadInput(
            f"--n_steps {n_steps} goes past the end of the learning rate's schedule,"
            f" --{LR_END} {end}: a new end must be given, too"
        )
    params = dataclasses.replace(saved.params, **changed)
    check(params)
    return ParsedParams(params, saved.sources | dict.fromkeys(changed, "command line"))


class Parser(argparse.ArgumentParser):
    """An argument parser for all programs here; the caller reports what is wrong."""

    def error(self, message: str) -> NoReturn:
        raise BadInput(message)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        usage="python3 train.py [flags] env_id, or python3 train.py --resume FOLDER [flags]",
        description="Train A3C. In brackets: the default, and presets that differ; unit; source."
        f" {NONE} unsets a flag.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    groups: dict[str, Any] = {}
    for name, knob in KNOBS.items():
        if knob.group not in groups:
            groups[knob.group] = parser.add_argument_group(knob.group)
        add = groups[knob.group].add_argument
        if name == "env_id":
            add(name, nargs="?", help=knob.help)
        elif bool in TYPES[name]:
            # argparse finds the first before it takes the second for a flag that has no value.
            add(f"--{name}={NONE}", dest=name, action="store_false", help=argparse.SUPPRESS)
            add(f"--{name}", action="store_true", help=_help(name, knob))
        else:
            metavar = {int: "N", float: "X", str: "TEXT"}[TYPES[name][0]]
            if knob.choices:
                metavar = "{" + ",".join(knob.choices) + "}"
            add(f"--{name}", metavar=metavar, help=_help(name, knob))
    parser.add_argument(
        "--wake_interval_seconds",  # the flag's name in an earlier OCD A3C
        dest="manager_wake_interval_seconds",
        help=argparse.SUPPRESS,
    )
    groups[RUN].add_argument(
        _CONFIG,
        metavar="FILE",
        help="begin a new run with the settings of a TOML file, which holds flags by name, or of a"
        " run, by its folder or args.json; what is given on the command line wins",
    )
    groups[RUN].add_argument(
        _PRINT,
        action="store_true",
        help=f"print what is asked for as a TOML file that {_CONFIG} takes, and end",
    )
    groups[CKPTS].add_argument(
        _RESUME,
        metavar="FOLDER",
        help="go on in this run folder, with the same settings; --n_steps and what does not change"
        " training may be given anew",
    )
    return parser


def _help(name: str, knob: Knob) -> str:
    differing = [
        f"{preset} {shown(values[name])}" for preset, values in PRESETS.items() if name in values
    ]
    defaults = ", ".join([f"default {shown(knob.default)}", *differing])
    notes = "; ".join(note for note in (defaults, knob.unit, knob.source) if note)
    return f"{knob.help} [{notes}]".replace("%", "%%")
