"""The benchmark's arithmetic and its documents; nothing is measured here."""

import contextlib
import copy
import itertools
import json
import pathlib
import re
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from a3c.agent import network
from a3c.envs import make as a3c_env
from benchmarks import (
    bench,
    calibration,
    contenders,
    documents,
    machine,
    profiled_env,
    profiling,
    report,
)
from benchmarks.contenders import CallsSetting, PeerSetting, Setting

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("name", ["nature", "small"])
def test_the_limit_counts_every_product_of_the_network(name: str) -> None:
    """Parity: the table of layers against the shapes that the network's forward pass has."""
    shapes = network.weight_shapes(name, (84, 84, 4), 6)
    weights = {key: np.zeros(shape, np.float32) for key, shape in shapes.items()}
    activations = network.forward(name, weights, tf.zeros((1, 84, 84, 4), tf.uint8)).activations
    layers = [
        calibration.Layer(
            int(np.prod(output.shape[:-1])),
            output.shape[-1],
            int(np.prod(shapes[f"{layer}_kernel"][:-1])),
        )
        for layer, output in activations.items()
    ]
    heads = calibration.Layer(1, 6 + 1, shapes["policy_kernel"][0])
    assert (*layers, heads) == calibration.LAYERS[name]
    n_bytes = sum(array.nbytes for array in weights.values())
    assert calibration.bytes_moved(name, 5) * 5 == 12 * n_bytes


def test_the_limit_of_a_known_machine() -> None:
    """Analytic: figures one can add up in the head.

    A network of two layers, 100 and 10 products: acting takes 220 operations; learning 3·220 less
    the 200 of the first layer's input gradient, for 6 states per 5 steps; or, without going forward
    again, 2·220 less 200, and forward once per 5 steps. Of its 110 + 12 weights, 4 bytes each, 12
    arrays move per 5 steps.
    """
    calibration.LAYERS["toy"] = (calibration.Layer(1, 10, 10), calibration.Layer(1, 2, 5))
    try:
        assert calibration.flop("toy") == (220.0, 460.0 * 6 / 5)
        assert calibration.flop("toy", again=False) == (220.0, 240.0 + 220.0 / 5)
        loops = calibration.Loops(1e-3, 5e-4, flop_per_second=1e6, bytes_per_second=1e6)
        expected = 4 / (4e-3 + 220e-6 + 552e-6)
        assert calibration.limit(4, "toy", loops) == pytest.approx(expected)
        moving = 122 * 4 * 12 / 5 * 1e-6
        expected = 4 / (4e-3 + 220e-6 + 284e-6 + moving)
        assert calibration.narrow_limit(4, "toy", loops) == pytest.approx(expected)
        expected = 4 / (2e-3 + 220e-6 + 552e-6)
        assert calibration.limit_in_numbers(4, "toy", loops) == pytest.approx(expected)
    finally:
        del calibration.LAYERS["toy"]


def test_turns_alternate() -> None:
    """Analytic: everybody has one turn, and no two of ours follow each other."""
    ours = bench.our_settings(2)
    others = [*bench.PEER_SETTINGS, *bench.CALLS_SETTINGS]
    turns = bench.in_turns(ours, others)
    assert sorted(map(str, turns)) == sorted(map(str, [*ours, *others]))
    for first, second in itertools.pairwise(turns):
        assert not (isinstance(first, Setting) and isinstance(second, Setting))


@pytest.mark.parametrize("cores", [1, 2, 3, 16])
def test_a_wide_setting_has_two_workers(cores: int) -> None:
    """Analytic: so that threads are what is measured."""
    for setting in bench.our_settings(cores):
        assert setting.n_workers >= 2


LOOPS = calibration.Loops(
    t_frame=100e-6, t_frame_in_numbers=80e-6, flop_per_second=1e11, bytes_per_second=1e10
)


def result_of(speeds: dict[Any, list[float]]) -> dict[str, Any]:
    """A benchmark's result with these steps/s in its rounds."""
    n_rounds = len(next(iter(speeds.values())))
    loops = LOOPS._asdict()
    return {
        "date": "2020-01-01 00:00",
        "command": "make bench",
        "revision": "abc",
        "uncommitted": False,
        "cpu": "Toy",
        "cores": 2,
        "busy_before": 0.01,
        "anyway": False,
        "rounds": [
            {
                "loops": [loops, loops],
                "slots": [
                    {
                        "setting": str(setting),
                        **setting._asdict(),
                        "seconds": 10.0,
                        "steps_per_second": of_rounds[i],
                        "others": 0.0,
                        "stolen": 0.0,
                        **({"env_cost": 1.1 + i / 10} if isinstance(setting, Setting) else {}),
                    }
                    for setting, of_rounds in speeds.items()
                ],
            }
            for i in range(n_rounds)
        ],
    }


RESULT = result_of(
    {
        Setting(16, 1, "nature"): [110.0, 240.0, 130.0],
        Setting(4, 4, "nature"): [200.0, 440.0, 230.0],
        Setting(2, 8, "nature"): [190.0, 450.0, 225.0],
        Setting(2, 8, "small"): [600.0, 1300.0, 640.0],
        CallsSetting(16, "nature", 1): [150.0, 260.0, 110.0],
        PeerSetting("DummyVecEnv", 1, "nature"): [90.0, 500.0, 90.0],
        PeerSetting("DummyVecEnv", 2, "nature"): [100.0, 200.0, 100.0],
        PeerSetting("SubprocVecEnv", 1, "small"): [200.0, 400.0, 200.0],
    }
)


def test_ratios_are_taken_within_each_round() -> None:
    """Analytic: against the peer's best setting by median, where the machine doubled its speed."""
    rows = report.ratios(RESULT)
    assert [row.of_rounds for row in rows[:4]] == [
        pytest.approx([1.1, 1.2, 1.3]),
        pytest.approx([1.5, 1.3, 1.1]),
        pytest.approx([2.0, 2.2, 2.3]),
        pytest.approx([3.0, 3.25, 3.2]),
    ]
    for row, most in (
        (rows[7], calibration.limit(2, "small", LOOPS)),
        (rows[8], calibration.limit(2, "small", LOOPS, again=False)),
        (rows[9], calibration.limit_in_numbers(2, "small", LOOPS)),
    ):
        assert row.of_rounds == pytest.approx([600 / most, 1300 / most, 640 / most])
    most = calibration.narrow_limit(2, "nature", LOOPS)
    assert rows[10].of_rounds == pytest.approx([110 / most, 240 / most, 130 / most])
    assert rows[-1].of_rounds == pytest.approx([1.1, 1.2, 1.3])
    assert "| 1.20 (1.10–1.30) | ≥ 1.1 |" in report.bench_table(RESULT)


def test_what_takes_long_is_told_in_its_units() -> None:
    """Analytic: a growth of a tenth, and ratios of turns beside each other."""
    mib = 2**20
    table = report.long_table(
        RESULT
        | {
            "memory_setting": "2 × 8 small",
            "memory": [
                {"steps": 100_000, "bytes": 500 * mib},
                {"steps": 200_000, "bytes": 600 * mib},
                {"steps": 1_000_000, "bytes": 550 * mib},
            ],
            "seconds_to_first_update": [4.0, 9.0, 5.0],
            "cartpole": {"best_mean_of_100": 498.7, "seconds": 33.3},
            "evaluated_setting": "2 × 4 small",
            "evaluated": [
                {"without": 100.0, "with": 80.0},
                {"without": 200.0, "with": 150.0},
                {"without": 100.0, "with": 70.0},
            ],
        }
    )
    assert (
        "2 × 8 small, 100,000 → 1,000,000 steps | 500 → 550 MiB (+10.0%), 600 at most (+20.0%) |"
        in table
    )
    assert "| 5.0 (4.0–9.0) s | ≤ 15 s |" in table
    assert "best mean of 100 games 499 | 33 s | ≤ 90 s |" in table
    assert "2 × 4 small | 0.75 (0.70–0.80) | |" in table


def test_scaling_is_over_one_worker_and_memory_by_the_piece() -> None:
    """Analytic: 50 MiB, 7 for each worker besides its environment, 3 for each environment."""

    def megabytes(setting: Setting) -> int:
        return 50 + setting.n_workers * (7 + 3 * setting.envs_per_worker)

    points = [Setting(1, 1, "small"), Setting(2, 1, "small"), Setting(2, 4, "small")]
    result = result_of(dict(zip(points, ([100.0], [150.0], [320.0]), strict=True)))
    for slot, point in zip(result["rounds"][0]["slots"], points, strict=True):
        slot["bytes"] = megabytes(point) * 2**20
    table = report.scaling_table(result)
    assert "| 1 × 1 | 100 | 1.0 | 1.0 | 60 |" in table
    assert "| 2 × 1 | 150 | 1.5 | 2.1 | 70 |" in table
    assert "| 2 × 4 | 320 | 3.2 |  | 88 |" in table
    assert "small: 3.0 MiB for one more environment, 7.0 MiB for one more worker" in table


def test_a_busy_machine_shows_in_the_table() -> None:
    """Analytic: after --anyway, and where others came in between; else nothing is said."""
    assert "thers" not in report.bench_table(RESULT)
    assert "1% of it in use by others" in report.bench_table(RESULT | {"anyway": True})
    disturbed = copy.deepcopy(RESULT)
    disturbed["rounds"][1]["slots"][2]["others"] = 0.2
    assert "Others used up to 20% of the machine" in report.bench_table(disturbed)


def test_a_network_that_is_not_ours_is_no_peer(tmp_path: pathlib.Path) -> None:
    """Analytic: a server that answers with another count of weights; and one that says a last word."""
    (tmp_path / "other.py").write_text(
        'input(); print(\'{"n_steps": 7, "seconds": 2.0, "n_weights": 5}\', flush=True); input()'
    )
    (tmp_path / "broken.py").write_text("input(); raise SystemExit('no such thing')")
    setting = PeerSetting("DummyVecEnv", 1, "small")
    for module, words in (("other", "5 weights, ours 677943"), ("broken", "no such thing")):
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\ncd {tmp_path}\nexec {sys.executable} $2.py\n")
        python.chmod(0o700)
        server = contenders.Server(python, module, tmp_path / "output")
        with contextlib.closing(server), pytest.raises(contenders.ContenderError, match=words):
            server.measure(setting, 1.0)


def test_a_server_that_has_ended_is_told(tmp_path: pathlib.Path) -> None:
    """Analytic: though nobody reads the request any more."""
    server = contenders.Server("/bin/true", "x", tmp_path / "output")
    server._process.wait()
    with contextlib.closing(server), pytest.raises(contenders.ContenderError, match="failed"):
        server.measure(PeerSetting("DummyVecEnv", 1, "small"), 1.0)


def test_two_rounds_say_too_little(capsys: pytest.CaptureFixture[str]) -> None:
    """Analytic: refused before anything is started."""
    with pytest.raises(SystemExit):
        bench.main(["--rounds", "2"])
    assert "fewer than 3" in capsys.readouterr().err


def test_a_busy_machine_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Analytic: one line, and nothing is started."""
    monkeypatch.setattr(machine, "busy_share", lambda: 0.5)
    monkeypatch.setattr(contenders, "PEER_PYTHON", pathlib.Path(__file__))
    monkeypatch.setattr(bench, "run", lambda *_: pytest.fail("it ran"))
    assert bench.main([]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_text_goes_between_its_markers(tmp_path: pathlib.Path) -> None:
    """Analytic: what is around stays; twice is as once; without markers it is an error."""
    path = tmp_path / "x.md"
    begin, end = "<!-- a: written by a script -->", "<!-- end of a -->"
    path.write_text(f"before\n{begin}\nold\n{end}\nafter\n", encoding="utf-8")
    for _ in range(2):
        documents.replace_between(path, "a", "new\n")
        assert path.read_text(encoding="utf-8") == f"before\n{begin}\nnew\n{end}\nafter\n"
    with pytest.raises(ValueError, match="no markers for b"):
        documents.replace_between(path, "b", "new")


def test_environment_processes_are_told_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Analytic: trainer 10 with fork server 11, resource tracker 12, and environments 20, 21."""
    everybody = [
        machine.Process(pid, "S", parent, 10, 0.0)
        for pid, parent in [(10, 1), (11, 10), (12, 10), (20, 11), (21, 11)]
    ]
    monkeypatch.setattr(machine, "processes", lambda session: everybody)
    assert [process.pid for process in machine.environment_processes(10)] == [20, 21]


@pytest.mark.parametrize(
    ("stack", "part"),
    [
        ("thread (1);clocked_run (x);run (y);clocked_act (z);__call__ (w)", "act"),
        ("thread (1);clocked_run (x);run (y);_collect (z)", "python"),
        ("MainThread;main (train.py:1);_watch (watch.py:2)", "rest"),
    ],
)
def test_a_sampled_stack_is_put_down_to_its_part(stack: str, part: str) -> None:
    """Analytic: by the clocks' own names in it."""
    assert profiling.part_of(stack) == part


@pytest.mark.parametrize(
    ("kind", "ending", "path", "table"),
    [
        ("make bench", "cores", report.README, report.bench_table),
        ("make bench-long", "cores-long", report.README, report.long_table),
        ("make bench-scaling", "cores-scaling", report.BENCH_README, report.scaling_table),
    ],
)
def test_the_documents_have_the_tables_of_the_last_results(kind, ending, path, table) -> None:
    """Analytic: by the script, from the newest of the committed results of each kind."""
    *_, newest = sorted((ROOT / "benchmarks/results").glob(f"*-{ending}.json"))
    result = json.loads(newest.read_text(encoding="utf-8"))
    assert documents.text_between(path, kind) == table(result)


def test_the_peers_packages_are_pinned_and_name_no_index() -> None:
    """Analytic: every line is a comment or an exact version."""
    text = (ROOT / "benchmarks/requirements.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert lines
    assert [line for line in lines if not re.fullmatch(r"[\w-]+==[\w.]+", line)] == []


def test_the_clocked_environment_is_made_as_a_run_makes_its_own(tmp_path, monkeypatch):
    """Analytic: with all that a run says of it; counts its steps, the emulator's frames and time."""
    monkeypatch.setattr(a3c_env, "_make_base", a3c_env._make_base)  # which it exchanges
    settings = a3c_env.EnvSettings("PongNoFrameskip-v4", 0).in_run(str(tmp_path), 0.0)
    made = profiled_env.make_env(settings, 0, 1, 2, unwritten=())
    made.reset(seed=0)
    made.step(0)
    made.step(1)
    made.close()
    seconds = profiled_env.read(tmp_path)
    assert seconds.n_steps == 2
    assert seconds.n_frames >= 8
    assert seconds.process > seconds.env > seconds.emulator > 0
