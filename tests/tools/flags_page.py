"""docs/flags.md, made from the declarations of the flags: `python -m tests.tools.flags_page` writes it."""

import dataclasses
import pathlib
import re
from collections.abc import Iterator

from a3c.settings.command_line import COMMANDS, differing
from a3c.settings.params import KNOBS, flag, shown

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "flags.md"
HEAD = """# Flags of train.py

This page is generated from `a3c/settings/params.py` and `a3c/settings/presets/`; `make tables` writes it.
`python3 train.py --help` prints what each flag means, and its default.

If several of these set a flag, the last one wins: the default, the preset, the file of `--config`, the command line.
`args.json` in the run folder records every value and where it came from. `none` unsets a flag whose default is none;
`--no_xla=none`, with the equals sign, turns off a flag that takes no value, such as one that a preset has turned on.

*Presets* names the presets that set the flag, with their values. *Resume* says whether a resumed run may change the
flag; a run that goes on beyond the end of its learning rate may change that, too. *Training* says whether the flag
counts as a setting of training: runs that differ only in flags with a "no", such as `--seed`, are compared as seeds of
one setting.

| Command | Meaning |
|---|---|
"""
COLUMNS = "Flag | Default | Presets | Values | Unit | Meaning | Source | Resume | Training"


def flags_in(script: pathlib.Path) -> set[str]:
    """The flags that the source of a script, or of the module that it runs, has as literals."""
    source = script.read_text(encoding="utf-8")
    if runs := re.search(r"^from (a3c[\w.]+) import main$", source, re.MULTILINE):
        source = (ROOT / f"{runs[1].replace('.', '/')}.py").read_text(encoding="utf-8")
    return set(re.findall(r"""["'](--[a-z][\w-]*)["']""", source)) | {"--help"}


def page() -> str:
    """The whole page."""
    commands = [_row(f"`{name}`", text) for name, (_, _, text) in COMMANDS.items()]
    return HEAD + "".join(commands) + "".join(_tables())


def _tables() -> Iterator[str]:
    group = None
    for name, knob in KNOBS.items():
        if knob.group != group:
            group = knob.group
            yield f"\n## {group[0].upper()}{group[1:]}\n\n| {COLUMNS} |\n|{'---|' * 9}\n"
        is_needed = knob.default is dataclasses.MISSING
        values = ", ".join(knob.choices or ())
        if knob.within:
            values = " to ".join(map(shown, knob.within))
        yield _row(
            f"`{flag(name)}`",
            "required" if is_needed else shown(knob.default),
            *(differing(name), values, knob.unit, knob.help, knob.source),
            *("yes" if truth else "no" for truth in (knob.anew, knob.changes_training)),
        )


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n".replace("<", "\\<")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
