"""Settings as texts: literals of both kinds, words, and what is refused."""

from __future__ import annotations

import pytest

from calibrant.core.arguments import parse_settings
from calibrant.core.errors import InputError


def test_values_are_literals_words_or_text() -> None:
    texts = ["gamma=3", "alpha=5e-1", "form=mrl", "steps={0: 5.0}", "kappas=[1, 0.9]", "file=a=b"]
    assert parse_settings(texts) == {
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
    assert parse_settings([f"on={text}"]) == {"on": value}


@pytest.mark.parametrize("text", ["gamma", "=3", "two words=3", "3=gamma", ""])
def test_other_forms_are_named(text: str) -> None:
    with pytest.raises(InputError, match=f"'{text}' is not of the form key=value"):
        parse_settings([text])


@pytest.mark.parametrize(
    "text", ['["temperature", "smart"]', "temperature,smart", "temperature, smart"]
)
def test_sequences_are_literals_or_words_between_commas(text: str) -> None:
    assert parse_settings([f"candidates={text}"]) == {"candidates": ["temperature", "smart"]}
    typed = parse_settings([f"candidates={text}"], {"candidates": ("usual",)}, "it")
    assert typed == {"candidates": ["temperature", "smart"]}


def test_values_are_of_the_type_of_the_default() -> None:
    defaults = {"n": 3, "rate": 0.5, "name": "", "on": True}
    texts = ["n=4", "rate=2", "name=1,2", "on=FALSE"]
    assert parse_settings(texts, defaults, "it") == {
        "n": 4,
        "rate": 2.0,
        "name": "1,2",
        "on": False,
    }
    assert parse_settings(["name=[1, 2]"], defaults, "it") == {"name": [1, 2]}
    for text, words in (
        ("n=2.5", "argument 'n' of it must be a whole number, not '2.5'"),
        ("on=1", "argument 'on' of it must be true or false, not '1'"),
        ("m=1", "it has no argument 'm'; it has: n, rate, name, on"),
    ):
        with pytest.raises(InputError, match=words):
            parse_settings([text], defaults, "it")


def test_later_values_replace_earlier_ones() -> None:
    assert parse_settings(["a = 1", "a=2"]) == {"a": 2}
