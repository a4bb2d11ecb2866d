"""The debug log: every tensor whole and to the bit, read back so; and it is what trained."""

import io
import pathlib
import subprocess
import time
import tracemalloc
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from a3c.agent import debug_dump
from a3c.agent.debug_dump import Damaged, Record
from a3c.store import checkpoint, run_folder
from tests.tools import oracle, oracle_replay, processes


def lines_of(capfd: pytest.CaptureFixture[str], *arrays: np.ndarray, update: int = 7) -> list[str]:
    """What dumping these arrays writes to stderr, from inside one traced function."""
    names = [f"array{i}" for i in range(len(arrays))]

    @tf.function(input_signature=[tf.TensorSpec(a.shape, a.dtype) for a in arrays])
    def dump(*tensors: tf.Tensor) -> None:
        tensors_by_name = dict(zip(names, tensors, strict=True))
        debug_dump.dump(tf.constant(update, tf.int64), "train", **tensors_by_name)

    dump.get_concrete_function()
    assert capfd.readouterr() == ("", ""), "tracing printed"
    dump(*map(tf.constant, arrays))
    out, err = capfd.readouterr()
    assert out == ""
    assert err.endswith("\n")
    return err.splitlines()


def test_a_line_says_what_it_holds(capfd):
    """Golden: the form that readers of the log rely on; one line a tensor, in order."""
    rewards = np.array([[0], [0], [-1], [0], [0.5]], np.float32)
    frames = np.arange(4, dtype=np.uint8).reshape(1, 2, 2, 1)
    assert lines_of(capfd, rewards, frames, update=12) == [
        "A3C-DUMP update=12 purpose=train name=array0 dtype=float32 shape=5,1 [0 0 -1 0 0.5]",
        "A3C-DUMP update=12 purpose=train name=array1 dtype=uint8 shape=1,2,2,1 [0 1 2 3]",
    ]


def test_what_could_not_be_read_back_is_not_written():
    """Analytic: dumping a type that the format has no form for fails while tracing."""
    with pytest.raises(TypeError, match="half is float16"):
        debug_dump.dump(tf.constant(0, tf.int64), "train", half=tf.zeros((1,), tf.float16))


# Reading


def read_all(log: bytes) -> list[Record | Damaged]:
    return list(debug_dump.read(io.BytesIO(log)))


LINES = [
    b"A3C-DUMP update=0 purpose=act name=observations dtype=uint8 shape=1,2,2 [0 10 255 7]\n",
    b"A3C-DUMP update=0 purpose=train name=actions dtype=int32 shape=3,1 [-2 0 5]\n",
    b"A3C-DUMP update=12 purpose=train name=returns dtype=float32 shape=2 [-0.25 1e-05]\n",
]
ARRAYS = [
    np.array([[[0, 10], [255, 7]]], np.uint8),
    np.array([[-2], [0], [5]], np.int32),
    np.array([-0.25, 1e-5], np.float32),
]


def assert_equal(record: Record | Damaged, array: np.ndarray) -> None:
    assert isinstance(record, Record), record
    assert (record.array.dtype, record.array.shape) == (array.dtype, array.shape)
    assert record.array.tobytes() == array.tobytes()


def test_a_round_trip_returns_every_bit(capfd):
    """Analytic: 20,000 random float32, nan and infinities among them, with the two exceptions."""
    rng = np.random.default_rng(0)
    limits = np.finfo(np.float32)
    extremes = [limits.max, limits.min, limits.tiny, limits.smallest_subnormal, np.inf, 0.0, 1 / 3]
    floats = np.concatenate(
        [
            rng.integers(0, 2**32, 20_000, np.uint32).view(np.float32),
            np.array([*extremes, *(-number for number in extremes)], np.float32),
        ]
    )
    expected = floats.copy()
    expected[np.abs(floats) < limits.tiny] *= 0  # its sign stays
    expected[np.isnan(floats)] = np.nan
    assert 100 < np.count_nonzero(expected.view(np.uint32) != floats.view(np.uint32)) < 400
    arrays = [
        expected,
        rng.integers(0, 256, (5, 1, 84, 84, 4), np.uint8),
        rng.integers(-(2**31), 2**31, (7, 2), np.int32),
        np.array([-(2**31), -1, 0, 2**31 - 1], np.int32),
        np.array(0.1, np.float32),
        np.empty((0, 3), np.uint8),
        np.array(7, np.uint8),
        np.array([42], np.uint8),
        np.empty((3, 0), np.float32),
    ]
    lines = lines_of(capfd, floats, *arrays[1:], update=3)
    records = read_all("".join(line + "\n" for line in lines).encode())
    for i, (record, array) in enumerate(zip(records, arrays, strict=True)):
        assert record[:5] == (i + 1, i + 1, 3, "train", f"array{i}")
        assert_equal(record, array)


def test_foreign_lines_are_skipped():
    """Analytic: numbers of dumps and of lines go their own ways, whatever stands between."""
    foreign = [b"\n", b"a warning\n", b"\xff\x00 no text\r\n", b"DUMP [1 2 3]\n"]
    terminals = LINES[1].replace(b"\n", b"\r\n")
    log = b"".join([foreign[0], LINES[0], *foreign[1:], terminals, LINES[2].rstrip(b"\n")])
    first, second, third = read_all(log)
    assert first[:5] == (1, 2, 0, "act", "observations")
    assert second[:5] == (2, 6, 0, "train", "actions")
    assert third[:5] == (3, 7, 12, "train", "returns")
    for record, array in zip((first, second, third), ARRAYS, strict=True):
        assert_equal(record, array)
    assert read_all(b"") == read_all(b"".join(foreign)) == []


@pytest.mark.parametrize("i", range(3))
def test_a_log_cut_anywhere_says_so(i):
    """Analytic: the last line at every length but its own; those before it are read."""
    for length in range(1, len(LINES[i]) - 1):
        found = read_all(b"a warning\n" + LINES[0] + LINES[i][:length])
        assert_equal(found[0], ARRAYS[0])
        assert [(type(one), one.line) for one in found[1:]] == [(Damaged, 3)], length


@pytest.mark.parametrize("i", range(3))
def test_a_character_that_does_not_belong_there_is_named(i):
    """Analytic: anywhere in a line; those around it are read, and numbered as if it were none."""
    for place in range(len(LINES[i]) - 1):
        line = LINES[i][:place] + b"#" + LINES[i][place + 1 :]
        first, damaged, last = read_all(LINES[0] + line + LINES[2])
        assert_equal(first, ARRAYS[0])
        assert (type(damaged), damaged.line) == (Damaged, 2), line
        assert_equal(last, ARRAYS[2])
        assert (last.number, last.line) == (2, 3)


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        (b"255", b"256", "no uint8"),
        (b"255", b"2555", "no uint8"),
        (b"255", b"-55", "no uint8"),
        (b"10 255", b"10  255", "no uint8"),
        (b"[0", b"[ 0", "no uint8"),
        (b"10 255", b"10", "has 3 elements where its shape has 4"),
        (b"10 255", b"", "no uint8"),
        (b"10 255", b"10 255 255", "has 5 elements"),
        (b"0 10 255 7", b"", "has 0 elements"),
        (b"uint8", b"int32", None),
        (b"uint8", b"int16", "int16"),
        (b"uint8", b"object", "object"),
        (b"1,2,2", b"1,2,,2", "head"),
        (b"1,2,2", b"99999999999,99999999999", "9999999999800000000001"),
        (b"update=0", b"update=", "head"),
        (b"7]", b"7] and more", "end"),
        (b"7]", b"7]A3C-DUMP update=1 purpose=act name=a dtype=uint8 shape=1 [1]", "no uint8"),
        (b"A3C-DUMP", b"10%|# | A3C-DUMP", "head"),
    ],
)
def test_what_does_not_fit_is_named_with_its_reason(before, after, problem):
    """Analytic: as before, for lines that look right."""
    line = LINES[0].replace(before, after)
    assert line != LINES[0]
    (found,) = read_all(line)
    if problem is None:
        assert_equal(found, ARRAYS[0].astype(np.int32))
    else:
        assert isinstance(found, Damaged)
        assert problem in found.problem


@pytest.mark.parametrize(
    "number", [b"1_0", b"+1", b"0x1", b"infinity", b"e", b"1e+39", b"1e+400", b"1,5"]
)
def test_what_only_python_takes_for_a_float_is_named(number):
    """Analytic: the form is that of tf.print, and a float32 fits in."""
    (found,) = read_all(LINES[2].replace(b"1e-05", number))
    assert isinstance(found, Damaged)


@pytest.mark.parametrize(
    ("damage", "by", "problem"),
    [
        (b"shape=2", b"shape=2" + b",1" * 103, "head"),  # more sides than an array can have
        (b"shape=2", b"shape=0,999999999999999999,999999999999999999", ""),
        (b"float32", b"float" + b"x" * 10_000, "head"),
        (b"returns", b"r" * 10_000, "head"),
        (b"update=12", b"update=" + b"1" * 10_000, "head"),
    ],
)
def test_a_head_without_measure_is_named_in_one_line(damage, by, problem):
    """Analytic: found by fuzzing: sides, types and names that no dump has."""
    (found,) = read_all(LINES[2].replace(damage, by))
    assert isinstance(found, Damaged)
    assert problem in found.problem
    assert len(found.problem) < 200


def test_a_line_that_never_ends_is_not_held(monkeypatch):
    """Analytic: a foreign one is skipped, one of ours is named, and lines are counted on."""
    monkeypatch.setattr(debug_dump, "MAX_LINE_BYTES", 200)
    endless = b"A3C-DUMP update=0 purpose=act name=o dtype=uint8 shape=300 [" + b"1 " * 300 + b"]\n"
    first, damaged, last = read_all(LINES[0] + b"x" * 1000 + b"\n" + endless + LINES[2])
    assert_equal(first, ARRAYS[0])
    assert damaged == Damaged(3, "it is longer than 200 bytes")
    assert_equal(last, ARRAYS[2])
    assert last.line == 4


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32"])
def test_parsing_a_line_takes_8_times_its_length_at_most(dtype):
    """Analytic: where its numbers are of single digits."""
    n_bytes = 2**20
    head = f"A3C-DUMP update=0 purpose=act name=o dtype={dtype} shape={n_bytes // 2} [".encode()
    log = io.BytesIO(head + b"1 " * (n_bytes // 2 - 1) + b"1]\n")
    tracemalloc.start()
    try:
        (record,) = debug_dump.read(log)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert record.array.size == n_bytes // 2
    assert peak < 8.1 * n_bytes


class Repeated(io.RawIOBase):
    """A log that holds a text many times, without holding it."""

    def __init__(self, lines: list[bytes], n_times: int) -> None:
        self._lines = (bytes(bytearray(line)) for _ in range(n_times) for line in lines)  # copies

    def readline(self, size: int | None = -1, /) -> bytes:
        return next(self._lines, b"")


def update_of_pong() -> list[bytes]:
    """The lines of one update, each pixel of three digits: no log has longer ones."""
    pixels = np.random.default_rng(0).integers(100, 256, (6, 84 * 84 * 4))
    rows = [" ".join(map(str, row)) for row in pixels]
    form = "A3C-DUMP update=0 purpose={} name=observations dtype=uint8 shape={},84,84,4 [{}]\n"
    lines = [form.format("act", 1, row) for row in rows[:5]]
    lines += [form.format("train", "5,1", " ".join(rows[:5])), form.format("bootstrap", 1, rows[5])]
    return [line.encode() for line in lines]


def test_100_updates_of_pong_are_read_in_20_seconds():
    """Analytic: a tenth of them in a tenth of that, of the processor's time."""
    start = time.process_time()
    n_pixels = sum(record.array.size for record in debug_dump.read(Repeated(update_of_pong(), 10)))
    assert time.process_time() - start < 2
    assert n_pixels == 10 * 11 * 84 * 84 * 4


# What is dumped is what trained

# train.py, keeping the worker's copy of the weights after each of the first 20 updates as well, and the last.
RECORDING = """
import sys
import numpy
import train
from a3c.agent import learner

kept, learn = [], learner.LocalNetwork.learn

def learn_and_keep(self, *arguments):
    norm = learn(self, *arguments)
    del kept[20:]
    kept.append({name: weight.numpy() for name, weight in self.weights.items()})
    return norm

learner.LocalNetwork.learn = learn_and_keep
status = train.main(sys.argv[1:])
numpy.savez("weights", **{f"{i}/{name}": w for i, ws in enumerate(kept) for name, w in ws.items()})
sys.exit(status)
"""
TRAIN = processes.ROOT / "train.py"
# A Pong whose games end after 37 steps by their time limit, under the preset that sums losses over
# a rollout, starts RMSProp from 0 and lowers the learning rate.
PONG = ["--preset", "paper", "--n_steps", "500", "tests.tools.toys:toys/ShortPong-v0"]
CARTPOLE = ["--n_steps", "500", "CartPole-v1"]


class Update(NamedTuple):
    """All dumps of one update."""

    acted: list[np.ndarray]  # T observations of (K, ...)
    last: list[np.ndarray]
    train: dict[str, np.ndarray]
    bootstrap: np.ndarray


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Iterator[dict[str, pathlib.Path]]:
    """Folders of finished runs: `run` in there is the run folder, `stderr` the debug log."""
    debug = ["-c", RECORDING, "--log_dir", "run", "--debug", "--no_frame_numbers"]
    plain = [TRAIN, "--log_dir", "run", "--no_xla"]
    commands = {
        "pong": debug + PONG,
        "pong without": plain + PONG,
        "cartpole": debug + CARTPOLE,
        "cartpole without": plain + CARTPOLE,
    }
    folders = {name: tmp_path_factory.mktemp("outside") for name in commands}
    with processes.dispositions():
        started: dict[str, subprocess.Popen] = {
            name: processes.start(command, folders[name]) for name, command in commands.items()
        }
    try:
        for name, process in started.items():
            assert process.wait(900) == 0, processes.outputs(folders[name])["stderr"][-2000:]
        yield folders
    finally:
        for process in started.values():
            processes.end(process)


@pytest.fixture(scope="module")
def updates(runs) -> dict[str, list[Update]]:
    return {name: updates_of(runs[name] / "stderr") for name in ("pong", "cartpole")}


def updates_of(log: pathlib.Path) -> list[Update]:
    found: list[Update] = []
    with log.open("rb") as file:
        for record in debug_dump.read(file):
            assert isinstance(record, Record), record
            if record.update == len(found):
                found.append(Update([], [], {}, np.empty(0)))
            assert record.update == len(found) - 1
            match record.purpose:
                case "act":
                    found[-1].acted.append(record.array)
                case "last":
                    found[-1].last.append(record.array)
                case "train":
                    found[-1].train[record.name] = record.array
                case "bootstrap":
                    found[-1] = found[-1]._replace(bootstrap=record.array)
    return found


def tensors(run: pathlib.Path, n_steps: int, part: str) -> dict[str, np.ndarray]:
    """Of a run's checkpoint; `part` is weights or mean_squares."""
    saved = checkpoint.read(checkpoint.path_of(run / "run/checkpoints", n_steps))
    return dict(getattr(saved.snapshot, part))


@pytest.mark.parametrize(("name", "n_steps"), [("cartpole", 500), ("pong", 500)])
def test_debugging_changes_no_bit_of_the_training(runs, name, n_steps):
    """Parity: weights, statistics and games of a run with --debug and of one with --no_xla."""
    for part in ("weights", "mean_squares"):
        ours, others = (tensors(runs[run], n_steps, part) for run in (name, f"{name} without"))
        assert len(ours) == {"cartpole": 12, "pong": 10}[name]
        assert [n for n in ours if ours[n].tobytes() != others[n].tobytes()] == []
        start = tensors(runs[name], 0, part)
        assert all(np.any(ours[n] != start[n]) for n in ours)
    games = [
        [line.split(",")[:2] for line in (folder / "run/monitor.csv").read_text().splitlines()[2:]]
        for folder in (runs[name], runs[f"{name} without"])
    ]
    assert games[0] == games[1]
    assert len(games[0]) > 1


def assert_acted_on_is_trained_on(updates: list[Update]) -> None:
    for i, update in enumerate(updates):
        np.testing.assert_array_equal(np.stack(update.acted), update.train["observations"])
        if i + 1 < len(updates):
            np.testing.assert_array_equal(update.bootstrap, updates[i + 1].acted[0])


def test_what_was_acted_on_is_what_was_trained_on(updates):
    """Parity: at each step of 100 updates, through ends of episodes; the bootstrap's observation is
    the next one acted on."""
    assert [len(updates[name]) for name in ("cartpole", "pong")] == [100, 100]
    for name, n_ends in (("cartpole", 10), ("pong", 10)):
        assert_acted_on_is_trained_on(updates[name])
        continues = np.stack([update.train["continues"] for update in updates[name]])
        assert np.count_nonzero(continues == 0) >= n_ends
    # CartPole's games begin within 0.05 of 0, and end far from there.
    for update in updates["cartpole"]:
        seen = np.concatenate([update.train["observations"], update.bootstrap[None]])
        begins = np.abs(seen[1:]).max(axis=-1) <= 0.05
        np.testing.assert_array_equal(begins[update.train["continues"] == 0], True)
        assert len(update.last) == 0


def shift_observations(update: Update) -> Update:
    seen = np.concatenate([update.train["observations"], update.bootstrap[None]])
    return update._replace(train=update.train | {"observations": seen[1:]})


def shift_bootstrap(update: Update) -> Update:
    return update._replace(bootstrap=update.acted[-1])


@pytest.mark.parametrize("twin", [shift_observations, shift_bootstrap])
def test_a_batch_shifted_by_one_step_is_caught(updates, twin):
    """Analytic: negative control of the test before."""
    for name in ("cartpole", "pong"):
        with pytest.raises(AssertionError):
            assert_acted_on_is_trained_on([twin(update) for update in updates[name]])


class Replayed(NamedTuple):
    """After one update: how far the run's weights are from the oracle's, by variable."""

    off: dict[str, float]  # the farthest entry, in parts of its bound
    bounds: dict[str, float]  # the widest
    moved: dict[str, float]  # the farthest, from the start


def replay(run: pathlib.Path, updates: list[Update]) -> list[Replayed]:
    """Train the oracle on a log, from the run's first checkpoint and by its args.json."""
    params = run_folder.read_args(run / "run").params
    start = tensors(run, 0, "weights")
    ours = oracle_replay.Replay(params, start, tensors(run, 0, "mean_squares"))
    result = []
    kept = np.load(run / "weights.npz")
    for i, update in enumerate(updates[:20]):
        rollout = rollout_of(update)
        assert_same_targets(ours, rollout, update)
        ours.update(rollout)
        bounds = ours.bounds["weights"]
        errors = ours.errors("weights", {n: kept[f"{i}/{n}"] for n in start})
        result.append(
            Replayed(
                {n: np.max(errors[n] / bounds[n]) for n in start},
                {n: bounds[n].max() for n in start},
                {n: np.abs(w - start[n]).max() for n, w in ours.oracle.weights.items()},
            )
        )
    return result


def rollout_of(update: Update) -> oracle.Rollout:
    return oracle.Rollout(
        np.concatenate([update.train["observations"], update.bootstrap[None]]),
        *(update.train[name] for name in ("actions", "rewards", "continues")),
    )


def assert_same_targets(
    replay: oracle_replay.Replay, rollout: oracle.Rollout, update: Update
) -> None:
    """Returns, advantages and values, and the value that a time limit hid."""
    ours = replay.oracle
    discount = ours.hyperparameters.discount
    targets = oracle.targets(ours.network, ours.weights, rollout, discount)
    values = targets.returns - targets.advantages
    atol = replay.rounding * np.abs(targets.returns).max()
    np.testing.assert_allclose(update.train["returns"], targets.returns, rtol=0, atol=atol)
    np.testing.assert_allclose(update.train["advantages"], targets.advantages, rtol=0, atol=atol)
    np.testing.assert_allclose(update.train["values"], values, rtol=0, atol=atol)
    for last in update.last:
        hidden = oracle.forward(ours.network, ours.weights, last)["value"]
        (t,) = np.flatnonzero(update.train["continues"] == 0)
        assert update.train["rewards"][t] == pytest.approx(discount * hidden[0], abs=atol)
        assert not np.array_equal(last, rollout.observations[t + 1])


@pytest.mark.parametrize("name", ["cartpole", "pong"])
def test_the_log_gives_the_weights_after_each_update(runs, updates, name):
    """Parity: the oracle in float64 on what was dumped, 20 updates, within oracle_replay's bound; and
    returns, advantages and values on the way."""
    replayed = replay(runs[name], updates[name])
    assert len(replayed) == 20
    for off, _, _ in replayed:
        assert {n: times for n, times in off.items() if not times <= 1} == {}
    # The bound says something: all weights moved much farther.
    _, bounds, moved = replayed[-1]
    assert {n: bounds[n] / moved[n] for n in bounds if bounds[n] > 0.2 * moved[n]} == {}
    # The run's last checkpoint is where it got to.
    kept = np.load(runs[name] / "weights.npz")
    for n, weight in tensors(runs[name], 500, "weights").items():
        np.testing.assert_array_equal(weight, kept[f"20/{n}"])
    if name == "pong":
        assert sum(len(update.last) for update in updates[name]) >= 2
