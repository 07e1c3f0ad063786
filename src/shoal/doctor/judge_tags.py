"""Judges what the network, or the kernel alone, leaves of the TOS byte: DSCP and ECN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from shoal.doctor.findings import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.doctor.probe_facts import TosFact

Value = TypeVar("Value", int, str)
_ECN_BITS: Final = 3
_DSCP_SHIFT: Final = 2
_ECN_NAMES: Final = ("00 (not ECT)", "01 (ECT 1)", "10 (ECT 0)", "11 (CE)")
_MARK: Final = 3


def judge_tags(tos: Sequence[TosFact], where: str) -> list[Finding]:
    """Return the findings on DSCP and on ECN; none if no probe was sent."""
    return [_dscp(tos, where), _ecn(tos, where)] if tos else []


def _dscp(tos: Sequence[TosFact], where: str) -> Finding:
    sent = sorted({fact.sent >> _DSCP_SHIFT for fact in tos})
    arrived: dict[int, set[int]] = {value: set() for value in sent}
    for fact in tos:
        if fact.arrived is not None:
            arrived[fact.sent >> _DSCP_SHIFT].add(fact.arrived >> _DSCP_SHIFT)
    lost = [value for value in sent if not arrived[value]]
    changed = {
        value: sorted(arrived[value] - {value}) for value in sent if arrived[value] - {value}
    }
    kept = len(sent) - len(lost) - len(changed)
    found = f"{kept} of {len(sent)} classes arrive unchanged"
    if changed:
        found += _changes(changed)
    if lost:
        found += f"; nothing arrives of {_list(lost)}"
        advice = (
            f"Have the network pass packets with DSCP {_list(lost)}: the transport sends with all"
            f" of {_list(sent)}."
        )
        return Finding("DSCP", where, found, Verdict.WRONG, advice)
    if changed:
        advice = (
            "Have the switches trust DSCP from these hosts (CS0 to CS7): else they cannot put"
            " layers into queues of their own."
        )
        return Finding("DSCP", where, found, Verdict.BETTER, advice)
    return Finding("DSCP", where, found)


def _ecn(tos: Sequence[TosFact], where: str) -> Finding:
    arrived: dict[int, set[int]] = {fact.sent & _ECN_BITS: set() for fact in tos}
    for fact in tos:
        if fact.arrived is not None:
            arrived[fact.sent & _ECN_BITS].add(fact.arrived & _ECN_BITS)
    lost = [_ECN_NAMES[value] for value in sorted(arrived) if not arrived[value]]
    changed = {
        value: sorted(arrived[value] - {value})
        for value in sorted(arrived)
        if arrived[value] - {value}
    }
    kept = len(arrived) - len(lost) - len(changed)
    found = f"{kept} of {len(arrived)} codepoints arrive unchanged"
    found += _changes(
        {_ECN_NAMES[old]: [_ECN_NAMES[value] for value in new] for old, new in changed.items()}
    )
    if lost:
        found += f"; nothing arrives of {', '.join(lost)}"
        advice = f"Have the network pass packets with ECN bits {', '.join(lost)}."
        return Finding("ECN", where, found, Verdict.WRONG, advice)
    if all(new == [_MARK] for new in changed.values()) and changed:
        advice = "Look for what fills the network's queues: packets are marked although none wait."
        return Finding("ECN", where, found, Verdict.BETTER, advice)
    if changed:
        advice = (
            "Have the network leave the ECN bits alone but for marks: they say which packets to"
            " drop first, and bring back congestion marks."
        )
        return Finding("ECN", where, found, Verdict.BETTER, advice)
    return Finding("ECN", where, found)


def _changes(changed: Mapping[Value, Sequence[Value]]) -> str:
    """Return "; 8, 16 arrive as 0" for {8: [0], 16: [0]}."""
    by_result: dict[str, list[Value]] = {}
    for old, new in changed.items():
        by_result.setdefault(_list(new), []).append(old)
    return "".join(f"; {_list(old)} arrive as {new}" for new, old in by_result.items())


def _list(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))
