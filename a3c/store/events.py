"""TensorBoard's files. Their horizontal axis is agent steps.

Events are on their way to the disk at once: TensorFlow flushes a writer that ceases to be the
default. Events that cannot be written, because the disk is full, are lost: TensorBoard has a gap
there, and progress.csv has the rows. Afterwards they go to a new file, since the old one may end in
half an event, behind which nothing is read.
"""

import contextlib
import pathlib
import time
from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf

from a3c.machine.appending import in_words


class Events:
    """What TensorBoard shows of a run folder. Nothing here raises for want of a disk."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._writer: tf.summary.SummaryWriter | None = None
        self.error: str | None = None  # why events are being lost

    def scalars(self, n_steps: int, scalars: Mapping[str, float], *, anew: bool = False) -> None:
        """Write some; once a file broke they are lost, until `anew` replaces it."""
        if self.error and not anew:
            return
        with self._lost_without_a_disk():
            if self._writer is None:
                self._writer = tf.summary.create_file_writer(str(self._folder))
            # An environment may pay more than 32 bits hold, which is then infinite there.
            with self._writer.as_default(step=n_steps), np.errstate(over="ignore"):
                for name, value in scalars.items():
                    tf.summary.scalar(name, np.float32(value))
            self.error = None

    def histograms(self, n_steps: int, arrays: Mapping[str, np.ndarray]) -> None:
        if self._writer is None:
            return
        with self._lost_without_a_disk(), self._writer.as_default(step=n_steps):
            for name, array in arrays.items():
                tf.summary.histogram(name, array)

    def start_session(self, n_steps: int) -> None:
        """Have TensorBoard drop what others wrote beyond so many steps.

        In a file of its own, whose name comes after those there and before the next one's.
        """
        start = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
        now = time.time()
        path = self._folder / f"events.out.tfevents.{int(now)}"
        with self._lost_without_a_disk(), tf.io.TFRecordWriter(str(path)) as writer:
            for event in (
                tf.compat.v1.Event(wall_time=now, file_version="brain.Event:2"),
                # It drops this step and what comes after; at the second start that it sees,
                # for it takes the first one for the run's own, which ours has none of.
                *[tf.compat.v1.Event(wall_time=now, step=n_steps + 1, session_log=start)] * 2,
            ):
                writer.write(event.SerializeToString())

    def close(self) -> None:
        with self._lost_without_a_disk():
            if self._writer is not None:
                self._writer.close()

    @contextlib.contextmanager
    def _lost_without_a_disk(self) -> Iterator[None]:
        """What cannot be written in here is lost."""
        try:
            yield
        except (tf.errors.OpError, OSError) as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._writer = None
        self.error = in_words(error)
        # Each attempt to go on makes a file.
        with contextlib.suppress(OSError):
            for path in self._folder.glob("events.out.tfevents.*"):
                if path.stat().st_size == 0:
                    path.unlink()
