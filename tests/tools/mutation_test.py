"""The tool behind `make mutants`: which mutants exist, how they run, and what the list keeps."""

import ast
import pathlib
import subprocess
import sys

import pytest

from tests.tools import mutants, mutation

SOURCE = '''"""Docstring 1."""
LIMIT: int = 3


def f(x: int = 1, *, y="a") -> bool:
    """Docstring 2."""
    if x < LIMIT and not y:
        raise ValueError("too" + "small")
    assert x == 7
    g.h(x)
    x += max(x, 2)
    return g(x, key=0.5) if x else f"{x + 1}"
'''
EXPECTED = [
    "LIMIT: 3 → 4",
    "f: 1 → 2",
    "f: 'a' → 'aX'",
    "f: x < LIMIT and (not y) → x < LIMIT or not y",
    "f: x < LIMIT → x <= LIMIT",
    "f: x < LIMIT → x > LIMIT",
    "f: not y → y",
    "f: g.h(x) → None",
    "f: g.h(x) → x",
    "f: x += max(x, 2) → x -= max(x, 2)",
    "f: max → min",
    "f: 2 → 3",
    "f: return g(x, key=0.5) if x else f'{x + 1}' → return None",
    "f: g(x, key=0.5) → g(x)",
    "f: 0.5 → 1.0",
    "f: x → not x",
]


def mutants_of(source: str) -> list[mutation.Mutant]:
    return [mutant for part in mutation.parts_of(source) for mutant in part.mutants]


def test_the_mutants_of_a_source() -> None:
    """Golden: all of them, and none of hints, docstrings, errors, assertions or f-strings."""
    found = mutants_of(SOURCE)
    assert [mutant.name for mutant in found] == EXPECTED
    for mutant in found:
        changed = mutant.apply(SOURCE)
        after = mutant.name.split(" → ")[1]
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(SOURCE))
        lines = zip(SOURCE.splitlines(), changed.splitlines(), strict=True)
        changes = [(i, new) for i, (old, new) in enumerate(lines, start=1) if old != new]
        assert [line for line, _ in changes] == [mutant.line]
        assert after in changes[0][1].replace('"', "'")


def test_places_are_counted_in_bytes_and_over_lines() -> None:
    """Analytic: after letters of two bytes, and in an expression of two lines."""
    source = 's = "αβ" + (1 +\n  x) * y\n'
    changed = [mutant.apply(source) for mutant in mutants_of(source)]
    assert 's = ("αβ" - (1 + x) * y)\n'.replace('"', "'") in changed
    assert 's = "αβ" + ((2) +\n  x) * y\n' in changed
    names = [mutant.name for mutant in mutants_of("x = f(1, 1, 1)")][-3:]
    assert names == ["x: 1 → 2", "x: 1 → 2 (2)", "x: 1 → 2 (3)"]


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ('"""Docstring 2."""', '"""Other words.\n\n    And more."""  # and a comment', []),
        ("x: int = 1, *, y=", "x: float = 1, *, y: str | None =", []),
        ("-> bool", "-> None", []),
        ("LIMIT: int = 3", "LIMIT = 3\nOTHER: int", []),
        ('"too" + "small"', '"smaller than the limit"', []),
        ("x == 7", "x == 8", ["f"]),
        ("x + 1", "x + 2", ["f"]),
        ("ValueError", "TypeError", ["f"]),
        ("LIMIT: int = 3", "LIMIT: int = 4", ["LIMIT"]),
        ("LIMIT: int = 3", "def g(x):\n    return x + 1\n\nLIMIT: int = 3", ["g"]),
    ],
)
def test_a_key_changes_with_the_code_alone(old, new, changed) -> None:
    """Analytic: not with docstrings, comments, types, messages or what stands elsewhere."""
    assert SOURCE.count(old) == 1
    keys = {part.key for part in mutation.parts_of(SOURCE)}
    parts = mutation.parts_of(SOURCE.replace(old, new))
    assert [part.name for part in parts if part.key not in keys] == changed


TREE = {
    "a3c/__init__.py": "",
    "a3c/tiny.py": """
NAME = "a"


def add(a, b):
    return a + b


def unused():
    return 1
""",
    "a3c/other.py": "def twice(a):\n    return 2 * a\n",
    "tests/tiny_test.py": """
import pytest

from a3c.tiny import NAME, add


def test_add():
    assert add(2, 3) == 5


def test_memory_is_limited():
    with pytest.raises(MemoryError):
        bytearray(2**34)


@pytest.mark.parametrize("name", [NAME])
def test_whose_case_is_named_by_the_module(name):
    assert name == NAME
""",
    "tests/other_test.py": "from a3c.other import twice\n\n\ndef test():\n    assert twice(2) == 4\n",
    "tests/__init__.py": "",
    "run.py": f"""
import os, pathlib, sys
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
sys.path.insert(0, {str(mutants.ROOT)!r})
from tests.tools import mutants
mutants.__file__ = __file__  # what jobs run
mutants.ROOT = pathlib.Path.cwd()
mutants.LIST, mutants.EQUIVALENT = pathlib.Path("list.txt"), pathlib.Path("none.txt")
mutants.IN_FULL = ("tiny",)
mutants.SAMPLE_SIZE = 1
mutants.warm_up = lambda: __import__("pytest")  # and not TensorFlow
mutants.CHECKED_EVERY = 2
run = mutants.RightSource.run
mutants.RightSource.run = lambda *given: print("checked") or run(*given)
sys.exit(mutants.main(sys.argv[1:]))
""",
}
TEST_OF_UNUSED = """

def test_unused():
    from a3c.tiny import unused

    assert unused() == 1
"""


def test_a_run_in_a_tree_of_its_own(tmp_path: pathlib.Path) -> None:
    """Golden: what tests notice is killed, the rest survives; a case that has lost its name notices nothing.

    Each test file passes first, and the module's again after two and four mutants; one of the other
    module's mutants is drawn; no time is no run; a move and a comment cost nothing; tests of today notice
    what survived earlier.
    """
    for name, text in TREE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)

    said = run_mutants(tmp_path, "--minutes", "0")
    assert "5 mutants are left to run: about 0.0 hours of one core." in said
    assert not (tmp_path / "list.txt").exists()

    said = run_mutants(tmp_path)
    first = {"tiny.NAME": "s", "tiny.add": "kk", "tiny.unused": "s"}
    states = listed(tmp_path)
    assert sorted(states.pop("other.twice")) == [".", ".", "k"]
    assert states == first
    assert said.count("checked") == 4
    assert (tmp_path / "a3c/tiny.py").read_text() == TREE["a3c/tiny.py"]
    assert [line for line in said if line.startswith(("In ", "Before "))] == [
        "In the modules where all are made, tests notice 2 of 4 (50.0%); 0 more cannot be noticed,"
        " as they change nothing.",
        "In a sample from the others, tests notice 1 of 1 (100.0%); 0 more cannot be noticed,"
        " as they change nothing.",
        "Before we wrote tests for 0 of the sample, it was 100.0% (95 % interval: 20.7% to 100.0%).",
    ]

    # The functions have moved, one has a docstring now, and one has changed.
    (tmp_path / "a3c/tiny.py").unlink()
    moved = TREE["a3c/tiny.py"].replace("b):", 'b):\n    """Add."""').replace('"a"', '"b"')
    (tmp_path / "a3c/small.py").write_text(moved)
    run = tmp_path / "run.py"
    run.write_text(run.read_text().replace('"tiny"', '"small"'))
    tests = tmp_path / "tests/tiny_test.py"
    tests.rename(tmp_path / "tests/small_test.py")
    tests = tmp_path / "tests/small_test.py"
    tests.write_text(tests.read_text().replace("tiny", "small"))
    (said,) = (line for line in run_mutants(tmp_path) if " | " in line)
    assert said.startswith("1/1 s ")

    # A test for one that has survived; with two jobs, of which one has nothing to do.
    tests.write_text(tests.read_text() + TEST_OF_UNUSED.replace("tiny", "small"))
    run_mutants(tmp_path, "--survivors", "--jobs", "2")
    states = listed(tmp_path)
    del states["other.twice"]
    assert states == {"small.NAME": "s", "small.add": "kk", "small.unused": "n"}


def run_mutants(tree: pathlib.Path, *arguments: str) -> list[str]:
    """Return the lines that it prints."""
    command = [sys.executable, "run.py", *arguments]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def listed(tree: pathlib.Path) -> dict[str, str]:
    """Return the states of each function's mutants."""
    lines = [line.split() for line in (tree / "list.txt").read_text().splitlines()]
    return {line[3].removeprefix("a3c."): line[2] for line in lines if line[0] != "#"}


def test_what_an_end_says_of_a_mutant() -> None:
    """Analytic: by pytest's codes or minus a signal's number; a wrong name of a test and a lack of
    memory say nothing.
    """
    for code, failed, state in (
        (0, "-", mutants.SURVIVED),
        (None, "-", mutants.TIMEOUT),
        (1, "a_test.py::test_a", mutants.KILLED),
        (2, "a_test.py(import)", mutants.KILLED),
        (-11, "-", mutants.KILLED),
    ):
        assert mutants.state_of(mutants.Outcome(code, failed, 1.0)) == state
    for code in (1, 2, 3, 4, 5, 99, -9):
        with pytest.raises(SystemExit, match=f"ended with {code},"):
            mutants.state_of(mutants.Outcome(code, "-", 1.0))


def test_every_module_has_tests() -> None:
    """Analytic: the names of modules and of test files in the tool's tables exist."""
    paths = [path.relative_to(mutants.ROOT / "a3c") for path in mutants.ROOT.glob("a3c/**/*.py")]
    modules = {name for path in paths for name in (path.stem, str(path.with_suffix("")))}
    assert modules >= {*mutants.IN_FULL, *mutants.MORE_TESTS}
    test_files = {path.stem for path in mutants.ROOT.glob("tests/**/*_test.py")}
    for names in mutants.MORE_TESTS.values():
        assert test_files >= {f"{name}_test" for name in names}
    for path, _ in mutants.parts_of_today().values():
        assert mutants.files_of_tests(path), path
    assert mutants.files_of_tests("a3c/machine/cluster.py") == ["tests/machine/cluster_test.py"]
    assert "tests/sweep/board_test.py" in mutants.files_of_tests("a3c/sweep/start.py")


def test_a_reason_stands_below_its_mutant() -> None:
    """Analytic: comments and indents aside."""
    text = "# Why\n\nf: 1 → 2\n    No\n    matter.\n"
    assert mutants.read_equivalent(text) == {"f: 1 → 2": "No matter."}


def test_every_reason_is_for_a_mutant_of_today() -> None:
    """Analytic: none stays when its function changes."""
    functions = mutants.functions_of_today("").values()
    today = {name for function in functions for name in function.mutant_names}
    assert mutants.read_equivalent(mutants.EQUIVALENT.read_text()).keys() <= today
