"""Settings as texts: literals of both kinds, words, and what is refused."""

from __future__ import annotations

import pytest

from calibrant.core.errors import InputError
from calibrant.core.settings import parse_literals, split_settings


def test_values_are_literals_words_or_text() -> None:
    texts = ["gamma=3", "alpha=5e-1", "form=mrl", "steps={0: 5.0}", "kappas=[1, 0.9]", "file=a=b"]
    assert parse_literals(texts) == {
        "gamma": 3,
        "alpha": 0.5,
        "form": "mrl",
        "steps": {0: 5.0},
        "kappas": [1, 0.9],
        "file": "a=b",
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("True", True), ("FALSE", False), ("none", None), ("null", None)],
)
def test_words_of_several_languages(text: str, value: object) -> None:
    assert parse_literals([f"on={text}"]) == {"on": value}


@pytest.mark.parametrize("text", ["gamma", "=3", "two words=3", "3=gamma", ""])
def test_other_forms_are_named(text: str) -> None:
    with pytest.raises(InputError, match=f"'{text}' is not of the form key=value"):
        list(split_settings([text]))


def test_later_values_replace_earlier_ones() -> None:
    assert parse_literals(["a = 1", "a=2"]) == {"a": 2}
