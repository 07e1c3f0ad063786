"""The benchmark's sections against ns-3 and SimGrid where neither is."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.errors import ResourceError
from shoal_bench import reference_tools, sim_ns3, sim_simgrid
from shoal_bench.stand import Stand


def test_sections_without_their_peers_say_so_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_tools.shutil, "which", lambda name: None)
    with Stand(quick=True) as stand:
        assert sim_ns3.measure(stand) == []
        assert sim_simgrid.measure(stand) == []
        assert len(stand.skipped) == 2
        assert "--ns3" in stand.skipped[0]
        assert "g++" in stand.skipped[1]


def test_a_python_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="nowhere cannot be run"):
        reference_tools.run_ns3(tmp_path / "nowhere", [])


def test_what_a_failing_run_said_last_is_told(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho No module named ns >&2\nexit 3\n", encoding="utf-8")
    python.chmod(0o755)
    with pytest.raises(ResourceError, match="ended with 3: No module named ns"):
        reference_tools.run_ns3(python, [])
