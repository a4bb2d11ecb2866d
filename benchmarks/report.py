"""From the JSON of a benchmark to the tables of the documents; nothing is measured here.

.venv/bin/python -m benchmarks.report benchmarks/results/<one of them>.json
"""

import argparse
import functools
import json
import pathlib
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from benchmarks import calibration, documents

BENCH_README = pathlib.Path(__file__).resolve().with_name("README.md")
README = BENCH_README.parent.parent / "README.md"
Round = dict[str, Any]
Slot = dict[str, Any]
Limit = Callable[[int, str, calibration.Loops], float]

NARROW = "16 × 1 nature"
LIMITS: tuple[tuple[str, str, Limit], ...] = (
    ("the machine's limit", "≥ 0.6", calibration.limit),
    (
        "the same without going forward again to learn",
        "",
        functools.partial(calibration.limit, again=False),
    ),
    ("the machine's limit, fetching the screen as ours does", "", calibration.limit_in_numbers),
)
# Speed-up over one thread to a fixed score (Mnih et al. 2016, Table 2).
PAPERS_SPEED_UP = {1: "1.0", 2: "2.1", 4: "3.7", 8: "6.9", 16: "12.5"}
# Other programs' share of the machine in any slot above which the table says so.
WORTH_SAYING = 0.03


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


def limits(
    rounds: Sequence[Round], cores: int, network: str, limit: Limit = calibration.limit
) -> list[float]:
    """A limit in each round: of the loops before and after it, the mean."""
    return [
        statistics.mean(limit(cores, network, calibration.Loops(**loops)) for loops in r["loops"])
        for r in rounds
    ]


def over(these: Sequence[float], those: Sequence[float]) -> list[float]:
    """The ratio of each pair."""
    return [this / that for this, that in zip(these, those, strict=True)]


def ratios(result: dict[str, Any]) -> list[Ratio]:
    """Everything that has a target."""
    rounds, cores = result["rounds"], result["cores"]
    rows = []
    wide, peer = {}, {}
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

    def of_peer(name: str, network: str) -> list[float]:
        return over(speeds(rounds, name), speeds(rounds, peer[network]))

    rows.append(Ratio(f"{NARROW} / the peer's best", "≥ 1.1", of_peer(NARROW, "nature")))
    for slot in rounds[0]["slots"]:
        if "together" in slot:
            name = slot["setting"]
            rows.append(Ratio(f"{name} / the peer's best", "", of_peer(name, "nature")))
    for network in ("nature", "small"):
        name = f"{wide[network]} / the peer's best with this network"
        rows.append(Ratio(name, "≥ 2.0", of_peer(wide[network], network)))
    for network in ("nature", "small"):
        for words, required, limit in LIMITS:
            of_limit = over(speeds(rounds, wide[network]), limits(rounds, cores, network, limit))
            rows.append(Ratio(f"{wide[network]} / {words}", required, of_limit))
    most = limits(rounds, cores, "nature", calibration.narrow_limit)
    rows.append(Ratio(f"{NARROW} / its limit", "", over(speeds(rounds, NARROW), most)))
    for name in (NARROW, wide["nature"], wide["small"]):
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
        f"{header(result)} {len(rounds)} rounds, slots of {seconds:.0f} s: medians, and the least"
        " and the greatest of the rounds.",
        "",
        "| Pong | steps/s |",
        "|---|---|",
    ]
    ours = [slot["setting"] for slot in rounds[0]["slots"] if "envs_per_worker" in slot]
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
    for slot in rounds[0]["slots"]:
        if "together" in slot:
            speed = spread(speeds(rounds, slot["setting"]), ".0f")
            lines.append(f"| {slot['setting']} | {speed} |")
    most = limits(rounds, cores, "nature", calibration.narrow_limit)
    lines.append(f"| the limit of {NARROW}, whose weights move | {spread(most, '.0f')} |")
    lines += ["", "| ratio | | goal |", "|---|---|---|"]
    for row in ratios(result):
        lines.append(f"| {row.name} | {spread(row.of_rounds, '.2f')} | {row.required} |")
    frames = spread([1e6 * loop["t_frame"] for loop in loops], ".0f")
    in_numbers = spread([1e6 * loop["t_frame_in_numbers"] for loop in loops], ".0f")
    products = spread([loop["flop_per_second"] / 1e9 for loop in loops], ".0f")
    memory = spread([loop["bytes_per_second"] / 1e9 for loop in loops], ".1f")
    lines += [
        "",
        f"In the same minutes, one core took {frames} µs for an emulator frame ({in_numbers} µs with"
        " the screen in numbers of colours, as ours fetches it).",
        f"It did {products} GFLOP/s in a matrix product, and read {memory} GB/s of memory.",
    ]
    others = max(slot["others"] + slot["stolen"] for r in rounds for slot in r["slots"])
    if others > WORTH_SAYING:
        lines.append(f"Others used up to {others:.0%} of the machine in a slot.")
    return "\n".join(lines)


def long_table(result: dict[str, Any]) -> str:
    """The table of `make bench-long` in Markdown."""
    first, last = result["memory"][0], result["memory"][-1]
    most = max(sample["bytes"] for sample in result["memory"])
    starts, cartpole = result["seconds_to_first_update"], result["cartpole"]
    evaluated = [round["with"] / round["without"] for round in result["evaluated"]]
    lines = [
        header(result),
        "",
        "| | | goal |",
        "|---|---|---|",
        f"| memory of all processes, {result['memory_setting']}, {first['steps']:,} →"
        f" {last['steps']:,} steps | {first['bytes'] / 2**20:.0f} → {last['bytes'] / 2**20:.0f} MiB"
        f" ({last['bytes'] / first['bytes'] - 1:+.1%}), {most / 2**20:.0f} at most"
        f" ({most / first['bytes'] - 1:+.1%}) | +2 % at the end |",
        f"| `train.py` to the first update, 16 workers | {spread(starts, '.1f')} s | ≤ 15 s |",
        f"| CartPole, 300,000 steps, best mean of 100 games {cartpole['best_mean_of_100']:.0f} |"
        f" {cartpole['seconds']:.0f} s | ≤ 90 s |",
        "| training's speed while a game of an evaluation is played, of its speed without,"
        f" {result['evaluated_setting']} | {spread(evaluated, '.2f')} | |",
    ]
    return "\n".join(lines)


def scaling_table(result: dict[str, Any]) -> str:
    """The tables of `make bench-scaling` in Markdown."""
    rounds = result["rounds"]
    names = [slot["setting"] for slot in rounds[0]["slots"]]
    points = {slot["setting"]: slot for slot in rounds[0]["slots"]}
    speed = {name: statistics.median(speeds(rounds, name)) for name in names}
    memory = {
        name: statistics.median(slot["bytes"] / 2**20 for slot in of_setting(rounds, name))
        for name in names
    }
    lines = [f"{header(result)} {len(rounds)} rounds: medians.", ""]
    for network in dict.fromkeys(slot["network"] for slot in points.values()):
        lines += [
            f"| {network}: workers × environments of each | steps/s | over 1 × 1 |"
            " the paper's Table 2: time to a score | memory, MiB |",
            "|---|---|---|---|---|",
        ]
        of_network = sorted(
            (slot for slot in points.values() if slot["network"] == network),
            key=lambda slot: (slot["envs_per_worker"], slot["n_workers"]),
        )
        one = speed[f"1 × 1 {network}"]
        for slot in of_network:
            name, n_workers, n_envs = (
                slot[key] for key in ("setting", "n_workers", "envs_per_worker")
            )
            of_paper = PAPERS_SPEED_UP.get(n_workers, "") if n_envs == 1 else ""
            lines.append(
                f"| {n_workers} × {n_envs} | {speed[name]:.0f} | {speed[name] / one:.1f} |"
                f" {of_paper} | {memory[name]:.0f} |"
            )
        widest, narrowest = of_network[-1], f"{of_network[-1]['n_workers']} × 1 {network}"
        n_more = widest["n_workers"] * (widest["envs_per_worker"] - 1)
        per_env = (memory[widest["setting"]] - memory[narrowest]) / n_more
        # Of those that share environment processes, where there are two such.
        alone = sorted(slot["n_workers"] for slot in of_network if slot["envs_per_worker"] == 1)
        sharing = [n for n in alone if n >= 2 * result["cores"]]
        fewest, *_, most = sharing if len(sharing) > 1 else alone
        more = memory[f"{most} × 1 {network}"] - memory[f"{fewest} × 1 {network}"]
        per_worker = more / (most - fewest)
        lines += [
            "",
            f"{network}: {per_env:.1f} MiB for one more environment, {per_worker - per_env:.1f} MiB"
            " for one more worker besides its environment.",
            "",
        ]
    return "\n".join(lines).rstrip()


def header(result: dict[str, Any]) -> str:
    """When, where and of what the figures are."""
    changed = " with uncommitted changes" if result["uncommitted"] else ""
    busy = f", {result['busy_before']:.0%} of it in use by others" if result["anyway"] else ""
    return (
        f"{result['date']}, {result['cores']} cores of {result['cpu']}{busy}, revision"
        f" {result['revision']}{changed}: `{result['command']}`."
    )


def write(result: dict[str, Any]) -> str:
    """Write the tables of `make bench` into the README, and return them."""
    text = bench_table(result)
    documents.replace_between(README, "make bench", text)
    return text


def write_long(result: dict[str, Any]) -> str:
    """Write the table of `make bench-long` into the README, and return it."""
    text = long_table(result)
    documents.replace_between(README, "make bench-long", text)
    return text


def write_scaling(result: dict[str, Any]) -> str:
    """Write the tables of `make bench-scaling` into benchmarks/README.md, and return them."""
    text = scaling_table(result)
    documents.replace_between(BENCH_README, "make bench-scaling", text)
    return text


def main(argv: Sequence[str] | None = None) -> int:
    """Write the table of a result that is there already."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("result", type=pathlib.Path)
    options = parser.parse_args(argv)
    result = json.loads(options.result.read_text(encoding="utf-8"))
    writers = {"bench": write, "bench-long": write_long, "bench-scaling": write_scaling}
    print(writers[result["command"].split()[1]](result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
