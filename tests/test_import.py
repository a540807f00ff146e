"""What `import calibrant` costs, and what it offers."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest

import calibrant

HEAVY = [
    "torch",
    "matplotlib",
    "plotly",
    "sklearn",
    "scipy",
    "jinja2",
    "pandas",
    "pyarrow",
    "typer",
]

PROGRAM = """
import json, sys, time
import numpy
started = time.perf_counter()
import calibrant
taken = time.perf_counter() - started
{more}
print(json.dumps([taken, [name for name in {heavy} if name in sys.modules]]))
"""


def import_in_a_process(more: str = "") -> tuple[float, list[str]]:
    program = PROGRAM.format(more=more, heavy=HEAVY)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    taken, loaded = json.loads(done.stdout)
    return taken, loaded


def test_import_loads_nothing_heavy_and_takes_no_time():
    outcomes = [import_in_a_process() for _ in range(3)]
    assert all(loaded == [] for _, loaded in outcomes)
    # A generous bound, since a test machine may be busy: it is about a millisecond.
    assert min(taken for taken, _ in outcomes) < 0.4


def test_fitting_a_temperature_loads_no_torch():
    _, loaded = import_in_a_process(
        "fitted = calibrant.TemperatureScaling().fit([[2.0, 0.0], [1.0, 0.0], [0.0, 1.0]] * 3, "
        "[0, 1, 1] * 3)\nfitted.predict_proba([[1.0, 2.0]])"
    )
    assert not {"torch", "matplotlib", "plotly", "sklearn"} & set(loaded)


def test_every_public_name_is_there():
    assert len(set(calibrant.__all__)) == len(calibrant.__all__)
    for name in calibrant.__all__:
        value = getattr(calibrant, name)
        if name != "__version__":
            assert value.__doc__, name
    assert set(dir(calibrant)) == set(calibrant.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        calibrant.nonsense  # noqa: B018


def test_the_table_of_homes_is_complete():
    homes = {name: module for module, names in calibrant._HOMES.items() for name in names}
    assert set(homes) == set(calibrant.__all__) - {"__version__", *calibrant._MODULES}
    for name, module in homes.items():
        value = getattr(importlib.import_module(f"calibrant.{module}"), name)
        assert getattr(calibrant, name) is value
