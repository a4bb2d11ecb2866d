"""Every flag of train.py, declared once as a field of `Params`, and the checks of its values.

The command line, `--help`, docs/flags.md, files of settings and `args.json` are derived from these
fields. A range includes its ends, which keep their meaning in float32, and refuses only what cannot
work.
"""

import dataclasses
import pathlib
import re
import typing
from collections.abc import Mapping
from typing import Any, NamedTuple

from a3c.machine import cluster, cores
from a3c.machine.words import BadInput

PRESET_FILES = sorted(pathlib.Path(__file__).parent.glob("presets/*.toml"))
MAX_ENVS = 1024  # each may be a process of its own
ASKED = ("config", "command line")  # the sources of what somebody asked for by name
NONE = "none"  # unsets a flag, on the command line and in files
LR_END = "lr_decay_to_zero_by_n_steps"
# Flags that had another name before: commands, files of settings and records may still use it.
RENAMED = dict.fromkeys(
    ["wake_interval_seconds", "manager_wake_interval_seconds"], "log_interval_seconds"
)
MOST_EPISODE_STEPS = 10**9
# What a checkpoint's network is made for: no run with another value can start from it.
OF_SUBJECT = {
    *("env_id", "preprocessing", "network", "hidden_units", "activation", "lstm_units"),
    "policy_sd",
}
# What counts for the one start that it is given to: no record hands it on.
OF_ONE_START = ("stop_after_hours",)
# Flags for Atari that ask for what other environments get anyway.
_AS_OTHERS_ARE = ("no_clip_rewards", "no_end_on_life_loss")
# Control characters, and surrogates except those that stand for a path's bytes that are not UTF-8.
_NO_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udc7f\udd00-\udfff]")

OCD = "OCD A3C"
MAIL = "author's e-mail"
OURS = "this project"

RUN = "the run"
UPDATE = "the update"
OPTIMIZER = "the optimizer"
NETWORK = "the network"
ENVIRONMENT = "the environment"
ATARI = "Atari games (other environments use none of these)"
VECTORS = "vector observations (images use none of these)"
CONTINUOUS = "continuous actions (discrete actions use none of these)"
CKPTS = "checkpoints"
EVALUATION = "evaluation during training, by the protocol of published scores"
LOGS = "the run folder, logs and debugging"


class Knob(NamedTuple):
    """What is known about one flag besides its name and type."""

    group: str
    default: Any
    unit: str
    source: str
    help: str
    choices: tuple[str, ...] | None = None
    within: tuple[float, float] | None = None
    anew: bool = False  # a resumed run may change it
    changes_training: bool = True  # runs that differ only in seeds have the same value


def _knob(group: str, default: Any, unit: str, source: str, help: str, **more: Any) -> Any:
    """A field of Params. By default, what a resumed run may change does not change training."""
    more.setdefault("changes_training", not more.get("anew", False))
    knob = Knob(group, default, unit, source, help, **more)
    return dataclasses.field(default=default, metadata={"knob": knob})


@dataclasses.dataclass(frozen=True)
class Params:
    """One value for every flag of train.py, by the flag's own name."""

    # fmt: off
    env_id: str = _knob(
        RUN, dataclasses.MISSING, "", OCD,
        "a Gymnasium id; module:Id imports the module first, which runs its code")
    preset: str = _knob(
        RUN, "ocd", "", OURS,
        "the settings to start from; --config and other flags override them: ocd (OCD A3C's), paper"
        " (the paper's network, its author's settings; add --n_workers 16), wide (Atari, three times as"
        " fast), pong (learns Pong soonest), cartpole, mujoco (continuous control), paper-lstm and"
        " wide-lstm (with a memory)",
        choices=tuple(path.stem for path in PRESET_FILES), changes_training=False)
    n_workers: int = _knob(
        RUN, 1, "threads", OCD, "worker threads; the paper uses 16 (§8)", within=(1, MAX_ENVS))
    envs_per_worker: int = _knob(
        RUN, 1, "environments", "paper", "environments of each worker; it steps them with one network call",
        within=(1, MAX_ENVS))
    n_steps: int = _knob(
        RUN, 10_000_000, "agent steps, on Atari of 4 emulator frames each", OCD,
        "steps of all workers together, including those of a resumed run or a loaded checkpoint; may"
        " be written as 1e7",
        within=(1, 10**12), anew=True)
    env_timeout_seconds: float = _knob(
        RUN, 60.0, "seconds", OURS,
        "replace an environment process that crashes, or that takes longer than this for one step of"
        " all its environments", within=(1, 1e6), anew=True)
    cores: str | None = _knob(
        RUN, None, "cores", OURS,
        "how many cores to use, such as 4, or which, such as 0-3 or 0,2-3; none: all allowed ones",
        anew=True)
    ray: str | None = _knob(
        RUN, None, "", OURS,
        "have workers on other machines: auto or HOST:PORT is the address of a Ray cluster, local starts"
        " Ray on this machine alone, to try it out", anew=True)
    remote_workers: int | None = _knob(
        RUN, None, "workers", OURS,
        "with --ray, at most so many workers are remote; none: all but worker 0, which always stays here",
        within=(1, MAX_ENVS), anew=True)
    stop_after_hours: float | None = _knob(
        RUN, None, "hours", OURS,
        "stop and save so many hours after this start, with exit status 0; for batch queues with a"
        " limit of time; the next start does not keep this limit", within=(0.001, 1e6), anew=True)
    seed: int = _knob(
        RUN, 0, "", OCD, "seed of all random draws", within=(0, 2**32 - 1), changes_training=False)
    no_xla: bool = _knob(
        RUN, False, "", OURS,
        "do not use XLA to act on images or to learn from vectors; --debug implies this")

    env_kwargs: tuple[str, ...] = _knob(
        ENVIRONMENT, (), "", OURS,
        "arguments of the environment, such as map_name=8x8 is_slippery=false; a value is true, false, none,"
        " a number, a list or table as in JSON, or else a text")
    wrapper: str | None = _knob(
        ENVIRONMENT, None, "", OURS,
        "a wrapper around the environment, module:Wrapper, or several with commas, the innermost first;"
        " the module is imported, which runs its code")
    max_episode_steps: int | None = _knob(
        ENVIRONMENT, None, "agent steps", OURS,
        "time limit of an episode, not for Atari; none: the environment's own", within=(1, MOST_EPISODE_STEPS))

    steps_per_update: int = _knob(
        UPDATE, 5, "agent steps of each environment", "paper §8",
        "length of a rollout; each rollout gives one update", within=(1, 10_000))
    discount: float = _knob(
        UPDATE, 0.99, "per agent step", "paper §8", "discount factor γ", within=(0, 1))
    entropy_bonus: float = _knob(
        UPDATE, 0.01, "loss per nat", "paper §8", "weight β of the policy's entropy",
        within=(0, 1e3))
    value_loss_coef: float = _knob(
        UPDATE, 0.5, "", f"{OCD}; {MAIL}", "weight of the value loss", within=(0, 1e3))
    max_grad_norm: float = _knob(
        UPDATE, 5.0, "L2 norm over all gradients", f"{OCD}; {MAIL}",
        "gradients whose global norm is larger are scaled down to this norm", within=(1e-6, 1e9))
    loss_reduction: str = _knob(
        UPDATE, "mean", "", f"{OCD}; paper's pseudo-code",
        "mean or sum of the losses over steps and environments", choices=("mean", "sum"))

    initial_lr: float = _knob(
        OPTIMIZER, 1e-4, "per update", f"{OCD}; {MAIL}", "learning rate at the start",
        within=(1e-12, 10))
    lr_schedule: str = _knob(
        OPTIMIZER, "constant", "", f"{OCD}; {MAIL}",
        f"keep the learning rate constant, or let it fall linearly to 0 at --{LR_END}",
        choices=("constant", "linear"))
    lr_decay_to_zero_by_n_steps: int | None = _knob(
        OPTIMIZER, None, "agent steps", f"{OCD}; paper §8",
        "step at which a linear schedule reaches 0, which must not be before --n_steps; none: the"
        " --n_steps that the run first had", within=(1, 10**12))
    rmsprop_decay: float = _knob(
        OPTIMIZER, 0.99, "per update", "paper §8",
        "decay factor α of the running mean of squared gradients", within=(0, 0.999999))
    rmsprop_epsilon: float = _knob(
        OPTIMIZER, 1e-5, "squared gradient", f"{OCD}; {MAIL}",
        "ε, added to the mean of squared gradients inside the square root", within=(1e-30, 1e6))
    rmsprop_initial: float = _knob(
        OPTIMIZER, 1.0, "squared gradient", f"{OCD} (TensorFlow 1); PFRL",
        "initial value of the mean of squared gradients", within=(0, 1e6))

    network: str | None = _knob(
        NETWORK, None, "", f"{OCD} (Mnih et al. 2015); paper §8",
        "nature (three convolutions) or small (two) for images, mlp for vectors; none: nature or"
        " mlp, whichever fits; a preset's choice is for images only", choices=("nature", "small", "mlp"))
    initial_weights: str = _knob(
        NETWORK, "glorot", "", f"{OCD}; {MAIL}",
        "how to draw initial weights: glorot (uniform), torch (as Torch 7 does) or orthogonal",
        choices=("glorot", "torch", "orthogonal"))
    lstm_units: int = _knob(
        NETWORK, 0, "cells", "paper §5.1, §9",
        "cells of an LSTM after the last hidden layer, which gives the policy a memory; mlp has one for"
        " the policy and one for the value; 0: none", within=(0, 4096))

    preprocessing: str = _knob(
        ATARI, "generic", "", f"{OCD}; {OURS}",
        "generic works for every game; black is generic, and then makes the most common shade of each"
        " image black; pong is OCD A3C's own preprocessing for Pong",
        choices=("generic", "black", "pong"))
    max_n_noops: int = _knob(
        ATARI, 30, "emulator frames", OCD,
        "each game starts with a random number of no-ops, from 0 to this", within=(0, 10_000))
    no_clip_rewards: bool = _knob(
        ATARI, False, "", OURS, "train on true rewards; do not clip them to -1 ... 1")
    no_end_on_life_loss: bool = _knob(
        ATARI, False, "", OURS, "do not end an episode when a life is lost")

    hidden_units: tuple[int, ...] = _knob(
        VECTORS, (64, 64), "units", f"{OURS}; paper §9",
        "units of each hidden layer of mlp, such as 200, or 64 64 for two layers, at most 16; policy and"
        " value each have such layers", within=(1, 10_000))
    activation: str = _knob(
        VECTORS, "tanh", "", f"{OURS}; paper §9", "activation of mlp's hidden layers: tanh or relu",
        choices=("tanh", "relu"))
    normalize_observations: bool = _knob(
        VECTORS, False, "", OURS,
        "subtract the mean of all observations so far and divide by their standard deviation")
    scale_rewards: bool = _knob(
        VECTORS, False, "", OURS,
        "divide rewards by the standard deviation of the discounted sum of rewards so far")

    policy_sd: str = _knob(
        CONTINUOUS, "per_dimension", "", f"{OURS}; paper §9",
        "standard deviation of the actions: per_dimension learns one for each dimension of an action,"
        " in all states the same; per_state computes one for all dimensions from the state",
        choices=("per_dimension", "per_state"))
    initial_sd: float = _knob(
        CONTINUOUS, 1.0, "units of an action", OURS, "standard deviation of the actions at the start",
        within=(1e-3, 1e3))

    load_ckpt: str | None = _knob(
        CKPTS, None, "", OCD,
        "start a new run from this checkpoint, or from the newest undamaged one in this folder", changes_training=False)
    ckpt_interval_seconds: float = _knob(
        CKPTS, 300.0, "seconds", OCD, "time between two checkpoints", within=(0.01, 1e9), anew=True)
    keep_ckpts: int = _knob(
        CKPTS, 3, "checkpoints", OURS, "keep this many of the newest checkpoints", within=(1, 10_000), anew=True)

    eval_interval_steps: int | None = _knob(
        EVALUATION, None, "agent steps", OURS,
        "every so many steps, play whole games, unless the last evaluation is still running; the best"
        " weights are kept in checkpoints/best; none: never", within=(1, 10**12), anew=True)
    eval_episodes: int = _knob(
        EVALUATION, 10, "games", OURS, "games per evaluation", within=(1, 10_000), anew=True)

    log_interval_seconds: float = _knob(
        LOGS, 60.0, "seconds", OCD,
        "longest time between two rows of figures, in progress.csv and TensorBoard; the first ones"
        " come every 2 seconds", within=(0.01, 1e9), anew=True)
    log_dir: str | None = _knob(
        LOGS, None, "", OCD, "the run folder; it must be new or empty", changes_training=False)
    run_name: str | None = _knob(
        LOGS, None, "", OCD,
        "name the run folder runs/<run_name>_<git revision>; by default, its name has the environment,"
        " the preset, the settings that differ from it, the seed and the time", changes_training=False)
    debug: bool = _knob(
        LOGS, False, "", OCD,
        "write all input tensors of the network to stderr; needs one worker with one environment",
        changes_training=False)
    no_frame_numbers: bool = _knob(
        LOGS, False, "", OURS, "with --debug, do not draw numbers on frames", changes_training=False)
    detailed_logs: bool = _knob(
        LOGS, False, "", OCD,
        "add histograms of weights, gradients, activations and RMSProp statistics to TensorBoard",
        anew=True)
    # fmt: on


class ParsedParams(NamedTuple):
    """The parameters, and where each comes from."""

    params: Params
    # By name: "default", "preset", "config", "command line", "derived" (from other values), or
    # "not recorded" (args.json is older than the flag).
    sources: dict[str, str]


KNOBS: dict[str, Knob] = {f.name: f.metadata["knob"] for f in dataclasses.fields(Params)}
TYPES: dict[str, tuple[type, ...]] = {
    name: (tuple,) if typing.get_origin(hint) is tuple else typing.get_args(hint) or (hint,)
    for name, hint in typing.get_type_hints(Params).items()
}
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text in quotes"}


def by_todays_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings, or what is known of them, by the names that their flags have now."""
    return {RENAMED.get(name, name): value for name, value in values.items()}


def flag(name: str) -> str:
    """How a parameter is called on the command line."""
    return name if name == "env_id" else f"--{name}"


def taken(name: str, value: Any) -> Any:
    """A value from the command line or a file, as Params holds it; BadInput if it is not allowed.

    "none" unsets a flag. A whole number may be written as 1e7, and any number as 1.
    """
    knob, types = KNOBS[name], TYPES[name]
    if value == NONE and {type(None), bool} & {*types}:
        return None if type(None) in types else False
    if types == (tuple,):
        return _taken_kwargs(value) if name == "env_kwargs" else _taken_list(name, value)
    if type(value) in (int, float):
        # A larger number could not be converted, nor printed in a message.
        if not abs(value) < 10**18:
            raise BadInput(f"{flag(name)} is out of range")
        if float in types:
            value = float(value)
        elif int in types and value == int(value):
            value = int(value)
    if type(value) not in types:
        raise BadInput(f"{flag(name)} must be {_KINDS[types[0]]}, not {value!r}")
    if value is None:
        return None
    if knob.choices and value not in knob.choices:
        raise BadInput(f"--{name} must be one of {', '.join(knob.choices)}, not {value!r}")
    if knob.within and not knob.within[0] <= value <= knob.within[1]:
        low, high = map(shown, knob.within)
        raise BadInput(f"--{name} must be between {low} and {high}, not {value}")
    if isinstance(value, str):
        check_text(flag(name), value)
    return value


def _taken_list(name: str, value: Any) -> tuple[int, ...]:
    knob = KNOBS[name]
    assert knob.within is not None
    low, high = knob.within
    numbers = list(value) if isinstance(value, list | tuple) else []
    if not 1 <= len(numbers) <= 16 or not all(type(n) is int and low <= n <= high for n in numbers):
        given = " ".join(map(repr, value)) if isinstance(value, list | tuple) else repr(value)
        raise BadInput(
            f"--{name} must be 1 to 16 whole numbers between {shown(low)} and {shown(high)},"
            f" not {given[:100] or 'nothing'}"
        )
    return tuple(numbers)


def _taken_kwargs(value: Any) -> tuple[str, ...]:
    texts = value if isinstance(value, list | tuple) else [value]
    if list(texts) == [NONE]:
        return ()
    for text in texts:
        name, has_value, _ = str(text).partition("=")
        if not (isinstance(text, str) and has_value and name.isidentifier()):
            raise BadInput(f"--env_kwargs must be name=value, such as size=8, not {text!r:.100}")
        check_text("--env_kwargs", text)
    return tuple(texts)


def check(params: Params) -> None:
    """Raise BadInput where allowed values contradict each other."""
    cores.parse(params.cores)
    p, end = params, params.lr_decay_to_zero_by_n_steps
    if p.ray not in (None, "local", "auto"):
        cluster.check_form(p.ray)
    if p.ray is None and p.remote_workers is not None:
        raise BadInput(f"--remote_workers {p.remote_workers} needs --ray")
    if p.ray is not None and p.n_workers == 1:
        raise BadInput("--ray needs --n_workers 2 at least, because worker 0 stays here")
    if p.log_dir is not None and p.run_name is not None:
        raise BadInput("--log_dir and --run_name both name the run folder: give one of them")
    if p.run_name is not None and ("/" in p.run_name or not p.run_name.isprintable()):
        raise BadInput(f"--run_name {p.run_name!r} must be the name of a folder, not a path")
    if p.n_workers * p.envs_per_worker > MAX_ENVS:
        given = f"--n_workers {p.n_workers} with --envs_per_worker {p.envs_per_worker}"
        raise BadInput(f"{given} is more than {MAX_ENVS} environments")
    if p.lr_schedule == "linear" and end is None:
        raise BadInput(f"--lr_schedule linear needs --{LR_END}, the step at which it ends")
    if p.lr_schedule == "constant" and end is not None:
        raise BadInput(f"--{LR_END} {end} needs --lr_schedule linear; none unsets it")
    if end is not None and end < p.n_steps:
        given = f"--{LR_END} {shown(end)} comes before the end of training, --n_steps {shown(p.n_steps)}"
        raise BadInput(f"{given}: give a later step, or none, which means the end")
    if p.debug and p.n_workers * p.envs_per_worker > 1:
        raise BadInput("--debug needs one worker with one environment")


def check_text(shown: str, text: str) -> None:
    """Raise BadInput where a text cannot be a path, or would harm a terminal that shows it."""
    if not 1 <= len(text) <= 4096:
        raise BadInput(f"{shown} must have 1 to 4096 characters, not {len(text)}")
    if _NO_TEXT.search(text):
        raise BadInput(f"{shown} {text!r} contains control characters or broken ones")


def resolve(
    parsed: ParsedParams, kind: str, is_continuous: bool = False, is_atari: bool = False
) -> ParsedParams:
    """Choose the network for observations of a kind, which is "image" or "vector".

    A flag that somebody asked for and that this environment has no use for is a BadInput. If a preset
    sets such a flag, it has no effect.
    """
    params, sources = parsed
    network, source = params.network, sources["network"]
    if network is None or (source == "preset" and kind == "vector"):
        network = "mlp" if kind == "vector" else "nature"
        # `--network none` keeps its source, or a preset's network would win next time.
        if source in ("default", "preset"):
            sources = sources | {"network": "derived"}
    if (network == "mlp") != (kind == "vector"):
        fitting = "nature or small" if network == "mlp" else "mlp"
        given = f"--network {network} does not fit the {kind} observations of {params.env_id}"
        raise BadInput(f"{given}: use {fitting}")
    without_use = {}
    if not is_atari:
        without_use[ATARI] = f"is for Atari games, but {params.env_id} is none"
    if kind == "image":
        without_use[VECTORS] = f"is for vectors, but {params.env_id} gives images"
    if not is_continuous:
        without_use[CONTINUOUS] = (
            f"is for continuous actions, but {params.env_id} has discrete ones"
        )
    for name, knob in KNOBS.items():
        is_asked = sources[name] in ASKED and name not in _AS_OTHERS_ARE
        # A flag that is off asks for nothing.
        if knob.group in without_use and is_asked and getattr(params, name):
            raise BadInput(f"--{name} {without_use[knob.group]}")
    if is_atari and params.max_episode_steps and sources["max_episode_steps"] in ASKED:
        raise BadInput("--max_episode_steps is not for Atari, whose emulator counts frames")
    return ParsedParams(dataclasses.replace(params, network=network), sources)


def kept_moments(params: Params) -> list[str]:
    """Of what a run with these resolved parameters keeps a running mean and variance."""
    kept = {"observations": params.normalize_observations, "returns": params.scale_rewards}
    return [name for name, is_kept in kept.items() if is_kept and params.network == "mlp"]


def n_remote_workers(params: Params) -> int:
    """How many workers are remote: the last ones."""
    if params.ray is None:
        return 0
    return min(params.n_workers - 1, params.remote_workers or params.n_workers)


def as_in_json(params: Params) -> dict[str, Any]:
    """The values by name, as they come back from a file of JSON, which has no tuples."""
    values = dataclasses.asdict(params).items()
    return {name: list(x) if isinstance(x, tuple) else x for name, x in values}


def to_json(parsed: ParsedParams) -> dict[str, dict[str, Any]]:
    """What args.json records of the parameters."""
    return {"params": as_in_json(parsed.params), "sources": dict(parsed.sources)}


def from_json(content: Any) -> ParsedParams:
    """The inverse of to_json; BadInput where to_json could not have written the content.

    A flag without a value and a source is younger than the file, and ran with its default.
    """
    try:
        values, sources = (by_todays_names(dict(content[key])) for key in ("params", "sources"))
        if unknown := sorted(values.keys() - KNOBS.keys()):
            raise BadInput(f"another revision wrote it: this one has no flag --{unknown[0]}")
        params = Params(**{name: taken(name, value) for name, value in values.items()})
        if differing := values.keys() ^ sources.keys():
            raise ValueError(f"{min(differing)} lacks its value or its source")
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"these are not the parameters of a run: {error}") from None
    check(params)
    return ParsedParams(params, dict.fromkeys(KNOBS, "not recorded") | sources)


def shown(value: Any) -> str:
    """A value in a short form that people read easily: 1e-4, 10_000_000, off."""
    if value is None or value == () or value == []:
        return NONE
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple | list):
        return " ".join(map(str, value))
    if isinstance(value, float):
        if 0 < value < 1e-2 or value >= 1e6:
            mantissa, exponent = f"{value:e}".split("e")
            return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
        return f"{value:g}"
    return f"{value:_}" if isinstance(value, int) else str(value)
