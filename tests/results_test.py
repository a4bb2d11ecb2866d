"""Published runs: each is whole and readable, and the documents' tables are what `make results` writes."""

import contextlib
import gzip
import json
import pathlib
import re
import shlex
import subprocess
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from matplotlib import image

from a3c.machine.words import BadInput
from a3c.settings import command_line
from a3c.store import checkpoint, provenance, reading, run_folder
from a3c.store.games import Games
from benchmarks import documents
from results import folders, lost_lives, over_games, pictures, publish, report, silent
from tests.tools import agents, run_files
from tests.tools.processes import ROOT

RUNS = folders.read_all()
# Evaluated; results/ has no room for them.
WITHOUT_WEIGHTS = {
    "beamrider-s0",
    "beamrider-s2",
    "breakout-s0",
    "breakout-s2",
    "no-random-starts-s1",
    "pong-black-s3",
    "pong-black-s5",
    "pong-fast-s1",
    "pong-lstm-s1",
    "pong-nature-s0",
    "pong-nature-s1",
    "pong-ocd-s0",
    "pong-paper-s0",
    "qbert-s0",
    "qbert-s1",
    "spaceinvaders-s0",
    "spaceinvaders-s2",
}

# What is published


def test_the_documents_have_the_tables_of_the_results():
    """Golden: each table is what `make results` would write now, no cell is longer than 40, and no place
    for a table is left over.
    """
    for (path, name), make in report.TABLES.items():
        table = make(RUNS)
        assert documents.text_between(path, f"make results, {name}") == table, name
        cells = re.sub(r"\]\([^)]*\)|[\[`]", "", table).replace("\n", "|").split("|")
        assert max(len(cell.strip()) for cell in cells) <= 40, name
    places = {
        (path, name)
        for path in [ROOT / "README.md", folders.HERE / "README.md", *ROOT.glob("docs/*.md")]
        for name in re.findall(r"<!-- make results, ([\w-]+):", path.read_text(encoding="utf-8"))
    }
    assert places == {*report.TABLES}


def test_what_is_published_is_small_and_names_no_place_of_ours():
    """Analytic: results/ within 60 MB, an agent within 7 MB, no paths of the machine it ran on."""
    files = [path for path in folders.HERE.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 60e6
    for path in files:
        assert path.suffix != checkpoint.SUFFIX or path.stat().st_size <= 7e6
        if path.suffix in {".json", ".txt", ".gz"}:
            assert publish.place_in(path) is None, path


@pytest.mark.parametrize("published", RUNS, ids=lambda published: published.name)
def test_a_published_run_is_whole(published):
    """Analytic: its command, settings, games, last row, agent and evaluations agree with run.json."""
    facts, folder, run = published.facts, published.folder, published.run
    n_steps, seeds = facts["steps"], [facts["seed"]]
    assert (run.settings["env_id"], run.settings["seed"]) == (facts["env_id"], facts["seed"])
    assert folder.name.endswith(f"-s{facts['seed']}")
    words = shlex.split((folder / "command.txt").read_text(encoding="utf-8"))
    given = command_line.parse(words[2:])
    for name, source in given.sources.items():
        if source == "command line" and not (name == "n_steps" and facts["resumed"]):
            in_json = json.loads(json.dumps(getattr(given.params, name)))  # a tuple becomes a list
            assert run.settings[name] == in_json, name
    last_row = gzip.decompress((folder / "progress.csv.gz").read_bytes()).split()[-1]
    assert int(last_row.split(b",")[0]) == n_steps >= run.games.steps[-1]
    # One rollout of each environment was not counted.
    n_envs = run.settings["n_workers"] * run.settings["envs_per_worker"]
    assert 0 <= len(run.games.scores) - facts["games"] <= n_envs
    # The weights that are published: the last ones, or the best of the evaluations on the way.
    is_best = (folder / "evaluations.csv.gz").exists()
    of_steps = folders.best_on_the_way(published)[0] if is_best else n_steps
    has_agent = published.evaluation is not None and folder.name not in WITHOUT_WEIGHTS
    assert (folder / "checkpoints").exists() == has_agent
    if has_agent:
        agent = checkpoint.read(checkpoint.find(folder))
        assert (agent.subject.env_id, agent.n_steps) == (facts["env_id"], of_steps)
    for path in folder.glob("evaluation*.json"):
        evaluation = json.loads(path.read_text(encoding="utf-8"))
        scores = [game["score"] for game in evaluation["games"]]
        summary = evaluation["summary"]
        assert len(scores) == summary["n_games"] >= publish.N_GAMES
        assert summary["mean"] == pytest.approx(np.mean(scores))
        assert summary["sd"] == pytest.approx(np.std(scores, ddof=1))
        assert (evaluation["greedy"], evaluation["steps"]) == ("greedy" in path.stem, of_steps)
        seeds.append(evaluation["seed"])
    assert len({*seeds}) == len(seeds)  # none played what another did


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_the_pictures_are_of_the_runs(name, tmp_path):
    """Golden: drawn again, each is the same, but for how a machine's fonts are smoothed. These are grey, and
    each of the curves has more than a thousandth of what is coloured.
    """
    picture = pictures.IMAGES / name
    pictures.PICTURES[name](RUNS, tmp_path / name)
    before, now = (image.imread(path) for path in (picture, tmp_path / name))
    assert before.shape == now.shape
    assert np.abs(before - now).mean() < 1e-3  # of 1
    coloured = (
        np.max([np.ptp(picture[..., :3], axis=-1) for picture in (before, now)], axis=0) > 0.1
    )
    assert (np.abs(before - now).max(axis=-1) > 0.1)[coloured].mean() < 1e-3


# Publishing

COMMAND = ["--log_dir", "runs/pole-s3", "--n_steps", "70", "--seed", "3", "CartPole-v1"]


# git.txt of a run folder, whose code had these changes.
GIT = f"revision: {'ab' * 20}\nroot: /home/somebody\nuncommitted difference:{{}}\nuntracked files: none\n"
CHANGED = GIT.format("\n-a\n+b\n")


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
    (folder / "git.txt").write_text(GIT.format(" none"))
    return folder


def test_a_run_is_published(run, monkeypatch, capsys):
    """Golden: curves, settings, weights and games of a fresh seed; no statistics, no paths."""
    monkeypatch.setattr(publish, "revision_here", lambda: "cd" * 20)
    assert publish.main([str(run), "results/pole-s3", "--alone", "--games", "2"]) == 0
    into = pathlib.Path("results/pole-s3")
    facts = {"env_id": "CartPole-v1", "sticky_actions": None, "seed": 3, "steps": 70, "games": 3}
    facts |= {"revision": "ab" * 20, "patch": None, "resumed": 0, "hours": 0.001, "cpu_hours": 0.5}
    assert json.loads((into / "run.json").read_text()) == facts | {"evaluated_by": "cd" * 20}
    for name in ("progress.csv", "monitor.csv"):
        assert gzip.decompress((into / f"{name}.gz").read_bytes()) == (run / name).read_bytes()
    for name in ("command.txt", "args.json", "versions.txt"):
        assert (into / name).read_bytes() == (run / name).read_bytes()
    agent, whole = (checkpoint.read(checkpoint.find(folder)) for folder in (into, run))
    assert not agent.snapshot.mean_squares
    for name, array in whole.snapshot.weights.items():
        np.testing.assert_array_equal(agent.snapshot.weights[name], array)
    evaluation = json.loads((into / "evaluation.json").read_text())
    assert (evaluation["seed"], len(evaluation["games"])) == (publish.EVALUATION_SEED, 2)
    assert not (into / "git.txt").exists()
    assert publish.main([str(run), "results/pole-s3"]) == 2
    assert "exists already" in capsys.readouterr().err


def test_the_best_weights_are_published(run, monkeypatch):
    """Golden: with --best, the newest of checkpoints/best plays; the evaluations on the way are there."""
    monkeypatch.setattr(publish, "revision_here", lambda: "cd" * 20)
    (run / "evaluations.csv").write_text("steps,episode_reward_mean\n20,9.0\n40,30.0\n60,25.0\n")
    saved = checkpoint.read(checkpoint.find(run))
    best = run / "checkpoints" / "best"
    best.mkdir(exist_ok=True)
    for n_steps in (20, 40):
        path = checkpoint.path_of(best, n_steps)
        counts = saved.snapshot.counts._replace(steps=n_steps)
        snapshot = saved.snapshot._replace(counts=counts)
        checkpoint.write(saved._replace(path=path, snapshot=snapshot))
    assert publish.main([str(run), "results/pole-s3", "--best", "--games", "2"]) == 0
    into = pathlib.Path("results/pole-s3")
    assert [path.name for path in into.glob("checkpoints/*")] == ["ckpt-40.safetensors"]
    assert json.loads((into / "evaluation.json").read_text())["steps"] == 40
    assert json.loads((into / publish.RUN).read_text())["steps"] == 70
    on_the_way = gzip.decompress((into / "evaluations.csv.gz").read_bytes())
    assert on_the_way == (run / "evaluations.csv").read_bytes()


def test_curves_alone_of_a_patch(run):
    """Golden: an ablation that no flag makes is a patch and needs no agent; the same content gives the
    same bytes.
    """
    (run / "git.txt").write_text(CHANGED)
    pathlib.Path("b.patch").write_text("-a\n+b\n")
    files = []
    for into in (pathlib.Path("results/a"), pathlib.Path("results/b")):
        assert publish.main([str(run), str(into), "--no_agent", "--patch", "b.patch"]) == 0
        files.append({p.relative_to(into): p.read_bytes() for p in into.rglob("*") if p.is_file()})
    assert files[0] == files[1]
    assert not [path for path in files[0] if path.parts[0] == "checkpoints"]
    facts = json.loads(files[0][pathlib.Path(publish.RUN)])
    assert (facts["hours"], facts["cpu_hours"], facts["patch"]) == (None, 0.5, "b.patch")


# What args.json notes of a resumption with the code that the run began with.
NOTE = {"revision": "abab", "code": provenance.digest_of(ROOT)}


@pytest.mark.parametrize(
    ("spoiled", "flags", "words"),
    [
        ({"git.txt": CHANGED}, [], "uncommitted changes, and no --patch names them"),
        ({"git.txt": CHANGED}, ["--patch=c.patch"], "has other changes than c.patch"),
        ({}, ["--patch=c.patch"], "has other changes than c.patch"),
        ({"git.txt": GIT.format("\n+c\nGIT binary patch")}, ["--patch=c.patch"], "uncommitted"),
        ({"git.txt": GIT.replace(": none", ":\n    'x.py'")}, [], "has untracked files"),
        ({"resumed": [NOTE | {"command": "x --resume /root/x"}]}, [], "would name /root/"),
        (
            {"resumed": [NOTE, {"revision": "cdcd", "code": "x"}]},
            [],
            "resumed with other code, cdcd",
        ),
        ({"load_ckpt": "runs/before"}, [], "began from a checkpoint of another run"),
        ({"progress.csv": "misc/steps,misc/cpu_hours\n75,0.6\n"}, [], "checkpoint differ"),
        ({"progress.csv": "misc/steps\n70\n"}, [], "has no CPU hours"),
        ({"progress.csv": "x,y\n1,2\n"}, [], "csv is damaged"),
        ({"progress.csv": "misc/steps,misc/cpu_hours\ngarb\n70,1\n"}, [], "csv is damaged"),
        ({"progress.csv": "misc/steps,misc/cpu_hours\n70,1\n70,1"}, [], "last line is cut off"),
        ({"monitor.csv": run_files.games_text([], "X-v0") + "1.0,2"}, [], "last line is cut off"),
        ({"failure": "x"}, [], "failed: see"),
        ({"args.json": None}, [], "is no run folder"),
    ],
)
def test_a_run_that_does_not_lead_back_to_its_code_is_refused(run, capsys, spoiled, flags, words):
    """Golden: one line, and no folder."""
    pathlib.Path("c.patch").write_text("+c\n")
    for name, text in spoiled.items():
        if name in ("resumed", "load_ckpt"):
            args = json.loads((run / run_folder.ARGS).read_text())
            (args["params"] if name == "load_ckpt" else args)[name] = text
            (run / run_folder.ARGS).write_text(json.dumps(args))
        elif text is None:
            (run / name).unlink()
        else:
            (run / name).write_text(text)
    assert publish.main([str(run), "results/x", "--no_agent", *flags]) == 2
    assert words in capsys.readouterr().err
    assert not pathlib.Path("results/x").exists()


def test_a_private_folder_is_found_before_an_evaluation(run, monkeypatch, capsys):
    """Analytic: an evaluation takes minutes."""
    monkeypatch.setattr(publish, "evaluate", lambda *_: pytest.fail("it evaluated"))
    monkeypatch.setattr(publish, "revision_here", lambda: "cd" * 20)
    (run / "command.txt").write_text("python3 train.py --log_dir /root/x CartPole-v1\n")
    assert publish.main([str(run), "results/x"]) == 2
    assert "command.txt would name /root/" in capsys.readouterr().err


def test_a_run_under_way_and_a_wrong_place_are_refused(run, capsys):
    """Golden: a run is published below results/ only, and not while somebody writes to it."""
    for into in ("x", str(pathlib.Path("results/x").resolve()), "results/../x"):
        assert publish.main([str(run), into, "--no_agent"]) == 2
        assert "is not below results/" in capsys.readouterr().err
    with contextlib.closing(run_folder.open_existing(run)):
        assert publish.main([str(run), "results/x", "--no_agent"]) == 2


# What is said


def published_of(name: str, scores: list[float], mean: float = 0.0, **facts: object):
    """A run whose games took 1,000 steps and 36 s each; of as many workers as its name says."""
    n = len(scores)
    so_far = np.arange(1.0, n + 1)
    games = Games(np.array(scores), 1000 * so_far, 36 * so_far, np.ones(n))
    n_workers = name.replace("pong-ocd", "16x1").rpartition("/")[2].split("x")[0]
    settings = {"n_workers": int(n_workers) if n_workers.isdigit() else 3}
    run = reading.Run(pathlib.Path(name), "PongNoFrameskip-v4", games, 1.0, 4, 0.0, settings, [])
    said = {"steps": 1000 * n, "hours": n / 100, "cpu_hours": 2.0, "env_id": run.env_id}
    said |= {"sticky_actions": 0.0} | facts
    evaluation = {"summary": {"mean": mean, "sd": 2.0, "n_games": 30}}
    return folders.Published(folders.HERE / name, said, run, evaluation, ["P"])


def rows_of(table: str) -> list[list[str]]:
    """The cells of a table, below its head."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


@pytest.fixture
def cpu_hours(monkeypatch):
    """One CPU hour for 100,000 steps: these runs are in no folder."""
    monkeypatch.setattr(folders, "cpu_hours_at", lambda published, steps: steps / 1e5)


@pytest.mark.usefixtures("cpu_hours")
def test_when_a_score_was_reached():
    """Analytic: at the end of the first 100 games whose mean is so high."""
    published = published_of("pong-fast-s0", [0.0] * 100 + [20.0] * 120, 19.0)
    assert folders.training_score(published) == 20
    assert folders.training_score(published, 200_000) == 20
    assert folders.training_score(published, 199_999) == pytest.approx(19.8)
    assert folders.training_score(published, 50_000) == 0
    assert folders.reached(published, 18.0) == folders.Moment(190_000, 1.9, 1.9)
    assert folders.reached(published, 20.5) is None
    shared = published._replace(facts=published.facts | {"hours": None})
    table = report.agents_table([published, shared], ["pong-"])
    assert rows_of(table) == [
        ["`results/pong-fast-s0`", "0.22M", *times, "20.0", "19.0 ± 2.0", "P"]
        for times in (
            ["2.20 h", "18", "0.19M", "1.90 h"],
            ["2.00 CPU hours", "18", "0.19M", "1.90 CPU hours"],
        )
    ]


def test_the_best_evaluation_on_the_way(tmp_path, monkeypatch):
    """Analytic: the first of those with the highest mean, and when; then its weights' new evaluation."""
    monkeypatch.setattr(folders, "HERE", tmp_path)
    run = published_of("breakout-long-s0", [7.0] * 1000, 30.0, hours=None)
    run.folder.mkdir()
    table = "steps,episode_reward_mean\n200000,9.5\n400000,41.0\n600000,41.0\n800000,12.0\n"
    (run.folder / "evaluations.csv.gz").write_bytes(gzip.compress(table.encode()))
    (row,) = rows_of(report.long_table([run, published_of("breakout-s0", [1.0])]))
    assert row[:5] == [
        "`results/breakout-long-s0`",
        *("1.00M", "2.00 CPU hours", "41.0", "0.40M"),
    ]
    assert row[5:] == ["7.0", "30.0 ± 2.0", "P"]


def test_several_seeds_are_one_score():
    """Analytic: their mean and range, of training and of evaluations; one seed has its games' deviation."""
    runs = [published_of(f"{name}-s0", [7.0] * 100, 5.0) for name in ("beamrider", "breakout")]
    runs += [published_of(f"qbert-s{s}", [8.0 * s] * 1000 * s, 3.0 * s) for s in (1, 2, 3)]
    training, evaluation, *_ = rows_of(report.scores_table(runs))
    assert training[1:3] == ["0.1–3M steps on 2 cores", "0–3"]
    assert training[4:] == ["7.0", "7.0", "", "16.0 (8.0 to 24.0)", ""]
    assert evaluation[4:] == ["5.0 ± 2.0", "5.0 ± 2.0", "", "6.0 (3.0 to 9.0)", ""]


def test_five_games_are_one_number():
    """Analytic: the middle half of the normalised scores, and an interval where each game has seeds."""
    human = {"beamrider": 16926.5, "breakout": 30.5, "pong-nature": 14.6, "qbert": 13455.0}
    runs = [published_of(f"{game}-s0", [score] * 100, 3 * score) for game, score in human.items()]
    runs.append(published_of("spaceinvaders-s0", [148.0] * 100, 148.0))
    training, evaluation, *others = rows_of(report.over_games_table(runs))
    assert training[1:] == ["1", over_games.LAST_GAMES, *["1.00"] * 4, "0.00", "1.00", ""]
    # Pong: (43.8 + 20.7) / 35.3 = 1.83, and Breakout's 3.12 is left out.
    games = [
        (3 * human[g] - r) / (human[g] - r) for g, r in (("beamrider", 363.9), ("qbert", 163.9))
    ]
    assert float(evaluation[-2]) == pytest.approx((sum(games) + 64.5 / 35.3) / 3, abs=0.006)
    assert [row[0] for row in others][-1] == "PFRL A3C"
    assert {row[-1] for row in others} == {""}
    again = [run._replace(folder=run.folder.with_name(f"{run.name[:-1]}1")) for run in runs]
    assert rows_of(report.over_games_table([*runs, *again]))[0][-1] == "1.00 to 1.00"
    again[1] = published_of("breakout-s1", [1.7 - 28.8] * 100)
    # A quarter of the draws has −1 twice, and all have Space Invaders' 0 twice; two are left out.
    assert rows_of(report.over_games_table([*runs, *again]))[0][-1] == "0.67 to 1.00"


def test_the_scores_of_learning_rates():
    """Analytic: a row for each, from low to high."""
    runs = [published_of(f"robustness/rate-{n}-s0", [9.0] + [n] * 100) for n in (1.0, 2.0)]
    for run, rate in zip(runs, (1e-2, 1.5e-4), strict=True):
        run.run.settings["initial_lr"] = rate
    assert rows_of(report.robustness_table(runs)) == [["0.00015", "2.0"], ["0.01", "1.0"]]


@pytest.mark.usefixtures("cpu_hours")
def test_how_much_faster_more_workers_are():
    """Analytic: hours to the score over those of one worker; none if the machine did something else, or
    if a seed did not reach the score.
    """
    late, soon, half = [-20.0] * 300 + [0.0] * 100, [0.0] * 100, [-20.0] * 100 + [0.0] * 100
    runs = [
        published_of("pong-ocd-s0", soon, hours=None),
        published_of("workers/1x1-s0", late),
        published_of("workers/4x1-s0", soon),
        published_of("workers/4x1-s1", half),
        published_of("workers/8x1-s0", soon),
        published_of("workers/8x1-s1", [-20.0] * 150),
    ]
    # After 0.1M steps, which all have done.
    assert rows_of(report.study_table(runs, report.WORKERS)) == [
        ["1 × 1", "1", "0.35M", "−20.0", "3.50 h", "1.0", "1.0"],
        ["4 × 1", "2", "0.12M (0.10M to 0.15M)", "−10.0 (−20.0 to 0.0)", "1.25 h", "2.8", "3.7"],
        ["8 × 1", "2", "1 of 2: 0.10M", "−10.0 (−20.0 to 0.0)", "", "", "6.9"],
        ["16 × 1", "1", "0.10M", "0.0", "", "", "12.5"],
    ]


def test_a_run_that_is_not_whole_is_named(run):
    """Golden: what publishing wrote is read; with anything missing it is one line with the folder."""
    assert publish.main([str(run), "results/x", "--no_agent"]) == 0
    folder = pathlib.Path("results/x")
    versions = folder / "versions.txt"
    for cores, expected in (("2, usable: 1", "Fast (R)"), ("16, usable: 2", "Fast (R), 16 cores")):
        versions.write_text(f"code: x\ncpu: Fast (R)\ncores: {cores}\npackages:\n")
        (published,) = folders.read_all(folder.parent)
        assert published.processors == [expected]
    assert (published.folder, published.facts["steps"]) == (folder, 70)
    cut_off = {
        name: gzip.compress(gzip.decompress((folder / name).read_bytes()) + b"1.0,2")
        for name in ("monitor.csv.gz", "progress.csv.gz")
    }
    for name, spoiled in (cut_off | {"run.json": b"{", "args.json": b"{"}).items():
        whole = (folder / name).read_bytes()
        for content in (spoiled, whole[: len(whole) // 2]):
            (folder / name).write_bytes(content)
            with pytest.raises(BadInput, match="results/x"):
                folders.read_all(folder.parent)
        (folder / name).write_bytes(whole)


def test_the_index_says_how_a_run_ended_and_on_what():
    """Analytic: the steps that the run should have had if it has fewer, and its processors, each once."""
    run = published_of("a-s0", [0.0] * 100, revision="abcdefgh", patch="b.patch", resumed=2)
    run = run._replace(processors=["A", "B (R)", "A"])
    run.run.settings["n_steps"] = 200_000
    (row,) = rows_of(report.index_table([run]))
    assert row[2:4] == ["abcdefg, b.patch", "100,000 of 200,000"]
    assert row[4:] == ["1.00 h, resumed 2 ×", "A and B (R)"]


# A life that is lost


class Lives(gymnasium.Env):
    """A game of two lives with two steps each; it pays 1 a step."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.n_steps, self.ale = 0, self

    def lives(self) -> int:
        return 2 - self.n_steps // 2

    def getEpisodeFrameNumber(self) -> int:
        return self.n_steps

    def reset(self, **given):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.n_steps += 1
        return np.zeros(1, np.float32), 1.0, self.n_steps == 4, False, {}


class Counting:
    """An agent whose state counts; `states` are those that it acted in."""

    first_state = np.zeros((1, 1), np.float32)

    def __init__(self) -> None:
        self.states = []

    def make_env(self, seed, game):
        return Lives()

    def act_batch(self, observations, states, generator):
        self.states.append(states.ravel().tolist())
        return SimpleNamespace(action=np.zeros(len(states), int), state=states + 1)


@pytest.mark.parametrize(("forgets", "states"), [(True, [0, 1, 0, 1]), (False, [0, 1, 2, 3])])
def test_an_agent_forgets_at_a_lost_life_or_does_not(forgets, states):
    """Analytic: three games of two lives."""
    agent = Counting()
    assert lost_lives.play(agent, 3, seed=0, forgets=forgets) == [4.0] * 3
    assert agent.states == [[state] * 3 for state in states]


def test_units_that_give_nothing_are_counted():
    """Analytic: a white square on black. One filter's bias is negative, one is only so on black, one sees the
    edge alone, one subtracts, and the others always give 1; the dense layer gives nothing.
    """
    states = np.zeros((2, 84, 84, 4), np.uint8)
    states[1, 40:60, 40:60] = 255
    subject = agents.subject_of("small", (84, 84, 4), 3, lstm_units=5)
    weights = agents.make_weights(subject)
    kernel, bias = weights["conv1_kernel"], weights["conv1_bias"]
    kernel[:], bias[:] = 0, [-0.1, -0.1, 0, 0, *[1] * 12]
    kernel[..., 1] = 1
    kernel[:4, ..., 2], kernel[4:, ..., 2] = -1, 1
    kernel[..., 3] = -1
    weights["dense_kernel"][:], weights["dense_bias"][:] = 0, -1
    counts = silent.silent(subject, weights, states)
    assert [*counts] == ["conv1", "conv2", "dense"]
    assert (counts["conv1"], counts["dense"]) == ((2, 16), (256, 256))
    assert silent.silent(subject, weights, states[:1])["conv1"] == (4, 16)


def test_all_trials_of_a_search_are_told_with_the_best_first(tmp_path, monkeypatch):
    """Analytic: two sweeps that vary different settings; one trial failed before its first game, and one has
    not begun."""
    monkeypatch.setattr(folders, "HERE", tmp_path)
    (tmp_path / "pong-search").mkdir()
    names, of = (
        "folder,env_id,seed,{},state,steps,score,score_of,games,hours\n",
        "last 100 training games",
    )
    rows = [
        f"a,Pong,7,5,finished,2000000,-13.44,{of},1774,0.3\n",
        f"b,Pong,7,20,failed,0,nan,{of},0,nan\n",
        f"c,Pong,8,1e-3,finished,1500000,2.96,{of},900,0.2\n",
        f"d,Pong,8,1e-2,waiting,0,nan,{of},0,nan\n",
    ]
    (tmp_path / "pong-search/1.csv").write_text(names.format("n") + rows[0] + rows[1])
    (tmp_path / "pong-search/2.csv").write_text(names.format("lr") + rows[2] + rows[3])
    assert rows_of(report.search_table([])) == [
        ["2", "", "1e-3", "8", "1.50M", "3.0", "finished"],
        ["1", "5", "", "7", "2.00M", "−13.4", "finished"],
        ["1", "20", "", "7", "0.00M", "", "failed"],
    ]


def test_both_ways_stand_in_one_row(tmp_path, monkeypatch):
    """Analytic: means and standard deviations of an agent; another was not played so."""
    monkeypatch.setattr(folders, "HERE", tmp_path)
    played, other = (published_of(f"{game}-lstm-s0", [0.0] * 100) for game in ("breakout", "pong"))
    played.folder.mkdir()
    scores = {"seed": 0, "kept": [1.0, 3.0, 2.0], "zero": [4.0, 4.0, 10.0]}
    (played.folder / lost_lives.FILE).write_text(json.dumps(scores))
    assert rows_of(report.lost_lives_table([other, played])) == [
        ["`results/breakout-lstm-s0`", "3", "2.0 ± 1.0", "6.0 ± 3.5"]
    ]


def test_scores_in_others_wrappers_stand_beside_ours(tmp_path, monkeypatch):
    """Analytic: one row for an agent, from a line for each way to scale; another did not play there."""
    monkeypatch.setattr(folders, "HERE", tmp_path)
    played, other = (published_of(f"{game}-s0", [0.0] * 100, 7.5) for game in ("qbert", "breakout"))
    lines = [
        {"agent": "results/qbert-s0", "scaling": scaling, "games": 30, "mean": mean, "sd": 2.0}
        for scaling, mean in (("linear", 9.0), ("area", 4510.0))
    ]
    (tmp_path / report.WRAPPERS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert rows_of(report.wrappers_table([other, played])) == [
        ["`results/qbert-s0`", "7.5 ± 2.0", "4510 ± 2.0", "9.0 ± 2.0"]
    ]


def test_the_patches_of_runs_that_are_still_to_run_fit_the_code():
    """Golden: those that results/README.md names in its commands."""
    text = (ROOT / "results/README.md").read_text(encoding="utf-8").partition("## Still to run")[2]
    patches = re.findall(r"^git apply (\S+)$", text, re.MULTILINE)
    assert patches
    for patch in patches:
        subprocess.run(["git", "apply", "--check", patch], cwd=ROOT, check=True)
