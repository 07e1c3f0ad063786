"""Says how a missing optional dependency is installed, from where Shoal itself came.

Shoal is on no package index, so `pip install "shoal[data]"` would find nothing, or something of a
stranger's: pip has noted where it took this package from (PEP 610), and the package what each extra
needs.
"""

from __future__ import annotations

from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from shoal.decoding import decode_json
from shoal.errors import DataError

EXTRA_OF: Final = {
    "torch": "torch",
    "prometheus_client": "metrics",
    "ray": "ray",
    "sklearn": "data",
    "pyarrow": "data",
    "PIL": "data",
    "filelock": "data",
    "transformers": "text",
}
"""The extra that brings a module."""


_FROM_SOURCE: Final = "pip install '.[{}]' in Shoal's source folder"


class _Folder(msgspec.Struct, frozen=True):
    editable: bool = False


class _Repository(msgspec.Struct, frozen=True):
    vcs: str = "git"


class _Origin(msgspec.Struct, frozen=True):
    """What pip notes in direct_url.json."""

    url: str
    dir_info: _Folder | None = None
    vcs_info: _Repository | None = None


def install(extras: str, of: str = "shoal") -> str:
    """Return the command that installs the extras `extras`, such as "torch" or "data,text".

    `of` is the distribution that has them.
    """
    try:
        whole = distribution(of)
    except PackageNotFoundError:  # a source tree on the path
        return _FROM_SOURCE.format(extras)
    where = _place(whole, extras)
    if where is not None:
        return f"pip install {where}"
    needed = _requirements(whole, extras.split(","))
    if not needed:  # naming the distribution would ask an index for it
        return _FROM_SOURCE.format(extras)
    return " ".join(["pip install", *(f"'{each}'" for each in needed)])


def _place(whole: Distribution, extras: str) -> str | None:
    """Return where pip took it from, as an argument for pip; None if that is gone."""
    noted = whole.read_text("direct_url.json")
    if noted is None:
        return None
    try:
        origin = decode_json(noted, _Origin, "direct_url.json is not pip's")
    except DataError:
        return None
    if origin.vcs_info is not None:
        return f"'{whole.name}[{extras}] @ {origin.vcs_info.vcs}+{origin.url}'"
    url = urlsplit(origin.url)
    path = Path(unquote(url.path))
    if url.scheme != "file" or not path.exists():
        return None
    option = "-e " if origin.dir_info is not None and origin.dir_info.editable else ""
    return f"{option}'{path}[{extras}]'"


def _requirements(whole: Distribution, extras: list[str]) -> list[str]:
    """Return what the extras need, as the metadata has it."""
    found = []
    for each in whole.requires or ():
        requirement, _, marker = each.partition(";")
        if any(marker.replace("'", '"').strip() == f'extra == "{extra}"' for extra in extras):
            found.append(requirement.strip())
    return found
