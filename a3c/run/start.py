"""From train.py's arguments to training. Wrong arguments are refused before any slow work."""

import contextlib
import math
import pathlib
import shlex
import sys
from collections.abc import Callable, Sequence

from a3c.agent import network, process_collector
from a3c.contract import EnvDescription, Subject
from a3c.envs import memory
from a3c.envs.fleet import Fleet
from a3c.envs.make import UnsupportedEnv, describe_env
from a3c.envs.pool import Pool, close_all
from a3c.envs.process import EnvError
from a3c.machine import cores, place
from a3c.machine.stopping import StopSignals
from a3c.machine.tensorflow_process import hushed
from a3c.machine.words import BadInput, counted
from a3c.run.ray_process import RayProcess
from a3c.settings import command_line
from a3c.settings.config import code_in
from a3c.settings.params import Params, ParsedParams, as_in_json, n_remote_workers, resolve
from a3c.store import checkpoint, resume, run_folder
from a3c.store.checkpoint import UnusableCheckpoint
from a3c.store.run_folder import RunFolder


def start(argv: Sequence[str], signals: StopSignals) -> int:
    """Do what train.py's arguments ask for; returns the exit status."""
    try:
        asked = parse(argv, lambda note: _complain(f"note: {note}"))
        if isinstance(asked, command_line.PrintConfig):
            print(asked.toml, end="")
            return 0
        return run(asked, argv, signals)[1]
    except (BadInput, UnsupportedEnv, UnusableCheckpoint, EnvError) as error:
        _complain(f"error: {error}")
        return 1 if isinstance(error, EnvError) else 2


def parse(
    argv: Sequence[str], tell: Callable[[str], None]
) -> ParsedParams | command_line.Resume | command_line.PrintConfig:
    """Turn train.py's arguments into what they ask for."""
    return command_line.parse(argv, tell, lambda path: resume.settings_at(path, tell))


def _complain(text: str) -> None:
    print(f"{command_line.called('train.py')[-1]}: {text}", file=sys.stderr)


def subject_of(params: Params, description: EnvDescription) -> Subject:
    """What the network of a run is made for; `params` are resolved."""
    subject = Subject(
        params.env_id,
        params.preprocessing if description.is_atari else "generic",
        str(params.network),
        description.observation_shape,
        description.n_actions,
        policy=params.policy_sd if description.is_continuous else "categorical",
        lstm_units=params.lstm_units,
        env_kwargs=params.env_kwargs,
        wrapper=params.wrapper,
        max_episode_steps=description.max_episode_steps,
    )
    if subject.network != "mlp":
        return subject
    return subject._replace(hidden_units=params.hidden_units, activation=params.activation)


def _check_size(subject: Subject) -> None:
    """BadInput for a network whose checkpoints nobody could read."""
    n_weights = sum(map(math.prod, network.weight_shapes(subject).values()))
    if n_weights > checkpoint.MAX_WEIGHTS:
        most = f"a checkpoint holds at most {checkpoint.MAX_WEIGHTS:,}"
        raise BadInput(f"the network would have {n_weights:,} weights, and {most}")


def say_how_to_go_on(folder: RunFolder, params: Params) -> None:
    """Print the command that resumes a run, unless it has all its steps or its folder is gone."""
    steps = max(checkpoint.numbered(folder.checkpoints), default=0)
    if steps >= params.n_steps or not (folder.path / run_folder.ARGS).exists():
        return
    if folder.is_ours():
        words = command_line.called("train.py")
        if place.IS_CLONE:
            here = pathlib.Path.cwd()
            programs = [pathlib.Path(sys.executable), place.CODE / "train.py"]
            words = [str(p.relative_to(here) if p.is_relative_to(here) else p) for p in programs]
        code = code_in(as_in_json(params), ()).values()  # it runs only if it is named
        command = shlex.join([*words, "--resume", str(folder)])
        folder.say(" ".join(["continue with:", command, *code]))


def _open(asked: command_line.Resume) -> resume.Resumption | ParsedParams | None:
    """The run to continue, or what to start instead; None if it is finished, and may be."""
    if asked.otherwise and not (pathlib.Path(asked.folder) / run_folder.ARGS).exists():
        return asked.otherwise
    try:
        return resume.open_run(asked)
    except resume.AlreadyFinished as finished:
        if asked.otherwise is None:
            raise
        print(finished)
        return None


def run(
    asked: ParsedParams | command_line.Resume, argv: Sequence[str], signals: StopSignals
) -> tuple[pathlib.Path | None, int]:
    """Train; returns the run's folder, if there is one yet, and the exit status.

    What cannot be done is raised: BadInput, UnsupportedEnv, UnusableCheckpoint or EnvError.
    """
    with contextlib.ExitStack() as open_things:
        return _run(asked, argv, signals, open_things)


def _run(
    asked: ParsedParams | command_line.Resume,
    argv: Sequence[str],
    signals: StopSignals,
    open_things: contextlib.ExitStack,
) -> tuple[pathlib.Path | None, int]:
    # Everything that can be refused comes before the first file is written.
    resumption: resume.Resumption | None = None
    if isinstance(asked, command_line.Resume):
        opened = _open(asked)
        if opened is None:
            return pathlib.Path(asked.folder), 0
        if isinstance(opened, resume.Resumption):
            resumption, opened = opened, opened.args.parsed
            open_things.callback(resumption.folder.close)
        asked = opened
    cores.use(asked.params.cores)
    description = describe_env(asked.params)
    parsed = resolve(asked, description.kind, description.is_continuous, description.is_atari)
    params, n_envs = parsed.params, parsed.params.envs_per_worker
    subject = subject_of(params, description)
    _check_size(subject)
    n_slots, collecting = params.steps_per_update + 1, process_collector.collecting(params, subject)
    memory.layout_of(description, n_slots, n_envs, collecting)
    timeout, is_stopped = params.env_timeout_seconds, signals.stop.is_set
    n_remote = n_remote_workers(params)
    n_local = params.n_workers - n_remote
    fleet = Fleet(n_local, n_envs, timeout, is_stopped, restarts_a_minute=10)
    if resumption:
        resumption.check_fits(subject, description._asdict())
    # A resumed run without a checkpoint starts like a new one.
    has_checkpoint = resumption is not None and resumption.checkpoint is not None
    start = resume.Start() if has_checkpoint else resume.begin(params, subject)
    remote = None
    if params.ray is not None:
        remote = RayProcess(params.ray, n_remote, timeout, is_stopped), description
        open_things.callback(remote[0].close)
    if signals.stop.is_set():
        return None, signals.exit_status

    if resumption:
        folder, start = resumption.folder, resume.cut_back(resumption, start, argv)
    else:
        folder = run_folder.create(parsed, argv, description._asdict())
        open_things.callback(folder.close)
    starting = f"starting TensorFlow and {counted(fleet.n_processes, 'environment process')}"
    folder.say(f"run folder: {folder}", *start.lines, starting)
    open_things.callback(say_how_to_go_on, folder, params)

    # The environment processes start while TensorFlow is imported.
    pools: list[Pool] = []
    open_things.callback(close_all, pools)
    for worker in range(n_local):
        first_games = start.first_games(worker, n_envs)
        pools.append(Pool(params, description, worker, n_slots, first_games, fleet, collecting))
    with hushed():
        from a3c.run import training
    return folder.path, training.train(params, subject, pools, folder, start, signals, remote)
