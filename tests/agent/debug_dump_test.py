"""The debug log: every tensor is written whole and read back to the bit, and it is what trained."""

import collections
import contextlib
import io
import os
import pathlib
import tracemalloc
from collections.abc import Iterator
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

import train
from a3c.agent import debug_dump, local
from a3c.agent.debug_dump import Damaged, Record
from a3c.machine import tensorflow_process
from a3c.settings.params import Params
from a3c.store import checkpoint, run_folder
from tests.tools import oracle, oracle_replay, processes, recorded_runs


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
    """Golden: the form that readers of the log rely on: one line for each tensor, in order."""
    rewards = np.array([[0], [0], [-1], [0], [0.5]], np.float32)
    frames = np.arange(4, dtype=np.uint8).reshape(1, 2, 2, 1)
    assert lines_of(capfd, rewards, frames, update=12) == [
        "A3C-DUMP update=12 purpose=train name=array0 dtype=float32 shape=5,1 [0 0 -1 0 0.5]",
        "A3C-DUMP update=12 purpose=train name=array1 dtype=uint8 shape=1,2,2,1 [0 1 2 3]",
    ]


# Reading


def read_all(log: bytes) -> list[Record | Damaged]:
    return list(debug_dump.read(io.BytesIO(log)))


LINES = [
    b"A3C-DUMP update=0 purpose=act name=observations dtype=uint8 shape=1,2,2 [0 10 255 7]\n",
    b"A3C-DUMP update=0 purpose=train name=actions dtype=int32 shape=3,1 [-2 0 5]\n",
    b"A3C-DUMP update=12 purpose=train name=returns dtype=float32 shape=2 [-0.25 1e-05]\n",
    b"A3C-DUMP update=3 purpose=moments name=mean dtype=float64 shape=2 [-0.1 4.23187307648381e+249]\n",
    b"A3C-DUMP update=3 purpose=moments name=n dtype=int64 shape= [12345678901]\n",
]
ARRAYS = [
    np.array([[[0, 10], [255, 7]]], np.uint8),
    np.array([[-2], [0], [5]], np.int32),
    np.array([-0.25, 1e-5], np.float32),
    np.array([-0.1, 4.23187307648381e249]),  # a wider float would round it twice
    np.array(12345678901),
]


def assert_equal(record: Record | Damaged, array: np.ndarray) -> None:
    assert isinstance(record, Record), record
    assert (record.array.dtype, record.array.shape) == (array.dtype, array.shape)
    assert record.array.tobytes() == array.tobytes()


def test_a_round_trip_returns_every_bit(capfd):
    """Analytic: 20,000 random floats of each size, with nan and infinities, but for the two exceptions."""
    rng = np.random.default_rng(0)
    written, arrays = [], []
    for kind, bits in ((np.float32, np.uint32), (np.float64, np.uint64)):
        limits = np.finfo(kind)
        extremes = [limits.max, limits.tiny, limits.smallest_subnormal, np.inf, 0.0, 1 / 3]
        drawn = rng.integers(0, np.iinfo(bits).max, 20_000, bits).view(kind)
        floats = np.array([*drawn, *extremes, *(-number for number in extremes)], kind)
        expected = floats.copy()
        expected[np.abs(floats) < limits.tiny] *= 0  # its sign stays
        expected[np.isnan(floats)] = np.nan
        n_exceptions = np.count_nonzero(expected.view(bits) != floats.view(bits))
        assert 10 < n_exceptions < 400
        written.append(floats)
        arrays.append(expected)
    others = [
        rng.integers(0, 256, (5, 1, 84, 84, 4), np.uint8),
        rng.integers(-(2**31), 2**31, (7, 2), np.int32),
        np.array([-(2**31), -1, 0, 2**31 - 1], np.int32),
        np.array(0.1, np.float32),
        np.empty((0, 3), np.uint8),
        np.array(7, np.uint8),
        np.array([42], np.uint8),
        np.empty((3, 0), np.float32),
        np.array([-(10**17), 0, 10**18 - 1]),
    ]
    lines = lines_of(capfd, *written, *others, update=3)
    records = read_all("".join(line + "\n" for line in lines).encode())
    for i, (record, array) in enumerate(zip(records, arrays + others, strict=True)):
        assert record[:5] == (i + 1, i + 1, 3, "train", f"array{i}")
        assert_equal(record, array)


def test_foreign_lines_are_skipped():
    """Analytic: lines and dumps are counted separately."""
    foreign = [b"\n", b"a warning\n", b"\xff\x00 no text\r\n", b"DUMP [1 2 3]\n"]
    terminals = LINES[1].replace(b"\n", b"\r\n")
    log = b"".join([foreign[0], LINES[0], *foreign[1:], terminals, LINES[2].rstrip(b"\n")])
    first, second, third = read_all(log)
    assert first[:5] == (1, 2, 0, "act", "observations")
    assert second[:5] == (2, 6, 0, "train", "actions")
    assert third[:5] == (3, 7, 12, "train", "returns")
    for record, array in zip((first, second, third), ARRAYS[:3], strict=True):
        assert_equal(record, array)
    for line, array in zip(LINES, ARRAYS, strict=True):
        assert_equal(*read_all(line), array)
    assert read_all(b"") == read_all(b"".join(foreign)) == []


@pytest.mark.parametrize("i", range(5))
def test_damage_at_any_place_is_found(i):
    """Analytic: a foreign character anywhere in a line, and a last line cut anywhere; the lines around them are read,
    and numbered as if there were no damage."""
    for place in range(len(LINES[i]) - 1):
        changed = LINES[i][:place] + b"#" + LINES[i][place + 1 :]
        first, damaged, last = read_all(LINES[0] + changed + LINES[2])
        assert (type(damaged), damaged.line) == (Damaged, 2), changed
        assert_equal(first, ARRAYS[0])
        assert_equal(last, ARRAYS[2])
        assert (last.number, last.line) == (2, 3)
    for length in range(1, len(LINES[i]) - 1):
        first, damaged = read_all(b"a warning\n" + LINES[0] + LINES[i][:length])
        assert_equal(first, ARRAYS[0])
        assert (type(damaged), damaged.line) == (Damaged, 3), length


@pytest.mark.parametrize(
    ("i", "before", "after", "problem"),
    [
        (0, b"255", b"256", "no uint8"),
        (0, b"255", b"2555", "no uint8"),
        (0, b"255", b"-55", "no uint8"),
        (0, b"10 255", b"10  255", "no uint8"),
        (0, b"[0", b"[ 0", "no uint8"),
        (0, b"10 255", b"10", "has 3 elements where its shape has 4"),
        (0, b"10 255", b"", "no uint8"),
        (0, b"10 255", b"10 255 255", "has 5 elements"),
        (0, b"0 10 255 7", b"", "has 0 elements"),
        (0, b"uint8", b"int16", "head"),
        (0, b"uint8", b"object", "head"),
        (0, b"1,2,2", b"1,2,,2", "head"),
        (0, b"1,2,2", b"99999999999,99999999999", "9999999999800000000001"),
        (0, b"update=0", b"update=", "head"),
        (0, b"7]", b"7] and more", "end"),
        (0, b"7]", b"7]A3C-DUMP update=1 purpose=act name=a dtype=uint8 shape=1 [1]", "no uint8"),
        (0, b"A3C-DUMP", b"10%|# | A3C-DUMP", "head"),
        # What Python would take for a float, and what does not fit into float32.
        *((2, b"1e-05", x, "no float32") for x in (b"1_0", b"+1", b"0x1", b"infinity", b"1,5")),
        *((2, b"1e-05", x, "no float32") for x in (b"e", b"1e+39", b"1e+400")),
        (3, b"e+249", b"e+309", "no float64"),
        (4, b"12345678901", b"1234567890123456789", "no int64"),
        # Found by fuzzing: types and names that no dump has, and sides that no array can have.
        (2, b"shape=2", b"shape=2" + b",1" * 103, "head"),
        (2, b"shape=2", b"shape=0,999999999999999999,999999999999999999", ""),
        (2, b"returns", b"r" * 10_000, "head"),
        (2, b"update=12", b"update=" + b"1" * 10_000, "head"),
    ],
)
def test_what_does_not_fit_is_named_with_its_reason(i, before, after, problem):
    """Analytic: damage of lines that look right."""
    line = LINES[i].replace(before, after)
    assert line != LINES[i]
    (found,) = read_all(line)
    assert isinstance(found, Damaged)
    assert problem in found.problem
    assert len(found.problem) < 200


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64", "float32", "float64"])
def test_parsing_a_line_takes_8_times_its_length_at_most(dtype):
    """Analytic: for numbers of one digit."""
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


# What is dumped is what trained

# A Pong whose time limit ends games after 37 steps. The preset sums losses, starts RMSProp from 0 and
# lowers the learning rate.
PONG = ["--preset", "paper", "--n_steps", "500", "tests.tools.toys:toys/ShortPong-v0"]
CARTPOLE = ["--n_steps", "500", "CartPole-v1"]
# Memory, continuous actions and running statistics; a time limit ends games within rollouts.
PENDULUM = [
    *("--preset", "paper", "--policy_sd", "per_state", "--hidden_units", "8", "--lstm_units", "4"),
    *("--normalize_observations", "--scale_rewards", "--max_episode_steps", "12"),
    *("--n_steps", "500", "Pendulum-v1"),
]


class Update(NamedTuple):
    """All dumps of one update."""

    acted: list[np.ndarray]  # T observations of (K, ...)
    last: list[np.ndarray]
    train: dict[str, np.ndarray]
    bootstrap: np.ndarray
    # What else there is, in order: states of act and last, raw observations and rewards, moments.
    more: dict[str, list[np.ndarray]]


@contextlib.contextmanager
def stderr_in(path: pathlib.Path) -> Iterator[None]:
    """TensorFlow writes the log past Python's sys.stderr."""
    before = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, pathlib.Path]:
    """Folders of finished runs: the run folder `run`, the debug log `stderr`, and the worker's weights
    after each of the first 20 updates and after the last.
    """
    debug = ["--debug", "--no_frame_numbers"]
    commands = {
        "pong": [*debug, *PONG],
        "pong without": ["--no_xla", *PONG],
        "cartpole": [*debug, *CARTPOLE],
        "cartpole without": ["--no_xla", *CARTPOLE],
        "pendulum": [*debug, *PENDULUM],
    }
    folders = {}
    for name, command in commands.items():
        folder = folders[name] = tmp_path_factory.mktemp("outside")
        kept: list[dict[str, np.ndarray]] = []
        learn = local.LocalNetwork.learn

        def learn_and_keep(self, *arguments, kept=kept, learn=learn):
            norm = learn(self, *arguments)
            del kept[20:]
            kept.append({name: np.asarray(w).copy() for name, w in self.weights.items()})
            return norm

        with (
            mock.patch.object(local.LocalNetwork, "learn", learn_and_keep),
            mock.patch.object(tensorflow_process, "start_tensorflow"),
            processes.handlers_kept(),
            stderr_in(folder / "stderr"),
            contextlib.redirect_stdout(io.StringIO()) as said,
        ):
            status = train.main(["--log_dir", str(folder / "run"), *command])
        assert status == 0, said.getvalue()
        weights = {f"{i}/{name}": w for i, ws in enumerate(kept) for name, w in ws.items()}
        np.savez(folder / "weights", **weights)
    return folders


@pytest.fixture(scope="module")
def updates(runs) -> dict[str, list[Update]]:
    return {name: updates_of(runs[name] / "stderr") for name in ("pong", "cartpole", "pendulum")}


def updates_of(log: pathlib.Path) -> list[Update]:
    found: list[Update] = []
    with log.open("rb") as file:
        for record in debug_dump.read(file):
            assert isinstance(record, Record), record
            if record.update == len(found):
                found.append(Update([], [], {}, np.empty(0), collections.defaultdict(list)))
            assert record.update == len(found) - 1
            match record.purpose, record.name:
                case "act", "observations":
                    found[-1].acted.append(record.array)
                case "last", "observations":
                    found[-1].last.append(record.array)
                case "train", _:
                    found[-1].train[record.name] = record.array
                case "bootstrap", "observations":
                    found[-1] = found[-1]._replace(bootstrap=record.array)
                case purpose, name:
                    found[-1].more[f"{purpose} {name}"].append(record.array)
    return found


def tensors(run: pathlib.Path, n_steps: int, part: str) -> dict[str, np.ndarray]:
    """Of a run's checkpoint; `part` is weights or mean_squares."""
    saved = checkpoint.read(checkpoint.path_of(run / "run/checkpoints", n_steps))
    return dict(getattr(saved.snapshot, part))


@pytest.mark.parametrize("name", ["cartpole", "pong"])
def test_debugging_changes_no_bit_of_the_training(runs, name):
    """Parity: weights, statistics and games of a run with --debug and of one with --no_xla."""
    for part in ("weights", "mean_squares"):
        ours, others = (tensors(runs[run], 500, part) for run in (name, f"{name} without"))
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
    for name in ("cartpole", "pong"):
        assert len(updates[name]) == 100
        assert_acted_on_is_trained_on(updates[name])
        continues = np.stack([update.train["continues"] for update in updates[name]])
        assert np.count_nonzero(continues == 0) >= 10
    # CartPole's games begin within 0.05 of 0, and end far from it.
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
    """Parity: negative control of the test before."""
    for name in ("cartpole", "pong"):
        with pytest.raises(AssertionError):
            assert_acted_on_is_trained_on([twin(update) for update in updates[name]])


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
    expected = targets._asdict() | {"values": targets.returns - targets.advantages}
    atol = replay.rounding * np.abs(targets.returns).max()
    for name, array in expected.items():
        np.testing.assert_allclose(update.train[name], array, rtol=0, atol=atol, err_msg=name)
    for last in update.last:
        hidden = oracle.forward(ours.network, ours.weights, last)["value"]
        (t,) = np.flatnonzero(update.train["continues"] == 0)
        assert update.train["rewards"][t] == pytest.approx(discount * hidden[0], abs=atol)
        assert not np.array_equal(last, rollout.observations[t + 1])


def replay_of(run: pathlib.Path, is_continuous: bool = False) -> oracle_replay.Replay:
    """The oracle before a run's first update."""
    params = run_folder.read_args(run / "run").parsed.params
    parts = (tensors(run, 0, part) for part in ("weights", "mean_squares"))
    return oracle_replay.Replay(params, *parts, is_continuous)


def assert_same_weights(run: pathlib.Path, ours: oracle_replay.Replay, n_updates: int) -> None:
    """Those after so many updates, within the bound, which is narrow: all weights moved much farther."""
    start, kept = tensors(run, 0, "weights"), np.load(run / "weights.npz")
    bounds = ours.bounds["weights"]
    errors = ours.errors("weights", {n: kept[f"{n_updates - 1}/{n}"] for n in start})
    assert {n for n in start if not np.max(errors[n] / bounds[n]) <= 1} == set(), n_updates
    if n_updates == 20:
        moved = {n: np.abs(w - start[n]).max() for n, w in ours.oracle.weights.items()}
        assert {n: bounds[n].max() for n in start if bounds[n].max() > 0.2 * moved[n]} == {}
        # The run's last checkpoint holds the weights after its last update.
        for n, weight in tensors(run, 500, "weights").items():
            np.testing.assert_array_equal(weight, kept[f"20/{n}"])


@pytest.mark.parametrize("name", ["cartpole", "pong"])
def test_the_log_gives_the_weights_after_each_update(runs, updates, name):
    """Parity: returns, advantages, values and weights of 20 updates, by the oracle from the run's first checkpoint,
    its args.json and its log, within oracle_replay's bound."""
    ours = replay_of(runs[name])
    for i, update in enumerate(updates[name][:20]):
        rollout = rollout_of(update)
        assert_same_targets(ours, rollout, update)
        ours.update(rollout)
        assert_same_weights(runs[name], ours, i + 1)
    if name == "pong":
        assert sum(len(update.last) for update in updates[name]) >= 2


def recorded(params: Params, updates: list[Update]) -> recorded_runs.Run:
    """What the log says of a run whose environment never terminates, from what is raw in it."""
    first_seen, steps = updates[0].more["raw observations"][0], []
    for update in updates:
        raw, rewards = (iter(update.more[f"raw {name}"]) for name in ("observations", "rewards"))
        seen = next(raw)
        for action, goes_on in zip(update.train["actions"], update.train["continues"], strict=True):
            last = {} if goes_on.all() else {0: next(raw)[0]}
            seen = next(raw)
            never = np.zeros(1, bool)
            steps.append(recorded_runs.Step(action, next(rewards), never, goes_on == 0, seen, last))
        assert [*raw, *rewards] == []
    return recorded_runs.Run(params, first_seen, steps, {}, {})


def test_the_log_gives_the_weights_with_memory_and_running_statistics(runs, updates):
    """Parity: weights of 20 updates, by the oracle from raw observations and rewards alone; and what the log has of
    moments, of what was normalised and scaled, and of what was remembered."""
    ours = replay_of(runs["pendulum"], is_continuous=True)
    run = recorded(
        run_folder.read_args(runs["pendulum"] / "run").parsed.params, updates["pendulum"][:20]
    )
    raw = run.seen()
    for i, rollout in enumerate(oracle_replay.rollouts(run, ours)):
        update = updates["pendulum"][i]
        for name in ("observations", "rewards", "states"):
            expected = getattr(rollout, name)[: len(update.train[name])]
            np.testing.assert_allclose(update.train[name], expected, rtol=0, atol=1e-5)
        np.testing.assert_array_equal(np.stack(update.acted), update.train["observations"])
        states = update.more["act state"]
        assert len(states) == 5
        np.testing.assert_array_equal(states[0], update.train["states"][0])
        for t in np.flatnonzero(update.train["continues"][:-1] == 0):
            np.testing.assert_array_equal(states[t + 1], 0)
        n, mean, squares = (
            update.more[f"moments observations_{part}"][0] for part in ("n", "mean", "squares")
        )
        assert n == update.more["moments returns_n"][0] == 5 * i
        if i:
            seen = raw[: 5 * i, 0].astype(np.float64)
            np.testing.assert_allclose(mean, seen.mean(axis=0), rtol=1e-9)
            np.testing.assert_allclose(squares / n, seen.var(axis=0), rtol=1e-9)
        ours.update(rollout)
        assert_same_weights(runs["pendulum"], ours, i + 1)
    assert sum(len(update.last) for update in updates["pendulum"][:20]) == 8
