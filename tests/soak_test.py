"""The soak runner: what was tried is not tried again, and a failure is kept and told."""

import contextlib
import json

from tests import soak


def test_tries_are_made_once_and_failures_are_kept(tmp_path, capsys):
    """Analytic: interrupted after two tries, it goes on with the third; one that fails stays failed."""
    made: list[int] = []

    def attempt(number, outside):
        assert outside == tmp_path / "soak" / "part"
        assert outside.is_dir()
        if len(made) == 2 and made != [0, 1, 2]:
            made.append(number)
            raise KeyboardInterrupt
        made.append(number)
        assert number != 3
        return {"figure": 10 * number}

    parts = {"part": soak.Part(5, attempt)}
    results = tmp_path / "soak.jsonl"
    with contextlib.suppress(KeyboardInterrupt):
        soak.run(["part"], results, parts)
    assert not soak.run(["part"], results, parts)
    assert made == [0, 1, 2, 2, 3, 4]
    entries = [json.loads(line) for line in results.read_text().splitlines()]
    assert [entry["try"] for entry in entries] == [0, 1, 2, 3, 4]
    assert [entry["ok"] for entry in entries] == [True, True, True, False, True]
    assert entries[2]["figure"] == 20
    assert "AssertionError" in entries[3]["error"]
    assert capsys.readouterr().out.endswith("part: 5 of 5 tries made, 1 failed\n")
    assert not soak.run(["part"], results, parts)
    assert len(made) == 6
