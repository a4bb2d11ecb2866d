"""Pictures of a sweep: `plot_runs.py --sweep`.

In columns, one environment each: the score over every searched number, as in the paper's Figure 2; and
curves by setting. Below, for several games, the human-normalised interquartile mean by setting.
"""

import csv
import io
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from a3c.machine.words import BadInput
from a3c.play.atari_scores import human_normalised
from a3c.play.curves import AXES, COLOURS, DASHES, align, smooth
from a3c.settings.naming import short
from a3c.store import reading, run_folder
from a3c.store.reading import Run
from a3c.store.resume import GAMES_IN_MEAN
from a3c.sweep import folder, statistics
from a3c.sweep.plan import Plan, n_steps_of

MOST_COLOURS = 8
OTHERS = {"color": "0.75", "ls": "-", "lw": 0.8}
OVER_GAMES = "human-normalised interquartile mean"
N_BEST = 5  # settings that are coloured where there are more
LOG_FROM = 10.0  # an axis whose ends differ by this factor is logarithmic

Setting = tuple[tuple[str, Any], ...]


class Result(NamedTuple):
    """One trial that has a game."""

    env_id: str
    seed: int
    setting: Setting  # the searched values
    run: Run
    score: float


class Group(NamedTuple):
    """What the seeds of one setting reached, or all games of it."""

    env_id: str
    setting: Setting
    measure: str
    n_seeds: int
    mean: float
    sd: float
    low: float
    high: float


def read(path: pathlib.Path, tell: Callable[[str], None]) -> list[Result]:
    """The trials of a sweep's folder; `tell` gets a line about what is left out or unfinished."""
    plan, results = folder.read_plan(path), []
    for trial in plan.trials:
        if not (path / trial.name / run_folder.ARGS).is_file():
            continue
        run = reading.read_run(path / trial.name)
        for word in run.words:
            tell(word)
        if len(run.games.scores):
            score = float(run.games.scores[-GAMES_IN_MEAN:].mean())
            setting = tuple((name, _hashable(value)) for name, value in trial.searched.items())
            results.append(Result(trial.env_id, trial.seed, setting, run, score))
    if not results:
        raise BadInput("there are no games to draw yet")
    _tell_what_is_missing(path, plan, results, tell)
    return results


def _tell_what_is_missing(
    path: pathlib.Path, plan: Plan, results: Sequence[Result], tell: Callable[[str], None]
) -> None:
    n, n_results = len(plan.trials), len(results)
    if missing := n - n_results:
        tell(f"{missing} of {n} trials have no games yet: left out")
    if short := n_results - len(_long_enough([result.run for result in results])):
        why = f"have fewer than {GAMES_IN_MEAN} games"
        tell(f"{short} of {n} trials {why}: they have no curve, and their score is the mean of all")
    drawn = {result.run.path for result in results}
    begun = [(path / trial.name, trial) for trial in plan.trials if path / trial.name in drawn]
    if not_done := sum(not folder.is_finished(at, n_steps_of(plan, trial)) for at, trial in begun):
        tell(f"{not_done} of {n} trials are not finished: drawn as far as they are")


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def groups(results: Sequence[Result], tell: Callable[[str], None]) -> list[Group]:
    """The score of each environment and setting over its seeds; then of all games by setting."""
    found: list[Group] = []
    by_setting: dict[Setting, dict[str, np.ndarray]] = {}
    seeds: dict[tuple[str, Setting], list[Result]] = {}
    for result in results:
        seeds.setdefault((result.env_id, result.setting), []).append(result)
    for (env_id, setting), ours in seeds.items():
        scores = np.array([result.score for result in ours])
        sd = float(scores.std(ddof=1)) if len(scores) > 1 else math.nan
        ends = float(scores.min()), float(scores.max())
        n_games = {min(len(result.run.games.scores), GAMES_IN_MEAN) for result in ours}
        n = " to ".join(map(str, sorted({min(n_games), max(n_games)})))
        of = f"last {n} training games"
        found.append(Group(env_id, setting, of, len(scores), float(scores.mean()), sd, *ends))
        normalised = [human_normalised(env_id, score) for score in scores]
        if None not in normalised:
            by_setting.setdefault(setting, {})[env_id] = np.array(normalised, dtype=float)
    return found + _over_games(by_setting, tell)


def _over_games(
    by_setting: Mapping[Setting, Mapping[str, np.ndarray]], tell: Callable[[str], None]
) -> list[Group]:
    """Each setting's interquartile mean, from human-normalised scores of seeds by game."""
    n_games = max(map(len, by_setting.values()), default=0)
    if n_games < 2:
        return []
    found, generator = [], np.random.default_rng(0)
    for setting, games in by_setting.items():
        if len(games) < n_games:
            tell(f"{label_of(setting)}: {len(games)} of {n_games} games, so no mean over games")
            continue
        seeds = list(games.values())
        mean, n_seeds = float(statistics.interquartile_mean(seeds)), min(map(len, seeds))
        interval = (math.nan, math.nan)
        if n_seeds > 1:
            interval = statistics.bootstrap_interval(seeds, generator)
        name, sd = f"{n_games} games", math.nan
        found.append(Group(name, setting, OVER_GAMES, n_seeds, float(mean), sd, *interval))
    fewest = min((group.n_seeds for group in found), default=math.inf)
    if fewest < statistics.FEWEST_SEEDS:
        has_one = any(math.isfinite(group.low) for group in found)
        what = "the intervals are too narrow" if has_one else "there is no interval"
        most = statistics.FEWEST_SEEDS
        tell(f"seeds a game: {fewest}, so {what}; take {most} or more to compare settings")
    return found


def label_of(setting: Setting) -> str:
    return ", ".join(f"{name} {short(value)}" for name, value in setting) or "all trials"


def to_csv(found: Sequence[Group]) -> str:
    """The groups as a table."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    names = [name for name, _ in found[0].setting]
    figures = ["n_seeds", "mean", "sd", "low", "high"]
    table.writerow(["env_id", *names, "measure", *figures])
    for group in found:
        values = [_csv(value) for _, value in group.setting]
        numbers = [f"{x:.6g}" for x in (group.mean, group.sd, group.low, group.high)]
        table.writerow([group.env_id, *values, group.measure, group.n_seeds, *numbers])
    return text.getvalue()


def _csv(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


# Drawing


def draw(results: Sequence[Result], found: Sequence[Group], axis: str, shade: str) -> Any:
    """The whole picture, a matplotlib figure."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    env_ids = list(dict.fromkeys(result.env_id for result in results))
    looks, searched = looks_of(found), searched_numbers(results)
    over_games = [g for g in found if g.measure == OVER_GAMES and looks[g.setting] != OTHERS]
    heights = [2.8] * len(searched) + [3.2] + [0.8 + 0.3 * len(over_games)] * bool(over_games)
    size = max(6.5, 3.6 * len(env_ids)), sum(heights) + 1.2
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    grid = figure.add_gridspec(len(heights), len(env_ids), height_ratios=heights)
    for column, env_id in enumerate(env_ids):
        of_env = [result for result in results if result.env_id == env_id]
        panels = [figure.add_subplot(grid[row, column]) for row in range(len(searched) + 1)]
        for axes, name in zip(panels, searched, strict=False):
            draw_over(axes, name, of_env)
        draw_curves(panels[-1], of_env, looks, axis, shade)
        panels[0].set_title(env_id, fontsize="medium")
        for axes in panels if column == 0 else ():
            axes.set_ylabel(f"mean of {GAMES_IN_MEAN} games", fontsize="medium")
    if over_games:
        draw_over_games(figure.add_subplot(grid[-1, :]), over_games, looks)
    named = {label_of(setting): look for setting, look in looks.items() if look != OTHERS}
    if len(looks) > 1:
        named |= {"other settings": OTHERS} if OTHERS in looks.values() else {}
        handles = [Line2D([], [], label=name, **look) for name, look in named.items()]
        n_columns = min(4, len(env_ids))
        figure.legend(handles=handles, loc="outside lower center", ncols=n_columns, frameon=False)
    return figure


def searched_numbers(results: Sequence[Result]) -> list[str]:
    """The searched settings that are numbers, and have at least two values."""
    values: dict[str, set[Any]] = {}
    for result in results:
        for name, value in result.setting:
            values.setdefault(name, set()).add(value)
    return [
        name
        for name, found in values.items()
        if len(found) > 1 and all(type(value) in (int, float) for value in found)
    ]


def looks_of(found: Sequence[Group]) -> dict[Setting, dict[str, Any]]:
    """A colour for each setting; where they are many, for those with the best mean ranks."""
    settings = list(dict.fromkeys(group.setting for group in found))
    if len(settings) <= MOST_COLOURS:
        best = settings
    else:
        ranks: dict[Setting, list[int]] = {setting: [] for setting in settings}
        for env_id in dict.fromkeys(group.env_id for group in found):
            of_env = [group for group in found if group.env_id == env_id]
            for rank, group in enumerate(sorted(of_env, key=lambda group: -group.mean)):
                ranks[group.setting].append(rank)
        best = sorted(settings, key=lambda setting: float(np.mean(ranks[setting])))[:N_BEST]
    looks = {
        setting: {"color": COLOURS[i % len(COLOURS)], "ls": DASHES[i // len(COLOURS)], "lw": 1.8}
        for i, setting in enumerate(best)
    }
    return {setting: looks.get(setting, OTHERS) for setting in settings}


def draw_over(axes: Any, name: str, results: Sequence[Result]) -> None:
    """The score over one searched value: a dot a trial, and a line through the means of the seeds.

    A line joins what differs in this value alone.
    """
    others: dict[Setting, list[Result]] = {}
    for result in results:
        rest = tuple(pair for pair in result.setting if pair[0] != name)
        others.setdefault(rest, []).append(result)
    is_drawn = len(others) > MOST_COLOURS  # every trial has its own values: there are no lines
    for i, (rest, of_rest) in enumerate(others.items()):
        colour = COLOURS[0 if is_drawn else i % len(COLOURS)]
        at = [(dict(result.setting)[name], result.score) for result in of_rest]
        axes.plot(*zip(*at, strict=True), ls="", marker="o", ms=4, alpha=0.5, mew=0, color=colour)
        if not is_drawn and len({x for x, _ in at}) < len(results):
            means = [(x, np.mean([y for z, y in at if z == x])) for x in sorted({x for x, _ in at})]
            label = label_of(rest) if rest else None
            axes.plot(*zip(*means, strict=True), lw=1.2, color=colour, label=label)
    values = [dict(result.setting)[name] for result in results]
    if min(values) > 0 and max(values) >= LOG_FROM * min(values):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.set_xlabel(name)
    if len(others) > 1 and not is_drawn:
        axes.legend(fontsize="small", frameon=False)


def draw_curves(
    axes: Any,
    results: Sequence[Result],
    looks: Mapping[Setting, dict[str, Any]],
    axis: str,
    shade: str,
) -> None:
    """The mean of the last games over time, by setting; its seeds are shaded."""
    from matplotlib.ticker import EngFormatter

    by_setting: dict[Setting, list[Run]] = {}
    for result in results:
        by_setting.setdefault(result.setting, []).append(result.run)
    for setting, runs in by_setting.items():
        look = looks[setting]
        curves = [smooth(run, axis, GAMES_IN_MEAN) for run in _long_enough(runs)]
        if len(curves) > 1 and (mean := align(curves, shade)):
            axes.fill_between(mean.x, mean.low, mean.high, color=look["color"], alpha=0.15, lw=0)
            curves = [mean]
        for curve in curves:
            axes.plot(curve.x, curve.y, **look)
    axes.set_xlabel(AXES[axis])
    if not axes.lines:
        words = f"no curves: no trial has {GAMES_IN_MEAN} games yet"
        axes.text(0.5, 0.5, words, ha="center", va="center", transform=axes.transAxes)
        axes.set(xticks=[], yticks=[])
        return
    if axis != "hours":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def _long_enough(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if len(run.games.scores) >= GAMES_IN_MEAN]


def draw_over_games(
    axes: Any, over_games: Sequence[Group], looks: Mapping[Setting, dict[str, Any]]
) -> None:
    """The interquartile mean of each setting, with its interval where there is one."""
    for y, group in enumerate(over_games):
        colour = looks[group.setting]["color"]
        axes.plot([group.mean], [y], marker="|", ms=14, mew=2, color=colour)
        if math.isfinite(group.low):
            axes.plot([group.low, group.high], [y, y], lw=8, alpha=0.35, color=colour)
    labels = [label_of(group.setting) for group in over_games]
    axes.set_yticks(range(len(over_games)), labels, fontsize="small")
    axes.set_ylim(len(over_games) - 0.5, -0.5)
    fewest, most = (end(group.n_seeds for group in over_games) for end in (min, max))
    n_seeds = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    about = f"{over_games[0].env_id}, {n_seeds} seed{'s' * (most > 1)} each"
    few = " (few seeds: too narrow)" if fewest < statistics.FEWEST_SEEDS else ""
    interval = f"; bar: 95 % interval{few}" if most > 1 else "; too few seeds for an interval"
    axes.set_xlabel(f"interquartile mean of human-normalised scores, {about}{interval}")
