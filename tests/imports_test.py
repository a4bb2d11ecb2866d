"""Imports run one way, from room to room, and only some rooms load TensorFlow or Gymnasium."""

import ast
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.tools.processes import ROOT

# machine ← settings, contract ← envs | agent | store ← play ← run | sweep ← api ← the scripts
FLOORS = [
    {"machine"},
    {"settings", "contract"},
    {"envs", "agent", "store"},
    {"play"},
    {"run", "sweep"},
    {"api"},
]
BELOW = {
    room: set().union({"__version__"}, *FLOORS[:floor], {room})
    for floor, rooms in enumerate(FLOORS)
    for room in rooms
}
TENSORFLOW = {"tensorflow", "keras", "a3c.machine.tensorflow_process"}
WITH_TENSORFLOW = {"agent", "play", "run", "api"}
WITH_RAY = {"a3c/machine/cluster.py", "a3c/sweep/tuner.py"}


def imports_of(source: str) -> Iterator[str]:
    """The dotted name of everything that a source imports, wherever in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            place = "." * node.level + (node.module or "")
            yield from (f"{place}.{alias.name}" for alias in node.names)


def problems_of(path: str, source: str) -> list[str]:
    """What a module of a3c/ imports that its room may not."""
    room = path.split("/")[1].removesuffix(".py")
    found = []
    for name in imports_of(source):
        package, _, rest = name.partition(".")
        is_tensorflow = any(name == part or name.startswith(f"{part}.") for part in TENSORFLOW)
        if (
            (package == "a3c" and rest.split(".")[0] not in BELOW[room])
            or (package == "ray" and path not in WITH_RAY)
            or (is_tensorflow and room not in WITH_TENSORFLOW and "tensorflow_process" not in path)
            or (package in {"gymnasium", "ale_py"} and room in {"agent", "store"})
            or name.startswith(".")
            or name.endswith(".*")
        ):
            found.append(f"{path} imports {name}")
    return found


def test_rooms_import_only_what_is_below_them() -> None:
    """Analytic: every import of every module of a3c/ against the floors."""
    paths = {str(path.relative_to(ROOT)) for path in (ROOT / "a3c").glob("*/**/*.py")}
    assert len(paths) >= 30
    for path in paths | {"a3c/contract.py", "a3c/api.py"}:
        assert problems_of(path, (ROOT / path).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("a3c/settings/params.py", "import a3c.envs.make"),
        ("a3c/settings/params.py", "from a3c import contract"),
        ("a3c/machine/cores.py", "from a3c.settings.params import Params"),
        ("a3c/agent/worker.py", "def f():\n    from a3c.envs import pool"),
        ("a3c/store/logs.py", "if TYPE_CHECKING:\n    from a3c.agent import shared"),
        ("a3c/play/evaluator.py", "from a3c.run.watch import Watch"),
        ("a3c/contract.py", "from a3c.envs.score import Game"),
        ("a3c/envs/make.py", "from tensorflow import nn"),
        ("a3c/envs/serve.py", "from a3c.machine import tensorflow_process"),
        ("a3c/store/logs.py", "def f():\n    import tensorflow as tf"),
        ("a3c/sweep/trial.py", "def f():\n    import ray"),
        ("a3c/sweep/start.py", "from a3c.run import start"),
        ("a3c/run/start.py", "from a3c import api"),
        ("a3c/agent/worker.py", "import gymnasium.spaces"),
        ("a3c/agent/worker.py", "from numpy import *"),
        ("a3c/agent/worker.py", "from ..envs import pool"),
        ("a3c/agent/worker.py", "from .. import envs"),
    ],
)
def test_a_forbidden_import_is_found(path: str, source: str) -> None:
    """Analytic: negative control of the test before."""
    assert len(problems_of(path, source)) == 1


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        # A signal during the import of TensorFlow is not lost, and every process imports a3c.
        ("a3c, a3c.machine.stopping", {"numpy", "tensorflow", "gymnasium"}),
        ("a3c.run.command", {"numpy", "tensorflow", "gymnasium"}),
        ("a3c; a3c.read_run, a3c.load_agent", {"tensorflow", "gymnasium"}),
        # Every process of environments has these.
        ("a3c.agent.collector, a3c.agent.vectors, a3c.envs.serve", {"tensorflow"}),
        # Bad input is answered at once.
        ("a3c.settings.command_line, a3c.store.resume", {"tensorflow", "gymnasium"}),
        # Ray is imported only where it is asked for, and a trial alone needs TensorFlow.
        ("sweep, a3c.sweep.start, a3c.sweep.plot_command", {"tensorflow", "ray"}),
    ],
)
def test_light_modules_load_nothing_heavy(modules: str, absent: set[str]) -> None:
    """Analytic: what a new process has loaded."""
    code = f"import sys, {modules}; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).split()
    assert absent.isdisjoint(loaded)


def others_code(source: str) -> set[str]:
    """The packages that a source imports and that Python does not bring along."""
    return {name.split(".")[0] for name in imports_of(source)} - sys.stdlib_module_names


def test_the_oracle_shares_no_code_with_what_it_judges() -> None:
    """Analytic: it imports NumPy and the standard library alone; others' code would be found."""
    assert others_code((ROOT / "tests/tools/oracle.py").read_text(encoding="utf-8")) == {"numpy"}
    assert others_code("import math\nfrom a3c import contract") == {"a3c"}
    assert others_code("def f():\n    from tests.tools import pins") == {"tests"}
