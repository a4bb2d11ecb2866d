"""The command line: what it takes, what that means, and what it refuses."""

import pytest

import a3c
from a3c.machine.words import BadInput
from a3c.settings import command_line, config, params
from tests.tools import flags_page

PONG = "PongNoFrameskip-v4"


def refusal(*argv: str) -> str:
    """The line that refuses these arguments."""
    with pytest.raises(BadInput) as caught:
        command_line.parse(argv)
    return str(caught.value)


def test_the_command_line_wins_over_the_preset_in_any_order():
    """Analytic: given values stay, even a default; the preset fills the rest; each source is told."""
    given = {"env_id", "preset", "initial_lr", "n_workers", "seed", "debug"}
    for argv in (
        f"--preset paper --initial_lr 3e-4 --debug --n_workers 1 --seed 0 {PONG}",
        f"--n_workers 1 {PONG} --seed 0 --debug --initial_lr 3e-4 --preset paper",
    ):
        found, sources = command_line.parse(argv.split())
        assert (found.initial_lr, found.n_workers, found.rmsprop_epsilon) == (3e-4, 1, 0.1)
        assert found.no_xla  # --debug switches it off
        expected = dict.fromkeys(params.KNOBS, "default")
        expected |= dict.fromkeys(config.PRESETS["paper"], "preset")
        expected |= dict.fromkeys(["lr_decay_to_zero_by_n_steps", "no_xla"], "derived")
        assert sources == expected | dict.fromkeys(given, "command line")


def test_debug_and_xla_exclude_each_other():
    """Analytic: XLA is switched off, unless somebody asks for it."""
    assert "--debug needs --no_xla" in refusal("--debug", "--no_xla=none", PONG)


def test_a_linear_schedule_ends_with_the_run_unless_told_otherwise():
    """Analytic: its end follows --n_steps, then the flag, then falls away; `none` unsets it."""

    def end(*argv: str) -> tuple[str, int | None, str]:
        found, sources = command_line.parse([PONG, *argv])
        name = "lr_decay_to_zero_by_n_steps"
        return found.lr_schedule, getattr(found, name), sources[name]

    linear, paper = ["--lr_schedule", "linear"], ["--preset", "paper"]
    asked = ["--lr_decay_to_zero_by_n_steps", "5e7"]
    assert end() == ("constant", None, "default")
    for flags in (linear, paper, [*paper, *linear], ["--preset", "wide"]):
        assert end(*flags) == ("linear", 10_000_000, "derived")
        assert end(*flags, "--n_steps", "2e6") == ("linear", 2_000_000, "derived")
        assert end(*flags, *asked) == ("linear", 50_000_000, "command line")
        assert end(*flags, *asked, asked[0], "none") == ("linear", 10_000_000, "derived")
    assert end(*paper, "--lr_schedule", "constant") == ("constant", None, "default")
    # A preset's own end would come back if it did not count as asked for.
    memory = ["--preset", "wide-lstm", "--n_steps", "2e6"]
    assert end(*memory) == ("linear", 20_000_000, "preset")
    assert end(*memory, asked[0], "none") == ("linear", 2_000_000, "command line")


def test_none_unsets_a_flag():
    """Analytic: one that may be without a value, or is off without being given; no other."""
    unset = command_line.parse(
        f"{PONG} --debug --debug=none --run_name x --run_name none --network small --network=none"
        " --eval_interval_steps 5 --eval_interval_steps none --cores none".split()
    )
    assert unset.params == command_line.parse([PONG]).params
    assert unset.sources["debug"] == unset.sources["run_name"] == "command line"
    assert "--seed must be a whole number, not 'none'" in refusal(PONG, "--seed", "none")
    assert "not 'none'" in refusal(PONG, "--initial_weights", "none")
    assert "--debug" in refusal(PONG, "--debug=off")


def test_a_resumed_run_is_asked_for_nothing_else():
    """Analytic: what was given is kept for `resumed`; what is for new runs is refused."""
    asked = command_line.parse(["--resume", "x", "--n_steps", "5", "--detailed_logs=none"])
    assert asked == command_line.Resume("x", {"n_steps": 5, "detailed_logs": False})
    for more in (["--config", "x"], ["--print_config"], ["--resume_or_start"]):
        assert "for new runs" in refusal("--resume", "x", *more)


def test_a_run_is_resumed_or_started_by_one_command(tmp_path):
    """Analytic: what to start, and what a run that is there must have: what was asked for by name."""
    (tmp_path / "x.toml").write_text("discount = 0.9\n")
    argv = (
        f"--resume_or_start --log_dir run --config {tmp_path}/x.toml --preset paper --seed 3 {PONG}"
    )
    asked = command_line.parse(argv.split())
    assert isinstance(asked, command_line.Resume)
    assert asked.folder == "run"
    assert asked.given == {"env_id": PONG, "preset": "paper", "seed": 3, "discount": 0.9}
    plain = command_line.parse([word for word in argv.split() if word != "--resume_or_start"])
    assert asked.otherwise == plain
    # What follows from other values is not what was asked for, so it stays as the run has it.
    assert command_line.resumed(plain, asked.given).params == plain.params
    with_network = params.resolve(command_line.parse(["--network", "none", PONG]), "image")
    assert command_line.resumed(with_network, {"network": None}).params == with_network.params
    assert "needs --log_dir" in refusal("--resume_or_start", PONG)


def test_a_checkpoint_alone_brings_environment_and_settings():
    """Analytic: flags win; where the environment is named, or a file, nothing is taken from there."""
    there = {"env_id": PONG, "preset": "paper", "discount": 0.9, "seed": 5}
    asked = []

    def parse(*argv: str) -> params.ParsedParams:
        return command_line.parse(argv, settings_at=lambda path: asked.append(path) or there)

    found, sources = parse("--load_ckpt", "x", "--seed", "7")
    assert (found.env_id, found.discount, found.rmsprop_epsilon, found.seed) == (PONG, 0.9, 0.1, 7)
    assert (sources["discount"], sources["seed"], asked) == ("config", "command line", ["x"])
    assert parse("--load_ckpt", "x", PONG).params.discount == 0.99
    with pytest.raises(BadInput, match="env_id is missing"):
        parse("--load_ckpt", "none")
    assert asked == ["x"]
    there["env_id"] = "toys:X-v0"
    with pytest.raises(
        BadInput, match=r"^x asks for toys:X-v0, which may run the code of a module"
    ):
        parse("--load_ckpt", "x")


def test_commands_of_ocd_a3c_run_unchanged():
    """Analytic: its flags, all at once, are taken with the meaning they had."""
    argv = (
        f"{PONG} --n_steps 20e6 --n_workers 16 --ckpt_interval_seconds 600 --load_ckpt old"
        " --seed 3 --max_n_noops 20 --detailed_logs --wake_interval_seconds 30"
        " --preprocessing pong --steps_per_update 20 --value_loss_coef 0.25 --max_grad_norm 0.5"
        " --entropy_bonus 0.02 --initial_lr 2e-4 --lr_schedule linear"
        " --lr_decay_to_zero_by_n_steps 50e6 --run_name mine"
    ).split()
    found, sources = command_line.parse(argv)
    assert found == params.Params(
        env_id=PONG,
        n_steps=20_000_000,
        n_workers=16,
        ckpt_interval_seconds=600.0,
        load_ckpt="old",
        seed=3,
        max_n_noops=20,
        detailed_logs=True,
        log_interval_seconds=30.0,
        preprocessing="pong",
        steps_per_update=20,
        value_loss_coef=0.25,
        max_grad_norm=0.5,
        entropy_bonus=0.02,
        initial_lr=2e-4,
        lr_schedule="linear",
        lr_decay_to_zero_by_n_steps=50_000_000,
        run_name="mine",
    )
    for name in ("manager_wake", "log"):
        later = [a.replace("--wake", f"--{name}") for a in argv]
        assert command_line.parse(later) == (found, sources)


@pytest.mark.parametrize(
    ("argv", "units"),
    [
        ("--hidden_units 200 X-v1", (200,)),
        ("--hidden_units 64 32 X-v1", (64, 32)),
        ("X-v1 --hidden_units 64 32", (64, 32)),
        ("X-v1 --hidden_units=64", (64,)),
        ("--hidden_units=64 X-v1", (64,)),
        ("--hidden_units 64 32 --seed 3 X-v1", (64, 32)),
        ("--seed 3 X-v1 --hidden_units 1_0 --no_xla", (10,)),
        ("--hidden_units 8 --hidden_units 7 6 X-v1", (7, 6)),
        (f"--hidden_units {'9 ' * 16} X-v1", (9,) * 16),
    ],
)
def test_a_list_takes_the_numbers_that_follow_and_no_environment(argv, units):
    """Analytic: in every position, before the environment's id and after it; the last list wins."""
    found, sources = command_line.parse(argv.split())
    assert (found.env_id, found.hidden_units) == ("X-v1", units)
    assert sources["env_id"] == sources["hidden_units"] == "command line"
    resumed = command_line.parse(["--resume", "run", *argv.split()])
    assert resumed.given["hidden_units"] == units
    assert resumed.given["env_id"] == "X-v1"


@pytest.mark.parametrize(
    ("argv", "kwargs"),
    [
        ("--env_kwargs a=1 b= X-v1", ("a=1", "b=")),
        ("X-v1 --env_kwargs a=1 c=d=e", ("a=1", "c=d=e")),
        ("--hidden_units 8 --env_kwargs a=1 --wrapper m:W X-v1", ("a=1",)),
        ("--env_kwargs a=1 --hidden_units 8 X-v1", ("a=1",)),
        ("X-v1 --env_kwargs none", ()),
        ("--env_kwargs=none X-v1", ()),
    ],
)
def test_arguments_of_an_environment_are_told_from_its_id(argv, kwargs):
    """Analytic: in every position, and beside another list."""
    found, sources = command_line.parse(argv.split())
    assert (found.env_id, found.env_kwargs) == ("X-v1", kwargs)
    assert sources["env_id"] == sources["env_kwargs"] == "command line"


def test_hours_are_of_the_start_that_they_are_given_to():
    """Analytic: a resumed run has those of its own command, or none."""
    saved = command_line.parse(["--stop_after_hours", "3", "X-v1"])
    params, sources = command_line.resumed(saved, {"keep_ckpts": 5})
    assert (params.stop_after_hours, sources["stop_after_hours"]) == (None, "default")
    params, sources = command_line.resumed(saved, {"stop_after_hours": 3.0})
    assert (params.stop_after_hours, sources["stop_after_hours"]) == (3.0, "command line")


def test_a_resumed_run_keeps_its_layers():
    """Analytic: the same ones may be given, others may not."""
    saved = command_line.parse(["--hidden_units", "64", "32", "X-v1"])
    assert command_line.resumed(saved, {"hidden_units": (64, 32)}).params == saved.params
    with pytest.raises(BadInput, match="^--hidden_units is 64 32 in the run, and --resume cannot"):
        command_line.resumed(saved, {"hidden_units": (64,)})


def test_a_resumed_run_refuses_a_new_flag_without_the_one_that_it_needs():
    """Analytic: as a new run does; what the run has already may be asked for again."""
    given = {"eval_episodes": 4}
    with pytest.raises(BadInput, match="^--eval_episodes has no effect without --eval_interval"):
        command_line.resumed(command_line.parse([PONG]), given)
    saved = command_line.together(given, {"env_id": PONG})
    assert command_line.resumed(saved, given).sources == saved.sources


def test_step_counts_are_understood_in_float_syntax():
    """Analytic: the ways people write ten million, exact and whole; 2^53 + 1 is no float."""
    ways = {"1e7": 10**7, "10e6": 10**7, "10_000_000": 10**7, "1.5e3": 1500, "1": 1}
    for text, n_steps in ways.items():
        found = command_line.parse([PONG, "--n_steps", text]).params.n_steps
        assert (found, type(found)) == (n_steps, int)
    assert str(2**53 + 1) in refusal(PONG, "--n_steps", str(2**53 + 1))


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("", ["env_id"]),
        ("Pong-v4 Breakout-v4", ["Breakout-v4"]),
        ("Pong-v4 --n_worker 4", ["--n_worker", "--n_workers"]),
        ("Pong-v4 --learning_rate=1", ["--learning_rate"]),
        ("-n 4 Pong-v4", ["-n"]),
        ("Pong-v4 --seed", ["--seed"]),
        ("--env_kwargs Pong-v4", ["--env_kwargs", "not nothing"]),
        ("Pong-v4 --debug=1", ["--debug"]),
        ("Pong-v4 --preset best", ["--preset", "best", "ocd", "paper"]),
        ("Pong-v4 --network lstm", ["--network", "lstm", "nature"]),
        ("Pong-v4 --n_workers four", ["--n_workers", "four"]),
        ("Pong-v4 --n_workers 2.5", ["--n_workers", "2.5", "whole"]),
        ("Pong-v4 --n_workers -4", ["--n_workers", "-4"]),
        ("Pong-v4 --n_workers 100 --envs_per_worker 11", ["--n_workers", "--envs_per_worker"]),
        ("Pong-v4 --n_steps 1e999999999", ["--n_steps"]),
        ("Pong-v4 --n_steps nan", ["--n_steps"]),
        ("Pong-v4 --discount 1.01", ["--discount", "1.01"]),
        ("Pong-v4 --initial_lr -1e-4", ["--initial_lr"]),
        ("Pong-v4 --debug --n_workers 2", ["--debug", "one worker"]),
        ("Pong-v4 --debug --envs_per_worker 2", ["--debug", "one environment"]),
        ("Pong-v4 --log_dir a --run_name b", ["--log_dir", "--run_name"]),
        ("Pong-v4 --run_name a/b", ["--run_name", "a/b"]),
        ("Pong-v4 --cores 0", ["--cores", "0"]),
        ("--hidden_units Pong-v4", ["--hidden_units", "not nothing"]),
        ("--hidden_units", ["--hidden_units", "expected at least one argument"]),
        ("Pong-v4 --hidden_units=", ["--hidden_units", "not ''"]),
        ("Pong-v4 --hidden_units 0", ["--hidden_units", "not 0"]),
        ("Pong-v4 --hidden_units 64 -1", ["--hidden_units", "not 64 -1"]),
        ("Pong-v4 --hidden_units 64 10001", ["--hidden_units", "not 64 10001"]),
        ("Pong-v4 --hidden_units 64.5", ["--hidden_units", "whole", "not 64.5"]),
        ("Pong-v4 --hidden_units 64,64", ["--hidden_units", "not '64,64'"]),
        ("Pong-v4 --hidden_units none", ["--hidden_units", "not 'none'"]),
        ("--hidden_units 64 Pong-v4 64", ["--hidden_units", "not 64 'Pong-v4' 64"]),
        (f"Pong-v4 --hidden_units {'9 ' * 17}", ["--hidden_units", "1 to 16"]),
        ("--env_kwargs a=1 X-v1 b", ["--env_kwargs", "'X-v1'"]),
        ("--hidden_units 64 Pong-v4 --env_kwargs X-v1", ["--env_kwargs", "'X-v1'"]),
        ("Pong-v4 --env_kwargs 1=2", ["--env_kwargs", "name=value", "'1=2'"]),
        ("Pong-v4 --activation sigmoid", ["--activation", "tanh", "relu"]),
        ("Pong-v4 --initial_sd 0", ["--initial_sd", "1e-3"]),
        ("Pong-v4 --cores two", ["--cores", "two"]),
        ("Pong-v4 --lr_decay_to_zero_by_n_steps 5e7", ["--lr_decay_to_zero_by_n_steps", "linear"]),
        (
            "Pong-v4 --lr_schedule linear --lr_decay_to_zero_by_n_steps 9e6",
            ["--lr_decay_to_zero_by_n_steps", "9_000_000", "10_000_000"],
        ),
    ],
)
def test_bad_input_is_one_line_that_names_the_flag(argv, words):
    """Analytic: each kind of bad input is refused, by a line with the words that help."""
    line = refusal(*argv.split())
    assert "\n" not in line
    assert [word for word in words if word not in line] == []


def test_no_number_takes_what_no_number_can_be():
    """Analytic: NaN, infinities, absurd values and texts are refused by every numeric flag."""
    for name in [name for name, knob in params.KNOBS.items() if knob.within]:
        for text in ("nan", "-inf", "1e300", "1e-300x", ""):
            assert f"--{name}" in refusal(PONG, f"--{name}={text}")


@pytest.mark.parametrize("text", ["", "a\nb", "a\x00b", "a\x7fb", "a\x9bb", "\ud800", "x" * 4097])
def test_texts_that_no_folder_or_environment_has_are_refused(text):
    """Analytic: empty, cut, unprintable or endless names end before they reach the disk, in a line."""
    flags = [f"--{name}" for name in ("log_dir", "run_name", "load_ckpt", "cores", "network")]
    for argv in ([text], *([PONG, f"{flag}={text}"] for flag in [*flags, "--config", "--resume"])):
        line = refusal(*argv)
        assert line.isprintable()
        assert len(line) <= 500


def test_a_refusal_is_one_line_of_bounded_length():
    """Analytic: it is cut, and shows control characters as escapes."""
    assert len(refusal(PONG, "--" + "x" * 10_000)) == 500
    assert refusal(PONG, "--n_workers", "5\nx").isprintable()


def test_a_folder_whose_name_is_no_utf8_can_be_given():
    """Analytic: such a name arrives with escaped bytes, and is kept; as is one of 4096 characters."""
    for path in ("run\udcff", "x" * 4096):
        assert command_line.parse([PONG, "--log_dir", path]).params.log_dir == path


def test_help_and_docs_flags_md_tell_everything_of_every_flag(capsys):
    """Golden: docs/flags.md is what its generator writes. Analytic: nothing is left out."""
    page = flags_page.page()
    assert flags_page.PAGE.read_text(encoding="utf-8") == page
    with pytest.raises(SystemExit) as caught:
        command_line.parse(["--help"])
    assert caught.value.code in (0, None)
    text = "".join(capsys.readouterr().out.split())  # lines are broken at hyphens too
    assert "train.py[flags]env_id" in text
    assert "train.py--resumeFOLDER[flags]" in text
    for name, knob in params.KNOBS.items():
        for part in (name, knob.help, knob.source, knob.unit):
            assert "".join(part.split()) in text
            assert part.replace("<", "\\<") in page
        presets = command_line.differing(name)
        assert not presets or f"{params.shown(knob.default)},{''.join(presets.split())}" in text


def test_the_version_is_printed(capsys):
    """Analytic: by train.py, as the package knows it."""
    with pytest.raises(SystemExit) as caught:
        command_line.parse(["--version"])
    assert caught.value.code in (0, None)
    assert capsys.readouterr().out == f"train.py {a3c.__version__}\n"
