"""What `import calibrant` costs, and what it offers."""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import calibrant
from calibrant.core.lazy import stub_names
from calibrant.files import write_predictions
from calibrant.sample import load_sample

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

PUBLIC_PACKAGES = [
    *("calibrant", "calibrant.metrics", "calibrant.posthoc", "calibrant.predictions"),
    *("calibrant.scale", "calibrant.training", "calibrant.report", "calibrant.sklearn"),
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


def loaded_by(words: list[str], where: Path, names: list[str]) -> list[str]:
    program = (
        f"import atexit, json, sys; sys.argv = {['calibrant', *words]!r}\n"
        f"said = lambda: print(json.dumps([n for n in {names!r} if n in sys.modules]))\n"
        "atexit.register(said)\n"
        "from calibrant.cli import main\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=where
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_the_version_is_said_without_numpy(tmp_path):
    assert loaded_by(["--version"], tmp_path, ["numpy", "importlib.metadata", "typer"]) == ["typer"]


def test_measuring_logits_loads_neither_scipy_nor_what_numpy_seldom_needs(tmp_path):
    write_predictions(load_sample("test").take(np.arange(300)), tmp_path / "sample.npz")
    names = ["numpy", "scipy", "numpy.f2py", "numpy.testing", "array_api_compat.numpy"]
    names += ["pydantic", "multiprocessing", "html", "tomllib"]
    assert loaded_by(["measure", "sample.npz"], tmp_path, names) == ["numpy"]


def test_every_public_name_is_there():
    assert len(set(calibrant.__all__)) == len(calibrant.__all__)
    for name in calibrant.__all__:
        value = getattr(calibrant, name)
        if name != "__version__":
            assert value.__doc__, name
    assert set(dir(calibrant)) == {*calibrant.__all__, "training", "sklearn"}
    with pytest.raises(AttributeError, match=r"no attribute 'nonsense'$"):
        calibrant.nonsense  # noqa: B018


def test_a_name_of_a_room_is_found_there_and_not_at_the_top():
    assert len(calibrant.__all__) < 40
    for name, place in {
        "IsotonicRegression": "posthoc",
        "brier_score": "metrics",
        "softmax": "predictions",
    }.items():
        with pytest.raises(AttributeError, match=rf"'{name}'; it is calibrant\.{place}\.{name}$"):
            getattr(calibrant, name)


def test_a_former_name_says_what_it_is_called_now():
    for name, now in {"evaluate_shards": "evaluate", "MetricSums": "scale.sample_of"}.items():
        with pytest.raises(AttributeError, match=rf"'{name}'; it is now calibrant\.{now}$"):
            getattr(calibrant, name)
    assert hasattr(calibrant, "evaluate")
    assert hasattr(calibrant.scale, "sample_of")


@pytest.mark.parametrize("package", PUBLIC_PACKAGES)
def test_no_public_name_is_that_of_a_module_beside_it(package):
    """Importing the module would put it in place of what the name stands for."""
    face = importlib.import_module(package)
    names = stub_names(Path(face.__file__).with_suffix(".pyi"))
    modules = {each.name for each in pkgutil.iter_modules(face.__path__)}
    own = {name for name, home in names.items() if home == (package, name)}
    assert (names.keys() - own) & modules == set()


@pytest.mark.parametrize("package", PUBLIC_PACKAGES)
def test_every_name_of_the_stub_is_the_object_at_its_home(package):
    face = importlib.import_module(package)
    homes = stub_names(Path(face.__file__).with_suffix(".pyi"))
    assert set(dir(face)) == set(homes)
    for name, (module, original) in homes.items():
        home = importlib.import_module(module)
        value = getattr(home, original, None) or importlib.import_module(f"{module}.{original}")
        assert getattr(face, name) is value
