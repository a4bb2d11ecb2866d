"""Every figure and table of the README that is about training, from the folders here: `make results`.

A table stands between two markers in README.md, and tests/results_test.py compares it with what
this file says now. A score of training is the mean of the last 100 games, whole and unclipped.
"""

import functools
import itertools
import json
import math
import pathlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

import plot_runs
from a3c.settings.params import BadInput
from a3c.store import reading
from benchmarks import documents
from benchmarks import report as bench_report
from results import publish

HERE = pathlib.Path(__file__).resolve().parent
README = HERE.parent / "README.md"
IMAGES = HERE.parent / "images"

N_LAST = 100
PONG_GOAL, PONG_EVALUATION_GOAL = 18.0, 20.0
STUDY_GOAL = -10.0
# The best of several evaluations is partly the best by luck, so such an agent plays again, with a
# new seed, and the second evaluation counts.
AGAIN = "evaluation-again.json"

# Those of plot_runs.GAMES, in their order: settings, and what a run of theirs should come to.
OURS = ("beamrider", "breakout", "pong-nature", "qbert", "spaceinvaders")
GOALS = ("2469", "290", "18", "4461", "727")
TITLES = ("Beam Rider", "Breakout", "Pong", "Q*bert", "Space Invaders")
TRAINING = "training: mean of the last 100 games"
PLAYED = f"evaluation: {publish.N_GAMES} games, actions sampled, no-op starts"
# Who, what it took, what the score is of, and the scores in that order.
# fmt: off
OTHERS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("Baselines A2C, as quoted by Vel", "10M steps, 16 environments", TRAINING,
     ("2469", "290", "18.7", "4461", "727")),
    ("Vel A2C", "10M steps", TRAINING, ("4091", "430", "19.5", "12000", "1000")),
    ("Stable-Baselines3 A2C, its zoo", "10M steps, one run", "evaluation of the trained agent",
     ("2890", "280", "17.3", "3882", "627")),
    ("OCD A3C, read off its plot", "15 h with 16 workers on 16 cores", "training, 3 seeds",
     plot_runs.REFERENCES["ocd"][1]),
    ("the paper's A3C, read off Figure 4", "15 h with 16 threads", "training, mean of the three best learning rates",
     plot_runs.REFERENCES["paper"][1]),
    ("PFRL A3C", "50–80M steps on 16 CPUs, 3 seeds", "the best evaluation on the way, no-op starts",
     ("8882.6", "581.0", "20.9", "20721.9", "1043.5")),
    ("random play", "", "no-op starts", plot_runs.REFERENCES["random"][1]),
    ("a person", "", "no-op starts", plot_runs.REFERENCES["human"][1]),
)
# fmt: on


# How the names of runs begin that belong together.
Beginning = str | tuple[str, ...]
# The settings of `make bench` that are as wide as two cores like it: `small` and `nature`.
FAST = ("pong-fast-", "pong-nature-")
PRESETS = ("pong-ocd-", "pong-paper-")
# Studies: first what the others are compared with, which is shown elsewhere, too.
WORKERS = ("pong-ocd-", "workers/")
ABLATIONS = ("pong-fast-", "ablations/")


class Published(NamedTuple):
    """One run of results/."""

    folder: pathlib.Path
    facts: dict[str, Any]  # of run.json
    run: reading.Run
    evaluation: dict[str, Any] | None  # of evaluation.json, or of the one that counts instead
    processors: Sequence[str]  # the one that it began on first; those of resumptions since noted

    @property
    def name(self) -> str:
        return str(self.folder.relative_to(HERE.parent))


class Moment(NamedTuple):
    """When the mean of 100 games first was so high."""

    steps: float
    hours: float
    cpu_hours: float


def read(folder: pathlib.Path) -> Published:
    """A published run; BadInput where it is not whole."""
    try:
        facts = json.loads((folder / publish.RUN).read_text(encoding="utf-8"))
        evaluation = evaluation_in(folder, AGAIN) or evaluation_in(folder, publish.EVALUATION)
        processors = processors_of(folder)
        run = reading.read_run(folder)
    except (OSError, ValueError) as error:
        raise BadInput(f"{folder} is damaged: {error}") from None
    if run.words or not len(run.games.scores):
        raise BadInput(f"{folder} is damaged: {' '.join(run.words) or 'it has no games'}")
    return Published(folder, facts, run, evaluation, processors)


def processors_of(folder: pathlib.Path) -> list[str]:
    """The one that a run began on, and those that it went on on."""
    versions = (folder / "versions.txt").read_text(encoding="utf-8")
    first = versions.partition("\ncpu: ")[2].partition("\n")[0]
    return [first, *(note["cpu"] for note in reading.read_record(folder).resumed if "cpu" in note)]


def evaluation_in(folder: pathlib.Path, name: str) -> dict[str, Any] | None:
    """What an evaluation said, where there was one."""
    path = folder / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def read_all(here: pathlib.Path = HERE) -> list[Published]:
    """All of them, by name: every folder with a command."""
    return [read(path.parent) for path in sorted(here.rglob("command.txt"))]


def training_score(published: Published, by_steps: float = math.inf) -> float:
    """The mean of the last 100 games that were over by then."""
    over = plot_runs.axis_of(published.run, "steps") <= by_steps
    return float(published.run.games.scores[over][-N_LAST:].mean())


def reached(published: Published, score: float) -> Moment | None:
    """When the mean of 100 games first was at least this."""
    curve = plot_runs.smooth(published.run, "steps", N_LAST)
    high = (curve.y >= score).nonzero()[0]
    if not len(high):
        return None
    steps = float(curve.x[high[0]])
    hours = plot_runs.smooth(published.run, "hours", N_LAST).x
    return Moment(steps, float(hours[high[0]]), cpu_hours_at(published, steps))


def cpu_hours_at(published: Published, steps: float) -> float:
    """What the processor had spent; NaN in older runs that did not count it."""
    progress = reading.read_progress(published.folder, ["misc/steps", "misc/cpu_hours"])
    if progress is None:
        return float("nan")
    columns = progress.columns
    return float(np.interp(steps, columns["misc/steps"], columns["misc/cpu_hours"]))


def number(value: float) -> str:
    """A score, as exact as it makes sense."""
    text = f"{value:.1f}" if abs(value) < 1000 else f"{value:.0f}"
    return text.replace("-", "−")


def millions(steps: float) -> str:
    return f"{steps / 1e6:.2f}M"


def table(head: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    first, *others = (f"| {' | '.join(cells)} |" for cells in (head, *rows))
    return "\n".join([first, "|" + "---|" * len(head), *others])


def time_text(published: Published, hours: float, cpu_hours: float) -> str:
    """Hours where the machine was the run's own, else the processor's."""
    alone = published.facts["hours"] is not None
    return f"{hours:.2f} h" if alone else f"{cpu_hours:.2f} CPU hours"


def hours_of(published: Published) -> str:
    """What the whole run took."""
    return time_text(published, published.facts["hours"], published.facts["cpu_hours"])


def time_of(published: Published, moment: Moment | None) -> str:
    """What the run took to a moment."""
    if moment is None:
        return "not"
    hours = time_text(published, moment.hours, moment.cpu_hours)
    return f"{hours}, {millions(moment.steps)} steps"


def processors(seeds: Iterable[Published]) -> str:
    """What they ran on, each once."""
    found = [name for published in seeds for name in published.processors]
    return " and ".join(dict.fromkeys(found))


def evaluated(published: Published) -> str:
    """Mean and standard deviation of the evaluation's games."""
    if published.evaluation is None:
        return ""
    summary = published.evaluation["summary"]
    text = f"{number(summary['mean'])} ± {number(summary['sd'])}"
    n_games = summary["n_games"]
    return text if n_games == publish.N_GAMES else f"{text} ({n_games} games)"


def scores_table(runs: Sequence[Published]) -> str:
    """Ours beside others', each with its budget and with what the score is of."""
    ours = [named(runs, f"{setting}-s") for setting in OURS]
    protocol = f"{PLAYED}; ± sd of the games"
    trained = [over_seeds(map(training_score, seeds)) for seeds in ours]
    played = [" and ".join(map(evaluated, seeds)) for seeds in ours]
    rows = [
        ["**ours**", budget(ours), TRAINING, *trained],
        ["**ours**", "the same", protocol, *played],
        ["*our goal*", "10M steps", TRAINING, *(f"*{goal}*" for goal in GOALS)],
        *([who, what, of, *scores] for who, what, of, scores in OTHERS),
    ]
    return table(["", "budget", "score", *TITLES], rows)


def over_seeds(scores: Iterable[float]) -> str:
    """One score, or the mean of several and their range."""
    found = list(scores)
    if not found:
        return ""
    mean = number(sum(found) / len(found))
    return mean if len(found) == 1 else f"{mean} ({number(min(found))} to {number(max(found))})"


def budget(ours: Sequence[Sequence[Published]]) -> str:
    """The settings, and each run's steps and time."""
    every = [published for seeds in ours for published in seeds]
    widths = {
        f"{settings['n_workers']} × {settings['envs_per_worker']} environments,"
        f" `{settings['network']}`, 2 cores"
        for settings in (published.run.settings for published in every)
    }
    spent = [
        f"{title} {steps} steps, {' and '.join(map(hours_of, of_these))}"
        for title, seeds in zip(TITLES, ours, strict=True)
        for steps, of_these in itertools.groupby(seeds, lambda p: millions(p.facts["steps"]))
    ]
    return f"{' or '.join(sorted(widths))}: {'; '.join(spent)}"


def pong_table(runs: Sequence[Published], beginning: Beginning) -> str:
    """Agents of Pong, and what it took them to get there."""
    rows = []
    for published in named(runs, beginning):
        moment = reached(published, PONG_GOAL)
        rows.append(
            [
                f"`{published.name}`",
                time_of(published, moment),
                f"{millions(published.facts['steps'])} steps, {hours_of(published)}",
                number(training_score(published)),
                evaluated(published),
                processors([published]),
            ]
        )
    head = ["", f"training: mean of 100 games ≥ {PONG_GOAL:g} after", "ended after", TRAINING]
    return table([*head, f"{PLAYED}; ± sd; goal {PONG_EVALUATION_GOAL:g}", "processor"], rows)


def named(runs: Sequence[Published], beginning: Beginning) -> list[Published]:
    """Those whose names below results/ begin so; of several beginnings in their order."""
    beginnings = (beginning,) if isinstance(beginning, str) else beginning
    return [
        published
        for one in beginnings
        for published in runs
        if published.name.removeprefix("results/").startswith(one)
    ]


class Study(NamedTuple):
    """One setting of a study, and when each of its seeds came to the score."""

    name: str
    seeds: list[Published]
    moments: list[Moment | None]

    def cells(self, steps: float) -> list[str]:
        """Its row, with scores after so many steps."""
        return [
            self.name,
            str(len(self.seeds)),
            "; ".join(map(time_of, self.seeds, self.moments)),
            "; ".join(millions(published.facts["steps"]) for published in self.seeds),
            "; ".join(number(training_score(published, steps)) for published in self.seeds),
            "; ".join(hours_of(published) for published in self.seeds),
            processors(self.seeds),
        ]

    def hours(self) -> float | None:
        """To the score, the mean of the seeds; None where one did not come there, or not alone."""
        alone = all(published.facts["hours"] is not None for published in self.seeds)
        return self._mean(lambda moment: moment.hours) if alone else None

    def steps(self) -> float | None:
        """To the score, the mean of the seeds; None where one did not come there."""
        return self._mean(lambda moment: moment.steps)

    def _mean(self, part: Callable[[Moment], float]) -> float | None:
        moments = [moment for moment in self.moments if moment is not None]
        return sum(map(part, moments)) / len(moments) if len(moments) == len(self.seeds) else None


def studies(runs: Sequence[Published], beginning: Beginning) -> list[Study]:
    """The settings of a study."""
    groups: dict[str, list[Published]] = {}  # runs that differ in their seeds alone
    for published in named(runs, beginning):
        groups.setdefault(plot_runs.group_name(published.folder), []).append(published)
    return [
        Study(name, seeds, [reached(published, STUDY_GOAL) for published in seeds])
        for name, seeds in groups.items()
    ]


def steps_of_all(found: Iterable[Study]) -> int:
    """What each run of a study has done: where their scores can be compared."""
    return min(published.facts["steps"] for study in found for published in study.seeds)


def study_head(steps: float) -> list[str]:
    """Of the cells of a study's settings."""
    return [
        *("", "seeds", f"training: mean of 100 games ≥ {number(STUDY_GOAL)} after"),
        *("steps in all", f"{TRAINING} by {millions(steps)} steps", "time in all", "processor"),
    ]


def study_table(runs: Sequence[Published], beginning: Beginning) -> str:
    """Settings beside each other: how soon they come to a score, and how far."""
    found = studies(runs, beginning)
    steps = steps_of_all(found)
    return table(study_head(steps), (study.cells(steps) for study in found))


def workers_table(runs: Sequence[Published]) -> str:
    """The same of numbers of workers, and how much sooner more of them come to the score."""
    by_number = {n_workers_of(study.seeds[0]): study for study in studies(runs, WORKERS)}
    steps = steps_of_all(by_number.values())
    one = by_number.get(1)
    rows = []
    for n_workers, study in sorted(by_number.items()):
        sooner = [
            quotient(one and one.hours(), study.hours()),
            quotient(one and one.steps(), study.steps()),
        ]
        of_paper = bench_report.PAPERS_SPEED_UP.get(n_workers, "")
        _, *cells = study.cells(steps)
        rows.append([workers(study.seeds[0]), *cells, *sooner, of_paper])
    more = ("sooner than one worker: by hours, times", "by steps, times")
    return table(
        [*study_head(steps), *more, "the paper's, by hours (Table 2: 7 games, 16 cores)"], rows
    )


def n_workers_of(published: Published) -> int:
    return int(published.run.settings["n_workers"])


def workers(published: Published) -> str:
    """How the study names a run."""
    return f"{n_workers_of(published)} × 1"


def quotient(a: float | None, b: float | None) -> str:
    return "" if a is None or b is None else f"{a / b:.1f}"


def commands_of(published: Published) -> list[str]:
    """What began the run, and what resumed it with something given anew."""
    first = (published.folder / "command.txt").read_text(encoding="utf-8").strip()
    resumed = reading.read_record(published.folder).resumed
    return [first, *(str(note["command"]) for note in resumed if note["changed"])]


def index_table(runs: Sequence[Published]) -> str:
    """Every run with what made it."""
    rows = []
    for published in runs:
        facts = published.facts
        patch = f", with `{facts['patch']}`" if facts["patch"] else ""
        sticky = {None: "", 0.0: ", no sticky actions"}.get(facts["sticky_actions"], ", sticky")
        rows.append(
            [
                f"`{published.folder.relative_to(HERE)}`",
                f"{facts['env_id']}{sticky}",
                ", then ".join(f"`{command}`" for command in commands_of(published)),
                facts["revision"][:7] + patch,
                f"{facts['steps']:,}"
                + (
                    f" of {n:,}"
                    if (n := published.run.settings["n_steps"]) > facts["steps"]
                    else ""
                ),
                hours_of(published) + (f", resumed {n} ×" if (n := facts["resumed"]) else ""),
                processors([published]),
            ]
        )
    return table(
        ["", "environment", "command", "revision", "agent steps", "time", "processor"], rows
    )


# Each table of the README.
TABLES: dict[str, Callable[[Sequence[Published]], str]] = {
    "scores": scores_table,
    "pong": functools.partial(pong_table, beginning=FAST),
    "presets": functools.partial(pong_table, beginning=PRESETS),
    "workers": workers_table,
    "ablations": functools.partial(study_table, beginning=ABLATIONS),
}


def texts(runs: Sequence[Published]) -> dict[tuple[pathlib.Path, str], str]:
    """Each table, by its document and its place's name."""
    found = {(README, f"make results, {name}"): make(runs) for name, make in TABLES.items()}
    return {**found, (HERE / "README.md", "make results, all"): index_table(runs)}


# Each picture's runs, by the beginning of their names, and how plot_runs.py draws them.
PICTURES: dict[str, tuple[Beginning, list[str]]] = {
    "pong.png": (FAST, ["--x", "hours", "--references"]),
    "pong-steps.png": ("pong-", []),
    "presets.png": (PRESETS, ["--references", "--figures", "entropy", "value", "gradients"]),
    "workers.png": (WORKERS, ["--curves", "100"]),
    "workers-hours.png": (WORKERS, ["--x", "hours", "--curves", "100"]),
    "ablations.png": (ABLATIONS, ["--curves", "100"]),
    **{
        f"{game.lower()}.png": (f"{game.lower()}-", ["--references"])
        for game in plot_runs.GAMES
        if game != "Pong"
    },
}


def shown(runs: Sequence[Published], beginning: Beginning, flags: Sequence[str]) -> list[Published]:
    """The runs of a picture; of hours, only those that had the machine to themselves."""
    found = named(runs, beginning)
    if "hours" in flags:
        found = [published for published in found if published.facts["hours"] is not None]
    return sorted(found, key=n_workers_of) if beginning == WORKERS else found


def draw(name: str, runs: Sequence[Published], flags: Sequence[str]) -> None:
    """One picture, as anybody would draw it."""
    paths = [str(published.folder) for published in runs]
    labels = [f"--label={workers(published)}" for published in runs if PICTURES[name][0] == WORKERS]
    plot_runs.plot(plot_runs.parse([*paths, "--out", str(IMAGES / name), *labels, *flags]))


def main() -> int:
    """Write all tables, draw all pictures; nothing where something is missing."""
    try:
        runs = read_all()
        tables = texts(runs)
        for path, name in tables:
            documents.text_between(path, name)  # is there a place for it?
    except (BadInput, ValueError) as error:
        print(f"report: error: {error}", file=sys.stderr)
        return 2
    for (path, name), text in tables.items():
        documents.replace_between(path, name, text)
        print(f"{path.relative_to(HERE.parent)}: {name}")
    for name, (beginning, flags) in PICTURES.items():
        draw(name, shown(runs, beginning, flags), flags)
    return 0


if __name__ == "__main__":
    sys.exit(main())
