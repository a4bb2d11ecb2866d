"""Tests of the run folder: what it records, and that no two runs ever share one."""

import contextlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import threading
from collections.abc import Collection

import pytest

from a3c.machine.words import BadInput
from a3c.settings import command_line, params
from a3c.store import checkpoint, claim, provenance, run_folder
from a3c.store.run_folder import RunFolder
from a3c.sweep import plot_command as plot_runs
from tests.tools import checkpoint_files

PONG = "PongNoFrameskip-v4"
CONTENT = ["args.json", "command.txt", "git.txt", "lock", "versions.txt"]


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch):
    """Each test runs in an empty folder and writes only there."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def create(*argv: str, environment=None, code: pathlib.Path = pathlib.Path("/")) -> pathlib.Path:
    """The folder of a run that has ended; its code is in no repository unless `code` is in one."""
    argv = argv or (PONG,)
    folder = run_folder.create(command_line.parse(argv), argv, environment, code)
    folder.close()
    return folder.path


def everything(folder: pathlib.Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# Names


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--seed 7", "_s7"),
        ("--preset wide --n_workers 3 --n_steps 5 --cores 1", "_wide_s0"),  # as the preset has it
        ("--initial_lr 3e-4 --no_clip_rewards", "_initial_lr=0.0003_no_clip_rewards_s0"),
        ("--preset paper --hidden_units 8 9", "_paper_hidden_units=8,9_s0"),
    ],
)
def test_the_default_folder_is_named_by_what_differs_seed_and_time(flags, named):
    """Analytic: by the environment first; not by what does not change training."""
    folder = create(PONG, *flags.split())
    assert re.fullmatch(rf"runs/{PONG}{re.escape(named)}_\d{{8}}-\d{{6}}", str(folder))
    assert sorted(path.name for path in folder.iterdir()) == CONTENT


def test_default_names_group_by_seed(monkeypatch):
    """Analytic: whenever they began; even if one got a number, because two began in one second."""
    names = []
    for moment, seed in (("-030405", "0"), ("-030405", "0"), ("-112233", "1")):
        monkeypatch.setattr(run_folder.time, "strftime", lambda form, m=moment: "20260102" + m)
        names.append(create(PONG, "--preset", "wide", "--seed", seed))
    assert len({*names}) == 3
    assert {plot_runs.group_name(path) for path in names} == {f"{PONG}_wide"}


def test_two_runs_of_one_second_have_two_folders(monkeypatch):
    """Analytic: seeds differ in their names; a name that the user did not choose gets a number."""
    monkeypatch.setattr(run_folder.time, "strftime", lambda form: "20260102-030405")
    stems = [f"runs/{PONG}_s{seed}_20260102-030405" for seed in range(3)]
    assert [str(create(PONG, "--seed", n)) for n in "12"] == stems[1:]
    assert [str(create()) for _ in range(3)] == [stems[0], f"{stems[0]}_2", f"{stems[0]}_3"]


def test_run_name_and_log_dir_name_the_folder(work, monkeypatch):
    """Analytic: --run_name gets the revision as in OCD A3C, --log_dir nothing."""
    monkeypatch.setattr(provenance, "short_revision", lambda code: "abc1234")
    assert str(create(PONG, "--run_name", "a b")) == "runs/a b_abc1234"
    assert str(create(PONG, "--log_dir", "deep/er/x")) == "deep/er/x"
    assert str(create(PONG, "--log_dir", str(work / "y"))) == str(work / "y")
    (work / "empty").mkdir()
    assert sorted(p.name for p in create(PONG, "--log_dir", "empty").iterdir()) == CONTENT


# Records


def test_args_json_holds_every_value_and_its_source():
    """Analytic: read_args returns what was parsed, and what the environment is like."""
    argv = [PONG, "--preset", "paper", "--seed", "3"]
    folder = create(*argv, environment={"kind": "image", "sticky_actions": 0.25})
    content = json.loads((folder / "args.json").read_text())
    assert content["params"]["seed"] == 3
    assert content["sources"]["seed"] == "command line"
    assert content["sources"]["initial_lr"] == "preset"
    parsed = command_line.parse(argv)
    assert run_folder.read_args(folder) == run_folder.RunArgs(
        parsed, {"kind": "image", "sticky_actions": 0.25}
    )


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "3", '{"environment": {}}', '{"params": {}}', "[" * 10**5, "\udcff"),
        *(
            '{"environment": {}, "resumed": 1}',
            json.dumps(params.to_json(command_line.parse([PONG]))),
        ),
    ],
)
def test_damaged_arguments_are_refused_in_one_line(tmp_path, text):
    """Analytic: a damaged, foreign or missing args.json is BadInput that names the file."""
    (tmp_path / "args.json").write_text(text, errors="surrogateescape")
    for _ in range(2):
        with pytest.raises(BadInput, match=r"args\.json") as caught:
            run_folder.read_args(tmp_path)
        assert str(caught.value).isprintable()
        (tmp_path / "args.json").unlink(missing_ok=True)


def test_arguments_of_a_later_revision_are_not_damaged():
    """Analytic: the line names the flag that this revision does not know."""
    path = create(environment={}) / "args.json"
    content = json.loads(path.read_text())
    for part in ("params", "sources"):
        content[part]["n_younger"] = content[part]["seed"]
    path.write_text(json.dumps(content))
    with pytest.raises(BadInput, match=r"args\.json: .*n_younger") as caught:
        run_folder.read_args(path.parent)
    assert "damaged" not in str(caught.value)


def test_the_command_can_be_pasted():
    """Analytic: a shell splits the line into the same arguments, however odd they are."""
    argv = (PONG, "--log_dir", 'it\'s $HOME; a `b` "c"\\*é', "--n_steps", " 1e6 ")
    line = (create(*argv) / "command.txt").read_text()
    assert line.count("\n") == 1
    assert line.endswith("\n")
    assert shlex.split(line) == ["python3", "train.py", *argv]
    echo = "python3() { printf '%s\\0' \"$@\"; }\n"
    done = subprocess.run(["sh", "-c", echo + line], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == ["train.py", *argv]


def test_code_and_machine_are_recorded(monkeypatch):
    """Analytic: each file holds what provenance.py returns."""
    for name in ("git_state", "digest_of"):
        monkeypatch.setattr(provenance, name, lambda code, name=name: f"{name} of {code} \udcff")
    monkeypatch.setattr(provenance, "versions", lambda: ["python: 3", "cpu: x"])
    folder = create(code=pathlib.Path("/code"))
    assert (folder / "git.txt").read_bytes() == b"git_state of /code \xff\n"
    told = (folder / "versions.txt").read_bytes()
    assert told == b"code: digest_of of /code \xff\npython: 3\ncpu: x\n"


def test_a_resumption_is_noted_beside_those_before(monkeypatch):
    """Analytic: with the code that runs now; if it cannot be written, that is one line."""
    path = create(environment={"kind": "image"})
    folder = run_folder.open_existing(path)
    for n_steps in (5, 7):
        args = run_folder.read_args(path)
        run_folder.record_resumption(folder, args, {"n_steps": n_steps}, pathlib.Path("/"))
    after = run_folder.read_args(path)
    assert after._replace(resumed=()) == args._replace(resumed=())
    assert [note["n_steps"] for note in after.resumed] == [5, 7]
    assert set(after.resumed[0]) == {"n_steps", "revision", "code", "cpu", "time"}
    assert after.resumed[0]["code"] == provenance.digest_of(pathlib.Path("/"))
    (path / "args.json.tmp").mkdir()
    with pytest.raises(BadInput, match=r"^cannot write .*args\.json: Is a directory$"):
        run_folder.record_resumption(folder, args, {})
    assert run_folder.read_args(path) == after
    folder.close()


@pytest.mark.parametrize("old", ["[7]", '"x": 7'])
@pytest.mark.parametrize("number", ["NaN", "1e999", "-Infinity"])
def test_what_could_not_be_written_again_is_not_read(tmp_path, old, number):
    """Analytic: numbers that JSON does not have, or that no float holds, in unchecked places."""
    parsed = command_line.parse(["CartPole-v1"])
    content = json.dumps(params.to_json(parsed) | {"environment": {"x": 7}, "resumed": [7]})
    path = tmp_path / "args.json"
    path.write_text(content)
    assert run_folder.read_args(tmp_path).resumed == (7,)
    path.write_text(content.replace(old, old.replace("7", number)))
    with pytest.raises(BadInput, match="is damaged"):
        run_folder.read_args(tmp_path)


# Folders that are taken


def refused(*argv: str, words: str) -> None:
    """The folder is refused in a line with these words, and nothing is left behind."""
    before = everything(pathlib.Path())
    with pytest.raises(BadInput, match=words) as caught:
        create(PONG, *argv)
    assert str(caught.value).isprintable()
    assert everything(pathlib.Path()) == before


def test_a_folder_with_another_run_is_taken(work, monkeypatch):
    """Analytic: the same folder, the same name, and any folder inside a run are refused."""
    create(PONG, "--log_dir", "run")
    create(PONG, "--run_name", "mine")
    (work / "link").symlink_to("run")
    (work / "part").symlink_to("run/checkpoints")
    command = (work / "run" / "command.txt").read_bytes()
    for folder in ("run", "link"):
        refused("--log_dir", folder, words="holds another run")
    for folder in ("run/new/er", "run/checkpoints", "part/new"):
        refused("--log_dir", folder, words="inside .*another run")
    refused("--run_name", "mine", words="holds another run")
    assert (work / "run" / "command.txt").read_bytes() == command
    monkeypatch.chdir(work / "run")  # the default folder would be inside, too
    refused(words="inside .*another run")


def test_what_cannot_be_written_is_refused_and_nothing_stays(work):
    """Analytic: files of the user, a file as the folder or its parent, broken links, a long name."""
    (work / "full").mkdir()
    (work / "full" / ".hidden").touch()
    refused("--log_dir", "full", words="not empty.*hidden")
    (work / "full" / ".hidden").rename(work / "full" / "git.txt")  # ours has a lock beside it
    refused("--log_dir", "full", words="not empty.*git.txt")
    (work / "file").touch()
    (work / "dangling").symlink_to("nowhere")
    (work / "loop").symlink_to("loop")
    for folder in ("file", "dangling", "loop", "loop/run"):
        refused("--log_dir", folder, words=f"cannot make the folder {folder}: ")
    refused("--log_dir", "file/deep/run", words="Not a directory")
    refused("--log_dir", "new/" + "x" * 300, words="File name too long")
    (work / "runs").touch()
    refused(words="Not a directory")
    refused("--run_name", "x", words="Not a directory")


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("name", ["lock", "flock", "command.txt.tmp", "args.json.tmp"])
def test_a_failure_half_way_leaves_nothing_behind(work, monkeypatch, name, existing):
    """Analytic: a full disk, or a file system without locks, takes back what was made."""
    if existing:
        (work / "new" / "run").mkdir(parents=True)
    real_open = pathlib.Path.open

    def fail(*args, **more):
        raise OSError(95, "Operation not supported")

    def failing_open(path, *args, **more):
        return (fail if path.name == name else real_open)(path, *args, **more)

    monkeypatch.setattr(pathlib.Path, "open", failing_open)
    if name == "flock":
        monkeypatch.setattr(claim.fcntl, "flock", fail)
    refused("--log_dir", "new/run", words="Operation not supported")
    assert everything(work) == (["new", "new/run"] if existing else [])


@pytest.mark.parametrize("n", range(1, 6))
def test_a_run_that_was_killed_while_it_made_its_folder_does_not_block_it(work, n):
    """Analytic: the next one gets the folder, unless the first is still at it, or the user has a file there."""
    half = work / "run"
    half.mkdir()
    for name in ["lock", "command.txt", "git.txt", "versions.txt.tmp", "args.json.tmp"][:n]:
        (half / name).touch()
    with contextlib.closing(claim.lock(half)):
        refused("--log_dir", "run", words="run is in use")
    (half / "mine").touch()
    refused("--log_dir", "run", words="not empty .it holds mine")
    (half / "mine").unlink()
    path = create(PONG, "--log_dir", "run")
    assert {*CONTENT} <= {each.name for each in path.iterdir()}
    assert (path / "command.txt").read_text() != ""


def test_two_runs_may_make_the_same_parent_at_once(monkeypatch):
    """Analytic: another run made runs/ a moment before this one."""
    real_mkdir = pathlib.Path.mkdir

    def late_mkdir(path, *args, **more):
        if path.name == "runs":
            real_mkdir(path)
        real_mkdir(path, *args, **more)

    monkeypatch.setattr(pathlib.Path, "mkdir", late_mkdir)
    assert sorted(path.name for path in create().iterdir()) == CONTENT


@pytest.mark.parametrize("argv", [["--log_dir", "run"], []], ids=["chosen", "default"])
@pytest.mark.parametrize("existing", [False, True])
def test_of_two_that_claim_one_folder_at_once_one_gets_it(work, monkeypatch, argv, existing):
    """Analytic: both found it free; one gets all of it, the other one gets a folder of another name
    or, where the user chose the name, one line.
    """
    barrier, met, results = threading.Barrier(2), threading.local(), []
    taken = run_folder._taken

    def meet(path: pathlib.Path, files: Collection[str]) -> str | None:
        why = taken(path, files)
        if not hasattr(met, "once"):
            met.once = True
            barrier.wait(timeout=60)
        return why

    def claim(n: str) -> None:
        try:
            results.append((create(PONG, *argv, "--keep_ckpts", n), int(n)))
        except BadInput as error:
            results.append((error, 0))

    monkeypatch.setattr(run_folder, "_taken", meet)
    monkeypatch.setattr(run_folder.time, "strftime", lambda form: "20260102-030405")
    stem = argv[1] if argv else f"runs/{PONG}_s0_20260102-030405"
    if existing:
        pathlib.Path(stem).mkdir(parents=True)
    threads = [threading.Thread(target=claim, args=(n,)) for n in "12"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = sorted(str(result) for result, _ in results)
    if argv:  # the other one came when the folder was locked, or when it was whole
        taken_words = ["run has just been taken", "run is in use: a run is under way in it"]
        assert names in [["run", words] for words in taken_words]
    else:
        assert names == [stem, f"{stem}_2"]
    for path, n in results:
        if n:
            assert run_folder.read_args(path).parsed.params.keep_ckpts == n
            assert f"--keep_ckpts {n}" in (path / "command.txt").read_text()
            assert sorted(each.name for each in path.iterdir()) == CONTENT


def test_who_comes_too_late_leaves_the_lock_of_the_other(work, monkeypatch):
    """Analytic: the other locks the file that we have just made; without it, a third would make a new one."""
    lock, held = claim.lock, []

    def lock_late(folder: pathlib.Path):
        held.append(lock(folder))
        return lock(folder)

    monkeypatch.setattr(claim, "lock", lock_late)
    with pytest.raises(BadInput, match="run is in use"):
        create(PONG, "--log_dir", "run")
    held[0].close()
    assert everything(work) == ["run", "run/lock"]


# The lock


def test_a_folder_is_held_until_it_is_closed(work):
    """Analytic: by the run that made it, and by the one that resumes it."""
    argv = [PONG, "--log_dir", "run"]
    first = run_folder.create(command_line.parse(argv), argv)
    for holder in (first, None):
        held = holder or run_folder.open_existing(work / "run")
        with pytest.raises(BadInput, match="run is in use: a run is under way in it"):
            run_folder.open_existing(pathlib.Path("run"))
        held.close()


def test_what_is_no_run_folder_is_refused_and_gets_no_lock(work):
    """Analytic: a folder without args.json, and a published one, which has no lock."""
    path = create(PONG, "--log_dir", "run")
    (path / "lock").unlink()
    before = everything(work)
    with pytest.raises(BadInput, match="run cannot be resumed: it has no lock file"):
        run_folder.open_existing(path)
    assert everything(work) == before
    (path / "args.json").unlink()
    (path / "args.json").mkdir()
    for name in ("run", "nowhere"):
        with pytest.raises(BadInput, match=f"{name} is no run folder: it has no args.json"):
            run_folder.open_existing(pathlib.Path(name))
    assert everything(work) == before


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "folder"])
def test_a_lock_that_is_no_file_is_refused(work, kind):
    """Analytic: nothing is written through it, and nobody waits for it."""
    lock = create(PONG, "--log_dir", "run") / "lock"
    lock.unlink()
    (work / "other").touch()
    if kind == "pipe":
        os.mkfifo(lock)
    elif kind == "folder":
        lock.mkdir()
    else:
        lock.symlink_to(work / ("other" if kind == "link" else "nowhere"))
    before = everything(work)
    with pytest.raises(BadInput, match="cannot open run/lock: "):
        run_folder.open_existing(lock.parent)
    assert everything(work) == before


@pytest.fixture
def moved(work):
    """A run whose folder was moved, and the run whose folder is in its place now."""
    argv = [PONG, "--log_dir", "run"]
    ours = run_folder.create(command_line.parse(argv), argv)
    ours.path.rename("moved")
    theirs = run_folder.create(command_line.parse(argv), argv)
    yield ours, theirs
    ours.close()
    theirs.close()


def test_a_folder_that_another_run_has_is_known(moved, work):
    """Analytic: a missing folder is nobody's, and so is the run's own one without its lock; one that
    the user made there, or that has another run's lock, is not this run's.
    """
    ours, theirs = moved
    assert not ours.is_ours()
    assert theirs.is_ours()
    (work / "run").rename("away")
    assert ours.is_ours()
    (work / "run").mkdir()
    assert not ours.is_ours()
    (work / "run").rmdir()
    (work / "moved").rename("run")
    assert ours.is_ours()
    (work / "run/lock").unlink()
    assert ours.is_ours()
    (work / "run/lock").touch()
    assert not ours.is_ours()


def test_nothing_is_saved_where_another_run_has_its_folder(moved):
    """Analytic: neither a checkpoint nor the files of a failure; the other run may save."""
    ours, theirs = moved
    before = everything(theirs.path)
    with pytest.raises(OSError, match="another run has its folder where run was"):
        ours.save(checkpoint_files.make(ours.checkpoints))
    assert ours.leave_failure("traceback", {}) == "another run has its folder where this run's was"
    assert everything(theirs.path) == before
    theirs.save(checkpoint_files.make(theirs.checkpoints))
    assert checkpoint.read(checkpoint.find(theirs.checkpoints)).n_steps == 70


def test_a_folder_that_is_gone_is_not_made_anew(work):
    """Analytic: the user removed it, and gets an error."""
    argv = [PONG, "--log_dir", "run"]
    folder = run_folder.create(command_line.parse(argv), argv)
    folder.path.rename("away")
    with pytest.raises(FileNotFoundError):
        folder.save(checkpoint_files.make(folder.checkpoints))
    assert "cannot be written" in folder.leave_failure("traceback", {})
    assert not folder.path.exists()
    folder.close()


# What a run says and leaves


@pytest.fixture
def folder():
    argv = [PONG, "--log_dir", "run"]
    folder = run_folder.create(command_line.parse(argv), argv)
    yield folder
    folder.close()


def test_what_is_said_is_in_the_log_too(folder: RunFolder, capsys):
    """Golden: each line once, after those that are there; a full disk below the console stops nothing."""
    folder.say("one", "two")
    folder.say("three")
    assert capsys.readouterr().out == "one\ntwo\nthree\n"
    with open("/dev/full", "w") as console, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", console)
        folder.say("four")
    assert (folder.path / "log.txt").read_text() == "one\ntwo\nthree\nfour\n"
