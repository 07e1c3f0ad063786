"""Code that is kept belongs to the sources that it was compiled from."""

from __future__ import annotations

import ast
from pathlib import Path

import shoal
from shoal.compiled.cache import ABOVE, ROOMS

SOURCE = Path(shoal.__file__).parent
COMPILED = {"compiled", "inlined", "entry"}


def names_of_decorators(file: Path) -> set[str]:
    text = file.read_text()
    if not any(f"@{name}" in text for name in COMPILED):
        return set()  # most files: parsing them all takes seconds
    return {
        decorator.id
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Name)
    }


def test_every_compiled_function_is_in_a_room_whose_sources_name_the_folder() -> None:
    files = [file for file in SOURCE.rglob("*.py") if names_of_decorators(file) & COMPILED]
    assert SOURCE / "carriers" / "mean.py" in files
    rooms = [SOURCE / room for room in (*ROOMS, *ABOVE)]
    outside = [
        str(file.relative_to(SOURCE))
        for file in files
        if not any(room == file or room in file.parents for room in rooms)
    ]
    assert not outside, "add them to shoal.compiled.cache.ROOMS: old code of theirs would be used"
