"""How an extra is installed: from where Shoal came, and never by a name on an index."""

from __future__ import annotations

import json
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from shoal import extras

METADATA = """\
Metadata-Version: 2.1
Name: shoal
Version: 0.2.0
Requires-Dist: numpy>=1.26
Requires-Dist: torch>=2.7; extra == "torch"
Requires-Dist: pyarrow>=17; extra == "data"
Requires-Dist: pillow>=10; extra == "data"
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which pip notes what it has installed; nothing yet of where from."""
    folder = tmp_path / "shoal-0.2.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(METADATA)
    monkeypatch.setattr(extras, "distribution", lambda _name: PathDistribution(folder))
    return folder


def note(folder: Path, **origin: object) -> None:
    (folder / "direct_url.json").write_text(json.dumps(origin))


def test_from_a_folder_it_is_installed_from_that_folder(installed: Path, tmp_path: Path) -> None:
    note(installed, url=tmp_path.as_uri(), dir_info={"editable": True})
    assert extras.install("data") == f"pip install -e '{tmp_path}[data]'"
    note(installed, url=tmp_path.as_uri(), dir_info={})
    assert extras.install("data,torch") == f"pip install '{tmp_path}[data,torch]'"


def test_from_a_repository_it_is_installed_from_there(installed: Path) -> None:
    note(installed, url="https://forge.example/shoal", vcs_info={"vcs": "git", "commit_id": "0"})
    assert extras.install("data") == "pip install 'shoal[data] @ git+https://forge.example/shoal'"


@pytest.mark.parametrize("gone", [True, False])
def test_else_what_the_extra_needs_is_named(installed: Path, tmp_path: Path, *, gone: bool) -> None:
    if gone:  # the wheel that it came from
        note(installed, url=(tmp_path / "gone.whl").as_uri(), archive_info={})
    assert extras.install("data") == "pip install 'pyarrow>=17' 'pillow>=10'"


def test_no_index_is_ever_asked_for_the_name(installed: Path) -> None:
    assert extras.install("unheard") == "pip install '.[unheard]' in Shoal's source folder"
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: shoal\nVersion: 0.2.0\n")
    assert "shoal[" not in extras.install("data")
