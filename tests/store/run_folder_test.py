"""Tests of the run folder: what it records, and that no two runs ever share one."""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import threading
import time
import types
from typing import Any

import pytest

from a3c.settings import command_line, params
from a3c.settings.params import BadInput
from a3c.store import run_folder

PONG = "PongNoFrameskip-v4"
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CONTENT = ["args.json", "checkpoints", "command.txt", "git.txt", "monitor", "versions.txt"]


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch):
    """Each test in an empty folder, below which alone it writes."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    # The folder of a test run may itself lie in a repository.
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    return folder


@pytest.fixture
def outside(tmp_path):
    """A folder that no repository holds."""
    folder = tmp_path / "outside"
    folder.mkdir()
    return folder


@pytest.fixture
def repository(tmp_path):
    """A repository with one commit."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / ".gitignore").write_text("ignored*\n")
    (folder / "code.py").write_text("lr = 1\n")
    git(folder, "add", ".")
    commit(folder)
    return folder


def git(folder: pathlib.Path, *args: str) -> str:
    done = subprocess.run(
        ["git", "-C", folder, *args], capture_output=True, check=True, encoding="utf-8"
    )
    return done.stdout.strip()


def commit(folder: pathlib.Path) -> None:
    git(folder, "-c", "user.name=n", "-c", "user.email=e@e", "commit", "-q", "-m", "m")


def create(*argv: str, environment=None, code: pathlib.Path = pathlib.Path("/")) -> pathlib.Path:
    """A run folder as train.py makes it; without a repository unless `code` names one."""
    argv = argv or (PONG,)
    return run_folder.create(command_line.parse(argv), argv, environment, code)


def everything(folder: pathlib.Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_the_default_folder_is_named_by_environment_time_and_revision(repository):
    """Analytic: runs/<env>_<time>_<revision>, 'nogit' without a repository."""
    revision = git(repository, "rev-parse", "--short", "HEAD")
    for code, named in ((repository, revision), (pathlib.Path("/"), "nogit")):
        folder = create(code=code)
        assert re.fullmatch(rf"runs/{PONG}_\d{{8}}-\d{{6}}_{named}", str(folder))
        assert sorted(path.name for path in folder.iterdir()) == CONTENT
        assert (folder / "monitor").is_dir()
        assert (folder / "checkpoints").is_dir()


@pytest.mark.parametrize(
    ("env_id", "named"),
    [
        ("ALE/Pong-v5", "ALE-Pong-v5"),
        ("toys.dot:Dot-v0", "toys.dot-Dot-v0"),
        ("../../etc", "etc"),
        ("/", "env"),
        ("П y", "y"),
        ("x" * 200, "x" * 100),
    ],
)
def test_the_environments_name_cannot_leave_the_folder_of_runs(env_id, named):
    """Analytic: whatever the id holds, the run folder is right below runs/."""
    folder = create(env_id)
    assert folder.parent == pathlib.Path("runs")
    assert re.fullmatch(rf"{named}_\d{{8}}-\d{{6}}_nogit", folder.name)


def test_two_runs_of_one_second_have_two_folders(monkeypatch):
    """Analytic: a name that nobody chose gives way."""
    monkeypatch.setattr(run_folder.time, "strftime", lambda form: "20260102-030405")
    folders = [str(create()) for _ in range(3)]
    stem = f"runs/{PONG}_20260102-030405_nogit"
    assert folders == [stem, f"{stem}_2", f"{stem}_3"]


def test_run_name_and_log_dir_name_the_folder(repository, work):
    """Analytic: --run_name gets the revision as in OCD A3C, --log_dir nothing."""
    revision = git(repository, "rev-parse", "--short", "HEAD")
    assert str(create(PONG, "--run_name", "a b", code=repository)) == f"runs/a b_{revision}"
    assert str(create(PONG, "--run_name", "mine")) == "runs/mine_nogit"
    assert str(create(PONG, "--log_dir", "deep/er/x")) == "deep/er/x"
    assert str(create(PONG, "--log_dir", str(work / "y"))) == str(work / "y")
    (work / "empty").mkdir()
    assert sorted(p.name for p in create(PONG, "--log_dir", "empty").iterdir()) == CONTENT


def test_args_json_holds_every_value_and_its_source():
    """Analytic: what read_args returns is what was parsed, with what the environment told."""
    argv = [PONG, "--preset", "paper", "--seed", "3"]
    folder = create(*argv, environment={"kind": "image", "sticky_actions": 0.25})
    content = json.loads((folder / "args.json").read_text())
    assert content["params"]["seed"] == 3
    assert content["sources"]["seed"] == "command line"
    assert content["sources"]["initial_lr"] == "preset"
    parsed = command_line.parse(argv)
    assert run_folder.read_args(folder) == run_folder.RunArgs(
        parsed.params, parsed.sources, {"kind": "image", "sticky_actions": 0.25}
    )


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "{}", '{"environment": {}}', '{"params": {}}', "[" * 10**5, "\udcff"],
)
def test_damaged_arguments_are_refused_in_one_line(text):
    """Analytic: a missing, cut or foreign args.json is BadInput that names the file."""
    folder = create()
    (folder / "args.json").write_text(text, errors="surrogateescape")
    with pytest.raises(BadInput, match=r"args\.json is damaged"):
        run_folder.read_args(folder)
    content = params.to_json(command_line.parse([PONG]))
    (folder / "args.json").write_text(json.dumps(content))
    with pytest.raises(BadInput, match=r"args\.json is damaged.*environment"):
        run_folder.read_args(folder)
    (folder / "args.json").unlink()
    with pytest.raises(BadInput, match=r"cannot read .*args\.json"):
        run_folder.read_args(folder)


def test_the_command_can_be_pasted():
    """Analytic: a shell takes the line apart into the very arguments, however odd."""
    argv = (PONG, "--log_dir", 'it\'s $HOME; a `b` "c"\\*é', "--n_steps", " 1e6 ")
    line = (create(*argv) / "command.txt").read_text()
    assert line.count("\n") == 1
    assert line.endswith("\n")
    assert shlex.split(line) == ["python3", "train.py", *argv]
    echo = "python3() { printf '%s\\0' \"$@\"; }\n"
    done = subprocess.run(["sh", "-c", echo + line], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == ["train.py", *argv]


def test_a_clean_repository_is_its_revision(repository):
    """Analytic: the whole revision, and that nothing differs."""
    text = (create(code=repository) / "git.txt").read_text()
    assert f"revision: {git(repository, 'rev-parse', 'HEAD')}\n" in text
    assert "uncommitted difference: none\n" in text
    assert "untracked files: none\n" in text


def test_a_difference_can_be_applied_again(repository):
    """Analytic: revision and git.txt give the code that ran, staged and unstaged alike."""
    (repository / "code.py").write_text("lr = 2\n")
    (repository / "staged.bin").write_bytes(bytes(range(256)))
    git(repository, "add", "staged.bin")
    (repository / "new.py").write_bytes(b"# new \xff\n")
    (repository / "notes.txt").write_text("not code\n")
    (repository / "ignored.py").write_text("secret\n")
    # Colours and programs of the user's own must not get into the record.
    git(repository, "config", "color.ui", "always")
    git(repository, "config", "diff.external", "false")
    before = git(repository, "status", "--porcelain")
    folder = create(code=repository)
    assert git(repository, "status", "--porcelain") == before
    data = (folder / "git.txt").read_bytes()
    assert b"untracked files:\n    'new.py'\n    'notes.txt'\n" in data
    assert b"untracked 'new.py':\n# new \xff\n" in data
    assert b"not code" not in data
    assert b"ignored" not in data
    difference = data.partition(b"uncommitted difference:\n")[2].partition(b"untracked files")[0]
    git(repository, "-c", "color.ui=never", "reset", "-q", "--hard")
    subprocess.run(["git", "-C", repository, "apply"], input=difference, check=True)
    assert (repository / "code.py").read_text() == "lr = 2\n"
    assert (repository / "staged.bin").read_bytes() == bytes(range(256))


def test_untracked_files_cannot_flood_the_record(repository):
    """Analytic: large modules, and modules beyond a limit, are named without their text."""
    (repository / "a_large.py").write_text("#" * 100_001)
    for i in range(60):
        (repository / f"small{i:02}.py").write_text(f"n = {i}\n")
    text = (create(code=repository) / "git.txt").read_text()
    assert text.count(".py'\n") == 61
    assert "####" not in text
    assert len(re.findall(r"^n = \d+$", text, re.MULTILINE)) == 49


def test_the_revision_is_the_codes_and_not_the_callers(repository, tmp_path, monkeypatch):
    """Analytic: variables that git sets for its hooks do not point elsewhere."""
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "nowhere"))
    text = (create(code=repository) / "git.txt").read_text()
    assert "uncommitted difference: none" in text


def test_git_is_told_of_no_other_repository_and_asks_nobody(monkeypatch):
    """Analytic: none of a hook's variables goes on to it, all others do; it has no terminal."""
    pointers = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR"}
    for name in (*pointers, "GIT_OTHER"):
        monkeypatch.setenv(name, "here")
    asked = []

    def run(command: list[str], **options: Any) -> types.SimpleNamespace:
        asked.append(options)
        return types.SimpleNamespace(returncode=0, stdout=b"said")

    monkeypatch.setattr(run_folder.subprocess, "run", run)
    assert run_folder.git(ROOT, "status") == "said"
    assert asked[0]["env"].keys() == os.environ.keys() - pointers
    assert asked[0]["stdin"] == subprocess.DEVNULL


def test_no_repository_is_no_failure(outside, monkeypatch):
    """Analytic: 'no repository' outside of one, and where git is missing or hangs."""
    assert (create(code=outside) / "git.txt").read_text() == "no repository\n"
    monkeypatch.setenv("PATH", str(outside))
    folder = create(PONG, "--run_name", "no_git_here", code=outside)
    assert folder.name == "no_git_here_nogit"
    assert (folder / "git.txt").read_text() == "no repository\n"
    monkeypatch.undo()
    monkeypatch.chdir(outside)
    tool = outside / "git"
    tool.write_text("#!/bin/sh\nexec sleep 600\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{outside}:{os.environ['PATH']}")
    monkeypatch.setattr(run_folder, "_GIT_SECONDS", 0.2)
    start = time.monotonic()
    assert (create(code=outside) / "git.txt").read_text() == "no repository\n"
    assert time.monotonic() - start < 300


def test_a_repository_without_a_commit_is_told(outside):
    """Analytic: nothing to name, and no failure."""
    git(outside, "init", "-q")
    (outside / "new.py").write_text("n = 1\n")
    folder = create(code=outside)
    text = (folder / "git.txt").read_text()
    assert folder.name.endswith("_nogit")
    assert text.startswith("revision: no commit yet\n")
    assert "untracked 'new.py':\nn = 1\n" in text


def test_versions_tell_python_packages_and_machine():
    """Analytic: the code, this interpreter, a package that is surely there, processor and cores."""
    text = (create(code=ROOT) / "versions.txt").read_text()
    assert text.startswith(f"code: {run_folder.digest_of(ROOT)}\n")
    assert f"python: {sys.version.split()[0]} " in text
    assert f"    pytest=={pytest.__version__}\n" in text
    assert re.search(rf"^cores: {os.cpu_count()}, usable: [1-9]", text, re.MULTILINE)
    model = re.search(
        r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE
    )
    assert re.search(rf"^cpu: {re.escape(model[1]) if model else '.'}", text, re.MULTILINE)
    assert re.search(r"^platform: \S", text, re.MULTILINE)


def test_a_resumption_that_cannot_be_noted_is_one_line(tmp_path):
    """Analytic: something is in the way of the file, and cannot even be taken away."""
    args = run_folder.RunArgs(params.Params(env_id="CartPole-v1"), {}, {}, [])
    (tmp_path / "args.json.tmp").mkdir()
    with pytest.raises(BadInput, match=r"^cannot write .*args\.json: Is a directory$"):
        run_folder.record_resumption(tmp_path, args, {})


def test_a_resumption_is_on_the_disk_before_it_takes_the_old_ones_place(tmp_path, monkeypatch):
    """Analytic: all of it, or a power cut would leave an empty file."""
    args = run_folder.RunArgs(params.Params(env_id="CartPole-v1"), {}, {}, [])
    sizes = []
    monkeypatch.setattr(
        run_folder.os, "fsync", lambda number: sizes.append(os.fstat(number).st_size)
    )
    run_folder.record_resumption(tmp_path, args, {})
    assert sizes == [(tmp_path / "args.json").stat().st_size]


def test_a_folder_is_named_after_its_environment(tmp_path, monkeypatch):
    """Golden: what no file's name should have becomes one dash, and none is at an end."""
    monkeypatch.chdir(tmp_path)
    folder = run_folder._choose(params.Params(env_id="-.ns/X: Maze_1.X.-"), "abc1234")
    assert re.fullmatch(r"ns-X-Maze_1\.X_\d{8}-\d{6}_abc1234", folder.name)
    assert folder.parent == pathlib.Path("runs")


def test_the_codes_digest_does_not_depend_on_a_folders_order(tmp_path, monkeypatch):
    """Analytic: the same forwards and backwards."""
    (tmp_path / "a3c").mkdir()
    paths = [tmp_path / "a3c/one.py", tmp_path / "a3c/two.py"]
    for path in paths:
        path.write_text(path.name)
    digests = set()
    for found in (paths, paths[::-1]):
        monkeypatch.setattr(pathlib.Path, "glob", lambda *_, found=found: iter(found))
        digests.add(run_folder.digest_of(tmp_path))
    assert len(digests) == 1


def test_the_codes_digest_is_of_what_trains(tmp_path):
    """Analytic: another byte of a module or of train.py, or a module's other name; not a test's."""
    (tmp_path / "a3c/room").mkdir(parents=True)
    digests = [run_folder.digest_of(tmp_path)]
    for name, text in {
        "a3c/one.py": "1",
        "a3c/room/one.py": "1",
        "train.py": "1",
        "a3c/two.py": "",
        "a3c/three.py": "",
        "README.md": "1",
        "run_checkpoint.py": "1",
    }.items():
        (tmp_path / name).write_text(text)
        digests.append(run_folder.digest_of(tmp_path))
    assert len(set(digests)) == 6
    assert digests[5:] == [digests[5]] * 3
    (tmp_path / "a3c/one.py").rename(tmp_path / "a3c/only.py")
    digests.append(run_folder.digest_of(tmp_path))
    (tmp_path / "a3c/only.py").write_text("2")
    digests.append(run_folder.digest_of(tmp_path))
    assert len(set(digests)) == 8


def refused(*argv: str, words: str) -> None:
    """The folder is refused in a line with these words, and nothing is made or changed."""
    before = everything(pathlib.Path())
    with pytest.raises(BadInput, match=words) as caught:
        create(PONG, *argv)
    assert str(caught.value).isprintable()
    assert everything(pathlib.Path()) == before


def test_a_folder_with_another_run_is_taken(work):
    """Analytic: the same folder, the same name, and any folder inside a run are refused."""
    create(PONG, "--log_dir", "run")
    create(PONG, "--run_name", "mine")
    (work / "link").symlink_to("run")
    (work / "part").symlink_to("run/monitor")
    command = (work / "run" / "command.txt").read_bytes()
    refused("--log_dir", "run", words="holds another run")
    refused("--log_dir", "link", words="holds another run")
    refused("--log_dir", "run/new/er", words="inside .*another run")
    refused("--log_dir", "run/monitor", words="inside .*another run")
    refused("--log_dir", "part/new", words="inside .*another run")
    refused("--run_name", "mine", words="holds another run")
    assert (work / "run" / "command.txt").read_bytes() == command


def test_a_run_started_inside_another_runs_folder_is_refused(monkeypatch):
    """Analytic: the default folder, too, would lie in the folder of that run."""
    monkeypatch.chdir(create())
    refused(words="inside .*another run")


def test_a_folder_with_anything_in_it_is_taken(work):
    """Analytic: files of the user's own are not mixed with a run's."""
    (work / "full").mkdir()
    (work / "full" / ".hidden").touch()
    refused("--log_dir", "full", words="not empty.*hidden")


def test_what_cannot_be_written_is_refused_and_nothing_stays(work):
    """Analytic: a file in the way, a file as parent, a name too long, a system's own folder."""
    (work / "file").touch()
    (work / "dangling").symlink_to("nowhere")
    (work / "loop").symlink_to("loop")
    refused("--log_dir", "file", words="in the way")
    refused("--log_dir", "dangling", words="in the way")
    refused("--log_dir", "loop", words="in the way")
    refused("--log_dir", "loop/run", words="cannot make")
    refused("--log_dir", "file/deep/run", words="Not a directory")
    refused("--log_dir", "new/" + "x" * 300, words="File name too long")
    (work / "runs").touch()
    refused(words="Not a directory")
    refused("--run_name", "x", words="Not a directory")


@pytest.mark.skipif(not pathlib.Path("/proc/self").exists(), reason="needs Linux's /proc")
def test_a_folder_that_the_system_refuses():
    """Analytic: the kernel lets nobody, not even root, make folders in /proc."""
    refused("--log_dir", "/proc/a3c/run", words="cannot make the run folder /proc/a3c/run")


def test_a_folder_without_permission(work):
    """Analytic: neither below a folder that may not be written, nor in it where it is empty."""
    (work / "locked").mkdir(mode=0o555)
    if os.access(work / "locked", os.W_OK):
        pytest.skip("root may write everywhere")
    refused("--log_dir", "locked/run", words="Permission denied")
    refused("--log_dir", "locked", words="Permission denied")


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("name", ["args.json", "git.txt", "monitor"])
def test_a_failure_half_way_leaves_nothing_behind(work, monkeypatch, name, existing):
    """Analytic: a full disk in the middle takes back what was made, and no more."""
    if existing:
        (work / "new" / "run").mkdir(parents=True)

    def full(*args, **more):
        raise OSError(28, "No space left on device")

    real_open, real_mkdir = open, pathlib.Path.mkdir

    def failing_open(path, *args, **more):
        return (full if path.name == name else real_open)(path, *args, **more)

    def failing_mkdir(path, *args, **more):
        return (full if path.name == name else real_mkdir)(path, *args, **more)

    monkeypatch.setattr("builtins.open", failing_open)
    monkeypatch.setattr(pathlib.Path, "mkdir", failing_mkdir)
    refused("--log_dir", "new/run", words="No space left")
    assert everything(work) == (["new", "new/run"] if existing else [])


def test_two_runs_may_make_the_same_parent_at_once(monkeypatch):
    """Analytic: that another run was first to make runs/ is no failure of this one."""
    real_mkdir = pathlib.Path.mkdir

    def late_mkdir(path, *args, **more):
        if path.name == "runs":
            real_mkdir(path)
        real_mkdir(path, *args, **more)

    monkeypatch.setattr(pathlib.Path, "mkdir", late_mkdir)
    assert sorted(path.name for path in create().iterdir()) == CONTENT


@pytest.mark.parametrize("existing", [False, True])
def test_of_two_creators_at_once_one_gets_the_folder(work, monkeypatch, existing):
    """Analytic: both have found the folder free; one run owns it whole, the other is refused."""
    if existing:
        (work / "run").mkdir()
    barrier = threading.Barrier(2)

    def meet() -> str:
        barrier.wait(timeout=60)
        return "both have looked"

    monkeypatch.setattr(run_folder, "_versions", meet)
    results: dict[str, pathlib.Path | BadInput] = {}

    def creator(seed: str) -> None:
        try:
            results[seed] = create(PONG, "--seed", seed, "--log_dir", "run")
        except BadInput as error:
            results[seed] = error

    threads = [threading.Thread(target=creator, args=(seed,)) for seed in "12"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["1", "2"]
    (winner,) = (seed for seed, result in results.items() if isinstance(result, pathlib.Path))
    (loser,) = (result for result in results.values() if isinstance(result, BadInput))
    assert "taken" in str(loser)
    assert run_folder.read_args("run").params.seed == int(winner)
    assert f"--seed {winner} " in (work / "run" / "command.txt").read_text()
    assert sorted(path.name for path in (work / "run").iterdir()) == CONTENT


def test_a_folder_that_another_run_has_is_known(tmp_path):
    """Analytic: by its lock's file; one that is gone, or has no lock, is nobody's."""
    ours, moved = tmp_path / "run", tmp_path / "moved"
    ours.mkdir()
    with run_folder.lock(ours) as held:
        assert not run_folder.is_taken_over(ours, held)
        ours.rename(moved)
        assert not run_folder.is_taken_over(ours, held)
        ours.mkdir()
        assert not run_folder.is_taken_over(ours, held)
        with run_folder.lock(ours) as theirs:
            assert run_folder.is_taken_over(ours, held)
            assert not run_folder.is_taken_over(ours, theirs)


@pytest.mark.parametrize("number", ["NaN", "1e999", "-Infinity"])
@pytest.mark.parametrize("where", ["resumed", "environment"])
def test_what_could_not_be_written_again_is_not_read(tmp_path, where, number):
    """Analytic: numbers that JSON has not, or that are beyond float, where nobody looks for any."""
    parsed = command_line.parse(["CartPole-v1"])
    content = json.dumps(params.to_json(parsed) | {"environment": {"x": 7}, "resumed": [7]})
    path = tmp_path / "args.json"
    path.write_text(content)
    assert run_folder.read_args(tmp_path).resumed == (7,)
    replaced = (
        content.replace("[7]", f"[{number}]")
        if where == "resumed"
        else content.replace('"x": 7', f'"x": {number}')
    )
    path.write_text(replaced)
    with pytest.raises(BadInput, match="is damaged"):
        run_folder.read_args(tmp_path)
