"""Decisions by groups: each as if alone at its part of the sureness, all under one promise."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import beta

import calibrant as cb
from calibrant.cli.app import app
from calibrant.core.errors import CalibrationWarning, CalibratorFileError, NotApplicableError
from calibrant.decision import decide_by, load_decision, save_decision
from calibrant.decision.decide import large_enough, place_of
from calibrant.predictions.predictions import Predictions

VAL, TEST = cb.load_sample("validation"), cb.load_sample("test")
SCALING = cb.TemperatureScaling().fit_predictions(VAL)
GROUPS = np.where(np.arange(TEST.n) < 40, "few", np.array(["a", "b", "c"])[np.arange(TEST.n) % 3])
RISK = decide_by(SCALING, TEST, GROUPS, risk=0.05)
SETS = decide_by(SCALING, TEST, GROUPS, cover=0.9)


def test_each_group_is_decided_as_alone_at_its_part_of_the_sureness() -> None:
    for name in "abc":
        rows = TEST.take(name == GROUPS)
        alone = cb.decide(SCALING, rows, risk=0.05, sure=1 - 0.05 / 3)
        assert RISK.groups[name].threshold == alone.threshold
    assert RISK.too_small == {"few": 40}
    assert RISK.needed == 80  # .95^80 < .05 / 3 < .95^79
    assert "Too small, with fewer than 80 rows or clusters: few (40)." in str(RISK)
    assert "98.33 %" in RISK.promise()


def test_the_place_of_a_quantile_is_that_of_the_beta_law() -> None:
    place = place_of(500, 0.9, 0.99)
    assert beta.cdf(0.9, place, 501 - place) <= 0.01 < beta.cdf(0.9, place - 1, 502 - place)
    assert place_of(20, 0.9, 0.99) == 21  # no place will do


def test_sets_of_a_group_keep_its_coverage_in_nearly_all_draws() -> None:
    rng, broken, draws = np.random.default_rng(0), 0, 400
    place = place_of(120, 0.9, 0.95)
    for _ in range(draws):
        broken += np.sort(rng.uniform(size=120))[place - 1] < 0.9
    assert broken <= 33  # 5 % of 400 and three standard deviations
    assert min(each.coverage.value for each in SETS.groups.values()) > 0.9


def test_the_promise_holds_for_all_groups_at_once_over_draws() -> None:
    rng, broken, draws = np.random.default_rng(1), 0, 100
    for seed in range(draws):
        group = rng.integers(4, size=1600)
        # In group 3 confidences say less than in the others.
        odds = rng.normal(2.5, 1.5, size=1600)
        right = 1 / (1 + np.exp(-odds * np.where(group == 3, 0.6, 1.0)))
        correct = rng.uniform(size=1600) < right
        rows = Predictions.from_confidence(1 / (1 + np.exp(-odds)), np.zeros(1600), 1 - correct)
        if seed == 0:
            none = cb.make_calibrator("none").fit_predictions(rows)
            none.fitted_to_ = ()
        found = decide_by(none, rows, group, risk=0.15, sure=0.9)
        bad = False
        for name, each in found.groups.items():
            if each.threshold is not None:
                inside = (group == int(name)) & (1 / (1 + np.exp(-odds)) >= each.threshold)
                bad |= bool((1 - right)[inside].mean() > 0.15)
        broken += bad
    assert broken <= 19  # 10 % of 100 and three standard deviations


def test_groups_are_counted_by_their_sizes_alone() -> None:
    names, needed = large_enough({"a": 100, "b": 70, "c": 5}, 0.05, 0.95)
    assert names == ["a"]  # two groups would take 72 rows each
    assert needed == 59
    assert large_enough({"a": 30}, 0.05, 0.95) == ([], 59)


def test_rows_of_other_groups_are_not_answered_and_get_all_classes() -> None:
    groups = np.array(["a", "few", "new"])[np.arange(TEST.n) % 3]
    with pytest.warns(CalibrationWarning, match="groups that are new to this decision: new;"):
        answer = RISK.of_rows(TEST, groups)["answer"]
    assert not answer[groups != "a"].any()
    alone = RISK.groups["a"].of_rows(TEST)["answer"]
    np.testing.assert_array_equal(answer[groups == "a"], alone[groups == "a"])
    with pytest.warns(CalibrationWarning, match="their rows get all classes"):
        columns = SETS.of_rows(TEST, groups)
    assert (columns["set_size"][groups != "a"] == 10).all()
    assert columns["set"][1] == "0|1|2|3|4|5|6|7|8|9"
    sets = SETS.groups["a"].of_rows(TEST)["set"]
    np.testing.assert_array_equal(columns["set"][groups == "a"], sets[groups == "a"])


def test_clusters_are_the_units_and_what_cannot_be_is_refused() -> None:
    codes = np.arange(TEST.n) // 50
    with pytest.raises(cb.InputError, match="no group is large enough"):
        decide_by(SCALING, replace(TEST, clusters=codes), np.arange(TEST.n) // 1000, risk=0.05)
    for how, message in (
        ({}, "one rule"),
        ({"risk": 0.1, "cover": 0.9}, "one rule"),
        ({"risk": 0.1, "sure": 0.2}, "must"),
    ):
        with pytest.raises(cb.InputError, match=message):
            decide_by(SCALING, TEST, GROUPS, **how)
    with pytest.raises(cb.InputError, match="true label of a new row"):
        decide_by(SCALING, TEST, "label", risk=0.05)
    with pytest.raises(cb.InputError, match="fitted to are among these"):
        decide_by(SCALING, VAL, "predicted", risk=0.05)


def test_the_command_decides_by_classes_and_by_a_column(tmp_path, capsys) -> None:
    np.savez(tmp_path / "t.npz", logits=TEST.logits, labels=TEST.labels, site=GROUPS)
    SCALING.save(tmp_path / "c.safetensors")
    words = ["decide", str(tmp_path / "c.safetensors"), str(tmp_path / "t.npz"), "--by", "site"]
    app([*words, "--risk", "0.05", "--json", "-"], standalone_mode=False)
    document = json.loads(capsys.readouterr().out)
    assert document["groups"]["a"]["threshold"] == RISK.groups["a"].threshold
    app([*words[:-1], "class", "--cover", "0.9"], standalone_mode=False)
    assert capsys.readouterr().out.startswith("Sets that hold the true class in 90.0 %")
    assert "|" in RISK.to_markdown()
    assert len(SETS.records()) == 3
    with pytest.raises(cb.InputError, match="a decision by cost makes none"):
        app([*words, "--error-cost", "10"], standalone_mode=False)


BY_CLASS = decide_by(SCALING, TEST, "predicted", risk=0.05)
KINDS = {
    "column": (RISK, GROUPS),
    "sets of a column": (SETS, GROUPS),
    "predicted": (BY_CLASS, None),
    "confidence": (decide_by(SCALING, TEST, "confidence", cover=0.9), None),
    "margin": (decide_by(SCALING, TEST, "margin", risk=0.2), None),
    "precision": (decide_by(SCALING, TEST, GROUPS, precision=0.8, of=3), GROUPS),
    "recall": (decide_by(SCALING, TEST, GROUPS, recall=0.8, of=3), GROUPS),
}


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_file_of_groups_gives_the_same_decision_and_the_same_words(kind: str, tmp_path) -> None:
    found, groups = KINDS[kind]
    save_decision(found, tmp_path / "d.safetensors")
    kept = load_decision(tmp_path / "d.safetensors")
    assert str(kept) == str(found)
    assert json.dumps(kept.as_dict()) == json.dumps(found.as_dict())
    for name, column in found.of_rows(TEST, groups).items():
        np.testing.assert_array_equal(kept.of_rows(TEST, groups)[name], column)


@pytest.mark.parametrize("kind", ["predicted", "confidence", "margin"])
def test_a_new_row_alone_is_of_the_group_that_it_is_of_among_others(kind: str) -> None:
    found = KINDS[kind][0]
    together = found.of_rows(TEST)
    for name, column in found.of_rows(TEST.take(np.arange(0, TEST.n, 997))).items():
        np.testing.assert_array_equal(column, together[name][::997])


def test_precision_and_recall_of_each_group_are_those_of_the_group_alone() -> None:
    for name in "abc":
        rows = TEST.take(name == GROUPS)
        for rule in ("precision", "recall"):
            alone = cb.decide(SCALING, rows, **{rule: 0.8}, of=3, sure=1 - 0.05 / 3)
            assert KINDS[rule][0].groups[name].threshold == alone.threshold
    assert "precision of at least 80.0 %" in KINDS["precision"][0].headline()
    # Forty rows hold four of the class, too few for a recall.
    assert KINDS["recall"][0].too_small == {"few": int((TEST.labels[:40] == 3).sum())}
    losses = np.where(SCALING.predict_proba(TEST.logits).argmax(1) == TEST.labels, 0.0, 1.0)
    by_loss = decide_by(SCALING, TEST, GROUPS, risk=0.05, loss=losses)
    assert by_loss.groups["a"].threshold == RISK.groups["a"].threshold


def test_whole_numbers_name_the_same_group_whichever_type_they_have() -> None:
    site = np.arange(TEST.n) % 2
    found = decide_by(SCALING, TEST, site, risk=0.05)
    for column in (site.astype(np.float64), site.astype(str), site.astype(np.int8)):
        np.testing.assert_array_equal(
            found.of_rows(TEST, column)["answer"], found.of_rows(TEST, site)["answer"]
        )
    with pytest.raises(cb.InputError, match="give the \\(N,\\) values"):
        found.of_rows(TEST)


def test_a_graph_decides_by_the_predicted_class_and_by_confidence() -> None:
    runtime = pytest.importorskip("onnxruntime")
    torch = pytest.importorskip("torch")
    some = TEST.take(np.arange(400))
    logits = np.asarray(some.logits, dtype=np.float32)
    for kind, name in (("predicted", "answer"), ("confidence", "set_size")):
        found = KINDS[kind][0]
        session = runtime.InferenceSession(found.to_onnx().SerializeToString())
        (answer,) = session.run([name], {"logits": logits})
        expected = found.of_rows(some)[name]
        assert (answer == expected).mean() > 0.997  # rounding at a threshold
        of_torch = found.to_torch()(torch.tensor(logits))[name].numpy()
        assert (of_torch == expected).mean() > 0.997
    with pytest.raises(NotApplicableError, match="groups of 'group' can't be exported to a graph"):
        RISK.to_onnx()
    with pytest.raises(NotApplicableError, match="can't be exported to a graph"):
        RISK.to_torch()(torch.tensor(logits))


def test_damaged_files_of_groups_are_refused(tmp_path) -> None:
    from safetensors import safe_open
    from safetensors.numpy import save_file

    whole, bad = tmp_path / "d.safetensors", tmp_path / "bad.safetensors"
    save_decision(RISK, whole)
    with safe_open(whole, framework="numpy") as file:
        header = file.metadata()
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    plain = json.loads(header["decision"])
    cost = [["a", "cost", {}]]
    for change in (
        {"groups": []},
        {"groups": cost},
        {"groups": [["a", "guess", {}]]},
        {"groups": 3},
        {"kind": "moon"},
        {"kind": "confidence"},
        {"cuts": [0.5]},
        {"wanted": 2},
        {"too_small": {"few": "40"}},
        {"groups": [[3, *plain["groups"][0][1:]]]},
        {"groups": [["a", "risk", plain["groups"][0][2] | {"threshold": 7}]]},
    ):
        text = json.dumps(plain | change)
        save_file(state, bad, metadata=header | {"decision": text})
        with pytest.raises(CalibratorFileError, match=r"bad\.safetensors"):
            load_decision(bad)


def test_apply_reads_the_column_of_one_file_and_of_many(tmp_path, capsys) -> None:
    for part, at in enumerate(np.array_split(np.arange(TEST.n), 2)):
        rows = TEST.take(at)
        np.savez(
            tmp_path / f"t-{part}.npz", logits=rows.logits, labels=rows.labels, site=GROUPS[at]
        )
    SCALING.save(tmp_path / "c.safetensors")
    files = [str(tmp_path / f"t-{part}.npz") for part in (0, 1)]
    out = str(tmp_path / "d.safetensors")
    words = ["decide", str(tmp_path / "c.safetensors"), *files, "--by", "site", "--risk", "0.05"]
    app([*words, "--out", out], standalone_mode=False)
    kept = load_decision(out)
    assert kept.as_dict()["groups"] == {
        **{n: {**d, "source": kept.groups[n].source} for n, d in RISK.as_dict()["groups"].items()}
    }
    expected = RISK.of_rows(TEST, GROUPS)["answer"]
    app(["apply", out, files[0], "--out", str(tmp_path / "one.npz")], standalone_mode=False)
    np.testing.assert_array_equal(np.load(tmp_path / "one.npz")["answer"], expected[:5000])
    app(["apply", out, *files, "--out", str(tmp_path / "many")], standalone_mode=False)
    np.testing.assert_array_equal(np.load(tmp_path / "many" / "t-1.npz")["answer"], expected[5000:])
    np.savez(tmp_path / "bare.npz", logits=TEST.logits)
    with pytest.raises(cb.PredictionsError, match="no column 'site'"):
        app(["apply", out, str(tmp_path / "bare.npz"), "--out", "x.npz"], standalone_mode=False)


def test_a_method_is_fitted_to_one_half_and_decided_by_groups_on_the_other() -> None:
    found = decide_by("temperature", TEST, GROUPS, risk=0.05)
    assert found.notes[0].startswith("temperature was fitted to 5000 rows")
    assert found.n == 5000
