"""Cutting lines off a file; appending to it is tested with those who do, in tests/disk_test.py."""

import pytest

from a3c.machine.appending import cut_lines


@pytest.mark.parametrize(
    ("text", "n_cut", "left"),
    [
        ("a\nb\n1\n2\n", 0, "a\nb\n1\n2\n"),
        ("a\nb\n1\n2\n3\n4\nhalf", 2, "a\nb\n1\n2\n"),
        ("a\nb\n1\nhalf", 0, "a\nb\n1\n"),
        ("a\nhalf", 1, ""),
        ("", 0, ""),
    ],
)
def test_what_is_left_of_four_lines_two_of_them_the_head(tmp_path, text, n_cut, left):
    """Analytic: whole lines are counted; half a head is none."""
    path = tmp_path / "table"
    path.write_text(text)
    assert cut_lines(path, lambda number, fields: number < 4, n_head_lines=2) == n_cut
    assert path.read_text() == left


def test_a_file_that_is_not_there_has_no_lines(tmp_path):
    """Analytic: and is not made."""
    assert cut_lines(tmp_path / "table", lambda number, fields: True) == 0
    assert not list(tmp_path.iterdir())
