"""What documents say can be done: links lead somewhere, commands and snippets have real names."""

from __future__ import annotations

import ast
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.commands import make_app
from shoal.transport.operations import FIRST_READY_WAIT_US

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def names(pages: list[Path]) -> list[str]:
    return [str(page.relative_to(ROOT)) for page in pages]


def anchor(heading: str) -> str:
    """Return what a link to a heading ends in."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if link.startswith("http"):
            continue
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if heading:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert heading in {anchor(each) for each in headings}, link


def commands_of(page: Path) -> list[str]:
    """Return the lines of a page's blocks and its words in code that start with `shoal`."""
    text = page.read_text()
    lines = [line.strip() for _, block in FENCE.findall(text) for line in block.splitlines()]
    words = re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    shown = [re.sub(r"^(\$ |sudo |[A-Z_]+=\S+ )+", "", each) for each in (*lines, *words)]
    return [each.split("#")[0].split("  ")[0] for each in shown if each.startswith("shoal ")]


@cache
def whole_command() -> Any:
    import typer

    return typer.main.get_command(make_app())


def options_of(words: list[str]) -> tuple[set[str], list[str]]:
    """Return the options that the command in `words` knows, and the words after its name."""
    command, rest = whole_command(), words[1:]
    while rest and not rest[0].startswith("-") and hasattr(command, "commands"):
        assert rest[0] in command.commands, words
        command, rest = command.commands[rest[0]], rest[1:]
    return {name for each in command.params for name in (*each.opts, *each.secondary_opts)}, rest


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_commands_and_their_options_exist(page: Path) -> None:
    for command in commands_of(page):
        words = shlex.split(re.sub(r"[\[\]|]", " ", command))
        if "--" in words:  # what follows is another program's
            words = words[: words.index("--")]
        options, rest = options_of(words)
        unknown = {word for word in rest if word.startswith("-") and word != "-"} - options
        assert not unknown - {"--help"}, command


def test_commands_are_found_in_pages() -> None:
    found = dict(zip(names(PAGES), map(commands_of, PAGES), strict=True))
    assert len(found["docs/tutorials/first-ten-minutes.md"]) >= 4
    assert len(found["docs/transport.md"]) >= 4


def test_environment_variables_are_documented_and_exist() -> None:
    def variables(files: list[Path]) -> set[str]:
        texts = [path.read_text() for path in files]
        return {name for text in texts for name in re.findall(r"SHOAL_[A-Z_]*[A-Z]", text)}

    read = variables(list((ROOT / "src").rglob("*.py")))
    of_tests = variables(list((ROOT / "tests").rglob("*.py")))
    shown = variables(PAGES)
    assert not read - shown, "a variable that no page mentions"
    assert not shown - read - of_tests, "a variable that nothing reads"


def test_figures_of_the_wire_format_are_those_of_the_code() -> None:
    from shoal.transport import answers, credit, replay, round_trips, tables
    from shoal.transport.messages import LARGEST_MESSAGE_SEGMENTS

    longest = round_trips.LARGEST_WAIT_US // 1000
    text = " ".join((ROOT / "docs" / "wire-format.md").read_text().split())
    for figure in (
        f"at most {LARGEST_MESSAGE_SEGMENTS:,} segments",
        f"at most {round_trips.LONGEST_GRACE_US // 1000} ms",
        f"{FIRST_READY_WAIT_US // 1000} ms, doubling up to {longest} ms",
        f"({round_trips._UNKNOWN_WAIT_US // 1000} ms if unknown)",
        f"at least {round_trips._SMALLEST_WAIT_US // 1000} ms,",
        f", doubling up to {longest} ms",
        f"less than {answers.LOSSY_PACKETS:,} packets ago",
        f"the last {tables.FINISHED_SLOTS:,} finished operations",
        f"the last {tables.CONTROL_SLOTS // 2:,} STOPs",
        f"{replay.WINDOW:,} or more behind the highest",
        f"more than {credit.LARGEST_CREDIT:,} packets beyond",
        f"({credit._FEWEST_NEWS} packets at least)",
        f"a turn is {credit.TURN} packets",
        f"less than {credit.TURN} packets, senders take turns",
    ):
        assert figure in text


def test_names_of_the_package_in_snippets_exist() -> None:
    pytest.importorskip("torch")
    import shoal

    checked = 0
    for page in PAGES:
        for language, block in FENCE.findall(page.read_text()):
            if language != "python":
                continue
            indent = len(block) - len(block.lstrip(" "))
            tree = ast.parse("\n".join(line[indent:] for line in block.splitlines()))
            for node in ast.walk(tree):
                of_shoal = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
                if of_shoal and node.value.id == "shoal" and node.attr != "adapters":
                    assert hasattr(shoal, node.attr), (page.name, node.attr)
                    checked += 1
    assert checked >= 8
