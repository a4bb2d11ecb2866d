"""Saving and restoring all state of one moment, so that a reader sees a whole one or none.

Reading runs no code: tensors are plain arrays (see bundle.py), the rest is JSON (see
checkpoint_files.py).
"""

import contextlib
import pathlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from a3c.contract import Position
from a3c.machine.appending import in_words
from a3c.store import checkpoint_files
from a3c.store.checkpoint_files import Info, Subject, UnusableCheckpoint

if TYPE_CHECKING:
    import tensorflow as tf

    from a3c.agent.shared import Counts, SharedState


class CannotSave(Exception):
    """A checkpoint could not be written, and why, in one line; those there are as they were."""


class Checkpointer:
    """Saves a run's shared state under its gate, and keeps the newest few, or all (None)."""

    def __init__(
        self,
        folder: pathlib.Path,
        shared: "SharedState",
        subject: Subject,
        params: Mapping[str, Any],
        n_kept: int | None,
        n_steps_saved: int | None = None,
        is_taken_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """`n_steps_saved`: the steps of the checkpoint that the state was restored from, if that
        is in the same folder. `is_taken_over`: has another run its folder there?
        """
        import tensorflow as tf

        self._folder, self._shared, self._subject, self._params = folder, shared, subject, params
        with contextlib.suppress(OSError):  # each save tells better
            folder.mkdir(parents=True, exist_ok=True)
        # The state of one moment is copied into variables of our own, so that the workers wait for
        # the copy alone.
        self._copies = {
            "weights": {name: tf.Variable(v) for name, v in shared.weights.items()},
            "mean_squares": {name: tf.Variable(v) for name, v in shared.mean_squares.items()},
        }
        # No CheckpointManager: it deletes old tensors before our JSON of the new ones is there.
        self._checkpoint = tf.train.Checkpoint(**self._copies)
        self._n_kept = n_kept
        self._n_steps_saved = n_steps_saved
        self._is_taken_over = is_taken_over

    @property
    def has_saved(self) -> bool:
        """Whether the folder has a checkpoint of this run."""
        return self._n_steps_saved is not None

    def save(self, read_position: Callable[[], Position] | None = None) -> pathlib.Path:
        """Write one checkpoint named by its steps; returns its prefix. CannotSave if that fails.

        `read_position` is called while the gate is shut.
        """
        import tensorflow as tf

        with self._shared.gate.shut():
            counts = self._shared.counters.read()
            read = read_position() if read_position else None
            for part, copies in self._copies.items():
                for name, variable in getattr(self._shared, part).items():
                    copies[name].assign(variable)
        prefix = self._folder / f"ckpt-{counts.steps}"
        if self._is_taken_over():
            raise CannotSave(f"cannot save {prefix}: another run has its folder there")
        try:
            self._write(prefix, counts, read)
        except (OSError, tf.errors.OpError) as error:
            with contextlib.suppress(OSError):
                checkpoint_files.delete_unfinished(prefix)  # room for the next attempt
            raise CannotSave(f"cannot save {prefix}: {in_words(error)}") from error
        if self._n_kept is not None:
            with contextlib.suppress(OSError):  # the next save will
                checkpoint_files.delete_all_but(self._folder, self._n_kept)
        return prefix

    def _write(self, prefix: pathlib.Path, counts: "Counts", read: Position | None) -> None:
        # TensorFlow would make the folder, and nobody would learn that it was gone.
        self._folder.stat()
        # Tensors change with every update and only then. Written anew under the same name, they
        # would for a moment not be those that the JSON is of.
        if counts.steps != self._n_steps_saved:
            self._checkpoint.write(str(prefix))
        contains = list(self._copies)
        checkpoint_files.write_json(
            prefix, self._subject, self._params, counts._asdict(), contains, read
        )
        self._n_steps_saved = counts.steps


def save_weights(info: Info, weights: "Mapping[str, tf.Variable]", folder: pathlib.Path) -> None:
    """Write a checkpoint of a run once more without its statistics: all that playing needs."""
    import tensorflow as tf

    prefix = folder / info.prefix.name
    tf.train.Checkpoint(weights=dict(weights)).write(str(prefix))
    checkpoint_files.write_json(prefix, info.subject, info.params, info.counters, ["weights"], None)


def check_fits(info: Info, subject: Subject) -> None:
    """Raise, naming both values, unless the checkpoint was made for this subject."""
    for name, wanted in subject._asdict().items():
        saved = getattr(info.subject, name)
        if saved != wanted:
            raise UnusableCheckpoint(
                f"{info.prefix} was made with {name.replace('_', ' ')} {saved!r},"
                f" this run has {wanted!r}"
            )


def restore(info: Info, shared: "SharedState") -> None:
    """Load weights, and statistics where there are some. No worker may run yet."""
    parts = {"weights": shared.weights}
    if info.has_statistics:
        parts["mean_squares"] = shared.mean_squares
    _restore(info, parts)


def restore_weights(info: Info, weights: "dict[str, tf.Variable]") -> None:
    """Load the weights alone, which is all that playing needs."""
    _restore(info, {"weights": weights})


def _restore(info: Info, parts: "dict[str, dict[str, tf.Variable]]") -> None:
    from a3c.store import bundle

    variables = {
        f"{part}/{name}/.ATTRIBUTES/VARIABLE_VALUE": variable
        for part, of_part in parts.items()
        for name, variable in of_part.items()
    }
    try:
        shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
        arrays = bundle.read(info.prefix, shapes)
    except (OSError, ValueError) as error:
        raise UnusableCheckpoint(f"cannot restore {info.prefix}: {error}") from error
    for name, variable in variables.items():
        variable.assign(arrays[name])
