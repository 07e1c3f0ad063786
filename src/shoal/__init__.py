"""Shoal: data-parallel training that keeps moving on slow networks and with slow workers.

Importing this package loads no torch and starts nothing; names that need torch are loaded when they
are first used.
"""

from __future__ import annotations

__version__ = "0.1.0"
