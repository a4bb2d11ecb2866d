"""Write the tables of docs/speed.md from the newest results of each benchmark; nothing is measured here.

.venv/bin/python -m benchmarks.report
"""

import functools
import json
import pathlib
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from benchmarks import calibration, documents

SPEED = pathlib.Path(__file__).resolve().parent.parent / "docs/speed.md"
RESULTS = pathlib.Path(__file__).resolve().with_name("results")
Round = dict[str, Any]
Slot = dict[str, Any]
Limit = Callable[[int, str, calibration.Loops], float]

NETWORKS = ("nature", "small")
NARROW = "16 × 1 nature"
LIMITS: tuple[tuple[str, str, Limit], ...] = (
    ("the machine's limit", "≥ 0.6", calibration.limit),
    ("the limit with one forward pass", "", functools.partial(calibration.limit, again=False)),
    ("the limit with our way to fetch screens", "", calibration.limit_in_numbers),
)
# Speed-up over one thread to a fixed score (Mnih et al. 2016, Table 2).
PAPERS_SPEED_UP = {1: "1.0", 2: "2.1", 4: "3.7", 8: "6.9", 16: "12.5"}
# The share of the machine that other programs may use in a slot before the table says so.
WORTH_SAYING = 0.03


class Ratio(NamedTuple):
    """A row of the table of ratios."""

    name: str
    over: str
    required: str
    of_rounds: list[float]


def spread(values: Sequence[float], form: str) -> str:
    """The median, with the lowest and the highest."""
    middle, *ends = (format(v, form) for v in (statistics.median(values), min(values), max(values)))
    return f"{middle} ({ends[0]}–{ends[1]})"


def of_setting(rounds: Sequence[Round], name: str) -> list[Slot]:
    """A setting's slot in each round."""
    return [next(slot for slot in r["slots"] if slot["setting"] == name) for r in rounds]


def speeds(rounds: Sequence[Round], name: str) -> list[float]:
    """A setting's steps/s in each round."""
    return [slot["steps_per_second"] for slot in of_setting(rounds, name)]


def best(rounds: Sequence[Round], network: str, wanted: Callable[[Slot], bool]) -> str:
    """The setting with the highest median among those wanted of a network."""
    slots = [slot for slot in rounds[0]["slots"] if slot["network"] == network]
    names = [slot["setting"] for slot in slots if wanted(slot)]
    return max(names, key=lambda name: statistics.median(speeds(rounds, name)))


def limits(
    rounds: Sequence[Round], cores: int, network: str, limit: Limit = calibration.limit
) -> list[float]:
    """A limit in each round: the mean of the loops before and after it."""
    return [
        statistics.mean(limit(cores, network, calibration.Loops(**loops)) for loops in r["loops"])
        for r in rounds
    ]


def over(these: Sequence[float], those: Sequence[float]) -> list[float]:
    """The ratio of each pair."""
    return [this / that for this, that in zip(these, those, strict=True)]


def ratios(result: dict[str, Any]) -> list[Ratio]:
    """Everything that has a target, and what explains it."""
    rounds, cores = result["rounds"], result["cores"]
    wide, peer = {}, {}
    for network in NETWORKS:
        of_network = functools.partial(best, rounds, network)
        wide[network] = of_network(lambda slot: slot.get("envs_per_worker", 1) > 1)
        peer[network] = of_network(lambda slot: "vec" in slot)

    def of_peer(name: str, network: str, required: str) -> Ratio:
        values = over(speeds(rounds, name), speeds(rounds, peer[network]))
        return Ratio(name, "the peer's best", required, values)

    alone = [slot["setting"] for slot in rounds[0]["slots"] if "together" in slot]
    rows = [of_peer(NARROW, "nature", "≥ 1.1"), *(of_peer(name, "nature", "") for name in alone)]
    rows += [of_peer(wide[network], network, "≥ 2.0") for network in NETWORKS]
    for network in NETWORKS:
        for words, required, limit in LIMITS:
            of_limit = over(speeds(rounds, wide[network]), limits(rounds, cores, network, limit))
            rows.append(Ratio(wide[network], words, required, of_limit))
    most = limits(rounds, cores, "nature", calibration.narrow_limit)
    rows.append(Ratio(NARROW, "its limit", "", over(speeds(rounds, NARROW), most)))
    for name in (NARROW, wide["nature"], wide["small"]):
        costs = [slot["env_cost"] for slot in of_setting(rounds, name)]
        rows.append(Ratio(f"{name}: CPU of a step", "four `AtariEnv.step`", "≤ 1.4", costs))
    return rows


def shown(setting: str) -> str:
    """A setting's name as the tables show it."""
    in_one = setting.replace(", 8 workers' acting in one call", ", 8 act as one")
    return in_one.replace("16 environments, ", "").replace("acting and learning", "calls")


def bench_table(result: dict[str, Any]) -> str:
    """The tables of `make bench` in Markdown."""
    rounds, cores = result["rounds"], result["cores"]
    slots = rounds[0]["slots"]
    seconds = statistics.median(slot["seconds"] for r in rounds for slot in r["slots"])
    figures = []
    for network in NETWORKS:
        of_network = [slot for slot in slots if slot["network"] == network]
        ours = [slot["setting"] for slot in of_network if "envs_per_worker" in slot]
        peers = sorted(slot["setting"] for slot in of_network if "vec" in slot)
        alone = [slot["setting"] for slot in of_network if "together" in slot]
        figures += [(shown(name), speeds(rounds, name)) for name in [*ours, *peers, *alone]]
        figures.append((f"the machine's limit, {network}", limits(rounds, cores, network)))
    most = limits(rounds, cores, "nature", calibration.narrow_limit)
    figures.append((f"the limit of {NARROW}", most))
    steps_per_second = [(name, spread(values, ".0f")) for name, values in figures]
    of_ratios = [
        (shown(row.name), row.over, spread(row.of_rounds, ".2f"), row.required)
        for row in ratios(result)
    ]
    loops = [calibration.Loops(**loop) for r in rounds for loop in r["loops"]]
    frames = spread([1e6 * loop.t_frame for loop in loops], ".0f")
    in_numbers = spread([1e6 * loop.t_frame_in_numbers for loop in loops], ".0f")
    products = spread([loop.flop_per_second / 1e9 for loop in loops], ".0f")
    memory = spread([loop.bytes_per_second / 1e9 for loop in loops], ".1f")
    others = max(slot["others"] + slot["stolen"] for r in rounds for slot in r["slots"])
    lines = [
        f"{header(result)} {len(rounds)} rounds, slots of {seconds:.0f} s. Each figure is the median"
        " of the rounds, with the lowest and the highest.",
        "",
        documents.table(["Pong", "steps/s"], steps_per_second),
        "",
        documents.table(["setting", "divided by", "ratio", "goal"], of_ratios),
        "",
        f"In the same minutes, one core took {frames} µs for an emulator frame ({in_numbers} µs if it"
        f" fetches the screen as we do), did {products} GFLOP/s in a matrix product, and read"
        f" {memory} GB/s of memory.",
        *[f"Others used up to {others:.0%} of the machine in a slot."] * (others > WORTH_SAYING),
    ]
    return "\n".join(lines)


def long_table(result: dict[str, Any]) -> str:
    """The table of `make bench-long` in Markdown."""
    first, last = result["memory"][0], result["memory"][-1]
    most = max(sample["bytes"] for sample in result["memory"])
    cartpole = result["cartpole"]
    evaluated = [round["with"] / round["without"] for round in result["evaluated"]]

    def mib(n_bytes: int) -> str:
        return f"{n_bytes / 2**20:.0f} MiB ({n_bytes / first['bytes'] - 1:+.1%})"

    rows = [
        (f"memory, {first['steps']:,} steps, {result['memory_setting']}", mib(first["bytes"]), ""),
        (f"memory, {last['steps']:,} steps", mib(last["bytes"]), "+2 %"),
        ("memory, the most in between", mib(most), ""),
        (
            "`train.py` to first update, 16 workers",
            f"{spread(result['seconds_to_first_update'], '.1f')} s",
            "≤ 15 s",
        ),
        ("CartPole, 300,000 steps", f"{cartpole['seconds']:.0f} s", "≤ 90 s"),
        ("CartPole, best mean of 100 games", f"{cartpole['best_mean_of_100']:.0f}", ""),
        (
            f"speed beside evaluation, {result['evaluated_setting']}",
            f"{spread(evaluated, '.2f')} of that without",
            "",
        ),
    ]
    return f"{header(result)}\n\n{documents.table(['', '', 'goal'], rows)}"


def scaling_table(result: dict[str, Any]) -> str:
    """The tables of `make bench-scaling` in Markdown."""
    rounds = result["rounds"]
    points = {slot["setting"]: slot for slot in rounds[0]["slots"]}
    speed = {name: statistics.median(speeds(rounds, name)) for name in points}
    memory = {
        name: statistics.median(slot["bytes"] / 2**20 for slot in of_setting(rounds, name))
        for name in points
    }
    parts = [f"{header(result)} {len(rounds)} rounds: medians."]
    for network in dict.fromkeys(slot["network"] for slot in points.values()):
        of_network = sorted(
            (slot for slot in points.values() if slot["network"] == network),
            key=lambda slot: (slot["envs_per_worker"], slot["n_workers"]),
        )
        one = speed[f"1 × 1 {network}"]
        rows = []
        for slot in of_network:
            name, n_workers, n_envs = (
                slot[key] for key in ("setting", "n_workers", "envs_per_worker")
            )
            of_paper = PAPERS_SPEED_UP.get(n_workers, "") if n_envs == 1 else ""
            times, mib = f"{speed[name] / one:.1f}", f"{memory[name]:.0f}"
            rows.append((f"{n_workers} × {n_envs}", f"{speed[name]:.0f}", times, of_paper, mib))
        head = ["steps/s", "over 1 × 1", "the paper's Table 2: time to a score", "memory, MiB"]
        parts.append(documents.table([f"{network}: workers × environments each", *head], rows))
        widest, narrowest = of_network[-1], f"{of_network[-1]['n_workers']} × 1 {network}"
        n_more = widest["n_workers"] * (widest["envs_per_worker"] - 1)
        per_env = (memory[widest["setting"]] - memory[narrowest]) / n_more
        # Of those that share environment processes, where there are two such.
        alone = sorted(slot["n_workers"] for slot in of_network if slot["envs_per_worker"] == 1)
        sharing = [n for n in alone if n >= 2 * result["cores"]]
        fewest, *_, most = sharing if len(sharing) > 1 else alone
        more = memory[f"{most} × 1 {network}"] - memory[f"{fewest} × 1 {network}"]
        per_worker = more / (most - fewest)
        parts.append(
            f"{network}: one more environment takes {per_env:.1f} MiB, one more worker"
            f" {per_worker - per_env:.1f} MiB besides its environment."
        )
    return "\n\n".join(parts)


def header(result: dict[str, Any]) -> str:
    """When, where and with which revision the figures were measured."""
    changed = " with uncommitted changes" if result["uncommitted"] else ""
    busy = f", {result['busy_before']:.0%} of it in use by others" if result["anyway"] else ""
    return (
        f"{result['date']}, {result['cores']} cores of {result['cpu']}{busy}, revision"
        f" {result['revision']}{changed}: `{result['command']}`."
    )


# Each benchmark's table, and how the names of its results end.
TABLES: dict[str, tuple[Callable[[dict[str, Any]], str], str]] = {
    "make bench": (bench_table, "cores"),
    "make bench-long": (long_table, "cores-long"),
    "make bench-scaling": (scaling_table, "cores-scaling"),
}


def newest(ending: str) -> dict[str, Any]:
    """The newest result of a kind."""
    *_, path = sorted(RESULTS.glob(f"*-{ending}.json"))
    return dict(json.loads(path.read_text(encoding="utf-8")))


def write(name: str) -> str:
    """Write the tables of the newest result of a kind into docs/speed.md, and return them."""
    table, ending = TABLES[name]
    text = table(newest(ending))
    documents.replace_between(SPEED, name, text)
    return text


def main() -> int:
    """Write the tables of all benchmarks."""
    for name in TABLES:
        write(name)
        print(f"docs/speed.md: {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
