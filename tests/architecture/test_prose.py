"""What a machine can say of prose: a docstring is read without the name that it belongs to."""

from __future__ import annotations

import ast
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from trees import FILES, SCRIPTS, by_folder, name_of, nodes_in, nodes_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PREPOSITIONS = """
    about above across after against along among around as at before behind below beside besides
    between beyond by despite down during except for from in inside into like near of off on onto
    out outside over past per since than through throughout to toward towards under until up upon
    via with within without
"""
RELATIVE_WORDS = "that those when where which whichever who whoever whom whose"
WITH_DOCSTRINGS = [*FILES, *SCRIPTS]
OPENINGS = {*PREPOSITIONS.split(), *RELATIVE_WORDS.split()}


def docstrings_of_fields(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of every string right after an assignment."""
    for node in nodes:
        for block in (getattr(node, part, None) for part in ("body", "orelse", "finalbody")):
            for pair in pairwise(block) if isinstance(block, list) else ():
                match pair:
                    case (
                        ast.Assign() | ast.AnnAssign(),
                        ast.Expr(ast.Constant(str(text)), lineno=line),
                    ):
                        yield line, text


def docstrings_of_definitions(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of every docstring of a function, property or class."""
    for node in nodes:
        match node:
            case (
                ast.FunctionDef(body=[ast.Expr(ast.Constant(str(text)), lineno=line), *_])
                | ast.AsyncFunctionDef(body=[ast.Expr(ast.Constant(str(text)), lineno=line), *_])
                | ast.ClassDef(body=[ast.Expr(ast.Constant(str(text)), lineno=line), *_])
            ):
                yield line, text


def found_among(nodes: list[ast.AST]) -> list[tuple[int, str]]:
    """Return the lines and docstrings whose first word leans on the name above them."""
    found = [*docstrings_of_fields(nodes), *docstrings_of_definitions(nodes)]
    return [(line, each) for line, each in sorted(found) if first_word(each) in OPENINGS]


def found_in(text: str) -> list[tuple[int, str]]:
    """Return the same of a text."""
    return found_among(nodes_in(text))


def first_word(docstring: str) -> str:
    return next(iter(docstring.split()), "").strip(",.:;").lower()


@pytest.mark.parametrize(
    "files", by_folder(WITH_DOCSTRINGS).values(), ids=by_folder(WITH_DOCSTRINGS)
)
def test_docstrings_can_be_read_alone(files: list[Path]) -> None:
    lines = [
        f"{name_of(path)}:{line}: {docstring}"
        for path in files
        for line, docstring in found_among(nodes_of(path))
    ]
    if lines:
        pytest.fail("begin with a noun, or with a sentence\n" + "\n".join(lines), pytrace=False)


@pytest.mark.parametrize(
    "docstring",
    [
        "Of the model.",
        "By rank, seconds.",
        "That each makes.",
        "Those of a worker.",
        "Where\nit is.",
        "per step",
    ],
)
def test_a_docstring_that_leans_on_the_name_is_found(docstring: str) -> None:
    assert found_in(f'class A:\n    steps: int\n    """{docstring}"""\n') == [(3, docstring)]
    assert found_in(f'class A:\n    def f(self):\n        self.a = 0\n        """{docstring}"""\n')
    assert found_in(f'if True:\n    pass\nelse:\n    LIMIT = 3\n    """{docstring}"""\n')
    assert found_in(f'LIMIT = 3\n"""{docstring}"""\n')
    assert found_in(f'class A:\n    @property\n    def a(self):\n        """{docstring}"""\n')
    assert found_in(f'async def f():\n    """{docstring}"""\n    return 0\n')
    assert found_in(f'class A:\n    """{docstring}"""\n')


@pytest.mark.parametrize(
    "docstring", ["The number of steps.", "Maps a rank to its steps.", "Bytes.", "Offset of a row."]
)
def test_a_noun_or_a_sentence_is_left_alone(docstring: str) -> None:
    assert not found_in(f'LIMIT = 3\n"""{docstring}"""\n')
    assert not found_in(f'def f():\n    """{docstring}"""\n')


def test_a_module_may_begin_with_a_question_that_it_answers() -> None:
    assert not found_in('"""Who is alive: heartbeats in, losses out."""\n')
