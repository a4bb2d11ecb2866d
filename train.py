"""Train an A3C agent: `python3 train.py --n_workers 16 PongNoFrameskip-v4`.

Environment processes import this file too, as the main script; so everything heavy is imported
inside `main`.
"""

import pathlib
import sys
import time
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, make the run folder, train; returns the exit status."""
    from a3c import checkpoint, env, params, run_dir, stopping

    argv = sys.argv[1:] if argv is None else argv
    signals = stopping.StopSignals()
    try:
        parsed = params.parse(argv)
        settings = env.EnvSettings(
            parsed.params.env_id,
            parsed.params.seed,
            preprocessing=parsed.params.preprocessing,
            max_n_noops=parsed.params.max_n_noops,
            clip_rewards=not parsed.params.no_clip_rewards,
            end_on_life_loss=not parsed.params.no_end_on_life_loss,
            number_frames=parsed.params.debug,
        )
        description = env.describe_env(settings)
        parsed = params.resolve_network(parsed, description.kind)
        subject = checkpoint.Subject(
            parsed.params.env_id,
            parsed.params.preprocessing,
            str(parsed.params.network),
            description.observation_shape,
            description.n_actions,
        )
        info = None
        if parsed.params.load_ckpt:
            info = checkpoint.read_info(checkpoint.find(pathlib.Path(parsed.params.load_ckpt)))
            checkpoint.check_fits(info, subject)
        folder = run_dir.create(parsed, argv, description._asdict())
    except (params.BadInput, env.UnsupportedEnv, checkpoint.UnusableCheckpoint) as error:
        print(f"train.py: error: {error}", file=sys.stderr)
        return 2
    # Said before anything slow; the log is opened later, and goes on in the same file.
    print(line := f"run folder: {folder}", flush=True)
    (folder / "log.txt").write_text(line + "\n", encoding="utf-8", errors="surrogateescape")
    settings = settings.in_run(str(folder / "monitor"), time.time())
    envs: list[env.EnvProcesses] = []
    try:
        # The environment processes boot while TensorFlow is imported.
        for worker in range(parsed.params.n_workers):
            envs.append(
                env.EnvProcesses(
                    settings,
                    worker,
                    parsed.params.envs_per_worker,
                    description,
                    n_slots=parsed.params.steps_per_update + 1,
                )
            )
        from a3c import training

        return training.train(parsed.params, subject, envs, folder, signals, info)
    finally:
        for processes in envs:
            processes.close()


if __name__ == "__main__":
    sys.exit(main())
