"""Tensors of a GPU and their copies in host memory, which is what the transport moves.

Owns the pinned memory, the streams that copies run on and their place among what else the GPU does:
a copy to the host takes what the stream that is current has computed by then, and neither copy
holds that stream up. Which thread waits for a copy is the caller's to choose. A tensor that lies in
host memory has a plain copy, so that all of this runs where there is no GPU.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import torch
from torch import Tensor

from shoal.errors import UsageError

HOST: Final = torch.device("cpu")
"""The device on which tensors have to be made that the transport is to move: torch's default may be
a GPU."""


def needs_host_copy(tensor: Tensor) -> bool:
    """Return whether the transport can only move a copy of `tensor`."""
    return tensor.device.type != "cpu"


class HostCopy:
    """A contiguous copy in host memory, `values`, of a tensor on a GPU.

    Filled with the tensor's values, unless all of it is to be overwritten anyway. Waits are for the
    GPU alone, never for a peer.
    """

    def __init__(self, tensor: Tensor, *, filled: bool = True) -> None:
        """Start copying; `tensor` must not be written to before `await_values` has returned.

        Raises `UsageError` for a tensor neither of the host nor of a CUDA GPU.
        """
        if tensor.device.type not in {"cpu", "cuda"}:
            message = (
                f"The transport moves tensors of the host and of CUDA GPUs, not of"
                f" {tensor.device.type!r}; copy it to the host first."
            )
            raise UsageError(message)
        self._tensor = tensor
        self._event: torch.cuda.Event | None = None
        if tensor.is_sparse:  # its values have no one place that a copy could go back to
            self.values = tensor.detach().to(HOST, copy=True)
            return
        with torch.inference_mode(False):  # else other threads could not write to it
            self.values = torch.empty(
                tensor.shape, dtype=tensor.dtype, device=HOST, pin_memory=tensor.is_cuda
            )
        if not tensor.is_cuda:
            self.values.copy_(tensor.detach())
            return
        present = torch.cuda.current_stream(tensor.device)
        # Blocking: a thread that waits sleeps, as the processor has a network to serve.
        self._event = torch.cuda.Event(blocking=True)
        if filled:
            stream = _stream(tensor.device, "to the host")
            stream.wait_stream(present)
            with torch.cuda.stream(stream):
                self.values.copy_(tensor.detach(), non_blocking=True)
            self._event.record(stream)
        else:
            self._event.record(present)

    def await_values(self) -> None:
        """Wait until the values are there, and all that the GPU had to do with the tensor is done.

        Kernels that were queued before the copy are what takes long.
        """
        if self._event is not None:
            self._event.synchronize()

    def bring_back(self) -> None:
        """Give the tensor the values; wait until it has them."""
        if self._event is None:
            with torch.no_grad(), torch.inference_mode(self._tensor.is_inference()):
                self._tensor.copy_(self.values)
            return
        self._event.synchronize()  # nothing that reads the tensor's old values is left
        stream = _stream(self._tensor.device, "from the host")
        with torch.cuda.stream(stream), torch.inference_mode(self._tensor.is_inference()):
            self._tensor.detach().copy_(self.values, non_blocking=True)
        self._event.record(stream)
        self._event.synchronize()


@cache
def _stream(device: torch.device, _direction: str) -> torch.cuda.Stream:
    """Return the stream for copies in one direction: neither waits for one in the other."""
    return torch.cuda.Stream(device)
