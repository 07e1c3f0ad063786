"""How job cards differ: the entries that must be equal, and a sentence for each difference.

Owns the order in which differences are looked for and their wording. Knows no store and no key.
Every sentence names the workers, both values and what to do.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shoal.control.job_card import JobCard

_SHOWN_RANKS = 5


def compare(cards: Mapping[int, JobCard], judge: int) -> str:
    """Return the sentence about the first difference between the judge's card and others, or ''."""
    for describe, of in _MUST_AGREE:
        if others := _differing(cards, judge, of):
            first = others[0]
            who, than = name_ranks(others), f"rank {judge}"
            return describe(who, than, len(others), cards[first], cards[judge])
    return ""


def _differing(
    cards: Mapping[int, JobCard], judge: int, of: Callable[[JobCard], object]
) -> list[int]:
    """Return the ranks that differ from the judge in the way the first such rank does."""
    values = {rank: of(card) for rank, card in sorted(cards.items())}
    differing = [rank for rank, value in values.items() if value != values[judge]]
    return [rank for rank in differing if values[rank] == values[differing[0]]]


def remarks(cards: Mapping[int, JobCard], judge: int) -> tuple[str, ...]:
    """Return sentences about differences from the judge's card that may matter but need not."""
    sentences = []
    for name, of in (("Python", _python_line), ("torch", _torch_line)):
        if others := _differing(cards, judge, of):
            run, theirs, ours = _verb("run", len(others)), of(cards[others[0]]), of(cards[judge])
            who = name_ranks(others)
            sentences.append(f"{who} {run} {name} {theirs} but rank {judge} runs {ours}.")
    return tuple(sentences)


def _python_line(card: JobCard) -> str:
    return ".".join(card.python.split(".")[:2])


def _torch_line(card: JobCard) -> str:
    return card.torch or "unknown"


def _about_num_ranks(who: str, than: str, count: int, card: JobCard, first: JobCard) -> str:
    return (
        f"{who} {_verb('expect', count)} {card.num_ranks} workers but {than} expects "
        f"{first.num_ranks}: start every worker with the same world size."
    )


def _about_version(who: str, than: str, count: int, card: JobCard, first: JobCard) -> str:
    return (
        f"{who} {_verb('run', count)} Shoal {card.version} but {than} runs {first.version}: "
        "install the same version everywhere."
    )


def _about_strategy(who: str, than: str, count: int, card: JobCard, first: JobCard) -> str:
    return (
        f'{who} {_verb("run", count)} strategy "{card.strategy}" but {than} runs '
        f'"{first.strategy}": start every worker with the same strategy.'
    )


def _about_options(who: str, than: str, count: int, card: JobCard, first: JobCard) -> str:
    names = [name for name in first.options if card.options.get(name) != first.options[name]]
    names += sorted(card.options.keys() - first.options.keys())
    theirs, ours = (
        " and ".join(f"{name}={each.options.get(name, 'nothing')}" for name in names)
        for each in (card, first)
    )
    return (
        f'{who} {_verb("run", count)} strategy "{card.strategy}" with {theirs} but {than} with'
        f" {ours}: start every worker with the same options."
    )


def _about_model(who: str, than: str, count: int, card: JobCard, first: JobCard) -> str:
    difference = _model_difference(card.model_fingerprint, first.model_fingerprint, than)
    return (
        f"{who} {_verb('train', count)} another model than {than}: {difference}: build the same"
        " model, in the same order, on every worker."
    )


def _model_difference(theirs: Sequence[str], ours: Sequence[str], judge: str) -> str:
    pairs = zip_longest(theirs, ours, fillvalue="no entry")
    place, (other, mine) = next((n, it) for n, it in enumerate(pairs) if it[0] != it[1])
    counts = f"{len(theirs)} instead of {len(ours)} entries, "
    if len(theirs) == len(ours):
        counts = ""
    return f"{counts}first different at entry {place}, {other} where {judge} has {mine}"


_MUST_AGREE: tuple[
    tuple[Callable[[str, str, int, JobCard, JobCard], str], Callable[[JobCard], object]], ...
] = (
    (_about_num_ranks, lambda card: card.num_ranks),
    (_about_version, lambda card: card.version),
    (_about_strategy, lambda card: card.strategy),
    (_about_options, lambda card: card.options),
    (_about_model, lambda card: tuple(card.model_fingerprint)),
)


def other_key(ranks: Sequence[int], judge: int) -> str:
    """Return the sentence about workers whose job key is not the judge's."""
    have = "has" if len(ranks) == 1 else "have"
    return (
        f"{name_ranks(ranks)} {have} another job key than rank {judge}: "
        "start every worker with the same SHOAL_JOB_KEY."
    )


def unreadable(rank: int, judge: int) -> str:
    """Return the sentence about a card that this version of Shoal cannot read."""
    return (
        f"Rank {rank} shows a card that rank {judge} cannot read: install the same version of "
        "Shoal everywhere."
    )


def name_ranks(ranks: Sequence[int]) -> str:
    """Return ranks as the subject of a sentence: "Rank 3", "Ranks 1, 2 and 7 more"."""
    if len(ranks) == 1:
        return f"Rank {ranks[0]}"
    shown = [str(rank) for rank in ranks[:_SHOWN_RANKS]]
    if len(ranks) > _SHOWN_RANKS:
        shown.append(f"{len(ranks) - _SHOWN_RANKS} more")
    return f"Ranks {', '.join(shown[:-1])} and {shown[-1]}"


def _verb(stem: str, count: int) -> str:
    return f"{stem}s" if count == 1 else stem
