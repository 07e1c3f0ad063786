"""The site is whole: every page has its place, every public name and command is described."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def entries() -> list[str]:
    """Return the pages that the tables of contents name."""
    found: list[str] = []
    for block in re.findall(
        r"^```\{toctree\}\n(.*?)^```", (DOCS / "index.md").read_text(), re.MULTILINE | re.DOTALL
    ):
        lines = [line for line in block.splitlines() if line and not line.startswith(":")]
        found += [re.sub(r".*<(.*)>", r"\1", line) for line in lines]
    return found


def test_every_page_is_in_one_table_of_contents() -> None:
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md")}
    named = entries()
    assert len(named) == len(set(named))
    assert set(named) == pages - {"index"}


def test_every_public_name_is_in_the_api() -> None:
    pytest.importorskip("torch")
    import shoal

    page = (DOCS / "reference" / "api.md").read_text()
    described = re.findall(r"^\.\. auto\w+:: shoal\.(\w+)$", page, re.MULTILINE)
    assert sorted(described) == sorted(shoal.__all__)
