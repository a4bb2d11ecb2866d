"""Tests of the parameters: presets against the published columns, ranges, the network, args.json."""

import dataclasses
import json
import math

import hypothesis
import pytest
from hypothesis import strategies as st

from a3c.settings import command_line, params
from a3c.settings.params import BadInput, ParsedParams

PONG = "PongNoFrameskip-v4"

# What each preset is known to use, typed from the sources: OCD A3C's code of 2018; Mnih et al. 2016
# §8 with the settings its author sent by e-mail.
OCD_COLUMN = {
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
}
PAPER_COLUMN = OCD_COLUMN | {
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
# The flags that are about the run itself, and the same under every preset.
RUN_DEFAULTS = {
    "n_workers": 1,
    "envs_per_worker": 1,
    "n_steps": 10_000_000,
    "env_timeout_seconds": 60.0,
    "seed": 0,
    "no_xla": False,
    "no_clip_rewards": False,
    "no_end_on_life_loss": False,
    "load_ckpt": None,
    "ckpt_interval_seconds": 300.0,
    "keep_ckpts": 3,
    "manager_wake_interval_seconds": 60.0,
    "log_dir": None,
    "run_name": None,
    "debug": False,
    "no_frame_numbers": False,
    "detailed_logs": False,
    "eval_interval_steps": None,
    "eval_episodes": 10,
}


@pytest.mark.parametrize(
    ("argv", "column"),
    [
        ([], OCD_COLUMN | {"preset": "ocd"}),
        (["--preset", "ocd"], OCD_COLUMN | {"preset": "ocd"}),
        (["--preset", "paper"], PAPER_COLUMN | {"preset": "paper"}),
    ],
    ids=["default", "ocd", "paper"],
)
def test_presets_have_the_published_values(argv, column):
    """Analytic: every value under each preset equals a table typed here, none left out."""
    parsed = params.resolve_network(command_line.parse([*argv, PONG]), "image")
    assert dataclasses.asdict(parsed.params) == column | RUN_DEFAULTS | {"env_id": PONG}


# The least and the most that each number may be.
RANGES = {
    "n_workers": (1, 1024),
    "envs_per_worker": (1, 1024),
    "n_steps": (1, 10**12),
    "env_timeout_seconds": (1, 1e6),
    "seed": (0, 2**32 - 1),
    "steps_per_update": (1, 10_000),
    "discount": (0, 1),
    "entropy_bonus": (0, 1e3),
    "value_loss_coef": (0, 1e3),
    "max_grad_norm": (1e-6, 1e9),
    "initial_lr": (1e-12, 10),
    "lr_decay_to_zero_by_n_steps": (1, 10**12),
    "rmsprop_decay": (0, 0.999999),
    "rmsprop_epsilon": (1e-30, 1e6),
    "rmsprop_initial": (0, 1e6),
    "max_n_noops": (0, 10_000),
    "ckpt_interval_seconds": (0.01, 1e9),
    "keep_ckpts": (1, 10_000),
    "eval_interval_steps": (1, 10**12),
    "eval_episodes": (1, 10_000),
    "manager_wake_interval_seconds": (0.01, 1e9),
}
# What --resume may change, since the weights do not depend on it.
ANEW = {
    "n_steps",
    "env_timeout_seconds",
    "ckpt_interval_seconds",
    "keep_ckpts",
    "eval_interval_steps",
    "eval_episodes",
    "manager_wake_interval_seconds",
    "detailed_logs",
}


def test_what_each_flag_may_be():
    """Golden: every range, and which flags a resumed run may have anew."""
    assert {n: k.within for n, k in params.KNOBS.items() if k.within is not None} == RANGES
    assert {n for n, k in params.KNOBS.items() if k.anew} == ANEW


@pytest.mark.parametrize(
    ("flag", "limit"),
    [
        ("env_id", 200),
        ("--log_dir", 4096),
        ("--load_ckpt", 4096),
        ("--run_name", 100),
        ("--resume", 4096),
    ],
)
def test_a_text_is_taken_up_to_its_length(flag, limit):
    """Analytic: one character more is refused, by the flag's name."""

    def given(length: int) -> list[str]:
        text = "x" * length
        return {"env_id": [text], "--resume": [flag, text]}.get(flag, [PONG, flag, text])

    command_line.parse(given(limit))
    with pytest.raises(BadInput, match=rf"^{flag} .*{limit}"):
        command_line.parse(given(limit + 1))


def test_the_ends_of_every_range_are_taken_and_survive_float32():
    """Analytic: a range is closed, and float32 keeps what it allows on the allowed side."""
    import numpy as np

    for name, ends in RANGES.items():
        for value in ends:
            extra = ["--n_steps", "1"]
            if name == "lr_decay_to_zero_by_n_steps":
                extra += ["--lr_schedule", "linear"]
            argv = [PONG, *extra, f"--{name}", str(value)]
            assert getattr(command_line.parse(argv).params, name) == value
            if ends[1] <= 1e9:
                single = np.float32(value)
                assert np.isfinite(single)
                assert (single == 0) == (value == 0)
                assert (single == 1) == (value == 1)


@pytest.mark.parametrize(
    ("argv", "kind", "network", "source"),
    [
        ([], "image", "nature", "preset"),
        (["--preset", "paper"], "image", "small", "preset"),
        ([], "vector", "mlp", "default"),
        (["--preset", "paper"], "vector", "mlp", "default"),
        (["--network", "small"], "image", "small", "command line"),
        (["--network", "mlp"], "vector", "mlp", "command line"),
    ],
)
def test_the_network_fits_the_observations(argv, kind, network, source):
    """Analytic: the preset's network for images, mlp for vectors; a second call changes nothing."""
    parsed = command_line.parse([*argv, PONG])
    assert parsed.params.network in (None, network)
    once = params.resolve_network(parsed, kind)
    assert (once.params.network, once.sources["network"]) == (network, source)
    assert params.resolve_network(once, kind) == once


@pytest.mark.parametrize(
    ("argv", "kind", "words"),
    [
        (
            *(["--network", "mlp"], "image"),
            f"--network mlp takes vector observations, but {PONG} gives image observations: use"
            " nature or small",
        ),
        (
            *(["--network", "nature"], "vector"),
            f"--network nature takes image observations, but {PONG} gives vector observations: use"
            " mlp",
        ),
        (
            *(["--network", "small"], "vector"),
            f"--network small takes image observations, but {PONG} gives vector observations: use"
            " mlp",
        ),
        (
            *(["--preprocessing", "generic"], "vector"),
            f"--preprocessing is for image observations, but {PONG} gives vectors",
        ),
        (
            *(["--max_n_noops", "30"], "vector"),
            f"--max_n_noops is for image observations, but {PONG} gives vectors",
        ),
    ],
)
def test_what_does_not_fit_the_observations_is_refused(argv, kind, words):
    """Golden: a wrong network, or a flag that would be without effect, is named."""
    parsed = command_line.parse([*argv, PONG])
    with pytest.raises(BadInput) as caught:
        params.resolve_network(parsed, kind)
    assert str(caught.value) == words


def test_flags_that_hold_for_vectors_anyway_are_no_error():
    """Analytic: asking for no no-ops, unclipped rewards and whole episodes is what vectors get."""
    flags = ["--max_n_noops", "0", "--no_clip_rewards", "--no_end_on_life_loss"]
    params.resolve_network(command_line.parse([*flags, PONG]), "vector")


def test_every_parameter_survives_args_json_exactly():
    """Analytic: what is read is what was written, for every field, floats to the last bit."""
    argv = [PONG, "--preset", "paper", "--initial_lr", repr(math.pi * 1e-4), "--log_dir", "r\udcff"]
    parsed = params.resolve_network(command_line.parse(argv), "image")
    assert params.from_json(json.loads(json.dumps(params.to_json(parsed)))) == parsed


@pytest.mark.parametrize(
    ("part", "name", "value", "words"),
    [
        ("params", "n_workers", 2.0, ["n_workers", "int"]),
        ("params", "n_workers", True, ["n_workers", "int"]),
        ("params", "n_workers", "2", ["n_workers", "int"]),
        ("params", "n_workers", None, ["n_workers", "int"]),
        ("params", "debug", 1, ["debug", "bool"]),
        ("params", "discount", True, ["discount", "float"]),
        ("params", "discount", math.nan, ["discount"]),
        ("params", "discount", 2, ["discount"]),
        ("params", "network", "lstm", ["network", "lstm"]),
        ("params", "network", 3, ["network", "str or null"]),
        ("params", "env_id", None, ["env_id"]),
        ("params", "log_dir", "", ["log_dir"]),
        ("params", "n_steps", 20_000_000, ["lr_decay_to_zero_by_n_steps"]),
        ("params", "gamma", 0.99, ["unknown", "gamma"]),
        ("sources", "gamma", "default", ["unknown", "gamma"]),
        ("sources", "seed", "guessed", ["seed", "guessed"]),
        ("sources", "seed", ["default"], ["seed"]),
    ],
)
def test_args_json_is_read_strictly(part, name, value, words):
    """Analytic: what to_json could not have written is refused, and named."""
    content = params.to_json(command_line.parse(["--preset", "paper", PONG]))
    content[part][name] = value
    with pytest.raises(BadInput) as caught:
        params.from_json(content)
    assert [word for word in words if word not in str(caught.value)] == []


ALWAYS = ("env_id", "preset")


def test_a_flag_younger_than_the_file_has_its_presets_default():
    """Analytic: each but two may be missing, and the source says that it was."""
    for preset in ("ocd", "paper"):
        parsed = command_line.parse(["--preset", preset, PONG])
        for name in set(params.KNOBS) - {*ALWAYS, "network", "lr_decay_to_zero_by_n_steps"}:
            content = params.to_json(parsed)
            del content["params"][name], content["sources"][name]
            assert params.from_json(content) == (
                parsed.params,
                parsed.sources | {name: "not recorded"},
            )


@pytest.mark.parametrize("preset", ["atari", ["ocd"], None])
def test_a_file_with_a_younger_flag_and_no_such_preset_is_refused(preset):
    """Analytic: before the preset's default is looked up."""
    content = params.to_json(command_line.parse([PONG]))
    del content["params"]["discount"], content["sources"]["discount"]
    content["params"]["preset"] = preset
    with pytest.raises(BadInput, match="preset"):
        params.from_json(content)


def test_args_json_must_be_whole():
    """Analytic: no name may be missing in one part alone, and nothing else is an object of ours."""
    for name in params.KNOBS:
        for parts in (["params"], ["sources"], *[["params", "sources"]] * (name in ALWAYS)):
            content = params.to_json(command_line.parse([PONG]))
            for part in parts:
                del content[part][name]
            with pytest.raises(BadInput, match=f"missing.*{name}"):
                params.from_json(content)
    others: list[object] = [None, [], {}, {"params": {}}, {"params": [], "sources": {}}, "x", 3]
    for other in others:
        with pytest.raises(BadInput):
            params.from_json(other)


patient = hypothesis.settings(max_examples=2 * hypothesis.settings.default.max_examples)
jsons = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


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
    content["params"][name] = value
    try:
        params.from_json(content)
        is_refused = False
    except BadInput as error:
        is_refused = "out of range" in str(error)
    assert is_refused == (not low <= value <= high)


@patient
@hypothesis.given(
    st.sampled_from(list(params.KNOBS)), st.sampled_from(["params", "sources"]), jsons
)
def test_any_value_in_args_json_is_read_or_refused(name, part, value):
    """Analytic: whatever stands in the file raises nothing but BadInput."""
    content = params.to_json(command_line.parse([PONG]))
    content[part][name] = value
    try:
        parsed = params.from_json(content)
    except BadInput:
        return
    assert isinstance(parsed, ParsedParams)
    params.check(parsed.params)
