"""Watch a trained agent play, film it, and measure how good it is.

    python3 run_checkpoint.py PongNoFrameskip-v4 runs/<run>/checkpoints/
    python3 run_checkpoint.py runs/<run> --no_render --episodes 30 --json scores.json
    python3 run_checkpoint.py runs/<run> --video film.mp4 --eyes

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
from typing import TYPE_CHECKING, Any, NamedTuple

from a3c.contract import EnvDescription
from a3c.envs.make import UnsupportedEnv, describe_env, make_env
from a3c.envs.process import EnvError
from a3c.machine import cores, stopping
from a3c.machine.appending import (
    counted,
    open_what_is_closed,
    survive_loss_of,
    why_unwritable,
    write_atomically,
)
from a3c.machine.tensorflow_process import hushed, start_tensorflow
from a3c.play import evaluation, opengl, screens, views
from a3c.play.evaluation import Played, Summary
from a3c.settings.command_line import Parser
from a3c.settings.params import BadInput, Params
from a3c.store import checkpoint
from a3c.store.checkpoint import Checkpoint, UnusableCheckpoint

if TYPE_CHECKING:
    from a3c.play.agent import Agent, Decision
    from a3c.play.eyes import Bounds

N_GAMES = 30
ATARI_FPS = WINDOW_FPS = 60.0


def main(argv: Sequence[str] | None = None) -> int:
    """Play; returns the exit status."""
    open_what_is_closed()
    stopping.give_handlers_a_stack()
    try:
        arguments = _parse(argv)
        found, problems = checkpoint.read_newest(arguments.checkpoint)
        for problem in problems:
            print(f"run_checkpoint.py: note: {problem}; using {found.path}", file=sys.stderr)
        env_id = found.subject.env_id
        if arguments.env_id not in (None, env_id):
            raise UnusableCheckpoint(f"{found.path} plays {env_id}, not {arguments.env_id}")
        if ":" in env_id and arguments.env_id is None:
            raise UnusableCheckpoint(
                f"{found.path} plays {env_id}, which runs the code of a module: if you"
                f" trust that, name it before the checkpoint"
            )
        if arguments.json is not None and (reason := why_unwritable(arguments.json)):
            raise BadInput(f"cannot write {arguments.json}: {reason}")
        return _run(arguments, found)
    except (BadInput, UnusableCheckpoint, UnsupportedEnv, screens.NoScreen) as error:
        print(f"run_checkpoint.py: error: {error}", file=sys.stderr)
        return 2
    except EnvError as error:
        print(f"run_checkpoint.py: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="run_checkpoint.py",
        usage="python3 run_checkpoint.py [env_id] checkpoint [flags]",
        description="Watch a trained agent play, film it, and measure how good it is.",
        allow_abbrev=False,
    )
    add, count = parser.add_argument, _number(int, 1, 10**6)
    add("env_id", nargs="?", help="optional; must match the checkpoint; required for module:Id")
    where = "a checkpoint; or a run's folder or a folder of checkpoints, whose newest undamaged one plays"
    add("checkpoint", type=pathlib.Path, help=where)
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
    add("--json", type=pathlib.Path, metavar="FILE", help="write scores and summary to this file")
    arguments = parser.parse_intermixed_args(argv)
    if arguments.video is not None and arguments.speed is not None:
        raise BadInput("--speed is for the window; a film has the game's true speed")
    if arguments.video is None and arguments.seconds is not None:
        raise BadInput("--seconds is the length of a film: it needs --video")
    if arguments.json is not None and arguments.seconds is not None:
        raise BadInput("--json needs games that are played to their end; leave out --seconds")
    return arguments


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
    in_window = arguments.video is None and not arguments.no_render and screens.has_display()
    if arguments.video is None and not in_window:
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
    show = None
    if in_window or arguments.video is not None:
        show = _show_of(params, description)
    with hushed():
        from a3c.play import agent
    with stopping.kept_from_new_threads():
        start_tensorflow()
    player = agent.load(found, arguments.greedy)

    n_games = arguments.episodes or (1 if arguments.video else N_GAMES)
    how = "the likeliest actions" if arguments.greedy else "sampled actions"
    _say(
        f"{found.path}: {subject.env_id} after {found.n_steps:,} steps;"
        f" {counted(n_games, 'game')}, {how}, seed {arguments.seed}"
    )
    if show is not None:
        playing = _play_on_screen(arguments, player, params, show, n_games)
    else:
        n_at_once = min(arguments.n_envs or cores.n_usable(), n_games)
        playing = evaluation.play_many(player, params, n_games, n_at_once)
    games: list[Played] = []
    is_interrupted = False
    try:
        with contextlib.closing(playing):
            for game in playing:
                games.append(game)
                _say(_line(game, description.kind))
    except screens.Closed:
        _say("the window was closed" if in_window else "the film has its full length")
    except KeyboardInterrupt:
        is_interrupted = True
        _say(f"interrupted: only some of {counted(n_games, 'game')} had ended")
    games.sort()
    summary = evaluation.summarise(subject.env_id, games)
    _say(_in_words(summary))
    if arguments.video is not None:
        _say(f"filmed in {arguments.video}")
    if is_interrupted:
        return 130  # the short games end first, so their figures are biased: no file gets them
    if arguments.json is not None:
        _write_json(arguments, found, games, summary)
    return 0


def _line(game: Played, kind: str) -> str:
    limit = "108,000 frames" if kind == "image" else "its time limit"
    cut_off = f", cut off by {limit}" if game.cut_off else ""
    return f"game {game.number:3}: score {game.score:g}, {game.length:,} steps{cut_off}"


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
    arguments: argparse.Namespace, found: Checkpoint, games: Sequence[Played], summary: Summary
) -> None:
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


class Show(NamedTuple):
    """What is needed to show a game to a person."""

    fps: float  # of the game at its true speed
    has_sprites: bool
    action_names: Sequence[str]
    bounds: "Bounds | None"  # of continuous actions


def _show_of(params: Params, description: EnvDescription) -> Show:
    """Look at the environment; UnsupportedEnv or NoScreen where it cannot be drawn."""
    with contextlib.closing(make_env(params, see=lambda picture: None)) as env:
        if hasattr(env.unwrapped, "mujoco_renderer"):
            opengl.choose()
        is_atari = description.kind == "image"
        fps = ATARI_FPS if is_atari else float(env.metadata.get("render_fps") or ATARI_FPS)
        space: Any = env.action_space
        bounds = (space.low, space.high) if description.is_continuous else None
        return Show(fps, is_atari, description.action_meanings, bounds)


def _play_on_screen(
    arguments: argparse.Namespace, player: "Agent", params: Params, show: Show, n_games: int
) -> Generator[Played, None, None]:
    """Play one game after the other, with the frames of each in a window or film."""
    from a3c.play.eyes import Eyes

    eyes = Eyes(player.subject, show.action_names, show.bounds)
    screen: screens.Window | screens.Film
    if arguments.video is not None:
        rate, seconds = show.fps, arguments.seconds or math.inf
        screen = screens.Film(arguments.video, show.fps, seconds, has_new_colours=show.has_sprites)
    else:
        rate = show.fps * (arguments.speed or 1.0)
        screen = screens.Window(params.env_id, min(rate, WINDOW_FPS))
    projector = views.Projector(screen, views.Panel().array() if arguments.eyes else None)

    def watch(decision: "Decision") -> None:
        if arguments.eyes:
            projector.panel = eyes.draw(decision)

    with contextlib.closing(screen):
        for number in range(n_games):
            game = evaluation.play(
                player,
                params,
                number,
                watch=watch,
                see=projector.see,
                fraction_seen=screen.fps / rate,
            )
            assert game is not None  # nobody stops it
            yield game


if __name__ == "__main__":
    sys.exit(main())
