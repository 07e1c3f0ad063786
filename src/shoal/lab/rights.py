"""The right to make namespaces: an ordinary user has it inside a user namespace of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from shoal.errors import ResourceError
from shoal.lab.network.fabric import why_not
from shoal.lab.port_forward import hand_on

_ENTER: Final = ("unshare", "--user", "--net", "--map-root-user", "--")
_SECONDS: Final = 10.0


def launcher() -> list[str]:
    """Return what a command that builds a lab has to begin with: nothing if this user may anyway.

    Raises `ResourceError` if this user may not build one in any way.
    """
    obstacle = why_not()
    if obstacle is None:
        return []
    refusal = "" if os.geteuid() == 0 else _refusal()
    if refusal is not None:
        message = f"There can be no lab here. {obstacle} {refusal}"
        raise ResourceError(message.rstrip())
    return list(_ENTER)


def have_rights(arguments: Sequence[str], listener: socket.socket | None = None) -> None:
    """Return if this process may build a lab; else start it again, where it may.

    `arguments` are those of the command line; a `listener` is handed on. Raises `ResourceError` if
    neither is allowed.
    """
    prefix = launcher()
    if prefix:
        if listener is not None:
            hand_on(listener)
        sys.stdout.flush()
        sys.stderr.flush()
        os.execvp(prefix[0], [*prefix, sys.executable, "-P", "-m", "shoal.cli", *arguments])


def _refusal() -> str | None:
    """Return why no user namespace can be entered; None if one can."""
    if shutil.which(_ENTER[0]) is None:
        return "There is no `unshare` here."
    tried = subprocess.run(
        [*_ENTER, "true"], capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    return None if tried.returncode == 0 else f"That shell cannot be had: {tried.stderr.strip()}."
