"""The directive `command-line`: every command's help, as the program prints it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from docutils import nodes
from docutils.parsers.rst import Directive

from shoal.cli.commands import COMMANDS, make_app

SHAPE = {"terminal_width": 88, "max_content_width": 88, "help_option_names": ["-h", "--help"]}
"""How wide help is, and what asks for it, which commands take over from the whole."""


class CommandLine(Directive):
    """Writes a section for each command of the package, with its help."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        whole: Any = typer.main.get_command(make_app())
        top = whole.make_context("shoal", [], resilient_parsing=True, **SHAPE)
        found: list[nodes.Node] = []
        for name in COMMANDS:  # those that another distribution adds have pages of their own
            for path, text in helps(whole.commands[name], name, top):
                section = nodes.section(ids=[path.replace(" ", "-")])
                section += nodes.title("", "", nodes.literal("", path))
                section += nodes.literal_block(text, text, language="none")
                self.state.document.note_explicit_target(section, section)
                found.append(section)
        return found


def helps(command: Any, name: str, above: Any) -> Iterator[tuple[str, str]]:
    """Yield the words that call a command and its help, then the same of those within it."""
    context = command.make_context(name, [], parent=above, resilient_parsing=True)
    yield context.command_path, command.get_help(context)
    for each in getattr(command, "commands", {}):
        yield from helps(command.commands[each], each, context)


def setup(app: Any) -> dict[str, Any]:
    """Tell Sphinx of the directive."""
    app.add_directive("command-line", CommandLine)
    return {"parallel_read_safe": True}
