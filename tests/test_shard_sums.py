"""Sums over shards: exact, whoever adds them and in what order; and what follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import calibrant as cb
from calibrant.core.errors import InputError, PredictionsError
from calibrant.core.progress import Progress
from calibrant.core.weights import as_float, exact_sum, halves, joined, mixed
from calibrant.evaluation.cell_sample import CellSample, plan_of
from calibrant.evaluation.cells import COARSE, FINE, CellSums, edges_of
from calibrant.evaluation.sample_sources import summed

ONE = cb.Engine(workers=1)
N = 6_000
NOT_SUMMED = {"skce", "classwise_adaece"}


@pytest.fixture(scope="module")
def whole() -> cb.Predictions:
    """Rows some of whose logits are large, so that chunks differ in how they are computed."""
    drawn = cb.synthetic.tempered(N, 5, temperature=1.6, seed=3).predictions
    logits = drawn.logits.astype(np.float32)
    logits[::7] += 40.0
    return cb.Predictions.from_logits(logits, drawn.labels, source="whole")


def dealt(whole: cb.Predictions, folder: Path, cuts: Sequence[int]) -> cb.Shards:
    """Write the rows to files that begin at these places."""
    folder.mkdir()
    visits = np.arange(N) // 3
    for i, (start, stop) in enumerate(zip([0, *cuts], [*cuts, N], strict=True)):
        part = whole.take(slice(start, stop))
        columns = {"visit": visits[start:stop], "site": np.where(part.labels > 2, "a", "b")}
        np.savez(folder / f"{i}.npz", logits=part.scores, labels=part.labels, **columns)
    return cb.Shards(folder)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=50))
@settings(max_examples=50, deadline=None)
def test_a_sum_of_floats_is_exact(values: list[float]) -> None:
    total = exact_sum(np.array(values, dtype=np.float64))
    assert Fraction(total, 1 << 1074) == sum(map(Fraction, values))


def test_confidences_are_summed_to_the_last_bit() -> None:
    confidence = np.random.default_rng(0).random(10_000)
    found = joined(*(half.sum().astype(np.int64)[None] for half in halves(confidence)))[0]
    assert found == pytest.approx(as_float(exact_sum(confidence)), rel=1e-15)


def test_cells_hold_the_edges_of_usual_bins() -> None:
    for grid, counts in ((FINE, (10, 12, 15, 20, 30)), (COARSE, (10, 12, 15, 20, 30))):
        for n_bins in counts:
            assert np.isin(np.arange(n_bins + 1) / n_bins, edges_of(grid)).all()


def test_the_same_places_look_random_and_the_same_everywhere() -> None:
    first = mixed(np.arange(1000, dtype=np.uint64), 5)
    np.testing.assert_array_equal(first[500:], mixed(np.arange(500, 1000, dtype=np.uint64), 5))
    assert len(np.unique(first)) == 1000
    assert abs((first >> np.uint64(63)).mean() - 0.5) < 0.05


def assert_same(first: CellSample, second: CellSample) -> None:
    """Assert that two sums are the same whole numbers."""
    np.testing.assert_array_equal(first.cells.key, second.cells.key)
    np.testing.assert_array_equal(first.cells.sums, second.cells.sums)
    assert first.numbers.keys() == second.numbers.keys()
    for name, numbers in first.numbers.items():
        np.testing.assert_array_equal(numbers.key, second.numbers[name].key)
        np.testing.assert_array_equal(numbers.sums, second.numbers[name].sums)
    assert first.whole.keys() == second.whole.keys()
    for kind, sums in first.whole.items():
        for name, value in vars(sums).items():
            np.testing.assert_array_equal(value, getattr(second.whole[kind], name))


@pytest.mark.parametrize("cuts", [[17, 3000], [1, 2, 3, 4, 5, 5999], list(range(400, N, 400))])
def test_no_number_hangs_on_how_rows_are_dealt(
    whole: cb.Predictions, tmp_path: Path, cuts: list[int]
) -> None:
    plan = plan_of("all")
    one, many = (
        summed(dealt(whole, tmp_path / str(i), c), plan, ONE) for i, c in enumerate(([], cuts))
    )
    assert_same(one, many)
    options = {"metrics": "all", "resamples": 20}
    results = [cb.evaluate(sums, **options).as_dict()["metrics"] for sums in (one, many)]
    assert results[0] == results[1]


def test_the_order_of_rows_is_none_to_the_metrics_of_confidences(
    whole: cb.Predictions, tmp_path: Path
) -> None:
    shuffled = whole.take(np.random.default_rng(0).permutation(N))
    plan = plan_of(["ece", "nll", "brier", "accuracy"])
    one = summed(dealt(whole, tmp_path / "a", [100]), plan, ONE)
    assert_same(one, summed(dealt(shuffled, tmp_path / "b", [3000, 3001]), plan, ONE))


def test_merging_knows_no_order(whole: cb.Predictions, tmp_path: Path) -> None:
    shards = dealt(whole, tmp_path / "a", [50, 700, 4000])
    parts = [cb.scale.in_cells(cb.scale.sample_of(shard)) for shard in shards]
    forwards = reduce(cb.scale.merge, parts)
    assert_same(forwards, reduce(cb.scale.merge, parts[::-1]))
    assert_same(forwards, (parts[0] + parts[3]) + (parts[2] + parts[1]))
    assert forwards.shards == 4


def test_metrics_are_those_of_the_whole(whole: cb.Predictions, tmp_path: Path) -> None:
    found = cb.evaluate(dealt(whole, tmp_path / "a", [999]), metrics="all", engine=ONE)
    assert set(cb.metrics.METRICS) - set(found.results) == NOT_SUMMED
    assert set(found.skipped) == NOT_SUMMED
    names = list(found.results)
    direct = cb.evaluate(whole, metrics=names, resamples=2)
    exact = ("ece", "mce", "average_ce", "rmsce", "overconfidence", "underconfidence", "accuracy")
    exact += ("nll", "brier")
    for name in names:
        within = 1e-12 if name in exact else 1e-9 if "classwise" in name else 3e-4
        assert found[name].value == pytest.approx(direct[name].value, abs=within), name
    assert found.gap == pytest.approx(direct.gap, abs=1e-6)
    assert found.headline() == direct.headline()


def test_intervals_and_floors_are_those_of_rows(whole: cb.Predictions, tmp_path: Path) -> None:
    names = ["ece", "adaece", "smce", "nll", "brier", "accuracy", "slope", "classwise_ece"]
    shards = dealt(whole, tmp_path / "a", [])
    found = cb.evaluate(shards, metrics=names, resamples=1000, engine=ONE)
    direct = cb.evaluate(whole, metrics=names, resamples=1000)
    for name in names:
        ours, theirs = found[name], direct[name]
        width = theirs.high - theirs.low
        # Of a thousand resamples an end has a standard error of a fortieth of the width.
        assert ours.low == pytest.approx(theirs.low, abs=width / 8), name
        assert ours.high == pytest.approx(theirs.high, abs=width / 8), name
        if theirs.floor is not None:
            assert ours.floor == pytest.approx(theirs.floor, rel=0.05), name
            assert ours.floor_95 == pytest.approx(theirs.floor_95, rel=0.1), name


def test_the_intervals_that_are_drawn_are_those_of_all_rows(
    whole: cb.Predictions, tmp_path: Path
) -> None:
    def drawn(found: cb.Evaluation) -> list[np.ndarray]:
        return [bar for lines in found.plot().collections[:1] for bar in lines.get_segments()]

    pytest.importorskip("matplotlib").use("Agg")
    shards = cb.evaluate(dealt(whole, tmp_path / "a", [2000]), resamples=2, engine=ONE)
    bars = drawn(shards)
    assert len(bars) > 5
    np.testing.assert_allclose(bars, drawn(cb.evaluate(whole, resamples=2)), atol=1e-6)
    fewer = drawn(cb.evaluate(whole.take(slice(0, N, 9)), resamples=2))
    assert sum(map(np.ptp, bars)) < 0.6 * sum(map(np.ptp, fewer))


def test_groups_are_those_of_one_file(whole: cb.Predictions, tmp_path: Path) -> None:
    shards = dealt(whole, tmp_path / "a", [999, 4000])
    for by in ("predicted", "label"):
        found = cb.evaluate_by(shards, by, metrics=["ece", "nll"], resamples=20, engine=ONE)
        direct = cb.evaluate_by(whole, by, metrics=["ece", "nll"], resamples=20)
        assert list(found.groups) == list(direct.groups)
        for name, group in direct.groups.items():
            assert found[name].n == group.n
            for metric in ("ece", "nll"):
                assert found[name][metric].value == pytest.approx(group[metric].value, abs=1e-12)
        assert bool(found.p_adjusted) == bool(direct.p_adjusted)


@pytest.mark.parametrize("by", ["margin", "confidence"])
def test_quantiles_are_of_about_equal_size(whole: cb.Predictions, tmp_path: Path, by: str) -> None:
    shards = dealt(whole, tmp_path / "a", [999])
    found = cb.evaluate_by(shards, by, quantiles=4, resamples=20, engine=ONE)
    sizes = [group.n for group in found.groups.values()]
    assert len(sizes) == 4
    assert sum(sizes) == N
    assert max(sizes) < 1.1 * min(sizes)
    assert next(iter(found.groups)).startswith("1: ")


def test_a_column_of_text_groups(whole: cb.Predictions, tmp_path: Path) -> None:
    shards = dealt(whole, tmp_path / "a", [999])
    found = cb.evaluate_by(shards, "site", resamples=20, engine=ONE)
    assert {name: group.n for name, group in found.groups.items()} == {
        "a": int((whole.labels > 2).sum()),
        "b": int((whole.labels <= 2).sum()),
    }
    with pytest.raises(PredictionsError, match="there is no column 'sites'"):
        cb.evaluate_by(shards, "sites", engine=ONE)


def test_clusters_widen_intervals_and_dont_hang_on_the_deal(tmp_path: Path) -> None:
    single = cb.synthetic.tempered(N // 3, 5, temperature=1.6, seed=3).predictions
    thrice = single.take(np.repeat(np.arange(N // 3), 3))
    a, b = (dealt(thrice, tmp_path / str(i), cuts) for i, cuts in enumerate(([], [100, 2500])))
    options = {"metrics": ["ece", "nll"], "resamples": 400, "engine": ONE}
    first, second = (cb.evaluate(s, clusters="visit", **options) for s in (a, b))
    assert first.as_dict()["metrics"] == second.as_dict()["metrics"]
    assert "clusters" in str(first)
    said = first.as_dict()
    assert None not in (said["clusters"], said["correlation"])
    assert f"put together into {said['clusters']} by the hashes" in said["intervals"]
    alone = cb.evaluate(a, **options)
    for name in ("ece", "nll"):
        ratio = (first[name].high - first[name].low) / (alone[name].high - alone[name].low)
        assert 1.4 < ratio < 2.1, name  # root 3


def test_a_broken_shard_is_left_out_whole_when_asked_to(
    whole: cb.Predictions, tmp_path: Path
) -> None:
    dealt(whole, tmp_path / "a", [2000, 4000])
    bad = whole.take(slice(2000, 4000)).scores.copy()
    bad[1999] = np.nan
    np.savez(tmp_path / "a" / "1.npz", logits=bad, labels=whole.labels[2000:4000])
    shards = cb.Shards(tmp_path / "a")
    with pytest.raises(PredictionsError, match=r"1.npz: 'logits' must be finite, but row 1999"):
        cb.evaluate(shards, resamples=20, engine=ONE)
    found = cb.evaluate(shards, resamples=20, engine=ONE, skip_broken=True)
    assert (found.n, found.shards, len(found.broken)) == (4000, 2, 1)
    assert "1 file couldn't be read" in str(found)
    assert "row 1999" in found.as_dict()["shards_left_out"][0]["reason"]
    rest = whole.take(np.r_[0:2000, 4000:N])
    assert found["ece"].value == pytest.approx(
        cb.evaluate(rest, metrics=["ece"], resamples=2)["ece"].value, abs=1e-12
    )


def test_top_label_files_have_what_they_can(tmp_path: Path) -> None:
    drawn = cb.synthetic.top_label(2000).predictions
    cb.write_predictions(drawn, tmp_path / "a.npz")
    found = cb.evaluate(cb.Shards(tmp_path), resamples=50, engine=ONE)
    assert set(found.skipped) == {"nll", "brier"}
    direct = cb.evaluate(drawn, metrics=["ece"], resamples=2)
    assert found["ece"].value == pytest.approx(direct["ece"].value, abs=1e-12)


def test_sums_of_other_things_arent_merged(whole: cb.Predictions, tmp_path: Path) -> None:
    (shard,) = dealt(whole, tmp_path / "a", [])
    with pytest.raises(InputError, match="only if they have the same metrics"):
        cb.scale.merge(cb.scale.sample_of(shard), cb.scale.sample_of(shard, clusters="visit"))


def test_progress_says_shards_rows_and_time(whole: cb.Predictions, tmp_path: Path) -> None:
    seen: list[Progress] = []
    cb.evaluate(dealt(whole, tmp_path / "a", [99]), resamples=2, engine=ONE, watch=seen.append)
    assert [(state.done, state.of, state.rows) for state in seen] == [
        (0, 2, 0),
        (1, 2, 99),
        (2, 2, N),
    ]
    text = str(Progress(1, 4, 1_000_000, 4_000_000, 2.0))
    assert text == "500,000 rows a second, 6 s left"


def test_hardly_any_wrong_row_is_said_to_leave_intervals_short(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", probs=[[0.9, 0.1]] * 60, labels=[0] * 57 + [1] * 3)
    found = cb.evaluate(cb.Shards(tmp_path), resamples=20, engine=ONE)
    assert "Fewer than 10 rows are wrong" in found.intervals


def test_few_cells_hold_few_rows() -> None:
    sums = CellSums.of(np.array([0.0, 1.0, 1.0 + 1e-7]), np.array([False, True, False]))
    assert sums.n == 3
    np.testing.assert_array_equal(sums.cells().count, [[1, 1], [0, 1]])
