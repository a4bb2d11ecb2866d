"""From train.py's arguments to training. Wrong arguments are refused before any slow work."""

import contextlib
import sys
from collections.abc import Sequence

from a3c.contract import EnvDescription, Subject
from a3c.envs.fleet import Fleet
from a3c.envs.make import UnsupportedEnv, describe_env
from a3c.envs.pool import Pool, close_all
from a3c.envs.process import EnvError
from a3c.machine import cores
from a3c.machine.stopping import StopSignals
from a3c.machine.tensorflow_process import hushed
from a3c.settings import command_line
from a3c.settings.params import BadInput, Params, resolve
from a3c.store import resume, run_folder
from a3c.store.checkpoint import UnusableCheckpoint


def start(argv: Sequence[str], signals: StopSignals) -> int:
    """Do what train.py's arguments ask for; returns the exit status."""
    try:
        with contextlib.ExitStack() as open_things:
            return _start(argv, signals, open_things)
    except (BadInput, UnsupportedEnv, UnusableCheckpoint, EnvError) as error:
        _complain(f"error: {error}")
        return 1 if isinstance(error, EnvError) else 2


def _complain(text: str) -> None:
    print(f"train.py: {text}", file=sys.stderr)


def subject_of(params: Params, description: EnvDescription) -> Subject:
    """What the network of a run is made for; `params` are resolved."""
    subject = Subject(
        params.env_id,
        params.preprocessing,
        str(params.network),
        description.observation_shape,
        description.n_actions,
        policy=params.policy_sd if description.is_continuous else "categorical",
        lstm_units=params.lstm_units,
    )
    if subject.network != "mlp":
        return subject
    return subject._replace(hidden_units=params.hidden_units, activation=params.activation)


def _start(argv: Sequence[str], signals: StopSignals, open_things: contextlib.ExitStack) -> int:
    # Everything that can be refused comes before the first file is written.
    asked = command_line.parse(argv, lambda note: _complain(f"note: {note}"))
    if isinstance(asked, command_line.PrintConfig):
        print(asked.toml, end="")
        return 0
    resumption: resume.Resumption | None = None
    if isinstance(asked, command_line.Resume):
        resumption = resume.open_run(asked)
        open_things.callback(resumption.folder.close)
        asked = resumption.parsed
    cores.use(asked.params.cores)
    description = describe_env(asked.params)
    parsed = resolve(asked, description.kind, description.is_continuous)
    params, n_envs = parsed.params, parsed.params.envs_per_worker
    subject = subject_of(params, description)
    timeout, is_stopped = params.env_timeout_seconds, signals.stop.is_set
    fleet = Fleet(params.n_workers, n_envs, timeout, is_stopped, restarts_a_minute=10)
    if resumption:
        resumption.check_fits(subject, description._asdict())
    # A resumed run without a checkpoint starts like a new one.
    has_checkpoint = resumption is not None and resumption.checkpoint is not None
    start = resume.Start() if has_checkpoint else resume.begin(params, subject)
    if signals.stop.is_set():
        return signals.exit_status

    if resumption:
        folder, start = resumption.folder, resume.cut_back(resumption, start, argv)
    else:
        folder = run_folder.create(parsed, argv, description._asdict())
        open_things.callback(folder.close)
    starting = f"starting TensorFlow and environment processes: {fleet.n_processes}"
    folder.say(f"run folder: {folder}", *start.lines, starting)

    # The environment processes start while TensorFlow is imported.
    pools: list[Pool] = []
    open_things.callback(close_all, pools)
    for worker in range(params.n_workers):
        first_games = start.first_games(worker, n_envs)
        n_slots = params.steps_per_update + 1
        pools.append(Pool(params, description, worker, n_envs, n_slots, first_games, fleet))
    with hushed():
        from a3c.run import training
    return training.train(params, subject, pools, folder, start, signals)
