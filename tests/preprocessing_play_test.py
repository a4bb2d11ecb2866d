"""preprocessing_play.py: keys become the right actions, and the panel shows what training sees."""

import dataclasses
import itertools
import pathlib

import cv2
import numpy as np
import pytest
from PIL import Image

import preprocessing_play
from a3c.envs.make import make_env
from a3c.play import screens, views
from a3c.settings.params import Params
from tests.tools import toys

NUMBERS = "tests.tools.toys:toys/Numbers-v0"
EIGHTEEN = (
    *("NOOP", "FIRE", "UP", "RIGHT", "LEFT", "DOWN", "UPRIGHT", "UPLEFT", "DOWNRIGHT", "DOWNLEFT"),
    *("UPFIRE", "RIGHTFIRE", "LEFTFIRE", "DOWNFIRE", "UPRIGHTFIRE", "UPLEFTFIRE"),
    *("DOWNRIGHTFIRE", "DOWNLEFTFIRE"),
)
PONG = ("NOOP", "FIRE", "RIGHT", "LEFT", "RIGHTFIRE", "LEFTFIRE")
BREAKOUT = ("NOOP", "FIRE", "RIGHT", "LEFT")


pytestmark = pytest.mark.usefixtures("no_display")


@pytest.mark.parametrize(
    ("keys", "meanings", "wanted"),
    [
        *((" ".join(preprocessing_play.keys_of(name)), EIGHTEEN, name) for name in EIGHTEEN),
        ("up down right", EIGHTEEN, "RIGHT"),
        ("left right space", EIGHTEEN, "FIRE"),
        ("up", PONG, "RIGHT"),
        ("down space", PONG, "LEFTFIRE"),
        ("up left", PONG, "LEFT"),
        ("left space", BREAKOUT, "LEFT"),
        ("up space", ("NOOP", "FIRE", "UP"), "UP"),
    ],
)
def test_keys_become_the_nearest_action(keys, meanings, wanted):
    """Analytic: by the emulator's names, of which all eighteen have keys; opposites cancel."""
    assert meanings[preprocessing_play.action_of(keys.split(), meanings)] == wanted


class Typist(screens.Window):
    """Posts the keyboard events of `script`: those of picture n before it is shown."""

    script: dict[int, list[tuple[str, str]]]
    pictures: list[np.ndarray]

    def show(self, image: np.ndarray) -> None:
        pygame = self._pygame
        for kind, key in self.script.get(len(self.pictures), []):
            event = pygame.event.Event(getattr(pygame, kind), key=pygame.key.key_code(key))
            pygame.event.post(event)
        self.pictures.append(image)
        super().show(image)


def test_a_pressed_key_becomes_the_right_action(monkeypatch, capsys):
    """Analytic: the toy records each frame's action. Without a random start, reset shows frames 0 to
    13, and an event posted with picture n affects the next of the decisions after frames 13, 17, …
    """
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    games = []

    def make(params, see, fraction_seen):
        games.append(make_env(dataclasses.replace(params, max_n_noops=0), see=see))
        return games[-1]

    monkeypatch.setattr(preprocessing_play, "make_env", make)
    monkeypatch.setattr(screens, "Window", Typist)
    Typist.pictures = []
    Typist.script = {
        20: [("KEYDOWN", "right")],  # held through frames 22 to 29
        27: [("KEYUP", "right")],
        31: [("KEYDOWN", "space"), ("KEYUP", "space")],  # pressed between two decisions
        40: [("KEYDOWN", "left")],
        50: [("KEYDOWN", "escape")],
    }
    assert preprocessing_play.main([NUMBERS]) == 0
    done = games[0].unwrapped.actions
    meanings = games[0].unwrapped.get_action_meanings()
    names = [meanings[action] for action in done]
    assert names[:13] == ["NOOP"] * 13
    decisions = [names[13 + 4 * i : 17 + 4 * i] for i in range(9)]
    assert [set(decision) for decision in decisions] == [
        {wanted}
        for wanted in ("NOOP", "NOOP", "RIGHT", "RIGHT", "NOOP", "FIRE", "NOOP", "LEFT", "LEFT")
    ]
    assert len(Typist.pictures) == 51
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("preprocessing", ["generic", "pong"])
def test_what_is_shown_is_the_game_and_what_trains(monkeypatch, tmp_path, preprocessing):
    """Golden: frames with their numbers on the left; on the right the stack, to the pixel."""
    shown, seen = [], []

    class Film:
        fps = 60.0

        def show(self, image):
            shown.append(image)

        def close(self):
            pass

    draw_panel = preprocessing_play.draw_panel

    def spy(observation, pressed, state):
        seen.append((observation, len(shown), pressed, state))
        return draw_panel(observation, pressed, state)

    monkeypatch.setattr(screens, "check_film", lambda path: None)
    monkeypatch.setattr(screens, "Film", lambda path, fps: Film())
    monkeypatch.setattr(preprocessing_play, "draw_panel", spy)
    arguments = [NUMBERS, "--record", str(tmp_path / "x.mp4"), "--steps", "10", "--seed", "3"]
    arguments += ["--preprocessing", preprocessing]
    assert preprocessing_play.main(arguments) == 0
    game = make_env(Params(NUMBERS, seed=3, preprocessing=preprocessing))
    observation, _ = game.reset()
    n_before = game.unwrapped.number
    assert len(shown) == n_before + 1 + 10 * 4
    for n, image in enumerate(shown):
        assert image.shape == (views.HEIGHT, 480 + views.PANEL_WIDTH, 3)
        assert toys.read_numbers(image[::3, :480:3]) == {n}
    for i, (stack, n_shown, pressed, state) in enumerate(seen):
        np.testing.assert_array_equal(stack, observation)
        assert n_shown == n_before + 1 + 4 * i
        assert pressed == (["space"] if i >= preprocessing_play.HOLD else [])
        assert state["score"] == str(n_shown * (n_shown - 1) // 2)
        panel = shown[n_shown][:, 480:]
        for j in range(4):
            left = views.MARGIN + j * (2 * 84 + 4)
            drawn = panel[40 : 40 + 2 * 84 : 2, left : left + 2 * 84 : 2]
            np.testing.assert_array_equal(drawn, np.stack([stack[..., j]] * 3, axis=-1))
        observation, *_ = game.step(1 if i >= preprocessing_play.HOLD else 0)
    game.close()


def test_ends_of_episodes_are_told(monkeypatch):
    """Analytic: the toy loses a life every 30 of its 90 frames; after each end it goes on."""
    states, stacks = [], []

    def note(observation, pressed, state):
        states.append(state)
        stacks.append(observation)
        return np.zeros((2, 2, 3), np.uint8)

    monkeypatch.setattr(preprocessing_play, "draw_panel", note)
    params = Params("tests.tools.toys:toys/NumbersWithLives-v0")

    class Nowhere:
        def show(self, image):
            pass

    projector = views.Projector(Nowhere())
    game = make_env(params, see=projector.see)
    preprocessing_play._play_games(game, projector, BREAKOUT, lambda: 0, 25)
    game.close()
    told = list(dict.fromkeys(state["latest episode"] for state in states))
    lost, over = "ended with a lost life", "ended with the game, at score 4095"
    assert told == ["none yet", lost, over]
    assert {state["lives"] for state in states} == {"3", "2", "1"}
    game = make_env(params)
    observation, _ = game.reset()
    for stack in stacks:
        np.testing.assert_array_equal(stack, observation)
        observation, _, terminated, _, _ = game.step(0)
        if terminated:
            observation, _ = game.reset()
    game.close()


@pytest.mark.parametrize("name", ["play.gif", "play.mp4"])
def test_a_record_needs_no_display(tmp_path, capsys, name):
    """Analytic: it has as many decisions as asked for, of four frames each, by either policy."""
    path = tmp_path / name
    more = ["--preprocessing", "pong", "--policy", "random"] if name == "play.gif" else []
    arguments = ["PongNoFrameskip-v4", "--record", str(path), "--steps", "12", *more]
    assert preprocessing_play.main(arguments) == 0
    assert capsys.readouterr() == (f"12 decisions recorded in {path}\n", "")
    if name == "play.gif":
        with Image.open(path) as film:
            assert film.size == (480 + views.PANEL_WIDTH, views.HEIGHT)
            assert film.n_frames >= 12
    else:
        film = cv2.VideoCapture(str(path))
        assert film.get(cv2.CAP_PROP_FRAME_COUNT) >= 4 * 12 + 14


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["PongNoFrameskip-v4"], "no display; --record film.mp4 needs none"),
        (["CartPole-v1", "--record", "x.gif"], "CartPole-v1 is not an Atari game"),
        (["Pendulum-v1"], "Pendulum-v1 is not an Atari game"),
        (["Nowhere-v7"], "unknown environment Nowhere-v7"),
        ([NUMBERS, "--record", "x.avi"], "films are .mp4 or .gif"),
        ([NUMBERS, "--record", "nowhere/x.gif"], "cannot write nowhere/x.gif"),
        ([NUMBERS, "--record", "x.gif", "--steps", "0"], "--steps 0 is out of range"),
        ([NUMBERS, "--record", "x.gif", "--seed", "-1"], "--seed -1 is out of range"),
    ],
)
def test_bad_input_gets_one_line(tmp_path, monkeypatch, capsys, arguments, words):
    """Analytic: status 2, and nothing on stdout."""
    monkeypatch.chdir(tmp_path)
    assert preprocessing_play.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("preprocessing_play.py: error: ")
    assert err.count("\n") == 1
    assert words in err
    assert list(pathlib.Path().iterdir()) == []


def test_random_play_is_random():
    """Analytic: every action comes, and another seed gives others."""
    first, again, other = (
        [*itertools.islice(preprocessing_play._actions("random", 6, seed), 50)]
        for seed in (0, 0, 1)
    )
    assert first == again != other
    assert {*first} == {*range(6)}
