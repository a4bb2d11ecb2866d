"""What the documents name exists: paths, links, make targets, scripts, flags and their values."""

import pathlib
import re
import shlex
from collections.abc import Iterator

import pytest

from a3c.settings import command_line, params

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "benchmarks/README.md", "results/README.md")

# Made by set-up or by a run; not in the repository.
MADE_LATER = {".pipenv", ".venv", "checkpoints", "failure", "monitor", "runs"}
# Beside folders (a/), names with these endings are taken for the repository's own files.
OWN_ENDINGS = {".cff", ".lock", ".md", ".py", ".toml", ".yml"}
FOLDERS_IN_WORDS = re.compile(r"(?<![\w./-])(?:a3c|benchmarks|images|results|tests)/[\w./-]*")
PATH = re.compile(r"\.?\w[\w.-]*(?:/[\w.-]+)*/?")
# A token with one of these stands for something that the reader fills in.
PLACEHOLDER = re.compile(r"[<>{}*$…]|\.\.\.")


def code_blocks(text: str) -> list[str]:
    """The fenced blocks, with lines that a backslash continues joined."""
    blocks = re.findall(r"^ *```[^\n]*\n(.*?)^ *```", text, flags=re.DOTALL | re.MULTILINE)
    return [re.sub(r"\\\n\s*", " ", block) for block in blocks]


def code_spans(text: str) -> list[str]:
    """What stands between single backticks, fenced blocks aside."""
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]


def commands(text: str) -> Iterator[list[str]]:
    """Each command that calls make, python or pytest, as a shell would split it."""
    lines = [line for block in code_blocks(text) for line in block.splitlines()]
    for line in lines + code_spans(text):
        for part in re.split(r"\s(?:&&|\|\|?|;)\s", line.strip().removeprefix("$ ")):
            try:
                words = shlex.split(re.sub(r"\s[12]?>+\s*\S+", "", part), comments=True)
            except ValueError:  # an apostrophe: words, no command
                continue
            while words and (words[0] in {"pipenv", "run"} or re.match(r"[A-Z_]+=", words[0])):
                words = words[1:]
            if words and re.fullmatch(r"make|pytest|(?:\.venv/bin/)?python3?", words[0]):
                yield words


def wrong_commands(text: str, root: pathlib.Path) -> Iterator[str]:
    """Commands that call a missing target or script, or pass what it does not take."""
    for words in commands(text):
        shown = shlex.join(words)
        if words[0] == "make":
            for target in [word for word in words[1:] if "=" not in word and word[0] != "-"]:
                if target not in make_targets(root):
                    yield f"no such target: {shown}"
            for argument in words[1:]:
                if argument.startswith("ARGS="):
                    yield from wrong_train_arguments(argument.removeprefix("ARGS=").split(), shown)
        elif len(words) > 2 and words[1] == "-m":
            folder, *rest = words[2].split(".")
            if (root / folder).is_dir() and not (root / folder / f"{'/'.join(rest)}.py").is_file():
                yield f"no such module: {shown}"
        elif len(words) > 1 and words[1].endswith(".py"):
            script = root / words[1]
            if not script.is_file():
                yield f"no such script: {shown}"
            elif words[1] == "train.py":
                yield from wrong_train_arguments(words[2:], shown)
            else:
                known = flags_in(script.read_text(encoding="utf-8"))
                yield from (f"unknown flag {flag}: {shown}" for flag in flags_of(words) - known)


def wrong_train_arguments(arguments: list[str], shown: str) -> Iterator[str]:
    """What train.py would say to them; only of the flags where the reader fills something in."""
    if any(PLACEHOLDER.search(argument) for argument in arguments):
        yield from (
            f"unknown flag {flag}: {shown}" for flag in flags_of(arguments) - command_line.FLAGS
        )
    elif "--help" not in arguments:
        try:
            command_line.parse(arguments)
        except params.BadInput as error:
            yield f"{error}: {shown}"


def wrong_flags(text: str, root: pathlib.Path) -> Iterator[str]:
    """Flags mentioned in words (`--seed 3`) that no script of the project has."""
    known = set(command_line.FLAGS)
    for script in [
        p for folder in (".", "benchmarks", "results") for p in root.glob(f"{folder}/*.py")
    ]:
        known |= flags_in(script.read_text(encoding="utf-8"))
    for span in code_spans(text):
        if span.startswith("--"):
            yield from (f"unknown flag: {flag}" for flag in flags_of(span.split()) - known)


def wrong_paths(text: str, root: pathlib.Path) -> Iterator[str]:
    """Missing paths of the repository: in words, code, links and the picture of the house."""
    named = set(re.findall(r"\]\((?![a-z]+:|#)([^)#\s]+)", text))
    named |= {found.rstrip(".") for found in FOLDERS_IN_WORDS.findall(text)}
    words = {word for span in code_spans(text) for word in span.split()}
    words |= {word for command in commands(text) for word in command}
    words = {word for word in words if is_path_of_ours(word, root)}
    named |= {
        word
        for word in words
        if not any((root / near / word).exists() for near in ("a3c", "tests"))
    }
    named |= {path for block in code_blocks(text) for path in paths_in_picture(block)}
    yield from sorted(f"no such path: {path}" for path in named if not (root / path).exists())


def wrong_anchors(text: str, root: pathlib.Path) -> Iterator[str]:
    """Links to a heading that is not there, in this document or another."""
    for path, anchor in re.findall(r"\]\(([^)#\s:]*\.md|)#([^)\s]+)\)", text):
        document = (root / path).read_text(encoding="utf-8") if path else text
        headings = re.findall(r"^#+ (.*)$", document, flags=re.MULTILINE)
        if anchor not in {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}:
            yield f"no such heading: {path}#{anchor}"


def wrong_tests(text: str, root: pathlib.Path) -> Iterator[str]:
    """Tests that are named and not there, or not in the file whose link they are."""
    everywhere = [path.read_text(encoding="utf-8") for path in (root / "tests").rglob("*_test.py")]
    linked = re.findall(r"\[`(test_\w+)[^]`]*\]?`\]\((tests/[\w/]+\.py)\)", text)
    linked += [
        (name, path) for path, name in re.findall(r"`(tests/[\w/]+\.py)`: `(test_\w+)", text)
    ]
    found = [(name, everywhere) for name in re.findall(r"\btest_\w+", text)]
    for name, path in linked:
        is_file = (root / path).is_file()
        found.append((name, [(root / path).read_text(encoding="utf-8")] if is_file else []))
    for name, sources in found:
        if not any(f"\ndef {name}(" in source for source in sources):
            yield f"no such test: {name}"


def is_path_of_ours(word: str, root: pathlib.Path) -> bool:
    """Whether a word of code is meant as a path of the repository."""
    first, *more = word.rstrip("/").split("/")
    if not PATH.fullmatch(word) or first in MADE_LATER:
        return False
    if pathlib.PurePosixPath(word).suffix in OWN_ENDINGS or word.endswith("/"):
        return True
    return bool(more) and (root / first).is_dir()


def paths_in_picture(block: str) -> Iterator[str]:
    """Names in a picture of the house: `a3c/` and, indented below it, its files."""
    if not re.search(r"^a3c/(\s|$)", block, flags=re.MULTILINE):
        return
    folders: list[tuple[int, str]] = []
    for line in block.splitlines():
        line = re.sub(r"[│├└─]", " ", line)
        indentation = len(line) - len(line.lstrip())
        folders = [(depth, folder) for depth, folder in folders if depth < indentation]
        if indentation > (folders[-1][0] if folders else 0) + 8:
            continue  # the line above goes on
        for name in re.split(r"\s{2,}", line.strip())[0].split():
            if PATH.fullmatch(name) and (name.endswith("/") or "." in name):
                path = (folders[-1][1] if folders else "") + name
                yield path
                if name.endswith("/"):
                    folders.append((indentation, path))


def make_targets(root: pathlib.Path) -> set[str]:
    """The targets for people: those that `make help` explains."""
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z-]+):.*## ", makefile, flags=re.MULTILINE))


def flags_in(source: str) -> set[str]:
    """Flags that a script's source declares as literals."""
    return set(re.findall(r"""["'](--[a-z][\w-]*)["']""", source)) | {"--help"}


def flags_of(words: list[str]) -> set[str]:
    """The flags among a command's words."""
    return {word.split("=")[0] for word in words if re.match(r"--[a-z]", word)}


def problems(text: str, root: pathlib.Path) -> list[str]:
    """Everything that a document names and the repository lacks."""
    found = (wrong_paths, wrong_anchors, wrong_commands, wrong_flags, wrong_tests)
    return [problem for problems_of in found for problem in problems_of(text, root)]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_a_document_names_exists(document: str) -> None:
    """Analytic: paths, commands and flags of the document against the repository."""
    text = (ROOT / document).read_text(encoding="utf-8")
    assert list(commands(text)), "found no commands: is the document in another form?"
    assert problems(text, ROOT) == []


def test_every_picture_is_shown_and_small() -> None:
    """Analytic: the README shows what is in images/: GIFs of 2 MB at most, films of 4, in all 20."""
    shown = re.findall(r"!\[[^]]+\]\((images/[^)]+)\)", (ROOT / "README.md").read_text("utf-8"))
    pictures = [path for path in ROOT.glob("images/*") if path.suffix != ".py" and path.is_file()]
    assert sorted(shown) == sorted(str(path.relative_to(ROOT)) for path in pictures)
    most = {path: 4_000_000 if path.suffix == ".mp4" else 2_000_000 for path in pictures}
    assert [path.name for path in pictures if path.stat().st_size > most[path]] == []
    assert sum(path.stat().st_size for path in pictures) <= 20_000_000


GOOD = """
See [the tests](tests/readme_test.py#top), [the paper](https://example.org/x.py), a3c/settings/params.py.
`a3c/settings/params.py`, `a3c/settings/params.py`, `tests/`, `runs/x/args.json`, `progress.csv`, `ALE/Pong-v5`, `rl/x`
`make train ARGS="--n_workers 4 CartPole-v1"`, `--seed 3`, `--n_workers N`, tests/<module>_test.py
[`test_lock`](tests/setup_test.py), `test_lock[x]`, `tests/setup_test.py`: `test_lock`
```sh
$ make test
make check && pipenv run python3 train.py --n_steps 1e6 \\
    --seed 1 CartPole-v1 2> debug.log   # a comment
python3 train.py --load_ckpt <run folder> CartPole-v1
pipenv run pytest tests/readme_test.py
```
```
train.py        begins here
a3c/
  settings/params.py  flags, and
                what they mean, e.g. nowhere.py
tests/          one for each
Makefile Pipfile pyproject.toml .ci/run
```
"""


def test_a_right_document_has_no_problems() -> None:
    """Analytic: everything in the example exists, or stands for something else than a path."""
    assert problems(GOOD, ROOT) == []
    assert len(list(commands(GOOD))) == 6


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("see a3c/nothing.py.", "no such path: a3c/nothing.py"),
        ("[x](docs/x.md)", "no such path: docs/x.md"),
        ("`nothing.py`", "no such path: nothing.py"),
        ("`pytest tests/nothing_test.py`", "no such path: tests/nothing_test.py"),
        ("```\na3c/\n  nothing.py   nothing\n```", "no such path: a3c/nothing.py"),
        ("```\na3c/  here\nnothing/  there\n```", "no such path: nothing/"),
        ("```sh\ncd x && make tset\n```", "no such target: make tset"),
        ('`make train ARGS="--n_wrokers 4 X-v1"`', "unknown flag --n_wrokers"),
        ("```\npython3 nothing.py\n```", "no such script: python3 nothing.py"),
        ("```\npipenv run python3 train.py --nothing X-v1\n```", "unknown flag --nothing"),
        ("`python3 train.py --preset nothing X-v1`", "--preset"),
        ("`--nothing 3`", "unknown flag: --nothing"),
        ("`python3 -m results.nothing`", "no such module: python3 -m results.nothing"),
        ("# It's here\n[x](#its-gone)", "no such heading: #its-gone"),
        ("[x](CONTRIBUTING.md#nothing)", "no such heading: CONTRIBUTING.md#nothing"),
        ("and `test_nothing[a]`, too", "no such test: test_nothing"),
        ("[`test_lock[a-4, c]`](tests/readme_test.py)", "no such test: test_lock"),
        ("`tests/readme_test.py`: `test_lock`", "no such test: test_lock"),
    ],
)
def test_what_does_not_exist_is_found(text: str, problem: str) -> None:
    """Analytic: negative control."""
    assert problem in "\n".join(problems(text, ROOT))
