"""What others wrote is decoded in one place, which knows all that decoders raise."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from trees import FILES, SHOAL, SHOAL_BENCH, names

if TYPE_CHECKING:
    from pathlib import Path

DECODERS = re.compile(r"\b(msgspec\.(json|msgpack|toml)\.decode|tomllib\.loads?|json\.loads?)\(")
FOUND = [
    path
    for path in FILES
    if path != SHOAL / "decoding.py"
    # the benchmarks read the output of tools and workers that they have started themselves
    and (SHOAL in path.parents or SHOAL_BENCH / "reproduce" in path.parents)
]


@pytest.mark.parametrize("path", FOUND, ids=names(FOUND))
def test_nothing_is_decoded_elsewhere(path: Path) -> None:
    found = [match[0] for match in DECODERS.finditer(path.read_text())]
    assert not found, "use shoal.decoding"
