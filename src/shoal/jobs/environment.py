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
    """Return the processor's model name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
