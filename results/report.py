"""Write every table and draw every curve of trained agents, from the folders here: `make results`.

A table stands between two markers in a document. A training score is the mean of the last 100 games,
which are whole games with unclipped rewards.
"""

import functools
import json
import math
import pathlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from a3c.play import curves
from a3c.play.atari_scores import human_normalised
from a3c.settings.params import BadInput
from a3c.store import reading
from a3c.sweep import plot_command as plot_runs
from a3c.sweep import statistics
from benchmarks import documents
from benchmarks import report as bench_report
from results import publish

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
IMAGES = ROOT / "images"

N_LAST = 100
STUDY_GOAL = -10.0
# The best of several agents played again, with a new seed; this evaluation replaces the first.
AGAIN = "evaluation-again.json"
# What a training score should reach: that of Baselines' A2C, and 18 for Pong.
GOALS = {"BeamRider": 2469, "Breakout": 290, "Pong": 18, "Qbert": 4461, "SpaceInvaders": 727}

# Runs are chosen by how their names below results/ begin.
OURS = ("beamrider-s", "breakout-s", "pong-nature-s", "qbert-s", "spaceinvaders-s")
GAMES = ("beamrider-s", "breakout-s", "qbert-s", "spaceinvaders-s")
PONG = ("pong-fast-s", "pong-nature-s")
PRESETS = ("pong-ocd-s", "pong-paper-s")
# Studies. The first beginning is what the others are compared with.
WORKERS = ("pong-ocd-s", "workers/")
CONTINUOUS = ("mujoco/",)
INSIDE = ("entropy", "value", "rl/explained_variance", "speed")  # what moves before the score
ABLATIONS = ("pong-fast-s", "ablations/")

TITLES = ("Beam Rider", "Breakout", "Pong", "Q*bert", "Space Invaders")  # as in plot_runs.GAMES
LAST_GAMES = "last 100 training games"
EVALUATION = "evaluation of the trained agent"
OURSELVES = "**ours**"
SCALE = ("random play", "human")
# Who, budget, seeds, what the score is of, and the scores in the order of TITLES.
# fmt: off
OTHERS: tuple[tuple[str, str, str, str, tuple[str, ...]], ...] = (
    ("Baselines A2C, as quoted by Vel", "10M steps, 16 environments", "", LAST_GAMES,
     ("2469", "290", "18.7", "4461", "727")),
    ("Vel A2C", "10M steps", "", LAST_GAMES, ("4091", "430", "19.5", "12000", "1000")),
    ("Stable-Baselines3 A2C, its zoo", "10M steps", "1", EVALUATION,
     ("2890", "280", "17.3", "3882", "627")),
    ("OCD A3C, read off its plot", "15 h, 16 workers on 16 cores", "3", "training",
     plot_runs.REFERENCES["ocd"][1]),
    ("the paper's A3C, read off Figure 4", "15 h, 16 threads", "", "training, 3 best learning rates",
     plot_runs.REFERENCES["paper"][1]),
    ("PFRL A3C", "50–80M steps, 16 CPUs", "3", "best evaluation on the way",
     ("8882.6", "581.0", "20.9", "20721.9", "1043.5")),
    ("random play", "", "", "no-op starts", plot_runs.REFERENCES["random"][1]),
    ("human", "", "", "no-op starts", plot_runs.REFERENCES["human"][1]),
)
# fmt: on


class Published(NamedTuple):
    """One run of results/."""

    folder: pathlib.Path
    facts: dict[str, Any]  # run.json
    run: reading.Run
    evaluation: dict[str, Any] | None  # evaluation.json, or the one that replaces it
    processors: Sequence[str]  # the one that the run began on, then those that it was resumed on

    @property
    def name(self) -> str:
        return str(self.folder.relative_to(HERE))

    @property
    def is_alone(self) -> bool:
        """Whether the machine did nothing else, so that hours of the clock count."""
        return self.facts["hours"] is not None


class Moment(NamedTuple):
    """When the mean of 100 games first reached a score."""

    steps: float
    hours: float
    cpu_hours: float


def read(folder: pathlib.Path) -> Published:
    """A published run; BadInput if it is not whole."""
    try:
        facts = json.loads((folder / publish.RUN).read_text(encoding="utf-8"))
        evaluation = evaluation_in(folder, AGAIN) or evaluation_in(folder, publish.EVALUATION)
        versions = (folder / "versions.txt").read_text(encoding="utf-8")
        first = versions.partition("\ncpu: ")[2].partition("\n")[0]
        resumed = [note["cpu"] for note in reading.read_record(folder).resumed if "cpu" in note]
        run = reading.read_run(folder)
    except (OSError, ValueError) as error:
        raise BadInput(f"{folder} is damaged: {error}") from None
    if run.words or not len(run.games.scores):
        raise BadInput(f"{folder} is damaged: {' '.join(run.words) or 'it has no games'}")
    return Published(folder, facts, run, evaluation, [first, *resumed])


def evaluation_in(folder: pathlib.Path, name: str) -> dict[str, Any] | None:
    """An evaluation's file, if there is one."""
    path = folder / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def read_all(here: pathlib.Path = HERE) -> list[Published]:
    """Every folder that has a command, by name."""
    return [read(path.parent) for path in sorted(here.rglob("command.txt"))]


def named(runs: Sequence[Published], beginnings: Sequence[str]) -> list[Published]:
    """The runs whose names begin so, in the order of the beginnings."""
    return [run for one in beginnings for run in runs if run.name.startswith(one)]


# Figures of one run


def training_score(published: Published, by_steps: float = math.inf) -> float:
    """The mean of the last 100 games that had ended by then."""
    over = curves.axis_of(published.run, "steps") <= by_steps
    return float(published.run.games.scores[over][-N_LAST:].mean())


def reached(published: Published, score: float) -> Moment | None:
    """When the mean of 100 games first was at least this score."""
    curve = curves.smooth(published.run, "steps", N_LAST)
    high = (curve.y >= score).nonzero()[0]
    if not len(high):
        return None
    steps = float(curve.x[high[0]])
    hours = curves.smooth(published.run, "hours", N_LAST).x
    return Moment(steps, float(hours[high[0]]), cpu_hours_at(published, steps))


def cpu_hours_at(published: Published, steps: float) -> float:
    """The processor's hours by then; NaN in older runs, which did not count them."""
    columns = reading.read_progress(published.folder).columns
    if "misc/cpu_hours" not in columns:
        return float("nan")
    return float(np.interp(steps, columns["misc/steps"], columns["misc/cpu_hours"]))


# Cells


def number(value: float) -> str:
    """A score with as many digits as make sense."""
    text = f"{value:.1f}" if abs(value) < 1000 else f"{value:.0f}"
    return text.replace("-", "−")


def span(values: Iterable[float]) -> str:
    """6–10, or the one value that all of them are."""
    found = sorted({*values})
    return "–".join(f"{value:g}" for value in dict.fromkeys([found[0], found[-1]]))


def millions(steps: float) -> str:
    return f"{steps / 1e6:.2f}M"


def over_seeds(values: Iterable[float], form: Callable[[float], str] = number) -> str:
    """One value, or the mean of several and their range."""
    found = list(values)
    if not found:
        return ""
    mean = form(sum(found) / len(found))
    return mean if len(found) == 1 else f"{mean} ({form(min(found))} to {form(max(found))})"


def time_text(published: Published, hours: float, cpu_hours: float) -> str:
    """Hours of the clock if the machine did nothing else, or else the processor's."""
    return f"{hours:.2f} h" if published.is_alone else f"{cpu_hours:.2f} CPU hours"


def whole_time(published: Published) -> str:
    return time_text(published, published.facts["hours"], published.facts["cpu_hours"])


def processors(published: Published) -> str:
    return " and ".join(dict.fromkeys(published.processors))


def evaluated(seeds: Sequence[Published]) -> str:
    """One evaluation's mean and standard deviation, or the mean of several seeds' and their range."""
    summaries = [run.evaluation["summary"] for run in seeds if run.evaluation]
    if len(summaries) != 1:
        return over_seeds(map(evaluation_mean, (run for run in seeds if run.evaluation)))
    (summary,) = summaries
    text = f"{number(summary['mean'])} ± {number(summary['sd'])}"
    n_games = summary["n_games"]
    return text if n_games == publish.N_GAMES else f"{text} ({n_games} games)"


# Tables


def scores_table(runs: Sequence[Published]) -> str:
    """Our scores beside those of others, each with its budget and with what the score is of."""
    ours = [named(runs, [beginning]) for beginning in OURS]
    steps = span(published.facts["steps"] / 1e6 for seeds in ours for published in seeds)
    about = [OURSELVES, f"{steps}M steps on 2 cores", span(map(len, ours))]
    trained = [over_seeds(map(training_score, seeds)) for seeds in ours]
    rows = [
        [*about, LAST_GAMES, *trained],
        [*about, EVALUATION, *map(evaluated, ours)],
        *([*about, *scores] for *about, scores in OTHERS),
    ]
    return documents.table(["", "budget", "seeds", "score of", *TITLES], rows)


class OverGames(NamedTuple):
    """Human-normalised scores of all games."""

    who: str
    of: str  # what the scores are of
    n_seeds: str
    games: list[np.ndarray]  # in the order of TITLES: of each seed, or one mean of all

    @property
    def interquartile_mean(self) -> float:
        return float(statistics.interquartile_mean(np.concatenate(self.games)))

    @property
    def interval(self) -> tuple[float, float] | None:
        """That of the mean; None unless the scores of several seeds are known in each game."""
        if min(map(len, self.games)) < 2:
            return None
        return statistics.bootstrap_interval(self.games, np.random.default_rng(0))


def over_games(runs: Sequence[Published]) -> list[OverGames]:
    """Ours, and those of others."""
    with_agents = [run for run in runs if run.evaluation]
    ours: list[tuple[str, Sequence[Published], Callable[[Published], float]]] = [
        (LAST_GAMES, runs, training_score),
        (EVALUATION, with_agents, evaluation_mean),
    ]
    found = []
    for of, known, score in ours:
        seeds = [named(known, [beginning]) for beginning in OURS]
        games = [normalised(i, map(score, each)) for i, each in enumerate(seeds)]
        found.append(OverGames(OURSELVES, of, span(map(len, seeds)), games))
    for who, _, n_seeds, of, texts in OTHERS:
        if who not in SCALE:
            games = [normalised(i, [value_of(text)]) for i, text in enumerate(texts)]
            found.append(OverGames(who, of, n_seeds, games))
    return found


def normalised(game: int, scores: Iterable[float]) -> np.ndarray:
    """Scores in the game of this title, human-normalised."""
    env_id = f"{TITLES[game].replace(' ', '').replace('*', '')}NoFrameskip-v4"
    return np.array([human_normalised(env_id, score) for score in scores], dtype=float)


def value_of(text: str) -> float:
    """The score in a cell of OTHERS."""
    return float(text.lstrip("~>").replace("−", "-"))


def evaluation_mean(published: Published) -> float:
    assert published.evaluation
    return float(published.evaluation["summary"]["mean"])


def over_games_table(runs: Sequence[Published]) -> str:
    """The interquartile mean of all games, of ours with an interval."""
    rows = []
    for each in over_games(runs):
        ends = " to ".join(f"{end:.2f}" for end in each.interval or ())
        mean = f"{each.interquartile_mean:.2f}"
        rows.append([each.who, each.n_seeds, each.of, mean, ends])
    return documents.table(["", "seeds", "score of", "mean", "95 % interval"], rows)


def agents_table(runs: Sequence[Published], beginnings: Sequence[str]) -> str:
    """A row for each run: its scores, and what it took to reach the goal."""
    rows = []
    for published in named(runs, beginnings):
        goal = GOALS[plot_runs.game_name(published.facts["env_id"])]
        moment = reached(published, goal)
        to_goal = (
            [millions(moment.steps), time_text(published, *moment[1:])] if moment else ["", ""]
        )
        rows.append(
            [
                f"`results/{published.name}`",
                millions(published.facts["steps"]),
                whole_time(published),
                *(str(goal), *to_goal),
                number(training_score(published)),
                evaluated([published]),
                processors(published),
            ]
        )
    head = ["run", "steps", "time", "goal", "steps to goal", "time to goal", LAST_GAMES]
    return documents.table([*head, "evaluation", "processor"], rows)


def continuous_table(runs: Sequence[Published]) -> str:
    """A row for each task of continuous actions: the scores of its seeds."""
    rows = [
        [
            seeds[0].facts["env_id"],
            str(len(seeds)),
            over_seeds(map(training_score, seeds)),
            evaluated(seeds),
        ]
        for seeds in studies(runs, CONTINUOUS)
    ]
    return documents.table(["task", "seeds", LAST_GAMES, "evaluation"], rows)


def studies(runs: Sequence[Published], beginnings: Sequence[str]) -> list[list[Published]]:
    """The settings of a study: runs that differ in their seeds alone are one setting."""
    groups: dict[str, list[Published]] = {}
    for published in named(runs, beginnings):
        groups.setdefault(plot_runs.group_name(published.folder), []).append(published)
    return list(groups.values())


def study_table(runs: Sequence[Published], beginnings: Sequence[str]) -> str:
    """How soon each setting reaches a score, and the score when all have trained for as long."""
    # Those of ablations have as many workers, so they keep their order.
    found = sorted(studies(runs, beginnings), key=lambda seeds: n_workers_of(seeds[0]))
    end = min(published.facts["steps"] for seeds in found for published in seeds)
    goal = number(STUDY_GOAL)
    head = ["setting", "seeds", f"steps to {goal}", f"score by {millions(end)} steps"]
    rows = []
    for seeds in found:
        moments = [moment for run in seeds if (moment := reached(run, STUDY_GOAL))]
        some = f"{len(moments)} of {len(seeds)}: " if 0 < len(moments) < len(seeds) else ""
        steps = over_seeds([moment.steps for moment in moments], millions) or "not reached"
        scores = over_seeds(training_score(published, end) for published in seeds)
        name = plot_runs.group_name(seeds[0].folder)
        rows.append([name, str(len(seeds)), some + steps, scores])
    if beginnings == WORKERS:
        head += [f"time to {goal}", "times faster than one", "the paper's (Table 2)"]
        one = next((hours_to_goal(seeds) for seeds in found if n_workers_of(seeds[0]) == 1), None)
        for row, seeds in zip(rows, found, strict=True):
            hours = hours_to_goal(seeds)
            row[0] = workers(seeds[0])
            row.append(f"{hours:.2f} h" if hours else "")
            row.append(f"{one / hours:.1f}" if one and hours else "")
            row.append(bench_report.PAPERS_SPEED_UP.get(n_workers_of(seeds[0]), ""))
    return documents.table(head, rows)


def hours_to_goal(seeds: Sequence[Published]) -> float | None:
    """The mean of all seeds; None unless each reached the score on a machine of its own."""
    moments = [moment for run in seeds if run.is_alone and (moment := reached(run, STUDY_GOAL))]
    is_whole = moments and len(moments) == len(seeds)
    return sum(moment.hours for moment in moments) / len(moments) if is_whole else None


def n_workers_of(published: Published) -> int:
    return int(published.run.settings["n_workers"])


def workers(published: Published) -> str:
    """What the study of workers calls a run."""
    return f"{n_workers_of(published)} × 1"


def index_table(runs: Sequence[Published]) -> str:
    """Every run, with a link to its folder."""
    rows = []
    for published in runs:
        facts, wanted = published.facts, published.run.settings["n_steps"]
        steps, resumed = f"{facts['steps']:,}", facts["resumed"]
        rows.append(
            [
                f"[{published.name}]({published.name})",
                facts["env_id"] + (", sticky actions" if facts["sticky_actions"] else ""),
                facts["revision"][:7] + (f", {facts['patch']}" if facts["patch"] else ""),
                steps if wanted <= facts["steps"] else f"{steps} of {wanted:,}",
                whole_time(published) + (f", resumed {resumed} ×" if resumed else ""),
                processors(published),
            ]
        )
    head = ["run", "environment", "revision, patch", "agent steps", "time", "processor"]
    return documents.table(head, rows)


# Each table's document and name.
TABLES: dict[tuple[pathlib.Path, str], Callable[[Sequence[Published]], str]] = {
    (ROOT / "README.md", "scores"): scores_table,
    (ROOT / "docs/results.md", "over-games"): over_games_table,
    (ROOT / "docs/results.md", "games"): functools.partial(agents_table, beginnings=GAMES),
    (ROOT / "docs/results.md", "pong"): functools.partial(agents_table, beginnings=PONG),
    (ROOT / "docs/results.md", "presets"): functools.partial(agents_table, beginnings=PRESETS),
    (ROOT / "docs/results.md", "workers"): functools.partial(study_table, beginnings=WORKERS),
    (ROOT / "docs/ablations.md", "ablations"): functools.partial(study_table, beginnings=ABLATIONS),
    (ROOT / "docs/continuous.md", "continuous"): continuous_table,
    (HERE / "README.md", "all"): index_table,
}


def curves_of(
    runs: Sequence[Published],
    path: pathlib.Path,
    beginnings: Sequence[str],
    flags: Sequence[str] = (),
) -> None:
    """Draw as anybody would with plot_runs.py; over hours only runs that had the machine alone."""
    found = [run for run in named(runs, beginnings) if run.is_alone or "hours" not in flags]
    labels = []
    if beginnings == WORKERS:
        found.sort(key=n_workers_of)
        labels = [f"--label={workers(published)}" for published in found]
    paths = [str(published.folder) for published in found]
    plot_runs.plot(plot_runs.parse([*paths, "--out", str(path), *labels, *flags]))


def draw_over_games(runs: Sequence[Published], path: pathlib.Path) -> None:
    """A dot for each row of the table, and a bar for its interval."""
    rows = over_games(runs)
    with matplotlib.rc_context(curves.STYLE):
        figure = Figure(figsize=(9, 0.4 * len(rows) + 1), dpi=110, layout="constrained")
        axes = figure.subplots()
        for y, each in enumerate(rows):
            colour = curves.COLOURS[0] if each.who == OURSELVES else "0.4"
            axes.plot(each.interquartile_mean, y, "o", color=colour)
            if each.interval:
                axes.plot(each.interval, (y, y), color=colour, lw=8, alpha=0.35)
        labels = [f"{each.who.strip('*')}: {each.of}" for each in rows]
        axes.set_yticks(range(len(rows)), labels, fontsize="small")
        axes.invert_yaxis()
        axes.set_xlim(left=0)
        axes.set_xlabel("interquartile mean of human-normalised scores; bar: 95 % interval")
        axes.grid(alpha=0.25, axis="x")
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path)


def drawn(
    beginnings: Sequence[str], *flags: str
) -> Callable[[Sequence[Published], pathlib.Path], None]:
    return functools.partial(curves_of, beginnings=beginnings, flags=flags)


# How each picture is drawn.
PICTURES: dict[str, Callable[[Sequence[Published], pathlib.Path], None]] = {
    "over-games.png": draw_over_games,
    "pong.png": drawn(PONG, "--x", "hours", "--references"),
    "pong-steps.png": drawn(["pong-"]),
    "pong-inside.png": drawn(["pong-nature-s1"], "--figures", *INSIDE),
    "presets.png": drawn(PRESETS, "--references", "--figures", "entropy", "value", "gradients"),
    "workers.png": drawn(WORKERS, "--curves", "100"),
    "workers-hours.png": drawn(WORKERS, "--x", "hours", "--curves", "100"),
    "ablations.png": drawn(ABLATIONS, "--curves", "100"),
    "continuous.png": drawn(CONTINUOUS, "--curves", "100"),
    **{f"{game.rpartition('-')[0]}.png": drawn([game], "--references") for game in GAMES},
}


def main() -> int:
    """Write all tables and draw all pictures, of runs that are all whole."""
    try:
        runs = read_all()
        texts = {place: make(runs) for place, make in TABLES.items()}
        for (path, name), text in texts.items():
            documents.replace_between(path, f"make results, {name}", text)
    except (BadInput, ValueError) as error:
        print(f"report: error: {error}", file=sys.stderr)
        return 2
    for name, draw in PICTURES.items():
        draw(runs, IMAGES / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
