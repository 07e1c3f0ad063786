"""NVUE: the tree has only branches and values that the command reference has.

Structural only: NVIDIA publishes no schema of this part that could be installed.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from switch_samples import any_settings, sharing, typical

from shoal.lab.switch_config import switch_config
from shoal.lab.switch_config.switch_settings import SwitchSettings
from shoal.switching.settings import CLASS_SELECTORS, Port, Queue
from thoroughness import examples

BYTES = range(1 << 32)
STATE = {"enable", "disable"}
ALPHAS = {f"alpha_1_{1 << k}" for k in range(1, 8)} | {f"alpha_{1 << k}" for k in range(7)}
PROFILE = {"profile": r"@[a-z0-9-]+"}
CLASS, PRIORITY = r"[0-7]", range(8)
COMMANDS: dict[str, Any] = {
    "interface": {
        r"swp\d+(s\d+)?": {
            "qos": {
                "congestion-control": PROFILE,
                "egress-scheduler": PROFILE,
                "egress-shaper": PROFILE,
                "mapping": PROFILE,
            }
        }
    },
    "qos": {
        "mapping": {
            "[a-z0-9-]+": {
                "trust": {"l2", "l3", "port", "both"},
                "dscp": {r"6[0-3]|[1-5]\d|\d": {"switch-priority": PRIORITY}},
            }
        },
        "egress-queue-mapping": {
            "default-global": {"switch-priority": {CLASS: {"traffic-class": PRIORITY}}}
        },
        "egress-scheduler": {
            "[a-z0-9-]+": {"traffic-class": {CLASS: {"mode": {"strict", "dwrr"}}}}
        },
        "egress-shaper": {"[a-z0-9-]+": {"port-max-rate": range(1, 1 << 31)}},
        "congestion-control": {
            "[a-z0-9-]+": {
                "traffic-class": {
                    CLASS: {
                        "ecn": STATE,
                        "red": STATE,
                        "min-threshold": BYTES,
                        "max-threshold": BYTES,
                        "probability": range(101),
                    }
                }
            }
        },
        "advance-buffer-config": {
            "default-global": {
                "egress-lossy-buffer": {
                    "traffic-class": {CLASS: {"shared-bytes": BYTES, "shared-alpha": ALPHAS}}
                },
                "egress-service-pool": {CLASS: {"mode": {"static", "dynamic"}}},
            }
        },
    },
}


def check(tree: Any, commands: Any) -> None:
    """Raise AssertionError for a branch or a value that there is no command for."""
    if not isinstance(commands, dict):
        assert tree in commands, tree
        return
    assert isinstance(tree, dict)
    assert tree
    for name, below in tree.items():
        assert isinstance(name, str), name
        [wanted] = [its for pattern, its in commands.items() if re.fullmatch(pattern, name)]
        if isinstance(wanted, str):
            assert re.fullmatch(wanted[1:], below), below
        else:
            check(below, wanted)


def tree_of(wanted: Any) -> dict[str, Any]:
    [patch] = yaml.safe_load(switch_config(wanted, "nvue").text)
    assert list(patch) == ["set"]
    tree: dict[str, Any] = patch["set"]
    return tree


@given(any_settings("nvue"))
@settings(deadline=None, max_examples=examples(40))
def test_there_is_a_command_for_every_branch(wanted: Any) -> None:
    tree = tree_of(wanted)
    check(tree, COMMANDS)
    for row in tree["interface"].values():
        for feature, its in row["qos"].items():
            assert its["profile"] in tree["qos"][feature]


@pytest.mark.parametrize("wanted", [typical("nvue"), sharing("nvue")])
def test_a_wrong_leaf_is_found(wanted: Any) -> None:
    tree = tree_of(wanted)
    check(tree, COMMANDS)
    tree["qos"]["congestion-control"]["shoal-1"]["traffic-class"]["7"]["weight"] = 3
    with pytest.raises(ValueError, match="not enough values"):
        check(tree, COMMANDS)


def test_limits_that_differ_are_not_written() -> None:
    written = switch_config(typical("nvue"), "nvue")
    assert "advance-buffer-config" not in written.text
    assert any("the queue's 200000 bytes are not written" in note for note in written.notes)
    assert any("the queue's 400000 bytes are not written" in note for note in written.notes)


def test_shares_that_differ_between_ports_are_not_written() -> None:
    queues = (Queue(share=0.5), *(Queue(share=0.25),) * 7)
    ports = {"swp1": Port(10**9, queues), "swp2": Port(10**9, queues[1:] + queues[:1])}
    wanted = SwitchSettings(ports, CLASS_SELECTORS, 100_000)
    buffers = tree_of(wanted)["qos"]["advance-buffer-config"]["default-global"]
    classes = buffers["egress-lossy-buffer"]["traffic-class"]
    assert classes == {str(number): {"shared-alpha": "alpha_1_4"} for number in range(1, 7)}
    [note] = [note for note in switch_config(wanted, "nvue").notes if "differ here" in note]
    assert note.endswith("[swp1, swp2 queues 0, 7]")
