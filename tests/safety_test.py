"""Reading a file runs no code, leaves its folder alone and fills no memory; no port is open."""

import ast
import contextlib
import os
import pathlib
import pickle
import socket

import pytest

from a3c.settings import command_line, params
from a3c.store import checkpoint, reading, run_folder
from tests.tools import checkpoint_files, fuzz, processes

SOURCES = [
    path
    for folder in ("a3c", ".", "benchmarks", "results")  # images/ opens a port for a browser
    for path in sorted((processes.ROOT / folder).glob("**/*.py" if folder == "a3c" else "*.py"))
]

# Modules that make objects of what they read, and so run code; and servers.
FORBIDDEN_MODULES = {
    *("pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "yaml"),
    *("jsonpickle", "runpy", "code", "codeop", "xmlrpc", "telnetlib", "http", "socketserver"),
}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "input", "breakpoint"}
# Attributes of modules that run a shell, or that read pickles unless told not to.
FORBIDDEN_ATTRIBUTES = {
    *("os.system", "os.popen", "pickle.load", "pickle.loads", "yaml.load", "np.load", "numpy.load"),
    *("tf.saved_model.load", "tf.keras.models.load_model", "tf.io.parse_tensor", "tf.py_function"),
    *("tf.numpy_function", "socket.create_server", "torch.load", "pandas.read_pickle"),
}
# The same, whatever the module is called: `from os import system`, `import os as o`.
FORBIDDEN_NAMES = {
    *(
        "system",
        "popen",
        "getoutput",
        "getstatusoutput",
        "execv",
        "execve",
        "execvp",
        "execl",
        "execlp",
    ),
    *("spawnl", "spawnv", "read_pickle", "read_array", "create_server", "start_server", "Listener"),
    *("eval", "exec", "py_function", "numpy_function", "parse_tensor"),
}


def dangers_in(source: str) -> list[str]:
    """What in a source could run code that it reads, or open a port."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [
                f"import {a.name}" for a in node.names if a.name.split(".")[0] in FORBIDDEN_MODULES
            ]
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").split(".")[0] in FORBIDDEN_MODULES:
                found.append(f"from {node.module}")
            found += [
                f"from {node.module} {a.name}" for a in node.names if a.name in FORBIDDEN_NAMES
            ]
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            keywords = {k.arg: ast.unparse(k.value) for k in node.keywords}
            is_safe = name in ("np.load", "numpy.load") and keywords.get("allow_pickle") == "False"
            if name in FORBIDDEN_CALLS or (name in FORBIDDEN_ATTRIBUTES and not is_safe):
                found.append(f"{name}()")
            if "." in name and name.rpartition(".")[2] in FORBIDDEN_NAMES:
                found.append(f"{name}()")
            if name.endswith((".bind", ".listen")):
                found.append(f"{name}()")
            if keywords.get("shell", "False") != "False" or keywords.get("allow_pickle") == "True":
                found.append(f"{name}(shell or allow_pickle)")
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_source_runs_what_it_reads(path):
    """Analytic: no pickle, eval, yaml, shell or server; `np.load` only with allow_pickle=False."""
    assert dangers_in(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        *("import pickle", "from pickle import loads", "import yaml", "import dill as d"),
        *("eval(text)", "exec(text)", "compile(t, '', 'exec')", "__import__(name)"),
        *("np.load(path)", "np.load(path, allow_pickle=True)", "x.read(allow_pickle=True)"),
        *("yaml.load(file)", "os.system(c)", "subprocess.run(c, shell=True)", "s.bind(('', 80))"),
        *("from os import system", "import os as o\no.popen(c)", "subprocess.getoutput(c)"),
        *("os.execl('/bin/sh', c)", "asyncio.start_server(f)", "connection.Listener(a)"),
        *("pd.read_pickle(p)", "np.lib.format.read_array(f, True)", "builtins.exec(t)"),
        *("s.listen()", "tf.saved_model.load(p)", "def f():\n    import marshal"),
    ],
)
def test_a_danger_is_found(source):
    """Analytic: negative control; `re.compile` and a safe `np.load` are no dangers."""
    assert dangers_in(source)
    assert dangers_in("re.compile('a')\nnp.load(p, allow_pickle=False)\nimport json") == []


def test_code_that_a_user_names_is_imported_in_one_place():
    """Analytic: `module:Id` and `--wrapper` run a module, by design; nothing else imports what the user names.
    (cluster.py imports Ray, and a3c/__init__.py our own modules: their names stand in the source.)
    """
    users = [p.name for p in SOURCES if "import_module(" in p.read_text(encoding="utf-8")]
    assert sorted(users) == ["__init__.py", "base.py", "cluster.py"]


# Hostile files


class Bomb:
    """Makes a folder when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("exploded",)


def refuse(path: pathlib.Path) -> str:
    """The line in which a checkpoint is refused."""
    with pytest.raises(checkpoint.UnusableCheckpoint) as error:
        checkpoint.read(path)
    fuzz.check_line(str(error.value))
    return str(error.value)


@pytest.mark.parametrize("where", ["file", "header", "content", "array"])
@pytest.mark.parametrize("protocol", [0, 5])
def test_a_pickle_is_not_unpickled(tmp_path, monkeypatch, where, protocol):
    """Analytic: in any part of a checkpoint, with a matching checksum; the bomb is a real one."""
    monkeypatch.chdir(tmp_path)
    bomb = pickle.dumps(Bomb(), protocol)
    path = checkpoint_files.save(tmp_path)
    header, content, arrays = checkpoint_files.unpack(path.read_bytes())
    padded = bomb.ljust(-(-len(bomb) // 4) * 4, b"\0")
    at = {"weights/x": {"dtype": "OBJECT", "shape": [1], "data_offsets": [0, len(padded)]}}
    parts = {
        "file": bomb,
        "header": len(bomb).to_bytes(8, "little") + bomb,
        "content": checkpoint_files.pack(header, bomb.decode("latin-1"), arrays),
        "array": checkpoint_files.pack(at, checkpoint_files.sealed(at, content, padded), padded),
    }
    path.write_bytes(parts[where])
    refuse(path)
    assert not (tmp_path / "exploded").exists()
    pickle.loads(bomb)
    assert (tmp_path / "exploded").exists()


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_has_no_end_is_not_read(tmp_path, kind):
    """Analytic: a pipe that nobody writes to, /dev/zero, and a folder instead of a file."""
    paths = [tmp_path / "ckpt-70.safetensors", tmp_path / "args.json"]
    for path in paths:
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "device":
            path.symlink_to("/dev/zero")
        else:
            path.mkdir()
    assert "it is not a file" in refuse(paths[0])
    with pytest.raises(params.BadInput):
        run_folder.read_args(tmp_path)
    with pytest.raises(params.BadInput):
        reading.read_text(paths[1])


def test_what_is_too_large_is_not_read(tmp_path):
    """Analytic: a checkpoint of 8 GB, a JSON of 100 MB; reading_test.py has a CSV that is large when unzipped."""
    path = checkpoint_files.save(tmp_path)
    os.truncate(path, 2**33)  # takes no room
    assert "is larger than" in refuse(path)
    (tmp_path / "args.json").touch()
    os.truncate(tmp_path / "args.json", 10**8)
    with pytest.raises(params.BadInput, match="no file of ours"):
        run_folder.read_args(tmp_path)
    assert reading.MAX_UNZIPPED_BYTES <= 2**28


# Names

NASTY = [
    *("../x", "..", ".", "/x", "a/b", "a/../../x", "a\nb", "\x1b[2J", "x" * 10_000, "\0"),
    *(
        "a\\..\\b",
        "~",
        "-rf",
        "$(touch x)",
        "\u202exyz",
        "",
        "con",
        "a b",
        "é",
        ".hidden",
        "\udc80",
    ),
]


@pytest.mark.parametrize("name", NASTY, ids=range(len(NASTY)))
@pytest.mark.parametrize("where", ["env_id", "run_name"])
def test_a_nasty_name_is_refused_or_made_safe(tmp_path, monkeypatch, where, name):
    """Analytic: the folder is right below runs/ and printable, or the name is refused in one line."""
    monkeypatch.chdir(tmp_path)
    argv = ["--", name] if where == "env_id" else [f"--run_name={name}", "CartPole-v1"]
    try:
        parsed = command_line.parse(argv)
    except params.BadInput as error:
        fuzz.check_line(str(error))
        assert list(tmp_path.iterdir()) == []
        return
    parsed = params.resolve(parsed, "vector")
    with contextlib.closing(run_folder.create(parsed, argv)) as made:
        folder = made.path
    assert folder.parent == pathlib.Path("runs")
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert list((tmp_path / "runs").iterdir()) == [tmp_path / folder]
    assert folder.name.isprintable()
    assert len(folder.name) < 200
    assert run_folder.read_args(folder).parsed.params == parsed.params


# Ports


def test_a_port_is_found():
    """Analytic: negative control of the tests that look at the ports of a whole run."""
    before = processes.open_ports([os.getpid()])
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(type=socket.SOCK_DGRAM) as udp,
    ):
        udp.bind(("127.0.0.1", 0))
        numbers = [each.getsockname()[1] for each in (server, udp)]
        found = set(processes.open_ports([os.getpid()])) - set(before)
    assert found == {f"tcp 0100007F:{numbers[0]:04X}", f"udp 0100007F:{numbers[1]:04X}"}
