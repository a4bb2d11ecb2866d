"""Words for people."""


def one_line(text: str, most: int) -> str:
    """The text with what would not show escaped, and at most so long."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return shown if len(shown) <= most else shown[: most - 1] + "…"
