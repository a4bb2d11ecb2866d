"""train.py from its arguments to the training: what can be refused is refused before anything slow."""

import contextlib
import sys
from collections.abc import Sequence

from a3c.contract import Subject
from a3c.envs.make import UnsupportedEnv, describe_env
from a3c.envs.pool import Fleet, Pool, RestartLimit, close_all
from a3c.envs.process import EnvError, check_limit_of_files
from a3c.machine import cores
from a3c.machine.stopping import StopSignals
from a3c.machine.tensorflow_process import hushed
from a3c.settings import command_line
from a3c.settings.params import BadInput, ParsedParams, resolve_network
from a3c.store import resume, run_folder
from a3c.store.checkpoint import UnusableCheckpoint


def start(argv: Sequence[str], signals: StopSignals) -> int:
    """Do what train.py's arguments ask for; returns the exit status."""
    try:
        asked = command_line.parse(argv, _note)
        if isinstance(asked, command_line.PrintConfig):
            print(asked.toml, end="")
            return 0
        with contextlib.ExitStack() as open_things:
            if isinstance(asked, command_line.Resume):
                resumption = resume.open_run(asked)
                open_things.callback(resumption.folder.close)
                return _run(argv, resumption.parsed, resumption, signals, open_things)
            return _run(argv, asked, None, signals, open_things)
    except (BadInput, cores.BadCores, UnsupportedEnv, UnusableCheckpoint) as error:
        print(f"train.py: error: {error}", file=sys.stderr)
        return 2
    except EnvError as error:
        print(f"train.py: error: {error}", file=sys.stderr)
        return 1


def _note(text: str) -> None:
    print(f"train.py: note: {text}", file=sys.stderr)


def _run(
    argv: Sequence[str],
    parsed: ParsedParams,
    resumption: resume.Resumption | None,
    signals: StopSignals,
    open_things: contextlib.ExitStack,
) -> int:
    # What can be refused is refused here, and nothing is written yet.
    cores.use(parsed.params.cores)
    description = describe_env(parsed.params)
    parsed = resolve_network(parsed, description.kind)
    params = parsed.params
    subject = Subject(
        params.env_id,
        params.preprocessing,
        str(params.network),
        description.observation_shape,
        description.n_actions,
    )
    n_envs = params.envs_per_worker
    fleet = Fleet(
        params.n_workers,
        n_envs,
        params.env_timeout_seconds,
        signals.event.is_set,
        RestartLimit(),
    )
    check_limit_of_files(fleet.most_processes)
    if resumption:
        resumption.check_fits(subject, description._asdict())
    # A resumed run without a checkpoint starts like a new one.
    has_checkpoint = resumption is not None and resumption.checkpoint is not None
    start = resume.Start() if has_checkpoint else resume.begin(params, subject)
    if signals.event.is_set():
        return signals.exit_status

    if resumption:
        folder, start = resumption.folder, resume.cut_back(resumption, start, argv)
    else:
        folder = run_folder.create(parsed, argv, description._asdict())
        open_things.callback(folder.close)
    folder.say(
        f"run folder: {folder}",
        *start.lines,
        f"starting TensorFlow and {fleet.n_processes} environment processes",
    )

    # The environment processes boot while TensorFlow is imported.
    pools: list[Pool] = []
    open_things.callback(close_all, pools)
    for worker in range(params.n_workers):
        first_games = start.first_games(worker, n_envs)
        n_slots = params.steps_per_update + 1
        pools.append(Pool(params, description, worker, n_envs, n_slots, first_games, fleet))
    with hushed():
        from a3c.run import training
    return training.train(params, subject, pools, folder, start, signals)
