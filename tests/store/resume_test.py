"""Resuming a run in its folder: bit for bit where games begin, or refused in one clear line."""

import dataclasses
import json
import os
import pathlib
import re
import shlex
import shutil
import sys
import tomllib
import types

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

import train
from a3c.contract import Counts, Moments, Position, Subject, WorkerPosition
from a3c.machine import cores, place, tensorflow_process
from a3c.machine.words import BadInput
from a3c.run import start
from a3c.settings import command_line, params
from a3c.store import checkpoint, provenance, resume, run_folder
from a3c.store.checkpoint import Checkpoint, UnusableCheckpoint
from a3c.store.resume import Start
from tests.tools import checkpoint_files, processes
from tests.tools.run_files import RunFiles

DRAWN = "tests.tools.toys:toys/Drawn-v0"
PUSHES = "tests.tools.toys:toys/Pushes-v0"
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
        params = run_folder.read_args(arguments[1]).parsed.params
        wrapper = ["--wrapper", params.wrapper] if params.wrapper else []
        return train.main([*arguments, *wrapper, params.env_id])
    return train.main(["--no_xla", *arguments])


def assert_same_end(one: Checkpoint, other: Checkpoint) -> None:
    """Without frames, some of which belong to games that were under way at the end."""
    assert one.snapshot.counts._replace(frames=0) == other.snapshot.counts._replace(frames=0)
    assert one.position.workers == other.position.workers


# Bit for bit


@pytest.mark.parametrize(
    ("env_id", "flags", "n_steps"),
    [
        (DRAWN, "--network mlp", (60, 120, 200)),
        (
            PUSHES,
            "--envs_per_worker 2 --seed 3 --initial_lr 1e-3 --lr_schedule linear"
            " --lr_decay_to_zero_by_n_steps 500 --hidden_units 8 --policy_sd per_state"
            " --normalize_observations --scale_rewards",
            (200, 400),
        ),
        (PONG, "--network small --steps_per_update 35 --max_n_noops 0", (105, 210)),
    ],
    ids=["vectors", "continuous actions of two environments", "frames"],
)
def test_a_run_that_is_resumed_where_games_begin_is_the_one_never_stopped(env_id, flags, n_steps):
    """Golden: weights, statistics, games, counters, and the position of draws and games, to the bit."""
    whole, parts = RunFiles("whole"), RunFiles("parts")
    assert run(*flags.split(), "--log_dir", "whole", "--n_steps", str(n_steps[-1]), env_id) == 0
    first, *more = map(str, n_steps)
    assert run(*flags.split(), "--log_dir", "parts", "--n_steps", first, env_id) == 0
    for n in more:
        assert run("--resume", "parts", "--n_steps", n) == 0
    assert len(whole.tensors()) >= 20
    assert whole.tensors() == parts.tensors()
    assert whole.games() == parts.games()
    assert len(whole.games()) >= 6
    assert whole.saved().n_steps == n_steps[-1]
    assert_same_end(whole.saved(), parts.saved())
    kept = whole.saved().snapshot.moments
    assert [(name, each.n) for name, each in kept.items()] == (
        [("observations", 400), ("returns", 400)] if env_id == PUSHES else []
    )
    if env_id == PUSHES:  # which pays about 100 a step: scores are true, whatever learning gets
        assert all(450 < game["r"] < 550 for game in whole.games())
    # The window of the last 100 games continues, too, with the scores as monitor.csv rounds them.
    means = [each.rows()[-1]["rl/episode_reward_mean_100"] for each in (whole, parts)]
    assert means[0] == pytest.approx(means[1], abs=1e-6)


def test_in_the_middle_of_games_new_ones_begin_with_numbers_that_were_not_used():
    """Analytic: games have 5 steps, so the fifth is under way at 21. It gets no row and no count;
    no game's number is used twice, and the weights differ from those of the uninterrupted run.
    """
    whole, parts = RunFiles("whole"), RunFiles("parts")
    flags = ["--network", "mlp", "--steps_per_update", "7"]
    assert run(*flags, "--log_dir", "whole", "--n_steps", "42", DRAWN) == 0
    assert run(*flags, "--log_dir", "parts", "--n_steps", "21", DRAWN) == 0
    before = parts.saved()
    assert before.position.workers[0].next_games == [5]
    assert before.snapshot.counts.games == len(parts.games()) == 4
    assert run("--resume", "parts", "--n_steps", "42") == 0
    after = parts.saved()
    assert after.n_steps == 42
    assert after.snapshot.counts.games == len(parts.games()) == 4 + 21 // 5
    assert after.position.workers[0].next_games == [5 + 21 // 5 + 1]
    assert parts.games()[:4] == whole.games()[:4]
    assert len(whole.games()) == 42 // 5
    assert parts.tensors() != whole.tensors()


@pytest.mark.parametrize("n_envs", [pytest.param(1, marks=pytest.mark.weekly), 2])
def test_so_is_a_run_whose_environments_break(n_envs, monkeypatch):
    """Golden: they break in both halves; abandoned games have no rows, their random streams are not
    used again, and the count of restarts continues. Each environment has its own process.
    """
    whole, parts = RunFiles("whole"), RunFiles("parts")
    monkeypatch.setattr(cores, "n_usable", lambda: 2)
    flags = ["--network", "mlp", "--envs_per_worker", str(n_envs), "--seed", "2"]
    n_steps = [50, 100] if n_envs == 1 else [60, 120]
    assert run(*flags, "--log_dir", "whole", "--n_steps", str(n_steps[1]), BRITTLE) == 0
    assert run(*flags, "--log_dir", "parts", "--n_steps", str(n_steps[0]), BRITTLE) == 0
    n_before = parts.saved().position.n_env_restarts
    assert run("--resume", "parts", "--n_steps", str(n_steps[1])) == 0
    assert whole.tensors() == parts.tensors()
    assert whole.games() == parts.games()
    one, other = whole.saved(), parts.saved()
    assert_same_end(one, other)
    n_games = one.snapshot.counts.games
    assert n_games == len(whole.games()) == one.n_steps / 5
    n_restarts = one.position.n_env_restarts
    assert 0 < n_before < n_restarts == other.position.n_env_restarts == 5
    # Each restart uses up the number of its game and the next one.
    (worker,) = one.position.workers
    assert sum(worker.next_games) == n_games + 2 * n_restarts
    for folder in ("whole", "parts"):
        counts = [int(row["misc/env_restarts"]) for row in RunFiles(folder).rows()]
        assert counts[-1] == n_restarts
        assert counts == sorted(counts)


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
FLAGS = ["--n_workers", "2", "--n_steps", "80", "--log_dir", "run"]


def write_run(
    *flags: str, steps: tuple[int, ...] = (0, 40, 80), moments: dict[str, Moments] | None = None
) -> pathlib.Path:
    """A run of two workers that was killed some rows after its last checkpoint."""
    argv = [*FLAGS, *flags, DRAWN]
    parsed = params.resolve(command_line.parse(argv), "vector")
    folder = run_folder.create(parsed, argv, {"kind": "vector", "sticky_actions": 0.0})
    drawn = np.random.default_rng(1)
    drawn.random(5)
    workers = [
        WorkerPosition(g.bit_generator.state, [n])
        for g, n in ((np.random.default_rng(0), 8), (drawn, 9))
    ]
    for name, head in HEADS.items():
        (folder.path / name).write_text(head)
    as_dict = params.as_in_json(parsed.params)
    for i, n_steps in enumerate((*steps, None)):
        if n_steps is not None:
            n_bytes = {name: (folder.path / name).stat().st_size for name in HEADS}
            position = Position(workers, n_bytes, n_env_restarts=i, cpu_seconds=30)
            made = checkpoint_files.make(
                folder.checkpoints,
                n_steps,
                position=position,
                params=as_dict,
                moments=moments or {},
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
    """Such a run, with checkpoints at 0, 40 and 80 steps, the last one before its third rows."""
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
        ("", "run is already finished: it has 80 steps"),
        ("--n_steps 70", "run is already finished"),
        ("--initial_lr 1e-3 --n_steps 90", "--initial_lr is 1e-4"),
        ("--n_workers 3 --n_steps 90", "--n_workers is 2"),
        ("--initial_lr 1e-3", "; a new run from its checkpoint can: --load_ckpt run instead"),
        ("--log_dir other", "--log_dir is run"),
        ("--preset paper", "--preset is ocd"),
        ("CartPole-v1", "env_id is tests.tools.toys:toys/Drawn-v0"),
        ("--lr_decay_to_zero_by_n_steps 100", "--lr_decay_to_zero_by_n_steps is none"),
    ],
)
def test_what_would_change_training_is_refused_by_name(written, given, words):
    """Analytic: in one line; nothing in the folder changes, and the lock is free again."""
    before = contents(written)
    assert words in refusal(*given.split())
    assert contents(written) == before
    run_folder.open_existing(written).close()


def test_a_network_of_another_form_is_not_promised(written):
    """Analytic: no checkpoint of this run fits it, so --load_ckpt would be refused in turn."""
    assert "--load_ckpt" not in refusal("--lstm_units", "8")


def test_a_run_is_resumed_or_started(written, capsys):
    """Analytic: with the flags that it was started with; one that is finished is left alone."""
    asked = command_line.parse(["--resume_or_start", *FLAGS, "--n_steps", "90", DRAWN])
    opened = start._open(asked)
    opened.folder.close()
    assert opened.changed == {"n_steps": (80, 90)}
    finished = command_line.parse(["--resume_or_start", *FLAGS, DRAWN])
    assert start._open(finished) is None
    assert capsys.readouterr().out.startswith("run is already finished: it has 80 steps")
    with pytest.raises(BadInput, match="--seed is 0 in the run"):
        start._open(command_line.parse(["--resume_or_start", *FLAGS, "--seed", "1", DRAWN]))
    written.rename("elsewhere")
    assert start._open(finished) == finished.otherwise


def test_what_a_finished_run_is_good_for(capsys):
    """Analytic: to be left alone by a queue's next job, with status 0, and to give its settings, as a file and to a
    run that begins with its weights; the file is all that is printed.
    """
    flags = ["--log_dir", "run", "--n_steps", "20", "--discount", "0.9", "CartPole-v1"]
    assert run(*flags) == 0
    capsys.readouterr()
    assert train.main(["--no_xla", "--resume_or_start", *flags]) == 0
    assert capsys.readouterr().out.startswith("run is already finished: it has 20 steps")
    for flag in ("--config", "--load_ckpt"):
        assert train.main([flag, "run", "--print_config"]) == 0
        settings = tomllib.loads(capsys.readouterr().out)
        assert (settings["env_id"], settings["discount"]) == ("CartPole-v1", 0.9)


def test_a_run_whose_environment_has_changed_is_refused(capsys):
    """Analytic: as with another version of its package."""
    assert run("--log_dir", "run", "--n_steps", "20", DRAWN) == 0
    record = json.loads(pathlib.Path("run/args.json").read_text())
    record["environment"]["n_actions"] = 7
    pathlib.Path("run/args.json").write_text(json.dumps(record))
    assert train.main(["--resume", "run", "--n_steps", "40", DRAWN]) == 2
    words = "run began with an environment of n_actions 7, which now has 2"
    assert words in capsys.readouterr().err


def test_a_run_uses_the_cores_that_it_was_given(monkeypatch):
    """Analytic: before anything is made that counts them."""
    done: list[str | None] = []
    monkeypatch.setattr(cores, "use", done.append)
    monkeypatch.setattr(cores, "n_usable", lambda: done.append("counted") or 1)
    assert run("--log_dir", "run", "--n_steps", "20", "--cores", "1", DRAWN) == 0
    assert done[:2] == ["1", "counted"]


def test_the_settings_of_a_checkpoint_are_its_runs(work):
    """Analytic: from args.json, what was asked for; of a copied file, all that is not usual."""
    run = write_run("--seed", "3", "--discount", "0.9", "--no_xla")
    asked = {"env_id": DRAWN, "n_workers": 2, "n_steps": 80, "seed": 3, "discount": 0.9}
    asked["no_xla"] = True
    newest = run / "checkpoints/ckpt-80.safetensors"
    for path in (run, run / "checkpoints", newest):
        assert resume.settings_at(str(path), lambda note: None) == asked
    (run / "checkpoints/best").mkdir()
    best = shutil.copy(newest, run / "checkpoints/best")
    assert resume.settings_at(str(best), lambda note: None) == asked
    assert resume.settings_at(str(shutil.copy(newest, work)), lambda note: None) == asked
    found = checkpoint.read(newest)
    of_images = found._replace(
        path=work / "x" / newest.name, params={"env_id": "P", "network": "small"}
    )
    of_images.path.parent.mkdir()
    checkpoint.write(of_images)
    settings = resume.settings_at(str(of_images.path), lambda note: None)
    assert settings == {"env_id": "P", "network": "small"}
    with pytest.raises(UnusableCheckpoint, match="nowhere"):
        resume.settings_at("nowhere", lambda note: None)


def test_the_command_that_goes_on_is_told(written, capsys):
    """Golden: ready to be pasted, while there are steps to go and the run has its folder."""
    folder = run_folder.open_existing(written)
    more = params.Params(DRAWN, n_steps=81)
    start.say_how_to_go_on(folder, more)
    last = (written / "log.txt").read_text().splitlines()[-1]
    assert capsys.readouterr().out == f"{last}\n"
    words = shlex.split(last.removeprefix("continue with: "))
    assert words == [sys.executable, str(processes.ROOT / "train.py"), "--resume", "run", DRAWN]
    kwargs = ("name=this:W and more", "size=3")
    start.say_how_to_go_on(folder, dataclasses.replace(more, env_kwargs=kwargs, wrapper="this:W"))
    last = capsys.readouterr().out.removeprefix("continue with: ")
    assert shlex.split(last)[4:] == [DRAWN, "--wrapper", "this:W", "--env_kwargs", *kwargs]
    start.say_how_to_go_on(folder, params.Params(DRAWN, n_steps=80))
    written.rename("elsewhere")
    start.say_how_to_go_on(folder, more)
    assert capsys.readouterr().out == ""
    folder.close()


def test_a_module_is_not_imported_because_a_file_says_so(written):
    """Analytic: the user has to name an environment that runs a module, and so a wrapper, and an argument
    that may be the name of one.
    """
    before = contents(written)
    for name, value, words in (
        ("env_id", "this:X-v0", "this:X-v0"),
        ("wrapper", "this:W", "--wrapper this:W"),
        ("env_kwargs", ["a=1", "b=this:W"], "--env_kwargs a=1 b=this:W"),
    ):
        args = json.loads(before[written / "args.json"])
        args["params"][name] = value
        (written / "args.json").write_text(json.dumps(args))
        argv = ["--resume", "run", "--n_steps", "90", *([] if name == "env_id" else [DRAWN])]
        with pytest.raises(BadInput, match=f"^run trains with {words}, which may run the code of"):
            resume.open_run(command_line.parse(argv))
    assert "this" not in sys.modules
    (written / "args.json").write_bytes(before[written / "args.json"])
    assert open_run("--n_steps", "90").checkpoint.n_steps == 80
    assert contents(written) == before


def test_what_does_not_change_training_may_be_given_anew(written):
    """Analytic: settings that the run has anyway may be given, too."""
    flags = ["--n_steps", "100", "--keep_ckpts", "5", "--detailed_logs", "--seed", "0", DRAWN]
    opened = open_run(*flags, "--env_timeout_seconds", "5")
    assert opened.changed == {
        "n_steps": (80, 100),
        "env_timeout_seconds": (60.0, 5.0),
        "keep_ckpts": (3, 5),
        "detailed_logs": (False, True),
    }
    assert (opened.args.parsed.params.keep_ckpts, opened.args.parsed.sources["keep_ckpts"]) == (
        *(5, "command line"),
    )
    assert opened.lines[0] == "resumed run/checkpoints/ckpt-80.safetensors at 80 steps"
    assert "  n_steps: 80 before, 100 now" in opened.lines


def test_the_schedules_end_stays():
    """Analytic: only more steps than that need a new end, and only then may it be given."""
    saved = command_line.parse(["--preset", "paper", "--n_steps", "100", "X-v1"])
    end = "lr_decay_to_zero_by_n_steps"
    for given in ({"n_steps": 101}, {end: 200}, {"n_steps": 150, end: 120}):
        with pytest.raises(BadInput, match=end):
            command_line.resumed(saved, given)
    for given, expected in (({"n_steps": 90}, 100), ({"n_steps": 150, end: 200}, 200)):
        params, sources = command_line.resumed(saved, given)
        assert (params.n_steps, params.lr_decay_to_zero_by_n_steps) == (given["n_steps"], expected)
    assert sources[end] == "command line"


def test_a_run_under_way_is_not_resumed(written):
    """Analytic: another process holds it; once that is killed, the lock is free."""
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
    """Analytic: whole rows beyond them and half a row at the end; other files stay."""
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
    # A second time, the result is the same.
    assert cut_back("--n_steps", "90").last_games == start.last_games


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone", "of other steps"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(written, damage):
    """Analytic: it says which and why, renames it, and cuts back to the one before."""
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
        assert opened.lines[0].endswith("; it is renamed, and the one before is used")
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


@pytest.mark.parametrize("end", ["", "45", "60,3.0\n60,"])
def test_evaluations_that_are_given_up_are_cut(written, end):
    """Analytic: rows up to the checkpoint's 40 steps stay, with a damaged one among them, but no
    half row; of the best at 20, 40 and 60 steps, those up to there.
    """
    table, best = written / "evaluations.csv", written / "checkpoints/best"
    kept = "steps,episode_reward_mean\n20,1.0\n\xff\n40,2.0\n"
    table.write_bytes((kept + end).encode("latin-1"))
    best.mkdir()
    for n_steps in (20, 40, 60):
        checkpoint_files.save(best, n_steps)
    break_newest()
    cut_back()
    assert table.read_bytes() == kept.encode("latin-1")
    assert list(checkpoint.numbered(best)) == [20, 40]


def test_a_file_that_lost_rows_is_reported(written):
    """Analytic: whole rows stay, half a row does not; a file that is gone begins empty."""
    for name in HEADS:
        path = written / name
        path.write_text(text_of(name, 1) + ROWS[name][1][:3])
    (written / "monitor.csv").unlink()
    opened = open_run("--n_steps", "90")
    resume.cut_back(opened, Start(), [])
    for name in HEADS:
        left = "" if name == "monitor.csv" else text_of(name, 1)
        assert (written / name).read_text() == left, name
        assert f"{name} is shorter than at its checkpoint: lines are missing" in opened.lines


def test_without_a_whole_checkpoint_nothing_is_cut(written):
    """Analytic: the line says what is wrong with the newest one."""
    for path in written.glob("checkpoints/*"):
        path.write_bytes(b"")
    before = contents(written)
    line = refusal()
    assert line.startswith("no checkpoint in run/checkpoints is whole: cannot read run/checkpoints")
    assert "ckpt-80" in line
    assert contents(written) == before


@pytest.mark.parametrize(
    "left", ["monitor.csv", "monitor/0.0.monitor.csv", "checkpoints/ckpt-5.index"]
)
def test_a_run_that_has_trained_does_not_begin_at_its_start(written, left):
    """Analytic: without a checkpoint it keeps its games, and checkpoints of the old form."""
    (written / "monitor").mkdir()
    for path in written.glob("checkpoints/*"):
        path.unlink()
    (written / "monitor.csv").rename(written / left)
    before = contents(written)
    line = refusal("--n_steps", "90")
    assert line.startswith("run cannot be resumed: it has trained, but has no checkpoint")
    assert "243b5dc" in line
    assert contents(written) == before


def test_a_run_without_a_checkpoint_begins_at_its_start(work):
    """Analytic: it has only the heads of its tables, one of them cut; they are written anew."""
    folder = write_run(steps=())
    for name in ("monitor.csv", "progress.csv"):
        (folder / name).write_text(HEADS[name][:-3])
    opened = open_run("--n_steps", "90")
    assert opened.checkpoint is None
    assert opened.lines[0] == "no checkpoint yet: the run starts from the beginning"
    begun = Start(t_start=5.0, lines=["begun"])
    start = resume.cut_back(opened, begun, [])
    assert start == begun._replace(lines=[*opened.lines, "begun"])
    assert (folder / "monitor.csv").read_bytes() == (folder / "progress.csv").read_bytes() == b""


@pytest.mark.parametrize("name", ["log.txt", "checkpoints", "new"])
@pytest.mark.parametrize("what", ["link", "pipe"])
def test_nothing_is_written_through_a_link_or_a_pipe(written, name, what):
    """Analytic: a folder made by somebody else could make us cut any file, or wait for ever."""
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


def test_a_folder_that_cannot_be_cut_is_refused(written):
    """Golden: in one line that names the file."""
    (written / "checkpoints/ckpt-90.safetensors.tmp").mkdir()
    with pytest.raises(BadInput, match="^cannot cut run back to its checkpoint: .*ckpt-90"):
        cut_back("--n_steps", "90")


def test_the_last_games_and_their_time_continue(written, monkeypatch):
    """Analytic: seconds continue from the last game's, whatever the clock says; damaged rows are
    left out.
    """
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
    """Analytic: those of a new run begin at 0, of a resumed one where it stood, of one from a
    checkpoint after all that were counted or abandoned.
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
    """Analytic: steps, command, changed settings, code, processor and time."""
    for n_steps in ("90", "95"):
        cut_back("--n_steps", n_steps)
    first, second = run_folder.read_args(written).resumed
    assert first["changed"] == {"n_steps": [80, 90]}
    assert second["changed"] == {"n_steps": [90, 95]}
    assert second["n_steps"] == 80
    assert second["command"] == "python3 train.py --resume run --n_steps 95"
    assert set(second) == {"n_steps", "command", "changed", "revision", "code", "cpu", "time"}
    assert f"code: {second['code']}\n" in (written / "versions.txt").read_text()
    assert second["code"] == provenance.digest_of(place.CODE)
    assert run_folder.read_args(written).parsed.params.n_steps == 95


def test_settings_that_differ_from_the_checkpoints_are_found(written):
    """Analytic: args.json has no checksum; the checkpoint has one, and the settings as well."""
    content = json.loads((written / "args.json").read_text())
    content["params"]["discount"] = 0.5
    (written / "args.json").write_text(json.dumps(content))
    assert refusal("--n_steps", "90").startswith("run/args.json has discount 0.5, but ")


OF_VECTORS = {"observations": Moments(9, np.zeros(2), np.ones(2))}


def test_a_run_goes_on_only_with_the_running_moments_that_it_keeps(work):
    """Analytic: a run with lists in its settings; a checkpoint without its moments, or with others, is
    none of this run's.
    """
    flags = ["--hidden_units", "7", "5", "--normalize_observations"]
    folder = write_run(*flags, moments=OF_VECTORS)
    assert open_run("--n_steps", "90").checkpoint.snapshot.moments["observations"].n == 9
    path = folder / "checkpoints/ckpt-80.safetensors"
    found = checkpoint.read(path)
    for moments in ({}, OF_VECTORS | {"returns": checkpoint_files.MOMENTS["returns"]}):
        checkpoint.write(found._replace(snapshot=found.snapshot._replace(moments=moments)))
        assert "ckpt-80.safetensors has other running means" in refusal("--n_steps", "90")
    checkpoint.write(found._replace(params={**found.params, "hidden_units": [7]}))
    assert "args.json has hidden_units [7, 5], but" in refusal("--n_steps", "90")


@pytest.mark.parametrize("next_games", [[[3]], [[3], [4], [5]], [[3, 4], [5, 6]], None])
def test_a_checkpoint_of_other_workers_is_refused(written, next_games):
    """Analytic: it has more or fewer workers, more environments, or is a published agent."""
    path = written / "checkpoints/ckpt-80.safetensors"
    found = checkpoint.read(path)
    state = found.position.workers[0].generator
    workers = [WorkerPosition(state, each) for each in next_games or ()]
    position = found.position._replace(workers=workers) if next_games else None
    checkpoint.write(found._replace(position=position))
    assert "has other numbers of workers or environments" in refusal("--n_steps", "90")


def test_another_environment_is_refused(written):
    """Analytic: the line names what differs; what an older record does not have is ignored."""
    opened = open_run("--n_steps", "90")
    same = dict(opened.args.environment)
    opened.check_fits(SUBJECT, same | {"new": 1})
    with pytest.raises(BadInput, match="sticky_actions 0.0, which now has 0.25"):
        opened.check_fits(SUBJECT, same | {"sticky_actions": 0.25})
    with pytest.raises(UnusableCheckpoint, match="n actions 2, this run has 3"):
        opened.check_fits(SUBJECT._replace(n_actions=3), same)


def test_a_flag_that_is_younger_than_the_run_is_reported(written):
    """Analytic: it gets its default; the checkpoint may lack it, too."""
    args = json.loads((written / "args.json").read_text())
    for part in ("params", "sources"):
        del args[part]["keep_ckpts"]
    (written / "args.json").write_text(json.dumps(args))
    path = written / "checkpoints/ckpt-80.safetensors"
    saved = {name: value for name, value in args["params"].items() if name != "keep_ckpts"}
    checkpoint_files.edit(path, params=saved)
    assert "  keep_ckpts: not recorded, taken as 3" in open_run("--n_steps", "90").lines


def test_a_new_run_says_what_it_was_restored_from(work):
    """Analytic: and which settings differ; what does not fit, or leaves no steps, is refused."""
    path = checkpoint_files.save(
        work, 70, params=checkpoint_files.PARAMS | {"stop_after_hours": None}
    )
    flags = ["--initial_lr", "1e-3", "--stop_after_hours", "3"]  # which no record hands on
    asked = command_line.parse(["--load_ckpt", str(work), *flags, "CartPole-v1"])
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
    with pytest.raises(BadInput, match="is at 70 steps: --n_steps 70, .* leaves none .* larger"):
        resume.begin(fewer.params, subject)
    made = checkpoint.read(path)
    checkpoint.write(made._replace(snapshot=made.snapshot._replace(mean_squares={})))
    line = "it holds weights only: RMSProp's statistics start anew"
    assert resume.begin(asked.params, subject).lines[1] == line
    newer = checkpoint.path_of(path.parent, 80)
    newer.write_bytes(b"cut short")
    start = resume.begin(asked.params, subject)
    assert start.checkpoint.path == path
    assert re.fullmatch(f"cannot read {newer}: .*; the one before is used", start.lines[0])
    asked = command_line.parse(["--load_ckpt", str(newer), "CartPole-v1"])
    with pytest.raises(UnusableCheckpoint, match="cannot read"):  # it was asked for by name
        resume.begin(asked.params, subject)


def test_a_new_run_says_where_its_running_moments_are_not_the_checkpoints(work):
    """Golden: they start anew, or are not used; nothing is said where both have the same. Lists in the
    settings are the same in both, too.
    """
    settings = params.as_in_json(params.Params("CartPole-v1", n_steps=10**7))
    checkpoint_files.save(work, 70, moments=checkpoint_files.MOMENTS, params=settings)

    def lines(*flags: str) -> list[str]:
        asked = command_line.parse(["--load_ckpt", str(work), *flags, "CartPole-v1"])
        resolved = params.resolve(asked, "vector").params
        return [
            line
            for line in resume.begin(resolved, checkpoint_files.SUBJECT).lines[1:]
            if not line.startswith(("  normalize", "  scale", "  network"))
        ]

    words = "running mean and variance of"
    both = ["--normalize_observations", "--scale_rewards"]
    assert lines(*both) == []
    assert lines("--scale_rewards") == [f"its {words} observations are not used"]
    assert lines() == [f"its {words} {name} are not used" for name in ("observations", "returns")]
    checkpoint_files.save(work, 70, params=settings)
    assert lines() == []
    assert lines(*both) == [
        f"it holds no {words} {name}: they start anew" for name in ("observations", "returns")
    ]


# Resumptions of real runs


def test_a_run_goes_on_in_its_files(work):
    """Golden: no row that was cut comes back, no row is there twice; TensorBoard drops what was cut."""
    assert (
        run("--network", "mlp", "--n_workers", "2", "--log_dir", "run", "--n_steps", "40", DRAWN)
        == 0
    )
    assert run("--resume", "run", "--n_steps", "80") == 0
    break_newest()
    assert run("--resume", "run", "--n_steps", "90") == 0
    steps = [int(row["misc/steps"]) for row in RunFiles("run").rows()]
    assert steps == sorted(steps)
    assert {40, RunFiles("run").saved().n_steps} <= {*steps}
    assert len(RunFiles("run").games()) == RunFiles("run").saved().snapshot.counts.games
    _, _, *rows = pathlib.Path("run/monitor.csv").read_text().splitlines()
    assert all(0 < float(row.split(",")[2]) < 300 for row in rows)
    log = pathlib.Path("run/log.txt").read_text()
    assert "saved run/checkpoints/ckpt-80" not in log
    assert log.count("traced in") == 2
    assert log.count(" steps/s ") == len(
        steps
    )  # each row has its line, and neither was there twice
    marks = [
        event.step
        for path in pathlib.Path("run").glob("events*")  # one file, where starts share a second
        for event in EventFileLoader(str(path)).Load()
        if event.HasField("session_log")
    ]
    assert marks == [41, 41] * 2


def test_each_worker_has_its_number_and_its_games(work, monkeypatch):
    """Analytic: by these, games differ; a resumed run goes on with the games of each worker."""
    asked = []

    class Asked(start.Pool):
        def __init__(self, params, description, worker, n_slots, first_games, *more):
            asked.append((worker, first_games))
            super().__init__(params, description, worker, n_slots, first_games, *more)

    monkeypatch.setattr(start, "Pool", Asked)
    monkeypatch.setattr(Start, "first_games", lambda self, worker, n_envs: [10 * worker] * n_envs)
    flags = ["--network", "mlp", "--n_workers", "3", "--envs_per_worker", "2", "--n_steps", "60"]
    assert run(*flags, "--log_dir", "run", DRAWN) == 0
    assert asked == [(0, [0, 0]), (1, [10, 10]), (2, [20, 20])]


def test_a_run_that_began_with_anothers_checkpoint_has_none_of_its_own_at_first(work):
    """Golden: killed before it saved, it begins there again, to the bit; its own first checkpoint is
    whole, at the steps of the other's.
    """
    flags = ["--network", "mlp", "--n_steps", "90"]
    assert run("--log_dir", "first", "--network", "mlp", "--n_steps", "80", DRAWN) == 0
    assert run("--log_dir", "next", "--load_ckpt", "first", *flags, DRAWN) == 0
    folder, whole = pathlib.Path("next"), RunFiles("next").tensors()
    for path in [*folder.glob("checkpoints/*"), folder / "monitor.csv", folder / "progress.csv"]:
        path.unlink()
    assert run("--resume", "next") == 0
    assert RunFiles("next").tensors() == whole
    assert RunFiles("next").saved().n_steps == 90
    assert checkpoint.read(folder / "checkpoints/ckpt-80.safetensors").n_steps == 80


def test_a_run_leaves_a_folder_alone_that_another_has_taken(monkeypatch, capsys):
    """Analytic: its folder is moved and another one put in its place as it begins to train. It
    saves nothing there, says so, and ends with status 1.
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
    assert not pathlib.Path("mine/checkpoints").exists()
