"""Courses outlive any change of the view, and no rule of an executor can be left out."""

from __future__ import annotations

import pytest
from exploration.families import FAMILIES

from shoal.membership import View
from shoal.strategies import Setting, make_strategy, scheduled
from shoal.strategies.acts import Mean, Tell
from thoroughness import examples

HISTORIES = examples(1_500, share=25)


@pytest.fixture(autouse=True)
def _short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of rounds end within the few steps of a history."""
    monkeypatch.setattr(scheduled, "ROUNDS_PER_BLOCK", 2)


@pytest.mark.parametrize("family", FAMILIES)
def test_nobody_waits_for_ever_and_exact_models_are_equal(family: str) -> None:
    kind, word, options = FAMILIES[family]
    deaths = views = 0
    for seed in range(HISTORIES):
        definition = make_strategy(word, options)
        if hasattr(definition, "interval"):
            definition = make_strategy(word, {**options, "interval": 1 + seed % 2})
        history = kind(definition, seed)
        assert history.run() == "", f"seed {seed}"
        deaths += history.deaths
        views += history.views
    assert deaths > HISTORIES / 2, "the histories have something in them"
    assert views > HISTORIES / 2


@pytest.mark.parametrize(
    ("family", "rule"),
    [
        ("sums", "settling"),
        ("sums", "saying that one lacks all"),
        ("scheduled", "an agreed round"),
        ("scheduled", "saying that one lacks all"),
        ("generated", "saying that one lacks all"),
        ("generated", "the epoch of an assignment"),
        ("pairs", "telling who waits"),
        ("pairs", "leaving out who has ended"),
        ("servers, bsp", "throwing half a sum away"),
        ("servers, bsp", "what weights hold"),
        ("servers, asp", "what weights hold"),
        ("servers, bsp", "what members have pulled"),
        ("servers, asp", "what members have pulled"),
        ("servers, bsp", "a clock from the reports"),
    ],
)
def test_a_rule_that_is_left_out_is_found_out(family: str, rule: str) -> None:
    kind, word, options = FAMILIES[family]
    assert any(
        kind(make_strategy(word, options), seed, without=rule).run() != "" for seed in range(300)
    )


def test_a_round_in_another_block_is_told_of_before_it_begins() -> None:
    course = make_strategy("ds-sync", {}).courses(Setting(View.first(4)))(0)
    acts = course.step()
    assert [act.fact for act in (next(acts), next(acts)) if isinstance(act, Tell)] == ["block/0"]
    course.on_view(View(1, (0, 1, 2), (0, 0, 0), from_step=2))
    again, mean = next(acts), next(acts)
    assert again == Tell("block/1"), "those who are ending wait for it"
    assert isinstance(mean, Mean)
    assert mean.number == (1, 2)
