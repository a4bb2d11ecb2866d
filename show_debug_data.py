"""List the dumps in a `train.py --debug` log, and draw what the network saw and learned from.

    python3 train.py --n_steps 500 --debug PongNoFrameskip-v4 2> debug.log
    python3 show_debug_data.py debug.log --updates 3-5 --out pictures

Each dump gets one line: its number in the log, update, purpose, name, shape, type, and the start of
its bytes' SHA-256, which is the same for equal observations. For each update there are pictures of
what the policy saw at each step, and of the rollout that it was trained on. One more picture shows
returns, values, rewards and actions of all updates over time. The log is read as a stream.

Of what an LSTM remembers, a picture has the length of the vector, |state|: it is 0 where an episode
begins. Observations and rewards are drawn as the network got them, normalised and scaled if the run
does that; the list has the raw ones, too.
"""

import argparse
import hashlib
import itertools
import math
import os
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from a3c.agent import debug_dump
from a3c.agent.debug_dump import Damaged, Record
from a3c.machine.words import BadInput
from a3c.play import windows
from a3c.play.views import spread_stack
from a3c.settings.command_line import Parser

PURPOSES = ("moments", "raw", "act", "last", "train", "bootstrap")
# What a rollout holds for each step besides observations, in the order of a sheet's columns.
NUMBERS = ("actions", "rewards", "continues", "returns", "values", "advantages")
N_UPDATES_DRAWN = 5  # without --updates
MAX_ROWS = 40  # of one sheet, which still fits on a screen
DPI = 100
END_OF_EPISODE: dict[str, Any] = {"color": "tab:red", "linestyle": "--", "linewidth": 2}


class Wanted(NamedTuple):
    """Which dumps to list and draw."""

    updates: range | None  # None: list all, and draw the first few
    purpose: str | None

    def lists(self, record: Record) -> bool:
        """Whether this dump is asked for."""
        of_update = self.updates is None or record.update in self.updates
        return of_update and self.purpose in (None, record.purpose)

    def draws(self, update: int) -> bool:
        """Whether the update is drawn, too."""
        return self.updates is not None or update < N_UPDATES_DRAWN


def main(argv: Sequence[str] | None = None) -> int:
    """List and draw; returns the exit status."""
    try:
        arguments = _parser().parse_args(argv)
        gallery = Gallery(arguments.out, pathlib.Path(f"{arguments.log}.pictures"))
        with _open(arguments.log) as log:
            _show(log, Wanted(arguments.updates, arguments.purpose), gallery)
        print(gallery.summary())
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # as in `| head`; at exit, Python would try to write the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except BadInput as error:
        _say(f"show_debug_data.py: error: {error}")
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="show_debug_data.py",
        description="List the dumps of a --debug log, and draw them.",
        epilog="Damaged lines are skipped; their line numbers are reported on stderr.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "log", type=pathlib.Path, help="the file with the stderr of train.py --debug"
    )
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        metavar="DIR",
        help="save the pictures there [without it, show each in a window; where there is no display,"
        " save them in a folder beside the log]",
    )
    parser.add_argument(
        "--updates",
        type=_range,
        metavar="A-B",
        help="only these updates, counted from 0 [without it, list all, and draw the first"
        f" {N_UPDATES_DRAWN}]",
    )
    parser.add_argument(
        "--purpose", choices=PURPOSES, help="only dumps that were made for this purpose"
    )
    return parser


def _range(text: str) -> range:
    match = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor a range such as 3-5")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise argparse.ArgumentTypeError(f"{text} ends before it begins")
    return range(first, last + 1)


def _open(log: pathlib.Path) -> BinaryIO:
    try:
        return log.open("rb")
    except (OSError, ValueError) as error:  # a name that no file can have
        raise BadInput(f"cannot read {log}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _say(text: str) -> None:
    print(text, file=sys.stderr)


# What the log holds


def _show(log: BinaryIO, wanted: Wanted, gallery: "Gallery") -> None:
    course: dict[int, dict[str, np.ndarray]] = {}
    drawn, is_told = 0, False
    listed = itertools.groupby(_listed(log, wanted), lambda found: (found[0], found[1].update))
    for (run, update), records in listed:
        if not wanted.draws(update):
            continue  # groupby reads on, so they are listed, but none is kept
        drawn = drawn or run
        if run != drawn:
            if not is_told:
                _say(f"another run begins, with update {update}: only the first one is drawn")
            is_told = True
            continue
        kept = [record for _, record in records]
        _draw_update(update, kept, gallery)
        course[update] = _columns({r.name: _flat(r) for r in kept if r.purpose == "train"})
    _draw_course(course, gallery)


def _listed(log: BinaryIO, wanted: Wanted) -> Iterator[tuple[int, Record]]:
    """Yield and print the dumps that are asked for, each with the number of its run in the log, from 1;
    report damaged lines.
    """
    updates: list[int] = []
    n_listed = n_runs = 0
    latest = math.inf
    for found in debug_dump.read(log):
        if isinstance(found, Damaged):
            _say(f"line {found.line} is damaged: {found.problem}")
            continue
        updates = [min([*updates, found.update]), max([*updates, found.update])]
        n_runs += found.update < latest  # updates are counted from 0 at each start
        latest = found.update
        if wanted.lists(found):
            n_listed += 1
            print(_entry(found))
            yield n_runs, found
    if not updates:
        raise BadInput(f"{log.name} holds no dump: is it the stderr of train.py --debug?")
    if not n_listed:
        first, last = updates
        raise BadInput(f"{log.name} holds updates {first} to {last}, but no dump that you ask for")


def _entry(record: Record) -> str:
    shape = "x".join(map(str, record.array.shape))
    checksum = hashlib.sha256(record.array.tobytes()).hexdigest()[:8]
    return (
        f"{record.number:6}  update {record.update:<5}  {record.purpose:9}  {record.name:20}"
        f"  {shape:13}  {record.array.dtype.name:7}  {checksum}"
    )


def _flat(record: Record) -> np.ndarray:
    """(T, 1, ...) → (T, ...); --debug allows only one environment."""
    shape = record.array.shape
    return record.array.reshape(math.prod(shape[:2]), *shape[2:])


def _columns(rollout: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The numbers of each step, by their heads; an action may be a vector of several."""
    columns: dict[str, np.ndarray] = {}
    for name in NUMBERS:
        numbers, head = rollout.get(name, np.empty(0)), name.removesuffix("s")
        if numbers.ndim == 1 and numbers.size:
            columns[head] = numbers
        elif numbers.size:
            of_vectors = numbers.reshape(len(numbers), -1).T
            columns |= {f"{head}[{j}]": of_one for j, of_one in enumerate(of_vectors)}
    return columns


def _lengths(states: Iterable[np.ndarray]) -> dict[str, np.ndarray]:
    """A column of the lengths of what LSTMs remember, if there are some."""
    lengths = [np.linalg.norm(state) for state in states]
    return {"|state|": np.array(lengths)} if lengths else {}


# Where pictures go


class Gallery:
    """Shows pictures in windows, one after another, or saves them."""

    def __init__(self, folder: pathlib.Path | None, folder_without_display: pathlib.Path) -> None:
        if folder is None and not windows.can_open():
            folder = folder_without_display
        self._folder = folder
        self._n_pictures = 0

    def new(self, name: str, width: float, height: float) -> Figure:
        """Make an empty picture; sides in inches."""
        if self._folder is None:
            import matplotlib.pyplot as plt

            return plt.figure(name, (width, height), DPI)
        return Figure((width, height), DPI, label=name)

    def put(self, figure: Figure) -> None:
        """Save a picture, or show it until its window is closed."""
        self._n_pictures += 1
        if self._folder is None:
            import matplotlib.pyplot as plt

            plt.show()
            plt.close(figure)
            return
        path = self._folder / f"{figure.get_label()}.png"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            # Without matplotlib's version, so that a log always gives the same bytes.
            figure.savefig(path, metadata={"Software": None})
        except (OSError, ValueError) as error:
            raise BadInput(f"cannot save {path}: {_reason(error)}") from None

    def summary(self) -> str:
        """How many pictures there are, and where."""
        place = "shown" if self._folder is None else f"saved in {self._folder}"
        return f"pictures {place}: {self._n_pictures}"


# Pictures


class Row(NamedTuple):
    """One observation in a sheet."""

    label: str
    observation: np.ndarray  # a stack of frames (height, width, n), or a vector (n,)


def _draw_update(update: int, records: Sequence[Record], gallery: Gallery) -> None:
    steps = itertools.count()
    acted = [
        Row("cut off" if record.purpose == "last" else f"step {next(steps)}", observation)
        for record in records
        if record.purpose in ("act", "last") and record.name == "observations"
        for observation in record.array
    ]
    if acted:
        title = f"Update {update}: what the policy saw, step by step"
        lengths = _lengths(record.array for record in records if record.name == "state")
        _draw_sheet(title, acted, lengths, gallery, f"update-{update:04}-act")

    batch = {record.name: _flat(record) for record in records if record.purpose == "train"}
    trained = [Row(f"step {t}", o) for t, o in enumerate(batch.pop("observations", ()))]
    bootstrap = [
        Row("bootstrap", observation)
        for record in records
        if record.purpose == "bootstrap"
        for observation in record.array
    ]
    if trained:
        title = f"Update {update}: the rollout that it was trained on"
        numbers = _columns(batch) | _lengths(batch[name] for name in batch if name == "states")
        rows = trained + bootstrap
        _draw_sheet(title, rows, numbers, gallery, f"update-{update:04}-train")
    elif bootstrap:
        title = f"Update {update}: the observation after its rollout"
        _draw_sheet(title, bootstrap, {}, gallery, f"update-{update:04}-bootstrap")


def _draw_sheet(
    title: str,
    rows: Sequence[Row],
    numbers: Mapping[str, np.ndarray],
    gallery: Gallery,
    name: str,
) -> None:
    """Draw one observation in each row, followed by the numbers of its step."""
    if len(rows) > MAX_ROWS:
        title += f" (the first {MAX_ROWS} of {len(rows)})"
        rows = rows[:MAX_ROWS]
    shape = rows[0].observation.shape
    if any(row.observation.shape != shape for row in rows) or len(shape) not in (1, 3):
        raise BadInput(
            f"the observations of {name} differ in shape: they do not fit into one picture"
        )
    # In inches; each pixel of an image becomes a square of the picture's pixels.
    if len(shape) == 3:
        zoom = max(1, round(168 / shape[1]))
        row_height, rows_width = shape[0] * zoom / DPI, shape[1] * shape[2] * zoom / DPI
    else:
        row_height, rows_width = 0.4, 0.9 * shape[0]
    left, top, bottom, column_width = 0.9, 0.9, 0.2, 0.95
    width = max(left + rows_width + 0.3 + column_width * len(numbers), 6.0)
    height = top + row_height * len(rows) + bottom
    figure = gallery.new(name, width, height)
    figure.text(0.15 / width, 1 - 0.3 / height, title, fontsize=13, va="center", weight="bold")
    axes = figure.add_axes(
        (left / width, bottom / height, rows_width / width, 1 - (top + bottom) / height)
    )
    draw_rows = _draw_stacks if len(shape) == 3 else _draw_vectors
    draw_rows(axes, np.stack([row.observation for row in rows]))

    # Beside the rows; x in inches from their left edge, y in rows from their top.
    def write(x: float, y: float, text: str) -> None:
        place = (x / rows_width, 1 - y / len(rows))
        axes.text(*place, text, ha="right", va="center", transform=axes.transAxes)

    for i, row in enumerate(rows):
        write(-0.1, i + 0.5, row.label)
    for j, (column, values) in enumerate(numbers.items(), start=1):
        x = rows_width + 0.1 + column_width * j
        write(x, -0.12 / row_height, column)
        for i, value in enumerate(values[: len(rows)]):
            write(x, i + 0.5, f"{value:.4g}")
    for t in np.flatnonzero(numbers.get("continue", np.ones(0)) == 0):
        y = 1 - (t + 1) / len(rows)
        axes.plot((0, 1), (y, y), transform=axes.transAxes, **END_OF_EPISODE)
    gallery.put(figure)


def _draw_stacks(axes: Axes, stacks: np.ndarray) -> None:
    """Draw stacks (N, height, width, n), each as a row of frames, the oldest on the left."""
    n_stacks, height, width, n_frames = stacks.shape
    sheet = np.concatenate([spread_stack(stack) for stack in stacks])
    # As RGB, which keeps each byte; a colour map would round it.
    axes.imshow(np.stack([sheet] * 3, axis=-1), interpolation="nearest", aspect="auto")
    # Blue, because frames may be black or white at their edges.
    for i in range(n_frames + 1):
        axes.axvline(i * width - 0.5, color="tab:blue", linewidth=2)
    for i in range(n_stacks + 1):
        axes.axhline(i * height - 0.5, color="tab:blue", linewidth=2)
    ages = [f"frame t - {n_frames - 1 - i}" for i in range(n_frames - 1)] + ["frame t"]
    _head_columns(axes, [(i + 0.5) * width - 0.5 for i in range(n_frames)], ages)


def _draw_vectors(axes: Axes, vectors: np.ndarray) -> None:
    """Draw vectors (N, n): each number in a field, red if it is negative and blue if positive."""
    finite = np.abs(vectors[np.isfinite(vectors)])
    limit = float(finite.max(initial=0)) or 1.0
    axes.imshow(vectors, cmap="RdBu", vmin=-2 * limit, vmax=2 * limit, aspect="auto")
    for (i, j), number in np.ndenumerate(vectors):
        axes.text(j, i, f"{number:.3g}", ha="center", va="center", fontsize=9)
    _head_columns(axes, range(vectors.shape[1]), [f"[{j}]" for j in range(vectors.shape[1])])


def _head_columns(axes: Axes, places: Sequence[float], heads: Sequence[str]) -> None:
    axes.set_xticks(places, heads)
    axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


def _draw_course(course: Mapping[int, Mapping[str, np.ndarray]], gallery: Gallery) -> None:
    """Draw returns, values, rewards and actions of all rollouts over time."""
    n_steps = max((len(a) for batch in course.values() for a in batch.values()), default=0)
    if not n_steps:
        return
    heads = dict.fromkeys(head for columns in course.values() for head in columns)
    steps = np.concatenate([update * n_steps + np.arange(n_steps) for update in course])

    def over_time(name: str) -> np.ndarray:
        lost = np.full(n_steps, np.nan)
        rollouts = [batch.get(name, lost) for batch in course.values()]
        return np.concatenate([r if r.shape == lost.shape else lost for r in rollouts])

    figure = gallery.new("returns-actions-values", 12, 7)
    axes: Sequence[Axes] = figure.subplots(
        3, sharex=True, height_ratios=(4, 1.5, 1.5), gridspec_kw={"hspace": 0.12}
    )
    first, last = min(course), max(course)
    axes[0].set_title(
        f"Updates {first} to {last}: what was learned from", loc="left", weight="bold"
    )
    returns, values = over_time("return"), over_time("value")
    size = 4 if len(steps) <= 200 else 1
    axes[0].vlines(steps, values, returns, color="0.6", linewidth=size / 2, label="advantage")
    axes[0].plot(steps, returns, "o", color="tab:blue", markersize=size, label="return R")
    axes[0].plot(steps, values, "o", color="tab:orange", markersize=size, label="value V(s)")
    axes[1].bar(steps, over_time("reward"), color="tab:green")
    axes[1].axhline(0, color="0.5", linewidth=0.8)
    axes[1].set_ylabel("reward")
    actions = {name: over_time(name) for name in heads if name.startswith("action")}
    for name, numbers in actions.items():
        color = "tab:purple" if name == "action" else None
        axes[2].plot(steps, numbers, "s", color=color, markersize=size, label=name)
    if "action" in actions:  # the number of a discrete one
        axes[2].set_yticks(np.unique(actions["action"][np.isfinite(actions["action"])]))
    elif actions:
        axes[2].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    axes[2].set_ylabel("action")
    axes[2].set_xlabel("step of the run; each band is one update's rollout")
    ends = steps[over_time("continue") == 0] + 0.5
    for panel in axes:
        for update in course:
            shade = "0.95" if update % 2 else "0.9"
            start = update * n_steps - 0.5
            panel.axvspan(start, start + n_steps, color=shade, linewidth=0, zorder=0)
        for i, end in enumerate(ends):
            label = None if i else "end of an episode"
            panel.axvline(end, label=label, **END_OF_EPISODE)
        panel.set_xlim(steps[0] - 0.5, steps[-1] + 0.5)
    axes[0].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    figure.subplots_adjust(left=0.07, right=0.85, top=0.93, bottom=0.08)
    gallery.put(figure)


if __name__ == "__main__":
    sys.exit(main())
