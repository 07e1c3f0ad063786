"""Writes the links that lead off the site to a file, for whoever wants to try them.

Building needs no network, so none of them is fetched; `sphinx-build -b linkcheck` does that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes

NAME = "external-links.txt"


def collect(app: Any, doctree: Any, docname: str) -> None:
    """Keep the external links of a page."""
    found = app.env.__dict__.setdefault("shoal_external_links", {})
    found[docname] = sorted(
        {
            node["refuri"]
            for node in doctree.findall(nodes.reference)
            if node.get("refuri", "").startswith(("http://", "https://"))
        }
    )


def write(app: Any, error: Exception | None) -> None:
    """Write all that were kept, with their pages."""
    found = app.env.__dict__.get("shoal_external_links", {})
    if error is None:
        lines = [f"{link}  {page}\n" for page, links in sorted(found.items()) for link in links]
        (Path(app.outdir).parent / NAME).write_text("".join(lines))


def setup(app: Any) -> dict[str, Any]:
    """Tell Sphinx when to do so."""
    app.connect("doctree-resolved", collect)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True}
