"""How the pages become a site: `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "extensions"), str(HERE.parent / "src")]

import shoal  # noqa: E402 - from this tree, whatever else is installed

project = "Shoal"
copyright = "Shoal developers"  # noqa: A001 - Sphinx's name
version = release = shoal.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "command_line",
    "external_links",
]
exclude_patterns = ["extensions"]
source_suffix = {".md": "markdown"}
nitpicky = False  # annotations name types of torch's, and private ones

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
python_maximum_signature_line_length = 80
default_role = "literal"  # docstrings put names in single backticks

html_theme = "furo"
html_title = f"Shoal {release}"
html_show_sphinx = False
html_copy_source = False
