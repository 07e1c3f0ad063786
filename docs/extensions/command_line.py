"""The directive `command-line`: every command's help, as the program prints it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from docutils import nodes
from docutils.parsers.rst import Directive

from shoal.cli.commands import COMMANDS, make_app

COLUMNS = 88


class CommandLine(Directive):
    """Writes a section for each command of the package, with its help."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        whole: Any = typer.main.get_command(make_app())
        found: list[nodes.Node] = []
        for name in COMMANDS:  # those that another distribution adds have pages of their own
            for path, text in helps(whole.commands[name], f"shoal {name}"):
                section = nodes.section(ids=[path.replace(" ", "-")])
                section += nodes.title("", "", nodes.literal("", path))
                section += nodes.literal_block(text, text, language="none")
                self.state.document.note_explicit_target(section, section)
                found.append(section)
        return found


def helps(command: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield the words that call a command and its help, then the same of those within it."""
    context = command.make_context(
        path, ["--help"], resilient_parsing=True, max_content_width=COLUMNS, terminal_width=COLUMNS
    )
    yield path, command.get_help(context)
    for name in getattr(command, "commands", {}):
        yield from helps(command.commands[name], f"{path} {name}")


def setup(app: Any) -> dict[str, Any]:
    """Tell Sphinx of the directive."""
    app.add_directive("command-line", CommandLine)
    return {"parallel_read_safe": True}
