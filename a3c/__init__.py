"""A3C (Mnih et al. 2016): one algorithm in a few rooms; the README shows what is where.

What programs and notebooks use is in `api` and is loaded when it is first used, because every
process that imports a module of the package runs this one.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from a3c.api import RunData, load_agent, make_env, read_run, train
    from a3c.envs.make import UnsupportedEnv
    from a3c.envs.process import EnvError
    from a3c.machine.words import BadInput
    from a3c.store.checkpoint import UnusableCheckpoint

__version__ = "2.0.0"
__all__ = [
    "BadInput",
    "EnvError",
    "RunData",
    "UnsupportedEnv",
    "UnusableCheckpoint",
    "load_agent",
    "make_env",
    "read_run",
    "train",
]
_ELSEWHERE = {
    "BadInput": "a3c.machine.words",
    "EnvError": "a3c.envs.process",
    "UnsupportedEnv": "a3c.envs.make",
    "UnusableCheckpoint": "a3c.store.checkpoint",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'a3c' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_ELSEWHERE.get(name, "a3c.api")), name)
