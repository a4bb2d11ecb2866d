"""What a sweep is: a TOML file, or the short form of the command line, turned into a list of trials.

    envs = ["CartPole-v1"]
    seeds = 2                                    # or a list of them
    n_draws = 10                                 # of the random values below

    [settings]                                   # of all trials, as in a file for --config
    preset = "cartpole"

    [search]                                     # a list is a grid
    rmsprop_epsilon = [1e-5, 1e-3]
    initial_lr = {loguniform = [1e-4, 1e-2]}     # or uniform, or choice

gives 10 × 2 × 2 trials: every draw with every ε, environment and seed, so that they compare. Ray Tune
would draw anew for each seed. Draws are the same every time, and more of them begin with the same.

Reading a plan starts nothing, and a mistake in any of its trials is found here.
"""

import collections
import itertools
import json
import math
import pathlib
import re
import tomllib
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from a3c.machine.words import BadInput, one_line
from a3c.settings import command_line
from a3c.settings.config import OF_ONE_RUN, as_words
from a3c.settings.naming import stem_of
from a3c.settings.params import ASKED, KNOBS, TYPES, ParsedParams, by_todays_names, taken
from a3c.settings.suggestions import nearest
from a3c.store.logs import FIGURES

SCORE = "rl/episode_reward_mean_100"
MAX_TRIALS = 10_000
TOO_MANY = f"the sweep has more than {MAX_TRIALS:,} trials"
GIVEN = {"cores", "env_id", "log_dir", "seed"}  # by the sweep itself, to each trial
OWN = OF_ONE_RUN | GIVEN  # what no setting of all trials can be
RANDOM = ("loguniform", "uniform", "choice")
EARLY_STOPPING = ("asha", "median")


class Trial(NamedTuple):
    """One run of train.py."""

    name: str  # of its folder, in the sweep's
    env_id: str
    seed: int
    searched: Mapping[str, Any]  # the settings that differ between trials


class Plan(NamedTuple):
    """All that a sweep was asked for; it is recorded as JSON."""

    trials: Sequence[Trial]
    settings: Mapping[str, Any]  # of all trials, by the names of train.py's flags
    cores: int = 1  # of each trial
    max_failures: int = 2  # how often a trial is tried again
    metric: str = SCORE  # a column of progress.csv
    early_stopping: str | None = None
    grace_steps: int | None = (
        None  # no trial is stopped early before this; none: a tenth of n_steps
    )


def settings_of(plan: Plan, trial: Trial) -> dict[str, Any]:
    """All that the trial's train.py is asked for, by the names of its flags."""
    own = {"seed": trial.seed, "env_id": trial.env_id}
    return {**by_todays_names(plan.settings), **trial.searched, **own}


def words_of(plan: Plan, trial: Trial, names: Container[str] = KNOBS) -> list[str]:
    """The same as words of a command line; or those of these names, and the environment."""
    settings = settings_of(plan, trial)
    env_id = settings.pop("env_id")
    return [*as_words({name: x for name, x in settings.items() if name in names}), env_id]


def params_of(plan: Plan, trial: Trial) -> ParsedParams:
    """The trial's parameters; BadInput where train.py would refuse them."""
    try:
        given = {name: taken(name, value) for name, value in settings_of(plan, trial).items()}
        return command_line.together({}, given)
    except BadInput as error:
        raise BadInput(f"trial {trial.name}: {error}") from None


def n_steps_of(plan: Plan, trial: Trial) -> int:
    """How many steps the trial has when it is finished."""
    return params_of(plan, trial).params.n_steps


def changes_nothing(plan: Plan, words: Sequence[str]) -> bool:
    """Whether some trial has the settings that these flags of train.py ask for."""
    asked = (command_line.parse([*words_of(plan, trial), *words]) for trial in plan.trials)
    return any(
        isinstance(parsed, ParsedParams) and parsed.params == params_of(plan, trial).params
        for parsed, trial in zip(asked, plan.trials, strict=True)
    )


def make(asked: Mapping[str, Any], words: Sequence[str] = ()) -> Plan:
    """The plan of a TOML file's content; `words` are flags of train.py, which override its settings."""
    allowed = {"envs", "seeds", "n_draws", "settings", "search"} | Plan._field_defaults.keys()
    for key in asked:
        if key not in allowed:
            raise BadInput(f"unknown key {key}{nearest(key, allowed)}")
    envs, seeds = _texts("envs", asked.get("envs")), _seeds(asked.get("seeds", 1))
    points = list(_points(_table("search", asked), asked.get("n_draws")))
    settings = _settings(_table("settings", asked), words, points[0], envs[0])
    if len(points) * len(envs) * len(seeds) > MAX_TRIALS:
        raise BadInput(TOO_MANY)
    bare = [Trial("", env_id, seed, point) for env_id in envs for point in points for seed in seeds]
    more = {key: asked[key] for key in Plan._field_defaults if key in asked}
    plan = Plan(list(_named(bare)), settings, **more)
    _check(plan, envs)
    return plan


def read(path: str) -> dict[str, Any]:
    """A sweep's TOML file."""
    try:
        return tomllib.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: {error}") from None


def to_json(plan: Plan) -> str:
    return json.dumps(plan._asdict() | {"trials": [t._asdict() for t in plan.trials]}, indent=1)


def from_json(text: str) -> Plan:
    """The inverse of to_json; BadInput where to_json could not have written the text."""
    try:
        content = json.loads(text)
        plan = Plan(**content | {"trials": [Trial(**trial) for trial in content["trials"]]})
        if not all(re.fullmatch(r"\w[^/\0]*", trial.name) for trial in plan.trials):
            raise ValueError("a trial's folder is not in the sweep's")
        _check(plan, sorted({trial.env_id for trial in plan.trials}))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise BadInput(f"this is not the record of a sweep: {error}") from None
    return plan


def _check(plan: Plan, envs: Sequence[str]) -> None:
    for name, least in (("cores", 1), ("max_failures", 0)):
        _whole(name, getattr(plan, name), least)
    if plan.metric not in FIGURES:
        raise BadInput(
            f"metric {plan.metric!r} is no column of progress.csv"
            f"{nearest(str(plan.metric), FIGURES)}"
        )
    if plan.early_stopping is None:
        if plan.grace_steps is not None:
            raise BadInput("grace_steps needs early_stopping")
    elif plan.early_stopping not in EARLY_STOPPING:
        raise BadInput(f"early_stopping must be one of {', '.join(EARLY_STOPPING)}")
    elif len(envs) > 1:
        raise BadInput("early_stopping compares scores, so it needs a single environment")
    if plan.grace_steps is not None:
        _whole("grace_steps", plan.grace_steps, 1)
    for trial in plan.trials:
        if (n := n_steps_of(plan, trial)) < (plan.grace_steps or 0):
            raise BadInput(f"grace_steps {plan.grace_steps:,} is more than a trial's {n:,} steps")


def _whole(name: str, value: Any, least: int) -> int:
    if type(value) is not int or not least <= value < 10**12:
        raise BadInput(f"{name} must be a whole number of at least {least}, not {value!r}")
    return value


def _at_most_all(name: str, value: Any) -> int:
    """How many of something, where each one makes a trial."""
    if _whole(name, value, 1) > MAX_TRIALS:
        raise BadInput(TOO_MANY)
    return int(value)


def _table(name: str, asked: Mapping[str, Any]) -> Mapping[str, Any]:
    table = asked.get(name, {})
    if not isinstance(table, Mapping):
        raise BadInput(f"{name} must be a table: [{name}]")
    table = by_todays_names(table)
    for key in table:
        if key in OWN:
            raise BadInput(f"{name} cannot have {key}: {_why_not(key)}")
        if key not in KNOBS:
            raise BadInput(f"{name} has {key}, which is no flag of train.py{nearest(key, KNOBS)}")
    return table


def _why_not(name: str) -> str:
    """Why a flag of `OWN` is no setting of all trials."""
    return (
        "the sweep gives it to each" if name in GIVEN else "it is for a run that you start yourself"
    )


def _texts(name: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not value or not all(type(v) is str for v in value):
        raise BadInput(f"{name} is missing: name environments, such as CartPole-v1")
    if len(set(value)) < len(value):
        raise BadInput(f"{name} has an environment twice")
    return value


def _seeds(value: Any) -> list[int]:
    if not isinstance(value, list):
        return list(range(_at_most_all("seeds", value)))
    seeds = [_whole("a seed", seed, 0) for seed in value]
    if not 1 <= len(set(seeds)) == len(seeds):
        raise BadInput("seeds must be a number of seeds, or a list of different ones")
    return seeds


def _settings(
    table: Mapping[str, Any], words: Sequence[str], point: Mapping[str, Any], env_id: str
) -> dict[str, Any]:
    """What was asked for by name, in the table and on the command line, and is not searched.

    It is checked together with the searched values of a trial, because some settings need others.
    """
    # The environment is last, so it takes the place of one that a --config names.
    parsed = command_line.parse([*as_words(table), *as_words(point), *words, env_id])
    if not isinstance(parsed, ParsedParams):
        raise BadInput("--resume, --resume_or_start and --print_config are no settings of a trial")
    for name, value in point.items():
        if name in table or getattr(parsed.params, name) != taken(name, value):
            raise BadInput(f"{name} is searched, so it cannot be a setting of all trials, too")
    given = {name for name, source in parsed.sources.items() if source in ASKED}
    for name in sorted(given & OWN - {"env_id"}):
        # A --config may have a seed: that of its run.
        if name != "seed" or parsed.sources[name] == "command line":
            raise BadInput(f"--{name} is no setting of all trials: {_why_not(name)}")
    names = given - OWN - point.keys()
    return {name: getattr(parsed.params, name) for name in KNOBS if name in names}


def _points(search: Mapping[str, Any], n_draws: Any) -> Iterator[dict[str, Any]]:
    """Every combination of the grid with every draw."""
    grid = {name: value for name, value in search.items() if isinstance(value, list)}
    drawn = {name: _distribution(name, search[name]) for name in search.keys() - grid.keys()}
    if empty := next((name for name, values in grid.items() if not values), None):
        raise BadInput(f"search: the list of {empty} is empty")
    if drawn and n_draws is None:
        raise BadInput(f"search draws {min(drawn)}, so n_draws must say how often")
    if not drawn and n_draws is not None:
        raise BadInput("n_draws needs a value in search that is drawn")
    generator = np.random.default_rng(0)
    draws = [
        {name: _draw(name, *drawn[name], generator) for name in search if name in drawn}
        for _ in range(_at_most_all("n_draws", n_draws) if drawn else 1)
    ]
    seen = set()
    for draw, values in itertools.product(draws, itertools.product(*grid.values())):
        point = dict(zip(grid, values, strict=True)) | draw
        if (text := str(point)) not in seen:  # a draw among few values may come again
            seen.add(text)
            yield {name: point[name] for name in search}


def _distribution(name: str, asked: Any) -> tuple[str, list[Any]]:
    if isinstance(asked, Mapping) and len(asked) == 1:
        ((kind, values),) = asked.items()
        numbers = isinstance(values, list) and all(
            type(v) in (int, float) and abs(v) < 10**18 for v in values
        )
        if kind == "choice" and isinstance(values, list) and values:
            return kind, values
        if kind in RANDOM and numbers and len(values) == 2:
            low, high = values
            if low < high and (low > 0 or kind == "uniform"):
                return kind, values
    raise BadInput(
        f"search: {name} must be a list, or {{uniform = [low, high]}}, {{loguniform = [low, high]}}"
        f" or {{choice = [...]}}, not {one_line(str(asked), 100)}"
    )


def _draw(name: str, kind: str, values: list[Any], generator: np.random.Generator) -> Any:
    """A random value, with four digits, so that it can be typed."""
    if kind == "choice":
        return values[generator.integers(len(values))]
    (low, high), is_whole = values, int in TYPES[name]
    if kind == "uniform" and is_whole:
        return int(generator.integers(round(low), round(high), endpoint=True))
    if kind == "loguniform":
        value = math.exp(generator.uniform(math.log(low), math.log(high)))
    else:
        value = generator.uniform(low, high)
    # Four digits may be beyond an end.
    return round(value) if is_whole else min(max(float(f"{value:.4g}"), float(low)), float(high))


def _named(trials: Sequence[Trial]) -> Iterator[Trial]:
    """Give each trial a name that says what it is; its seed is last, as plot_runs.py groups runs."""
    n_seen: collections.Counter[tuple[str, int]] = collections.Counter()
    for trial in trials:
        stem = stem_of(trial.env_id, trial.searched)
        n_seen[stem, trial.seed] += 1
        if (n := n_seen[stem, trial.seed]) > 1:  # only their shortened names are the same
            stem = f"{stem}-{n}"
        yield trial._replace(name=f"{stem}_s{trial.seed}")
