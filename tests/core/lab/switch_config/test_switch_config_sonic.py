"""SONiC's tables: by a short schema always, by SONiC's own YANG models where they are at hand.

The models are in a checkout of sonic-net/sonic-buildimage: set SONIC_YANG_MODELS to its
src/sonic-yang-models, and install yangson (which checks) and pyang (which has the IETF's modules).
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from switch_samples import any_settings, sharing, typical

from shoal.lab.switch_config import switch_config
from thoroughness import examples

Tables = dict[str, dict[str, dict[str, str]]]

NAME = r"[a-zA-Z0-9][-a-zA-Z0-9_]{0,31}"
WHOLE = r"\d+"
PERCENT = r"100|\d\d?"
CLASS = r"[0-7]"
DSCP = r"6[0-3]|[1-5]\d|\d"
QUEUE_KEY = r"(Ethernet\d+)\|[0-7]"
COLORS = ("green", "yellow", "red")
FIELDS: dict[str, tuple[str, dict[str, str]]] = {
    "DSCP_TO_TC_MAP": (NAME, {DSCP: CLASS}),
    "TC_TO_QUEUE_MAP": (NAME, {CLASS: CLASS}),
    "SCHEDULER": (
        r"\w+",
        {"type": "STRICT", "meter_type": "bytes", "cir": r"[1-9]\d*", "pir": WHOLE},
    ),
    "PORT_QOS_MAP": (
        r"Ethernet\d+",
        {
            "dscp_to_tc_map": "@DSCP_TO_TC_MAP",
            "tc_to_queue_map": "@TC_TO_QUEUE_MAP",
            "scheduler": "@SCHEDULER",
        },
    ),
    "WRED_PROFILE": (
        NAME,
        {"ecn": "ecn_all"}
        | {f"wred_{color}_enable": "true|false" for color in COLORS}
        | {f"{color}_{end}_threshold": WHOLE for color in COLORS for end in ("min", "max")}
        | {f"{color}_drop_probability": PERCENT for color in COLORS},
    ),
    "QUEUE": (QUEUE_KEY, {"scheduler": "@SCHEDULER", "wred_profile": "@WRED_PROFILE"}),
    "BUFFER_POOL": (r"\w+", {"type": "egress", "mode": "static|dynamic", "size": WHOLE}),
    "BUFFER_PROFILE": (
        r"[-\w]+",
        {"pool": "@BUFFER_POOL", "size": "0", "static_th": WHOLE, "dynamic_th": "-[1-8]|[0-7]"},
    ),
    "BUFFER_QUEUE": (QUEUE_KEY, {"profile": "@BUFFER_PROFILE"}),
    "BUFFER_PORT_EGRESS_PROFILE_LIST": (r"Ethernet\d+", {"profile_list": "@BUFFER_PROFILE"}),
}


def check(tables: Tables) -> None:
    """Raise AssertionError for a name, field, value or reference that the schema does not have."""
    for table, rows in tables.items():
        key_pattern, fields = FIELDS[table]
        assert rows, table
        for key, row in rows.items():
            assert re.fullmatch(key_pattern, key), (table, key)
            for name, value in row.items():
                [wanted] = [its for field, its in fields.items() if re.fullmatch(field, name)]
                if wanted.startswith("@"):
                    assert value in tables[wanted[1:]], (table, key, value)
                else:
                    assert re.fullmatch(wanted, value), (table, key, name, value)
    for row in tables.get("WRED_PROFILE", {}).values():
        for color in COLORS:
            assert int(row[f"{color}_min_threshold"]) <= int(row[f"{color}_max_threshold"])
    modes = {row["mode"] for row in tables.get("BUFFER_POOL", {}).values()}
    for row in tables.get("BUFFER_PROFILE", {}).values():
        assert {"dynamic_th" in row and "dynamic", "static_th" in row and "static"} - {
            False
        } == modes


def tables_of(settings: Any) -> Tables:
    loaded: Tables = json.loads(switch_config(settings, "sonic").text)
    return loaded


@given(any_settings("sonic"))
@settings(deadline=None, max_examples=examples(50))
def test_tables_have_only_what_the_schema_has(wanted: Any) -> None:
    check(tables_of(wanted))


@pytest.mark.parametrize(
    ("table", "field", "value"),
    [
        ("QUEUE", "scheduler", "nobody"),
        ("QUEUE", "weight", "1"),
        ("WRED_PROFILE", "green_min_threshold", "9" * 12),
        ("WRED_PROFILE", "red_drop_probability", "101"),
        ("BUFFER_PROFILE", "dynamic_th", "8"),
        ("PORT_QOS_MAP", "dscp_to_tc_map", "AZURE"),
    ],
)
def test_the_schema_refuses_what_sonic_refuses(table: str, field: str, value: str) -> None:
    tables = tables_of(typical("sonic"))
    check(tables)
    next(iter(tables[table].values()))[field] = value
    with pytest.raises((AssertionError, ValueError)):
        check(tables)


def test_a_pool_holds_what_its_queues_hold_together() -> None:
    tables = tables_of(typical("sonic"))
    [pool] = tables["BUFFER_POOL"].values()
    assert int(pool["size"]) == 2 * 8 * 200_000 + 1_000_000
    assert tables["BUFFER_PORT_EGRESS_PROFILE_LIST"] == {
        "Ethernet8": {"profile_list": "shoal_static_1000000"}
    }


KEYS = {"QUEUE": "ifname|qindex", "BUFFER_QUEUE": "port|qindex", "PORT_QOS_MAP": "ifname"}
KEYS["BUFFER_PORT_EGRESS_PROFILE_LIST"] = "port"
MAPS = {"DSCP_TO_TC_MAP": ("dscp", "tc"), "TC_TO_QUEUE_MAP": ("tc", "qindex")}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """SONiC's YANG modules, as one model."""
    yangson = pytest.importorskip("yangson")
    jinja2 = pytest.importorskip("jinja2")
    if "SONIC_YANG_MODELS" not in os.environ:
        pytest.skip("SONIC_YANG_MODELS does not say where SONiC's YANG models are.")
    source, folder = Path(os.environ["SONIC_YANG_MODELS"]), tmp_path_factory.mktemp("yang")
    files = importlib.metadata.files("pyang") or []
    ietf = {each.stem: each.locate() for each in files if "modules/ietf" in str(each)}
    rows: dict[str, dict[str, str]] = {}

    def add(name: str) -> None:
        if name in rows:
            return
        own, template = (
            source / f"yang-models/{name}.yang",
            source / f"yang-templates/{name}.yang.j2",
        )
        if template.exists():
            text = jinja2.Template(template.read_text()).render(yang_model_type="py")
        else:
            text = (own if own.exists() else Path(str(ietf[name]))).read_text()
        text = text.replace("[text()=", "[.=")  # yangson knows no text()
        revision = max(re.findall(r'^\s*revision\s+"?([\d-]+)', text, re.MULTILINE), default="")
        (folder / (f"{name}@{revision}.yang" if revision else f"{name}.yang")).write_text(text)
        namespace = re.findall(r'namespace\s+"([^"]+)"', text)[0]
        conformance = "implement" if name.startswith("sonic-") else "import"
        rows[name] = {"name": name, "revision": revision, "namespace": namespace}
        rows[name]["conformance-type"] = conformance
        for imported in re.findall(r"^\s*import\s+([\w-]+)", text, re.MULTILINE):
            add(imported)

    for table in ("PORT", *FIELDS):
        add(module_of(table))
    state = {"module-set-id": "1", "module": list(rows.values())}
    library = json.dumps({"ietf-yang-library:modules-state": state})
    return yangson.DataModel(library, (str(folder),))


def module_of(table: str) -> str:
    words = {"DSCP_TO_TC_MAP": "dscp-tc-map", "TC_TO_QUEUE_MAP": "tc-queue-map"}
    return f"sonic-{words.get(table, table.lower().replace('_', '-'))}"


def as_yang(tables: Tables) -> dict[str, Any]:
    """Return the tables as SONiC's management framework hands them to YANG, with their ports."""
    names = list(tables["PORT_QOS_MAP"])
    ports = [
        {"name": name, "lanes": str(place), "speed": 40_000} for place, name in enumerate(names)
    ]
    data: dict[str, Any] = {"sonic-port:sonic-port": {"PORT": {"PORT_LIST": ports}}}
    for table, rows in tables.items():
        entries = []
        for key, row in rows.items():
            names = KEYS.get(table, "name").split("|")
            entry: dict[str, Any] = dict(zip(names, key.split("|"), strict=True))
            if table in MAPS:
                one, other = MAPS[table]
                entry[table] = [
                    {one: typed(one, first), other: typed(other, second)}
                    for first, second in row.items()
                ]
            else:
                entry |= {leaf: typed(leaf, value) for leaf, value in row.items()}
            entries.append(entry)
        module = module_of(table)
        data[f"{module}:{module}"] = {table: {f"{table}_LIST": entries}}
    return data


def typed(leaf: str, value: str) -> Any:
    """Return a value in the type that JSON has for the leaf's (RFC 7951)."""
    if leaf.endswith("_enable"):
        return value == "true"
    if leaf == "profile_list":
        return value.split(",")
    return int(value) if leaf in ("tc", "dynamic_th") else value


@pytest.mark.parametrize("wanted", [typical("sonic"), sharing("sonic")])
def test_sonics_own_models_accept_the_tables(model: Any, wanted: Any) -> None:
    model.from_raw(as_yang(tables_of(wanted))).validate()


@given(data=st.data())
@settings(deadline=None, max_examples=examples(10))
def test_sonics_own_models_accept_any_tables(model: Any, data: st.DataObject) -> None:
    wanted = data.draw(any_settings("sonic"))
    model.from_raw(as_yang(tables_of(wanted))).validate()


def test_sonics_own_models_refuse_a_profile_that_is_not_there(model: Any) -> None:
    tables = tables_of(typical("sonic"))
    tables["QUEUE"]["Ethernet0|7"]["wred_profile"] = "NOBODY"
    with pytest.raises(Exception, match=r"wred_profile.*instance-required"):
        model.from_raw(as_yang(tables)).validate()
