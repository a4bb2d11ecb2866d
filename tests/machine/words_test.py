"""Tests of a3c/machine/words.py."""

import pytest

from a3c.machine.words import one_line


@pytest.mark.parametrize(
    ("text", "most", "shown"),
    [
        ("as it is", 8, "as it is"),
        ("as it is", 7, "as it …"),
        ("two\nlines", 20, "two\\nlines"),
        ("\x1b[31mred\x00", 20, "\\x1b[31mred\\x00"),
        ("\udcff", 20, "\\udcff"),
        ("Überprüfung", 20, "Überprüfung"),
    ],
)
def test_a_text_fits_one_line(text, most, shown):
    """Analytic: escaped as Python would, then cut, the mark within the length."""
    assert one_line(text, most) == shown
