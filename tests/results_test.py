"""Published runs: each is whole and readable, and the documents' tables are what `make results` writes."""

import contextlib
import gzip
import json
import pathlib
import re
import shlex
import shutil

import numpy as np
import pytest
from matplotlib import image

from a3c.settings import command_line
from a3c.settings.params import BadInput
from a3c.store import checkpoint, provenance, reading, run_folder
from a3c.store.games import Games
from benchmarks import documents
from results import publish, report
from tests.tools import agents, run_files

ROOT = pathlib.Path(__file__).resolve().parent.parent
RUNS = report.read_all()
WITHOUT_WEIGHTS = "pong-nature-s0"  # published, evaluated; its agent gave way to another game's


# What is published


def test_the_documents_have_the_tables_of_the_results():
    """Golden: each table is what `make results` would write now, and no place for one is left over."""
    tables = report.texts(RUNS)
    for (path, name), table in tables.items():
        assert documents.text_between(path, name) == table, name
    places = re.findall(r"<!-- (make results, \w+):", report.README.read_text(encoding="utf-8"))
    assert {*places} == {name for path, name in tables if path == report.README}


def test_what_is_published_is_small_and_names_no_place_of_ours():
    """Analytic: results/ within 60 MB, an agent within 7 MB, no paths of the machine it ran on."""
    files = [path for path in report.HERE.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 60e6
    for path in files:
        assert path.suffix != checkpoint.SUFFIX or path.stat().st_size <= 7e6
        if path.suffix in {".json", ".txt", ".gz"}:
            assert publish.place_in(path) is None, path


@pytest.mark.parametrize("published", RUNS, ids=lambda published: published.name)
def test_a_published_run_is_whole(published):
    """Analytic: its command, settings, games, last row, agent and evaluations agree with run.json."""
    facts, folder, run = published.facts, published.folder, published.run
    settings = run.settings
    assert (settings["env_id"], settings["seed"]) == (facts["env_id"], facts["seed"])
    assert folder.name.endswith(f"-s{facts['seed']}")
    words = shlex.split((folder / "command.txt").read_text(encoding="utf-8"))
    assert words[:2] == ["python3", "train.py"]
    given = command_line.parse(words[2:])
    for name, source in given.sources.items():
        if source == "command line" and not (name == "n_steps" and facts["resumed"]):
            assert settings[name] == getattr(given.params, name), name
    assert run.env_id == facts["env_id"]
    assert run.games.steps[-1] <= facts["steps"]
    last_row = gzip.decompress((folder / "progress.csv.gz").read_bytes()).split()[-1]
    assert int(last_row.split(b",")[0]) == facts["steps"]
    # One rollout of each environment was not counted.
    n_envs = settings["n_workers"] * settings["envs_per_worker"]
    assert 0 <= len(run.games.scores) - facts["games"] <= n_envs
    if facts["hours"] is not None:
        assert facts["hours"] == pytest.approx(run.games.seconds[-1] / 3600, abs=1e-3)
    has_agent = published.evaluation is not None and folder.name != WITHOUT_WEIGHTS
    assert (folder / "checkpoints").exists() == has_agent
    if has_agent:
        agent = checkpoint.read(checkpoint.find(folder))
        assert (agent.subject.env_id, agent.n_steps) == (facts["env_id"], facts["steps"])
    seeds = [facts["seed"]]
    for path in folder.glob("evaluation*.json"):
        evaluation = json.loads(path.read_text(encoding="utf-8"))
        scores = [game["score"] for game in evaluation["games"]]
        summary = evaluation["summary"]
        assert len(scores) == summary["n_games"] >= publish.N_GAMES
        assert (summary["mean"], summary["sd"]) == pytest.approx(
            (np.mean(scores), np.std(scores, ddof=1))
        )
        assert evaluation["greedy"] == ("greedy" in path.stem)
        assert evaluation["steps"] == facts["steps"]
        seeds.append(evaluation["seed"])
    assert len({*seeds}) == len(seeds)  # none played what another did


@pytest.mark.parametrize(("name", "drawn"), report.PICTURES.items(), ids=report.PICTURES)
def test_the_pictures_are_of_the_runs(name, drawn, tmp_path, monkeypatch):
    """Golden: drawn again, each is the same, but for how a machine's fonts are smoothed."""
    picture = report.IMAGES / name
    monkeypatch.setattr(report, "IMAGES", tmp_path)
    beginning, flags = drawn
    report.draw(name, report.shown(RUNS, beginning, flags), flags)
    before, now = (image.imread(path) for path in (picture, tmp_path / name))
    assert before.shape == now.shape
    assert np.abs(before - now).mean() < 1e-3  # of 1


# Publishing

COMMAND = ["--log_dir", "runs/pole-s3", "--n_steps", "70", "--seed", "3", "CartPole-v1"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The folder of a CartPole run that ended at its step 70."""
    monkeypatch.chdir(tmp_path)
    made = run_folder.create(command_line.parse(COMMAND), COMMAND)
    made.close()
    folder = made.path
    agents.save(folder / "checkpoints")
    games = [(20.0, 20, 2.0, 20), (21.0, 21, 2.1, 45), (26.0, 26, 2.6, 70)]
    (folder / "monitor.csv").write_text(run_files.games_text(games, "CartPole-v1"))
    (folder / "progress.csv").write_text("misc/steps,misc/cpu_hours\n70,0.5\n")
    set_code(folder)
    return folder


def set_code(folder: pathlib.Path, difference: str = "uncommitted difference: none") -> None:
    text = f"revision: {'ab' * 20}\nroot: /home/somebody\n{difference}\nuntracked files: none\n"
    (folder / "git.txt").write_text(text)


def test_a_run_is_published(run, monkeypatch, capsys):
    """Golden: curves, settings, weights and games of a fresh seed; no statistics, no paths."""
    monkeypatch.setattr(publish, "N_GAMES", 2)
    monkeypatch.setattr(publish, "revision_here", lambda: "cd" * 20)
    assert publish.main([str(run), "results/pole-s3", "--alone"]) == 0
    into = pathlib.Path("results/pole-s3")
    assert json.loads((into / "run.json").read_text()) == {
        "revision": "ab" * 20,
        "patch": None,
        "env_id": "CartPole-v1",
        "sticky_actions": None,
        "seed": 3,
        "steps": 70,
        "games": 3,
        "resumed": 0,
        "hours": 0.001,
        "cpu_hours": 0.5,
        "evaluated_by": "cd" * 20,
    }
    for name in ("progress.csv", "monitor.csv"):
        assert gzip.decompress((into / f"{name}.gz").read_bytes()) == (run / name).read_bytes()
    for name in ("command.txt", "args.json", "versions.txt"):
        assert (into / name).read_bytes() == (run / name).read_bytes()
    agent, whole = (checkpoint.read(checkpoint.find(folder)) for folder in (into, run))
    assert agent.snapshot.weights.keys() == whole.snapshot.weights.keys()
    for name, array in whole.snapshot.weights.items():
        np.testing.assert_array_equal(agent.snapshot.weights[name], array)
    assert not agent.snapshot.mean_squares
    evaluation = json.loads((into / "evaluation.json").read_text())
    assert (evaluation["seed"], len(evaluation["games"])) == (publish.EVALUATION_SEED, 2)
    assert not (into / "git.txt").exists()
    assert publish.main([str(run), "results/pole-s3"]) == 2
    assert "is there already" in capsys.readouterr().err


def test_curves_alone(run):
    """Golden: a run of a study needs no agent; the same content gives the same bytes."""

    def published(name: str) -> dict[pathlib.Path, bytes]:
        into = pathlib.Path("results", name)
        assert publish.main([str(run), str(into), "--no_agent"]) == 0
        return {p.relative_to(into): p.read_bytes() for p in into.rglob("*") if p.is_file()}

    files = published("a")
    assert published("b") == files
    facts = json.loads(files[pathlib.Path(publish.RUN)])
    assert (facts["hours"], facts["cpu_hours"]) == (None, 0.5)
    assert not [path for path in files if path.parts[0] == "checkpoints"]


CHANGED = "uncommitted difference:\n-a\n+b\n"


def change_record(folder: pathlib.Path, **changes: object) -> None:
    """Fields of args.json; load_ckpt is one of the settings."""
    args = json.loads((folder / run_folder.ARGS).read_text())
    args["params"]["load_ckpt"] = changes.pop("load_ckpt", None)
    (folder / run_folder.ARGS).write_text(json.dumps(args | changes))


def append(path: pathlib.Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def note(**more: str) -> dict[str, str]:
    """What args.json notes of a resumption with the code that the run began with."""
    return {"revision": "abab", "code": provenance.digest_of(ROOT)} | more


@pytest.mark.parametrize(
    ("spoil", "flags", "words"),
    [
        (lambda run: set_code(run, CHANGED), [], "uncommitted changes, and no --patch says which"),
        (lambda run: set_code(run, CHANGED), ["--patch", "c.patch"], "has other changes than c.pa"),
        (lambda run: None, ["--patch", "c.patch"], "has other changes than c.patch"),
        (
            lambda run: set_code(run, "uncommitted difference:\n-a\n+c\nGIT binary patch"),
            ["--patch", "c.patch"],
            "has uncommitted changes",
        ),
        (
            lambda run: (run / "git.txt").write_text(
                f"revision: {'ab' * 20}\nuncommitted difference: none\nuntracked files:\n    'x.py'\n"
            ),
            [],
            "has files that nobody else has",
        ),
        (
            lambda run: change_record(run, resumed=[note(command="x --resume /root/x")]),
            [],
            "args.json would name /root/",
        ),
        (
            lambda run: change_record(run, resumed=[note(), note(revision="cdcd", code="x")]),
            [],
            "went on with other code, of cdcd",
        ),
        (
            lambda run: change_record(run, load_ckpt="runs/before"),
            [],
            "began from a checkpoint of another run",
        ),
        (
            lambda run: append(run / "progress.csv", "75,0.6\n"),
            [],
            "its last row and its last checkpoint differ",
        ),
        (lambda run: append(run / "monitor.csv", "1.0,2"), [], "its last line is cut off"),
        (lambda run: (run / "progress.csv").write_text("x,y\n1,2\n"), [], "csv is damaged"),
        (
            lambda run: (run / "progress.csv").write_text("misc/steps\n70\n"),
            [],
            "has not counted its processor's hours",
        ),
        (lambda run: (run / "failure").mkdir(), [], "failed: see"),
        (lambda run: (run / "args.json").unlink(), [], "is no run folder"),
    ],
)
def test_a_run_that_does_not_lead_back_to_its_code_is_refused(run, capsys, spoil, flags, words):
    """Golden: one line, and no folder."""
    pathlib.Path("c.patch").write_text("-a\n+c\n")
    spoil(run)
    assert publish.main([str(run), "results/x", "--no_agent", *flags]) == 2
    assert words in capsys.readouterr().err
    assert not pathlib.Path("results/x").exists()


def test_a_run_under_way_and_a_wrong_place_are_refused(run, capsys):
    """Golden: a run is published below results/ only, and not while somebody writes to it."""
    for into in ("x", str(pathlib.Path("results/x").resolve()), "results/../x"):
        assert publish.main([str(run), into, "--no_agent"]) == 2
        assert "is not below results/" in capsys.readouterr().err
    with contextlib.closing(run_folder.open_existing(run)):
        assert publish.main([str(run), "results/x", "--no_agent"]) == 2
    assert "is in use" in capsys.readouterr().err


def test_a_named_patch_is_what_the_code_differed_by(run):
    """Golden: an ablation that no flag makes is a patch, and the run says so."""
    set_code(run, CHANGED)
    pathlib.Path("b.patch").write_text("-a\n+b\n")
    assert publish.main([str(run), "results/x", "--no_agent", "--patch", "b.patch"]) == 0
    assert json.loads(pathlib.Path("results/x/run.json").read_text())["patch"] == "b.patch"


# What is said


def published_of(name: str, scores: list[float], **facts: object) -> report.Published:
    """A run whose games took 1,000 steps and 36 s each; of as many workers as its name says."""
    n = len(scores)
    games = Games(np.array(scores), 1000.0 * np.arange(1, n + 1), 36.0 * np.arange(1, n + 1))
    settings = {"n_workers": int(name.replace("pong-ocd", "16x1").rpartition("/")[2].split("x")[0])}
    run = reading.Run(pathlib.Path(name), "PongNoFrameskip-v4", games, 1.0, 4, 0.0, settings, [])
    said = {"steps": 1000 * n, "hours": n / 100, "cpu_hours": 2.0} | facts
    return report.Published(ROOT / "results" / name, said, run, None, ["P"])


@pytest.fixture
def cpu_hours(monkeypatch):
    """Of runs that are in no folder: one for 100,000 steps."""
    monkeypatch.setattr(report, "cpu_hours_at", lambda published, steps: steps / 1e5)


@pytest.mark.usefixtures("cpu_hours")
def test_when_a_score_was_reached():
    """Analytic: at the end of the first 100 games whose mean is so high."""
    published = published_of("workers/2x1-s0", [0.0] * 100 + [20.0] * 120)
    assert report.training_score(published) == 20
    assert report.training_score(published, 200_000) == 20
    assert report.training_score(published, 199_999) == pytest.approx(19.8)
    assert report.training_score(published, 50_000) == 0
    assert report.reached(published, 18.0) == report.Moment(190_000, 1.9, 1.9)
    assert report.reached(published, 20.5) is None


@pytest.mark.usefixtures("cpu_hours")
def test_how_much_sooner_more_workers_are():
    """Analytic: hours to the score over those of one worker, not where hours do not count; and steps."""
    late, soon, half = [-20.0] * 300 + [0.0] * 100, [0.0] * 100, [-20.0] * 100 + [0.0] * 100
    runs = [
        published_of("pong-ocd-s0", soon, hours=None),
        published_of("workers/1x1-s0", late),
        published_of("workers/4x1-s0", soon),
        published_of("workers/4x1-s1", half),
        published_of("workers/8x1-s0", soon),
        published_of("workers/8x1-s1", [-20.0] * 150),
    ]
    rows = [line.split(" | ") for line in report.workers_table(runs).splitlines()]
    assert {len(row) for row in rows[:1] + rows[2:]} == {10}
    # 3.5 h to −10 with one; 1 and 1.5 h with four.
    assert [(row[0], *row[7:]) for row in rows[2:]] == [
        ("| 1 × 1", "1.0", "1.0", "1.0 |"),
        ("| 4 × 1", "2.8", "2.8", "3.7 |"),
        ("| 8 × 1", "", "", "6.9 |"),
        ("| 16 × 1", "", "3.5", "12.5 |"),
    ]


def test_a_run_that_is_not_whole_is_named(run):
    """Golden: what publishing wrote is read; with anything missing it is one line with the folder."""
    assert publish.main([str(run), "results/x", "--no_agent"]) == 0
    here = pathlib.Path("results")
    (published,) = report.read_all(here)
    assert (published.folder, published.facts["steps"]) == (here / "x", 70)
    for name in ("run.json", "monitor.csv.gz", "args.json"):
        whole = (here / "x" / name).read_bytes()
        (here / "x" / name).write_bytes(whole[: len(whole) // 2])
        with pytest.raises(BadInput, match="results/x"):
            report.read_all(here)
        (here / "x" / name).write_bytes(whole)
    games = here / "x/monitor.csv.gz"
    games.write_bytes(gzip.compress(gzip.decompress(games.read_bytes()) + b"1.0,2"))
    with pytest.raises(BadInput, match="its last line is cut off"):
        report.read_all(here)


def test_the_index_names_all_commands_and_processors_of_a_run(tmp_path, monkeypatch):
    """Golden: of resumptions, the commands that changed something and the processors, each once;
    and the steps that the run was to have where it has fewer.
    """
    whole = next(published for published in RUNS if published.folder.name == "pong-fast-s0")
    assert "| 6,000,000 |" in report.index_table([whole])
    command = "python3 train.py --resume runs/a"
    longer = f"{command} --n_steps 7000000"
    args = json.loads((whole.folder / run_folder.ARGS).read_text(encoding="utf-8"))
    args["params"]["n_steps"] = 7_000_000
    args["resumed"] = [
        {"command": command, "changed": {}, "cpu": "A"},
        {"command": command, "changed": {}},  # an older note
        {"command": longer, "changed": {"n_steps": [6_000_000, 7_000_000]}, "cpu": "B (R)"},
    ]
    folder = tmp_path / "a-s0"
    shutil.copytree(whole.folder, folder)
    (folder / run_folder.ARGS).write_text(json.dumps(args))
    (folder / "versions.txt").write_text("code: ab\ncpu: A\ncores: 2\n")
    (folder / "command.txt").write_text("python3 train.py X-v0\n")
    monkeypatch.setattr(report, "HERE", tmp_path)
    line = report.index_table([report.read(folder)]).splitlines()[-1]
    assert f"| `python3 train.py X-v0`, then `{longer}` |" in line
    assert "| 6,000,000 of 7,000,000 |" in line
    assert line.endswith("| A and B (R) |")
