"""Centred isotonic regression: against blocks collapsed by hand, and a published example."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import calibrant as cb
from calibrant.posthoc.confidence.isotonic import IsotonicRegression
from calibrant.posthoc.loading import load

pairs = st.lists(st.tuples(st.integers(1, 19), st.booleans()), min_size=1, max_size=60)


def fitted_to(places, outcomes, weights=None, **arguments) -> IsotonicRegression:
    calibrator = IsotonicRegression(centred=True, **arguments)
    order = np.argsort(places, kind="stable")
    calibrator.n_classes_ = 2
    weights = None if weights is None else np.asarray(weights, dtype=float)[order]
    calibrator._fit_map(np.asarray(places)[order], np.asarray(outcomes, float)[order], weights)
    return calibrator


def collapsed(places, outcomes):
    """Pool violators, put each block at its mean, keep blocks at 0 and 1: pure Python."""
    rows = sorted(zip(places, outcomes, strict=True))
    blocks = []  # of [sum of outcomes, places]
    for place in sorted({place for place, _ in rows}):
        here = [outcome for other, outcome in rows if other == place]
        blocks.append([float(sum(here)), [place] * len(here)])
        while len(blocks) > 1 and (
            blocks[-2][0] * len(blocks[-1][1]) >= blocks[-1][0] * len(blocks[-2][1])
        ):
            hits, more = blocks.pop()
            blocks[-1][0] += hits
            blocks[-1][1] += more
    points = []
    for hits, held in blocks:
        level = hits / len(held)
        sure = level in (0.0, 1.0)
        ends = {min(held), max(held)} if sure else {sum(held) / len(held)}
        points += [(place, level) for place in sorted(ends)]
    return zip(*points, strict=True)


def test_a_published_example_comes_out() -> None:
    # The example of the package cir-model: 1, 2, 3, 4 and 1, 21, 41, 34, here as shares.
    calibrator = fitted_to([0.1, 0.2, 0.3, 0.4], [0.02, 0.42, 0.82, 0.68], prior_strength=0)
    values = calibrator.map_confidence(np.array([0.1, 0.2, 0.3, 0.4]))
    np.testing.assert_allclose(50 * values, [1.0, 21.0, 32.0, 37.5])


@given(pairs)
def test_blocks_are_collapsed_to_their_means(rows) -> None:
    places, outcomes = zip(*rows, strict=True)
    places = [place / 20 for place in places]
    knots, values = collapsed(places, outcomes)
    calibrator = fitted_to(places, outcomes, prior_strength=0)
    at = np.linspace(0, 1, 101)
    np.testing.assert_allclose(calibrator.map_confidence(at), np.interp(at, knots, values))


@given(pairs)
def test_it_rises_strictly_between_the_middles_of_its_blocks(rows) -> None:
    places, outcomes = zip(*rows, strict=True)
    calibrator = fitted_to([place / 20 for place in places], outcomes)
    assert (np.diff(calibrator.knots_) > 0).all()
    assert (np.diff(calibrator.values_) > 0).all()


@given(pairs, st.integers(1, 4))
def test_a_row_of_weight_w_counts_as_w_rows(rows, weight) -> None:
    places = [place / 20 for place, _ in rows]
    outcomes = [outcome for _, outcome in rows]
    weights = [weight if i % 2 else 1 for i in range(len(rows))]
    weighed = fitted_to(places, outcomes, weights)
    repeated = fitted_to(np.repeat(places, weights), np.repeat(outcomes, weights))
    np.testing.assert_allclose(weighed.knots_, repeated.knots_)
    np.testing.assert_allclose(weighed.values_, repeated.values_)


@pytest.mark.parametrize("form", ["top-label", "one-vs-rest"])
def test_files_and_modules_say_the_same(form, tmp_path) -> None:
    val, test = (cb.load_sample(part).take(np.arange(600)) for part in ("validation", "test"))
    calibrator = cb.make_calibrator("isotonic", centred=True, form=form).fit_predictions(val)
    wanted = calibrator.predict_proba(test.logits)
    calibrator.save(tmp_path / "saved.safetensors")
    np.testing.assert_array_equal(
        load(tmp_path / "saved.safetensors").predict_proba(test.logits), wanted
    )
    module = calibrator.to_torch()
    np.testing.assert_allclose(module(torch.tensor(test.logits)).numpy(), wanted, atol=1e-6)
    runtime = pytest.importorskip("onnxruntime")
    model = calibrator.to_onnx(masks=False)
    session = runtime.InferenceSession(model.SerializeToString())
    probs = session.run(["probs"], {"logits": np.asarray(test.logits, dtype=np.float32)})[0]
    np.testing.assert_allclose(probs, wanted, atol=1e-6)
    # With steps many rows share a confidence; centred, hardly any do.
    steps = cb.make_calibrator("isotonic", form=form).fit_predictions(val)
    distinct = [
        len(np.unique(c.predict_proba(test.logits).max(axis=1))) for c in (steps, calibrator)
    ]
    assert distinct[1] > distinct[0]
