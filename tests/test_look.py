"""A look before every measurement: what is misread is refused or warned of, and nothing else is."""

from __future__ import annotations

import gzip
import pickle
import re
import shlex
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import people_files
import people_files_further  # noqa: F401 - it registers its files
import people_files_of_tools  # noqa: F401 - as does this
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from people_files import (
    CASES,
    CHANCE,
    EVENT,
    LABELS,
    LOGITS,
    PROBS,
    ROWS,
    K,
    npz,
    options_of,
    table,
    tried,
)
from typer.testing import CliRunner

import calibrant as cb
from calibrant.cli.app import app
from calibrant.core.errors import (
    LabelFormWarning,
    PredictionsError,
    SharedRowsWarning,
)
from calibrant.files import ReadOptions, gate, read_predictions
from calibrant.predictions.constructors import RowTable
from calibrant.predictions.implausible import shared_rows
from calibrant.predictions.plausibility import Look, look

ONE = cb.Engine(workers=1)


# --- files as people have them


@pytest.mark.parametrize("name", CASES)
def test_no_file_is_misread_in_silence_and_refusals_offer_what_reads_it(
    name: str, tmp_path: Path
) -> None:
    word, outcome = tried(name, tmp_path)
    if CASES[name].readable:
        assert word in ("right", "line"), outcome
    else:
        assert word in ("refused without a line", "said"), outcome


@pytest.mark.parametrize(
    "name",
    [
        "outputs_and_targets",
        "sklearn_with_its_classes",
        "columns_from_one_and_labels_too",
        "kaggle_submission",
        "text_file",
        "one_json_array",
        "percent",
        "probabilities_called_logits",
        "probability_called_logit",
        "labels_from_one",
        "a_class_for_the_background",
        "one_and_two",
        "the_other_class",
        "logits_with_a_maximum",
        "pipeline_top_one",
    ],
)
def test_a_line_that_is_offered_can_be_pasted(name: str, tmp_path: Path) -> None:
    path = CASES[name].write(tmp_path)
    runner = CliRunner()
    # Whoever says that they are logits hears once more what they look like.
    warnings.simplefilter("ignore")
    refused = runner.invoke(app, ["measure", str(path)])
    line = str(refused.exception).partition("; to read it so: ")[2]
    outcome = runner.invoke(app, [*shlex.split(line)[1:], "--resamples", "20"])
    assert outcome.exit_code == 0, (line, outcome.output)
    # The other line that a refusal may name says that all is right.
    keep = re.search(r"if it is right as it is: (.*); to read", str(refused.exception))
    if keep is not None:
        outcome = runner.invoke(app, [*shlex.split(keep[1])[1:], "--resamples", "20"])
        assert outcome.exit_code == 0, (keep[1], outcome.output)


def test_confidences_in_the_predicted_class_are_not_read_as_those_of_the_event(
    tmp_path: Path,
) -> None:
    said = (CHANCE > 0.5).astype(int)
    top = np.maximum(CHANCE, 1 - CHANCE)
    path = table(tmp_path / "a.csv", label=EVENT, pred=said, prob=top)
    with pytest.raises(PredictionsError, match="no probability is below") as refused:
        read_predictions(path)
    line = str(refused.value).partition("; to read it so: ")[2]
    found = read_predictions(path, options_of(line))
    np.testing.assert_allclose(found.scores, top)
    assert ((found.predicted == found.labels) == (said == EVENT)).all()
    # Who says that it is the probability of the event is heard.
    assert read_predictions(path, scores="prob", are="prob").n_classes == 2


def test_rows_of_blank_cells_are_none(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", label=LABELS, **people_files.by("prob_", PROBS))
    rows = path.read_text().splitlines()
    path.write_text("\n".join([*rows[:9], ",,,,,", *rows[9:], ",,,,,", " , , , , , "]) + "\n")
    assert (read_predictions(path).labels == LABELS).all()


def test_one_hot_columns_stand_in_the_order_of_the_scores(tmp_path: Path) -> None:
    turned, hot = [3, 0, 4, 1, 2], np.eye(K, dtype=int)[LABELS]
    names = [people_files.NAMES[k] for k in turned]
    own = people_files.by("true_", hot[:, turned], names)
    scores = people_files.by("prob_", PROBS, people_files.NAMES)
    path = table(tmp_path / "a.csv", **own, **scores)
    with pytest.warns(LabelFormWarning, match="one-hot"):
        found = read_predictions(path, labels="true")
    assert (found.labels == LABELS).all()
    path = table(tmp_path / "b.csv", **own, **people_files.by("prob_", PROBS))
    with pytest.raises(PredictionsError, match=r"named after classes, .* but the scores don't"):
        read_predictions(path, labels="true")


def test_a_table_that_is_packed_far_too_tight_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.csv.gz"
    monkeypatch.setattr(gate, "MOST_MORE", 1 << 16)
    path.write_bytes(gzip.compress(b"label,prob_0,prob_1\n" + b"0,0.25,0.75\n" * 9000))
    with pytest.raises(PredictionsError, match=r"far more than the file; unpack it first: gunzip"):
        read_predictions(path)
    # Text and the numbers in it are counted together.
    path.write_bytes(gzip.compress(b"label,prob_0,prob_1\n" + b"0,0.25,0.75\n" * 2000))
    with pytest.raises(
        PredictionsError, match=r"MB of the file; at most 0\.03.* MB are read; read it p"
    ):
        read_predictions(path)
    path.write_bytes(gzip.compress(b"label,prob_0,prob_1\n" + b"0,0.25,0.75\n" * 500))
    assert read_predictions(path).n == 500


# --- nothing else is found


def of_no_skill(rng: np.random.Generator, n: int, k: int) -> cb.Predictions:
    return cb.Predictions.from_logits(rng.normal(size=(n, k)) * 0.3, rng.integers(k, size=n))


def of_one_answer(rng: np.random.Generator, n: int, k: int) -> cb.Predictions:
    logits = rng.normal(size=(n, k)) + 9 * np.eye(k)[1]
    return cb.Predictions.from_logits(logits, rng.integers(k, size=n))


def far_too_sure(rng: np.random.Generator, n: int, k: int) -> cb.Predictions:
    labels = rng.integers(k, size=n)
    logits = 8 * rng.normal(size=(n, k)) + 6 * np.eye(k)[labels]
    return cb.Predictions.from_logits(logits, labels)


def of_rare_classes(rng: np.random.Generator, n: int, k: int) -> cb.Predictions:
    share = 0.5 ** np.arange(1, k + 1)
    labels = rng.choice(k, size=n, p=share / share.sum())
    logits = rng.normal(size=(n, k)) * 0.5 + np.log(share) + np.eye(k)[labels]
    return cb.Predictions.from_logits(logits, labels)


def without_class_0(rng: np.random.Generator, n: int, k: int) -> cb.Predictions:
    labels = rng.integers(1, k, size=n)
    logits = rng.normal(size=(n, k)) + 0.7 * np.eye(k)[labels]
    return cb.Predictions.from_logits(logits, labels)


def of_neighbours(rng: np.random.Generator, n: int, k: int) -> cb.Predictions:
    labels = rng.integers(k, size=n)
    votes = np.stack([rng.multinomial(7, (np.eye(k)[y] + 1 / k) / 2) for y in labels])
    return cb.Predictions.from_probs(votes / 7, labels)


def of_a_tree(rng: np.random.Generator, n: int, k: int) -> cb.Predictions:
    leaves = rng.dirichlet(np.full(k, 0.5), size=8)
    leaf = rng.integers(8, size=n)
    labels = np.array([rng.choice(k, p=leaves[i]) for i in leaf])
    return cb.Predictions.from_probs(leaves[leaf], labels)


def rounded(rng: np.random.Generator, n: int, k: int) -> cb.Predictions:
    probs = np.round(rng.dirichlet(np.ones(k), size=n), 2)
    probs /= probs.sum(axis=1, keepdims=True)
    return cb.Predictions.from_probs(probs, [rng.choice(k, p=p) for p in probs])


def in_float16(rng: np.random.Generator, n: int, k: int) -> cb.Predictions:
    labels = rng.integers(k, size=n)
    logits = rng.normal(size=(n, k)) + 4 * np.eye(k)[labels]
    return cb.Predictions.from_logits(logits.astype(np.float16), labels)


def with_masks(rng: np.random.Generator, n: int, k: int) -> cb.Predictions:
    labels = rng.integers(k, size=n)
    logits = rng.normal(size=(n, k)) + 2 * np.eye(k)[labels]
    logits[np.arange(n), (labels + 1) % k] = -np.inf
    return cb.Predictions.from_logits(logits, labels)


def of_a_rare_event(rng: np.random.Generator, n: int, k: int) -> cb.Predictions:
    chances = rng.beta(0.5, 20, size=n)
    return cb.Predictions.from_binary(chances, rng.random(n) < chances)


def of_an_event_without_skill(rng: np.random.Generator, n: int, k: int) -> cb.Predictions:
    return cb.Predictions.from_binary(rng.beta(8, 8, size=n), rng.integers(2, size=n))


def of_confidences(rng: np.random.Generator, n: int, k: int) -> cb.Predictions:
    sure = np.round(rng.uniform(0.3, 1, size=n), 1)
    return cb.Predictions.from_confidence(sure, correct=rng.random(n) < 0.7)


def of_votes_as_logits(rng: np.random.Generator, n: int, k: int) -> cb.Predictions:
    labels = rng.integers(k, size=n)
    return cb.Predictions.from_logits(rng.poisson(3 + 4 * np.eye(k)[labels]) * 1.0, labels)


HONEST = [
    of_no_skill,
    of_one_answer,
    far_too_sure,
    of_rare_classes,
    without_class_0,
    of_neighbours,
    of_a_tree,
    rounded,
    in_float16,
    with_masks,
    of_a_rare_event,
    of_an_event_without_skill,
    of_confidences,
    of_votes_as_logits,
]


@pytest.mark.parametrize("make", HONEST)
@pytest.mark.parametrize("k", [3, 10])
def test_a_bad_model_is_not_accused(make: Any, k: int) -> None:
    for n in (1, 2, 25, 300, 3000):
        for seed in range(6):
            rows = make(np.random.default_rng(seed), n, k)
            assert not look(rows), (n, seed)


@pytest.mark.parametrize("n", [40, 300, 2000])
def test_good_models_are_not_accused(n: int) -> None:
    for seed in range(25):
        rng = np.random.default_rng(seed)
        k = int(rng.choice([3, 5, 10, 50]))
        labels = rng.integers(k, size=n)
        logits = rng.normal(size=(n, k)) + rng.uniform(2, 4) * np.eye(k)[labels]
        logits *= rng.uniform(0.7, 4)
        noisy = np.where(rng.random(n) < 0.3, rng.integers(k, size=n), labels)
        alike = logits.copy()
        alike[:, 1] = 0.9 * logits[:, 0] + 0.3 * rng.normal(size=n)  # two classes hardly apart
        chances = np.asarray(cb.predictions.softmax(logits[:, :2]))[:, 1]
        events = rng.random(n) < chances
        for rows in (
            cb.Predictions.from_logits(logits, noisy),
            cb.Predictions.from_logits(alike, labels),
            cb.Predictions.from_logits(logits[np.argsort(labels)], np.sort(labels)),
            cb.Predictions.from_binary(np.round(chances, 3), events),
        ):
            assert not look(rows), seed


def test_numbers_as_large_as_floats_can_be_are_looked_at_in_silence() -> None:
    rng = np.random.default_rng(0)
    labels, huge = rng.integers(3, size=60), 1.7e308 * rng.uniform(-1, 1, size=(60, 3))
    for scores in (huge, huge.astype(np.float64) / 1e270, np.abs(huge)):
        look(cb.Predictions.from_logits(scores, labels))
        look(cb.Predictions.from_binary(scores[:, 0], labels == 0, kind="logit"))
    with np.errstate(over="ignore"):
        single = np.clip(huge, -3.4e38, 3.4e38).astype(np.float32)
    look(cb.Predictions.from_logits(single, labels))


def test_an_event_of_a_third_of_the_rows_is_no_long_table() -> None:
    rng = np.random.default_rng(0)
    events = np.arange(900) % 3 == 0
    chances = np.clip(0.3 + 0.3 * events + 0.1 * rng.normal(size=900), 0.01, 0.99)
    assert not look(cb.Predictions.from_binary(chances, events))
    even = np.linspace(0.01, 0.99, 900)  # the opposite of each is there
    assert not look(cb.Predictions.from_binary(even, rng.random(900) < even))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(2, 60), st.integers(3, 6))
def test_labels_of_few_random_rows_are_never_said_to_count_from_1(
    seed: int, n: int, k: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = cb.Predictions.from_logits(9 * rng.normal(size=(n, k)), rng.integers(1, k, size=n))
    assert all(not finding.fix for finding in look(rows))


# --- what is found


def finding(rows: cb.Predictions) -> str:
    (found,) = look(rows)
    return found.what


def test_what_is_wrong_goes_by_one_word() -> None:
    of = cb.Predictions.from_logits
    wide = np.concatenate([LOGITS, LOGITS.min(axis=1, keepdims=True) - 9], axis=1)
    assert finding(of(wide, LABELS + 1)) == "labels from"
    assert finding(of(LOGITS, np.random.default_rng(0).permutation(LABELS))) == "chance"
    assert finding(of(LOGITS[:, [1, 2, 3, 4, 0]], LABELS)) == "chance"
    assert finding(of(100 * PROBS, LABELS)) == "units"
    assert finding(of(np.round(PROBS, 3), LABELS)) == "units"
    assert finding(of(-np.log(PROBS), LABELS)) == "units"
    assert finding(of(np.tile(LOGITS, (2, 1)), np.tile(LABELS, 2))) == "copies"
    assert look(RowTable.from_logits(np.tile(LOGITS, (2, 1)), None)) == []
    for extra in (LOGITS.max(axis=1), LOGITS.sum(axis=1), LOGITS.argmax(axis=1), np.arange(ROWS)):
        added = np.concatenate([LOGITS, extra[:, None]], axis=1)
        assert finding(of(added, LABELS)) == "derived column"
    assert finding(of(LOGITS[:, [0, 1, 4, 3, 2]], LABELS)) == "chance"
    assert finding(of(100 * LOGITS, LABELS)) == "scale"
    assert finding(of(np.append(LOGITS, [LOGITS.mean(axis=0)], axis=0), np.append(LABELS, 0))) == (
        "summary row"
    )
    events = cb.Predictions.from_binary(1 - people_files.CHANCE, EVENT)
    assert finding(events) == "other class"
    right = cb.Predictions.from_confidence(people_files.TOP, correct=~people_files.RIGHT)
    assert finding(right) == "turned round"


@pytest.mark.parametrize("value", [0.1, 0.7, 0.9])
def test_equal_confidences_have_no_row_that_is_the_mean_of_the_others(value: float) -> None:
    right = np.arange(ROWS) < value * ROWS
    rows = cb.Predictions.from_confidence(np.full(ROWS, value), correct=right)
    assert "summary row" not in [found.what for found in look(rows)]


@pytest.mark.parametrize("order", [[1, 2, 3, 4, 0], [1, 2, 0, 3, 4]])
def test_another_order_of_the_columns_is_named_with_what_it_would_give(order: list[int]) -> None:
    # Where two columns stand in their places, accuracy is still above chance.
    (found,) = look(cb.Predictions.from_probs(PROBS[:, order], LABELS))
    best = (PROBS.argmax(axis=1) == LABELS)[1::2].mean()
    assert f"in another order it would be {best:.1%}" in found.sentence
    assert not found.certain
    assert not found.fix


def test_two_swapped_columns_are_named_among_many() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(10, size=300)
    logits = rng.normal(size=(300, 10)) + 4 * np.eye(10)[labels]
    logits[:, [3, 7]] = logits[:, [7, 3]]
    (found,) = look(cb.Predictions.from_logits(logits, labels))
    assert found.sentence.startswith("class 3 is called 7 in ")
    assert not found.certain


def test_a_row_that_is_missing_shows_from_where_on_labels_belong_to_others() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(10, size=2000)
    logits = rng.normal(size=(2000, 10)) + 4 * np.eye(10)[labels]
    for first, word in ((900, "second half"), (1400, "last quarter")):
        given = np.append(labels[:first], np.roll(labels[first:], 1))
        (found,) = look(cb.Predictions.from_logits(logits, given))
        assert f"in the {word} of the rows" in found.sentence


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(["labels", "copies", "plain", "event"]), st.integers(1, 400))
def test_what_is_found_does_not_depend_on_the_parts(what: str, step: int) -> None:
    rows = {
        "labels": cb.Predictions.from_logits(LOGITS, np.roll(LABELS, 3)),
        "copies": cb.Predictions.from_logits(np.tile(LOGITS, (3, 1)), np.tile(LABELS, 3)),
        "plain": cb.Predictions.from_logits(LOGITS, LABELS),
        "event": cb.Predictions.from_binary(1 - people_files.CHANCE, EVENT),
    }[what]
    parts = Look(rows.n)
    for start in range(0, rows.n, step):
        parts.add(rows.take(slice(start, start + step)))
    assert parts.findings() == look(rows)


def test_of_many_rows_some_are_seen_from_all_over_the_file_and_all_of_a_rows_copies() -> None:
    rng = np.random.default_rng(0)
    labels = np.sort(rng.integers(1, 4, size=40_000))  # sorted by class
    logits = rng.normal(size=(40_000, 5)) + 4 * np.eye(5)[labels - 1]
    (found,) = look(cb.Predictions.from_logits(logits, labels))
    assert found.fix == {"labels_from": 1}
    twice = cb.Predictions.from_logits(np.tile(logits, (2, 1)), np.tile(labels - 1, 2))
    (found,) = look(twice)
    assert found.what == "copies"
    assert found.sentence.startswith("50.0% of the rows")


# --- in Python


def test_python_warns_once_and_can_be_silenced_by_name(tmp_path: Path) -> None:
    shuffled = np.random.default_rng(0).permutation(LABELS)
    rows = cb.Predictions.from_probs(PROBS, shuffled)
    for measure in (
        lambda: cb.evaluate(rows, metrics=["accuracy"], resamples=9),
        lambda: cb.evaluate(PROBS, shuffled, metrics=["accuracy"], resamples=9),
        lambda: cb.posthoc.make_calibrator("none").fit(LOGITS, shuffled),
    ):
        with pytest.warns(cb.MisreadWarning, match="Labels may belong to other rows") as heard:
            measure()
        assert len(heard) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", cb.MisreadWarning)
            measure()
    path = npz(tmp_path / "a.npz", probs=PROBS, labels=shuffled)
    with pytest.warns(cb.MisreadWarning, match=f"^{re.escape(str(path))}: accuracy is"):
        found = read_predictions(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cb.evaluate(found.take(slice(200)), metrics=["accuracy"], resamples=9)  # it was said


# --- labels of other forms


def test_labels_whose_form_leaves_no_doubt_are_read_with_a_word() -> None:
    with pytest.warns(LabelFormWarning, match="one-hot rows; the place of the 1 was read"):
        rows = cb.Predictions.from_probs(PROBS, np.eye(K)[LABELS])
    np.testing.assert_array_equal(rows.labels, LABELS)
    with pytest.warns(LabelFormWarning, match="-1 and 1, which were read as 0 and 1"):
        rows = cb.Predictions.from_binary(people_files.CHANCE, 2 * EVENT - 1)
    np.testing.assert_array_equal(rows.labels, EVENT)
    two = np.stack([1 - people_files.CHANCE, people_files.CHANCE], axis=1)
    np.testing.assert_array_equal(cb.Predictions.from_probs(two, EVENT == 1).labels, EVENT)
    with pytest.raises(PredictionsError, match="must be whole numbers from 0 to 1, but row 0"):
        cb.Predictions.from_probs(two[:3], [-1, 0, 1])


def test_signs_are_read_alike_whole_and_in_parts(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", prob=people_files.CHANCE, label=2 * EVENT - 1)
    with pytest.warns(LabelFormWarning):
        whole = read_predictions(path)
    with pytest.warns(LabelFormWarning) as heard:
        parts = cb.scale.sample_of(cb.Shards(path), metrics=["accuracy"], engine=ONE)
    assert len(heard) == 1
    assert parts.n == whole.n


@pytest.mark.parametrize("words", ["measure {}", "fit {} --out {}", "compare --fit {} --test {}"])
@pytest.mark.parametrize("form", ["logit", "prob"])
def test_a_file_of_one_class_is_warned_of_alike_by_every_command(
    words: str, form: str, tmp_path: Path
) -> None:
    columns = {f"logit_{k}": LOGITS[:, k] for k in range(K)}
    columns = columns if form == "logit" else {"prob": people_files.CHANCE}
    ones = np.ones(ROWS, dtype=np.int64)
    said = f"a.csv: all {ROWS} labels are the same, so nothing shows what distinguishes the classes"
    # One other label says something.
    for labels, heard in ((ones, True), (np.where(np.arange(ROWS) == 7, 0, ones), False)):
        path = table(tmp_path / "a.csv", label=labels, **columns)
        out = tmp_path / "c.safetensors" if words.startswith("fit") else path
        chosen = words.format(path, out).split()
        chosen += ["--method", "temperature"] if chosen[0] == "fit" else []
        chosen += ["--methods", "none,temperature"] if chosen[0] == "compare" else []
        chosen += ["--resamples", "20"] if chosen[0] != "fit" else []
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            outcome = CliRunner().invoke(app, chosen)
        assert outcome.exit_code == 0, outcome.output
        assert any(str(one.message).endswith(said) for one in given) == heard


# --- files in parts


def test_shards_are_looked_at_as_one_file_is(tmp_path: Path) -> None:
    wide = np.concatenate([LOGITS, LOGITS.min(axis=1, keepdims=True) - 9], axis=1)
    path = npz(tmp_path / "a.npz", logits=wide, labels=LABELS + 1)
    with pytest.raises(PredictionsError) as whole:
        read_predictions(path)
    with pytest.raises(PredictionsError) as parts:
        cb.evaluate(cb.Shards(path), engine=ONE)
    assert str(parts.value) == str(whole.value)
    shards = cb.Shards(path, labels_from=1)
    found = cb.evaluate(shards, metrics=["accuracy"], resamples=9, engine=ONE)
    plain = cb.evaluate(cb.Predictions.from_logits(wide, LABELS), metrics=["accuracy"], resamples=9)
    assert found["accuracy"].value == plain["accuracy"].value
    assert read_predictions(path, labels_from=0).n == ROWS


@pytest.mark.parametrize("extension", ["npz", "csv"])
def test_labels_count_from_where_it_is_said(extension: str, tmp_path: Path) -> None:
    columns: dict[str, Any] = {"label": LABELS + 1, **people_files.by("logit_", LOGITS)}
    if extension == "csv":
        path = table(tmp_path / "a.csv", **columns)
    else:
        path = npz(tmp_path / "a.npz", logits=LOGITS, labels=LABELS + 1)
    options = ReadOptions(labels_from=1)
    np.testing.assert_array_equal(read_predictions(path, options).labels, LABELS)
    with pytest.raises(PredictionsError, match="whole number"):
        read_predictions(path, labels_from=2)


def test_an_error_holds_its_reason_its_details_and_the_line_to_paste_apart(tmp_path: Path) -> None:
    path = table(tmp_path / "a; b.csv", truth=LABELS, **people_files.by("p", PROBS))
    with pytest.raises(PredictionsError) as caught:
        read_predictions(path, scores="nope; to read it so: no", are="probs")
    error = caught.value
    assert error.reason == f"{path}: there is no 'nope; to read it so: no' to hold the scores"
    assert error.details.startswith("found 'truth', 'p0'")
    assert read_predictions(path, options_of(error.line)).n == ROWS
    same = pickle.loads(pickle.dumps(error))
    assert (str(same), same.line) == (str(error), error.line)


def test_the_order_of_classes_that_a_refusal_shows_is_refused_when_pasted(
    tmp_path: Path,
) -> None:
    names = ["dog", "ant", "cat", "bee", "eel"]
    path = table(tmp_path / "a.csv", label=LABELS, **people_files.by("prob_", PROBS, names))
    with pytest.raises(PredictionsError, match="labels are numbers, but the columns") as caught:
        read_predictions(path)
    shown = re.search(r"--classes (\S+)", str(caught.value))
    assert shown is not None
    with pytest.raises(PredictionsError, match="there is no column 'CLASS_OF_0' of a class"):
        read_predictions(path, classes=shown[1])


# --- rows that two sets share


def test_rows_to_fit_on_are_found_among_those_to_measure_on_under_another_kind() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(K, size=2000)
    logits = rng.normal(size=(2000, K)) + 2 * np.eye(K)[labels]
    fit = cb.Predictions.from_logits(logits[:1000], labels[:1000])
    moved = logits + rng.normal(size=(2000, 1))
    apart = cb.Predictions.from_logits(moved[1000:], labels[1000:])
    assert shared_rows(fit, apart) == (0, 1000)
    probs = np.asarray(cb.predictions.softmax(moved))
    for dtype in (np.float64, np.float32):
        some = slice(960, 1900)
        rows = cb.Predictions.from_probs(probs[some].astype(dtype), labels[some])
        assert shared_rows(fit, rows)[0] == 40
        with pytest.warns(SharedRowsWarning, match=r"of the 940 rows to measure on .* too good"):
            cb.compare(["none"], fit=fit, test=rows, metrics=["ece"], resamples=9)


@pytest.mark.parametrize("make", HONEST)
def test_rows_that_are_alike_by_nature_are_not_shared(make: Any) -> None:
    one, other = (make(np.random.default_rng(seed), 800, 5) for seed in (0, 1))
    if make is of_a_tree:
        other = one.take(slice(400, None))
        one = one.take(slice(400))
    assert shared_rows(one, other)[0] == 0


def test_all_rows_are_found_to_be_shared_however_they_were_rounded() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(10, size=1000)
    logits = rng.normal(size=(1000, 10)) + 2 * np.eye(10)[labels]
    fit, probs = cb.Predictions.from_logits(logits, labels), cb.predictions.softmax(logits)
    for decimals in (4, 6, 9):
        held = np.round(np.asarray(probs), decimals)
        held /= held.sum(axis=1, keepdims=True)
        assert shared_rows(fit, cb.Predictions.from_probs(held, labels)) == (1000, 1000)
