"""What a library is to these benchmarks: whatever runs beside the workers, and a worker's part.

Knows no library and no process.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch
    from torch import nn

    from shoal_bench.peers.pooled import Seat


@dataclass(frozen=True, slots=True)
class Part:
    """A worker's part in a job that it has joined: what a training loop calls, and what it tells.

    What it tells is asked after each call of `update`.
    """

    model: Callable[[torch.Tensor], torch.Tensor]
    zero_grad: Callable[[], object]
    update: Callable[[], object]
    done: Callable[[], int]
    """The steps that this worker has completed since it joined: calls of `update` that counted."""

    kept: Callable[[], int]
    """The steps that are in others' models too, and stay there if this worker dies now."""

    members: Callable[[], int]
    """The number of workers that made the latest step, 0 where the library does not tell."""


class AbstractContender(ABC):
    """A library, or a strategy of ours, with its settings. It is sent to workers by value."""

    package: ClassVar[str]
    """The distribution that has to be installed."""

    is_ours: ClassVar[bool] = False

    service: ClassVar[str] = ""
    """The name of what `launch` runs beside the workers; nothing if it runs nothing."""

    tells_members: ClassVar[bool] = True
    """Whether a worker knows how many made a step; else the next average stands for that."""

    modules: ClassVar[tuple[str, ...]] = ()
    """What a worker imports before its first line, by which it is timed, though others were
    imported before it was forked."""

    @property
    @abstractmethod
    def title(self) -> str:
        """The library with its settings, in a few words."""

    @property
    def name(self) -> str:
        """The title, for another library with the installed version."""
        installed = "" if self.is_ours else f" {version(self.package).partition('+')[0]}"
        return f"{self.title}{installed}"

    def is_installed(self) -> bool:
        """Return whether it can be measured here."""
        try:
            version(self.package)
        except PackageNotFoundError:
            return False
        return True

    def launch(self, address: str, port: int) -> AbstractContextManager[str]:
        """Run what workers need beside them at `address` and `port`; yield where they find it."""
        del address, port
        return contextlib.nullcontext("")

    @abstractmethod
    def join(self, seat: Seat, model: nn.Module) -> Part:
        """Begin the job with the others, or come to it while it runs; return once this is done."""
