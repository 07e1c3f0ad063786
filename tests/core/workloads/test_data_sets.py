"""Each data set's raw format to arrays, on small files made here; digits and Fashion-MNIST real."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import pickle
import shutil
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from shoal.errors import DataError, UsageError
from shoal.workloads.dataset import DATASETS, InputKind, Task, is_here, load_dataset
from shoal.workloads.fetch import WantedFile
from shoal.workloads.sets import cifar10, fashion_mnist, flights, text, text_web
from shoal.workloads.sets.split import random_split

needs_pillow = pytest.mark.skipif(
    importlib.util.find_spec("PIL") is None, reason="Pillow is not installed"
)


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return gzip.compress(header + array.astype(np.uint8).tobytes())


@pytest.fixture
def small_fashion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four IDX files in a folder, whose checksums take the place of the real ones."""
    random = np.random.default_rng(0)
    folder = tmp_path / "raw"
    folder.mkdir()
    wanted = []
    for file, count in zip(fashion_mnist.FILES, (30, 30, 10, 10), strict=True):
        images = "images" in file.name
        array = random.integers(0, 256, (count, 28, 28)) if images else np.arange(count) % 10
        (folder / file.name).write_bytes(idx(array))
        content = gzip.decompress((folder / file.name).read_bytes())
        wanted.append(WantedFile(file.name, hashlib.sha256(content).hexdigest(), gzipped=True))
    monkeypatch.setattr(fashion_mnist, "FILES", tuple(wanted))
    return folder


def test_idx_files_become_a_normalized_dataset(small_fashion: Path, tmp_path: Path):
    dataset = load_dataset("fashion-mnist", tmp_path / "cache", source=small_fashion)
    assert dataset.train_inputs.shape == (30, 1, 28, 28)
    assert dataset.test_inputs.shape == (10, 1, 28, 28)
    assert dataset.train_inputs.dtype == torch.float32
    assert dataset.train_targets.tolist() == [i % 10 for i in range(30)]
    assert dataset.train_inputs.mean().item() == pytest.approx(0, abs=1e-5)
    assert dataset.train_inputs.std(correction=0).item() == pytest.approx(1, abs=1e-4)
    assert (dataset.task, dataset.input_kind) == (Task.CLASSIFICATION, InputKind.IMAGE)


def test_normalization_uses_the_training_pictures_alone(small_fashion: Path, tmp_path: Path):
    dataset = load_dataset("fashion-mnist", tmp_path / "cache", source=small_fashion)
    raw = fashion_mnist.read_idx(small_fashion / "train-images-idx3-ubyte.gz")
    test = fashion_mnist.read_idx(small_fashion / "t10k-images-idx3-ubyte.gz")
    expected = (test.astype(np.float64) - raw.mean()) / raw.std()
    np.testing.assert_allclose(dataset.test_inputs[:, 0].numpy(), expected, atol=1e-5)


def test_second_load_needs_no_raw_files(small_fashion: Path, tmp_path: Path):
    first = load_dataset("fashion-mnist", tmp_path / "cache", source=small_fashion)
    for path in small_fashion.iterdir():
        path.unlink()
    again = load_dataset("fashion-mnist", tmp_path / "cache", offline=True)
    assert again.fingerprint == first.fingerprint
    assert torch.equal(again.train_inputs, first.train_inputs)


def test_truncated_raw_file_is_named(small_fashion: Path, tmp_path: Path):
    path = small_fashion / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz is truncated or damaged"):
        load_dataset("fashion-mnist", tmp_path / "cache", source=small_fashion)


def test_damaged_cached_file_is_named(small_fashion: Path, tmp_path: Path):
    load_dataset("fashion-mnist", tmp_path / "cache", source=small_fashion)
    path = tmp_path / "cache" / "fashion-mnist-v1" / "train_inputs.npy"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"train_inputs\.npy is damaged \(1000 bytes instead"):
        load_dataset("fashion-mnist", tmp_path / "cache")


@pytest.mark.parametrize("content", [b"", b"\0\0\x08", b"\0\0\x0d\x01" + b"\0" * 20, b"\1" * 40])
def test_other_formats_are_not_idx(tmp_path: Path, content: bytes):
    (tmp_path / "x.gz").write_bytes(gzip.compress(content))
    with pytest.raises(DataError, match="not a file of bytes in the IDX format"):
        fashion_mnist.read_idx(tmp_path / "x.gz")


def test_digits_come_from_the_installed_package(tmp_path: Path):
    try:
        dataset = load_dataset("digits", tmp_path, offline=True)
    except DataError as error:
        pytest.skip(f"needs scikit-learn: {error}")
    assert dataset.train_inputs.shape == (1438, 1, 8, 8)
    assert dataset.test_inputs.shape == (359, 1, 8, 8)
    counts = torch.bincount(torch.cat([dataset.train_targets, dataset.test_targets]))
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_real_fashion_mnist():
    """Uses the user's own cache and whatever this machine has; skips where that is nothing."""
    try:
        dataset = load_dataset("fashion-mnist", offline=True)
    except DataError as error:
        pytest.skip(f"Fashion-MNIST is not on this machine: {error}")
    assert dataset.train_inputs.shape == (60000, 1, 28, 28)
    assert torch.bincount(dataset.train_targets).tolist() == [6000] * 10
    assert torch.bincount(dataset.test_targets).tolist() == [1000] * 10
    black = dataset.train_inputs.min().item()  # mean 0.2860, deviation 0.3530 (of 1 for white)
    white = dataset.train_inputs.max().item()
    assert 1 / (white - black) == pytest.approx(0.3530, abs=1e-4)
    assert -black / (white - black) == pytest.approx(0.2860, abs=1e-4)


def test_text_windows_predict_the_next_byte():
    content = bytes(np.random.default_rng(0).integers(0, 256, 400_000, dtype=np.uint8))
    arrays = text.windows(content)
    assert arrays.train_inputs.shape[1] == 64
    np.testing.assert_array_equal(arrays.train_inputs[:, 1:], arrays.train_targets[:, :-1])
    np.testing.assert_array_equal(arrays.test_inputs[:, 1:], arrays.test_targets[:, :-1])
    np.testing.assert_array_equal(arrays.train_inputs[0], list(content[:64]))
    assert arrays.train_targets[0, -1] == content[64]
    count = (len(content) - 1) // 64
    assert len(arrays.train_inputs) + len(arrays.test_inputs) == count
    # the tenth run of 256 windows is the first one kept for the test
    np.testing.assert_array_equal(arrays.test_inputs[0], list(content[9 * 16384 :][:64]))


def test_short_text_is_refused():
    with pytest.raises(DataError, match="too short"):
        text.windows(b"short")


def test_standard_library_text(tmp_path: Path):
    dataset = load_dataset("text-stdlib", tmp_path, offline=True)
    assert dataset.num_classes == 256
    assert dataset.task is Task.LANGUAGE
    words = bytes(dataset.train_inputs[:20_000].flatten().to(torch.uint8).tolist())
    assert words.count(b"def ") > 1000
    assert int(dataset.train_inputs.max()) < 256


def test_text_of_the_users_own_folder(tmp_path: Path):
    (tmp_path / "mine" / "test").mkdir(parents=True)
    (tmp_path / "mine" / "test" / "left_out.py").write_text("never " * 100_000)
    with pytest.raises(DataError, match="has no Python sources"):
        load_dataset("text-stdlib", tmp_path / "cache", source=tmp_path / "mine")
    (tmp_path / "mine" / "a.py").write_text("# a line\n" * 40_000)
    dataset = load_dataset("text-stdlib", tmp_path / "cache", source=tmp_path / "mine")
    assert bytes(dataset.train_inputs[0].tolist()).startswith(b"# a line\n# a")


def test_verse_markup_leaves_only_words():
    verse = (
        '<title>Genesis</title><w lemma="strong:H0430">God</w><note placement="foot">Hebrew: '
        '<reference>1:1</reference>Elohim</note><w lemma="x">made</w> <l level="1"/>&amp; saw '
        "<note>or: looked</note>, <b/> so."
    )
    assert text_web.plain_text(verse) == "God made & saw, so."


def test_sword_module_is_read_verse_by_verse(tmp_path: Path):
    books = [b"<w>First</w> verse.Second<note>x</note> one.", "Third “three”.".encode()]
    packed = [zlib.compress(book) for book in books]
    table, offset = b"", 0
    for book, data in zip(books, packed, strict=True):
        table += struct.pack("<III", offset, len(data), len(book))
        offset += len(data)
    verses = [(0, 0, 19), (0, 0, 0), (0, 19, 25), (1, 0, len(books[1]))]
    parts = {"s": table, "v": b"".join(struct.pack("<IIH", *v) for v in verses)}
    parts["z"] = b"".join(packed)
    for kind, data in parts.items():
        (tmp_path / f"ot.bz{kind}").write_bytes(data)
    paths = {f"ot.bz{kind}": tmp_path / f"ot.bz{kind}" for kind in "svz"}
    assert list(text_web._verses(paths, "ot")) == ["First verse.", "Second one.", "Third “three”."]


FLIGHTS = """\
year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,\
tailnum,origin,dest,air_time,distance,hour,minute,time_hour
2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z
2013,1,7,533,529,4,850,830,20,UA,1714,N24211,LGA,IAH,227,1416,5,29,2013-01-01T10:00:00Z
2013,12,31,NA,540,NA,NA,850,NA,AA,1141,NA,JFK,MIA,NA,1089,5,40,2013-12-31T10:00:00Z
2013,6,30,544,545,-1,1004,1022,15,B6,725,,JFK,BQN,183,1576,5,45,2013-06-30T10:00:00Z
"""


def test_flights_that_arrived_become_fields(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", FLIGHTS)
    fields, late = flights.read_table(tmp_path / "flights.csv.zip")
    assert late == [False, True, False]
    named = dict(zip(flights.FIELDS, fields[1], strict=True))
    assert named["weekday"] == "0"  # 7 January 2013 was a Monday
    assert named["week"] == "2"
    assert named["arrival hour"] == "8"
    assert named["route"] == "LGA-IAH"
    assert named["carrier and destination"] == "UA-IAH"
    assert named["distance band"] == "14"


def test_table_arrays_number_each_field():
    rows = [(str(i % 3), str(i % 7)) for i in range(50)]
    arrays = flights.table_arrays(rows, [i % 2 == 0 for i in range(50)])
    assert arrays.field_sizes == (3, 7)
    assert (len(arrays.train_inputs), len(arrays.test_inputs)) == (40, 10)
    train, _ = random_split(50, 0.2)
    assert arrays.train_inputs.tolist() == [[i % 3, i % 7] for i in train]
    assert arrays.train_targets.tolist() == [int(i % 2 == 0) for i in train]


def test_split_is_a_partition_that_never_changes():
    train, test = random_split(10, 0.3)
    assert sorted([*train, *test]) == list(range(10))
    assert test.tolist() == random_split(10, 0.3)[1].tolist() == [4, 6, 2]


def cifar_archive(path: Path) -> None:
    random = np.random.default_rng(0)
    with tarfile.open(path, "w:gz") as archive:
        for number, name in enumerate([*cifar10._TRAIN_BATCHES, "test_batch"]):
            pixels = random.integers(0, 256, (4, 3072), dtype=np.uint8)
            pixels[:, :1024] = 10 * number  # the red plane tells the batches apart
            content = pickle.dumps({b"data": pixels, b"labels": [number, 1, 2, 3]})
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def test_cifar_archive_is_read_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / cifar10.ARCHIVE
    cifar_archive(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(cifar10, "FILES", (WantedFile(cifar10.ARCHIVE, digest),))
    dataset = load_dataset("cifar10", tmp_path / "cache", source=path)
    assert dataset.train_inputs.shape == (20, 3, 32, 32)
    assert dataset.train_targets[::4].tolist() == [0, 1, 2, 3, 4]
    assert dataset.test_targets.tolist() == [5, 1, 2, 3]
    red = dataset.train_inputs[::4, 0, 0, 0]
    assert torch.all(red[1:] > red[:-1])


def test_unverified_cifar_archive_is_never_unpickled(tmp_path: Path):
    path = tmp_path / cifar10.ARCHIVE
    cifar_archive(path)
    with pytest.raises(DataError, match="wrong checksum"):
        load_dataset("cifar10", tmp_path / "cache", source=path)


def picture_folder(root: Path) -> Path:
    from PIL import Image

    for part in ("train", "test"):
        for shade, name in ((0, "airplane"), (250, "truck")):
            (root / part / name).mkdir(parents=True)
            for number in range(2):
                picture = Image.new("RGB", (32, 32), (shade, 100 + shade // 50, number))
                picture.save(root / part / name / f"{number:04}.jpg")
    return root


@needs_pillow
@pytest.mark.parametrize("packed", [False, True])
def test_pictures_from_a_folder_or_a_tar(tmp_path: Path, packed: bool):
    source = picture_folder(tmp_path / "pictures")
    if packed:
        with tarfile.open(tmp_path / "pictures.tar.xz", "w:xz") as archive:
            archive.add(source, "pictures")
        source = tmp_path / "pictures.tar.xz"
    dataset = load_dataset("cifar10-jpeg", tmp_path / "cache", source=source)
    assert dataset.name == "cifar10-jpeg"
    assert dataset.train_inputs.shape == dataset.test_inputs.shape == (4, 3, 32, 32)
    # whoever looks at the first test samples only sees all classes
    assert dataset.train_targets.tolist() == dataset.test_targets.tolist() == [0, 1, 0, 1]
    assert dataset.train_inputs[0, 0].mean() < -0.9 < 0.9 < dataset.train_inputs[1, 0].mean()


@needs_pillow
@pytest.mark.parametrize("packed", [False, True])
def test_pictures_that_lie_where_downloads_do_need_no_source(tmp_path: Path, packed: bool):
    room = tmp_path / "downloads" / "cifar10-jpeg"
    assert not is_here("cifar10-jpeg", tmp_path)
    with pytest.raises(DataError, match=f"put a tar of .* into {room}"):
        load_dataset("cifar10-jpeg", tmp_path)
    assert not is_here("cifar10-jpeg", tmp_path)
    source = picture_folder(room if not packed else tmp_path / "pictures")
    if packed:
        with tarfile.open(room / "pictures.tar", "w") as archive:
            archive.add(source, "pictures")
    assert is_here("cifar10-jpeg", tmp_path)
    assert len(load_dataset("cifar10-jpeg", tmp_path).train_inputs) == 4
    shutil.rmtree(room)
    assert is_here("cifar10-jpeg", tmp_path)  # converted


@needs_pillow
def test_damaged_pictures_are_a_data_error(tmp_path: Path):
    source = picture_folder(tmp_path / "pictures")
    (source / "train" / "truck" / "0000.jpg").write_bytes(b"no picture")
    with pytest.raises(DataError, match="Cannot read pictures from"):
        load_dataset("cifar10-jpeg", tmp_path / "cache", source=source)


@needs_pillow
def test_pictures_of_two_sizes_are_a_data_error(tmp_path: Path):
    from PIL import Image

    source = picture_folder(tmp_path / "pictures")
    Image.new("RGB", (16, 16)).save(source / "train" / "truck" / "small.jpg")
    with pytest.raises(DataError, match="pictures of different sizes"):
        load_dataset("cifar10-jpeg", tmp_path / "cache", source=source)


def test_a_source_without_pictures_is_a_data_error(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no pictures named"):
        load_dataset("cifar10-jpeg", tmp_path, source=tmp_path / "empty")


def test_unknown_name_lists_the_known_ones(tmp_path: Path):
    with pytest.raises(UsageError) as caught:
        load_dataset("mnist", tmp_path)
    assert all(name in str(caught.value) for name in DATASETS)


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10", "text-web", "flights"])
def test_offline_without_files_lists_what_was_not_asked(name: str, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=f"Cannot obtain {name}"):
        load_dataset(name, tmp_path / "cache", source=tmp_path / "empty", offline=True)


def test_reviews_say_which_extra_they_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(UsageError, match=r"tokenizers: pip install .*\[data,text\]'"):
        load_dataset("reviews", tmp_path, offline=True)
