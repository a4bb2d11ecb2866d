"""Texts for the user: on one line, and grammatical; and the error that is told in one."""


class BadInput(Exception):
    """The user asked for something that cannot work; the message is always one line."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


def one_line(text: str, most: int = 500) -> str:
    """The text on one line of at most so many characters; unprintable ones are escaped."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def without_breaks(text: object, most: int) -> str:
    """A text of several lines on one line of at most so many characters."""
    return one_line(" ".join(str(text).split()), most)


def ends_of(text: str) -> str:
    """The first and the last line of a text."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " … ".join(dict.fromkeys(lines[:1] + lines[-1:]))


def counted(n: float, what: str) -> str:
    """Such as 0 games, 1 game, 2,000 games, 2 processes."""
    ending = "es" if what.endswith("s") else "s"
    return f"{n:,.0f} {what}{'' if n == 1 else ending}"
