"""Files of compiled code: whole or not there, and of one kind of processor and settings."""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path
from typing import Any, Final

import llvmlite.binding as _llvm

llvm: Any = _llvm

_DIGEST_BYTES: Final = hashlib.sha256().digest_size


@functools.cache
def target_hash() -> str:
    """Return a hash of what code is made for: this processor, and the settings of numba."""
    settings = sorted(each for each in os.environ.items() if each[0].startswith("NUMBA_"))
    target = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten(), settings
    return hashlib.sha256(repr(target).encode()).hexdigest()[:16]


def read_kept(file: Path) -> bytes:
    """Return what has been written to a file. Raises `ValueError` if it is not as it was."""
    content = file.read_bytes()
    digest, body = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        raise ValueError(file)
    return body


def write_kept(file: Path, body: bytes) -> None:
    """Write a file so that others find all of it or none."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f"{file.name}.{os.getpid()}")
    part.write_bytes(hashlib.sha256(body).digest() + body)
    part.replace(file)
