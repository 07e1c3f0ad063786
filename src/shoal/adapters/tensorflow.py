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

from shoal.adapters.arrays.array_means import means_for
from shoal.errors import UsageError

if TYPE_CHECKING:
    from shoal.adapters.arrays.array_means import ArrayMeans
    from shoal.session import NumpyCommunicator

Optimizer = TypeVar("Optimizer", bound=keras.optimizers.Optimizer)


class GradientAverage:
    """Averages gradients of one model over all ranks, eagerly or inside a `tf.function`.

    Called with what `GradientTape.gradient` returns for the model's trainable variables, the layers
    near the input first. A variable without a gradient keeps having none, so all ranks must have
    the same ones; sparse gradients become dense. `options` are those of
    `shoal.adapters.arrays.array_means.ArrayMeans`: `loss_bound`, `holes`, `wire`.
    """

    def __init__(self, communicator: NumpyCommunicator, **options: Any) -> None:
        self._means = means_for("GradientAverage", communicator, options)

    def __call__(self, gradients: Sequence[Any]) -> list[Any]:
        """Return the means, in the gradients' types."""
        return _averaged(gradients, self._means)


def distributed_optimizer(
    optimizer: Optimizer, communicator: NumpyCommunicator, **options: Any
) -> Optimizer:
    """Let this Keras optimizer apply means over all ranks from now on, and return it.

    What it has counted and gathered so far, a loaded model's optimizer say, stays. Its class keeps
    its name, so that a model saved with it is loaded with the plain one. `options` as for
    `GradientAverage`. Raises `UsageError` unless it is an optimizer, and Keras runs on TensorFlow;
    so does a `LossScaleOptimizer` that is put around it.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        message = (
            "distributed_optimizer takes a Keras optimizer, such as keras.optimizers.SGD(0.1), not"
            f" {optimizer!r}."
        )
        raise UsageError(message)
    if keras.backend.backend() != "tensorflow":
        message = (
            f"This Keras runs on {keras.backend.backend()}; set KERAS_BACKEND=tensorflow, or use"
            " shoal.DistributedOptimizer (PyTorch) or shoal.adapters.jax in a loop of your own."
        )
        raise UsageError(message)
    means = means_for("distributed_optimizer", communicator, options)
    plain: Any = getattr(optimizer, _PLAIN, type(optimizer))  # should it average already

    def apply(self: Any, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        return plain.apply(self, _averaged(list(grads), means), trainable_variables)

    def set_attribute(self: Any, name: str, value: Any) -> None:
        # which is what Keras does to an optimizer that it scales the loss for
        if name == "loss_scale_factor" and value is None and hasattr(self, name):
            raise UsageError(_SCALED_OUTSIDE)
        plain.__setattr__(self, name, value)

    members = {
        "apply": apply,
        "__setattr__": set_attribute,
        "__module__": plain.__module__,
        "__doc__": plain.__doc__,
        _PLAIN: plain,
    }
    optimizer.__class__ = type(plain.__name__, (plain,), members)
    return optimizer


_PLAIN = "_shoal_plain_class"

_SCALED_OUTSIDE = (
    "A LossScaleOptimizer, which Keras puts around optimizers of mixed_float16 models, skips steps"
    " by what one rank finds, so it must be inside: give compile"
    " distributed_optimizer(keras.optimizers.LossScaleOptimizer(...), ...)."
)


def _averaged(gradients: Sequence[Any], means: ArrayMeans) -> list[Any]:
    """Return the means of gradients, dense and in their types, or None where there are none."""

    def average(*arrays: Any) -> list[Any]:
        return means.gradients([np.asarray(each) for each in arrays])

    dense = [tf.convert_to_tensor(each) for each in gradients if each is not None]
    if not dense:
        return list(gradients)
    # eagerly, TensorFlow gives the only one of a list without the list
    found = tf.nest.flatten(tf.numpy_function(average, dense, [tf.float32] * len(dense)))
    for mean, gradient in zip(found, dense, strict=True):
        mean.set_shape(gradient.shape)  # which a Python function loses
    typed = iter([tf.cast(mean, each.dtype) for mean, each in zip(found, dense, strict=True)])
    return [None if each is None else next(typed) for each in gradients]


class BroadcastVariables(keras.callbacks.Callback):
    """Lets all ranks start from the weights, and the optimizer's state, that rank `source` has."""

    def __init__(self, communicator: NumpyCommunicator, source: int = 0) -> None:
        super().__init__()
        self._communicator, self._source = communicator, source

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Overwrite the model's and its optimizer's variables.

        Raises `UsageError` if the model is compiled with XLA, or has no variables yet.
        """
        if self.model.jit_compile:
            message = (
                "XLA cannot average gradients between processes:"
                " model.compile(..., jit_compile=False)."
            )
            raise UsageError(message)
        if not self.model.built:
            message = (
                f"The model {self.model.name!r} has no weights yet: begin it with keras.Input, or"
                " pass a batch through it first."
            )
            raise UsageError(message)
        if not self.model.optimizer.built:
            self.model.optimizer.build(self.model.trainable_variables)
        variables = [*self.model.variables, *self.model.optimizer.variables]
        broadcast_variables(variables, self._communicator, self._source)


class AverageLogs(keras.callbacks.Callback):
    """Shows the callbacks behind it in `fit`'s list what the logs of all ranks' epochs come to.

    The means, each rank counting the same: so those that act on logs, such as `EarlyStopping`, do
    the same on all ranks. With `every_batch` also each batch's, for those that act on these. All
    ranks log the same names.
    """

    def __init__(self, communicator: NumpyCommunicator, *, every_batch: bool = False) -> None:
        super().__init__()
        self._communicator, self._every_batch = communicator, every_batch
        # so that Keras calls nobody in a thread of its own where this one needs none
        self.async_safe = not every_batch

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Average a batch's logs, in place, if that was asked for."""
        if self._every_batch:
            self._average(logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Average an epoch's logs, in place."""
        self._average(logs)

    def _average(self, logs: dict[str, Any] | None) -> None:
        names = sorted(name for name, value in (logs or {}).items() if isinstance(value, float))
        if logs and names:
            values = np.array([logs[name] for name in names])
            means = self._communicator.all_reduce(values, average=True)
            logs.update(zip(names, means.tolist(), strict=True))


def broadcast_variables(
    variables: Sequence[Any], communicator: NumpyCommunicator, source: int = 0
) -> None:
    """Overwrite variables, of Keras or of TensorFlow, with those of rank `source`."""
    for each in variables:
        value = np.array(each.numpy())
        if value.dtype.kind not in "OSU":  # texts; NumPy has no kind for bfloat16
            each.assign(communicator.broadcast(value, source))
