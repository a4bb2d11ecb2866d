"""Write the tables of docs/speed.md from the newest results of each benchmark; nothing is measured here.

.venv/bin/python -m benchmarks.report
"""

import functools
import json
import math
import pathlib
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from a3c.machine.words import counted
from benchmarks import calibration, contenders, documents

SPEED = pathlib.Path(__file__).resolve().parent.parent / "docs/speed.md"
RESULTS = pathlib.Path(__file__).resolve().with_name("results")
Round = dict[str, Any]
Slot = dict[str, Any]
Limit = Callable[[int, str, calibration.Loops], float]

LIMIT = "the machine's limit"
LIMITS: dict[str, Limit] = {
    LIMIT: calibration.limit,
    "the limit with one forward pass": functools.partial(calibration.limit, again=False),
    "the limit with our way to fetch screens": calibration.limit_in_numbers,
    "its limit": calibration.narrow_limit,
}
SB3, TORCH = "SB3's best", "torch over C++ environments"
BARE = {"nature": "four `AtariEnv.step`", "small": "four `AtariEnv.step`"}
BARE_STEP = "a bare step"


class Goal(NamedTuple):
    """A row of the table of ratios before it is measured: a setting of ours, or which, and over what."""

    ours: str  # "wide" is the best wide one
    over: str
    required: str = ""
    wished: str = ""


GOALS = {
    "nature": (
        Goal("16 × 1 nature", SB3, "≥ 0.9", "≥ 1.0"),
        Goal("16 × 1 nature, acting and learning alone", SB3),
        Goal("16 × 1 nature", "its limit"),
        Goal("wide", SB3, "≥ 2.0"),
        Goal("wide", TORCH, "≥ 1.4", "≥ 1.8"),
        Goal("wide", LIMIT, "≥ 0.65", "≥ 0.8"),
        *(Goal("wide", over) for over in list(LIMITS)[1:3]),
        *(Goal(ours, BARE_STEP, "≤ 1.4") for ours in ("16 × 1 nature", "wide")),
    ),
    "small": (
        Goal("wide", SB3, "≥ 2.0"),
        Goal("wide", TORCH, "≥ 1.4", "≥ 1.8"),
        Goal("wide", LIMIT, "≥ 0.5", "≥ 0.65"),
        *(Goal("wide", over) for over in list(LIMITS)[1:3]),
        Goal("wide", BARE_STEP, "≤ 1.4"),
    ),
    "CartPole": (
        Goal("wide", SB3, "≥ 1.3", "≥ 2"),
        Goal("2 × 16 CartPole", "SB3, 16 environments", "≥ 1.3", "≥ 1.8"),
        Goal("16 × 1 CartPole", "SB3, 16 environments", "≥ 0.3", "≥ 0.5"),
        Goal("1 × 1 CartPole", "itself at 243b5dc", "≥ 1.3", "≥ 2"),
        Goal("wide", LIMIT),
        *(Goal(ours, BARE_STEP) for ours in ("16 × 1 CartPole", "wide")),
    ),
    "HalfCheetah": (
        Goal("wide", SB3, "≥ 1.3", "≥ 2"),
        Goal("4 × 1 HalfCheetah", "SB3, 4 environments", "≥ 0.8", "≥ 1.2"),
        Goal("wide", LIMIT),
        *(Goal(ours, BARE_STEP) for ours in ("16 × 1 HalfCheetah", "wide")),
    ),
}
# Speed-up over one thread to a fixed score (Mnih et al. 2016, Table 2).
PAPERS_SPEED_UP = {1: "1.0", 2: "2.1", 4: "3.7", 8: "6.9", 16: "12.5"}
# The share of the machine that other programs may use in a slot before the table says so.
WORTH_SAYING = 0.03


class Ratio(NamedTuple):
    """A row of the table of ratios."""

    name: str
    over: str
    required: str
    wished: str
    of_rounds: list[float]


def spread(values: Sequence[float], form: str) -> str:
    """The median, with the lowest and the highest; one value stands alone."""
    if len(values) == 1:
        return format(values[0], form)
    middle, *ends = (format(v, form) for v in (statistics.median(values), min(values), max(values)))
    return f"{middle} ({ends[0]}–{ends[1]})"


def of_setting(rounds: Sequence[Round], name: str) -> list[Slot]:
    """A setting's slot in each round."""
    return [next(slot for slot in r["slots"] if slot["setting"] == name) for r in rounds]


def speeds(rounds: Sequence[Round], name: str) -> list[float]:
    """A setting's steps/s in each round."""
    return [slot["steps_per_second"] for slot in of_setting(rounds, name)]


def task_of(slot: Slot) -> str:
    """What was trained; up to revision 243b5dc, there was Pong alone, and its network was named."""
    return str(slot.get("task") or slot["network"])


def is_wide(slot: Slot) -> bool:
    return int(slot.get("envs_per_worker", 1)) > 1


def is_sb3(slot: Slot) -> bool:
    return "vec" in slot and not is_cpp(slot)


def is_cpp(slot: Slot) -> bool:
    return slot.get("vec") == contenders.CPP


def is_calls(slot: Slot) -> bool:
    return "vec" not in slot and "envs_per_worker" not in slot


def names(rounds: Sequence[Round], task: str, wanted: Callable[[Slot], bool]) -> list[str]:
    """The settings of a task that are wanted."""
    slots = rounds[0]["slots"]
    return [slot["setting"] for slot in slots if task_of(slot) == task and wanted(slot)]


def best(rounds: Sequence[Round], task: str, wanted: Callable[[Slot], bool]) -> str | None:
    """The setting with the highest median among those wanted of a task; None if there is none."""
    found = names(rounds, task, wanted)
    return max(found, key=lambda name: statistics.median(speeds(rounds, name)), default=None)


def best_of_sb3(rounds: Sequence[Round], task: str) -> dict[int, str]:
    """The peer's best setting for each number of environments."""
    found = {}
    for n_envs in sorted({int(slot.get("n_envs", 16)) for slot in rounds[0]["slots"]}):

        def is_so_wide(slot: Slot, n_envs: int = n_envs) -> bool:
            return is_sb3(slot) and slot.get("n_envs", 16) == n_envs

        if name := best(rounds, task, is_so_wide):
            found[n_envs] = name
    return found


def limits(
    rounds: Sequence[Round], cores: int, task: str, limit: Limit = calibration.limit
) -> list[float]:
    """A limit in each round: the mean of the loops before and after it."""
    return [
        statistics.mean(limit(cores, task, calibration.Loops(**loops)) for loops in r["loops"])
        for r in rounds
    ]


def over(these: Sequence[float], those: Sequence[float]) -> list[float]:
    """The ratio of each pair."""
    return [this / that for this, that in zip(these, those, strict=True)]


def divisors_of(result: dict[str, Any], task: str) -> dict[str, list[float]]:
    """What ours is divided by in each round, as far as it was measured."""
    rounds = result["rounds"]
    peers = best_of_sb3(rounds, task)
    settings = {
        SB3: best(rounds, task, is_sb3),
        TORCH: best(rounds, task, is_cpp),
        f"itself at {contenders.THEN}": best(rounds, task, lambda slot: bool(slot.get("revision"))),
        **{f"SB3, {n_envs} environments": name for n_envs, name in peers.items()},
    }
    found = {words: speeds(rounds, name) for words, name in settings.items() if name}
    of_machine = {
        words: limits(rounds, result["cores"], task, limit) for words, limit in LIMITS.items()
    }
    return found | of_machine


def ratios(result: dict[str, Any]) -> list[Ratio]:
    """Everything that has a goal, and what explains it, as far as it was measured."""
    rows = []
    rounds = result["rounds"]
    for task in dict.fromkeys(map(task_of, rounds[0]["slots"])):
        divisors, measured = divisors_of(result, task), names(rounds, task, lambda _: True)
        for goal in GOALS[task]:
            name = best(rounds, task, is_wide) if goal.ours == "wide" else goal.ours
            if name not in measured:
                continue
            if goal.over == BARE_STEP:
                costs = [slot["env_cost"] for slot in of_setting(rounds, name)]
                # On vectors, the environments' processes act, too.
                cpu = "CPU of a step" if task in BARE else "CPU of acting and a step"
                of_step = f"{name}: {cpu}", BARE.get(task, BARE_STEP)
                rows.append(Ratio(*of_step, goal.required, goal.wished, costs))
            elif goal.over in divisors:
                of_rounds = over(speeds(rounds, name), divisors[goal.over])
                rows.append(Ratio(name, *goal[1:], of_rounds))
    return rows + learned_ratios(result)


def learned_ratios(result: dict[str, Any]) -> list[Ratio]:
    """How many times as many steps as the peer our fastest setting takes to a score: of the medians."""
    learned = steps_to_score(result)
    if not learned:
        return []
    (ours, mine), (_, theirs) = learned.items()
    if math.isinf(statistics.median(theirs)):  # the peer has no such number
        return []
    score = result["learned"][0]["score"]
    of_medians = statistics.median(mine) / statistics.median(theirs)
    return [Ratio(f"{ours}: steps to {score:.0f}", SB3, "≤ 2", "", [of_medians])]


def steps_to_score(result: dict[str, Any]) -> dict[str, list[float]]:
    """The steps that each run took to a score, by setting, ours first; infinite if it did not reach it."""
    found: dict[str, list[float]] = {}
    for run in result.get("learned", ()):
        steps = found.setdefault(run["setting"], [])
        steps.append(math.inf if run["n_steps"] is None else run["n_steps"])
    return found


def learned_words(result: dict[str, Any]) -> list[str]:
    """A sentence for each setting that learned."""
    words = []
    for name, steps in steps_to_score(result).items():
        run = result["learned"][0]
        most = f"{run['most_steps']:,.0f}"
        after = "not within " + most
        if any(map(math.isfinite, steps)):
            after = "after " + spread(steps, ",.0f").replace("inf", f"more than {most}")
        of = (
            f"{run['score']:.0f} in the last 100 games {after} steps; {counted(len(steps), 'seed')}"
        )
        words.append(f"{shown(name)} reached a mean of {of}.")
    return words


def shown(setting: str) -> str:
    """A setting's name as the tables show it."""
    return setting.replace("acting and learning", "calls")


def bench_table(result: dict[str, Any]) -> str:
    """The tables of a part of `make bench` in Markdown."""
    rounds = result["rounds"]
    slots = [slot for r in rounds for slot in r["slots"]]
    seconds = statistics.median(slot["seconds"] for slot in slots)
    tasks = list(dict.fromkeys(map(task_of, slots)))
    steps_per_second = [
        (shown(name), spread(values, ".0f"))
        for task in tasks
        for name, values in figures(result, task).items()
    ]
    of_ratios = [
        (shown(row.name), row.over, spread(row.of_rounds, ".2f"), row.required, row.wished)
        for row in ratios(result)
    ]
    others = max(slot["others"] + slot["stolen"] for slot in slots)
    head = "Pong" if "nature" in tasks else tasks[0]
    lines = [
        f"{header(result)} {len(rounds)} rounds, slots of {seconds:.0f} s. Each figure is the median"
        " of the rounds, with the lowest and the highest.",
        "",
        documents.table([head, "steps/s"], steps_per_second),
        "",
        documents.table(["setting", "divided by", "ratio", "required", "wished"], of_ratios),
        "",
        of_machine(rounds),
        *[f"Others used up to {others:.0%} of the machine in a slot."] * (others > WORTH_SAYING),
        *learned_words(result),
    ]
    return "\n".join(lines)


def figures(result: dict[str, Any], task: str) -> dict[str, list[float]]:
    """The speeds of ours and the others in each round, and the limits."""
    rounds, cores = result["rounds"], result["cores"]
    shown_ones = [
        *names(rounds, task, lambda slot: "envs_per_worker" in slot),
        *best_of_sb3(rounds, task).values(),
        *names(rounds, task, is_cpp),
        *names(rounds, task, is_calls),
    ]
    found = {name: speeds(rounds, name) for name in shown_ones}
    found[f"{LIMIT}, {task}"] = limits(rounds, cores, task)
    if task == "nature":
        most = limits(rounds, cores, task, calibration.narrow_limit)
        found["the limit of 16 × 1 nature"] = most
    return found


def of_machine(rounds: Sequence[Round]) -> str:
    """What the loops measured, in words."""
    loops = [calibration.Loops(**loop) for r in rounds for loop in r["loops"]]
    products = spread([loop.flop_per_second / 1e9 for loop in loops], ".0f")
    if loops[0].t_env:
        steps = spread([1e6 * loop.t_env for loop in loops], ".1f")
        env = f"{steps} µs for a step of the bare environment"
    else:
        frames = spread([1e6 * loop.t_frame for loop in loops], ".0f")
        in_numbers = spread([1e6 * loop.t_frame_in_numbers for loop in loops], ".0f")
        env = (
            f"{frames} µs for an emulator frame ({in_numbers} µs if it fetches the screen as we do)"
        )
    memory = spread([loop.bytes_per_second / 1e9 for loop in loops], ".1f")
    return (
        f"In the same minutes, one core took {env}, did {products} GFLOP/s in a matrix product, and"
        f" read {memory} GB/s of memory."
    )


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
            "≤ 8 s",
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
    of_rounds = f"{len(rounds)} rounds: medians." if len(rounds) > 1 else "One round."
    parts = [f"{header(result)} {of_rounds}"]
    for task in dict.fromkeys(map(task_of, points.values())):
        of_task = sorted(
            (slot for slot in points.values() if task_of(slot) == task),
            key=lambda slot: (slot["envs_per_worker"], slot["n_workers"]),
        )
        one = speed[f"1 × 1 {task}"]
        rows = []
        for slot in of_task:
            name, n_workers, n_envs = (
                slot[key] for key in ("setting", "n_workers", "envs_per_worker")
            )
            of_paper = PAPERS_SPEED_UP.get(n_workers, "") if n_envs == 1 else ""
            times, mib = f"{speed[name] / one:.1f}", f"{memory[name]:.0f}"
            rows.append((f"{n_workers} × {n_envs}", f"{speed[name]:.0f}", times, of_paper, mib))
        head = ["steps/s", "over 1 × 1", "the paper's Table 2: time to a score", "memory, MiB"]
        parts.append(documents.table([f"{task}: workers × environments each", *head], rows))
        widest, narrowest = of_task[-1], f"{of_task[-1]['n_workers']} × 1 {task}"
        n_more = widest["n_workers"] * (widest["envs_per_worker"] - 1)
        per_env = (memory[widest["setting"]] - memory[narrowest]) / n_more
        # Of those that share environment processes, where there are two such.
        alone = sorted(slot["n_workers"] for slot in of_task if slot["envs_per_worker"] == 1)
        sharing = [n for n in alone if n >= 2 * result["cores"]]
        fewest, *_, most = sharing if len(sharing) > 1 else alone
        more = memory[f"{most} × 1 {task}"] - memory[f"{fewest} × 1 {task}"]
        per_worker = more / (most - fewest)
        parts.append(
            f"{task}: one more environment takes {per_env:.1f} MiB, one more worker"
            f" {per_worker - per_env:.1f} MiB besides its environment."
        )
    return "\n\n".join(parts)


def profiles_table(result: dict[str, Any]) -> str:
    """The table of `make profile` in Markdown: a column for each setting."""
    profiles = result["profiles"]
    rows = [
        [of_part[0]["part"], *(f"{each['cpu_ms']:.3f}" for each in of_part)]
        for of_part in zip(*(profile["parts"] for profile in profiles), strict=True)
    ]
    held = ["" if p["gil_held"] is None else f"{p['gil_held']:.0%}" for p in profiles]
    rows += [
        [
            "of the cores' time, the rows above are",
            *(f"{p['accounted_for']:.1%}" for p in profiles),
        ],
        ["of the clock, the GIL was held", *held],
        ["steps/s", *(f"{p['steps_per_second']:.0f}" for p in profiles)],
    ]
    head = ["CPU milliseconds a step", *(profile["setting"] for profile in profiles)]
    return f"{header(result)}\n\n{documents.table(head, rows)}"


def header(result: dict[str, Any]) -> str:
    """When, where and with which revision the figures were measured."""
    changed = " with uncommitted changes" if result["uncommitted"] else ""
    busy = f", {result['busy_before']:.0%} of it in use by others" if result["anyway"] else ""
    note = f" {result['note']}" if "note" in result else ""  # written by hand
    return (
        f"{result['date']}, {result['cores']} cores of {result['cpu']}{busy}, revision"
        f" {result['revision']}{changed}: `{result['command']}`.{note}"
    )


# Each benchmark's table, and how the names of its results end.
TABLES: dict[str, tuple[Callable[[dict[str, Any]], str], str]] = {
    "make bench, pong": (bench_table, "cores-pong"),
    "make bench, cartpole": (bench_table, "cores-cartpole"),
    "make bench, halfcheetah": (bench_table, "cores-halfcheetah"),
    "make bench-long": (long_table, "cores-long"),
    "make bench-scaling": (scaling_table, "cores-scaling"),
    "make profile": (profiles_table, "cores-profile"),
    "make bench, pong, 16 cores": (bench_table, "16-cores-pong"),
    "make bench-scaling, 16 cores": (scaling_table, "16-cores-scaling"),
}


def text_of(name: str) -> str:
    """The tables of the newest result of a kind."""
    table, ending = TABLES[name]
    narrower = tuple(other for _, other in TABLES.values() if other.endswith(f"-{ending}"))
    paths = sorted(
        path for path in RESULTS.glob(f"*-{ending}.json") if not path.stem.endswith(narrower)
    )
    return (
        table(json.loads(paths[-1].read_text(encoding="utf-8"))) if paths else "Not measured yet."
    )


def write(name: str, cores: int = 0) -> str:
    """Write the tables of the newest result of a kind into docs/speed.md, and return them.

    Some kinds have a place of their own for a number of cores.
    """
    if (of_cores := f"{name}, {cores} cores") in TABLES:
        name = of_cores
    text = text_of(name)
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
