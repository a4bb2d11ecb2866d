"""Published runs: what is kept of a run, what is said of it, and that the documents say the same."""

import gzip
import json
import math
import pathlib
import re
import shlex
from collections.abc import Sequence

import numpy as np
import pytest
from matplotlib import image

import plot_runs
from a3c.settings import command_line
from a3c.settings.params import BadInput
from a3c.store import checkpoint_files, run_folder
from benchmarks import documents
from benchmarks.report import PAPERS_SPEED_UP
from results import publish, report
from tests.tools import agents

ROOT = pathlib.Path(__file__).resolve().parent.parent
RUNS = report.read_all()
WITHOUT_WEIGHTS = "pong-nature-s0"  # published, evaluated; its agent gave way to another game's


# The documents


@pytest.mark.parametrize(("path", "name"), report.texts(RUNS), ids=lambda x: str(x)[-20:])
def test_the_documents_say_what_the_results_say(path, name):
    """Golden: each table is what `make results` would write now."""
    assert documents.text_between(path, name) == report.texts(RUNS)[path, name]


def test_every_place_for_a_table_is_filled():
    """Analytic: a marker in the README that no table belongs to would be out of date unseen."""
    places = re.findall(r"<!-- make results, (\w+):", report.README.read_text(encoding="utf-8"))
    assert {f"make results, {place}" for place in places} == {
        name for path, name in report.texts(RUNS) if path == report.README
    }


def test_what_is_published_is_small_and_names_no_place_of_ours():
    """Analytic: results/ within 60 MB, an agent within 7 MB, no paths of the machine it ran on."""
    files = [path for path in report.HERE.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 60e6
    for path in files:
        if path.name.endswith(".data-00000-of-00001"):
            assert path.stat().st_size <= 7e6
        elif path.suffix in {".json", ".txt", ".gz"}:
            assert publish.place_in(path) is None, path


@pytest.mark.parametrize("published", RUNS, ids=lambda published: published.name)
def test_what_a_run_says_of_itself_is_true(published):
    """Analytic: its settings, its last row, its agent and its evaluation agree with run.json."""
    facts, folder = published.facts, published.folder
    settings, _ = plot_runs.read_settings(folder)
    assert (settings["env_id"], settings["seed"]) == (facts["env_id"], facts["seed"])
    assert seed_in(folder.name) == facts["seed"]
    words = shlex.split((folder / "command.txt").read_text(encoding="utf-8"))
    assert words[:2] == ["python3", "train.py"]
    given = command_line.parse(words[2:])
    for name, source in given.sources.items():
        if source == "command line" and not (name == "n_steps" and facts["resumed"]):
            assert settings[name] == getattr(given.params, name), name
    headers = {
        json.loads(gzip.decompress(path.read_bytes()).split(b"\n")[0][1:])["env_id"]
        for path in (folder / "monitor").iterdir()
    }
    assert headers == {facts["env_id"]}
    last_row = gzip.decompress((folder / "progress.csv.gz").read_bytes()).split()[-1]
    assert int(last_row.split(b",")[0]) == facts["steps"]
    # One rollout of each environment was not counted.
    n_envs = settings["n_workers"] * settings["envs_per_worker"]
    assert 0 <= len(published.run.games.scores) - facts["games"] <= n_envs
    if facts["hours"] is not None:
        assert facts["hours"] == pytest.approx(published.run.games.seconds[-1] / 3600, abs=1e-3)
    assert (folder / run_folder.CHECKPOINTS).exists() == (
        published.evaluation is not None and folder.name != WITHOUT_WEIGHTS
    )
    if (folder / run_folder.CHECKPOINTS).exists():
        info = checkpoint_files.read_info(checkpoint_files.find(folder))
        assert (info.subject.env_id, info.counters["steps"]) == (facts["env_id"], facts["steps"])
    seeds = [facts["seed"]]
    for name, n_games in ((publish.EVALUATION, 30), (report.AGAIN, 100), (report.GREEDY, 100)):
        evaluation = report.evaluation_in(folder, name)
        if evaluation is not None:
            scores = [game["score"] for game in evaluation["games"]]
            summary = evaluation["summary"]
            assert len(scores) == summary["n_games"] == n_games
            assert (summary["mean"], summary["sd"]) == pytest.approx(
                (np.mean(scores), np.std(scores, ddof=1))
            )
            assert evaluation["greedy"] == (name == report.GREEDY)
            assert evaluation["steps"] == facts["steps"]
            seeds.append(evaluation["seed"])
    assert len(set(seeds)) == len(seeds)  # none played what another did


def seed_in(name: str) -> int:
    """The seed that a published run's name ends in."""
    found = re.search(r"-s(\d+)$", name)
    assert found, name
    return int(found[1])


def assert_told(*sentences: str) -> None:
    """That the README has them, wherever its lines end."""
    text = " ".join(report.README.read_text(encoding="utf-8").split())
    for sentence in sentences:
        assert sentence in text


def run_named(name: str) -> report.Published:
    (published,) = (published for published in RUNS if published.folder.name == name)
    return published


def moment_of(name: str, score: float) -> report.Moment:
    moment = report.reached(run_named(name), score)
    assert moment is not None, name
    return moment


def millions_to(name: str, score: float) -> float:
    return moment_of(name, score).steps / 1e6


def seeds_apart(beginning: str, goal: float) -> float:
    """Millions of steps between the first and the last seed of a setting to come to a score."""
    seeds = report.named(RUNS, beginning)
    steps = [millions_to(seed.folder.name, goal) for seed in seeds]
    return max(steps) - min(steps)


def goal_of(setting: str) -> float:
    return float(report.GOALS[report.OURS.index(setting)])


def scores_of(name: str) -> list[float]:
    """Of the games of its evaluation."""
    evaluation = run_named(name).evaluation
    assert evaluation is not None
    return [game["score"] for game in evaluation["games"]]


def resumptions_of(published: report.Published) -> list[float]:
    """At how many millions of steps it was resumed."""
    args = json.loads((published.folder / "args.json").read_text(encoding="utf-8"))
    return [time["n_steps"] / 1e6 for time in args["resumed"]]


def error_of(scores: Sequence[float]) -> float:
    """The standard error of their mean."""
    return float(np.std(scores, ddof=1)) / len(scores) ** 0.5


def curve_of(name: str, since: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Steps and the mean of 100 games, from a step on."""
    curve = plot_runs.smooth(run_named(name).run, "steps", report.N_LAST)
    return curve.x[curve.x >= since], curve.y[curve.x >= since]


NORM = "loss/grads_norm_combined"


def rows_of(published: report.Published, *names: str) -> list[np.ndarray]:
    """Columns of progress.csv."""
    table = plot_runs.read_progress(published.folder, list(names))
    assert table is not None
    return list(table.columns.values())


def n_weights_of(published: report.Published) -> float:
    """Those of its agent, four bytes each."""
    (weights,) = (published.folder / run_folder.CHECKPOINTS).glob("*.data-00000-of-00001")
    return weights.stat().st_size / 4


def entry_of(published: report.Published) -> float:
    """Of a gradient, as large as its entries would be if they were equal; its norm is the median."""
    (norms,) = rows_of(published, NORM)
    return float(np.median(norms)) / n_weights_of(published) ** 0.5


def root_and_rate_of(published: report.Published) -> tuple[float, float]:
    """The root of ε, and the learning rate at first over that."""
    root = published.run.settings["rmsprop_epsilon"] ** 0.5
    return root, published.run.settings["initial_lr"] / root


def test_what_the_readme_tells_of_pong():
    """Golden: sentences whose figures are those of results/."""
    fast = run_named("pong-fast-s0")
    lengths = np.diff(fast.run.games.total_l).mean()
    n_updates = rows_of(fast, "misc/updates")[0][-1]
    n_decisions = round(fast.facts["steps"] / fast.facts["games"], -1)
    assert (fast.facts["hours"] * 60, lengths) == (
        pytest.approx(49, abs=0.5),
        pytest.approx(n_decisions, rel=0.02),
    )
    minutes = {}
    for published in report.named(RUNS, report.FAST):
        moment = moment_of(published.folder.name, report.PONG_GOAL)
        if published.facts["hours"] is not None:
            minutes[published.folder.name] = round(60 * moment.hours)
    first, last = sorted(n for name, n in minutes.items() if name.startswith("pong-nature-"))
    assert first < minutes["pong-fast-s0"] < last
    of_fast, *of_natures = (run_named(name).processors for name in sorted(minutes))
    assert of_fast not in of_natures
    assert_told(
        "*Pong after 49 minutes of training on 2 cores:",
        f"after {first} and {last} minutes where a run of this command had the machine to itself",
        "all three seeds came to 18",
        f"had the machine to itself, another processor, came to 18 after {minutes['pong-fast-s0']} minutes, between",
        f"{n_updates:,.0f} for the 6M steps of `pong-fast-s0`",
    )


def test_what_the_readme_tells_of_our_best_agent_of_pong():
    """Golden: sentences whose figures are those of results/; the missed goal is not passed over."""
    best = run_named("pong-nature-s2").folder
    first, again, greedy = (
        report.evaluation_in(best, name)["summary"]
        for name in (publish.EVALUATION, report.AGAIN, report.GREEDY)
    )
    others = [
        published.evaluation["summary"]["mean"]
        for published in report.named(RUNS, "pong-")
        if published.folder != best and published.evaluation
    ]
    assert max(others) < first["mean"]
    assert again["mean"] < report.PONG_EVALUATION_GOAL <= greedy["min"]
    assert_told(
        f"with {first['mean']:.1f} in 30 games, the best of our agents of Pong",
        f"it played {again['n_games']} others, of another seed, and those count: {again['mean']:.1f},"
        " so our goal of 20 for the best agent is not quite reached",
        f"with its likeliest action each time (`--greedy`), {greedy['mean']:.1f} ±"
        f" {greedy['sd']:.1f}, none of {greedy['n_games']} below {greedy['min']:.0f}",
    )


def test_what_the_readme_tells_of_the_default_preset():
    """Golden: sentences whose figures are those of results/."""
    ocd = run_named("pong-ocd-s0")
    assert ocd.facts["hours"] is not None
    moment = moment_of("pong-ocd-s0", report.PONG_GOAL)
    _, since = curve_of("pong-ocd-s0", moment.steps)
    fast = [
        moment_of(published.folder.name, report.PONG_GOAL).hours
        for published in report.named(RUNS, "pong-nature-")
        if published.facts["hours"] is not None and {*published.processors} == {*ocd.processors}
    ]
    assert fast
    assert max(fast) < moment.hours / 3
    assert_told(
        f"came to −10 after {millions_to('pong-ocd-s0', report.STUDY_GOAL):.1f}M steps, to 18 after"
        f" {moment.steps / 1e6:.1f}M, which took {moment.hours:.2f} hours, and from there to the end it"
        f" kept between {since.min():.1f} and {since.max():.1f}",
        "less than a third of our hours, on the same processor",
    )


def test_what_the_readme_tells_of_fewer_workers():
    """Golden: sentences whose figures are those of results/ and of the benchmark; nearly all is most."""
    one, four, sixteen = (
        moment_of(name, report.STUDY_GOAL) for name in ("1x1-s0", "4x1-s0", "pong-ocd-s0")
    )
    apart = seeds_apart("pong-nature-", report.STUDY_GOAL)
    assert abs(four.steps - sixteen.steps) / 1e6 < apart / 10
    assert 0 < (one.steps - max(four.steps, sixteen.steps)) / 1e6 < apart
    for name in ("4x1-s0", "pong-ocd-s0"):
        steps, speeds = rows_of(run_named(name), "misc/steps", "misc/steps_per_second")
        of_millions = [np.median(speeds[steps // 1e6 == i]) for i in range(int(steps[-1] // 1e6))]
        assert max(of_millions) / min(of_millions) == pytest.approx(1.2, abs=0.05), name
    busy = one.cpu_hours / one.hours
    text = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8")
    nature = text.partition("| nature: workers × environments of each |")[2]
    speed = {n: int(nature.partition(f"| {n} × 1 | ")[2].partition(" ")[0]) for n in (1, 4, 16)}
    assert speed[4] / max(speed.values()) > 0.95
    made = [f"{moment.steps / moment.hours / 3600:.0f}" for moment in (one, four, sixteen)]
    assert_told(
        f"four workers came to −10 {one.hours / four.hours:.1f} times as soon as one, and sixteen"
        f" {one.hours / sixteen.hours:.1f} times, where the paper's came {PAPERS_SPEED_UP[4]} and"
        f" {PAPERS_SPEED_UP[16]} times",
        f"one worker keeps {busy:.2f} of them busy, so more of them can be about {2 / busy:.1f} times as fast",
        "These three made {}, {} and {} steps/s".format(*made),
        f"{speed[1]} steps/s with one, {speed[4]} with four and {speed[16]} with sixteen: four",
        f"came to −10 together, after {four.steps / 1e6:.2f}M and {sixteen.steps / 1e6:.2f}M, and one"
        f" after {one.steps / 1e6:.2f}M, later by less than the seeds of `pong-nature` are apart",
    )


def test_for_how_long_the_readme_says_that_nothing_is_learned():
    """Golden: whole millions of steps before the mean of 100 games is half a point over −20."""
    names = [published.folder.name for published in report.named(RUNS, "pong-")]
    begins = {name: millions_to(name, -19.5) for name in names}
    default, paper = int(begins.pop("pong-ocd-s0")), int(begins.pop("pong-paper-s0"))
    assert [int(min(begins.values())), default, paper] == [1, 2, 6]
    assert_told(
        "Scores near −20 for the first million steps are normal (with the default preset for the"
        " first two, with `--preset paper` for the first six)",
    )


def test_what_the_readme_tells_of_the_paper_preset():
    """Golden: sentences whose figures are those of results/; the rate is that of RMSProp whose root
    has nothing but ε in it."""
    paper, other = run_named("pong-paper-s0"), run_named("epsilon-1e-5-s0")
    root, rate = root_and_rate_of(paper)
    _, other_rate = root_and_rate_of(other)
    n_steps = math.prod(
        other.run.settings[name] for name in ("steps_per_update", "envs_per_worker")
    )
    (norms,) = rows_of(paper, NORM)
    entry = entry_of(paper)
    assert np.sqrt(root**2 + entry**2) == pytest.approx(root, rel=1e-4)
    assert norms.max() < paper.run.settings["max_grad_norm"]
    came_to, came_to_more = (millions_to("pong-paper-s0", score) for score in (-20.0, -18.0))
    assert_told(
        f"first was −20 after {came_to:.1f}M steps, and −18 after {came_to_more:.1f}M",
        f"ε is 0.1, whose root is {root:.2f}, while an entry of its gradients is of {entry:.3f} (a norm"
        f" of {np.median(norms):.2f}, the median of the rows of `progress.csv`, over"
        f" {round(n_weights_of(paper), -3):,.0f} weights)",
        f"at a rate of 7e-4/{root:.2f} = {rate:.4f}",
        f"the greatest norm in these rows is {norms.max():.1f}",
        f"at {other_rate / n_steps:.4f} for each of the {n_steps} steps in its mean, and first was at"
        f" −18 after {millions_to('epsilon-1e-5-s0', -18.0):.1f}M",
    )


def test_what_the_readme_tells_of_other_games():
    """Golden: sentences whose figures are those of results/."""
    breakout = run_named("breakout-s0")
    assert breakout.evaluation is not None
    assert [game["cut_off"] for game in breakout.evaluation["games"]].count(True) == 2
    resumed = resumptions_of(breakout)
    assert [abs(score - 7900) <= 200 for score in scores_of("qbert-s0")].count(True) == 13
    assert_told(
        "Two of the 30 games of its evaluation stopped at the time limit",
        "Its dips at {1:.1f}M, {2:.1f}M, {3:.1f}M and {4:.1f}M steps are resumptions".format(
            *resumed
        ),
        f"It came to 4461, our goal, after {millions_to('qbert-s0', goal_of('qbert')):.1f}M steps",
        "Thirteen of the 30 games of its evaluation ended within 200 points of 7,900",
    )


def test_what_the_readme_tells_of_games_that_are_shot():
    """Golden: sentences whose figures are those of results/; how near to a goal is not passed over."""
    invaders, goal = scores_of("spaceinvaders-s0"), goal_of("spaceinvaders")
    assert invaders.count(600) == 10
    came_to = moment_of("spaceinvaders-s0", goal).steps
    steps, means = curve_of("spaceinvaders-s0", came_to)
    below = np.diff(steps)[means[:-1] < goal].sum() / np.ptp(steps)
    assert_told(
        f"It first came to 727, our goal, after {came_to / 1e6:.1f}M steps, and was at {means[-1]:.0f} in the end, ±"
        f" {error_of(run_named('spaceinvaders-s0').run.games.scores[-100:]):.0f} (standard error of 100 games). In"
        f" between, {100 * below:.0f} % of the steps, it was below, as low as {means.min():.0f}",
        f"{sum(score < 630 for score in invaders)} of the 30 games of its evaluation ended below the"
        " 630 points of the first wave, ten of these at 600",
    )
    beams, goal = scores_of("beamrider-s0"), goal_of("beamrider")
    (resumed,) = resumptions_of(run_named("beamrider-s0"))
    steps, means = curve_of("beamrider-s0")
    assert means[-1] > 0.95 * max(means)
    assert_told(
        f"It came to 2469, our goal, after {millions_to('beamrider-s0', goal):.1f}M steps, was last below it at"
        f" {steps[means < goal][-1] / 1e6:.1f}M, and still rose at the end: {means[-1]:.0f} ±"
        f" {error_of(run_named('beamrider-s0').run.games.scores[-100:]):.0f} (standard error of 100 games)",
        f"of {min(beams):,.0f} to {max(beams):,.0f} points, have a mean of {np.mean(beams):.0f} ±"
        f" {error_of(beams):.0f} (standard error). Its dip at {resumed:.1f}M steps is a resumption, too",
    )


# What the ablations are beside.
BASE = ("pong-fast-s0", "pong-fast-s1")


def base_to(score: float) -> list[float]:
    """Millions of steps that each of these took to a score."""
    return [millions_to(name, score) for name in BASE]


def ahead_of_base(name: str) -> tuple[float, list[float]]:
    """What an ablation ended at, and millions of steps sooner than each of these."""
    ended = run_named(name)
    score = report.training_score(ended)
    return score, [steps - ended.facts["steps"] / 1e6 for steps in base_to(score)]


def test_what_the_readme_tells_of_what_matters():
    """Golden: sentences whose figures are those of results/, and what they call equal is."""
    natures_apart, natures_apart_at_18, apart, apart_at_18 = (
        seeds_apart(f"{setting}-", goal)
        for setting in ("pong-nature", "pong-fast")
        for goal in (report.STUDY_GOAL, report.PONG_GOAL)
    )
    base = base_to(report.STUDY_GOAL)
    unclipped, own, outside = (
        millions_to(f"{name}-s0", report.STUDY_GOAL)
        for name in ("unclipped", "own-statistics", "epsilon-outside-1e-5")
    )
    for seed in (unclipped, own, outside):
        assert max(abs(seed - each) for each in base) < natures_apart
    came_to, sooner = ahead_of_base("own-statistics-s0")
    assert 0 < min(sooner) <= max(sooner) < apart_at_18
    fast = run_named("pong-fast-s0")
    norms, clipped = rows_of(fast, NORM, f"{NORM}_clipped")
    entry = entry_of(fast)
    assert np.sqrt((1e-5 + entry**2) / (1e-8 + entry**2)) == pytest.approx(15, abs=0.5)
    assert report.reached(run_named("epsilon-1e-5-s0"), report.STUDY_GOAL) is None
    inside = millions_to("epsilon-1e-5-s0", -17.0)
    before = base_to(-17.0)
    assert inside - max(before) > natures_apart_at_18
    assert_told(
        f"come to −10 up to {natures_apart:.1f}M steps apart, and to 18 up to {natures_apart_at_18:.1f}M; the"
        f" two of `pong-fast` {apart:.1f}M and {apart_at_18:.1f}M",
        f"−10 came after {unclipped:.2f}M steps instead of {base[0]:.2f}M and {base[1]:.2f}M",
        f"the norm of its gradient is {np.median(norms):.2f}",
        f"in {(clipped < norms).sum()} rows of {len(norms)} it shows",
        f"−10 came after {own:.2f}M steps, and the {came_to:.1f} that they ended at"
        f" {sooner[0]:.1f}M and {sooner[1]:.1f}M steps sooner",
        f"Outside, −10 came after {outside:.2f}M steps, as with our usual 1e-8 inside",
        f"An entry of our gradients is of {entry:.4f} (a norm of"
        f" {np.median(norms):.2f} over {round(n_weights_of(fast), -3):,.0f} weights)",
        f"−17 came after {inside:.2f}M steps instead of {before[0]:.2f}M and {before[1]:.2f}M, and −10"
        " not by 4M",
    )


def test_what_the_readme_tells_of_a_smaller_epsilon():
    """Golden: sentences whose figures are those of results/, and what they call equal is."""
    base = base_to(report.STUDY_GOAL)
    came = millions_to("epsilon-1e-10-s0", report.STUDY_GOAL)
    assert max(abs(came - each) for each in base) < seeds_apart("pong-nature-", report.STUDY_GOAL)
    score, sooner = ahead_of_base("epsilon-1e-10-s0")
    assert max(sooner) < seeds_apart("pong-fast-", report.PONG_GOAL)
    entry = entry_of(run_named("pong-fast-s0"))
    assert np.sqrt(1e-8) / entry == pytest.approx(0.5, abs=0.05)
    longer = np.sqrt((1e-8 + entry**2) / (1e-10 + entry**2))
    assert_told(
        f"With 1e-10 steps along it are {longer:.1f} times as long",
        f"−10 came after {came:.2f}M steps, and the {score:.1f} that it ended at {sooner[0]:.1f}M"
        f" and {sooner[1]:.1f}M steps sooner than to `pong-fast`",
    )


def test_what_the_readme_tells_of_random_starts():
    """Golden: sentences whose figures are those of results/; sooner is what they call so."""
    came, apart, sooner = {}, {}, {}
    for score in (report.STUDY_GOAL, 5.0):
        came[score] = [millions_to("no-random-starts-s0", score), *base_to(score)]
        apart[score] = seeds_apart("pong-nature-", score)
        sooner[score] = max(came[score]) - came[score][0]
        assert sooner[score] / apart[score] == pytest.approx(1.2, abs=0.15)
    to_ten, to_five = came.values()
    assert_told(
        f"−10 came after {to_ten[0]:.2f}M steps instead of {to_ten[1]:.2f}M and {to_ten[2]:.2f}M, and 5 after"
        f" {to_five[0]:.2f}M instead of {to_five[1]:.2f}M and {to_five[2]:.2f}M. The seeds of `pong-nature` come to"
        " −10 up to {:.1f}M apart and to 5 up to {:.1f}M".format(*apart.values()),
    )


@pytest.mark.parametrize("name", [name for name, (_, flags) in report.PICTURES.items()])
def test_the_pictures_are_of_the_runs(name, tmp_path, monkeypatch):
    """Golden: drawn again, each is the same; where there is no run of it there is no picture."""
    beginning, flags = report.PICTURES[name]
    picture = report.IMAGES / name
    monkeypatch.setattr(report, "IMAGES", tmp_path)
    if found := report.shown(RUNS, beginning, flags):
        report.draw(name, found, flags)
        before, now = (image.imread(path) for path in (picture, tmp_path / name))
        assert before.shape == now.shape
        assert (
            np.abs(before - now).mean() < 1e-3
        )  # of 1; other machines' fonts may be smoothed otherwise
    else:
        assert not picture.exists()


# Publishing

COMMAND = ["--log_dir", "runs/pole-s3", "--n_steps", "70", "--seed", "3", "CartPole-v1"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The folder of a CartPole run that ended at its step 70."""
    monkeypatch.chdir(tmp_path)
    folder = run_folder.create(command_line.parse(COMMAND), COMMAND)
    agents.save(folder / run_folder.CHECKPOINTS)
    rows = "".join(f"{score}.0,{score},{score / 10}\n" for score in (20, 21, 26))
    monitor = '#{"t_start": 5.0, "env_id": "CartPole-v1"}\nr,l,t\n' + rows
    (folder / "monitor/0.0.monitor.csv").write_text(monitor)
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
    for name in ("progress.csv", "monitor/0.0.monitor.csv"):
        assert gzip.decompress((into / f"{name}.gz").read_bytes()) == (run / name).read_bytes()
    for name in ("command.txt", "args.json", "versions.txt"):
        assert (into / name).read_bytes() == (run / name).read_bytes()
    info = checkpoint_files.read_info(checkpoint_files.find(into))
    assert not info.has_statistics
    evaluation = json.loads((into / "evaluation.json").read_text())
    assert (evaluation["seed"], len(evaluation["games"])) == (publish.EVALUATION_SEED, 2)
    assert not (into / "git.txt").exists()
    assert publish.main([str(run), "results/pole-s3"]) == 2
    assert "is there already" in capsys.readouterr().err


def test_curves_alone(run):
    """Golden: a run of a study needs no agent; the same content gives the same bytes."""
    for name in ("a", "b"):
        assert publish.main([str(run), f"results/{name}", "--no_agent"]) == 0
    facts = json.loads(pathlib.Path("results/a/run.json").read_text())
    assert (facts["hours"], facts["cpu_hours"]) == (None, 0.5)
    a, b = (
        {p.relative_to(f"results/{name}"): p.read_bytes() for p in files}
        for name in ("a", "b")
        if (files := [p for p in pathlib.Path(f"results/{name}").rglob("*") if p.is_file()])
    )
    assert a == b
    assert not [path for path in a if path.parts[0] == "checkpoints"]


def test_what_leads_nowhere_is_refused(run, capsys):
    """Golden: one line, and no folder: code that nobody has, or other code on the way, a run under way."""

    def refusal(*flags: str, into: str = "results/x", of: pathlib.Path = run) -> str:
        assert publish.main([str(of), into, "--no_agent", *flags]) == 2
        assert not pathlib.Path(into).exists()
        return capsys.readouterr().err

    assert "x is not below results/" in refusal(into="x")
    assert "is not below results/" in refusal(into=str(pathlib.Path("results/x").resolve()))
    assert "is not below results/" in refusal(into="results/../x")
    assert "nothing is no run folder" in refusal(of=pathlib.Path("nothing"))

    set_code(run, "uncommitted difference:\n-a\n+b\n")
    assert "has uncommitted changes, and no --patch says which" in refusal()
    patch = pathlib.Path("other.patch")
    patch.write_text("-a\n+c\n")
    assert "has other changes than other.patch" in refusal("--patch", str(patch))
    set_code(run, "uncommitted difference:\n-a\n+c\nGIT binary patch")
    assert "has uncommitted changes" in refusal("--patch", str(patch))
    set_code(run)
    assert "has other changes than other.patch" in refusal("--patch", str(patch))
    (run / "git.txt").write_text((run / "git.txt").read_text().replace("none", "\n    'x.py'"))
    assert "has files that nobody else has" in refusal()
    set_code(run)
    with run_folder.lock(run):
        assert "is in use" in refusal()
    text = (run / "args.json").read_text()
    args = json.loads(text)
    note = {"revision": "abab", "code": run_folder.digest_of(ROOT), "command": "x --resume /root/x"}
    (run / "args.json").write_text(json.dumps(args | {"resumed": [note]}))
    assert "args.json would name /root/" in refusal()
    notes = [
        {"revision": "abab", "code": run_folder.digest_of(ROOT)},
        {"revision": "cdcd", "code": "x"},
    ]
    (run / "args.json").write_text(json.dumps(args | {"resumed": notes}))
    assert "went on with other code, of cdcd" in refusal()
    args["params"]["load_ckpt"] = "runs/before"
    (run / "args.json").write_text(json.dumps(args))
    assert "began from a checkpoint of another run" in refusal()
    (run / "args.json").write_text(text)
    with gzip.open(run / "monitor/x.gz", "wb") as file:
        file.write(b"/home/")
    assert publish.place_in(run / "monitor/x.gz") == "/home/"
    (run / "monitor/x.gz").unlink()
    for path, more, words in (
        ("progress.csv", "75,0.6\n", "its last row and its last checkpoint differ"),
        ("monitor/0.0.monitor.csv", "1.0,2", "its last line is cut off"),
    ):
        whole = (run / path).read_text()
        (run / path).write_text(whole + more)
        assert words in refusal()
        (run / path).write_text(whole)
    for text in (
        "",
        "misc/steps,misc/cpu_hours\n",
        "x,y\n1,2\n",
        "misc/steps,misc/cpu_hours\n70\n",
    ):
        (run / "progress.csv").write_text(text)
        assert "progress.csv is damaged" in refusal()
    (run / "progress.csv").write_text("misc/steps\n70\n")
    assert "has not counted its processor's hours" in refusal()
    (run / "failure").mkdir()
    assert "failed: see" in refusal()
    (run / "args.json").unlink()
    assert "cannot read" in refusal()


def test_a_named_patch_is_what_the_code_differed_by(run):
    """Golden: an ablation that no flag makes is a patch, and the run says so."""
    set_code(run, "uncommitted difference:\n-a\n+b\n")
    pathlib.Path("outside.patch").write_text("-a\n+b\n")
    assert (
        publish.main([str(run), "results/x", "--no_agent", "--alone", "--patch", "outside.patch"])
        == 0
    )
    assert json.loads(pathlib.Path("results/x/run.json").read_text())["patch"] == "outside.patch"


# What is said


def published_of(name: str, scores: list[float], **facts: object) -> report.Published:
    """A run whose games took 1,000 steps and 36 s each; of three workers, or those of its name."""
    n = len(scores)
    games = plot_runs.Games(
        np.array(scores), 1000.0 * np.arange(1, n + 1), 36.0 * np.arange(1, n + 1)
    )
    settings = {
        "network": "small",
        "envs_per_worker": 1,
        "n_steps": 1000 * n,
        "n_workers": int(re.search(r"(\d*)x1|$", name.replace("pong-ocd", "16x1"))[1] or 3),
    }
    run = plot_runs.Run(pathlib.Path(name), "PongNoFrameskip-v4", games, 1.0, 4, 0, 0.0, settings)
    said = {"steps": 1000 * n, "hours": n / 100, "cpu_hours": 2.0} | facts
    evaluation = {"summary": {"mean": 19.26, "sd": 1.5, "n_games": 30}}
    return report.Published(ROOT / "results" / name, said, run, evaluation, ["P"])


@pytest.fixture
def cpu_hours(monkeypatch):
    """Of runs that are in no folder: one for 100,000 steps."""
    monkeypatch.setattr(report, "cpu_hours_at", lambda published, steps: steps / 1e5)


@pytest.mark.usefixtures("cpu_hours")
def test_when_a_score_was_reached():
    """Analytic: at the end of the first 100 games whose mean is so high."""
    published = published_of("pong-fast-s0", [0.0] * 100 + [20.0] * 120)
    assert report.training_score(published) == 20
    assert report.training_score(published, 200_000) == 20
    assert report.training_score(published, 199_999) == pytest.approx(19.8)
    assert report.training_score(published, 50_000) == 0
    assert report.reached(published, 18.0) == report.Moment(190_000, 1.9, 1.9)
    assert report.reached(published, 20.5) is None


def test_what_the_processor_had_spent_by_a_step(tmp_path):
    """Analytic: between two rows; older runs did not count it."""
    published = published_of("pong-fast-s0", [0.0] * 100)._replace(folder=tmp_path)
    (tmp_path / "progress.csv").write_text("misc/steps,misc/cpu_hours\n100,1\n200,3\n")
    assert report.cpu_hours_at(published, 150) == 2
    (tmp_path / "progress.csv").write_text("misc/steps\n100\n200\n")
    assert np.isnan(report.cpu_hours_at(published, 150))


@pytest.mark.usefixtures("cpu_hours")
def test_tables_of_runs():
    """Golden: hours only of a run that was alone, else the processor's."""
    runs = [
        published_of("pong-fast-s0", [0.0] * 100 + [20.0] * 120),
        published_of("pong-fast-s1", [18.5] * 120, hours=None),
        published_of("pong-fast-s2", [-3.0] * 120),
    ]
    rows = report.pong_table(runs, report.FAST).splitlines()[2:]
    assert [row.removeprefix("| `results/pong-fast-s") for row in rows] == [
        "0` | 1.90 h, 0.19M steps | 0.22M steps, 2.20 h | 20.0 | 19.3 ± 1.5 | P |",
        "1` | 1.00 CPU hours, 0.10M steps | 0.12M steps, 2.00 CPU hours | 18.5 | 19.3 ± 1.5 | P |",
        "2` | not | 0.12M steps, 1.20 h | −3.0 | 19.3 ± 1.5 | P |",
    ]
    runs = [
        *(published_of(f"ablations/a-s{i}", [-12.0 + 4 * i] * 150) for i in (0, 1)),
        published_of("pong-fast-s0", [-7.0] * 150 + [9.0] * 10),
        published_of("pong-ocd-s0", [0.0] * 10),
    ]
    head, _, *rows = report.study_table(runs, report.ABLATIONS).splitlines()
    assert head.endswith(" games by 0.15M steps | time in all | processor |")
    assert rows == [
        "| pong-fast | 1 | 1.00 h, 0.10M steps | 0.16M | −7.0 | 1.60 h | P |",
        "| a | 2 | not; 1.00 h, 0.10M steps | 0.15M; 0.15M | −12.0; −8.0 | 1.50 h; 1.50 h | P |",
    ]
    one = report.scores_table([published_of("pong-nature-s0", [-3.0] * 120)]).splitlines()
    budget = "3 × 1 environments, `small`, 2 cores: Pong 0.12M steps, 1.20 h"
    score = "training: mean of the last 100 games |  |  | −3.0 |  |  |"
    assert one[2] == f"| **ours** | {budget} | {score}"
    assert one[3].endswith("± sd of the games |  |  | 19.3 ± 1.5 |  |  |")
    assert one[4].endswith("| *2469* | *290* | *18* | *4461* | *727* |")
    several = [
        *(published_of(f"pong-nature-s{i}", [float(i)] * n) for i, n in enumerate([120, 120, 140])),
        published_of("qbert-s0", [0.0] * 130),
    ]
    of_pong = "Pong 0.12M steps, 1.20 h and 1.20 h; Pong 0.14M steps, 1.40 h"
    budget = f"3 × 1 environments, `small`, 2 cores: {of_pong}; Q*bert 0.13M steps, 1.30 h"
    lines = report.scores_table(several).splitlines()
    assert lines[2].startswith(f"| **ours** | {budget} |")
    assert lines[2].endswith("|  |  | 1.0 (0.0 to 2.0) | 0.0 |  |")
    assert lines[3].endswith("| 19.3 ± 1.5 and 19.3 ± 1.5 and 19.3 ± 1.5 | 19.3 ± 1.5 |  |")


@pytest.mark.usefixtures("cpu_hours")
def test_how_much_sooner_more_workers_are():
    """Analytic: hours to the score over those of one worker, not where hours do not count; and steps."""
    late, soon, half = [-20.0] * 300 + [0.0] * 100, [0.0] * 100, [-20.0] * 100 + [0.0] * 100
    runs = [
        published_of("pong-ocd-s0", soon, hours=None),
        published_of("workers/1x1-s0", late),
        published_of("workers/2x1-s0", [-20.0] * 150),
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
        ("| 2 × 1", "", "", "2.1 |"),
        ("| 4 × 1", "2.8", "2.8", "3.7 |"),
        ("| 8 × 1", "", "", "6.9 |"),
        ("| 16 × 1", "", "3.5", "12.5 |"),
    ]


def test_what_is_shown_of_a_study():
    """Analytic: of hours, only runs that were alone; workers in the order of their numbers; and
    nothing that others would be compared with while there are no others."""
    runs = [
        published_of("pong-ocd-s0", [0.0] * 100),
        published_of("workers/1x1-s0", [0.0] * 100),
        published_of("workers/4x1-s0", [0.0] * 100, hours=None),
        published_of("pong-fast-s0", [0.0] * 100),
    ]
    assert report.shown(runs, report.WORKERS) == [runs[1], runs[2], runs[0]]
    assert report.shown(runs, report.WORKERS, ["--x", "hours"]) == [runs[1], runs[0]]
    assert report.shown(runs, report.ABLATIONS) == []
    runs.insert(0, published_of("ablations/a-s0", [0.0] * 100))
    assert report.shown(runs, report.ABLATIONS) == [runs[4], runs[0]]
    del runs[0]
    assert report.shown(runs[::3], report.WORKERS) == []
    assert report.shown(runs[::3], report.PRESETS) == runs[:1]


def test_a_run_that_is_not_whole_is_named(run):
    """Golden: what publishing wrote is read; with anything missing it is one line with the folder."""
    assert publish.main([str(run), "results/x", "--no_agent"]) == 0
    here = pathlib.Path("results")
    (published,) = report.read_all(here)
    assert (published.folder, published.facts["steps"]) == (here / "x", 70)
    for name in ("run.json", "monitor/0.0.monitor.csv.gz", "args.json"):
        whole = (here / "x" / name).read_bytes()
        for damage in (whole[: len(whole) // 2], None):
            (here / "x" / name).unlink()
            if damage is not None:
                (here / "x" / name).write_bytes(damage)
            with pytest.raises(BadInput, match="results/x"):
                report.read_all(here)
            (here / "x" / name).write_bytes(whole)
    games = here / "x/monitor/0.0.monitor.csv.gz"
    games.write_bytes(gzip.compress(gzip.decompress(games.read_bytes()) + b"1.0,2"))
    with pytest.raises(BadInput, match="its last line is cut off"):
        report.read_all(here)


def test_nothing_is_written_where_a_table_has_no_place(tmp_path, monkeypatch, capsys):
    """Golden: one line that says which; the tables that have one stay as they are."""
    readme = tmp_path / "README.md"
    places = [name for path, name in report.texts(RUNS) if path == report.README]
    text = "".join(f"<!-- {n}: written by a script -->\n<!-- end of {n} -->\n" for n in places[1:])
    readme.write_text(text)
    monkeypatch.setattr(report, "README", readme)
    monkeypatch.setattr(report, "draw", lambda *given: pytest.fail("drawn"))
    assert report.main() == 2
    assert readme.read_text() == text
    assert f"README.md has no markers for {places[0]}" in capsys.readouterr().err


def test_a_run_that_was_ended_early_says_so():
    """Golden: the steps that it was to have, behind those it has."""
    (whole,) = (published for published in RUNS if published.folder.name == "pong-fast-s0")
    settings = {**whole.run.settings, "n_steps": 7_000_000}
    cut = whole._replace(run=whole.run._replace(settings=settings))
    assert "| 6,000,000 of 7,000,000 |" in report.index_table([cut])
    assert "| 6,000,000 |" in report.index_table([whole])


def test_a_run_that_went_on_for_longer_says_by_which_command(tmp_path, monkeypatch):
    """Golden: behind the command that began it; resumptions that changed nothing have none."""
    whole = next(published for published in RUNS if published.folder.name == "pong-fast-s0")
    first = (whole.folder / "command.txt").read_text(encoding="utf-8").strip()
    assert report.commands_of(whole) == [first]
    args = json.loads((whole.folder / run_folder.ARGS).read_text(encoding="utf-8"))
    again, longer = (
        "python3 train.py --resume runs/a",
        "python3 train.py --resume runs/a --n_steps 9",
    )
    args["resumed"] = [
        {"command": again, "changed": {}},
        {"command": longer, "changed": {"n_steps": [6_000_000, 9]}},
    ]
    (tmp_path / "command.txt").write_text(f"{first}\n")
    (tmp_path / run_folder.ARGS).write_text(json.dumps(args))
    assert report.commands_of(whole._replace(folder=tmp_path)) == [first, longer]
    monkeypatch.setattr(report, "HERE", tmp_path.parent)
    assert f"| `{first}`, then `{longer}` |" in report.index_table(
        [whole._replace(folder=tmp_path)]
    )


def test_processors_are_named_once_and_those_of_resumptions_too(tmp_path):
    """Golden: what it began on, and each other that it went on on; older notes name none."""
    whole = next(published for published in RUNS if published.folder.name == "pong-fast-s0")
    args = json.loads((whole.folder / run_folder.ARGS).read_text(encoding="utf-8"))
    args["resumed"] = [{"cpu": "A"}, {}, {"cpu": "B (R)"}, {"cpu": "A"}]
    (tmp_path / run_folder.ARGS).write_text(json.dumps(args))
    (tmp_path / "versions.txt").write_text("code: ab\ncpu: A\ncores: 2\n")
    found = report.processors_of(tmp_path)
    assert found == ["A", "A", "B (R)", "A"]
    moved = whole._replace(processors=found)
    assert report.processors([moved, whole]) == "A and B (R) and Intel(R) Xeon(R) Processor"
