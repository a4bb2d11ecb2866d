"""run_checkpoint.py as its user meets it: what it prints, writes, films, shows and refuses."""

import json
import pathlib
import re
import shutil
import sys
from collections.abc import Iterator
from typing import NamedTuple

import cv2
import numpy as np
import pytest
from PIL import Image

import run_checkpoint
from a3c.agent import network
from a3c.play import evaluation, screens, views
from a3c.store import checkpoint_files
from tests.tools import agents
from tests.tools.agents import CARTPOLE, SHORT_PONG, save


@pytest.fixture(autouse=True)
def no_display(monkeypatch):
    """Whoever runs the tests may have one; and TensorFlow's threads are configured only once."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.setenv(name, "")  # so that it is put back, whatever happens to it meanwhile
        monkeypatch.delenv(name)
    monkeypatch.setattr(network, "start_tensorflow", lambda: None)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run folder with a checkpoint of CartPole, and the same of a Pong that ends early."""
    folder = tmp_path_factory.mktemp("runs")
    save(folder / "cartpole/checkpoints", CARTPOLE)
    save(folder / "pong/checkpoints", SHORT_PONG)
    return folder


class Played(NamedTuple):
    """A game played apart from the program, and what a person would see of it."""

    game: evaluation.Game
    frames: list[np.ndarray]


def play_apart(made: pathlib.Path, name: str, n_games: int, seed: int = 0) -> list[Played]:
    info = checkpoint_files.read_info(checkpoint_files.find(made / name))
    policy, played = evaluation.load_policy(info), []
    for number in range(n_games):
        frames: list[np.ndarray] = []
        settings = evaluation.settings_of(info.subject, seed)
        here = evaluation.EnvHere(settings, number, frames.append)
        played.append(Played(evaluation.play_game(policy, here, seed, number), frames))
        here.close()
    return played


def test_scores_are_printed_and_written(made, tmp_path, capsys):
    """Golden: line for line, against games played apart; NaN never gets into the JSON."""
    path = tmp_path / "scores.json"
    arguments = ["--episodes", "3", "--json", str(path), "--n_envs", "2", "--seed", "4"]
    assert run_checkpoint.main([str(made / "cartpole"), *arguments]) == 0
    games = [game for game, _ in play_apart(made, "cartpole", 3, seed=4)]
    scores = [game.score for game in games]
    out, err = capsys.readouterr()
    first, *lines, last = out.splitlines()
    prefix = made / "cartpole/checkpoints/ckpt-70"
    assert first == f"{prefix}: CartPole-v1 after 70 steps; 3 games, sampled actions, seed 4"
    assert sorted(lines) == [
        f"game {game.number:3}: score {game.score:g}, {game.length} steps" for game in games
    ]
    assert last == (
        f"3 games: mean {np.mean(scores):.2f}, sd {np.std(scores, ddof=1):.2f},"
        f" median {np.median(scores):g}, min {min(scores):g}, max {max(scores):g}"
    )
    assert err == ""
    written = json.loads(path.read_text())
    assert written["games"] == [game._asdict() for game in games]
    assert written["summary"]["mean"] == np.mean(scores)
    assert written["summary"]["human_normalised"] is None
    named = {name: written[name] for name in ("env_id", "checkpoint", "steps", "seed", "greedy")}
    assert named == {
        "env_id": "CartPole-v1",
        "checkpoint": str(prefix),
        "steps": 70,
        "seed": 4,
        "greedy": False,
    }


def test_any_name_of_a_checkpoint_will_do(made, capsys):
    """Analytic: with the environment or without, and flags before, between or behind."""
    folder = made / "cartpole/checkpoints"
    outs = []
    for words in (
        [folder, "--episodes", "1", "--greedy"],
        ["CartPole-v1", "--episodes", "1", folder / "ckpt-70", "--greedy"],
        ["--greedy", "--episodes", "1", "CartPole-v1", folder / "ckpt-70.index", "--no_render"],
    ):
        assert run_checkpoint.main([str(word) for word in words]) == 0
        outs.append(capsys.readouterr().out)
    assert "1 game, the likeliest actions, seed 0\n" in outs[0]
    assert "sd" not in outs[0]
    assert outs[1:] == outs[:1] * 2


def test_what_was_over_when_it_is_interrupted_is_summed_up(made, tmp_path, monkeypatch, capsys):
    """Golden: and 130; but no file, for short games are over sooner than long ones."""
    path, play_many = tmp_path / "scores.json", evaluation.play_many

    def press_ctrl_c(*arguments: object) -> Iterator[evaluation.Game]:
        games = play_many(*arguments)
        yield from (next(games), next(games))
        games.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluation, "play_many", press_ctrl_c)
    arguments = ["--episodes", "9", "--n_envs", "1", "--json", str(path)]
    assert run_checkpoint.main([str(made / "cartpole"), *arguments]) == 130
    *_, first, second, told, last = capsys.readouterr().out.splitlines()
    assert first.startswith("game   0: ")
    assert second.startswith("game   1: ")
    assert told == "interrupted: of 9 games, those that were over by then"
    assert last.startswith("2 games: mean ")
    assert not path.exists()


@pytest.mark.weekly
def test_a_policy_that_never_starts_breakout_is_cut_off(tmp_path, monkeypatch, capsys):
    """Analytic: with weights of 0 the likeliest action is the first, NOOP, and the ball waits for
    FIRE: 108,000 frames, the 0 to 30 and 13 no-ops before the first decision among them."""

    def zeros(subject: checkpoint_files.Subject) -> dict[str, np.ndarray]:
        return {name: np.zeros_like(weight) for name, weight in make_weights(subject).items()}

    make_weights = agents.make_weights
    monkeypatch.setattr(agents, "make_weights", zeros)
    breakout = SHORT_PONG._replace(env_id="BreakoutNoFrameskip-v4", n_actions=4)
    save(tmp_path, breakout)
    assert run_checkpoint.main([str(tmp_path), "--episodes", "1", "--greedy"]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    length = re.fullmatch(r"game   0: score 0, ([\d,]+) steps, cut off by 108,000 frames", line)
    assert length is not None, line
    assert 108_000 - 43 <= 4 * int(length[1].replace(",", "")) <= 108_000 - 13 + 3


def read_film(path: pathlib.Path) -> list[np.ndarray]:
    """All pictures of a film, RGB."""
    if path.suffix == ".gif":
        with Image.open(path) as film:
            return [
                np.asarray((film.seek(i), film.convert("RGB"))[1]) for i in range(film.n_frames)
            ]
    film, pictures = cv2.VideoCapture(str(path)), []
    while (read := film.read())[0]:
        pictures.append(cv2.cvtColor(read[1], cv2.COLOR_BGR2RGB))
    return pictures


def test_an_mp4_holds_every_frame(made, tmp_path, capsys):
    """Golden: of a Pong of 150 frames, three times as large, within what H.264 loses."""
    path = tmp_path / "film.mp4"
    assert run_checkpoint.main([SHORT_PONG.env_id, str(made / "pong"), "--video", str(path)]) == 0
    out = capsys.readouterr().out
    assert ", cut off by 108,000 frames\n" in out
    assert out.endswith(f"filmed in {path}\n")
    ((_, frames),) = play_apart(made, "pong", 1)
    pictures = read_film(path)
    assert len(pictures) == len(frames) >= 150
    film = cv2.VideoCapture(str(path))
    assert film.get(cv2.CAP_PROP_FPS) == 60
    assert int(film.get(cv2.CAP_PROP_FOURCC)).to_bytes(4, "little") in (b"avc1", b"h264")
    for frame, picture in zip(frames[::30], pictures[::30], strict=True):
        large = frame.repeat(3, axis=0).repeat(3, axis=1)
        assert picture.shape == large.shape
        # At a distance from edges, where chroma is coarse.
        assert np.median(np.abs(picture.astype(int) - large)) <= 4


def test_a_gif_holds_a_quarter_of_them(made, tmp_path, capsys):
    """Golden: 15 pictures a second, each of two frames' brighter pixels; with the eyes beside."""
    path = tmp_path / "film.gif"
    assert (
        run_checkpoint.main([SHORT_PONG.env_id, str(made / "pong"), "--video", str(path), "--eyes"])
        == 0
    )
    ((_, frames),) = play_apart(made, "pong", 1)
    pictures = read_film(path)
    with Image.open(path) as film:
        durations = [film.seek(i) or film.info["duration"] for i in range(film.n_frames)]
    assert sum(durations) == pytest.approx(len(frames) // 4 * 1000 / 15, abs=10)
    assert pictures[0].shape == (630, 480 + views.PANEL_WIDTH, 3)
    wanted = np.maximum(frames[2], frames[3]).repeat(3, axis=0).repeat(3, axis=1)
    np.testing.assert_allclose(pictures[0][:, :480], wanted, atol=8)
    assert pictures[0][:, 480:].std() < pictures[-1][:, 480:].std()  # nothing decided yet


def test_a_film_is_as_long_as_was_asked_for(made, tmp_path, capsys):
    """Golden: 2 of the 2.5 seconds that the first of many games takes; no more is played."""
    path = tmp_path / "film.mp4"
    arguments = ["--episodes", "100", "--video", str(path), "--seconds", "2"]
    assert run_checkpoint.main([SHORT_PONG.env_id, str(made / "pong"), *arguments]) == 0
    assert len(read_film(path)) == 120
    *_, why, none, filmed = capsys.readouterr().out.splitlines()
    assert why == "the film is long enough"
    assert none == "no game was played to its end"
    assert filmed == f"filmed in {path}"


def test_vectors_are_filmed_too(made, tmp_path, capsys):
    """Analytic: two games of CartPole, one after the other, as Gymnasium draws it."""
    path = tmp_path / "film.mp4"
    arguments = ["--episodes", "2", "--video", str(path), "--eyes"]
    assert run_checkpoint.main([str(made / "cartpole"), *arguments]) == 0
    played = play_apart(made, "cartpole", 2)
    assert len(read_film(path)) == sum(game.length + 1 for game, _ in played)
    assert cv2.VideoCapture(str(path)).get(cv2.CAP_PROP_FPS) == 50


def test_a_window_shows_the_game_until_it_is_closed(made, monkeypatch, capsys):
    """Analytic: SDL's dummy driver stands in for a display; the 20th picture is the last."""
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    shown = []

    class Watched(screens.Window):
        def show(self, image):
            shown.append(image)
            if len(shown) == 20:
                self._pygame.event.post(self._pygame.event.Event(self._pygame.QUIT))
            super().show(image)

    monkeypatch.setattr(screens, "Window", Watched)
    arguments = ["--speed", "1.5", "--eyes", "--episodes", "9"]
    assert run_checkpoint.main([str(made / "cartpole"), *arguments]) == 0
    assert "the window was closed\n" in capsys.readouterr().out
    assert len(shown) == 20
    assert {image.shape for image in shown} == {(630, 600 + views.PANEL_WIDTH, 3)}


@pytest.mark.parametrize(
    ("name", "speed", "fps", "share"),
    [
        ("cartpole", None, 50, 1),
        ("cartpole", "0.5", 25, 1),
        ("cartpole", "2", 60, 0.6),  # a hundred a second, of which the window shows sixty
        ("pong", None, 60, 1),
        ("pong", "4", 60, 0.25),
    ],
)
def test_a_window_has_the_games_speed(made, monkeypatch, capsys, name, speed, fps, share):
    """Analytic: pictures a second, and how many of the game's there are."""
    windows = []

    class Kept:
        def __init__(self, title, fps):
            self.title, self.fps, self.n_shown = title, fps, 0
            windows.append(self)

        def show(self, image):
            self.n_shown += 1

        def close(self):
            pass

    monkeypatch.setattr(screens, "Window", Kept)
    monkeypatch.setattr(screens, "has_display", lambda: True)
    env_id = {"cartpole": CARTPOLE, "pong": SHORT_PONG}[name].env_id
    more = [] if speed is None else ["--speed", speed]
    assert run_checkpoint.main([env_id, str(made / name), "--episodes", "1", *more]) == 0
    ((_, frames),) = play_apart(made, name, 1)
    (window,) = windows
    assert window.fps == fps
    assert abs(window.n_shown - share * len(frames)) <= 1
    assert window.title == env_id


def damage(folder: pathlib.Path) -> None:
    path = next(folder.glob("*.data*"))
    path.write_bytes(path.read_bytes()[:-1])


REFUSED = {
    "nothing": ([], "checkpoint"),
    "no such folder": (["nowhere"], "no checkpoint at nowhere"),
    "foreign": (["foreign.json"], "cannot read foreign.json"),
    "damaged": (["damaged"], "is missing or damaged"),
    "another environment": (["Acrobot-v1", "run"], "plays CartPole-v1, not Acrobot-v1"),
    "another environment, not there": (["Nowhere-v7", "run"], "plays CartPole-v1, not Nowhere-v7"),
    "three names": (["CartPole-v1", "run", "run"], "unrecognized arguments: run"),
    "an unknown flag": (["run", "--nothing"], "unrecognized arguments: --nothing"),
    "a length of no film": (["run", "--seconds", "9"], "there is none without --video"),
    "scores of half a game": (
        ["run", "--video", "x.gif", "--seconds", "9", "--json", "x"],
        "--json is for games that are played to their end",
    ),
    "a film of no length": (
        ["run", "--video", "film.gif", "--seconds", "0"],
        "no length of a film",
    ),
    "no games": (["run", "--episodes", "0"], "out of range"),
    "half a game": (["run", "--episodes", "0.5"], "not a whole number"),
    "a seed too many": (["run", "--seed", "-1"], "--seed"),
    "another film": (["run", "--video", "film.avi"], "films are .mp4 or .gif"),
    "a film nowhere": (["run", "--video", "nowhere/film.mp4"], "cannot write nowhere/film.mp4"),
    "scores nowhere": (["run", "--json", "nowhere/x.json"], "cannot write nowhere/x.json"),
    "eyes without a display": (["run", "--eyes"], "--eyes needs a window, but there is no display"),
    "eyes without a window": (["run", "--eyes", "--no_render"], "but --no_render opens none"),
    "speed without a display": (["run", "--speed", "2"], "--speed needs a window"),
    "speed of a film": (["run", "--speed", "2", "--video", "film.mp4"], "a film has"),
    "no speed": (["run", "--speed", "nan"], "is no speed"),
}


@pytest.mark.parametrize(("arguments", "words"), REFUSED.values(), ids=REFUSED)
def test_bad_input_gets_one_line(made, tmp_path, monkeypatch, capsys, arguments, words):
    """Analytic: status 2, and nothing on stdout."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made / "cartpole", "run")
    shutil.copytree(made / "cartpole", "damaged")
    damage(tmp_path / "damaged/checkpoints")
    (tmp_path / "foreign.json").write_text('{"weights": 1}')
    assert run_checkpoint.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("run_checkpoint.py: error: ")
    assert err.count("\n") == 1
    assert words in err


def test_an_environment_that_has_changed_is_refused(tmp_path, capsys):
    """Analytic: its name is the same, but not what it shows."""
    save(tmp_path, CARTPOLE._replace(observation_shape=(5,)))
    assert run_checkpoint.main([str(tmp_path)]) == 2
    assert "observation shape (5,), this run has (4,)" in capsys.readouterr().err


def test_a_module_is_not_imported_because_a_checkpoint_says_so(tmp_path, capsys):
    """Analytic: somebody else's could name any; whoever plays it names it, too."""
    save(tmp_path, CARTPOLE._replace(env_id="this:X-v0"))
    assert run_checkpoint.main([str(tmp_path)]) == 2
    words = r"\S+ plays this:X-v0, which runs the code of a module: if you trust that, name it .*\n"
    assert re.fullmatch(f"run_checkpoint.py: error: {words}", capsys.readouterr().err)
    assert "this" not in sys.modules


def test_an_environment_that_draws_nothing_cannot_be_filmed(tmp_path, capsys):
    """Analytic: but it can be played."""
    toy = CARTPOLE._replace(env_id="tests.tools.toys:toys/Vector-v0", observation_shape=(2,))
    save(tmp_path, toy)
    assert run_checkpoint.main([toy.env_id, str(tmp_path), "--episodes", "1"]) == 0
    capsys.readouterr()
    film = ["--video", str(tmp_path / "x.gif")]
    assert run_checkpoint.main([toy.env_id, str(tmp_path), *film]) == 2
    assert "draws no pictures" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ffmpeg", "words"),
    [
        (None, "no ffmpeg for this machine"),
        ("/nowhere/ffmpeg", "No such file or directory: '/nowhere/ffmpeg'"),
        (
            "#!/bin/sh\necho \"Unknown encoder 'libx264'\" >&2\nexit 8\n",
            "Unknown encoder 'libx264'",
        ),
        ("#!/bin/sh\nprintf '\\377 no text' >&2\nexit 8\n", "\ufffd no text"),
        ("#!/bin/sh\nexit 8\n", "ffmpeg failed\n"),
    ],
)
def test_a_missing_codec_gets_one_line(made, tmp_path, monkeypatch, capfd, ffmpeg, words):
    """Analytic: no ffmpeg at all, none where it should be, or one that cannot write H.264, whatever
    it says of that. Before anything is played; no empty film is left."""
    import imageio_ffmpeg

    def find() -> str:
        if ffmpeg is None:
            raise RuntimeError(words)
        if ffmpeg.startswith("/"):
            return ffmpeg
        (tmp_path / "ffmpeg").write_text(ffmpeg)
        (tmp_path / "ffmpeg").chmod(0o755)
        return str(tmp_path / "ffmpeg")

    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", find)
    film = tmp_path / "film.mp4"
    assert run_checkpoint.main([str(made / "cartpole"), "--video", str(film), "--eyes"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert not film.exists()
    assert err.startswith(f"run_checkpoint.py: error: cannot write {film}")
    assert err.count("\n") == 1
    assert words in err


def test_a_broken_environment_ends_it_with_1(tmp_path, capsys):
    """Analytic: what broke is said."""
    toy = CARTPOLE._replace(env_id="tests.tools.toys:toys/RaisesInStep-v0", observation_shape=(2,))
    save(tmp_path, toy)
    assert run_checkpoint.main([toy.env_id, str(tmp_path), "--episodes", "1"]) == 1
    assert "the joystick broke" in capsys.readouterr().err
