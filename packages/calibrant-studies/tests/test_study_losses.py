"""The study of losses: its statistics on made-up runs, its page, and what it reads of FeDLaS."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

import calibrant as cb
import calibrant_studies as studies
from calibrant.cli import main
from calibrant.core.errors import InputError
from calibrant.evaluation.uncertainty import PairedDifference
from calibrant.report.figures import gate_over_epochs
from calibrant_studies.cells import cells_of
from calibrant_studies.losses import probes as feature_norm
from calibrant_studies.losses import probes as gate
from calibrant_studies.losses import tables as controls
from calibrant_studies.losses import tables as paper
from calibrant_studies.losses.record import as_document, runs_of
from calibrant_studies.losses.statistics import (
    AFTER,
    CONTROL,
    CONTROLS,
    LINES,
    METRICS,
    Difference,
    EarlierDifference,
    Run,
    difference,
    mean,
)
from calibrant_studies.losses.tables import all_tables, claims, control, interval_cell, summary
from calibrant_studies.networks.plans import line_of, plan_of
from calibrant_studies.results import StudyResult, tables
from calibrant_studies.writing import filled

ROOT = Path(__file__).parents[3]
ONE = cb.Engine(workers=1)
TEST_ROWS, CLASSES = 400, 4
LABELS = np.random.default_rng(99).integers(CLASSES, size=(2, TEST_ROWS))
# How sure the made-up networks of a line are; 1 is honest.
SHARPNESS = {"cross-entropy": 3.0, "label-smoothing": 0.4, "fedlas-ls": 1.1, "mixup": 0.7}


def make_run(folder: Path, line: str, seed: int, changes: dict[str, Any] | None = None) -> Path:
    """Write a run whose logits know the labels a little, and are too sharp or too flat."""
    place = folder / f"{line}-{seed}"
    place.mkdir(parents=True)
    mixing = "mixup" if line == "mixup" else "none"
    settings = {"data": f"/somewhere/{seed}/cifar10", "net": "resnet8", "protocol": "quick"}
    settings |= {"loss": "cross-entropy" if line == "mixup" else line, "mixing": mixing}
    settings |= {"epochs": None, "batch_size": None, "rate": None, "precision": "bf16"}
    settings |= {"loss_settings_for": "cifar10", "loss_arguments": {}, "mixing_arguments": {}}
    settings |= {"plain_share": None}
    (place / "config.json").write_text(json.dumps(settings | {"seed": seed} | (changes or {})))
    rng = np.random.default_rng([seed, len(line)])
    for labels, name in zip(LABELS, ("val", "test"), strict=True):
        logits = rng.normal(size=(TEST_ROWS, CLASSES))
        logits[np.arange(TEST_ROWS), labels] += 1.5 + 0.1 * seed
        features = np.abs(rng.normal(size=(TEST_ROWS, 3)))
        np.savez(
            place / f"{name}.npz",
            logits=SHARPNESS.get(line, 1.0) * 1.5 * logits,
            labels=labels,
            features=features,
        )
    return place


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    for line in SHARPNESS:
        for seed in range(3) if line != "mixup" else [1]:
            make_run(place, line, seed)
    unfinished = make_run(place, "focal", 0)
    (unfinished / "test.npz").unlink()
    (place / "image-cache").mkdir()
    return place


def study(*data: Path, resamples: int = 100, **options: Any) -> StudyResult:
    """Return what the study makes of folders of runs, and of records."""
    out = data[0].parent / f"{data[0].name}-cells"
    return studies.run(
        "losses-compared",
        data=data,
        settings={"resamples": resamples},
        out=out,
        engine=ONE,
        **options,
    )


def runs_in(*data: Path, **options: Any) -> list[Run]:
    """Return the runs that the study finds there."""
    found = study(*data, **options)
    assert not found.failed
    return next(iter(runs_of(found.ran).values()))


@pytest.fixture(scope="module")
def runs(folder: Path) -> list[Run]:
    return runs_in(folder)


def links(place: Path, folder: Path, *lines: str) -> Path:
    """Return a folder with links to the runs of some lines."""
    place.mkdir()
    for line in lines:
        for run in folder.glob(f"{line}-?"):
            (place / run.name).symlink_to(run)
    return place


def test_values_are_those_of_evaluate_to_the_last_digit(folder: Path, runs: list[Run]) -> None:
    fit, test = (cb.read_predictions(folder / f"fedlas-ls-1/{n}.npz") for n in ("val", "test"))
    [run] = [run for run in runs if (run.line, run.seed) == ("fedlas-ls", 1)]
    for after in AFTER:
        probs = cb.make_calibrator(after).fit(fit.logits, fit.labels).predict_proba(test.logits)
        found = cb.evaluate(probs, test.labels, metrics=METRICS, resamples=100)
        for metric in METRICS:
            told, expected = run.scores[after, metric], found[metric]
            assert told[:4] == (expected.value, expected.low, expected.high, expected.floor)
            np.testing.assert_allclose(told.replicates, expected.replicates, rtol=1e-6)


def test_runs_that_no_cell_is_about_are_named_with_the_reason(tmp_path: Path) -> None:
    data = tmp_path / "runs"
    make_run(data, "cross-entropy", 0)
    make_run(data, "cross-entropy", 7)
    for seed in range(5):
        make_run(data / "short", "fedlas-ls", seed, {"epochs": 4})
    make_run(data / "odd", "mbls", 0, {"net": "resnet20", "precision": "32"})
    make_run(data / "elsewhere", "acls", 0, {"data": "/somewhere/svhn"})
    more = [data / "short", data / "odd", data / "elsewhere"]
    found = study(data, *more, methods=["cross-entropy", "fedlas-ls", "mbls", "acls"])
    assert {(ran.cell.method, ran.cell.seed) for ran in found.ran} == {("cross-entropy", 0)}
    assert found.left_out == [
        "1 run (cross-entropy-7): seed 7 isn't asked for",
        "5 runs (fedlas-ls-0, fedlas-ls-1, fedlas-ls-2 and 2 others): epochs is 4, not that of the "
        "protocol",
        "1 run (mbls-0): net is resnet20, not resnet8; precision is 32, not bf16",
        "1 run (acls-0): trained on other images",
    ]
    assert "left out, since no cell is about it:\n- 1 run (cross-entropy-7): seed 7" in str(found)
    assert found.as_dict()["left_out"] == found.left_out
    assert study(data, seeds=[0, 7], methods=["cross-entropy"]).left_out == []


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def plain_metrics(probs: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return the metrics by their definitions, bin by bin."""
    confidence, right = probs.max(1), probs.argmax(1) == labels
    gaps = []
    for low in range(15):
        inside = (confidence > low / 15) & (confidence <= (low + 1) / 15)
        gaps.append((confidence[inside] - right[inside]).sum() / len(labels))
    order = np.argsort(confidence, kind="stable")
    adaptive = [(confidence[p] - right[p]).sum() for p in np.array_split(order, 15)]
    return {
        "accuracy": right.mean(),
        "ece": np.abs(gaps).sum(),
        "overconfidence": np.maximum(gaps, 0).sum(),
        "underconfidence": np.maximum(-np.array(gaps), 0).sum(),
        "nll": -np.log(probs[np.arange(len(labels)), labels]).mean(),
        "adaece": np.abs(adaptive).sum() / len(labels),
    }


def logits_of(folder: Path, line: str, seed: int, part: str) -> np.ndarray:
    return np.load(folder / f"{line}-{seed}" / f"{part}.npz")["logits"]


def test_means_and_deviations_are_those_of_the_definitions(folder: Path, runs: list[Run]) -> None:
    expected = [
        plain_metrics(softmax(logits_of(folder, "cross-entropy", seed, "test")), LABELS[1])
        for seed in range(3)
    ]
    for metric in METRICS:
        if metric == "adaece":  # 400 rows don't split evenly; where the rest goes is a convention
            continue
        values = [each[metric] for each in expected]
        found = mean(runs, ("cross-entropy", "none"), metric)
        assert found.value == pytest.approx(sum(values) / 3, abs=1e-9)
        assert found.deviation == pytest.approx(np.std(values) * np.sqrt(3 / 2), abs=1e-9)
        assert found.seeds == 3
    one = mean(runs, ("mixup", "none"), "ece")
    assert (one.deviation, one.seeds) == (None, 1)
    only = next(run for run in runs if run.line == "mixup").scores["none", "ece"]
    assert one.interval == (only.low, only.high)
    assert only.low < one.value < only.high


def test_the_temperature_is_that_of_the_validation_rows(folder: Path, runs: list[Run]) -> None:
    for line in ("cross-entropy", "label-smoothing"):
        values = []
        for seed in range(3):
            val, test = (logits_of(folder, line, seed, part) for part in ("val", "test"))
            best = optimize.minimize_scalar(
                lambda t, val=val: plain_metrics(softmax(val / t), LABELS[0])["nll"],
                bounds=(0.1, 10),
                method="bounded",
                options={"xatol": 1e-9},
            )
            values.append(plain_metrics(softmax(test / best.x), LABELS[1])["nll"])
        found = mean(runs, (line, "temperature"), "nll")
        assert found.value == pytest.approx(np.mean(values), abs=1e-6)
        assert found.value < mean(runs, (line, "none"), "nll").value


def test_a_floor_is_the_mean_of_what_honest_confidences_show(folder: Path, runs: list[Run]) -> None:
    rng, floors = np.random.default_rng(3), []
    for seed in range(3):
        confidence = softmax(logits_of(folder, "cross-entropy", seed, "test")).max(1)
        bins = np.clip(np.ceil(confidence * 15).astype(int) - 1, 0, 14)
        for _ in range(300):
            gap = confidence - (rng.random(TEST_ROWS) < confidence)
            floors.append(np.abs(np.bincount(bins, gap, 15)).sum() / TEST_ROWS)
    found = mean(runs, ("cross-entropy", "none"), "ece")
    assert found.floor == pytest.approx(np.mean(floors), rel=0.05)
    assert mean(runs, ("cross-entropy", "none"), "nll").floor is None


def test_differences_are_paired_by_seed(folder: Path, runs: list[Run]) -> None:
    sides = ("fedlas-ls", "none"), ("cross-entropy", "none")
    values = [
        [
            plain_metrics(softmax(logits_of(folder, line, seed, "test")), LABELS[1])["ece"]
            for seed in range(3)
        ]
        for line, _ in sides
    ]
    found = difference(runs, *sides, "ece")
    test = stats.ttest_rel(*values)
    interval = test.confidence_interval(0.95)
    assert found.value == pytest.approx(np.mean(values[0]) - np.mean(values[1]))
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.of_seeds
    for seed, by_seed in found.by_seed.items():
        assert by_seed.value == pytest.approx(values[0][seed] - values[1][seed])
        assert by_seed.low < by_seed.value < by_seed.high
    # Made to be far apart: in each seed, and over them.
    assert (found.sign, found.agreeing()) == (-1, 3)
    reverse = difference(runs, sides[1], sides[0], "ece")
    assert (reverse.sign, reverse.agreeing()) == (1, 3)
    assert reverse.low == pytest.approx(-found.high)


def test_only_common_seeds_count_and_the_bootstrap_of_one_is_paired(runs: list[Run]) -> None:
    found = difference(runs, ("mixup", "none"), ("cross-entropy", "none"), "nll")
    assert list(found.by_seed) == [1]
    assert not found.of_seeds
    assert (found.low, found.high) == (found.by_seed[1].low, found.by_seed[1].high)
    # Against itself, every resample of rows gives 0 if both get the same rows.
    same = difference(runs, ("mixup", "none"), ("mixup", "none"), "ece")
    assert (same.value, same.low, same.high, same.sign) == (0, 0, 0, 0)
    others = [run for run in runs if (run.line, run.seed) != ("cross-entropy", 1)]
    assert difference(others, ("mixup", "none"), ("cross-entropy", "none"), "nll") is None


def test_verdicts_need_an_interval_that_leaves_out_0(runs: list[Run]) -> None:
    def verdicts(some: list[Run]) -> dict[tuple[str, str], str]:
        return {(row[0], row[1]): row[-1] for row in claims(some).rows}

    found = verdicts(runs)
    below = "fedlas-ls below cross-entropy"
    assert found[below, "ECE"] == "as published"
    # Label smoothing was made too flat, cross-entropy too sharp.
    assert found["cross-entropy below label-smoothing", "U-ECE"] == "as published"
    assert found["fedlas-ls below label-smoothing", "O-ECE"] == "the opposite"
    assert found["fedlas-mbls below mbls", "ECE"] == ""
    single = verdicts([run for run in runs if run.seed == 1])
    assert single[below, "ECE"] == "as published (one seed)"
    # ECE and AdaECE of a comparison are one claim.
    told: dict[tuple[str, str], list[str]] = {}
    for (comparison, metric), verdict in found.items():
        if verdict:
            part = metric if metric.endswith("AdaECE") or metric == "ECE" else "U-ECE or O-ECE"
            told.setdefault((comparison, part.removeprefix("Ada")), []).append(verdict)
    assert any(len(verdicts) == 2 for verdicts in told.values())
    words = [each[0] if len(set(each)) == 1 else "open" for each in told.values()]
    counts = [words.count(one) for one in ("as published", "the opposite", "open")]
    assert sum(counts) == len(told) < sum(map(bool, found.values()))
    assert claims(runs).notes == (
        f"Claims that could be checked: {len(told)}; {counts[0]} as published, "
        f"{counts[1]} the opposite, {counts[2]} open."
    )


def test_verdicts_need_most_of_the_single_networks_too() -> None:
    def verdict(value: float, lows: list[float]) -> str:
        by_seed = {
            seed: PairedDifference(value, low, low + 2 * value, 0.01)
            for seed, low in enumerate(lows)
        }
        return paper._verdict(Difference(value, value / 2, 2 * value, True, by_seed))

    apart, around = 0.1, -1.0
    assert verdict(1.0, [apart, apart, apart]) == "the opposite"
    assert verdict(1.0, [apart, apart, around]) == "the opposite"
    assert verdict(1.0, [apart, around, around]) == "open"
    assert verdict(1.0, [around, around, around]) == "open"


def test_two_measures_of_one_error_are_one_claim() -> None:
    def tally(*verdicts: str) -> str:
        rows = [["a below b", metric, "", "", verdict] for metric, verdict in zip(
            ("ECE", "AdaECE", "U-ECE"), verdicts, strict=False
        )]  # fmt: skip
        return paper.tally(rows)

    start = "Claims that could be checked:"
    assert tally("as published", "as published") == (
        f"{start} 1; 1 as published, 0 the opposite, 0 open."
    )
    assert tally("as published", "open (one seed)", "the opposite (one seed)") == (
        f"{start} 2; 0 as published, 1 the opposite, 1 open."
    )
    assert tally("", "") == f"{start} 0; 0 as published, 0 the opposite, 0 open."


def test_the_summary_says_of_how_many_seeds_the_control_is(tmp_path: Path, runs: list[Run]) -> None:
    for line in ("cross-entropy", "fedlas-ls", "label-smoothing"):
        changes = {"loss_arguments": {"alpha": 0.03}} if line == "label-smoothing" else {}
        make_run(tmp_path, line, 0, changes)
    text = summary(runs_in(tmp_path, resamples=50)).notes
    assert f"fedlas-ls minus {CONTROL}, the control with about its mean alpha (one seed, " in text
    assert "the control" not in summary(runs).notes


def test_the_summary_says_what_the_norm_tells_beside_the_confidence(runs: list[Run]) -> None:
    Estimate = feature_norm.Estimate
    found = {
        "fedlas-ls": [[Estimate(0, 0), Estimate(0, 0), Estimate(a, 0.01), Estimate(b, 0.01)]
                      for a, b in ((0.5, 0.88), (0.52, 0.9))],
        "focal": [[Estimate(0, 0), Estimate(0, 0), Estimate(0.86, 0.05), Estimate(0.87, 0.01)]],
    }  # fmt: skip
    assert paper.norm_sentence(found).endswith(
        "than the confidence with 1 of 2 losses (intervals apart): AUROC 0.51 to 0.86 against 0.87 "
        "to 0.89; fedlas-ls 0.51 against 0.89."
    )
    mine = feature_norm.norms_by_line(runs)
    assert paper.norm_sentence(mine) in summary(runs).notes


def test_the_sentences_say_what_the_differences_say(runs: list[Run]) -> None:
    text = summary(runs).notes
    found = {
        line: difference(runs, (line, "none"), ("cross-entropy", "none"), "ece")
        for line in ("label-smoothing", "fedlas-ls", "mixup")
    }
    parts: dict[int, list[str]] = {-1: [], 1: [], 0: []}
    for line, each in found.items():
        parts[each.sign].append(line + (" (one seed)" if line == "mixup" else ""))
    words = [", ".join(parts[sign]) or "none" for sign in (-1, 1, 0)]
    assert parts[-1]
    assert (
        f"against cross-entropy: lower: {words[0]}; higher: {words[1]}; open: {words[2]}." in text
    )
    assert "fedlas-ls minus label-smoothing, as trained: ECE -" in text
    assert "fedlas-mbls minus" not in text


def test_what_cannot_stand_in_one_table_stays_out(tmp_path: Path, runs: list[Run]) -> None:
    assert all_tables([run for run in runs if run.line != "cross-entropy"]) == []
    for seed, changes in enumerate(({}, {"protocol": "acls"}, {"loss_settings_for": "cub"})):
        make_run(tmp_path / "runs", "focal", seed, changes)
    assert [(run.line, run.seed) for run in runs_in(tmp_path / "runs")] == [("focal", 0)]
    # Of a network that wasn't measured after everything, no table is made.
    assert runs_of(study(tmp_path / "runs", only={"after": ["none", "smart"]}).ran) == {}


def test_networks_of_other_test_images_have_no_paired_interval(tmp_path: Path) -> None:
    for line in ("focal", "cross-entropy"):
        place = make_run(tmp_path / "runs", line, 0)
    sides = ("focal", "none"), ("cross-entropy", "none")
    assert not np.isnan(difference(runs_in(tmp_path / "runs"), *sides, "ece").low)
    content = dict(np.load(place / "test.npz"))
    np.savez(place / "test.npz", **content | {"labels": (content["labels"] + 1) % CLASSES})
    assert np.isnan(difference(runs_in(tmp_path / "runs"), *sides, "ece").low)


def test_one_command_refreshes_page_pictures_and_numbers(
    folder: Path,
    runs: list[Run],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("matplotlib")
    old = (ROOT / "docs/appendix/losses-compared.md").read_text()
    page, figure, told = (tmp_path / name for name in ("page.md", "losses.png", "losses.json"))
    page.write_text(old)
    words = ["study", "run", "losses-compared", "--data", str(folder), "--workers", "1"]
    words += ["--out", str(folder.parent / f"{folder.name}-cells"), "--set", "resamples=100"]
    words += ["--page", str(page), "--json", str(told), "--figure", str(figure)]
    monkeypatch.setattr("sys.argv", ["calibrant", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    printed, text = capsys.readouterr().out, page.read_text()
    for _, table in all_tables(runs):
        assert table.to_text() in printed
        assert table.to_markdown() in text
    # What stands between the tables stays, and every place was filled.
    assert text.split("<!-- end -->")[-1] == old.split("<!-- end -->")[-1]
    assert text.count("<!-- study losses-compared: ") == len(all_tables(runs))
    assert filled(text, study(folder), page) == text
    assert figure.read_bytes().startswith(b"\x89PNG")
    numbers = told.read_text()
    assert str(folder) not in numbers
    assert "somewhere" not in numbers
    document = json.loads(numbers, parse_constant=pytest.fail)
    expected = json.loads(json.dumps(as_document(runs)))
    assert {name: document[name] for name in expected} == expected
    assert len(document["feature_norm"]) == len(runs)
    assert document["lines"]["fedlas-ls"]["seeds"] == [0, 1, 2]
    sides = ["fedlas-ls", "smart"], ["cross-entropy", "smart"]
    found = difference(runs, *map(tuple, sides), "nll")
    [of] = [
        each
        for each in document["differences"]
        if (each["first"], each["second"], each["metric"]) == (*sides, "nll")
    ]
    assert of["high"] == found.high
    assert of["by_seed"]["2"]["low"] == found.by_seed[2].low


def test_runs_whose_folders_are_gone_stay_in_every_table(
    folder: Path, runs: list[Run], tmp_path: Path
) -> None:
    place = tmp_path / "losses.json"
    place.write_text(json.dumps(as_document(runs), allow_nan=False))
    joined = runs_in(links(tmp_path / "here", folder, "mixup"), place)
    assert [(run.line, run.seed, run.again) for run in joined if run.rows] == [("mixup", 1, True)]
    assert len(joined) == len(runs)
    for (_, before), (_, after) in zip(all_tables(runs), all_tables(joined), strict=True):
        assert after == before
    # Nothing is lost from page to page.
    again = json.loads(json.dumps(as_document(joined), allow_nan=False))
    assert again == json.loads(json.dumps(as_document(runs)))
    # Two networks that were never compared have a difference, but no interval over test images.
    sides = ("mixup", "temperature"), ("cross-entropy", "none")
    [only] = difference(joined, *sides, "ece").by_seed.values()
    assert only.value == pytest.approx(difference(runs, *sides, "ece").value, abs=1e-12)
    assert np.isnan(only.low)
    assert interval_cell(difference(joined, *sides, "ece"), "ece").endswith("(0/0 of 1)")


def test_a_run_that_came_out_otherwise_takes_none_of_the_old_intervals(
    folder: Path, runs: list[Run], tmp_path: Path
) -> None:
    document = json.loads(json.dumps(as_document(runs)))
    for entry in document["runs"]:
        if (entry["line"], entry["seed"]) == ("fedlas-ls", 0):
            entry["after"]["none"]["ece"]["value"] += 0.01
    place = tmp_path / "losses.json"
    place.write_text(json.dumps(document))
    here = links(tmp_path / "here", folder, "fedlas-ls")
    found = study(here, place)
    told = dict(tables(found))["Trained again"]
    assert [row[1].split()[0] for row in told.rows] == ["other", "the", "the"]
    joined = next(iter(runs_of(found.ran).values()))
    sides = ("fedlas-ls", "none"), ("cross-entropy", "none")
    assert difference(joined, *sides, "ece").known() == 3
    # Now the network that is gone is the one that differs.
    joined = runs_in(links(tmp_path / "others", folder, "cross-entropy"), place)
    apart = difference(joined, *sides, "ece")
    assert np.isnan(apart.by_seed[0].low)
    assert not np.isnan(apart.by_seed[1].low)
    # What is no record is no input of this study.
    place.write_text("{}")
    assert len(runs_in(here, place)) == 3


def test_results_after_another_fit_of_smart_are_only_compared_as_they_were(
    folder: Path, runs: list[Run], tmp_path: Path
) -> None:
    document = json.loads(json.dumps(as_document(runs)))
    for entry in document["runs"]:
        entry["smart_fit"] = "hand"
        entry["after"]["smart"]["ece"]["value"] += 1
    place = tmp_path / "losses.json"
    place.write_text(json.dumps(document))
    joined = runs_in(links(tmp_path / "here", folder, "cross-entropy", "mixup"), place)
    assert {run.again for run in joined if run.rows} == {True}
    sides = ("fedlas-ls", "smart"), ("cross-entropy", "smart")
    before, after = (difference(some, *sides, "ece") for some in (runs, joined))
    assert after.by_seed == before.by_seed
    assert difference(joined, sides[0], ("mixup", "smart"), "ece") is None
    notes = dict(all_tables(joined))["Test images, after SMART"].notes
    assert notes.endswith("fitted by hand, before it was by six damped steps, for networks that "
                          "are gone: label-smoothing, fedlas-ls.")  # fmt: skip


def test_a_count_on_record_holds_for_seeds_that_it_can_be_told_of() -> None:
    def paired(value: float, low: float = np.nan) -> PairedDifference:
        return PairedDifference(value, low, low + 1, 0.5)

    now = {0: paired(1.0, 0.5), 1: paired(2.0), 2: paired(3.0)}
    before = {seed: paired(each.value) for seed, each in now.items()}
    assert EarlierDifference(before, 3).counted(now) == 2
    assert EarlierDifference(before, 0).counted(now) == 0
    assert EarlierDifference(before, 2).counted(now) is None
    assert EarlierDifference(before, 2).counted(before) == 2
    assert EarlierDifference(before, None).counted(before) is None
    assert EarlierDifference({1: paired(2.0)}, 1).counted(now) is None
    found = Difference(2.0, 1.0, 3.0, True, now, counted=2)
    assert (found.agreeing(), found.known(), found.verdict) == (3, 3, 1)
    alone = Difference(2.0, 1.0, 3.0, True, now)
    assert (alone.agreeing(), alone.known(), alone.verdict) == (1, 1, 0)
    assert interval_cell(alone, "nll").endswith("; 1/1 of 3)")


def test_the_summary_sorts_the_controls_and_says_what_they_leave_open(runs: list[Run]) -> None:
    smaller, fixed = "label-smoothing alpha=0.02", "fedlas-ls gate=random"
    renamed = [
        replace(run, line={"cross-entropy": smaller, "label-smoothing": fixed}[run.line])
        for run in runs
        if run.line in ("cross-entropy", "label-smoothing")
    ]
    everything = [*runs, *renamed]
    points = controls.deciding(everything)
    for line, point, of in ((smaller, points[0], "cross-entropy"),
                            (fixed, points[1], "label-smoothing")):  # fmt: skip
        sides = ("fedlas-ls", "none"), (of, "none")
        words = controls.in_classes({line: difference(runs, *sides, "ece")})
        assert f"ECE against these: {words}" in point
    assert "lower: label-smoothing alpha=0.02" in points[0]
    assert [row[0] for row in control(everything).rows] == [f"{smaller} (3)", f"{fixed} (3)"]
    assert controls.deciding(runs) == []
    same = [*runs, *(replace(run, line=smaller) for run in runs if run.line == "fedlas-ls")]
    assert "the ECE may differ by +0.00 to +0.00 points" in controls.deciding(same)[-1]
    # An interval over seeds alone decides nothing, and the sentence says why.
    gone = [
        replace(run, scores={k: v._replace(replicates=None) for k, v in run.scores.items()})
        for run in everything
    ]
    words = controls.deciding(gone)
    assert "ECE against these: lower: none; higher: none; open: " in words[0]
    [why] = [each for each in words if each.startswith("Open only because predictions are gone")]
    assert f"ECE against {smaller} -" in why


def test_other_arguments_make_another_line(runs: list[Run], tmp_path: Path) -> None:
    def line(loss: str = "cross-entropy", mixing: str = "none", **arguments: Any) -> str:
        return line_of(loss, arguments if mixing == "none" else {}, mixing, arguments)

    assert line() == "cross-entropy"
    assert line(mixing="mixup") == "mixup"
    assert line(mixing="mixup", alpha=1) == "mixup alpha=1"
    assert line(loss="focal", mixing="mixup") == "focal + mixup"
    assert line(loss="label-smoothing", alpha=0.03) == CONTROL
    make_run(tmp_path / "runs", "label-smoothing", 0, {"loss_arguments": {"alpha": 0.03}})
    make_run(tmp_path / "runs", "fedlas-ls", 0)
    mine = runs_in(tmp_path / "runs", resamples=50)
    assert [run.line for run in mine] == ["fedlas-ls", CONTROL]
    found = difference(mine, ("fedlas-ls", "none"), (CONTROL, "none"), "ece")
    assert control(mine).rows[0][2] == interval_cell(found, "ece")
    assert control(runs).rows == []
    assert control(runs).notes.startswith(f"Not there: label-smoothing alpha=0.02, {CONTROL}, ")


def test_every_line_of_the_tables_is_declared() -> None:
    cells = cells_of(studies.study_named("losses-compared"))
    assert {plan_of(cell).line for cell in cells} == {*LINES, *CONTROLS}
    assert {plan_of(cell).after for cell in cells} == set(AFTER)


def test_the_norm_tells_right_from_wrong_as_often_as_pairs_say(
    folder: Path, runs: list[Run]
) -> None:
    test = cb.read_predictions(folder / "cross-entropy-0/test.npz")
    rows = feature_norm.read_rows(test)
    right = rows.right == 1
    found = feature_norm.norm_estimates(test)
    assert feature_norm.norms_by_line(runs)["cross-entropy"][0] == found
    rounded = np.round(rows.confidence, 1)  # with ties
    ours = feature_norm.auroc_of_right(rounded, right).value
    for scores, value in (
        (rows.norm, found[2].value),
        (rows.confidence, found[3].value),
        (rounded, ours),
    ):
        pairs = scores[right][:, None] - scores[~right]
        assert value == pytest.approx(((pairs > 0) + 0.5 * (pairs == 0)).mean())
    assert found[0].value == pytest.approx(np.corrcoef(rows.norm, rows.right)[0, 1])
    # Errors against the spread of resamples.
    rng, drawn = np.random.default_rng(0), []
    for _ in range(1000):
        some = rng.integers(TEST_ROWS, size=TEST_ROWS)
        drawn.append(
            (
                np.corrcoef(rows.confidence[some], rows.right[some])[0, 1],
                feature_norm.auroc_of_right(rows.confidence[some], right[some]).value,
            )
        )
    errors = feature_norm.correlation(rows.confidence, rows.right).error, found[3].error
    assert errors == pytest.approx(np.std(drawn, axis=0), rel=0.1)


def test_intervals_of_the_norms_are_over_seeds_where_there_are_some(runs: list[Run]) -> None:
    mine = [run for run in runs if run.line == "fedlas-ls"]
    estimates = feature_norm.norms_by_line(mine)["fedlas-ls"]
    values = [each[2].value for each in estimates]
    low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    shown = feature_norm.norms(mine).rows[0]
    assert shown[3] == f"{np.mean(values):.3f} ({low:.3f} to {high:.3f})"
    value, error = estimates[0][2]
    shown = feature_norm.norms(mine[:1]).rows[0]
    assert shown[3] == f"{value:.3f} ({value - 1.96 * error:.3f} to {value + 1.96 * error:.3f})"


def test_the_gate_of_a_trained_network_on_its_test_images(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("lightning")
    from calibrant.training.data import DataSet, ImageSet
    from calibrant.training.run import RunSettings, train

    rng = np.random.default_rng(0)
    parts = [
        ImageSet.from_rows(
            rng.integers(0, 255, (n, 8, 8, 3)).astype(np.uint8), rng.integers(0, CLASSES, n)
        )
        for n in (80, 40)
    ]
    settings = RunSettings("cifar10", loss="fedlas-ls", epochs=2, batch_size=16, precision="32")
    train(settings, tmp_path / "runs/run", data=DataSet(*parts, None, CLASSES))
    options = {"epochs": 2, "batch_size": 16, "precision": "32", "loss_settings_for": ""}
    options["protocol"] = settings.protocol
    given = {"settings": {"resamples": 20, **options}, "out": tmp_path / "out", "engine": ONE}
    [run] = next(
        iter(runs_of(studies.run("losses-compared", data=tmp_path / "runs", **given).ran).values())
    )
    found = gate.gate_of(run)
    state = torch.load(tmp_path / "runs/run/last.ckpt", weights_only=True)["objective"]
    archive = np.load(tmp_path / "runs/run/test.npz")
    weights = [state[f"loss.gate_network.{part}"].numpy() for part in ("0.weight", "2.weight")]
    biases = [state[f"loss.gate_network.{part}"].numpy() for part in ("0.bias", "2.bias")]
    hidden = archive["logits"] @ weights[0].T + biases[0]
    outputs = np.where(hidden > 0, hidden, 0.01 * hidden) @ weights[1].T + biases[1]
    psi = np.sign(outputs[:, 1] - outputs[:, 0])
    norm = np.abs(archive["features"]).sum(1)
    nci = (norm - state["loss.running_mean"].item()) / (state["loss.running_std"].item() + 1e-3)
    alpha = 0.1 / (1 + np.exp(-4 * psi * nci))
    assert found.positive == pytest.approx((psi == 1).mean())
    assert found.alpha == pytest.approx(alpha.mean(), rel=1e-4)
    # One that is drawn at random is drawn alike whenever the run is measured.
    configuration = json.loads((tmp_path / "runs/run/config.json").read_text())
    at_random = configuration | {"loss_arguments": {"indicator": "random"}}
    test = cb.read_predictions(tmp_path / "runs/run/test.npz")
    again = [gate.gate_on_test_images(tmp_path / "runs/run", at_random, test) for _ in range(2)]
    assert again[0].alpha == again[1].alpha != found.alpha
    [row] = gate.gates([run]).rows
    assert row[0] == "fedlas-ls, seed 0"
    assert (row[3] == "no image") == (found.positive == 0)
    document = json.loads(json.dumps(as_document([run]), allow_nan=False))
    assert document["gate_on_test_images"][0]["alpha"] == found.alpha
    (tmp_path / "losses.json").write_text(json.dumps(document))
    kept = studies.run("losses-compared", data=tmp_path / "losses.json", **given)
    [gone] = next(iter(runs_of(kept.ran).values()))
    assert gate.gates([gone]) == gate.gates([run])
    assert gate.epochs([gone]) == gate.epochs([run])
    places = [row[0] for row in gate.epochs([run]).rows]
    assert places == ["fedlas-ls (1), epoch 1", "fedlas-ls (1), epoch 2"]
    history = json.loads((tmp_path / "runs/run/history.json").read_text())
    pyplot = pytest.importorskip("matplotlib.pyplot")
    axes = gate_over_epochs(history)
    drawn = axes[2].get_lines()[0].get_ydata()
    assert drawn.tolist() == [row["gate_alpha"] for row in history]
    assert np.isnan(axes[1].get_lines()[0].get_ydata()[0])
    again = gate_over_epochs(history, axes)
    assert [text.get_text() for text in again[0].get_legend().get_texts()] == ["psi +1", "psi -1"]
    with pytest.raises(InputError, match="no columns 'gate_"):
        gate_over_epochs([{"epoch": 1.0}])
    with pytest.raises(InputError, match="needs 4 axes, not 2"):
        gate_over_epochs(history, axes[:2])
    pyplot.close("all")


def test_gaps_of_the_two_modes() -> None:
    psi = np.array([1.0, 1.0, 1.0, -1.0, -1.0])
    residual = np.array([0.3, 0.1, 0.2, -0.4, -0.2])
    found = gate.gate_summary(psi, np.full(5, 0.05), residual)
    assert (found.positive, found.alpha) == (0.6, 0.05)
    assert (found.gap_positive, found.gap_negative) == pytest.approx((0.2, -0.3))
    assert found.half == pytest.approx(1.959964 * np.sqrt(0.01 / 3 + 0.02 / 2), rel=1e-6)
    one_sided = gate.gate_summary(np.ones(5), np.full(5, 0.05), residual)
    assert np.isnan(one_sided.gap_negative)
    assert np.isnan(one_sided.half)
