"""MXNet Gluon over Shoal's transport: a trainer that averages gradients between processes.

    from shoal.adapters.mxnet import DistributedTrainer, broadcast_parameters  # before mxnet

    communicator = shoal.connect()
    broadcast_parameters(net.collect_params(), communicator)
    trainer = DistributedTrainer(
        net.collect_params(), "sgd", {"learning_rate": 0.1}, communicator=communicator
    )

MXNet ended at 1.9.1, which wants names of NumPy that are gone: this module brings them back, so it
is imported before `mxnet`. It needs NumPy 1.26.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.adapters.arrays.array_means import means_for
from shoal.errors import UsageError

vars(np).setdefault("bool", np.bool_)

import mxnet as mx  # noqa: E402 - looks that name up

if TYPE_CHECKING:
    from shoal.session import NumpyCommunicator


class DistributedTrainer(mx.gluon.Trainer):
    """A `gluon.Trainer` whose updates are by the means of all ranks' gradients.

    `batch_size` of its `step` stays what one rank computes. One device for each process. `options`
    are those of `shoal.adapters.arrays.array_means.ArrayMeans`: `loss_bound`, `holes`, `wire`.
    Raises `UsageError` for sparse gradients, and for other options, a `kvstore` among them.
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: dict[str, Any] | None = None,
        *,
        communicator: NumpyCommunicator,
        **options: Any,
    ) -> None:
        self._means = means_for("DistributedTrainer", communicator, options)
        super().__init__(params, optimizer, optimizer_params, kvstore=None)

    def _allreduce_grads(self) -> None:
        """Average; Gluon calls it in `step`, and in `allreduce_grads`."""
        gradients = []
        for parameter in self._params:
            if parameter.grad_req == "null":
                continue
            held = parameter.list_grad()
            if len(held) > 1 or held[0].stype != "default":
                message = (
                    f"{parameter.name} has sparse gradients or several devices; give every device"
                    " a process of its own, and parameters dense gradients."
                )
                raise UsageError(message)
            gradients += held
        means = self._means.gradients([each.asnumpy() for each in gradients])
        for gradient, mean in zip(gradients, means, strict=True):
            gradient[:] = mx.nd.array(mean, dtype=gradient.dtype)


def broadcast_parameters(params: Any, communicator: NumpyCommunicator, source: int = 0) -> None:
    """Overwrite parameters, which `initialize` has filled, with those of rank `source`.

    They are a net's `collect_params()`, or a list of parameters, as a trainer takes. Raises
    `UsageError` for others, and for one whose shape is not known before the first batch: pass one
    through.
    """
    if not isinstance(params, list | tuple | dict | mx.gluon.ParameterDict):
        message = f"Parameters are a net's collect_params() or a list, not {type(params).__name__}."
        raise UsageError(message)
    listed = params if isinstance(params, list | tuple) else params.values()
    for parameter in listed:
        try:
            value = parameter.data().asnumpy()
        except mx.gluon.parameter.DeferredInitializationError as error:
            message = f"{parameter.name} has no shape yet: pass a batch through the model first."
            raise UsageError(message) from error
        parameter.set_data(mx.nd.array(communicator.broadcast(value, source), dtype=value.dtype))
