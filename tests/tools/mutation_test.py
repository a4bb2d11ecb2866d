"""The tool behind `make mutants`: which mutants there are, how they are run, and what is kept of it."""

import ast
import pathlib
import subprocess
import sys

import pytest

from tests.tools import mutants, mutation
from tests.tools.mutants import Result, Section

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
    "(module): 3 → 4",
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


def test_the_mutants_of_a_source() -> None:
    """Golden: every one, and none of hints, docstrings, errors, assertions or f-strings."""
    found = mutation.mutants_of(SOURCE)
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
    """Analytic: after letters of two bytes, and an expression of two lines; equal changes are numbered."""
    source = 's = "αβ" + (1 +\n  x) * y\n'
    changed = [mutant.apply(source) for mutant in mutation.mutants_of(source)]
    assert 's = ("αβ" - (1 + x) * y)\n'.replace('"', "'") in changed
    assert 's = "αβ" + (2 +\n  x) * y\n'.replace("2", "(2)") in changed
    names = [mutant.name for mutant in mutation.mutants_of("f(1, 1, 1)")][-3:]
    assert names == ["(module): 1 → 2", "(module): 1 → 2 (2)", "(module): 1 → 2 (3)"]


def test_the_list_is_read_as_it_was_written() -> None:
    """Analytic: two files, names with blanks; and the score of both kinds of file."""
    sections = {
        "a3c/agent/losses.py": Section(
            *("0123456789ab", 4),
            {
                "f: a + b → a - b": Result(
                    "killed", "f: a + b → a - b", 1.5, "tests/x_test.py::t[no_room]"
                ),
                "f: 1 → 2": Result("survived", "f: 1 → 2", 20.0, "-"),
                "f: 2 → 3": Result("survived", "f: 2 → 3", 20.0, "-"),
                "f: 3 → 4": Result("again", "f: 3 → 4", 20.0, "-"),
            },
        ),
        "a3c/settings/params.py": Section(
            *("ba9876543210", 9),
            {
                "g: 0 → 1": Result("timeout", "g: 0 → 1", 90.0, "-"),
                "g: 1 → 2": Result("since", "g: 1 → 2", 9.0, "tests/x_test.py::t"),
            },
        ),
    }
    equivalent = mutants.read_equivalent(
        "# Why\n\na3c/agent/losses.py: f: 1 → 2\n    No\n    matter.\n"
    )
    assert equivalent == {"a3c/agent/losses.py: f: 1 → 2": "No matter."}
    text = mutants.write_results(sections, equivalent)
    assert mutants.read_results(text) == sections
    assert text.splitlines()[2:6] == [
        "# a3c/agent/losses.py: 1 of 3 noticed = 33.3%, 0 of them since, 1 equivalent, 4 run of 4",
        "# a3c/settings/params.py: 2 of 2 noticed = 100.0%, 1 of them since, 0 equivalent, 2 run of 9",
        "# in full: 1 of 3 noticed = 33.3%, 0 of them since, 1 equivalent, 4 run",
        "# sampled: 2 of 2 noticed = 100.0%, 1 of them since, 0 equivalent, 2 run",
    ]
    assert "# sampled, when first met: 50.0%, 95 % interval 9.5% to 90.5%\n" in text


def test_what_is_told_of_another_source_does_not_count(tmp_path, monkeypatch) -> None:
    """Analytic: of three files, two have changed, a fourth is gone; what survived is remembered."""
    now = {"a3c/a.py": "1\n", "a3c/b.py": "X = 2 + 0\n", "a3c/d.py": "2\n"}
    told = results_of({"f: 1 → 2": "killed"})
    names = ("(module): 2 → 3", "(module): 0 → 1", "(module): 1 → 2")
    sections = {
        "a3c/a.py": Section(mutants.sha_of("1\n"), 1, told),
        "a3c/b.py": Section(
            *(mutants.sha_of("1\n"), 3),
            results_of(dict(zip(names, ("survived", "killed", "survived"), strict=True))),
        ),
        "a3c/c.py": Section(mutants.sha_of("3\n"), 1, told),
        "a3c/d.py": Section(mutants.sha_of("1\n"), 1, told),
    }
    monkeypatch.setattr(mutants, "RESULTS", tmp_path / "list.txt")
    assert mutants.sections_of(now) == {}
    mutants.RESULTS.write_text(mutants.write_results(sections, {}))
    n_mutants = len(mutation.mutants_of(now["a3c/b.py"]))
    again = results_of({"(module): 2 → 3": "again"})
    assert mutants.sections_of(now) == {
        "a3c/a.py": sections["a3c/a.py"],
        "a3c/b.py": Section(mutants.sha_of(now["a3c/b.py"]), n_mutants, again),
    }
    assert "# 6 mutants took 0.0 hours of one core." in mutants.RESULTS.read_text()


def results_of(statuses: dict[str, str]) -> dict[str, Result]:
    return {name: Result(status, name, 1.0, "-") for name, status in statuses.items()}


TREE = {
    "a3c/__init__.py": "",
    "a3c/tiny.py": """
NAME = "a"


def add(a, b):
    return a + b


def unused():
    return 1
""",
    "tests/tiny_test.py": """
import pytest

from a3c.tiny import NAME, add


def test_add():
    assert add(2, 3) == 5


@pytest.mark.parametrize("name", [NAME])
def test_whose_case_is_named_by_the_module(name):
    assert name == NAME
""",
    "tests/__init__.py": "",
    "run.py": f"""
import pathlib, pytest, sys
sys.path.insert(0, {str(mutants.ROOT)!r})
from tests.tools import mutants
mutants.__file__ = __file__  # what jobs run
mutants.ROOT = pathlib.Path.cwd()
mutants.RESULTS, mutants.EQUIVALENT = pathlib.Path("list.txt"), pathlib.Path("none.txt")
mutants.warm_up = lambda: None
mutants.CHECKED_EVERY = 2
baseline_of = mutants.baseline_of
mutants.baseline_of = lambda *given: print("checked") or baseline_of(*given)
sys.exit(mutants.main(sys.argv[1:]))
""",
}
TEST = "tests/tiny_test.py::test_add"
TEST_OF_UNUSED = """

def test_unused():
    from a3c.tiny import unused

    assert unused() == 1
"""


def test_a_run_in_a_tree_of_its_own(tmp_path: pathlib.Path) -> None:
    """Golden: what the tests notice is killed, the rest survives, and a case that has lost its name is
    no notice; the right source passes first and after two and four mutants; the tree is left alone.
    """
    for name, text in TREE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)

    said = run_mutants(tmp_path, "a3c/tiny.py")
    first = {
        "(module): 'a' → 'aX'": ("survived", "-"),
        "add: return a + b → return None": ("killed", TEST),
        "add: a + b → a - b": ("killed", TEST),
        "unused: 1 → 2": ("survived", "-"),
    }
    assert listed(tmp_path) == first
    assert said.count("checked") == 3
    assert (tmp_path / "a3c/tiny.py").read_text() == TREE["a3c/tiny.py"]

    # One is left to run, as if the run had been stopped before.
    lines = (tmp_path / "list.txt").read_text().splitlines()
    left = [line for line in lines if not line.endswith("a + b → a - b")]
    (tmp_path / "list.txt").write_text("\n".join(left) + "\n")
    (said,) = (line for line in run_mutants(tmp_path) if " | " in line)
    assert said.startswith("1/1 killed ")
    assert listed(tmp_path) == first

    # A test for one that has survived; with two jobs, of which one has nothing to do.
    with (tmp_path / "tests/tiny_test.py").open("a") as file:
        file.write(TEST_OF_UNUSED)
    run_mutants(tmp_path, "--survivors", "--jobs", "2")
    since = first | {"unused: 1 → 2": ("since", "tests/tiny_test.py::test_unused")}
    assert listed(tmp_path) == since


def run_mutants(tree: pathlib.Path, *arguments: str) -> list[str]:
    """The lines that it says."""
    command = [sys.executable, "run.py", *arguments]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def listed(tree: pathlib.Path) -> dict[str, tuple[str, str]]:
    """Status and test of each mutant."""
    section = mutants.read_results((tree / "list.txt").read_text())["a3c/tiny.py"]
    return {name: (result.status, result.by) for name, result in section.results.items()}


def test_what_an_end_says_of_a_mutant() -> None:
    """Analytic: by pytest's codes, or minus a signal's number; but neither a wrong name of a test nor a
    lack of memory is a notice.
    """
    for code, failed, status in (
        (0, "-", "survived"),
        (None, "-", "timeout"),
        (1, "a_test.py::test_a", "killed"),
        (2, "a_test.py(import)", "killed"),
        (-11, "-", "killed"),
    ):
        assert mutants.status_of(mutants.Outcome(code, failed, 1.0)) == status
    for code in (1, 2, 3, 4, 5, 99, -9):
        with pytest.raises(SystemExit, match=f"ended with {code},"):
            mutants.status_of(mutants.Outcome(code, "-", 1.0))
