"""A room has a face: other rooms import the names that its stub lists, and none of its files."""

from __future__ import annotations

import ast
from importlib import import_module
from typing import TYPE_CHECKING

import pytest
from trees import FILES, ROOT, by_folder, name_of, nodes_in, nodes_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SOURCE = ROOT / "src" / "shoal"
STUBS = sorted(SOURCE.glob("*/__init__.pyi"))
ROOMS = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
LEAVES = {path.stem for path in SOURCE.glob("*.py")}
PUBLIC_FILES = {"shoal.adapters.torchft", "shoal.compiled.libc"}
"""Files that are faces of their own: what users of torchft import, the names of the C library."""


def past_a_face(nodes: list[ast.AST], room: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the module of every import from a file of another room than `room`."""
    for node in nodes:
        modules = []
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            modules = [node.module]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        for module in modules:
            package, *parts = module.split(".")
            if package != "shoal" or len(parts) < 2 or parts[0] in {room, *LEAVES}:
                continue
            if module not in PUBLIC_FILES:
                yield node.lineno, module


def room_of(path: Path) -> str:
    """Return the room that a file belongs to; "" if it is in none."""
    if not path.is_relative_to(SOURCE):
        return ""
    return path.relative_to(SOURCE).parts[0]


@pytest.mark.parametrize("files", by_folder(FILES).values(), ids=by_folder(FILES))
def test_other_rooms_are_entered_by_their_faces(files: list[Path]) -> None:
    found = [
        f"{name_of(path)}:{line}: {module}"
        for path in files
        for line, module in past_a_face(nodes_of(path), room_of(path))
    ]
    assert not found


def test_an_import_past_a_face_is_found() -> None:
    nodes = nodes_in("""from shoal.wire.engine import UdpEngine
from shoal.wire import stats
import shoal.groups.grid""")
    assert list(past_a_face(nodes, "train")) == [(1, "shoal.wire.engine"), (3, "shoal.groups.grid")]
    assert list(past_a_face(nodes, "wire")) == [(3, "shoal.groups.grid")]


@pytest.mark.parametrize("stub", STUBS, ids=[stub.parent.name for stub in STUBS])
def test_every_listed_name_is_there(stub: Path) -> None:
    room = f"shoal.{stub.parent.name}"
    pytest.importorskip("torch")
    face = import_module(room)
    listed = [
        alias.asname
        for node in ast.parse(stub.read_text()).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert sorted(listed) == dir(face)
    for name in listed:
        assert getattr(face, name) is not None


def test_every_room_has_a_face() -> None:
    assert {stub.parent.name for stub in STUBS} == ROOMS - {"compiled"}, "compiled loads at once"
