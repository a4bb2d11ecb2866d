"""Tables that scripts write into documents, between markers that say so."""

import pathlib


def text_between(path: pathlib.Path, name: str) -> str:
    """What stands between the name's two markers; ValueError where the document has no such."""
    return _parts(path, name)[1].strip()


def replace_between(path: pathlib.Path, name: str, text: str) -> None:
    """Put the text between the name's two markers; ValueError where the document has no such."""
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
