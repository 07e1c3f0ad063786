"""Data files out of packages: real pip and dpkg-deb on packages made here, no network."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest

from shoal.workloads import packages
from shoal.workloads.fetch import SourceError
from shoal.workloads.packages import DebianPackage, InstalledPackage, PythonPackage

if TYPE_CHECKING:
    from pathlib import Path

SILENT = lambda *_: None  # noqa: E731 - a progress callback that ignores everything


def write_wheel(folder: Path) -> Path:
    folder.mkdir()
    path = folder / "toydata-1.0-py3-none-any.whl"
    metadata = "Metadata-Version: 2.1\nName: toydata\nVersion: 1.0\n"
    tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("toydata/__init__.py", "raise ImportError('data only')\n")
        wheel.writestr("toydata/data/a.csv", "1,2\n")
        wheel.writestr("other/data/a.csv", "not this one\n")
        wheel.writestr("toydata-1.0.dist-info/METADATA", metadata)
        wheel.writestr("toydata-1.0.dist-info/WHEEL", tags)
        wheel.writestr("toydata-1.0.dist-info/RECORD", "")
    return path


@pytest.fixture
def local_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make pip look at a folder with one wheel and nowhere else."""
    wheel = write_wheel(tmp_path / "index")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    return wheel.parent


def test_pip_download_brings_the_file(tmp_path: Path, local_index: Path):
    source = PythonPackage("toydata==1.0", "toydata/data")
    paths = source.fetch(["a.csv"], tmp_path, SILENT)
    assert paths["a.csv"].read_text() == "1,2\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "index"]


def test_package_that_pip_cannot_find_gives_pips_reason(tmp_path: Path, local_index: Path):
    with pytest.raises(SourceError, match="No matching distribution"):
        PythonPackage("toydata==2.0", "toydata/data").fetch(["a.csv"], tmp_path, SILENT)


def test_file_that_the_package_lacks_is_named(tmp_path: Path, local_index: Path):
    with pytest.raises(SourceError, match=r"toydata-1\.0-.*\.whl has no b\.csv"):
        PythonPackage("toydata==1.0", "toydata/data").fetch(["b.csv"], tmp_path, SILENT)


def test_source_archive_is_read_below_its_top_folder(tmp_path: Path):
    archive = tmp_path / "toydata-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name in ("toydata-1.0/toydata/data/a.csv", "toydata-1.0/toydata/data/../../a.csv"):
            member = tarfile.TarInfo(name)
            member.size = 4
            tar.addfile(member, io.BytesIO(b"1,2\n"))
    room = tmp_path / "room"
    room.mkdir()
    found = packages._unpack(archive, "toydata/data", ["a.csv"], room)
    assert found["a.csv"].read_bytes() == b"1,2\n"
    assert list(room.iterdir()) == [room / "a.csv"]


def test_truncated_archive_is_damaged(tmp_path: Path):
    archive = tmp_path / "toydata-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        member = tarfile.TarInfo("toydata-1.0/toydata/data/a.csv")
        member.size = 100_000
        tar.addfile(member, io.BytesIO(bytes(range(250)) * 400))
    archive.write_bytes(archive.read_bytes()[:-40])
    with pytest.raises(SourceError, match="is damaged"):
        packages._unpack(archive, "toydata/data", ["a.csv"], tmp_path)


def test_installed_package_is_found_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with zipfile.ZipFile(write_wheel(tmp_path / "index")) as wheel:
        wheel.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    paths = InstalledPackage("toydata", "toydata/data").fetch(["a.csv"], tmp_path, SILENT)
    assert paths["a.csv"] == tmp_path / "site" / "toydata" / "data" / "a.csv"


def test_package_that_is_not_installed_says_so(tmp_path: Path):
    with pytest.raises(SourceError, match="not installed"):
        InstalledPackage("shoal-no-such-package", "data").fetch(["a.csv"], tmp_path, SILENT)


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="no dpkg-deb on this machine")
def test_debian_package_is_unpacked_without_installing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tree = tmp_path / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    control = "Package: toydata\nVersion: 1\nArchitecture: all\nMaintainer: x <x@x.invalid>\n"
    (tree / "DEBIAN" / "control").write_text(control + "Description: toy\n")
    (tree / "usr/share/toydata").mkdir(parents=True)
    (tree / "usr/share/toydata/a.csv").write_text("1,2\n")
    deb = tmp_path / "toydata_1_all.deb"
    subprocess.run(["dpkg-deb", "-b", str(tree), str(deb)], check=True, capture_output=True)
    monkeypatch.setattr(packages, "_apt_download", lambda name: ["cp", str(deb), "."])
    room = tmp_path / "room"
    room.mkdir()
    paths = DebianPackage("toydata", "usr/share/toydata").fetch(["a.csv"], room, SILENT)
    assert paths["a.csv"].read_text() == "1,2\n"
    assert list(room.iterdir()) == [room / "a.csv"]


def test_absent_and_failing_clients_are_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = DebianPackage("toydata", "usr/share/toydata")
    monkeypatch.setattr(packages, "_apt_download", lambda name: ["shoal-no-such-client", name])
    with pytest.raises(SourceError, match="shoal-no-such-client is not on this machine"):
        source.fetch(["a.csv"], tmp_path, SILENT)
    script = "echo noise >&2; echo 'Unable to locate package' >&2; exit 100"
    monkeypatch.setattr(packages, "_apt_download", lambda name: ["sh", "-c", script])
    with pytest.raises(SourceError, match=r"^Unable to locate package$"):
        source.fetch(["a.csv"], tmp_path, SILENT)


def test_client_that_hangs_is_ended_at_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(packages, "DEADLINE_SECONDS", 0.05)
    monkeypatch.setattr(packages, "_apt_download", lambda name: ["sleep", "30"])
    with pytest.raises(SourceError, match="took more than"):
        DebianPackage("toydata", "usr/share/toydata").fetch(["a.csv"], tmp_path, SILENT)
