"""Every hyperparameter and flag, declared once; validation.

A knob is one field of `Params`: the command line, `--help`, files of settings, `args.json` and the
checks are all derived from what stands there. Every range is closed, and refuses only what cannot
work: its ends survive float32, in which training calculates. Whatever is wrong is a `BadInput`.
"""

import dataclasses
import pathlib
import re
import typing
from typing import Any, NamedTuple

from a3c.machine import cores
from a3c.machine.appending import one_line

PRESETS_FOLDER = pathlib.Path(__file__).parent / "presets"
MAX_ENVS = 1024  # each may be a process of its own
NONE = "none"  # unsets a flag, on the command line and in files
LR_END = "lr_decay_to_zero_by_n_steps"
# Without the surrogates in which bytes of a path arrive that are no UTF-8.
_NO_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udc7f\udd00-\udfff]")

OCD = "OCD A3C"
MAIL = "author's e-mail"
OURS = "this project"


class BadInput(Exception):
    """What the user gave cannot work; the message is one line, whatever it quotes."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message, 500))


RUN = "the run"
UPDATE = "the update"
OPTIMIZER = "the optimizer"
NETWORK = "the network"
IMAGES = "image environments (vector observations have none of this)"
CKPTS = "checkpoints"
EVALUATION = "evaluation while training, as published scores are measured"
LOGS = "the run folder, logs and debugging"


class Knob(NamedTuple):
    """What is known of one flag besides its name and type."""

    group: str
    default: Any
    unit: str
    source: str
    help: str
    choices: tuple[str, ...] | None = None
    within: tuple[float, float] | None = None
    anew: bool = False  # --resume takes another value
    # Whether runs that differ in it have different settings. A seed is no setting, nor is how long
    # or in which folder a run trains, how it is watched, or the name of its preset.
    changes_training: bool = True


def _knob(group: str, default: Any, unit: str, source: str, help: str, **more: Any) -> Any:
    """A field of Params."""
    knob = Knob(group, default, unit, source, help, **more)
    return dataclasses.field(default=default, metadata={"knob": knob})


@dataclasses.dataclass(frozen=True)
class Params:
    """One value for every flag of train.py, by the flag's own name."""

    # fmt: off
    env_id: str = _knob(
        RUN, dataclasses.MISSING, "", OCD,
        "any Gymnasium id with discrete actions; module:Id imports the module first, which runs"
        " its code")
    preset: str = _knob(
        RUN, "ocd", "", OURS,
        "settings to start from, each a file in a3c/settings/presets: OCD A3C's; the paper's"
        " network with its author's settings; the fastest ones for Atari; some that solve CartPole;"
        " what --config or a flag says beside it wins",
        choices=tuple(sorted(path.stem for path in PRESETS_FOLDER.glob("*.toml"))),
        changes_training=False)
    n_workers: int = _knob(
        RUN, 1, "threads", OCD, "worker threads; 16 in the paper (§8)", within=(1, MAX_ENVS))
    envs_per_worker: int = _knob(
        RUN, 1, "environments", "1 is the paper's",
        "environments that a worker steps together, with one network call", within=(1, MAX_ENVS))
    n_steps: int = _knob(
        RUN, 10_000_000, "agent steps, of 4 emulator frames each", OCD,
        "length of training over all workers, steps restored from a checkpoint included; may be"
        " written 1e7", within=(1, 10**12), anew=True, changes_training=False)
    env_timeout_seconds: float = _knob(
        RUN, 60.0, "seconds", OURS,
        "an environment process that takes longer than this over one step of all its environments"
        " is replaced by a new one, as one that dies or fails is", within=(1, 1e6), anew=True,
        changes_training=False)
    cores: str | None = _knob(
        RUN, None, "cores", OURS,
        "how many cores to use, as 4; or which ones, as 0-3 or 0,2-3, on which all of the run's"
        " processes then stay; none: all that the system lets it use", anew=True,
        changes_training=False)
    seed: int = _knob(
        RUN, 0, "", OCD, "seed of every random draw", within=(0, 2**32 - 1), changes_training=False)
    no_xla: bool = _knob(
        RUN, False, "", OURS, "do not compile the acting call with XLA; --debug implies it")

    steps_per_update: int = _knob(
        UPDATE, 5, "agent steps of each environment", "paper §8", "length of a rollout",
        within=(1, 10_000))
    discount: float = _knob(
        UPDATE, 0.99, "per agent step", "paper §8", "discount γ", within=(0, 1))
    entropy_bonus: float = _knob(
        UPDATE, 0.01, "loss per nat", "paper §8", "weight β of the policy's entropy",
        within=(0, 1e3))
    value_loss_coef: float = _knob(
        UPDATE, 0.5, "", f"{OCD}; {MAIL}", "weight of the value loss", within=(0, 1e3))
    max_grad_norm: float = _knob(
        UPDATE, 5.0, "L2 norm over all gradients", f"{OCD}; {MAIL}",
        "gradients are scaled down to this global norm at most", within=(1e-6, 1e9))
    loss_reduction: str = _knob(
        UPDATE, "mean", "", f"{OCD}; paper's pseudo-code",
        "how a rollout's losses become one: averaged or added over steps and environments",
        choices=("mean", "sum"))

    initial_lr: float = _knob(
        OPTIMIZER, 1e-4, "per update", f"{OCD}; {MAIL}", "learning rate at the start",
        within=(1e-12, 10))
    lr_schedule: str = _knob(
        OPTIMIZER, "constant", "", f"{OCD}; {MAIL}",
        "course of the learning rate; the next flag has the end of linear",
        choices=("constant", "linear"))
    lr_decay_to_zero_by_n_steps: int | None = _knob(
        OPTIMIZER, None, "agent steps", f"{OCD}; paper §8",
        "where a linear schedule reaches 0; not before --n_steps; none: at --n_steps, as the run"
        " begins with it", within=(1, 10**12))
    rmsprop_decay: float = _knob(
        OPTIMIZER, 0.99, "per update", "paper §8", "α of the running mean of squared gradients",
        within=(0, 0.999999))
    rmsprop_epsilon: float = _knob(
        OPTIMIZER, 1e-5, "squared gradient", f"{OCD}; {MAIL}",
        "ε, added to the mean of squared gradients, inside the root", within=(1e-30, 1e6))
    rmsprop_initial: float = _knob(
        OPTIMIZER, 1.0, "squared gradient", f"{OCD} (TensorFlow 1); PFRL",
        "where the mean of squared gradients starts", within=(0, 1e6))

    network: str | None = _knob(
        NETWORK, None, "", f"{OCD} (Mnih et al. 2015); paper §8",
        "nature (three convolutions) and small (two) take images; mlp takes vectors, for which it is"
        " taken under each preset; none: nature for images",
        choices=("nature", "small", "mlp"))
    initial_weights: str = _knob(
        NETWORK, "glorot", "", f"{OCD}; {MAIL}",
        "how weights are drawn: Glorot uniform, Torch 7's default, or orthogonal",
        choices=("glorot", "torch", "orthogonal"))

    preprocessing: str = _knob(
        IMAGES, "generic", "", OCD,
        "generic is for every Atari game; pong is OCD A3C's hand-made features",
        choices=("generic", "pong"))
    max_n_noops: int = _knob(
        IMAGES, 30, "emulator frames", OCD,
        "a game starts with a random number of no-ops, up to this", within=(0, 10_000))
    no_clip_rewards: bool = _knob(
        IMAGES, False, "", OURS, "train on true rewards, not clipped to -1 ... 1")
    no_end_on_life_loss: bool = _knob(
        IMAGES, False, "", OURS, "let episodes run on when a life is lost")

    load_ckpt: str | None = _knob(
        CKPTS, None, "", OCD,
        "go on from this run folder, checkpoints folder or checkpoint, in a new run folder",
        changes_training=False)
    ckpt_interval_seconds: float = _knob(
        CKPTS, 300.0, "seconds", OCD, "time between two checkpoints", within=(0.01, 1e9),
        anew=True, changes_training=False)
    keep_ckpts: int = _knob(
        CKPTS, 3, "checkpoints", OURS, "how many of the newest stay", within=(1, 10_000),
        anew=True, changes_training=False)

    eval_interval_steps: int | None = _knob(
        EVALUATION, None, "agent steps", OURS,
        "play whole games with the weights of one moment each time so many steps have passed, unless"
        " the last ones are still under way; the best weights stay in checkpoints/best",
        within=(1, 10**12), anew=True, changes_training=False)
    eval_episodes: int = _knob(
        EVALUATION, 10, "games", OURS, "how many games an evaluation plays", within=(1, 10_000),
        anew=True, changes_training=False)

    manager_wake_interval_seconds: float = _knob(
        LOGS, 60.0, "seconds", OCD, "time between two rows of figures", within=(0.01, 1e9),
        anew=True, changes_training=False)
    log_dir: str | None = _knob(
        LOGS, None, "", OCD, "the run folder, new or empty", changes_training=False)
    run_name: str | None = _knob(
        LOGS, None, "", OCD,
        "makes the run folder runs/<this>_<git revision>; without this and --log_dir it is named"
        " by environment, time and git revision", changes_training=False)
    debug: bool = _knob(
        LOGS, False, "", OCD,
        "dump every tensor that enters the network to stderr; one worker with one environment",
        changes_training=False)
    no_frame_numbers: bool = _knob(
        LOGS, False, "", OURS,
        "under --debug, draw no numbers on the frames: the network then sees what it always does",
        changes_training=False)
    detailed_logs: bool = _knob(
        LOGS, False, "", OCD,
        "histograms of weights, gradients, activations and RMSProp statistics for TensorBoard",
        anew=True, changes_training=False)
    # fmt: on


class ParsedParams(NamedTuple):
    """The parameters, and for each name one of SOURCES."""

    params: Params
    sources: dict[str, str]


KNOBS: dict[str, Knob] = {f.name: f.metadata["knob"] for f in dataclasses.fields(Params)}
TYPES: dict[str, tuple[type, ...]] = {
    name: typing.get_args(hint) or (hint,) for name, hint in typing.get_type_hints(Params).items()
}
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text in quotes"}
SOURCES = (
    *("default", "preset", "config", "command line"),
    "derived",  # from other values, where this was left open
    "not recorded",  # args.json is older than the flag; its default is taken
)


def flag(name: str) -> str:
    """How a parameter is called on the command line."""
    return name if name == "env_id" else f"--{name}"


def taken(name: str, value: Any) -> Any:
    """A value that was typed or read from a file, as Params has it; BadInput if it may not be.

    "none" unsets a flag; a step count may be the float 1e7, and a learning rate the int 1.
    """
    knob, types = KNOBS[name], TYPES[name]
    if value == NONE and (type(None) in types or bool in types):
        return None if type(None) in types else False
    if type(value) in (int, float):
        # So that the conversions below cannot fail, nor the number be too long to show.
        if not abs(value) < 10**18:
            raise BadInput(f"{flag(name)} is out of range")
        if float in types:
            value = float(value)
        elif int in types and value == int(value):
            value = int(value)
    if type(value) not in types:
        wanted = next(words for kind, words in _KINDS.items() if kind in types)
        raise BadInput(f"{flag(name)} must be {wanted}, not {value!r}")
    if value is not None and knob.choices is not None and value not in knob.choices:
        raise BadInput(f"--{name} {value!r} is none of {', '.join(knob.choices)}")
    if value is not None and knob.within and not knob.within[0] <= value <= knob.within[1]:
        low, high = map(shown, knob.within)
        raise BadInput(f"--{name} {value} is out of range ({low} to {high})")
    if isinstance(value, str):
        check_text(flag(name), value)
    return value


def check(params: Params) -> None:
    """Raise BadInput where two values, each of which was taken, contradict."""
    try:
        cores.parse(params.cores)
    except cores.BadCores as error:
        raise BadInput(str(error)) from None
    p, end = params, params.lr_decay_to_zero_by_n_steps
    if p.log_dir is not None and p.run_name is not None:
        raise BadInput("--log_dir and --run_name both name the run folder: give one of them")
    if p.run_name is not None and ("/" in p.run_name or not p.run_name.isprintable()):
        raise BadInput(f"--run_name {p.run_name!r} must be the name of a folder, not a path")
    if p.n_workers * p.envs_per_worker > MAX_ENVS:
        given = f"--n_workers {p.n_workers} with --envs_per_worker {p.envs_per_worker}"
        raise BadInput(f"{given} is more than {MAX_ENVS} environments")
    if p.lr_schedule == "linear" and end is None:
        raise BadInput(f"--lr_schedule linear needs --{LR_END}, its end")
    if p.lr_schedule == "constant" and end is not None:
        raise BadInput(
            f"--{LR_END} {end} contradicts --lr_schedule constant: give linear or, for the end,"
            " none"
        )
    if end is not None and end < p.n_steps:
        raise BadInput(
            f"--{LR_END} {end} comes before the end of training, --n_steps {p.n_steps}: give a"
            " later one, or none for --n_steps itself"
        )
    if p.debug and p.n_workers * p.envs_per_worker > 1:
        raise BadInput("--debug needs one worker with one environment")


def check_text(shown: str, text: str) -> None:
    """Raise BadInput where a text can be no path, or would harm the terminal that shows it."""
    if not 1 <= len(text) <= 4096:
        raise BadInput(f"{shown} must have 1 to 4096 characters, not {len(text)}")
    if _NO_TEXT.search(text):
        raise BadInput(f"{shown} {text!r} holds control characters or parts of characters")


def resolve_network(parsed: ParsedParams, kind: str) -> ParsedParams:
    """Choose the network now that observations are known to be of `kind` "image" or "vector"."""
    params, sources = parsed
    network, source = params.network, sources["network"]
    if network is None or (source == "preset" and kind == "vector"):
        network = "mlp" if kind == "vector" else "nature"
        # `--network none` stays on the command line: a preset that names one must not win later.
        if source in ("default", "preset"):
            sources = sources | {"network": "derived"}
    if (network == "mlp") != (kind == "vector"):
        takes, instead = ("vector", "nature or small") if network == "mlp" else ("image", "mlp")
        raise BadInput(
            f"--network {network} takes {takes} observations, but {params.env_id} gives {kind}"
            f" observations: use {instead}"
        )
    if kind == "vector":
        # The other two image flags ask for what holds for vectors anyway.
        for name, vacuous in (("preprocessing", None), ("max_n_noops", 0)):
            if sources[name] in ("command line", "config") and getattr(params, name) != vacuous:
                raise BadInput(
                    f"--{name} is for image observations, but {params.env_id} gives vectors"
                )
    return ParsedParams(dataclasses.replace(params, network=network), sources)


def to_json(parsed: ParsedParams) -> dict[str, dict[str, Any]]:
    """What args.json holds of the parameters, ready for json.dump."""
    return {"params": dataclasses.asdict(parsed.params), "sources": dict(parsed.sources)}


def from_json(content: Any) -> ParsedParams:
    """The inverse of to_json; whatever it could not have written is BadInput.

    A flag that neither part has is younger than the file: it gets its default, which is what was
    done before there was the flag, and its source is "not recorded".
    """
    try:
        values = {name: taken(name, value) for name, value in content["params"].items()}
        params, sources = Params(**values), dict(content["sources"])
        if differing := values.keys() ^ sources.keys():
            raise ValueError(f"{min(differing)} lacks its value or its source")
        if unknown := set(sources.values()) - set(SOURCES):
            raise ValueError(f"unknown sources: {', '.join(map(str, unknown))}")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadInput(f"these are no parameters of a run: {error}") from None
    check(params)
    return ParsedParams(params, dict.fromkeys(KNOBS, "not recorded") | sources)


def shown(value: Any) -> str:
    """A value as a person would type it: 1e-4, 10_000_000, off."""
    if value is None or isinstance(value, bool):
        return {None: "none", False: "off", True: "on"}[value]
    if isinstance(value, float):
        if 0 < value < 1e-2 or value >= 1e6:
            mantissa, exponent = f"{value:e}".split("e")
            return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
        return f"{value:g}"
    return f"{value:_}" if isinstance(value, int) else str(value)
