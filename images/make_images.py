"""Make the pictures of docs/looking-inside.md from a trained agent's run folder.

    make images RUN=runs/<run>

    debug-act.png, debug-train.png, debug-course.png   a few updates of a --debug run that goes on
                                                       from the agent's checkpoint
    eyes.png                                           run_checkpoint.py --eyes, in a game
    preprocessing_play.gif                             preprocessing_play.py --record
    tensorboard.png                                    the run in TensorBoard, by a headless Chromium

The last one is left out where there is no Chromium (`chromium`, `chromium-browser` or
`google-chrome`), which is no part of the project's environment.
"""

import argparse
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

N_UPDATES = 60
NUMBERED_UPDATE = 16
PLAY = "preprocessing_play.gif"
N_DECISIONS = 600
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# So little that the agent stays who it is: on one environment, a learning rate for many would have it
# lose every point within these updates.
LEARNING_RATE = 1e-6
# Settings of its run that a look at an agent takes over, besides those of the update and of images.
TAKEN_OVER = {"rmsprop_decay", "rmsprop_epsilon", "seed"}


def main() -> int:
    """Make all pictures; returns the exit status."""
    parser = argparse.ArgumentParser(description="Make the README's pictures.")
    parser.add_argument("run", type=pathlib.Path, help="a run folder of an Atari agent that plays")
    run = parser.parse_args().run.resolve()
    with tempfile.TemporaryDirectory() as folder:
        draw_debug_data(run, pathlib.Path(folder))
    draw_eyes(run, HERE / "eyes.png")
    call("preprocessing_play.py", env_of(run), "--steps", "100", "--record", HERE / PLAY)
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print("no Chromium: tensorboard.png is left as it is")
    else:
        photograph_tensorboard(run, browser, HERE / "tensorboard.png")
    return 0


def call(script: str, *arguments: str | pathlib.Path, **options: object) -> None:
    """Run one of the project's programs; an error ends everything."""
    command = [sys.executable, str(ROOT / script), *map(str, arguments)]
    subprocess.run(command, check=True, **options)  # type: ignore[call-overload]


def env_of(run: pathlib.Path) -> str:
    """What its checkpoint says that the agent plays."""
    from a3c.store import checkpoint

    return checkpoint.read(checkpoint.find(run)).subject.env_id


def draw_debug_data(run: pathlib.Path, folder: pathlib.Path) -> None:
    """Train a little further, dump everything, and keep three of the pictures.

    With numbers on its frames for one of them: an agent that never saw such numbers is surprised by
    them, and its values show it.
    """
    show: tuple[str, ...] = ("--updates", f"{NUMBERED_UPDATE}", "--purpose", "act")
    debug(run, folder / "numbered", NUMBERED_UPDATE + 1, [], show)
    name = f"update-{NUMBERED_UPDATE:04}-act.png"
    shutil.copy(folder / "numbered/pictures" / name, HERE / "debug-act.png")

    show = ("--updates", f"0-{N_UPDATES - 1}", "--purpose", "train")
    debug(run, folder / "plain", N_UPDATES, ["--no_frame_numbers"], show)
    pictures = folder / "plain/pictures"
    update = first_paid_update(folder / "plain/debug.log")
    shutil.copy(pictures / f"update-{update:04}-train.png", HERE / "debug-train.png")
    shutil.copy(pictures / "returns-actions-values.png", HERE / "debug-course.png")


def first_paid_update(log: pathlib.Path) -> int:
    """The first update whose rollout has a reward, where there is something to see; or the last."""
    from a3c.agent import debug_dump

    with log.open("rb") as file:
        for record in debug_dump.read(file):
            if not isinstance(record, debug_dump.Record) or record.name != "rewards":
                continue
            if (record.array > 0).any():
                return record.update
    return N_UPDATES - 1


def debug(
    run: pathlib.Path, folder: pathlib.Path, n_updates: int, flags: list[str], show: tuple[str, ...]
) -> None:
    """Go on from the run's checkpoint for a few updates under --debug, and draw what is shown."""
    from a3c.settings.config import as_words
    from a3c.settings.params import ATARI, KNOBS, UPDATE
    from a3c.store import checkpoint

    found = checkpoint.read(checkpoint.find(run))
    taken = TAKEN_OVER | {n for n, knob in KNOBS.items() if knob.group in (UPDATE, ATARI)}
    settings = as_words(
        {
            name: value
            for name, value in found.params.items()
            if name in taken and value is not None and value is not False
        }
    )
    n_steps = found.n_steps + n_updates * found.params["steps_per_update"]
    folder.mkdir()
    with (folder / "debug.log").open("wb") as log:
        call(
            "train.py",
            *(found.subject.env_id, "--debug", f"--load_ckpt={found.path}", f"--n_steps={n_steps}"),
            *(
                f"--network={found.subject.network}",
                f"--log_dir={folder / 'run'}",
                f"--initial_lr={LEARNING_RATE}",
                *settings,
                *flags,
            ),
            stderr=log,
        )
    where = ("--out", folder / "pictures")
    call("show_debug_data.py", folder / "debug.log", *where, *show, stdout=subprocess.DEVNULL)


def draw_eyes(run: pathlib.Path, path: pathlib.Path) -> None:
    """What `run_checkpoint.py --eyes` shows after a while."""
    import numpy as np
    from PIL import Image

    from a3c.envs.make import describe_env
    from a3c.machine.stopping import StopFlag
    from a3c.play import agent, evaluation, views
    from a3c.play.eyes import Eyes
    from a3c.store import checkpoint

    found = checkpoint.read(checkpoint.find(run))
    params = evaluation.params_of(found.subject, seed=0)
    player = agent.load(found)
    eyes = Eyes(found.subject, describe_env(params).action_meanings)
    frames: list[np.ndarray] = [np.zeros(0)]
    n_decisions, stop = 0, StopFlag()

    def watch(decision: agent.Decision) -> None:
        nonlocal n_decisions
        panel = eyes.draw(decision)
        n_decisions += 1
        if n_decisions == N_DECISIONS:
            picture = views.beside(views.enlarged(frames[0]), panel)
            Image.fromarray(picture).save(path)
            stop.set()

    def see(frame: np.ndarray) -> None:
        frames[0] = frame

    evaluation.play(player, params, 0, stop, watch=watch, see=see)


def photograph_tensorboard(run: pathlib.Path, browser: str, path: pathlib.Path) -> None:
    """Start TensorBoard, wait until it answers, and let the browser take a picture."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        # Its folder's name is in the picture, so it gets one that says something.
        name = env_of(run).replace("/", "-")
        (pathlib.Path(folder) / "runs").mkdir()
        (pathlib.Path(folder) / "runs" / name).symlink_to(run)
        tensorboard = subprocess.Popen(
            [sys.executable, "-m", "tensorboard.main", "--logdir=runs", f"--port={port}"],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            address = f"http://localhost:{port}/"
            wait_for(address + "data/runs", name.encode())
            subprocess.run(
                [
                    *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                    *(f"--user-data-dir={folder}/profile", "--window-size=1360,1050"),
                    *("--virtual-time-budget=120000", f"--screenshot={path}"),
                    address + "#scalars&_smoothingWeight=0&tagFilter=rl%2F",
                ],
                check=True,
                timeout=300,
                stderr=subprocess.DEVNULL,
            )
        finally:
            tensorboard.terminate()
            tensorboard.wait()


def wait_for(address: str, words: bytes, seconds: float = 120.0) -> None:
    """Until TensorBoard has read the run."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:
                if words in answer.read():
                    return
        except OSError:
            pass
        time.sleep(0.5)
    raise TimeoutError(f"{address} does not answer")


if __name__ == "__main__":
    sys.exit(main())
