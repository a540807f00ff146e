"""The study of losses: its statistics on made-up runs, its page, and what it reads of FeDLaS."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

from calibrant.core.errors import InputError
from calibrant.evaluation.uncertainty import PairedDifference
from calibrant.report.gate_figure import gate_over_epochs
from calibrant.studies.losses import controls, feature_norm, gate, paper, record, training
from calibrant.studies.losses.page import write_tables
from calibrant.studies.losses.paper import all_tables, claims, control, summary
from calibrant.studies.losses.record import as_document
from calibrant.studies.losses.runs import CONTROL, LINES, METRICS, Run, finished, line_of, read_runs
from calibrant.studies.losses.statistics import (
    Difference,
    EarlierDifference,
    difference,
    mean,
)
from calibrant.studies.losses.tables import Table, fill, interval_cell

TEST_ROWS, CLASSES = 400, 4
LABELS = np.random.default_rng(99).integers(CLASSES, size=(2, TEST_ROWS))
# How sure the made-up networks of a line are; 1 is honest.
SHARPNESS = {"cross-entropy": 3.0, "label-smoothing": 0.4, "fedlas-ls": 1.1, "mixup": 0.7}


def make_run(folder: Path, line: str, seed: int, changes: dict[str, Any] | None = None) -> Path:
    """Write a run whose logits know the labels a little, and are too sharp or too flat."""
    place = folder / f"{line}-{seed}"
    place.mkdir(parents=True)
    mixing = "mixup" if line == "mixup" else "none"
    settings = {"data": f"/somewhere/{seed}", "net": "resnet8", "protocol": "quick"}
    settings |= {"loss": "cross-entropy" if line == "mixup" else line, "mixing": mixing}
    settings |= {"epochs": None, "batch_size": None, "rate": None, "precision": "32"}
    settings |= {"loss_settings_for": None, "loss_arguments": {}, "mixing_arguments": {}}
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


@pytest.fixture(scope="module")
def runs(folder: Path) -> list[Run]:
    return read_runs(folder, resamples=100)


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
    assert claims(runs).note == (
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
    text = summary(read_runs(tmp_path, 50)).note
    assert f"fedlas-ls minus {CONTROL}, the control with about its mean alpha (one seed, " in text
    assert "the control" not in summary(runs).note


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
    assert paper.norm_sentence(mine) in summary(runs).note


def test_the_sentences_say_what_the_differences_say(runs: list[Run]) -> None:
    text = summary(runs).note
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


def test_what_cannot_stand_in_one_table_is_refused(tmp_path: Path, runs: list[Run]) -> None:
    with pytest.raises(InputError, match="no run of cross-entropy is finished"):
        all_tables([run for run in runs if run.line != "cross-entropy"])
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match="holds no finished run"):
        read_runs(tmp_path / "none", 10)
    for name, changes, sentence in (
        ("protocol", {"protocol": "acls"}, "has protocol 'quick', but .* has 'acls'"),
        ("line", {"loss_settings_for": "cub"}, "has loss_settings_for None, but .* has 'cub'"),
        ("twin", {"seed": 1}, "is focal with seed 1, as .*focal-0 is"),
    ):
        make_run(tmp_path / name, "focal", 0, changes)
        make_run(tmp_path / name, "focal", 1)
        with pytest.raises(InputError, match=sentence):
            read_runs(tmp_path / name, 10)
    place = make_run(tmp_path / "images", "focal", 0)
    make_run(tmp_path / "images", "focal", 1)
    content = dict(np.load(place / "test.npz"))
    np.savez(place / "test.npz", **content | {"labels": (content["labels"] + 1) % CLASSES})
    with pytest.raises(InputError, match="was tested on other images"):
        read_runs(tmp_path / "images", 10)


def test_the_page_takes_all_tables_again_and_again(folder: Path, runs: list[Run]) -> None:
    page = (Path(__file__).parents[1] / "docs/losses-compared.md").read_text()
    tables = [*all_tables(runs), feature_norm.norms(runs)]
    tables += [Table(name, "", [], [], "later") for name in ("gates", "epochs")]
    filled = fill(page, tables)
    assert fill(filled, tables) == filled
    for table in tables:
        assert table.markdown() in filled
    # What stands between the tables stays.
    assert filled.split("<!-- end -->")[-1] == page.split("<!-- end -->")[-1]
    assert "| focal" not in filled.split("<!-- end -->")[0]
    with pytest.raises(InputError, match="don't agree on: gates"):
        fill(page, [table for table in tables if table.name != "gates"])


def test_one_command_refreshes_page_pictures_and_numbers(
    folder: Path, runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    page = tmp_path / "docs/page.md"
    page.parent.mkdir()
    page.write_text((Path(__file__).parents[1] / "docs/losses-compared.md").read_text())
    write_tables(folder, page, resamples=100)
    printed = capsys.readouterr().out
    for table in all_tables(runs):
        assert str(table) in printed
        assert table.markdown() in page.read_text()
    assert (page.parent / "images/losses-ece.png").read_bytes().startswith(b"\x89PNG")
    text = (page.parent / "results/losses.json").read_text()
    assert str(folder) not in text
    assert "somewhere" not in text
    document = json.loads(text, parse_constant=pytest.fail)
    expected = json.loads(json.dumps(as_document(runs)))
    assert {name: document[name] for name in expected} == expected
    assert len(document["feature_norm"]) == len(runs)
    assert document["lines"]["fedlas-ls"]["seeds"] == [0, 1, 2]
    sides = ["fedlas-ls", "smart"], ["cross-entropy", "smart"]
    found = difference(runs, *map(tuple, sides), "nll")
    [told] = [
        each
        for each in document["differences"]
        if (each["first"], each["second"], each["metric"]) == (*sides, "nll")
    ]
    assert told["high"] == found.high
    assert told["by_seed"]["2"]["low"] == found.by_seed[2].low


def test_runs_whose_folders_are_gone_stay_in_every_table(
    folder: Path, runs: list[Run], tmp_path: Path
) -> None:
    place = tmp_path / "losses.json"
    place.write_text(json.dumps(as_document(runs), allow_nan=False))
    here = [run for run in runs if run.line == "mixup"]
    joined = record.join(here, place)
    assert joined.again == ["mixup, seed 1"]
    assert not joined.otherwise
    gone = [run for run in joined.runs if run.folder is None]
    assert len(gone) == len(runs) - 1
    for before, after in zip(all_tables(runs), all_tables(joined.runs), strict=True):
        assert str(after) == str(before)
    assert str(feature_norm.norms(joined.runs)) == str(feature_norm.norms(runs))
    # Nothing is lost from page to page.
    again = json.loads(json.dumps(as_document(joined.runs), allow_nan=False))
    assert again == json.loads(json.dumps(as_document(runs)))
    # Two networks that were never compared have a difference, but no interval over test images.
    sides = ("mixup", "temperature"), ("cross-entropy", "none")
    [only] = difference(joined.runs, *sides, "ece").by_seed.values()
    assert only.value == pytest.approx(difference(runs, *sides, "ece").value, abs=1e-12)
    assert np.isnan(only.low)
    assert interval_cell(difference(joined.runs, *sides, "ece"), "ece").endswith("(0/0 of 1)")


def test_a_run_that_came_out_otherwise_takes_none_of_the_old_intervals(
    runs: list[Run], tmp_path: Path
) -> None:
    document = json.loads(json.dumps(as_document(runs)))
    for entry in document["runs"]:
        if (entry["line"], entry["seed"]) == ("fedlas-ls", 0):
            entry["after"]["none"]["ece"]["value"] += 0.01
    place = tmp_path / "losses.json"
    place.write_text(json.dumps(document))
    joined = record.join([run for run in runs if run.line == "fedlas-ls"], place)
    assert joined.otherwise == ["fedlas-ls, seed 0"]
    sides = ("fedlas-ls", "none"), ("cross-entropy", "none")
    assert difference(joined.runs, *sides, "ece").known() == 3
    # Now the network that is gone is the one that differs.
    joined = record.join([run for run in runs if run.line == "cross-entropy"], place)
    found = difference(joined.runs, *sides, "ece")
    assert np.isnan(found.by_seed[0].low)
    assert not np.isnan(found.by_seed[1].low)
    place.write_text("{}")
    with pytest.raises(InputError, match="is no record of this study"):
        record.join(runs, place)


def test_results_after_another_fit_of_smart_are_only_compared_as_they_were(
    runs: list[Run], tmp_path: Path
) -> None:
    document = json.loads(json.dumps(as_document(runs)))
    for entry in document["runs"]:
        entry["smart_fit"] = "hand"
        entry["after"]["smart"]["ece"]["value"] += 1
    place = tmp_path / "losses.json"
    place.write_text(json.dumps(document))
    here = [run for run in runs if run.line in ("cross-entropy", "mixup")]
    joined = record.join(here, place)
    assert not joined.otherwise
    sides = ("fedlas-ls", "smart"), ("cross-entropy", "smart")
    before, after = (difference(some, *sides, "ece") for some in (runs, joined.runs))
    assert after.by_seed == before.by_seed
    assert difference(joined.runs, sides[0], ("mixup", "smart"), "ece") is None
    [note] = [table.note for table in all_tables(joined.runs) if table.name == "means-smart"]
    assert note.endswith("fitted by hand, before it was by six damped steps, for networks that "
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
    def line(**changes: Any) -> str:
        return line_of(runs[0].settings | changes)

    assert line() == "cross-entropy"
    assert line(mixing="mixup") == "mixup"
    assert line(mixing="mixup", mixing_arguments={"alpha": 1}) == "mixup alpha=1"
    assert line(loss="focal", mixing="mixup") == "focal + mixup"
    assert line(loss="label-smoothing", loss_arguments={"alpha": 0.03}) == CONTROL
    make_run(tmp_path, "label-smoothing", 0, {"loss_arguments": {"alpha": 0.03}})
    make_run(tmp_path, "fedlas-ls", 0)
    mine = read_runs(tmp_path, 50)
    assert [run.line for run in mine] == ["fedlas-ls", CONTROL]
    found = difference(mine, ("fedlas-ls", "none"), (CONTROL, "none"), "ece")
    assert control(mine).rows[0][2] == interval_cell(found, "ece")
    assert control(runs).rows == []
    assert control(runs).note.startswith(
        f"Not trained when this page was made: label-smoothing alpha=0.02, {CONTROL}, "
    )


def test_training_goes_on_where_it_was_left(folder: Path, tmp_path: Path) -> None:
    arguments = Namespace(
        data=Path("cifar"),
        out=folder,
        seeds="0,1",
        losses="all",
        net="resnet8",
        protocol="quick",
        epochs=4,
        n_classes=None,
        precision="bf16",
        loss_settings_for="cifar10",
    )
    wanted = training.commands(arguments)
    done = {f"{line}-{seed}" for line in SHARPNESS for seed in (0, 1)} - {"mixup-0"}
    assert wanted.keys() == {f"{line}-{seed}" for line in LINES for seed in "01"} - done
    words = " ".join(wanted["fedlas-mbls-1"])
    assert f"--out {folder}/fedlas-mbls-1 --loss fedlas-mbls " in words
    assert "--seed 1 --precision bf16 --loss-settings-for cifar10 --epochs 4 --resume" in words
    assert "--mixing mixup" in " ".join(wanted["mixup-0"])
    called: list[list[str]] = []

    def call(command: list[str]) -> int:
        called.append(command[3:])
        return int("focal-0" in " ".join(command))

    failed = training.run_commands(wanted, call)
    assert called == list(wanted.values())
    assert failed == ["focal-0", "dual-focal-0"]
    arguments.losses = CONTROL
    name, words = next(iter(training.commands(arguments).items()))
    assert name == "label-smoothing-alpha=0.03-0"
    assert " ".join(words).count("--loss label-smoothing --set alpha=0.03") == 1
    arguments.losses = "focal,hinge"
    with pytest.raises(InputError, match="'hinge' is not in the study"):
        training.commands(arguments)
    assert not finished(tmp_path)


def test_the_norm_tells_right_from_wrong_as_often_as_pairs_say(runs: list[Run]) -> None:
    rows = feature_norm.read_rows(runs[0])
    right = rows.right == 1
    found = feature_norm.norm_estimates(runs[0])
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
    values = [feature_norm.norm_estimates(run)[2].value for run in mine]
    low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    shown = feature_norm.norms(mine).rows[0]
    assert shown[3] == f"{np.mean(values):.3f} ({low:.3f} to {high:.3f})"
    value, error = feature_norm.norm_estimates(mine[0])[2]
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
    settings = RunSettings("here", loss="fedlas-ls", epochs=2, batch_size=16, precision="32")
    train(settings, tmp_path / "run", data=DataSet(*parts, None, CLASSES))
    [run] = read_runs(tmp_path, 20)
    found = gate.gate_on_test_images(run)
    state = torch.load(tmp_path / "run/last.ckpt", weights_only=True)["objective"]
    archive = np.load(tmp_path / "run/test.npz")
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
    [row] = gate.gates([run]).rows
    assert row[0] == "fedlas-ls, seed 0"
    assert (row[3] == "no image") == (found.positive == 0)
    document = json.loads(json.dumps(as_document([run]), allow_nan=False))
    assert document["gate_on_test_images"][0]["alpha"] == found.alpha
    (tmp_path / "losses.json").write_text(json.dumps(document))
    assert str(gate.gates(record.read_record(tmp_path / "losses.json"))) == str(gate.gates([run]))
    assert str(gate.epochs(record.read_record(tmp_path / "losses.json"))) == str(gate.epochs([run]))
    places = [row[0] for row in gate.epochs([run]).rows]
    assert places == ["fedlas-ls (1), epoch 1", "fedlas-ls (1), epoch 2"]
    history = json.loads((tmp_path / "run/history.json").read_text())
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
    found = gate.summary(psi, np.full(5, 0.05), residual)
    assert (found.positive, found.alpha) == (0.6, 0.05)
    assert (found.gap_positive, found.gap_negative) == pytest.approx((0.2, -0.3))
    assert found.half == pytest.approx(1.959964 * np.sqrt(0.01 / 3 + 0.02 / 2), rel=1e-6)
    one_sided = gate.summary(np.ones(5), np.full(5, 0.05), residual)
    assert np.isnan(one_sided.gap_negative)
    assert np.isnan(one_sided.half)
