"""Texts for the user."""

import pytest

from a3c.machine.words import counted, one_line


@pytest.mark.parametrize(
    ("n", "shown"), [(0, "0 games"), (1, "1 game"), (1.0, "1 game"), (2000, "2,000 games")]
)
def test_a_count_has_its_plural(n, shown):
    """Analytic: only one thing has none."""
    assert counted(n, "game") == shown


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
    """Analytic: escaped as Python does, then cut; the mark counts too."""
    assert one_line(text, most) == shown
