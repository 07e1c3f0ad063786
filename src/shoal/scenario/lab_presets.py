"""The labs that `shoal lab check` measures if it is given none: small, slow, with all features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.scenario.spec_file import parse_spec

if TYPE_CHECKING:
    from shoal.scenario.cluster_spec import ClusterSpec

STAR: Final = """
[hosts]
count = 4

[access]
rate = "100 Mbit/s"
delay = "100 us"
loss = "0.5 %"

[switch]
port_buffer = "128 kB"

[[switch.queue]]
capable = { from = "30 kB" }
"""

LEAF_SPINE: Final = """
[hosts]
count = 4

[topology]
shape = "leaf-spine"
leaves = 2
spines = 2

[access]
rate = "100 Mbit/s"
delay = "50 us"

[trunk]
rate = "50 Mbit/s"
delay = "200 us"
loss = "0.1 %"

[switch]
port_buffer = "64 kB"
forwarding = "packet"

[[switch.queue]]
plain = { from = "15 kB" }
capable = { from = "30 kB" }
"""


def usual_labs() -> dict[str, ClusterSpec]:
    """Return the labs by their names."""
    return {
        name: parse_spec(text, name) for name, text in (("star", STAR), ("leaf-spine", LEAF_SPINE))
    }
