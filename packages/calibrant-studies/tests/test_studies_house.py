"""The architecture of this package, by the same laws as Calibrant's own."""

from __future__ import annotations

from pathlib import Path

from house import House, circles

HOUSE = House(Path(__file__).parents[1] / "src/calibrant_studies")
MOST_LINES = 600
# A smaller one that only one other imports belongs into that one.
FEWEST_LINES = 80
MOST_PARAMETERS = 7


def test_no_modules_import_one_another_in_a_circle() -> None:
    assert [" -> ".join(circle) for circle in circles(HOUSE.typed_arrows)] == []


def test_modules_are_short_enough_to_read_at_once() -> None:
    long = {name for name, length in HOUSE.lengths().items() if length > MOST_LINES}
    assert long == set()


def test_no_small_module_stands_beside_the_only_one_that_needs_it() -> None:
    assert HOUSE.too_small(FEWEST_LINES) == []


def test_functions_of_many_parameters_say_why() -> None:
    assert HOUSE.of_many_parameters(MOST_PARAMETERS) == []
