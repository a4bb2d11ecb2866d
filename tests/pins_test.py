"""The pinned runs are as they were, and a change of them is found and named.

tests/tools/pins.py says what is pinned and why; tests/pinned/ holds it.
"""

import copy
from typing import Any

import numpy as np
import pytest

from a3c.agent import optimizer
from a3c.settings import command_line, params
from tests.tools import pin_tables, pins
from tests.tools.recorded_runs import Run, Step

SLOW = {"pong-ocd", "pong-1x4"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in pins.PINS],
)
def test_100_updates_are_as_they_were(name):
    """Golden: inputs first, then the change of every weight. CONTRIBUTING.md says when `make pins` may renew them."""
    run = pins.run(pins.PINS[name])
    n_steps_per_update = run.params.steps_per_update * run.params.envs_per_worker
    assert run.params.n_steps == 100 * n_steps_per_update
    assert pins.differences(pins.load(name), run, pins.tolerances(name)) == []


@pytest.mark.slow
def test_a_run_as_it_is_by_default_repeats_bit_for_bit():
    """Parity: weights and statistics of two runs of one worker on Pong, with XLA."""
    one, other = (pins.run(pins.PINS["pong-ocd"]) for _ in range(2))
    for part in ("weights", "mean_squares"):
        for name, array in one.end[part].items():
            assert array.tobytes() == other.end[part][name].tobytes(), name
        assert one.change(part)["dense_kernel"].any()


@pytest.mark.weekly
@pytest.mark.parametrize("name", pins.PINS)
def test_another_rounding_is_within_the_tolerance(name):
    """Golden: one that rounding.csv does not have, so the tolerance fits today's arithmetic."""
    run = pins.run(pins.PINS[name], rounding_seed=3)
    pinned = pins.load(name) | {"initial_weights": {}}
    assert pins.differences(pinned, run, pins.tolerances(name)) == []


def sensitivity() -> dict[str, list[str]]:
    """Each hyperparameter of sensitivity.md, and the pins that turned red when it was changed."""
    lines = [line for line in pin_tables.SENSITIVITY.read_text().splitlines() if line[:1] == "|"]
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines[2:]]
    return {
        name: [
            pin
            for pin, cell in zip(pin_tables.SHOWN, cells, strict=True)
            if cell and not cell.endswith("green")
        ]
        for name, *cells in rows
    }


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("vector-truncated", "--initial_lr 1.01e-4"),
        ("pendulum", "--entropy_bonus 0.0101"),
        pytest.param("pong-ocd", "--initial_lr 1.01e-4", marks=pytest.mark.weekly),
        pytest.param("pong-1x4", "--initial_lr 7.07e-4", marks=pytest.mark.weekly),
    ],
)
def test_a_hyperparameters_third_digit_turns_a_pin_red(name, more):
    """Golden: negative control. tests/pinned/sensitivity.md has all hyperparameters."""
    run = pins.run(pins.PINS[name], more)
    lines = pins.differences(pins.load(name), run, pins.tolerances(name))
    assert lines
    assert all(line.startswith("arithmetic: ") for line in lines)


@pytest.mark.parametrize(
    "floor", [-1.0, pytest.param(0.001, marks=pytest.mark.weekly)], ids=["below 0", "not to 0"]
)
def test_a_rate_that_does_not_end_at_0_turns_a_pin_red(monkeypatch, floor):
    """Golden: negative control. The learning rate falls below 0, or stays at a thousandth."""
    monkeypatch.setattr(
        optimizer, "learning_rate", lambda initial_lr, n, end: initial_lr * max(floor, 1 - n / end)
    )
    run = pins.run(pins.PINS["side-paper"])
    (first, *_) = pins.differences(pins.load("side-paper"), run, pins.tolerances("side-paper"))
    assert first.startswith("arithmetic: ")


@pytest.mark.weekly
@pytest.mark.parametrize("hyperparameter", pin_tables.CHANGES)
def test_each_hyperparameter_turns_the_pin_red_that_the_table_names(hyperparameter):
    """Golden: the first pin of the row."""
    name = sensitivity()[hyperparameter][0]
    more = pin_tables.CHANGES[hyperparameter](pin_tables.parameters(pins.PINS[name]))
    run = pins.run(pins.PINS[name], more)
    assert pins.differences(pins.load(name), run, pins.tolerances(name)) != []


# The files in tests/pinned/


def test_every_hyperparameter_has_a_pin_that_turns_red():
    """Golden: the table has every hyperparameter, and no row is only green. What the environment is, is none."""
    changing = {name for name, knob in params.KNOBS.items() if knob.changes_training} | {"seed"}
    assert set(pin_tables.CHANGES) == changing - {
        *("env_id", "env_kwargs", "wrapper", "n_workers", "no_xla"),
    }
    table = sensitivity()
    assert set(table) == set(pin_tables.CHANGES)
    assert [name for name, red in table.items() if not red] == []


def test_the_tolerance_was_measured_in_every_way():
    """Golden: for each pin, ten times the largest deviation of all variants, which had the same inputs. It is so small
    that a hyperparameter's third digit is outside."""
    rows = pins.rounding_rows()
    assert {row["inputs"] for row in rows} == {"the same"}
    assert {row["pin"] for row in rows} == set(pins.PINS)
    for name in pins.PINS:
        *measured, last = (row for row in rows if row["pin"] == name)
        assert [row["variant"] for row in measured] == list(pin_tables.VARIANTS)
        assert last["variant"] == "tolerance"
        for figure, allowed in pins.tolerances(name).items():
            largest = max(float(row[figure]) for row in measured)
            assert allowed == float(last[figure]) == pytest.approx(10 * largest, rel=0.05)
        assert 0 < pins.tolerances(name)["norm"] < 1e-4
        assert 0 < pins.tolerances(name)["entries"] < 1e-2
        is_continuous = pin_tables.parameters(pins.PINS[name]).env_id in pin_tables.CONTINUOUS
        assert (0 < pins.tolerances(name)["steps"] < 1e-3) == is_continuous
    assert set(pins.tolerances("a pin that was never measured").values()) == {0}


def test_the_files_are_those_of_the_pins_and_small():
    """Golden: one file for each pin, of the run that pins.py describes, with entries of each weight; 1 MB in all."""
    assert {path.stem for path in pins.FOLDER.glob("*.json")} == set(pins.PINS)
    for name, pin in pins.PINS.items():
        pinned = pins.load(name)
        assert pinned["run"] == pin.command()
        assert pinned["policy_scale"] == pin.policy_scale
        for figures in pinned["changes"].values():
            assert len(figures["entries"]) == pins.N_ENTRIES or figures["size"] < 100
            assert figures["entries"]
            assert figures["signs"]
    assert sum(path.stat().st_size for path in pins.FOLDER.iterdir()) <= 1_000_000


# The comparison itself


def made_up_run(**changed: Any) -> Run:
    """Two environments, six steps, two weights; all arrays have different numbers."""
    generator = np.random.default_rng(0)
    start = {
        name: generator.standard_normal(shape).astype(np.float32)
        for name, shape in (("dense_kernel", (4, 50)), ("policy_bias", (3,)))
    }
    end = {
        name: w + generator.standard_normal(w.shape).astype(np.float32) for name, w in start.items()
    }
    steps = [
        Step(
            generator.integers(0, 3, 2).astype(np.int32),
            np.array([0.0, n], np.float32),
            np.array([n == 2, False]),
            np.array([False, n == 4]),
            generator.integers(0, 256, (2, 3)).astype(np.uint8),
            {1: np.array([7, 8, 9], np.uint8)} if n == 4 else {},
        )
        for n in range(6)
    ]
    first_seen = generator.integers(0, 256, (2, 3)).astype(np.uint8)
    run = Run(
        command_line.parse(["--steps_per_update", "3", "X-v0"]).params,
        first_seen,
        steps,
        {"weights": start},
        {"weights": end},
    )
    return run._replace(**changed)


MADE_UP = pins.Pin("X-v0", "for the tests")
TOLERANCE = {"norm": 1e-4, "mean": 1e-4, "entries": 1e-3, "steps": 1e-5}


def judged(run: Run) -> list[str]:
    return pins.differences(pins.summary(MADE_UP, made_up_run()), run, TOLERANCE)


def with_step(n: int, **changed: Any) -> Run:
    run = made_up_run()
    steps = [*run.steps]
    steps[n] = steps[n]._replace(**changed)
    return run._replace(steps=steps)


def test_changed_inputs_are_named_first_and_for_what_they_are():
    """Analytic: the first difference names the cause, whatever the weights do."""
    run = made_up_run()
    assert judged(run) == []
    other_end = {"weights": {n: w + 1 for n, w in run.end["weights"].items()}}
    other_start = copy.deepcopy(run.start)
    other_start["weights"]["policy_bias"][2] = np.nextafter(
        other_start["weights"]["policy_bias"][2], np.float32(9)
    )
    flags = ["--steps_per_update", "3", "X-v0"]
    other_params = command_line.parse(["--seed", "1", *flags]).params
    other_starts = command_line.parse(["--max_n_noops", "29", *flags]).params
    seen = run.steps[3].seen.copy()
    seen[1, 2] ^= 1
    for changed, line in (
        (run._replace(start=other_start), "randomness: the initial weights policy_bias are"),
        (run._replace(params=other_params), "randomness: the stream"),
        (run._replace(params=other_starts), "randomness: games begin with other no-ops"),
        (run._replace(first_seen=run.first_seen + 1), "environment: the first observation"),
        (with_step(3, actions=(run.steps[3].actions + 1) % 3), "arithmetic: of step 3 (update 1)"),
        (with_step(3, rewards=np.array([0.0, 3.5], np.float32)), "environment: step 3"),
        (with_step(2, terminated=np.array([False, False])), "environment: step 2"),
        (with_step(4, truncated=np.array([False, False])), "environment: step 4"),
        (with_step(3, seen=seen), "environment: step 3"),
        (with_step(4, last={1: np.array([7, 8, 8], np.uint8)}), "environment: step 4"),
        (run._replace(steps=run.steps[:5]), "5 steps where 6 were"),
    ):
        (found,) = judged(changed._replace(end=other_end))
        assert found.startswith(line)
