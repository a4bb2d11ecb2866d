"""Write every table and draw every picture of trained agents, from the folders here: `make results`.

A table stands between two markers in a document.
"""

import csv
import functools
import json
import math
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, stdev

from a3c.machine.words import BadInput
from a3c.sweep import folder as sweep_folder
from a3c.sweep import plot_command as plot_runs
from benchmarks import documents
from benchmarks import report as bench_report
from results import folders, lost_lives, publish
from results.folders import (
    ABLATIONS,
    CONTINUOUS,
    GAMES,
    HERE,
    LONG,
    MEMORY,
    OURS,
    PONG,
    PRESETS,
    ROBUSTNESS,
    WITH_MEMORY,
    WORKERS,
    Published,
    best_on_the_way,
    evaluation_in,
    learning_rate_of,
    n_workers_of,
    named,
    reached,
    read_all,
    studies,
    training_score,
    workers,
)
from results.over_games import EVALUATION, LAST_GAMES, OTHERS, OURSELVES, TITLES, over_games, span
from results.pictures import IMAGES, PICTURES

ROOT = HERE.parent

STUDY_GOAL = -10.0
WRAPPERS = "wrappers.jsonl"  # what benchmarks/sb3_wrappers.py printed
# What a training score should reach: that of Baselines' A2C, and 18 for Pong.
GOALS = {"BeamRider": 2469, "Breakout": 290, "Pong": 18, "Qbert": 4461, "SpaceInvaders": 727}

# Cells


def number(value: float) -> str:
    """A score with as many digits as make sense."""
    text = f"{value:.1f}" if abs(value) < 1000 else f"{value:.0f}"
    return text.replace("-", "−")


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
        return over_seeds(summary["mean"] for summary in summaries)
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


def over_games_table(runs: Sequence[Published]) -> str:
    """The interquartile mean of all games, of ours with an interval."""
    rows = []
    for each in over_games(runs):
        ends = " to ".join(f"{end:.2f}" for end in each.interval or ())
        mean = f"{each.interquartile_mean:.2f}"
        of_games = [f"{scores.mean():.2f}" for scores in each.games]
        rows.append([each.who, each.n_seeds, each.of, *of_games, mean, ends])
    titles = [*TITLES, "interquartile mean", "95 % interval"]
    return documents.table(["", "seeds", "score of", *titles], rows)


def agents_table(runs: Sequence[Published], beginnings: Sequence[str]) -> str:
    """A row for each run: its scores, and what it took to reach the goal."""
    rows = []
    for published in named(runs, beginnings):
        goal = GOALS[plot_runs.game_name(published.facts["env_id"])]
        moment = reached(published, goal)
        to_goal = (
            [millions(moment.steps), time_text(published, *moment[1:])] if moment else ["", ""]
        )
        rows.append(agent_row(published, str(goal), *to_goal))
    return agent_table(["goal", "steps to goal", "time to goal"], "evaluation", rows)


def long_table(runs: Sequence[Published]) -> str:
    """A row for each run with evaluations on the way: the best one, and its weights evaluated again."""
    rows = []
    for published in named(runs, LONG):
        n_steps, mean = best_on_the_way(published)
        rows.append(agent_row(published, number(mean), millions(n_steps)))
    return agent_table(["best evaluation", "after"], "the best weights again", rows)


def agent_row(published: Published, *cells: str) -> list[str]:
    """The run and what it took; then these cells, and how it plays."""
    return [
        f"`results/{published.name}`",
        millions(published.facts["steps"]),
        whole_time(published),
        *cells,
        number(training_score(published)),
        evaluated([published]),
        processors(published),
    ]


def agent_table(titles: Sequence[str], evaluation: str, rows: Sequence[Sequence[str]]) -> str:
    """The rows of runs, with titles for their own cells and for the evaluation."""
    head = ["run", "steps", "time", *titles, LAST_GAMES, evaluation, "processor"]
    return documents.table(head, rows)


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


def memory_table(runs: Sequence[Published]) -> str:
    """A row for each setting: the scores of its seeds."""
    rows = [
        [
            plot_runs.group_name(seeds[0].folder),
            str(seeds[0].run.settings["lstm_units"]),
            str(seeds[0].run.settings["steps_per_update"]),
            str(len(seeds)),
            over_seeds(map(training_score, seeds)),
        ]
        for seeds in studies(runs, MEMORY)
    ]
    head = ["setting", "cells of each LSTM", "steps of a rollout", "seeds", LAST_GAMES]
    return documents.table(head, rows)


def lost_lives_table(runs: Sequence[Published]) -> str:
    """A row for each agent that was also played so that it forgets at a lost life."""
    rows = []
    for published in runs:
        if found := evaluation_in(published.folder, lost_lives.FILE):
            scores = [found[way] for way in lost_lives.WAYS]
            texts = [f"{number(fmean(each))} ± {number(stdev(each))}" for each in scores]
            rows.append([f"`results/{published.name}`", str(len(scores[0])), *texts])
    return documents.table(["run", "games", "the state goes on", "it is zero"], rows)


def wrappers_table(runs: Sequence[Published]) -> str:
    """A row for each agent that played in Stable-Baselines3's wrappers, with either scaling."""
    lines = (folders.HERE / WRAPPERS).read_text(encoding="utf-8").splitlines()
    found: dict[str, dict[str, str]] = {}
    for line in map(json.loads, lines):
        text = f"{number(line['mean'])} ± {number(line['sd'])}"
        found.setdefault(line["agent"], {})[line["scaling"]] = text
    rows = [
        [f"`results/{run.name}`", evaluated([run]), scores["area"], scores["linear"]]
        for run in runs
        if (scores := found.get(f"results/{run.name}"))
    ]
    head = ["agent", "our pipeline", "its wrappers", "its wrappers, linear scaling"]
    return documents.table(head, rows)


def search_table(_: Sequence[Published]) -> str:
    """A row for each trial of the search for a faster Pong, failures too, with the best first."""
    trials = []
    for path in sorted((folders.HERE / "pong-search").glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            trials += [{"sweep": path.stem, **row} for row in csv.DictReader(file)]
    trials = [trial for trial in trials if trial["state"] != sweep_folder.WAITING]
    known = {"folder", "env_id", "seed", *sweep_folder.COLUMNS}
    searched = dict.fromkeys(name for trial in trials for name in trial if name not in known)
    rows = [
        [
            *(trial.get(name, "") for name in searched),
            trial["seed"],
            millions(float(trial["steps"])),
            "" if math.isnan(score := float(trial["score"])) else number(score),
            trial["state"],
        ]
        for trial in sorted(trials, key=_score_or_least, reverse=True)
    ]
    return documents.table([*searched, "seed", "steps", LAST_GAMES, "state"], rows)


def _score_or_least(trial: Mapping[str, str]) -> float:
    score = float(trial["score"])
    return -math.inf if math.isnan(score) else score


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


def robustness_table(runs: Sequence[Published]) -> str:
    """A row for each learning rate."""
    rows = [
        [f"{learning_rate_of(run):g}", number(training_score(run))]
        for run in sorted(named(runs, ROBUSTNESS), key=learning_rate_of)
    ]
    return documents.table(["learning rate", LAST_GAMES], rows)


def hours_to_goal(seeds: Sequence[Published]) -> float | None:
    """The mean of all seeds; None unless each reached the score on a machine of its own."""
    moments = [moment for run in seeds if run.is_alone and (moment := reached(run, STUDY_GOAL))]
    is_whole = moments and len(moments) == len(seeds)
    return sum(moment.hours for moment in moments) / len(moments) if is_whole else None


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
    (ROOT / "docs/results.md", "long"): long_table,
    (ROOT / "docs/results.md", "pong"): functools.partial(agents_table, beginnings=PONG),
    (ROOT / "docs/pong-search.md", "pong-search"): search_table,
    (ROOT / "docs/results.md", "wrappers"): wrappers_table,
    (ROOT / "docs/results.md", "presets"): functools.partial(agents_table, beginnings=PRESETS),
    (ROOT / "docs/results.md", "workers"): functools.partial(study_table, beginnings=WORKERS),
    (ROOT / "docs/ablations.md", "ablations"): functools.partial(study_table, beginnings=ABLATIONS),
    (ROOT / "docs/ablations.md", "robustness"): robustness_table,
    (ROOT / "docs/continuous.md", "continuous"): continuous_table,
    (ROOT / "docs/memory.md", "memory"): memory_table,
    (ROOT / "docs/memory.md", "images"): functools.partial(agents_table, beginnings=WITH_MEMORY),
    (ROOT / "docs/memory.md", "lost-lives"): lost_lives_table,
    (HERE / "README.md", "all"): index_table,
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
