"""Where raw files come from: the order of sources, checksums, and what the error says."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from shoal.errors import DataError
from shoal.workloads.fetch import Fetcher, Folder, SourceError, WantedFile, content_sha256

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from shoal.workloads.fetch import FetchProgress

CONTENT = {"a.bin": b"first file", "b.bin": b"second file"}
WANTED = [WantedFile(name, hashlib.sha256(data).hexdigest()) for name, data in CONTENT.items()]


@dataclass
class FakeSource:
    """Puts given contents into the room, or refuses."""

    label: str
    content: dict[str, bytes]
    remote: bool = True
    asked: list[list[str]] = field(default_factory=list)

    def fetch(self, names: Sequence[str], room: Path, progress: FetchProgress) -> dict[str, Path]:
        self.asked.append(list(names))
        if not set(names) <= set(self.content):
            raise SourceError("it is down")
        for name in names:
            (room / name).write_bytes(self.content[name])
        return {name: room / name for name in names}


def fetcher(tmp_path: Path, **options: object) -> Fetcher:
    return Fetcher(tmp_path / "downloads", lambda *_: None, **options)  # type: ignore[arg-type]


def test_first_source_that_has_the_files_is_used(tmp_path: Path):
    down, good, spare = (
        FakeSource("down", {}),
        FakeSource("good", CONTENT),
        FakeSource("spare", CONTENT),
    )
    paths = fetcher(tmp_path).obtain("toy", WANTED, [down, good, spare])
    assert {name: path.read_bytes() for name, path in paths.items()} == CONTENT
    assert (len(down.asked), len(good.asked), len(spare.asked)) == (1, 1, 0)


def test_kept_files_are_not_fetched_again(tmp_path: Path):
    source = FakeSource("good", CONTENT)
    first = fetcher(tmp_path).obtain("toy", WANTED, [source])
    assert fetcher(tmp_path).obtain("toy", WANTED, [source]) == first
    assert len(source.asked) == 1


def test_only_missing_files_are_asked_for(tmp_path: Path):
    room = tmp_path / "downloads" / "toy"
    room.mkdir(parents=True)
    (room / "a.bin").write_bytes(CONTENT["a.bin"])
    source = FakeSource("good", CONTENT)
    paths = fetcher(tmp_path).obtain("toy", WANTED, [source])
    assert source.asked == [["b.bin"]]
    assert set(paths) == {"a.bin", "b.bin"}


def test_kept_file_with_wrong_content_is_named(tmp_path: Path):
    source = FakeSource("good", CONTENT)
    paths = fetcher(tmp_path).obtain("toy", WANTED, [source])
    paths["a.bin"].write_bytes(b"first fil")
    with pytest.raises(DataError, match=r"a\.bin has a wrong checksum: delete it and it is"):
        fetcher(tmp_path).obtain("toy", WANTED, [source])
    paths["a.bin"].unlink()
    assert fetcher(tmp_path).obtain("toy", WANTED, [source])["a.bin"].read_bytes() == b"first file"


def test_wrong_content_from_one_source_is_dropped_for_the_next(tmp_path: Path):
    wrong = FakeSource("wrong", CONTENT | {"b.bin": b"tampered"})
    good = FakeSource("good", CONTENT)
    paths = fetcher(tmp_path).obtain("toy", WANTED, [wrong, good])
    assert paths["b.bin"].read_bytes() == CONTENT["b.bin"]


def test_error_lists_every_source_and_where_to_put_the_file(tmp_path: Path):
    wrong = FakeSource("mirror", CONTENT | {"b.bin": b"tampered"})
    sources = [FakeSource("site", {}), wrong, Folder(tmp_path / "nowhere")]
    with pytest.raises(DataError) as caught:
        fetcher(tmp_path).obtain("toy", WANTED, sources)
    message = str(caught.value)
    assert "Cannot obtain toy" in message
    assert "site: it is down" in message
    assert "mirror: " in message
    assert "wrong checksum" in message
    assert "nowhere: no such folder" in message
    assert message.endswith(f"put a.bin into {tmp_path / 'downloads' / 'toy'}.")
    assert not (tmp_path / "downloads" / "toy" / "a.bin").exists()


def test_offline_asks_no_remote_source(tmp_path: Path):
    remote, local = FakeSource("remote", CONTENT), FakeSource("local", CONTENT, remote=False)
    fetcher(tmp_path, offline=True).obtain("toy", WANTED, [remote, local])
    assert remote.asked == []
    with pytest.raises(DataError, match="remote: not asked, offline"):
        fetcher(tmp_path / "other", offline=True).obtain("toy", WANTED, [remote])


def test_folder_is_read_in_place_and_never_cleaned(tmp_path: Path):
    system = tmp_path / "system"
    system.mkdir()
    (system / "a.bin").write_bytes(b"not it")
    (system / "b.bin").write_bytes(CONTENT["b.bin"])
    with pytest.raises(DataError, match="wrong checksum"):
        fetcher(tmp_path).obtain("toy", WANTED, [Folder(system)])
    assert (system / "a.bin").read_bytes() == b"not it"
    (system / "a.bin").write_bytes(CONTENT["a.bin"])
    paths = fetcher(tmp_path).obtain("toy", WANTED, [Folder(system)])
    assert paths["a.bin"] == system / "a.bin"


class FullDisk(FakeSource):
    def fetch(self, names: Sequence[str], room: Path, progress: FetchProgress) -> dict[str, Path]:
        raise OSError(28, "No space left on device")


def test_full_disk_is_a_reason_like_any_other(tmp_path: Path):
    with pytest.raises(DataError, match="site: No space left on device"):
        fetcher(tmp_path).obtain("toy", WANTED, [FullDisk("site", {})])


def test_own_source_is_the_only_one_asked(tmp_path: Path):
    other = FakeSource("other", CONTENT)
    own = tmp_path / "own"
    own.mkdir()
    with pytest.raises(DataError, match=r"own: it has no a\.bin"):
        fetcher(tmp_path, source=own).obtain("toy", WANTED, [other])
    assert other.asked == []
    for name, data in CONTENT.items():
        (own / name).write_bytes(data)
    by_file = fetcher(tmp_path, source=own / "a.bin").obtain("toy", WANTED, [other])
    assert by_file["a.bin"] == own / "a.bin"


def test_checksum_of_gzip_is_that_of_its_content(tmp_path: Path):
    fast, small = tmp_path / "fast.gz", tmp_path / "small.gz"
    fast.write_bytes(gzip.compress(b"x" * 1000, 1))
    small.write_bytes(gzip.compress(b"x" * 1000, 9, mtime=7))
    assert content_sha256(fast, gzipped=True) == content_sha256(small, gzipped=True)
    assert content_sha256(fast, gzipped=False) != content_sha256(small, gzipped=False)


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: b"no gzip" + data])
def test_damaged_gzip_is_named(tmp_path: Path, damage):
    room = tmp_path / "downloads" / "toy"
    room.mkdir(parents=True)
    (room / "c.gz").write_bytes(damage(gzip.compress(b"content" * 50)))
    wanted = WantedFile("c.gz", hashlib.sha256(b"content" * 50).hexdigest(), gzipped=True)
    with pytest.raises(DataError, match=r"c\.gz is truncated or damaged: delete it"):
        fetcher(tmp_path).obtain("toy", [wanted], [])
