"""The job key: equal texts give equal secrets, nothing else does, and none of them shows."""

from __future__ import annotations

import pickle

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from shoal.control.key import MINIMUM_LENGTH, JobKey
from shoal.errors import UsageError

TEXT = "correct horse battery staple"


def test_derivation_never_changes() -> None:
    # Golden values: with another derivation, workers of two versions could not even compare cards.
    key = JobKey(TEXT)
    assert key.derive("curve service").hex() == (
        "f81153152ab6351d13120a393be14dc6446dc0dbd4cd47c4b44e2c15670e677f"
    )
    assert key.server_pair().public == b".m?*0wn1[db^d36u&CZfU)4P}AUvh!WlpPAM@w@Q"
    assert key.mac(b"card").hex() == (
        "e4e6caa14d884bd23b225f67c7947a1025837881d59105f3a168f904fa693a35"
    )


def test_purposes_are_independent() -> None:
    key = JobKey(TEXT)
    secrets = {key.derive(purpose) for purpose in ("a", "b", "mac", "curve service")}
    assert len(secrets) == 4
    assert key.server_pair() != key.client_pair()


def test_pairs_are_valid_curve_pairs() -> None:
    pair = JobKey(TEXT).server_pair()
    assert zmq.curve_public(pair.secret) == pair.public
    assert len(pair.secret) == 40


def test_white_space_around_the_text_does_not_matter() -> None:
    assert JobKey(f"  {TEXT}\n") == JobKey(TEXT)
    assert hash(JobKey(f"{TEXT}\n")) == hash(JobKey(TEXT))


def test_generated_keys_differ_and_survive_being_handed_on() -> None:
    key = JobKey.generate()
    assert key != JobKey.generate()
    assert JobKey(key.reveal()) == key
    assert pickle.loads(pickle.dumps(key)) == key


def test_no_repr_shows_the_secret() -> None:
    key = JobKey(TEXT)
    shown = f"{key} {key!r} {key.server_pair()!r} {[key]}"
    assert TEXT not in shown
    assert key.server_pair().secret.decode() not in shown


@pytest.mark.parametrize("text", ["", " " * 40, "x" * (MINIMUM_LENGTH - 1)])
def test_a_short_key_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(UsageError, match="at least 16 characters") as caught:
        JobKey(text)
    assert text.strip() == "" or text not in str(caught.value)


@pytest.mark.parametrize("purpose", ["", "x" * 17])
def test_a_purpose_has_a_length(purpose: str) -> None:
    with pytest.raises(UsageError, match="1 to 16"):
        JobKey(TEXT).derive(purpose)


@given(st.binary(max_size=64), st.binary(max_size=64), st.binary(max_size=40))
def test_a_code_fits_its_data_and_key_only(data: bytes, other: bytes, guess: bytes) -> None:
    key = JobKey(TEXT)
    code = key.mac(data)
    assert key.verifies(data, code)
    assert key.verifies(other, code) == (other == data)
    assert key.verifies(data, guess) == (guess == code)
    assert not JobKey(TEXT + "!").verifies(data, code)
