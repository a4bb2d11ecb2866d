"""Finds the environment that an id names, and makes it with its arguments and the user's wrappers.

Only here is code imported that a user names: the module of `module:Id` and those of --wrapper.
"""

import contextlib
import dataclasses
import difflib
import importlib
import importlib.util
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import ale_py
import gymnasium
from gymnasium.envs.registration import EnvSpec

from a3c.machine.words import without_breaks
from a3c.settings.params import Params

ATARI = "ale_py.env:AtariEnv"
STARTED_IN = "A3C_STARTED_IN"  # names the directory in which a sweep was started, for its trials
# What --env_kwargs cannot set, because flags or films do, or gymnasium.make would take it for itself.
RESERVED = {"render_mode", "max_episode_steps", "disable_env_checker"}


class UnsupportedEnv(Exception):
    """An environment that cannot be trained on, and why, in one line."""

    def __init__(self, why: str) -> None:
        super().__init__(without_breaks(why, 1000))


def make_base(params: Params, **ours: Any) -> gymnasium.Env:
    """Make it without Gymnasium's checks, with this time limit or its own, inside the wrappers.

    The limit counts steps of the agent, so it is not for Atari's frames, where the emulator counts them.
    """
    env_id, spec = params.env_id, spec_of(params.env_id)
    if spec.entry_point == ATARI:
        # The cheapest kind. It is used only by wrappers, because screen.py reads the emulator's screen.
        ours |= {"obs_type": "rgb" if params.wrapper else "ram", "frameskip": 1}
    if params.max_episode_steps is not None and (spec.entry_point != ATARI or params.wrapper):
        spec.max_episode_steps = params.max_episode_steps
    theirs = kwargs_of(params.env_kwargs)
    if taken := theirs.keys() & (ours.keys() | RESERVED):
        raise UnsupportedEnv(f"--env_kwargs cannot set {min(taken)} of {env_id}: we do that")
    try:
        if "mujoco" in str(spec.entry_point):
            _take_mujocos_warnings()
        env = gymnasium.make(spec, **theirs, **ours)
    except Exception as error:
        raise UnsupportedEnv(f"{env_id} cannot be made: {told(error)}") from error
    for name in params.wrapper.split(",") if params.wrapper else ():
        env = _wrapped(env, name)
    return env


def spec_of(env_id: str) -> EnvSpec:
    """What Gymnasium's registry has of an id, as a copy; UnsupportedEnv where nobody could train on it."""
    gymnasium.register_envs(ale_py)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            _import(module)
        # Making an old id from a spec avoids Gymnasium's warning that there is a newer one.
        spec = dataclasses.replace(
            gymnasium.spec(name), order_enforce=False, disable_env_checker=True
        )
    except gymnasium.error.Error as error:
        raise UnsupportedEnv(f"unknown environment {env_id}{_hint(module, name)}") from error
    except Exception as error:
        raise UnsupportedEnv(f"unknown environment {env_id}: {told(error)}") from error
    if why := _why_not(spec):
        raise UnsupportedEnv(f"{env_id} {why}{_hint(module, name)}")
    return spec


def kwargs_of(env_kwargs: Sequence[str]) -> dict[str, Any]:
    """The arguments that --env_kwargs names: ("size=8", "slips=False") → {"size": 8, "slips": False}."""
    kwargs: dict[str, Any] = {}
    for text in env_kwargs:
        name, _, value = text.partition("=")
        kwargs[name] = value
        with contextlib.suppress(ValueError, RecursionError):  # it is a text
            as_json = {"true": "true", "false": "false", "none": "null"}.get(value.lower(), value)
            kwargs[name] = json.loads(as_json)
    return kwargs


def _import(module: str) -> Any:
    """Import a module that the user named; what is installed comes before the working directory."""
    if (here := os.environ.get(STARTED_IN) or os.getcwd()) not in sys.path:
        sys.path.append(here)
    return importlib.import_module(module)


def _wrapped(env: gymnasium.Env, name: str) -> gymnasium.Env:
    module, _, wrapper = name.partition(":")
    try:
        if not wrapper:
            raise ValueError("it must be named module:Wrapper")
        wrap: Callable[[gymnasium.Env], Any] = getattr(_import(module), wrapper)
        wrapped = wrap(env)
        if not isinstance(wrapped, gymnasium.Env):
            raise TypeError(
                f"it returned {without_breaks(wrapped, 100)}, which is no gymnasium.Env"
            )
    except Exception as error:
        raise UnsupportedEnv(f"--wrapper {name} cannot be used: {told(error)}") from error
    return wrapped


def told(error: Exception) -> str:
    """An error in words, with the line of the user's code that raised it."""
    if isinstance(error, ImportError | gymnasium.error.Error):
        return str(error)
    while isinstance(error.__cause__, type(error)):  # Gymnasium adds a long text to some
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    # A file with an error in its syntax is named by the error itself.
    ours = (__file__, importlib.__file__, gymnasium.envs.registration.__file__)
    places = [frame for frame in frames if frame.filename not in ours and frame.filename[0] != "<"]
    where = f" ({places[-1].filename}, line {places[-1].lineno})" if places else ""
    return f"{type(error).__name__}: {error}{where}"


# Ids that are refused, and the ones that were meant


def _why_not(spec: EnvSpec) -> str | None:
    """Why an id of Atari is not taken; None if it is, as all others are."""
    if spec.entry_point == ATARI and spec.kwargs.get("obs_type", "rgb") != "rgb":
        return "shows no frames"
    if spec.entry_point == ATARI and spec.namespace != "ALE" and spec.kwargs.get("frameskip") != 1:
        return "skips frames itself, but we do that"
    return None


def _hint(module: str, name: str) -> str:
    """A similar id that is taken, or how to name one whose module is not imported yet."""
    specs = sorted(gymnasium.registry.values(), key=lambda spec: spec.version or 0)
    # What is misspelt may be any id; what is suggested is the newest of its kind that is taken.
    ids = {_stem(spec.id): spec.id for spec in specs if _why_not(spec) is None}
    ids |= {s.id.lower(): ids[_stem(s.id)] for s in specs if _stem(s.id) in ids}
    stem, prefix = _stem(name), module and f"{module}:"
    near = [stem] if stem in ids else difflib.get_close_matches(name.lower(), ids, n=1)
    hint = f": did you mean {prefix}{ids[near[0]]}?" if near else ":"
    if near == [stem] or name in gymnasium.registry:  # only its kind is not taken
        return hint.rstrip(":")
    if module:
        return f"{hint} {module} registers no {name}"
    package = re.split(r"[/-]", name)[0].lower()
    is_installed = (
        package.isidentifier()
        and package not in sys.stdlib_module_names
        and importlib.util.find_spec(package) is not None
    )
    words = "environment that a package or a module of yours registers is named with its module"
    return f"{hint} {'An' if near else 'an'} {words}, {package if is_installed else 'module'}:{name or 'Id'}"


def _stem(env_id: str) -> str:
    """What ids have in common that differ in version, case or kind of Atari game."""
    kinds = r"(-ram)?(NoFrameskip|Deterministic)?(-v\d+)?$"
    return re.sub(kinds, "", env_id, flags=re.IGNORECASE).lower()


def _take_mujocos_warnings() -> None:
    """Print them, except those on old forms in Gymnasium's own models.

    MuJoCo itself would add all of them to a file in the working directory.
    """
    try:
        import mujoco
    except RuntimeError as error:  # it does not know the value of MUJOCO_GL
        raise ImportError(str(error)) from error

    def warn(text: str) -> None:
        if "deprecated" not in text:
            print(f"MuJoCo: {text}", file=sys.stderr, flush=True)

    mujoco.set_mju_user_warning(warn)
