"""Settings in files: TOML, records of runs, and what --print_config prints."""

import json
import pathlib
import tomllib
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from a3c.machine.words import BadInput
from a3c.settings import command_line, config, params
from a3c.settings.params import ParsedParams
from tests.tools.processes import ROOT

PONG = "PongNoFrameskip-v4"
LR_END = "lr_decay_to_zero_by_n_steps"
RECORDS = sorted((ROOT / "results").glob("**/args.json"))


def asked_by(text: str, folder: pathlib.Path, *argv: str) -> ParsedParams:
    """What train.py makes of a file with this text, and of flags beside it."""
    (folder / "x.toml").write_text(text, encoding="utf-8")
    return command_line.parse(["--config", str(folder / "x.toml"), *argv])


def record(folder: pathlib.Path, parsed: ParsedParams, **changed: Any) -> str:
    """A run folder with these parameters, as its network was chosen for images."""
    content = params.to_json(params.resolve(parsed, "image"))
    content["params"] |= changed
    (folder / "args.json").write_text(json.dumps(content | {"environment": {}}), encoding="utf-8")
    return str(folder)


def printed(*argv: str) -> str:
    asked = command_line.parse([*argv, "--print_config"])
    assert isinstance(asked, command_line.PrintConfig)
    return asked.toml


def refusal(text: str, folder: pathlib.Path, *argv: str) -> str:
    with pytest.raises(BadInput) as caught:
        asked_by(text, folder, *argv)
    return str(caught.value)


def test_the_later_wins_of_default_preset_config_and_command_line(tmp_path):
    """Analytic: four values, each from one more place, and each with its source."""
    text = f'env_id = "{PONG}"\npreset = "paper"\ninitial_lr = 5e-4\nseed = 3\n'
    found, sources = asked_by(text, tmp_path, "--seed", "4")
    for name, value, source in (
        ("discount", 0.99, "default"),
        ("max_grad_norm", 40.0, "preset"),
        ("initial_lr", 5e-4, "config"),
        ("preset", "paper", "config"),
        ("env_id", PONG, "config"),
        ("seed", 4, "command line"),
        (LR_END, 10_000_000, "derived"),
    ):
        assert (getattr(found, name), sources[name]) == (value, source), name
    found, sources = asked_by(text, tmp_path, "--preset", "wide", "Breakout-v4")
    assert (found.env_id, found.n_workers, found.initial_lr) == ("Breakout-v4", 3, 5e-4)


def test_numbers_are_taken_as_people_write_them(tmp_path):
    """Analytic: a step count as a float, a rate as a whole number; with the type of a flag's own."""
    text = "n_steps = 2e7\nmax_grad_norm = 40\neval_interval_steps = 1_000_000\nno_xla = true\n"
    given = "--n_steps 2e7 --max_grad_norm 40 --eval_interval_steps 1e6 --no_xla"
    found, other = asked_by(text, tmp_path, PONG), command_line.parse([*given.split(), PONG])
    assert repr(found.params) == repr(other.params)


@pytest.mark.parametrize("before", ["wake_interval_seconds", "manager_wake_interval_seconds"])
def test_a_flag_may_still_have_its_old_name(tmp_path, before):
    """Analytic: in a file and in the record of a run, which can be resumed, too."""
    asked = asked_by(f"{before} = 7", tmp_path, PONG)
    assert (asked.params.log_interval_seconds, asked.sources["log_interval_seconds"]) == (
        7,
        "config",
    )
    content = params.to_json(asked._replace(sources=dict.fromkeys(asked.sources, "command line")))
    for part in content.values():
        part[before] = part.pop("log_interval_seconds")
    (tmp_path / "args.json").write_text(json.dumps(content), encoding="utf-8")
    notes: list[str] = []
    again = command_line.parse(["--config", str(tmp_path)], notes.append)
    assert (again.params.log_interval_seconds, notes) == (7, [])
    saved = params.from_json(content)
    assert (saved.params, saved.sources["log_interval_seconds"]) == (asked.params, "command line")


def test_none_unsets_a_flag(tmp_path):
    """Analytic: in the file what a preset says, and on the command line what the file says."""
    text = 'preset = "paper"\nnetwork = "none"\ndebug = "none"\nrun_name = "mine"\n'
    found, sources = asked_by(text, tmp_path, PONG, "--run_name", "none")
    assert (found.network, found.debug, found.run_name) == (None, False, None)
    assert (sources["network"], sources["run_name"]) == ("config", "command line")
    assert "seed must be a whole number, not 'none'" in refusal('seed = "none"', tmp_path, PONG)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("n_worker = 4", "unknown setting n_worker (did you mean n_workers?)"),
        ("config = 'x'", "unknown setting config"),
        ('n_workers = "4"', "n_workers must be a whole number, not '4'"),
        ("n_workers = true", "n_workers must be a whole number, not True"),
        ("no_xla = 1", "no_xla must be true or false, not 1"),
        ("preset = 3", "preset must be a text in quotes, not 3"),
        ("seed = 2026-11-25", "seed must be a whole number, not datetime"),
        ("[seed]\nx = 1", "seed must be a whole number, not {'x': 1}"),
        (f"seed = 0x{'f' * 5000}", "seed is out of range"),
        ("discount = nan", "discount is out of range"),
        ("discount = 1.5", "--discount must be between 0 and 1, not 1.5"),
        ('preset = "fast"', f"--preset must be one of {', '.join(config.PRESETS)}, not 'fast'"),
        ("hidden_units = 64", "--hidden_units must be 1 to 16 whole numbers between 1 and 10_000"),
        ("hidden_units = []", "10_000, not nothing"),
        ("hidden_units = [64, 64.0]", "10_000, not 64 64.0"),
        ("seed = 1\nseed = 2", "x.toml: Cannot overwrite a value"),
        ("seed: 1", "x.toml: Expected '=' after a key"),
        (f"seed = {'[' * 10_000}", "x.toml: "),
    ],
)
def test_what_is_wrong_in_a_file_is_said_in_one_line(tmp_path, text, words):
    """Golden: with the file's name, and the most similar setting where one is unknown."""
    line = refusal(text, tmp_path, PONG)
    assert words in line
    assert str(tmp_path / "x.toml") in line
    assert line.isprintable()


@pytest.mark.parametrize(
    ("text", "argv", "words"),
    [
        (f"{LR_END} = 1e7", [], f"--{LR_END} 10000000 needs --lr_schedule linear"),
        ('log_dir = "a"\nrun_name = "b"', [], "both name the run folder"),
        ("debug = true", ["--n_workers", "2"], "--debug needs one worker"),
        ("", [], "env_id is missing"),
        (
            'env_id = "toys:X-v0"',
            [],
            "toys:X-v0, which may run the code of a module: if you trust it",
        ),
        ('wrapper = "toys:W"', [], "asks for --wrapper toys:W, which may run"),
        (
            'env_kwargs = ["size=3", "cls=toys:W"]',
            [],
            "--env_kwargs size=3 cls=toys:W, which may run",
        ),
        (
            'wrapper = "toys:W"',
            ["--env_kwargs", "x=toys:W"],
            "asks for --wrapper toys:W, which may",
        ),
        ("env_kwargs = ['3']", [], "--env_kwargs must be name=value, such as size=8, not '3'"),
        ("env_kwargs = [3]", [], "--env_kwargs must be name=value"),
        ("env_kwargs = 'a b=1'", [], "--env_kwargs must be name=value"),
    ],
)
def test_contradictions_are_refused_as_on_the_command_line(tmp_path, text, argv, words):
    """Golden: also between the two. A module that the command names too is trusted."""
    env_id = [] if "env_id" in text + words else [PONG]
    assert words in refusal(text, tmp_path, *argv, *env_id)
    assert asked_by('env_id = "toys:X-v0"', tmp_path, "toys:X-v0").params.env_id == "toys:X-v0"
    found = asked_by('wrapper = "toys:W"', tmp_path, PONG, "--wrapper", "toys:W").params
    assert found.wrapper == "toys:W"
    assert asked_by('env_kwargs = ["size=3"]', tmp_path, PONG).params.env_kwargs == ("size=3",)


def test_what_is_no_file_of_settings_is_refused(tmp_path):
    """Analytic: missing, no text, or a folder of something else."""
    (tmp_path / "noise.toml").write_bytes(b"\xff\xfe\x00")
    for name, words in (
        ("missing", "cannot read"),
        (".", "a run folder or its args.json"),
        ("x" * 300, "cannot read"),
        ("noise.toml", "noise.toml: 'utf-8' codec can't decode"),
        ("", "must have 1 to 4096 characters"),
    ):
        with pytest.raises(BadInput, match=words):
            command_line.parse(["--config", str(tmp_path / name) if name else "", PONG])


@pytest.mark.parametrize(
    "argv",
    [
        *(["--preset", name] for name in config.PRESETS),
        [],
        ["--preset", "paper", "--max_grad_norm", "5", "--network", "none"],
        ["--lr_schedule", "linear", "--n_steps", "123456789"],
        ["--preset", "wide-lstm", f"--{LR_END}", "none"],
        ["--lr_schedule", "linear", f"--{LR_END}", "2e7", "--initial_lr", "0.00012345678901234"],
        ["--debug", "--no_xla", "--cores", "1", "--eval_interval_steps", "1e6"],
        ["--log_dir", 'a "b" \\ é \u2028 \U0001f600 x', "--rmsprop_epsilon", "1e-30"],
        ["--detailed_logs=none", "--seed", "0", "--load_ckpt", "runs/x"],
        ["--hidden_units", "200", "100", "--normalize_observations", "--max_episode_steps", "9"],
        ["--env_kwargs", "a=1", "b=x y", 'c=["é"]', "--wrapper", "w"],
        ["--env_kwargs", "none"],
    ],
    ids=" ".join,
)
def test_what_is_printed_gives_the_same_parameters_again(tmp_path, argv):
    """Analytic: to the last bit, and so do their sources, but that the file is one now."""
    parsed = command_line.parse([PONG, *argv])
    text = printed(PONG, *argv)
    assert repr(asked_by(text, tmp_path).params) == repr(parsed.params)
    assert asked_by(text, tmp_path).sources == {
        name: "config" if source == "command line" else source
        for name, source in parsed.sources.items()
    }
    assert printed("--config", str(tmp_path / "x.toml")) == text
    assert set(tomllib.loads(text)) == {
        name for name, source in parsed.sources.items() if source == "command line"
    }


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.parent.name)
def test_every_published_run_can_be_asked_for_again(tmp_path, path):
    """Golden: with all that it had but its folder, cores and hours; by folder or file, and through what is
    printed.
    """
    record = json.loads(path.read_text(encoding="utf-8"))
    wrapper = record["params"].get("wrapper")
    code = ["--wrapper", wrapper] if wrapper else []  # a module's code must be named
    notes: list[str] = []
    again = command_line.parse(["--config", str(path), *code], notes.append)
    assert notes == []
    assert command_line.parse(["--config", str(path.parent), *code]) == again
    toml = printed("--config", str(path), *code)
    assert asked_by(toml, tmp_path, *code) == again
    had, environment = params.by_todays_names(record["params"]), record.get("environment", {})
    # The oldest records are of images, and do not say it.
    kind, is_continuous = environment.get("kind", "image"), environment.get("is_continuous", False)
    found = params.as_in_json(params.resolve(again, kind, is_continuous).params)
    of_one_run = {name: None for name in ("log_dir", "cores", "stop_after_hours") if name in had}
    assert {name: found[name] for name in had} == had | of_one_run


def test_what_followed_from_other_values_follows_anew(tmp_path):
    """Analytic: the end of a schedule that nobody named, the network, XLA off under --debug."""
    asked = command_line.parse(["--preset", "paper", "--debug", "--n_steps", "300", PONG])
    folder = record(tmp_path, asked._replace(sources=asked.sources | {"network": "derived"}))
    again = command_line.parse(["--config", folder, "--n_steps", "5e7", "--debug=none"])
    assert (again.params.lr_decay_to_zero_by_n_steps, again.params.no_xla) == (50_000_000, False)
    vectors = params.resolve(command_line.parse(["CartPole-v1"]), "vector")
    (tmp_path / "args.json").write_text(json.dumps(params.to_json(vectors)), encoding="utf-8")
    again = command_line.parse(["--config", folder, PONG])
    assert params.resolve(again, "image").params.network == "nature"


def test_what_followed_in_old_records_follows_anew():
    """Golden: there, the source of such a value is called its preset, or default."""
    folder = ROOT / "results"
    paper = command_line.parse(["--config", str(folder / "pong-paper-s0"), "--n_steps", "5e7"])
    assert paper.params.lr_decay_to_zero_by_n_steps == 50_000_000
    ocd = command_line.parse(["--config", str(folder / "pong-ocd-s0"), "CartPole-v1"])
    assert params.resolve(ocd, "vector").params.network == "mlp"


def test_what_was_asked_for_stays_where_another_preset_is_given(tmp_path):
    """Analytic: even if it was the default anyway; and what was not asked for is the preset's."""
    folder = record(tmp_path, command_line.parse(["--rmsprop_initial", "1", PONG]))
    again = command_line.parse(["--config", folder, "--preset", "paper"]).params
    assert (again.rmsprop_initial, again.rmsprop_epsilon) == (1.0, 0.1)


def test_an_end_that_was_asked_for_stays(tmp_path):
    """Analytic: so it is an error where it is too soon for the steps, and `none` frees it."""
    flags = ["--lr_schedule", "linear", f"--{LR_END}", "500", "--n_steps", "500"]
    folder = record(tmp_path, command_line.parse([*flags, PONG]))
    with pytest.raises(BadInput, match=f"--{LR_END} 500 comes before.*or none"):
        command_line.parse(["--config", folder, "--n_steps", "600"])
    again = command_line.parse(["--config", folder, "--n_steps", "600", f"--{LR_END}", "none"])
    assert again.params.lr_decay_to_zero_by_n_steps == 600


@pytest.mark.parametrize("source", ["derived", "preset"])  # as it was called until 2026-11-25
def test_the_end_of_a_run_that_was_resumed_with_fewer_steps_stays(tmp_path, source):
    """Analytic: the new run's learning rate is at each step what that run's was."""
    saved = command_line.parse(["--preset", "paper", "--n_steps", "500", PONG])
    fewer = command_line.resumed(saved, {"n_steps": 400})
    folder = record(tmp_path, fewer._replace(sources=fewer.sources | {LR_END: source}))
    again = command_line.parse(["--config", folder])
    assert (again.params.n_steps, again.params.lr_decay_to_zero_by_n_steps) == (400, 500)


def test_the_end_of_a_preset_stays_unset(tmp_path):
    """Analytic: by a run's record and by its checkpoint's settings, which do not say what was asked for."""
    flags = ["--preset", "wide-lstm", "--n_steps", "400", f"--{LR_END}", "none"]
    saved = command_line.parse([*flags, PONG])
    again = command_line.parse(["--config", record(tmp_path, saved)])
    assert again.params.lr_decay_to_zero_by_n_steps == 400
    of_checkpoint = config.of_checkpoint(params.as_in_json(saved.params))
    assert command_line.together(of_checkpoint, {}).params.lr_decay_to_zero_by_n_steps == 400


@pytest.mark.parametrize(
    ("flags", "wanted"), [(["--no_xla"], True), (["--debug"], None), ([], None)]
)
def test_xla_is_left_out_as_it_was(flags, wanted):
    """Analytic: by a checkpoint's settings, where debugging does not ask for it."""
    saved = command_line.parse([*flags, PONG])
    assert config.of_checkpoint(params.as_in_json(saved.params)).get("no_xla") is wanted


def test_a_list_that_nobody_asked_for_is_none_of_the_new_run(tmp_path):
    """Analytic: JSON has lists where we have tuples, and the default is the default all the same."""
    folder = record(tmp_path, command_line.parse([PONG]))
    again = command_line.parse(["--config", folder])
    assert (again.params.hidden_units, again.sources["hidden_units"]) == ((64, 64), "default")
    assert printed("--config", folder) == f'env_id = "{PONG}"\n'


def test_what_belongs_to_one_run_is_no_setting_of_another(tmp_path):
    """Analytic: its folder, what it went on from, its machines and their cores, its time; its seed is one."""
    flags = ["--log_dir", "x", "--load_ckpt", "y", "--cores", "1", "--seed", "5"]
    folder = record(tmp_path, command_line.parse([*flags, "--stop_after_hours", "3", PONG]))
    again = command_line.parse(["--config", folder]).params
    assert (again.log_dir, again.load_ckpt, again.cores, again.seed) == (None, None, None, 5)
    assert again.stop_after_hours is None
    remote = ["--n_workers", "2", "--ray", "10.0.0.1:6379", "--remote_workers", "1"]
    folder = record(tmp_path, command_line.parse([*remote, PONG]))
    again = command_line.parse(["--config", folder]).params
    assert (again.n_workers, again.ray, again.remote_workers) == (2, None, None)
    folder = record(tmp_path, command_line.parse(["--run_name", "x", PONG]))
    assert command_line.parse(["--config", folder]).params.run_name is None


def test_a_default_that_was_another_then_is_kept(tmp_path):
    """Analytic: the same settings, whatever the default and the preset are by now."""
    parsed = command_line.parse(["--preset", "paper", PONG])
    folder = record(tmp_path, parsed, discount=0.98, max_grad_norm=39.0)
    again = command_line.parse(["--config", folder])
    assert (again.params.discount, again.params.max_grad_norm) == (0.98, 39.0)
    assert again.sources["discount"] == again.sources["max_grad_norm"] == "config"


def test_a_record_is_read_as_far_as_it_is_understood(tmp_path):
    """Golden: retired flags get a note, younger flags their default; a retired preset is refused."""
    parsed = params.resolve(command_line.parse(["--seed", "3", PONG]), "image")
    content = params.to_json(parsed)
    content["params"] |= {"recurrent": True, "\x1b[2J": 1}
    content["sources"] |= {"recurrent": "command line"}
    del content["params"]["eval_episodes"]
    (tmp_path / "args.json").write_text(json.dumps(content), encoding="utf-8")
    notes: list[str] = []
    again = command_line.parse(["--config", str(tmp_path)], notes.append).params
    assert (again.seed, again.eval_episodes) == (3, 10)
    assert notes == [f"{tmp_path}/args.json: ignored unknown flags: recurrent, \\x1b[2J"]
    content["params"]["preset"] = "atari"
    (tmp_path / "args.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(BadInput, match=r"args.json: --preset must be one of .*not 'atari'"):
        command_line.parse(["--config", str(tmp_path)])


names = st.sampled_from([*params.KNOBS]) | st.text(max_size=5)


jsons = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> pathlib.Path:
    return tmp_path_factory.mktemp("config")


@hypothesis.given(
    st.text(max_size=20)
    | st.lists(st.tuples(names, jsons), max_size=4).map(
        lambda pairs: "\n".join(f"{name} = {json.dumps(value)}" for name, value in pairs)
    )
)
def test_any_toml_is_read_or_refused(place, text):
    """Analytic: as a record is; and what is read comes back from what is printed of it."""
    (place / "any.toml").write_bytes(text.encode("utf-8", "surrogatepass"))
    argv = ["--config", str(place / "any.toml"), PONG]
    try:
        parsed, toml = command_line.parse(argv), printed(*argv)
    except BadInput:
        return
    assert asked_by(toml, place).params == parsed.params


LEARNED_PONG = {
    "network": "small",
    "envs_per_worker": 8,
    "steps_per_update": 20,
    "initial_lr": 3e-4,
    LR_END: 20_000_000,
    "rmsprop_initial": 1e-6,
}


@pytest.mark.parametrize(("name", "more"), [("paper", {}), ("wide", LEARNED_PONG)])
def test_what_a_preset_with_a_memory_adds(name: str, more: dict[str, float]):
    """Analytic: 256 cells, as in the paper, and the settings with which Pong was learned."""
    with_memory = config.PRESETS[name] | {"lstm_units": 256} | more
    assert config.PRESETS[f"{name}-lstm"] == with_memory
