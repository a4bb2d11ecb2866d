"""train.py's command line: from its arguments to checked parameters, and `--help`.

It is derived from the knobs in params.py. Parsing has no side effects; a mistake is a `BadInput`.
"""

import argparse
import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from a3c import __version__
from a3c.machine import place
from a3c.machine.words import BadInput
from a3c.settings import config, params
from a3c.settings.config import PRESETS
from a3c.settings.params import KNOBS, LR_END, TYPES, ParsedParams, flag, shown, taken
from a3c.settings.suggestions import nearest

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
    "--resume_or_start": (
        *(params.CKPTS, None),
        "continue the run in --log_dir, or start it there; if it is finished, that is a success. So"
        " the same command can wait in a batch queue several times",
    ),
}
# Beside the package in a clone. A wheel has these commands instead.
SCRIPTS = {
    "train.py": "a3c-train",
    "run_checkpoint.py": "a3c-play",
    "plot_runs.py": "a3c-plot",
    "sweep.py": "a3c-sweep",
}
# Flags that do nothing without others.
USED_WITH = {
    "eval_episodes": "eval_interval_steps",
    "no_frame_numbers": "debug",
}
FLAGS = {*map(flag, KNOBS), *COMMANDS, "--help", "--version"} - {"env_id"}


class Resume(NamedTuple):
    """The command to continue the run in a folder."""

    folder: str
    given: dict[str, Any]  # the other flags, by name; `resumed` checks them
    otherwise: ParsedParams | None = None  # what to start where the folder holds no run yet


class PrintConfig(NamedTuple):
    """The command to print the settings."""

    toml: str


def called(script: str) -> list[str]:
    """How a program of the project is called here, as words of a command."""
    return ["python3", script] if place.IS_CLONE else [SCRIPTS[script]]


def parse(
    argv: Sequence[str],
    tell: Callable[[str], None] = lambda note: None,
    settings_at: Callable[[str], dict[str, Any]] = lambda checkpoint: {},
) -> ParsedParams | Resume | PrintConfig:
    """Turn train.py's arguments (without the program's name) into parameters.

    `--help` and `--version` print and exit with 0; every mistake raises BadInput. `tell` gets a
    line about what --config ignores; `settings_at` returns the settings of a checkpoint's run.
    """
    found, unknown = _parser().parse_known_args(argv)
    if unknown:
        word = unknown[0].split("=")[0]
        raise BadInput(f"unknown argument {word}{nearest(word, FLAGS)}")
    given = vars(found)
    path, folder = given.pop("config", None), given.pop("resume", None)
    prints, or_starts = given.pop("print_config", False), given.pop("resume_or_start", False)
    for name, is_id in (("hidden_units", _is_no_number), ("env_kwargs", _is_no_kwarg)):
        # A list takes all words that follow it.
        if "env_id" not in given and name in given and is_id(given[name][-1]):
            given["env_id"] = given[name].pop()
            if not given[name]:
                raise BadInput(f"--{name} needs a value, not nothing")
    given = {name: taken(name, value) for name, value in given.items()}
    if folder is not None:
        if path is not None or prints or or_starts:
            raise BadInput(
                "--resume continues an old run; --config, --print_config and --resume_or_start are"
                " for new runs"
            )
        params.check_text("--resume", folder)
        return Resume(folder, given)
    asked: dict[str, Any] = {}
    if path is not None:
        asked = config.read(path, tell)
    elif "env_id" not in given and given.get("load_ckpt") is not None:
        asked = settings_at(given["load_ckpt"])
    parsed = together(asked, given)
    named = [name for name, source in parsed.sources.items() if source != "config"]
    if code := config.code_in(dataclasses.asdict(parsed.params), named):
        told = f"{path or given['load_ckpt']} asks for {' '.join(code.values())}, which may run the code"
        told += " of a module: if you trust it, name it on the command line, too"
        more = "" if path else ", and add --config with its run's folder to keep its settings"
        raise BadInput(told + more)
    if prints:
        return PrintConfig(config.to_toml(parsed))
    return _resume_or_start(parsed) if or_starts else parsed


def _resume_or_start(parsed: ParsedParams) -> Resume:
    """The command to continue the run in --log_dir, if it has the settings that were asked for."""
    folder = parsed.params.log_dir
    if folder is None:
        raise BadInput("--resume_or_start needs --log_dir, the folder of the run")
    names = [name for name, source in parsed.sources.items() if source in params.ASKED]
    given = {name: getattr(parsed.params, name) for name in names if name != "log_dir"}
    return Resume(folder, given, parsed)


def _number(text: str) -> int | float | str:
    """The number that a text means, or the text itself, which `taken` refuses."""
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(text)
    return text


def _is_no_number(word: int | float | str) -> bool:
    return isinstance(word, str)


def _is_no_kwarg(word: str) -> bool:
    return "=" not in word and word != params.NONE


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
        if sources["no_xla"] in params.ASKED:
            raise BadInput("--debug needs --no_xla, because XLA cannot compile tf.print")
        # The run's record should say what ran.
        derived["no_xla"] = True
    found = dataclasses.replace(found, **derived)
    _check(found, given)
    # What takes the place of a preset's own value was asked for: as none.
    follow = derived.keys() - preset.keys()
    return ParsedParams(found, sources | dict.fromkeys(follow, "derived"))


def _check(found: params.Params, given: dict[str, Any]) -> None:
    """Raise BadInput where values contradict each other, or a given one has no effect."""
    for name, needed in USED_WITH.items():
        if given.get(name) and not getattr(found, needed):
            raise BadInput(f"{flag(name)} has no effect without {flag(needed)}")
    params.check(found)


def resumed(saved: ParsedParams, given: dict[str, Any], folder: str = "FOLDER") -> ParsedParams:
    """The parameters of a run that continues; BadInput if a given one would change its training.

    The schedule's end stays, unless --n_steps goes past it: then a new end must be given.
    """
    unset = {name: KNOBS[name].default for name in params.OF_ONE_START}
    saved = ParsedParams(
        dataclasses.replace(saved.params, **unset), saved.sources | dict.fromkeys(unset, "default")
    )
    values = dataclasses.asdict(saved.params)
    changed = {name: value for name, value in given.items() if value != values[name]}
    if given.get("network", "") is None:  # whichever fits, as the run has it
        changed.pop("network", None)
    end, n_steps = values[LR_END], changed.get("n_steps", values["n_steps"])
    is_past_end = end is not None and n_steps > end
    free = [name for name, knob in KNOBS.items() if knob.anew] + [LR_END] * is_past_end
    if kept := next((name for name in changed if name not in free), None):
        was = f"{flag(kept)} is {shown(values[kept])} in the run, and --resume cannot change it"
        instead = f"; a new run from its checkpoint can: --load_ckpt {folder} instead of --resume"
        if kept not in params.OF_SUBJECT | {"preset"}:
            was += instead
        raise BadInput(f"{was}. --resume can change {', '.join(map(flag, free))}")
    if is_past_end and LR_END not in changed:
        given_steps = f"--n_steps {n_steps} goes past the end of the learning rate's schedule"
        raise BadInput(f"{given_steps}, --{LR_END} {end}: give a new end as well")
    found = dataclasses.replace(saved.params, **changed)
    _check(found, changed)
    return ParsedParams(found, saved.sources | dict.fromkeys(changed, "command line"))


class Parser(argparse.ArgumentParser):
    """The argument parser of all programs here: it raises what is wrong as BadInput."""

    def error(self, message: str) -> NoReturn:
        raise BadInput(message)


def _parser() -> argparse.ArgumentParser:
    program = " ".join(called("train.py"))
    parser = Parser(
        usage=f"{program} [flags] env_id, or {program} --resume FOLDER [flags], or"
        f" {program} --load_ckpt FOLDER [flags]",
        description="Train A3C. The brackets show the default, the presets that differ from it, the"
        f" unit, and where the flag is from. The value {params.NONE} unsets a flag.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument(
        "--version", action="version", version=f"{called('train.py')[-1]} {__version__}"
    )
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
            if name == "env_kwargs":
                read, metavar = str, "NAME=VALUE"
            n_values: Any = {"nargs": "+"} if kind is tuple else {}
            add(flag(name), metavar=metavar, type=read, help=_help(name), **n_values)
    for name, (group, value, help) in COMMANDS.items():
        takes: Any = {"metavar": value} if value else {"action": "store_true"}
        groups[group].add_argument(name, help=help, **takes)
    for before, name in params.RENAMED.items():
        parser.add_argument(flag(before), dest=name, type=_number, help=argparse.SUPPRESS)
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
