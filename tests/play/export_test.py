"""run_checkpoint.py --export: a folder that another machine can play, and that names nothing of this one."""

import json
import pathlib

import pytest

from a3c.play import command, evaluation, export
from a3c.settings import command_line, config
from a3c.store import checkpoint
from tests.tools.agents import CARTPOLE, PAINTED, save


@pytest.fixture(autouse=True)
def one_tensorflow(monkeypatch):
    """Its threads are configured only once."""
    monkeypatch.setattr(command, "start_tensorflow", lambda: None)


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("git.txt", "revision: 0123abc\nroot: /home/somebody\n"),
        ("run.json", '{"revision": "0123abc", "root": "/home/somebody"}'),  # of a published run
    ],
)
def test_an_exported_agent_is_the_agent(tmp_path, capsys, name, record):
    """Golden: weights, scores of the games that were played, a film, settings, and what hubs read."""
    run, folder = tmp_path / "run", tmp_path / "agent"
    saved = save(run / "checkpoints")
    settings = {"env_id": "CartPole-v1", "log_dir": str(tmp_path), "n_steps": 70, "network": "mlp"}
    checkpoint.write(saved._replace(params=settings | {"preset": "cartpole"}))
    (run / "args.json").write_text("{}")
    (run / name).write_text(record)
    words = ["--export", str(folder), "--episodes", "3", "--seed", "5", "--seconds", "0.1"]
    assert command.main([str(run), *words, "--json", str(tmp_path / "scores.json")]) == 0
    assert capsys.readouterr().out.endswith(f"exported to {folder}\n")
    names = {"ckpt-70.safetensors", "config.toml", "README.md", "replay.mp4"}
    assert {path.name for path in folder.iterdir()} == names
    assert str(tmp_path).encode() not in b"".join(path.read_bytes() for path in folder.iterdir())

    found, problems = checkpoint.read_newest(folder)
    assert problems == []
    assert (found.subject, found.snapshot.mean_squares, found.position) == (CARTPOLE, {}, None)
    assert found.snapshot.weights.keys() == saved.snapshot.weights.keys()
    parsed = command_line.parse(["--config", str(folder / "config.toml")])
    assert (parsed.params.preset, parsed.params.n_steps) == ("cartpole", 70)

    _, head, text = (folder / "README.md").read_text().split("---\n", 2)
    # YAML, of a form that JSON can read: a name and a value in each line.
    lines = [line.partition(": ") for line in head.splitlines()]
    metadata = {name: json.loads(value) for name, _, value in lines}
    played = json.loads((tmp_path / "scores.json").read_text())
    assert (metadata["license"], metadata["library_name"]) == ("mit", "a3c")
    assert {"reinforcement-learning", "CartPole-v1"} <= {*metadata["tags"]}
    (result,) = metadata["model-index"][0]["results"]
    mean, sd = played["summary"]["mean"], played["summary"]["sd"]
    assert result["metrics"][0]["value"] == f"{mean:.2f} +/- {sd:.2f}"
    assert result["dataset"]["name"] == "CartPole-v1"
    for part in ("`0123abc`", "seed 5", "sampled actions", f"| {mean:.2f} | {sd:.2f} |", "MIT"):
        assert part in text


def test_the_card_of_a_module_names_the_module(tmp_path):
    """Analytic: making its environment runs code, so who loads it has to name it; without a film."""
    folder = tmp_path / "agent"
    save(tmp_path / "run", PAINTED)
    words = ["--export", str(folder), "--episodes", "2", "--no_film"]
    assert command.main([PAINTED.env_id, str(tmp_path / "run"), *words]) == 0
    text = (folder / "README.md").read_text()
    assert f"agent.make_env('{PAINTED.env_id}')" in text
    assert "film" not in text
    assert "no-ops" not in text
    assert not (folder / export.FILM).exists()


def test_the_card_names_a_wrapper_as_well(tmp_path):
    """Analytic: in both commands and in Python, since its module runs only if it is named."""
    folder, wrapper = tmp_path / "agent", "tests.tools.toys:Twice"
    saved = save(tmp_path / "run", PAINTED._replace(wrapper=wrapper))
    checkpoint.write(saved._replace(params={"env_id": PAINTED.env_id, "wrapper": wrapper}))
    words = ["--export", str(folder), "--episodes", "2", "--no_film", "--wrapper", wrapper]
    assert command.main([PAINTED.env_id, str(tmp_path / "run"), *words]) == 0
    text = (folder / "README.md").read_text()
    assert f"agent.make_env('{PAINTED.env_id}', wrapper='{wrapper}')" in text
    assert f"a3c-play {PAINTED.env_id} . --wrapper {wrapper}`" in text
    assert f"config.toml {PAINTED.env_id} --wrapper {wrapper}`" in text


def test_the_training_is_told_as_it_was_though_the_agent_plays_elsewhere(tmp_path):
    """Analytic: trained with a wrapper, exported without; and the limits of Atari are told of Atari alone."""
    wrapper = "tests.tools.toys:Twice"
    found = save(tmp_path, PAINTED)._replace(params={"wrapper": wrapper, "env_id": PAINTED.env_id})
    asked = config.of_checkpoint(found.params)
    summary = evaluation.summarise(PAINTED.env_id, [evaluation.Played(0, 1.0, 9, False)] * 2)
    for is_atari in (False, True):
        protocol = export.Protocol(0, greedy=False, is_atari=is_atari)
        text = export.card(found, asked, summary, protocol, has_film=False)
        assert f"config.toml {PAINTED.env_id} --wrapper {wrapper}`" in text
        assert f"a3c-play {PAINTED.env_id} .`" in text
        assert ("0 to 30 no-ops at the start, at most 108,000 frames" in text) is is_atari


def test_a_setting_that_was_chosen_for_images_is_kept():
    """Analytic: the network of an Atari agent, which a checkpoint does not mark as asked for."""
    record = {"params": {"env_id": "P-v4", "network": "small"}, "sources": {"network": "config"}}
    assert config.of_record(record) == {"env_id": "P-v4", "network": "small"}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--export", "full"], "must be a new or an empty folder"),
        (["--export", "full/mine/agent"], "cannot write full/mine/agent"),
        (["--export", "agent", "--episodes", "1"], "more than one game"),
        (["--export", "agent", "--video", "x.mp4"], "leave out --video"),
        (["--export", "agent", "--no_film", "--seconds", "3"], "it needs --video or --export"),
        (["--no_film"], "is for --export"),
    ],
)
def test_what_cannot_be_exported_is_refused(tmp_path, monkeypatch, capsys, words, why):
    """Analytic: before anything is played."""
    monkeypatch.chdir(tmp_path)
    pathlib.Path("full").mkdir()
    pathlib.Path("full/mine").touch()
    save(tmp_path / "run")
    assert command.main(["run", *words]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert why in err
    assert not pathlib.Path("agent").exists()


def test_a_film_that_fails_leaves_nothing(tmp_path, monkeypatch):
    """Analytic: as on a full disk."""
    found = save(tmp_path / "run")
    summary = evaluation.summarise(
        "CartPole-v1", [evaluation.Played(i, i, 9, False) for i in (1, 2)]
    )

    def filming():
        yield None
        raise OSError(28, "No space left on device")

    protocol = export.Protocol(0, greedy=False, is_atari=False)
    export.make_folder(tmp_path / "agent")
    with pytest.raises(command_line.BadInput, match="No space left"):
        export.write(tmp_path / "agent", found, summary, protocol, filming())
    assert not (tmp_path / "agent").exists()
