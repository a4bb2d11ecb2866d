"""train.py's command line: from its arguments to checked parameters, and `--help`.

All of it is derived from the knobs of `params`. Parsing has no side effects; whatever is wrong
becomes one `BadInput`.
"""

import argparse
import dataclasses
import decimal
import difflib
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from a3c.settings.params import (
    CKPTS,
    KNOBS,
    N_STEPS,
    PRESETS,
    TYPES,
    BadInput,
    Knob,
    Params,
    ParsedParams,
    check,
    check_text,
    shown,
)

_RESUME = "--resume"
_LR_END = "lr_decay_to_zero_by_n_steps"
# The name that an earlier OCD A3C had for the flag.
_ALIASES = {"--wake_interval_seconds": "manager_wake_interval_seconds"}
FLAGS = {f"--{name}" for name in KNOBS if name != "env_id"} | {_RESUME, "--help"}


class Resume(NamedTuple):
    """A command that goes on with the run of a folder."""

    folder: str
    given: dict[str, Any]  # the other flags, by name; `resumed` says whether they may stand


def parse(argv: Sequence[str]) -> ParsedParams | Resume:
    """Turn train.py's arguments (without the program's name) into parameters.

    `--help` prints and exits with 0; anything wrong raises BadInput; nothing else happens.
    """
    parser = _parser()
    given = vars(parser.parse_args(_prepare(argv)))
    if "resume" in given:
        folder = given.pop("resume")
        check_text(_RESUME, folder, 4096)
        return Resume(folder, given)
    if "env_id" not in given:
        raise BadInput("the following arguments are required: env_id")
    preset = PRESETS[given.get("preset", "ocd")]
    values = preset | {"network": None} | given
    sources = {
        name: "command line"
        if name in given
        else ("default" if knob.ocd == knob.paper else "preset")
        for name, knob in KNOBS.items()
    }
    if given.get("lr_schedule") == "linear" and "lr_decay_to_zero_by_n_steps" not in given:
        raise BadInput("--lr_schedule linear needs --lr_decay_to_zero_by_n_steps, its end")
    if values["lr_decay_to_zero_by_n_steps"] == N_STEPS:
        if values["lr_schedule"] == "linear":
            values["lr_decay_to_zero_by_n_steps"] = values["n_steps"]
        else:
            values["lr_decay_to_zero_by_n_steps"] = None
            sources["lr_decay_to_zero_by_n_steps"] = "default"
    if values["debug"] and not values["no_xla"]:
        # tf.print cannot be compiled, and the run's record should say what ran.
        values["no_xla"] = True
        sources["no_xla"] = "command line"
    params = Params(**values)
    check(params)
    return ParsedParams(params, sources)


def resumed(saved: ParsedParams, given: dict[str, Any]) -> ParsedParams:
    """The parameters with which a run goes on; BadInput where what is given changes its training.

    The schedule's end is what it was; only with steps beyond it comes a new one, which must be
    named.
    """
    values = dataclasses.asdict(saved.params)
    changed = {name: value for name, value in given.items() if value != values[name]}
    end, n_steps = values[_LR_END], changed.get("n_steps", values["n_steps"])
    is_past_end = end is not None and n_steps > end
    for name in changed:
        if KNOBS[name].anew or (name == _LR_END and is_past_end):
            continue
        flag = name if name == "env_id" else f"--{name}"
        free = ", ".join(f"--{name}" for name, knob in KNOBS.items() if knob.anew)
        raise BadInput(
            f"{flag} is {shown(values[name])} in the run that {_RESUME} names, which goes on as it"
            f" is; what may be given anew: {free}; where --n_steps goes past the end of the"
            f" schedule, --{_LR_END}"
        )
    if is_past_end and _LR_END not in changed:
        raise BadInput(
            f"--n_steps {n_steps} goes past the end of the learning rate's schedule,"
            f" --{_LR_END} {end}: a new end must be given, too"
        )
    params = dataclasses.replace(saved.params, **changed)
    check(params)
    return ParsedParams(params, saved.sources | dict.fromkeys(changed, "command line"))


class Parser(argparse.ArgumentParser):
    """Any program's here: what is wrong is for its caller to say."""

    def error(self, message: str) -> NoReturn:
        raise BadInput(message)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        usage="python3 train.py [flags] env_id, or python3 train.py --resume FOLDER [flags]",
        description="Train A3C. In brackets: the default under each preset; unit; source.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    groups: dict[str, Any] = {}
    for name, knob in KNOBS.items():
        if knob.group not in groups:
            groups[knob.group] = parser.add_argument_group(knob.group)
        options: dict[str, Any] = {"help": _help(name, knob)}
        if name == "env_id":
            options["nargs"] = "?"
        if bool in TYPES[name]:
            options["action"] = "store_true"
        else:
            options["type"] = _CONVERTERS[TYPES[name][0]]
            options["choices"] = knob.choices
            if knob.choices is None and name != "env_id":
                options["metavar"] = _METAVARS[TYPES[name][0]]
        groups[knob.group].add_argument(name if name == "env_id" else f"--{name}", **options)
        for alias in (alias for alias, of in _ALIASES.items() if of == name):
            options["help"] = argparse.SUPPRESS
            groups[knob.group].add_argument(alias, dest=name, **options)
    groups[CKPTS].add_argument(
        _RESUME,
        metavar="FOLDER",
        help="go on in this run folder, with the same settings; --n_steps and what does not change"
        " training may be given anew",
    )
    return parser


def _prepare(argv: Sequence[str]) -> list[str]:
    """Refuse unknown flags by name, and join `--flag -1e-4` into one token.

    argparse alone would complain of a missing env_id, or of the value behind the unknown flag,
    and takes -1e-4 for a flag.
    """
    flags = FLAGS | set(_ALIASES) | {"-h"}
    prepared: list[str] = []
    for i, token in enumerate(argv):
        if any(ord(c) < 32 for c in token):
            # Numbers may have white space around them; the record of the command is one line.
            raise BadInput(f"argument {token!r} holds control characters")
        if token == "--":
            return prepared + list(argv[i:])
        flag = token.split("=", 1)[0]
        if not token.startswith("-") or token == "-" or flag in flags:
            prepared.append(token)
        elif _is_number(token) and prepared and prepared[-1] in flags:
            prepared[-1] += "=" + token
        else:
            near = difflib.get_close_matches(flag[:100], sorted(flags), n=1)
            raise BadInput(f"unknown flag {flag}" + (f" (nearest: {near[0]})" if near else ""))
    return prepared


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _whole(text: str) -> int:
    """A whole number, in float syntax too: decimal, because float is not exact beyond 2^53."""
    try:
        number = decimal.Decimal(text)
    except decimal.InvalidOperation:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not number.is_finite() or not -(10**18) < number < 10**18:
        raise argparse.ArgumentTypeError(f"{text} is out of range")
    if number != int(number):
        raise argparse.ArgumentTypeError(f"{text} is not a whole number")
    return int(number)


def _real(text: str) -> float:
    if not _is_number(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return float(text)


_CONVERTERS: dict[type, Any] = {int: _whole, float: _real, str: str}
_METAVARS = {int: "N", float: "X", str: "NAME"}


def _help(name: str, knob: Knob) -> str:
    if name == "env_id":
        return knob.help
    defaults = f"ocd {shown(knob.ocd)}, paper {shown(knob.paper)}"
    if name == "preset":
        defaults = f"default {knob.ocd}"
    notes = "; ".join(note for note in (defaults, knob.unit, knob.source) if note)
    return f"{knob.help} [{notes}]".replace("%", "%%")
