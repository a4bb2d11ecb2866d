"""Going on in the same folder: bit for bit where games begin, and in clear words where it cannot."""

import csv
import json
import os
import pathlib
import shutil
import sys
import types

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

import train
from a3c.contract import Counts, Position, Subject, WorkerPosition
from a3c.machine import tensorflow_process
from a3c.settings import command_line, params
from a3c.settings.params import BadInput
from a3c.store import checkpoint, provenance, resume, run_folder
from a3c.store.checkpoint import Checkpoint, UnusableCheckpoint
from a3c.store.resume import Start
from tests.tools import checkpoint_files, processes

DRAWN = "tests.tools.toys:toys/Drawn-v0"
BRITTLE = "tests.tools.toys:toys/Brittle-v0"
PONG = "tests.tools.toys:toys/ShortPong-v0"


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch):
    """Runs of train.py's main in this process, each in a folder below an empty one."""
    monkeypatch.setattr(tensorflow_process, "start_tensorflow", lambda: None)
    monkeypatch.chdir(tmp_path)
    with processes.handlers_kept():
        yield tmp_path


def run(*arguments: str) -> int:
    if arguments[0] == "--resume":  # these environments have modules, which must be named
        env_id = run_folder.read_args(arguments[1]).params.env_id
        return train.main([*arguments, env_id])
    return train.main(["--no_xla", *arguments])


def rows(folder: str | pathlib.Path, name: str = "progress.csv") -> list[dict[str, str]]:
    with pathlib.Path(folder, name).open(newline="") as file:
        if name == "monitor.csv":
            file.readline()
        return list(csv.DictReader(file))


def games(folder: str | pathlib.Path) -> list[dict[str, str]]:
    """Every game but for its time, in the order of steps."""
    kept = [
        {name: text for name, text in row.items() if name != "t"}
        for row in rows(folder, "monitor.csv")
    ]
    return sorted(kept, key=lambda row: [int(row[n]) for n in ("step", "worker", "env")])


def newest(folder: str | pathlib.Path) -> Checkpoint:
    return checkpoint.read(checkpoint.find(pathlib.Path(folder)))


def tensors(folder: str | pathlib.Path) -> dict[str, bytes]:
    """Weights and statistics of the newest checkpoint."""
    snapshot = newest(folder).snapshot
    parts = snapshot.weights.items(), snapshot.mean_squares.items()
    return {f"{i}/{name}": array.tobytes() for i, part in enumerate(parts) for name, array in part}


def assert_same_end(one: Checkpoint, other: Checkpoint) -> None:
    """But for frames, some of which belong to games that were under way at the end."""
    assert one.snapshot.counts._replace(frames=0) == other.snapshot.counts._replace(frames=0)
    assert one.position.workers == other.position.workers


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
    assert newest("whole").n_steps == n_steps[-1]
    assert_same_end(newest("whole"), newest("parts"))
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
    before = newest("parts")
    assert before.position.workers[0].next_games == [5]
    assert before.snapshot.counts.games == len(games("parts")) == 4
    assert run("--resume", "parts", "--n_steps", "42") == 0
    after = newest("parts")
    assert after.n_steps == 42
    assert after.snapshot.counts.games == len(games("parts")) == 4 + 21 // 5
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
    n_before = newest("parts").position.n_env_restarts
    assert run("--resume", "parts", "--n_steps", str(n_steps[1])) == 0
    assert tensors("whole") == tensors("parts")
    assert games("whole") == games("parts")
    one, other = newest("whole"), newest("parts")
    assert_same_end(one, other)
    n_games = one.snapshot.counts.games
    assert n_games == len(games("whole")) == one.n_steps / 5
    n_restarts = one.position.n_env_restarts
    assert 0 < n_before < n_restarts == other.position.n_env_restarts == 5
    # Each broken one takes its game's number and the next.
    (worker,) = one.position.workers
    assert sum(worker.next_games) == n_games + 2 * n_restarts
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
    assert newest("run").n_steps == 20
    assert pathlib.Path("run/log.txt").read_text().startswith("run folder: run\nstarting ")


# What is cut back, and what is refused: without a run

HEADS = {
    "monitor.csv": '#{"t_start": 1700000000.0, "env_id": "x"}\nr,l,t,step,worker,env\n',
    "progress.csv": "misc/steps,misc/env_restarts\n",
    "log.txt": "run folder: run\n",
}
ROWS = {
    "monitor.csv": ["1.0,5,9.5,20,0,0\n", "2.0,6,10.5,60,1,0\n", "3.0,7,20.5,85,0,0\n"],
    "progress.csv": ["40,0\n", "80,1\n", "85,2\n"],
    "log.txt": ["at 40\n", "at 80\n", "at 85\n"],
}
SUBJECT = Subject(DRAWN, "generic", "mlp", (2,), 2)


def write_run(*flags: str, steps: tuple[int, ...] = (0, 40, 80)) -> pathlib.Path:
    """A run that was killed some rows after its last checkpoint: two workers, of which one has
    drawn some numbers."""
    argv = ["--n_workers", "2", "--n_steps", "80", "--log_dir", "run", *flags, DRAWN]
    parsed = params.resolve_network(command_line.parse(argv), "vector")
    folder = run_folder.create(parsed, argv, {"kind": "vector", "sticky_actions": 0.0})
    drawn = np.random.default_rng(1)
    drawn.random(5)
    workers = [
        WorkerPosition(g.bit_generator.state, [n])
        for g, n in ((np.random.default_rng(0), 8), (drawn, 9))
    ]
    for name, head in HEADS.items():
        (folder.path / name).write_text(head)
    as_dict = vars(parsed.params).copy()
    for i, n_steps in enumerate((*steps, None)):
        if n_steps is not None:
            n_bytes = {name: (folder.path / name).stat().st_size for name in HEADS}
            position = Position(workers, n_bytes, n_env_restarts=i, cpu_seconds=30)
            made = checkpoint_files.make(
                folder.checkpoints, n_steps, position=position, params=as_dict
            )
            folder.save(made._replace(subject=SUBJECT))
        for name in HEADS if i < len(ROWS["log.txt"]) else ():
            with (folder.path / name).open("a") as file:
                file.write(ROWS[name][i])
    folder.close()
    return folder.path


def text_of(name: str, n_rows: int) -> str:
    return HEADS[name] + "".join(ROWS[name][:n_rows])


@pytest.fixture
def written(work):
    """Such a run, with checkpoints at 0, 40 and 80 steps, the last of them before its third rows."""
    return write_run()


def contents(folder: pathlib.Path) -> dict[pathlib.Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def open_run(*given: str) -> resume.Resumption:
    named = [] if {DRAWN, "CartPole-v1"} & {*given} else [DRAWN]
    opened = resume.open_run(command_line.parse(["--resume", "run", *given, *named]))
    opened.folder.close()
    return opened


def cut_back(*given: str) -> Start:
    return resume.cut_back(open_run(*given), Start(), ["--resume", "run", *given])


def refusal(*given: str) -> str:
    with pytest.raises((BadInput, UnusableCheckpoint)) as error:
        open_run(*given)
    assert str(error.value).isprintable()
    return str(error.value)


def break_newest() -> None:
    os.truncate("run/checkpoints/ckpt-80.safetensors", 100)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("", "run is already finished: it has 80 steps of --n_steps 80"),
        ("--n_steps 70", "run is already finished"),
        ("--initial_lr 1e-3 --n_steps 90", "--initial_lr is 1e-4"),
        ("--n_workers 3 --n_steps 90", "--n_workers is 2"),
        ("--seed 1", "--seed is 0"),
        ("--log_dir other", "--log_dir is run"),
        ("--preset paper", "--preset is ocd"),
        ("CartPole-v1", "env_id is tests.tools.toys:toys/Drawn-v0"),
        ("--lr_decay_to_zero_by_n_steps 100", "--lr_decay_to_zero_by_n_steps is none"),
    ],
)
def test_what_would_change_training_is_refused_by_name(written, given, words):
    """Analytic: one line for each, and nothing in the folder changes; nor is anybody locked out."""
    before = contents(written)
    assert refusal(*given.split()).startswith(words)
    assert contents(written) == before
    run_folder.open_existing(written).close()


def test_a_module_is_not_imported_because_a_file_says_so(written):
    """Analytic: whoever resumes the run names its environment, if that has one."""
    before = contents(written)
    args = json.loads((written / "args.json").read_text())
    args["params"]["env_id"] = "this:X-v0"
    (written / "args.json").write_text(json.dumps(args))
    with pytest.raises(BadInput, match="^run is of this:X-v0, which runs the code of a module: if"):
        resume.open_run(command_line.parse(["--resume", "run", "--n_steps", "90"]))
    assert "this" not in sys.modules
    (written / "args.json").write_bytes(before[written / "args.json"])
    assert open_run("--n_steps", "90").checkpoint.n_steps == 80
    assert contents(written) == before


def test_what_does_not_change_training_may_be_given_anew(written):
    """Analytic: and so may what the run has anyway."""
    flags = ["--n_steps", "100", "--keep_ckpts", "5", "--detailed_logs", "--seed", "0", DRAWN]
    opened = open_run(*flags, "--env_timeout_seconds", "5")
    assert opened.changed == {
        "n_steps": (80, 100),
        "env_timeout_seconds": (60.0, 5.0),
        "keep_ckpts": (3, 5),
        "detailed_logs": (False, True),
    }
    assert (opened.parsed.params.keep_ckpts, opened.parsed.sources["keep_ckpts"]) == (
        *(5, "command line"),
    )
    assert opened.lines[0] == "resumed run/checkpoints/ckpt-80.safetensors at 80 steps"
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


def test_a_run_under_way_is_not_resumed(written):
    """Analytic: nor is one that another process resumes; when that is killed, the lock is gone."""
    script = (
        "import pathlib, time; from a3c.store import run_folder;"
        "folder = run_folder.open_existing(pathlib.Path('run'));"
        "print('held', flush=True); time.sleep(600)"
    )
    process = processes.start(["-c", script], pathlib.Path("holder"), cwd=".")
    try:
        processes.wait_for_line(pathlib.Path("holder/stdout"), "held", process)
        assert refusal("--n_steps", "90") == "run is in use: a run is under way in it"
        process.kill()
        process.wait()
        assert open_run("--n_steps", "90").checkpoint.n_steps == 80
    finally:
        processes.end(process)


def test_tables_and_log_are_cut_to_the_checkpoints_lengths(written):
    """Analytic: whole rows beyond it, and half a one at the end; other files stay."""
    (written / "notes").write_text("mine")
    for name in HEADS:
        with (written / name).open("a") as file:
            file.write("half a li")
    start = cut_back("--n_steps", "90")
    for name in HEADS:
        assert (written / name).read_text() == text_of(name, 2), name
    assert (written / "notes").read_text() == "mine"
    assert start.counts == Counts(80, *checkpoint_files.COUNTS[1:])
    assert start.position.n_env_restarts == 2
    # Once more finds the same.
    assert cut_back("--n_steps", "90").last_games == start.last_games


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone", "of other steps"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(written, damage):
    """Analytic: it says which and why, sets it aside, and cuts off what came after the one before."""
    path = written / "checkpoints/ckpt-80.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1  # of an array: only the checksum tells
    match damage:
        case "cut":
            os.truncate(path, 100)
        case "flipped":
            path.write_bytes(content)
        case "gone":
            path.unlink()
        case _:
            shutil.copy(written / "checkpoints/ckpt-0.safetensors", path)
    opened = open_run("--n_steps", "90")
    assert opened.checkpoint.n_steps == 40
    if damage != "gone":
        assert "run/checkpoints/ckpt-80.safetensors" in opened.lines[0]
        assert opened.lines[0].endswith("; it is set aside, and the one before is taken")
    (written / "checkpoints/ckpt-90.safetensors.tmp").touch()
    start = resume.cut_back(opened, Start(), [])
    for name in HEADS:
        assert (written / name).read_text() == text_of(name, 1), name
    names = {"ckpt-0.safetensors", "ckpt-40.safetensors", "best"}
    assert {p.name for p in written.glob("checkpoints/*")} - {"best"} == names - {"best"} | (
        set() if damage == "gone" else {"damaged-ckpt-80.safetensors"}
    )
    assert start.checkpoint.path == written / "checkpoints/ckpt-40.safetensors"
    assert checkpoint.find(written) == start.checkpoint.path


def test_the_best_is_what_was_best_by_then(written):
    """Analytic: of bests at 20, 40 and 60 steps, a run that goes on from 40 has those up to there."""
    best = written / "checkpoints/best"
    best.mkdir()
    for n_steps in (20, 40, 60):
        checkpoint_files.save(best, n_steps)
    break_newest()
    cut_back()
    assert list(checkpoint.numbered(best)) == [20, 40]


@pytest.mark.parametrize("end", ["", "45", "60,3.0\n60,"])
def test_evaluations_that_are_given_up_are_cut(written, end):
    """Analytic: of 20, 40 and 60 steps, those up to the checkpoint stay, a damaged row among them as
    well, and no half row; the one after is nobody's best.
    """
    table = written / "evaluations.csv"
    kept = "steps,episode_reward_mean\n20,1.0\n\xff\n40,2.0\n"
    table.write_bytes((kept + end).encode("latin-1"))
    break_newest()
    cut_back()
    assert table.read_bytes() == kept.encode("latin-1")


def test_a_file_that_is_gone_is_told(written):
    """Analytic: the run goes on without it."""
    (written / "monitor.csv").unlink()
    opened = open_run("--n_steps", "90")
    resume.cut_back(opened, Start(), [])
    assert any(line.startswith("monitor.csv is missing") for line in opened.lines)


def test_a_checkpoint_without_statistics_is_not_gone_on_with(written):
    """Analytic: they would begin anew without a word."""
    path = checkpoint.find(written)
    found = checkpoint.read(path)
    checkpoint.write(found._replace(snapshot=found.snapshot._replace(mean_squares={})))
    assert "lacks RMSProp's statistics" in refusal("--n_steps", "90")


def test_a_file_that_lost_rows_is_told(written):
    """Analytic: what is left stays, without half a row, below which new ones would not be read."""
    for name in HEADS:
        path = written / name
        path.write_text(text_of(name, 1) + ROWS[name][1][:3])
    opened = open_run("--n_steps", "90")
    resume.cut_back(opened, Start(), [])
    for name in HEADS:
        assert (written / name).read_text() == text_of(name, 1), name
        assert f"{name} is shorter than at its checkpoint: lines are missing" in opened.lines


def test_no_whole_checkpoint_is_told(written):
    """Analytic: of all that there are, the newest one's trouble; nothing is cut."""
    for path in written.glob("checkpoints/*"):
        path.write_bytes(b"")
    before = contents(written)
    line = refusal()
    assert line.startswith("no checkpoint in run/checkpoints is whole: cannot read run/checkpoints")
    assert "ckpt-80" in line
    assert contents(written) == before


@pytest.mark.parametrize("left", ["monitor.csv", "progress.csv", "checkpoints/ckpt-5.index"])
def test_a_run_that_has_trained_does_not_begin_at_its_start(written, left):
    """Analytic: without any checkpoint it keeps what it has; one of the old form is told its revision."""
    for path in [*written.glob("checkpoints/*"), written / "monitor.csv", written / "progress.csv"]:
        if path != written / left:
            path.unlink()
    (written / left).touch()
    before = contents(written)
    line = refusal("--n_steps", "90")
    assert line.startswith("run has figures or games, but no checkpoint that this revision reads")
    assert "243b5dc" in line
    assert contents(written) == before


def test_a_run_without_a_checkpoint_begins_at_its_start(work):
    """Analytic: heads alone are no training, whatever the disk kept of them; they are written anew."""
    folder = write_run(steps=())
    for name in ("monitor.csv", "progress.csv"):
        (folder / name).write_text(HEADS[name][:-3])
    (folder / "checkpoints").rmdir()
    opened = open_run("--n_steps", "90")
    assert opened.checkpoint is None
    assert opened.lines[0] == "no checkpoint yet: the run begins at its start"
    begun = Start(t_start=5.0, lines=["begun"])
    start = resume.cut_back(opened, begun, [])
    assert start == begun._replace(lines=[*opened.lines, "begun"])
    assert (folder / "monitor.csv").read_bytes() == (folder / "progress.csv").read_bytes() == b""


def test_a_checkpoint_to_begin_with_is_read_once_more_only_if_it_is_named(work):
    """Analytic: args.json has no checksum, and could name any file."""
    checkpoint_files.save(work, 70)
    write_run("--load_ckpt", str(work), steps=())
    for name in ("monitor.csv", "progress.csv"):
        pathlib.Path("run", name).unlink()
    assert refusal().startswith(f"run has no checkpoint yet, and began with {work}: if that is to")
    assert open_run("--load_ckpt", str(work)).checkpoint is None


@pytest.mark.parametrize("name", ["log.txt", "progress.csv", "monitor.csv", "checkpoints", "new"])
@pytest.mark.parametrize("what", ["link", "pipe"])
def test_nothing_is_written_through_a_link_or_a_pipe(written, name, what):
    """Analytic: somebody else's folder could have a file of ours cut; what has no end is not read."""
    outside = pathlib.Path("outside").absolute()
    if (written / name).is_dir():
        (written / name).rename(outside)
    else:
        outside.write_text("a file\nof many\nlines\n")
        (written / name).unlink(missing_ok=True)
    if what == "link":
        (written / name).symlink_to(outside)
    else:
        os.mkfifo(written / name)
    before = contents(outside) or outside.read_bytes()
    assert refusal("--n_steps", "90").startswith(f"run/{name} is a link or a special file; ")
    assert (contents(outside) or outside.read_bytes()) == before


def test_what_would_fill_the_memory_is_not_read(written):
    """Analytic: evaluations of more than 64 MiB; a table whose first line has no end counts as a head."""
    with (written / "evaluations.csv").open("wb") as file:
        file.truncate(2**26 + 1)
    assert "run/evaluations.csv is larger than any of ours" in refusal("--n_steps", "90")
    (written / "evaluations.csv").unlink()
    for path in [*written.glob("checkpoints/*"), written / "monitor.csv"]:
        path.unlink()
    with (written / "progress.csv").open("wb") as file:
        file.truncate(2**35)
    assert open_run("--n_steps", "90").checkpoint is None


def test_a_folder_that_cannot_be_cut_is_told(written):
    """Golden: in one line."""
    (written / "checkpoints/ckpt-90.safetensors.tmp").mkdir()
    with pytest.raises(BadInput, match="^cannot cut run back to its checkpoint: .*ckpt-90"):
        cut_back("--n_steps", "90")


def test_the_last_games_and_their_time_go_on(written, monkeypatch):
    """Analytic: seconds go on from the last game's, whatever hour it is; damaged rows are left out."""
    more = [f"{i}.0,5,{i / 10},{i},0,0\n" for i in range(200)]
    damaged = ["1.0,5\n", "x,5,1.0,7,0,0\n", "nan,5,1.0,7,0,0\n", "1.0,5,inf,7,0,0\n", "\xff\n"]
    path = written / "monitor.csv"
    monkeypatch.setattr(resume, "time", types.SimpleNamespace(time=lambda: 5e9))
    path.write_bytes("".join([HEADS["monitor.csv"], *more, *damaged]).encode("latin-1"))
    opened = open_run("--n_steps", "90")
    position = opened.checkpoint.position._replace(n_bytes={"monitor.csv": path.stat().st_size})
    opened = opened._replace(checkpoint=opened.checkpoint._replace(position=position))
    start = resume.cut_back(opened, Start(), [])
    assert start.t_start == pytest.approx(5e9 - 19.9, abs=0.01)
    assert start.last_games == [(float(i), 5) for i in range(100, 200)]
    path.write_text(HEADS["monitor.csv"])
    start = resume.cut_back(opened, Start(), [])
    assert (start.t_start, start.last_games) == (5e9, [])


def test_games_have_numbers_that_were_not_used():
    """Analytic: a new run's begin at 0, a resumed one's where it stood, a restored one's behind all
    that were counted or abandoned.
    """
    assert Start().first_games(3, 2) == [0, 0]
    made = checkpoint_files.make(pathlib.Path(), position=None)
    assert Start(made).first_games(0, 2) == [4, 4]
    for last, first_games in ((2, [4, 4, 4]), (90, [90, 90, 90])):
        workers = [WorkerPosition({}, [1, 2]), WorkerPosition({}, [1, last])]
        made = made._replace(position=checkpoint_files.POSITION._replace(workers=workers))
        assert Start(made).first_games(1, 3) == first_games
        assert Start(made, is_resumed=True).first_games(1, 2) == [1, last]


def test_the_folder_keeps_a_record_of_each_resumption(written):
    """Analytic: from where, by which command, what was changed, which code, which processor."""
    for n_steps in ("90", "95"):
        cut_back("--n_steps", n_steps)
    first, second = run_folder.read_args(written).resumed
    assert first["changed"] == {"n_steps": [80, 90]}
    assert second["changed"] == {"n_steps": [90, 95]}
    assert second["n_steps"] == 80
    assert second["command"] == "python3 train.py --resume run --n_steps 95"
    assert set(second) == {"n_steps", "command", "changed", "revision", "code", "cpu", "time"}
    assert f"code: {second['code']}\n" in (written / "versions.txt").read_text()
    assert second["code"] == provenance.digest_of(provenance.CODE)
    assert run_folder.read_args(written).params.n_steps == 95


def test_settings_that_differ_from_the_checkpoints_are_found(written):
    """Analytic: args.json has no checksum, but the checkpoint has one, and the same settings."""
    content = json.loads((written / "args.json").read_text())
    content["params"]["discount"] = 0.5
    (written / "args.json").write_text(json.dumps(content))
    assert refusal("--n_steps", "90").startswith("run/args.json says discount 0.5, and ")


@pytest.mark.parametrize("next_games", [[[3]], [[3], [4], [5]], [[3, 4], [5, 6]], None])
def test_a_checkpoint_of_other_workers_is_refused(written, next_games):
    """Analytic: more, fewer, of more environments, or none as in a published agent."""
    path = written / "checkpoints/ckpt-80.safetensors"
    found = checkpoint.read(path)
    state = found.position.workers[0].generator
    workers = [WorkerPosition(state, each) for each in next_games or ()]
    position = found.position._replace(workers=workers) if next_games else None
    checkpoint.write(found._replace(position=position))
    assert "has positions of other workers than the run's" in refusal("--n_steps", "90")


def test_another_environment_is_refused(written):
    """Analytic: by what differs; what an older record does not know does not count."""
    opened = open_run("--n_steps", "90")
    same = dict(opened.args.environment)
    opened.check_fits(SUBJECT, same | {"new": 1})
    with pytest.raises(BadInput, match="sticky_actions 0.0, which now has 0.25"):
        opened.check_fits(SUBJECT, same | {"sticky_actions": 0.25})
    with pytest.raises(UnusableCheckpoint, match="n actions 2, this run has 3"):
        opened.check_fits(SUBJECT._replace(n_actions=3), same)


def test_a_flag_that_is_younger_than_the_run_is_told(written):
    """Analytic: it gets its default, and the checkpoint need not know it either."""
    args = json.loads((written / "args.json").read_text())
    for part in ("params", "sources"):
        del args[part]["keep_ckpts"]
    (written / "args.json").write_text(json.dumps(args))
    path = written / "checkpoints/ckpt-80.safetensors"
    saved = {name: value for name, value in args["params"].items() if name != "keep_ckpts"}
    checkpoint_files.edit(path, params=saved)
    assert "  keep_ckpts: not recorded, taken as 3" in open_run("--n_steps", "90").lines


def test_a_new_run_says_what_it_was_restored_from(work):
    """Analytic: and which settings differ; what does not fit, or leaves nothing to do, is refused."""
    path = checkpoint_files.save(work, 70)
    asked = command_line.parse(["--load_ckpt", str(work), "--initial_lr", "1e-3", "CartPole-v1"])
    subject = checkpoint_files.SUBJECT
    start = resume.begin(asked.params, subject)
    assert (start.checkpoint.path, start.is_resumed, start.position) == (path, False, None)
    assert start.counts == checkpoint_files.COUNTS
    assert start.lines == [
        f"restored {path} at 70 steps",
        "  n_steps: 1000 there, 10000000 here",
        "  initial_lr: 0.0001 there, 0.001 here",
    ]
    with pytest.raises(UnusableCheckpoint, match="n actions 2, this run has 3"):
        resume.begin(asked.params, subject._replace(n_actions=3))
    fewer = command_line.parse(["--load_ckpt", str(work), "--n_steps", "70", "CartPole-v1"])
    with pytest.raises(BadInput, match="at 70 steps: --n_steps 70, the total, leaves none to go"):
        resume.begin(fewer.params, subject)
    made = checkpoint.read(path)
    checkpoint.write(made._replace(snapshot=made.snapshot._replace(mean_squares={})))
    line = "it holds weights only: RMSProp's statistics start anew"
    assert resume.begin(asked.params, subject).lines[1] == line


# Resumptions of real runs


def test_a_run_goes_on_in_its_files(work):
    """Golden: nothing that was cut comes back, nothing is twice; TensorBoard is told the new timeline."""
    assert (
        run("--network", "mlp", "--n_workers", "2", "--log_dir", "run", "--n_steps", "40", DRAWN)
        == 0
    )
    assert run("--resume", "run", "--n_steps", "80") == 0
    break_newest()
    before = set(pathlib.Path("run").glob("events*"))
    assert run("--resume", "run", "--n_steps", "90") == 0
    steps = [int(row["misc/steps"]) for row in rows("run")]
    assert (steps[0], steps[-1], len(steps)) == (40, newest("run").n_steps, 2)
    assert len(games("run")) == newest("run").snapshot.counts.games
    seconds = [float(row["t"]) for row in rows("run", "monitor.csv")]
    assert all(0 < t < 300 for t in seconds)
    log = pathlib.Path("run/log.txt").read_text()
    assert "saved run/checkpoints/ckpt-80" not in log
    assert log.count("traced in") == 2
    marks = [
        event.step
        for path in sorted(set(pathlib.Path("run").glob("events*")) - before)
        for event in EventFileLoader(str(path)).Load()
        if event.HasField("session_log")
    ]
    assert marks == [41, 41]


def test_a_run_that_began_with_anothers_checkpoint_has_none_of_its_own_at_first(work):
    """Golden: killed before it saved, it begins there once more, to the bit; and what it saves first
    is whole, though its steps are those of the other's.
    """
    flags = ["--network", "mlp", "--n_steps", "90"]
    assert run("--log_dir", "first", "--network", "mlp", "--n_steps", "80", DRAWN) == 0
    assert run("--log_dir", "next", "--load_ckpt", "first", *flags, DRAWN) == 0
    folder, whole = pathlib.Path("next"), tensors("next")
    for path in [*folder.glob("checkpoints/*"), folder / "monitor.csv", folder / "progress.csv"]:
        path.unlink()
    assert run("--resume", "next", "--load_ckpt", "first") == 0
    assert tensors("next") == whole
    assert newest("next").n_steps == 90
    assert checkpoint.read(folder / "checkpoints/ckpt-80.safetensors").n_steps == 80


def test_a_run_leaves_a_folder_alone_that_another_has_taken(monkeypatch, capsys):
    """Analytic: moved away as it begins to train, and another's put in its place: it saves nothing there,
    says so, and ends with status 1.
    """
    from a3c.run import training

    train_run = training.train

    def taken_over(*arguments):
        pathlib.Path("mine").rename("moved")
        shutil.copytree("moved", "mine")
        return train_run(*arguments)

    monkeypatch.setattr(training, "train", taken_over)
    assert run("--log_dir", "mine", "--network", "mlp", "--n_steps", "40", DRAWN) == 1
    assert "another run has its folder where mine was" in capsys.readouterr().err
    assert list(pathlib.Path("mine/checkpoints").iterdir()) == []
