"""Checkpoints: what was saved comes back to the bit, and what is damaged is refused in one line."""

import json
import os
import pathlib
import tracemalloc
from collections.abc import Mapping

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from a3c.contract import Counts, Moments, Subject
from a3c.store import checkpoint
from a3c.store.checkpoint import UnusableCheckpoint
from tests.tools import checkpoint_files, processes
from tests.tools.checkpoint_files import (
    MOMENTS,
    POSITION,
    SUBJECT,
    TAKEN_OUT,
    edit,
    make,
    pack,
    save,
    unpack,
)
from tests.tools.processes import ROOT


@pytest.fixture
def path(tmp_path):
    """A checkpoint that may be damaged."""
    return save(tmp_path, moments=MOMENTS)


def refusal(path: pathlib.Path) -> str:
    """The one line in which it is refused."""
    with pytest.raises(UnusableCheckpoint) as error:
        checkpoint.read(path)
    line = str(error.value)
    assert line.startswith(f"cannot read {path}: ")
    assert line.isprintable()
    assert len(line) <= 800
    return line


def assert_same(actual, expected) -> None:
    assert sorted(actual) == sorted(expected)
    for name, array in expected.items():
        assert actual[name].dtype == array.dtype
        assert actual[name].shape == array.shape, name
        assert actual[name].tobytes() == array.tobytes(), name


def flat(moments: Mapping[str, Moments]) -> dict[str, np.ndarray]:
    """Moments as the arrays of a file."""
    return {
        f"{name}_{part}": np.asarray(value)
        for name, each in moments.items()
        for part, value in each._asdict().items()
    }


# What comes back


def test_everything_comes_back(tmp_path):
    """Golden: each array to the bit, whatever its layout; subject, settings, counts, position, moments."""
    saved = make(tmp_path, moments=MOMENTS)
    subject = SUBJECT._replace(policy="per_state", hidden_units=(7, 5), activation="relu")
    saved = saved._replace(subject=subject)
    odd = {
        "turned": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "every other": np.arange(6, dtype=np.float32)[::2],
        "numbers": np.array([-0.0, 1e-45, 3.4e38], np.float32),
    }
    weights = {**saved.snapshot.weights, **odd}
    saved = saved._replace(snapshot=saved.snapshot._replace(weights=weights))
    checkpoint.write(saved)
    read = checkpoint.read(saved.path)
    assert_same(read.snapshot.weights, weights)
    assert_same(read.snapshot.mean_squares, saved.snapshot.mean_squares)
    assert read._replace(snapshot=None) == saved._replace(snapshot=None)
    assert_same(flat(read.snapshot.moments), flat(MOMENTS))
    assert type(read.snapshot.moments["returns"].n) is int
    assert read.snapshot.counts == saved.snapshot.counts
    assert read.n_steps == 70


def test_the_form_is_what_it_was(path):
    """Parity: the library alone finds the arrays by their names, and one JSON; and a file that the
    test packs itself is read, as those of later revisions have to be.
    """
    before = checkpoint.read(path)
    snapshot = before.snapshot
    assert_same(
        safetensors.numpy.load_file(path),
        {f"weights/{name}": array for name, array in snapshot.weights.items()}
        | {f"mean_squares/{name}": array for name, array in snapshot.mean_squares.items()}
        | {f"moments/{name}": array for name, array in flat(MOMENTS).items()},
    )
    with safetensors.safe_open(path, framework="np") as file:
        content = json.loads(file.metadata()["a3c"])
    assert content["format_version"] == 3
    as_lists = {"observation_shape": [4], "hidden_units": [64, 64], "env_kwargs": []}
    assert content["subject"] == SUBJECT_JSON | as_lists
    assert content["counts"] == {"steps": 70, "updates": 14, "games": 3, "frames": 71}
    edit(path)
    after = checkpoint.read(path)
    assert after._replace(snapshot=None) == before._replace(snapshot=None)
    assert_same(after.snapshot.weights, snapshot.weights)


IN_2 = ("env_id", "preprocessing", "network", "observation_shape", "n_actions")


def test_a_file_of_format_2_is_read(tmp_path):
    """Golden: a published agent, and a packed file: its subject lacks what could not be chosen then, and
    is the one of a run of today that has the defaults.
    """
    published = checkpoint.read(checkpoint.find(ROOT / "results/pong-fast-s0"))
    _, content, _ = unpack(published.path.read_bytes())
    assert (content["format_version"], [*content["subject"]]) == (2, [*IN_2])
    published.check_fits(Subject("PongNoFrameskip-v4", "generic", "small", (84, 84, 4), 6))
    assert published.snapshot.weights["dense_kernel"].shape == (2592, 256)
    assert published.snapshot.moments == {}
    path = save(tmp_path)
    edit(path, format_version=2, subject={name: SUBJECT_JSON[name] for name in IN_2})
    assert checkpoint.read(path).subject == SUBJECT
    edit(path, format_version=3)
    assert "subject" in refusal(path)


def test_a_file_without_arguments_of_its_environment_is_read(path):
    """Golden: format 3 did not have them at first; it had the defaults of today."""
    younger = ("env_kwargs", "wrapper", "max_episode_steps")
    edit(path, subject={name: x for name, x in SUBJECT_JSON.items() if name not in younger})
    assert checkpoint.read(path).subject == SUBJECT
    for name in ("policy", "lstm_units"):
        edit(path, subject={n: x for n, x in SUBJECT_JSON.items() if n != name})
        assert "subject" in refusal(path)


def test_a_network_fits_an_environment_with_other_arguments(path):
    """Analytic: so that training can go on with a harder one."""
    harder = SUBJECT._replace(env_kwargs=("size=9",), wrapper="m:W", max_episode_steps=9)
    checkpoint.read(path).check_fits(harder)


def test_a_mismatch_names_both_values(path):
    """Analytic: for each part of what a network was made for."""
    found = checkpoint.read(path)
    found.check_fits(SUBJECT)
    for name, value, words in (
        ("env_id", "Acrobot-v1", "env id 'CartPole-v1', this run has 'Acrobot-v1'"),
        ("preprocessing", "pong", "preprocessing 'generic', this run has 'pong'"),
        ("network", "small", "network 'mlp', this run has 'small'"),
        ("observation_shape", (6,), "observation shape (4,), this run has (6,)"),
        ("n_actions", 3, "n actions 2, this run has 3"),
        ("policy", "per_state", "policy 'categorical', this run has 'per_state'"),
        ("hidden_units", (64,), "hidden units (64, 64), this run has (64,)"),
        ("activation", "relu", "activation 'tanh', this run has 'relu'"),
    ):
        with pytest.raises(UnusableCheckpoint) as error:
            found.check_fits(SUBJECT._replace(**{name: value}))
        assert str(error.value) == f"{path} was made with {words}"


# Damage


def test_any_cut_is_noticed(path):
    """Analytic: wherever the file is cut, and where bytes follow its end."""
    whole = path.read_bytes()
    for n in [*range(0, len(whole), 11), *range(len(whole) - 50, len(whole))]:
        path.write_bytes(whole[:n])
        refusal(path)
    path.write_bytes(whole + b"\0")
    refusal(path)


def test_a_flipped_bit_is_noticed_anywhere(path):
    """Analytic: one bit in each byte, of the length, the header and the arrays."""
    whole = path.read_bytes()
    for i in range(len(whole)):
        flipped = bytearray(whole)
        flipped[i] ^= 1 << i % 8
        path.write_bytes(flipped)
        refusal(path)


KERNEL, BIAS = "weights/first_kernel", "weights/first_bias"


def renamed(header, old, new):
    return {new if name == old else name: at for name, at in header.items()}


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h | {BIAS: h["mean_squares/first_bias"], "mean_squares/first_bias": h[BIAS]},
        lambda h: renamed(h, BIAS, "weights/second_bias"),
        lambda h: h | {KERNEL: h[KERNEL] | {"shape": [3, 2]}},
        lambda h: h | {KERNEL: h[KERNEL] | {"dtype": "I32"}},
        lambda h: {name: at for name, at in h.items() if name != BIAS},
        lambda h: h | {"weights/more": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}},
    ],
    ids=["exchanged", "renamed", "another shape", "another type", "missing", "one more"],
)
def test_an_edited_header_is_noticed(path, change):
    """Analytic: the checksum covers names, types and shapes, too."""
    header, content, arrays = unpack(path.read_bytes())
    path.write_bytes(pack(change(header), content, arrays))
    refusal(path)


def test_an_edited_json_is_noticed(path):
    """Analytic: without a new checksum, no entry can be changed, added or taken out unseen."""
    header, content, arrays = unpack(path.read_bytes())
    edited = [content | {name: "x"} for name in (*content, "more")]
    edited += [{n: value for n, value in content.items() if n != name} for name in content]
    for each in edited:
        path.write_bytes(pack(header, each, arrays))
        refusal(path)


@pytest.mark.parametrize("number", [np.nan, -np.inf])
@pytest.mark.parametrize("part", ["weights", "mean_squares"])
def test_a_number_that_is_not_finite_is_refused(tmp_path, part, number):
    """Analytic: nothing can be trained from it, whatever the checksum says."""
    path = save(tmp_path)
    header, content, arrays = unpack(path.read_bytes())
    start = header[f"{part}/first_bias"]["data_offsets"][0]
    arrays = arrays[:start] + np.float32(number).tobytes() + arrays[start + 4 :]
    path.write_bytes(pack(header, checkpoint_files.sealed(header, content, arrays), arrays))
    assert f"{part}/first_bias holds a number that is not finite" in refusal(path)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32, np.complex64, bool])
def test_an_array_of_another_type_is_refused(tmp_path, dtype):
    """Analytic: training saves weights as float32 alone."""
    saved = make(tmp_path)
    weights = {**saved.snapshot.weights, "more": np.ones(3, dtype)}
    checkpoint.write(saved._replace(snapshot=saved.snapshot._replace(weights=weights)))
    assert "weights/more of type" in refusal(saved.path)


WHOLE = flat(MOMENTS)
N, MEAN, SQUARES = "observations_n", "observations_mean", "observations_squares"
SHAPE, RANGE, LACKS = "the wrong shape", "out of range", "is unknown or lacks its other parts"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({MEAN: np.zeros(3)}, SHAPE),
        ({MEAN: np.zeros((4, 1)), SQUARES: np.zeros((4, 1))}, SHAPE),
        ({N: np.full(4, 70)}, SHAPE),
        ({"returns_mean": np.zeros(1), "returns_squares": np.zeros(1)}, SHAPE),
        ({N: np.array(70, np.int32)}, "of type int32"),
        ({N: np.array(70.0)}, "of type float64"),
        ({N: np.array(70, np.uint64)}, "of type uint64"),
        ({MEAN: np.zeros(4, np.float32)}, "of type float32"),
        ({N: np.array(-1)}, RANGE),
        ({N: np.array(10**15)}, RANGE),
        ({N: np.array(2**63 - 1)}, RANGE),
        ({SQUARES: np.array([1, 1, 1, -1e-300])}, RANGE),
        ({MEAN: np.array([0, 0, np.nan, 0])}, "not finite"),
        ({SQUARES: np.array([0, 0, np.inf, 0])}, "not finite"),
        ({"actions_n": np.array(1)}, f"moments/actions_n, which {LACKS}"),
        ({"returns_sd": np.array(1.0)}, f"moments/returns_sd, which {LACKS}"),
        ({N: None}, f"moments/{MEAN}, which {LACKS}"),
        ({"returns_mean": None}, f"moments/returns_n, which {LACKS}"),
        ({"returns_squares": None, "returns_n": None}, f"moments/returns_mean, which {LACKS}"),
    ],
)
def test_moments_that_no_run_has_are_refused(path, changed, words):
    """Analytic: even if the checksum matches."""
    _, content, _ = unpack(path.read_bytes())
    del content["checksum"]
    arrays = {name: array for name, array in (WHOLE | changed).items() if array is not None}
    tensors = {f"moments/{name}": array for name, array in arrays.items()}
    content["checksum"] = checkpoint._checksum(content, tensors)
    path.write_bytes(safetensors.numpy.save(tensors, {"a3c": json.dumps(content)}))
    assert words in refusal(path)


def test_moments_up_to_the_limits_are_read(tmp_path):
    """Analytic: negative control of the test before: no data yet, much data, and only one of the two."""
    for moments in (
        {"returns": Moments(0, np.array(0.0), np.array(0.0))},
        {"observations": Moments(10**15 - 1, np.full(4, -1e300), np.full(4, 1e300))},
        MOMENTS,
    ):
        read = checkpoint.read(save(tmp_path, moments=moments))
        assert_same(flat(read.snapshot.moments), flat(moments))


# Hostile files


def test_safetensors_of_anybody_else_are_refused(tmp_path):
    """Analytic: without metadata, with other metadata, and with arrays of unknown names."""
    path, array = tmp_path / "ckpt-5.safetensors", np.ones(3, np.float32)
    for metadata in (None, {"format": "pt"}, {"a3c": "3"}, {"a3c": "x"}, {"a3c": "{}"}):
        safetensors.numpy.save_file({"weights/x": array}, path, metadata)
        refusal(path)
    save(tmp_path, 5)
    header, content, arrays = unpack(path.read_bytes())
    header = renamed(header, "weights/scale", "biases/scale")
    path.write_bytes(pack(header, checkpoint_files.sealed(header, content, arrays), arrays))
    assert "biases/scale" in refusal(path)


NOT_OURS = {
    "nothing": b"",
    "no JSON": b"weights",
    "not UTF-8": b"\xff\xfe" * 1000,
    "a list": b"[]",
    "null": b"null",
    "no object": b'{"__metadata__": 5}',
    "text that is no JSON": b'{"__metadata__": {"a3c": "{"}}',
    "deep lists": b"[" * 100_000 + b"]" * 100_000,
    "deep objects": b'{"__metadata__":' * 100_000 + b"1" + b"}" * 100_000,
    "deep text": json.dumps({"__metadata__": {"a3c": "[" * 100_000}}).encode(),
    "a long number": b'{"__metadata__": ' + b"9" * 10_000 + b"}",
}


@pytest.mark.parametrize("header", NOT_OURS.values(), ids=NOT_OURS)
def test_a_header_that_is_not_ours_is_refused(path, header):
    """Analytic: whatever stands in its place."""
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    refusal(path)


@pytest.mark.parametrize("n_bytes", [2**24 + 1, 2**31, 2**63, 2**64 - 1])
def test_a_huge_header_is_refused_before_the_library_sees_it(path, monkeypatch, n_bytes):
    """Analytic: a header of more than 16 MiB, whether the file has as much or not."""
    monkeypatch.setattr(safetensors.numpy, "load", lambda data: pytest.fail("the library saw it"))
    assert checkpoint.MAX_HEADER_BYTES == 2**24
    path.write_bytes(n_bytes.to_bytes(8, "little"))
    if n_bytes < 2**25:
        os.truncate(path, 2**25)
    assert "its header is longer than it may be" in refusal(path)


@pytest.mark.parametrize(
    "at",
    [
        {"shape": [2**62, 2**62], "data_offsets": [0, 24]},
        {"shape": [2**31, 2**31], "data_offsets": [0, 2**64]},
        {"shape": [-2, -3], "data_offsets": [0, 24]},
        {"shape": [2, 3], "data_offsets": [24, 0]},
        {"shape": [2, 3], "data_offsets": [10**9, 10**9 + 24]},
        {"shape": [2, 3], "data_offsets": "x"},
        {"shape": 6, "data_offsets": [0, 24]},
        {"dtype": "F8_E4M3", "shape": [24], "data_offsets": [0, 24]},
        {"dtype": "OBJECT", "shape": [3], "data_offsets": [0, 24]},
    ],
    ids=range(9),
)
def test_no_size_is_taken_at_its_word(path, at):
    """Analytic: sizes that overflow, are negative or lie outside; they reserve no memory."""
    _, content, _ = unpack(path.read_bytes())
    path.write_bytes(pack({"weights/a": {"dtype": "F32"} | at}, content, bytes(24)))
    tracemalloc.start()
    try:
        refusal(path)
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()


GENERATOR = POSITION.workers[0].generator
WORKER = {"generator": GENERATOR, "next_games": [3, 4]}
COUNTS = {"steps": 70, "updates": 14, "games": 3, "frames": 71}
NO_COUNTS = ["1", -1, 1.5, True, None, 10**15, 2**63, 10**400]
SUBJECTS = {
    "env_id": [7, None, []],
    "preprocessing": [7],
    "network": [7],
    "observation_shape": [4, "4", ["4"], [4.0], [True], [0], [-1], None, {"4": 1}],
    "n_actions": ["2", 2.0, None, True, 0, 10**15],
    "policy": ["gaussian", None, 1],
    "hidden_units": [64, [0], [64.0], ["64"], [True], [[64]], None],
    "activation": ["sigmoid", None],
    "lstm_units": [-1, 1.0, True, None, 10**15],
    "env_kwargs": ["a=1", [1], None, {}],
    "wrapper": [1, ["a:B"]],
    "max_episode_steps": [0, -1, 1.5, "9"],
}
POSITIONS = {
    "workers": [3, [[]], [None], *([WORKER | {"next_games": x}] for x in ([1.0, 2], [2**70], 5))],
    "n_bytes": [5, *({"log.txt": x} for x in (-1, True, "5", 1.5, 2**70))],
    "n_env_restarts": [-1, 1.0],
    "cpu_seconds": [-1],
}
GENERATORS = [
    *(None, {}, GENERATOR | {"bit_generator": "MT19937"}, GENERATOR | {"state": 5}),
    *(GENERATOR | {"has_uint32": 2}, GENERATOR | {"uinteger": 2**32}),
    *(GENERATOR | {"state": {"state": x, "inc": y}} for x, y in ((1, 2), (2**128, 1))),
]
POSITIONS["workers"] += [[WORKER | {"generator": x}] for x in GENERATORS]
SUBJECT_JSON = SUBJECT._asdict()
POSITION_JSON = POSITION._asdict() | {"workers": [WORKER]}
WRONG = {
    "format_version": [1, 4, "3", 3.0, None, True, "x\ny"],
    "subject": [
        *(None, [], "x", {}, SUBJECT_JSON | {"more": 1}),
        *(SUBJECT_JSON | {name: x} for name, wrong in SUBJECTS.items() for x in wrong),
    ],
    "params": [[], None, "x", [["a", 1]]],
    "counts": [
        *([], None, {}, {"steps": 1}, COUNTS | {"more": 1}),
        *(COUNTS | {name: x} for name in COUNTS for x in NO_COUNTS),
    ],
    "position": [
        *([], "x", {}, POSITION_JSON | {"more": 1}),
        *(POSITION_JSON | {name: x} for name, wrong in POSITIONS.items() for x in wrong),
    ],
}


@pytest.mark.parametrize("name", WRONG)
def test_an_entry_that_is_missing_or_of_the_wrong_type_is_refused(path, name):
    """Analytic: even if the checksum matches; nothing else checks what it gets from here."""
    whole = path.read_bytes()
    for value in (TAKEN_OUT, *WRONG[name]):
        path.write_bytes(whole)
        edit(path, **{name: value})
        assert name in refusal(path), value


def test_counts_up_to_the_limit_are_read(path):
    """Analytic: negative control of the test before, for a position, too."""
    edit(path, counts=COUNTS | {"steps": 10**15 - 1}, position=POSITION_JSON)
    read = checkpoint.read(path)
    assert read.snapshot.counts == Counts(10**15 - 1, 14, 3, 71)
    assert read.position.workers[0]._asdict() == WORKER


# Writing


def test_on_a_full_disk_the_one_before_stays(tmp_path):
    """Analytic: files may grow to half of what is needed; nothing of the new one is left."""
    path = save(tmp_path)
    before = path.read_bytes()
    with processes.no_file_grows_beyond(len(before) // 2):
        for n_steps in (70, 80):
            with pytest.raises(OSError, match="File too large"):
                save(tmp_path, n_steps, seed=5)
    assert [(each, each.read_bytes()) for each in tmp_path.iterdir()] == [(path, before)]
    assert save(tmp_path, 80) == checkpoint.find(tmp_path)


# A folder of them


def put(folder: pathlib.Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()


def names_in(folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_find_takes_the_newest_by_its_number(tmp_path):
    """Analytic: of a run or of a folder of checkpoints; 1000 comes after 999; other names are none."""
    folder = tmp_path / "checkpoints"
    put(folder, *(f"ckpt-{n}.safetensors" for n in (999, 1000, 5, "x", "", "01001", "٩٩٩٩")))
    put(folder, "ckpt-2000.safetensors.tmp", "damaged-ckpt-3000.safetensors", "ckpt-4000.index")
    put(folder / "best", "ckpt-5000.safetensors")
    newest = folder / "ckpt-1000.safetensors"
    for path in (tmp_path, folder, newest):
        assert checkpoint.find(path) == newest
    put(tmp_path, "agent.safetensors")
    assert checkpoint.find(tmp_path / "agent.safetensors") == tmp_path / "agent.safetensors"


@pytest.mark.parametrize(
    "name", ["", "missing", "missing/ckpt-5", "empty", ".safetensors", "..", "x" * 300, "\0"]
)
def test_what_is_not_there_is_refused(tmp_path, monkeypatch, name):
    """Analytic: every path without a checkpoint gets one line."""
    put(tmp_path / "empty")
    put(tmp_path, "file")
    monkeypatch.chdir(tmp_path / "empty")
    for path in (pathlib.Path(name), tmp_path / name, tmp_path / "file" / name):
        with pytest.raises(UnusableCheckpoint, match=r"^no checkpoint .*\Z") as error:
            checkpoint.find(path)
        assert "revision" not in str(error.value)


@pytest.mark.parametrize(
    "name", ["", "checkpoints", *(f"checkpoints/ckpt-5{end}" for end in ("", ".index", ".json"))]
)
def test_one_of_the_old_form_is_refused_with_the_revision_that_reads_it(tmp_path, name):
    """Analytic: by any of its names."""
    put(tmp_path / "checkpoints", "ckpt-5.json", "ckpt-5.index", "ckpt-5.data-00000-of-00001")
    with pytest.raises(UnusableCheckpoint, match="revision 243b5dc reads those of TensorFlow's"):
        checkpoint.find(tmp_path / name)


def test_the_newest_whole_one_is_taken(tmp_path):
    """Analytic: each newer one, damaged or under a wrong number, is reported, the newest first."""
    for n_steps in (10, 20, 30, 40):
        save(tmp_path, n_steps)
    os.truncate(tmp_path / "ckpt-40.safetensors", 100)
    (tmp_path / "ckpt-20.safetensors").replace(tmp_path / "ckpt-30.safetensors")
    (tmp_path / "ckpt-50.safetensors").mkdir()
    found, problems = checkpoint.newest_whole(tmp_path)
    assert found.n_steps == 10
    named = [f"ckpt-{n}.safetensors" for n in (50, 40, 30)]
    assert all(name in problem for name, problem in zip(named, problems, strict=True))
    (tmp_path / "ckpt-10.safetensors").unlink()
    for folder, why in ((tmp_path, ".*ckpt-50"), (tmp_path / "none", "there is none")):
        with pytest.raises(UnusableCheckpoint, match=f"no checkpoint in .* is whole: {why}"):
            checkpoint.newest_whole(folder)


NUMBERED = [f"ckpt-{n}.safetensors" for n in (5, 10, 20, 30)]
TEMPORARY = "ckpt-40.safetensors.tmp"


@pytest.mark.parametrize(
    ("call", "left"),
    [
        (lambda f: checkpoint.delete_all_but(f, 2), [*NUMBERED[2:], TEMPORARY]),
        (lambda f: checkpoint.delete_all_but(f, 9), [*NUMBERED, TEMPORARY]),
        (lambda f: checkpoint.delete_older(f, 4), [*NUMBERED, TEMPORARY]),
        (lambda f: checkpoint.delete_older(f, 19), [*NUMBERED[1:], TEMPORARY]),
        (lambda f: checkpoint.delete_older(f, 20), [*NUMBERED[2:], TEMPORARY]),
        (lambda f: checkpoint.take_away_newer(f, 10), NUMBERED[:2]),
        (
            lambda f: checkpoint.take_away_newer(f, 20, rename=True),
            [*NUMBERED[:3], f"damaged-{NUMBERED[3]}"],
        ),
    ],
)
def test_what_stays_of_four(tmp_path, call, left):
    """Analytic: other files always stay, unfinished ones while the run may still write them."""
    put(tmp_path, *NUMBERED, TEMPORARY, "notes")
    call(tmp_path)
    assert names_in(tmp_path) == sorted([*left, "notes"])


def test_a_checkpoint_that_cannot_be_read_now_is_not_taken_for_damaged(tmp_path, monkeypatch):
    """Analytic: too many open files, or another version's form: no older one is taken."""
    for n_steps in (10, 20):
        save(tmp_path, n_steps)

    def refuse(_: pathlib.Path) -> bytes:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(pathlib.Path, "read_bytes", refuse)
        with pytest.raises(UnusableCheckpoint, match="Too many open files"):
            checkpoint.newest_whole(tmp_path)
    checkpoint_files.edit(tmp_path / "ckpt-20.safetensors", format_version=4)
    with pytest.raises(UnusableCheckpoint, match="format_version"):
        checkpoint.newest_whole(tmp_path)


def test_what_could_not_be_read_again_is_not_written(tmp_path):
    """Analytic: a number is not finite; the checkpoint that is there stays."""
    path = save(tmp_path)
    before = path.read_bytes()
    broken = make(tmp_path)
    broken.snapshot.weights["first_bias"][1] = np.inf
    with pytest.raises(OSError, match="weights/first_bias holds a number that is not finite"):
        checkpoint.write(broken)
    assert path.read_bytes() == before


def test_what_cannot_be_deleted_is_left(tmp_path, monkeypatch):
    """Analytic: a read-only folder does not end a run."""

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    put(tmp_path, *NUMBERED)
    monkeypatch.setattr(pathlib.Path, "unlink", refuse)
    checkpoint.delete_all_but(tmp_path, 1)
    checkpoint.delete_older(tmp_path, 30)
    assert names_in(tmp_path) == sorted(NUMBERED)
