"""TensorFlow and Keras over Shoal's transport: gradients averaged in the optimizer, or by hand.

    communicator = shoal.connect()
    optimizer = distributed_optimizer(keras.optimizers.SGD(0.1), communicator, loss_bound=0.1)
    model.compile(optimizer, loss, jit_compile=False)
    model.fit(my_shard, callbacks=[BroadcastVariables(communicator)])

In a `tf.function`, `fit`'s among them, TensorFlow takes the means as they are
(`tf.numpy_function`); eagerly it copies. XLA cannot call Python, so models are compiled without it.
Nothing is sent before the whole backward pass is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import keras
import numpy as np
import tensorflow as tf

from shoal.errors import UsageError
from shoal.runtime.array_means import ArrayMeans

if TYPE_CHECKING:
    from shoal.runtime.numpy_communicator import NumpyCommunicator

Optimizer = TypeVar("Optimizer", bound=keras.optimizers.Optimizer)


class GradientAverage:
    """Averages gradients of one model over all ranks, eagerly or inside a `tf.function`.

    Called with what `GradientTape.gradient` returns for the model's trainable variables, the layers
    near the input first. A variable without a gradient keeps having none, so all ranks must have
    the same ones; sparse gradients become dense. `options` are those of
    `shoal.runtime.array_means.ArrayMeans`: `loss_bound`, `holes`, `wire`.
    """

    def __init__(self, communicator: NumpyCommunicator, **options: Any) -> None:
        self._means = ArrayMeans(communicator, **options)

    def __call__(self, gradients: Sequence[Any]) -> list[Any]:
        """Return the means, in the gradients' types."""
        dense = [tf.convert_to_tensor(each) for each in gradients if each is not None]
        if not dense:
            return list(gradients)
        # eagerly, TensorFlow gives the only one of a list without the list
        means = tf.nest.flatten(tf.numpy_function(self._average, dense, [tf.float32] * len(dense)))
        for mean, gradient in zip(means, dense, strict=True):
            mean.set_shape(gradient.shape)  # which a Python function loses
        found = iter([tf.cast(m, g.dtype) for m, g in zip(means, dense, strict=True)])
        return [None if each is None else next(found) for each in gradients]

    def _average(self, *gradients: Any) -> list[Any]:
        return self._means.gradients([np.asarray(each) for each in gradients])


def distributed_optimizer(
    optimizer: Optimizer, communicator: NumpyCommunicator, **options: Any
) -> Optimizer:
    """Return an optimizer like this Keras one that applies means over all ranks.

    Its class keeps its name, so that a model saved with it is loaded with the plain one. `options`
    as for `GradientAverage`. Raises `UsageError` unless Keras runs on TensorFlow.
    """
    if keras.backend.backend() != "tensorflow":
        message = (
            f"This Keras runs on {keras.backend.backend()}; set KERAS_BACKEND=tensorflow, or use"
            " shoal.DistributedOptimizer (PyTorch) or shoal.adapters.jax in a loop of your own."
        )
        raise UsageError(message)
    plain: Any = type(optimizer)
    average = GradientAverage(communicator, **options)

    def apply(self: Any, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        return plain.apply(self, average(list(grads)), trainable_variables)

    members = {"apply": apply, "__module__": plain.__module__, "__doc__": plain.__doc__}
    made: Any = type(plain.__name__, (plain,), members)
    distributed: Optimizer = made.from_config(optimizer.get_config())
    return distributed


class BroadcastVariables(keras.callbacks.Callback):
    """Lets all ranks start from the weights, and the optimizer's state, that rank `source` has."""

    def __init__(self, communicator: NumpyCommunicator, source: int = 0) -> None:
        super().__init__()
        self._communicator, self._source = communicator, source

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Overwrite the model's and its optimizer's variables.

        Raises `UsageError` if the model is compiled with XLA.
        """
        if self.model.jit_compile:
            message = (
                "XLA cannot average gradients between processes:"
                " model.compile(..., jit_compile=False)."
            )
            raise UsageError(message)
        if not self.model.optimizer.built:
            self.model.optimizer.build(self.model.trainable_variables)
        variables = [*self.model.variables, *self.model.optimizer.variables]
        broadcast_variables(variables, self._communicator, self._source)


def broadcast_variables(
    variables: Sequence[Any], communicator: NumpyCommunicator, source: int = 0
) -> None:
    """Overwrite variables, of Keras or of TensorFlow, with those of rank `source`."""
    for each in variables:
        value = np.array(each.numpy())
        if value.dtype.kind in "biuf":
            each.assign(communicator.broadcast(value, source))
