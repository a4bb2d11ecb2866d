"""Remote workers of a real Ray that are slow, or die, exactly when a test needs it."""

import os
import signal
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from a3c.contract import Moments
from a3c.run import ray_process
from a3c.run.actor import Actor

SLOW_SECONDS = 12.0


class Mortal(Actor):
    """Slow at rollout 5; dies after it has computed rollout 8, and after it has answered with 12."""

    def collect(self, number: int, weights: np.ndarray, moments: Mapping[str, Moments]) -> Any:
        computed = super().collect(number, weights, moments)
        if number == 5:
            time.sleep(SLOW_SECONDS)
        if number == 8:
            die()
        if number == 12:
            threading.Timer(0.3, die).start()
        return computed


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """In the place of `ray_process.main`."""
    ray_process.Actor = Mortal  # type: ignore[misc]
    ray_process.main()
