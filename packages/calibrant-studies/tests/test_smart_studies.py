"""SMART's tables and figures: every kind of cell, and what it computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import calibrant as cb
import calibrant_studies as studies
from calibrant.evaluation.uncertainty import paired_difference
from calibrant.posthoc.temperature.smart.fitting import SoftBins, Tempered, make_objective
from calibrant_studies import smart_theory as theory
from calibrant_studies.catalogue import study_named
from calibrant_studies.declaration import Study, merged
from calibrant_studies.estimates import Estimate
from calibrant_studies.inputs import inputs_of
from calibrant_studies.kinds import kind_named
from calibrant_studies.kinds.smart_margins import known_move, measured_moves, through_the_head
from calibrant_studies.kinds.smart_training import (
    make_with_objective,
    solve_temperatures,
    train_by_adam,
)
from calibrant_studies.requirements import missing_of

ONE = cb.Engine(workers=1)
# Studies all of whose inputs are among the files below.
COMPLETE = {
    "smart-table-3",
    "smart-table-13",
    "smart-figure-1",
    "smart-figure-2",
    "smart-figure-16",
    "smart-mismatch",
}
QUICK = {
    "resamples": 20,
    "epochs": 5,
    "arguments": {
        "pts": {"restarts": 1, "max_iterations": 5},
        "group": {"partitions": 2},
        "smart:published": {"max_epochs": 40},
    },
}

# The same commands on files in the true layouts


def rows_of(name: str, rows: int, seed: int, classes: int = 6) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([seed, len(name)])
    weight = rng.normal(size=(classes, 8)).astype(np.float32)
    bias = np.zeros(classes, dtype=np.float32)
    rng = np.random.default_rng([seed, len(name), rows])
    features = rng.normal(size=(rows, 8)).astype(np.float32)
    logits = features @ weight.T
    labels = (logits + 2 * rng.gumbel(size=logits.shape)).argmax(axis=1)
    return {
        "logits": logits,
        "labels": labels,
        "features": features,
        "head_weight": weight,
        "head_bias": bias,
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files by the names that the studies ask for: CIFAR as a pair, ImageNet as one file."""
    folder = tmp_path_factory.mktemp("smart")
    name = "cifar10-resnet50-cross-entropy"
    np.savez(folder / f"{name}-val.npz", **rows_of(name, 150, 0))
    np.savez(folder / f"{name}-test.npz", **rows_of(name, 250, 0))
    imagenet = ("imagenet-resnet50", "imagenet-vit-b-16", "imagenet-vit-b-32")
    for i, one in enumerate((*imagenet, "imagenet-c-fog-resnet50"), 1):
        np.savez(folder / f"{one}.npz", **rows_of(one, 400, i))
    return folder


def run(study: str | Study, place: Path, **options: object) -> studies.StudyResult:
    options = {"data": [str(place)], "out": place / "kept", "engine": ONE, "seeds": [0]} | options
    return studies.run(study, **options)


@pytest.mark.parametrize(
    ("study", "points"),
    [
        ("smart-table-1", 40),
        ("smart-table-2", 3),
        ("smart-table-3", 54),
        ("smart-table-4", 18),
        ("smart-table-13", 40),
        ("smart-figure-1", 1),
        ("smart-figure-2", 3),
        ("smart-figure-11", 6),
        ("smart-figure-15", 10),
        ("smart-figure-16", 6),
        ("smart-mismatch", 40),
    ],
)
def test_files_of_the_true_layout_run_by_the_same_command(
    study: str, points: int, place: Path
) -> None:
    declared = study_named(study)
    kind = kind_named(declared.kind)
    quick = {k: v for k, v in QUICK.items() if k in kind.defaults and k not in kind.unread}
    if declared.kind == "objectives":  # there the published SMART goes by the name of its column
        quick["arguments"] = {**QUICK["arguments"], "smart": {"max_epochs": 40}}
    found = run(replace(declared, settings=merged(declared.settings, quick)), place)
    assert not found.failed
    assert len(found.ran) == points
    assert bool(found.missing) == (study not in COMPLETE)
    assert {e.measure.name for e in found.estimates} == set(declared.metrics)


def test_what_a_method_takes_away_has_the_interval_of_a_paired_difference(place: Path) -> None:
    # An error near its floor grows on resamples by more than a large one: plain quantiles lie low.
    only = {"input": ["cifar10-resnet50-cross-entropy"], "method": ["temperature"]}
    study = replace(study_named("smart-figure-11"), settings={"resamples": 200})
    (taken,) = (e for e in run(study, place, only=only).estimates if e.measure.name == "ece_taken")
    name = f"{only['input'][0]}"
    fit, test = (cb.read_predictions(place / f"{name}-{part}.npz") for part in ("val", "test"))
    after = cb.TemperatureScaling().fit_predictions(fit).apply_predictions(test)
    before, now = (cb.evaluate(e, metrics=["ece"], resamples=200)["ece"] for e in (test, after))
    values = before.value, now.value
    known = paired_difference(before.replicates, now.replicates, values)
    assert (taken.value, taken.low, taken.high) == pytest.approx(known.ends)
    drawn = before.replicates - now.replicates
    assert taken.low > np.quantile(drawn, 0.025) + 0.005


def test_fewer_rows_than_a_size_wants_is_a_sentence_and_the_rest_runs(place: Path) -> None:
    found = run("smart-figure-5", place, methods=["temperature"])
    assert [ran.cell.at["size"] for ran in found.ran] == ["50", "50", "100"]
    assert {failed.cell.at["size"] for failed in found.failed} == {
        "100",
        "200",
        "500",
        "1000",
        "2000",
        "5000",
    }
    assert "has 80 rows to fit on, not 100" in found.failed[0].error  # a fifth of 400


def test_without_features_the_methods_that_read_them_are_listed_first(tmp_path: Path) -> None:
    name = "cifar10-resnet50-cross-entropy"
    rows = rows_of(name, 300, 0)
    np.savez(tmp_path / f"{name}.npz", logits=rows["logits"], labels=rows["labels"])
    study = study_named("smart-table-1")
    missing = missing_of(study, inputs_of([str(tmp_path)])[0])
    assert missing[0].input == name
    assert missing[0].cells == 15  # three methods, five seeds
    assert "features" in missing[0].what
    found = run("smart-figure-1", tmp_path)
    assert "gap_low" in {e.measure.name for e in found.estimates}
    assert "pearson" not in {e.measure.name for e in found.estimates}


def test_public_logits_give_what_the_paper_prints(
    real_predictions: Callable[[str], cb.Predictions], tmp_path: Path
) -> None:
    from conftest import SHARED_DATA

    name = "cifar10-resnet50-cross-entropy"
    pair = [f"{name}-{part}.npz" for part in ("val", "test")]
    for file in pair:
        real_predictions(file)  # skips where there is none
    places = ",".join(str(SHARED_DATA / file) for file in pair)
    data, methods = [f"{name}={places}"], ["none", "temperature"]
    found = run("smart-table-8", tmp_path, data=data, methods=methods)
    values = {e.at["method"]: e for e in found.estimates if e.at["input"] == name}
    ends = {method: e.difference_ends or (1.0, -1.0) for method, e in values.items()}
    assert {method: low <= 0 <= high for method, (low, high) in ends.items()} == {
        "none": True,
        "temperature": True,
    }
    assert abs(values["temperature"].difference or 0) < 0.05  # of 2.14


def test_runtime_is_a_ratio_to_temperature_scaling_of_the_same_rows(place: Path) -> None:
    study = study_named("smart-table-5")
    found = run(replace(study, settings={"repeats": 2}), place, methods=["temperature", "spline"])
    ratio: dict[str, Estimate] = {}
    for estimate in found.estimates:
        if estimate.measure.name == "ratio":
            ratio.setdefault(estimate.at["method"], estimate)
    assert ratio["temperature"].value == 1
    spline = next(ran.result for ran in found.ran if ran.cell.method == "spline")
    own = np.array(spline["seconds"]) / spline["base_seconds"]
    assert ratio["spline"].value == pytest.approx(np.median(own))
    assert ratio["spline"].published is not None


# What the cells compute


def test_one_temperature_of_an_objective_is_where_that_objective_is_lowest() -> None:
    rows = cb.synthetic.tempered(2_000, 10, temperature=1.7, seed=3).predictions
    likely = make_with_objective("temperature", "nll").fit_predictions(rows)
    assert likely.temperature_ == pytest.approx(rows.temperature.beta**-1)
    for name in ("brier", "charbonnier", "label-smoothing"):
        best = make_with_objective("temperature", name).fit_predictions(rows)
        value = best.fit_report_.value
        for factor in (0.5, 0.97, 1.03, 2.0):
            beta = np.full(rows.n, factor / best.temperature_)
            objective = make_objective(name, bins=SoftBins(), delta=1e-3, smoothing=0.1)
            other, _ = objective(Tempered(rows.summary, beta))
            assert other >= value - 1e-12


def test_mse_and_brier_score_are_fitted_alike() -> None:
    rows = cb.synthetic.margin_tempered(1_500, 10, seed=1).predictions
    for method in ("temperature", "pts"):
        probs = []
        for objective in ("mse", "brier"):
            made = make_with_objective(method, objective)
            if method == "pts":
                made.set_params(restarts=1)
            probs.append(made.fit_predictions(rows).predict_proba(rows.logits))
        np.testing.assert_allclose(*probs, atol=0.02)


def test_a_training_path_starts_at_its_random_weights_and_lowers_its_loss() -> None:
    fit, test = (cb.synthetic.margin_tempered(1_500, 10, seed=s).predictions for s in (1, 2))
    path = train_by_adam(fit, test, "charbonnier", epochs=60)
    assert len(path.loss) == 61
    assert path.loss[-1] < path.loss[0] / 2
    again = train_by_adam(fit, test, "charbonnier", epochs=3)
    np.testing.assert_allclose(again.loss, path.loss[:4])
    # The gradient is that of the loss: a small step along it lowers the loss by its square.
    small = train_by_adam(fit, test, "charbonnier", epochs=1, rate=1e-5)
    assert small.loss[1] < small.loss[0]


def test_known_populations_do_what_the_footnote_says() -> None:
    proposition, many = known_move("proposition-a2"), known_move("many-classes")
    assert proposition.nll.value < 0
    assert proposition.smce.value < 0
    assert not proposition.mismatch
    assert many.nll.value < 0 < many.smce.value
    assert many.mismatch
    # One group, so smCE is its gap: 0.5 to its sharpened confidence, less 0.45.
    probs = np.r_[0.5, 0.3, np.full(8, 0.025)] ** 1.05
    assert many.smce.value == pytest.approx(probs[0] / probs.sum() - 0.5)


def test_measured_moves_are_those_of_the_rows_themselves() -> None:
    rows = cb.synthetic.tempered(3_000, 5, temperature=0.7, seed=0).predictions  # too cautious
    moves = measured_moves(rows, np.ones(rows.n), slices=3, resamples=60)
    assert sum(move.rows for move in moves) == pytest.approx(1)
    assert [move.margin[0] for move in moves] == sorted(move.margin[0] for move in moves)
    chosen = rows.margins <= moves[0].margin[1]
    sharper = np.where(chosen[:, None], 1.05, 1.0) * rows.logits
    nll = cb.evaluate(cb.Predictions.from_logits(sharper, rows.labels), metrics=["nll"])
    before = cb.evaluate(rows, metrics=["nll"])
    gap = nll["nll"].value - before["nll"].value
    assert moves[0].nll.value == pytest.approx(gap, abs=1e-9)
    assert moves[-1].nll.low < moves[-1].nll.value < moves[-1].nll.high
    assert any(move.nll.sign == -1 and move.smce.sign == -1 for move in moves)
    assert not any(move.mismatch for move in moves)


def test_solved_temperatures_reach_the_confidence_and_the_margin_says_most() -> None:
    found = solve_temperatures(400, seed=2)
    opened = {name: found.left_open(name) for name in found.indicator}
    assert opened["margin"] < opened["max-mean"] < opened["max"]
    assert 0 < opened["margin"] < 0.3
    low, high = theory.feasible_temperatures(found.indicator["margin"], 0.8, 10)
    assert (low <= found.temperature * (1 + 1e-9)).all()
    assert (found.temperature <= high * (1 + 1e-9)).all()


def test_steps_in_the_pixels_of_a_run_change_its_predictions(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    from calibrant.training.run import RunSettings, train

    rng = np.random.default_rng(0)
    images = tmp_path / "images"
    images.mkdir()
    for part, count in (("train", 60), ("t10k", 30)):
        labels = rng.integers(0, 3, count).astype(np.uint8)
        pixels = (rng.integers(0, 90, (count, 8, 8)) + 60 * labels[:, None, None]).astype(np.uint8)
        for kind, values in (("images-idx3", pixels), ("labels-idx1", labels)):
            sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
            content = bytes([0, 0, 8, values.ndim]) + sizes + values.tobytes()
            (images / f"{part}-{kind}-ubyte").write_bytes(content)
    folder = tmp_path / "net"
    settings = RunSettings(str(images), n_classes=3, epochs=1, batch_size=16, protocol="acls")
    train(settings, folder, accelerator="cpu")
    found = run("smart-figure-1", tmp_path, data=[f"cifar10-resnet50-cross-entropy={folder}"])
    (ran,) = found.ran
    assert ran.result["notes"] == ["steps in the pixels"]
    steps = ran.result["steps"]
    assert 0 < len(steps["smallest"]) <= 30
    assert ran.result["values"]["changed"]["value"] == len(steps["smallest"]) / 30
    # Without a step the network says what the run's file says of the same images.
    margins = cb.read_predictions(folder / "test.npz").margins
    assert all(np.abs(margins - margin).min() < 1e-3 for margin in steps["margin"])


def test_steps_through_two_classes_are_the_margin_over_the_gradient() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 4))
    weight = np.array([[0.5, -0.5, 0.5, 0.5], [-0.5, 0.5, -0.5, -0.5]])
    rows = cb.Predictions.from_logits(
        features @ weight.T,
        np.zeros(200, dtype=int),
        features=features,
        head=(weight, np.zeros(2)),
    )
    found = through_the_head(rows, 200, largest=4.0)
    # A step e moves the gap of the logits by e times the sum of |w_1 - w_2| = 4.
    exact = found.margin / (4 * features.std())
    done = np.isfinite(found.smallest)
    assert done.mean() > 0.9
    assert (np.abs(found.smallest - exact)[done] <= 4.0 / 64 + 1e-9).all()
    assert found.pearson > 0.99
