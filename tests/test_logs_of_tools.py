"""Logs of inspect_ai, OpenAI's API, HELM, lighteval, uqlm, judges, and tables of answers."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_logs import write_lines

import calibrant as cb
from calibrant.core.errors import InputError, MissingDependencyError, PredictionsError
from calibrant.files import ReadOptions, read_column
from calibrant.files.formats.logs.signals import label_of, log_probabilities
from calibrant.files.formats.logs.stated import how_stated, stated
from calibrant.files.reading import read_with_slice

REAL = Path(__file__).parents[2] / "shared/data/llm"
real = pytest.mark.skipif(not REAL.exists(), reason=f"{REAL} holds the real logs, and isn't there")


def token(text: str, top: dict[str, float] | None = None, logprob: float = 0.0) -> dict[str, Any]:
    likeliest = [{"token": name, "logprob": value} for name, value in (top or {}).items()]
    return {"token": text, "logprob": (top or {}).get(text, logprob), "top_logprobs": likeliest}


def answered(letter: str, **top: float) -> list[dict[str, Any]]:
    spaced = {f" {name}": value for name, value in top.items()}
    return [token("ANSWER", logprob=-0.01), token(":"), token(f" {letter}", spaced)]


# --- inspect_ai


def inspect_log(samples: list[dict[str, Any]], accuracy: float | None) -> dict[str, Any]:
    header: dict[str, Any] = {
        "version": 2,
        "status": "success",
        "eval": {"task": "made/task", "packages": {"inspect_ai": "0.3.999"}},
        "plan": {"steps": []},
    }
    if accuracy is not None:
        metrics = {"accuracy": {"name": "accuracy", "value": accuracy}}
        header["results"] = {"scores": [{"name": "choice", "scorer": "choice", "metrics": metrics}]}
    return {**header, "samples": samples}


def sample(number: int, letter: str, target: str, epoch: int = 1, **top: float) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "message": {"content": [{"type": "text", "text": f"ANSWER: {letter}"}]},
        "stop_reason": "stop",
    }
    if top:
        choice["logprobs"] = {"content": answered(letter, **top)}
    value = "C" if letter == target else "I"
    return {
        "id": number,
        "epoch": epoch,
        "choices": ["4", "5"],
        "target": f" {target}",
        "output": {"choices": [choice]},
        "scores": {"choice": {"value": value, "answer": letter}},
        "metadata": {"subject": "sums"},
    }


def samples_with_letters() -> list[dict[str, Any]]:
    return [
        sample(1, "A", "A", A=np.log(0.8), B=np.log(0.1)),
        sample(2, "B", "A", A=np.log(0.3), B=np.log(0.6)),
        sample(3, "B", "B", A=np.log(0.2), B=np.log(0.7)),
    ]


def write_archive(path: Path, log: dict[str, Any], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("_journal/start.json", "{}")
        for one in log["samples"]:
            archive.writestr(f"samples/{one['id']}_epoch_{one['epoch']}.json", json.dumps(one))
        header = {key: value for key, value in log.items() if key != "samples"}
        archive.writestr("header.json", json.dumps(header))
    return path


@pytest.mark.parametrize("form", ["json", "eval"])
def test_letters_of_inspect_are_read_at_the_end_of_the_answer(form, tmp_path):
    log = inspect_log(samples_with_letters(), 2 / 3)
    path = tmp_path / f"log.{form}"
    if form == "json":
        path.write_text(json.dumps(log, indent=1))
    else:
        write_archive(path, log)
    rows = cb.read_predictions(path)
    np.testing.assert_allclose(np.asarray(rows.probs)[:, 0], [8 / 9, 1 / 3, 2 / 9])
    np.testing.assert_array_equal(rows.labels, [0, 0, 1])
    assert "accuracy comes out of its samples: choice 66.7%" in str(rows.origin)
    assert rows.origin.version == "0.3.999"
    assert set(read_column(path, "subject")) == {"sums"}


def test_members_packed_with_zstandard_are_read_or_the_extra_is_named(tmp_path):
    log = inspect_log(samples_with_letters(), 2 / 3)
    path = write_archive(tmp_path / "log.eval", log, zipfile.ZIP_STORED)
    try:
        import zstandard
    except ImportError:
        packed = path.read_bytes().replace(
            b"PK\x01\x02\x14\x03\x14\x00\x00\x00\x00\x00",
            b"PK\x01\x02\x14\x03\x14\x00\x00\x00\x5d\x00",
        )
        path.write_bytes(packed)
        if hasattr(zipfile, "ZIP_ZSTANDARD"):
            pytest.skip("this Python unpacks Zstandard by itself, and nothing here packs it")
        with pytest.raises(MissingDependencyError, match=r"calibrant\[logs\]"):
            cb.read_predictions(path)
        return
    # Two frames a member, as long ones have.
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    pack = zstandard.ZstdCompressor().compress
    frames = {name: pack(text[:9]) + pack(text[9:]) for name, text in contents.items()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, text in frames.items():
            archive.writestr(name, text)
    path.write_bytes(marked_as_zstandard(path.read_bytes()))
    assert cb.read_predictions(path).n == 3


def marked_as_zstandard(archive: bytes) -> bytes:
    """Return an archive whose central directory says that its members are packed with method 93."""
    found = bytearray(archive)
    at = found.find(b"PK\x01\x02")
    while at >= 0:
        found[at + 10 : at + 12] = (93).to_bytes(2, "little")
        at = found.find(b"PK\x01\x02", at + 4)
    return bytes(found)


def test_drawn_letters_and_shuffled_choices_give_the_probability_of_what_was_written(tmp_path):
    samples = samples_with_letters()
    # Choices were shuffled: the letter A of the answer was the choice B of the data set.
    samples[0]["scores"]["choice"] = {"value": "I", "answer": "B"}
    path = tmp_path / "log.json"
    path.write_text(json.dumps(inspect_log(samples, 1 / 3)))
    rows = cb.read_predictions(path)
    assert rows.kind == "toplabel"
    np.testing.assert_allclose(rows.scores, [8 / 9, 2 / 3, 7 / 9])
    np.testing.assert_array_equal(rows.predicted == rows.labels, [False, False, True])
    assert "choices shuffled" in str(rows.origin)


def test_samples_scored_neither_right_nor_wrong_are_counted(tmp_path):
    samples = samples_with_letters()
    samples[2]["scores"]["choice"]["value"] = "P"
    path = tmp_path / "log.json"
    path.write_text(json.dumps(inspect_log(samples, 0.5)))
    rows = cb.read_predictions(path)
    assert rows.n == 2
    assert "neither right nor wrong" in str(rows.origin)


def test_a_scorer_or_a_part_of_its_value_is_named_and_others_are_signals(tmp_path):
    samples = samples_with_letters()
    for one, right, sure in zip(samples, (1, 0, 1), (0.9, 0.4, 0.7), strict=True):
        one["scores"]["judge"] = {"value": {"right": right}, "metadata": {"sure": sure}}
    path = tmp_path / "log.json"
    path.write_text(json.dumps(inspect_log(samples, 2 / 3)))
    rows = cb.read_predictions(path, correct="judge.right", signal="judge.metadata.sure")
    assert rows.kind == "score"
    np.testing.assert_allclose(rows.scores, [0.9, 0.4, 0.7])
    np.testing.assert_array_equal(rows.predicted == rows.labels, [True, False, True])
    with pytest.raises(PredictionsError, match=r"is one of choice, judge\.right"):
        cb.read_predictions(path, correct="nobody")


def test_an_accuracy_of_inspect_that_does_not_come_out_is_refused(tmp_path):
    path = tmp_path / "log.json"
    path.write_text(json.dumps(inspect_log(samples_with_letters(), 1.0)))
    with pytest.raises(PredictionsError, match=r"accuracy of 'choice' is 1 there, but 0\.666667"):
        cb.read_predictions(path)


def test_votes_are_shares_of_epochs_and_entropy_is_a_score(tmp_path):
    letters = {1: "AAAB", 2: "BBBB", 3: "ABAB"}
    samples = [
        sample(number, letter, "A", epoch)
        for number, given in letters.items()
        for epoch, letter in enumerate(given, start=1)
    ]
    path = tmp_path / "log.json"
    path.write_text(json.dumps(inspect_log(samples, None)))
    votes = cb.read_predictions(path)
    assert votes.kind == "toplabel"
    np.testing.assert_allclose(votes.scores, [0.75, 1.0, 0.5])
    np.testing.assert_array_equal(votes.predicted == votes.labels, [True, False, True])
    entropy = cb.read_predictions(path, signal="entropy")
    assert entropy.kind == "score"
    np.testing.assert_allclose(entropy.scores, [-0.5623351, 0, -np.log(2)])


def test_stated_confidences_are_read_by_the_declared_pattern_and_others_counted(tmp_path):
    samples = [sample(i, "A", "A" if i % 2 else "B") for i in range(6)]
    texts = ["Confidence: 80%", "confidence: 20 %... Confidence: 95%", "sure", "Confidence: 110%"]
    for one, text in zip(samples, [*texts, "Confidence: 5%", "Confidence: 0%"], strict=True):
        one["output"]["choices"][0]["message"]["content"] = text
    path = tmp_path / "log.json"
    path.write_text(json.dumps(inspect_log(samples, 0.5)))
    with pytest.raises(PredictionsError, match=r"say how by --verbalised"):
        cb.read_predictions(path)
    rows = cb.read_predictions(path, verbalised="Confidence: {percent}%")
    np.testing.assert_allclose(rows.scores, [0.8, 0.95, 0.05, 0.0])
    ((reason, left),) = rows.origin.left_out.items()
    assert "no confidence of the declared form" in reason
    assert (left.rows, left.known, left.correct) == (2, 2, 1)


@pytest.mark.parametrize(
    ("text", "pattern", "value"),
    [
        ("Confidence: 85", "Confidence: {percent}", 0.85),
        ("Confidence: 0.85", "Confidence: {fraction}", 0.85),
        ("Confidence: 1", "Confidence: {fraction}", 1.0),
        ("Confidence: 1", "Confidence: {percent}", 0.01),
        ("I'd say 8/10, no, 9/10", "{tenths}/10", 0.9),
        ("Confidence: 85", "Confidence: {fraction}", None),
    ],
)
def test_percent_and_fraction_are_never_guessed(text, pattern, value):
    assert stated(text, pattern) == value


WORDS = "Confidence: {very likely=.9|likely=.7|no idea=.25}"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Confidence: likely", 0.7),
        ("confidence:  VERY\nlikely.", 0.9),
        ("Confidence: likely... Confidence: no idea", 0.25),
        ("Confidence: unlikely", None),
        ("Confidence: not likely", None),
        ("Confidence: likelyish", None),
        ("Confidence: 70%", None),
    ],
)
def test_words_mean_what_was_declared_and_others_nothing(text, value):
    assert stated(text, WORDS) == value


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("Confidence: 8/100", "Confidence: {tenths}/10"),
        ("Confidence: 1%", "Confidence: {fraction}"),
        ("Confidence: 8/10", "Confidence: {percent}"),
        ("Confidence: 80%", "Confidence: {tenths}"),
    ],
)
def test_a_number_with_another_unit_than_the_declared_one_states_nothing(text, pattern):
    assert stated(text, pattern) is None


@pytest.mark.parametrize("words", ["{high=2}", "{high=}", "{=.5}", "{a=.1|A=.2}", "{a=.1}{b=.2}"])
def test_a_table_of_words_that_says_no_number_for_each_is_refused(words):
    with pytest.raises(InputError, match="--verbalised"):
        stated("high", words)


@pytest.mark.parametrize(
    ("texts", "proposed"),
    [
        (["so. Confidence: 80%", "Confidence: 9 %"], "--verbalised 'Confidence: {percent}%'"),
        (["**Confidence**: 8/10"], "--verbalised 'Confidence**: {tenths}/10'"),
        (["Certainty: 0.8"], "'Certainty: {fraction}' or --verbalised 'Certainty: {percent}'"),
        (["Confidence: High"] * 2, "--verbalised 'Confidence: {high=NUMBER}' with your NUMBER"),
        (["nothing"], ""),
    ],
)
def test_what_texts_seem_to_state_is_proposed(texts, proposed):
    assert proposed in " ".join(how_stated(texts))


def test_a_pattern_without_a_unit_is_refused():
    with pytest.raises(InputError, match="must hold one of"):
        stated("Confidence: 85", "Confidence: (.*)")


# --- letters among tokens


def test_spellings_of_a_label_are_summed_and_an_absent_label_gets_what_is_left():
    top = {" A": np.log(0.5), "A": np.log(0.2), "(a": np.log(0.1), "the": np.log(0.1)}
    values, absent, _ = log_probabilities([token(" A", top)], ("A", "B", "C"))
    assert absent
    np.testing.assert_allclose(np.exp(values), [0.8, 0.05, 0.05])
    assert label_of("\u2581B", "AB") == "B"
    assert label_of("About", "AB") is None


def test_the_answer_is_the_label_behind_the_word_or_the_first_token():
    behind = [token("A"), token(" bird"), token("; answer"), token(": "), token("B")]
    assert np.argmax(log_probabilities(behind, "AB")[0]) == 1
    first = [token("B", {"B": -0.1, "A": -3.0}), token(" because"), token(" A")]
    assert np.argmax(log_probabilities(first, "AB")[0]) == 1
    assert log_probabilities([token("none")], "AB") is None


# --- OpenAI's API


def batch_line(name: str, tokens: list[dict[str, Any]], text: str) -> dict[str, Any]:
    body = {
        "object": "chat.completion",
        "choices": [{"message": {"content": text}, "logprobs": {"content": tokens}}],
    }
    return {
        "id": f"req-{name}",
        "custom_id": name,
        "response": {"status_code": 200, "body": body},
        "error": None,
    }


def batch(tmp_path: Path) -> Path:
    rows = [
        batch_line("q2", [token("B", {"B": np.log(0.6), "A": np.log(0.4)})], "B"),
        batch_line("q1", [token("A", {"A": np.log(0.9), "B": np.log(0.1)})], "A"),
        {"id": "x", "custom_id": "q3", "response": None, "error": {"code": "expired"}},
    ]
    return write_lines(tmp_path / "out.jsonl", rows)


def test_a_batch_gets_its_labels_from_another_file_in_any_order(tmp_path):
    file = batch(tmp_path)
    with pytest.raises(PredictionsError, match=r"line 1 \(q2\) has no label.*--outcomes"):
        cb.read_predictions(file)
    labels = [{"custom_id": "q1", "label": "A"}, {"custom_id": "q2", "label": "A"}]
    known = write_lines(tmp_path / "labels.jsonl", [*labels, {"custom_id": "q3", "label": "B"}])
    rows = cb.read_predictions(file, outcomes=[known])
    np.testing.assert_allclose(rows.probs, [[0.4, 0.6], [0.9, 0.1]])
    np.testing.assert_array_equal(rows.labels, [0, 0])
    assert [r.rows for r in rows.origin.left_out.values()] == [1]
    table = tmp_path / "labels.csv"
    table.write_text("id,label\nq1,A\nq2,A\nq3,B\n")
    np.testing.assert_array_equal(cb.read_predictions(file, outcomes=str(table)).labels, [0, 0])


def answers_in_text(*texts: str) -> dict[str, Any]:
    return {"choices": [{"message": {"content": text}, "logprobs": None} for text in texts]}


def test_what_texts_answer_is_compared_with_the_label(tmp_path):
    texts = [
        ["B", "B", "Answer: **A**."],
        ["The answer is (C)", "C", "I can't say"],
        ["D", "B", "the answer is D, as before"],
    ]
    rows = [
        {"custom_id": f"q{i}", "response": {"status_code": 200, "body": answers_in_text(*each)}}
        for i, each in enumerate(texts)
    ]
    file = write_lines(tmp_path / "batch.jsonl", rows)
    truth = [{"custom_id": f"q{i}", "label": label} for i, label in enumerate("BAA")]
    options = ReadOptions(outcomes=[write_lines(tmp_path / "t.jsonl", truth)], signal="votes")
    found = cb.read_predictions(file, options)
    np.testing.assert_allclose(found.scores, [2 / 3, 1.0, 2 / 3])
    np.testing.assert_array_equal(found.predicted == found.labels, [True, False, False])
    assert found.origin.left_out["a repeat without an answer"].rows == 1


def test_texts_longer_than_their_labels_are_not_taken_for_wrong(tmp_path):
    body = answers_in_text("It is Paris. Confidence: 90%")
    rows = [{"custom_id": f"q{i}", "response": {"body": body}} for i in range(3)]
    file = write_lines(tmp_path / "batch.jsonl", rows)
    truth = [{"custom_id": f"q{i}", "label": "Paris"} for i in range(3)]
    outcomes = [write_lines(tmp_path / "t.jsonl", truth)]
    options = ReadOptions(outcomes=outcomes, verbalised="Confidence: {percent}%")
    with pytest.raises(PredictionsError, match="give a column 'correct'"):
        cb.read_predictions(file, options)
    right = [{"custom_id": f"q{i}", "correct": True} for i in range(3)]
    outcomes = [write_lines(tmp_path / "r.jsonl", right)]
    assert cb.read_predictions(file, options.but(outcomes=outcomes)).n == 3


def test_requests_that_failed_and_log_probabilities_that_are_null_are_left_out(tmp_path):
    failed = [
        {"custom_id": "x", "response": None, "error": {"code": "batch_expired"}},
        {"custom_id": "y", "response": {"status_code": 400, "body": {"error": {}}}, "error": None},
    ]
    top = {"A": -0.5, "B": -1.0, "C": None}
    tops = [{"token": name, "logprob": value} for name, value in top.items()]
    token_of = {"token": "A", "logprob": -0.5, "top_logprobs": tops}
    body = {"choices": [{"message": {"content": "A"}, "logprobs": {"content": [token_of]}}]}
    rows = [{"custom_id": f"q{i}", "response": {"body": body}} for i in range(3)]
    file = write_lines(tmp_path / "batch.jsonl", [*failed, *rows])
    truth = [{"custom_id": f"q{i}", "label": label} for i, label in enumerate("ABC")]
    found = cb.read_predictions(file, outcomes=[write_lines(tmp_path / "t.jsonl", truth)])
    assert (found.n, found.n_classes) == (3, 3)
    assert found.origin.left_out["the request failed"].rows == 2
    # What A and B leave over is the most that C may have.
    left = 1 - np.exp(-0.5) - np.exp(-1.0)
    np.testing.assert_allclose(np.exp(found.scores[0, 2]), left)
    only = write_lines(tmp_path / "errors.jsonl", failed)
    with pytest.raises(PredictionsError, match="Left out 2 rows: the request failed"):
        cb.read_predictions(only, outcomes=[tmp_path / "t.jsonl"])
    strange = write_lines(tmp_path / "s.jsonl", [{"custom_id": "q0", "correct": "maybe"}])
    with pytest.raises(PredictionsError, match=r"line 1: 'correct' must be 0 or 1.*'maybe'"):
        cb.read_predictions(file, outcomes=[strange])


@pytest.mark.parametrize("several", [False, True])
def test_generative_scores_are_probabilities_of_tokens(several, tmp_path):
    shares = [{"2332": p, "1223": 0.8 - p} for p in (0.1, 0.5, 0.7, 0.0)]
    results = [{"index": i, "token_probs": one} for i, one in enumerate(shares)]
    one = {"object": "generative_score", "model": "m"}
    parts = [results[:3], results[3:]] if several else [results]
    bodies = [{**one, "id": f"s{i}", "results": part} for i, part in enumerate(parts)]
    names = ["s0/0", "s0/1", "s0/2", "s1/3"] if several else ["0", "1", "2", "3"]
    labels = write_lines(
        tmp_path / "labels.jsonl",
        [
            {"id": name, "label": t}
            for name, t in zip(names, ("1223", "2332", "1223", "1223"), strict=True)
        ],
    )
    found = cb.read_predictions(write_lines(tmp_path / "a.jsonl", bodies), outcomes=(labels,))
    assert found.class_names == ("1223", "2332")
    expected = [[7 / 8, 1 / 8], [3 / 8, 5 / 8], [1 / 8, 7 / 8], [1, 0]]
    np.testing.assert_allclose(found.probs, expected, atol=1e-12)
    assert found.labels.tolist() == [0, 1, 0, 0]
    assert "The letters have 80.0% of the probability" in str(found.origin)


def test_labels_of_answers_may_be_places_once_it_is_said_what_they_count_from(tmp_path):
    tops = [{"A": -0.1}, {"B": -0.1}, {"C": -0.1}]
    rows = [batch_line(str(i), [token(*top, top)], *top) for i, top in enumerate(tops)]
    file = write_lines(tmp_path / "a.jsonl", rows)
    labels = write_lines(
        tmp_path / "l.jsonl", [{"id": i, "label": n} for i, n in enumerate((1, 3, 3))]
    )
    options = {"outcomes": (labels,), "classes": ("A", "B", "C"), "signal": "letters"}
    with pytest.raises(PredictionsError, match=r"name the letters by --classes A,B,C,D and say by"):
        cb.read_predictions(file, outcomes=(labels,), signal="letters")
    with pytest.raises(
        PredictionsError, match=r"numbers, and none of A, B, C; say by --labels-from"
    ):
        cb.read_predictions(file, **options)
    assert cb.read_predictions(file, **options, labels_from=1).labels.tolist() == [0, 2, 2]


def test_letters_up_to_the_last_that_is_answered_are_possible(tmp_path):
    tops = [{"token": x, "logprob": p} for x, p in zip("ABCD", (-2, -3, -4, -0.3), strict=True)]
    content = [{"token": "D", "logprob": -0.3, "top_logprobs": tops}]
    body = {"choices": [{"message": {"content": "D"}, "logprobs": {"content": content}}]}
    rows = [{"custom_id": f"q{i}", "response": {"body": body}} for i in range(2)]
    file = write_lines(tmp_path / "batch.jsonl", rows)
    truth = [{"custom_id": f"q{i}", "label": label} for i, label in enumerate("AB")]
    found = cb.read_predictions(file, outcomes=[write_lines(tmp_path / "t.jsonl", truth)])
    assert found.n_classes == 4


def test_completions_of_texts_and_responses_are_read_alike(tmp_path):
    top = [{"A": np.log(0.9), "B": np.log(0.1)}]
    logprobs = {"tokens": ["A"], "token_logprobs": [np.log(0.9)], "top_logprobs": top}
    legacy = {
        "object": "text_completion",
        "id": "1",
        "choices": [{"text": "A", "logprobs": logprobs}],
    }
    part = {"type": "output_text", "text": "A", "logprobs": [token("A", top[0])]}
    output = [{"type": "message", "content": [part]}]
    known = write_lines(
        tmp_path / "k.jsonl", [{"id": "1", "label": "A"}, {"id": "2", "label": "B"}]
    )
    for body in (legacy, {"object": "response", "id": "1", "output": output}):
        file = write_lines(tmp_path / "a.jsonl", [body])
        rows = cb.read_predictions(file, outcomes=known)
        np.testing.assert_allclose(rows.probs, [[0.9, 0.1]])


def test_sequences_are_scores_and_p_true_is_a_probability(tmp_path):
    rows = [
        batch_line(
            str(i),
            [token("True", {"True": np.log(p), " False": np.log(q)}), token(".", logprob=-0.5)],
            "True.",
        )
        for i, (p, q) in enumerate([(0.6, 0.2), (0.3, 0.6)])
    ]
    file = write_lines(tmp_path / "out.jsonl", rows)
    known = write_lines(
        tmp_path / "k.jsonl", [{"id": "0", "correct": 1}, {"id": "1", "correct": 0}]
    )
    likely = cb.read_predictions(file, outcomes=known, signal="p-true")
    np.testing.assert_allclose(likely.scores, [0.75, 1 / 3])
    for signal, function in (("mean", np.mean), ("sum", np.sum), ("min", np.min)):
        rows_of = cb.read_predictions(file, outcomes=known, signal=f"sequence-{signal}")
        assert rows_of.kind == "score"
        np.testing.assert_allclose(rows_of.scores[0], function([np.log(0.6), -0.5]))


def test_log_probabilities_that_are_all_0_are_refused(tmp_path):
    file = write_lines(tmp_path / "out.jsonl", [batch_line("1", [token("yes")], "yes")])
    known = write_lines(tmp_path / "k.jsonl", [{"id": "1", "correct": 1}])
    with pytest.raises(PredictionsError, match="all log-probabilities are 0"):
        cb.read_predictions(file, outcomes=known)


# --- HELM and lighteval


def stat(name: str, mean: float) -> dict[str, Any]:
    return {"name": {"name": name, "split": "test"}, "count": 1, "mean": mean}


def helm_run(folder: Path, method: str, logprob: float = -0.3) -> Path:
    folder.mkdir()
    separate = method.startswith("multiple_choice_separate")
    own = 1 / (1 + np.exp(3 * logprob))
    stats, states = [], []
    for i, (right, sure) in enumerate([(1.0, 0.9), (0.0, 0.7), (1.0, 0.6)]):
        stats.append(
            {
                "instance_id": f"id{i}",
                "train_trial_index": 0,
                "stats": [stat("exact_match", right), stat("max_prob", own if separate else sure)],
            }
        )
        stats.append({**stats[-1], "perturbation": {"name": "typos"}})
        references = [{"output": {"text": t}, "tags": ["correct"] * (t == "a")} for t in "ab"]
        for index in range(2):
            best = index == (0 if right else 1)
            # The prompt is repeated before the reference.
            of_reference = {"text": " " + "ab"[index], "logprob": logprob * (1 if best else 4)}
            prompt = [{"text": "Q", "logprob": -7.0 - index}, {"text": "? a", "logprob": -1.0}]
            tokens = [*prompt, {"text": " ", "logprob": -0.5 - i}] * separate + [of_reference]
            states.append(
                {
                    "instance": {"id": f"id{i}", "references": references},
                    "reference_index": index,
                    "train_trial_index": 0,
                    "result": {
                        "completions": [
                            {"logprob": sum(t["logprob"] for t in tokens), "tokens": tokens}
                        ]
                    },
                }
            )
    spec = {"name": "task:x=1,model=m", "adapter_spec": {"method": method}}
    for name, document in (
        ("per_instance_stats", stats),
        ("scenario_state", {"adapter_spec": spec["adapter_spec"], "request_states": states}),
        ("run_spec", spec),
    ):
        (folder / f"{name}.json").write_text(json.dumps(document))
    return folder


def test_a_run_of_helm_gives_a_row_an_instance(tmp_path):
    joint = cb.read_predictions(helm_run(tmp_path / "joint", "multiple_choice_joint"))
    np.testing.assert_allclose(joint.scores, [0.9, 0.7, 0.6])
    np.testing.assert_array_equal(joint.predicted == joint.labels, [True, False, True])
    assert [left.rows for left in joint.origin.left_out.values()] == [3]
    method = "multiple_choice_separate_original"
    separate = cb.read_predictions(helm_run(tmp_path / "separate", method))
    np.testing.assert_allclose(separate.scores[0], [-0.3, -1.2])
    np.testing.assert_array_equal(separate.labels, [0, 0, 0])
    assert "max_prob comes out" in str(separate.origin)


def test_a_probability_of_helm_that_does_not_come_out_is_refused(tmp_path):
    run = helm_run(tmp_path / "run", "multiple_choice_separate_original")
    file = run / "per_instance_stats.json"
    file.write_text(file.read_text().replace('"mean": 0.7', '"mean": 0.8'))
    with pytest.raises(PredictionsError, match=r"id\d: max_prob is .*, but the probability"):
        cb.read_predictions(run)
    with pytest.raises(PredictionsError, match=r"--correct .* is one of exact_match"):
        cb.read_predictions(run, correct="f1")


def test_a_run_of_helm_whose_accuracy_does_not_come_out_is_refused(tmp_path):
    run = helm_run(tmp_path / "run", "multiple_choice_joint")
    (run / "stats.json").write_text(json.dumps([stat("exact_match", 2 / 3)]))
    assert cb.read_predictions(run).n == 3
    (run / "stats.json").write_text(json.dumps([stat("exact_match", 0.5)]))
    with pytest.raises(PredictionsError, match=r"exact_match is 0\.5 there, but 0\.666667"):
        cb.read_predictions(run)


def test_a_run_of_helm_without_log_probabilities_is_refused(tmp_path):
    with pytest.raises(PredictionsError, match="all log-probabilities are 0"):
        cb.read_predictions(helm_run(tmp_path / "run", "multiple_choice_joint", logprob=0.0))


def test_details_of_lighteval_are_read_by_the_normalisation_of_their_metric(tmp_path):
    rng = np.random.default_rng(0)
    rows = []
    for number in range(40):
        choices, gold = ["x", "a longer one", "mid one"], int(rng.integers(3))
        logs = rng.normal(-8, 3, 3)
        said = int(np.argmax(logs / [len(one) for one in choices]))
        rows.append(
            {
                "doc": {
                    "choices": choices,
                    "gold_index": gold,
                    "id": str(number),
                    "task_name": "t",
                },
                "model_response": {"text": [], "logprobs": logs.tolist()},
                "metric": {"acc_norm": float(said == gold)},
            }
        )
    path = tmp_path / "details_t_2026.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    found = cb.read_predictions(path)
    accuracy = (np.asarray(found.scores).argmax(axis=1) == found.labels).mean()
    assert accuracy == np.mean([row["metric"]["acc_norm"] for row in rows])
    assert "per character" in found.origin.signal


def lighteval_rows(rows: int = 30, metric: str = "acc") -> list[dict[str, Any]]:
    """Return details as lighteval has them since 0.10, right by one metric of it."""
    rng = np.random.default_rng(1)
    found: list[dict[str, Any]] = []
    for number in range(rows):
        choices, gold = [" x", " a longer one", " mid one"], int(rng.integers(3))
        logs, aside = rng.normal(-8, 3, 3), rng.normal(-9, 2, 3)
        tokens = [[1], [1, 2, 3], [1, 2]]
        scored = {
            "acc": logs,
            "acc_norm": logs / [1, 12, 7],
            "acc_norm_token": logs / [1, 3, 2],
            "acc_norm_pmi": logs - aside,
        }[metric]
        values = [*logs, *aside] if metric == "acc_norm_pmi" else [*logs]
        doc = {"query": f"q{number}", "choices": choices, "gold_index": [gold], "task_name": "t|0"}
        response = {"text": [], "logprobs": values, "output_tokens": tokens}
        right = float(int(scored.argmax()) == gold)
        found.append({"doc": doc, "model_response": response, "metric": {metric: right}})
    return found


@pytest.mark.parametrize("metric", ["acc", "acc_norm", "acc_norm_token", "acc_norm_pmi"])
def test_every_normalisation_of_lighteval_gives_the_accuracy_of_its_metric(metric, tmp_path):
    rows = lighteval_rows(metric=metric)
    path = tmp_path / "details_t|0_2026.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    found = cb.read_predictions(path)
    assert found.scores.shape == (30, 3)
    right = np.asarray(found.scores).argmax(axis=1) == found.labels
    np.testing.assert_array_equal(right, [row["metric"][metric] for row in rows])
    assert f"'{metric}' come out on every row" in str(found.origin)
    rows[4]["metric"][metric] = 1 - rows[4]["metric"][metric]
    pq.write_table(pa.Table.from_pylist(rows), path)
    with pytest.raises(PredictionsError, match=rf"'{metric}' is [01]\.0, but doesn't come out"):
        cb.read_predictions(path)


def test_a_metric_of_lighteval_may_spell_its_normalisation_out(tmp_path):
    rows = lighteval_rows(metric="acc_norm")
    long = "acc:logprob_normalization=LogProbCharNorm(name='norm', ignore_first_space=True)"
    for row in rows:
        row["metric"] = {long: row["metric"]["acc_norm"]}
    path = tmp_path / "details_t|0_2026.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    found = cb.read_predictions(path)
    assert "per character" in found.origin.signal
    right = np.asarray(found.scores).argmax(axis=1) == found.labels
    np.testing.assert_array_equal(right, [row["metric"][long] for row in rows])


@pytest.mark.parametrize("as_text", [False, True])
def test_details_of_lighteval_before_0_10_have_a_column_a_field_or_the_text_of_it(
    as_text, tmp_path
):
    rows = lighteval_rows()
    old: list[dict[str, Any]] = []
    for row in rows:
        logs = row["model_response"]["logprobs"]
        one: dict[str, Any] = {
            "example": row["doc"]["query"],
            "full_prompt": "Question",
            "predictions": [(float(x), False) for x in logs] if as_text else logs,
            "choices": row["doc"]["choices"],
            "gold_index": row["doc"]["gold_index"],
            "cont_tokens": row["model_response"]["output_tokens"],
            "metrics": row["metric"],
            "specifics": None,
        }
        old.append({k: str(v) for k, v in one.items()} if as_text else one)
    new_path, old_path = tmp_path / "new.parquet", tmp_path / "details_t|0_2024.parquet"
    pq.write_table(pa.Table.from_pylist(rows), new_path)
    pq.write_table(pa.Table.from_pylist(old), old_path)
    new, found = cb.read_predictions(new_path), cb.read_predictions(old_path)
    np.testing.assert_array_equal(new.scores, found.scores)
    np.testing.assert_array_equal(new.labels, found.labels)
    assert set(read_column(old_path, "task")) == {"details_t|0".removeprefix("details_")}


def test_of_truthfulqa_in_lighteval_only_the_choices_of_mc1_are_compared(tmp_path):
    row = lighteval_rows(1)[0]
    row["doc"] |= {"choices": [" a", " b", " c", " d"], "specific": {"len_mc1": 2}}
    row["doc"]["gold_index"] = [0, 2]
    row["model_response"] = {"logprobs": [-1.0, -2.0, -0.5, -9.0], "output_tokens": [[1]] * 4}
    row["metric"] = {"truthfulqa_mc1": True, "truthfulqa_mc2": 0.7}
    path = tmp_path / "details_mc_2026.parquet"
    pq.write_table(pa.Table.from_pylist([row]), path)
    found = cb.read_predictions(path)
    np.testing.assert_array_equal(found.scores, [[-1.0, -2.0]])
    np.testing.assert_array_equal(found.labels, [0])


# --- tables of answers


def test_columns_of_tokens_are_read_in_any_order(tmp_path):
    path = tmp_path / "answers.csv"
    path.write_text(
        "question,answer,the,b,a,c\nq,0,.1,.2,.6,.1\nq,2,.05,,.3,.65\nq,1,.0,.9,.05,.05\n"
    )
    rows = cb.read_predictions(path)
    assert rows.class_names == ("A", "B", "C")
    np.testing.assert_allclose(rows.probs[0], np.array([6, 2, 1]) / 9)
    np.testing.assert_allclose(rows.probs[1], [0.3, 0.05, 0.65])
    np.testing.assert_array_equal(rows.labels, [0, 2, 1])


def test_answers_are_compared_and_blank_confidences_counted(tmp_path):
    path = tmp_path / "answers.csv"
    path.write_text(
        ",category,correct_answer,extracted_answer,verbal_confidence,logit_perplexity_confidence\n"
        "0,law,A,A,0.9,0.7\n1,law,B,A,0.8,0.6\n2,art,B,B,,0.5\n3,art,B,,0.4,0.4\n"
    )
    rows = cb.read_predictions(path)
    np.testing.assert_allclose(rows.scores, [0.9, 0.8, 0.4])
    np.testing.assert_array_equal(rows.predicted == rows.labels, [True, False, False])
    ((_, left),) = rows.origin.left_out.items()
    assert (left.rows, left.correct) == (1, 1)
    assert set(read_column(path, "category")) == {"law", "art"}
    score = cb.read_predictions(path, signal="logit_perplexity_confidence")
    assert (score.kind, score.n) == ("score", 4)


def test_grades_are_read_and_what_is_none_is_refused_with_its_line(tmp_path):
    path = tmp_path / "grades.txt"
    path.write_text("grade confidence_level\nCorrect 0.9\nUnparseable 0\nWrong 1\n")
    rows = cb.read_predictions(path)
    np.testing.assert_allclose(rows.scores, [0.9, 1.0])
    assert [left.rows for left in rows.origin.left_out.values()] == [1]
    path.write_text("grade confidence_level\nCorrect 0.9\nMaybe 0.5\n")
    with pytest.raises(PredictionsError, match=r"line 3: expected Correct, Wrong"):
        cb.read_predictions(path)


def test_numbers_beside_grades_that_are_no_confidences_are_read_as_scores_when_asked(tmp_path):
    path = tmp_path / "grades.txt"
    path.write_text("grade confidence_level\nCorrect 17.2\nWrong 19.0\nUnparseable 0\n")
    with pytest.raises(PredictionsError, match=r"line 2: 17\.2 is no confidence.*--are score"):
        cb.read_predictions(path)
    rows = cb.read_predictions(path, are="score")
    assert rows.kind == "score"
    np.testing.assert_allclose(rows.scores, [17.2, 19.0])


def test_confidences_in_words_are_read_from_a_column_by_a_declared_table(tmp_path):
    path = tmp_path / "answers.csv"
    header = "correct_answer,extracted_answer,verbal_confidence"
    path.write_text(f"{header}\nA,A,high\nB,A,low\nC,C,very high\nD,D,\n")
    with pytest.raises(PredictionsError, match=r"--verbalised '\{high=NUMBER\|low=NUMBER"):
        cb.read_predictions(path)
    rows = cb.read_predictions(path, verbalised="{high=.9|low=.2}")
    np.testing.assert_allclose(rows.scores, [0.9, 0.2])
    left = rows.origin.left_out
    assert left["'verbal_confidence' is not of the declared form"].rows == 1
    assert left["'verbal_confidence' is blank"].correct == 1


def test_scorers_of_uqlm_are_scores_and_need_a_column_of_what_is_correct(tmp_path):
    data = {
        "prompts": ["p", "q", "r"],
        "responses": ["x", "y", "z"],
        "semantic_negentropy": [0.9, 0.2, 0.5],
        "correct": [True, False, True],
    }
    path = tmp_path / "uq.json"
    path.write_text(json.dumps({"data": data, "metadata": {}}))
    rows = cb.read_predictions(path)
    assert rows.kind == "score"
    np.testing.assert_allclose(rows.scores, [0.9, 0.2, 0.5])
    pq.write_table(pa.table(data), tmp_path / "uq.parquet")
    np.testing.assert_array_equal(cb.read_predictions(tmp_path / "uq.parquet").scores, rows.scores)
    del data["correct"]
    path.write_text(json.dumps({"data": data}))
    with pytest.raises(PredictionsError, match="no column says which responses are correct"):
        cb.read_predictions(path)


def test_a_judge_with_labels_on_a_slice_keeps_all_scores(tmp_path):
    rows = [{"prompt_id": f"p{i}", "judge_score": i / 10} for i in range(10)]
    for row in rows[:4]:
        row["oracle_label"] = int(row["judge_score"] > 0.1)
    file = write_lines(tmp_path / "judge.jsonl", rows)
    found = cb.read_predictions(file)
    assert (found.kind, found.n) == ("score", 4)
    _, some = read_with_slice(file)
    assert some is not None
    assert len(some.score) == 10
    assert np.isnan(some.outcome).sum() == 6


def test_scores_of_a_judge_may_stand_in_the_metadata_of_rows(tmp_path):
    flat = [{"prompt_id": f"p{i}", "judge_score": i / 9, "oracle_label": i % 2} for i in range(10)]
    nested = [{"prompt_id": r.pop("prompt_id"), "metadata": r} for r in [dict(r) for r in flat]]
    one = cb.read_predictions(write_lines(tmp_path / "flat.jsonl", flat))
    other = cb.read_predictions(write_lines(tmp_path / "nested.jsonl", nested))
    np.testing.assert_array_equal(one.scores, other.scores)
    np.testing.assert_array_equal(one.labels, other.labels)
    flat[3]["oracle_label"] = 70
    with pytest.raises(PredictionsError, match=r"line 4: its label must lie in \[0, 1\], not '70'"):
        cb.read_predictions(write_lines(tmp_path / "flat.jsonl", flat))


def test_labels_of_a_slice_may_stand_in_another_file(tmp_path):
    rows = [{"prompt_id": f"p{i}", "judge_score": i / 10} for i in range(10)]
    file = write_lines(tmp_path / "judge.jsonl", rows)
    with pytest.raises(PredictionsError, match="--outcomes FILE"):
        read_with_slice(file)
    labels = [{"prompt_id": f"p{i}", "oracle_label": i / 4} for i in range(4)]
    probe = write_lines(tmp_path / "probe.jsonl", labels)
    _, some = read_with_slice(file, ReadOptions(outcomes=[probe]))
    assert some is not None
    np.testing.assert_array_equal(some.outcome, [0, 0.25, 0.5, 0.75, *[np.nan] * 6])
    strange = write_lines(tmp_path / "strange.jsonl", [{"prompt_id": "q", "oracle_label": 1}])
    with pytest.raises(PredictionsError, match="no prompt_id equals the id of an outcome"):
        read_with_slice(file, ReadOptions(outcomes=[strange]))


@pytest.mark.parametrize("by_weight", [False, True])
def test_a_slice_drawn_by_score_is_weighted_by_how_it_was_drawn(by_weight, tmp_path):
    lines = ["prompt_id,judge_score,oracle_label,inclusion,w"]
    for i in range(12):
        drawn = 0.5 if i < 6 else 0.25
        label = str(i % 2) if i in (0, 1, 2, 7) else ""
        lines.append(f"p{i},{i / 12},{label},{drawn},{2 / drawn}")
    file = tmp_path / "judge.csv"
    file.write_text("\n".join(lines if not by_weight else [x.rpartition(",")[0] for x in lines]))
    if by_weight:
        file.write_text("\n".join(lines).replace("inclusion", "drawn"))
    rows, some = read_with_slice(file, ReadOptions(weight="w") if by_weight else None)
    assert some is not None
    assert some.inclusion is not None
    assert rows is not None
    np.testing.assert_allclose(some.inclusion / some.inclusion[0], [1.0] * 6 + [0.5] * 6)
    np.testing.assert_allclose(np.asarray(rows.weights) / rows.weights[0], [1, 1, 1, 2])


@real
@pytest.mark.parametrize(
    ("name", "n", "right", "ece"),
    [
        ("mmlu_pro_gpt-4o-2024-08-06.csv", 12003, 0.724, 0.209),
        ("mmlu_pro_Qwen3-8B.csv", 12006, 0.586, 0.320),
        ("bplaut_arc_Llama-7b.txt", 2590, 0.440, 0.225),
    ],
)
def test_real_tables_have_the_known_numbers(name, n, right, ece):
    rows = cb.read_predictions(REAL / name)
    correct = rows.predicted == rows.labels
    assert rows.n == n
    assert correct.mean() == pytest.approx(right, abs=1e-3)
    found = cb.metrics.expected_calibration_error(
        rows.scores, correct, kind="confidence", n_bins=15
    )
    assert found == pytest.approx(ece, abs=1e-3)


@real
def test_the_real_run_of_helm_is_refused():
    with pytest.raises(PredictionsError, match="all log-probabilities are 0"):
        cb.read_predictions(REAL / "helm-hellaswag-pythia-1b")
