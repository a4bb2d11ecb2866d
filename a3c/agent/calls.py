"""How functions of TensorFlow are traced and called, and what they are given.

traced    makes a function of TensorFlow, once
bound     calls it without TensorFlow's handling of arguments
packed    makes one block of many tensors, since a call takes time for each of its arguments

FirstAlone    has threads wait until the first call has ended
"""

import functools
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf


def traced(function: Any, *arguments: object, **options: bool) -> Any:
    # Without the lambda, a concrete function would require arguments that have a default.
    # No loop of ours is over a tensor, and looking for some would make tracing a third slower.
    made = tf.function(lambda *given: function(*given), autograph=False, **options)
    return made.get_concrete_function(*arguments)


def bound(function: Any, weights: Any = None) -> Callable[..., Any]:
    """The traced function; if weights are given, with these variables as its first argument.

    TensorFlow's own way from a function to its execution takes longer than acting on one state, and
    holds the GIL. This goes there directly, by private names, and checks nothing: arguments must have
    the shapes and types that were traced. If TensorFlow lacks one of the names, we call the function.
    """
    try:
        from tensorflow.python.eager.execute import execute

        inference = function.inference_fn
        context, name = inference._bound_context, inference.name.decode()
        attributes = (*itertools.chain(*context.function_call_options.as_attrs().items()),)
        device, tensor = context.device_name, tf.constant(0.0).__class__
    except (AttributeError, ImportError):
        return function if weights is None else functools.partial(function, weights)
    handles = [] if weights is None else [x.handle for x in tf.nest.flatten(weights)]
    captures = function.captured_inputs
    structure = function.structured_outputs
    n_outputs = len(tf.nest.flatten(structure))
    places = tf.nest.pack_sequence_as(structure, range(n_outputs))

    def call(*arguments: object) -> Any:
        given = tf.nest.flatten(arguments)
        # As `tf.constant` does it, which takes twice as long.
        tensors = [x if isinstance(x, tf.Tensor) else tensor(x, device, None) for x in given]
        outputs = execute(name, n_outputs, [*handles, *tensors, *captures], attributes, context)
        return _picked(outputs, places)

    return call


class FirstAlone:
    """Makes calls, and none begins before the first has ended.

    TensorFlow prepares a function in its first call. If sixteen workers made this call together, each
    would prepare it, which takes three seconds instead of one.
    """

    def __init__(self) -> None:
        self._first = threading.Lock()
        self._is_prepared = False

    def __call__(self, function: Callable[..., Any], *arguments: object) -> Any:
        if self._is_prepared:
            return function(*arguments)
        with self._first:
            result = function(*arguments)
            self._is_prepared = True
            return result


def _picked(outputs: Sequence[Any], places: Any) -> Any:
    """What `tf.nest.pack_sequence_as` does, but that takes ten times as long."""
    if isinstance(places, int):
        return outputs[places]
    if isinstance(places, Mapping):
        return {name: _picked(outputs, place) for name, place in places.items()}
    return tuple(_picked(outputs, place) for place in places)


def packed(tensors: Any) -> tf.Tensor:
    """All tensors of a structure, one behind the other; those of a dict are sorted by name."""
    return tf.concat([tf.reshape(x, (-1,)) for x in tf.nest.flatten(tensors)], axis=0)


def unpacked(block: tf.Tensor, specs: Any) -> Any:
    """The structure of which `packed` made the block; `specs` has its shapes."""
    shapes = [spec.shape for spec in tf.nest.flatten(specs)]
    parts = tf.split(block, [shape.num_elements() for shape in shapes])
    tensors = [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]
    return tf.nest.pack_sequence_as(specs, tensors)
