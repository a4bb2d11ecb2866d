"""What the documents name exists: paths, links, make targets, scripts, flags, tests and pictures."""

import pathlib
import re
import shlex
from collections.abc import Iterator

import pytest

from a3c.settings import command_line, params
from a3c.store import logs
from tests.tools.flags_page import flags_in
from tests.tools.processes import ROOT

# Not the change log, which also names what is gone.
DOCUMENTS = sorted(
    path.relative_to(ROOT)
    for folder in (".", "docs", "benchmarks", "examples", "results")
    for path in ROOT.glob(f"{folder}/*.md")
    if path.name != "CHANGELOG.md"
)

# Made by set-up or by a run; not in the repository.
MADE_LATER = {
    *(".extra", ".peer", ".pipenv", ".venv", "checkpoints", "config.toml", "failure", "runs"),
}
# A word of code that ends so is one of our files, wherever it is.
OWN_ENDINGS = {".cff", ".lock", ".md", ".py", ".toml", ".yml"}
FOLDERS_IN_WORDS = re.compile(r"(?<![\w./-])(?:a3c|benchmarks|docs|images|results|tests)/[\w./-]*")
PATH = re.compile(r"\.?\w[\w.-]*(?:/[\w.-]+)*/?")
CLASSES_OF_OTHERS = {"AtariEnv"}
# A word with one of these stands for something that the reader fills in.
PLACEHOLDER = re.compile(r"[<>{}*$…]|\.\.\.")


def code_blocks(text: str) -> list[str]:
    """The fenced blocks, with lines that a backslash continues joined."""
    blocks = re.findall(r"^ *```[^\n]*\n(.*?)^ *```", text, flags=re.DOTALL | re.MULTILINE)
    return [re.sub(r"\\\n\s*", " ", block) for block in blocks]


def code_spans(text: str) -> list[str]:
    """What stands between single backticks, without fenced blocks."""
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]


def commands(text: str) -> Iterator[list[str]]:
    """Each command that calls make, python or pytest, as a shell would split it."""
    lines = [line for block in code_blocks(text) for line in block.splitlines()]
    for line in lines + code_spans(text):
        for part in re.split(r"\s(?:&&|\|\|?|;)\s", line.strip().removeprefix("$ ")):
            try:
                words = shlex.split(re.sub(r"\s[12]?>+\s*\S+", "", part), comments=True)
            except ValueError:  # an apostrophe: these are words, not a command
                continue
            while words and (words[0] in {"pipenv", "run"} or re.match(r"[A-Z_]+=", words[0])):
                words = words[1:]
            if words and re.fullmatch(r"make|pytest|(?:\.venv/bin/)?python3?", words[0]):
                yield words


def wrong_commands(text: str) -> Iterator[str]:
    """Commands that call a missing target or script, or pass a flag that it does not have."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z-]+):.*## ", makefile, flags=re.MULTILINE)
    for words in commands(text):
        if words[0] == "make":
            for word in words[1:]:
                if word.startswith("ARGS="):
                    yield from wrong_train_arguments(word.removeprefix("ARGS=").split())
                elif "=" not in word and word[0] != "-" and word not in targets:
                    yield f"no such target: make {word}"
        elif len(words) > 2 and words[1] == "-m":
            module = words[2].replace(".", "/")
            if (ROOT / module.split("/")[0]).is_dir() and not (ROOT / f"{module}.py").is_file():
                yield f"no such module: {words[2]}"
        elif len(words) > 1 and words[1] == "train.py":
            yield from wrong_train_arguments(words[2:])
        elif len(words) > 1 and (script := ROOT / words[1]).suffix == ".py" and script.is_file():
            at = words.index("--") if "--" in words else len(words)  # then follow flags of train.py
            unknown = flags_of(words[:at]) - flags_in(script)
            unknown |= flags_of(words[at + 1 :]) - command_line.FLAGS
            yield from (f"unknown flag {flag} of {words[1]}" for flag in unknown)


def wrong_train_arguments(arguments: list[str]) -> Iterator[str]:
    """What train.py would refuse; where the reader fills something in, only unknown flags."""
    if any(PLACEHOLDER.search(argument) for argument in arguments):
        yield from (f"unknown flag {flag}" for flag in flags_of(arguments) - command_line.FLAGS)
    elif not {"--help", "--version"} & {*arguments}:
        try:
            command_line.parse(arguments, settings_at=lambda path: {"env_id": "X-v0"})
        except params.BadInput as error:
            yield f"{error}: train.py {shlex.join(arguments)}"


def flags_of(words: list[str]) -> set[str]:
    """The flags among a command's words."""
    return {word.split("=")[0] for word in words if re.match(r"--[a-z]", word)}


def wrong_flags(text: str) -> Iterator[str]:
    """Flags in words (`--seed 3`) that no script of the project has."""
    scripts = [p for folder in (".", "*", "tests/tools") for p in ROOT.glob(f"{folder}/*.py")]
    known = command_line.FLAGS.union(*map(flags_in, scripts))
    for span in code_spans(text):
        if span.startswith("--"):
            yield from (f"unknown flag: {flag}" for flag in flags_of(span.split()) - known)


def wrong_paths(text: str, folder: pathlib.Path) -> Iterator[str]:
    """Missing paths of the repository: in links, which begin at the document's folder, and elsewhere."""
    links = re.findall(r"\]\((?![a-z]+:|#)([^)#\s]+)", text)
    yield from (f"no such path: {link}" for link in links if not (folder / link).exists())
    prose = re.sub(r"\]\([^)]*\)", "", text)
    named = {found.rstrip(".") for found in FOLDERS_IN_WORDS.findall(prose)}
    words = {word for span in code_spans(prose) for word in span.split()}
    words |= {word for command in commands(text) for word in command}
    named |= {word for word in words if is_path_of_ours(word)}
    named |= {path for block in code_blocks(text) for path in paths_in_picture(block)}
    for path in sorted(named):
        if not any((ROOT / near / path).exists() for near in (".", "a3c", "tests")):
            yield f"no such path: {path}"


def is_path_of_ours(word: str) -> bool:
    """Whether a word of code is meant as a path of the repository."""
    first, *more = word.rstrip("/").split("/")
    if not PATH.fullmatch(word) or first in MADE_LATER:
        return False
    if pathlib.PurePosixPath(word).suffix in OWN_ENDINGS or word.endswith("/"):
        return True
    return bool(more) and (ROOT / first).is_dir()


def paths_in_picture(block: str) -> Iterator[str]:
    """Names in a picture of the house: those at the left, and those indented by two below a folder."""
    if not re.search(r"^a3c/(\s|$)", block, flags=re.MULTILINE):
        return
    folder = ""
    for indent, name in re.findall(r"^(  )?(\w[\w.]*(?:/|\.\w+))(?=\s|$)", block, re.MULTILINE):
        yield folder + name if indent else name
        folder = folder if indent else name


def wrong_anchors(text: str, folder: pathlib.Path) -> Iterator[str]:
    """Links to a heading that is missing, in this document or another."""
    for path, anchor in re.findall(r"\]\(([^)#\s:]*\.md|)#([^)\s]+)\)", text):
        document = (folder / path).read_text(encoding="utf-8") if path else text
        headings = re.findall(r"^#+ (.*)$", document, flags=re.MULTILINE)
        if anchor not in {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}:
            yield f"no such heading: {path}#{anchor}"


def wrong_tests(text: str) -> Iterator[str]:
    """Tests that are missing, or that are not in the file that is linked or named before them."""
    sources = {path: path.read_text(encoding="utf-8") for path in ROOT.glob("tests/**/*_test.py")}
    found = [(name, sources.values()) for name in re.findall(r"\btest_\w+", text)]
    linked = re.findall(r"\[`(test_\w+)[^]`]*\]?`\]\((?:\.\./)*(tests/[\w/]+\.py)\)", text)
    linked += [pair[::-1] for pair in re.findall(r"`(tests/[\w/]+\.py)`: `(test_\w+)", text)]
    found += [(name, [sources.get(ROOT / path, "")]) for name, path in linked]
    for name, places in found:
        if not any(f"\ndef {name}(" in source for source in places):
            yield f"no such test: {name}"


def wrong_code(text: str) -> Iterator[str]:
    """`name` in `a3c/....py`, and `Class.member`, where our code has no such thing."""
    sources = {path: path.read_text(encoding="utf-8") for path in ROOT.glob("a3c/**/*.py")}
    for name, path in re.findall(r"`(\w+)[\w.]*` in `(a3c/[\w/]+\.py)`", text):
        if not re.search(rf"\b(?:class|def) {name}\b", sources.get(ROOT / path, "")):
            yield f"no such code: {name} in {path}"
    for owner, member in re.findall(r"`([A-Z]\w+)\.(\w+)`", text):
        is_other = owner in CLASSES_OF_OTHERS or (ROOT / f"{owner}.{member}").exists()
        homes = [s for s in sources.values() if re.search(rf"\bclass {owner}\b", s)]
        if not is_other and not any(re.search(rf"(?:def |self\.){member}\b", s) for s in homes):
            yield f"no such code: {owner}.{member}"


def problems(text: str, folder: pathlib.Path = ROOT) -> list[str]:
    """Everything that a document in that folder names and the repository lacks."""
    of_place = [*wrong_paths(text, folder), *wrong_anchors(text, folder)]
    of_code = [*wrong_flags(text), *wrong_tests(text), *wrong_code(text)]
    return [*of_place, *wrong_commands(text), *of_code]


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_what_a_document_names_exists(document: pathlib.Path) -> None:
    """Analytic: paths, links, commands, flags and tests of the document against the repository."""
    path = ROOT / document
    assert problems(path.read_text(encoding="utf-8"), path.parent) == []


def test_the_table_beside_others_has_our_settings() -> None:
    """Golden: what each preset sets, in docs/departures.md."""
    text = (ROOT / "docs/departures.md").read_text("utf-8")
    head, *rows = re.findall(r"^\| `--(\w+)` \| (.*) \|$|^\| \| (`ocd`.*) \|$", text, re.MULTILINE)
    presets = [name.strip("`") for name in head[2].split(" | ") if "`" in name]
    asked = [command_line.parse(["--preset", name, "Pong-v4"]).params for name in presets]
    assert presets == ["ocd", "paper", "wide", "pong"]
    assert rows
    for flag, cells, _ in rows:
        values = (getattr(each, flag) for each in asked)
        wanted = ["nature" if value is None else value for value in values]
        found = [type(x)(cell) for cell, x in zip(cells.split(" | "), wanted, strict=False)]
        assert found == wanted, flag


def test_every_figure_is_explained() -> None:
    """Golden: the columns of progress.csv, each in one row of docs/looking-inside.md."""
    text = (ROOT / "docs/looking-inside.md").read_text("utf-8")
    cells = "".join(re.findall(r"^\| (`\w+/\w+`.*?) \|", text, re.MULTILINE))
    assert sorted(re.findall(r"`(\w+/\w+)`", cells)) == sorted(logs.FIGURES)


def test_every_picture_is_shown_and_small() -> None:
    """Analytic: the documents show all of images/: GIFs of 2 MB at most, films of 4, in all 20."""
    shown = {
        (document.parent / link).name
        for document in DOCUMENTS
        for link in re.findall(r"!\[[^]]+\]\(([^)]+)\)", (ROOT / document).read_text("utf-8"))
    }
    pictures = [path for path in ROOT.glob("images/*") if path.suffix != ".py" and path.is_file()]
    assert shown == {path.name for path in pictures}
    most = {path: 4_000_000 if path.suffix == ".mp4" else 2_000_000 for path in pictures}
    assert [path.name for path in pictures if path.stat().st_size > most[path]] == []
    assert sum(path.stat().st_size for path in pictures) <= 20_000_000


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[x](docs/nothing.md)", "no such path: docs/nothing.md"),
        ("`nothing.py`", "no such path: nothing.py"),
        ("```\na3c/\n  nothing.py   nothing\n```", "no such path: a3c/nothing.py"),
        ("```\na3c/  here\nnothing/  there\n```", "no such path: nothing/"),
        ("```sh\ncd x && make tset\n```", "no such target: make tset"),
        ('`make train ARGS="--n_wrokers 4 X-v1"`', "unknown argument --n_wrokers"),
        ("`python3 train.py --preset nothing X-v1`", "--preset"),
        ("`python3 plot_runs.py --nothing`", "unknown flag --nothing of plot_runs.py"),
        ("`python3 sweep.py --envs X-v1 -- --nothing 3`", "unknown flag --nothing of sweep.py"),
        ("`--nothing 3`", "unknown flag: --nothing"),
        ("`python3 -m results.nothing`", "no such module: results.nothing"),
        ("# It's here\n[x](#its-gone)", "no such heading: #its-gone"),
        ("and `test_nothing[a]`, too", "no such test: test_nothing"),
        ("[`test_lock[a-4, c]`](tests/readme_test.py)", "no such test: test_lock"),
        ("`tests/readme_test.py`: `test_lock`", "no such test: test_lock"),
        ("`nothing` in `a3c/agent/losses.py`", "no such code: nothing in a3c/agent/losses.py"),
        ("`Counters.nothing`", "no such code: Counters.nothing"),
    ],
)
def test_what_does_not_exist_is_found(text: str, problem: str) -> None:
    """Analytic: negative control."""
    assert problem in "\n".join(problems(text))
