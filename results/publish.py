"""Publish a run: `.venv/bin/python -m results.publish runs/pong results/pong-fast-s0 --alone`.

What is needed to judge a run and to play its agent, small enough to be committed:

    run.json        revision, steps, games, CPU hours, and hours if the machine did nothing else
    command.txt     this, args.json and versions.txt as the run folder has them
    progress.csv.gz every row; monitor.csv.gz: every game; evaluations.csv.gz, if there were any on the way
    checkpoints/    the last weights, or the best with --best, without RMSProp's statistics
    evaluation.json run_checkpoint.py's games with these weights, with another seed than training's

A figure must lead back to what made it. So a run is refused if it is under way, if it failed, if its
files do not agree, if it began from another run's checkpoint, if its code was not committed (unless
--patch names the difference), if it was resumed with other code, and if its files would name a
private folder of the machine.
"""

import argparse
import contextlib
import gzip
import json
import math
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from a3c.machine.words import BadInput
from a3c.store import checkpoint, provenance, reading, run_folder
from a3c.store.checkpoint import Checkpoint

ROOT = pathlib.Path(__file__).resolve().parent.parent
RUN = "run.json"
EVALUATION = "evaluation.json"
EVALUATION_SEED = 1000
N_GAMES = 30
# Private folders.
PLACES = re.compile(rb"/(root|home|Users|tmp)/")


def publish(options: argparse.Namespace) -> None:
    """Copy, compress and evaluate; a refusal leaves nothing behind."""
    run: pathlib.Path = options.run
    into: pathlib.Path = options.into
    if into.exists():
        raise BadInput(f"{into} exists already")
    if into.parts[:1] != ("results",) or ".." in into.parts:
        raise BadInput(f"{into} is not below results/")
    # This refuses a run under way, and keeps others from resuming it meanwhile.
    with contextlib.closing(run_folder.open_existing(run)):
        copy(run, into, options)


def copy(run: pathlib.Path, into: pathlib.Path, options: argparse.Namespace) -> None:
    """Copy the run into a new folder."""
    saved = newest_in(run / "checkpoints")
    facts = facts_of(run, saved, options)
    into.mkdir(parents=True)
    try:
        for name in ("command.txt", run_folder.ARGS, "versions.txt"):
            shutil.copyfile(run / name, into / name)
        for name in (run_folder.PROGRESS, run_folder.GAMES, run_folder.EVALUATIONS):
            if (run / name).exists():
                # The same content gives the same bytes.
                (into / f"{name}.gz").write_bytes(gzip.compress((run / name).read_bytes(), mtime=0))
        refuse_places(into)  # before an evaluation of minutes
        if not options.no_agent:
            agent = newest_in(run / "checkpoints" / "best") if options.best else saved
            (into / "checkpoints").mkdir()
            checkpoint.write_agent(agent, into / "checkpoints")
            facts["evaluated_by"] = revision_here()
            evaluate(into, options.games)
        (into / RUN).write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
        refuse_places(into)
    except BaseException:
        shutil.rmtree(into, ignore_errors=True)
        raise


def refuse_places(into: pathlib.Path) -> None:
    """BadInput if a file would name a private folder."""
    for path in into.rglob("*"):
        if path.is_file() and (place := place_in(path)):
            raise BadInput(f"{path.relative_to(into)} would name {place}")


def place_in(path: pathlib.Path) -> str | None:
    """A private folder that a file names, zipped or not."""
    data = path.read_bytes()
    found = PLACES.search(gzip.decompress(data) if path.suffix == ".gz" else data)
    return found and found[0].decode()


def facts_of(run: pathlib.Path, saved: Checkpoint, options: argparse.Namespace) -> dict[str, Any]:
    """The content of run.json; BadInput if the run cannot be published."""
    settings, _, resumed = reading.read_record(run)
    if settings.get("load_ckpt") is not None:
        raise BadInput(f"{run} began from a checkpoint of another run")
    if (run / "failure").exists():
        raise BadInput(f"{run} failed: see {run / 'failure'}")
    read = reading.read_run(run)
    if read.words:
        raise BadInput(read.words[0])
    last_steps, cpu_hours = last_row(run)
    if last_steps != saved.n_steps:
        raise BadInput(f"{run} was cut off: its last row and its last checkpoint differ")
    if not len(read.games.scores):
        raise BadInput(f"{run} has no games")
    if math.isnan(cpu_hours) and not options.alone:
        raise BadInput(f"{run} has no CPU hours, and its hours only count with --alone")
    code = (run / "versions.txt").read_text(encoding="utf-8").partition("\n")[0]
    for resumption in resumed:
        if f"code: {resumption.get('code')}" != code:
            raise BadInput(f"{run} was resumed with other code, {resumption.get('revision')}")
    return {
        "revision": revision_of(run / "git.txt", options.patch),
        "patch": options.patch and options.patch.name,
        "env_id": read.env_id,
        "sticky_actions": read.sticky_actions,
        "seed": settings.get("seed"),
        "steps": saved.n_steps,
        "games": saved.snapshot.counts.games,
        "resumed": len(resumed),
        "hours": round(float(read.games.seconds[-1]) / 3600, 3) if options.alone else None,
        "cpu_hours": None if math.isnan(cpu_hours) else round(cpu_hours, 3),
    }


def last_row(run: pathlib.Path) -> tuple[int, float]:
    """Steps and CPU hours at the end; NaN in older runs, which did not count them."""
    columns, words = reading.read_progress(run)
    steps = [*columns.get("misc/steps", [])]
    cpu_hours = [math.nan, *columns.get("misc/cpu_hours", [])]
    if words or not steps:
        raise BadInput(f"{run / run_folder.PROGRESS} is damaged: {' '.join(words) or 'no steps'}")
    return int(steps[-1]), float(cpu_hours[-1])


def revision_of(path: pathlib.Path, patch: pathlib.Path | None) -> str:
    """The revision that ran, from the run folder's git.txt."""
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    lines = text.splitlines()
    if not lines or not lines[0].startswith("revision: "):
        raise BadInput(f"{path} names no revision")
    if "\nuntracked files: none" not in f"\n{text}":
        raise BadInput(f"{path} has untracked files")
    changes = (
        text.partition("uncommitted difference:")[2].partition("\nuntracked files:")[0].strip()
    )
    if "GIT binary patch" in changes or (patch is None and changes != "none"):
        raise BadInput(f"{path} has uncommitted changes, and no --patch names them")
    if patch is not None and changed_lines(changes) != changed_lines(patch.read_text("utf-8")):
        raise BadInput(f"{path} has other changes than {patch}")
    return lines[0].removeprefix("revision: ")


def revision_here() -> str:
    """The revision of the code that evaluates; BadInput if it has changes."""
    changed = provenance.git(ROOT, "status", "--porcelain", "--", "a3c", "run_checkpoint.py")
    if changed is None or changed.strip():
        raise BadInput("the code that evaluates has uncommitted changes")
    return (provenance.git(ROOT, "rev-parse", "--verify", "HEAD") or "").strip()


def changed_lines(difference: str) -> list[str]:
    """The lines that a difference removes and adds, without their places."""
    return [line for line in difference.splitlines() if line[:1] in ("+", "-")]


def newest_in(folder: pathlib.Path) -> Checkpoint:
    """The newest checkpoint, which in `best` scored best; BadInput if it is damaged."""
    saved, problems = checkpoint.newest_whole(folder)
    if problems:
        raise BadInput(problems[0])
    return saved


def evaluate(folder: pathlib.Path, n_games: int) -> None:
    """Play the evaluation as any user would."""
    command = [sys.executable, ROOT / "run_checkpoint.py", folder, "--no_render"]
    command += ["--seed", EVALUATION_SEED, "--episodes", n_games, "--json", folder / EVALUATION]
    subprocess.run([*map(str, command)], check=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description="Publish a run.", allow_abbrev=False)
    add = parser.add_argument
    add("run", type=pathlib.Path, help="its run folder")
    add("into", type=pathlib.Path, help="a new folder under results/")
    add("--alone", action="store_true", help="the machine did nothing else: the run's hours count")
    add("--patch", type=pathlib.Path, help="the difference of its code: results/ablations/….patch")
    add("--games", type=int, default=N_GAMES, help=f"of the evaluation [{N_GAMES}]")
    weights = parser.add_mutually_exclusive_group()
    add = weights.add_argument
    add("--best", action="store_true", help="the best weights of the evaluations on the way")
    add("--no_agent", action="store_true", help="curves only, for a run of a study")
    try:
        publish(parser.parse_args(argv))
    except (BadInput, checkpoint.UnusableCheckpoint, OSError) as error:
        print(f"publish: error: {error}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        return error.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
