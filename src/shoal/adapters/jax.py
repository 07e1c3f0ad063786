"""JAX over Shoal's transport: gradients averaged between two compiled halves of a step.

    communicator = shoal.connect()
    average = Average(communicator, loss_bound=0.1)
    parameters = broadcast(parameters, communicator)
    for batch in my_shard:
        loss, gradients = gradients_of(parameters, batch)       # compiled
        parameters = updated(parameters, average.gradients(gradients))    # compiled

That is the cheaper form: callbacks out of one compiled step copy everything both ways. On a CPU
gradients are read where they are, and the means handed over without a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from shoal.adapters.arrays.array_means import means_for
from shoal.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shoal.session import NumpyCommunicator


class Average:
    """Averages trees of gradients or parameters, of one model, outside of `jax.jit`.

    Means are in the types of the trees, and where those are, whatever the sharding; those of NumPy
    arrays and numbers are on the default device. A tree's leaves count as layers in the order of
    `jax.tree.leaves`. `options` are those of `shoal.adapters.arrays.array_means.ArrayMeans`:
    `loss_bound`, `holes`, `wire`. Raises `UsageError` within a function that JAX transforms.
    """

    def __init__(self, communicator: NumpyCommunicator, **options: Any) -> None:
        self._means = means_for("Average", communicator, options)

    def gradients(self, gradients: Any) -> Any:
        """Return the tree of means over all ranks."""
        leaves, structure = jax.tree.flatten(gradients)
        means = self._means.gradients(_values(leaves))
        return jax.tree.unflatten(structure, map(_like, means, leaves))

    def parameters(
        self, parameters: Any, group: Sequence[int] | None = None, **options: Any
    ) -> Any:
        """Return the tree of means over the ranks of `group`; see `ArrayMeans.parameters`."""
        leaves, structure = jax.tree.flatten(parameters)
        means = self._means.parameters(_values(leaves), group, **options)
        return jax.tree.unflatten(structure, map(_like, means, leaves))


def broadcast(tree: Any, communicator: NumpyCommunicator, source: int = 0) -> Any:
    """Return the tree of arrays that rank `source` has, such as its parameters; same shapes.

    Raises `UsageError` within a function that JAX transforms.
    """

    def told(leaf: Any) -> Any:
        value = communicator.broadcast(np.array(*_values([leaf])), source)
        return jax.device_put(value, _place(leaf))

    return jax.tree.map(told, tree)


def _values(leaves: Sequence[Any]) -> list[NDArray[Any]]:
    """Return leaves as arrays; on a CPU they are not copied."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        raise UsageError(
            "Within jax.jit, grad or vmap there are no values to send: compile the step in two"
            " halves, and average between them."
        )
    return [np.asarray(leaf) for leaf in leaves]


def _like(mean: NDArray[np.float32], leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array):
        return jax.device_put(mean.astype(np.asarray(leaf).dtype))
    if all(device.platform == "cpu" for device in leaf.devices()):
        taken = jax.dlpack.from_dlpack(mean)  # onto the first CPU device; asarray would copy
        return jax.device_put(taken, leaf.sharding).astype(leaf.dtype)
    return jax.device_put(mean, leaf.sharding).astype(leaf.dtype)


def _place(leaf: Any) -> Any:
    return leaf.sharding if isinstance(leaf, jax.Array) else None
