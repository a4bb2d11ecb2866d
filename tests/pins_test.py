"""The pinned runs are as they were; whatever changes them is found, and named for what it is.

tests/tools/pins.py has what is pinned and why; tests/pinned/ holds it.
"""

import copy
import json
import re
from typing import Any

import numpy as np
import pytest

from a3c.agent import optimizer
from a3c.settings import command_line, params
from tests.tools import oracle, oracle_replay, pin_tables, pins
from tests.tools.recorded_runs import Run, Step

SLOW = {"pong-ocd", "pong-1x4"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in pins.PINS],
)
def test_100_updates_are_as_they_were(name):
    """Golden: inputs first, then the change of every weight; `make pins` renews them, and
    CONTRIBUTING.md says when it may."""
    run = pins.run(pins.PINS[name])
    n_steps_per_update = run.params.steps_per_update * run.params.envs_per_worker
    assert run.params.n_steps == 100 * n_steps_per_update
    assert pins.differences(pins.load(name), run, pins.tolerances(name)) == []


@pytest.mark.slow
def test_a_run_as_it_is_by_default_repeats_bit_for_bit():
    """Golden: one worker on Pong with the preset's network, acting compiled; weights and statistics."""
    one, other = (pins.run(pins.PINS["pong-ocd"]) for _ in range(2))
    for part in ("weights", "mean_squares"):
        for name, array in one.end[part].items():
            assert array.tobytes() == other.end[part][name].tobytes(), name
        assert one.change(part)["dense_kernel"].any()


@pytest.mark.weekly
@pytest.mark.parametrize("name", pins.PINS)
def test_another_rounding_is_within_the_tolerance(name):
    """Golden: one that the table has not, so that it is known to be of today's arithmetic."""
    run = pins.run(pins.PINS[name], rounding_seed=3)
    pinned = pins.load(name) | {"initial_weights": {}}
    assert pins.differences(pinned, run, pins.tolerances(name)) == []


@pytest.mark.weekly
def test_the_clipped_pin_is_clipped_and_the_decided_one_decided():
    """Parity: by the oracle: 19 of 20 gradients are longer than the limit; the policy at a rollout's
    beginning has mostly less than half of the entropy that it could have."""
    norms, entropies = by_the_oracle("side-clipped")
    assert np.mean(np.array(norms) > 0.05) >= 0.95
    norms, entropies = by_the_oracle("side-decided")
    assert np.median(entropies) < 0.5


def by_the_oracle(name: str) -> tuple[list[float], list[float]]:
    """Of each update of a pin: the gradient's norm, and the first entropy, in parts of the most."""
    run = pins.run(pins.PINS[name])
    replay = oracle_replay.Replay(run.params, run.start["weights"], run.start["mean_squares"])
    hyperparameters = oracle_replay.hyperparameters(run.params)
    norms, entropies = [], []
    for rollout in oracle_replay.rollouts(run, replay):
        network, weights = replay.oracle.network, replay.oracle.weights
        logits = oracle.forward(network, weights, rollout.observations[0])["policy"]
        p = np.exp(logits) / np.exp(logits).sum()
        entropies.append(-float((p * np.log(p)).sum()) / np.log(p.size))
        gradients = oracle.gradients(network, weights, rollout, hyperparameters)
        norms.append(float(np.sqrt(sum((g**2).sum() for g in gradients.values()))))
        replay.update(rollout)
    assert len(norms) == 100
    return norms, entropies


def rows_of(table: str) -> dict[str, list[str]]:
    """The rows of a table in Markdown, by their first column."""
    lines = [line.strip() for line in table.splitlines() if line.startswith("|")]
    rows = [line.removeprefix("|").removesuffix("|").split("|") for line in lines]
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows[2:]}


def sensitivity() -> dict[str, dict[str, str]]:
    """What each pin said when one hyperparameter was changed: only those that turned red."""
    rows = rows_of(pin_tables.SENSITIVITY.read_text())
    return {
        name: {
            pin: cell
            for pin, cell in zip(pin_tables.SHOWN, cells, strict=True)
            if cell and not cell.endswith("green")
        }
        for name, cells in rows.items()
    }


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("vector-truncated", "--initial_lr 1.01e-4"),
        ("side-clipped", "--rmsprop_epsilon 1.01e-5"),
        ("side-decided", "--entropy_bonus 0.101"),
        pytest.param("pong-ocd", "--initial_lr 1.01e-4", marks=pytest.mark.slow),
        pytest.param("pong-1x4", "--initial_lr 7.07e-4", marks=pytest.mark.slow),
    ],
)
def test_a_hyperparameters_third_digit_turns_a_pin_red(name, more):
    """Golden: negative control; tests/pinned/sensitivity.md has all hyperparameters."""
    run = pins.run(pins.PINS[name], more)
    lines = pins.differences(pins.load(name), run, pins.tolerances(name))
    assert lines
    assert all(line.startswith("arithmetic: ") for line in lines)


@pytest.mark.parametrize("floor", [-1.0, 0.001], ids=["below 0", "not to 0"])
def test_a_rate_that_does_not_end_at_0_turns_a_pin_red(monkeypatch, floor):
    """Golden: negative control; the learning rate falls on below 0, or stays at a thousandth."""
    monkeypatch.setattr(
        optimizer, "learning_rate", lambda initial_lr, n, end: initial_lr * max(floor, 1 - n / end)
    )
    run = pins.run(pins.PINS["side-paper"])
    (first, *_) = pins.differences(pins.load("side-paper"), run, pins.tolerances("side-paper"))
    assert first.startswith("arithmetic: ")


@pytest.mark.weekly
@pytest.mark.parametrize("hyperparameter", pin_tables.CHANGES)
def test_each_hyperparameter_turns_the_pin_red_that_the_table_names(hyperparameter):
    """Golden: the first of its row."""
    name = next(iter(sensitivity()[hyperparameter]))
    more = pin_tables.CHANGES[hyperparameter](pin_tables.parameters(pins.PINS[name]))
    run = pins.run(pins.PINS[name], more)
    assert pins.differences(pins.load(name), run, pins.tolerances(name)) != []


# What stands in tests/pinned/


def test_every_hyperparameter_has_a_pin_that_turns_red():
    """Golden: none is left out of the table, and none has a row of green only."""
    changing = {name for name, knob in params.KNOBS.items() if knob.changes_training} | {"seed"}
    assert set(pin_tables.CHANGES) == changing - {"env_id", "n_workers", "no_xla"}
    table = sensitivity()
    assert set(table) == set(pin_tables.CHANGES)
    assert [name for name, red in table.items() if not red] == []


def test_the_tolerance_was_measured_in_every_way():
    """Golden: each pin with each variant, on the same inputs; ten times the largest deviation, and
    still so small that a hyperparameter's third digit is outside."""
    rows = pins.rounding_rows()
    assert {row["inputs"] for row in rows} == {"the same"}
    assert {row["pin"] for row in rows} == set(pins.PINS)
    for name in pins.PINS:
        *measured, last = (row for row in rows if row["pin"] == name)
        assert [row["variant"] for row in measured] == list(pin_tables.VARIANTS)
        assert last == pin_tables.tolerance_row(name, measured)
        assert pins.tolerances(name) == {f: float(last[f]) for f in pins.FIGURES}
        assert 0 < pins.tolerances(name)["norm"] < 1e-4
        assert 0 < pins.tolerances(name)["entries"] < 1e-2


def test_the_table_says_what_a_tolerance_is_and_where_it_was_measured():
    """Golden: its head is the script's, with a processor and a version filled in."""
    lines = pins.ROUNDING.read_text().splitlines(keepends=True)
    head = "".join(line for line in lines if line.startswith("#"))
    form = pin_tables.ROUNDING_HEAD.format(safety=10, cpu="@", tensorflow="2.@")
    assert re.fullmatch(re.escape(form).replace("@", r"[^@\n/]+"), head)


def test_the_tolerance_is_ten_times_the_largest_deviation():
    """Analytic: figure by figure."""
    rows = [
        {"norm": "1e-6", "mean": "3e-7", "entries": "1e-5"},
        {"norm": "2e-6", "mean": "1e-8", "entries": "3e-5"},
    ]
    assert pin_tables.tolerance_row("x", rows) == {
        "pin": "x",
        "variant": "tolerance",
        "inputs": "the same",
        "norm": "2.0e-05",
        "mean": "3.0e-06",
        "entries": "3.0e-04",
    }


def test_the_files_are_those_of_the_pins_and_small():
    """Golden: one for each, made of the run that pins.py tells, 32 entries of each weight that
    has many; 1 MB in all."""
    assert {path.stem for path in pins.FOLDER.glob("*.json")} == set(pins.PINS)
    for name, pin in pins.PINS.items():
        pinned = pins.load(name)
        assert pinned["run"] == pin.command()
        assert pinned["policy_scale"] == pin.policy_scale
        for figures in pinned["changes"].values():
            n_entries = len(figures["entries"])  # fewer where a filter saw nothing but black
            assert n_entries == pins.N_ENTRIES or figures["size"] < 100
            assert n_entries > 0
            assert figures["signs"]
    assert sum(path.stat().st_size for path in pins.FOLDER.iterdir()) <= 1_000_000


# The comparison itself


def made_up_run(**changed: Any) -> Run:
    """Two environments, six steps, two weights; every array has numbers of its own."""
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
TOLERANCE = {"norm": 1e-4, "mean": 1e-4, "entries": 1e-3}


def judged(run: Run) -> list[str]:
    return pins.differences(pins.summary(MADE_UP, made_up_run()), run, TOLERANCE)


def test_the_same_run_has_no_differences():
    """Analytic: nor has what JSON made of it."""
    assert judged(made_up_run()) == []


def with_step(n: int, **changed: Any) -> Run:
    run = made_up_run()
    steps = [*run.steps]
    steps[n] = steps[n]._replace(**changed)
    return run._replace(steps=steps)


def test_changed_inputs_are_named_first_and_for_what_they_are():
    """Analytic: the first thing that differs tells who is to blame, whatever the weights do."""
    run = made_up_run()
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


def test_an_action_that_follows_from_another_observation_is_the_environments_doing():
    """Analytic: what comes first counts."""
    run = made_up_run()
    steps = [*run.steps]
    steps[1] = steps[1]._replace(seen=steps[1].seen + 1)
    steps[2] = steps[2]._replace(actions=(steps[2].actions + 1) % 3)
    (found,) = judged(run._replace(steps=steps))
    assert found.startswith("environment: step 1 ")


def judged_change(change: np.ndarray) -> list[str]:
    """Of a run whose dense_kernel moves so; lines without their numbers."""
    run = made_up_run()
    start = {n: w.astype(np.float64) for n, w in run.start["weights"].items()}
    end = start | {"dense_kernel": start["dense_kernel"] + change}
    end["policy_bias"] = run.end["weights"]["policy_bias"]
    lines = judged(run._replace(end={"weights": end}))
    return [re.sub(r" is off by.*", "", line).removeprefix("arithmetic: ") for line in lines]


def test_each_figure_of_a_change_is_compared():
    """Analytic: a change is scaled, moved, spread or turned by more, and by less, than is allowed."""
    change = made_up_run().change("weights")["dense_kernel"]
    pinned = pins.summary(MADE_UP, made_up_run())["changes"]["dense_kernel"]
    of = " of the change of dense_kernel"
    assert judged_change(change) == []
    assert judged_change(change * 1.00009) == []
    assert judged_change(change * 1.0002) == [f"norm{of}"]
    rms = np.sqrt((change**2).mean())
    assert judged_change(change + 0.9e-4 * rms) == []
    assert f"mean{of}" in judged_change(change + 2e-4 * rms)
    one, *_ = (int(i) for i in pinned["entries"])
    turned = change.copy().ravel()
    turned[one] *= -1
    assert f"entries{of}" in judged_change(turned.reshape(change.shape))
    far = int(next(iter(pinned["signs"])))
    turned = change.copy().ravel()
    turned[far] *= -1
    assert "dense_kernel moves the other way at the entries that move most" in judged_change(
        turned.reshape(change.shape)
    )
    assert len(judged_change(np.full(change.shape, np.nan))) == 4
    assert len(judged_change(0 * change)) >= 3


def test_what_is_pinned_of_a_change_by_hand():
    """Analytic: norm √185, mean 7/5, largest 12 of 3, 0, −4, 12, −4; entries that did not move are not
    drawn, and only 12 moved half as far as the farthest."""
    figures = pins._figures(np.array([[3.0, 0.0, -4.0, 12.0, -4.0]]))
    assert figures == {
        "size": 5,
        "norm": pytest.approx(np.sqrt(185)),
        "mean": pytest.approx(1.4),
        "largest": 12.0,
        "entries": {"0": 3.0, "2": -4.0, "3": 12.0, "4": -4.0},
        "signs": {"3": "+"},
    }
    assert pins.deviations(figures, np.array([3.0, 0.0, -4.0, 12.6, -4.0])) == {
        "norm": pytest.approx(np.sqrt(185 - 144 + 12.6**2) / np.sqrt(185) - 1),
        "mean": pytest.approx(0.12 / np.sqrt(37)),
        "entries": pytest.approx(0.05),
    }


def test_the_signs_are_of_those_that_moved_farthest(monkeypatch):
    """Analytic: of four that moved at least half as far as the farthest, the two farthest."""
    monkeypatch.setattr(pins, "N_SIGNS", 2)
    assert pins._figures(np.array([5.0, -6.0, 7.0, 1.0, -9.0]))["signs"] == {"2": "+", "4": "-"}
    assert pins._figures(np.array([5.0, -6.0, 7.0, 1.0, -19.0]))["signs"] == {"4": "-"}


def test_pins_are_renewed_and_what_has_changed_is_said(tmp_path, monkeypatch, capsys):
    """Golden: a new one; one that rounding has moved, of which only a new purpose is written; and
    one whose policy moves the other way."""
    monkeypatch.setattr(pins, "FOLDER", tmp_path)
    monkeypatch.setattr(pins, "tolerances", lambda name: TOLERANCE)

    def renew(part_of_change: float, purpose: str = MADE_UP.purpose) -> tuple[list[str], str]:
        made = made_up_run()
        bias, change = made.start["weights"]["policy_bias"], made.change("weights")["policy_bias"]
        made.end["weights"]["policy_bias"] = bias + part_of_change * change
        monkeypatch.setattr(pins, "PINS", {"x": MADE_UP._replace(purpose=purpose)})
        monkeypatch.setattr(pins, "run", lambda pin: made)
        pins.main()
        return capsys.readouterr().out.splitlines(), (tmp_path / "x.json").read_text()

    said, first = renew(1)
    assert said == ["x: new"]
    assert json.loads(first) == pins.summary(MADE_UP, made_up_run())
    assert renew(1.00005) == (["x: as it was"], first)
    said, again = renew(1.00005, "for others")
    assert said == ["x: as it was"]
    assert json.loads(again) == json.loads(first) | {"purpose": "for others"}
    (name, *lines), other = renew(-1)
    assert name == "x: "
    assert lines[-1].endswith("policy_bias moves the other way at the entries that move most")
    assert pins.differences(json.loads(other), made_up_run(), TOLERANCE)


def test_a_pin_that_was_never_measured_may_not_deviate(tmp_path, monkeypatch):
    """Analytic: only the row of its own tolerance counts."""
    table = tmp_path / "rounding.csv"
    table.write_text(
        "# made so\n"
        "pin,variant,norm,mean,entries,inputs\n"
        "a,x,1e-6,1e-7,1e-5,the same\n"
        "a,tolerance,1e-5,1e-6,1e-4,the same\n"
        "b,x,1.0,1.0,1.0,the same\n"
    )
    monkeypatch.setattr(pins, "ROUNDING", table)
    assert pins.tolerances("a") == {"norm": 1e-5, "mean": 1e-6, "entries": 1e-4}
    assert pins.tolerances("b") == {"norm": 0, "mean": 0, "entries": 0}
