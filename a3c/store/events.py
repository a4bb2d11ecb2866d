"""TensorBoard's files, written without TensorFlow. Their horizontal axis is agent steps.

An event is a record: its length, a checksum of that, the bytes, a checksum of these. Records go
through an Appender, so that on a full disk they wait and half of one is completed later: behind half
an event nothing is read.
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
from tensorboard.plugins.histogram import summary_v2

from a3c.machine.appending import Appender


class Events:
    """What TensorBoard shows of a run folder: one file for each time that the run was started."""

    def __init__(self, folder: pathlib.Path, n_steps_resumed_at: int | None = None) -> None:
        """`n_steps_resumed_at`: TensorBoard drops what earlier files have beyond so many steps."""
        now = time.time()
        heads = [Event(wall_time=now, file_version="brain.Event:2")]
        if n_steps_resumed_at is not None:
            # TensorBoard drops this step and what comes after; at the second start that it sees,
            # because it takes the first one for the run's own, which ours has none of.
            start = SessionLog(status=SessionLog.START)
            heads += [Event(wall_time=now, step=n_steps_resumed_at + 1, session_log=start)] * 2
        name = f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{os.getpid()}"
        self._file = Appender(folder / name)
        self._file.write(b"".join(map(_record, heads)))

    @property
    def error(self) -> str | None:
        """Why events wait, if they do."""
        return self._file.error

    def scalars(self, n_steps: int, scalars: Mapping[str, float]) -> None:
        # An environment may pay more than 32 bits hold, which is then infinite there.
        with np.errstate(over="ignore"):
            values = [
                Summary.Value(tag=name, simple_value=float(np.float32(value)))
                for name, value in scalars.items()
            ]
        self._write(n_steps, Summary(value=values))

    def histograms(self, n_steps: int, arrays: Mapping[str, np.ndarray]) -> None:
        for name, array in arrays.items():
            self._write(n_steps, summary_v2.histogram_pb(name, array))

    def close(self) -> None:
        """Write what still waits, if there is room, and close the file."""
        self._file.write()
        self._file.close()

    def _write(self, n_steps: int, summary: Summary) -> None:
        self._file.write(_record(Event(wall_time=time.time(), step=n_steps, summary=summary)))


def _record(event: Event) -> bytes:
    data = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    return b"".join(
        (
            *(length, struct.pack("<I", masked_crc32c(length))),
            *(data, struct.pack("<I", masked_crc32c(data))),
        )
    )
