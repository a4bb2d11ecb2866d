"""The README's table of proofs is true: tests and changes exist, and each change turns its test red."""

import pathlib
import re

import pytest

from tests.tools import proofs
from tests.tools.proofs import PROOFS, ROOT, Proof

README = (ROOT / "README.md").read_text(encoding="utf-8")
LINK_TO_A_TEST = re.compile(r"\[`(test_\w+)(?:\[[^\]]+\])?`\]\((tests/[\w/]+\.py)\)")
TEST_OF_A_FILE = re.compile(r"`(tests/[\w/]+\.py)`: `(test_\w+)")


def section(title: str) -> str:
    """The text below a heading of the README, up to the next."""
    return README.split(f"## {title}\n")[1].split("\n## ")[0]


def rows(title: str) -> list[str]:
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return lines[2:]


def has_test(file: str, name: str) -> bool:
    path = ROOT / file
    return path.is_file() and f"\ndef {name}(" in path.read_text(encoding="utf-8")


def test_the_readme_has_the_table():
    """Golden: as `python3 -m tests.tools.proofs table` prints it."""
    assert proofs.table() in section("How we know it is right")


@pytest.mark.parametrize(
    ("title", "at_least"), [("How we know it is right", 25), ("Departures", 10)]
)
def test_every_row_names_a_test_that_exists(title, at_least):
    """Analytic: as a link to its file, which has a function of that name."""
    assert len(rows(title)) >= at_least
    for row in rows(title):
        links = LINK_TO_A_TEST.findall(row)
        assert links, f"no test in {row}"
        assert [link for link in links if not has_test(link[1], link[0])] == []


def wrong_names(text: str) -> list[str]:
    """The tests that a text names and that are not there, or not in the file named with them."""
    files = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").rglob("*_test.py"))]
    pairs = LINK_TO_A_TEST.findall(text) + [pair[::-1] for pair in TEST_OF_A_FILE.findall(text)]
    names = set(re.findall(r"\btest_\w+", text))
    wrong = {name for name in names if not any(has_test(file, name) for file in files)}
    return sorted(wrong | {name for name, file in pairs if not has_test(file, name)})


def test_every_test_that_the_readme_names_exists():
    """Analytic: in whichever section, and in the file that is named with it."""
    assert len(TEST_OF_A_FILE.findall(section("What it survives"))) >= 10
    assert wrong_names(README) == []


def test_tests_that_do_not_exist_are_found():
    """Analytic: negative control of the test before."""
    assert LINK_TO_A_TEST.findall("| x | [`test_a[b-4, c]`](tests/a_test.py) |") == [
        ("test_a", "tests/a_test.py")
    ]
    assert has_test("tests/tools/proofs_test.py", "test_tests_that_do_not_exist_are_found")
    assert not has_test("tests/tools/proofs_test.py", "test_tests_that_do_not_exist")
    assert not has_test("tests/nothing_test.py", "test_the_readme_has_the_table")
    here = "test_the_readme_has_the_table"
    assert (
        wrong_names(
            f"`tests/tools/proofs_test.py`: `{here}`, [`{here}[a]`](tests/tools/proofs_test.py)"
        )
        == []
    )
    assert wrong_names("and `test_nothing[a]`, too") == ["test_nothing"]
    assert wrong_names(f"`tests/a_test.py`, `tests/agent/losses_test.py`: `{here}`") == [here]
    assert wrong_names(f"[`{here}`](tests/agent/losses_test.py)") == [here]


@pytest.mark.parametrize("proof", PROOFS, ids=[proof.guarantee for proof in PROOFS])
def test_the_change_can_be_made(proof):
    """Analytic: what it takes away stands in the code, once."""
    text = (ROOT / proof.module).read_text(encoding="utf-8")
    assert text.count(proof.old) == 1
    assert proof.old != proof.new


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> pathlib.Path:
    return proofs.copy_of_tree(tmp_path_factory.mktemp("changed"))


@pytest.fixture(scope="module")
def green_tree(tree) -> pathlib.Path:
    """One in which all these tests pass, before anything is changed."""
    proofs.check_green([proof.test for proof in PROOFS], tree)
    return tree


@pytest.mark.weekly
@pytest.mark.parametrize("proof", PROOFS, ids=[proof.guarantee for proof in PROOFS])
def test_the_change_turns_its_test_red(proof, green_tree):
    """Analytic: made in a copy of the tree, and taken back."""
    assert proofs.is_red(proof, green_tree)


@pytest.mark.slow
def test_a_test_that_is_red_without_any_change_is_found(tree):
    """Analytic: negative control of what `green_tree` says: this test needs the README's pictures, which
    the copy lacks.
    """
    green = "agent/losses_test.py::test_one_step_returns"
    proofs.check_green([green], tree)
    with pytest.raises(AssertionError, match="test_what_a_document_names_exists"):
        proofs.check_green([green, "readme_test.py"], tree)


@pytest.mark.slow
def test_a_change_that_changes_nothing_turns_no_test_red(tree):
    """Analytic: negative control of the test before: red is not all that it can say."""
    proof = Proof(
        "",
        "agent/losses_test.py::test_one_step_returns",
        "",
        "a3c/agent/losses.py",
        "discount * continues[t] * following",
        "continues[t] * discount * following",
    )
    assert not proofs.is_red(proof, tree)


def test_what_pytest_counts():
    """Analytic: by its last line; what did not come up is not there."""
    assert proofs.count("x\n1 failed, 2 passed, 3 deselected in 4.5s\n") == {
        "failed": 1,
        "passed": 2,
    }
    assert proofs.count("12 passed in 62.00s (0:01:02)") == {"passed": 12}
    assert proofs.count("3 passed\n1 failed, 2 errors in 1.0s") == {"failed": 1, "error": 2}


@pytest.mark.slow
def test_a_change_that_turns_one_case_red_does_not_prove_the_others(tree):
    """Analytic: negative control; with the case named, it is one of the proofs."""
    (proof,) = (proof for proof in PROOFS if proof.test.endswith("published_values[paper]"))
    assert not proofs.is_red(proof._replace(test=proof.test.removesuffix("[paper]")), tree)


@pytest.mark.slow
def test_a_change_that_crashes_proves_nothing(tree):
    """Analytic: negative control; an error of Python's own, before anything is compared."""
    test, module = "agent/losses_test.py::test_one_step_returns", "a3c/agent/losses.py"
    proof = Proof("", test, "", module, "tf.stack(returns[::-1])", "tf.stack(nothing)")
    with pytest.raises(AssertionError, match="NameError"):
        proofs.is_red(proof, tree)
