"""Learning curves of one or many runs: `python3 plot_runs.py runs/a runs/b --out fig.png`.

A run is a run folder of train.py, or else a folder of monitor files, or one such file, by
Stable-Baselines3 or Baselines: a line `#{...}`, a line `r,l,t`, a row for each finished game. Any
of these may be zipped (`.gz`). Scores are those of whole training games, as the files have them.
Our `l` counts decisions. So does Baselines', whose Monitor sits above the frame skip too;
Stable-Baselines3's sits below it, so that in its Atari files `l` counts frames.

A file knows the games of one environment only, so the step of the run at which a game ended has
to be put together. Adding up `l` in order of `t` leaves out the games under way in the other
environments: with E environments it reads low by about E/2 games. Instead each environment is
taken to step evenly from one end of a game to its next, and all of them are summed at each end:

    A   |---------- 900 ----------|------------…       at A's first end, B has done 2/3 of 1200
    B   |----------------- 1200 -----------------|…    steps: the run is at 900 + 800

What remains is how unevenly they stepped. For 2.6M steps of Pong on 16 environments, beside the
true counts in progress.csv: adding up is 11,000 steps low (from 4,200 to 23,900, games being of
1,230 on average); this is off by 40 on average, 930 in standard deviation, 3,200 at most. The game
that an environment has under way at the end counts up to its last game's length. Steps of games
that a stop cut short are in no monitor file, so everything after a resume would read low by theirs:
where there is a progress.csv, games are moved as far as its true counts demand. Hours are those of
the training: our `t` leaves out the time that a run stood still.
"""

import argparse
import gzip
import json
import os
import pathlib
import re
import sys
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from a3c.play import atari_scores
from a3c.settings.command_line import Parser
from a3c.settings.params import BadInput
from a3c.store.run_folder import ARGS, MONITOR

# A million games; nobody's file, zipped or not, should fill the memory.
MAX_FILE_BYTES = 2**25
FRAME_SKIP = 4  # frames in a step of an Atari agent, ours and everybody's
AXES = {
    "steps": "agent steps",
    "frames": "emulator frames",
    "games": "games",
    "hours": "hours since the run's start",
}
# May differ between seeds of one setting.
NO_SETTINGS = {
    *("seed", "log_dir", "run_name", "load_ckpt", "n_steps", "debug", "detailed_logs"),
    *("ckpt_interval_seconds", "keep_ckpts", "manager_wake_interval_seconds"),
}
# Panels of --figures: a title, and columns of progress.csv (drawn —, --, ··).
# fmt: off
FIGURES: dict[str, tuple[str, list[str]]] = {
    "speed": ("steps/s", ["misc/steps_per_second"]),
    "entropy": ("policy entropy (nats)", ["rl/policy_entropy"]),
    "value": ("value of a state, mean of an episode", ["rl/episode_value_mean"]),
    "gradients": ("gradient norm: all (—), policy (--), value (··)",
                  [f"loss/grads_norm_{part}" for part in ("combined", "policy", "value")]),
}
# Published scores (~ and > as read off a plot), of versions without sticky actions.
GAMES = ("BeamRider", "Breakout", "Pong", "Qbert", "SpaceInvaders")
REFERENCES: dict[str, tuple[str, tuple[str, ...]]] = {
    "random": ("random play: {} (no-op starts; Wang et al. 2016)",
               ("363.9", "1.7", "−20.7", "163.9", "148.0")),
    "human": ("human: {} (no-op starts; Wang et al. 2016)",
              ("16926.5", "30.5", "14.6", "13455.0", "1668.7")),
    "paper": ("A3C paper: {} (Figure 4 at 15 h, 16 threads)",
              ("~14600", "~480", "~20.5", "~11100", "~1430")),
    "ocd": ("OCD A3C: {} (its plot at 15 h, 16 workers, 3 seeds)",
            ("~5400", "~435", "~20", ">12000", "~810")),
}
# fmt: on

# Okabe and Ito's colours, told apart with any colour vision; then again, with other dashes.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.")
LOOKS: dict[str, dict[str, Any]] = {
    "dots": {
        "ls": "",
        "marker": ".",
        "ms": 3,
        "mew": 0,
        "alpha": 0.25,
        "rasterized": True,
        "zorder": 1,
    },
    "thin": {"lw": 0.8, "alpha": 0.5, "zorder": 2},
    "line": {"lw": 2, "zorder": 3},
}
# Names of folders and environments are no formulas; an SVG's ids are the same each time.
STYLE = {"text.parse_math": False, "svg.hashsalt": "plot_runs"}


class MonitorFile(NamedTuple):
    """The games of one file, and a word for each thing that is wrong with it."""

    env_id: str | None
    t_start: float | None
    scores: np.ndarray
    lengths: np.ndarray
    seconds: np.ndarray  # never falling
    words: list[str]


class Games(NamedTuple):
    """The games of all environments of a run in order of their ends."""

    scores: np.ndarray
    total_l: np.ndarray  # what all environments together had stepped, in units of `l`
    seconds: np.ndarray


class Progress(NamedTuple):
    """Columns of a progress.csv, and a word for each thing that is wrong with it."""

    columns: dict[str, np.ndarray]
    words: list[str]


class Run(NamedTuple):
    """One run, read."""

    path: pathlib.Path
    env_id: str
    games: Games
    steps_per_l: float | None  # None: nobody said what a file of others counts
    frames_per_step: int
    n_steps_before: int  # those of the checkpoint that it went on from
    sticky_actions: float | None  # None: not known
    settings: Mapping[str, Any]  # of args.json


class Curve(NamedTuple):
    """Values over one axis; of several seeds their mean, between `low` and `high`."""

    x: np.ndarray
    y: np.ndarray
    low: np.ndarray
    high: np.ndarray


def parse_monitor(text: str) -> MonitorFile:
    """Read a monitor file's text; what is no whole row is left out, with a word."""
    *lines, rest = text.split("\n")
    words = ["its last line is cut off: left out"] if rest.strip() else []
    env_id, t_start = None, None
    if lines and lines[0].startswith("#"):
        try:
            header = json.loads(lines.pop(0)[1:])
            env_id, t_start = header.get("env_id"), header["t_start"]
            if not abs(t_start) < 1e12:
                raise ValueError
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            t_start = None
            words.append("its first line is damaged: t taken to count from the run's start")
    if lines and lines.pop(0).strip().split(",")[:3] != ["r", "l", "t"]:
        lines = []
        words.append("it has no line r,l,t where a monitor file has it: left out")
    games = [(line, parse_game(line)) for line in lines if line.strip()]
    if bad := [line for line, game in games if game is None]:
        words.append(f"{len(bad)} of its lines are no games (first: {bad[0][:40]!r}): left out")
    rows = np.array([game for _, game in games if game], dtype=float).reshape(-1, 3)
    scores, lengths, seconds = rows.T
    if np.any(np.diff(seconds) < 0):
        seconds = never_falling(seconds)
        words.append("its t falls back, as after a restart: counted on from there")
    # Stable-Baselines3's Monitor writes these where an environment has no id.
    if not isinstance(env_id, str) or env_id in ("None", "Unknown"):
        env_id = None
    env_id = env_id and one_line(env_id)[:100]
    return MonitorFile(env_id, t_start, scores, lengths, seconds, words)


def parse_game(line: str) -> tuple[float, float, float] | None:
    """`r`, `l` and `t` of a row, more columns may follow; None where they cannot be a game's."""
    try:
        score, length, seconds = map(float, line.split(",")[:3])
    except ValueError:
        return None
    # So that no garbage outgrows a sum; NaN is within no bounds.
    possible = abs(score) < 1e12 and 1 <= length < 1e9 and 0 <= seconds < 1e10
    return (score, length, seconds) if possible else None


def never_falling(seconds: np.ndarray) -> np.ndarray:
    """Times that began anew go on from there: 10, 30, 5, 15 → 10, 30, 35, 45."""
    spans = np.diff(seconds, prepend=0.0)
    return np.cumsum(np.where(spans < 0, seconds, spans))


def merge(files: Sequence[MonitorFile]) -> Games:
    """All environments' games in order of time, which counts from the earliest `t_start`."""
    first = min((file.t_start for file in files if file.t_start is not None), default=0.0)
    starts = [0.0 if file.t_start is None else file.t_start - first for file in files]
    ends = [start + file.seconds for start, file in zip(starts, files, strict=True)]
    order = np.argsort(np.concatenate(ends), kind="stable")
    seconds = np.concatenate(ends)[order]
    total_l = np.zeros(len(seconds))
    for start, end, file in zip(starts, ends, files, strict=True):
        total_l += stepped(file.lengths, start, end, seconds)
    return Games(np.concatenate([file.scores for file in files])[order], total_l, seconds)


def stepped(lengths: np.ndarray, start: float, ends: np.ndarray, at: np.ndarray) -> np.ndarray:
    """What one environment had stepped at the times `at`, if evenly within each game."""
    if not len(lengths):
        return np.zeros(len(at))
    times = np.concatenate(([start], ends))
    totals = np.concatenate(([0.0], np.cumsum(lengths)))
    # One more game like the last: an environment that died adds no more than that.
    times = np.append(times, 2 * times[-1] - times[-2])
    return np.interp(at, times, np.append(totals, 2 * totals[-1] - totals[-2]))


def as_counted(total_l: np.ndarray, n_games: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Estimates, each moved with all that follow as little as true counts demand.

    A count says that when so many games had ended, so many steps were done: the next game's end
    comes later, and that of the last of them came before.
    """
    n_games, steps = (column[np.isfinite(n_games + steps)] for column in (n_games, steps))
    rising = (n_games >= np.maximum.accumulate(n_games)) & (steps >= np.maximum.accumulate(steps))
    n_games, steps = n_games[rising], steps[rising]
    n_counts_before = np.searchsorted(n_games, np.arange(len(total_l)), side="right")
    lowest = np.append(0, steps)[n_counts_before]
    highest = np.append(steps, np.inf)[n_counts_before]
    moved, offset = np.empty(len(total_l)), 0.0
    for i, estimate in enumerate(total_l):
        moved[i] = min(max(estimate + offset, lowest[i]), highest[i])
        offset = moved[i] - estimate
    return moved


def axis_of(run: Run, axis: str) -> np.ndarray:
    """The x of each game of a run."""
    if axis == "games":
        return np.arange(1.0, len(run.games.scores) + 1)
    if axis == "hours":
        return run.games.seconds / 3600
    if run.steps_per_l is None:
        raise BadInput(
            f"what does l count in {run.path}? Give --frames_per_l 1 (frames, as in"
            f" Stable-Baselines3's Atari files) or {FRAME_SKIP} (decisions, as in Baselines')"
        )
    steps = run.n_steps_before + run.games.total_l * run.steps_per_l
    return steps * run.frames_per_step if axis == "frames" else steps


def axis_at_steps(run: Run, axis: str, steps: np.ndarray) -> np.ndarray:
    """The x of given steps of a run, NaN before its first game's end and after its last one's."""
    xs = axis_of(run, axis)
    return np.interp(steps, axis_of(run, "steps"), xs, left=float("nan"), right=float("nan"))


def trailing_mean(values: np.ndarray, n: int) -> np.ndarray:
    """The mean of the last n values, from the n-th value on: 1, 2, 6 by 2 → 1.5, 4."""
    sums = np.concatenate(([0.0], np.cumsum(values)))
    return (sums[n:] - sums[:-n]) / n


def smooth(run: Run, axis: str, n: int) -> Curve:
    """The mean of a run's last n games; empty where it has fewer."""
    y = trailing_mean(run.games.scores, n)
    return Curve(axis_of(run, axis)[n - 1 :], y, y, y)


def align(curves: Sequence[Curve], shade: str, n_points: int = 500) -> Curve | None:
    """Several seeds on one axis, from where all have values to where one ends; None if nowhere.

    (A mean over those that are left would jump where one ends.)
    """
    first, last = max(curve.x[0] for curve in curves), min(curve.x[-1] for curve in curves)
    if first >= last:
        return None
    x = np.linspace(first, last, n_points)
    ys = np.stack([np.interp(x, curve.x, curve.y) for curve in curves])
    mean = ys.mean(axis=0)
    if shade == "minmax":
        return Curve(x, mean, ys.min(axis=0), ys.max(axis=0))
    sd = ys.std(axis=0, ddof=1) if shade == "sd" else 0.0
    return Curve(x, mean, mean - sd, mean + sd)


def parse_progress(text: str, names: Sequence[str]) -> Progress | None:
    """Read columns of a progress.csv's text; None where it has not all of them."""
    head, *lines = text.split("\n")
    columns = head.strip().split(",")
    if not set(names) <= set(columns):
        return None
    # After the last line's end there is nothing, or a row that was cut.
    words = ["its last line is cut off: left out"] if lines and lines.pop().strip() else []
    rows = [row for line in lines if (row := parse_row(line, len(columns)))]
    if n_bad := len(lines) - len(rows):
        words.append(f"{n_bad} of its lines are no rows: left out")
    table = np.array(rows, dtype=float).reshape(-1, len(columns))
    return Progress({name: table[:, columns.index(name)] for name in names}, words)


def parse_row(line: str, n_cells: int) -> list[float] | None:
    """A row's numbers; None where it has others than so many."""
    try:
        row = [float(cell) for cell in line.split(",")]
    except ValueError:
        return None
    return row if len(row) == n_cells else None


def read_progress(folder: pathlib.Path, names: Sequence[str]) -> Progress | None:
    """Columns of a run's progress.csv, plain or zipped; BadInput where it cannot be read."""
    plain, zipped = folder / "progress.csv", folder / "progress.csv.gz"
    text = read_text(zipped if zipped.is_file() and not plain.is_file() else plain)
    return parse_progress(text, names)


def group_name(path: pathlib.Path) -> str:
    """The folder's name without its seed: runs/wide_s0 and runs/wide/seed-1 are both wide."""
    path = pathlib.Path(os.path.abspath(path))
    name = re.sub(r"^monitor$|(^[\d.]*|\.)monitor\.csv(\.gz)?$|\.csv(\.gz)?$", "", path.name)
    name = re.sub(r"(^|[-_.])(seed|s)[-_=]?\d+(?=$|[-_.])", "", name).strip("-_.")
    return name or (group_name(path.parent) if path.name else "run")


def game_name(env_id: str) -> str:
    """PongNoFrameskip-v4 and ALE/Pong-v5 are both Pong."""
    return re.sub(r"^ALE/|(NoFrameskip|Deterministic)?-v\d+$", "", env_id)


def one_line(text: str) -> str:
    """What a file or the command line holds, in one line that can be printed, as errors are."""
    return str(BadInput(text))


def say(word: str) -> None:
    """Tell of something that does not stop us."""
    print(one_line(f"plot_runs.py: note: {word}"), file=sys.stderr)


def read_text(path: pathlib.Path) -> str:
    """A file's text, unzipped where it ends in .gz; BadInput where it cannot be read."""
    try:
        if not path.is_file():  # a pipe or a device may have no end
            raise OSError("it is no file")
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise OSError(f"it holds more than {MAX_FILE_BYTES:,} bytes")
        return data.decode(errors="replace")
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"cannot read {path}: {error}") from None


def monitor_paths(path: pathlib.Path) -> list[pathlib.Path]:
    """A run's monitor files, none when it has just begun; of one plain and zipped, the plain one."""
    if path.is_file():
        return [path]
    folder = path / MONITOR if (path / MONITOR).is_dir() else path
    paths = [p for p in folder.iterdir() if re.search(r"monitor\.csv(\.gz)?$", p.name)]
    if not paths and not (path / ARGS).is_file():
        raise BadInput(f"{path} holds no monitor files (monitor/*.monitor.csv or *monitor.csv)")
    plain_last = sorted(paths, reverse=True)
    return sorted({p.name.removesuffix(".gz"): p for p in plain_last}.values())


def load(path: pathlib.Path, frames_per_l: int | None) -> Run | None:
    """Read a run; None where it has no games yet. What is left out or guessed is said."""
    files = []
    for file_path in monitor_paths(path):
        try:
            files.append(parse_monitor(read_text(file_path)))
        except BadInput as error:
            say(f"{error}: left out")
        else:
            for word in files[-1].words:
                say(f"{file_path}: {word}")
    if not any(len(file.scores) for file in files):
        say(f"{path} has no games yet: left out")
        return None
    env_ids = sorted({file.env_id for file in files if file.env_id})
    if len(env_ids) > 1:
        raise BadInput(f"{path} has games of several environments: {', '.join(env_ids)}")
    return describe(path, env_ids[0] if env_ids else "", merge(files), frames_per_l)


def describe(path: pathlib.Path, env_id: str, games: Games, frames_per_l: int | None) -> Run:
    """What a run's games are of: as args.json says, or else as far as the id does."""
    is_known = atari_scores.scale_of(f"{game_name(env_id)}-v4") is not None
    is_atari = not env_id or is_known or re.search("NoFrameskip|^ALE/", env_id)
    skip = FRAME_SKIP if is_atari else 1
    steps_per_l = None if is_atari and frames_per_l is None else (frames_per_l or 1) / skip
    # Registered without sticky actions; others may be made with any.
    sticky = 0.0 if env_id.endswith("NoFrameskip-v4") else None
    run = Run(path, env_id, games, steps_per_l, skip, 0, sticky, {})
    if (folder := run_folder(path)) is None:
        return run
    try:
        settings, environment = read_settings(folder)
    except BadInput as error:
        say(f"{error}: taken for a run of others")
        return run
    said = environment.get("sticky_actions")
    if settings.get("load_ckpt") is None and not path.is_file():  # all of its environments
        games = games._replace(total_l=with_counts(folder, games.total_l))
    return run._replace(
        games=games,
        env_id=one_line(str(settings.get("env_id", env_id)))[:100],
        steps_per_l=1.0,  # decisions
        frames_per_step=1 if settings["network"] == "mlp" else FRAME_SKIP,  # mlp: vectors, no skip
        n_steps_before=steps_before(folder, settings.get("load_ckpt")),
        sticky_actions=said if isinstance(said, float | int) else sticky,
        settings=settings,
    )


def with_counts(folder: pathlib.Path, total_l: np.ndarray) -> np.ndarray:
    """Steps at the ends of a run's games, as far as its progress.csv has counted them."""
    try:
        progress = read_progress(folder, ["rl/episodes", "misc/steps"])
    except BadInput:
        return total_l
    return total_l if progress is None else as_counted(total_l, *progress.columns.values())


def read_settings(folder: pathlib.Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """An args.json's parameters, and what it says of the environment.

    Not by run_dir.read_args, which refuses flags that it does not know: a published run is to be
    drawn by every later version, and those may have given some up.
    """
    try:
        content = json.loads(read_text(folder / ARGS))
        settings, environment = dict(content["params"]), dict(content["environment"])
        settings["network"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise BadInput(f"{folder / ARGS} is damaged") from None
    return settings, environment


def run_folder(path: pathlib.Path) -> pathlib.Path | None:
    """The run folder that a path is, or lies in; None for files of others."""
    return next((p for p in (path, *path.parents[:2]) if (p / ARGS).is_file()), None)


def steps_before(folder: pathlib.Path, load_ckpt: object) -> int:
    """At which step a run that was given a checkpoint went on, as its log.txt says."""
    if load_ckpt is None:
        return 0
    log = read_text(folder / "log.txt") if (folder / "log.txt").is_file() else ""
    found = re.search(r"^restored .* at (\d[\d,]{,20}) steps$", log, re.MULTILINE)
    n_steps = int(found[1].replace(",", "")) if found else 0
    at = f"step {n_steps:,}" if found else "a step that its log.txt does not say, taken for 0"
    say(f"{folder} went on from a checkpoint at {at}; its games and hours count from there")
    return n_steps


def check_group(label: str, runs: Sequence[Run]) -> None:
    """Runs of one group should differ in their seeds alone."""
    if len(env_ids := {run.env_id for run in runs}) > 1:
        raise BadInput(f"group {label} has several environments: {', '.join(sorted(env_ids))}")
    ours = [run.settings for run in runs if run.settings]
    names = sorted(set(ours[0]).intersection(*ours) - NO_SETTINGS) if ours else []
    if differ := [n for n in names if len({repr(settings[n]) for settings in ours}) > 1]:
        say(f"the runs of group {label} differ in {', '.join(differ)}")


def draw(groups: Mapping[str, Sequence[Run]], options: argparse.Namespace) -> Any:
    """The whole picture, a matplotlib figure."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    n_rows = (len(options.figures) + 1) // 2
    figure = Figure(figsize=(9, 5.5 + 2.3 * n_rows), dpi=150, layout="constrained")
    grid = figure.add_gridspec(1 + n_rows, 2, height_ratios=[2.2] + [1] * n_rows)
    top = figure.add_subplot(grid[0, :])
    panels = [figure.add_subplot(grid[1 + i // 2, i % 2]) for i in range(len(options.figures))]
    handles = []
    # Those that some run is long enough for.
    windows = [n for n in options.curves if any(have(n, runs) for runs in groups.values())]
    for i, (label, runs) in enumerate(groups.items()):
        colour, dash = COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)]
        draw_scores(top, label, runs, options, windows, {"color": colour, "ls": dash})
        for panel, name in zip(panels, options.figures, strict=True):
            draw_figure(panel, name, runs, options.x, colour)
        seeds = f" ({len(runs)} seeds)" if len(runs) > 1 else ""
        handles += top.plot(
            [], [], lw=2, color=colour, ls=dash, label=one_line(label)[:100].lstrip("_") + seeds
        )
    every = [run for runs in groups.values() for run in runs]
    has_band = any(len(have(max(windows, default=1), runs)) > 1 for runs in groups.values())
    handles += legend_of_curves(top, windows, options.shade if has_band else "none")
    handles += draw_references(top, every, options.references)
    top.set(title=title_of(every), ylabel="score of a whole training game")
    skips = {run.frames_per_step for run in every}
    is_skipped = options.x in ("steps", "frames") and len(skips) == 1 and skips != {1}
    for axes in (top, *panels):
        axes.set_xlabel(AXES[options.x] + (f" (1 step = {max(skips)} frames)" * is_skipped))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if options.x != "hours":
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    return figure


def have(n: int, runs: Sequence[Run]) -> list[Run]:
    """Those of so many games."""
    return [run for run in runs if len(run.games.scores) >= n]


def draw_scores(
    axes: Any,
    label: str,
    runs: Sequence[Run],
    options: argparse.Namespace,
    windows: Sequence[int],
    style: dict[str, str],
) -> None:
    """One group: a curve for each window, of several seeds their mean, the widest's shaded."""
    for n in options.curves:
        curves = [smooth(run, options.x, n) for run in have(n, runs)]
        if n_short := len(runs) - len(curves):
            which = "a run has" if len(runs) == 1 else f"{n_short} of {len(runs)} runs have"
            say(f"group {label}: {which} fewer than {n} games, so there is no mean of {n}")
        if n > 1 and len(curves) > 1:
            if mean := align(curves, options.shade):
                if mean.x[-1] < 0.95 * max(curve.x[-1] for curve in curves):
                    say(f"group {label}: its means of {n} games end where its shortest run does")
                if n == max(windows):
                    color = style["color"]
                    axes.fill_between(mean.x, mean.low, mean.high, color=color, alpha=0.2, lw=0)
                curves = [mean]
            else:
                say(f"group {label}: its runs have no part of the axis in common, so no mean")
        for curve in curves:
            axes.plot(curve.x, curve.y, **(style | look_of(n, windows)))


def look_of(n: int, windows: Sequence[int]) -> dict[str, Any]:
    """Dots for games, the widest mean boldest."""
    return LOOKS["dots" if n == 1 else "line" if n == max(windows) else "thin"]


def legend_of_curves(axes: Any, windows: Sequence[int], shade: str) -> list[Any]:
    """What dots, lines and bands are, in grey."""
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
        folder = run_folder(run.path) or run.path
        try:
            progress = read_progress(folder, ["misc/steps", *columns])
        except BadInput as error:
            say(f"{error}: no {name} of it")
            continue
        if progress is None:
            say(f"{folder / 'progress.csv'} has no {name} ({', '.join(columns)})")
            continue
        for word in progress.words:
            say(f"{folder / 'progress.csv'}: {word}")
        x = axis_at_steps(run, axis, progress.columns["misc/steps"])
        for dash, column in zip(DASHES, columns, strict=False):
            axes.plot(x, progress.columns[column], color=colour, ls=dash, lw=1)


def draw_references(axes: Any, runs: Sequence[Run], names: Sequence[str]) -> list[Any]:
    """Horizontal lines at what others have published of the game."""
    games = sorted({game_name(run.env_id) for run in runs})
    if names and (len(games) > 1 or games[0] not in GAMES):
        say(f"no published scores drawn: none are known here of {' and '.join(games)}")
        return []
    if names and any(run.sticky_actions != 0 for run in runs):
        say("the published scores are without sticky actions; not all of these runs are")
    handles = []
    for name, dash in zip(names, (":", "--", "-.", (0, (9, 3))), strict=False):
        label, scores = REFERENCES[name]
        score = scores[GAMES.index(games[0])]
        y = float(score.lstrip("~>").replace("−", "-"))
        handles.append(axes.axhline(y, color="0.3", ls=dash, lw=1, label=label.format(score)))
    return handles


def title_of(runs: Sequence[Run]) -> str:
    """The environments, and whether their actions are sticky where that is known."""
    words = {None: "", 0.0: " (no sticky actions)"}
    titles = {
        (run.env_id or "unknown environment")
        + words.get(run.sticky_actions, f" (sticky actions {run.sticky_actions})")
        for run in runs
    }
    return ", ".join(sorted(titles))


def number(text: str) -> int:
    """A number from 1 on, which is also "raw"."""
    n = 1 if text == "raw" else int(text)
    if not 1 <= n <= 1_000_000:
        raise ValueError
    return n


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line; BadInput where it makes no sense."""
    parser = Parser("plot_runs.py", description="Learning curves of runs.", allow_abbrev=False)
    add = parser.add_argument
    # fmt: off
    add("paths", nargs="+", type=pathlib.Path, help="run folders, or monitor files")
    add("--out", required=True, type=pathlib.Path, help="the picture, .png or .svg")
    add("--x", choices=AXES, default="steps", help="the axis (steps)")
    add("--curves", nargs="+", type=number, metavar="N",
        help="means of the last N games; raw: each game (raw 10 100; of several groups 10 100)")
    add("--shade", choices=("minmax", "sd", "none"), default="minmax",
        help="around the mean of several seeds (minmax)")
    add("--label", action="append", help="a group's name: once for all paths, or once for each;"
        " runs of one group are its seeds (the folder's name without _s0, -seed1, …)")
    add("--frames_per_l", action="append", type=number, metavar="N",
        help="frames that l counts in files of others: 1 in Stable-Baselines3's of Atari, 4 in"
        " Baselines'; once for all paths, or once for each")
    add("--references", nargs="*", choices=REFERENCES, help="lines at published scores (all)")
    add("--figures", nargs="*", metavar="NAME",
        help=f"panels of progress.csv: {', '.join(FIGURES)} (these), or any of its columns")
    # fmt: on
    options = parser.parse_args(argv)
    options.references = list(REFERENCES) if options.references == [] else options.references or []
    options.figures = list(FIGURES) if options.figures == [] else options.figures or []
    if options.out.suffix not in (".png", ".svg"):
        raise BadInput(f"--out {options.out} must end in .png or .svg")
    runs = {os.path.realpath(run_folder(path) or path) for path in options.paths}
    if len(runs) < len(options.paths):
        raise BadInput("a run is given twice; it would count as two seeds")
    for flag in ("label", "frames_per_l"):
        values, n = getattr(options, flag) or [None], len(options.paths)
        if len(values) not in (1, n):
            raise BadInput(f"--{flag} is given {len(values)} times for {n} paths: give 1 or {n}")
        setattr(options, flag, values * (n // len(values)))
    return options


def plot(options: argparse.Namespace) -> None:
    """Read, draw, save, and say what was drawn."""
    groups: dict[str, list[Run]] = {}
    for path, label, frames_per_l in zip(
        options.paths, options.label, options.frames_per_l, strict=True
    ):
        if run := load(path, frames_per_l):
            groups.setdefault(label or group_name(path), []).append(run)
    if not groups:
        raise BadInput("there are no games to draw yet")
    for label, runs in groups.items():
        check_group(label, runs)
    options.curves = sorted(
        set(options.curves or ([1, 10, 100] if len(groups) == 1 else [10, 100]))
    )
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure = draw(groups, options)
        # The same runs give the same file.
        figure.savefig(options.out, metadata={"Date": None} if options.out.suffix == ".svg" else {})
    for label, runs in groups.items():
        for run in runs:
            last, hours = run.games.scores[-100:], axis_of(run, "hours")[-1]
            steps = f"{axis_of(run, 'steps')[-1]:,.0f} steps, " if run.steps_per_l else ""
            games = f"{len(run.games.scores):,} games"
            mean = f"mean of the last {len(last)}: {last.mean():.2f}"
            print(one_line(f"{label}: {run.path}: {games}, {steps}{hours:.2f} h, {mean}"))
    print(one_line(str(options.out)))


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    try:
        plot(parse(sys.argv[1:] if argv is None else argv))
    except (BadInput, OSError) as error:
        print(one_line(f"plot_runs.py: error: {error}"), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
