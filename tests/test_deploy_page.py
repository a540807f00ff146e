"""The Python of the page on deploying runs, where what it imports is installed."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import calibrant as cb

for needed in ("onnx", "onnxruntime", "torch"):
    pytest.importorskip(needed)

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/appendix/deploy.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL))
FEATURES = np.asarray(cb.load_sample("test").features[:40], dtype=np.float32)


def blocks(section: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", SECTIONS[section], flags=re.MULTILINE | re.DOTALL)


def missing(block: str) -> list[str]:
    """Return the packages that a block imports and that aren't installed."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module).partition(".")[0])
    return sorted(name for name in names if importlib.util.find_spec(name) is None)


@pytest.fixture(scope="module")
def calibrator():
    return cb.posthoc.TopRestScaling().fit_predictions(
        cb.load_sample("validation").take(slice(500))
    )


@pytest.fixture
def names(tmp_path, monkeypatch, calibrator) -> dict[str, Any]:
    """Return what the page takes for granted, in a folder that holds its files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    from examples.serve.build import write_network

    write_network(Path("network.onnx"), cb.load_sample("validation").head)
    calibrator.save("calibrator.safetensors")
    return {"features": FEATURES}


def run(names: dict[str, Any], *sections: str) -> SimpleNamespace:
    """Run the blocks of sections of the page and return what they leave."""
    for section in sections:
        for block in blocks(section):
            lacking = missing(block)
            if lacking:
                pytest.skip(f"the page's block wants {', '.join(lacking)}, which isn't installed")
            exec(compile(block, f"<{section}>", "exec"), names)
    return SimpleNamespace(**names)


def expected(calibrator: cb.Calibrator) -> np.ndarray:
    layer = cb.load_sample("validation").head
    return calibrator.predict_proba(FEATURES @ layer.weight.T + layer.bias)


def test_every_section_with_python_is_run_by_a_test():
    assert {name for name in SECTIONS if blocks(name)} == {
        "ONNX",
        "torch",
        "Triton",
        "MLflow",
        "Hugging Face",
        "scikit-learn",
    }


def test_onnx_and_torch(names, calibrator):
    left = run(names, "ONNX", "torch")
    probs, label, confidence = left.answer
    np.testing.assert_allclose(probs, expected(calibrator), atol=1e-5)
    np.testing.assert_array_equal(label, probs.argmax(axis=1))
    np.testing.assert_array_equal(confidence, probs.max(axis=1))
    images = left.torch.tensor(FEATURES)
    assert left.torch.equal(left.again(images), left.model(images))


def test_a_repository_for_triton_says_what_the_graphs_hold(names):
    left = run(names, "ONNX", "Triton")
    graph = left.onnx.load("repository/calibrator/1/model.onnx").graph
    own, both = (
        Path(f"repository/{name}/config.pbtxt").read_text() for name in ("calibrator", "calibrated")
    )
    said = re.findall(
        r'^(input|output) { name: "(\w+)" data_type: (\w+) dims: (\[.*?\])', own, re.M
    )
    assert [name for _, name, *_ in said] == [value.name for value in (*graph.input, *graph.output)]
    assert said[0] == ("input", "logits", "TYPE_FP32", "[10]")
    assert ("output", "label", "TYPE_INT64", "[ 1 ]") in said
    assert both.count("step {") == 2
    for text in (own, both):
        assert text.count("{") == text.count("}")
    for value in graph.output:
        assert f'output_map {{ key: "{value.name}" value: "{value.name}" }}' in both


@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_mlflow(names, calibrator):
    left = run(names, "ONNX", "Triton", "MLflow")
    np.testing.assert_allclose(left.probs, expected(calibrator), atol=1e-5)


@pytest.mark.filterwarnings("ignore")  # transformers' own
def test_hugging_face(names, calibrator):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    left = run(names, "Hugging Face")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "an", "honest", "score"]
    Path("vocab.txt").write_text("\n".join(words))
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(
        vocab_size=len(words), intermediate_size=16, num_labels=10, **sizes
    )
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config).eval()
    tokenizer = transformers.BertTokenizer("vocab.txt")
    pipeline = left.Calibrated(model=model, tokenizer=tokenizer, device="cpu")
    pipeline.calibrator = calibrator
    scores = pipeline("an honest score")
    scores = scores[0] if isinstance(scores[0], list) else scores
    with torch.no_grad():
        logits = model(**tokenizer("an honest score", return_tensors="pt")).logits[0].numpy()
    wanted = np.sort(calibrator.predict_proba(logits))[::-1]
    np.testing.assert_allclose([each["score"] for each in scores], wanted, atol=1e-6)
    assert scores[0]["label"] == f"LABEL_{int(logits.argmax())}"


def test_scikit_learn(names):
    left = run(names, "ONNX", "Triton", "scikit-learn")
    np.testing.assert_allclose(left.probs, left.whole.predict_proba(left.X), atol=1e-5)
