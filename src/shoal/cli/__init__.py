"""The command line: reads arguments, environment and files, prints. Decides nothing.

Data goes to standard output, everything else to standard error. A deliberate error is one sentence
and its documented exit code (docs/exit-codes.md), never a traceback.
"""

from __future__ import annotations

from shoal.cli.app import main

__all__ = ["main"]
