"""From the JSON of a benchmark to the tables of the documents; nothing is measured here.

.venv/bin/python -m benchmarks.report benchmarks/results/<one of them>.json
"""

import argparse
import json
import pathlib
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from benchmarks import calibration, documents

README = pathlib.Path(__file__).resolve().parent.parent / "README.md"
# Other programs' share of the machine in any slot above which the table says so.
WORTH_SAYING = 0.03

Round = dict[str, Any]
Slot = dict[str, Any]


class Ratio(NamedTuple):
    """A row of the table of ratios."""

    name: str
    required: str
    of_rounds: list[float]


def spread(values: Sequence[float], form: str) -> str:
    """The median, and the least and the greatest."""
    middle, *ends = (format(v, form) for v in (statistics.median(values), min(values), max(values)))
    return f"{middle} ({ends[0]}–{ends[1]})"


def of_setting(rounds: Sequence[Round], name: str) -> list[Slot]:
    """A setting's slot in each round."""
    return [next(slot for slot in r["slots"] if slot["setting"] == name) for r in rounds]


def speeds(rounds: Sequence[Round], name: str) -> list[float]:
    """A setting's steps/s in each round."""
    return [slot["steps_per_second"] for slot in of_setting(rounds, name)]


def best(rounds: Sequence[Round], wanted: Callable[[Slot], bool]) -> str:
    """The setting with the highest median among those wanted."""
    names = [slot["setting"] for slot in rounds[0]["slots"] if wanted(slot)]
    return max(names, key=lambda name: statistics.median(speeds(rounds, name)))


def limits(rounds: Sequence[Round], cores: int, network: str) -> list[float]:
    """The machine's limit in each round: of the loops before and after it, the mean."""
    return [
        statistics.mean(
            calibration.limit(cores, network, calibration.Loops(**loops)) for loops in r["loops"]
        )
        for r in rounds
    ]


def ratios(result: dict[str, Any]) -> list[Ratio]:
    """Everything that has a target."""
    rounds, cores = result["rounds"], result["cores"]
    narrow = "16 × 1 nature"
    rows = []
    wide, peer, limit = {}, {}, {}
    for network in ("nature", "small"):
        wide[network] = best(
            rounds,
            lambda slot, network=network: (  # type: ignore[misc]
                slot.get("envs_per_worker", 1) > 1 and slot["network"] == network
            ),
        )
        peer[network] = best(
            rounds,
            lambda slot, network=network: "vec" in slot and slot["network"] == network,  # type: ignore[misc]
        )
        limit[network] = limits(rounds, cores, network)

    def of_peer(name: str, network: str) -> list[float]:
        theirs = speeds(rounds, peer[network])
        return [our / their for our, their in zip(speeds(rounds, name), theirs, strict=True)]

    rows.append(Ratio(f"{narrow} / the peer's best", "≥ 1.1", of_peer(narrow, "nature")))
    for network in ("nature", "small"):
        name = f"{wide[network]} / the peer's best with this network"
        rows.append(Ratio(name, "≥ 2.0", of_peer(wide[network], network)))
    for network in ("nature", "small"):
        ours = speeds(rounds, wide[network])
        of_limit = [our / most for our, most in zip(ours, limit[network], strict=True)]
        rows.append(Ratio(f"{wide[network]} / the machine's limit", "≥ 0.6", of_limit))
    for name in (narrow, wide["nature"], wide["small"]):
        costs = [slot["env_cost"] for slot in of_setting(rounds, name)]
        rows.append(
            Ratio(f"environment process / four `AtariEnv.step`, CPU, {name}", "≤ 1.4", costs)
        )
    return rows


def bench_table(result: dict[str, Any]) -> str:
    """The tables of `make bench` in Markdown."""
    rounds, cores = result["rounds"], result["cores"]
    seconds = statistics.median(slot["seconds"] for r in rounds for slot in r["slots"])
    loops = [loop for r in rounds for loop in r["loops"]]
    lines = [
        f"{result['date']}, {cores} cores of {result['cpu']}, revision {result['revision']}"
        f"{' with uncommitted changes' if result['uncommitted'] else ''}:"
        f" `{result['command']}`; {len(rounds)} rounds, slots of {seconds:.0f} s."
        " Medians, and the least and the greatest of the rounds.",
        "",
        "| Pong | steps/s |",
        "|---|---|",
    ]
    ours = [slot["setting"] for slot in rounds[0]["slots"] if "vec" not in slot]
    for name in sorted(ours, key=lambda name: name.split()[-1]):
        lines.append(f"| {name} | {spread(speeds(rounds, name), '.0f')} |")
    for network in ("nature", "small"):
        names = [
            slot["setting"]
            for slot in rounds[0]["slots"]
            if "vec" in slot and slot["network"] == network
        ]
        for name in sorted(names):
            lines.append(f"| {name} | {spread(speeds(rounds, name), '.0f')} |")
        lines.append(
            f"| the machine's limit, {network} | {spread(limits(rounds, cores, network), '.0f')} |"
        )
    lines += ["", "| ratio | | required |", "|---|---|---|"]
    for row in ratios(result):
        lines.append(f"| {row.name} | {spread(row.of_rounds, '.2f')} | {row.required} |")
    frames = spread([1e6 * loop["t_frame"] for loop in loops], ".0f")
    products = spread([loop["flop_per_second"] / 1e9 for loop in loops], ".0f")
    lines += [
        "",
        f"One core took {frames} µs for an emulator frame and did {products} GFLOP/s in a matrix"
        " product, in the same minutes.",
    ]
    others = max(slot["others"] + slot["stolen"] for r in rounds for slot in r["slots"])
    if result["anyway"] or others > WORTH_SAYING:
        lines.append(
            f"The machine was not idle: {result['busy_before']:.0%} of it was in use before, and up"
            f" to {others:.0%} by others in a slot."
        )
    return "\n".join(lines)


def write(result: dict[str, Any]) -> str:
    """Write a result's table into the README, and return it."""
    text = bench_table(result)
    documents.replace_between(README, "make bench", text)
    return text


def main(argv: Sequence[str] | None = None) -> int:
    """Write the table of a result that is there already."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("result", type=pathlib.Path)
    options = parser.parse_args(argv)
    print(write(json.loads(options.result.read_text(encoding="utf-8"))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
