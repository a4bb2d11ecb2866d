"""The soak runner: a try is made once, and a failure is kept and reported."""

import contextlib
import json

import pytest

from tests.tools import soak, soak_fuzz, soak_load


def test_tries_are_made_once_and_failures_are_kept(tmp_path, capsys):
    """Analytic: after an interruption it continues with the third try; a failed try stays failed."""
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


def test_what_a_part_finds_is_a_failed_try(tmp_path, monkeypatch):
    """Analytic: a finding of the fuzzing or a problem of a load run; otherwise the figures are kept."""
    found = ["a traceback"]
    monkeypatch.setattr(soak_fuzz, "start_chunk", lambda *_, seed: {"n": 9, "findings": found})
    monkeypatch.setattr(soak_load, "run", lambda part, seconds, folder: ("64 × 1", found))
    for name in ("fuzz", "load_64x1"):
        with pytest.raises(AssertionError, match="a traceback"):
            soak.PARTS[name].attempt(0, tmp_path)
    found.clear()
    assert soak.PARTS["fuzz"].attempt(100, tmp_path)["class"] == "checkpoint bytes"
    (tmp_path / "0/left").touch()
    assert soak.PARTS["load_64x1"].attempt(0, tmp_path) == {"figures": "64 × 1"}
    assert list((tmp_path / "0").iterdir()) == []
