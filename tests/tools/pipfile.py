"""Writes Pipfile from the packages that pyproject.toml declares: `python3 -m tests.tools.pipfile`.

It needs nothing but Python, because `make lock` runs it before anything is installed.
"""

import json
import pathlib
import re
import tomllib
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HEAD = """\
# Written by `make lock` from pyproject.toml, which declares the packages and says what each is for.
# No [[source]] here: pip's own configuration decides where packages come from.
# Exact versions and their hashes stand in Pipfile.lock.
"""
REQUIREMENT = re.compile(r"([\w.-]+)(?:\[([\w,-]+)\])?\s*([^;\s]*)\s*(?:;\s*(.+))?")


def sections_of(project: dict[str, Any]) -> dict[str, list[str]]:
    """The requirements of each section of the Pipfile; an extra is a section of its own."""
    return {
        "packages": project["project"]["dependencies"],
        "dev-packages": project["dependency-groups"]["dev"],
        **project["project"]["optional-dependencies"],
    }


def line_of(requirement: str) -> str:
    """The Pipfile's line of a requirement, such as `numpy = "*"`."""
    match = REQUIREMENT.fullmatch(requirement)
    assert match, requirement
    name, extras, version, markers = match.groups()
    if not (extras or markers):
        return f"{name} = {json.dumps(version or '*')}"
    parts = {"extras": extras and extras.split(","), "version": version or "*", "markers": markers}
    given = ", ".join(f"{key} = {json.dumps(value)}" for key, value in parts.items() if value)
    return f"{name} = {{{given}}}"


def pipfile() -> str:
    """The text of the Pipfile."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    sections = sections_of(project).items()
    return "\n".join(
        [HEAD, *("\n".join([f"[{name}]", *map(line_of, needed), ""]) for name, needed in sections)]
    )


if __name__ == "__main__":
    (ROOT / "Pipfile").write_text(pipfile(), encoding="utf-8")
