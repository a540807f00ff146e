"""What `apply` writes reads back to the rows that it made: every kind, from format to format."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path

import numpy as np
import pytest

import calibrant as cb
from calibrant.core.errors import CalibrantError, InputError
from calibrant.files import ReadOptions, read_predictions, write_predictions
from calibrant.posthoc.registry import make_calibrator
from calibrant.posthoc.shards import Wanted, write_rows
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.scoring import said_of_top

pytest.importorskip("pyarrow")

N = 24
RNG = np.random.default_rng(0)
Z = RNG.normal(size=(N, 3))
Y = np.where(RNG.random(N) < 0.6, Z.argmax(1), RNG.integers(0, 3, N))
P = np.asarray(cb.predictions.softmax(Z))
DEEP = RNG.normal(size=(N, 4, 3))
MANY = RNG.uniform(0.05, 0.95, size=(N, 3))
HITS = (RNG.random((N, 3)) < MANY).astype(int)
KINDS = {
    "logits": Predictions.from_logits(Z, Y),
    "named": Predictions.from_logits(Z, Y, class_names=("cat", "dog", "emu")),
    "features": Predictions.from_probs(P, Y, Z),
    "weights": Predictions.from_probs(P, Y, sample_weight=RNG.uniform(0.5, 2, N)),
    "prob": Predictions.from_binary(P[:, 0], (Y == 0).astype(int)),
    "logit": Predictions.from_binary(Z[:, 0], (Y == 0).astype(int), kind="logit"),
    "toplabel": Predictions.from_confidence(P.max(1), predicted=P.argmax(1), labels=Y),
    "score": Predictions.from_scores(Z[:, 0], correct=Y == 0),
    "many-labels": Predictions.from_many_labels(MANY, HITS),
    "many-labels with names": Predictions.from_many_labels(
        MANY, HITS, label_names=("cat", "dog", "emu"), sample_weight=RNG.uniform(0.5, 2, (N, 3))
    ),
    "tokens": Predictions.from_tokens(DEEP, RNG.integers(0, 3, (N, 4))),
}
ENDS = (".npz", ".csv", ".jsonl", ".parquet", ".arrow", ".safetensors")


def same(ours: object, theirs: object) -> bool:
    if ours is None or theirs is None:
        return ours is theirs
    one, other = np.asarray(ours), np.asarray(theirs)
    return one.shape == other.shape and np.allclose(one, other, rtol=1e-6, atol=1e-9)


def options_of(kind: str) -> ReadOptions:
    kind = kind.removesuffix(" with names")
    said = kind if kind in ("many-labels", "tokens") else None
    are = "score" if kind == "score" else None
    return ReadOptions(kind=said, are=are, labelled=False)  # type: ignore[arg-type]


@pytest.mark.parametrize("probs", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_reads_back_to_the_same_rows(kind, probs, tmp_path: Path):
    fitted = make_calibrator("platt" if kind == "score" else "temperature")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted.fit_predictions(KINDS[kind])
    options, tried, refusals = options_of(kind), 0, list[str]()
    for start, end in itertools.product(ENDS, ENDS):
        pair = f"{start} to {end}"
        source, out = tmp_path / f"in{start}", tmp_path / f"out{end}"
        try:
            write_predictions(KINDS[kind], source)
        except CalibrantError as error:
            refusals.append(str(error))
            continue
        before = read_predictions(source, options)
        wanted = fitted.apply_predictions(before)
        whole, to = [(slice(0, before.n), before, None)], Wanted(probs)
        try:
            write_rows(fitted, str(source), options, before.n, whole, str(out), to)
        except InputError as error:
            refusals.append(str(error))
            continue
        back = read_predictions(out, options.but(are=None))
        tried += 1
        if back.kind == wanted.kind:
            for name in ("scores", "known_labels", "weights", "predicted"):
                assert same(getattr(back, name), getattr(wanted, name)), (pair, name)
            assert back.label_names == wanted.label_names, pair
            assert (back.class_names, back.n_classes) == (wanted.class_names, wanted.n_classes), (
                pair
            )
        else:
            assert not probs, pair
            confidence, predicted = said_of_top(wanted)
            assert same(back.scores, confidence), pair
            numbers = {name: k for k, name in enumerate(wanted.class_names or range(3))}
            said = back.predicted
            if back.class_names is not None:
                said = np.array([numbers[back.class_names[k]] for k in back.predicted])
            assert same(said, predicted), pair
    # What a table has no form for is refused with what has one.
    expected = "write .npz", "leave out --no-probs"
    assert all(any(words in each for words in expected) for each in refusals), refusals
    assert tried or (not probs and options.kind in ("many-labels", "tokens"))


def test_classes_that_are_equal_only_as_floats_are_refused(tmp_path: Path):
    large, table = 2**53, tmp_path / "rows.csv"

    def write(true: object, predicted: object) -> None:
        rows = f"{true},{predicted},.9\n" * 12
        table.write_text("true_label,pred_label,confidence\n" + rows)

    write(large + 1, large)
    with pytest.raises(CalibrantError, match=f"class of row 0 are both {large} as float64"):
        read_predictions(table)
    for true, predicted in ((large - 1, large - 2), (f"c{large + 1}", f"c{large}")):
        write(true, predicted)
        rows = read_predictions(table)
        assert not (rows.labels == rows.predicted).any()
