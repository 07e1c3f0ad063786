"""text-web: the World English Bible (public domain), byte by byte, one verse to a line.

The text comes as a zText module of the SWORD library: a file of compressed blocks (.bzz), a table
of the blocks (.bzs) and a table of the verses in them (.bzv), in two testaments.
"""

from __future__ import annotations

import html
import re
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.workloads.fetch import Fetcher, Folder, WantedFile
from shoal.workloads.packages import DebianPackage
from shoal.workloads.sets.text import windows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.workloads.cache import Arrays

_MODULE = "usr/share/sword/modules/texts/ztext/engWEB2015eb"
FILES = (
    WantedFile("ot.bzs", "2c16645bb829c05b20f39769e1fa23212743335143833a819f29e412c6def8ce"),
    WantedFile("ot.bzv", "dbd3b762b7159c5dd4b535f75b6ab643fb62ae44f4655aff3c5098a955a1ae57"),
    WantedFile("ot.bzz", "4633066d3872f1a3e600d2d10e667a13cd6c32bf116ca971d3c8f288bc3ea453"),
    WantedFile("nt.bzs", "bec87a360bbc6bfbcd7de513edf928ceebb428dd2baff813aebf521bb0c6cc83"),
    WantedFile("nt.bzv", "bb7a522d8323ccd7be462fca4dcd53c06d966c140fe260a6295e05393d259338"),
    WantedFile("nt.bzz", "5429389d9331b7a86901a73afa74f32d089cae3d5bd8dfe304b11808714a69ba"),
)
SOURCES = (Folder(Path("/") / _MODULE), DebianPackage("sword-text-web", _MODULE))


def load(fetcher: Fetcher) -> Arrays:
    """Return windows of the World English Bible (public domain), one verse to a line."""
    paths = fetcher.obtain("text-web", FILES, SOURCES)
    verses = [verse for part in ("ot", "nt") for verse in _verses(paths, part)]
    return windows("\n".join(verses).encode())


def _verses(paths: dict[str, Path], part: str) -> Iterator[str]:
    """Yield the verses of one testament that have any words.

    .bzs holds (offset, length, length unpacked) of each block, .bzv (block, offset, length) of
    each verse in its unpacked block; all little-endian.
    """
    books, verses, texts = (paths[f"{part}.bz{kind}"].read_bytes() for kind in "svz")
    blocks = [
        zlib.decompress(texts[offset : offset + length]) if length else b""
        for offset, length, _ in struct.iter_unpack("<III", books)
    ]
    for block, offset, length in struct.iter_unpack("<IIH", verses):
        plain = plain_text(blocks[block][offset : offset + length].decode())
        if plain:
            yield plain


def plain_text(markup: str) -> str:
    """Return the words of a verse in OSIS markup: no titles, no notes, no tags."""
    words = re.sub(r"<(note|title)\b[^>]*>.*?</\1>", " ", markup, flags=re.DOTALL)
    words = html.unescape(re.sub(r"<[^>]*>", "", words))
    return re.sub(r" ([,.;:?!])", r"\1", " ".join(words.split()))
