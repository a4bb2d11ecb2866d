"""Pinned runs of 100 updates: their inputs, and how they changed the weights.

    make pins        renews tests/pinned/ and prints what has changed

`tests/pins_test.py` runs them again and compares. The change θ100 − θ0 is pinned instead of the
weights, because under the preset `ocd` a weight changes only by a thousandth of itself. Inputs are
compared first (initial weights, draws, observations, actions and rewards), so that a failure says
which part of the program has changed.

Float32 sums depend on their order, which may differ on another machine, with another number of
threads, or in faster code. tests/tools/pin_tables.py measures how far that moves the figures, and
writes tests/pinned/rounding.csv. The tolerance is a multiple of it.

Continuous actions are float32, too, and what is observed after them follows. So the inputs of such a
run are pinned as numbers and have a tolerance. It is wide enough for an environment that computes in
float64, such as MuJoCo: another processor changes its numbers by 1e-16, where rounding changes actions
by 1e-7. In short episodes both stay small, except in HalfCheetah, where contacts make 0.1 of 1e-7
within 10 steps. So Hopper stands for MuJoCo.
"""

import csv
import dataclasses
import hashlib
import itertools
import json
import math
import pathlib
import re
import tempfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from a3c.settings.params import Params
    from tests.tools.recorded_runs import Arrays, Run

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "pinned"
ROUNDING = FOLDER / "rounding.csv"
N_ENTRIES = 32  # of each weight, drawn from those that changed
N_SIGNS = 32  # at most; of the entries that changed most, by at least half of the largest change
N_DRAWS = 100
N_GAMES = 5
FIGURES = ("norm", "mean", "entries")  # of the changes of weights
INPUTS = "steps"  # the figure of the inputs


class Pin(NamedTuple):
    """A run of train.py, and its purpose."""

    arguments: str
    purpose: str
    # Multiplies the initial weights of the policy's last layer.
    policy_scale: float = 1.0
    # The run's last step, if that is after the end of its schedule. train.py refuses such a run, so
    # its parameters are changed after it has checked them.
    goes_on_to: int | None = None

    def command(self) -> str:
        """What is run, in words."""
        further = f", and on to step {self.goes_on_to}" if self.goes_on_to else ""
        return f"train.py {self.arguments}{further}"


_SIDE = "--network small --rmsprop_initial 0 --n_steps 500 tests.tools.toys:toys/Side-v0"
PINS = {
    "pong-ocd": Pin(
        "--n_steps 500 PongNoFrameskip-v4",
        "the preset ocd, with statistics from 1",
    ),
    "pong-paper": Pin(
        "--preset paper --n_steps 500 PongNoFrameskip-v4",
        "the preset paper, whose learning rate reaches 0 as the run ends",
    ),
    "pong-1x4": Pin(
        "--preset paper --envs_per_worker 4 --n_steps 2000 PongNoFrameskip-v4",
        "one worker with four environments",
    ),
    "side-clipped": Pin(
        f"--max_grad_norm 0.05 {_SIDE}",
        "nearly every gradient is clipped, and ε is larger than the statistics; lives, clipped rewards",
    ),
    "side-decided": Pin(
        f"--rmsprop_epsilon 1e-3 --entropy_bonus 0.1 {_SIDE}",
        "a policy mostly far from uniform, where the entropy has a slope",
        policy_scale=5.0,
    ),
    "side-paper": Pin(
        "--preset paper --n_steps 300 tests.tools.toys:toys/Side-v0",
        "the preset paper on a toy; a learning rate that is 0 from update 60 on",
        goes_on_to=500,
    ),
    "vector-truncated": Pin(
        "--n_steps 500 tests.tools.toys:toys/TruncatedVector-v0",
        "the network for vectors; a time limit ends every episode",
    ),
    "side-lstm": Pin(
        f"--lstm_units 16 {_SIDE}",
        "a network for images with a memory, which ends with each life",
    ),
    "drawn-lstm": Pin(
        "--lstm_units 8 --hidden_units 16 --activation relu --rmsprop_initial 0 --n_steps 500"
        " tests.tools.toys:toys/Drawn-v0",
        "the network for vectors with other layers, and a memory for each head",
    ),
    "pendulum": Pin(
        "--normalize_observations --scale_rewards --max_episode_steps 20 --hidden_units 16 16"
        " --rmsprop_initial 0 --n_steps 500 Pendulum-v1",
        "continuous actions with a free sd; running statistics; a time limit",
    ),
    "hopper": Pin(
        "--normalize_observations --scale_rewards --max_episode_steps 15 --hidden_units 16"
        " --policy_sd per_state --initial_sd 0.5 --rmsprop_initial 0 --steps_per_update 2"
        " --n_steps 200 Hopper-v5",
        "three joints in MuJoCo, which falls or is cut off; the sd depends on the state",
    ),
}


def run(pin: Pin, more: str = "", rounding_seed: int | None = None) -> "Run":
    """Run a pin with `more` arguments; with a seed, from initial weights of another rounding."""
    from tests.tools import recorded_runs

    def change(weights: "Arrays") -> "Arrays":
        changed = weights | {
            "policy_kernel": weights["policy_kernel"] * np.float32(pin.policy_scale)
        }
        if rounding_seed is not None:
            generator = np.random.default_rng(rounding_seed)
            for name, weight in changed.items():
                ulps = generator.integers(-1, 2, weight.shape).astype(np.float32)
                changed[name] = weight * (1 + np.float32(2**-23) * ulps)
        return changed

    def change_params(params: "Params") -> "Params":
        return dataclasses.replace(params, n_steps=pin.goes_on_to or params.n_steps)

    *flags, env_id = pin.arguments.split()
    with tempfile.TemporaryDirectory() as folder:
        return recorded_runs.record(
            [*flags, *more.split(), env_id],
            pathlib.Path(folder),
            change_initial_weights=change,
            change_params=change_params,
        )


def summary(pin: Pin, run: "Run") -> dict[str, Any]:
    """What is pinned of a run."""
    return {
        "made_by": "make pins",
        "run": pin.command(),
        "purpose": pin.purpose,
        "policy_scale": pin.policy_scale,
        "initial_weights": {name: _hash(w) for name, w in run.start["weights"].items()},
        "draws": _draws(run),
        "games_begin_with": _beginnings(run),
        "first_seen": [_seen(run, seen) for seen in run.first_seen],
        # For each environment: action, reward, end of the episode, observation, and if a time limit
        # ended the episode, its true last observation.
        "steps": [
            " | ".join(
                f"{_numbers(step.actions[k])} {step.rewards[k]:.7g} {_end(step, k)}"
                f" {_seen(run, step.seen[k])}"
                + (f" {_seen(run, step.last[k])}" if step.truncated[k] else "")
                for k in range(len(step.actions))
            )
            for step in run.steps
        ],
        "changes": {name: _figures(c) for name, c in run.change("weights").items()},
    }


def _hash(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:12]


def _is_continuous(run: "Run") -> bool:
    return run.steps[0].actions.ndim > 1


def _numbers(array: np.ndarray) -> str:
    return ",".join(f"{x:.7g}" for x in array.ravel())


def _seen(run: "Run", observation: np.ndarray) -> str:
    return _numbers(observation) if _is_continuous(run) else _hash(observation)


def _end(step: Any, k: int) -> str:
    return {(0, 0): "-", (1, 0): "terminated", (0, 1): "truncated", (1, 1): "both"}[
        int(step.terminated[k]), int(step.truncated[k])
    ]


def _draws(run: "Run") -> str:
    """The actions that the run's generator draws if all are equally likely, or with means 0 and sd 1."""
    from a3c.agent.policy import Categorical, Gaussian
    from a3c.machine import seeding

    generator = seeding.generator(run.params.seed, seeding.Purpose.ACTIONS, worker=0)
    n_envs, n_actions = len(run.first_seen), len(run.start["weights"]["policy_bias"])
    if _is_continuous(run):
        gaussian, n = Gaussian(n_actions, sd_per_state=False), N_DRAWS * n_envs
        zeros = np.zeros((n, 2 * n_actions), np.float32)
        return _hash(gaussian.chosen(zeros, gaussian.noise(generator, n)))
    policy, flat = Categorical(n_actions), np.zeros((n_envs, n_actions), np.float32)
    drawn = [policy.chosen(flat, policy.noise(generator, n_envs)) for _ in range(N_DRAWS)]
    return "".join(str(action) for actions in drawn for action in actions)


def _beginnings(run: "Run") -> list[str]:
    """The no-ops and the emulator's seed of each environment's first games."""
    from a3c.envs import make

    seed, found = run.params.seed, []
    for k in range(len(run.first_seen)):
        n_noops = make._n_noops(seed, 0, k, 0, run.params.max_n_noops)
        seeds = make._emulator_seeds(seed, 0, k, 0, math.inf)
        games = itertools.islice(zip(n_noops, seeds, strict=True), N_GAMES)
        found.append(" ".join(f"{n}:{emulator_seed}" for n, emulator_seed in games))
    return found


def _figures(change: np.ndarray) -> dict[str, Any]:
    """Norm, mean, largest size; some entries that changed; signs of those that changed most."""
    change = change.ravel()
    moved = np.flatnonzero(change)
    drawn = np.random.default_rng(0).permutation(moved)[:N_ENTRIES]
    largest = float(np.abs(change).max())
    farthest = np.argsort(-np.abs(change), kind="stable")[:N_SIGNS]
    far = sorted(i for i in farthest if np.abs(change[i]) >= largest / 2)
    return {
        "size": change.size,
        "norm": _digits(np.linalg.norm(change)),
        "mean": _digits(change.mean()),
        "largest": _digits(largest),
        "entries": {str(i): _digits(change[i]) for i in sorted(drawn)},
        "signs": {str(i): "+" if change[i] > 0 else "-" for i in far},
    }


def _digits(number: float) -> float:
    return float(f"{number:.9g}")


def deviations(pinned: Mapping[str, Any], change: np.ndarray) -> dict[str, float]:
    """How far the figures of one weight's change are from the pinned ones.

    The norm's deviation is a fraction of the norm, the mean's of the root mean square, and the
    largest one of the entries a fraction of the weight's largest entry.
    """
    found = change.ravel()
    rms = pinned["norm"] / pinned["size"] ** 0.5
    return {
        "norm": abs(float(np.linalg.norm(found)) - pinned["norm"]) / pinned["norm"],
        "mean": abs(float(found.mean()) - pinned["mean"]) / rms,
        "entries": max(abs(found[int(i)] - value) for i, value in pinned["entries"].items())
        / pinned["largest"],
    }


def tolerances(name: str) -> dict[str, float]:
    """The deviation that is allowed for each figure of a pin; 0 if none has been measured."""
    rows = [r for r in rounding_rows() if (r["pin"], r["variant"]) == (name, "tolerance")]
    return {figure: sum(float(row[figure]) for row in rows) for figure in (*FIGURES, INPUTS)}


def rounding_rows() -> list[dict[str, str]]:
    """The deviations that other orders of float32 sums made; rounding.csv says how."""
    with ROUNDING.open(newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def input_differences(pinned: Mapping[str, Any], run: "Run", tolerance: float = 0.0) -> list[str]:
    """The first input of the updates that has changed, and what changed it; later ones may follow."""
    found = summary(Pin("", ""), run)
    for name, value in pinned["initial_weights"].items():
        if found["initial_weights"].get(name) != value:
            return [f"randomness: the initial weights {name} are others"]
    if found["draws"] != pinned["draws"]:
        return ["randomness: the stream that actions are drawn from is another"]
    if found["games_begin_with"] != pinned["games_begin_with"]:
        return ["randomness: games begin with other no-ops, or other seeds of the emulator"]
    if not deviation_of_inputs(pinned["first_seen"], found["first_seen"]) <= tolerance:
        return ["environment: the first observation is another"]
    for n, (new, old) in enumerate(zip(found["steps"], pinned["steps"], strict=False)):
        if not deviation_of_inputs(_column(old, 0), _column(new, 0)) <= tolerance:
            return [
                f"arithmetic: of step {n} (update {n // run.params.steps_per_update}) the action"
                f" is another, after the same observations and draws: {old!r} was {new!r} now"
            ]
        if not deviation_of_inputs([old], [new]) <= tolerance:
            return [f"environment: step {n} is another, after the same actions: {old!r}, {new!r}"]
    if len(found["steps"]) != len(pinned["steps"]):
        return [f"{len(found['steps'])} steps where {len(pinned['steps'])} were"]
    return []


def _column(step: str, i: int) -> list[str]:
    return [one.split()[i] for one in step.split(" | ")]


def deviation_of_inputs(pinned: Sequence[str], found: Sequence[str]) -> float:
    """How far the numbers in these lines are from the pinned ones, at most, as a fraction of their size
    or of 1; infinity if anything else is different."""
    if list(pinned) == list(found):
        return 0.0
    new, old = (re.split("[ ,]", " ".join(lines)) for lines in (found, pinned))
    try:
        pairs = [(float(a), float(b)) for a, b in zip(new, old, strict=True) if a != b]
    except ValueError:
        return math.inf
    a, b = np.transpose(pairs)
    return float(np.max(np.abs(a - b) / np.maximum(1.0, np.abs(b))))


def differences(pinned: Mapping[str, Any], run: "Run", tolerance: Mapping[str, float]) -> list[str]:
    """A line for each difference of the inputs, or else of the changes of weights."""
    lines = input_differences(pinned, run, tolerance[INPUTS])
    if lines:
        return lines
    change = run.change("weights")
    for name, figures in pinned["changes"].items():
        for figure, deviation in deviations(figures, change[name]).items():
            if not deviation <= tolerance[figure]:
                lines.append(
                    f"arithmetic: {figure} of the change of {name} is off by {deviation:.2e},"
                    f" {tolerance[figure]:.2e} at most"
                )
        signs = {i: "+" if change[name].ravel()[int(i)] > 0 else "-" for i in figures["signs"]}
        if signs != figures["signs"]:
            lines.append(f"arithmetic: {name} moves the other way at the entries that move most")
    return lines


def path(name: str) -> pathlib.Path:
    return FOLDER / f"{name}.json"


def load(name: str) -> dict[str, Any]:
    return json.loads(path(name).read_text())


def main() -> None:
    """Run every pin, print the differences, and write the new files.

    A run within the tolerance keeps its figures, which would drift otherwise. To renew these too,
    remove the file.
    """
    for name, pin in PINS.items():
        new = run(pin)
        content = summary(pin, new)
        if path(name).exists():
            old = load(name)
            lines = differences(old, new, tolerances(name))
            if not lines:
                content["changes"] = old["changes"]
            print(f"{name}: {'as it was' if not lines else ''}", *lines, sep="\n    ")
        else:
            print(f"{name}: new")
        path(name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
