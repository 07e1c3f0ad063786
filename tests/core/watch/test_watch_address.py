"""Where a job is shown: what is taken for an address, and what is refused in a sentence."""

from __future__ import annotations

import pytest

from shoal.errors import UsageError
from shoal.watch import WatchAddress, watch_address


@pytest.mark.parametrize(
    ("asked", "host", "port", "is_loopback"),
    [
        (8265, "127.0.0.1", 8265, True),
        ("8265", "127.0.0.1", 8265, True),
        (":8265", "127.0.0.1", 8265, True),
        (":0", "127.0.0.1", 0, True),
        ("localhost:80", "localhost", 80, True),
        ("0.0.0.0:8265", "0.0.0.0", 8265, False),
        ("10.0.0.7:8265", "10.0.0.7", 8265, False),
        ("[::1]:8265", "::1", 8265, True),
        ("[::]:8265", "::", 8265, False),
    ],
)
def test_addresses(asked: str | int, host: str, port: int, is_loopback: bool) -> None:
    found = watch_address(asked, {"SHOAL_WATCH": ":1"})
    assert found == WatchAddress(host, port)
    assert found.is_loopback is is_loopback
    assert watch_address(None, {"SHOAL_WATCH": str(asked)}) == found
    assert watch_address(str(found), {}) == found


@pytest.mark.parametrize("asked", ["", "  ", None])
def test_nothing_is_nowhere(asked: str | None) -> None:
    assert watch_address(asked, {}) is None
    assert watch_address(None, {"SHOAL_WATCH": asked or ""}) is None


@pytest.mark.parametrize("asked", ["http", ":http", "host:", ":65536", -1, "8265 ", "²:²", "a:b:c"])
def test_what_is_no_address_is_refused(asked: str | int) -> None:
    if asked == "8265 ":
        assert watch_address(asked, {}) == WatchAddress("127.0.0.1", 8265)
        return
    with pytest.raises(UsageError, match=r"^watch is a port or an address"):
        watch_address(asked, {})
    with pytest.raises(UsageError, match=r"^SHOAL_WATCH is a port or an address"):
        watch_address(None, {"SHOAL_WATCH": str(asked)})
