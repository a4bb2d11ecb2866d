"""Going on in the same folder: bit for bit where games begin, and in clear words where it cannot."""

import csv
import json
import math
import os
import pathlib
import shutil
import sys
import types

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

import train
from a3c import contract
from a3c.agent import network
from a3c.play import evaluator
from a3c.run import training
from a3c.settings import command_line
from a3c.settings.params import BadInput
from a3c.store import checkpoint_files, events, resume, run_folder
from tests.tools import processes

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

DRAWN = "tests.tools.toys:toys/Drawn-v0"
BRITTLE = "tests.tools.toys:toys/Brittle-v0"
PONG = "tests.tools.toys:toys/ShortPong-v0"


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch):
    """Runs of train.py's main in this process, each in a folder below an empty one."""
    monkeypatch.setattr(network, "start_tensorflow", lambda: None)
    monkeypatch.chdir(tmp_path)
    with processes.handlers_kept():
        yield tmp_path


def run(*arguments: str) -> int:
    if arguments[0] == "--resume":  # these environments have modules, which must be named
        env_id = run_folder.read_args(arguments[1]).params.env_id
        return train.main([*arguments, env_id])
    return train.main(["--no_xla", *arguments])


def games(folder: str) -> list[tuple[str, ...]]:
    """File, score and length of every game."""
    return [
        (path.name, *line.split(",")[:2])
        for path in sorted(pathlib.Path(folder, "monitor").iterdir())
        for line in path.read_text().splitlines()[2:]
    ]


def tensors(folder: str) -> dict[str, bytes]:
    """Weights and statistics of the newest checkpoint."""
    reader = tf.train.load_checkpoint(str(checkpoint_files.find(pathlib.Path(folder))))
    return {
        name: reader.get_tensor(name).tobytes()
        for name in sorted(reader.get_variable_to_shape_map())
        if name.startswith(("weights/", "mean_squares/"))
    }


def info(folder: str) -> checkpoint_files.Info:
    return checkpoint_files.read_info(checkpoint_files.find(pathlib.Path(folder)))


def rows(folder: str) -> list[dict[str, str]]:
    with pathlib.Path(folder, "progress.csv").open(newline="") as file:
        return list(csv.DictReader(file))


# Bit for bit


@pytest.mark.parametrize(
    ("env_id", "flags", "n_steps"),
    [
        (DRAWN, "--network mlp", (60, 120, 200)),
        (
            DRAWN,
            "--network mlp --envs_per_worker 2 --seed 3 --initial_lr 1e-3 --lr_schedule linear"
            " --lr_decay_to_zero_by_n_steps 500",
            (200, 400),
        ),
        (PONG, "--network small --steps_per_update 35 --max_n_noops 0", (105, 210)),
    ],
    ids=["vectors", "two environments", "frames"],
)
def test_a_run_that_is_resumed_where_games_begin_is_the_one_never_stopped(env_id, flags, n_steps):
    """Golden: weights, statistics, games, counters, and where draws and games stand; to the bit."""
    assert run(*flags.split(), "--log_dir", "whole", "--n_steps", str(n_steps[-1]), env_id) == 0
    first, *more = map(str, n_steps)
    assert run(*flags.split(), "--log_dir", "parts", "--n_steps", first, env_id) == 0
    for n in more:
        assert run("--resume", "parts", "--n_steps", n) == 0
    assert len(tensors("whole")) >= 20
    assert tensors("whole") == tensors("parts")
    assert games("whole") == games("parts")
    assert len(games("whole")) >= 6
    one, other = info("whole"), info("parts")
    assert one.counters["steps"] == n_steps[-1]
    assert {**one.counters, "frames": 0} == {**other.counters, "frames": 0}
    assert one.position.workers == other.position.workers
    # The window of the last 100 games goes on, too.
    mean = "rl/episode_reward_mean_100"
    assert rows("whole")[-1][mean] == rows("parts")[-1][mean]


def test_in_the_middle_of_games_new_ones_begin_with_numbers_that_were_not_used():
    """Analytic: of games of 5 steps, the fifth is under way at 21. It has no row and no count; games 5 to 8
    are played, none of the numbers twice, and weights go on from what was saved, elsewhere than before.
    """
    flags = ["--network", "mlp", "--steps_per_update", "7"]
    assert run(*flags, "--log_dir", "whole", "--n_steps", "42", DRAWN) == 0
    assert run(*flags, "--log_dir", "parts", "--n_steps", "21", DRAWN) == 0
    before = info("parts")
    (worker,) = before.position.workers
    assert (worker.next_games, worker.n_rows, before.counters["games"]) == ([5], [4], 4)
    assert run("--resume", "parts", "--n_steps", "42") == 0
    after = info("parts")
    assert after.counters["steps"] == 42
    assert after.counters["games"] == len(games("parts")) == 4 + 21 // 5
    assert after.position.workers[0].next_games == [5 + 21 // 5 + 1]
    assert games("parts")[:4] == games("whole")[:4]
    assert len(games("whole")) == 42 // 5
    assert tensors("parts") != tensors("whole")


@pytest.mark.parametrize("n_envs", [1, 2])
def test_so_is_a_run_whose_environments_break(n_envs):
    """Golden: in both halves; the streams of games that were abandoned are not used again, these games have
    no rows, and the count of restarts goes on.
    """
    flags = ["--network", "mlp", "--envs_per_worker", str(n_envs), "--seed", "2"]
    n_steps = [50, 100] if n_envs == 1 else [60, 120]
    assert run(*flags, "--log_dir", "whole", "--n_steps", str(n_steps[1]), BRITTLE) == 0
    assert run(*flags, "--log_dir", "parts", "--n_steps", str(n_steps[0]), BRITTLE) == 0
    n_before = info("parts").position.n_env_restarts
    assert run("--resume", "parts", "--n_steps", str(n_steps[1])) == 0
    assert tensors("whole") == tensors("parts")
    assert games("whole") == games("parts")
    one, other = info("whole"), info("parts")
    assert {**one.counters, "frames": 0} == {**other.counters, "frames": 0}
    assert one.counters["games"] == len(games("whole")) == one.counters["steps"] / 5
    assert one.position.workers == other.position.workers
    n_restarts = one.position.n_env_restarts
    assert 0 < n_before < n_restarts == other.position.n_env_restarts == 5
    # Each broken one takes its game's number and the next.
    (worker,) = one.position.workers
    assert sum(worker.next_games) == one.counters["games"] + 2 * n_restarts
    for folder in ("whole", "parts"):
        counts = [int(row["misc/env_restarts"]) for row in rows(folder)]
        assert counts[-1] == n_restarts
        assert counts == sorted(counts)


def test_a_console_on_a_full_disk_stops_nothing(monkeypatch):
    """Analytic: from its first line on; what the run writes elsewhere is all there."""
    with open("/dev/full", "w") as console:
        monkeypatch.setattr("sys.stdout", console)
        flags = ["--network", "mlp", "--n_steps", "20", "--log_dir", "run"]
        assert run(*flags, DRAWN) == 0
    assert info("run").counters["steps"] == 20
    assert pathlib.Path("run/log.txt").read_text().startswith("run folder: run\nstarting ")


# What is cut back, and what is refused


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory):
    """A run of two workers with checkpoints at 0, 40 and 80 steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "start_tensorflow", lambda: None)
        patch.chdir(tmp_path_factory.mktemp("made"))
        flags = ["--network", "mlp", "--n_workers", "2", "--log_dir", "run"]
        with processes.handlers_kept():
            assert run(*flags, "--n_steps", "40", DRAWN) == 0
            assert run("--resume", "run", "--n_steps", "80") == 0
        yield pathlib.Path("run").absolute()


@pytest.fixture
def copy(two_checkpoints, work):
    """A copy of it, by the same name in the working directory."""
    return pathlib.Path(shutil.copytree(two_checkpoints, "run"))


def open_run(*given: str) -> resume.Run:
    named = [] if {DRAWN, "CartPole-v1"} & {*given} else [DRAWN]
    asked = command_line.parse(["--resume", "run", *given, *named])
    opened = resume.open_run(asked)
    opened.lock.close()
    return opened


def refusal(*given: str) -> str:
    with pytest.raises((BadInput, checkpoint_files.UnusableCheckpoint)) as error:
        open_run(*given)
    return str(error.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("", "run is finished: it has 80 steps of --n_steps 80"),
        ("--n_steps 70", "run is finished"),
        ("--initial_lr 1e-3 --n_steps 90", "--initial_lr is 1e-4"),
        ("--n_workers 3 --n_steps 90", "--n_workers is 2"),
        ("--seed 1", "--seed is 0"),
        ("--log_dir other", "--log_dir is run"),
        ("--preset paper", "--preset is ocd"),
        ("CartPole-v1", "env_id is tests.tools.toys:toys/Drawn-v0"),
        ("--lr_decay_to_zero_by_n_steps 100", "--lr_decay_to_zero_by_n_steps is none"),
    ],
)
def test_what_would_change_training_is_refused_by_name(copy, given, words):
    """Analytic: one line for each, and nothing in the folder changes but the lock."""
    before = {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()}
    line = refusal(*given.split())
    assert line.startswith(words)
    assert "\n" not in line
    assert {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()} == before


def test_a_module_is_not_imported_because_a_file_says_so(copy):
    """Analytic: whoever resumes the run names its environment, if that has one; nothing changes before."""
    before = {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()}
    args = json.loads((copy / "args.json").read_text())
    args["params"]["env_id"] = "this:X-v0"
    (copy / "args.json").write_text(json.dumps(args))
    with pytest.raises(BadInput, match="^run is of this:X-v0, which runs the code of a module: if"):
        resume.open_run(command_line.parse(["--resume", "run", "--n_steps", "90"]))
    assert "this" not in sys.modules
    (copy / "args.json").write_bytes(before[copy / "args.json"])
    assert open_run("--n_steps", "90").info.counters["steps"] == 80
    assert {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()} == before


def test_what_does_not_change_training_may_be_given_anew(copy):
    """Analytic: and so may what the run has anyway."""
    flags = ["--n_steps", "100", "--keep_ckpts", "5", "--detailed_logs", "--seed", "0", DRAWN]
    opened = open_run(*flags, "--env_timeout_seconds", "5")
    assert opened.changed == {
        "n_steps": (80, 100),
        "env_timeout_seconds": (60.0, 5.0),
        "keep_ckpts": (3, 5),
        "detailed_logs": (False, True),
    }
    assert opened.parsed.sources["keep_ckpts"] == "command line"
    assert opened.lines[0] == "resumed run/checkpoints/ckpt-80 at 80 steps"
    assert "  n_steps: 80 before, 100 now" in opened.lines


def test_the_schedules_end_is_frozen():
    """Analytic: more steps than that need a new end, and only those may have one."""
    saved = command_line.parse(["--preset", "paper", "--n_steps", "100", "X-v1"])
    assert saved.params.lr_decay_to_zero_by_n_steps == 100
    fewer = command_line.resumed(saved, {"n_steps": 90})
    assert (fewer.params.n_steps, fewer.params.lr_decay_to_zero_by_n_steps) == (90, 100)
    with pytest.raises(BadInput, match="past the end of the learning rate's schedule"):
        command_line.resumed(saved, {"n_steps": 101})
    with pytest.raises(BadInput, match="--lr_decay_to_zero_by_n_steps is 100 in the run"):
        command_line.resumed(saved, {"lr_decay_to_zero_by_n_steps": 200})
    with pytest.raises(BadInput, match="comes before the end of training"):
        command_line.resumed(saved, {"n_steps": 150, "lr_decay_to_zero_by_n_steps": 120})
    longer = command_line.resumed(saved, {"n_steps": 150, "lr_decay_to_zero_by_n_steps": 200})
    assert (longer.params.n_steps, longer.params.lr_decay_to_zero_by_n_steps) == (150, 200)
    assert longer.sources["lr_decay_to_zero_by_n_steps"] == "command line"


def test_a_run_under_way_is_not_resumed(copy):
    """Analytic: nor is one that another process resumes; when that is killed, the lock is gone."""
    script = (
        "import pathlib, sys, time; from a3c.store import run_folder;"
        "lock = run_folder.lock(pathlib.Path('run')); print('held', flush=True); time.sleep(600)"
    )
    process = processes.start(["-c", script], pathlib.Path("holder"), cwd=".")
    try:
        processes.wait_for_line(pathlib.Path("holder/stdout"), "held", process)
        assert refusal("--n_steps", "90") == "run is in use: a run is under way in it"
        process.kill()
        process.wait()
        assert open_run("--n_steps", "90").info.counters["steps"] == 80
    finally:
        processes.end(process)


@pytest.mark.parametrize("damage", ["cut", "flipped", "no json", "no tensors"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(copy, damage):
    """Analytic: it says which and why, and what came after that one is cut away."""
    tensors_file = copy / "checkpoints/ckpt-80.data-00000-of-00001"
    if damage == "cut":
        os.truncate(tensors_file, 100)
    elif damage == "flipped":
        content = bytearray(tensors_file.read_bytes())
        content[1000] ^= 1
        tensors_file.write_bytes(content)
    elif damage == "no json":
        (copy / "checkpoints/ckpt-80.json").unlink()
    else:
        tensors_file.unlink()
    opened = open_run("--n_steps", "90")
    assert opened.info.counters["steps"] == 40
    assert "run/checkpoints/ckpt-80." in opened.lines[0]
    assert opened.lines[0].endswith("; it is set aside, and the one before is taken")
    resume.cut_back(opened, [])
    assert checkpoint_files.find(copy).name == "ckpt-40"
    assert [row["misc/steps"] for row in rows("run")] == ["40"]
    assert len(games("run")) == info("run").counters["games"] == 8
    assert "ckpt-80" not in (copy / "log.txt").read_text()
    assert "traced in" in (copy / "log.txt").read_text()


def test_the_best_is_what_was_best_by_then(copy):
    """Analytic: of bests at 20, 40 and 60 steps, a run that goes on from 40 has those up to there; and keeps
    the newest of these, and what comes after, while it may have to go on from 40 again.
    """
    best = copy / "checkpoints/best"
    shutil.copytree(copy / "checkpoints", best)
    for path in list(best.iterdir()):
        if path.name.startswith("ckpt-40."):
            for n_steps in (20, 60):
                shutil.copy(path, path.with_name(path.name.replace("40", str(n_steps))))
        elif path.name.startswith(("ckpt-0.", "ckpt-80.")):
            path.unlink()
    (copy / "checkpoints/ckpt-80.json").unlink()
    resume.cut_back(open_run(), [])
    names = ["ckpt-20", "ckpt-40"]
    endings = (".data-00000-of-00001", ".index", ".json")
    assert sorted(path.name for path in best.iterdir()) == [n + e for n in names for e in endings]
    assert checkpoint_files.oldest(copy / "checkpoints") == 0
    for n_steps, kept in ((0, names), (39, names), (40, names[1:]), (80, names[1:])):
        checkpoint_files.delete_older(best, n_steps)
        assert sorted(path.stem for path in best.glob("*.json")) == kept


def test_evaluations_that_are_given_up_are_cut(copy):
    """Analytic: of 20, 40 and 60 steps, those up to the checkpoint stay; the one after is nobody's best."""
    table = copy / "evaluations.csv"
    kept = "steps,episode_reward_mean\n20,1.0\n40,2.0\n"
    table.write_text(kept + "60,3.0\n")
    (copy / "checkpoints/ckpt-80.json").unlink()
    resume.cut_back(open_run(), [])
    assert table.read_text() == kept
    assert evaluator.read_evaluations(table) == (2.0, 40)


def test_a_resumed_run_starts_a_session_for_tensorboard(copy):
    """Golden: what is logged beyond the checkpoint from then on is of the new timeline."""
    (copy / "checkpoints/ckpt-80.json").unlink()
    before = set(copy.glob("events*"))
    assert run("--resume", "run", "--n_steps", "90") == 0
    marks = [
        event.step
        for path in sorted(set(copy.glob("events*")) - before)
        for record in tf.compat.v1.io.tf_record_iterator(str(path))
        if (event := tf.compat.v1.Event.FromString(record)).HasField("session_log")
    ]
    assert marks == [41, 41]


def test_no_whole_checkpoint_is_told(copy):
    """Analytic: of all that there are, the newest one's trouble."""
    for path in copy.glob("checkpoints/*.index"):
        path.write_bytes(b"")
    assert refusal().startswith(
        "no checkpoint in run/checkpoints is whole: run/checkpoints/ckpt-80"
    )


def test_without_any_json_nothing_is_cut(copy):
    """Analytic: a run that has trained does not begin at its start, and keeps what it has."""
    for path in copy.glob("checkpoints/*.json"):
        path.unlink()
    before = {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()}
    assert refusal("--n_steps", "90").startswith("run has figures or games, but no checkpoint ")
    (copy / "progress.csv").unlink()
    assert refusal("--n_steps", "90").startswith("run has figures or games, but no checkpoint ")
    (copy / "progress.csv").write_bytes(before[copy / "progress.csv"])
    assert {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(
    "name", ["log.txt", "progress.csv", "monitor/1.0.monitor.csv", "lock", "checkpoints", "new"]
)
@pytest.mark.parametrize("what", ["link", "pipe"])
def test_nothing_is_written_through_a_link_or_a_pipe(copy, name, what):
    """Analytic: somebody else's folder could have a file of ours cut; what has no end is not read."""
    outside = pathlib.Path("outside").absolute()
    if (copy / name).is_dir():
        (copy / name).rename(outside)
    else:
        outside.write_text("a file\nof many\nlines\n")
        (copy / name).unlink(missing_ok=True)
    if what == "link":
        (copy / name).symlink_to(outside)
    else:
        os.mkfifo(copy / name)
    before = {p: p.read_bytes() for p in outside.rglob("*")} or outside.read_bytes()
    assert refusal("--n_steps", "90").startswith(f"run/{name} is a link or no file: ")
    assert ({p: p.read_bytes() for p in outside.rglob("*")} or outside.read_bytes()) == before


def test_half_written_lines_are_cut_and_whole_ones_stay(copy):
    """Analytic: a kill leaves half a row; a damaged row from before is nobody's to throw away."""
    progress, monitor = copy / "progress.csv", copy / "monitor/0.0.monitor.csv"
    before = progress.read_bytes(), monitor.read_bytes()
    for path in (progress, monitor):
        path.write_bytes(path.read_bytes() + b"80,5")
    (copy / "log.txt").write_text((copy / "log.txt").read_text() + "half a li")
    resume.cut_back(open_run("--n_steps", "90"), [])
    assert (progress.read_bytes(), monitor.read_bytes()) == before
    assert "half" not in (copy / "log.txt").read_text()


def test_a_damaged_head_takes_no_rows_with_it(copy):
    """Analytic: nobody can tell then which rows are of later steps; all stay, and that is said."""
    progress = copy / "progress.csv"
    damaged = progress.read_text().replace("misc/steps", "misc/stips", 1)
    progress.write_text(damaged)
    (copy / "checkpoints/ckpt-80.json").unlink()
    opened = open_run()
    resume.cut_back(opened, [])
    assert progress.read_text() == damaged
    assert opened.lines[-1] == "progress.csv has no column misc/steps: none of its rows is cut"


@pytest.mark.parametrize("left", ["half of the first", "half of the second"])
def test_half_a_head_of_a_monitor_file_is_written_anew(copy, left):
    """Analytic: the disk was full within its two lines, and then the process died."""
    path = copy / "monitor/0.0.monitor.csv"
    comment = path.read_text().splitlines(keepends=True)[0]
    path.write_text(comment[:9] if left == "half of the first" else comment + "r,")
    resume.cut_back(open_run("--n_steps", "90"), [])
    assert path.read_bytes() == b""


def test_a_table_that_would_fill_the_memory_is_not_read(copy):
    """Golden: none of ours is so large as 64 MiB."""
    assert resume.MAX_TABLE_BYTES == 2**26
    with (copy / "monitor/0.0.monitor.csv").open("ab") as file:
        file.truncate(resume.MAX_TABLE_BYTES + 1)
    assert "monitor/0.0.monitor.csv is larger than any of ours" in refusal("--n_steps", "90")


@pytest.mark.parametrize("make", [lambda _: None, pathlib.Path.mkdir], ids=["nothing", "a folder"])
def test_what_is_no_run_folder_is_refused(copy, make):
    """Golden: by what it lacks, and no lock is left there."""
    for name in ("args.json", "lock"):
        (copy / name).unlink()
    make(copy / "args.json")
    assert refusal() == "run is no run folder: it has no args.json"
    assert not (copy / "lock").exists()


def test_what_is_no_table_does_not_count_as_training(copy):
    """Analytic: a folder that some other program has left among the tables."""
    for path in [*copy.glob("checkpoints/*.json"), *copy.glob("monitor/*"), copy / "progress.csv"]:
        path.unlink()
    (copy / "monitor/.ipynb_checkpoints").mkdir()
    opened = open_run("--n_steps", "90")
    assert opened.info is None
    assert opened.lines[0] == "no checkpoint yet: the run begins at its start"


def test_a_run_that_began_with_anothers_checkpoint_has_none_of_its_own_at_first(copy):
    """Analytic: killed before it saved, it begins there once more, if that is named; and what it saves
    first is whole, though its steps are those of the other's.
    """
    flags = ["--load_ckpt", "run", "--network", "mlp", "--n_workers", "2", "--n_steps", "90"]
    assert run("--log_dir", "next", *flags, DRAWN) == 0
    folder = pathlib.Path("next")
    for path in [*folder.glob("checkpoints/*"), *folder.glob("monitor/*"), folder / "progress.csv"]:
        path.unlink()
    with pytest.raises(BadInput, match="next has no checkpoint yet, and began with run"):
        resume.open_run(command_line.parse(["--resume", "next", DRAWN]))
    assert run("--resume", "next", "--load_ckpt", "run") == 0
    assert info("next").counters["steps"] >= 90
    assert checkpoint_files.read_info(folder / "checkpoints/ckpt-80").counters["steps"] == 80


def test_a_run_leaves_a_folder_alone_that_another_has_taken(monkeypatch, capsys):
    """Analytic: moved away as it begins to train, and another's put in its place: it saves nothing there,
    says so, and ends with status 1.
    """
    train_run = training.train

    def taken_over(*arguments):
        pathlib.Path("mine").rename("moved")
        shutil.copytree("moved", "mine")
        return train_run(*arguments)

    monkeypatch.setattr(training, "train", taken_over)
    assert run("--log_dir", "mine", "--network", "mlp", "--n_steps", "40", DRAWN) == 1
    assert "another run has its folder there" in capsys.readouterr().err
    assert list(pathlib.Path("mine/checkpoints").iterdir()) == []


def test_rows_of_restarts_that_are_given_up_are_cut(copy):
    """Analytic: at the checkpoint's steps still; a row that does not know of restarts stays."""
    progress = copy / "progress.csv"
    header, *rest = progress.read_text().splitlines(keepends=True)
    where = header.rstrip().split(",").index("misc/env_restarts")
    fields = rest[-1].rstrip().split(",")
    unknown, later = (
        ",".join([*fields[:where], count, *fields[where + 1 :]]) + "\n" for count in ("nan", "1")
    )
    progress.write_text("".join([header, *rest, unknown, later]))
    standing = resume.cut_back(open_run("--n_steps", "90"), [])
    assert progress.read_text() == "".join([header, *rest, unknown])
    assert standing.n_env_restarts == 0


def test_the_time_that_a_run_stood_still_does_not_count(copy, monkeypatch):
    """Analytic: games go on from the last one's second, whatever hour it is; and so does the
    processor's time. A run without games has files that count from its start."""
    last = max(
        float(line.split(",")[2])
        for path in copy.glob("monitor/*")
        for line in path.read_text().splitlines()[2:]
    )
    monkeypatch.setattr(resume, "time", types.SimpleNamespace(time=lambda: 5e9))
    run = open_run("--n_steps", "90")
    run = run._replace(info=run.info._replace(position=run.info.position._replace(cpu_seconds=30)))
    standing = resume.cut_back(run, [])
    assert standing.t_start == pytest.approx(5e9 - last, abs=0.01)
    assert standing.cpu_seconds == 30
    for path in copy.glob("monitor/*"):
        head = path.read_text().splitlines(keepends=True)[:2]
        path.write_text("".join(head))
    assert resume._standing(run).t_start == json.loads(head[0][1:])["t_start"]


def test_a_restored_run_has_games_of_its_own(copy):
    """Analytic: by the count of games; after abandoned ones, whose numbers are beyond that, by these."""
    saved = info("run")
    assert saved.counters["games"] == 16
    assert train._first_games(0, 2, saved, None) == [17, 17]
    worker = saved.position.workers[0]._replace(next_games=[90])
    saved = saved._replace(position=saved.position._replace(workers=[worker]))
    assert train._first_games(1, 2, saved, None) == [90, 90]
    assert train._first_games(0, 1, None, None) is None


def test_the_folder_keeps_a_record_of_each_resumption(copy):
    """Analytic: from where, by which command, what was changed, which code, which
    processor; the first one stays."""
    resume.cut_back(open_run("--n_steps", "90"), ["--resume", "run", "--n_steps", "90"])
    first, second = run_folder.read_args(copy).resumed
    assert first["n_steps"] == 40
    assert second["n_steps"] == 80
    assert second["command"] == "python3 train.py --resume run --n_steps 90"
    assert second["changed"] == {"n_steps": [80, 90]}
    assert set(second) == {"n_steps", "command", "changed", "revision", "code", "cpu", "time"}
    assert second["code"] == run_folder.digest_of(ROOT)
    assert f"cpu: {second['cpu']}\n" in (copy / "versions.txt").read_text()
    assert run_folder.read_args(copy).params.n_steps == 90


def test_settings_that_differ_from_the_checkpoints_are_found(copy):
    """Analytic: args.json has no checksum, but the checkpoint has one, and the same settings."""
    content = json.loads((copy / "args.json").read_text())
    content["params"]["discount"] = 0.5
    (copy / "args.json").write_text(json.dumps(content))
    assert refusal("--n_steps", "90").startswith("run/args.json says discount 0.5, and ")


def test_another_environment_is_refused(copy):
    """Analytic: by what differs; what an older record does not know does not count."""
    opened = open_run("--n_steps", "90")
    same = dict(opened.args.environment)
    resume.check_environment(opened, same | {"new": 1})
    with pytest.raises(BadInput, match="sticky_actions 0.0, which now has 0.25"):
        resume.check_environment(opened, same | {"sticky_actions": 0.25})


def as_an_older_version_left_it(folder: pathlib.Path) -> None:
    """No positions, no lock, and neither a flag nor a figure that came later."""
    (folder / "lock").unlink()
    path = folder / "checkpoints/ckpt-80.json"
    content = json.loads(path.read_text())
    del content["position"], content["checksum"], content["params"]["keep_ckpts"]
    path.write_text(json.dumps(content | {"checksum": checkpoint_files._checksum(content)}))
    args = json.loads((folder / "args.json").read_text())
    del args["params"]["keep_ckpts"], args["sources"]["keep_ckpts"], args["resumed"]
    (folder / "args.json").write_text(json.dumps(args))
    progress = folder / "progress.csv"
    lines = [line.split(",", 1)[1] for line in progress.read_text().splitlines()]
    steps = [line.split(",", 1)[0] for line in progress.read_text().splitlines()]
    moved = [f"{line.split(',', 1)[1]},{n}" for line, n in zip(lines, steps, strict=True)]
    progress.write_text("\n".join(moved) + "\n")


def test_a_run_of_an_older_version_goes_on(copy, capsys):
    """Analytic: with games of new numbers; it says what is not known; the second time it is."""
    n_games = len(games("run"))
    as_an_older_version_left_it(copy)
    assert run("--resume", "run", "--n_steps", "120") == 0
    out = capsys.readouterr().out
    assert "it does not say where games and random draws stood: they begin anew" in out
    assert "  keep_ckpts: not recorded, taken as 3\n" in out
    assert [row["misc/steps"] for row in rows("run")] == ["40", "80", "120"]
    assert rows("run")[0]["misc/frames"] == "nan"
    assert float(rows("run")[-1]["misc/frames"]) >= 120
    assert len(games("run")) == n_games + 8 == info("run").counters["games"]
    position_now = info("run").position
    # 16 games were counted; those that begin now are number 17 and on.
    assert all(worker.next_games[0] >= 17 for worker in position_now.workers)
    assert sum(worker.n_rows[0] for worker in position_now.workers) == n_games + 8


def test_the_game_of_a_damaged_row_is_not_known(tmp_path):
    """Analytic: but counts, for the games' numbers; half a row at the end does not."""
    path = tmp_path / "0.0.monitor.csv"
    assert list(resume._read_games(path)) == []
    path.write_text("#{}\nr,l,t\n1.0,5,0.5\n1.0,\n2.0,6,1.5\n3.0,7")
    one, damaged, other = resume._read_games(path)
    assert (one, other) == ((1.0, 5, 0.5), (2.0, 6, 1.5))
    assert math.isnan(damaged[0])
    assert damaged[1:] == (0, 0.0)


def test_games_that_ended_after_an_old_checkpoint_was_written_are_cut(tmp_path):
    """Analytic: it was written 50 seconds after the file began to count."""
    prefix, path = tmp_path / "ckpt-10", tmp_path / "0.0.monitor.csv"
    path.write_text('#{"t_start": 1000.0, "env_id": "X-v0"}\nr,l,t\n')
    pathlib.Path(f"{prefix}.json").touch()
    os.utime(f"{prefix}.json", (1050.0, 1050.0))
    run = types.SimpleNamespace(info=types.SimpleNamespace(position=None, prefix=prefix))
    stays = resume._row_stays(run, path, 0, 0)
    assert [stays(5, ["1.0", "5", t]) for t in ("9", "50.0", "50.1", "999")] == [
        *(True, True, False, False)
    ]
    assert stays(1, ["r", "l", "t"])


def test_tensorboard_drops_the_abandoned_timeline(tmp_path):
    """Analytic: what was logged beyond the checkpoint is gone, what came up to it stays."""
    first = events.Events(tmp_path)
    for n_steps in (10, 20, 30, 40):
        first.scalars(n_steps, {"x": float(n_steps)})
    first.close()
    # Files are read in the order of their names, which begin with the second.
    (path,) = tmp_path.iterdir()
    path.rename(tmp_path / "events.out.tfevents.1700000000.host")
    second = events.Events(tmp_path)
    second.start_session(20)
    second.scalars(25, {"x": -25.0})
    second.close()
    shown = EventAccumulator(str(tmp_path)).Reload().Tensors("x")
    assert [event.step for event in shown] == [10, 20, 25]
    files = [tf.compat.v1.train.summary_iterator(str(file)) for file in tmp_path.iterdir()]
    assert [next(file).file_version for file in files] == ["brain.Event:2"] * 3


GENERATOR = np.random.default_rng(0).bit_generator.state
WORKER = {"generator": GENERATOR, "next_games": [3, 4], "n_rows": [3, 3]}


def test_a_position_survives_json():
    """Analytic: to the last of 128 bits; what was not counted yet is none."""
    whole = contract.Position([contract.WorkerPosition(**WORKER)] * 2, 1000, 7, 50)
    content = json.loads(json.dumps(whole.to_json()))
    assert contract.from_json(content) == whole
    del content["n_env_restarts"], content["cpu_seconds"]
    assert contract.from_json(content) == whole._replace(n_env_restarts=0, cpu_seconds=0)


@pytest.mark.parametrize(
    "changes",
    [
        {"workers": 3},
        {"workers": [[]]},
        {"log_bytes": -1},
        {"log_bytes": True},
        {"n_env_restarts": -1},
        {"n_env_restarts": 1.0},
        {"cpu_seconds": -1},
        {"more": 1},
        {"workers": [WORKER | {"next_games": []}]},
        {"workers": [WORKER | {"next_games": [1.0, 2]}]},
        {"workers": [WORKER | {"n_rows": [1]}]},
        {"workers": [WORKER | {"n_rows": [1, 2**70]}]},
        {"workers": [WORKER | {"generator": GENERATOR | {"bit_generator": "MT19937"}}]},
        {"workers": [WORKER | {"generator": GENERATOR | {"state": {"state": 1, "inc": 2}}}]},
        {"workers": [WORKER | {"generator": GENERATOR | {"state": {"state": 2**128, "inc": 1}}}]},
        {"workers": [WORKER | {"generator": GENERATOR | {"has_uint32": 2}}]},
        {"workers": [WORKER | {"generator": GENERATOR | {"uinteger": 2**32}}]},
        {"workers": [WORKER | {"generator": None}]},
    ],
)
def test_no_other_position_is_taken(changes):
    """Analytic: whatever a file may hold instead is refused before NumPy sees it."""
    with pytest.raises(ValueError, match="its position"):
        contract.from_json({"workers": [WORKER], "log_bytes": 5} | changes)
