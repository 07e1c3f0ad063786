"""Where no lab can be made: what is missing, and why, in the words of the kernel."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from lab_commands import DEADLINE_S, STAR


@pytest.mark.skipif(shutil.which("unshare") is None, reason="there is no `unshare`")
def test_a_system_without_any_more_namespaces_is_said(tmp_path: Path) -> None:
    spec = tmp_path / "star.toml"
    spec.write_text(STAR.format(hosts=2))
    lab = f"{sys.executable} -m shoal.cli lab run {spec} -- true"
    none = "echo 0 > /proc/sys/user/max_net_namespaces && exec "
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", none + lab],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    if "max_net_namespaces" in done.stderr and "cannot create" in done.stderr:
        pytest.skip("this system has no limit of network namespaces to set")
    assert done.returncode == 7, done.stderr
    assert done.stderr.startswith(
        "error: There can be no lab here. Cannot make a network namespace:"
    )
    assert "No space left on device" in done.stderr
    assert "user.max_net_namespaces" in done.stderr
