"""Colored marks beside names, as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def swatch(color: str) -> str:
    """Return a small square of `color`."""
    return f'<span class="swatch" style="--swatch:{color}"></span>'


def legend(items: Sequence[tuple[str, str]]) -> str:
    """Return a line that tells what each color means; nothing if there are no `items`."""
    if not items:
        return ""
    names = "".join(f"<span>{swatch(color)}{escape(name)}</span>" for name, color in items)
    return f'<div class="legend">{names}</div>'
