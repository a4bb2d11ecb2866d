"""TensorBoard's files, written without TensorFlow. Their horizontal axis is agent steps.

An event is a record: its length, a checksum of that, its bytes, a checksum of these. TensorBoard
stops at an incomplete record; an Appender completes it once a full disk has room again.
"""

import os
import pathlib
import socket
import struct
import time
from collections.abc import Mapping

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from tensorboard.plugins.histogram.summary_v2 import histogram_pb
from tensorboard.plugins.hparams.summary_v2 import hparams_pb

from a3c.machine.appending import Appender


class Events:
    """What TensorBoard shows of a run folder: one file for each start of the run.

    With `n_steps_resumed_at`, TensorBoard drops what earlier files have beyond so many steps.
    """

    def __init__(self, folder: pathlib.Path, n_steps_resumed_at: int | None = None) -> None:
        now = time.time()
        heads = [Event(wall_time=now, file_version="brain.Event:2")]
        if n_steps_resumed_at is not None:
            # TensorBoard drops this step and all after it, but only at the second start that it
            # sees: it takes the first for the start of the run, for which we write none.
            start = SessionLog(status=SessionLog.START)
            heads += [Event(step=n_steps_resumed_at + 1, session_log=start)] * 2
        name = f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{os.getpid()}"
        self.file = Appender(folder / name)
        self.file.write(b"".join(map(_record, heads)))

    def scalars(self, n_steps: int, scalars: Mapping[str, float]) -> None:
        # A score that is too large for float32 becomes infinite.
        with np.errstate(over="ignore"):
            values = [
                Summary.Value(tag=name, simple_value=float(np.float32(value)))
                for name, value in scalars.items()
            ]
        self._write(n_steps, Summary(value=values))

    def histograms(self, n_steps: int, arrays: Mapping[str, np.ndarray]) -> None:
        for name, array in arrays.items():
            self._write(n_steps, histogram_pb(name, array))

    def settings(self, values: Mapping[str, bool | int | float | str]) -> None:
        """What the tab of hyperparameters shows beside the run's scalars."""
        self._write(0, hparams_pb(values))

    def close(self) -> None:
        """Write what still waits, if there is room, and close the file."""
        self.file.write()
        self.file.close()

    def _write(self, n_steps: int, summary: Summary) -> None:
        self.file.write(_record(Event(wall_time=time.time(), step=n_steps, summary=summary)))


def _record(event: Event) -> bytes:
    data = event.SerializeToString()
    parts = struct.pack("<Q", len(data)), data
    return b"".join(part + struct.pack("<I", masked_crc32c(part)) for part in parts)
