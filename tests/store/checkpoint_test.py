"""Checkpoints: what comes back, of which moment, and that whatever is damaged is refused in words."""

import contextlib
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf

from a3c.agent.shared import Counters, Counts, Gate, SharedState
from a3c.store import checkpoint, checkpoint_files
from a3c.store.checkpoint import CannotSave, Checkpointer
from a3c.store.checkpoint_files import Subject, UnusableCheckpoint

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SUBJECT = Subject("CartPole-v1", "generic", "mlp", (4,), 2)
PARAMS = {"env_id": "CartPole-v1", "initial_lr": 1e-4, "load_ckpt": None, "n_steps": 1000}
COUNTS = Counts(steps=70, updates=14, games=3, frames=71)
SHAPES = {"first_kernel": (2, 3), "first_bias": (3,), "second_kernel": (3, 1)}


def make_shared(seed: int = 0, counts: Counts | None = None) -> SharedState:
    """Weights and statistics that are all different numbers, and others for another seed."""
    generator = np.random.default_rng(seed)
    weights = {name: generator.random(shape, np.float32) for name, shape in SHAPES.items()}
    shared = SharedState(
        weights,
        rmsprop_initial=1.0,
        rmsprop_decay=0.99,
        rmsprop_epsilon=0.1,
        max_grad_norm=1.0,
        counters=Counters(1000, counts or Counts()),
    )
    for variable in shared.mean_squares.values():
        variable.assign(generator.random(variable.shape, np.float32))
    return shared


def make_checkpointer(
    folder: pathlib.Path, shared: SharedState | None = None, n_kept: int = 3
) -> Checkpointer:
    folder.mkdir(exist_ok=True)
    return Checkpointer(folder, shared or make_shared(counts=COUNTS), SUBJECT, PARAMS, n_kept)


def arrays(variables: dict[str, tf.Variable]) -> dict[str, np.ndarray]:
    return {name: variable.numpy() for name, variable in variables.items()}


def assert_same(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert list(actual) == list(expected)
    for name in expected:
        np.testing.assert_array_equal(actual[name], expected[name], err_msg=name)


def edit_json(prefix: pathlib.Path, resealed: bool = True, **changes: object) -> None:
    """Change entries of a checkpoint's JSON, by default with a checksum that fits again."""
    path = prefix.with_name(prefix.name + ".json")
    content = json.loads(path.read_text()) | changes
    if resealed:
        del content["checksum"]
        content["checksum"] = checkpoint_files._checksum(content)
    path.write_text(json.dumps(content))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One checkpoint, saved once; tests that damage it take a copy."""
    return make_checkpointer(tmp_path_factory.mktemp("made") / "checkpoints").save()


@pytest.fixture
def copy(made, tmp_path):
    """A copy of it that may be damaged."""
    return pathlib.Path(shutil.copytree(made.parent, tmp_path / "checkpoints")) / made.name


def test_everything_comes_back(tmp_path):
    """Golden: weights, statistics, counters, parameters and subject are what was saved."""
    saved = make_shared(seed=1, counts=COUNTS)
    weights, mean_squares = arrays(saved.weights), arrays(saved.mean_squares)
    prefix = make_checkpointer(tmp_path, saved).save()
    assert prefix == tmp_path / "ckpt-70"

    # What is saved is a copy: what happens afterwards is not in it.
    for variable in (*saved.weights.values(), *saved.mean_squares.values()):
        variable.assign(tf.zeros_like(variable))
    info = checkpoint_files.read_info(prefix)
    assert info == checkpoint_files.Info(prefix, SUBJECT, PARAMS, COUNTS._asdict(), True)
    restored = make_shared(seed=2)
    checkpoint.restore(info, restored)
    assert_same(arrays(restored.weights), weights)
    assert_same(arrays(restored.mean_squares), mean_squares)


def test_a_checkpoint_is_of_one_moment(tmp_path):
    """Analytic: four threads stamp the update's number into everything, one after the other, while
    the others are inside the gate as well; no save mixes two."""
    shared = make_shared()
    checkpointer = make_checkpointer(tmp_path, shared, n_kept=100)
    done, one_at_a_time, numbers = threading.Event(), threading.Lock(), itertools.count(1)

    def stamp_on_and_on() -> None:
        while not done.is_set():
            with shared.gate, one_at_a_time:
                number = next(numbers)
                for variable in (*shared.weights.values(), *shared.mean_squares.values()):
                    variable.assign(tf.fill(variable.shape, np.float32(number)))
                shared.counters.add_update(1, 1, 0)

    threads = [threading.Thread(target=stamp_on_and_on, daemon=True) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        prefixes = {checkpointer.save() for _ in range(30)} - {tmp_path / "ckpt-0"}
    finally:
        sys.setswitchinterval(interval)
        done.set()
        for thread in threads:
            thread.join()
    assert len(prefixes) > 5, "the writer has not come to write"
    restored = make_shared()
    for prefix in prefixes:
        info = checkpoint_files.read_info(prefix)
        checkpoint.restore(info, restored)
        number = info.counters["updates"]
        assert number == info.counters["steps"] == int(prefix.name.removeprefix("ckpt-"))
        for array in (*restored.weights.values(), *restored.mean_squares.values()):
            np.testing.assert_array_equal(array, np.full(array.shape, number, np.float32))


def test_a_gate_that_stays_open_lets_two_moments_into_one_checkpoint(tmp_path):
    """Analytic: negative control of the test before: saved while a writer is half way through."""

    class DoorThatStaysOpen(Gate):
        @contextlib.contextmanager
        def shut(self):
            yield

    shared = make_shared()
    shared.gate = DoorThatStaysOpen()
    checkpointer = make_checkpointer(tmp_path, shared)
    variables = [*shared.weights.values(), *shared.mean_squares.values()]
    for variable in variables:
        variable.assign(tf.zeros(variable.shape))
    half_way, saved = threading.Event(), threading.Event()

    def stamp() -> None:
        with shared.gate:
            for i, variable in enumerate(variables):
                if i == len(variables) // 2:
                    half_way.set()
                    saved.wait()
                variable.assign(tf.ones(variable.shape))

    thread = threading.Thread(target=stamp, daemon=True)
    thread.start()
    half_way.wait()
    prefix = checkpointer.save()
    saved.set()
    thread.join()
    restored = make_shared()
    checkpoint.restore(checkpoint_files.read_info(prefix), restored)
    stamps = {
        number
        for variable in (*restored.weights.values(), *restored.mean_squares.values())
        for number in variable.numpy().flat
    }
    assert stamps == {0, 1}


def test_find_takes_any_of_a_checkpoints_names(made):
    """Analytic: a run folder, its checkpoints, the prefix, or any of its three files."""
    names = ("", ".json", ".index", ".data-00000-of-00001")
    paths = [made.with_name(made.name + end) for end in names]
    assert [checkpoint_files.find(path) for path in (made.parent.parent, made.parent, *paths)] == (
        [made] * 6
    )


def test_find_takes_the_newest_by_its_number(tmp_path):
    """Analytic: 1000 comes after 999, though not in the order of names; foreign files are none."""
    for name in ("ckpt-999", "ckpt-1000", "ckpt-5", "ckpt-x", "ckpt-", "ckpt-7000.json", "other-9"):
        (tmp_path / f"{name}.json").touch()
    (tmp_path / "ckpt-2000.index").touch()
    assert checkpoint_files.find(tmp_path) == tmp_path / "ckpt-1000"


@pytest.mark.parametrize(
    "name",
    ["", "missing", "missing/ckpt-5", "empty/ckpt-5.index", "empty", ".json", "..", "x" * 300],
)
def test_what_is_not_there_is_refused(tmp_path, monkeypatch, name):
    """Analytic: no path that names no checkpoint gets another answer than one line."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path / "empty")
    for path in (pathlib.Path(name), tmp_path / name, tmp_path / "file" / name):
        with pytest.raises(UnusableCheckpoint, match=r"^no checkpoint .*\Z"):
            checkpoint_files.find(path)


def cut(path: pathlib.Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip_a_byte(path: pathlib.Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path: pathlib.Path) -> None:
    path.write_bytes(b"")


def take_away(path: pathlib.Path) -> None:
    path.unlink()


def make_a_folder(path: pathlib.Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("ending", [".json", ".index", ".data-00000-of-00001"])
@pytest.mark.parametrize("damage", [cut, flip_a_byte, empty, take_away, make_a_folder])
def test_a_damaged_file_is_refused_by_name(copy, ending, damage):
    """Analytic: one byte less or one bit other, in any of the files, and nothing is read."""
    checkpoint_files.read_info(copy)  # which it can, undamaged
    path = copy.with_name(copy.name + ending)
    # The JSON's last byte is a newline, which nobody would miss.
    path.write_bytes(path.read_bytes().rstrip(b"\n") if ending == ".json" else path.read_bytes())
    damage(path)
    with pytest.raises(UnusableCheckpoint) as error:
        checkpoint_files.read_info(copy)
    assert path.name in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_a_file_that_is_not_there_has_no_checksum(copy):
    """Analytic: no JSON makes its absence right."""
    copy.with_name(f"{copy.name}.index").unlink()
    content = json.loads(copy.with_name(f"{copy.name}.json").read_text())
    edit_json(copy, files=content["files"] | {f"{copy.name}.index": None})
    with pytest.raises(UnusableCheckpoint, match="files"):
        checkpoint_files.read_info(copy)


def test_a_json_is_on_the_disk_before_it_takes_another_ones_place(tmp_path, monkeypatch):
    """Analytic: all of it, or a power cut would leave an empty file."""
    sizes = []
    monkeypatch.setattr(
        checkpoint_files.os, "fsync", lambda number: sizes.append(os.fstat(number).st_size)
    )
    prefix = make_checkpointer(tmp_path, make_shared(5, COUNTS)).save()
    assert prefix.with_name(f"{prefix.name}.json").stat().st_size in sizes


def test_a_jsons_checksum_is_as_it_always_was():
    """Golden: or no checkpoint of before could be read; the order of its entries does not matter."""
    golden = "c912a251d940de4350b8f9d331742e45e769a5405686ca7bbaf7a143c523ae99"
    assert checkpoint_files._checksum({"b": 1, "a": [2.5, None]}) == golden
    assert checkpoint_files._checksum({"a": [2.5, None], "b": 1}) == golden


def test_both_tensor_files_of_another_checkpoint_are_refused(copy, tmp_path):
    """Analytic: a whole checkpoint's files under another's name do not pass for its own."""
    other = make_checkpointer(tmp_path / "other", make_shared(5, COUNTS)).save()
    for ending in (".index", ".data-00000-of-00001"):
        shutil.copy(f"{other}{ending}", f"{copy}{ending}")
    with pytest.raises(UnusableCheckpoint, match=r"checksum is not the one in ckpt-70\.json"):
        checkpoint_files.read_info(copy)


NOT_OURS = {
    "no JSON": b"weights",
    "not UTF-8": b"\xff\xfe" * 1000,
    "a list": b"[]",
    "a number": b"3",
    "null": b"null",
    "empty": b"{}",
    "deep lists": b"[" * 100_000 + b"]" * 100_000,
    "deep objects": b'{"format_version":' * 100_000 + b"1" + b"}" * 100_000,
    "a long number": b'{"format_version": ' + b"9" * 10_000 + b"}",
    "a lone surrogate": b'{"format_version": "\\ud800\\n"}',
}


@pytest.mark.parametrize("content", NOT_OURS.values(), ids=NOT_OURS)
def test_a_json_that_is_not_ours_is_refused(copy, content):
    """Analytic: whatever stands in the JSON's place ends in one short line."""
    copy.with_name(copy.name + ".json").write_bytes(content)
    with pytest.raises(UnusableCheckpoint, match=r"^.{1,400}\Z"):
        checkpoint_files.read_info(copy)


WRONG = {
    "format_version": [2, "1", None, True, "x\ny"],
    "env_id": [7, None, []],
    "preprocessing": [7, None],
    "network": [7, None],
    "observation_shape": [4, "4", ["4"], [4.0], [True], None, {"4": 1}],
    "n_actions": ["2", 2.0, None, True],
    "params": [[], None, "x", [["a", 1]]],
    "counters": [
        [],
        None,
        {},
        {"steps": 1},
        {"steps": "1", "updates": 1, "games": 1, "frames": 1},
        {"steps": -1, "updates": 1, "games": 1, "frames": 1},
        {"steps": 1.5, "updates": 1, "games": 1, "frames": 1},
        {"steps": 1, "updates": 1, "games": 1, "frames": 1, "more": 1},
    ],
    "contains": [5, None, "mean_squares", [], ["mean_squares"]],
    "files": [[], None, {}, "x"],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG.items() for value in values]
)
def test_an_entry_of_the_wrong_type_is_refused(copy, name, value):
    """Analytic: also where the checksum fits, so that nothing later trips over it."""
    edit_json(copy, **{name: value})
    with pytest.raises(UnusableCheckpoint, match=r"^.{1,400}\Z"):
        checkpoint_files.read_info(copy)


@pytest.mark.parametrize("name", WRONG)
def test_a_missing_entry_is_refused(copy, name):
    """Analytic: each entry of the JSON is needed."""
    path = copy.with_name(copy.name + ".json")
    content = json.loads(path.read_text())
    del content[name], content["checksum"]
    path.write_text(json.dumps(content | {"checksum": checkpoint_files._checksum(content)}))
    with pytest.raises(UnusableCheckpoint, match=name):
        checkpoint_files.read_info(copy)


def test_an_edit_shows(copy):
    """Analytic: without a new checksum, no entry can be changed unseen."""
    for name, value in {"env_id": "Acrobot-v1", "counters": {"steps": 1}, "more": 1}.items():
        edit_json(copy, resealed=False, **{name: value})
        with pytest.raises(UnusableCheckpoint, match="is damaged: its checksum"):
            checkpoint_files.read_info(copy)


def test_a_mismatch_names_both_values(made):
    """Analytic: for each part of what a network was made for."""
    info = checkpoint_files.read_info(made)
    checkpoint.check_fits(info, SUBJECT)
    for name, value, words in (
        ("env_id", "Acrobot-v1", "env id 'CartPole-v1', this run has 'Acrobot-v1'"),
        ("preprocessing", "pong", "preprocessing 'generic', this run has 'pong'"),
        ("network", "small", "network 'mlp', this run has 'small'"),
        ("observation_shape", (6,), r"observation shape (4,), this run has (6,)"),
        ("n_actions", 3, "n actions 2, this run has 3"),
    ):
        with pytest.raises(UnusableCheckpoint) as error:
            checkpoint.check_fits(info, SUBJECT._replace(**{name: value}))
        assert str(error.value) == f"{made} was made with {words}"


def test_of_a_file_with_weights_only_the_weights_come_back(made, tmp_path):
    """Golden: the statistics stay where the run's settings start them."""
    whole = checkpoint_files.read_info(made)
    checkpoint.save_weights(whole, make_shared().weights, tmp_path)
    info = checkpoint_files.read_info(checkpoint_files.find(tmp_path))
    assert info == whole._replace(prefix=info.prefix, has_statistics=False, position=None)
    of_both = [prefix.with_name(f"{prefix.name}.index") for prefix in (made, info.prefix)]
    assert [b"mean_squares" in index.read_bytes() for index in of_both] == [True, False]
    restored = make_shared(seed=2)
    mean_squares = arrays(restored.mean_squares)
    checkpoint.restore(info, restored)
    assert_same(arrays(restored.weights), arrays(make_shared(seed=0).weights))
    assert_same(arrays(restored.mean_squares), mean_squares)


@pytest.mark.parametrize(
    "shapes",
    [
        SHAPES | {"second_kernel": (3, 2)},
        SHAPES | {"third_kernel": (1, 1)},
    ],
    ids=["another shape", "one more"],
)
def test_tensors_of_another_network_are_refused(made, monkeypatch, shapes):
    """Analytic: should the JSON and the tensors disagree, no half-restored network trains on."""
    monkeypatch.setitem(globals(), "SHAPES", shapes)
    with pytest.raises(UnusableCheckpoint, match=r"^cannot restore .*\Z"):
        checkpoint.restore(checkpoint_files.read_info(made), make_shared())


def test_only_the_newest_stay(tmp_path):
    """Analytic: of 5 checkpoints 2 are kept, each whole, and nothing of the others."""
    shared = make_shared()
    checkpointer = make_checkpointer(tmp_path, shared, n_kept=2)
    for _ in range(5):
        shared.counters.add_update(10, 10, 0)
        checkpointer.save()
    kept = [
        f"ckpt-{n}{ending}"
        for n in (40, 50)
        for ending in (".data-00000-of-00001", ".index", ".json")
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == kept
    assert checkpoint_files.find(tmp_path) == tmp_path / "ckpt-50"
    for n in (40, 50):
        assert checkpoint_files.read_info(tmp_path / f"ckpt-{n}").counters["steps"] == n


def test_a_save_that_fails_shows_nothing_of_itself(tmp_path, monkeypatch):
    """Analytic: when the disk is full, the checkpoint before stays the newest one."""
    shared = make_shared()
    checkpointer = make_checkpointer(tmp_path, shared)
    before = checkpointer.save()
    shared.counters.add_update(10, 10, 0)
    for failing in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(*_failing(failing))
            with pytest.raises(CannotSave, match=r"^cannot save .*/ckpt-10: no space left"):
                checkpointer.save()
        assert checkpoint_files.find(tmp_path) == before
        # Nor does it take up room.
        assert {path.name.split(".")[0] for path in tmp_path.iterdir()} == {"ckpt-0"}
        with pytest.raises(UnusableCheckpoint):
            checkpoint_files.find(tmp_path / "ckpt-10")
    shared.counters.add_update(10, 10, 0)
    assert checkpoint_files.find(tmp_path / checkpointer.save().name) == tmp_path / "ckpt-20"


def _failing(name: str) -> tuple[object, str, object]:
    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    return (checkpoint_files.os, name, fail) if name == "fsync" else (pathlib.Path, name, fail)


def test_saving_again_without_a_step_between_leaves_a_whole_checkpoint_at_every_moment(
    tmp_path, monkeypatch
):
    """Analytic: a run that is stopped before its first update saves step 0 twice."""
    checkpointer = make_checkpointer(tmp_path)
    prefix = checkpointer.save()
    with monkeypatch.context() as patch:
        patch.setattr(*_failing("fsync"))
        with pytest.raises(CannotSave, match="no space"):  # as if killed before the JSON
            checkpointer.save()
    checkpoint_files.read_info(prefix)
    assert checkpointer.save() == prefix
    checkpoint_files.read_info(prefix)


def test_reading_needs_no_tensorflow(made):
    """Analytic: so bad input is answered at once."""
    script = """if True:
        import pathlib, sys
        from a3c.store import checkpoint, checkpoint_files
        info = checkpoint_files.read_info(checkpoint_files.find(pathlib.Path(sys.argv[1])))
        checkpoint.check_fits(info, info.subject)
        print(info.counters["steps"], "tensorflow" in sys.modules, "numpy" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", script, str(made.parent)], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("70 False False\n", "")


def test_what_writing_left_behind_is_removed(tmp_path):
    """Golden: TensorFlow's folder and files, and the half of a JSON; nothing of a checkpoint."""
    (tmp_path / "ckpt-5_temp").mkdir()
    (tmp_path / "ckpt-5_temp/part-00000-of-00001.index").touch()
    for name in ("ckpt-5.json.tmp", "ckpt-5.tempstate123", "ckpt-5.index", "ckpt-4.index", "notes"):
        (tmp_path / name).touch()
    checkpoint_files.delete_unfinished(tmp_path / "ckpt-5")
    assert {path.name for path in tmp_path.iterdir()} == {"ckpt-4.index", "notes"}


def test_nothing_is_saved_where_another_run_has_its_folder(tmp_path):
    """Analytic: nor is anything deleted, older checkpoints and what looks unfinished included."""
    taken = []
    checkpointer = Checkpointer(
        *(tmp_path, make_shared(), SUBJECT, PARAMS), n_kept=1, is_taken_over=lambda: bool(taken)
    )
    prefix = checkpointer.save()
    (tmp_path / "ckpt-900_temp").mkdir()
    (tmp_path / "ckpt-900.json").touch()
    before = sorted(tmp_path.rglob("*"))
    taken.append(True)
    with pytest.raises(CannotSave, match=f"cannot save {prefix}: another run has its folder there"):
        checkpointer.save()
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["delete_unfinished", "delete_all_but"])
def test_what_cannot_be_tidied_up_is_left(tmp_path, monkeypatch, name):
    """Analytic: a folder closed to us is no reason to end; with nothing saved, that alone is told."""

    def refused(*arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    checkpointer = make_checkpointer(tmp_path, make_shared())
    monkeypatch.setattr(checkpoint_files, name, refused)
    if name == "delete_unfinished":
        monkeypatch.setattr(checkpoint_files, "write_json", refused)
        with pytest.raises(CannotSave, match="Permission denied"):
            checkpointer.save()
    else:
        assert checkpoint_files.read_info(checkpointer.save())
