"""Every public name shows what it is for in an example that runs, and so do guides."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibrant as cb
from calibrant.core.lazy import stub_names
from calibrant.metrics import registry

ROOT = Path(__file__).parents[1]
SOURCES = (ROOT / "src", ROOT / "packages/calibrant-studies/src")
PACKAGES = (
    *("calibrant", "calibrant.metrics", "calibrant.posthoc", "calibrant.predictions"),
    *("calibrant.scale", "calibrant.training", "calibrant.report", "calibrant.sklearn"),
)
# Tables and texts, which have no docstring.
VALUES = {"__version__", "METRICS", "CORE_METRICS", "LOSSES"}
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
# More statements aren't read.
MOST_STATEMENTS = 8


def _stub(package: str) -> Path:
    return ROOT / "src" / package.replace(".", "/") / "__init__.pyi"


AT_THE_TOP = stub_names(_stub("calibrant"))
PUBLIC = [
    f"{package}.{name}"
    for package in PACKAGES
    for name in stub_names(_stub(package))
    if name not in VALUES and f"{package}.{name}" not in PACKAGES
    # Some stand at the top and in a room.
    if package == "calibrant" or name not in AT_THE_TOP
]
# This room is public as a whole.
PUBLIC += [f"calibrant.synthetic.{name}" for name in ("tempered", "margin_tempered", "top_label")]
PUBLIC.append("calibrant.synthetic.KnownTruth")


def _examples() -> dict[str, str]:
    """Return every docstring of both packages that holds an example, by its dotted name."""
    found: dict[str, str] = {}
    for folder in SOURCES:
        for path in sorted(folder.rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            if ">>>" not in source:
                continue
            parts = path.relative_to(folder).with_suffix("").parts
            module = ".".join(part for part in parts if part != "__init__")
            _collect(ast.parse(source), module, found)
    return found


def _collect(node: ast.Module | ast.ClassDef | ast.FunctionDef, name: str, found: Any) -> None:
    text = ast.get_docstring(node) or ""
    if ">>>" in text:
        found[name] = text
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef):
            _collect(child, f"{name}.{child.name}", found)


EXAMPLES = _examples()


def _skip_where_a_package_is_missing(name: str) -> None:
    if name.startswith("calibrant.training"):
        pytest.importorskip("torch")
    if name.endswith("CalibrationCallback"):
        pytest.importorskip("lightning")


def _test_of(name: str, text: str) -> doctest.DocTest:
    return doctest.DocTestParser().get_doctest(text, {"__name__": "__main__"}, name, name, 0)


def _complaints(test: doctest.DocTest) -> str:
    """Run the examples, and return what doctest has to say of those that fail."""
    said = io.StringIO()
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=said.write)
    return said.getvalue()


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_a_short_example_that_shows_an_outcome(name: str) -> None:
    _skip_where_a_package_is_missing(name)
    package, _, last = name.rpartition(".")
    found = getattr(importlib.import_module(package), last)
    test = _test_of(name, found.__doc__ or "")
    assert any(example.want for example in test.examples)
    assert len(test.examples) <= MOST_STATEMENTS
    assert inspect.cleandoc(found.__doc__) in EXAMPLES.values()  # so that it is run


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_gives_what_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _skip_where_a_package_is_missing(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_registered", {})  # what an example registers stays its own
    assert _complaints(_test_of(name, EXAMPLES[name])) == ""


def test_a_wrong_outcome_is_told() -> None:
    assert "Expected:\n    3" in _complaints(_test_of("wrong", ">>> 1 + 1\n3\n"))


def _blocks(page: str) -> list[str]:
    """Return the Python of a Markdown page, block by block."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def _run(block: str, names: dict[str, Any]) -> None:
    """Run a block; where a bare expression has a number in its comment, hold it to that."""
    lines = block.splitlines()
    for node in ast.parse(block).body:
        line = lines[(node.end_lineno or 1) - 1]
        told = re.search(r"#.*?(\d+\.(\d+))", line)
        if isinstance(node, ast.Expr) and told is not None:
            value = eval(ast.unparse(node.value), names)
            assert round(float(value), len(told[2])) == float(told[1]), line
        else:
            exec(compile(ast.Module([node], []), "<page>", "exec"), names)


def _network() -> dict[str, Any]:
    """Return a network whose last layer is `fc`, a batch and its classes."""
    torch = pytest.importorskip("torch")
    layers = {"flat": torch.nn.Flatten(), "fc": torch.nn.Linear(12, 10)}
    network = torch.nn.Sequential()
    for name, layer in layers.items():
        network.add_module(name, layer)
    return {"network": network, "inputs": torch.randn(8, 3, 2, 2), "target": torch.arange(8)}


def _features() -> dict[str, Any]:
    """Return rows of the sample for second stages, and a network whose last layer fits them."""
    torch = pytest.importorskip("torch")
    val = cb.load_sample("validation").take(np.arange(1_500))
    rows = {"train": val.take(np.arange(1_000)), "val": val.take(np.arange(1_000, 1_500))}
    names = {"network": torch.nn.Sequential(torch.nn.Linear(12, 64), torch.nn.Linear(64, 10))}
    for name, part in rows.items():
        names |= {f"{name}_features": part.features, f"{name}_labels": part.labels}
    return names | {"val_logits": rows["val"].logits, "test_features": val.features[:9]}


def _own_data() -> dict[str, Any]:
    """Return a network whose last layer is `classifier`, and rows of four classes for it."""
    torch = pytest.importorskip("torch")
    rows, labels = torch.randn(128, 6), torch.arange(128) % 4
    data = torch.utils.data.TensorDataset(rows, labels)
    network = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU())
    network.add_module("classifier", torch.nn.Linear(8, 4))
    loader = torch.utils.data.DataLoader(data, batch_size=16)
    return {"train_set": data, "test_set": data, "network": network, "loader": loader}


def _nothing() -> dict[str, Any]:
    return {}


# The blocks of a page that are whole programs, given what goes before.
PAGES: dict[str, tuple[slice, Callable[[], dict[str, Any]]]] = {
    "docs/guides/figures.md": (slice(None), _nothing),
    "docs/guides/files.md": (slice(None), _nothing),
    "docs/appendix/scikit-learn.md": (slice(None), _nothing),
    "docs/guides/known-truth.md": (slice(None), _nothing),
    "docs/appendix/losses.md": (slice(2), _network),
    "docs/appendix/monitoring.md": (slice(None), _nothing),
    "docs/guides/plug-ins.md": (slice(1), _nothing),
    "docs/appendix/second-stages.md": (slice(1), _features),
    "docs/appendix/training.md": (slice(3), _own_data),
    "docs/guides/why-my-ece-differs.md": (slice(None), _nothing),
}


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs_and_gives_the_numbers_beside_it(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    which, prepare = PAGES[page]
    names = {"__name__": "__main__"} | prepare()
    blocks = _blocks(page)[which]
    assert blocks
    for block in blocks:
        _run(block, names)
