"""Train an A3C agent: `python3 train.py --n_workers 16 PongNoFrameskip-v4`.

Environment processes import this file too, as the main script; so everything heavy is imported
inside `main`.
"""

import functools
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from a3c.settings.params import Params
    from a3c.store.checkpoint_files import Info, Subject
    from a3c.store.resume import Run, Standing


def main(argv: Sequence[str] | None = None) -> int:  # noqa: PLR0915 (split next)
    """Parse, make the run folder, train; returns the exit status."""
    from a3c.machine import appending, stopping, tensorflow_process

    signals = stopping.StopSignals()  # before anything slow: Ctrl-C should find it in place
    appending.open_what_is_closed()  # and before anything opens a file

    from a3c.envs import make, pool, process
    from a3c.settings import command_line, params
    from a3c.store import checkpoint_files, resume, run_folder

    argv = sys.argv[1:] if argv is None else argv
    bad_input = (params.BadInput, make.UnsupportedEnv, checkpoint_files.UnusableCheckpoint)
    envs: list[pool.EnvProcesses] = []
    lock: TextIO | None = None
    try:
        asked = command_line.parse(argv)
        if isinstance(asked, command_line.Resume):
            run = resume.open_run(asked)
            parsed = run.parsed
        else:
            run, parsed = None, asked
        settings = make.EnvSettings(
            parsed.params.env_id,
            parsed.params.seed,
            preprocessing=parsed.params.preprocessing,
            max_n_noops=parsed.params.max_n_noops,
            clip_rewards=not parsed.params.no_clip_rewards,
            end_on_life_loss=not parsed.params.no_end_on_life_loss,
            number_frames=parsed.params.debug and not parsed.params.no_frame_numbers,
        )
        description = make.describe_env(settings)
        parsed = params.resolve_network(parsed, description.kind)
        subject = checkpoint_files.Subject(
            parsed.params.env_id,
            parsed.params.preprocessing,
            str(parsed.params.network),
            description.observation_shape,
            description.n_actions,
        )
        if run:
            resume.check_environment(run, description._asdict())
        info = _checkpoint_to_go_on_from(parsed.params, subject, run)
        if signals.event.is_set():
            return signals.exit_status
        n_workers, n_envs = parsed.params.n_workers, parsed.params.envs_per_worker
        n_processes = process.processes_per_worker(n_workers, n_envs)
        # Those of all workers' own: a worker gets one where the one that it shares breaks.
        process.check_limit_of_files(n_workers * n_processes)
        hosts = process.hosts(n_workers, n_processes)
        standing = resume.cut_back(run, argv) if run else None
        folder = run.folder if run else run_folder.create(parsed, argv, description._asdict())
        lock = run.lock if run else run_folder.lock(folder)
        is_taken_over = functools.partial(run_folder.is_taken_over, folder, lock)
        _say(
            folder,
            f"run folder: {folder}",
            *(run.lines if run else ()),
            f"starting TensorFlow and {len({*hosts} - {None}) or n_workers * n_processes}"
            " environment processes",
        )
        # The environment processes boot while TensorFlow is imported.
        t_start = (standing and standing.t_start) or time.time()
        restart_limit = process.RestartLimit()
        for worker in range(n_workers):
            envs.append(
                pool.EnvProcesses(
                    settings.in_run(str(folder / "monitor"), t_start),
                    worker,
                    n_envs,
                    description,
                    n_slots=parsed.params.steps_per_update + 1,
                    timeout_seconds=parsed.params.env_timeout_seconds,
                    first_games=_first_games(worker, n_envs, info, standing),
                    restart_limit=restart_limit,
                    is_stopped=signals.event.is_set,
                    n_processes=n_processes,
                    host=hosts[worker],
                    is_taken_over=is_taken_over,
                )
            )
        if signals.event.is_set():
            _say(folder, "stopped before the first update")
            return signals.exit_status
        with tensorflow_process.hushed():
            from a3c.run import training

        return training.train(
            parsed.params, subject, envs, folder, signals, info, standing, is_taken_over
        )
    except bad_input as error:
        print(f"train.py: error: {error}", file=sys.stderr)
        return 2
    except process.EnvError as error:
        print(f"train.py: error: {error}", file=sys.stderr)
        return 1
    finally:
        pool.close_all(envs)
        if lock is not None:
            lock.close()


def _say(folder: pathlib.Path, *lines: str) -> None:
    """Said before anything slow; the log is opened later, and goes on in the same file."""
    from a3c.machine import appending

    with appending.survive_loss_of(sys.stdout):
        print(*lines, sep="\n", flush=True)
    log = appending.Appender(folder / "log.txt")
    log.write("".join(f"{line}\n" for line in lines))
    log.close()


def _checkpoint_to_go_on_from(
    params: "Params", subject: "Subject", run: "Run | None"
) -> "Info | None":
    """A resumed run's own, or what --load_ckpt names, if it fits this run."""
    from a3c.settings.params import BadInput
    from a3c.store import checkpoint, checkpoint_files

    if run and run.info:
        checkpoint.check_fits(run.info, subject)
        return run.info
    if params.load_ckpt is None:
        return None
    info = checkpoint_files.read_info(checkpoint_files.find(pathlib.Path(params.load_ckpt)))
    checkpoint.check_fits(info, subject)
    if info.counters["steps"] >= params.n_steps:
        raise BadInput(
            f"{info.prefix} is at {info.counters['steps']:,} steps:"
            f" --n_steps {params.n_steps:,}, the total, leaves none to go"
        )
    return info


def _first_games(
    worker: int, n_envs: int, info: "Info | None", standing: "Standing | None"
) -> list[int] | None:
    """The number of the game with which each environment of a worker begins."""
    if standing and standing.next_games:
        return standing.next_games[worker]
    if info is None:
        return None
    # A restored run has games of its own, after those that the first one played; where games were
    # abandoned, their numbers are higher than the count of those that ended.
    played = [info.counters["games"] + 1]
    if info.position:
        played += [game for worker in info.position.workers for game in worker.next_games]
    return [max(played)] * n_envs


if __name__ == "__main__":
    sys.exit(main())
