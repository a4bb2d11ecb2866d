"""A toy environment for whole runs: it says, in the working directory, that it has come to hang."""

import pathlib
import threading
from typing import Any

import gymnasium

from tests.toys import Vector

SIGN = "hanging"


class HangsAndSaysSo(Vector):
    """Never comes back from its third step, and leaves a file that says it is there."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._n_steps == 2:
            pathlib.Path(SIGN).touch()
            threading.Event().wait()
        return super().step(action)


gymnasium.register("toys/HangsAndSaysSo-v0", f"{__name__}:HangsAndSaysSo")
