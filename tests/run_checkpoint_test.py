"""run_checkpoint.py as its user meets it: what it prints, writes, films, shows and refuses."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from a3c.contract import Subject
from a3c.play import agent, command, evaluation, opengl, screens, views
from a3c.play.evaluation import Played
from a3c.store import checkpoint
from tests.tools import processes
from tests.tools.agents import CARTPOLE, PAINTED, SHORT_PONG, play_here, save


@pytest.fixture(autouse=True)
def once(no_display, monkeypatch):
    """TensorFlow's threads are configured only once."""
    monkeypatch.setattr(command, "start_tensorflow", lambda: None)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run folder with a checkpoint of CartPole, and the same of a Pong that ends early."""
    folder = tmp_path_factory.mktemp("runs")
    save(folder / "cartpole/checkpoints", CARTPOLE)
    save(folder / "pong/checkpoints", SHORT_PONG)
    save(folder / "painted/checkpoints", PAINTED)
    return folder


def play_apart(
    made: pathlib.Path, name: str, n_games: int, seed: int = 0
) -> list[tuple[Played, list[np.ndarray]]]:
    """Games played apart from the program, and the frames that a person would see of each."""
    player = agent.load(checkpoint.read(checkpoint.find(made / name)))
    return [play_here(player, number, seed) for number in range(n_games)]


def test_scores_are_printed_and_written(made, tmp_path, capsys, monkeypatch):
    """Golden: line for line, compared with games played apart from the program; as many at once as asked for."""
    n_at_once, play_many = [], evaluation.play_many

    def noted(player, params, n_games, n, *more):
        n_at_once.append(n)
        return play_many(player, params, n_games, n, *more)

    monkeypatch.setattr(evaluation, "play_many", noted)
    path = tmp_path / "scores.json"
    arguments = ["--episodes", "3", "--json", str(path), "--n_envs", "2", "--seed", "4"]
    assert command.main([str(made / "cartpole"), *arguments]) == 0
    assert n_at_once == [2]
    games = [game for game, _ in play_apart(made, "cartpole", 3, seed=4)]
    scores = [game.score for game in games]
    out, err = capsys.readouterr()
    first, *lines, last = out.splitlines()
    path_of_70 = made / "cartpole/checkpoints/ckpt-70.safetensors"
    assert first == f"{path_of_70}: CartPole-v1 after 70 steps; 3 games, sampled actions, seed 4"
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
    names = ("env_id", "checkpoint", "steps", "seed", "greedy")
    assert [written[name] for name in names] == ["CartPole-v1", str(path_of_70), 70, 4, False]


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, capsys):
    """Golden: in a run's folder; which one is played is said, and why."""
    newer = save(tmp_path / "checkpoints").path.with_name("ckpt-80.safetensors")
    newer.write_bytes(b"cut short")
    assert command.main([str(tmp_path), "--episodes", "1"]) == 0
    out, err = capsys.readouterr()
    older = tmp_path / "checkpoints/ckpt-70.safetensors"
    assert out.startswith(f"{older}: CartPole-v1 after 70 steps;")
    assert re.fullmatch(rf"run_checkpoint\.py: note: cannot read {newer}: .*; using {older}\n", err)
    assert command.main([str(newer), "--episodes", "1"]) == 2  # it was asked for by name


def test_a_reader_that_has_gone_stops_no_games(made, tmp_path, monkeypatch, capsys):
    """Analytic: as with `| head`; the scores are written all the same."""
    path = tmp_path / "scores.json"
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        words = ["--no_render", "--episodes", "2", "--json", str(path)]
        assert command.main([str(made / "cartpole"), *words]) == 0
    assert capsys.readouterr().err == ""
    assert len(json.loads(path.read_text())["games"]) == 2


def test_scores_replace_a_whole_file_or_none(made, tmp_path, monkeypatch):
    """Analytic: a full disk leaves the old scores; a link's target is written, and so is a pipe."""
    link, target, pipe = (tmp_path / name for name in ("link", "target", "pipe"))
    target.write_text("old scores")
    link.symlink_to(target)
    os.mkfifo(pipe)
    words = [str(made / "cartpole"), "--no_render", "--episodes", "1", "--json"]

    def fail(number: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        assert command.main([*words, str(link)]) == 2
    assert target.read_text() == "old scores"
    assert command.main([*words, str(link)]) == 0
    assert link.is_symlink()
    reader = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    assert command.main([*words, str(pipe)]) == 0
    assert os.read(reader, 65536) == target.read_bytes()
    os.close(reader)


def test_any_name_of_a_checkpoint_will_do(made, capsys):
    """Analytic: with the environment or without, and flags before, between or behind."""
    folder = made / "cartpole/checkpoints"
    path = folder / "ckpt-70.safetensors"
    outs = []
    for words in (
        [folder, "--episodes", "1", "--greedy"],
        ["CartPole-v1", "--episodes", "1", folder.parent, "--greedy"],
        ["--greedy", "--episodes", "1", "CartPole-v1", path, "--no_render"],
    ):
        assert command.main([str(word) for word in words]) == 0
        outs.append(capsys.readouterr().out)
    assert "1 game, the likeliest actions, seed 0\n" in outs[0]
    assert "sd" not in outs[0]
    assert outs[1:] == outs[:1] * 2


def test_what_was_over_when_it_is_interrupted_is_summed_up(made, tmp_path, monkeypatch, capsys):
    """Golden: with status 130, but no file is written, because short games end first."""
    path, play_many = tmp_path / "scores.json", evaluation.play_many

    def press_ctrl_c(*arguments: object) -> Iterator[Played]:
        games = play_many(*arguments)
        yield from (next(games), next(games))
        games.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluation, "play_many", press_ctrl_c)
    arguments = ["--episodes", "9", "--n_envs", "1", "--json", str(path)]
    assert command.main([str(made / "cartpole"), *arguments]) == 130
    *_, first, second, told, last = capsys.readouterr().out.splitlines()
    assert first.startswith("game   0: ")
    assert second.startswith("game   1: ")
    assert told == "interrupted: only some of 9 games had ended"
    assert last.startswith("2 games: mean ")
    assert not path.exists()


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
    """Golden: of a Pong of 150 frames, three times as large, within the losses of H.264."""
    path = tmp_path / "film.mp4"
    assert command.main([SHORT_PONG.env_id, str(made / "pong"), "--video", str(path)]) == 0
    out = capsys.readouterr().out
    assert ", ended by a time limit\n" in out
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
    """Golden: 15 pictures a second, each with the brighter pixels of two frames, beside the eyes."""
    path = tmp_path / "film.gif"
    assert (
        command.main([SHORT_PONG.env_id, str(made / "pong"), "--video", str(path), "--eyes"]) == 0
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


def test_a_film_of_continuous_actions_shows_every_third_step(made, tmp_path, capsys):
    """Golden: of two games of 21 frames, 40 a second; a GIF has about 15, and no picture merges two."""
    path = tmp_path / "film.gif"
    arguments = [PAINTED.env_id, str(made / "painted"), "--video", str(path), "--episodes", "2"]
    assert command.main([*arguments, "--eyes"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1:3] == [
        f"game   {n}: score {game.score:g}, 20 steps, ended by a time limit"
        for n, (game, _) in enumerate(play_apart(made, "painted", 2))
    ]
    pictures = read_film(path)
    assert {picture.shape for picture in pictures} == {(630, 600 + views.PANEL_WIDTH, 3)}
    brightness = [np.unique(picture[20:600, :580]) for picture in pictures]
    np.testing.assert_allclose(
        np.concatenate(brightness), [*range(20, 201, 30)] * 2, atol=views.TRACK[0] // 8
    )
    panels = np.stack(pictures)[:, :, 600:]
    assert (panels[:-1] != panels[1:]).any(axis=(1, 2, 3)).all()


@pytest.mark.parametrize(
    ("name", "episodes", "more", "fps"),
    [("pong", 100, ["--seconds", "2"], 60), ("cartpole", 2, ["--eyes"], 50)],
)
def test_a_film_is_as_long_as_was_asked_for(made, tmp_path, capsys, name, episodes, more, fps):
    """Golden: 2 of the 2.5 seconds of the first of many games; or two whole games of CartPole."""
    path = tmp_path / "film.mp4"
    env_id = {"cartpole": CARTPOLE, "pong": SHORT_PONG}[name].env_id
    arguments = [env_id, str(made / name), "--video", str(path), *more]
    assert command.main([*arguments, "--episodes", str(episodes)]) == 0
    said = capsys.readouterr().out
    assert said.endswith(f"filmed in {path}\n")
    if name == "pong":
        n_pictures = 120
        assert "the film has its full length\nno game was played to its end\n" in said
    else:
        n_pictures = sum(game.length + 1 for game, _ in play_apart(made, name, episodes))
    assert len(read_film(path)) == n_pictures
    assert cv2.VideoCapture(str(path)).get(cv2.CAP_PROP_FPS) == fps


def test_the_likeliest_actions_are_played_where_they_are_asked_for(made, tmp_path, monkeypatch):
    """Analytic: with a film and without."""
    asked, play_game = [], evaluation.play_game

    def spy(*arguments: Any, greedy: bool, **more: Any) -> Played | None:
        asked.append(greedy)
        return play_game(*arguments, greedy=greedy, **more)

    monkeypatch.setattr(evaluation, "play_game", spy)
    for film in ([], ["--video", str(tmp_path / "film.mp4"), "--seconds", "0.1"]):
        for greedy in ([], ["--greedy"]):
            arguments = ["--episodes", "1", *film, *greedy]
            assert command.main([str(made / "cartpole"), *arguments]) == 0
    assert asked == [False, True] * 2


def test_no_window_opens_where_none_is_wanted(made, monkeypatch, capsys):
    """Analytic: there is a display; the usual number of games is that of the protocol."""
    monkeypatch.setattr(screens, "has_display", lambda: True)
    monkeypatch.setattr(screens, "Window", lambda *_: pytest.fail("a window opened"))
    assert command.main([str(made / "cartpole"), "--no_render"]) == 0
    assert "; 30 games, sampled actions, seed 0\n" in capsys.readouterr().out


def test_a_window_shows_the_game_until_it_is_closed(made, monkeypatch, capsys):
    """Analytic: SDL's dummy driver stands in for a display; the 20th picture is the last.

    No file gets a part of an evaluation.
    """
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
    scores = made / "closed.json"
    assert command.main([str(made / "cartpole"), *arguments, "--json", str(scores)]) == 0
    printed = capsys.readouterr().out
    assert "the window was closed\n" in printed
    assert f"{scores} is not written" in printed
    assert not scores.exists()
    assert len(shown) == 20
    assert {image.shape for image in shown} == {(630, 600 + views.PANEL_WIDTH, 3)}


@pytest.mark.parametrize(
    ("name", "speed", "fps", "share"),
    [
        ("cartpole", "0.5", 25, 1),
        ("cartpole", "2", 60, 0.6),  # a hundred a second, of which the window shows sixty
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
    more = ["--episodes", "1", "--speed", speed]
    assert command.main([env_id, str(made / name), *more]) == 0
    ((_, frames),) = play_apart(made, name, 1)
    (window,) = windows
    assert window.fps == fps
    assert abs(window.n_shown - share * len(frames)) <= 1
    assert window.title == env_id


REFUSED = [
    (["nowhere"], "no checkpoint at nowhere"),
    (["foreign.safetensors"], "cannot read foreign.safetensors"),
    (["damaged"], "cannot read damaged/checkpoints/ckpt-70.safetensors"),
    (["old"], "revision 243b5dc reads those"),  # of TensorFlow's form
    (["other"], "observation shape (5,), this run has (4,)"),
    (["Acrobot-v1", "run"], "plays CartPole-v1, not Acrobot-v1"),
    (["run", "--seconds", "9"], "it needs --video"),
    (
        ["run", "--video", "x.gif", "--seconds", "9", "--json", "x"],
        "--json needs games that are played to their end",
    ),
    (["run", "--video", "film.gif", "--seconds", "0"], "'0' is no number from 0.01 to 1,000,000"),
    (["run", "--episodes", "0"], "'0' is no whole number from 1 to 1,000,000"),
    (["run", "--seed", "-1"], "--seed"),
    (["run", "--video", "film.avi"], "films are .mp4 or .gif"),
    (["run", "--json", "nowhere/x.json"], "cannot write nowhere/x.json"),
    (["run", "--eyes"], "--eyes needs a window, but there is no display"),
    (["run", "--speed", "2", "--no_render"], "--speed needs a window, but --no_render opens none"),
    (["run", "--speed", "2", "--video", "film.mp4"], "a film has"),
    (["run", "--speed", "2", "--export", "agent"], "a film has"),
    (["run", "--eyes", "--export", "agent", "--no_film"], "leave out --no_film"),
    (["run", "--speed", "nan"], "'nan' is no number"),
    (["continuous"], "is for continuous actions, its environment is not"),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSED)
def test_bad_input_gets_one_line(made, tmp_path, monkeypatch, capsys, arguments, words):
    """Analytic: status 2, and nothing on stdout."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made / "cartpole", "run")
    shutil.copytree(made / "cartpole", "damaged")
    damaged = tmp_path / "damaged/checkpoints/ckpt-70.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    save(tmp_path / "other", CARTPOLE._replace(observation_shape=(5,)))
    save(tmp_path / "continuous", CARTPOLE._replace(policy="per_state"))
    (tmp_path / "foreign.safetensors").write_text('{"weights": 1}')
    (tmp_path / "old").mkdir()
    (tmp_path / "old/ckpt-70.index").touch()
    assert command.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("run_checkpoint.py: error: ")
    assert err.count("\n") == 1
    assert words in err


JSON = r'b="this\u003aW"'


def test_a_module_is_not_imported_because_a_checkpoint_says_so(tmp_path, capsys):
    """Analytic: a foreign checkpoint could name any module, so the user has to name it, too, or to do
    without it; the line says how.
    """
    for changed, words, first, last in (
        ({"env_id": "this:X-v0"}, "this:X-v0", "this:X-v0 ", ""),
        ({"wrapper": "this:W"}, "--wrapper this:W", "", " --wrapper this:W"),
        ({"env_kwargs": ("b=this:W",)}, "--env_kwargs b=this:W", "", " --env_kwargs b=this:W"),
        ({"env_kwargs": (JSON,)}, f"--env_kwargs '{JSON}'", "", f" --env_kwargs '{JSON}'"),
    ):
        save(tmp_path, CARTPOLE._replace(**changed))
        assert command.main([str(tmp_path)]) == 2
        err = capsys.readouterr().err
        assert err.startswith("run_checkpoint.py: error: ")
        assert f" plays {words}, which may run the code of a module: " in err
        assert err.endswith(f"name it: run_checkpoint.py {first}{tmp_path}{last}\n")
    assert "this" not in sys.modules
    without = [str(tmp_path), "--env_kwargs", "none", "--episodes", "1", "--no_render"]
    assert command.main(without) == 0


def test_an_agent_plays_in_the_environment_that_it_was_trained_in(tmp_path, capsys):
    """Analytic: with its arguments, wrapper and limit, and with others if the user names them."""
    subject = CARTPOLE._replace(
        env_id="tests.tools.toys:toys/Vector-v0",
        observation_shape=(2,),
        env_kwargs=("length=1000",),
        wrapper="tests.tools.toys:Twice",
        max_episode_steps=7,
    )
    save(tmp_path, subject)
    named = [subject.env_id, str(tmp_path), "--no_render", "--episodes", "1", "--greedy"]
    lengths = []
    for more in (
        ["--wrapper", "tests.tools.toys:Twice"],
        ["--wrapper", "none"],
        ["--wrapper", "none", "--env_kwargs", "length=3"],
    ):
        assert command.main([*named, *more]) == 0
        scored = re.search(r"score (\d+), (\d+) steps(.*)\n", capsys.readouterr().out)
        lengths.append((int(scored[2]), scored[3]))
        if not lengths[1:]:
            twice = int(scored[1])
        elif not lengths[2:]:
            assert twice == 2 * int(scored[1]) > 0
    assert lengths == [(7, ", ended by a time limit")] * 2 + [(3, "")]


def test_an_environment_that_draws_nothing_cannot_be_filmed(tmp_path, capsys):
    """Analytic: the line says why."""
    toy = CARTPOLE._replace(env_id="tests.tools.toys:toys/Vector-v0", observation_shape=(2,))
    save(tmp_path, toy)
    film = ["--video", str(tmp_path / "x.gif")]
    assert command.main([toy.env_id, str(tmp_path), *film]) == 2
    assert "draws no pictures" in capsys.readouterr().err


def test_what_cannot_be_drawn_is_refused_before_tensorflow_starts(tmp_path, monkeypatch, capsys):
    """Analytic: MuJoCo without an OpenGL that works; its games can be played all the same."""
    save(tmp_path, Subject("InvertedPendulum-v5", "generic", "mlp", (4,), 1, "per_dimension"))
    monkeypatch.setenv("MUJOCO_GL", "disabled")
    with monkeypatch.context() as patch:
        patch.setattr(command, "start_tensorflow", lambda: pytest.fail("it has started"))
        assert command.main([str(tmp_path), "--video", str(tmp_path / "x.gif")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(
        r"run_checkpoint\.py: error: MUJOCO_GL=disabled does not work here: .*\n", err
    )
    assert not (tmp_path / "x.gif").exists()
    assert command.main([str(tmp_path), "--no_render", "--episodes", "1"]) == 0


def test_a_score_of_atari_is_told_in_human_terms():
    """Analytic: Pong's random play has −20.7 and a human 14.6, so −3.05 is half of the way."""
    games = [Played(n, score, 10, False) for n, score in enumerate((-4.05, -2.05))]
    *_, last = command._in_words(evaluation.summarise("PongNoFrameskip-v4", games)).splitlines()
    assert last == "human-normalised: 50.0 % (0: random play, 100: a human)"
    assert "human" not in command._in_words(evaluation.summarise("CartPole-v1", games))


def test_mujoco_is_filmed_unless_nothing_here_can_draw(tmp_path):
    """Golden: six pictures of a body in front of a floor; without OpenGL one line, which names packages."""
    save(tmp_path, Subject("HalfCheetah-v5", "generic", "mlp", (17,), 6, "per_dimension"))
    film = tmp_path / "x.gif"
    words = ["run_checkpoint.py", str(tmp_path), "--video", str(film), "--seconds", "0.3"]
    done = subprocess.run(
        [sys.executable, *words], cwd=processes.ROOT, capture_output=True, text=True
    )
    if done.returncode == 2:
        assert done.stderr == f"run_checkpoint.py: error: {opengl.HELP}\n"
        pytest.skip("no OpenGL")
    assert (done.returncode, done.stderr) == (0, "")
    pictures = np.stack(read_film(film)).astype(int)
    assert pictures.shape == (6, 480, 480, 3)
    assert pictures[0].std() > 10
    assert (pictures[:-1] != pictures[1:]).any(axis=(1, 2, 3)).all()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (None, "without ffmpeg: [Errno 2] No such file or directory"),
        ("echo \"Unknown encoder 'libx264'\" >&2; exit 8", "Unknown encoder 'libx264'"),
        ("exit 8", "ffmpeg failed\n"),
    ],
)
def test_a_missing_codec_gets_one_line(made, tmp_path, monkeypatch, capfd, script, words):
    """Analytic: no ffmpeg, or one that cannot write H.264; no empty film is left."""
    ffmpeg = tmp_path / "ffmpeg"
    if script is not None:
        ffmpeg.write_text(f"#!/bin/sh\n{script}\n")
        ffmpeg.chmod(0o755)
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(ffmpeg))
    film = tmp_path / "film.mp4"
    assert command.main([str(made / "cartpole"), "--video", str(film), "--eyes"]) == 2
    err = capfd.readouterr().err
    assert not film.exists()
    assert err.startswith(f"run_checkpoint.py: error: cannot write {film}")
    assert err.count("\n") == 1
    assert words in err


def test_a_broken_environment_ends_it_with_1(tmp_path, capsys):
    """Analytic: what broke is said."""
    toy = CARTPOLE._replace(env_id="tests.tools.toys:toys/RaisesInStep-v0", observation_shape=(2,))
    save(tmp_path, toy)
    assert command.main([toy.env_id, str(tmp_path), "--episodes", "1"]) == 1
    assert "the joystick broke" in capsys.readouterr().err


def test_without_standard_error_files_do_not_take_its_place():
    """Analytic: closed, as `2>&-` leaves it; what is opened next would get what is printed."""
    script = "import os, run_checkpoint; run_checkpoint.main(['missing']); os.fstat(2)"
    command = ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", script]
    assert subprocess.run(command, cwd=processes.ROOT).returncode == 0
