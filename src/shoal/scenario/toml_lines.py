"""Where in a TOML text each key stands: the standard parser tells values, and no lines.

Owns a scan of the text's outline only: keys, headers, and what strings and brackets enclose. The
text must be valid TOML; what it means is the parser's.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

from shoal.decoding import decode_toml
from shoal.errors import UsageError

Path: TypeAlias = tuple[str | int, ...]
"""Keys from the top, and the place in an array of tables."""

_HEADER: Final = re.compile(r"[ \t]*\[(\[?)[ \t]*([^\]]*?)[ \t]*\]{1,2}")
_KEY: Final = re.compile(
    r"""[ \t]*((?:"(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_.\-]|[ \t]*\.[ \t]*)+?)[ \t]*="""
)
_TOKEN: Final = re.compile(
    r'"""(?:[^\\]|\\.)*?"""'
    r"|'''.*?'''"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'|#[^\n]*|[\[\]{}]",
    re.DOTALL,
)


def lines_of(text: str) -> dict[Path, int]:
    """Return the line (from 1) of every header and every key that begins a line."""
    lines: dict[Path, int] = {}
    table: Path = ()
    counts: dict[Path, int] = {}
    depth = position = 0
    number = 1
    while position < len(text):
        end = position
        if depth == 0:
            header, key = _HEADER.match(text, position), _KEY.match(text, position)
            if key is None and header is not None:
                table = _table(_parts(header[2]), counts, is_array=bool(header[1]))
                lines[table] = number
                end = header.end()
            elif key is not None:
                parts = _parts(key[1])
                for length in range(1, len(parts) + 1):
                    lines.setdefault((*table, *parts[:length]), number)
                end = key.end()
        depth, end = _to_end_of_line(text, end, depth)
        number += text.count("\n", position, end)
        position = end
    return lines


def _to_end_of_line(text: str, position: int, depth: int) -> tuple[int, int]:
    """Return the depth of brackets and the place behind the next line end outside any string."""
    while True:
        found = _TOKEN.search(text, position)
        line_end = text.find("\n", position)
        line_end = len(text) if line_end < 0 else line_end + 1
        if found is None or found.start() >= line_end:
            return depth, line_end
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
        position = found.end()


def _table(parts: Path, counts: dict[Path, int], *, is_array: bool) -> Path:
    """Return the full path of a header: names of arrays stand for their last table so far."""
    path: Path = ()
    for place, part in enumerate(parts, 1):
        path = (*path, part)
        if is_array and place == len(parts):
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = (*path, counts[path])
    return path


def _parts(dotted: str) -> Path:
    """Return the keys of a dotted key: what the parser makes of it, escapes and all."""
    value: object = decode_toml(f"{dotted} = 0", f"The key {dotted} is not TOML", raises=UsageError)
    parts: Path = ()
    while isinstance(value, dict):
        ((part, value),) = value.items()
        parts = (*parts, part)
    return parts
