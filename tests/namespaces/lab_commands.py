"""The commands of `shoal lab`, run as a user does, and small labs for them."""

from __future__ import annotations

import subprocess
import sys

STAR = 'hosts.count = {hosts}\naccess = {{ rate = "1 Gbit/s" }}\n'
DEADLINE_S = 20.0
SHOAL_LAB = (sys.executable, "-m", "shoal.cli", "lab")


def shoal_lab(*arguments: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*prefix, *SHOAL_LAB, *arguments],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
