"""Shoal: data-parallel training that keeps moving on slow networks and with slow workers.

Importing this package loads no torch and starts nothing; names that need torch are loaded when they
are first used.
"""

from __future__ import annotations

from shoal.faces import face

__version__ = "0.2.0"

_get, __dir__ = face(__name__)
__all__ = __dir__()  # noqa: PLE0605 - the stub lists them


def __getattr__(name: str) -> object:
    try:
        return _get(name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from shoal.extras import install

        message = f"shoal.{name} needs PyTorch: {install('torch')}."
        raise ImportError(message) from error
