"""ECE and everything else that is made of bins, against loops over rows."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from calibrant.core.errors import InputError, PredictionsError
from calibrant.evaluation.cells import CellSums
from calibrant.metrics.binned import (
    BinSums,
    adaptive_calibration_error,
    bin_edges,
    bin_index,
    cell_edges,
    ece_of_curves,
    equal_mass_cuts,
    even_bin_index,
    expected_calibration_error,
)
from calibrant.metrics.debiased import (
    debiased_expected_calibration_error,
    debiased_mean_square_gap,
    debiased_rms_calibration_error,
    ece_sweep,
)
from calibrant.metrics.gaps import (
    average_calibration_error,
    maximum_calibration_error,
    overconfidence_error,
    rms_calibration_error,
    underconfidence_error,
)
from calibrant.metrics.top_label import TopLabel

Rows = tuple[NDArray[np.float64], NDArray[np.bool_]]


@st.composite
def rows(draw: st.DrawFn, most: int = 60) -> Rows:
    """Confidences with many ties, edges of bins and ends of the range among them."""
    n = draw(st.integers(1, most))
    values = st.one_of(
        st.floats(0, 1), st.sampled_from([0.0, 1.0, 0.2, 3 / 15, 0.5, 1 / 3, 14 / 15, 0.99])
    )
    confidence = draw(st.lists(values, min_size=n, max_size=n))
    correct = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    return np.array(confidence), np.array(correct)


def simulated(n: int = 3000, seed: int = 0, *, ties: int | None = None) -> Rows:
    rng = np.random.default_rng(seed)
    c = rng.beta(4, 1, n)
    if ties:
        c = np.round(c * ties) / ties
    return c, rng.random(n) < c**2


def members(c: NDArray[np.float64], n_bins: int) -> list[NDArray[np.intp]]:
    """Return the rows of each bin (lo, hi], by comparing each confidence with each edge."""
    return [
        np.flatnonzero(((c > b / n_bins) | ((b == 0) & (c == 0))) & (c <= (b + 1) / n_bins))
        for b in range(n_bins)
    ]


# --- ECE


@given(rows(), st.integers(1, 20))
def test_ece_is_its_definition(data: Rows, n_bins: int):
    c, a = data
    parts = [i for i in members(c, n_bins) if len(i)]
    assert sum(len(i) for i in parts) == len(c)
    by_hand = sum(len(i) / len(c) * abs(c[i].mean() - a[i].mean()) for i in parts)
    assert expected_calibration_error(c, a, n_bins, kind="confidence") == pytest.approx(
        by_hand, abs=1e-12
    )


@pytest.mark.parametrize(("confidence", "right"), [(0.0, False), (1.0, True), (0.0, True)])
def test_both_ends_are_in_a_bin(confidence: float, right: bool):
    sums = BinSums.of(TopLabel.sort(np.array([confidence]), np.array([right])))
    assert sums.count.sum() == 1
    assert sums.count[0 if confidence == 0 else -1] == 1
    expected = abs(confidence - right)
    assert (
        expected_calibration_error(np.array([confidence]), np.array([right]), kind="confidence")
        == expected
    )


def test_a_confidence_of_one_shares_the_last_bin():
    # torchmetrics 1.9 puts it into a sixteenth bin and finds 0.525 (its issue 3510).
    c, a = np.array([0.95, 1.0]), np.array([True, False])
    assert expected_calibration_error(c, a, kind="confidence") == pytest.approx(0.475)
    assert expected_calibration_error(
        c, a, convention="left-closed", kind="confidence"
    ) == pytest.approx(0.475)
    assert expected_calibration_error(
        c, a, convention="torchmetrics", kind="confidence"
    ) == pytest.approx(0.525)


def test_a_value_on_an_edge_is_in_the_bin_below_it():
    c, a = np.array([0.2, 0.25]), np.array([True, False])
    assert expected_calibration_error(c, a, 5, kind="confidence") == pytest.approx((0.8 + 0.25) / 2)
    assert expected_calibration_error(
        c, a, 5, convention="left-closed", kind="confidence"
    ) == pytest.approx(0.55 / 2)


def test_float32_values_are_compared_as_the_numbers_they_are():
    # float32(0.2) lies above 3 / 15, so it isn't on the edge.
    assert np.float64(np.float32(0.2)) > 3 / 15
    c = np.array([0.2, 0.1999], dtype=np.float32)
    sums = BinSums.of(TopLabel.sort(c.astype(np.float64), np.array([True, True])))
    assert sums.count[3] == 1
    assert sums.count[2] == 1
    assert BinSums.of(TopLabel.sort(np.array([0.2]), np.array([True]))).count[2] == 1


def test_float16_counts_do_not_overflow():
    # torchmetrics counts in the dtype of the confidences and returns 0.
    rng = np.random.default_rng(0)
    c = rng.random(200_000).astype(np.float16)
    a = rng.random(len(c)) < 0.5
    value = expected_calibration_error(c, a, kind="confidence")
    assert value == pytest.approx(
        expected_calibration_error(c.astype(np.float64), a, kind="confidence")
    )
    assert value == pytest.approx(0.25, abs=0.005)


def test_left_closed_bins_against_digitize():
    c, a = simulated(ties=30)
    for n_bins in (7, 15):
        index = np.clip(np.digitize(c, bin_edges(n_bins)) - 1, 0, n_bins)
        for convention, at in (
            ("torchmetrics", index),
            ("left-closed", np.minimum(index, n_bins - 1)),
        ):
            by_hand = np.abs(np.bincount(at, c - a)).sum() / len(c)
            assert expected_calibration_error(
                c, a, n_bins, convention=convention, kind="confidence"
            ) == pytest.approx(by_hand)


def test_a_rounding_error_above_one_is_one():
    assert (
        expected_calibration_error(np.array([1 + 1e-7]), np.array([True]), kind="confidence") == 0.0
    )


def test_probabilities_give_the_same_as_their_top_labels():
    rng = np.random.default_rng(1)
    p = rng.dirichlet(np.ones(4), 500)
    y = rng.integers(4, size=500)
    right = p.argmax(1) == y
    for metric in (expected_calibration_error, adaptive_calibration_error):
        assert metric(p, y) == metric(p.max(1), right, kind="confidence")
        assert metric(p.astype(np.float32), y) == pytest.approx(metric(p, y), abs=2e-3)
        assert metric(p[:, [2, 0, 3, 1]], np.array([1, 3, 0, 2])[y]) == metric(p, y)


@pytest.mark.parametrize(
    ("c", "a"),
    [
        ([0.5, 1.5], [True, True]),
        ([0.5, np.nan], [True, True]),
        ([-0.1], [True]),
        ([], []),
        ([0.5], [2]),
        ([0.5, 0.6], [True]),
        ([0.5, 0.6], [[True], [True]]),
    ],
)
def test_unusable_rows_are_refused(c: list[float], a: list[object]):
    with pytest.raises(PredictionsError):
        expected_calibration_error(np.array(c), np.array(a), kind="confidence")


def test_unknown_options_are_refused():
    c, a = simulated(10)
    with pytest.raises(InputError, match="n_bins"):
        expected_calibration_error(c, a, 0, kind="confidence")
    with pytest.raises(InputError, match="convention"):
        expected_calibration_error(c, a, convention="both", kind="confidence")
    with pytest.raises(InputError, match="convention"):
        adaptive_calibration_error(c, a, convention="both", kind="confidence")
    with pytest.raises(InputError, match="strategy"):
        rms_calibration_error(c, a, strategy="both", kind="confidence")


def test_the_bias_of_the_ece_is_what_the_docstring_says():
    rng = np.random.default_rng(2)
    c = rng.beta(4, 1, 5000)
    values = [
        expected_calibration_error(c, rng.random(5000) < c, kind="confidence") for _ in range(100)
    ]
    sums = BinSums.of(TopLabel.sort(c, np.zeros(5000)))
    variance = np.array([(c[i] * (1 - c[i])).sum() for i in members(c, 15)])
    assert sums.count.sum() == 5000
    assert np.mean(values) == pytest.approx(
        np.sqrt(2 / np.pi) * np.sqrt(variance).sum() / 5000, rel=0.05
    )


# --- bin sums


@given(rows(), rows(), st.sampled_from([(12, 1), (1, 12), (3600, 5000)]))
def test_sums_of_shards_are_those_of_the_whole(first: Rows, second: Rows, grid: tuple[int, int]):
    parts = [CellSums.of(c, a.astype(bool), grid) for c, a in (first, second)]
    c, a = (np.concatenate(both) for both in zip(first, second, strict=True))
    whole, merged = CellSums.of(c, a.astype(bool), grid), parts[0] + parts[1]
    np.testing.assert_array_equal(merged.key, whole.key)
    np.testing.assert_array_equal(merged.sums, whole.sums)
    if grid[0] > 1:
        assert ece_of_curves(merged.cells().curve(), 12)[0] == pytest.approx(
            expected_calibration_error(c, a, 12, kind="confidence"), abs=1e-12
        )


def test_different_cells_can_not_be_added():
    c, a = simulated(50)
    sums = CellSums.of(c, a.astype(bool), (10, 1))
    for grid in ((11, 1), (10, 10)):
        with pytest.raises(InputError, match="added"):
            _ = sums + CellSums.of(c, a.astype(bool), grid)
    with pytest.raises(InputError, match="edges"):
        cell_edges(10, "quantile")


def test_empty_bins_have_no_mean():
    sums = BinSums.of(TopLabel.sort(np.array([0.95]), np.array([True])), 2)
    assert np.isnan(sums.accuracy[0])
    assert np.isnan(sums.mean_confidence[0])
    assert sums.accuracy[1] == 1.0


# --- AdaECE


def test_adaece_is_array_split_where_nothing_ties():
    for n in (7, 15, 50, 1001):
        c, a = simulated(n)
        order = np.argsort(c)
        parts = np.array_split(order, 15)
        by_hand = sum(abs((c[i] - a[i]).sum()) for i in parts) / n
        assert adaptive_calibration_error(c, a, kind="confidence") == pytest.approx(
            by_hand, abs=1e-12
        )


@given(rows(), st.integers(1, 20), st.randoms(use_true_random=False))
def test_adaece_does_not_depend_on_the_order_of_rows(data: Rows, n_bins: int, random: object):
    c, a = data
    order = np.random.default_rng(random.randrange(1000)).permutation(len(c))
    shuffled = adaptive_calibration_error(c[order], a[order], n_bins, kind="confidence")
    assert shuffled == pytest.approx(
        adaptive_calibration_error(c, a, n_bins, kind="confidence"), abs=1e-12
    )


def test_adaece_shares_out_a_run_of_ties():
    # All rows tie: every bin holds the mean residual's share.
    a = np.array([True] * 3 + [False])
    assert adaptive_calibration_error(np.full(4, 0.5), a, 4, kind="confidence") == pytest.approx(
        0.25
    )
    # Cuts at ranks 2 and 4: half of the three ties belong to the first bin.
    c = np.array([0.1, 0.5, 0.5, 0.9])
    a = np.array([False, True, False, True])
    assert adaptive_calibration_error(c, a, 2, kind="confidence") == pytest.approx((0.1 + 0.1) / 4)


def test_focal_edges_leave_out_the_least_confident_rows():
    c, a = simulated(50)
    edges = np.interp(np.linspace(0, 50, 16), np.arange(50), np.sort(c))
    by_hand = 0.0
    for lo, hi in pairwise(edges):
        inside = (c > lo) & (c <= hi)
        by_hand += abs((c[inside] - a[inside]).sum()) / 50
    assert adaptive_calibration_error(c, a, convention="focal", kind="confidence") == pytest.approx(
        by_hand
    )


@given(st.integers(0, 100), st.integers(1, 30))
def test_equal_mass_cuts_are_those_of_array_split(n: int, n_bins: int):
    sizes = [len(part) for part in np.array_split(np.arange(n), n_bins)]
    assert np.diff(equal_mass_cuts(n, n_bins)).tolist() == sizes


# --- other functions of the gaps


@given(rows(), st.integers(1, 20))
def test_functions_of_gaps_are_their_definitions(data: Rows, n_bins: int):
    c, a = data
    n = len(c)
    parts = [i for i in members(c, n_bins) if len(i)]
    gaps = np.array([c[i].mean() - a[i].mean() for i in parts])
    sizes = np.array([len(i) for i in parts])
    near = {"abs": 1e-9}
    assert maximum_calibration_error(c, a, n_bins, kind="confidence") == pytest.approx(
        np.abs(gaps).max(), **near
    )
    assert average_calibration_error(c, a, n_bins, kind="confidence") == pytest.approx(
        np.abs(gaps).mean(), **near
    )
    large = np.abs(gaps[sizes >= 3]).max(initial=0.0)
    assert maximum_calibration_error(c, a, n_bins, n_min=3, kind="confidence") == pytest.approx(
        large, **near
    )
    procal = maximum_calibration_error(c, a, n_bins, convention="procal", kind="confidence")
    assert procal == pytest.approx(np.abs(gaps * sizes / n).max(), **near)
    mean_square = (sizes * gaps**2).sum() / n
    assert rms_calibration_error(c, a, n_bins, kind="confidence") ** 2 == pytest.approx(
        mean_square, abs=1e-9
    )
    over = overconfidence_error(c, a, n_bins, kind="confidence")
    under = underconfidence_error(c, a, n_bins, kind="confidence")
    assert over + under == pytest.approx(
        expected_calibration_error(c, a, n_bins, kind="confidence"), **near
    )
    assert over - under == pytest.approx(c.mean() - a.mean(), **near)
    said = np.array([c[i].mean() for i in parts])
    weighted = (sizes / n * said * np.maximum(gaps, 0)).sum()
    found = overconfidence_error(c, a, n_bins, convention="thulasidasan", kind="confidence")
    assert found == pytest.approx(weighted, **near)
    square = sum(
        len(i) / n * ((c[i].mean() - a[i].mean()) ** 2 - a[i].var() / (len(i) - 1))
        for i in parts
        if len(i) > 1
    )
    expected = np.sqrt(max(square, 0.0))
    assert debiased_rms_calibration_error(c, a, n_bins, kind="confidence") == pytest.approx(
        expected, abs=1e-6
    )


def test_a_bin_of_its_own_for_one_spoils_the_square():
    # torchmetrics 1.9, norm="l2", squares the gap of c = 1 apart from its bin's: 0.148.
    c, a = np.array([0.94] * 5 + [1.0] * 5), np.array([True] * 10)
    a[5] = False
    assert rms_calibration_error(c, a, kind="confidence") == pytest.approx(abs(0.97 - 0.9))


def test_equal_mass_gaps():
    c, a = simulated(300)
    parts = np.array_split(np.argsort(c), 15)
    gaps = np.array([c[i].mean() - a[i].mean() for i in parts])
    assert maximum_calibration_error(c, a, strategy="quantile", kind="confidence") == pytest.approx(
        np.abs(gaps).max()
    )
    assert rms_calibration_error(c, a, strategy="quantile", kind="confidence") == pytest.approx(
        np.sqrt((gaps**2).mean())
    )


def test_debiasing_takes_off_the_noise_of_honest_rows():
    rng = np.random.default_rng(0)
    plug_in, debiased, mean_square = [], [], []
    for _ in range(300):
        c = rng.random(200)
        a = rng.random(200) < c
        plug_in.append(rms_calibration_error(c, a, kind="confidence") ** 2)
        debiased.append(debiased_expected_calibration_error(c, a, kind="confidence"))
        sums = BinSums.of(TopLabel.sort(c, a))
        mean_square.append(float(debiased_mean_square_gap(sums)))
    assert np.sqrt(np.mean(plug_in)) == pytest.approx(0.107, abs=0.01)
    # Within three standard errors of the truth, 0 (but for what c varies within a bin).
    error = np.std(mean_square) / np.sqrt(300)
    assert abs(np.mean(mean_square)) < 3 * error + 1e-4
    assert np.mean(debiased) < 0.6 * np.mean(np.sqrt(plug_in))


def test_debiased_ece_is_what_random_draws_converge_to():
    c, a = simulated(400, seed=3)
    sums = BinSums.of(TopLabel.sort(c, a))
    used = sums.count > 0
    share, said, hit = (
        sums.count[used] / 400,
        sums.mean_confidence[used],
        sums.accuracy[used],
    )
    spread = np.sqrt(hit * (1 - hit) / sums.count[used])
    draws = hit + spread * np.random.default_rng(0).normal(size=(200_000, len(hit)))
    ece = expected_calibration_error(c, a, kind="confidence")
    by_draws = 2 * ece - (np.abs(draws - said) @ share).mean()
    assert debiased_expected_calibration_error(c, a, kind="confidence") == pytest.approx(
        by_draws, abs=2e-4
    )


def test_unknown_weightings_are_refused():
    c, a = simulated(20)
    for metric in (maximum_calibration_error, overconfidence_error):
        with pytest.raises(InputError, match="convention"):
            metric(c, a, convention="other", kind="confidence")


# --- ECE-sweep


def swept(c: NDArray[np.float64], a: NDArray[np.bool_]) -> float:
    order = np.argsort(c)
    value = abs((c - a).mean())
    for n_bins in range(2, len(c) + 1):
        parts = np.array_split(order, n_bins)
        if (np.diff([a[i].mean() for i in parts]) < -1e-9).any():
            break
        value = sum(abs((c[i] - a[i]).sum()) for i in parts) / len(c)
    return float(value)


def test_sweep_is_its_definition_where_nothing_ties():
    for seed in range(30):
        c, a = simulated(5 + 20 * seed, seed)
        assert ece_sweep(c, a, kind="confidence") == pytest.approx(swept(c, a), abs=1e-12)


def test_sweep_of_one_bin_is_the_mean_gap():
    # The paper's reference code and its copies return 0 here.
    c, a = np.array([0.6, 0.7, 0.8, 0.9]), np.array([True, True, False, False])
    assert ece_sweep(c, a, kind="confidence") == pytest.approx(abs(c.mean() - 0.5))
    assert ece_sweep(c[:1], a[:1], kind="confidence") == pytest.approx(0.4)
    with pytest.raises(InputError):
        ece_sweep(c, a, norm=0)


def test_sweep_does_not_depend_on_the_order_of_ties():
    c, a = simulated(500, ties=20)
    order = np.random.default_rng(0).permutation(500)
    assert ece_sweep(c[order], a[order], kind="confidence") == pytest.approx(
        ece_sweep(c, a, kind="confidence"), abs=1e-12
    )
    assert ece_sweep(c, a, norm=2, kind="confidence") >= ece_sweep(c, a, kind="confidence") - 1e-12


@given(st.integers(1, 3000), st.lists(st.floats(0, 1), max_size=40), st.booleans())
def test_a_product_finds_the_bin_that_a_search_of_the_edges_finds(
    bins: int, values: list[float], narrow: bool
):
    edges = bin_edges(bins)
    at_edges = [edges, np.nextafter(edges, 0), np.nextafter(edges, 2)]
    c = np.concatenate([*at_edges, np.array(values), [1 + 1e-6]])
    c = c.astype(np.float32).astype(np.float64) if narrow else c
    np.testing.assert_array_equal(even_bin_index(c, bins), bin_index(c, edges))
