"""Play a game through the agent's eyes: beside it, the stack of frames that the network would see.

    python3 preprocessing_play.py PongNoFrameskip-v4
    python3 preprocessing_play.py PongNoFrameskip-v4 --record out.gif --steps 120

The environment is the one used in training: the agent decides every fourth frame, rewards are
clipped, and a lost life ends an episode. Play with the arrow keys and space; Escape ends.
"""

import argparse
import contextlib
import itertools
import pathlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from a3c.contract import EnvDescription
from a3c.envs.make import UnsupportedEnv, describe_env, make_env
from a3c.envs.wrappers import NOOP
from a3c.machine import seeding
from a3c.machine.appending import survive_loss_of
from a3c.machine.words import BadInput
from a3c.play import screens, views
from a3c.settings.command_line import Parser
from a3c.settings.params import KNOBS, Params

if TYPE_CHECKING:
    import gymnasium

FPS = 60.0
N_STEPS_RECORDED = 150
KEYS = ("up", "down", "left", "right", "space")
HOLD = 8  # decisions for which the scripted policy keeps each action


def main(argv: Sequence[str] | None = None) -> int:
    """Play or record; returns the exit status."""
    try:
        arguments = _parse(argv)
        params = Params(
            arguments.env_id, seed=arguments.seed, preprocessing=arguments.preprocessing
        )
        description = describe_env(params)
        if not description.is_atari:
            raise BadInput(f"{arguments.env_id} is not an Atari game, and this is for those")
        _play(arguments, params, description)
    except (BadInput, UnsupportedEnv, screens.NoScreen) as error:
        print(f"preprocessing_play.py: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="preprocessing_play.py",
        description="Play a game through the agent's eyes: arrow keys and space play, Escape ends.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("env_id", help="an Atari game, such as PongNoFrameskip-v4 or ALE/Pong-v5")
    add(
        "--preprocessing",
        choices=KNOBS["preprocessing"].choices,
        default=KNOBS["preprocessing"].default,
        help="as in train.py",
    )
    add("--seed", type=int, default=0, metavar="N", help="seed of the random starts [0]")
    add(
        "--policy",
        choices=("random", "scripted"),
        help="let this policy play instead of you [with --record: scripted]",
    )
    add(
        "--steps",
        type=int,
        metavar="N",
        help=f"end after N decisions [with --record: {N_STEPS_RECORDED}]",
    )
    add(
        "--record",
        type=pathlib.Path,
        metavar="FILE",
        help="write a film (.mp4 or .gif) and open no window",
    )
    arguments = parser.parse_args(argv)
    if arguments.seed not in range(2**32):
        raise BadInput(f"--seed {arguments.seed} is out of range")
    if arguments.steps is not None and arguments.steps < 1:
        raise BadInput(f"--steps {arguments.steps} is out of range")
    if arguments.record is not None:
        arguments.policy = arguments.policy or "scripted"
        arguments.steps = arguments.steps or N_STEPS_RECORDED
    return arguments


def action_of(keys: Collection[str], meanings: Sequence[str]) -> int:
    """The game's action that is closest to the pressed keys."""
    vertical = _one_of(keys, "up", "down")
    horizontal = _one_of(keys, "left", "right")
    fire = "FIRE" if "space" in keys else ""
    if vertical and not horizontal and not {"UP", "DOWN"} & set(meanings):
        # In Pong, RIGHT moves the paddle up.
        vertical, horizontal = "", {"UP": "RIGHT", "DOWN": "LEFT"}[vertical]
    directions = [name for name in (vertical + horizontal, horizontal, vertical) if name]
    for name in (*(direction + fire for direction in directions), *directions, fire):
        if name in meanings:
            return meanings.index(name)
    return NOOP


def _one_of(keys: Collection[str], one: str, other: str) -> str:
    """Which of two opposite keys is pressed, in capitals; empty if both or neither are."""
    pressed = {one, other} & set(keys)
    return pressed.pop().upper() if len(pressed) == 1 else ""


def keys_of(meaning: str) -> list[str]:
    """The keys that an action's name stands for."""
    return [key for key in KEYS if {"space": "FIRE"}.get(key, key.upper()) in meaning]


def _play(arguments: argparse.Namespace, params: Params, description: EnvDescription) -> None:
    meanings = description.action_meanings
    with contextlib.ExitStack() as open_things:
        if arguments.record is not None:
            screens.check_film(arguments.record)
            screen: screens.Film | screens.Window = screens.Film(arguments.record, FPS)
        else:
            if not screens.has_display():
                raise BadInput("no display; --record film.mp4 needs none")
            screen = window = screens.Window(arguments.env_id, FPS)
        open_things.enter_context(contextlib.closing(screen))
        projector = views.Projector(screen, views.Panel().array())
        if arguments.policy is None:
            choose: Callable[[], int] = lambda: action_of(window.take_keys(), meanings)  # noqa: E731
        else:
            choose = _actions(arguments.policy, len(meanings), arguments.seed).__next__
        game = make_env(params, see=projector.see, fraction_seen=screen.fps / FPS)
        open_things.enter_context(contextlib.closing(game))
        with contextlib.suppress(screens.Closed):
            _play_games(game, projector, meanings, choose, arguments.steps)
    if arguments.record is not None:
        with survive_loss_of(sys.stdout):
            print(f"{arguments.steps} decisions recorded in {arguments.record}", flush=True)


def _actions(policy: str, n_actions: int, seed: int) -> Iterator[int]:
    """Yield random actions, or each action in turn, HOLD times."""
    generator = seeding.generator(seed, seeding.Purpose.ACTIONS)
    for n in itertools.count():
        yield int(generator.integers(n_actions)) if policy == "random" else n // HOLD % n_actions


def _play_games(
    game: "gymnasium.Env",
    projector: views.Projector,
    meanings: Sequence[str],
    choose: Callable[[], int],
    n_steps: int | None,
) -> None:
    """Play games until there were n_steps decisions, or until the window is closed."""
    emulator: Any = game.unwrapped
    observation, _ = game.reset()
    paid, ended = 0.0, "none yet"
    for n in range(n_steps) if n_steps is not None else itertools.count():
        action = choose()
        state = {
            "decision": f"{n}: {meanings[action]}",
            "reward of the one before, clipped": f"{paid:+g}",
            "score": f"{game.get_wrapper_attr('score'):g}",
            "lives": str(emulator.ale.lives()),
            "latest episode": ended,
        }
        projector.panel = draw_panel(observation, keys_of(meanings[action]), state)
        observation, reward, terminated, truncated, _ = game.step(action)
        paid = float(reward)
        if terminated or truncated:
            finished = game.get_wrapper_attr("take_finished")()
            ended = (
                f"ended with the game, at score {finished[-1].score:g}"
                if finished
                else "ended with a lost life"
            )
            observation, _ = game.reset()


def draw_panel(
    observation: np.ndarray, pressed: Collection[str], state: Mapping[str, str]
) -> np.ndarray:
    """Draw what the agent sees, the keys, and the state of the game."""
    panel = views.Panel()
    panel.head("what the agent sees, oldest on the left")
    panel.observation(observation)
    panel.head("keys")
    panel.keys(KEYS, pressed)
    for name, value in state.items():
        panel.head(name)
        panel.y -= 4
        panel.write(views.MARGIN, value, size=20)
        panel.y += 36
    return panel.array()


if __name__ == "__main__":
    sys.exit(main())
