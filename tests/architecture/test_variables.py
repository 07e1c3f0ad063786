"""Every environment variable of Shoal's is in the one table, and the table has no others."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "variables.md"
NAME = re.compile(r"\bSHOAL_[A-Z][A-Z_]*[A-Z]\b")


def test_the_table_has_the_variables_of_the_source() -> None:
    sources = (path.read_text() for path in (ROOT / "src" / "shoal").rglob("*.py"))
    read = {name for text in sources for name in NAME.findall(text)}
    table = PAGE.read_text()
    rows = re.findall(r"^\| `(SHOAL_\w+)` \|", table, re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert set(rows) == read


def test_other_pages_name_no_variable_that_is_none() -> None:
    table = set(NAME.findall(PAGE.read_text()))
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        named = set(NAME.findall(page.read_text())) - {"SHOAL_FUZZ"}  # the tests' own
        assert named <= table, page.name
