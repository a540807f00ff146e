"""Clusters as units of the bet: valid under any dependence, and a row where a cluster is one."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

import calibrant as cb
from calibrant.monitor.clusters import UNKNOWN, factors, largest_stakes
from calibrant.monitor.latest import neighbours
from calibrant.monitor.planning import plan
from calibrant.monitor.promise import Promise
from calibrant.monitor.sequential_tests import ALTERNATIVES, payments
from calibrant.monitor.state_file import read_state, write_state


def documents(n: int, rows: int = 20, correlation: float = 0.3, slope: float = 1.0, seed: int = 0):
    """Return confidences, outcomes and names of n documents, honest one by one if slope is 1."""
    rng = np.random.default_rng(seed)
    odds = rng.normal(2.2, 1.6, (n, rows))
    shared, own = rng.normal(size=(n, 1)), rng.normal(size=(n, rows))
    mixed = correlation**0.5 * shared + (1 - correlation) ** 0.5 * own
    right = norm.cdf(mixed) < 1 / (1 + np.exp(-slope * odds))
    names = np.repeat(np.arange(n), rows)
    return 1 / (1 + np.exp(-odds.ravel())), right.ravel(), names


def by_hand(said, right, names, groups, tolerance):
    """Return log E and log R after each cluster, one bet and one cluster at a time.

    Without groups they are those of the whole stream, with them those of each group, not combined.
    """
    of_group = {g: [] for g in dict.fromkeys(groups)}
    sizes = {g: [] for g in of_group}
    products = {g: [0.0] * len(ALTERNATIVES) for g in of_group}
    masses = {g: [0.0] * len(ALTERNATIVES) for g in of_group}
    whole = []
    for name in dict.fromkeys(names):
        new = []
        in_cluster = [i for i in range(len(said)) if names[i] == name]
        for g in of_group:
            at = [i for i in in_cluster if groups[i] == g]
            if not at:
                continue
            # A bet is as large as clusters before it let expect.
            known, most = sizes[g] or whole, 1
            if known:
                rows = sum(known)
                most = math.ceil(min(sum(m * m for m in known) / rows, 2 * rows / len(known)))
            for j, (a, b) in enumerate(ALTERNATIVES.tolist()):
                pays, lowest = [], 1.0
                for i in at[:most]:
                    q = 1 / (1 + math.exp(-(a + b * math.log(said[i] / (1 - said[i])))))
                    u = min(max(q, said[i] - tolerance), said[i] + tolerance)
                    pays.append(q / u if right[i] else (1 - q) / (1 - u))
                lowest = 1 - 0.95 / largest_stakes(tolerance)[j]
                stake = min(math.sqrt(most), max(0.95 / (1 - lowest), 1))
                factor = 1 + stake / most * sum(pay - 1 for pay in pays)
                products[g][j] += math.log(factor)
                # Bets of groups begin anew behind the cluster, those of the stream before it.
                share = len(at) / len(in_cluster)
                held = masses[g][j]
                masses[g][j] = held * factor + share if len(of_group) > 1 else (held + 1) * factor
            new.append((g, len(at)))
        for g, rows in new:
            sizes[g].append(rows)
        whole.append(len(in_cluster))
    n = len(ALTERNATIVES)
    level = {g: math.log(sum(map(math.exp, products[g])) / n) for g in of_group}
    return level, {g: sum(masses[g]) / n for g in of_group}


@settings(max_examples=40, deadline=None)
@given(
    said=st.lists(st.floats(0, 1), min_size=1, max_size=3),
    tolerance=st.sampled_from([0.0, 0.02, 0.3]),
    where=st.floats(-1, 1),
    seed=st.integers(0, 100),
)
def test_no_bet_on_a_cluster_gains_on_average_however_its_rows_depend(said, tolerance, where, seed):
    m, rng = len(said), np.random.default_rng(seed)
    truth = [min(max(p + where * tolerance, 0.0), 1.0) for p in said]
    # A law of all rows together with these chances: rows share or swap one number, or don't.
    cuts, flips = [0.0, 1.0], rng.integers(0, 2, m)
    ends = [(0.0, t) if not flip else (1 - t, 1.0) for t, flip in zip(truth, flips, strict=True)]
    cuts = sorted({*cuts, *itertools.chain.from_iterable(ends)})
    mean = 0.0
    for low, high in itertools.pairwise(cuts):
        middle = (low + high) / 2
        right = np.array([a <= middle < b for a, b in ends])
        total = payments(np.array(said), right, tolerance).sum(axis=0)
        factor = factors(total, m, largest_stakes(tolerance))
        assert np.all(factor > 0)
        mean = mean + (high - low) * factor
    assert np.all(mean <= 1 + 1e-7)


@pytest.mark.parametrize("tolerance", [0.0, 0.02])
def test_groups_gain_no_more_than_one_a_cluster_though_outcomes_choose_them(tmp_path, tolerance):
    """The promise of the change test, over all outcomes of a cluster of three calibrated rows."""
    said, right, names = documents(12, rows=4, slope=0.5)
    begun = cb.Monitor(tolerance=tolerance)
    begun.update(said, right, groups=np.tile(["a", "b", "c", "b"], 12), clusters=names)
    begun.close_clusters()
    begun.save(tmp_path / "state")
    before = sum(one.masses for one in begun._state.tests.groups.evidence)
    after, levels = np.zeros(len(ALTERNATIVES)), np.zeros(3)
    p = np.array([0.95, 0.7, 0.4])
    for outcome in itertools.product([True, False], repeat=3):
        # A wrong first row keeps the others in its group: its share is large where it pays well.
        to = ["a", "b", "c"] if outcome[0] else ["a", "a", "a" if outcome[1] else "b"]
        monitor = cb.Monitor.load(tmp_path / "state")
        monitor.update(p, outcome, groups=to, clusters="new")
        monitor.close_clusters()
        chance = float(np.prod(np.where(outcome, p, 1 - p)))
        evidence = monitor._state.tests.groups.evidence
        after = after + chance * sum(one.masses for one in evidence)
        levels = levels + chance * np.exp([one.log_level for one in evidence])
    assert np.all(after <= before + 1 + 1e-9)
    assert np.all(levels <= np.exp(begun._state.tests.groups.log_levels()) + 1e-9)


@pytest.mark.parametrize("tolerance", [0.0, 0.02])
def test_stakes_leave_every_factor_above_zero_whatever_is_said(tolerance):
    rng = np.random.default_rng(0)
    said = np.concatenate([rng.uniform(0, 1, 2_000), 1 / (1 + np.exp(-rng.normal(0, 8, 2_000)))])
    for outcome in (True, False):
        paid = payments(said, np.full(len(said), outcome), tolerance)
        stakes = largest_stakes(tolerance)
        assert np.all(paid > 0)
        assert np.all((stakes == 1) | (1 + stakes * (paid - 1) > 0.01))


@pytest.mark.parametrize("grouped", [False, True])
def test_a_cluster_of_one_row_is_a_row(grouped):
    said, right, _ = documents(60, slope=0.5)
    groups = np.arange(len(said)) % 3 if grouped else None
    rows, clusters = cb.Monitor(), cb.Monitor()
    rows.update(said, right, groups)
    clusters.update(said, right, groups, clusters=np.arange(len(said)))
    clusters.close_clusters()
    assert clusters.log_e == rows.log_e
    assert clusters.log_r == rows.log_r
    assert clusters.alarms == rows.alarms
    assert rows.alarms.keys() == {"level", "change"}


@pytest.mark.parametrize("tolerance", [0.0, 0.02])
def test_the_evidence_of_clusters_is_that_of_plain_arithmetic(tolerance):
    said, right, names = documents(12, rows=5, slope=0.6)
    whole = cb.Monitor(tolerance=tolerance)
    whole.update(said, right, clusters=names)
    whole.close_clusters()
    level, mass = by_hand(said, right, names, ["all"] * len(said), tolerance)
    assert whole.log_e == pytest.approx(level["all"], abs=1e-9)
    assert whole.log_r == pytest.approx(math.log(mass["all"]), abs=1e-9)
    groups = [f"g{i % 7 % 3}" for i in range(len(said))]
    both = cb.Monitor(tolerance=tolerance, n_groups=3)
    both.update(said, right, groups, names)
    both.close_clusters()
    of_groups, masses = by_hand(said, right, names, groups, tolerance)
    mean = sum(map(math.exp, of_groups.values())) / 3
    assert both.log_e == pytest.approx(math.log((math.exp(level["all"]) + mean) / 2), abs=1e-9)
    together = (mass["all"] + sum(masses.values())) / 2
    assert both.log_r == pytest.approx(math.log(together), abs=1e-9)


def test_it_does_not_matter_how_many_rows_of_clusters_come_at_once(tmp_path):
    said, right, names = documents(150, slope=0.6)
    groups = np.arange(len(said)) % 7 % 2
    whole = cb.Monitor(n_groups=2)
    whole.update(said, right, groups, names)
    parts = cb.Monitor(n_groups=2)
    for start in range(0, len(said), 33):
        part = slice(start, start + 33)
        parts.update(said[part], right[part], groups[part], names[part])
        if start % 5 == 0:
            parts.save(tmp_path / "state")
            parts = cb.Monitor.load(tmp_path / "state")
    assert parts.alarms == whole.alarms
    assert parts.log_e == whole.log_e
    assert parts.log_r == whole.log_r
    assert parts.as_dict(details=True) == whole.as_dict(details=True)


def test_honest_documents_raise_few_alarms_and_drift_is_found_in_a_few_of_them():
    """The study `monitoring-documents` has the numbers; these are the first of its streams."""
    of_rows = of_clusters = 0
    for seed in range(12):
        said, right, names = documents(150, seed=seed)
        rows = cb.Monitor(tolerance=0.0, average_run_length=3_000 * 10)
        rows.update(said, right)
        clusters = cb.Monitor(tolerance=0.0, average_run_length=150 * 10)
        clusters.update(said, right, clusters=names)
        of_rows += bool(rows.alarms)
        of_clusters += bool(clusters.alarms)
    assert of_rows >= 5
    assert of_clusters <= 2
    said, right, names = documents(100, slope=0.6, seed=1)
    level = next(
        alarm
        for alarm in cb.Monitor(tolerance=0.0).update(said, right, clusters=names)
        if alarm.test == "level"
    )
    assert level.row < 40 * 20
    assert level.row % 20 == 19  # the last row of a document
    assert level.since.row % 20 == 0  # the first


@pytest.mark.parametrize("ends_at", [False, True])
def test_clusters_whose_size_depends_on_their_outcomes_raise_few_alarms(ends_at):
    """The mean over a session that ends at its first wrong answer is too low, though no row is."""
    alarms = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        said = 1 / (1 + np.exp(-rng.normal(1.5, 1.0, 1_500)))
        right = rng.random(1_500) < said
        names = np.cumsum(right == ends_at) - (right == ends_at)
        monitor = cb.Monitor(average_run_length=15_000)
        monitor.update(said, right, clusters=names)
        alarms += bool(monitor.alarms)
    assert alarms <= 2


def test_rows_of_clusters_larger_than_those_before_are_shown_and_not_bet_on():
    evidence = []
    for more in (5, 40):
        said, right, names = documents(20, rows=5, slope=0.6)
        monitor = cb.Monitor()
        monitor.update(said, right, clusters=names)
        monitor.update(np.full(more, 0.9), np.arange(more) >= 4, clusters="large")
        monitor.close_clusters()
        evidence.append(monitor.log_e)
    assert evidence[0] == evidence[1]
    found = monitor.findings().clusters
    assert (found.beyond, found.late) == (4 + 35, 0)  # of the first cluster one row is bet on
    assert "39 rows of clusters that are much larger" in str(monitor).replace("\n", " ")


@pytest.mark.parametrize("grouped", [False, True])
def test_unfinished_clusters_of_a_state_of_the_first_format_are_bet_on_as_they_are(
    tmp_path, grouped
):
    said, right, names = documents(3, rows=5, slope=0.6)
    promise = Promise(0.1, 0.5)
    monitor = cb.Monitor(open_clusters=3, promise=promise)
    monitor.update(said, right, ["a", "b", "a", "b", "b"] * 3 if grouped else None, names)
    monitor.save(tmp_path / "state")
    saved = read_state(tmp_path / "state")
    header, arrays = saved.header, saved.arrays
    whole = payments(said, right, 0.02)
    of = np.array([0, 1, 0, 1, 1]) if grouped else np.zeros(5, dtype=int)
    pairs = [(i, g) for i in range(3) for g in sorted(set(of.tolist()))]
    for name in ("alternatives", "open.part", "open.rows", "sizes", "sizes.part"):
        del arrays[name]
    arrays["open.cluster"], arrays["open.group"] = np.array(pairs).T.copy()
    arrays["open.rows"] = np.array([(of == g).sum() for _, g in pairs])
    rows = whole.reshape(3, 5, -1)
    arrays["open.payments"] = np.array([rows[i, of == g].sum(axis=0) for i, g in pairs])
    about = (said >= 0.5).reshape(3, 5)
    kept = (about & right.reshape(3, 5)).sum(axis=1)
    arrays["open.promised"] = np.stack([kept, about.sum(axis=1) - kept], axis=1).astype(float)
    del header["beyond"]
    write_state(tmp_path / "state", header, arrays)
    again = cb.Monitor.load(tmp_path / "state")
    again.close_clusters()
    # The mean over a cluster's rows, as that format had it.
    factor = [factors(row.sum(axis=0), 5, largest_stakes(0.02)) for row in rows]
    np.testing.assert_allclose(
        again._state.tests.evidence.products, np.log(factor).sum(axis=0), atol=1e-12
    )
    assert again._state.promise.evidence.units == 3
    assert again._state.tests.groups.names == (["a", "b"] if grouped else [])


def test_replicas_whose_groups_came_in_another_order_are_put_together():
    said, right, _ = documents(4, rows=5, slope=0.6)
    groups, names = np.repeat(["a", "b", "a", "b"], 5), np.repeat(["1", "2", "3", "4"], 5)
    parts = []
    for order in ([0, 1], [3, 2]):
        monitor = cb.Monitor(n_groups=2, open_clusters=9)
        for i in order:
            at = slice(5 * i, 5 * i + 5)
            monitor.update(said[at], right[at], groups[at], names[at])
        parts.append(monitor)
    merged = parts[0].merge(parts[1])
    merged.close_clusters()
    of_groups = merged._state.tests.groups
    for name, evidence in zip(of_groups.names, of_groups.evidence, strict=True):
        own = payments(said[groups == name], right[groups == name], 0.02).reshape(2, 5, -1)
        factor = factors(own.sum(axis=1) + UNKNOWN - 5, UNKNOWN, largest_stakes(0.02))
        expected = np.log(factor[0]) + np.log(factor[1])
        np.testing.assert_allclose(evidence.products, expected, atol=1e-9)


def test_rows_that_come_after_their_cluster_was_counted_are_shown_and_not_bet_on():
    said, right, names = documents(30, slope=0.6)
    monitor = cb.Monitor()
    monitor.update(said, right, clusters=names)
    before, rows = monitor.log_e, monitor.rows
    monitor.update(said[:10], right[:10], clusters="3")
    assert monitor.log_e == before
    assert monitor.rows == rows + 10
    found = monitor.findings().clusters
    assert (found.counted, found.unfinished, found.late) == (29, 1, 10)
    assert "10 rows came after their cluster was counted" in str(monitor).replace("\n", " ")


def test_clusters_whose_rows_are_mixed_are_kept_open_side_by_side():
    said, right, names = documents(40, slope=0.6)
    order = np.argsort(np.tile(np.arange(20), 40), kind="stable")  # a row of each in turn
    apart, mixed = cb.Monitor(open_clusters=40), cb.Monitor(open_clusters=40)
    apart.update(said, right, clusters=names)
    apart.close_clusters()
    mixed.update(said[order], right[order], clusters=names[order])
    mixed.close_clusters()
    assert mixed.log_e == pytest.approx(apart.log_e, abs=1e-9)
    assert mixed.findings().clusters.late == 0
    narrow = cb.Monitor(open_clusters=2)
    narrow.update(said[order], right[order], clusters=names[order])
    assert narrow.findings().clusters.late == 38 * 19  # counted with their first row


def test_the_correlation_within_clusters_is_estimated_and_widens_intervals():
    said, right, names = documents(200)
    shuffled = np.random.default_rng(0).permutation(len(said))
    clustered, alone = cb.Monitor(), cb.Monitor()
    clustered.update(said, right, clusters=names)
    alone.update(said[shuffled], right[shuffled], clusters=names)
    found, none = clustered.findings().clusters, alone.findings().clusters
    residual = (said - right).reshape(200, 20)[:199]
    centred = residual - residual.mean()
    pairs = (centred.sum(axis=1) ** 2 - (centred**2).sum(axis=1)).sum() / (199 * 20 * 19)
    assert found.correlation == pytest.approx(pairs / centred.var(), rel=1e-9)
    assert found.effect > 2
    assert abs(none.correlation) < 0.03
    one, other = clustered.windows()[0], alone.windows()[0]
    assert one.gap_high - one.gap_low > 1.5 * (other.gap_high - other.gap_low)
    assert one.floor > 1.5 * other.floor


def test_late_labels_fill_clusters():
    said, right, names = documents(30, slope=0.5)
    at_once, later = cb.Monitor(open_clusters=30), cb.Monitor(open_clusters=30)
    for monitor in (at_once, later):  # which tells how many rows a cluster has
        monitor.update(said[:20], right[:20], clusters="before")
        monitor.close_clusters()
    at_once.update(said, right, clusters=names)
    keys = [f"row {i}" for i in range(len(said))]
    later.predict(keys, said, clusters=names)
    order = np.random.default_rng(0).permutation(len(said))
    later.learn([keys[i] for i in order], correct=right[order])
    for monitor in (at_once, later):
        monitor.close_clusters()
    assert later.log_e == pytest.approx(at_once.log_e, abs=1e-9)


def test_replicas_with_clusters_are_put_together_unless_they_share_one():
    said, right, names = documents(60, slope=0.6)
    half = 30 * 20
    whole, first, second = cb.Monitor(), cb.Monitor(), cb.Monitor()
    whole.update(said, right, clusters=names)
    first.update(said[:half], right[:half], clusters=names[:half])
    second.update(said[half:], right[half:], clusters=names[half:])
    merged = first.merge(second)
    for monitor in (whole, merged, first, second):
        monitor.close_clusters()
    # Each learns by itself how large clusters are: what each has bet is multiplied, and a cluster
    # that is open when they are put together is bet on at the size that they learnt together.
    of = {
        name: one._state.tests.evidence.products
        for name, one in {"first": first, "second": second, "merged": merged}.items()
    }
    np.testing.assert_allclose(of["first"] + of["second"], of["merged"], atol=0.2)
    closed = first.merge(second)._state.tests.evidence.products
    np.testing.assert_allclose(of["first"] + of["second"], closed, atol=1e-9)
    assert merged.log_e == pytest.approx(whole.log_e, abs=0.5)
    assert merged.rows == whole.rows
    with pytest.raises(cb.CalibrantError, match="rows of the same cluster"):
        first.merge(first)
    alone = cb.Monitor()
    alone.update(said, right)
    with pytest.raises(cb.CalibrantError, match="all have clusters, or all none"):
        first.merge(alone)


def test_clusters_come_for_all_rows_or_for_none():
    monitor = cb.Monitor()
    monitor.update([0.9, 0.8], [1, 0], clusters=["a", "a"])
    with pytest.raises(cb.CalibrantError, match="clusters must be given for all rows"):
        monitor.update([0.9], [1])


def of_array(name, value):
    def change(header, arrays):
        arrays[name] = arrays[name].copy()
        arrays[name].reshape(-1)[0] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        of_array("open.payments", np.nan),
        of_array("open.payments", -1.0),
        of_array("open.payments", 1e-300),
        of_array("open.rows", 0),
        of_array("open.rows", 10**9),
        of_array("open.part", 9),
        of_array("open.part", -3),
        of_array("sizes", 0.5),
        of_array("sizes", 1e9),
        of_array("sizes.part", 7),
        lambda header, arrays: header.update(beyond=-1),
        of_array("open.cluster", 5),
        of_array("open.last", -1),
        of_array("open.moments", np.inf),
        of_array("dependence", 1e9),
        lambda header, arrays: header.update(unfinished=[7]),
        lambda header, arrays: header.update(late=-1),
        lambda header, arrays: header.update(clusters=10**6),
        lambda header, arrays: header.update(clustered="yes"),
    ],
)
def test_a_state_with_clusters_is_checked_field_by_field(tmp_path, change):
    said, right, names = documents(20)
    monitor = cb.Monitor()
    monitor.update(said, right, np.arange(400) % 2, names)
    monitor.save(tmp_path / "state")
    saved = read_state(tmp_path / "state")
    change(saved.header, saved.arrays)
    saved.arrays.pop("alternatives")
    write_state(tmp_path / "state", saved.header, saved.arrays)
    with pytest.raises(cb.CalibrantError):
        cb.Monitor.load(tmp_path / "state")


def test_rows_that_depend_on_their_neighbours_put_the_promise_in_doubt():
    said, right, names = documents(100)
    monitor = cb.Monitor()
    monitor.update(said, right)
    found = monitor.neighbours()
    assert found.by == "lag"
    assert found.doubtful
    assert "give --cluster COLUMN" in " ".join(str(monitor).split())
    assert monitor.as_dict(details=True)["details"]["neighbours"]["doubtful"] is True
    # Each row alone: neither honest ones nor a drift are taken for it.
    rng = np.random.default_rng(0)
    for change in (5_000, 2_500):
        p = rng.uniform(0.5, 1, 5_000)
        alone = cb.Monitor()
        alone.update(p, rng.random(5_000) < p - 0.3 * (np.arange(5_000) >= change))
        assert not alone.neighbours().doubtful
    clustered = cb.Monitor()
    clustered.update(said, right, clusters=names)
    assert clustered.neighbours() is None


def test_the_interval_of_a_dependence_holds_none_as_often_as_it_says():
    rng, held, none = np.random.default_rng(1), 0, np.zeros(400, dtype=np.int64)
    for _ in range(200):
        p = rng.uniform(0.5, 1, 400)
        found = neighbours(p, rng.random(400) < p, none)
        held += found.low <= 0 <= found.high
    assert 180 <= held <= 198  # of a binomial at 95 % all but 1 in 500


def test_ids_that_begin_alike_show_dependence_where_rows_are_mixed():
    said, right, names = documents(200)
    order = np.random.default_rng(0).permutation(len(said))
    monitor = cb.Monitor()
    keys = [f"document {names[i]}/line {i}" for i in order]
    monitor.predict(keys, said[order])
    monitor.learn(keys, correct=right[order])
    found = monitor.neighbours()
    assert (found.by, found.doubtful) == ("id", True)
    assert 0.05 < found.correlation < 0.25
    unlike = cb.Monitor()
    unlike.predict([f"{i:08x}-{i % 7}" for i in order], said[order])
    unlike.learn([f"{i:08x}-{i % 7}" for i in order], correct=right[order])
    assert (unlike.neighbours().by, unlike.neighbours().doubtful) == ("lag", False)


def test_the_dependence_within_ids_is_that_of_their_pairs():
    # Of each id's two rows, the second repeats the first's outcome half of the time.
    rng = np.random.default_rng(0)
    first, other, again = (rng.random(1_000) < share for share in (0.75, 0.75, 0.5))
    right = np.stack([first, np.where(again, first, other)], axis=1).ravel()
    order = rng.permutation(2_000)
    found = neighbours(np.full(2_000, 0.75), right[order], order // 2 + 1)
    assert found.by == "id"
    assert found.correlation == pytest.approx(0.5, abs=0.08)


def test_a_beginning_that_all_ids_share_hides_no_dependence():
    said, right, _ = documents(200)
    monitor = cb.Monitor()
    keys = [f"request-{i}" for i in range(len(said))]
    monitor.predict(keys, said)
    monitor.learn(keys, correct=right)
    assert (monitor.neighbours().by, monitor.neighbours().doubtful) == ("lag", True)


def test_a_plan_says_when_streams_like_this_one_raise_the_alarm():
    said, _, names = documents(200)
    small, large = plan(said, 0.06), plan(said, 0.2)
    assert [found.test for found in large.needed] == ["level", "change"]
    for soon, late in zip(large.needed, small.needed, strict=True):
        assert soon.median < late.median
        assert soon.median <= soon.most
    # As many as streams need that are drawn in another way, in order and one row after the other.
    rows = []
    for seed in range(15):
        rng = np.random.default_rng(1_000 + seed)
        p = rng.permutation(said)
        alarms = cb.Monitor().update(p, rng.random(len(p)) < p - 0.2)
        rows.append(next(alarm.row + 1 for alarm in alarms if alarm.test == "level"))
    assert 0.6 < np.median(rows) / large.needed[0].median < 1.6
    clustered = plan(said, 0.2, clusters=names)
    assert clustered.unit == "cluster"
    assert clustered.needed[0].median < large.needed[0].median
    never = plan(said, 0.021)
    assert never.needed[0].median is None
    assert "not within 30000 rows" in str(never)
    with pytest.raises(cb.CalibrantError, match="within the tolerance of 2 points"):
        plan(said, 0.02)


def test_many_rows_of_counted_clusters_come_with_advice():
    rng = np.random.default_rng(0)
    said = rng.uniform(0.6, 0.9, 100)
    right = rng.random(100) < said
    for again, advised in ((5, False), (50, True)):
        monitor = cb.Monitor()
        clusters = [f"d{i // 10}" for i in range(100 - again)] + ["d0"] * again
        monitor.update(said, right, clusters=clusters)
        assert f"{again} rows came after their cluster" in " ".join(str(monitor).split())
        assert ("--open-clusters" in str(monitor)) == advised


def test_rows_of_which_no_cluster_is_finished_are_not_said_to_show_nothing():
    said, right, names = documents(3)
    monitor = cb.Monitor(open_clusters=5)
    monitor.update(said, ~right, clusters=names)
    assert str(monitor).startswith("No cluster is finished yet")
    monitor.close_clusters()
    assert "No cluster is finished" not in str(monitor)
