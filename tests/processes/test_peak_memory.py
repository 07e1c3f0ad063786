"""The most memory that a process has taken is its own, whoever started it."""

from __future__ import annotations

import subprocess
import sys

MB = 1_000_000
CHILD = """
from shoal.memory import peak_bytes
before = peak_bytes()
block = bytearray(b"x") * 100_000_000
del block
print(before, peak_bytes())
"""


def test_a_peak_is_of_the_process_itself_and_stays() -> None:
    held = bytearray(b"x") * (400 * MB)  # which `getrusage` would count as the child's
    out = subprocess.check_output([sys.executable, "-c", CHILD], text=True)
    before, after = map(int, out.split())
    assert len(held) == 400 * MB
    assert 5 * MB < before < 200 * MB
    assert before + 50 * MB < after < before + 150 * MB
