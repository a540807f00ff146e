"""Logs with a score a choice: lm-evaluation-harness of all versions, and letters a line."""

from __future__ import annotations

import gzip
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_logs import choices_of, harness_rows, letter_rows, metrics_of, write_lines

import calibrant as cb
from calibrant.cli import main
from calibrant.core.errors import PredictionsError
from calibrant.files import gate, read_column
from calibrant.files.formats.logs import base
from calibrant.files.formats.logs.reader import is_log

REAL = Path(__file__).parents[2] / "shared/data/llm"
real = pytest.mark.skipif(not REAL.exists(), reason=f"{REAL} holds the real logs, and isn't there")
SAMPLES = "samples_my_task_2026-01-02T03-04-05.678.jsonl"


def accuracy(rows: cb.Predictions) -> float:
    said = rows.predicted if rows.kind == "toplabel" else np.asarray(rows.scores).argmax(axis=1)
    return float((said == rows.labels).mean())


FORMS = {
    "text of 2026": {},
    "targets that are texts": {"target": "text"},
    "numbers in lists": {"text": False, "arguments": "pairs"},
    "no filter": {"filters": ()},
    "two filters": {"filters": ("none", "first")},
    "likelihoods without the question": {"metrics": ("acc", "acc_mutual_info")},
    "no arguments": {"arguments": "none", "metrics": ("acc",)},
    "only per character": {"metrics": ("acc_norm",)},
}


@pytest.mark.parametrize("form", FORMS)
def test_the_harness_own_accuracy_comes_out_of_every_form(form, tmp_path):
    questions = choices_of(60, widths=(4, 2, 3))
    file = write_lines(tmp_path / SAMPLES, harness_rows(questions, **FORMS[form]))
    rows = cb.read_predictions(file)
    name = "acc_norm" if form == "only per character" else "acc"
    assert accuracy(rows) == np.mean([metrics_of(q)[name] for q in questions])
    assert rows.n == 60
    assert rows.n_classes == 4
    assert np.isneginf(rows.scores[1, 2:]).all()  # of two choices
    assert rows.origin is not None
    assert rows.origin.choices == (2, 4)
    assert "come out on every row" in str(rows.origin)


@pytest.mark.parametrize(
    ("how", "name"),
    [
        ("none", "acc"),
        ("chars", "acc_norm"),
        ("bytes", "acc_bytes"),
        ("unconditional", "acc_mutual_info"),
    ],
)
def test_each_normalisation_has_the_accuracy_of_its_metric(how, name, tmp_path):
    questions = choices_of(80, seed=3)
    metrics = ("acc", "acc_norm", "acc_bytes", "acc_mutual_info")
    file = write_lines(tmp_path / SAMPLES, harness_rows(questions, metrics=metrics))
    rows = cb.read_predictions(file, normalise=how)
    assert accuracy(rows) == np.mean([metrics_of(q)[name] for q in questions])


def test_a_document_of_many_lines_and_samples_within_results_are_read(tmp_path):
    questions = choices_of(20)
    rows = harness_rows(questions, filters=(), text=False, arguments="pairs")
    document = tmp_path / "samples.jsonl"
    document.write_text(json.dumps(rows, indent=2))
    assert cb.read_predictions(document).n == 20
    results = {"results": {}, "configs": {}, "n-shot": {}, "lm_eval_version": "0.4.9"}
    inline = tmp_path / "results.json"
    generated = {"doc_id": 0, "filtered_resps": ["7"], "resps": [["7"]], "exact_match": 1.0}
    inline.write_text(json.dumps({**results, "samples": {"a": rows, "b": [generated]}}))
    found = cb.read_predictions(inline)
    assert found.n == 20
    assert found.origin is not None
    assert found.origin.version == "0.4.9"
    ((reason, left),) = found.origin.left_out.items()
    assert "generated text" in reason
    assert (left.rows, left.correct) == (1, 1)


def test_the_version_is_that_of_the_results_beside_the_samples(tmp_path):
    file = write_lines(tmp_path / SAMPLES, harness_rows(choices_of(9)))
    (tmp_path / "results_2026-01-02T03-04-05.678.json").write_text('{"lm_eval_version": "0.4.13"}')
    assert cb.read_predictions(file).origin.version == "0.4.13"


def test_the_first_of_equal_choices_is_the_answer(tmp_path):
    question = {"logs": [-2.0, -1.0, -1.0], "without": [0.0] * 3, "texts": ["x", "y", "z"]}
    file = write_lines(tmp_path / SAMPLES, harness_rows([{**question, "gold": 1}] * 3))
    assert accuracy(cb.read_predictions(file)) == 1


def test_the_right_choice_of_winogrande_stands_in_its_row(tmp_path):
    rows = harness_rows(choices_of(40, widths=(2,)), metrics=("acc",))
    for row in rows:
        gold = int(row["target"])
        row |= {"target": "always got it", "doc": {"answer": str(gold + 1)}}
        row["arguments"] = {
            f"gen_args_{i}": {"arg_0": f"Option {i}", "arg_1": " always got it"} for i in (0, 1)
        }
    file = write_lines(tmp_path / SAMPLES, rows)
    known = cb.read_predictions(file)
    assert accuracy(known) == np.mean([row["acc"] for row in rows])
    assert "no check" not in str(known.origin)
    for row in rows:
        row["doc"] = {}
    derived = cb.read_predictions(write_lines(tmp_path / SAMPLES, rows))
    np.testing.assert_array_equal(derived.labels, known.labels)
    assert "no check" in str(derived.origin)


def test_an_accuracy_that_does_not_come_out_is_refused_with_its_line(tmp_path):
    rows = harness_rows(choices_of(30))
    rows[17]["acc"] = 1 - rows[17]["acc"]
    file = write_lines(tmp_path / SAMPLES, rows)
    with pytest.raises(PredictionsError, match=r"line 18: 'acc' is .* doesn't come out"):
        cb.read_predictions(file)


def test_log_likelihoods_that_are_all_0_are_refused(tmp_path):
    questions = [{**q, "logs": [0.0] * 4} for q in choices_of(5)]
    with pytest.raises(PredictionsError, match="all log-probabilities are 0"):
        cb.read_predictions(write_lines(tmp_path / SAMPLES, harness_rows(questions)))


def test_a_choice_without_likelihood_is_masked_unless_it_is_right(tmp_path):
    questions = [{**q, "gold": 0} for q in choices_of(3)]
    questions[1]["logs"][3] = questions[2]["logs"][0] = -np.inf
    rows = cb.read_predictions(write_lines(tmp_path / SAMPLES, harness_rows(questions)))
    assert rows.n == 2
    assert np.isneginf(rows.scores[1, 3])
    assert "the right choice has a log-likelihood of -inf" in str(rows.origin)


def test_metrics_of_pairs_name_the_right_choice_and_are_checked(tmp_path):
    rows = harness_rows(choices_of(30, widths=(2,)), metrics=())
    for row in rows:
        top = int(np.argmax([float(log) for log, _ in row["filtered_resps"]]))
        row["mcc"] = [int(row.pop("target")), top]
    found = cb.read_predictions(write_lines(tmp_path / "samples_cola_2026.jsonl", rows))
    np.testing.assert_array_equal(found.labels, [row["mcc"][0] for row in rows])
    assert "values of 'mcc' come out" in str(found.origin)
    rows[3]["mcc"][1] = 1 - rows[3]["mcc"][1]
    with pytest.raises(PredictionsError, match="line 4: 'mcc' is"):
        cb.read_predictions(write_lines(tmp_path / "samples_cola_2026.jsonl", rows))


def test_samples_that_are_not_all_those_of_the_results_are_refused(tmp_path):
    rows = harness_rows(choices_of(30))
    results: dict[str, Any] = {"results": {"t": {"acc,none": np.mean([r["acc"] for r in rows])}}}
    (tmp_path / "results_2026.json").write_text(json.dumps(results))
    path = write_lines(tmp_path / "samples_t_2026.jsonl", rows)
    assert cb.read_predictions(path).n == 30
    write_lines(path, [row for row in rows if not row["acc"]])
    with pytest.raises(PredictionsError, match=r"results: 'acc' of t is 0\.\d+ there, but 0 by"):
        cb.read_predictions(path)


def test_an_accuracy_at_chance_is_no_sign_of_other_labels_where_the_log_has_it_too(tmp_path):
    questions = choices_of(400, widths=(2, 3, 4))
    for question in questions:  # as the first version of TruthfulQA has them
        question["gold"] = 0
        question["logs"][0] = -20.0
    path = write_lines(tmp_path / "samples_mc1_2026.jsonl", harness_rows(questions))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cb.read_predictions(path).origin.checked


@pytest.mark.parametrize(("target", "width"), [("index", 4), ("text", 4), ("index", 2)])
def test_rows_whose_right_choice_is_none_of_theirs_are_left_out_as_wrong(target, width, tmp_path):
    rows = harness_rows(choices_of(20, widths=(width,)), target=target)
    rows[3] |= {"target": "7" if target == "index" else "mauve", "acc": 0.0, "acc_norm": 0.0}
    found = cb.read_predictions(write_lines(tmp_path / SAMPLES, rows))
    assert found.n == 19
    assert accuracy(found) == np.mean([row["acc"] for row in rows[:3] + rows[4:]])
    assert "Left out 1 row (accuracy 0.0%): the right choice is none of the choices" in str(
        found.origin
    )
    rows[3]["acc"] = 1.0  # scored as right, it has one
    with pytest.raises(PredictionsError, match=r"can't be found|doesn't come out"):
        cb.read_predictions(write_lines(tmp_path / "samples_b_1.jsonl", rows))


def test_a_right_choice_that_is_nowhere_is_refused(tmp_path):
    rows = harness_rows(choices_of(5))
    for row in rows:
        row["target"] = "no such choice"
    with pytest.raises(
        PredictionsError, match="line 1: the right choice of my_task can't be found"
    ):
        cb.read_predictions(write_lines(tmp_path / SAMPLES, rows))


def test_a_log_of_generated_text_is_refused_with_the_reason(tmp_path):
    row = {"doc_id": 0, "filtered_resps": ["7"], "resps": [["7"]], "exact_match": 0.0}
    with pytest.raises(PredictionsError, match=r"no row has a confidence.*generated text"):
        cb.read_predictions(write_lines(tmp_path / SAMPLES, [row]))


def test_generated_text_may_state_a_confidence(tmp_path):
    rows = [
        {
            "doc_id": i,
            "resps": [[f"7. Sure: {s}"]],
            "filtered_resps": ["7"],
            "exact_match": float(i),
        }
        for i, s in enumerate(["90%", "40%"])
    ]
    file = write_lines(tmp_path / SAMPLES, rows)
    found = cb.read_predictions(file, verbalised="Sure: {percent}%")
    np.testing.assert_allclose(found.scores, [0.9, 0.4])
    np.testing.assert_array_equal(found.predicted == found.labels, [False, True])


def test_a_folder_of_tasks_is_one_set_with_the_tasks_as_groups(tmp_path, capsys, monkeypatch):
    for task, widths in (("law", (4,)), ("yes_no", (2,))):
        path = tmp_path / "run" / f"samples_{task}_2026-01-02T03.jsonl"
        path.parent.mkdir(exist_ok=True)
        write_lines(path, harness_rows(choices_of(30, widths=widths)))
    (tmp_path / "run" / "results_2026-01-02T03.json").write_text("{}")
    rows = cb.read_predictions(tmp_path / "run")
    assert (rows.n, rows.n_classes) == (60, 4)
    assert set(read_column(tmp_path / "run", "task")) == {"law", "yes_no"}
    files = [str(path) for path in sorted((tmp_path / "run").glob("samples*"))]
    for places in ([str(tmp_path / "run")], files):
        run(monkeypatch, "measure", *places, "--by", "task", "--metrics", "accuracy")
        out = capsys.readouterr().out
        assert "60 rows of 2 to 4 choices" in " ".join(out.split())
        assert "yes_no" in out


def run(monkeypatch, *words: object, code: int = 0) -> None:
    monkeypatch.setattr(sys, "argv", ["calibrant", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code or 0) == code


def test_of_several_filters_one_says_what_is_right_and_another_can_be_named(tmp_path):
    rows: list[dict[str, Any]] = []
    for name, right in (("strict-match", 0.0), ("flexible-extract", 1.0)):
        rows += [
            {
                "doc_id": i,
                "target": "4",
                "resps": [[f"4. Confidence: {60 + i}%"]],
                "filtered_resps": ["4"],
                "filter": name,
                "metrics": ["exact_match"],
                "exact_match": right,
            }
            for i in range(5)
        ]
    file = write_lines(tmp_path / "samples_gsm8k_2026.jsonl", rows)
    with pytest.raises(PredictionsError, match=r"declare it by --verbalised 'Confidence: \{perc"):
        cb.read_predictions(file)
    stated = {"verbalised": "Confidence: {percent}%"}
    strict = cb.read_predictions(file, **stated)
    other = cb.read_predictions(file, **stated, correct="exact_match,flexible-extract")
    assert "Of 2 filters 'strict-match' says what is right" in str(strict.origin)
    assert strict.n == other.n == 5
    assert not (strict.predicted == strict.labels).any()
    assert (other.predicted == other.labels).all()
    with pytest.raises(PredictionsError, match=r"--correct .* is one of exact_match,strict-match"):
        cb.read_predictions(file, **stated, correct="exact_match,loose")


def test_accuracies_that_are_shares_are_never_read_as_right_or_wrong(tmp_path):
    rows = harness_rows(choices_of(12), metrics=("acc",))
    for number, row in enumerate(rows):
        row["acc"] = (0.3, 0.7, 1.0, 0.0)[number % 4]
    with pytest.raises(PredictionsError, match="Left out 12 rows: its accuracy is a share"):
        cb.read_predictions(write_lines(tmp_path / "samples_mc2_2026.jsonl", rows))


@pytest.mark.parametrize("how", ["crlf", "blank", "bom", "array", "floats", "letters", "bools"])
def test_a_log_may_be_written_in_other_ways(how, tmp_path):
    rows = harness_rows(choices_of(20))
    expected = cb.read_predictions(write_lines(tmp_path / "samples_a_1.jsonl", rows))
    for row in rows:
        row["arguments"]["gen_args_0"]["arg_1"] += " 你好" * (how == "blank")
        if how == "floats":
            row["target"] = float(row["target"])
            row["acc"], row["acc_norm"] = str(row["acc"]), str(row["acc_norm"])
        if how == "letters":
            row["target"] = f"({'ABCD'[int(row['target'])]})"
        if how == "bools":
            row["acc"] = bool(row["acc"])
        if how == "blank":
            del row["acc_norm"]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    text = {"crlf": "\r\n", "blank": "\n\n"}.get(how, "\n").join(lines)
    if how == "array":
        text = json.dumps(rows, indent=1)
    file = tmp_path / "samples_b_1.jsonl"
    file.write_bytes((b"\xef\xbb\xbf" if how == "bom" else b"") + text.encode())
    found = cb.read_predictions(file)
    np.testing.assert_array_equal(found.scores, expected.scores)
    np.testing.assert_array_equal(found.labels, expected.labels)


def test_a_log_that_ends_within_a_line_is_refused_with_the_line(tmp_path):
    file = write_lines(tmp_path / "samples_a_1.jsonl", harness_rows(choices_of(5)))
    file.write_text(file.read_text()[:-30])
    with pytest.raises(PredictionsError, match=r"line 5: expected a whole JSON object, found '\{"):
        cb.read_predictions(file)


def test_packed_logs_are_read_up_to_a_bound(tmp_path, monkeypatch):
    file = write_lines(tmp_path / "samples_a_1.jsonl", harness_rows(choices_of(5)))
    packed = tmp_path / "samples_a_1.jsonl.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    found, expected = cb.read_predictions(packed), cb.read_predictions(file)
    np.testing.assert_array_equal(found.scores, expected.scores)
    assert list(read_column(packed, "task")) == ["a"] * 5
    file.unlink()
    assert cb.read_predictions(tmp_path).n == 5
    packed.write_bytes(packed.read_bytes()[:-12])
    with pytest.raises(PredictionsError, match="can't read the packed file"):
        cb.read_predictions(packed)
    monkeypatch.setattr(gate, "MOST_MORE", 1 << 20)
    packed.write_bytes(gzip.compress(b"{" + b" " * (1 << 21)))
    with pytest.raises(PredictionsError, match=r"more than 0\.5\d* MiB, far .* unpack it first"):
        cb.read_predictions(packed)


def test_the_beginning_of_a_document_that_is_too_large_is_no_document(tmp_path, monkeypatch):
    file = tmp_path / "samples_a_1.json"
    whole = json.dumps(harness_rows(choices_of(5)), indent=2)
    monkeypatch.setattr(base, "MOST_DOCUMENT_BYTES", len(whole))
    file.write_text(whole)
    assert len(base.LogFile(str(file)).document) == 5
    file.write_text(whole + "\n{}")
    assert base.LogFile(str(file)).document is None


def test_a_document_is_parsed_once(tmp_path, monkeypatch):
    file = tmp_path / "samples_a_1.jsonl"
    file.write_text(json.dumps(harness_rows(choices_of(5)), indent=2))
    parsed: list[str] = []
    load = base.load_json
    monkeypatch.setattr(base, "load_json", lambda *given: parsed.append("") or load(*given))
    assert cb.read_predictions(file).n == 5
    assert len(parsed) == 1


def test_each_of_a_folder_of_logs_is_measured_by_itself(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        Path(name).mkdir()
        for task, seed in (("a", 0), ("b", 1)):
            rows = harness_rows(choices_of(60, seed=seed))
            write_lines(Path(name) / f"samples_{task}_2026.jsonl", rows)
    texts = [{"doc_id": 0, "resps": [["x"]], "filtered_resps": ["x"], "exact_match": 1.0}]
    write_lines(Path("one/samples_c_2026.jsonl"), texts)
    run(monkeypatch, "measure", "--each", "one", "--metrics", "ece")
    out = capsys.readouterr().out
    assert out.count("60 rows, 4 classes") == 2
    assert "samples_c_2026.jsonl: no row has a confidence" in out
    run(monkeypatch, "measure", "--each", "one", "two", "--metrics", "ece")
    assert capsys.readouterr().out.count("120 rows, 4 classes") == 2


def test_maps_go_from_task_to_task_of_several_logs_and_from_model_to_model(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for name in ("whole", "pruned"):
        Path(name).mkdir()
        for task, seed in (("a", 0), ("b", 1)):
            rows = harness_rows(choices_of(60, seed=seed))
            write_lines(Path(name) / f"samples_{task}_2026.jsonl", rows)
    options = ["--metrics", "nll", "--resamples", "20"]
    run(monkeypatch, "compare", "--transfer", "whole", "pruned", *options)
    head = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("fitted on"))
    assert head.split() == ["fitted", "on", "whole", "pruned"]
    run(monkeypatch, "compare", "--transfer", "--by", "task", "whole", "pruned", *options)
    head = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("fitted on"))
    assert head.split() == ["fitted", "on", "a", "b"]
    run(monkeypatch, "compare", "--by", "task", "whole", code=2)
    assert "add --transfer" in capsys.readouterr().err


def test_repeats_of_a_question_are_a_cluster(tmp_path):
    rows = harness_rows(choices_of(20))
    found = cb.read_predictions(write_lines(tmp_path / SAMPLES, rows + rows))
    assert found.clusters is not None
    np.testing.assert_array_equal(found.clusters[:20], found.clusters[20:])
    assert len(set(found.clusters.tolist())) == 20
    assert cb.read_predictions(write_lines(tmp_path / SAMPLES, rows)).clusters is None


def test_questions_of_several_files_are_clusters_and_are_said(tmp_path):
    rows = harness_rows(choices_of(20))
    for model in ("a", "b"):
        (tmp_path / model).mkdir()
        write_lines(tmp_path / model / SAMPLES, rows)
    found = cb.read_predictions(tmp_path)
    assert "The 40 rows are of 20 questions" in str(found.origin)
    assert "--each measures them one by one" in str(found.origin)
    once = cb.read_predictions(tmp_path / "a")
    assert "questions" not in str(once.origin)


def test_letters_are_renormalised_or_kept_as_they_are(tmp_path):
    rows = letter_rows(50)
    file = write_lines(tmp_path / "answers.jsonl", rows)
    found = cb.read_predictions(file)
    assert found.class_names == ("A", "B", "C", "D")
    assert accuracy(found) == np.mean([row["correct"] for row in rows])
    whole = np.exp([list(row["scores"].values()) for row in rows])
    np.testing.assert_allclose(found.probs, whole / whole.sum(axis=1, keepdims=True))
    np.testing.assert_allclose(read_column(file, "mass"), whole.sum(axis=1))
    kept = cb.read_predictions(file, signal="letters-unnormalised")
    np.testing.assert_allclose(kept.scores, whole.max(axis=1))
    assert accuracy(kept) == accuracy(found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gold": "E"}, "line 4: the right choice 'E' is none of A, B, C, D"),
        ({"correct": 2}, "line 4: 'correct' is 2"),
        ({"scores": {"A": 3.0, "B": 1.0}, "gold": "A", "pred": "A", "correct": 1}, "line 4: .*sum"),
    ],
)
def test_letters_that_contradict_themselves_are_refused(change, message, tmp_path):
    rows = letter_rows(6)
    rows[3] |= change
    with pytest.raises(PredictionsError, match=message):
        cb.read_predictions(write_lines(tmp_path / "answers.jsonl", rows))


@pytest.mark.parametrize("first", [0, 1])
def test_right_letters_may_be_numbers_where_something_tells_what_they_count_from(first, tmp_path):
    rows = letter_rows(30)
    expected = cb.read_predictions(write_lines(tmp_path / "a.jsonl", rows)).labels
    for row in rows:
        row["gold"] = "ABCD".index(row["gold"]) + first
        row["scores"] = {name: str(value) for name, value in row["scores"].items()}
    found = cb.read_predictions(write_lines(tmp_path / "b.jsonl", rows))
    np.testing.assert_array_equal(found.labels, expected)
    rows = [row for row in rows if row["gold"] in (1, 2, 3)]
    for row in rows:
        del row["correct"]
    file = write_lines(tmp_path / "c.jsonl", rows)
    with pytest.raises(PredictionsError, match="--labels-from 0 or 1"):
        cb.read_predictions(file)
    assert cb.read_predictions(file, labels_from=first).n == len(rows)


def test_probabilities_of_letters_are_read_when_they_are_called_so(tmp_path):
    rows = letter_rows(20)
    expected = cb.read_predictions(write_lines(tmp_path / "a.jsonl", rows))
    for row in rows:
        row["scores"] = {name: float(np.exp(value)) for name, value in row["scores"].items()}
    file = write_lines(tmp_path / "b.jsonl", rows)
    with pytest.raises(PredictionsError, match="--are probs"):
        cb.read_predictions(file)
    found = cb.read_predictions(file, are="probs")
    np.testing.assert_allclose(found.probs, expected.probs, atol=1e-12)


def test_an_unknown_signal_is_refused_with_those_that_are_there(tmp_path):
    file = write_lines(tmp_path / "answers.jsonl", letter_rows(3))
    with pytest.raises(PredictionsError, match="one of letters, letters-unnormalised"):
        cb.read_predictions(file, signal="vibes")


def test_ordinary_json_lines_are_no_log(tmp_path):
    rows = [{"label": 1, "logits": [0.0, 2.0]}, {"label": 0, "logits": [1.0, 2.0]}]
    file = write_lines(tmp_path / "rows.jsonl", rows)
    assert not is_log(str(file))
    assert cb.read_predictions(file).origin is None


def test_a_format_of_another_package_is_found_by_content(tmp_path, install_plug_ins):
    install_plug_ins(
        Path(__file__).parent / "plug_in_format", "calibrant.formats", mine="stars:Stars"
    )
    file = write_lines(tmp_path / "any.name", [{"stars": 5, "hit": 1}, {"stars": 1, "hit": 0}] * 3)
    rows = cb.read_predictions(file)
    np.testing.assert_allclose(rows.scores, [1.0, 0.2] * 3)
    assert rows.origin is not None
    assert rows.origin.tool == "stars"


@real
@pytest.mark.parametrize(
    ("name", "n", "right", "ece"),
    [
        ("mmlu_qwen3_8b_sparsity000.jsonl", 14042, 0.716, 0.163),
        ("mmlu_qwen3_8b_sparsity050.jsonl", 14042, 0.272, 0.297),
        ("mattdepaolis_Qwen3-8B_results_with_samples.json", 31, None, None),
        ("EleutherAI_ee098a47_pythia-2.8b_winogrande.jsonl", 4, 0.25, None),
    ],
)
def test_real_logs_have_the_known_numbers(name, n, right, ece):
    rows = cb.read_predictions(REAL / name)
    assert rows.n == n
    if right is not None:
        assert accuracy(rows) == pytest.approx(right, abs=1e-3)
    if ece is not None:
        found = cb.metrics.expected_calibration_error(rows.probs, rows.labels, n_bins=15)
        assert found == pytest.approx(ece, abs=1e-3)
