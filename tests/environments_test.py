"""Environments of many kinds, as their user meets them: trained by train.py, played by run_checkpoint.py.

LunarLander and MiniGrid need packages that `make test-slow` puts into .extra.
"""

import json
import os
import pathlib

import gymnasium
import pytest

from a3c.play import command
from tests.tools import processes
from tests.tools.run_files import RunFiles

TRAIN = processes.ROOT / "train.py"
PLAY = processes.ROOT / "run_checkpoint.py"
EXTRA = processes.ROOT / ".extra"

MODULE = """
import gymnasium
from tests.tools.toys import Search, Twice

gymnasium.register("Room-v0", "rooms:Search")
"""


def run(script: pathlib.Path, arguments: list[str], folder: pathlib.Path, seconds: float) -> None:
    """Run a program of ours to its end; it must succeed and complain about nothing."""
    path = os.pathsep.join(map(str, (processes.ROOT, EXTRA)))
    process = processes.start([script, *arguments], folder, env=os.environ | {"PYTHONPATH": path})
    try:
        processes.wait_until(lambda: process.poll() is not None, "the end", seconds)
        assert (process.returncode, processes.outputs(folder)["stderr"]) == (0, "")
    finally:
        processes.end(process)


def test_an_environment_of_ones_own_is_trained_and_played(tmp_path, monkeypatch, capsys):
    """Golden: a room of the working directory with Dict observations, actions from 1 and no time limit; its
    arguments, wrapper and limit are recorded, and an agent plays with them.
    """
    (tmp_path / "rooms.py").write_text(MODULE)
    settings = ["--env_kwargs", "size=5", "--wrapper", "rooms:Twice", "--max_episode_steps", "9"]
    tiny = ["--log_dir", "run", "--no_xla", "--n_steps", "300", *settings, "rooms:Room-v0"]
    run(TRAIN, tiny, tmp_path, processes.DEADLINE_SECONDS)
    record = json.loads((tmp_path / "run/args.json").read_text())
    asked = {
        name: record["params"][name] for name in ("env_kwargs", "wrapper", "max_episode_steps")
    }
    assert [*asked.values()] == [["size=5"], "rooms:Twice", 9]
    assert record["environment"]["observation_shape"] == [20]
    games = RunFiles(tmp_path / "run").games()
    assert {game["r"] for game in games} <= {0.0, 2.0}
    assert max(game["l"] for game in games) == 9

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(command, "start_tensorflow", lambda: None)
    play = ["rooms:Room-v0", "run", "--wrapper", "rooms:Twice", "--no_render", "--json", "scores"]
    assert command.main(play) == 0
    assert capsys.readouterr().err == ""
    played = json.loads((tmp_path / "scores").read_text())["games"]
    assert {game["score"] for game in played} == {0.0, 2.0}
    assert max(game["length"] for game in played) == 9
    del gymnasium.registry["Room-v0"]


WIDE = ["--preset", "cartpole", "--log_interval_seconds", "1"]
MINIGRID = "minigrid:MiniGrid-Empty-5x5-v0"
IMAGE = "minigrid.wrappers:ImgObsWrapper"
FLAT = "gymnasium.wrappers:FlattenObservation"
SEARCH = "tests.tools.toys:toys/Search-v0"


@pytest.mark.weekly
@pytest.mark.parametrize(
    ("env_id", "settings", "n_steps", "least"),
    [
        # Random play, and what was measured in November 2026:
        ("FrozenLake-v1", ["--env_kwargs", "is_slippery=false"], 50_000, 0.9),  # 0.01, 1.00
        ("Taxi-v4", [], 100_000, -250.0),  # -768, -200
        ("Acrobot-v1", [], 100_000, -150.0),  # -500, -88
        (SEARCH, ["--max_episode_steps", "20"], 50_000, 0.95),  # 0.67, 1.00
        ("LunarLander-v3", [], 100_000, -120.0),  # -172, -73
        (MINIGRID, ["--wrapper", f"{IMAGE},{FLAT}"], 50_000, 0.9),  # 0.18, 0.95
        # Images: 0.18, 0.95
        (MINIGRID, ["--wrapper", f"minigrid.wrappers:RGBImgObsWrapper,{IMAGE}"], 50_000, 0.8),
    ],
    ids=["FrozenLake", "Taxi", "Acrobot", "Dict", "LunarLander", "MiniGrid", "MiniGrid images"],
)
def test_usual_environments_are_learned(tmp_path, env_id, settings, n_steps, least):
    """Learning: the mean of 100 games is far above that of random play; the agent is filmed."""
    assert EXTRA.is_dir(), "make test-slow installs what this needs"
    sizes = ["--log_dir", "run", "--n_steps", str(n_steps)]
    run(TRAIN, [*WIDE, *sizes, *settings, env_id], tmp_path, 1200)
    rows = RunFiles(tmp_path / "run").rows()
    # A few games may be won by chance, and early ones are the short ones.
    means = [row["rl/episode_reward_mean_100"] for row in rows if row["rl/episodes"] >= 100]
    assert max(means) >= least, means
    named = settings if "--wrapper" in settings else []
    film = ["--video", "film.gif", "--seconds", "1", "--eyes"]
    if not env_id.startswith("tests."):  # it draws nothing
        run(PLAY, [env_id, "run", *named, *film], tmp_path, processes.DEADLINE_SECONDS)
        assert (tmp_path / "film.gif").stat().st_size > 0
