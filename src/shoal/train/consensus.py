"""How far the workers' models are apart, and the average of all at the end.

Consensus distance is the root mean square distance of the workers' parameters from their mean
(glossary), reported beside the loss because it measures the disagreement that averaging leaves.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

import torch

from shoal.carriers import HOST
from shoal.train.flat_parameters import bytes_of
from shoal.workloads import has_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from shoal.comm import Communicator
    from shoal.membership import View
    from shoal.train.agreement import Agreement
    from shoal.train.flat_parameters import FlatParameters

_ROUNDING: Final = 1e-7


def average_model(flat: FlatParameters, communicator: Communicator, agreement: Agreement) -> float:
    """Replace every worker's model by the mean of all; return the consensus distance before.

    Collective. A worker that is lost meanwhile is left out, and all others end with one model.
    Parameters that no worker trains are averaged, too, where they have come to differ: those of a
    network that follows another one as its moving average, for example.
    """
    tensors, means, distance = agreement.carry_out(lambda view: _mean(flat, communicator, view))
    with torch.no_grad():
        for tensor, mean in zip(tensors, means, strict=True):
            tensor.copy_(mean)
    values = torch.cat([mean.flatten().double() for mean in means])
    length = float(values[values.isfinite()].norm())
    # Equal models differ from their own mean by the rounding of its sum: that is not distance.
    return 0.0 if distance < _ROUNDING * length else distance


@torch.no_grad()
def _mean(
    flat: FlatParameters, communicator: Communicator, view: View
) -> tuple[list[Tensor], list[Tensor], float]:
    """Return the tensors that may differ, their means over the members, and the distance."""
    tensors = [*flat.buffers, *_differing(flat.frozen, communicator, view)]
    means, squared = [], torch.zeros(1, dtype=torch.float64, device=HOST)
    for tensor in tensors:
        mean = tensor.clone(memory_format=torch.contiguous_format)
        communicator.all_reduce(mean.view(-1), exact_from=0).wait()
        mean.div_(len(view))
        apart = tensor.double() - mean.double()
        apart.masked_fill_(tensor == mean, 0)  # of two infinities there is no difference
        squared += apart.square().sum().cpu()
        means.append(mean)
    communicator.all_reduce(squared, exact_from=0).wait()
    return tensors, means, float((squared / len(view)).sqrt())


def _differing(frozen: Sequence[Tensor], communicator: Communicator, view: View) -> list[Tensor]:
    """Return those of `frozen` that have a mean and differ among the members."""
    tensors = [p for p in frozen if has_mean(p) and p.layout == torch.strided and p.numel()]
    if not tensors:
        return []
    checksums = torch.zeros((len(view), len(tensors)), dtype=torch.int64, device=HOST)
    own = [zlib.crc32(bytes_of(each).numpy().data) for each in tensors]
    checksums[view.place_of(communicator.rank)] = torch.tensor(own, device=HOST)
    communicator.all_reduce(checksums.view(-1), exact_from=0).wait()
    differs = (checksums != checksums[0]).any(dim=0)
    return [each for each, is_odd in zip(tensors, differs.tolist(), strict=True) if is_odd]
