"""Exported graphs: what they say of themselves, intervals, networks in front, and refusals."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import calibrant as cb
from calibrant.cli import main
from calibrant.core.errors import (
    CalibrantError,
    CalibrationWarning,
    InputError,
    MissingDependencyError,
    NotApplicableError,
    NotFittedError,
)
from calibrant.export import array_api, exportable
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.registry import METHODS, make_calibrator

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

VALIDATION = cb.load_sample("validation").take(slice(500))
TEST = cb.load_sample("test").take(slice(64))
LOGITS = np.asarray(TEST.logits, dtype=np.float32)
FEATURES = np.asarray(TEST.features, dtype=np.float32)


@pytest.fixture(scope="module")
def fitted():
    found = {}

    def of(method: str, **arguments) -> Calibrator:
        key = (method, *arguments.items())
        if key not in found:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CalibrationWarning)
                made = make_calibrator(method, **arguments)
                found[key] = made.fit_predictions(VALIDATION)
        return found[key]

    return of


def run(model, **feed):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    content = model if isinstance(model, str) else model.SerializeToString()
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(None, feed), strict=True))


def props(model):
    return {entry.key: entry.value for entry in model.metadata_props}


# --- what a graph says and does


@pytest.mark.parametrize("method", METHODS)
def test_every_graph_passes_the_checker_with_a_free_batch_axis(fitted, method):
    calibrator = fitted(method, **({"partitions": 2} if method == "group" else {}))
    for dtype, number in (("float32", TensorProto.FLOAT), ("float64", TensorProto.DOUBLE)):
        model = calibrator.to_onnx(dtype=dtype)
        onnx.checker.check_model(model, full_check=True)
        for value in model.graph.input:
            assert value.type.tensor_type.elem_type == number
            assert value.type.tensor_type.shape.dim[0].dim_param == "rows"
        wanted = ["logits", "features"] if "features" in calibrator.needs else ["logits"]
        assert [value.name for value in model.graph.input] == wanted
        names = [value.name for value in model.graph.output]
        assert names[:3] == ["probs", "label", "confidence"]
        assert (names[3:] == ["low", "high"]) == (calibrator.interval_arrays(0.95) is not None)


@pytest.mark.parametrize("method", METHODS)
def test_a_graph_takes_no_rows_and_gives_none(fitted, method):
    calibrator = fitted(method, **({"partitions": 2} if method == "group" else {}))
    feed = {"logits": LOGITS[:0]}
    if "features" in calibrator.needs:
        feed["features"] = FEATURES[:0]
    found = run(calibrator.to_onnx(), **feed)
    assert found["probs"].shape == (0, LOGITS.shape[1])
    assert found["confidence"].shape == (0,)


def test_the_metadata_say_what_the_graph_is(fitted):
    said = props(fitted("top-rest").to_onnx(level=0.9, class_names=[f"c{k}" for k in range(10)]))
    assert said["method"] == "top-rest"
    assert said["calibrant_version"] == cb.__version__
    assert said["n_classes"] == "10"
    assert json.loads(said["class_names"])[9] == "c9"
    assert (said["kind"], said["level"]) == ("logits", "0.9")
    assert json.loads(props(fitted("none").to_onnx())["class_names"]) == [str(k) for k in range(10)]
    with pytest.raises(InputError, match="must name 10 classes, but there are 2"):
        fitted("none").to_onnx(class_names=["cat", "dog"])


def test_names_that_a_calibrator_was_fitted_with_are_in_the_metadata():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame([[2.0, 0.0], [0.0, 1.0], [1.0, 0.5]] * 20, columns=["cat", "dog"])
    calibrator = cb.posthoc.VectorScaling().fit(table, ["cat", "dog", "dog"] * 20)
    assert json.loads(props(calibrator.to_onnx())["class_names"]) == ["cat", "dog"]
    with pytest.raises(InputError, match="names its classes 'cat', 'dog', in this order"):
        calibrator.to_onnx(class_names=["dog", "cat"])


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_intervals_of_top_rest_scaling_are_in_the_graph(fitted, level):
    calibrator = fitted("top-rest")
    logits = LOGITS.copy()
    logits[::5, 1:] = -np.inf
    got = run(calibrator.to_onnx(level=level), logits=logits)
    low, high = calibrator.confidence_interval(logits, level)
    np.testing.assert_allclose(got["low"], low, atol=1e-6)
    np.testing.assert_allclose(got["high"], high, atol=1e-6)
    assert (got["low"] <= got["confidence"]).all()
    assert (got["confidence"] <= got["high"]).all()


def test_intervals_of_venn_abers_are_in_the_graph(fitted):
    got = run(fitted("venn-abers").to_onnx(), logits=LOGITS)
    low, high = fitted("venn-abers").intervals(LOGITS)
    np.testing.assert_allclose(got["low"], np.minimum(low, got["confidence"]), atol=1e-6)
    np.testing.assert_allclose(got["high"], np.maximum(high, got["confidence"]), atol=1e-6)
    assert "low" not in run(fitted("venn-abers", form="one-vs-rest").to_onnx(), logits=LOGITS)


def test_of_two_classes_the_interval_is_that_of_the_likelier():
    rng = np.random.default_rng(0)
    scores = rng.uniform(size=400)
    rows = cb.Predictions.from_binary(scores, (rng.uniform(size=400) < scores**2).astype(int))
    calibrator = cb.posthoc.VennAbers().fit_predictions(rows)
    logits = np.asarray(rows.as_logits().scores)
    got = run(calibrator.to_onnx(kind="logits", dtype="float64"), logits=logits)
    low, high = calibrator.intervals(logits)
    first = got["label"] == 0
    assert 0 < first.sum() < 400
    np.testing.assert_allclose(got["low"], np.where(first, 1 - high, low), atol=1e-12)
    np.testing.assert_allclose(got["high"], np.where(first, 1 - low, high), atol=1e-12)
    np.testing.assert_allclose(
        got["probs"], calibrator.predict_proba(logits, kind="logits"), atol=1e-12
    )


@pytest.mark.parametrize("method", ["platt", "beta", "histogram", "platt+isotonic", "auto"])
def test_maps_of_one_event_leave_too(method):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    scores = rng.uniform(size=500)
    rows = cb.Predictions.from_binary(scores, (rng.uniform(size=500) < scores**2).astype(int))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        calibrator = make_calibrator(method).fit_predictions(rows)
    logits = np.asarray(rows.as_logits().scores, dtype=np.float64)
    wanted = calibrator.predict_proba(logits, kind="logits")
    got = run(calibrator.to_onnx(kind="logits", dtype="float64"), logits=logits)
    np.testing.assert_allclose(got["probs"], wanted, atol=1e-8)
    np.testing.assert_array_equal(got["label"], wanted.argmax(axis=1))
    np.testing.assert_allclose(
        calibrator.to_torch(kind="logits")(torch.tensor(logits)), wanted, atol=1e-12
    )


@pytest.mark.parametrize("method", ["temperature", "svs", "venn-abers"])
def test_probabilities_in_give_what_their_logarithms_give(fitted, method):
    probs = np.asarray(cb.predictions.softmax(LOGITS))
    probs[0] = np.eye(10, dtype=np.float32)[3]
    rows = cb.Predictions.from_probs(probs, None)
    model = fitted(method).to_onnx(kind="probs")
    assert [value.name for value in model.graph.input] == ["probs_in"]
    got = run(model, probs_in=probs)
    wanted = np.asarray(fitted(method).apply_predictions(rows).probs)
    np.testing.assert_allclose(got["probs"], wanted, atol=1e-6)


def test_a_graph_that_may_rule_out_masks_has_fewer_nodes(fitted):
    whole, bare = (fitted("svs").to_onnx(masks=masks) for masks in (True, False))
    assert len(bare.graph.node) < len(whole.graph.node)
    wanted = run(whole, logits=LOGITS)["probs"]
    np.testing.assert_allclose(run(bare, logits=LOGITS)["probs"], wanted, atol=1e-6)


def test_graphs_stay_small(fitted):
    assert len(fitted("temperature").to_onnx().graph.node) <= 9
    assert len(fitted("smart").to_onnx().graph.node) <= 50


def test_reference_rows_are_held_once_and_as_narrow_as_they_are(fitted):
    calibrator = fitted("dac")
    size = calibrator.to_onnx().ByteSize()
    assert size < calibrator.bank_.nbytes + 20_000


# --- behind a network


def network(outputs, path, opset=18, width=64, inner="scores", dtype=TensorProto.FLOAT):
    """Write a linear network from (N, 64) to outputs given as name: (width, batch)."""
    nodes, weights, values = [], [], []
    rng = np.random.default_rng(3)
    for name, (size, batch) in outputs.items():
        weight = rng.normal(size=(width, size)).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"{name}_weight"))
        nodes.append(helper.make_node("MatMul", ["images", f"{name}_weight"], [f"{name}_{inner}"]))
        nodes.append(helper.make_node("Cast", [f"{name}_{inner}"], [name], to=dtype))
        shape = None if size is None else [batch, size]
        values.append(helper.make_tensor_value_info(name, dtype, shape))
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["N", width])
    graph = helper.make_graph(nodes, "network", [images], values, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save_model(model, str(path))
    return str(path)


@pytest.mark.parametrize("opset", [13, 18, 21])
def test_network_and_calibrator_are_one_file(fitted, tmp_path, opset):
    alone = network({"logits": (10, "N")}, tmp_path / "network.onnx", opset)
    fitted("svs-top-rest").to_onnx(tmp_path / "both.onnx", behind=alone)
    got = run(str(tmp_path / "both.onnx"), images=FEATURES)
    logits = run(alone, images=FEATURES)["logits"]
    assert list(got) == ["probs", "label", "confidence", "logits"]
    np.testing.assert_array_equal(got["logits"], logits)
    wanted = fitted("svs-top-rest").predict_proba(logits)
    np.testing.assert_allclose(got["probs"], wanted, atol=1e-6)
    onnx.checker.check_model(str(tmp_path / "both.onnx"))


def test_a_method_with_features_finds_both_outputs(fitted, tmp_path):
    alone = network({"deep": (64, "N"), "logits": (10, "N")}, tmp_path / "network.onnx")
    before = run(alone, images=FEATURES)
    got = run(fitted("dac").to_onnx(behind=alone), images=FEATURES)
    wanted = fitted("dac").predict_proba(before["logits"], before["deep"])
    np.testing.assert_allclose(got["probs"], wanted, atol=1e-6)


def test_a_network_in_half_precision_is_widened_first(fitted, tmp_path):
    alone = network({"logits": (10, "N")}, tmp_path / "n.onnx", dtype=TensorProto.FLOAT16)
    logits = run(alone, images=FEATURES)["logits"]
    assert logits.dtype == np.float16
    got = run(fitted("smart").to_onnx(behind=alone), images=FEATURES)
    assert got["probs"].dtype == np.float32
    np.testing.assert_allclose(got["probs"], fitted("smart").predict_proba(logits), atol=1e-6)


def test_names_that_both_use_do_not_meet(fitted, tmp_path):
    first = network({"probs": (10, "N"), "label": (3, "N")}, tmp_path / "network.onnx")
    model = fitted("temperature").to_onnx(tmp_path / "once.onnx", behind=first)
    got = run(model, images=FEATURES)
    assert list(got) == ["probs", "label", "confidence", "network/probs", "network/label"]
    # Even a file that was joined once can be joined again: the first one's names make room.
    twice = run(
        fitted("vector").to_onnx(behind=tmp_path / "once.onnx", output="network/probs"),
        images=FEATURES,
    )
    wanted = fitted("vector").predict_proba(run(first, images=FEATURES)["probs"])
    np.testing.assert_allclose(twice["probs"], wanted, atol=1e-6)


def test_an_output_of_the_network_can_be_named(fitted, tmp_path):
    alone = network({"first": (10, "N"), "second": (10, "N")}, tmp_path / "network.onnx")
    with pytest.raises(InputError, match=r"2 outputs are .*'first' \(N, 10\).*name .* by --output"):
        fitted("none").to_onnx(behind=alone)
    got = run(fitted("none").to_onnx(behind=alone, output="second"), images=FEATURES)
    np.testing.assert_allclose(got["probs"], cb.predictions.softmax(got["second"]), atol=1e-6)
    with pytest.raises(InputError, match="has no output 'third'"):
        fitted("none").to_onnx(behind=alone, output="third")


def ending_in(kinds, path, *, opset=18, typed=True, classes=10):
    """Write a linear network whose logits go through nodes of these kinds."""
    weight = np.random.default_rng(3).normal(size=(64, classes)).astype(np.float32)
    names = ["logits", *(f"{kind}_{i}" for i, kind in enumerate(kinds))]
    nodes = [helper.make_node("MatMul", ["images", "weight"], ["logits"])]
    for kind, before, after in zip(kinds, names, names[1:], strict=False):
        more = {"to": TensorProto.FLOAT} if kind == "Cast" else {}
        inputs = [before, "sizes"] if kind == "Reshape" else [before]
        nodes.append(helper.make_node(kind, inputs, [after], **more))
    shape = ["N", classes] if typed else None
    constants = [numpy_helper.from_array(weight, "weight")]
    constants.append(numpy_helper.from_array(np.array([-1, classes]), "sizes"))
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["N", 64])],
        [helper.make_tensor_value_info(names[-1], TensorProto.FLOAT, shape)],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save_model(model, str(path))
    return str(path)


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize("ends", [["Softmax"], ["Softmax", "Identity"], ["LogSoftmax"]])
def test_behind_a_softmax_the_logits_are_read(fitted, tmp_path, ends, opset):
    alone = ending_in(ends, tmp_path / "network.onnx", opset=opset)
    logits = run(ending_in([], tmp_path / "bare.onnx"), images=FEATURES)["logits"]
    for method in ("temperature", "smart", "svs-top-rest", "vector"):
        got = run(fitted(method).to_onnx(behind=alone), images=FEATURES)
        wanted = fitted(method).predict_proba(logits)
        np.testing.assert_allclose(got["probs"], wanted, atol=1e-5)


def test_a_map_of_probabilities_reads_what_a_softmax_gives(fitted, tmp_path):
    alone = ending_in(["Softmax"], tmp_path / "network.onnx")
    probs = run(alone, images=FEATURES)["Softmax_0"]
    got = run(fitted("temperature").to_onnx(behind=alone, kind="probs"), images=FEATURES)
    wanted = fitted("temperature").predict_proba(np.log(probs))
    np.testing.assert_allclose(got["probs"], wanted, atol=1e-5)


# --- what is refused, and leaves no file


def refused(folder, *given, **more):
    """Return the sentence with which an export is refused; there is no file afterwards."""
    calibrator, *rest = given
    before = sorted(folder.iterdir())
    with pytest.raises((InputError, NotFittedError)) as caught:
        calibrator.to_onnx(folder / "out.onnx", *rest, **more)
    assert sorted(folder.iterdir()) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_bad_networks_are_refused_with_a_sentence_and_leave_no_file(fitted, tmp_path):
    scaling = fitted("temperature")
    other = network({"logits": (7, "N")}, tmp_path / "seven.onnx")
    assert "floats of shape (N, 10), and the calibrator was fitted for 10 classes" in refused(
        tmp_path, scaling, behind=other
    )
    assert "'logits' (N, 7)" in refused(tmp_path, scaling, behind=other, output="logits")
    labels = network({"label": (10, "N")}, tmp_path / "labels.onnx", dtype=TensorProto.INT64)
    assert "'label' int64 (N, 10)" in refused(tmp_path, scaling, behind=labels)
    no_features = network({"logits": (10, "N")}, tmp_path / "plain.onnx")
    assert "the calibrator was fitted for 64 features" in refused(
        tmp_path, fitted("dac"), behind=no_features
    )
    (tmp_path / "foreign.onnx").write_bytes(b"no network at all")
    assert "is not a readable ONNX file" in refused(
        tmp_path, scaling, behind=tmp_path / "foreign.onnx"
    )
    assert "there is no such file" in refused(tmp_path, scaling, behind=tmp_path / "none.onnx")


def fitted_to_an_event(kind, method="platt"):
    scores = np.random.default_rng(0).uniform(0.05, 0.95, 200)
    events = (np.random.default_rng(1).random(200) < scores**1.5) * 1
    scores = np.log(scores / (1 - scores)) if kind == "logits" else scores
    form = "logit" if kind == "logits" else "prob"
    rows = cb.Predictions.from_binary(scores, events, kind=form)
    return cb.make_calibrator(method).fit_predictions(rows)


@pytest.mark.parametrize("method", ["platt", "isotonic", "temperature"])
@pytest.mark.parametrize("ends", [[], ["Sigmoid"], ["Sigmoid", "Identity"], ["Identity"]])
@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_a_network_of_one_column_gives_an_event(kind, ends, method, tmp_path):
    fitted, one = fitted_to_an_event(kind, method), tmp_path / "one.onnx"
    ending_in(ends, one, classes=1)
    if kind == "probs" and "Sigmoid" not in ends:
        assert "torch.cat([1 - p, p], 1)" in refused(tmp_path, fitted, behind=one, kind=kind)
        return
    images = np.random.default_rng(2).normal(size=(50, 64)).astype(np.float32) / 8
    weight = np.random.default_rng(3).normal(size=(64, 1)).astype(np.float32)
    odds = (images @ weight).ravel()
    given = odds if kind == "logits" else 1 / (1 + np.exp(-odds))
    fitted.to_onnx(tmp_path / "both.onnx", behind=one, kind=kind)
    onnx.checker.check_model(str(tmp_path / "both.onnx"))
    got = run(str(tmp_path / "both.onnx"), images=images)
    wanted = fitted.predict_proba(given.astype(np.float64))
    np.testing.assert_allclose(got["probs"], wanted, atol=2e-5)
    assert got["probs"].shape == (50, 2)
    assert 0.1 < got["label"].mean() < 0.9


def test_what_a_network_ends_in_is_refused_where_the_map_reads_something_else(fitted, tmp_path):
    scaling, path = fitted("temperature"), tmp_path / "network.onnx"
    for ends, kind, reason in (
        (["Sigmoid"], "logits", "ends in Sigmoid and holds a probability for each class by itself"),
        (["Sigmoid"], "probs", "ends in Sigmoid"),
        (["LogSoftmax"], "probs", "ends in LogSoftmax .* kind 'logits'"),
        (["Softmax", "Reshape"], "logits", "ends in Softmax .* give kind 'probs'"),
        ([], "probs", "are no probabilities .* give kind 'logits'"),
        # No node says so, the numbers do.
        (["Softmax", "Relu"], "logits", "probabilities that sum to 1.* give kind 'probs'"),
    ):
        alone = ending_in(ends, path)
        assert re.search(reason, refused(tmp_path, scaling, behind=alone, kind=kind)), ends


def test_damaged_networks_are_refused_with_a_sentence(fitted, tmp_path):
    scaling = fitted("temperature")
    whole = onnx.load(network({"logits": (10, "N")}, tmp_path / "network.onnx"))
    whole.graph.output[0].type.tensor_type.elem_type = 99
    onnx.save_model(whole, str(tmp_path / "network.onnx"))
    assert "is of a type that ONNX doesn't have (99)" in refused(
        tmp_path, scaling, behind=tmp_path / "network.onnx"
    )
    content = Path(ending_in(["Softmax"], tmp_path / "network.onnx")).read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(150):
        bad = bytearray(content)
        # The weights are most of the file; the rest of it is where damage is a matter of shape.
        for place in rng.integers(len(bad) - 200, len(bad), 2).tolist():
            bad[place] = int(rng.integers(256))
        (tmp_path / "network.onnx").write_bytes(bad)
        with contextlib.suppress(CalibrantError):
            scaling.to_onnx(behind=tmp_path / "network.onnx")


def test_bad_options_are_refused_with_a_sentence_and_leave_no_file(fitted, tmp_path):
    scaling = fitted("temperature")
    assert "has not been fitted" in refused(tmp_path, cb.TemperatureScaling())
    assert "kind must be one of logits, probs" in refused(tmp_path, scaling, kind="scores")
    assert "dtype must be one of float32, float64" in refused(tmp_path, scaling, dtype="int8")
    assert "level must lie between 0 and 1" in refused(tmp_path, scaling, level=1.5)
    with pytest.raises(InputError, match=r"an ONNX file is saved as \.onnx"):
        scaling.to_onnx(tmp_path / "scaling.bin")
    with pytest.raises(InputError, match=r"the folder .* doesn't exist"):
        scaling.to_onnx(tmp_path / "nowhere" / "scaling.onnx")


def test_too_many_neighbours_are_refused_by_name(fitted, tmp_path, monkeypatch):
    monkeypatch.setattr(exportable, "MOST_BYTES", 1 << 16)
    said = refused(tmp_path, fitted("dac"))
    assert said.startswith("method 'dac' can't be exported: what it learnt takes")
    assert "'bank_' of shape (500, 64)" in said
    assert "fewer reference rows" in said
    fitted("temperature").to_onnx()


def test_a_map_that_no_graph_can_do_is_refused_by_name(tmp_path, monkeypatch):
    class Branching(cb.TemperatureScaling):
        method = "branching"

        def transform(self, xp, logits, features, learnt, *, masks=True):
            assert xp is array_api
            if xp.max(logits, axis=1)[0] > 0:
                return logits
            return super().transform(xp, logits, features, learnt, masks=masks)

    class Erring(cb.TemperatureScaling):
        method = "erring"

        def transform(self, xp, logits, features, learnt, *, masks=True):
            return xp.erf(logits)

    class Methodical(cb.TemperatureScaling):
        method = "methodical"

        def transform(self, xp, logits, features, learnt, *, masks=True):
            return logits.mean(axis=1)

    class Numeric(cb.TemperatureScaling):
        method = "numeric"

        def transform(self, xp, logits, features, learnt, *, masks=True):
            return np.exp(logits)

    for kind, reason in (
        (Branching, "a branch on a value"),
        (Erring, "the function 'erf'"),
        (Methodical, "the attribute 'mean' of an array"),
        (Numeric, "what only NumPy can do ("),
    ):
        said = refused(tmp_path, kind().fit_predictions(VALIDATION))
        wanted = f"method '{kind.method}' can't be exported to ONNX: its map uses {reason}"
        assert said.startswith(wanted)
    assert issubclass(NotApplicableError, InputError)


def test_without_the_package_onnx_the_message_says_what_to_install(fitted, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'calibrant\[onnx\]'"):
        fitted("temperature").to_onnx()


# --- the command line


@pytest.fixture
def cli(monkeypatch, capsys):
    def call(*arguments):
        words = [*map(str, arguments)]
        command = [] if words[0] in ("export", "inspect") else ["export"]
        monkeypatch.setattr(sys, "argv", ["calibrant", *command, *words])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        return code, *capsys.readouterr()

    return call


def test_the_command_line_exports_alone_and_behind_a_network(fitted, tmp_path, cli):
    saved, out = tmp_path / "top.safetensors", tmp_path / "top.onnx"
    fitted("top-rest").save(saved)
    code, said, _ = cli(saved, "--to", "onnx", "--out", out)
    assert code == 0
    assert "outputs: probs, label, confidence, low, high" in said
    wanted = fitted("top-rest").predict_proba(LOGITS)
    np.testing.assert_allclose(run(str(out), logits=LOGITS)["probs"], wanted, atol=1e-6)
    alone = network({"logits": (10, "N")}, tmp_path / "network.onnx")
    code, said, _ = cli(saved, "--out", out, "--behind", alone, "--json", "-")
    document = json.loads(said)
    assert (code, document["inputs"], document["behind"]) == (0, ["images"], alone)
    assert document["bytes"] == out.stat().st_size


def test_export_and_inspect_say_the_shapes_and_the_order_of_classes(tmp_path, cli):
    rows = cb.Predictions.from_binary([0.9, 0.2, 0.6], ["ok", "bad", "ok"], positive="bad")
    cb.posthoc.PlattScaling().fit_predictions(rows).save(tmp_path / "c.safetensors")
    graph = tmp_path / "c.onnx"
    lines = [
        "inputs: probs_in; outputs: probs, label, confidence",
        "shapes: probs_in [rows, 2], probs [rows, 2], label [rows], confidence [rows]",
        "one score a row goes in as [1 - p, p]",
        "classes in order: ok, bad (positive)",
    ]
    for words in (("export", tmp_path / "c.safetensors", "--out", graph), ("inspect", graph)):
        code, out, _ = cli(*words)
        assert (code, out.splitlines()[1:]) == (0, lines)
    graph.write_bytes(b"no graph")
    assert cli("inspect", graph)[0] == 2


def test_the_command_line_exports_to_torch(fitted, tmp_path, cli):
    torch = pytest.importorskip("torch")
    saved, out = tmp_path / "smart.safetensors", tmp_path / "smart.pt2"
    fitted("smart").save(saved)
    code, said, _ = cli(saved, "--to", "torch", "--out", out)
    assert (code, said) == (0, f"smart written to {out}, for torch.export.load\n")
    probs = torch.export.load(out).module()(torch.tensor(LOGITS))
    np.testing.assert_allclose(probs, fitted("smart").predict_proba(LOGITS), atol=1e-6)


def test_the_command_line_refuses_with_one_sentence(fitted, tmp_path, cli):
    saved = tmp_path / "smart.safetensors"
    fitted("smart").save(saved)
    foreign = tmp_path / "foreign.safetensors"
    foreign.write_bytes(b"not safetensors")
    for arguments, reason in (
        ((foreign, "--out", tmp_path / "x.onnx"), "is not a readable safetensors file"),
        ((saved, "--to", "tflite", "--out", tmp_path / "x.onnx"), "--to takes onnx or torch"),
        ((saved, "--out", tmp_path / "x.pt2"), "an ONNX file is saved as .onnx"),
        ((saved, "--to", "torch", "--kind", "odds", "--out", tmp_path / "x.pt2"), "kind must be"),
        ((saved, "--to", "torch", "--level", ".9", "--out", tmp_path / "x.pt2"), "--level is for"),
        ((saved, "--to", "torch", "--output", "z", "--out", tmp_path / "x.pt2"), "--output is for"),
        ((saved, "--output", "z", "--out", tmp_path / "x.onnx"), "output 'z' is an output of"),
        ((saved, "--out", saved), "is read by this command"),
    ):
        code, out, err = cli(*arguments)
        assert (code, out) == (2, "")
        assert reason in err
        assert len(err.strip().splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [foreign.name, saved.name]
