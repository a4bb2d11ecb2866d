"""The program run_checkpoint.py, or a3c-play where the package is installed.

    python3 run_checkpoint.py PongNoFrameskip-v4 runs/<run>/checkpoints/
    python3 run_checkpoint.py runs/<run> --no_render --episodes 30 --json scores.json
    python3 run_checkpoint.py runs/<run> --video film.mp4 --eyes
    python3 run_checkpoint.py runs/<run> --export agent

Where there is a display, a window shows the game at its true speed. Otherwise, or with --no_render,
several games run at once, as fast as they can. Scores follow the protocol of published ones; see
a3c/play/evaluation.py. TensorFlow is imported after the command line and the file have been checked.
"""

import argparse
import contextlib
import json
import math
import pathlib
import sys
from collections.abc import Callable, Generator, Sequence
from typing import Any

from a3c.envs.make import UnsupportedEnv, describe_env
from a3c.envs.process import EnvError
from a3c.machine import cores, stopping
from a3c.machine.appending import (
    open_what_is_closed,
    survive_loss_of,
    why_unwritable,
    write_atomically,
)
from a3c.machine.tensorflow_process import hushed, start_tensorflow
from a3c.machine.words import BadInput, counted
from a3c.play import evaluation, export, screens, showing
from a3c.play.evaluation import Played, Summary
from a3c.settings.command_line import Parser, called
from a3c.settings.config import OF_CODE
from a3c.store import checkpoint
from a3c.store.checkpoint import Checkpoint, UnusableCheckpoint

N_GAMES = 30


def main(argv: Sequence[str] | None = None) -> int:
    """Play; returns the exit status."""
    open_what_is_closed()
    stopping.give_handlers_a_stack()
    try:
        arguments = _parse(argv)
        found, problems = checkpoint.read_newest(arguments.checkpoint)
        for problem in problems:
            _complain(f"note: {problem}; using {found.path}")
        env_id = found.subject.env_id
        if arguments.env_id not in (None, env_id):
            raise UnusableCheckpoint(f"{found.path} plays {env_id}, not {arguments.env_id}")
        found = _as_named(arguments, found)
        if arguments.json is not None and (reason := why_unwritable(arguments.json)):
            raise BadInput(f"cannot write {arguments.json}: {reason}")
        return _run(arguments, found)
    except (BadInput, UnusableCheckpoint, UnsupportedEnv, screens.NoScreen) as error:
        _complain(f"error: {error}")
        return 2
    except EnvError as error:
        _complain(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        return 130


def _complain(text: str) -> None:
    print(f"{called('run_checkpoint.py')[-1]}: {text}", file=sys.stderr)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        usage=f"{' '.join(called('run_checkpoint.py'))} [env_id] checkpoint [flags]",
        description="Watch a trained agent play, film it, and measure how good it is.",
        allow_abbrev=False,
    )
    add, count = parser.add_argument, _number(int, 1, 10**6)
    add("env_id", nargs="?", help="optional; must match the checkpoint; required for module:Id")
    where = "a checkpoint; or a run's folder or a folder of checkpoints, whose newest undamaged one plays"
    add("checkpoint", type=pathlib.Path, help=where)
    add(
        "--env_kwargs",
        nargs="+",
        metavar="NAME=VALUE",
        help="arguments of the environment instead of the agent's own; none: none",
    )
    wrapper = (
        "wrappers around the environment instead of the agent's own, as in train.py; none: none"
    )
    add("--wrapper", metavar="TEXT", help=wrapper)
    add("--episodes", type=count, metavar="N", help="games to play [30; with --video 1]")
    add("--greedy", action="store_true", help="take the likeliest action instead of sampling one")
    seed = _number(int, 0, 2**32 - 1)
    add("--seed", type=seed, default=0, metavar="N", help="seed of starts and actions [0]")
    add(
        "--video",
        type=pathlib.Path,
        metavar="FILE",
        help="film the games; the name ends in .mp4 or .gif",
    )
    seconds, speed = _number(float, 0.01, 10**6), _number(float, 0.01, 1000)
    add("--seconds", type=seconds, metavar="X", help="stop the film after so many seconds")
    add("--eyes", action="store_true", help="show what the agent sees and thinks beside the game")
    add("--speed", type=speed, metavar="X", help="speed of the window; 1 is the game's own [1]")
    add("--no_render", action="store_true", help="open no window")
    add(
        "--n_envs",
        type=count,
        metavar="N",
        help="games played at once, if no pictures are needed [one per core]",
    )
    what = "write an agent that travels to this folder: weights, settings, scores and a film"
    add("--export", type=pathlib.Path, metavar="DIR", help=what)
    add("--no_film", action="store_true", help="with --export, leave out the film")
    add("--json", type=pathlib.Path, metavar="FILE", help="write scores and summary to this file")
    arguments = parser.parse_intermixed_args(argv)
    if (arguments.video or arguments.export) and arguments.speed is not None:
        raise BadInput("--speed is for the window; a film has the game's true speed")
    if arguments.export is not None and arguments.video is not None:
        raise BadInput("--export makes a film of its own; leave out --video")
    if arguments.export is not None and arguments.episodes == 1:
        raise BadInput("--export tells the spread of scores, so it needs more than one game")
    if arguments.no_film and arguments.export is None:
        raise BadInput("--no_film is for --export, which would make one")
    if arguments.no_film and arguments.eyes:
        raise BadInput("--eyes is for a window or a film; leave out --no_film")
    has_film = arguments.video is not None or (arguments.export and not arguments.no_film)
    if not has_film and arguments.seconds is not None:
        raise BadInput("--seconds is the length of a film: it needs --video or --export")
    if arguments.json is not None and arguments.video is not None and arguments.seconds is not None:
        raise BadInput("--json needs games that are played to their end; leave out --seconds")
    return arguments


def _as_named(arguments: argparse.Namespace, found: Checkpoint) -> Checkpoint:
    """The checkpoint with the arguments and wrappers that the user named, if any.

    UnusableCheckpoint where its own may run code that the user did not name.
    """
    given = {name: getattr(arguments, name) for name in OF_CODE}
    subject, code = evaluation.as_named(found.subject, given)
    if code:
        first = code.get("env_id", arguments.env_id)
        words = [first, str(arguments.checkpoint), *(code[n] for n in code if n != "env_id")]
        raise UnusableCheckpoint(
            f"{found.path} plays {' '.join(code.values())}, which may run the code of a module: if you"
            f" trust that, name it: {called('run_checkpoint.py')[-1]} {' '.join(filter(None, words))}"
        )
    return found._replace(subject=subject)


def _number(kind: type, least: float, most: float) -> Callable[[str], Any]:
    """Make a parser of numbers in this range."""

    def parse(text: str) -> Any:
        try:
            number = kind(text)
        except ValueError:
            number = math.nan
        if not least <= number <= most:
            what = "whole number" if kind is int else "number"
            raise argparse.ArgumentTypeError(f"{text!r} is no {what} from {least} to {most:,}")
        return number

    return parse


def _say(line: str) -> None:
    """Print a line; if nobody reads it, as after `| head`, the games continue for their files."""
    with survive_loss_of(sys.stdout):
        print(line, flush=True)


def _run(arguments: argparse.Namespace, found: Checkpoint) -> int:
    is_filmed = arguments.export is not None and not arguments.no_film
    in_window = not (arguments.video or arguments.export or arguments.no_render)
    in_window = in_window and screens.has_display()
    if arguments.video is None and not in_window and not is_filmed:
        for name in ("eyes", "speed"):
            if getattr(arguments, name):
                why = "--no_render opens none" if arguments.no_render else "there is no display"
                raise BadInput(f"--{name} needs a window, but {why}")
    if arguments.video is not None:
        screens.check_film(arguments.video)

    params = evaluation.params_of(found.subject, arguments.seed)
    description = describe_env(params)
    subject = found.subject._replace(
        observation_shape=description.observation_shape, n_actions=description.n_actions
    )
    found.check_fits(subject)
    if description.is_continuous != (subject.policy != "categorical"):
        kind = "discrete" if description.is_continuous else "continuous"
        raise UnusableCheckpoint(f"{found.path} is for {kind} actions, its environment is not")
    is_shown = in_window or arguments.video is not None
    show = showing.show_of(params, description) if is_shown or is_filmed else None
    options = showing.Options(
        arguments.video,
        arguments.seconds or math.inf,
        arguments.speed or 1.0,
        arguments.eyes,
        arguments.greedy,
    )
    if arguments.export is not None:
        export.make_folder(arguments.export)
    with hushed():
        from a3c.play import agent
    with stopping.kept_from_new_threads():
        start_tensorflow()
    player = agent.load(found)

    n_games = arguments.episodes or (1 if arguments.video else N_GAMES)
    how = "the likeliest actions" if arguments.greedy else "sampled actions"
    _say(
        f"{found.path}: {subject.env_id} after {found.n_steps:,} steps;"
        f" {counted(n_games, 'game')}, {how}, seed {arguments.seed}"
    )
    if show is not None and is_shown:
        playing = showing.play_on_screen(player, params, show, n_games, options)
    else:
        n_at_once = min(arguments.n_envs or cores.n_usable(), n_games)
        playing = evaluation.play_many(player, params, n_games, n_at_once, arguments.greedy)
    games, is_interrupted = _collected(playing, n_games, in_window)
    games.sort()
    summary = evaluation.summarise(subject.env_id, games)
    _say(_in_words(summary))
    if arguments.video is not None:
        _say(f"filmed in {arguments.video}")
    if is_interrupted:
        return 130  # the short games end first, so their figures are biased: no file gets them
    if arguments.json is not None:
        _write_json(arguments, found, games, summary, n_games)
    if arguments.export is not None:
        options = options._replace(film=arguments.export / export.FILM)
        filming = show and showing.play_on_screen(player, params, show, 1, options)
        protocol = export.Protocol(arguments.seed, arguments.greedy, description.is_atari)
        export.write(arguments.export, found, summary, protocol, filming or ())
        _say(f"exported to {arguments.export}")
    return 0


def _collected(
    playing: Generator[Played, None, None], n_games: int, in_window: bool
) -> tuple[list[Played], bool]:
    """Say each game's score when it ends; returns the games, and whether Ctrl-C came before all."""
    games: list[Played] = []
    is_interrupted = False
    try:
        with contextlib.closing(playing):
            for game in playing:
                games.append(game)
                _say(_line(game))
    except screens.Closed:
        _say("the window was closed" if in_window else "the film has its full length")
    except KeyboardInterrupt:
        is_interrupted = True
        _say(f"interrupted: only some of {counted(n_games, 'game')} had ended")
    return games, is_interrupted


def _line(game: Played) -> str:
    # No failure: a perfect game of CartPole ends so.
    ending = ", ended by a time limit" if game.cut_off else ""
    return f"game {game.number:3}: score {game.score:g}, {game.length:,} steps{ending}"


def _in_words(summary: Summary) -> str:
    if not summary.n_games:
        return "no game was played to its end"
    sd = "" if math.isnan(summary.sd) else f" sd {summary.sd:.2f},"
    words = (
        f"{counted(summary.n_games, 'game')}: mean {summary.mean:.2f},{sd}"
        f" median {summary.median:g}, min {summary.min:g}, max {summary.max:g}"
    )
    if summary.human_normalised is not None:
        share = 100 * summary.human_normalised
        words += f"\nhuman-normalised: {share:.1f} % (0: random play, 100: a human)"
    return words


def _write_json(
    arguments: argparse.Namespace,
    found: Checkpoint,
    games: Sequence[Played],
    summary: Summary,
    n_games: int,
) -> None:
    if len(games) < n_games:  # the window was closed
        _say(f"{arguments.json} is not written: it is for whole evaluations")
        return
    content = {
        "env_id": found.subject.env_id,
        "checkpoint": str(found.path),
        "steps": found.n_steps,
        "seed": arguments.seed,
        "greedy": arguments.greedy,
        "games": [game._asdict() for game in games],
        "summary": {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in summary._asdict().items()
        },
    }
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    try:
        if arguments.json.exists() and not arguments.json.is_file():
            arguments.json.write_text(text)  # a pipe or a device, which must not be replaced
        else:
            write_atomically(arguments.json.resolve(), text)
    except OSError as error:
        raise BadInput(f"cannot write {arguments.json}: {error.strerror}") from None
