"""The parameters: presets against the published values, ranges, the network, args.json."""

import dataclasses
import json
import math

import hypothesis
import pytest
from hypothesis import strategies as st

from a3c.envs.make import describe_env
from a3c.machine.words import BadInput
from a3c.run.start import subject_of
from a3c.settings import command_line, params

PONG = "PongNoFrameskip-v4"

# What each preset is known to use, typed from the sources: OCD A3C's code of 2018; Mnih et al. 2016
# §8 with the settings its author sent by e-mail; the command of results/pong-nature-s0, whose
# learning rate would have fallen to 0 later than it ended; results/pong-search/black-fewer.toml, but
# for longer; the README's command for CartPole.
OCD = {
    "preset": "ocd",
    "steps_per_update": 5,
    "discount": 0.99,
    "entropy_bonus": 0.01,
    "value_loss_coef": 0.5,
    "max_grad_norm": 5.0,
    "loss_reduction": "mean",
    "initial_lr": 1e-4,
    "lr_schedule": "constant",
    "lr_decay_to_zero_by_n_steps": None,
    "rmsprop_decay": 0.99,
    "rmsprop_epsilon": 1e-5,
    "rmsprop_initial": 1.0,
    "network": "nature",
    "initial_weights": "glorot",
    "max_n_noops": 30,
    "preprocessing": "generic",
    # About the run itself.
    "n_workers": 1,
    "envs_per_worker": 1,
    "n_steps": 10_000_000,
    "env_timeout_seconds": 60.0,
    "cores": None,
    "seed": 0,
    "no_xla": False,
    "no_clip_rewards": False,
    "no_end_on_life_loss": False,
    "load_ckpt": None,
    "ckpt_interval_seconds": 300.0,
    "keep_ckpts": 3,
    "log_interval_seconds": 60.0,
    "log_dir": None,
    "run_name": None,
    "debug": False,
    "no_frame_numbers": False,
    "detailed_logs": False,
    "eval_interval_steps": None,
    "eval_episodes": 10,
}
PAPER = OCD | {
    "preset": "paper",
    "max_grad_norm": 40.0,
    "loss_reduction": "sum",
    "initial_lr": 7e-4,
    "lr_schedule": "linear",
    "lr_decay_to_zero_by_n_steps": 10_000_000,
    "rmsprop_epsilon": 0.1,
    "rmsprop_initial": 0.0,
    "network": "small",
    "initial_weights": "torch",
}
WIDE = OCD | {
    "preset": "wide",
    "n_workers": 3,
    "envs_per_worker": 32,
    "max_grad_norm": 0.5,
    "initial_lr": 7e-4,
    "lr_schedule": "linear",
    "lr_decay_to_zero_by_n_steps": 10_000_000,
    "rmsprop_epsilon": 1e-8,
    "initial_weights": "orthogonal",
}
FOR_PONG = WIDE | {
    "preset": "pong",
    "envs_per_worker": 8,
    "n_steps": 6_000_000,
    "lr_decay_to_zero_by_n_steps": 6_000_000,
    "rmsprop_initial": 1e-6,
    "network": "small",
    "preprocessing": "black",
}
CARTPOLE = OCD | {
    "preset": "cartpole",
    "n_workers": 4,
    "envs_per_worker": 4,
    "n_steps": 300_000,
    "network": "mlp",
    "initial_lr": 7e-4,
    "rmsprop_initial": 0.0,
    "max_grad_norm": 0.5,
    "initial_weights": "orthogonal",
    "entropy_bonus": 0.0,
}
MUJOCO = OCD | {
    "preset": "mujoco",
    "envs_per_worker": 4,
    "n_steps": 1_000_000,
    "network": "mlp",
    "initial_lr": 1.4e-3,
    "lr_schedule": "linear",
    "lr_decay_to_zero_by_n_steps": 1_000_000,
    "rmsprop_epsilon": 1e-10,
    "rmsprop_initial": 0.0,
    "max_grad_norm": 0.5,
    "initial_weights": "orthogonal",
    "entropy_bonus": 0.0,
    "hidden_units": (64, 64),
    "activation": "tanh",
    "normalize_observations": True,
    "scale_rewards": True,
    "max_episode_steps": None,
    "policy_sd": "per_dimension",
    "initial_sd": 1.0,
}


@pytest.mark.parametrize(
    ("argv", "kind", "values"),
    [
        ([], "image", OCD),
        (["--preset", "ocd"], "image", OCD),
        (["--preset", "paper"], "image", PAPER),
        (["--preset", "wide"], "image", WIDE),
        (["--preset", "pong"], "image", FOR_PONG),
        (["--preset", "cartpole"], "vector", CARTPOLE),
        (["--preset", "mujoco"], "vector", MUJOCO),
    ],
    ids=["default", "ocd", "paper", "wide", "pong", "cartpole", "mujoco"],
)
def test_presets_have_the_published_values(argv, kind, values):
    """Analytic: every value under each preset equals a table typed here; a flag that is younger than
    the table has its default.
    """
    parsed = params.resolve(command_line.parse([*argv, PONG]), kind)
    found = dataclasses.asdict(parsed.params)
    younger = {name: knob.default for name, knob in params.KNOBS.items() if name not in values}
    expected = younger | values | {"env_id": PONG}
    assert found == expected
    for name, value in found.items():  # 1 and 1.0 are written differently
        assert type(value) is type(expected[name]), name


RANGES = {n: knob.within for n, knob in params.KNOBS.items() if knob.within}


def test_every_flag_is_declared_soundly():
    """Analytic: every number has a range; what a resumed run may change does not change training."""
    numbers = {n for n, types in params.TYPES.items() if {int, float, tuple} & {*types}}
    numbers.remove("env_kwargs")  # a list of texts
    assert numbers == RANGES.keys()
    assert not any(knob.anew and knob.changes_training for knob in params.KNOBS.values())


def test_the_ends_of_every_range_are_taken_and_survive_float32():
    """Analytic: a range is closed, and float32 keeps what it allows on the allowed side."""
    import numpy as np

    for name, ends in RANGES.items():
        for value in ends:
            extra = ["--n_steps", "1"]
            if name == "lr_decay_to_zero_by_n_steps":
                extra += ["--lr_schedule", "linear"]
            if name == "remote_workers":
                extra += ["--ray", "auto", "--n_workers", "2"]
            if name == "eval_episodes":
                extra += ["--eval_interval_steps", "1"]
            argv = [PONG, *extra, f"--{name}", str(value)]
            expected = (value,) if params.TYPES[name] == (tuple,) else value
            assert getattr(command_line.parse(argv).params, name) == expected
            if ends[1] <= 1e9:
                single = np.float32(value)
                assert np.isfinite(single)
                assert (single == 0) == (value == 0)
                assert (single == 1) == (value == 1)


@pytest.mark.parametrize(
    ("argv", "kind", "network", "source"),
    [
        ([], "image", "nature", "derived"),
        (["--preset", "paper"], "image", "small", "preset"),
        (["--preset", "paper", "--network", "none"], "image", "nature", "command line"),
        ([], "vector", "mlp", "derived"),
        (["--preset", "paper"], "vector", "mlp", "derived"),
        (["--network", "small"], "image", "small", "command line"),
        (["--network", "mlp"], "vector", "mlp", "command line"),
    ],
)
def test_the_network_fits_the_observations(argv, kind, network, source):
    """Analytic: the preset's network for images, mlp for vectors; a second call changes nothing."""
    parsed = command_line.parse([*argv, PONG])
    once = params.resolve(parsed, kind)
    assert (once.params.network, once.sources["network"]) == (network, source)
    assert params.resolve(once, kind) == once


FOR_ATARI = "is for Atari games, but {} is none"
FOR_VECTORS = "is for vectors, but {} gives images"
FOR_CONTINUOUS = "is for continuous actions, but {} has discrete ones"


@pytest.mark.parametrize(
    ("flag", "value", "kind", "words"),
    [
        ("--network", "mlp", "image", "the image observations of {}: use nature or small"),
        ("--network", "small", "vector", "the vector observations of {}: use mlp"),
        ("--preprocessing", "generic", "vector", FOR_ATARI),
        ("--max_n_noops", "30", "image", FOR_ATARI),
        ("--hidden_units", "64 64", "image", FOR_VECTORS),
        ("--activation", "relu", "image", FOR_VECTORS),
        ("--normalize_observations", "", "image", FOR_VECTORS),
        ("--scale_rewards", "", "image", FOR_VECTORS),
        ("--policy_sd", "per_state", "image", FOR_CONTINUOUS),
        ("--initial_sd", "1", "vector", FOR_CONTINUOUS),
    ],
)
@pytest.mark.parametrize("is_in_a_file", [False, True])
def test_what_does_not_fit_the_environment_is_refused(flag, value, kind, words, is_in_a_file):
    """Golden: a wrong network, or a flag that would be without effect, is named, wherever it stands.
    Analytic: a preset's is not refused.
    """
    parsed = command_line.parse([flag, *value.split(), PONG])
    source = "config" if is_in_a_file else "command line"
    parsed = parsed._replace(sources=parsed.sources | {flag[2:]: source})
    with pytest.raises(BadInput, match=f"^{flag} .*{words.format(PONG)}$"):
        params.resolve(parsed, kind)
    if flag != "--network":
        params.resolve(parsed._replace(sources=parsed.sources | {flag[2:]: "preset"}), kind)


def test_a_presets_preprocessing_is_no_part_of_an_agent_for_vectors():
    """Analytic: another preset's run may start from its checkpoint."""
    parsed = command_line.parse(["--preset", "pong", "CartPole-v1"])
    description = describe_env(parsed.params)
    found = params.resolve(parsed, description.kind).params
    assert (found.preprocessing, subject_of(found, description).preprocessing) == (
        "black",
        "generic",
    )


def test_a_time_limit_in_steps_is_not_for_atari():
    """Analytic: its emulator counts frames; of a preset, the limit has no effect there."""
    parsed = command_line.parse(["--max_episode_steps", "9", PONG])
    with pytest.raises(BadInput, match="^--max_episode_steps is not for Atari"):
        params.resolve(parsed, "image", is_atari=True)
    for kind in ("image", "vector"):
        assert params.resolve(parsed, kind).params.max_episode_steps == 9
    of_preset = parsed._replace(sources=parsed.sources | {"max_episode_steps": "preset"})
    params.resolve(of_preset, "image", is_atari=True)


def test_flags_that_hold_anyway_are_no_error():
    """Analytic: asking for no no-ops, unclipped rewards and whole episodes is what others than Atari get,
    and for no running statistics and no time limit of our own, what images get. Atari and continuous
    actions have a use for their flags.
    """
    flags = ["--max_n_noops", "0", "--no_clip_rewards", "--no_end_on_life_loss"]
    params.resolve(command_line.parse([*flags, PONG]), "vector")
    flags = ["--normalize_observations=none", "--scale_rewards=none", "--max_episode_steps", "none"]
    params.resolve(command_line.parse([*flags, PONG]), "image", is_atari=True)
    flags = ["--max_n_noops", "3", "--preprocessing", "pong"]
    params.resolve(command_line.parse([*flags, PONG]), "image", is_atari=True)
    flags = ["--policy_sd", "per_state", "--initial_sd", "0.5", "--hidden_units", "8"]
    params.resolve(command_line.parse([*flags, PONG]), "vector", is_continuous=True)


def test_every_parameter_survives_args_json_exactly():
    """Analytic: what is read is what was written, for every field, floats to the last bit."""
    argv = [PONG, "--preset", "paper", "--initial_lr", repr(math.pi * 1e-4), "--log_dir", "r\udcff"]
    argv += ["--env_kwargs", "a=1", "b=x y", "--wrapper", "m:A,m:B"]
    parsed = command_line.parse([*argv, "--hidden_units", "7", "5"])
    content = json.loads(json.dumps(params.to_json(parsed)))
    assert params.from_json(content) == parsed
    assert content["params"] == params.as_in_json(parsed.params)


@pytest.mark.parametrize(
    ("part", "name", "value", "words"),
    [
        ("params", "n_workers", 2.5, ["n_workers", "whole number"]),
        ("params", "n_workers", True, ["n_workers", "whole number"]),
        ("params", "n_workers", None, ["n_workers", "whole number"]),
        ("params", "debug", 1, ["debug", "true or false"]),
        ("params", "discount", math.nan, ["discount"]),
        ("params", "network", "lstm", ["network", "lstm"]),
        ("params", "preset", ["ocd"], ["preset"]),
        ("params", "cores", "many", ["cores", "many"]),
        ("params", "hidden_units", 64, ["hidden_units", "64"]),
        ("params", "hidden_units", [64, True], ["hidden_units", "64 True"]),
        ("params", "hidden_units", [[64]], ["hidden_units", "[64]"]),
        ("params", "hidden_units", {"64": 64}, ["hidden_units", "{'64': 64}"]),
        ("params", "log_dir", "", ["log_dir"]),
        ("params", "n_steps", 20_000_000, ["lr_decay_to_zero_by_n_steps"]),
        ("params", "gamma", 0.99, ["another revision", "--gamma"]),
        ("sources", "gamma", "default", ["gamma"]),
    ],
)
def test_args_json_is_read_strictly(part, name, value, words):
    """Analytic: what to_json could not have written is refused, and named."""
    content = params.to_json(command_line.parse(["--preset", "paper", PONG]))
    content[part][name] = value
    with pytest.raises(BadInput) as caught:
        params.from_json(content)
    assert [word for word in words if word not in str(caught.value)] == []


def test_a_flag_younger_than_the_file_has_its_default():
    """Analytic: each but env_id may be missing in both parts, and its source says that it was."""
    parsed = command_line.parse([PONG])
    for name in params.KNOBS:
        for parts in (["params"], ["sources"], ["params", "sources"]):
            content = params.to_json(parsed)
            for part in parts:
                del content[part][name]
            if len(parts) == 2 and name != "env_id":
                older = parsed.sources | {name: "not recorded"}
                assert params.from_json(content) == (parsed.params, older)
            else:
                with pytest.raises(BadInput, match=name):
                    params.from_json(content)


def test_what_is_no_record_is_refused():
    """Analytic: whatever the file holds instead."""
    others: list[object] = [None, [], {}, {"params": {}}, {"params": [], "sources": {}}, "x", 3]
    for other in others:
        with pytest.raises(BadInput):
            params.from_json(other)


@hypothesis.given(st.sampled_from([n for n, k in params.KNOBS.items() if k.within]), st.data())
def test_a_number_is_taken_where_it_is_in_its_range(name, data):
    """Analytic: the ends belong to it, and what is no number does not."""
    low, high = params.KNOBS[name].within
    is_whole = float not in params.TYPES[name]
    near = [low, high, low - 1, high + 1]
    if not is_whole:
        near += [math.nextafter(low, -math.inf), math.nextafter(high, math.inf), math.nan]
    value = data.draw(st.sampled_from(near) | (st.integers() if is_whole else st.floats()))
    content = params.to_json(command_line.parse([PONG]))
    content["params"][name] = [value] if params.TYPES[name] == (tuple,) else value
    try:
        params.from_json(content)
        is_refused = False
    except BadInput as error:
        is_refused = any(
            x in str(error) for x in ("must be between", "out of range", "must be 1 to")
        )
    assert is_refused == (not low <= value <= high)


def test_remote_workers_are_the_last_ones_and_never_all():
    """Analytic: worker 0 stays here; without --ray, all do. Contradictions and strange addresses are refused."""
    ray = ["--ray", "auto", "--n_workers", "4"]
    for argv, expected in [
        (["--n_workers", "4"], 0),
        (ray, 3),
        ([*ray, "--remote_workers", "2"], 2),
        ([*ray, "--remote_workers", "9"], 3),
    ]:
        assert params.n_remote_workers(command_line.parse([PONG, *argv]).params) == expected
    for argv, words in [
        (["--ray", "local"], "--ray needs --n_workers 2 at least"),
        (
            ["--n_workers", "4", "--remote_workers", "2"],
            "--remote_workers 2 needs --ray",
        ),
        (["--eval_episodes", "4"], "--eval_episodes has no effect without --eval_interval_steps"),
        (["--no_frame_numbers"], "--no_frame_numbers has no effect without --debug"),
        (["--n_workers", "4", "--ray", "there"], "must be auto or HOST:PORT"),
    ]:
        with pytest.raises(BadInput, match=words):
            command_line.parse([PONG, *argv])
