"""CalArena: its files of probabilities, its protocol, its published tables."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

import calibrant as cb
import calibrant_studies as studies
from calibrant.core.errors import InputError, PredictionsError
from calibrant_studies.calarena.experiments import StoredExperiments, scores_of
from calibrant_studies.calarena.protocol import (
    elo_ratings,
    improvements,
    ratings_of,
    resampled_weights,
    win_rates,
)
from calibrant_studies.calarena.published_ranking import BASE, rank, read_published

h5py = pytest.importorskip("h5py")
NAN = float("nan")


def overconfident(rows: int, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return float32 probabilities and labels of a model with twice the right log odds."""
    rng = np.random.default_rng(seed)
    honest = rng.normal(scale=1.5, size=(rows, classes))
    probs = np.exp(honest) / np.exp(honest).sum(axis=1, keepdims=True)
    labels = (probs.cumsum(axis=1) > rng.random((rows, 1))).argmax(axis=1)
    sharp = probs**2 / (probs**2).sum(axis=1, keepdims=True)
    return sharp.astype(np.float32), labels.astype(np.int32)


def write(path: Path, experiments: dict[str, int], problem: str | None, **more: Any) -> Path:
    """Write a file in CalArena's layout; `experiments` has classes by DATASET/MODEL."""
    with h5py.File(path, "w") as file:
        file.attrs["source"] = "made here"
        if problem is not None:
            file.attrs["problem_type"] = problem
        for seed, (name, classes) in enumerate(experiments.items()):
            group = file.create_group(name)
            for part, rows in (("cal", 400), ("test", 700)):
                probs, labels = overconfident(rows, classes, 100 * seed + rows)
                arrays = {f"probas_{part}": probs[:, 1] if problem == "binary" else probs}
                for key, array in (arrays | {f"labels_{part}": labels}).items():
                    group.create_dataset(key, data=more.get(key, array), compression="gzip")
    return path


def table(path: Path, method: str, rows: list[tuple[str, str, float | None]]) -> None:
    """Write a table of results as CalArena publishes them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        head = ["dataset", "model", "cal_size", "test_size"]
        writer.writerow([*head, f"{method}_logloss", f"{method}_ece-15", f"{method}_time"])
        for dataset, model, score in rows:
            writer.writerow([dataset, model, 400, 700, "" if score is None else score, 0.1, 0])


def test_a_file_is_listed_without_reading_its_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "cv-multiclass.h5", {"b/net": 3, "a/vit": 5, "a/net": 5}, "multiclass")
    with StoredExperiments(str(path)) as stored:
        names = [each.name for each in stored.experiments]
        assert names == ["cv-multiclass/a/net", "cv-multiclass/a/vit", "cv-multiclass/b/net"]
        first = stored.named("a", "net")
        assert (first.fit_rows, first.test_rows, first.n_classes) == (400, 700, 5)
        assert not first.binary
        with pytest.raises(PredictionsError, match="no experiment 'a/mlp'"):
            stored.named("a", "mlp")


@pytest.mark.parametrize("problem", ["binary", "multiclass"])
def test_scores_are_those_of_the_plain_formulas(tmp_path: Path, problem: str) -> None:
    classes = 2 if problem == "binary" else 4
    path = write(tmp_path / f"cv-{problem}.h5", {"data/net": classes}, problem)
    with StoredExperiments(str(path)) as stored:
        (experiment,) = stored.experiments
        found = scores_of(stored, experiment, cb.make_calibrator("none"))
        whole = stored.digest(experiment)
    probs, labels = overconfident(700, classes, 700)
    of_label = probs[np.arange(700), labels].astype(np.float64)
    assert found["logloss"] == pytest.approx(-np.log(of_label).mean(), abs=1e-6)
    onehot = np.eye(classes)[labels]
    assert found["brier"] == pytest.approx(((probs - onehot) ** 2).sum(axis=1).mean(), abs=1e-6)
    assert found["accuracy"] == pytest.approx((probs.argmax(axis=1) == labels).mean())
    score, event = probs.max(axis=1), probs.argmax(axis=1) == labels
    if problem == "binary":
        score, event = probs[:, 1], labels == 1
    bins = np.clip(np.ceil(score * 15), 1, 15)
    gaps = [abs((event[bins == b] - score[bins == b]).sum()) / 700 for b in range(1, 16)]
    assert found["ece-15"] == pytest.approx(sum(gaps), abs=1e-6)
    write(path, {"data/net": classes}, problem, labels_test=1 - (labels > 0).astype(np.int32))
    with StoredExperiments(str(path)) as stored:
        assert stored.digest(stored.experiments[0]) != whole


def test_the_size_of_a_block_changes_no_row(tmp_path: Path) -> None:
    path = write(tmp_path / "cv-multiclass.h5", {"data/net": 4}, "multiclass")
    with StoredExperiments(str(path)) as stored:
        (experiment,) = stored.experiments
        (whole,) = stored.test(experiment)
        blocks = list(stored.test(experiment, block=4 * 300))
    assert [block.n for block in blocks] == [300, 300, 100]
    assert (np.concatenate([b.scores for b in blocks]) == whole.scores).all()
    assert (np.concatenate([b.labels for b in blocks]) == whole.labels).all()


@pytest.mark.parametrize(("problem", "method"), [("binary", "platt"), ("multiclass", "smart")])
def test_a_method_improves_an_overconfident_model(
    tmp_path: Path, problem: str, method: str
) -> None:
    path = write(tmp_path / f"cv-{problem}.h5", {"data/net": 2}, problem)
    with StoredExperiments(str(path)) as stored:
        (experiment,) = stored.experiments
        before, after = (
            scores_of(stored, experiment, cb.make_calibrator(name)) for name in ("none", method)
        )
    assert after["logloss"] < before["logloss"] - 0.02
    assert after["brier"] < before["brier"]


def test_two_columns_of_a_binary_problem_are_read_by_the_second(tmp_path: Path) -> None:
    probs, _ = overconfident(400, 2, 400)
    test, _ = overconfident(700, 2, 700)
    one = write(tmp_path / "one.h5", {"data/net": 2}, "binary")
    two = write(tmp_path / "two.h5", {"data/net": 2}, "binary", probas_cal=probs, probas_test=test)
    fits = []
    for path in (one, two):
        with StoredExperiments(str(path)) as stored:
            fits.append(stored.fit(stored.experiments[0]).positive_probs)
    np.testing.assert_array_equal(*fits)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"probas_test": np.ones((7, 3))}, "'probas_test' of shape .7, 3. and 'labels_test'"),
        ({"probas_cal": np.full((400, 3), 1 / 3)}, "'probas_cal' has 3 columns, but 'probas_test'"),
        ({"probas_cal": np.ones(400)}, "'probas_cal' has 1 columns"),
        ({"labels_cal": np.zeros((400, 2))}, "'labels_cal' of shape"),
        ({"probas_cal": np.full((400, 4), 0.5)}, "row 0 sums to 2"),
        ({"labels_cal": np.full(400, 9)}, "9"),
    ],
)
def test_a_file_of_another_layout_is_one_sentence(
    tmp_path: Path, change: dict[str, np.ndarray], message: str
) -> None:
    path = write(tmp_path / "cv-multiclass.h5", {"data/net": 4}, "multiclass", **change)
    with (
        pytest.raises(PredictionsError, match=message) as caught,
        StoredExperiments(str(path)) as stored,
    ):
        scores_of(stored, stored.experiments[0], cb.make_calibrator("none"))
    assert "cv-multiclass.h5" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_file_of_experiments_is_one_sentence(tmp_path: Path) -> None:
    text = tmp_path / "text.h5"
    text.write_text("no HDF5")
    with pytest.raises(PredictionsError, match=r"text\.h5: can't read the file"):
        StoredExperiments(str(text))
    empty = write(tmp_path / "empty.h5", {}, "binary")
    with pytest.raises(PredictionsError, match="holds no experiment"):
        StoredExperiments(str(empty))
    other = write(tmp_path / "other.h5", {}, "regression")
    with pytest.raises(PredictionsError, match="'problem_type' is 'regression'"):
        StoredExperiments(str(other))
    with h5py.File(tmp_path / "half.h5", "w") as file:
        file["data/net/probas_cal"] = np.ones(3)
    with pytest.raises(PredictionsError, match="has no 'labels_cal'"):
        StoredExperiments(str(tmp_path / "half.h5"))


def test_ratings_are_the_likeliest_ones() -> None:
    rng = np.random.default_rng(5)
    scores = rng.normal(size=(40, 4)) + np.array([0.0, 0.4, 0.8, 1.5])
    points = (scores[:, :, None] < scores[:, None, :]).sum(axis=0).astype(np.float64)

    def against(ratings: np.ndarray) -> float:
        apart = ratings[:, None] - ratings[None, :]
        return float((points * np.log1p(np.exp(-apart))).sum())

    expected = minimize(against, np.zeros(4), tol=1e-12).x
    np.testing.assert_allclose(ratings_of(points), expected - expected.mean(), atol=2e-3)


def test_two_methods_are_apart_by_the_log_odds_of_winning() -> None:
    scores = np.array([[0.0, 1.0]] * 30 + [[1.0, 0.0]] * 10)
    found = elo_ratings(scores, resampled_weights(np.arange(40)))
    assert found.values[0] - found.values[1] == pytest.approx(400 * np.log10(3), abs=0.1)
    assert found.values.mean() == pytest.approx(1000)
    assert found.low[0] < found.values[0] < found.high[0]


def test_one_that_always_wins_has_a_finite_rating() -> None:
    scores = np.tile([0.0, 1.0, 2.0], (12, 1))
    found = elo_ratings(scores, resampled_weights(np.arange(12), resamples=20))
    assert np.isfinite(found.values).all()
    assert (np.diff(found.values) < -400).all()


def test_win_rates_count_ties_for_nobody_and_failures_as_the_caller_says() -> None:
    scores = np.array([[1.0, 1.0, 2.0], [3.0, 2.0, NAN]])
    weights = resampled_weights(np.arange(2), resamples=50)
    np.testing.assert_allclose(win_rates(scores, weights).values, [0.5, 0.75, 0.0])
    drawn = win_rates(scores, weights, failures="draw")
    np.testing.assert_allclose(drawn.values, [0.25, 0.5, 0.0])
    elo = elo_ratings(scores[1:], weights[:, :1] * 0 + 1)
    assert elo.values[1] > elo.values[0] > elo.values[2]
    again = elo_ratings(scores[1:], weights[:, :1] * 0 + 1, failures="draw")
    assert again.values[1] > again.values[2] > again.values[0]


def test_a_score_of_ours_that_differs_by_rounding_is_a_tie() -> None:
    # The log losses of CalArena's temperature scaling and of ours on one of its experiments; a
    # base model; a method that is better by what 10 000 rows can hardly show.
    theirs, ours, base, better = 0.20926125347614288, 0.2092612391, 0.3582741320133209, 0.20926
    scores = np.array([[theirs, ours, base, better]])
    weights = resampled_weights(np.arange(1), resamples=5)
    assert win_rates(scores, weights, own=[1]).values == pytest.approx([1 / 3, 1 / 3, 0, 1])
    against = win_rates(scores[:, 1:2], weights, scores[:, [0, 2, 3]], own=[0])
    assert against.values == pytest.approx([1 / 3])
    elo = elo_ratings(scores[:, :3], weights, own=[1]).values
    assert elo[0] == pytest.approx(elo[1])
    assert elo[0] > elo[2]
    # Published scores stand beside one another as CalArena has them.
    assert win_rates(scores, weights).values == pytest.approx([1 / 3, 2 / 3, 0, 1])
    assert elo_ratings(scores[:, :3], weights).values[1] > elo[1]
    # Next to 0 it is the rounding of probabilities that counts; failures have none.
    assert win_rates(np.array([[0.0, 5e-8]]), weights, own=[0]).values == pytest.approx([0, 0])
    failed = np.array([[np.inf, 1.0, NAN]])
    assert win_rates(failed, weights, own=[0, 1, 2]).values == pytest.approx([0, 1, 0])


def test_a_failure_improves_nothing() -> None:
    scores = np.array([[2.0, 1.0], [2.0, NAN]])
    found = improvements(scores, scores[:, 0], resampled_weights(np.arange(2), resamples=50))
    np.testing.assert_allclose(found.values, [0.0, 0.5])


def test_data_sets_are_resampled_whole() -> None:
    weights = resampled_weights(np.array([0, 0, 1]), resamples=30)
    assert (weights[:, 0] == weights[:, 1]).all()
    assert ((weights[:, 0] + weights[:, 2]) == 2).all()


def test_published_tables_are_ranked_by_benchmark(tmp_path: Path) -> None:
    where = tmp_path / "results" / "tabrepo-binary"
    experiments = [(f"data-{i}", f"net-{j}") for i in range(4) for j in range(2)]
    table(where / "Base-model.csv", BASE, [(*key, 1.0) for key in experiments])
    table(where / "TS.csv", "TS", [(*key, 0.8) for key in experiments])
    failed = [(*key, None if key[0] == "data-0" else 0.9) for key in experiments]
    table(where / "Hist-uniform.csv", "Hist-uniform", failed)
    (where.parent / "tabrepo-binary-experiments.csv").write_text("dataset,model\n")
    (results,) = read_published([tmp_path / "results"]).values()
    ranking = rank(results, "logloss")
    assert ranking.methods == ("TS", "Hist-uniform", BASE)
    assert ranking.experiments == 8
    assert ranking.by_dataset
    np.testing.assert_allclose(ranking.win_rate.values, [1.0, 3 / 8, 1 / 8])
    np.testing.assert_allclose(ranking.improvement.values, [0.2, 0.075, 0.0])
    results.put("smart", "logloss", experiments[0], 0.7)
    alone = rank(results, "logloss")
    assert (alone.experiments, alone.left_out, alone.own[0]) == (1, 7, True)
    assert alone.win_rate_published is not None
    np.testing.assert_allclose(alone.win_rate_published.values, [1.0, 1.0, 0.5, 0.0])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "dataset,model,cal_size,test_size,TS_brier\nd,m,1,1,0.1\n", "which benchmark"),
        ("cv-binary.csv", "dataset,model,cal_size,TS_brier\n", "no column 'test_size'"),
        ("cv-binary.csv", "dataset,model,cal_size,test_size\n", "no column of scores"),
        (
            "cv-binary.csv",
            "dataset,model,cal_size,test_size,TS_brier\nd,m,1,1,good\n",
            "row 0: 'good' isn't a number",
        ),
        (
            "cv-binary.csv",
            "dataset,model,cal_size,test_size,TS_brier\nd,m,1,1,0.1\nd,m,1,2,0.1\n",
            "row 1: d/m has 1 and 2 rows here",
        ),
        (
            "cv-binary.csv",
            "dataset,model,cal_size,test_size,TS_brier\nd,m,1,1,0.1\nd,m,1,1,0.2\n",
            "row 1: d/m has a second brier of TS",
        ),
    ],
)
def test_a_table_of_another_layout_is_one_sentence(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        read_published([tmp_path / name])
    with pytest.raises(InputError, match="no CSV"):
        read_published([_made(tmp_path / "empty")])


def tables_for(path: Path, folder: Path) -> None:
    """Write tables that CalArena could have published for a file: the base model and two more."""
    with StoredExperiments(str(path)) as stored:
        for name, method in ((BASE, "none"), ("TS", "temperature"), ("Hist", "histogram")):
            found = [
                (each, scores_of(stored, each, cb.make_calibrator(method)))
                for each in stored.experiments
            ]
            rows = [
                {"dataset": each.dataset, "model": each.model, "cal_size": 400, "test_size": 700}
                | {f"{name}_{metric}": scores[metric] for metric in ("brier", "logloss")}
                for each, scores in found
            ]
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / f"{name}.csv").open("w", newline="") as file:
                writer = csv.DictWriter(file, fieldnames=list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)


@pytest.mark.parametrize("problem", ["binary", "multiclass"])
def test_own_methods_are_ranked_among_the_published(tmp_path: Path, problem: str) -> None:
    classes = 2 if problem == "binary" else 3
    names = ("a/net", "a/vit", "b/net")
    path = write(tmp_path / f"cv-{problem}.h5", dict.fromkeys(names, classes), problem)
    tables_for(path, tmp_path / "results" / f"cv-{problem}")
    methods = ["none", "temperature", "smart", "published-TS"]
    options: dict[str, Any] = {
        "data": [str(path), f"published={tmp_path / 'results'}"],
        "out": tmp_path / "out",
        "engine": cb.Engine(workers=1),
    }
    only = {"input": [f"cv-{problem}"], "method": methods}
    found = studies.run(f"calarena-{problem}", only=only, **options)
    assert not found.failed
    value = {(r["method"], r["metric"]): r["value"] for r in found.records()}
    assert value["none", "improvement-logloss"] == 0
    for metric in ("improvement-logloss", "improvement-brier"):
        both = value["temperature", metric], value["published-TS", metric]
        assert both[0] == pytest.approx(both[1], abs=1e-9)
    assert value["published-TS", "wins-logloss"] > 50 > value["none", "wins-logloss"]
    assert value["temperature", "elo-logloss"] > 1000
    assert value["smart", "experiments"] == 3
    # Every experiment is kept as it comes: a run that was killed goes on behind the last one.
    kept = next(iter((tmp_path / "out" / "work").glob("*/experiments")))
    assert len(list(kept.glob("*.json"))) == 3
    for cell in (tmp_path / "out" / "cells").iterdir():
        cell.unlink()
    (kept / "1.json").write_text('{"method": {"brier": 0.1')
    again = studies.run(f"calarena-{problem}", only=only, **options)
    assert [r["value"] for r in again.records()] == pytest.approx(
        [r["value"] for r in found.records()], nan_ok=True
    )


def test_one_experiment_of_many_has_no_interval_and_nothing_published_beside_it(
    tmp_path: Path,
) -> None:
    names = ("a/net", "a/vit")
    for folder in ("whole", "part"):
        (tmp_path / folder).mkdir()
    whole = write(tmp_path / "whole" / "cv-multiclass.h5", dict.fromkeys(names, 3), "multiclass")
    tables_for(whole, tmp_path / "results" / "cv-multiclass")
    part = write(tmp_path / "part" / "cv-multiclass.h5", {"a/net": 3}, "multiclass")
    found = {
        path: studies.run(
            "calarena-multiclass",
            data=[str(path), f"published={tmp_path / 'results'}"],
            only={"input": ["cv-multiclass"], "method": ["none", "temperature"]},
            out=tmp_path / "out",
            engine=cb.Engine(workers=1),
        )
        for path in (whole, part)
    }
    assert ["(53.69)" in str(each) for each in found.values()] == [True, False]
    told = {
        path: {r["metric"]: r for r in each.records() if r["method"] == "temperature"}
        for path, each in found.items()
    }
    for metric in ("improvement-logloss", "wins-brier", "elo-logloss"):
        assert told[whole][metric]["low"] <= told[whole][metric]["value"]
        assert told[part][metric]["low"] is told[part][metric]["high"] is None
    published = [told[path]["improvement-logloss"]["published"] for path in (whole, part)]
    assert published == [53.69, None]
    assert told[part]["experiments"]["value"] == 1


def test_tables_of_other_rows_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "cv-multiclass.h5", {"a/net": 3}, "multiclass")
    other = write(tmp_path / "other.h5", {"a/net": 4}, "multiclass")
    tables_for(other, tmp_path / "cv-multiclass")
    found = studies.run(
        "calarena-multiclass",
        data=[str(path), f"published={tmp_path / 'cv-multiclass'}"],
        only={"input": ["cv-multiclass"], "method": ["temperature"]},
        out=tmp_path / "out",
        engine=cb.Engine(workers=1),
    )
    ((_, error),) = found.failed
    assert "aren't of the same probabilities" in error
    assert "cv-multiclass: a/net" in error


def test_a_method_that_fails_on_an_experiment_loses_there(tmp_path: Path) -> None:
    path = write(tmp_path / "cv-multiclass.h5", {"a/net": 3, "b/net": 3}, "multiclass")
    tables_for(path, tmp_path / "cv-multiclass")
    found = studies.run(
        "calarena-multiclass",
        data=[str(path), f"published={tmp_path / 'cv-multiclass'}"],
        only={"input": ["cv-multiclass"], "method": ["dac"]},
        out=tmp_path / "out",
        engine=cb.Engine(workers=1),
    )
    value = {r["metric"]: r["value"] for r in found.records()}
    assert value["failures"] == 2
    assert value["wins-logloss"] == 0
    assert value["improvement-logloss"] == 0
    errors = {scores["error"] for scores in found.ran[0].result["scores"].values()}
    assert all("needs features" in error for error in errors)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
