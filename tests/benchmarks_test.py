"""The benchmarks' arithmetic and tables; nothing is measured here."""

import contextlib
import io
import json
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from a3c.agent import kernels, network
from a3c.contract import Game
from a3c.envs.make import describe_env
from a3c.run import start
from a3c.settings.params import Params, ParsedParams, resolve
from a3c.store.logs import GAME_COLUMNS, RunLog
from a3c.store.resume import Start
from a3c.store.run_folder import RunFolder
from benchmarks import calibration, contenders, documents, remote, report
from benchmarks.contenders import CallsSetting, PeerSetting, Setting
from tests.tools.agents import FORGETFUL, subject_of


@pytest.mark.parametrize("name", ["nature", "small"])
def test_the_limit_counts_every_product_of_the_network(name: str) -> None:
    """Parity: the table of layers against the shapes that the network's forward pass has."""
    shapes = network.weight_shapes(subject := subject_of(name, (84, 84, 4), 6))
    weights = {key: np.zeros(shape, np.float32) for key, shape in shapes.items()}
    activations = kernels.forward(
        subject, weights, tf.zeros((1, 84, 84, 4), tf.uint8), FORGETFUL
    ).activations
    layers = []
    for layer, output in activations.items():
        n_inputs = int(np.prod(shapes[f"{layer}_kernel"][:-1]))
        layers.append((int(np.prod(output.shape[:-1])), output.shape[-1], n_inputs))
    assert (*layers, (1, 6 + 1, shapes["policy_kernel"][0])) == calibration.LAYERS[name]
    n_bytes = sum(array.nbytes for array in weights.values())
    assert calibration.bytes_moved(name, 5) * 5 == 12 * n_bytes


@pytest.mark.parametrize("task", ["CartPole", "HalfCheetah"])
def test_the_limit_counts_both_towers_of_a_vector_network(task: str) -> None:
    """Parity: weights and products against the shapes that the measured command's network has."""
    env_id, flags = contenders.TASKS[task]
    asked = start.parse([*flags, env_id], print)
    assert isinstance(asked, ParsedParams)
    seen = describe_env(asked.params)
    params = resolve(asked, seen.kind, seen.is_continuous, seen.is_atari).params
    subject = start.subject_of(params, seen)
    shapes = network.weight_shapes(subject).values()
    products = 2 * sum(int(np.prod(shape)) for shape in shapes if len(shape) == 2)
    assert calibration.n_weights(task) == sum(int(np.prod(shape)) for shape in shapes)
    assert calibration.flop(task).act == products
    of_first = 2 * 2 * 64 * subject.observation_shape[0]  # both look at an observation
    assert calibration.flop(task, 1).learn == 4 * products - of_first


def test_the_limit_of_a_known_machine() -> None:
    """Analytic: figures one can add up in the head.

    A network of two layers, 100 and 10 products: acting takes 220 operations; learning 2·220 less
    the 200 of the first layer's input gradient, and 220 for 6 states per 5 steps; or, without going
    forward again, for one. Of its 110 + 12 weights, 4 bytes each, 12
    arrays move per 5 steps.
    """
    calibration.LAYERS["toy"] = (calibration.Layer(1, 10, 10), calibration.Layer(1, 2, 5))
    try:
        assert calibration.flop("toy") == (220.0, 240.0 + 220.0 * 6 / 5)
        assert calibration.flop("toy", again=False) == (220.0, 240.0 + 220.0 / 5)
        loops = calibration.Loops(1e-3, 5e-4, flop_per_second=1e6, bytes_per_second=1e6)
        expected = 4 / (4e-3 + 220e-6 + 504e-6)
        assert calibration.limit(4, "toy", loops) == pytest.approx(expected)
        moving = 122 * 4 * 12 / 5 * 1e-6
        expected = 4 / (4e-3 + 220e-6 + 284e-6 + moving)
        assert calibration.narrow_limit(4, "toy", loops) == pytest.approx(expected)
        expected = 4 / (2e-3 + 220e-6 + 504e-6)
        assert calibration.limit_in_numbers(4, "toy", loops) == pytest.approx(expected)
        of_vector = calibration.Loops(0.0, 0.0, 1e6, 1e6, t_env=1e-3)
        expected = 4 / (1e-3 + 220e-6 + 504e-6)
        assert calibration.limit(4, "toy", of_vector) == pytest.approx(expected)
    finally:
        del calibration.LAYERS["toy"]


LOOPS = calibration.Loops(
    t_frame=100e-6, t_frame_in_numbers=80e-6, flop_per_second=1e11, bytes_per_second=1e10
)
# Steps/s in each round.
SPEEDS: dict[Any, list[float]] = {
    Setting(16, 1, "nature"): [110.0, 240.0, 130.0],
    Setting(4, 4, "nature"): [200.0, 440.0, 230.0],
    Setting(2, 8, "nature"): [190.0, 450.0, 225.0],
    Setting(2, 8, "small"): [600.0, 1300.0, 640.0],
    CallsSetting(16, "nature"): [150.0, 260.0, 110.0],
    PeerSetting("DummyVecEnv", 16, 1, "nature"): [90.0, 500.0, 90.0],
    PeerSetting("DummyVecEnv", 16, 2, "nature"): [100.0, 200.0, 100.0],
    PeerSetting("SubprocVecEnv", 16, 1, "small"): [200.0, 400.0, 200.0],
    PeerSetting(contenders.CPP, 96, 2, "nature"): [150.0, 300.0, 150.0],
}
VECTOR_LOOPS = calibration.Loops(0.0, 0.0, 1e11, 1e10, t_env=1e-5)
VECTOR_SPEEDS: dict[Any, list[float]] = {
    Setting(16, 1, "CartPole"): [30.0, 60.0, 30.0],
    Setting(2, 16, "CartPole"): [300.0, 500.0, 240.0],
    Setting(2, 64, "CartPole"): [800.0, 1600.0, 800.0],
    Setting(1, 1, "CartPole"): [20.0, 30.0, 40.0],
    Setting(1, 1, "CartPole", "243b5dc"): [10.0, 20.0, 10.0],
    PeerSetting("DummyVecEnv", 16, 1, "CartPole"): [200.0, 400.0, 200.0],
    PeerSetting("SubprocVecEnv", 16, 1, "CartPole"): [100.0, 1000.0, 100.0],
    PeerSetting("DummyVecEnv", 64, 1, "CartPole"): [400.0, 1000.0, 500.0],
}


def result_of(speeds: dict[Any, list[float]], loops: calibration.Loops) -> dict[str, Any]:
    """A benchmark's result in three rounds."""
    result = {"date": "2020-01-01 00:00", "command": "make bench", "revision": "abc", "cores": 2}
    result |= {"uncommitted": False, "cpu": "Toy", "busy_before": 0.01, "anyway": False}
    rounds: list[dict[str, Any]] = [{"loops": [loops._asdict()] * 2, "slots": []} for _ in range(3)]
    for setting, of_rounds in speeds.items():
        for i, speed in enumerate(of_rounds):
            slot = {"setting": str(setting), "steps_per_second": speed, "seconds": 9.0}
            slot |= {"others": 0.0, "stolen": 0.0} | setting._asdict()
            slot |= {"env_cost": 1.1 + i / 10} if isinstance(setting, Setting) else {}
            rounds[i]["slots"].append(slot)
    return result | {"rounds": rounds}


def ratio_of(result: dict[str, Any], name: str, over: str) -> list[float]:
    """The only row of that name."""
    (row,) = (row for row in report.ratios(result) if (row.name, row.over) == (name, over))
    return row.of_rounds


def test_ratios_are_taken_within_each_round() -> None:
    """Analytic: against the peer's best setting by median, where the machine doubled its speed."""
    result = result_of(SPEEDS, LOOPS)
    wide, narrow, small = "4 × 4 nature", "16 × 1 nature", "2 × 8 small"
    for name, over, expected in (
        (narrow, report.SB3, [1.1, 1.2, 1.3]),
        (f"{narrow}, acting and learning alone", report.SB3, [1.5, 1.3, 1.1]),
        (wide, report.SB3, [2.0, 2.2, 2.3]),
        (small, report.SB3, [3.0, 3.25, 3.2]),
        (wide, report.TORCH, [200 / 150, 440 / 300, 230 / 150]),
    ):
        assert ratio_of(result, name, over) == pytest.approx(expected)
    again, in_numbers = list(report.LIMITS)[1:3]
    for name, over, most in (
        (small, report.LIMIT, calibration.limit(2, "small", LOOPS)),
        (small, again, calibration.limit(2, "small", LOOPS, again=False)),
        (small, in_numbers, calibration.limit_in_numbers(2, "small", LOOPS)),
        (narrow, "its limit", calibration.narrow_limit(2, "nature", LOOPS)),
    ):
        speeds = SPEEDS[Setting(16, 1, "nature") if name == narrow else Setting(2, 8, "small")]
        assert ratio_of(result, name, over) == pytest.approx([speed / most for speed in speeds])
    costs = ratio_of(result, f"{small}: CPU of a step", report.BARE["small"])
    assert costs == pytest.approx([1.1, 1.2, 1.3])
    assert "| 1.20 (1.10–1.30) | ≥ 0.9 | ≥ 1.0 |" in report.bench_table(result)


def test_ratios_of_vectors() -> None:
    """Analytic: the widest against the best, the others against as many environments or their past."""
    result = result_of(VECTOR_SPEEDS, VECTOR_LOOPS)
    most = calibration.limit(2, "CartPole", VECTOR_LOOPS)
    for name, over, expected in (
        ("2 × 64 CartPole", report.SB3, [2.0, 1.6, 1.6]),
        ("2 × 16 CartPole", "SB3, 16 environments", [1.5, 1.25, 1.2]),
        ("16 × 1 CartPole", "SB3, 16 environments", [0.15, 0.15, 0.15]),
        ("1 × 1 CartPole", "itself at 243b5dc", [2.0, 1.5, 4.0]),
        ("2 × 64 CartPole", report.LIMIT, [800 / most, 1600 / most, 800 / most]),
    ):
        assert ratio_of(result, name, over) == pytest.approx(expected)


def learned(setting: Any, *n_steps: int | None) -> list[dict[str, Any]]:
    run = {"setting": str(setting), "score": 475.0, "most_steps": 2e6}
    return [run | {"n_steps": n} for n in n_steps]


def test_the_fastest_must_learn_in_twice_the_steps() -> None:
    """Analytic: the ratio of the medians of the seeds, where one did not reach the score."""
    result = result_of(VECTOR_SPEEDS, VECTOR_LOOPS)
    ours, theirs = (result["rounds"][0]["slots"][i]["setting"] for i in (2, 7))
    result["learned"] = learned(ours, 300_000, 600_000, None) + learned(theirs, 4e5, 2e5, 120_000)
    assert ratio_of(result, f"{ours}: steps to 475", report.SB3) == [3.0]
    assert "600,000 (300,000–more than 2,000,000) steps; 3 seeds" in report.bench_table(result)
    result["learned"] = learned(ours, None) + learned(theirs, None)
    assert report.learned_ratios(result) == []
    assert "100 games not within 2,000,000 steps; 1 seed" in report.bench_table(result)


def test_the_step_at_which_a_run_reached_a_score(tmp_path: pathlib.Path) -> None:
    """Analytic: 100 games of 1, then of 3; the mean of the last 100 is 2 after half of these."""
    rows = [f"{1 if i < 100 else 3},9,{i},{10 * (i + 1)},0,0" for i in range(200)]
    head = ['#{"t_start": 0.0, "env_id": "x"}', "r,l,t,step,worker,env"]
    (tmp_path / "run").mkdir()
    (tmp_path / "train.py").write_text("")
    trainer = contenders.Trainer([], tmp_path / "run", "x", root=tmp_path)
    with contextlib.closing(trainer):
        trainer.wait()
        for n_games, score, expected in (
            (0, 1, None),
            (50, 0.5, None),
            (200, 2, 1500),
            (200, 3.1, None),
        ):
            text = "\n".join([*head, *rows[:n_games], ""])
            (tmp_path / "run/monitor.csv").write_text(text)
            assert trainer.steps_to(score) == expected
    (tmp_path / "train.py").write_text("raise SystemExit('its disk is full')")
    trainer = contenders.Trainer([], tmp_path / "failing", "x", root=tmp_path)
    with (
        contextlib.closing(trainer),
        pytest.raises(contenders.ContenderError, match="its disk is full"),
    ):
        trainer.steps_to(1)


def test_a_network_that_is_not_ours_is_no_peer(tmp_path: pathlib.Path) -> None:
    """Analytic: a server that answers with another count of weights; and one that says a last word."""
    (tmp_path / "other.py").write_text(
        'input(); print(\'{"n_steps": 7, "seconds": 2.0, "n_weights": 5}\', flush=True); input()'
    )
    (tmp_path / "broken.py").write_text("input(); raise SystemExit('no such thing')")
    setting = PeerSetting("DummyVecEnv", 16, 1, "small")
    for module, words in (("other", "5 weights, ours 677943"), ("broken", "no such thing")):
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\ncd {tmp_path}\nexec {sys.executable} $2.py\n")
        python.chmod(0o700)
        server = contenders.Server(python, module, tmp_path / "output")
        with contextlib.closing(server), pytest.raises(contenders.ContenderError, match=words):
            server.measure(setting, 1.0)


@pytest.mark.parametrize("name", report.TABLES)
def test_the_document_has_the_tables_of_the_newest_results(name) -> None:
    """Golden: each table is what `python3 -m benchmarks.report` would write now."""
    assert documents.text_between(report.SPEED, name) == report.text_of(name)


def test_a_number_of_cores_with_a_place_of_its_own_takes_no_others(tmp_path, monkeypatch):
    """Analytic: the newer result has 16 cores, and the general table keeps the older one."""
    document = tmp_path / "speed.md"
    places = ("make bench-scaling", "make bench-scaling, 16 cores")
    document.write_text(
        "".join(f"<!-- {p}: written by a script -->\n<!-- end of {p} -->\n" for p in places)
    )
    tables = {name: (report.header, ending) for name, (_, ending) in report.TABLES.items()}
    for name, value in (("SPEED", document), ("RESULTS", tmp_path), ("TABLES", tables)):
        monkeypatch.setattr(report, name, value)
    about = {"cpu": "a CPU", "command": "make bench-scaling", "revision": "abc"}
    about |= {"uncommitted": False, "anyway": False}
    for cores, date in ((2, "20200101"), (16, "20200103"), (4, "20200102")):
        path = tmp_path / f"{date}-a-cpu-{cores}-cores-scaling.json"
        path.write_text(json.dumps({"date": date, "cores": cores} | about))
        report.write("make bench-scaling", cores)
    assert [documents.text_between(document, p).split(" of a CPU")[0] for p in places] == [
        "20200102, 4 cores",
        "20200103, 16 cores",
    ]


@pytest.mark.skipif(not contenders.PEER_PYTHON.exists(), reason="`make bench` installs the peer")
def test_the_peer_reads_our_games(tmp_path):
    """Parity: what a run has logged, by Stable-Baselines3's own `load_results`."""
    games = [Game(0, 0, -21.0, 757, 3080), Game(1, 3, 2.5, 9, 6160)]
    params = Params("PongNoFrameskip-v4")
    log = RunLog(RunFolder(tmp_path, io.StringIO()), params, Start(t_start=1.7e9))
    for game, seconds in zip(games, (12.5, 30.25), strict=True):
        log.game(game, 1.7e9 + seconds)
    log.close()
    script = (
        "import sys; from stable_baselines3.common.monitor import load_results;"
        "print(load_results(sys.argv[1]).to_json(orient='records', double_precision=6))"
    )
    command = [contenders.PEER_PYTHON, "-c", script, tmp_path]
    read = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    assert [[row[name] for name in GAME_COLUMNS] for row in read] == [
        [-21.0, 757, 12.5, 3080, 0, 0],
        [2.5, 9, 30.25, 6160, 1, 3],
    ]


def test_the_simulated_head_is_as_fast_as_its_slowest_queue() -> None:
    """Analytic: one worker waits for everything in turn; many wait for the head, the network or Ray alone."""
    costs = remote.Costs(worker=0.1, ray=0.004, head=0.005, out=1_000_000, back=500_000)
    latency = 2 * remote.LATENCY_SECONDS
    alone = 1 / (0.1 + 0.004 + 0.005 + 1.5e6 / 1e8 + latency)
    assert remote.simulated(costs, 1, 1e8) == pytest.approx(alone, rel=0.03)
    two = remote.simulated(costs, 2, 1e8)
    assert 1.8 * alone < two < 2.03 * alone
    assert remote.simulated(costs, 500, 1e9) == pytest.approx(1 / 0.005, rel=0.05)
    assert remote.simulated(costs, 500, 1e8) == pytest.approx(1e8 / 1e6, rel=0.05)
    assert remote.simulated(costs._replace(ray=0.02), 500, 1e9) == pytest.approx(50, rel=0.05)
