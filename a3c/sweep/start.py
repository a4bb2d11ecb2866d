"""From sweep.py's arguments to the trials. Wrong arguments are refused before anything is started."""

import argparse
import contextlib
import os
import pathlib
import re
import time
from collections.abc import Sequence

from a3c.contract import EnvDescription
from a3c.envs.base import STARTED_IN
from a3c.envs.make import describe_env
from a3c.machine import cluster, cores
from a3c.machine.stopping import StopSignals
from a3c.machine.words import BadInput, counted
from a3c.settings.config import OF_CODE, may_name_code
from a3c.settings.params import resolve
from a3c.store import claim
from a3c.sweep import folder as folders
from a3c.sweep import plan as plans
from a3c.sweep import trial as trials
from a3c.sweep import tuner
from a3c.sweep.board import Board
from a3c.sweep.folder import EARLY, FAILED, FINISHED, RUNNING, STOPPED, WAITING, SweepFolder
from a3c.sweep.plan import Plan

SAVING_SECONDS = 60.0  # most stopped trials need less than five to save


def start(
    options: argparse.Namespace, words: Sequence[str], argv: Sequence[str], signals: StopSignals
) -> int:
    """Run or resume a sweep; returns the exit status."""
    if options.ship_code and options.address is None:
        raise BadInput("--ship_code needs --address: this machine has the code")
    plan = _plan_of(options, words)
    # Trials run in another folder, and import what the user names as this program does.
    os.environ[STARTED_IN] = os.getcwd()
    if places := os.environ.get("PYTHONPATH"):
        os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, places.split(os.pathsep)))
    _check_envs(plan, [*(options.envs or []), *words])
    if options.address is None and plan.cores > cores.n_usable():
        raise BadInput(f"a trial takes {plan.cores} cores, but there are only {cores.n_usable()}")
    with contextlib.ExitStack() as open_things:
        if options.resume is not None:
            folder = folders.open_existing(options.resume)
            open_things.callback(folder.close)
        else:
            folders.check_free(path := _path_of(options))
        ray = open_things.enter_context(cluster.connected(options.address, options.ship_code))
        tuner.check_cores(ray, plan)
        if options.resume is None:
            folder = folders.create(path, plan, argv)
            open_things.callback(folder.close)
        return _run(folder, signals, is_here=options.address is None)


def _plan_of(options: argparse.Namespace, words: Sequence[str]) -> Plan:
    given = {key: getattr(options, key) for key in ("envs", "seeds", "cores", "max_failures")}
    given = {key: value for key, value in given.items() if value is not None}
    if len(given.get("seeds", ())) == 1:
        given["seeds"] = given["seeds"][0]  # how many
    if options.resume is None:
        return plans.make((plans.read(options.file) if options.file else {}) | given, words)
    others = options.file or options.out or given.keys() - {"envs"}
    if not others:
        plan = folders.read_plan(options.resume)
        has_envs = {trial.env_id for trial in plan.trials}.issuperset(options.envs or ())
        # Such as a wrapper, which has to be named again.
        if has_envs and (not words or plans.changes_nothing(plan, words)):
            return plan
    raise BadInput("--resume goes on with a sweep as it began, and takes no other settings")


def _check_envs(plan: Plan, trusted: Sequence[str]) -> None:
    """Make each environment once; BadInput or UnsupportedEnv where a trial could not use it.

    `trusted` are words of the command line: others may not name code.
    """
    named = {*map(_value, trusted)}
    descriptions: dict[tuple[str, ...], EnvDescription] = {}
    for trial in plan.trials:
        parsed = plans.params_of(plan, trial)
        made_of = tuple(plans.words_of(plan, trial, (*OF_CODE, "max_episode_steps")))
        values = map(_value, made_of)
        if untrusted := [text for text in values if may_name_code(text) and text not in named]:
            raise BadInput(
                f"{untrusted[0]} may run the code of a module: if you trust it, name it on the"
                " command line, in --envs or after --"
            )
        if made_of not in descriptions:
            descriptions[made_of] = describe_env(parsed.params)
        env = descriptions[made_of]
        resolve(parsed, env.kind, env.is_continuous, env.is_atari)


def _value(word: str) -> str:
    """What --flag=value gives to the flag; other words are as they are."""
    return re.sub(r"^--\w+=", "", word)


def _path_of(options: argparse.Namespace) -> pathlib.Path:
    """The folder of a new sweep."""
    stem = pathlib.Path(options.file or "sweep").stem
    return options.out or pathlib.Path(f"runs/{stem}_{time.strftime('%Y%m%d-%H%M%S')}")


def _run(folder: SweepFolder, signals: StopSignals, is_here: bool) -> int:
    plan = folder.plan
    before = folders.recorded_states(folder.path)
    states = {trial.name: WAITING for trial in plan.trials}
    for trial in plan.trials:
        if before.get(trial.name) == EARLY:
            states[trial.name] = EARLY
        elif folders.is_finished(folder.of(trial), plans.n_steps_of(plan, trial)):
            states[trial.name] = FINISHED
    todo = [trial for trial in plan.trials if states[trial.name] == WAITING]
    board = Board(folder, states)
    each = counted(plan.cores, "core")
    board.say(f"sweep: {folder.path}, {counted(len(plan.trials), 'trial')} of {each}")
    if todo and is_here and not trials.are_cores_free(plan.cores):
        board.say("another sweep has this machine's cores: trials wait for them")
    if todo and plan.early_stopping:
        todo = list(plan.trials)  # Tune compares with what the ended ones have reached
    if todo:
        tuner.run(folder, todo, board, signals.stop)
    _wait_until_saved(folder)
    for trial in plan.trials:
        if states[trial.name] == EARLY:
            continue  # even if it has all steps: it was stopped while it evaluated
        if folders.is_finished(folder.of(trial), plans.n_steps_of(plan, trial)):
            states[trial.name] = FINISHED
        elif states[trial.name] == RUNNING:
            states[trial.name] = STOPPED
    board.conclude()
    if signals.received:
        return signals.exit_status
    return int(FAILED in states.values())


def _wait_until_saved(folder: SweepFolder) -> None:
    """Wait until every train.py has ended."""
    until = time.monotonic() + SAVING_SECONDS
    for trial in folder.plan.trials:
        while claim.is_locked(folder.of(trial)) and time.monotonic() < until:
            time.sleep(0.1)
