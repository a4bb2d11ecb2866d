"""The two tables beside the pins: how far rounding moves them, and what turns them red.

    python3 -m tests.tools.pin_tables rounding       writes tests/pinned/rounding.csv in about 15 minutes; only
                                                     the rows of the pins that are named behind it
    python3 -m tests.tools.pin_tables sensitivity    writes tests/pinned/sensitivity.md, likewise; only the
                                                     rows of the hyperparameters that are named behind it
    python3 -m tests.tools.pin_tables layout         writes only the head of sensitivity.md

The tolerances come from the first table: the pinned runs with every order of float32 sums that this
machine offers, and from initial weights of another rounding, which stand for the orders of other
machines. For the second table, one hyperparameter is changed at a time, numbers in their third digit.
"""

import concurrent.futures
import csv
import functools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import numpy as np

from a3c.settings.command_line import parse
from a3c.settings.params import Params, resolve
from a3c.store import provenance
from tests.tools import pins

# A tolerance is this many times the largest deviation, for machines that nobody has tried.
SAFETY = 10
SENSITIVITY = pins.FOLDER / "sensitivity.md"
Flags = Callable[[Params], str]

ROUNDING_HEAD = """\
# Made by `python3 -m tests.tools.pin_tables rounding`: the largest deviation of any weight's change: of its
# norm as a fraction of the norm, of its mean as a fraction of its root mean square, of any entry as a
# fraction of its largest entry; and, with continuous actions, of any number of a step as a fraction of
# its size or of 1. A pin's tolerance is {safety} times the largest of its rows.
"""
SMALL = 1e-3  # inputs that differ by less are called the same


class Variant(NamedTuple):
    """One way to compute the same run."""

    environment: dict[str, str] = {}
    n_threads: int = 2  # within one operation
    more: str = ""
    rounding_seed: int | None = None


ONEDNN, EIGEN = {"TF_ENABLE_ONEDNN_OPTS": "1"}, {"TF_ENABLE_ONEDNN_OPTS": "0"}
VARIANTS = {
    "oneDNN off": Variant(EIGEN),
    "oneDNN on": Variant(ONEDNN),
    "oneDNN off, 1 thread": Variant(EIGEN, 1),
    "oneDNN on, 1 thread": Variant(ONEDNN, 1),
    "oneDNN on, AVX2 only": Variant(
        ONEDNN | {"ONEDNN_MAX_CPU_ISA": "AVX2", "XLA_FLAGS": "--xla_cpu_max_isa=AVX2"}
    ),
    "oneDNN off, no XLA": Variant(EIGEN, more="--no_xla"),
    "other rounding, 1": Variant(rounding_seed=1),
    "other rounding, 2": Variant(ONEDNN, 1, rounding_seed=2),
}


def rounding(names: Collection[str]) -> None:
    """Run all variants of these pins, each variant in its own process, and write their deviations."""
    import tensorflow as tf

    run = functools.partial(_run_variant, names)
    here = {"machine": f"{provenance.cpu_model()}, TensorFlow {tf.__version__}"}
    rows: list[dict[str, Any]] = [row for row in pins.rounding_rows() if row["pin"] not in names]
    with tempfile.TemporaryDirectory() as folder:
        run(folder, Variant())
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            outputs = pool.map(functools.partial(run, folder), VARIANTS.values())
            for name, output in zip(VARIANTS, outputs, strict=True):
                print(name, output, sep="\n", flush=True)
                found = map(json.loads, output.splitlines())
                rows += [{"variant": name} | row | here for row in found]
    figures = [*pins.FIGURES, pins.INPUTS]
    with pins.ROUNDING.open("w", newline="") as file:
        file.write(ROUNDING_HEAD.format(safety=SAFETY))
        writer = csv.DictWriter(file, ["pin", "variant", *figures, "inputs", "machine"])
        writer.writeheader()
        for name in pins.PINS:
            of_pin = [r for r in rows if r["pin"] == name and r["variant"] != "tolerance"]
            largest = {f: max(float(row[f]) for row in of_pin) for f in figures}
            allowed = {f: f"{SAFETY * deviation:.1e}" for f, deviation in largest.items()}
            last = {"pin": name, "variant": "tolerance", **allowed, "inputs": "the same"}
            writer.writerows([*of_pin, last])


def _run_variant(names: Collection[str], folder: str, variant: Variant) -> str:
    arguments = [folder, str(variant.n_threads), variant.more, str(variant.rounding_seed), *names]
    return subprocess.run(
        [sys.executable, "-m", "tests.tools.pin_tables", "variant", *arguments],
        env=os.environ | variant.environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


def run_variant(
    folder: str, n_threads: int, more: str, rounding_seed: int | None, names: Collection[str]
) -> None:
    """Run these pins. The first time, keep the changes of weights in the folder; later, print a line of
    JSON for each pin, with the largest deviations from these."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(n_threads)
    for name in names:
        pin = pins.PINS[name]
        pinned, run = pins.load(name), pins.run(pin, more, rounding_seed)
        change = run.change("weights")
        kept = pathlib.Path(folder) / f"{name}.npz"
        if not kept.exists():
            np.savez(kept, **change)
            continue
        if rounding_seed is not None:
            pinned |= {"initial_weights": {}}
        reference = np.load(kept)
        line: dict[str, Any] = {"pin": name}
        for figure in pins.FIGURES:
            found = [_deviation(figure, change[n], reference[n]) for n in reference]
            line[figure] = f"{max(found):.1e}"
        steps = pins.summary(pin, run)["steps"]
        line[pins.INPUTS] = f"{pins.deviation_of_inputs(pinned['steps'], steps):.1e}"
        line["inputs"] = "; ".join(pins.input_differences(pinned, run, SMALL)) or "the same"
        print(json.dumps(line), flush=True)


def _deviation(figure: str, found: np.ndarray, reference: np.ndarray) -> float:
    """As in pins.deviations, but over all entries."""
    if figure == "norm":
        return float(np.abs(np.linalg.norm(found) / np.linalg.norm(reference) - 1))
    if figure == "mean":
        return float(np.abs((found - reference).mean()) / np.sqrt((reference**2).mean()))
    return float(np.abs(found - reference).max() / np.abs(reference).max())


def _number(name: str, change: Callable[[float], float], form: str = "g") -> Flags:
    """The flag with its value changed, or nothing if the pin has no value that changes."""

    def flags(params: Params) -> str:
        value = getattr(params, name)
        if value is None or change(value) == value:
            return ""
        return f"--{name} {change(value):{form}}"

    return flags


def _other(name: str, others: dict[str, str]) -> Flags:
    return lambda params: others.get(getattr(params, name), "")


def _of_images(flags: str) -> Flags:
    return lambda params: "" if params.network == "mlp" else flags


def _of_vectors(flags: Flags) -> Flags:
    return lambda params: flags(params) if params.network == "mlp" else ""


def _of_continuous(flags: Flags) -> Flags:
    return lambda params: flags(params) if params.env_id in CONTINUOUS else ""


def _turned(name: str) -> Flags:
    """The flag, or without it."""
    return _of_vectors(lambda params: f"--{name}" + ("=none" if getattr(params, name) else ""))


def _third_digit(value: float) -> float:
    return value * 1.01


CONTINUOUS = ("Pendulum-v1", "Hopper-v5")  # the pins' environments with continuous actions
# How to change each hyperparameter of a pin; "" if it has nothing to change. Without no_xla, which
# only changes the rounding, and n_workers, because several workers take turns in no fixed order.
CHANGES: dict[str, Flags] = {
    "discount": _number("discount", lambda value: value + 0.001),
    "entropy_bonus": _number("entropy_bonus", _third_digit),
    "value_loss_coef": _number("value_loss_coef", _third_digit),
    "max_grad_norm": _number("max_grad_norm", _third_digit),
    "initial_lr": _number("initial_lr", _third_digit),
    "lr_decay_to_zero_by_n_steps": _number("lr_decay_to_zero_by_n_steps", _third_digit, ".0f"),
    "rmsprop_decay": _number("rmsprop_decay", lambda value: value + 0.001),
    "rmsprop_epsilon": _number("rmsprop_epsilon", _third_digit),
    "rmsprop_initial": _number("rmsprop_initial", _third_digit),
    "steps_per_update": _number("steps_per_update", lambda value: value + 1),
    "envs_per_worker": _number("envs_per_worker", lambda value: value + 1),
    "seed": _number("seed", lambda value: value + 1),
    "loss_reduction": _other(
        "loss_reduction", {"mean": "--loss_reduction sum", "sum": "--loss_reduction mean"}
    ),
    "lr_schedule": _other(
        "lr_schedule",
        {
            "constant": "--lr_schedule linear --lr_decay_to_zero_by_n_steps 50000",
            "linear": "--lr_schedule constant",
        },
    ),
    "network": _other("network", {"nature": "--network small", "small": "--network nature"}),
    "initial_weights": _other(
        "initial_weights",
        {"glorot": "--initial_weights torch", "torch": "--initial_weights glorot"},
    ),
    "preprocessing": lambda params: "--preprocessing pong" if "Pong" in params.env_id else "",
    "max_n_noops": _of_images("--max_n_noops 31"),
    "no_clip_rewards": _of_images("--no_clip_rewards"),
    "no_end_on_life_loss": _of_images("--no_end_on_life_loss"),
    "lstm_units": _number("lstm_units", lambda value: value + 1),
    "hidden_units": _of_vectors(lambda params: f"--hidden_units {params.hidden_units[0] + 1}"),
    "activation": _of_vectors(
        _other("activation", {"tanh": "--activation relu", "relu": "--activation tanh"})
    ),
    "normalize_observations": _turned("normalize_observations"),
    "scale_rewards": _turned("scale_rewards"),
    "max_episode_steps": _number("max_episode_steps", lambda value: value + 1),
    "policy_sd": _of_continuous(
        _other(
            "policy_sd",
            {
                "per_dimension": "--policy_sd per_state",
                "per_state": "--policy_sd per_dimension",
            },
        )
    ),
    "initial_sd": _of_continuous(_number("initial_sd", _third_digit)),
}
# The other two take as long as all of these.
SHOWN = [name for name in pins.PINS if name not in ("pong-ocd", "pong-1x4")]
HEAD = f"""# What turns the pins red

Written by `python3 -m tests.tools.pin_tables sensitivity`, which changes one hyperparameter at a time and
runs the short pins. Inputs: the inputs of the updates differ. Action: by that update, the policy has
changed enough to choose another action. A number: the inputs are the same, and the weights' change is
off by this many times the tolerance. Green: no difference is found. Empty: there is nothing to change.

| hyperparameter | {" | ".join(SHOWN)} |
|---|{"---|" * len(SHOWN)}
"""


def sensitivity(names: Collection[str]) -> None:
    """Change these hyperparameters one after the other, and write the differences of each pin."""
    if unknown := [name for name in names if name not in CHANGES]:
        sys.exit(f"CHANGES does not say how to change {', '.join(unknown)}")
    rows = {row.split(" | ")[0].removeprefix("| "): row for row in _rows()}
    for name in names:
        cells = [_cell(pin_name, CHANGES[name]) for pin_name in SHOWN]
        rows[name] = f"| {name} | {' | '.join(cells)} |\n"
        print(rows[name], end="", flush=True)
    SENSITIVITY.write_text(HEAD + "".join(rows[name] for name in CHANGES if name in rows))


def _rows() -> list[str]:
    """The rows of the table as it is."""
    lines = SENSITIVITY.read_text().splitlines(keepends=True)
    return [line for line in lines if line.startswith("| ")][1:]


def layout() -> None:
    """Write the head of the table above the rows that it has."""
    SENSITIVITY.write_text(HEAD + "".join(_rows()))


def _cell(name: str, flags: Flags) -> str:
    pin, pinned = pins.PINS[name], pins.load(name)
    more = flags(parameters(pin))
    if not more:
        return ""
    run = pins.run(pin, more)
    shown = f"`{more}`: "
    change, tolerance = run.change("weights"), pins.tolerances(name)
    inputs = pins.input_differences(pinned, run, tolerance[pins.INPUTS])
    if inputs and (update := re.search(r"arithmetic: of step \d+ \(update (\d+)\)", inputs[0])):
        return f"{shown}action, update {update[1]}"
    if inputs:
        return f"{shown}inputs"
    times = max(
        deviation / tolerance[figure]
        for weight, figures in pinned["changes"].items()
        for figure, deviation in pins.deviations(figures, change[weight]).items()
    )
    is_red = bool(pins.differences(pinned, run, tolerance))
    return shown + (f"{times:.3g}" if is_red else "green")


def parameters(pin: pins.Pin) -> Params:
    """The parameters of a pin."""
    parsed = parse(pin.arguments.split())
    is_image = any(game in pin.arguments for game in ("Pong", "Side"))
    is_continuous = parsed.params.env_id in CONTINUOUS
    return resolve(parsed, "image" if is_image else "vector", is_continuous, is_image).params


def main() -> None:
    match sys.argv[1:]:
        case ["rounding", *names]:
            rounding(names or list(pins.PINS))
        case ["sensitivity", *names]:
            sensitivity(names or CHANGES)
        case ["layout"]:
            layout()
        case ["variant", folder, n_threads, more, seed, *names]:
            run_variant(folder, int(n_threads), more, None if seed == "None" else int(seed), names)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
