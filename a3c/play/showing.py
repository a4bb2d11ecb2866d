"""Games that somebody watches: in a window at their true speed, or in a film."""

import contextlib
import math
import pathlib
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from a3c.contract import EnvDescription
from a3c.envs.make import make_env
from a3c.play import evaluation, opengl, screens, views
from a3c.play.evaluation import Played
from a3c.settings.params import Params

if TYPE_CHECKING:
    from a3c.play.agent import Agent, Decision
    from a3c.play.eyes import Bounds

ATARI_FPS = WINDOW_FPS = 60.0


class Options(NamedTuple):
    """What the watcher asked for."""

    film: pathlib.Path | None = None  # None: in a window
    seconds: float = math.inf  # of a film
    speed: float = 1.0  # of a window
    eyes: bool = False  # also what the agent sees and thinks
    greedy: bool = False


class Show(NamedTuple):
    """What is needed to show a game to a person."""

    fps: float  # of the game at its true speed
    has_sprites: bool
    action_names: Sequence[str]
    bounds: "Bounds | None"  # of continuous actions


def show_of(params: Params, description: EnvDescription) -> Show:
    """Look at the environment; UnsupportedEnv or NoScreen where it cannot be drawn."""
    with contextlib.closing(make_env(params, see=lambda picture: None)) as env:
        if hasattr(env.unwrapped, "mujoco_renderer"):
            opengl.choose()
        is_atari = description.is_atari
        fps = ATARI_FPS if is_atari else float(env.metadata.get("render_fps") or ATARI_FPS)
        space: Any = env.action_space
        bounds = (space.low.ravel(), space.high.ravel()) if description.is_continuous else None
        return Show(fps, is_atari, description.action_meanings, bounds)


def play_on_screen(
    player: "Agent", params: Params, show: Show, n_games: int, options: Options
) -> Generator[Played, None, None]:
    """Play one game after the other, with the frames of each in a window or film."""
    from a3c.play.eyes import Eyes

    eyes = Eyes(player.subject, show.action_names, show.bounds)
    screen: screens.Window | screens.Film
    if options.film is not None:
        rate, seconds = show.fps, options.seconds
        screen = screens.Film(options.film, show.fps, seconds, has_new_colours=show.has_sprites)
    else:
        rate = show.fps * options.speed
        screen = screens.Window(params.env_id, min(rate, WINDOW_FPS))
    projector = views.Projector(screen, views.Panel().array() if options.eyes else None)

    def watch(decision: "Decision") -> None:
        if options.eyes:
            projector.panel = eyes.draw(decision)

    with contextlib.closing(screen):
        for number in range(n_games):
            game = evaluation.play(
                player,
                params,
                number,
                greedy=options.greedy,
                watch=watch,
                see=projector.see,
                fraction_seen=screen.fps / rate,
            )
            assert game is not None  # nobody stops it
            yield game
