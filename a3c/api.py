"""What `import a3c` offers to programs and notebooks: docs/python.md shows it at work.

What is heavy is imported where it is needed, so that reading a run loads no TensorFlow.
"""

import contextlib
import dataclasses
import os
import pathlib
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from a3c.machine.stopping import StopSignals, kept_from_new_threads
from a3c.machine.words import BadInput
from a3c.settings import command_line
from a3c.settings.config import as_words
from a3c.settings.params import KNOBS, by_todays_names, taken
from a3c.settings.suggestions import nearest
from a3c.store import checkpoint, reading, run_folder

if TYPE_CHECKING:
    import gymnasium

    from a3c.play.agent import Agent

Path: TypeAlias = str | os.PathLike[str]


def load_agent(path: Path, seed: int = 0) -> "Agent":
    """Load a trained agent: from a run's folder, an exported one, or a .safetensors file.

    `seed` is of the generator that draws its actions. Loading runs no code of the file's. Where it
    cannot be read, it raises UnusableCheckpoint.
    """
    from a3c.machine import appending, tensorflow_process

    appending.open_what_is_closed()  # of a program that was started without stderr
    found, problems = checkpoint.read_newest(pathlib.Path(path))
    for problem in problems:
        warnings.warn(f"{problem}; using {found.path}", stacklevel=2)
    with tensorflow_process.hushed():
        from a3c.play import agent
    # If the caller's TensorFlow has started, with other threads, it is good enough to play.
    with contextlib.suppress(RuntimeError), kept_from_new_threads():
        tensorflow_process.start_tensorflow()
    return agent.load(found, seed)


def make_env(
    env_id: str,
    evaluation: bool = False,
    see: Callable[[np.ndarray], None] | None = None,
    **flags: Any,
) -> "gymnasium.Env":
    """Make an environment as training sees it or, if `evaluation`, as evaluations do.

    `flags` are those of train.py, such as `seed`. The environment seeds its own games: a seed that
    `reset` is given has no effect. `see` is called with a picture of each frame.
    """
    from a3c.envs import make
    from a3c.play import evaluation as evaluations

    params = command_line.together({}, _taken(flags | {"env_id": env_id})).params
    if not evaluation:
        return make.make_env(params, see=see)
    limit = make.describe_env(params).max_episode_steps
    params = dataclasses.replace(evaluations.whole_games(params), max_episode_steps=limit)
    return make.make_env(params, evaluations.WORKER, see=see)


class RunData(NamedTuple):
    """What a run has left: columns by name, which `pandas.DataFrame` takes as they are."""

    env_id: str
    settings: Mapping[str, Any]  # by the names of flags; empty for files of other programs
    games: Mapping[str, np.ndarray]  # score, length, step, seconds: of each whole training game
    figures: Mapping[str, np.ndarray]  # progress.csv: misc/steps, rl/policy_entropy, ...
    evaluations: Mapping[str, np.ndarray]  # evaluations.csv: steps, episode_reward_mean, ...
    notes: tuple[str, ...]  # on what was damaged and left out


def read_run(path: Path) -> RunData:
    """Read a run's folder, also a published one, or monitor files of Stable-Baselines3."""
    run = reading.read_run(pathlib.Path(path))
    games = {
        "score": run.games.scores,
        "length": run.games.lengths,
        "step": run.games.steps,
        "seconds": run.games.seconds,
    }
    notes = [*run.words]
    folder = reading.folder_of(pathlib.Path(path))
    tables: dict[str, Mapping[str, np.ndarray]] = {}
    for name in (run_folder.PROGRESS, run_folder.EVALUATIONS):
        if folder is not None and any(folder.glob(f"{name}*")):
            tables[name], words = reading.read_progress(folder, name)
            notes += [f"{name}: {word}" for word in words]
    figures, evaluations = (
        tables.get(n, {}) for n in (run_folder.PROGRESS, run_folder.EVALUATIONS)
    )
    return RunData(run.env_id, run.settings, games, figures, evaluations, tuple(notes))


def train(
    env_id: str | None = None,
    *,
    config: Path | None = None,
    resume: Path | None = None,
    **flags: Any,
) -> pathlib.Path:
    """Train as train.py does, with its flags as keywords; returns the run's folder.

    What cannot be done is raised with one line that says why: BadInput, UnsupportedEnv,
    UnusableCheckpoint; EnvError or RuntimeError where training failed. While it trains, Ctrl-C,
    SIGTERM and SIGHUP make it save and stop. Then the caller's handlers are put back and get the
    signal: after Ctrl-C, that usually raises KeyboardInterrupt. A second Ctrl-C does not wait.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("a3c.train must be called by the main thread, which gets the signals")
    from a3c.machine import appending, tensorflow_process
    from a3c.run.start import parse, run

    appending.open_what_is_closed()
    if "tensorflow" in sys.modules:
        try:
            tensorflow_process.limit_threads()
        except RuntimeError:
            why = "TensorFlow has started in this process with other threads than training needs"
            raise RuntimeError(f"{why}: call a3c.train before, or in another process") from None
    argv = [] if env_id is None else [taken("env_id", env_id)]
    argv += as_words(_taken(flags))
    for name, path in (("--config", config), ("--resume", resume)):
        if path is not None:
            argv.append(f"{name}={os.fspath(path)}")
    notes: list[str] = []
    asked = parse(argv, notes.append)
    for note in notes:
        warnings.warn(note, stacklevel=2)
    assert not isinstance(asked, command_line.PrintConfig)
    signals = StopSignals(may_exit=False)
    try:
        folder, status = run(asked, argv, signals)
    finally:
        signals.give_back()
    if folder is None:
        raise KeyboardInterrupt  # the caller's handler has let the signal pass
    if status and signals.received is None:
        raise RuntimeError(f"training failed; {folder / run_folder.LOG} says why")
    return folder


def _taken(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Flags given as keywords, checked; BadInput if there is no such flag."""
    flags = by_todays_names(flags)
    for name in flags:
        if name not in KNOBS:
            raise BadInput(f"unknown flag {name}{nearest(name, KNOBS)}")
    return {name: taken(name, _plain(value)) for name, value in flags.items()}


def _plain(value: Any) -> Any:
    """NumPy's numbers and arrays as Python's, and paths as texts."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [*map(_plain, value)]
    return os.fspath(value) if isinstance(value, os.PathLike) else value
