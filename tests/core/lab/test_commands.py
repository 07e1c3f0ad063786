"""Commands that cannot be run: said before anything is built for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.errors import UsageError
from shoal.lab.run_on_hosts import check_command


def test_a_command_that_cannot_be_run_is_refused_with_the_reason(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    for command, reason in (
        (f"{tmp_path}/none", "There is no command '/.*/none'."),
        (str(script), "'/.*/script' is not executable: `chmod"),
        (str(tmp_path), "is a folder, not a command."),
        ("no-such-command", "There is no command 'no-such-command'."),
    ):
        with pytest.raises(UsageError, match=reason):
            check_command([command])
    script.chmod(0o755)
    check_command([str(script)])
