"""Tables, and their places in documents: between markers that name the script that writes them."""

import pathlib
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    first, *others = (f"| {' | '.join(cells)} |" for cells in (head, *rows))
    return "\n".join([first, "|" + "---|" * len(head), *others])


def text_between(path: pathlib.Path, name: str) -> str:
    """The text between the name's two markers; ValueError if the document lacks them."""
    return _parts(path, name)[1].strip()


def replace_between(path: pathlib.Path, name: str, text: str) -> None:
    """Put the text between the name's two markers; ValueError if the document lacks them."""
    before, _, after = _parts(path, name)
    path.write_text(f"{before}\n{text.strip()}\n{after}", encoding="utf-8")


def _parts(path: pathlib.Path, name: str) -> tuple[str, str, str]:
    """The document up to the first marker, between the two, and from the second one on."""
    document = path.read_text(encoding="utf-8")
    begin, end = f"<!-- {name}: written by a script -->", f"<!-- end of {name} -->"
    before, found, rest = document.partition(begin)
    middle, found_end, after = rest.partition(end)
    if not (found and found_end):
        raise ValueError(f"{path} has no markers for {name}")
    return before + begin, middle, end + after
