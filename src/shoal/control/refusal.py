"""The control plane's way to say no: a kind, which is counted, and a sentence, which is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.errors import ShoalError

if TYPE_CHECKING:
    from shoal.control.messages import RefusalKind


class Refusal(ShoalError):
    """A message that is not acted upon. It ends as a `Rejected` to its sender."""

    def __init__(self, kind: RefusalKind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
