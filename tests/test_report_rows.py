"""The rows behind the pictures of a page: which ones it holds, what they are called."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import calibrant as cb
from calibrant.cli.app import app
from calibrant.report.series import quantile_ends

N = 4_000


def made(n: int = N, classes: int = 4, seed: int = 0) -> cb.Predictions:
    rng = np.random.default_rng(seed)
    logits = 2.0 * rng.normal(size=(n, classes))
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (probs.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    names = [f"class {number}" for number in range(classes)]
    return cb.Predictions.from_logits(1.5 * logits, labels, class_names=names)


def document(page: Path) -> dict[str, Any]:
    text = page.read_text(encoding="utf-8").split('type="application/json">')[1]
    return json.loads(text.split("</script>")[0])


def page_of(rows: cb.Predictions, folder: Path, **more: Any) -> dict[str, Any]:
    cb.evaluate(rows, metrics=["ece"], resamples=20).to_html(folder / "r.html", **more)
    return document(folder / "r.html")


def test_every_row_that_a_page_lists_is_what_the_data_say(tmp_path: Path) -> None:
    rows = made()
    found = page_of(rows, tmp_path)["rows"]
    number = np.array(found["number"])
    assert 0 < len(number) <= 1_500
    assert len(set(number.tolist())) == len(number)
    probs = np.asarray(rows.probs)[number]
    (method,) = found["methods"].values()
    np.testing.assert_allclose(
        np.array(method["confidence"]) / found["digits"], probs.max(axis=1), atol=0.5e-5 + 1e-12
    )
    np.testing.assert_array_equal(found["true"], rows.labels[number])
    np.testing.assert_array_equal(found["predicted"], probs.argmax(axis=1))
    np.testing.assert_array_equal(
        np.array(found["correct"], dtype=bool), probs.argmax(axis=1) == rows.labels[number]
    )
    assert found["called"] == {str(k): f"class {k}" for k in range(4)}


def test_every_bin_and_class_has_rows_and_the_worst_mistakes_are_all_there(tmp_path: Path) -> None:
    rows = made()
    found = page_of(rows, tmp_path)["rows"]
    listed = set(found["number"])
    probs = np.asarray(rows.probs)
    confidence, predicted = probs.max(axis=1), probs.argmax(axis=1)
    bins = np.clip(np.ceil(15 * confidence).astype(int) - 1, 0, 14)
    for part in [*(bins == b for b in range(15)), *(predicted == k for k in range(4))]:
        whole = np.flatnonzero(part)
        assert len(listed & set(whole.tolist())) >= min(len(whole), 20)
    wrong = np.flatnonzero(predicted != rows.labels)
    worst = wrong[np.argsort(-confidence[wrong])][:30]
    assert set(worst.tolist()) <= listed


def test_rows_of_a_split_are_called_by_where_they_stood_before_it(tmp_path: Path) -> None:
    rows = made(600)
    _, test = rows.split(0.5, seed=3)
    ids = np.array([f"image {i}" for i in range(600)])
    found = page_of(test.take(np.arange(test.n)[::-1]), tmp_path, ids=ids)["rows"]
    assert found["id"] == [f"image {i}" for i in found["number"]]
    np.testing.assert_array_equal(found["true"], rows.labels[found["number"]])
    assert len(found["number"]) == test.n


def test_rows_of_weight_0_do_not_shift_the_numbers_of_others(tmp_path: Path) -> None:
    rows = made(300)
    weight = (np.arange(300) % 3 > 0).astype(float)
    weighted = cb.Predictions.from_logits(rows.scores, rows.labels, sample_weight=weight)
    found = page_of(weighted, tmp_path)["rows"]
    assert found["number"] == np.flatnonzero(weight).tolist()
    np.testing.assert_array_equal(found["true"], rows.labels[found["number"]])


def test_concatenated_rows_are_numbered_anew(tmp_path: Path) -> None:
    rows = made(300)
    first, second = rows.split(0.5)
    found = page_of(cb.Predictions.concatenate([first, second]), tmp_path)["rows"]
    assert found["number"] == list(range(300))


def test_all_methods_of_a_comparison_are_shown_on_the_same_rows(tmp_path: Path) -> None:
    methods = ["none", "temperature", "dirichlet"]
    fit, test = made(seed=1), made(seed=2)
    result = cb.compare(methods, fit=fit, test=test, metrics=["ece"], resamples=20)
    result.to_html(tmp_path / "c.html")
    found = document(tmp_path / "c.html")["rows"]
    assert set(found["methods"]) == set(methods)
    for name, method in found["methods"].items():
        scores = result[name].evaluation.scores
        of_rows = scores.predicted[found["number"]]
        predicted = found["predicted"] if method["predicted"] is None else method["predicted"]
        np.testing.assert_array_equal(predicted, of_rows)
        correct = found["correct"] if method["correct"] is None else method["correct"]
        np.testing.assert_array_equal(correct, of_rows == test.labels[found["number"]])
        assert len(method["confidence"]) == found["rows"]


def test_groups_list_their_own_rows(tmp_path: Path) -> None:
    rows = made(900)
    place = np.array(["north", "south", "west"])[np.arange(900) % 3]
    groups = cb.evaluate_by(rows, place, metrics=["ece"], resamples=20)
    found = page_of(rows, tmp_path, groups=groups)["rows"]
    assert [found["groups"][g] for g in found["group"]] == place[found["number"]].tolist()


def test_pictures_are_those_of_the_rows(tmp_path: Path) -> None:
    rows = made(400)
    images = np.zeros((400, 5, 4, 3), dtype=np.uint8)
    images[..., 0], images[..., 1] = np.arange(400)[:, None, None] // 256, 7
    images[..., 2] = (np.arange(400) % 256)[:, None, None]
    found = page_of(rows, tmp_path, images=images)["rows"]
    assert len(found["image"]) == len(found["number"]) <= 150
    for number, text in zip(found["number"][:5], found["image"], strict=False):
        png = base64.b64decode(text)
        assert struct.unpack(">II", png[16:24]) == (4, 5)
        start = png.index(b"IDAT")
        size = struct.unpack(">I", png[start - 4 : start])[0]
        pixels = zlib.decompress(png[start + 4 : start + 4 + size])
        assert list(pixels[:4]) == [0, number // 256, 7, number % 256]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"ids": np.arange(299)}, "ids must name every row"),
        ({"images": np.zeros((299, 8, 8), np.uint8)}, "images must show every row"),
        ({"images": np.zeros((300, 3, 8, 8), np.uint8)}, "colours come last"),
        ({"images": np.zeros((300, 8, 8))}, "uint8"),
    ],
)
def test_names_and_pictures_that_do_not_fit_are_refused(
    more: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(cb.InputError, match=message):
        page_of(made(300), tmp_path, **more)


def test_rows_that_are_only_right_or_wrong_show_no_classes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    said = rng.uniform(0.5, 1, 300)
    rows = cb.Predictions.from_confidence(said, correct=rng.random(300) < said)
    found = page_of(rows, tmp_path)["rows"]
    assert found["true"] is None
    assert sum(found["correct"]) == sum(rows.predicted == rows.labels)


def test_many_labels_list_no_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    true = rng.random((200, 3))
    rows = cb.Predictions.from_many_labels(true, rng.random((200, 3)) < true)
    assert page_of(rows, tmp_path)["rows"] is None


def test_the_ends_of_bins_of_equally_many_rows_hold_just_these() -> None:
    top = cb.evaluate(made(1_000), metrics=["ece"], resamples=20).top
    ends = quantile_ends(top, 7)
    sizes = [len(part) for part in np.array_split(np.arange(1_000), 7)]
    inside = [
        int(((top.confidence >= low - 1e-6) & (top.confidence <= high + 1e-6)).sum())
        for low, high in ends
    ]
    assert inside == sizes


def test_the_command_line_names_rows_as_the_file_does(tmp_path: Path) -> None:
    rows, runner = made(300), CliRunner()
    lines = ["id,label,logit_0,logit_1,logit_2,logit_3"]
    for i, (scores, label) in enumerate(zip(rows.scores.tolist(), rows.labels, strict=True)):
        lines.append(f"img-{i},{label}," + ",".join(map(str, scores)))
    (tmp_path / "val.csv").write_text("\n".join(lines))
    images = np.zeros((300, 8, 8), np.uint8)
    np.save(tmp_path / "images.npy", images)
    page = tmp_path / "r.html"
    file, quick = str(tmp_path / "val.csv"), ["--resamples", "20", "--metrics", "ece"]
    done = runner.invoke(app, ["measure", file, *quick, "--report", str(page)])
    assert done.exit_code == 0, done.output
    found = document(page)["rows"]
    assert found["id"] == [f"img-{i}" for i in found["number"]]
    more = ["--methods", "none,temperature", "--images", str(tmp_path / "images.npy")]
    done = runner.invoke(app, ["compare", file, *quick, *more, "--report", str(page)])
    assert done.exit_code == 0, done.output
    found = document(page)["rows"]
    assert len(found["number"]) == 150
    assert found["id"] == [f"img-{i}" for i in found["number"]]
    np.testing.assert_array_equal(found["true"], rows.labels[found["number"]])
    assert len(found["image"]) == 150
    done = runner.invoke(app, ["measure", file, "--images", str(tmp_path / "images.npy")])
    assert "name it with --report" in str(done.exception)
