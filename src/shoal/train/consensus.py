"""How far the workers' models are apart, and the average of all at the end.

Consensus distance is the root mean square distance of the workers' parameters from their mean
(glossary), reported beside the loss because it says what the averaging leaves undone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from shoal.carriers import HOST

if TYPE_CHECKING:
    from torch import Tensor

    from shoal.comm import Communicator
    from shoal.membership import View
    from shoal.train.agreement import Agreement
    from shoal.train.flat_parameters import FlatParameters

_ROUNDING: Final = 1e-7


def average_model(flat: FlatParameters, communicator: Communicator, agreement: Agreement) -> float:
    """Replace every worker's model by the mean of all; return the consensus distance before.

    Collective. A worker that is lost meanwhile is left out, and all others end with one model.
    """
    means, distance = agreement.carry_out(lambda view: _mean(flat, communicator, view))
    with torch.no_grad():
        for buffer, mean in zip(flat.buffers, means, strict=True):
            buffer.copy_(mean)
    values = torch.cat([mean.flatten().double() for mean in means])
    length = float(values[values.isfinite()].norm())
    # Equal models differ from their own mean by the rounding of its sum: that is not distance.
    return 0.0 if distance < _ROUNDING * length else distance


@torch.no_grad()
def _mean(
    flat: FlatParameters, communicator: Communicator, view: View
) -> tuple[list[Tensor], float]:
    """Return the mean of the members' models, and their distance from it."""
    means, squared = [], torch.zeros(1, dtype=torch.float64, device=HOST)
    for buffer in flat.buffers:
        mean = buffer.clone()
        communicator.all_reduce(mean, exact_from=0).wait()
        mean.div_(len(view))
        apart = buffer.double() - mean.double()
        apart.masked_fill_(buffer == mean, 0)  # of two infinities there is no difference
        squared += apart.square().sum().cpu()
        means.append(mean)
    communicator.all_reduce(squared, exact_from=0).wait()
    return means, float((squared / len(view)).sqrt())
