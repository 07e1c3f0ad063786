"""Raw files of a data set: from what is already here, or from the first source that has them.

Owns the order of the sources, the checksums and the sentence that lists what was tried. Must not
know file formats or arrays. Every wait has a deadline, and a file appears under its name only when
it is whole.
"""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from shoal.errors import DataError
from shoal.workloads.cache import content_sha256, writing_to

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    FetchProgress: TypeAlias = Callable[[str, int, int], None]
    # called with what is being done, units done and units in all (0 while unknown)


class SourceError(DataError):
    """One source cannot supply the files. `str(error)` is the reason, part of a longer sentence."""


@dataclass(frozen=True, slots=True)
class WantedFile:
    """A file as its source names it, with the checksum that makes it trusted."""

    name: str
    sha256: str
    gzipped: bool = False
    """The checksum is that of the decompressed content: a repacked .gz is as good."""


class Source(Protocol):
    """A place that may have the wanted files. One implementation per kind of place."""

    @property
    def label(self) -> str:
        """The place in words, for messages."""
        ...

    @property
    def remote(self) -> bool:
        """Whether asking it uses the network."""
        ...

    def fetch(
        self, names: Sequence[str], room: Path, progress: FetchProgress
    ) -> Mapping[str, Path]:
        """Return a path for every name, in place or put into `room`. Raises `SourceError`."""
        ...


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of this machine; its files are used where they lie."""

    path: Path
    remote = False

    @property
    def label(self) -> str:
        """The folder's path."""
        return f"folder {self.path}"

    def fetch(
        self, names: Sequence[str], room: Path, progress: FetchProgress
    ) -> Mapping[str, Path]:
        """Return the files where they lie."""
        paths = {name: self.path / name for name in names}
        missing = [name for name, path in paths.items() if not path.is_file()]
        if missing:
            message = f"it has no {missing[0]}" if self.path.is_dir() else "no such folder"
            raise SourceError(message)
        return paths


@dataclass(frozen=True, slots=True)
class Fetcher:
    """What a loader needs to get its raw files: where to keep them, and where it may get them."""

    downloads: Path
    """Folder of fetched files, one folder per data set in it. A user may put files there."""

    progress: FetchProgress
    offline: bool = False
    """Ask no source that uses the network."""

    source: Path | None = None
    """A folder or file of the user's own: the only source asked when given."""

    def room(self, what: str) -> Path:
        """Return the folder of the data set `what`, made if it is not there."""
        folder = self.downloads / what
        with writing_to(self.downloads):
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def obtain(
        self, what: str, wanted: Sequence[WantedFile], sources: Sequence[Source]
    ) -> dict[str, Path]:
        """Return a verified path for each wanted file of the data set `what`.

        Files already in the downloads folder come first. Raises `DataError` when one of those is
        damaged, or when no source has what is missing, listing every source with its reason.
        """
        room = self.room(what)
        here = {file.name: room / file.name for file in wanted if (room / file.name).is_file()}
        self._verify([file for file in wanted if file.name in here], here)
        missing = [file for file in wanted if file.name not in here]
        return here | self._ask(what, missing, sources, room) if missing else here

    def _ask(
        self, what: str, missing: Sequence[WantedFile], sources: Sequence[Source], room: Path
    ) -> dict[str, Path]:
        if self.source is not None:
            sources = [Folder(self.source if self.source.is_dir() else self.source.parent)]
        refusals = []
        for source in sources:
            if source.remote and self.offline:
                refusals.append(f"{source.label}: not asked, offline")
                continue
            try:
                found = dict(source.fetch([file.name for file in missing], room, self.progress))
                self._verify(missing, found)
            except SourceError as error:
                refusals.append(f"{source.label}: {error}")
            except DataError as error:
                # what a source has just delivered is not worth keeping; what it owns is not ours
                _discard(missing, room)
                refusals.append(f"{source.label}: {error}")
            except OSError as error:
                refusals.append(f"{source.label}: {error.strerror}")
            else:
                return found
        tried = "; ".join(refusals)
        message = f"Cannot obtain {what} (tried {tried}): put {missing[0].name} into {room}."
        raise DataError(message)

    def _verify(self, files: Sequence[WantedFile], paths: Mapping[str, Path]) -> None:
        for file in files:
            path = paths[file.name]
            self.progress(f"checking {file.name}", 0, 0)
            try:
                actual = content_sha256(path, gzipped=file.gzipped)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                message = f"{path} is truncated or damaged: delete it and it is fetched again."
                raise DataError(message) from error
            except OSError as error:
                message = f"{path} cannot be read ({error.strerror}): check its permissions."
                raise DataError(message) from error
            if actual != file.sha256:
                message = f"{path} has a wrong checksum: delete it and it is fetched again."
                raise DataError(message)


def _discard(files: Sequence[WantedFile], room: Path) -> None:
    for file in files:
        (room / file.name).unlink(missing_ok=True)
