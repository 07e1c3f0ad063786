"""Where a result was made: the environment block of every result file."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import shoal
from shoal.jobs.result import Environment


def describe_environment() -> Environment:
    """Return versions, processor, cores usable by this process and memory."""
    return Environment(
        shoal=shoal.__version__,
        python=platform.python_version(),
        torch=_torch(),
        platform=f"{platform.system()} {platform.release()}",
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        taken_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _torch() -> str | None:
    try:
        return version("torch")
    except PackageNotFoundError:
        return None


def _processor() -> str:
    """Return the processor's name, and what tells apart processors of the same name if known.

    Makers call many generations alike, and clouds hide the rest of the name.
    """
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return platform.processor() or platform.machine()
    pairs = (line.partition(":") for line in first.splitlines())
    fields = {key.strip(): value.strip() for key, _, value in pairs}
    kind = [
        f"{word} {fields[key]}"
        for word, key in (("family", "cpu family"), ("model", "model"), ("stepping", "stepping"))
        if key in fields
    ]
    name = fields.get("model name", platform.machine())
    return f"{name} ({', '.join(kind)})" if kind else name
