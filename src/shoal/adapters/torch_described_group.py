"""What torch asks a process group about itself: its names, and what its backend supports.

A plain process group of torch wraps a backend for each kind of device, and keeps its names there;
one that is written in Python wraps none, and must answer for itself.
"""

from __future__ import annotations

import torch
import torch.distributed as dist


class DescribedGroup(dist.ProcessGroup):
    """A process group of `size` ranks, this one at place `me`, of the backend "shoal"."""

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False
    supports_reconfigure = False

    def __init__(self, me: int, size: int) -> None:
        super().__init__(me, size)  # type: ignore[call-arg]  # Python's overload
        self._name = self._description = ""

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return the backend's name."""
        return "shoal"

    def name(self) -> str:
        """Return the backend's name."""
        return "shoal"

    def _get_backend_name(self) -> str:
        return "shoal"

    def _get_backend(self, _device: torch.device) -> DescribedGroup:
        """Return what carries out this group's operations on a device, of any kind: itself.

        Torch asks for it where `init_process_group` is told a `device_id`, and what it supports.
        """
        return self

    @property
    def _device_types(self) -> list[torch.device]:
        """The kinds of devices whose tensors it takes; what is pickled goes by the first."""
        kinds = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
        return [torch.device(kind) for kind in kinds]

    @property
    def group_name(self) -> str:
        """The name that torch has given the group."""
        return self._name

    @property
    def group_desc(self) -> str:
        """The description that its creator has given the group."""
        return self._description

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def getGroupName(self) -> str:  # noqa: N802 - torch's name
        """Return the name that torch has given the group."""
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802 - torch's name
        """Take the name that torch gives the group."""
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802 - torch's name
        """Return the description that its creator has given the group."""
        return self._description
