"""The process beside a run that talks to Ray, and the run's ends of its connections.

Ray ends a process that is connected to it when the cluster's head or the Ray of this machine dies. So
the run itself is never connected: this process is, and the run notices when it ends, and saves. Ray's
signal handlers and threads stay in here as well.

Each remote worker has a connection for messages and memory for two blocks: the weights on their way
out and the gradients that come back.
"""

import contextlib
import json
import math
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, Pipe
from typing import Any, NamedTuple

import numpy as np

from a3c.contract import Moments
from a3c.machine import cluster, cores, place
from a3c.machine.stopping import SIGNALS
from a3c.machine.words import BadInput, counted, ends_of, one_line
from a3c.run.actor import CORES, Actor, Answer, Setup

POLL_SECONDS = 0.5
PING_SECONDS = 5.0  # without an answer, after which we ask whether an actor is alive
CLOSING_SECONDS = 20.0


class Begin(NamedTuple):
    """The request for an actor, in the place of the one before; answered by Begun."""

    setup: Setup
    n_weights: int


class Begun(NamedTuple):
    """An actor has its environments, and waits for requests."""

    machine: str


class Collect(NamedTuple):
    """The request for a rollout under the weights in the memory; answered by Done."""

    number: int
    moments: Mapping[str, Moments]


class Done(NamedTuple):
    """A rollout; its gradients are the first numbers of the second block in the memory."""

    answer: Answer
    n_gradients: int


class Lost(NamedTuple):
    """Ray has lost the actor, or it does not answer. What it was doing counts nowhere."""

    why: str


class Failed(NamedTuple):
    """An error that would come again with a new actor."""

    traceback: str


class Channel(NamedTuple):
    """One end of a remote worker's connection, and the memory that both ends map."""

    connection: Connection
    memory: int  # a file without a name

    def blocks(self, n: int) -> np.ndarray:
        """The two blocks: (2, n) float32."""
        size = 2 * n * np.dtype(np.float32).itemsize
        os.ftruncate(self.memory, size)
        return np.frombuffer(mmap.mmap(self.memory, size), np.float32).reshape(2, n)


class RayProcess:
    """The run's end."""

    program = f"from {__name__} import main; main()"

    def __init__(
        self,
        address: str,
        n_workers: int,
        patience_seconds: float,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Start it, and wait until it is connected to Ray or the run is stopped.

        BadInput says why it cannot be connected.
        """
        try:
            ours, theirs = zip(*(Pipe() for _ in range(n_workers + 1)), strict=True)
            memories = [os.memfd_create("blocks") for _ in range(n_workers)]
        except OSError as error:
            raise BadInput(f"{counted(n_workers, 'remote worker')}: {error.strerror}") from None
        self._control, *connections = ours
        self.channels = [Channel(*ends) for ends in zip(connections, memories, strict=True)]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `close`)
        numbers = [connection.fileno() for connection in theirs] + memories
        task = json.dumps([address, patience_seconds, cores.n_usable(), numbers])
        environment = os.environ | {"PYTHONPATH": place.python_path(), "PYTHONSAFEPATH": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", self.program, task],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            env=environment,
            pass_fds=numbers,
            start_new_session=True,  # Ctrl-C in the terminal is for the run alone
        )
        for connection in theirs:
            connection.close()
        try:
            while not self._control.poll(POLL_SECONDS):
                # Embedded Ray is soon up, and must be ended.
                if is_stopped() and address != "local":
                    self._process.kill()
            refusal = None if is_stopped() else self._control.recv()
        except (EOFError, OSError):
            refusal = self.last_words()
        if refusal is not None:
            self.close()
            raise BadInput(refusal)

    def last_words(self) -> str:
        """Why the connection to Ray has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSING_SECONDS)
        # Many threads may read it at once, so none moves its position.
        said = os.pread(self._errors.fileno(), 2**20, 0)
        lines = said.decode(errors="replace").split("\n")
        last = [line.strip() for line in lines if line.strip()][-1:]
        return one_line(": ".join(["the connection to Ray is lost", *last]))

    def close(self) -> None:
        """End it, and with it all actors; what does not end in time is killed."""
        for connection in (self._control, *(channel.connection for channel in self.channels)):
            connection.close()
        for channel in self.channels:
            os.close(channel.memory)
        try:
            self._process.wait(CLOSING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


def main() -> None:
    """The process's own main function."""
    for number in SIGNALS:  # the run decides; Ray's processes do not inherit these handlers
        signal.signal(number, lambda *_: None)
    address, patience_seconds, n_cores, (control, *others) = json.loads(sys.argv[1])
    cores.use(str(n_cores))  # an embedded Ray offers these
    n = len(others) // 2
    channels = [Channel(Connection(others[i]), others[n + i]) for i in range(n)]
    at = None if address == "local" else address
    told = Connection(control)
    try:
        # An installed package is on all machines.
        with cluster.connected(at, at is not None and place.IS_CLONE) as ray:
            for channel in channels:
                serve = _Server(ray, channel, patience_seconds).serve
                threading.Thread(target=serve, daemon=True).start()
            told.send(None)
            with contextlib.suppress(EOFError, OSError):
                told.recv()  # until the run ends, however it ends
    except BadInput as error:
        with contextlib.suppress(OSError):
            told.send(str(error))
    sys.stderr.flush()
    os._exit(0)  # threads may be waiting for Ray


class _Server:
    """What the process does for one remote worker."""

    def __init__(self, ray: Any, channel: Channel, patience_seconds: float) -> None:
        self._ray, self._channel, self._patience_seconds = ray, channel, patience_seconds
        self._actor: Any = None
        self._blocks = np.zeros((2, 0), np.float32)

    def serve(self) -> None:
        """Answer requests until the run hangs up."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                self._channel.connection.send(self._answer(self._channel.connection.recv()))

    def _answer(self, request: Begin | Collect) -> Begun | Done | Lost | Failed:
        errors = self._ray.exceptions
        try:
            return self._begin(request) if isinstance(request, Begin) else self._collect(request)
        except errors.RayTaskError as error:
            return Failed(str(error))
        except (errors.RayError, TimeoutError) as error:
            return Lost(one_line(ends_of(str(error)), 300) or type(error).__name__)
        except Exception:  # in this process; without an answer, the run would wait for ever
            return Failed(traceback.format_exc())

    def _begin(self, request: Begin) -> Begun:
        if self._actor is not None:
            self._ray.kill(self._actor)  # it may only be hung
        self._blocks = self._channel.blocks(request.n_weights)
        options = {"num_cpus": CORES, "max_restarts": 0, "max_task_retries": 0}
        remote = self._ray.remote(**options, concurrency_groups={"alive": 1})(Actor)
        settings = {"env_vars": cluster.INLINE}
        self._actor = remote.options(scheduling_strategy="SPREAD", runtime_env=settings).remote()
        self._result(self._ping(), math.inf)  # for as long as there is no room
        return Begun(self._result(self._actor.begin.remote(request.setup)))

    def _collect(self, request: Collect) -> Done | Failed:
        weights, gradients = self._blocks
        ref = self._actor.collect.remote(request.number, weights, request.moments)
        block, answer = self._result(ref)
        if block.dtype != np.float32 or block.ndim != 1 or len(block) > len(gradients):
            return Failed(f"gradients of type {block.dtype} and shape {block.shape} came back")
        gradients[: len(block)] = block
        return Done(answer, len(block))

    def _ping(self) -> Any:
        return self._actor.is_alive.options(concurrency_group="alive").remote()

    def _result(self, ref: Any, ping_seconds: float = PING_SECONDS) -> Any:
        """Wait for a result; TimeoutError if the actor falls silent meanwhile."""
        ping, since = None, time.monotonic()
        while True:
            with contextlib.suppress(self._ray.exceptions.GetTimeoutError):
                return self._ray.get(ref, timeout=POLL_SECONDS)
            seconds = time.monotonic() - since
            if ping is None and seconds > ping_seconds:
                ping, since = self._ping(), time.monotonic()
            elif ping is not None and self._ray.wait([ping], timeout=0)[0]:
                ping, since = None, time.monotonic()
            elif ping is not None and seconds > self._patience_seconds:
                raise TimeoutError(f"it has not answered for {self._patience_seconds:g} s")
