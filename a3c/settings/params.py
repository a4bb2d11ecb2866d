"""Every hyperparameter and flag, declared once; the presets; validation.

A knob is one field of `Params`: its default (preset `ocd`), its value under preset `paper` where
that differs, its range, unit, source and help stand in one place, and the command line, `--help`,
`args.json` and the checks are all derived from there. Every range is closed, and wide enough to
refuse only what cannot work: its ends survive float32, in which training calculates. Whatever is
wrong becomes one `BadInput`.
"""

import dataclasses
import typing
from typing import Any, NamedTuple

from a3c.machine.words import one_line

# The presets' end of the learning-rate schedule that is not a number: it follows --n_steps.
N_STEPS = "n_steps"
# Each may be a process of its own.
MAX_ENVS = 1024

OCD = "OCD A3C"
MAIL = "author's e-mail"
OURS = "this project"


class BadInput(Exception):
    """What the user gave cannot work; the message is one line, whatever went into it."""

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
    """What is known of one flag besides its name, type and default."""

    group: str
    unit: str
    source: str
    help: str
    ocd: Any  # its value under each preset
    paper: Any
    choices: tuple[str, ...] | None = None
    within: tuple[float, float] | None = None
    anew: bool = False  # --resume takes another value: it does not change training


def _knob(group: str, default: Any, unit: str, source: str, help: str, **more: Any) -> Any:
    """A field of Params; `more` has what is left of Knob, the presets where they differ."""
    ocd = more.pop("ocd", default)
    knob = Knob(group, unit, source, help, ocd, more.pop("paper", ocd), **more)
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
        "settings to start from: OCD A3C's, or the paper's network with its author's settings;"
        " any flag given beside it wins", choices=("ocd", "paper"))
    n_workers: int = _knob(
        RUN, 1, "threads", OCD, "worker threads; 16 in the paper (§8)", within=(1, MAX_ENVS))
    envs_per_worker: int = _knob(
        RUN, 1, "environments", "1 is the paper's",
        "environments that a worker steps together, with one network call", within=(1, MAX_ENVS))
    n_steps: int = _knob(
        RUN, 10_000_000, "agent steps, of 4 emulator frames each", OCD,
        "length of training over all workers, steps restored from a checkpoint included; may be"
        " written 1e7", within=(1, 10**12), anew=True)
    env_timeout_seconds: float = _knob(
        RUN, 60.0, "seconds", OURS,
        "an environment process that takes longer than this over one step of all its environments"
        " is replaced by a new one, as one that dies or fails is", within=(1, 1e6), anew=True)
    seed: int = _knob(RUN, 0, "", OCD, "seed of every random draw", within=(0, 2**32 - 1))
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
        "gradients are scaled down to this global norm at most", paper=40.0, within=(1e-6, 1e9))
    loss_reduction: str = _knob(
        UPDATE, "mean", "", f"{OCD}; paper's pseudo-code",
        "how a rollout's losses become one: averaged or added over steps and environments",
        paper="sum", choices=("mean", "sum"))

    initial_lr: float = _knob(
        OPTIMIZER, 1e-4, "per update", f"{OCD}; {MAIL}", "learning rate at the start",
        paper=7e-4, within=(1e-12, 10))
    lr_schedule: str = _knob(
        OPTIMIZER, "constant", "", f"{OCD}; {MAIL}",
        "course of the learning rate; linear, given here, needs its end, the next flag",
        paper="linear", choices=("constant", "linear"))
    lr_decay_to_zero_by_n_steps: int | None = _knob(
        OPTIMIZER, None, "agent steps", f"{OCD}; paper §8",
        "where a linear schedule reaches 0; not before --n_steps",
        paper=N_STEPS, within=(1, 10**12))
    rmsprop_decay: float = _knob(
        OPTIMIZER, 0.99, "per update", "paper §8", "α of the running mean of squared gradients",
        within=(0, 0.999999))
    rmsprop_epsilon: float = _knob(
        OPTIMIZER, 1e-5, "squared gradient", f"{OCD}; {MAIL}",
        "ε, added to that mean inside the root", paper=0.1, within=(1e-30, 1e6))
    rmsprop_initial: float = _knob(
        OPTIMIZER, 1.0, "squared gradient", f"{OCD} (TensorFlow 1); PFRL",
        "where that mean starts", paper=0.0, within=(0, 1e6))

    network: str | None = _knob(
        NETWORK, None, "", f"{OCD} (Mnih et al. 2015); paper §8",
        "nature (three convolutions) and small (two) take images; mlp takes vectors, where it is"
        " the default under each preset",
        ocd="nature", paper="small", choices=("nature", "small", "mlp"))
    initial_weights: str = _knob(
        NETWORK, "glorot", "", f"{OCD}; {MAIL}",
        "how weights are drawn: Glorot uniform, Torch 7's default, or orthogonal",
        paper="torch", choices=("glorot", "torch", "orthogonal"))

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
        "go on from this run folder, checkpoints folder or checkpoint, in a new run folder")
    ckpt_interval_seconds: float = _knob(
        CKPTS, 300.0, "seconds", OCD, "time between two checkpoints", within=(0.01, 1e9),
        anew=True)
    keep_ckpts: int = _knob(
        CKPTS, 3, "checkpoints", OURS, "how many of the newest stay", within=(1, 10_000),
        anew=True)

    eval_interval_steps: int | None = _knob(
        EVALUATION, None, "agent steps", OURS,
        "play whole games with the weights of one moment each time so many steps have passed, unless"
        " the last ones are still under way; the best weights stay in checkpoints/best",
        within=(1, 10**12), anew=True)
    eval_episodes: int = _knob(
        EVALUATION, 10, "games", OURS, "how many games an evaluation plays", within=(1, 10_000),
        anew=True)

    manager_wake_interval_seconds: float = _knob(
        LOGS, 60.0, "seconds", OCD, "time between two rows of figures", within=(0.01, 1e9),
        anew=True)
    log_dir: str | None = _knob(LOGS, None, "", OCD, "the run folder, new or empty")
    run_name: str | None = _knob(
        LOGS, None, "", OCD,
        "makes the run folder runs/<this>_<git revision>; without this and --log_dir it is named"
        " by environment, time and git revision")
    debug: bool = _knob(
        LOGS, False, "", OCD,
        "dump every tensor that enters the network to stderr; one worker with one environment")
    no_frame_numbers: bool = _knob(
        LOGS, False, "", OURS,
        "under --debug, draw no numbers on the frames: the network then sees what it always does")
    detailed_logs: bool = _knob(
        LOGS, False, "", OCD,
        "histograms of weights, gradients, activations and RMSProp statistics for TensorBoard",
        anew=True)
    # fmt: on


class ParsedParams(NamedTuple):
    """The parameters, and for each name one of SOURCES."""

    params: Params
    sources: dict[str, str]


KNOBS: dict[str, Knob] = {f.name: f.metadata["knob"] for f in dataclasses.fields(Params)}
PRESETS: dict[str, dict[str, Any]] = {
    preset: {name: getattr(knob, preset) for name, knob in KNOBS.items() if name != "env_id"}
    | {"preset": preset}
    for preset in ("ocd", "paper")
}
TYPES: dict[str, tuple[type, ...]] = {
    name: typing.get_args(hint) or (hint,) for name, hint in typing.get_type_hints(Params).items()
}
SOURCES = (
    *("preset", "default", "command line"),
    "not recorded",  # args.json is older than the flag; its default is taken
)


def check(params: Params) -> None:
    """Raise BadInput where a value has the wrong type or is out of range, or two contradict."""
    for name, knob in KNOBS.items():
        _check_value(name, knob, getattr(params, name))
    check_text("env_id", params.env_id, 200)
    if not params.env_id.isprintable():
        raise BadInput(f"env_id {params.env_id!r} holds characters that no environment's id has")
    for name in ("log_dir", "load_ckpt"):
        check_text(f"--{name}", getattr(params, name), 4096)
    check_text("--run_name", params.run_name, 100)
    if params.run_name and (
        not params.run_name.isprintable() or any(s in params.run_name for s in ("/", "\\", ".."))
    ):
        raise BadInput(f"--run_name {params.run_name!r} must be the name of a folder, not a path")
    _check_together(params)


def _check_together(params: Params) -> None:
    if params.log_dir is not None and params.run_name is not None:
        raise BadInput("--log_dir and --run_name both name the run folder: give one of them")
    if params.n_workers * params.envs_per_worker > MAX_ENVS:
        raise BadInput(
            f"--n_workers {params.n_workers} with --envs_per_worker {params.envs_per_worker} is"
            f" more than {MAX_ENVS} environments"
        )
    end = params.lr_decay_to_zero_by_n_steps
    if params.lr_schedule == "linear" and end is None:
        raise BadInput("--lr_schedule linear needs --lr_decay_to_zero_by_n_steps, its end")
    if params.lr_schedule == "constant" and end is not None:
        raise BadInput("--lr_decay_to_zero_by_n_steps contradicts --lr_schedule constant")
    if end is not None and end < params.n_steps:
        raise BadInput(
            f"--lr_decay_to_zero_by_n_steps {end} comes before the end of training,"
            f" --n_steps {params.n_steps}"
        )
    if params.debug and (params.n_workers > 1 or params.envs_per_worker > 1):
        raise BadInput("--debug needs one worker with one environment")
    if params.debug and not params.no_xla:
        raise BadInput("--debug needs --no_xla")


def _check_value(name: str, knob: Knob, value: Any) -> None:
    types = TYPES[name]
    # An int will do for a float, but True is no number.
    if type(value) not in types and not (float in types and type(value) is int):
        wanted = " or ".join("null" if t is type(None) else t.__name__ for t in types)
        raise BadInput(f"{name} must be {wanted}, not {value!r}")
    if value is None:
        return
    if knob.choices is not None and value not in knob.choices:
        raise BadInput(f"--{name} {value!r} is none of {', '.join(knob.choices)}")
    # Written so that NaN is refused.
    if knob.within is not None and not knob.within[0] <= value <= knob.within[1]:
        low, high = map(shown, knob.within)
        raise BadInput(f"--{name} {value} is out of range ({low} to {high})")


def check_text(shown: str, text: str | None, longest: int) -> None:
    if text is None:
        return
    if not 1 <= len(text) <= longest:
        raise BadInput(f"{shown} must have 1 to {longest} characters, not {len(text)}")
    try:
        # A name that is no UTF-8 arrives with its bytes escaped, and goes back to them.
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise BadInput(f"{shown} {text!r} is no text") from None
    if any(ord(c) < 32 or ord(c) == 127 for c in text):
        raise BadInput(f"{shown} {text!r} holds control characters")


def resolve_network(parsed: ParsedParams, kind: str) -> ParsedParams:
    """Choose the network now that observations are known to be of `kind` "image" or "vector"."""
    params, sources = parsed.params, dict(parsed.sources)
    if params.network is None:
        network = "mlp" if kind == "vector" else PRESETS[params.preset]["network"]
        sources["network"] = "default" if kind == "vector" else "preset"
    else:
        network = params.network
    if (network == "mlp") != (kind == "vector"):
        takes, instead = ("vector", "nature or small") if network == "mlp" else ("image", "mlp")
        raise BadInput(
            f"--network {network} takes {takes} observations, but {params.env_id} gives {kind}"
            f" observations: use {instead}"
        )
    if kind == "vector":
        # The other two image flags ask for what holds for vectors anyway.
        for name, vacuous in (("preprocessing", None), ("max_n_noops", 0)):
            if sources[name] == "command line" and getattr(params, name) != vacuous:
                raise BadInput(
                    f"--{name} is for image observations, but {params.env_id} gives vectors"
                )
    return ParsedParams(dataclasses.replace(params, network=network), sources)


def to_json(parsed: ParsedParams) -> dict[str, dict[str, Any]]:
    """What args.json holds of the parameters, ready for json.dump."""
    return {"params": dataclasses.asdict(parsed.params), "sources": dict(parsed.sources)}


def from_json(content: object) -> ParsedParams:
    """The inverse of to_json; whatever it could not have written is BadInput.

    A flag that neither part has is younger than the file: it gets its preset's default, and its
    source is "not recorded".
    """
    if not isinstance(content, dict) or set(content) != {"params", "sources"}:
        raise BadInput('parameters must be an object with "params" and "sources"')
    for part, held in content.items():
        if not isinstance(held, dict):
            raise BadInput(f'"{part}" must be an object')
        if unknown := sorted(set(held) - set(KNOBS)):
            raise BadInput(f'unknown in "{part}": {", ".join(unknown)}')
    values, sources = content["params"], content["sources"]
    absent = set(KNOBS) - set(values)
    if missing := sorted(absent ^ (set(KNOBS) - set(sources)) | absent & {"env_id", "preset"}):
        raise BadInput(f"missing: {', '.join(missing)}")
    for name, source in sources.items():
        if source not in SOURCES:
            raise BadInput(f"unknown source of {name}: {source!r}")
    _check_value("preset", KNOBS["preset"], values["preset"])
    params = Params(**values | {name: PRESETS[values["preset"]][name] for name in absent})
    check(params)
    return ParsedParams(params, sources | dict.fromkeys(absent, "not recorded"))


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
