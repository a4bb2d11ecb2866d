"""Tables that scripts write into documents, between markers that say so."""

import pathlib


def replace_between(path: pathlib.Path, name: str, text: str) -> None:
    """Put the text between the name's two markers; ValueError where the document has no such."""
    document = path.read_text(encoding="utf-8")
    begin, end = f"<!-- {name}: written by a script -->", f"<!-- end of {name} -->"
    before, found, rest = document.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found and found_end):
        raise ValueError(f"{path} has no markers for {name}")
    path.write_text(f"{before}{begin}\n{text.strip()}\n{end}{after}", encoding="utf-8")
