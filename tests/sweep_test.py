"""sweep.py's command line: what is refused, in one line and before anything is started."""

import re
import sys
import types

import pytest

import sweep
from a3c.machine import cluster, cores
from a3c.sweep import command, start
from a3c.sweep import folder as folders
from a3c.sweep import plan as plans
from tests.tools import processes

SHORT = ["--envs", "CartPole-v1"]


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Runs sweep.py, which must end with status 2 and one line; returns this line."""
    monkeypatch.chdir(tmp_path)
    ray = types.SimpleNamespace(
        __version__="2.60.0", init=lambda **_: pytest.fail("Ray was started")
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    for name in cluster.ENVIRONMENT | cluster.EMBEDDED:
        monkeypatch.setenv(name, "")

    def call(*argv: str) -> str:
        before = sorted(tmp_path.rglob("*"))
        with processes.handlers_kept():
            status = sweep.main(argv)
        out, err = capsys.readouterr()
        assert (status, out) == (2, "")
        assert re.fullmatch(r"sweep\.py: error: [^\n]+\n", err)
        assert sorted(tmp_path.rglob("*")) == before
        return err

    return call


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "envs is missing"),
        (["none.toml"], "cannot read none.toml"),
        (["--colour", *SHORT], "unrecognized arguments: --colour"),
        ([*SHORT, "--seeds", "0"], "seeds must be"),
        (["--envs", "Pnog-v4"], "Pnog"),
        (["--envs", "CartPole-v1", "Breakout-v4"], "Breakout-v4"),
        ([*SHORT, "--", "--network", "nature"], "--network nature does not fit"),
        ([*SHORT, "--", "--seed", "3"], "--seed is no setting"),
        ([*SHORT, "--cores", "5000"], "a trial takes 5000 cores, but there are only"),
        ([*SHORT, "--address", "there"], "must be auto or HOST:PORT"),
        ([*SHORT, "--address", "127.0.0.1:1"], "no Ray answers at 127.0.0.1:1"),
        ([*SHORT, "--address", "127.0.0.1:70000"], "no Ray answers"),
        ([*SHORT, "--ship_code"], "--ship_code needs --address"),
        (["--resume", "nowhere"], "nowhere is no folder of a sweep"),
        (["--resume", "nowhere", "--seeds", "3"], "takes no other settings"),
    ],
)
def test_bad_input_is_one_line(refused, argv, message):
    """Analytic: status 2, no folder and no Ray."""
    assert message in refused(*argv)


def test_a_bad_file_is_one_line(refused, tmp_path):
    """Analytic: no TOML, an unknown key, a module that the command does not name."""
    for text, message in {
        "envs = [": "bad.toml",
        'envs = ["CartPole-v1"]\nseed = 3': "unknown key seed (did you mean seeds?)",
        'envs = ["CartPole-v1"]\n[search]\nlr = [1]': "no flag of train.py",
        'envs = ["tests.tools.toys:toys/Drawn-v0"]': "if you trust it, name it on the command line",
        'envs = ["CartPole-v1"]\n[settings]\nwrapper = "this:W"': "this:W may run the code",
        'envs = ["CartPole-v1"]\n[search]\nwrapper = ["this:W"]': "this:W may run the code",
        "envs = ['CartPole-v1']\n[settings]\nenv_kwargs = ['x=\"a\\u003ab\"']": "may run the code",
    }.items():
        (tmp_path / "bad.toml").write_text(text)
        assert message in refused("bad.toml")


def test_flags_override_the_file(tmp_path):
    """Analytic: seeds, cores and a setting."""
    text = 'envs = ["CartPole-v1"]\nseeds = 3\ncores = 2\n[settings]\nn_steps = 70\n'
    (tmp_path / "x.toml").write_text(text)
    words = [str(tmp_path / "x.toml"), "--seeds", "2", "--cores", "1", "--", "--n_steps", "50"]
    plan = start._plan_of(*command.parse(words))
    assert [trial.seed for trial in plan.trials] == [0, 1]
    assert (plan.cores, plan.settings) == (1, {"n_steps": 50})


def test_a_folder_in_use_is_one_line(refused, tmp_path):
    """Analytic: one that holds something, for a new sweep; one whose sweep is under way, to resume."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    assert "full is in use: it holds file" in refused(*SHORT, "--out", "full")
    under_way = folders.create(tmp_path / "x", plans.make({"envs": ["CartPole-v1"]}), [])
    assert "x is in use" in refused("--resume", "x")
    assert "x is in use" in refused(*SHORT, "--out", "x")
    under_way.close()
    (tmp_path / "x/sweep.json").write_text("{}")
    assert "not the record of a sweep" in refused("--resume", "x")


def test_a_resumption_takes_no_other_settings(refused, tmp_path, monkeypatch):
    """Analytic: each value is one of the sweep's, but of another flag. What it has may be named again."""
    asked = {"envs": ["CartPole-v1"], "search": {"wrapper": ["tests.tools.toys:Twice", "none"]}}
    plan = plans.make(asked, ["--n_workers", "4", "--envs_per_worker", "2"])
    folders.create(tmp_path / "x", plan, []).close()
    for words in (
        ["--", "--n_workers", "2"],
        ["--", "--envs_per_worker", "4"],
        ["--", "--n_steps", "3"],
        ["--", "--resume", "x"],
        ["--envs", "Acrobot-v1"],
    ):
        assert "takes no other settings" in refused("--resume", "x", *words)
    monkeypatch.setitem(sys.modules, "ray", None)
    same = ["--", "--n_workers", "4", "--wrapper", "tests.tools.toys:Twice"]
    joined = ["--", "--n_workers=4", "--wrapper=tests.tools.toys:Twice"]
    for words in (same, joined, ["--envs", "CartPole-v1", *same]):
        assert "make sweep" in refused("--resume", "x", *words)


@pytest.mark.parametrize("version", [None, "2.59.1", "2.6.0", "3.0.0"])
def test_ray_missing_or_of_another_version_is_one_line(refused, monkeypatch, version):
    """Analytic: the line says what installs it."""
    ray = version and types.SimpleNamespace(__version__=version)
    monkeypatch.setitem(sys.modules, "ray", ray)
    line = refused(*SHORT)
    assert "Ray 2.60" in line
    assert "make sweep" in line


def test_a_machine_that_is_too_small_is_told_before_ray_is_loaded(refused, monkeypatch):
    """Analytic: the cores that this process may use, not those of the machine."""
    monkeypatch.setattr(cores, "n_usable", lambda: 3)
    assert "but there are only 3" in refused(*SHORT, "--cores", "4")


def test_help_needs_no_ray(monkeypatch, capsys):
    """Analytic: --help prints and ends with 0."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with processes.handlers_kept(), pytest.raises(SystemExit) as ending:
        sweep.main(["--help"])
    assert ending.value.code == 0
    assert "--resume" in capsys.readouterr().out
