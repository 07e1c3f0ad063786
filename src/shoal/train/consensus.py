"""How far the workers' models are apart, and their average.

Consensus distance is the root mean square distance of the workers' parameters from their mean
(glossary), reported beside the loss because it says what the averaging leaves undone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from shoal.carriers import HOST

if TYPE_CHECKING:
    from shoal.comm import Communicator
    from shoal.train.flat_parameters import FlatParameters

_ROUNDING = 1e-7


def average_model(flat: FlatParameters, communicator: Communicator) -> float:
    """Replace every worker's model by the mean of all; return the consensus distance before.

    Collective: every worker calls it.
    """
    squared = torch.zeros(1, dtype=torch.float64, device=HOST)
    with torch.no_grad():
        for buffer in flat.buffers:
            mean = buffer.clone()
            communicator.all_reduce(mean, exact_from=0).wait()
            mean.div_(communicator.world_size)
            apart = buffer.double() - mean.double()
            apart.masked_fill_(buffer == mean, 0)  # of two infinities there is no difference
            squared += apart.square().sum().cpu()
            buffer.copy_(mean)
    communicator.all_reduce(squared, exact_from=0).wait()
    distance = float((squared / communicator.world_size).sqrt())
    values = torch.cat([buffer.flatten().double() for buffer in flat.buffers])
    length = float(values[values.isfinite()].norm())
    # Equal models differ from their own mean by the rounding of its sum: that is not distance.
    return 0.0 if distance < _ROUNDING * length else distance
