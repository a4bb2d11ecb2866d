"""show_debug_data.py as its user meets it: the list, the pictures, where they go, and bad input."""

import hashlib
import os
import pathlib
import re
import subprocess
import sys
import tracemalloc

import cv2
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure

import show_debug_data
from tests.tools import processes

# A rollout's, and one more for its bootstrap.
N_STEPS = 3
TRAIN = ("observations", "actions", "rewards", "continues", "returns", "values", "advantages")


def line(update: int, purpose: str, name: str, array: np.ndarray) -> str:
    """As train.py --debug writes it; debug_dump_test.py has the form from tf.print itself."""
    shape = ",".join(map(str, array.shape))
    numbers = " ".join(f"{x:.9g}" if array.dtype.kind == "f" else str(x) for x in array.ravel())
    kind = f"dtype={array.dtype.name} shape={shape}"
    return f"A3C-DUMP update={update} purpose={purpose} name={name} {kind} [{numbers}]\n"


def observation(step: int, shape: tuple[int, ...]) -> np.ndarray:
    """What is seen at a step of the run, unlike any other step's."""
    rng = np.random.default_rng(step)
    if len(shape) == 3:
        return rng.integers(0, 256, shape, np.uint8)
    return rng.normal(size=shape).astype(np.float32)


def batch_of(update: int, shape: tuple[int, ...], n_steps: int = N_STEPS) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(update)
    steps = range(update * n_steps, (update + 1) * n_steps)
    numbers = rng.normal(size=(4, n_steps, 1)).astype(np.float32)
    return {
        "observations": np.stack([observation(step, shape)[None] for step in steps]),
        "actions": rng.integers(0, 3, (n_steps, 1), np.int32),
        "rewards": numbers[0],
        # The second step of each odd update ends an episode.
        "continues": np.array([[t != 1 or update % 2 == 0] for t in range(n_steps)], np.float32),
        "returns": numbers[1],
        "values": numbers[2],
        "advantages": numbers[3],
    }


def update_of(update: int, shape: tuple[int, ...], n_steps: int = N_STEPS) -> str:
    """All lines of one update."""
    batch = batch_of(update, shape, n_steps)
    after = observation((update + 1) * n_steps, shape)[None]
    acts = [line(update, "act", "observations", seen) for seen in batch["observations"]]
    trains = [line(update, "train", name, batch[name]) for name in TRAIN]
    return "".join([*acts, *trains, line(update, "bootstrap", "observations", after)])


def update_of_memory(update: int, n_dimensions: int = 3) -> str:
    """As update_of, of vectors, with continuous actions and a memory of five numbers; normalised."""
    rng = np.random.default_rng(update)
    actions = rng.normal(size=(N_STEPS, 1, n_dimensions)).astype(np.float32)
    states = [state_at(update * N_STEPS + t) for t in range(N_STEPS)]
    found = ""
    n_acts = 0
    for text in update_of(update, VECTORS).splitlines(keepends=True):
        found += text if "name=actions" not in text else line(update, "train", "actions", actions)
        if "purpose=act" in text:
            found += line(update, "act", "state", states[n_acts])
            n_acts += 1
        if "name=continues" in text:
            found += line(update, "train", "states", states[0][None])
    raw = line(update, "raw", "observations", observation(1, VECTORS)[None] * 1000)
    mean = line(update, "moments", "observations_mean", np.array([0.25, 1e-120, 3.0, 4.0]))
    n = line(update, "moments", "observations_n", np.array(5 * update))
    return n + mean + raw + found


def state_at(step: int) -> np.ndarray:
    """What is remembered before a step of the run: nothing before the fourth."""
    return np.random.default_rng(step).normal(size=(1, 5)).astype(np.float32) * (step != 3)


IMAGES = (12, 10, 4)
VECTORS = (4,)


@pytest.fixture
def log(tmp_path: pathlib.Path) -> pathlib.Path:
    """Seven updates of images."""
    path = tmp_path / "debug.log"
    path.write_text("".join(update_of(update, IMAGES) for update in range(7)))
    return path


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> dict[str, Figure]:
    """Instead of being saved or shown, pictures are here by their names."""
    kept: dict[str, Figure] = {}
    monkeypatch.setattr(
        show_debug_data.Gallery, "put", lambda self, f: kept.setdefault(f.get_label(), f)
    )
    return kept


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in (*figure.texts, *figure.axes[0].texts)]


# The list


def test_each_dump_is_one_line(tmp_path, capsys, figures):
    """Golden: number, update, purpose, name, shape, type and the SHA-256 of its bytes."""
    log = tmp_path / "debug.log"
    log.write_text("a warning\n" + update_of(0, VECTORS) + "another\n" + update_of(1, VECTORS))
    assert show_debug_data.main([str(log)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    *lines, summary = out.splitlines()
    assert "pictures saved in " in summary
    seen = hashlib.sha256(observation(0, VECTORS).tobytes()).hexdigest()[:8]
    actions = hashlib.sha256(batch_of(1, VECTORS)["actions"].tobytes()).hexdigest()[:8]
    assert len(lines) == 2 * (N_STEPS + len(TRAIN) + 1)
    assert lines[0].split() == f"1 update 0 act observations 1x4 float32 {seen}".split()
    assert lines[15].split() == f"16 update 1 train actions 3x1 int32 {actions}".split()
    assert len({len(line) for line in lines}) == 1
    # The bootstrap's observation is the next one acted on: so its checksum says.
    assert lines[10].split()[3] == "bootstrap"
    assert lines[11].split()[3] == "act"
    assert lines[10].split()[-1] == lines[11].split()[-1]


@pytest.mark.parametrize(
    ("flags", "updates", "purposes", "names"),
    [
        (["--updates", "3-5"], {3, 4, 5}, {"act", "train", "bootstrap"}, {"act", "train"}),
        (["--updates", "6", "--purpose", "train"], {6}, {"train"}, {"train"}),
        (["--purpose", "act", "--updates", "0-1"], {0, 1}, {"act"}, {"act"}),
        (["--purpose", "bootstrap"], set(range(7)), {"bootstrap"}, {"bootstrap"}),
    ],
)
def test_only_what_is_asked_for(log, capsys, figures, flags, updates, purposes, names):
    """Analytic: in the list and in the pictures; numbers stay those of the whole log."""
    assert show_debug_data.main([str(log), *flags]) == 0
    *lines, _ = capsys.readouterr().out.splitlines()
    words = [line.split() for line in lines]
    assert {int(word[2]) for word in words} == updates
    assert {word[3] for word in words} == purposes
    n_in_update, offsets = N_STEPS + len(TRAIN) + 1, {"act": 0, "train": 3, "bootstrap": 10}
    for number, _, update, purpose, *_ in words:
        assert int(update) * n_in_update + offsets[purpose] < int(number)
    drawn = updates if "--updates" in flags else set(range(show_debug_data.N_UPDATES_DRAWN))
    course = {"returns-actions-values"} if "train" in names else set()
    assert set(figures) == {f"update-{u:04}-{n}" for u in drawn for n in names} | course


def test_a_damaged_line_is_named_and_the_rest_is_read(log, capsys, figures):
    """Analytic: its number on stderr; all other dumps are listed and drawn, and the status is 0."""
    lines = log.read_text().splitlines(keepends=True)
    lines[5] = lines[5].replace("]", "")  # the first update's rewards
    log.write_text("".join(lines)[:-20])
    assert show_debug_data.main([str(log)]) == 0
    out, err = capsys.readouterr()
    assert err.splitlines() == [
        "line 6 is damaged: its end is missing",
        "line 77 is damaged: its end is missing",
    ]
    assert len(out.splitlines()) == 75 + 1
    assert len(figures) == 11
    assert "reward" not in texts(figures["update-0000-train"])
    assert "reward" in texts(figures["update-0001-train"])


def test_a_second_run_in_the_log_is_listed_and_not_drawn(log, capsys, figures):
    """Analytic: its updates have the first run's numbers."""
    log.write_text(log.read_text() + update_of(0, VECTORS) + update_of(1, VECTORS))
    assert show_debug_data.main([str(log)]) == 0
    out, err = capsys.readouterr()
    assert re.fullmatch("another run begins, with update 0: .*\n", err)
    assert len(out.splitlines()) == 9 * 11 + 1
    assert figures["update-0000-act"].axes[0].images[0].get_array().shape == (36, 40, 3)


def test_an_update_of_two_runs_is_drawn_of_the_first_alone(log, capsys, figures):
    """Analytic: nothing between the two is asked for."""
    log.write_text(log.read_text() + "".join(update_of(update, VECTORS) for update in range(4)))
    assert show_debug_data.main([str(log), "--updates", "3"]) == 0
    out, err = capsys.readouterr()
    assert re.fullmatch("another run begins, with update 3: .*\n", err)
    assert len(out.splitlines()) == 2 * 11 + 1
    assert figures["update-0003-act"].axes[0].images[0].get_array().shape == (36, 40, 3)


def test_a_dump_without_numbers_is_no_error(log, capsys, figures):
    """Analytic: of a rollout of 5 steps with no environment."""
    empty = np.empty((5, 1, 0), np.float32)
    log.write_text(log.read_text() + line(7, "train", "rewards", empty))
    assert show_debug_data.main([str(log), "--updates", "7"]) == 0


# The pictures


def test_each_frame_is_at_its_place_to_the_pixel(log, tmp_path):
    """Parity: the saved pictures, frame by frame, enlarged by a whole factor; the same bytes each time."""
    for name in ("out", "again"):
        assert (
            show_debug_data.main([str(log), "--updates", "2", "--out", str(tmp_path / name)]) == 0
        )
    for path in (tmp_path / "out").iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()
    height, width, n_frames = IMAGES
    zoom, left, top = round(168 / width), 90, 90
    for purpose, n_rows in (("act", N_STEPS), ("train", N_STEPS + 1)):
        picture = cv2.imread(str(tmp_path / f"out/update-0002-{purpose}.png"))
        assert picture.shape[0] == top + n_rows * height * zoom + 20
        for i, j in np.ndindex(n_rows, n_frames):
            frame = observation(2 * N_STEPS + i, IMAGES)[:, :, j : j + 1].repeat(3, axis=2)
            enlarged = frame.repeat(zoom, axis=0).repeat(zoom, axis=1)
            y, x = top + i * height * zoom, left + j * width * zoom
            found = picture[y : y + height * zoom, x : x + width * zoom]
            # The lines between frames cover their edges.
            np.testing.assert_array_equal(found[3:-3, 3:-3], enlarged[3:-3, 3:-3], f"{i}, {j}")


@pytest.mark.parametrize("shape", [IMAGES, VECTORS])
def test_the_sheet_has_every_number_of_the_batch(tmp_path, figures, shape):
    """Analytic: rows named, each step's numbers in its row, a line where an episode ended."""
    log = tmp_path / "debug.log"
    log.write_text(update_of(0, shape) + update_of(1, shape))
    assert show_debug_data.main([str(log)]) == 0
    axes = figures["update-0001-train"].axes[0]
    rows: dict[float, list[str]] = {}
    for text in (text for text in axes.texts if text.get_transform() == axes.transAxes):
        rows.setdefault(round(text.get_position()[1], 3), []).append(text.get_text())
    batch = batch_of(1, shape)
    expected = [["action", "reward", "continue", "return", "value", "advantage"]] + [
        [f"step {t}", *(f"{batch[name][t, 0]:.4g}" for name in TRAIN[1:])] for t in range(N_STEPS)
    ]
    assert [rows[y] for y in sorted(rows, reverse=True)] == [*expected, ["bootstrap"]]
    (end,) = axes.lines if shape == VECTORS else axes.lines[-1:]
    assert list(end.get_ydata()) == [0.5, 0.5]  # between the second row and the third of four
    assert end.get_linestyle() == "--"
    in_first = figures["update-0000-train"].axes[0].lines
    assert all(line.get_linestyle() == "-" for line in in_first)
    if shape == VECTORS:  # each number is written in its field
        axes = figures["update-0000-act"].axes[0]
        seen = batch_of(0, VECTORS)["observations"][:, 0]
        np.testing.assert_array_equal(axes.images[0].get_array(), seen)
        in_fields = [text for text in axes.texts if text.get_transform() == axes.transData]
        fields = {text.get_position(): text.get_text() for text in in_fields}
        assert fields == {(j, i): f"{x:.3g}" for (i, j), x in np.ndenumerate(seen)}


def test_the_course_of_returns_values_rewards_and_actions(log, figures):
    """Parity: what is plotted is what was dumped, at the step of the run that it is of."""
    assert show_debug_data.main([str(log), "--updates", "2-5"]) == 0
    over_returns, over_rewards, over_actions = figures["returns-actions-values"].axes
    batches = [batch_of(update, IMAGES) for update in range(2, 6)]
    wanted = {name: np.concatenate([b[name][:, 0] for b in batches]) for name in TRAIN[1:]}
    steps = np.arange(2 * N_STEPS, 6 * N_STEPS)
    plotted = {line.get_label(): line for line in over_returns.lines}
    for label, name in (("return R", "returns"), ("value V(s)", "values")):
        np.testing.assert_array_equal(plotted[label].get_xdata(), steps)
        np.testing.assert_array_equal(plotted[label].get_ydata(), wanted[name])
    np.testing.assert_array_equal(over_actions.lines[0].get_ydata(), wanted["actions"])
    heights = [bar.get_height() for bar in over_rewards.containers[0]]
    np.testing.assert_allclose(heights, wanted["rewards"], rtol=1e-6)
    for panel in (over_returns, over_rewards, over_actions):
        ends = [line.get_xdata()[0] for line in panel.lines if line.get_linestyle() == "--"]
        # After the second step of updates 3 and 5.
        assert ends == [3 * N_STEPS + 1.5, 5 * N_STEPS + 1.5]


def test_memory_and_continuous_actions_are_drawn(tmp_path, capsys, figures):
    """Parity: an action's numbers each in a column and in the course, and the length of each state; what was
    normalised is listed only."""
    log = tmp_path / "debug.log"
    log.write_text(update_of_memory(0) + update_of_memory(1))
    assert show_debug_data.main([str(log)]) == 0
    *lines, _ = capsys.readouterr().out.splitlines()
    of_lines = [x.split()[3:7] for x in lines]
    assert ["moments", "observations_n", "int64"] in [[x[0], x[1], x[2]] for x in of_lines]
    assert ["moments", "observations_mean", "4", "float64"] in of_lines
    assert ["raw", "observations", "1x4", "float32"] in of_lines
    assert len({len(x) for x in lines}) == 1
    in_act, in_train = texts(figures["update-0001-act"]), texts(figures["update-0001-train"])
    lengths = [f"{np.linalg.norm(state_at(N_STEPS + t)):.4g}" for t in range(N_STEPS)]
    assert lengths[0] == "0"
    at = in_act.index("|state|")
    assert in_act[at + 1 : at + 1 + N_STEPS] == lengths
    assert in_train[in_train.index("|state|") + 1] == lengths[0]
    actions = [np.random.default_rng(update).normal(size=(N_STEPS, 3)) for update in (0, 1)]
    plotted = figures["returns-actions-values"].axes[2].lines
    for j in range(3):
        at = in_train.index(f"action[{j}]")
        assert in_train[at + 1 : at + 1 + N_STEPS] == [f"{x:.4g}" for x in actions[1][:, j]]
        of_course = np.concatenate(actions)[:, j]
        np.testing.assert_allclose(plotted[j].get_ydata(), of_course, rtol=1e-6)
    seen = batch_of(1, VECTORS)["observations"][:, 0]
    np.testing.assert_array_equal(figures["update-0001-act"].axes[0].images[0].get_array(), seen)


def test_where_a_time_limit_cut_an_episode_off_its_last_observation_is_shown(tmp_path, figures):
    """Analytic: among what was acted on, where it was looked at."""
    lines = update_of(0, IMAGES).splitlines(keepends=True)
    lines.insert(2, line(0, "last", "observations", observation(77, IMAGES)[None]))
    log = tmp_path / "debug.log"
    log.write_text("".join(lines))
    assert show_debug_data.main([str(log), "--updates", "0"]) == 0
    figure = figures["update-0000-act"]
    assert texts(figure)[1:] == ["step 0", "step 1", "cut off", "step 2"]
    third = figure.axes[0].images[0].get_array()[24:36]
    np.testing.assert_array_equal(third[:, :10, 0], observation(77, IMAGES)[:, :, 0])


def test_what_is_no_number_is_drawn_all_the_same(tmp_path, capsys, figures):
    """Analytic: a training that went astray is what one debugs."""
    log = tmp_path / "debug.log"
    text = update_of(0, VECTORS)
    for name, number in (("returns", "nan"), ("values", "-inf"), ("observations", "inf")):
        text = re.sub(rf"(name={name} .*?\[)[^ ]+", rf"\g<1>{number}", text)
    log.write_text(text)
    assert show_debug_data.main([str(log)]) == 0
    figures["returns-actions-values"].savefig(tmp_path / "course.png")
    figures["update-0000-act"].savefig(tmp_path / "act.png")
    assert {"nan", "-inf"} <= set(texts(figures["update-0000-train"]))
    assert capsys.readouterr().err == ""


def test_a_long_rollout_is_cut_and_says_so(tmp_path, figures):
    """Analytic: its first 40 rows."""
    log = tmp_path / "debug.log"
    log.write_text(update_of(0, VECTORS, n_steps=60))
    assert show_debug_data.main([str(log)]) == 0
    for name, n_rows in (("update-0000-act", 60), ("update-0000-train", 61)):
        assert figures[name].axes[0].images[0].get_array().shape == (40, 4)
        assert texts(figures[name])[0].endswith(f"(the first 40 of {n_rows})")
    assert len(figures["returns-actions-values"].axes[0].lines[0].get_xdata()) == 60


def test_what_is_not_drawn_is_not_kept(tmp_path, figures):
    """Analytic: a log ten times as long takes no more memory."""
    log = tmp_path / "debug.log"
    shape = (84, 84, 4)
    peaks = []
    for n_updates in (2, 2, 20):
        log.write_text("".join(update_of(update, shape) for update in range(n_updates)))
        figures.clear()
        tracemalloc.start()
        assert show_debug_data.main([str(log), "--updates", "0", "--purpose", "act"]) == 0
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 1.2 * peaks[1]


# Where the pictures go

SHOW = (
    "import show_debug_data, sys; status = show_debug_data.main();"
    " assert 'tensorflow' not in sys.modules; sys.exit(status)"
)


def environment(**more: str) -> dict[str, str]:
    """Without a display."""
    unwanted = ("DISPLAY", "WAYLAND_DISPLAY", "MPLBACKEND")
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return kept | {"PYTHONPATH": str(processes.ROOT)} | more


def test_without_a_display_it_saves_and_says_where(log):
    """Analytic: beside the log, even where windows are asked for; and TensorFlow is not needed."""
    command = [sys.executable, "-c", SHOW, "debug.log", "--updates", "0"]
    options = {"cwd": log.parent, "env": environment(MPLBACKEND="TkAgg")}
    done = subprocess.run(command, **options, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "pictures saved in debug.log.pictures: 3"
    pictures = sorted((log.parent / "debug.log.pictures").iterdir())
    assert [picture.name for picture in pictures] == [
        "returns-actions-values.png",
        "update-0000-act.png",
        "update-0000-train.png",
    ]
    assert all(cv2.imread(str(picture)).std() > 5 for picture in pictures)


def test_with_a_display_each_picture_is_shown_until_its_window_is_closed(log, monkeypatch, capsys):
    """Analytic: one window at a time, and nothing is saved."""
    shown = []

    def show() -> None:
        (number,) = plt.get_fignums()
        shown.append(plt.figure(number).get_label())

    monkeypatch.setattr(plt, "get_backend", lambda: "TkAgg")
    monkeypatch.setattr(plt, "switch_backend", lambda backend: None)
    monkeypatch.setattr(plt, "show", show)
    assert show_debug_data.main([str(log), "--updates", "1-2"]) == 0
    assert shown == [
        *("update-0001-act", "update-0001-train", "update-0002-act", "update-0002-train"),
        "returns-actions-values",
    ]
    assert plt.get_fignums() == []
    assert [path.name for path in log.parent.iterdir()] == ["debug.log"]
    assert capsys.readouterr().out.endswith("pictures shown: 5\n")


def test_a_reader_that_has_seen_enough_is_no_error(log, monkeypatch, capsys):
    """Analytic: as with `| head`."""
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert show_debug_data.main([str(log)]) == 0
    assert capsys.readouterr().err == ""


# Bad input


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing.log"], ["missing.log", "No such file"]),
        (["."], ["Is a directory"]),
        (["nul\0"], ["nul"]),
        (["empty.log"], ["empty.log", "no dump", "--debug"]),
        (["debug.log", "--updates", "9-12"], ["updates 0 to 6"]),
        (["debug.log", "--purpose", "last"], ["no dump that you ask for"]),
        (["debug.log", "--updates", "5-3"], ["5-3"]),
        (["debug.log", "--updates", "some"], ["some", "3-5"]),
        (["debug.log", "--out", "empty.log", "--updates", "0"], ["empty.log", "File exists"]),
        (["shapes.log"], ["update-0000-act"]),
    ],
)
def test_bad_input_gets_one_line_and_status_2(log, monkeypatch, capsys, arguments, words):
    """Analytic: the line names what is wrong; nothing is made."""
    folder = log.parent
    monkeypatch.chdir(folder)
    pathlib.Path("empty.log").touch()
    seen = [np.zeros(shape, np.uint8) for shape in ((1, 4, 3, 4), (1, 3, 4, 4))]
    pathlib.Path("shapes.log").write_text(
        "".join(line(0, "act", "observations", array) for array in seen)
    )
    before = sorted(folder.iterdir())
    assert show_debug_data.main(arguments) == 2
    err = capsys.readouterr().err
    assert re.fullmatch(r"show_debug_data\.py: error: [^\n]{1,1000}\n", err)
    for word in words:
        assert word in err
    assert sorted(folder.iterdir()) == before
