"""Imported by the process that workers are forked from: the compiled means are there for all."""

from __future__ import annotations

from shoal.carriers.mean import load_means

load_means()
