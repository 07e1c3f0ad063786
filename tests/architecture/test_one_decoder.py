"""What others wrote is decoded in one place, which knows all that decoders raise."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from trees import FILES, SHOAL, SHOAL_BENCH, by_folder, name_of

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


@pytest.mark.parametrize("files", by_folder(FOUND).values(), ids=by_folder(FOUND))
def test_nothing_is_decoded_elsewhere(files: list[Path]) -> None:
    found = [
        f"{name_of(path)}: {match[0]}"
        for path in files
        for match in DECODERS.finditer(path.read_text())
    ]
    assert not found, "use shoal.decoding"
