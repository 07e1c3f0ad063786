"""What compiled functions refuse when Python calls them."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.transport.tables import OUTGOING
from shoal.transport.tags import clear_tags


def test_an_array_with_gaps_is_refused() -> None:
    with pytest.raises(TypeError, match="contiguous"):
        clear_tags(np.zeros(4, OUTGOING)[::2])


def test_a_missing_argument_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        clear_tags()  # type: ignore[call-arg]
