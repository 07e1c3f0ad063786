"""text-stdlib: the source code of the running Python's standard library, byte by byte (PSF).

Every machine that runs Shoal has it, so it needs no network; it differs between Python versions,
so workers must run the same one (their data sets' fingerprints tell).
"""

from __future__ import annotations

import platform
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.errors import DataError
from shoal.workloads.sets.text import windows

if TYPE_CHECKING:
    from shoal.workloads.cache import Arrays
    from shoal.workloads.fetch import Fetcher

# not running code of the library: tests, tools with their own data, what the user installed
_LEFT_OUT = frozenset({"test", "tests", "idlelib", "site-packages", "dist-packages"})


def load(fetcher: Fetcher) -> Arrays:
    """Return windows of the standard library's Python sources (PSF license), in path order."""
    root = fetcher.source or Path(sysconfig.get_path("stdlib"))
    files = [
        path for path in root.rglob("*.py") if _LEFT_OUT.isdisjoint(path.relative_to(root).parts)
    ]
    if not files:
        message = f"{root} has no Python sources: choose text-web, or name a folder as the source."
        raise DataError(message)
    fetcher.progress(f"reading {len(files)} files", 0, 0)
    return windows(b"\n".join(path.read_bytes() for path in sorted(files)))


def edition() -> str:
    """Return what tells one standard library's text from another's: the interpreter's version."""
    return platform.python_version()
