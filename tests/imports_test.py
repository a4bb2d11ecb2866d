"""Imports run one way: who may import whom in a3c/, which side may load which library; and what the
oracle imports."""

import ast
import pathlib
import sys
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Every module of a3c/ and the modules of a3c/ it may import.
ALLOWED: dict[str, set[str]] = {
    "__init__": set(),
    # what everybody may need
    "words": set(),
    "params": {"words"},
    "command_line": {"params"},
    "cores": set(),
    "seeding": set(),
    "run_dir": {"params", "cores"},
    "atari_scores": set(),
    "position": set(),
    # the environment side
    "appending": set(),
    "preprocessing": set(),
    "debug_wrappers": set(),
    "monitor": {"appending"},
    "colours": set(),
    "env_serving": {"monitor", "stopping"},
    "env_process": {"env_serving", "stopping", "cores"},
    "env": {"preprocessing", "debug_wrappers", "monitor", "colours", "seeding"},
    "worker_envs": {"env", "env_process", "env_serving", "monitor"},
    # the network side
    "network": set(),
    "losses": set(),
    "optimizer": set(),
    "events": {"appending"},
    "logs": {"appending", "events"},
    "debug_dump": set(),
    "stopping": set(),
    "hush": set(),
    "shared": {"network", "optimizer"},
    "bundle": set(),
    "checkpoint_files": {"position", "words"},
    "checkpoint": {"checkpoint_files", "shared", "position", "appending", "bundle"},
    "traced": {"losses", "network", "optimizer", "shared", "debug_dump"},
    "worker": {"traced", "optimizer", "shared", "stopping", "position"},
    "failure": {"worker", "words"},
    "resume": {"command_line", "params", "run_dir", "checkpoint_files", "appending"},
    # pictures for people
    "views": {"debug_wrappers", "screens"},
    "screens": {"appending"},
    # both
    "evaluation": {
        *("env", "network", "checkpoint", "checkpoint_files", "seeding", "atari_scores"),
        *("stopping", "worker", "worker_envs"),
    },
    "evaluator": {"evaluation", "checkpoint", "checkpoint_files", "shared", "stopping"},
}
ALLOWED["watch"] = set(ALLOWED)
ALLOWED["training"] = set(ALLOWED)

ENV_SIDE = {
    *("preprocessing", "debug_wrappers", "monitor", "colours", "env"),
    *("env_process", "env_serving", "worker_envs", "cores"),
}
NETWORK_SIDE = {
    *("network", "losses", "optimizer", "events", "logs", "debug_dump", "stopping"),
    *("shared", "bundle", "checkpoint", "checkpoint_files", "traced", "worker", "position"),
    *("failure", "resume"),
}
EMULATORS = {"gymnasium", "ale_py"}


class Import(NamedTuple):
    """One module that a source imports."""

    name: str  # "numpy.random", "a3c.params"
    line: int
    when_loaded: (
        bool  # as soon as the source is loaded; not within a function, not for type checkers alone
    )


def imports_of(source: str) -> Iterator[Import]:
    """Every import of a source; `from a3c import env` counts as one of a3c.env."""
    yield from _imports_below(ast.parse(source), when_loaded=True)


def _imports_below(node: ast.AST, when_loaded: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, when_loaded) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            module = child.module or ""
            if child.level:  # a3c is flat: a relative import is one from a3c
                module = f"a3c.{module}".rstrip(".")
            names = [f"a3c.{alias.name}" for alias in child.names] if module == "a3c" else [module]
            yield from (Import(name, child.lineno, when_loaded) for name in names)
        else:
            deferred = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for_types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            yield from _imports_below(child, when_loaded and not deferred and not for_types)


def is_part_of(module: str, packages: Collection[str]) -> bool:
    """Whether an imported module belongs to one of the packages."""
    return module.split(".")[0] in packages


def within_a3c(module: str) -> str | None:
    """The module of a3c that an imported name stands for."""
    package, _, name = module.partition(".")
    return (name.split(".")[0] or "__init__") if package == "a3c" else None


def forbidden_imports(sources: dict[str, str]) -> list[str]:
    """What in the sources (of a3c, by module name) breaks a rule, one line each."""
    problems = []
    for module, source in sources.items():
        if module not in ALLOWED:
            problems.append(f"a3c/{module}.py is not in the table of tests/imports_test.py")
            continue
        for imported in imports_of(source):
            place = f"a3c/{module}.py:{imported.line}"
            target = within_a3c(imported.name)
            if target is not None and target not in ALLOWED[module] | {"__init__"}:
                problems.append(f"{place} imports a3c.{target}")
            if module in ENV_SIDE and is_part_of(imported.name, {"tensorflow", "keras"}):
                problems.append(f"{place}: the environment side never imports {imported.name}")
            if module in NETWORK_SIDE and is_part_of(imported.name, EMULATORS):
                problems.append(f"{place}: the network side never imports {imported.name}")
        if any(
            isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
            for node in ast.walk(ast.parse(source))
        ):
            problems.append(f"a3c/{module}.py has an import *")
    return problems


def loaded_with(source: str, sources: dict[str, str]) -> set[str]:
    """Packages outside a3c that are loaded as soon as the source is, also by way of a3c."""
    packages: set[str] = set()
    waiting, seen = [source], {"__init__"}
    while waiting:
        for imported in imports_of(waiting.pop()):
            if not imported.when_loaded:
                continue
            module = within_a3c(imported.name)
            if module is None:
                packages.add(imported.name.split(".")[0])
            elif module in sources and module not in seen:
                seen.add(module)
                waiting.append(sources[module])
    return packages


def read(paths: Iterable[pathlib.Path]) -> dict[str, str]:
    """Sources by their modules' names."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(paths)}


def test_the_table_has_no_cycle() -> None:
    """Analytic: repeatedly taking out what imports nothing that is left takes out every module."""
    left = dict(ALLOWED)
    while free := [
        module for module, allowed in left.items() if not allowed & set(left) - {module}
    ]:
        for module in free:
            del left[module]
    assert left == {}


def test_modules_import_only_what_the_table_allows() -> None:
    """Analytic: parsed imports of every module of a3c/ against the table."""
    sources = read((ROOT / "a3c").glob("*.py"))
    assert "params" in sources
    assert forbidden_imports(sources) == []


def test_a3c_is_flat() -> None:
    """Analytic: no sub-packages, whose modules the other tests here would not see."""
    assert [path for path in (ROOT / "a3c").rglob("*.py") if path.parent.name != "a3c"] == []


def test_environment_processes_load_no_tensorflow() -> None:
    """Analytic: neither the environment side nor an entry point (they load it as well) does.

    What an entry point imports within a function is its own business.
    """
    modules = read((ROOT / "a3c").glob("*.py"))
    entry_points = read(ROOT.glob("*.py"))
    children_load = {name: modules[name] for name in ENV_SIDE & set(modules)} | entry_points
    assert "env" in children_load
    assert "train" in children_load
    guilty = {
        name for name, text in children_load.items() if "tensorflow" in loaded_with(text, modules)
    }
    assert guilty == set()


def others_code(source: str) -> set[str]:
    """The packages that a source imports and that Python does not bring along."""
    return {
        imported.name.split(".")[0] for imported in imports_of(source)
    } - sys.stdlib_module_names


def test_the_oracle_shares_no_code_with_what_it_judges() -> None:
    """Analytic: it imports NumPy and the standard library, and nothing else."""
    assert others_code((ROOT / "tests" / "oracle.py").read_text(encoding="utf-8")) == {"numpy"}


@pytest.mark.parametrize(
    ("source", "package"),
    [
        ("def f():\n    from a3c.losses import n_step_returns", "a3c"),
        ("from a3c import losses", "a3c"),
        ("from tests import pins", "tests"),
        ("import tensorflow.math as m", "tensorflow"),
    ],
)
def test_an_oracle_that_shares_code_is_found(source: str, package: str) -> None:
    """Analytic: negative control of the test before."""
    assert others_code(f"import math\n{source}\n") == {package}


@pytest.mark.parametrize(
    ("module", "source", "problem"),
    [
        ("params", "import a3c.env", "a3c/params.py:1 imports a3c.env"),
        ("params", "from a3c import seeding, env", "a3c/params.py:1 imports a3c.env"),
        ("params", "from a3c.env import make_env", "a3c/params.py:1 imports a3c.env"),
        ("params", "from . import env", "a3c/params.py:1 imports a3c.env"),
        ("params", "from .env import make_env", "a3c/params.py:1 imports a3c.env"),
        ("losses", "def f():\n    from a3c import worker", "a3c/losses.py:2 imports a3c.worker"),
        (
            "shared",
            "if True:\n    import a3c.training as t",
            "a3c/shared.py:2 imports a3c.training",
        ),
        ("monitor", "import tensorflow as tf", "the environment side never imports tensorflow"),
        ("env", "from tensorflow import nn", "the environment side never imports tensorflow"),
        ("worker", "import gymnasium.spaces", "the network side never imports gymnasium.spaces"),
        ("logs", "def f():\n    import ale_py", "the network side never imports ale_py"),
        ("env", "from numpy import *", "a3c/env.py has an import *"),
        ("utils", "", "a3c/utils.py is not in the table"),
    ],
)
def test_a_forbidden_import_is_found(module: str, source: str, problem: str) -> None:
    """Analytic: negative control of the test of the table."""
    assert problem in "\n".join(forbidden_imports({module: source}))


@pytest.mark.parametrize(
    ("source", "loads_it"),
    [
        ("import tensorflow", True),
        ("from a3c import training", True),
        ("from a3c.worker import Worker", True),
        ("try:\n    import a3c.training\nexcept ImportError: pass", True),
        ("class A:\n    import tensorflow", True),
        ("def main():\n    from a3c import training", False),
        ("if TYPE_CHECKING:\n    from a3c import training", False),
        ("from a3c import params", False),
    ],
)
def test_what_loads_tensorflow_is_found(source: str, loads_it: bool) -> None:
    """Analytic: negative control of the test of environment processes."""
    modules = {
        "params": "import argparse",
        "training": "from a3c import worker",
        "worker": "import numpy, tensorflow",
    }
    assert ("tensorflow" in loaded_with(source, modules)) is loads_it
