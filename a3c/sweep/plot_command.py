"""The program plot_runs.py, or a3c-plot where the package is installed: learning curves of runs.

Without --out, a window shows them; where there is no display, they are saved beside the run.
A run is a run folder of train.py; or a folder of monitor files, or one such file, by
Stable-Baselines3 or Baselines (a3c/store/reading.py reads them). Scores are those of whole training
games. Hours are those of the training: pauses between its starts are left out.
"""

import argparse
import contextlib
import math
import os
import pathlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from a3c.machine.words import BadInput, counted, one_line
from a3c.play import atari_scores, windows
from a3c.play.atari_scores import scale_of
from a3c.play.curves import (
    AXES,
    COLOURS,
    DASHES,
    STYLE,
    align,
    axis_at_steps,
    axis_of,
    smooth,
)
from a3c.settings.command_line import Parser, called
from a3c.settings.params import KNOBS, by_todays_names, check_text
from a3c.store import reading
from a3c.store.reading import FRAME_SKIP, Run
from a3c.sweep.folder import PLAN

# Panels of --figures: a title, and columns of progress.csv (drawn as —, --, ··).
# fmt: off
FIGURES: dict[str, tuple[str, list[str]]] = {
    "speed": ("steps/s", ["misc/steps_per_second"]),
    "entropy": ("policy entropy (nats)", ["rl/policy_entropy"]),
    "value": ("value of a state, mean of an episode", ["rl/episode_value_mean"]),
    "gradients": ("gradient norm: all (—), policy (--), value (··)",
                  [f"loss/grads_norm_{part}" for part in ("combined", "policy", "value")]),
}
# Published scores, of versions without sticky actions; ~ and > mark what was read off a plot.
GAMES = ("BeamRider", "Breakout", "Pong", "Qbert", "SpaceInvaders")
_SCALES = [scale for game in GAMES if (scale := scale_of(f"{game}NoFrameskip-v4"))]
REFERENCES: dict[str, tuple[str, tuple[str, ...]]] = {
    "random": ("random play: {} (no-op starts; Wang et al. 2016)",
               tuple(str(scale.random).replace("-", "−") for scale in _SCALES)),
    "human": ("human: {} (no-op starts; Wang et al. 2016)",
              tuple(str(scale.human) for scale in _SCALES)),
    "paper": ("A3C paper: {} (Figure 4 at 15 h, 16 threads)",
              ("~14600", "~480", "~20.5", "~11100", "~1430")),
    "ocd": ("OCD A3C: {} (its plot at 15 h, 16 workers, 3 seeds)",
            ("~5400", "~435", "~20", ">12000", "~810")),
    "pfrl": ("PFRL A3C: {} (best evaluation in 50M steps, 3 seeds)",
             ("8882.6", "581.0", "20.9", "20721.9", "1043.5")),
}
_REFERENCE_DASHES = (":", "--", "-.", (0, (9, 3)), (0, (12, 3, 1, 3, 1, 3, 1, 3)))
# fmt: on

PICTURES = (".png", ".svg")
_DOTS = {"ls": "", "marker": ".", "ms": 3, "mew": 0}
LOOKS: dict[str, dict[str, Any]] = {
    "dots": _DOTS | {"alpha": 0.25, "rasterized": True, "zorder": 1},
    "thin": {"lw": 0.8, "alpha": 0.5, "zorder": 2},
    "line": {"lw": 2, "zorder": 3},
}


def group_name(path: pathlib.Path) -> str:
    """The folder's name without its seed and time: runs/wide_s0 and runs/wide/seed-1 are both `wide`."""
    path = pathlib.Path(os.path.abspath(path))
    name = re.sub(r"^monitor$|(^[\d.]*|\.)monitor\.csv(\.gz)?$|\.csv(\.gz)?$", "", path.name)
    name = re.sub(r"(^|_)\d{8}-\d{6}(_\d+$)?(?=$|_)", "", name)
    name = re.sub(r"(^|[-_.])(seed|s)[-_=]?\d+(?=$|[-_.])", "", name).strip("-_.")
    return name or (group_name(path.parent) if path.name else "run")


def game_name(env_id: str) -> str:
    """PongNoFrameskip-v4 and ALE/Pong-v5 are both Pong."""
    return re.sub(r"^ALE/|(NoFrameskip|Deterministic)?-v\d+$", "", env_id)


def say(word: str) -> None:
    """Print a note to stderr."""
    print(one_line(f"{called('plot_runs.py')[-1]}: note: {word}"), file=sys.stderr)


def load(path: pathlib.Path, frames_per_l: int | None) -> Run | None:
    """Read a run, and print notes of what was left out; None if it has no games yet, or is a sweep."""
    if (path / PLAN).is_file():
        say(f"{path} is a sweep: left out; --sweep draws it")
        return None
    run = reading.read_run(path)
    for word in run.words:
        say(word)
    if not len(run.games.scores):
        say(f"{path} has no games yet: left out")
        return None
    return run if run.settings else as_others_count(run, frames_per_l)


def as_others_count(run: Run, frames_per_l: int | None) -> Run:
    """Files of others: what their `l` counts, if the environment's id or a flag says so."""
    is_known = atari_scores.scale_of(f"{game_name(run.env_id)}-v4") is not None
    is_atari = not run.env_id or is_known or re.search("NoFrameskip|^ALE/", run.env_id)
    skip = FRAME_SKIP if is_atari else 1
    steps_per_l = None if is_atari and frames_per_l is None else (frames_per_l or 1) / skip
    return run._replace(steps_per_l=steps_per_l, frames_per_step=skip)


def check_group(label: str, runs: Sequence[Run]) -> None:
    """Refuse or note runs of one group that differ in more than their seeds."""
    if len(env_ids := {run.env_id for run in runs}) > 1:
        raise BadInput(f"group {label} has several environments: {', '.join(sorted(env_ids))}")
    ours = [by_todays_names(run.settings) for run in runs if run.settings]
    every = sorted({name for settings in ours for name in settings})
    if unknown := [name for name in every if name not in KNOBS]:
        say(f"group {label}: this revision does not know {', '.join(unknown)}")
    names = [name for name in every if name in unknown or KNOBS[name].changes_training]
    if missing := [name for name in names if any(name not in settings for settings in ours)]:
        say(f"group {label}: some of its runs have not recorded {', '.join(missing)}")
    recorded = {name: {repr(s[name]) for s in ours if name in s} for name in names}
    seeds = [str(settings["seed"]) for settings in ours if "seed" in settings]
    if twice := [seed for seed in sorted({*seeds}) if seeds.count(seed) > 1]:
        say(f"group {label}: several runs have seed {twice[0]}, and each counts as a seed")
    if differ := [name for name, values in recorded.items() if len(values) > 1]:
        say(f"the runs of group {label} differ in {', '.join(differ)}")


def by_game(groups: Mapping[str, Sequence[Run]]) -> dict[str, dict[str, list[Run]]]:
    """The groups of each game."""
    games: dict[str, dict[str, list[Run]]] = {}
    for label, runs in groups.items():
        for run in runs:
            games.setdefault(game_name(run.env_id), {}).setdefault(label, []).append(run)
    return games


def draw(groups: Mapping[str, Sequence[Run]], options: argparse.Namespace) -> Any:
    """The whole picture, a matplotlib figure; several games have a part of it each."""
    from matplotlib.figure import Figure

    games = by_game(groups)
    n_columns = min(2, len(games))
    shape = math.ceil(len(games) / n_columns), n_columns
    width, height = 9 if n_columns == 1 else 7, 5.5 + 2.3 * ((len(options.figures) + 1) // 2)
    size = width * n_columns, height * shape[0]
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    parts = [figure] if len(games) == 1 else figure.subfigures(*shape, squeeze=False).flat
    styles = {
        label: {"color": COLOURS[i % len(COLOURS)], "ls": DASHES[i // len(COLOURS) % len(DASHES)]}
        for i, label in enumerate(groups)
    }
    for part, of_game in zip(parts, games.values(), strict=False):
        draw_game(part, of_game, options, styles)
    return figure


def draw_game(
    figure: Any,
    groups: Mapping[str, Sequence[Run]],
    options: argparse.Namespace,
    styles: Mapping[str, dict[str, str]],
) -> None:
    """The scores of one game, and below them the panels of --figures."""
    from matplotlib.ticker import EngFormatter

    n_rows = (len(options.figures) + 1) // 2
    grid = figure.add_gridspec(1 + n_rows, 2, height_ratios=[2.2] + [1] * n_rows)
    top = figure.add_subplot(grid[0, :])
    panels = [figure.add_subplot(grid[1 + i // 2, i % 2]) for i in range(len(options.figures))]
    handles = []
    # Windows that at least one run fills.
    windows = [n for n in options.curves if any(have(n, runs) for runs in groups.values())]
    for label, runs in groups.items():
        draw_scores(top, label, runs, options, windows, styles[label])
        for panel, name in zip(panels, options.figures, strict=True):
            draw_figure(panel, name, runs, options.x, styles[label]["color"])
        seeds = f" ({len(runs)} seeds)" if len(runs) > 1 else ""
        name = one_line(label, 100).lstrip("_") + seeds
        handles += top.plot([], [], lw=2, label=name, **styles[label])
    every = [run for runs in groups.values() for run in runs]
    has_band = any(len(have(max(windows, default=1), runs)) > 1 for runs in groups.values())
    handles += legend_of_curves(top, windows, options.shade if has_band else "none")
    handles += draw_references(top, every, options.references)
    top.set(title=title_of(every), ylabel="score of a whole training game")
    skips = {run.frames_per_step for run in every}
    is_skipped = options.x in ("steps", "frames") and len(skips) == 1 and skips != {1}
    for axes in (top, *panels):
        axes.set_xlabel(AXES[options.x] + (f" (1 step = {max(skips)} frames)" * is_skipped))
        if options.x != "hours":
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)


def have(n: int, runs: Sequence[Run]) -> list[Run]:
    """The runs that have at least n games."""
    return [run for run in runs if len(run.games.scores) >= n]


def draw_scores(
    axes: Any,
    label: str,
    runs: Sequence[Run],
    options: argparse.Namespace,
    windows: Sequence[int],
    style: dict[str, str],
) -> None:
    """One group: a curve for each window. Seeds give their mean; the widest window is shaded."""
    for n in options.curves:
        curves = [smooth(run, options.x, n) for run in have(n, runs)]
        if n_short := len(runs) - len(curves):
            which = "a run has" if len(runs) == 1 else f"{n_short} of {len(runs)} runs have"
            say(f"group {label}: {which} fewer than {n} games, so no mean of {n} games")
        if n > 1 and len(curves) > 1:
            if mean := align(curves, options.shade):
                if mean.x[-1] < 0.95 * max(curve.x[-1] for curve in curves):
                    say(f"group {label}: its mean of {n} games ends where its shortest run does")
                if n == max(windows):
                    color = style["color"]
                    axes.fill_between(mean.x, mean.low, mean.high, color=color, alpha=0.2, lw=0)
                curves = [mean]
            else:
                say(f"group {label}: its runs do not overlap on this axis, so no mean")
        for curve in curves:
            axes.plot(curve.x, curve.y, **(style | look_of(n, windows)))


def look_of(n: int, windows: Sequence[int]) -> dict[str, Any]:
    """Dots for games, the widest mean boldest."""
    return LOOKS["dots" if n == 1 else "line" if n == max(windows) else "thin"]


def legend_of_curves(axes: Any, windows: Sequence[int], shade: str) -> list[Any]:
    """What dots, lines and bands mean, in grey."""
    handles = []
    for n in windows:
        look = look_of(n, windows) | {"color": "0.4", "alpha": 1, "ms": 6}
        handles += axes.plot([], [], label=f"mean of {n} games" if n > 1 else "one game", **look)
    if max(windows, default=1) > 1 and shade != "none":
        band = "lowest to highest seed" if shade == "minmax" else "± 1 sd of the seeds"
        handles.append(axes.fill_between([], [], color="0.4", alpha=0.2, lw=0, label=band))
    return handles


def draw_figure(axes: Any, name: str, runs: Sequence[Run], axis: str, colour: str) -> None:
    """One group's figures of progress.csv: a line for each run and column."""
    title, columns = FIGURES.get(name, (name, [name]))
    axes.set_title(title, fontsize="medium")
    for run in runs:
        folder = reading.folder_of(run.path) or run.path
        try:
            progress = reading.read_progress(folder)
        except BadInput as error:
            say(f"{error}, so --figures {name} is not drawn for it")
            continue
        if missing := {"misc/steps", *columns} - progress.columns.keys():
            lacks = " or ".join(map(repr, sorted(missing)))
            available = ", ".join(progress.columns)
            say(f"{folder / 'progress.csv'}: no column {lacks}; available: {available}")
            continue
        for word in progress.words:
            say(f"{folder / 'progress.csv'}: {word}")
        x = axis_at_steps(run, axis, progress.columns["misc/steps"])
        for dash, column in zip(DASHES, columns, strict=False):
            axes.plot(x, progress.columns[column], color=colour, ls=dash, lw=1)


def draw_references(axes: Any, runs: Sequence[Run], names: Sequence[str]) -> list[Any]:
    """Horizontal lines at scores that others published for the game."""
    games = sorted({game_name(run.env_id) for run in runs})
    if names and (len(games) > 1 or games[0] not in GAMES):
        say(f"no published scores drawn: none are known for {' and '.join(games)}")
        return []
    if names and any(run.sticky_actions != 0 for run in runs):
        say("the published scores are without sticky actions, which some of these runs may have")
    handles = []
    for name, dash in zip(names, _REFERENCE_DASHES, strict=False):
        label, scores = REFERENCES[name]
        score = scores[GAMES.index(games[0])]
        y = value_of(score)
        handles.append(axes.axhline(y, color="0.3", ls=dash, lw=1, label=label.format(score)))
    return handles


def value_of(score: str) -> float:
    """The number in a score of REFERENCES, which may be approximate."""
    return float(score.lstrip("~>").replace("−", "-"))


def title_of(runs: Sequence[Run]) -> str:
    """The environments and, of Atari's, whether their actions are sticky, if known."""
    words = {None: "", 0.0: " (no sticky actions)"}
    titles = {
        (run.env_id or "unknown environment")
        + words.get(run.sticky_actions, f" (sticky actions {run.sticky_actions})")
        * bool(re.search("NoFrameskip|^ALE/", run.env_id))
        for run in runs
    }
    return ", ".join(sorted(titles))


def number(text: str) -> int:
    """A whole number of at least 1; "raw" is 1."""
    n = 1 if text == "raw" else int(text)
    if not 1 <= n <= 1_000_000:
        raise ValueError
    return n


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; BadInput where it makes no sense."""
    parser = Parser(
        called("plot_runs.py")[-1], description="Draw learning curves of runs.", allow_abbrev=False
    )
    add = parser.add_argument
    # fmt: off
    add("paths", nargs="*", type=pathlib.Path, help="run folders, or monitor files")
    add("--sweep", type=pathlib.Path, metavar="DIR", help="instead, draw the trials of sweep.py's folder: the"
        " score over each searched value, curves by setting, and means over games")
    add("--csv", type=pathlib.Path, metavar="FILE", help="with --sweep, also write mean, spread and n of its groups")
    add("--out", type=pathlib.Path, help="the picture to write, .png or .svg (default: show it in a window;"
        " where there is no display, save it beside the run)")
    add("--x", choices=AXES, default="steps", help="the horizontal axis (default: steps)")
    add("--curves", nargs="+", metavar="N", help="draw means of the last N games;"
        " raw draws every game (default: raw 10 100 for one group, 10 100 for several)")
    add("--shade", choices=("minmax", "sd", "none"), default="minmax",
        help="the band around the mean of several seeds (default: minmax)")
    add("--label", action="append", help="the group of a run; give it once for all paths or once for each;"
        " runs of one group are its seeds (default: the folder's name without time and seed, _s0 or -seed1)")
    add("--frames_per_l", action="append", type=number, metavar="N", help="how many frames one unit"
        " of the column l is in files of other programs: 1 in Stable-Baselines3's files of Atari, 4 in"
        " Baselines'; give it once for all paths or once for each")
    add("--references", nargs="*", metavar="NAME", help="draw lines at published scores:"
        f" {', '.join(REFERENCES)} (all of these if none is named)")
    add("--figures", nargs="*", metavar="NAME", help="draw panels of progress.csv:"
        f" {', '.join(FIGURES)} (all of these if none is named), or any of its columns")
    # fmt: on
    options = parser.parse_intermixed_args(argv)
    take_paths(options)
    options.references = list(REFERENCES) if options.references == [] else options.references or []
    options.figures = list(FIGURES) if options.figures == [] else options.figures or []
    if options.out is not None and options.out.suffix not in PICTURES:
        raise BadInput(f"--out {options.out} must end in .png or .svg")
    if (options.sweep is None) == (not options.paths):
        raise BadInput("name runs, or --sweep and the folder of a sweep")
    of_runs = ("curves", "label", "frames_per_l", "references", "figures")
    if options.sweep is not None and (
        given := [name for name in of_runs if getattr(options, name)]
    ):
        raise BadInput(f"--{given[0]} is for runs that are named, and not for --sweep")
    if options.csv is not None and options.sweep is None:
        raise BadInput("--csv needs --sweep")
    for path in options.paths:
        check_text("a path", str(path))
    runs = {os.path.realpath(reading.folder_of(path) or path) for path in options.paths}
    if len(runs) < len(options.paths):
        raise BadInput("a run is given twice, and would count as two seeds")
    for flag in ("label", "frames_per_l"):
        values, n = getattr(options, flag) or [None], len(options.paths)
        if len(values) not in (1, n):
            raise BadInput(f"--{flag} is given {len(values)} times for {n} paths: give 1 or {n}")
        setattr(options, flag, values * (n // len(values)))
    return options


def take_paths(options: argparse.Namespace) -> None:
    """Lists take all words that follow them: give the runs among these to the paths.

    Pictures are left out, because runs/* has those that were saved beside the runs.
    """
    known: dict[str, Callable[[str], bool]] = {
        "references": REFERENCES.__contains__,
        "figures": FIGURES.__contains__,
        "curves": lambda word: word == "raw" or word.isdecimal(),
    }
    for name, is_known in known.items():
        words = getattr(options, name) or []
        runs = [word for word in words if not is_known(word) and os.path.lexists(word)]
        options.paths += map(pathlib.Path, runs)
        if words:
            setattr(options, name, [word for word in words if word not in runs])
    options.paths = [path for path in options.paths if path.suffix not in PICTURES]
    for word in options.references or []:
        if word not in REFERENCES:
            there = ", ".join(REFERENCES)
            raise BadInput(f"--references {word}: it is none of {there}, and there is no such run")
    try:
        options.curves = options.curves and [*map(number, options.curves)]
    except ValueError:
        raise BadInput("--curves takes numbers of games from 1 to 1,000,000, or raw") from None
    if options.curves == []:
        raise BadInput("--curves needs numbers of games, or raw")


def check_figures(options: argparse.Namespace, runs: Sequence[Run]) -> None:
    """Refuse a panel for which no run has a column."""
    columns: dict[str, None] = {}
    for run in runs:
        with contextlib.suppress(BadInput):  # it is noted when it is drawn
            folder = reading.folder_of(run.path) or run.path
            columns |= dict.fromkeys(reading.read_progress(folder).columns)
    for name in options.figures:
        if name not in FIGURES and name not in columns:
            there: dict[str, list[str]] = {}
            for part, _, rest in (column.partition("/") for column in columns):
                there.setdefault(part, []).append(rest)
            names = "; ".join(f"{part}/: {' '.join(rest)}" for part, rest in there.items())
            raise BadInput(
                f"--figures {name}: there are {' '.join(FIGURES)}; {names or 'no columns'}"
            )


def beside(options: argparse.Namespace) -> pathlib.Path:
    """Where a picture is saved without --out: runs/a.png, or runs/curves.png for several runs."""
    first = options.sweep or reading.folder_of(options.paths[0]) or options.paths[0]
    place = pathlib.Path(os.path.abspath(first))
    name = place.name if len(options.paths) < 2 else "curves"
    return pathlib.Path(os.path.relpath(place.with_name(f"{name}.png")))


def plot_sweep(options: argparse.Namespace) -> None:
    """Read, draw and save a sweep; print its groups."""
    from a3c.sweep import pictures

    results = pictures.read(options.sweep, say)
    found = pictures.groups(results, say)
    where = show(lambda: pictures.draw(results, found, options.x, options.shade), options)
    if options.csv is not None:
        options.csv.write_text(pictures.to_csv(found), encoding="utf-8")
    for group in found:
        label = f"{group.env_id}, {pictures.label_of(group.setting)}"
        print(
            one_line(
                f"{label}: {group.mean:.2f} ({group.low:.2f} to {group.high:.2f}), n = {group.n_seeds}",
            )
        )
    print(where)


def show(draw_it: Callable[[], Any], options: argparse.Namespace) -> str:
    """Save a picture, or show it until its window is closed; returns what was done.

    The same runs give the same file.
    """
    import matplotlib

    with matplotlib.rc_context(STYLE):
        if options.out is None and windows.can_open():
            import matplotlib.pyplot as plt

            plt.figure(draw_it())
            plt.show()
            return "shown in a window"
        path = options.out or beside(options)
        draw_it().savefig(path, metadata={"Date": None} if path.suffix == ".svg" else {})
    return one_line(f"saved in {path}" if options.out is None else str(path))


def plot(options: argparse.Namespace) -> None:
    """Read, draw and save; print what was drawn."""
    groups: dict[str, list[Run]] = {}
    for path, label, frames_per_l in zip(
        options.paths, options.label, options.frames_per_l, strict=True
    ):
        try:
            if run := load(path, frames_per_l):
                groups.setdefault(label or group_name(path), []).append(run)
        except reading.NoRun as none:
            if len(options.paths) == 1:
                raise
            say(f"{none}: left out")
    if not groups:
        raise BadInput("there are no games to draw yet")
    check_figures(options, [run for runs in groups.values() for run in runs])
    games = by_game(groups).values()
    for of_game in games:
        for label, runs in of_game.items():
            check_group(label, runs)
    usual = [1, 10, 100] if all(len(of_game) == 1 for of_game in games) else [10, 100]
    options.curves = sorted(set(options.curves or usual))
    where = show(lambda: draw(groups, options), options)
    for label, runs in groups.items():
        for run in runs:
            last, hours = run.games.scores[-100:], axis_of(run, "hours")[-1]
            steps = f"{axis_of(run, 'steps')[-1]:,.0f} steps, " if run.steps_per_l else ""
            n_games = counted(len(run.games.scores), "game")
            mean = f"mean of the last {len(last)}: {last.mean():.2f}"
            print(one_line(f"{label}: {run.path}: {n_games}, {steps}{hours:.2f} h, {mean}"))
    print(where)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns the exit status."""
    try:
        options = parse(sys.argv[1:] if argv is None else argv)
        (plot if options.sweep is None else plot_sweep)(options)
    except (BadInput, OSError) as error:
        print(one_line(f"{called('plot_runs.py')[-1]}: error: {error}"), file=sys.stderr)
        return 2
    return 0
