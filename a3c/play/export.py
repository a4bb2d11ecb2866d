"""Agents that travel: a folder with the weights, the settings, a model card and a film.

    ckpt-<steps>.safetensors   the weights, which are enough to play
    config.toml                the settings, for train.py's --config
    README.md                  a model card; hubs read what is between its lines `---`
    replay.mp4                 a game, under the name that hubs show

Nothing in it runs code, and it names no folder of the machine.
"""

import collections
import contextlib
import json
import pathlib
import shutil
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from a3c import __version__
from a3c.machine.words import BadInput
from a3c.play import evaluation, screens
from a3c.play.evaluation import Summary
from a3c.settings import config
from a3c.settings.config import OF_CODE
from a3c.store import checkpoint, reading
from a3c.store.checkpoint import Checkpoint

FILM = "replay.mp4"
CARD, CONFIG = "README.md", "config.toml"
PROJECT = "A3C (asynchronous advantage actor-critic) in Python and TensorFlow 2"


class Protocol(NamedTuple):
    """How the games of the card were played."""

    seed: int
    greedy: bool
    is_atari: bool  # with random starts, and a limit of frames


def make_folder(folder: pathlib.Path) -> None:
    """Make the folder, before an hour of work; BadInput unless it is new or empty."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise BadInput(f"--export {folder} must be a new or an empty folder")
    except OSError as error:
        raise BadInput(f"cannot write {folder}: {error.strerror}") from None


def write(
    folder: pathlib.Path,
    found: Checkpoint,
    summary: Summary,
    protocol: Protocol,
    filming: Iterable[object],
) -> None:
    """Write the folder, or nothing; going through `filming` makes the film, unless it is empty."""
    asked = config.of_checkpoint(found.params) | {"env_id": found.subject.env_id}
    try:
        with contextlib.suppress(screens.Closed):  # the film has the length that was asked for
            collections.deque(filming, maxlen=0)
        checkpoint.write_agent(found, folder)
        (folder / CONFIG).write_text(config.as_toml(dict(sorted(asked.items()))), encoding="utf-8")
        has_film = (folder / FILM).exists()
        (folder / CARD).write_text(
            card(found, asked, summary, protocol, has_film), encoding="utf-8"
        )
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise BadInput(f"cannot write {folder}: {error.strerror or error}") from None
        raise


def card(
    found: Checkpoint,
    asked: Mapping[str, Any],
    summary: Summary,
    protocol: Protocol,
    has_film: bool,
) -> str:
    """The model card's text; `asked` are the settings of the training."""
    subject = found.subject
    how = "the likeliest action" if protocol.greedy else "sampled actions"
    score = f"{summary.mean:.2f} +/- {summary.sd:.2f}"
    human = ""
    if summary.human_normalised is not None:
        human = f" Human-normalised, the mean is {summary.human_normalised:.3f}."
    limit = evaluation.MAX_FRAMES
    games = f"whole games with true rewards, {how}, seed {protocol.seed}"
    if protocol.is_atari:
        games += f"; 0 to {evaluation.MAX_N_NOOPS} no-ops at the start, at most {limit:,} frames"
    # What may run code, which whoever uses the folder must name.
    code = config.code_in(subject._asdict(), ())
    first = [code.pop("env_id")] if "env_id" in code else []
    given = [*map(repr, first), *(f"{name}={getattr(subject, name)!r}" for name in code)]
    play = " ".join(["a3c-play", *first, ".", *code.values()])
    of_training = config.code_in({name: asked.get(name) for name in OF_CODE}, ("env_id",)).values()
    train = " ".join(["a3c-train", "--config", CONFIG, subject.env_id, *of_training])
    load = 'agent = a3c.load_agent("path/to/this/folder")'
    env = f"agent.make_env({', '.join(given)})"
    film = f"\nA film of one game: [{FILM}]({FILM}).\n" if has_film else ""
    return f"""\
---
{_metadata(found, score)}---

# A3C that plays {subject.env_id}

{PROJECT}, trained for {found.n_steps:,} steps.

| mean score | sd | median | lowest | highest | games |
|---|---|---|---|---|---|
| {summary.mean:.2f} | {summary.sd:.2f} | {summary.median:g} | {summary.min:g} | {summary.max:g} \
| {summary.n_games} |

- **Environment**: `{subject.env_id}`, network `{subject.network}`, policy `{subject.policy}`
- **Protocol**: {games}.{human}
- **Command**: `{train}` trains with the same settings
- **Revision**: {revision_of(found.path)}; exported by version {__version__}
- **Licence**: MIT
{film}
## Load it

```python
import a3c
{load}
observation, _ = {env}.reset()
print(agent.act(observation))
```

It needs the package `a3c`, version {__version__} or later, of the project that trained the agent; docs/python.md there
says how to install it. In this folder, `{play}` shows the agent at play. The weights are a
safetensors file, and reading it runs no code.
"""


def _metadata(found: Checkpoint, score: str) -> str:
    """What hubs read, as YAML, in which JSON's texts and lists are allowed."""
    env_id = found.subject.env_id
    tags = ["reinforcement-learning", "deep-reinforcement-learning", "a3c", env_id]
    task = {"type": "reinforcement-learning", "name": "reinforcement-learning"}
    metric = {"type": "mean_reward", "name": "mean_reward", "value": score, "verified": False}
    dataset = {"name": env_id, "type": env_id}
    result = {"task": task, "dataset": dataset, "metrics": [metric]}
    values: Mapping[str, Any] = {
        "library_name": "a3c",
        "license": "mit",
        "pipeline_tag": "reinforcement-learning",
        "tags": tags,
        "model-index": [{"name": "A3C", "results": [result]}],
    }
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in values.items())


def revision_of(path: pathlib.Path) -> str:
    """The revision that trained the agent, if its run's folder says so."""
    if folder := reading.folder_of(path):
        for name in ("run.json", "git.txt"):
            try:
                text = (folder / name).read_text(encoding="utf-8", errors="replace")
                if name == "run.json":
                    return f"`{json.loads(text)['revision'][:40]}`"
                if text.startswith("revision: "):
                    return f"`{text.split()[1][:40]}`"
            except (OSError, ValueError, LookupError, TypeError):
                continue
    return "not recorded"
