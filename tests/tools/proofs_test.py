"""The table of proofs is true: tests and changes exist, and each change turns its test red."""

import pathlib

import pytest

from tests.conftest import COLLECTED
from tests.tools import proofs
from tests.tools.proofs import PROOFS, ROOT, Proof


def test_the_page_is_up_to_date():
    """Golden: docs/proofs.md is what `make tables` writes."""
    assert proofs.PAGE.read_text(encoding="utf-8") == proofs.page()


@pytest.mark.parametrize("proof", PROOFS, ids=[proof.guarantee for proof in PROOFS])
def test_the_change_can_be_made(proof):
    """Analytic: the function contains the text once."""
    file, text = proof.changed(ROOT)
    assert text != file.read_text(encoding="utf-8")


def test_every_test_exists(request):
    """Analytic: among those that pytest has found, in the files where it has looked for all of them."""
    found = request.config.stash[COLLECTED]
    found |= {name.partition("[")[0] for name in found}
    files = {name.partition("::")[0] for name in found}
    if any("::" in argument for argument in request.config.args):
        files = set()
    wanted = {f"tests/{proof.test}" for proof in PROOFS}
    assert {name for name in wanted if not (ROOT / name.partition("::")[0]).is_file()} == set()
    assert {name for name in wanted if name.partition("::")[0] in files} - found == set()


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


@pytest.mark.weekly
def test_what_does_not_turn_a_test_red_proves_nothing(tree):
    """Analytic: negative control; a change of no effect, one that makes only one case of several red,
    and one that crashes before anything is compared."""
    test = "agent/losses_test.py::test_returns_are_discounted_sums_with_a_bootstrap"
    place = "a3c/agent/losses.py::n_step_returns"
    old = "discount * continues[t] * following"
    assert not proofs.is_red(
        Proof("", test, "", place, old, "continues[t] * discount * following"), tree
    )
    (proof,) = (proof for proof in PROOFS if proof.test.endswith("published_values[paper]"))
    assert not proofs.is_red(proof._replace(test=proof.test.removesuffix("[paper]")), tree)
    crash = Proof("", test, "", place, "tf.stack(returns[::-1])", "tf.stack(nothing)")
    with pytest.raises(AssertionError, match="NameError"):
        proofs.is_red(crash, tree)
