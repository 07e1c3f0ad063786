"""What others wrote is decoded in one place, which knows all that decoders raise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "shoal"
DECODERS = re.compile(r"\b(msgspec\.(json|msgpack|toml)\.decode|tomllib\.loads?|json\.loads?)\(")
EXCEPT = {
    "bench",  # output of tools and workers that it has started itself
    "decoding.py",
}
FILES = [
    path for path in sorted(SOURCE.rglob("*.py")) if path.relative_to(SOURCE).parts[0] not in EXCEPT
]


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(SOURCE)) for path in FILES])
def test_nothing_is_decoded_elsewhere(path: Path) -> None:
    found = [match[0] for match in DECODERS.finditer(path.read_text())]
    assert not found, "use shoal.decoding"
