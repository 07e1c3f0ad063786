"""The data sets by name, and what a data set is to the rest of Shoal: four tensors and a task.

Owns the list of data sets. Must not know how any of them is fetched, parsed or stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from shoal.arguments import unknown
from shoal.errors import UsageError
from shoal.workloads.cache import Arrays, converted, default_cache_dir, load_or_build
from shoal.workloads.fetch import Fetcher
from shoal.workloads.sets import (
    cifar10,
    digits,
    fashion_mnist,
    flights,
    reviews,
    text_stdlib,
    text_web,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

    from shoal.workloads.fetch import FetchProgress


class Task(Enum):
    """What is learned, and so how it is judged."""

    CLASSIFICATION = "classification"
    """One of several classes; accuracy, higher is better."""

    BINARY = "binary"
    """Yes or no; area under the ROC curve, higher is better."""

    LANGUAGE = "language"
    """The next symbol at every position; loss in nats per symbol, lower is better."""


class InputKind(Enum):
    """What a sample is, and so which models can read it."""

    IMAGE = "images"
    """float32 of shape (channels, height, width), normalized."""

    SYMBOLS = "symbols"
    """int64 of shape (length,), numbers below `num_classes`."""

    FIELDS = "categorical fields"
    """int64 of shape (fields,), column i below `field_sizes[i]`."""

    TOKENS = "tokens"
    """int64 of shape (length,), word pieces of MiniLM's vocabulary, 0 in unused places."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """A data set in memory, ready for a model. The first axis of every tensor counts samples.

    The tensors map files that other processes map too. Do not write to them.
    """

    name: str
    task: Task
    input_kind: InputKind
    train_inputs: Tensor
    train_targets: Tensor
    """int64: class numbers (N,), 0 or 1 (N,), or the next symbols (N, length)."""

    test_inputs: Tensor
    test_targets: Tensor
    num_classes: int
    """Classes; for a language the size of its vocabulary."""

    field_sizes: tuple[int, ...] = ()
    """Number of values of each categorical field."""

    fingerprint: str = ""
    """SHA-256 over all samples: workers with equal fingerprints train on equal data."""

    cache_dir: Path | None = None
    """The folder in which it is kept; pretrained weights are kept beside it."""


@dataclass(frozen=True, slots=True)
class Loader:
    """How one data set comes to be."""

    summary: str
    """A description of one line, for a list."""

    task: Task
    input_kind: InputKind
    load: Callable[[Fetcher], Arrays]
    edition: Callable[[], str] | None = None
    """A function that names this machine's content, where content differs between machines or
    versions."""


DATASETS: dict[str, Loader] = {
    "digits": Loader(
        "1,797 handwritten digits, 8 x 8",
        Task.CLASSIFICATION,
        InputKind.IMAGE,
        digits.load,
    ),
    "fashion-mnist": Loader(
        "70,000 pictures of clothes, 28 x 28",
        Task.CLASSIFICATION,
        InputKind.IMAGE,
        fashion_mnist.load,
    ),
    "cifar10": Loader(
        "60,000 color pictures, 32 x 32",
        Task.CLASSIFICATION,
        InputKind.IMAGE,
        cifar10.load,
    ),
    "cifar10-jpeg": Loader(
        "CIFAR-10 from picture files of your own",
        Task.CLASSIFICATION,
        InputKind.IMAGE,
        cifar10.load_pictures,
        lambda: "by-turns",  # earlier versions kept one class after the other
    ),
    "text-stdlib": Loader(
        "the Python standard library's source, byte by byte",
        Task.LANGUAGE,
        InputKind.SYMBOLS,
        text_stdlib.load,
        text_stdlib.edition,
    ),
    "text-web": Loader(
        "the World English Bible, byte by byte",
        Task.LANGUAGE,
        InputKind.SYMBOLS,
        text_web.load,
    ),
    "flights": Loader(
        "327,346 flights, late or not, 16 categorical fields",
        Task.BINARY,
        InputKind.FIELDS,
        flights.load,
    ),
    "reviews": Loader(
        "22,641 reviews of clothes, recommended or not",
        Task.BINARY,
        InputKind.TOKENS,
        reviews.load,
    ),
}
"""Every data set Shoal can train on, by the name users type."""


def load_dataset(
    name: str,
    cache_dir: Path | None = None,
    progress: FetchProgress | None = None,
    *,
    source: Path | None = None,
    offline: bool = False,
) -> Dataset:
    """Return the data set `name`, fetching and converting it on first use.

    `cache_dir` keeps it for next time (default `~/.cache/shoal`). `progress(what, done, total)` is
    called while there is something to wait for. `source` is a folder or file of the user's own that
    has the raw files. With `offline` nothing is asked over the network. Once converted, the cache
    answers and the last three are not used.

    Raises `UsageError` for an unknown name or a missing extra, `DataError` when the data cannot be
    had or trusted, `ResourceError` when the cache cannot be written.
    """
    loader = _loader(name)
    root = cache_dir or default_cache_dir()
    fetcher = Fetcher(root / "downloads", progress or _silent, offline=offline, source=source)
    arrays, fingerprint = load_or_build(root, _key(name), lambda: loader.load(fetcher))
    return _dataset(name, arrays, fingerprint, root)


def is_here(name: str, cache_dir: Path | None = None) -> bool:
    """Return whether the cache has the data set `name`, converted or as raw files.

    `cache_dir` is as for `load_dataset`. Raises `UsageError` for an unknown name.
    """
    key, root = _key(name), cache_dir or default_cache_dir()
    raw = (file for file in (root / "downloads" / name).glob("*") if file.suffix != ".part")
    return converted(root, key).is_dir() or any(raw)


def _key(name: str) -> str:
    edition = _loader(name).edition
    return f"{name}-{edition()}" if edition else name


def _loader(name: str) -> Loader:
    if name not in DATASETS:
        raise UsageError(unknown("There is no data set", name, DATASETS))
    return DATASETS[name]


def _silent(what: str, done: int, total: int) -> None:
    """Report nothing."""


def _dataset(name: str, arrays: Arrays, fingerprint: str, root: Path) -> Dataset:
    import torch

    return Dataset(
        name,
        DATASETS[name].task,
        DATASETS[name].input_kind,
        torch.from_numpy(arrays.train_inputs),
        torch.from_numpy(arrays.train_targets),
        torch.from_numpy(arrays.test_inputs),
        torch.from_numpy(arrays.test_targets),
        arrays.num_classes,
        arrays.field_sizes,
        fingerprint,
        root,
    )
