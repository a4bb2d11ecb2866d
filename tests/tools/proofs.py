"""Makes the changes of tests/proofs.toml, each of which turns the test of a promise red.

    python3 -m tests.tools.proofs            makes each change in a copy of the tree and runs its test
    python3 -m tests.tools.proofs sharing    only those with this word (or one of several) in their test
    python3 -m tests.tools.proofs table      writes docs/proofs.md

A row that names a test without a case stands for all cases except the weekly ones: each has to turn
red. `make test-slow` makes the changes, and a fast test compares the page.
"""

import ast
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tests.tools import mutants, mutation

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "proofs.md"
LEFT_BEHIND = shutil.ignore_patterns(".*", "runs", "results", "images", "__pycache__")
PAGE_HEAD = """\
<!-- Written by `make tables` from tests/proofs.toml. -->
# How we know that it is right

A3C is easy to get slightly wrong: it still learns, but worse. So we check more than its scores.

- **The oracle** (`tests/tools/oracle.py`) is a second A3C in plain NumPy and float64, derived from
  the paper by hand. For 100 updates it must get the same actions, weights and RMSProp statistics.
- **The pins** (`tests/pinned/`) record how 100 updates of several settings change the weights.
  A commit that changes training behaviour turns them red.
- **The replay by hand** (`tests/tools/replay_by_hand.py`) plays games on the bare emulator and works
  out every observation, reward and end. Our environments must give the same, to the pixel.
- **The learning tests** (`tests/learning_test.py`) train on tiny tasks with known answers.
- **Mutants**: `make mutants` makes small mistakes in the code, one at a time, and checks that some
  test fails. `tests/mutants.txt` lists the results.
{score}- **The proofs** are the table below. Each row is a promise, the test that checks it, and a change of
  the code that turns this test red. `make test-slow` makes every change and sees the test fail.

| guarantee | test | change that turns it red |
|---|---|---|
"""


class Proof(NamedTuple):
    """In `place`, the text `old` (found there once) becomes `new`, and `test` fails: the case that it
    names, or else each of its cases."""

    guarantee: str
    test: str  # below tests/, as pytest names it
    change: str  # in words
    place: str  # `module::function`, or a file
    old: str
    new: str

    def row(self) -> str:
        """Return the row of the page."""
        file, _, name = self.test.partition("::")
        return f"| {self.guarantee} | [`{name}`](../tests/{file}) | {self.change} |\n"

    def changed(self, tree: pathlib.Path) -> tuple[pathlib.Path, str]:
        """Return the file of a tree that the change is in, and its text with the change made."""
        module, _, function = self.place.partition("::")
        text = (tree / module).read_text(encoding="utf-8")
        found = functions_of(text).get(function) if function else (0, len(text))
        assert found, f"{module} has no {function}; it is in: {modules_with(function, tree)}"
        start, end = found
        times = text.count(self.old, start, end)
        assert times == 1, f"{self.place} has {self.old!r} {times} times"
        at = text.index(self.old, start, end)
        return tree / module, text[:at] + self.new + text[at + len(self.old) :]


def modules_with(function: str, tree: pathlib.Path) -> str:
    paths = sorted(tree.glob("a3c/**/*.py"))
    found = [path for path in paths if function in functions_of(path.read_text(encoding="utf-8"))]
    return ", ".join(str(path.relative_to(tree)) for path in found) or "no module"


def functions_of(text: str) -> dict[str, tuple[int, int]]:
    """Return where each function (or other named statement) begins and ends in its lines."""
    starts = [0, *(i + 1 for i, letter in enumerate(text) if letter == "\n"), len(text)]
    return {
        name: (starts[node.lineno - 1], starts[node.end_lineno or node.lineno])
        for name, node in mutation.nodes_of(ast.parse(text))
    }


PROOFS = [
    Proof(**proof)
    for proof in tomllib.loads((ROOT / "tests/proofs.toml").read_text(encoding="utf-8"))["proof"]
]


# The last line of a traceback, as pytest shows it.
_ASSERTED = re.compile(r"^\S+:\d+: (AssertionError|Failed)$", re.MULTILINE)


def copy_of_tree(folder: pathlib.Path) -> pathlib.Path:
    """Copy what tests need of the repository."""
    return shutil.copytree(ROOT, folder / "tree", ignore=LEFT_BEHIND)


def run_tests(
    tests: Sequence[str], tree: pathlib.Path, *more: str
) -> "subprocess.CompletedProcess[str]":
    """Run tests in a copy of the tree, as pytest names them there; with `more` of its arguments."""
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", *more]
    # By default this runs the slow cases and not the weekly ones.
    paths = [f"tests/{test}" for test in tests]
    return subprocess.run([*command, *paths], cwd=tree, capture_output=True, text=True)


def check_green(tests: Iterable[str], tree: pathlib.Path) -> None:
    """Raise unless all of them pass as long as nothing is changed."""
    test = run_tests(sorted(set(tests)), tree, "-x")
    assert test.returncode == 0, test.stdout[-4000:] + test.stderr[-2000:]


def is_red(proof: Proof, tree: pathlib.Path) -> bool:
    """Make the change in a copy of the tree, run the test there, and undo the change.

    Return False if any case of the test still passes. Raise AssertionError if a case fails by
    anything but an assertion.
    """
    module, changed = proof.changed(tree)
    text = module.read_text(encoding="utf-8")
    module.write_text(changed, encoding="utf-8")
    try:
        test = run_tests([proof.test], tree)
    finally:
        module.write_text(text, encoding="utf-8")
    said = test.stdout[-2000:] + test.stderr[-2000:]
    assert test.returncode in (0, 1), said
    counts = count(test.stdout)
    # A crash proves nothing: any test would fail.
    assert len(_ASSERTED.findall(test.stdout)) >= counts.get("failed", 0), said
    assert "error" not in counts, said
    return "failed" in counts and "passed" not in counts


def count(said: str) -> dict[str, int]:
    """Return how many tests failed, passed or broke, by the last line that pytest prints."""
    last = said.strip().splitlines()[-1]
    return {word: int(n) for n, word in re.findall(r"(\d+) (failed|passed|error)", last)}


def page() -> str:
    """Return docs/proofs.md."""
    return PAGE_HEAD.format(score="".join(_score())) + "".join(proof.row() for proof in PROOFS)


def _score() -> Iterator[str]:
    """Yield the score that the list of mutants gives itself."""
    for line in mutants.LIST.read_text(encoding="utf-8").splitlines():
        if line.startswith(("# In", "# Before")):
            yield f"  {line.removeprefix('# ')}\n"


def main() -> None:
    words = sys.argv[1:]
    if words == ["table"]:
        PAGE.write_text(page(), encoding="utf-8")
        return
    proofs = [proof for proof in PROOFS if not words or any(word in proof.test for word in words)]
    if not proofs:
        sys.exit(f"no test of a proof has {' or '.join(words)} in its name")
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_of_tree(pathlib.Path(folder))
        check_green([proof.test for proof in proofs], tree)
        for proof in proofs:
            print(f"{'red' if is_red(proof, tree) else 'STILL GREEN'}: {proof.test}", flush=True)


if __name__ == "__main__":
    main()
