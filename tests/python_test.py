"""The package as programs use it: docs/python.md, the examples, training, and what a wheel holds."""

import contextlib
import importlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import types
import zipfile

import gymnasium
import numpy as np
import pytest

import a3c
from a3c import api
from a3c.machine import tensorflow_process
from a3c.run import start
from a3c.settings import command_line
from a3c.settings.config import as_words
from a3c.store import provenance
from tests.tools import agents, processes, run_files

ROOT = processes.ROOT
EXAMPLES = ROOT / "examples"


def run(folder: pathlib.Path, *arguments: str | pathlib.Path, **environment: str) -> str:
    """Run Python with these arguments in a folder; returns what it printed."""
    started = processes.start(
        arguments,
        folder,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{EXAMPLES}"} | environment,
    )
    status, said = started.wait(1200), processes.outputs(folder)
    assert status == 0, said["stderr"]
    return said["stdout"]


def test_every_example_of_the_page_works(tmp_path):
    """Golden: all in one script, which has no main guard, in a folder with the published runs."""
    text = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 6
    (tmp_path / "page.py").write_text("".join(blocks))
    (tmp_path / "results").symlink_to(ROOT / "results")
    said = run(tmp_path, "page.py")
    assert "unknown flag initial_rl (did you mean initial_lr?)\n" in said
    assert "finished at 3,000 steps" in said
    command = (tmp_path / "runs/from-python/command.txt").read_text()
    assert command.startswith("python3 train.py CartPole-v1 --preset=cartpole --n_steps=2000 ")


STOPPED = """
import os, signal, sys, threading, time
import a3c
from a3c.store import run_folder

def mine(number, frame):
    print("mine", number)
    if number == signal.SIGINT:
        raise KeyboardInterrupt

for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, mine)
def n_rows():
    return open("run/progress.csv").read().count("\\n") if os.path.exists("run/progress.csv") else 0
def stop(number, so_far):
    while n_rows() <= so_far + 1:
        time.sleep(0.05)
    os.kill(os.getpid(), number)

settings = dict(n_steps=1e9, no_xla=True, log_interval_seconds=0.5)
threading.Thread(target=stop, args=(signal.SIGTERM, 0), daemon=True).start()
print("folder", a3c.train("CartPole-v1", log_dir="run", **settings))
threading.Thread(target=stop, args=(signal.SIGINT, n_rows()), daemon=True).start()
try:
    a3c.train(resume="run")
except KeyboardInterrupt:
    print("interrupted", signal.getsignal(signal.SIGINT) is mine)
"""


def test_a_signal_saves_and_then_is_the_callers(tmp_path):
    """Analytic: its own handlers are back, and get SIGTERM and Ctrl-C after the run has been saved."""
    said = run(tmp_path, "-c", STOPPED).splitlines()
    assert "mine 15" in said
    at = said.index("mine 15")
    assert said[at - 2].startswith("stopped at ")
    assert said[at + 1] == "folder run"
    assert said[-2:] == ["mine 2", "interrupted True"]
    assert said[-4].startswith("stopped at ")


def test_a_training_that_fails_is_an_exception(tmp_path):
    """Analytic: its message says where to look."""
    code = """
import a3c
try:
    a3c.train("tests.tools.toys:toys/RaisesInStep-v0", log_dir="run", n_workers=1, no_xla=True)
except RuntimeError as error:
    print("told:", error)
"""
    assert re.search("^told: training failed", run(tmp_path, "-c", code), re.MULTILINE)


def test_evaluations_are_read_with_a_run(tmp_path):
    """Analytic: a column of each figure."""
    run_files.write_run(tmp_path / "run", run_files.steady(5))
    assert a3c.read_run(tmp_path / "run").evaluations == {}
    text = "steps,episode_reward_mean\n100,3.5\n200,4\n300"
    (tmp_path / "run/evaluations.csv").write_text(text)
    run = a3c.read_run(tmp_path / "run")
    assert [note.split(":")[0] for note in run.notes] == ["evaluations.csv"]  # on the cut row
    assert {name: column.tolist() for name, column in run.evaluations.items()} == {
        "steps": [100, 200],
        "episode_reward_mean": [3.5, 4],
    }


def test_an_agent_says_if_a_newer_one_is_damaged(tmp_path):
    """Analytic: the one before is loaded."""
    path = agents.save(tmp_path).path
    path.with_name("ckpt-80.safetensors").write_bytes(b"broken")
    with pytest.warns(UserWarning, match=f"ckpt-80.*; using {re.escape(str(path))}"):
        a3c.load_agent(tmp_path)


def test_an_agent_draws_with_its_seed(tmp_path):
    """Analytic: the same actions for a seed, others for another."""
    agents.save(tmp_path)
    code = """
import a3c, numpy
for seed in (1, 1, 2):
    agent = a3c.load_agent(".", seed=seed)
    print([int(agent.act(numpy.zeros(4, "float32")).action) for _ in range(50)])
"""
    first, again, other = run(tmp_path, "-c", code).splitlines()
    assert first == again != other


def test_an_environment_shows_its_frames():
    """Analytic: a picture of each."""
    frames: list[np.ndarray] = []
    with contextlib.closing(a3c.make_env("CartPole-v1", see=frames.append)) as env:
        env.reset()
        env.step(0)
    assert [frame.shape for frame in frames] == [(400, 600, 3)] * 2


def test_training_is_for_the_main_thread(monkeypatch):
    """Analytic: signals reach no other; and handlers stay as they were after a refusal."""
    # Another test may have started TensorFlow in this process.
    monkeypatch.setattr(tensorflow_process, "limit_threads", lambda: None)
    before, errors = signal.getsignal(signal.SIGINT), []

    def train() -> None:
        try:
            a3c.train("CartPole-v1")
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert "must be called by the main thread" in errors[0]
    with pytest.raises(a3c.UnsupportedEnv, match="unknown environment Nothing-v0"):
        a3c.train("Nothing-v0")
    assert signal.getsignal(signal.SIGINT) is before


def test_a_warning_is_of_the_line_that_trains(tmp_path, monkeypatch):
    """Analytic: of settings in which a flag is not known."""
    monkeypatch.setattr(tensorflow_process, "limit_threads", lambda: None)
    record = run_files.write_run(tmp_path, None) / "args.json"
    record.write_text(record.read_text().replace('"seed"', '"sead"'))
    with (
        pytest.warns(UserWarning, match="ignored unknown flags: sead") as warned,
        pytest.raises(a3c.UnsupportedEnv),
    ):
        a3c.train("Nothing-v0", config=record)
    assert [warning.filename for warning in warned] == [__file__]


def test_a_tensorflow_that_has_started_otherwise_is_refused(tmp_path, monkeypatch):
    """Analytic: with advice, and before a folder is made."""

    def refuse() -> None:
        raise RuntimeError("Intra op parallelism cannot be modified after initialization.")

    monkeypatch.setitem(sys.modules, "tensorflow", types.ModuleType("tensorflow"))
    monkeypatch.setattr(tensorflow_process, "limit_threads", refuse)
    with pytest.raises(
        RuntimeError, match="other threads than training needs: call a3c.train before"
    ):
        a3c.train("CartPole-v1", log_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "flags",
    [
        {"n_steps": 1e5, "hidden_units": (200, 100), "normalize_observations": True},
        {"lr_schedule": "linear", "lr_decay_to_zero_by_n_steps": None, "no_xla": False},
        {"env_kwargs": (), "hidden_units": (64,)},
        {"env_kwargs": ("size=3", "name=x"), "wrapper": None},
        {"hidden_units": [np.int64(64), np.int64(32)]},
        {"hidden_units": np.array([64, 32])},
        {"initial_lr": np.float32(0.5), "seed": np.int64(3), "log_dir": pathlib.Path("runs/-x")},
    ],
)
def test_keywords_are_flags(flags):
    """Parity: the words that a run records as its command give what the keywords say."""
    parsed = command_line.parse(["CartPole-v1", *as_words(api._taken(flags))])
    for name, value in flags.items():
        if name == "lr_decay_to_zero_by_n_steps":
            value = parsed.params.n_steps  # what an end of none means
        if name == "hidden_units":
            value = tuple(value)
        assert getattr(parsed.params, name) == (str(value) if name == "log_dir" else value)
        assert parsed.sources[name] in ("command line", "derived")
    assert parsed.params.env_id == "CartPole-v1"


def test_a_file_of_settings_is_taken_as_by_the_flag(tmp_path, monkeypatch):
    """Analytic: keywords replace what it sets, as flags do. The run belongs to a program, which goes on after a
    second Ctrl-C, and whose CPU time until now is not the run's.
    """
    (tmp_path / "mine.toml").write_text('preset = "cartpole"\nn_steps = 5000\ninitial_lr = 3e-3\n')
    asked = []
    monkeypatch.setattr(tensorflow_process, "limit_threads", lambda: None)
    monkeypatch.setattr(start, "run", lambda *arguments: asked.append(arguments) or (tmp_path, 0))
    a3c.train("CartPole-v1", config=tmp_path / "mine.toml", n_steps=70)
    ((parsed, _, signals),) = asked
    assert signals.cpu_seconds_before > 0
    assert (parsed.params.n_steps, parsed.params.initial_lr) == (70, 3e-3)
    assert parsed.params.preset == "cartpole"


def test_a_keyword_may_have_a_flags_old_name():
    """Analytic: as in commands, files and records."""
    assert api._taken({"manager_wake_interval_seconds": 7}) == {"log_interval_seconds": 7}


def test_a_run_is_read_as_columns():
    """Parity: games and figures of a published run against its own files."""
    run = a3c.read_run(ROOT / "results/pong-fast-s0")
    assert run.env_id == "PongNoFrameskip-v4"
    assert {len(column) for column in run.games.values()} == {3616}
    assert list(run.games) == ["score", "length", "step", "seconds"]
    assert run.games["score"].min() == -21
    assert run.games["length"].min() > 500
    assert run.figures["misc/steps"][-1] == 6e6
    assert (run.settings["n_workers"], run.notes, dict(run.evaluations)) == (3, (), {})


def test_environments_are_as_training_and_as_evaluations_have_them():
    """Analytic: clipped rewards and lives in training alone; flags are checked."""
    training = a3c.make_env("BreakoutNoFrameskip-v4", seed=1)
    evaluation = a3c.make_env("BreakoutNoFrameskip-v4", evaluation=True)
    assert "ClipRewards" in str(training)
    assert "EndEpisodeOnLifeLoss" in str(training)
    assert "ClipRewards" not in str(evaluation)
    assert "EndEpisodeOnLifeLoss" not in str(evaluation)
    same, other = (a3c.make_env("CartPole-v1", seed=1, evaluation=e) for e in (False, True))
    assert (same.reset()[0] != other.reset()[0]).any()  # evaluations have games of their own
    limited = [
        a3c.make_env("CartPole-v1", evaluation=e, max_episode_steps=5) for e in (False, True)
    ]
    assert [env.spec.max_episode_steps for env in limited] == [5, 500]
    with pytest.raises(a3c.BadInput, match="unknown flag max_noops"):
        a3c.make_env("CartPole-v1", max_noops=3)


# Agents of every format that a file has had since safetensors; the revisions that had it wrote the files,
# and said what they decide. A format that is added needs a file here, which must never change again.
DECIDED = {
    2: ([0.1, -0.2, 0.3, -0.4], {"probabilities": [0.43526250, 0.56473750]}, 0.01840241),
    3: ([0.1, -0.2, 0.3], {"mean": [0.13727774], "sd": [1.00837755]}, 0.01869149),
}


@pytest.mark.parametrize("version", DECIDED)
def test_agents_of_every_format_decide_as_they_did(version):
    """Golden: with a memory, continuous actions and normalised observations from format 3 on."""
    assert {*DECIDED} == {*agents.checkpoint.READABLE_VERSIONS}
    agent = a3c.load_agent(ROOT / f"tests/agents/format-{version}.safetensors")
    observation, wanted, value = DECIDED[version]
    decision = agent.act(np.array(observation, np.float32))
    for name, numbers in wanted.items():
        np.testing.assert_allclose(getattr(decision, name), numbers, rtol=1e-5)
    assert decision.value == pytest.approx(value, rel=1e-4)


def test_an_agent_plays_in_gymnasiums_vector_loop(tmp_path):
    """Analytic: every step of CartPole is paid 1, so no step is lost where a game begins."""
    agents.save(tmp_path / "checkpoints")
    said = run(tmp_path, EXAMPLES / "vector_loop.py", tmp_path, "2", "30")
    assert said == "rewards of 2 games in 30 steps: [30.0, 30.0]\n"


@pytest.mark.weekly
def test_an_environment_of_ones_own_is_trained_on(tmp_path):
    """Learning: it walks to the end of the corridor, four and a half cells away on average."""
    words = ["--preset", "cartpole", "--n_steps", "2e4", "--log_dir", "run"]
    run(tmp_path, ROOT / "train.py", *words, "own_environment:Corridor-v0")
    assert a3c.read_run(tmp_path / "run").games["length"][-100:].mean() < 10


def test_a_wrapper_hides_the_velocities(monkeypatch):
    """Parity: with CartPole's own observations."""
    monkeypatch.syspath_prepend(EXAMPLES)
    whole = gymnasium.make("CartPole-v1")
    hidden = importlib.import_module("positions_only").wrap(gymnasium.make("CartPole-v1"))
    for seen, expected in (
        (hidden.reset(seed=1)[0], whole.reset(seed=1)[0]),
        (hidden.step(1)[0], whole.step(1)[0]),
    ):
        assert seen in hidden.observation_space
        np.testing.assert_array_equal(seen, expected[[0, 2]])


def test_another_network_learns(tmp_path):
    """Learning: with layers that policy and value share."""
    said = run(tmp_path, EXAMPLES / "own_network.py").splitlines()[-1]
    first, last = map(int, re.fullmatch(r"\d+ games; .*: (\d+), of the last: (\d+)", said).groups())
    assert last > first + 10


@pytest.mark.weekly
def test_the_notebook_trains_draws_and_films(tmp_path, monkeypatch):
    """Golden: every cell runs, and shows a curve and a film; Jupyter's kernel is Python's."""
    import nbclient
    import nbformat

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(EXAMPLES / "cartpole.ipynb", as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    done = nbclient.NotebookClient(notebook, timeout=1200, resources=resources).execute()
    nbformat.write(done, tmp_path / "done.ipynb")
    outputs = [output for cell in done.cells for output in cell.get("outputs", [])]
    kinds = {kind for output in outputs for kind in output.get("data", {})}
    assert {"image/png", "image/gif"} <= kinds
    assert "finished at 100,000 steps" in "".join(output.get("text", "") for output in outputs)


def test_a_wheel_holds_the_package_and_nothing_else(tmp_path):
    """Golden: presets and scores included; its digest is the clone's, and its commands are ours."""
    source = tmp_path / "source"
    patterns = ("*.py", "*.toml", "*.csv", "py.typed")  # editors may have left others
    names = [str(f.relative_to(ROOT)) for p in patterns for f in ROOT.glob(f"a3c/**/{p}")]
    for name in [*names, "pyproject.toml", "README.md", "LICENSE"]:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(source)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    installed = tmp_path / "site-packages"
    with zipfile.ZipFile(wheel) as content:
        content.extractall(installed)
    assert {str(path.relative_to(installed)) for path in installed.glob("a3c/**/*.*")} == {*names}
    assert provenance.digest_of(installed) == provenance.digest_of(source)
    assert provenance.git_state(installed) == "no repository"
    (metadata,) = installed.glob("*.dist-info")
    entries = dict(
        re.findall(
            r"^(a3c-\w+) = ([\w.]+):main$", (metadata / "entry_points.txt").read_text(), re.M
        )
    )
    assert set(entries) == {*command_line.SCRIPTS.values()}
    environment = os.environ | {"PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}

    def run(code: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    for name, module in entries.items():
        code = (
            f"import sys; from {module} import main; sys.exit(main(['--unknown', 'CartPole-v1']))"
        )
        done = run(code)
        assert (done.returncode, done.stdout) == (2, "")
        assert re.match(f"{name}: error: ", done.stderr)
    starts = "subprocess.call([sys.executable, *trial.TRAIN, '--version'])"
    done = run(f"import subprocess, sys; from a3c.sweep import trial; sys.exit({starts})")
    assert re.fullmatch(r"a3c-train [\d.]+\n", done.stdout), done.stderr
