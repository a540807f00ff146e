"""Second stages as a whole: what they do, both ways in, saving, and the choice of kappa."""

from __future__ import annotations

import itertools
import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
from memorised_features import memorised_features

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import calibrant  # noqa: E402
from calibrant.core.errors import (  # noqa: E402
    CalibrationWarning,
    CalibratorFileError,
    InputError,
    NotFittedError,
)
from calibrant.evaluation.evaluate import evaluate  # noqa: E402
from calibrant.posthoc.temperature.scaling import TemperatureScaling  # noqa: E402
from calibrant.predictions.predictions import Predictions  # noqa: E402
from calibrant.training.second_stages import (  # noqa: E402
    ABLATION,
    PAPER,
    SECOND_STAGES,
    SHARES,
    BalCAL,
    FeatureRows,
    HeadRetraining,
    MaCCal,
    SeededShuffle,
    beside_temperature,
    find_head,
    load_head,
    make_second_stage,
    replace_head,
)
from calibrant.training.second_stages.maccal import Candidate, KappaPoint, accuracy_lost, choose  # noqa: E402
from calibrant.training.second_stages.measured import logits_of, measure_logits  # noqa: E402
from calibrant.training.second_stages.sources import FeatureScaling  # noqa: E402

FEW = {"epochs": 3, "seed": 1}
# After three epochs a head of two layers is far behind a linear one, which MaC-Cal warns of.
short = pytest.mark.filterwarnings(
    "ignore:no kappa keeps:calibrant.core.errors.CalibrationWarning",
    "ignore:kappa .* loses:calibrant.core.errors.CalibrationWarning",
)


@pytest.fixture(scope="module")
def rows():
    return memorised_features(600, 500, 5, 12, seed=3)


@pytest.fixture(scope="module")
def memorised():
    """Rows of a network with nearly all right in training and 82 % on others."""
    return memorised_features(4000, 4000, spread=6.0, pull=3.0, seed=0)


def measure_head(head: nn.Module, held: FeatureRows):
    return measure_logits(logits_of(head, held), held)[0]


def quick(method: str, **more):
    extra = {"kappa": 0.9, "hidden": 16, "bottleneck": True} if method == "maccal" else {}
    return make_second_stage(method, **(FEW | extra | more))


def probabilities(stage, rows):
    return stage.predict_proba(rows[2].features)


def network_of(width: int, classes: int) -> nn.Sequential:
    """Return a net with batch norm and dropout whose last layer is the head."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(width, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, classes)
    )


# --- what MaC-Cal is for -----------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:kappa .* backed off:calibrant.core.errors.CalibrationWarning")
def test_maccal_halves_the_error_of_the_same_head_without_masks(memorised):
    train, val, test = memorised
    held = FeatureRows.checked(*test, 10)
    settings = {"epochs": 20, "batch_size": 64, "hidden": 64, "bottleneck": True}
    unmasked = MaCCal(kappa=1.0, initial_retention=1.0, **settings).fit(*train)
    before = measure_head(unmasked.head_, held)
    stage = MaCCal(kappas=(1.0, 0.95, 0.9, 0.85, 0.8, 0.7), **settings).fit(*train, val)
    after = measure_head(stage.head_, held)
    assert unmasked.history_[-1].accuracy > 0.99
    assert before.confidence - before.accuracy > 0.1
    assert after.ece < before.ece / 2
    assert after.accuracy > before.accuracy - 0.01
    assert [point.kappa for point in stage.kappa_curve_] == list(stage.kappas)
    confidences = [point.confidence for point in stage.kappa_curve_]
    # Near 1 hardly a connection is ever masked, and neighbours differ by luck.
    assert max(np.diff(confidences)) < 0.001
    assert confidences[0] - confidences[-1] > 0.1


def test_default_head_keeps_the_accuracy_and_leaves_a_quarter_of_the_error(memorised):
    train, val, test = memorised
    held = FeatureRows.checked(*test, 10)
    old = HeadRetraining(epochs=20, batch_size=64, learning_rate=0.05, seed=100).fit(*train)
    before = measure_head(old.head_, held)
    reference = old.logits(val.features)
    found = [
        measure_head(
            MaCCal(epochs=20, batch_size=64, seed=seed)
            .fit(*train, val, reference_logits=reference)
            .head_,
            held,
        )
        for seed in range(2)
    ]
    assert before.ece > 0.06
    assert np.mean([after.ece for after in found]) < before.ece / 4
    assert np.mean([after.accuracy for after in found]) > before.accuracy - 0.01


def test_history_obeys_the_rule_for_retention(memorised):
    stage = MaCCal(kappa=0.8, hidden=32, bottleneck=True, epochs=12, batch_size=64).fit(
        *memorised[0]
    )
    history = stage.history_
    assert [record.epoch for record in history] == list(range(1, 13))
    assert history[0].retention == 0.9
    for epoch, (now, then) in enumerate(itertools.pairwise(history)):
        bound = 0.1 * 0.1 ** (epoch / 12)
        step = np.clip(0.8 * now.accuracy - now.confidence, -bound, bound)
        assert then.retention == pytest.approx(np.clip(now.retention + step, 0.1, 1), abs=1e-12)


def test_feedback_at_the_end_of_an_epoch_measures_the_last_weights(rows):
    stage = MaCCal(kappa=1.0, hidden=16, epochs=1, feedback="epoch_end").fit(*rows[0])
    probs = stage.predict_proba(rows[0].features)
    right = probs.argmax(axis=1) == rows[0].labels
    assert stage.history_[0].accuracy == pytest.approx(right.mean(), abs=1e-9)
    assert stage.history_[0].confidence == pytest.approx(probs.max(axis=1).mean(), abs=1e-6)


def test_maccal_without_masks_or_bottleneck_is_plain_retraining(rows):
    control = quick("retrain", learning_rate=MaCCal.learning_rate).fit(*rows[0])
    same = quick("maccal", kappa=1.0, bottleneck=False, initial_retention=1.0, adaptation="none")
    same.fit(*rows[0])
    np.testing.assert_array_equal(probabilities(control, rows), probabilities(same, rows))


def test_ablation_switches_one_thing_at_a_time():
    stages = [MaCCal(**settings) for settings in ABLATION.values()]
    parts = ("restrict_gradient", "bottleneck", "adaptation")
    for one, other in itertools.pairwise(stages):
        assert sum(getattr(one, part) != getattr(other, part) for part in parts) == 1
    assert stages[-1].get_params() == MaCCal(bottleneck=True).get_params()
    assert not MaCCal().bottleneck


def test_head_of_the_paper_has_two_layers_and_its_rate(rows):
    stage = MaCCal(**PAPER | {"epochs": 1}, kappa=0.95).fit(*rows[0])
    assert [type(layer).__name__ for layer in stage.head_] == ["Linear", "ReLU", "Linear"]
    assert stage.learning_rate == 0.1


# --- kappa -------------------------------------------------------------------------------------


def point(accuracy: float, confidence: float, loss: float, error: float = 0.0) -> dict[str, float]:
    held = {"accuracy": accuracy, "confidence": confidence, "ece": 0.1, "nll": 1.0}
    return held | {"loss": loss, "loss_error": error}


def points(*values: dict[str, float]) -> list[KappaPoint]:
    return [
        KappaPoint(kappa=1 - place / 10, retention=0.5, **value)
        for place, value in enumerate(values)
    ]


FAR = Candidate(**point(0.8, 0.95, 0.0))


def test_kappa_of_the_nearest_confidence_that_keeps_accuracy():
    candidates = points(
        point(0.8, 0.9, 0), point(0.799, 0.85, 0.001), point(0.797, 0.78, 0.003), point(0.8, 0.7, 0)
    )
    free = choose(candidates, FAR, 0.005)
    assert (free.index, free.note) == (2, None)
    guarded = choose(
        points(point(0.8, 0.9, 0), point(0.799, 0.85, 0.001), point(0.7, 0.7, 0.1)), FAR, 0.005
    )
    assert guarded.index == 1
    assert "loses 10.00 ± 0.00 points" in str(guarded.note)
    assert "backed off to 0.9" in str(guarded.note)
    none = choose(points(point(0.75, 0.8, 0.05), point(0.76, 0.78, 0.04)), FAR, 0.005)
    assert none.index is None
    assert "no kappa keeps" in str(none.note)


def test_plain_head_is_chosen_where_its_confidence_is_nearest():
    candidates = points(point(0.8, 0.85, 0.0), point(0.79, 0.7, 0.0))
    near = Candidate(**point(0.8, 0.81, 0.0))
    assert choose(candidates, near, 0.005).index is None
    assert choose(candidates, near, 0.005).note is None
    # Not if it loses accuracy and another doesn't.
    assert choose(candidates, Candidate(**point(0.8, 0.81, 0.1)), 0.005).index == 0
    # Where none keeps accuracy, it is told what the plain head loses, however near it is.
    lost = choose(points(point(0.7, 0.8, 0.1)), Candidate(**point(0.6, 0.61, 0.2)), 0.005)
    assert lost.index is None
    assert "no kappa keeps" in str(lost.note)
    assert "loses 20.00" in str(lost.note)
    # The nearest kappa is ruled out, and of what is left the plain head is nearest.
    ruled_out = choose(points(point(0.8, 0.85, 0.0), point(0.7, 0.701, 0.1)), near, 0.005)
    assert ruled_out.index is None
    assert "backed off to plain retraining" in str(ruled_out.note)


def test_a_loss_that_the_rows_cannot_tell_from_the_tolerance_is_no_loss():
    # 2000 rows know an accuracy to about half a point; that mustn't rule out what calibrates.
    assert Candidate(**point(0.8, 0.8, 0.008, 0.004)).keeps(0.005)
    assert not Candidate(**point(0.8, 0.8, 0.010, 0.004)).keeps(0.005)
    assert not Candidate(**point(0.8, 0.8, 0.006, 0.0)).keeps(0.005)
    near, far = point(0.792, 0.793, 0.008, 0.004), point(0.8, 0.85, 0.0)
    assert choose(points(far, near), FAR, 0.005).index == 1


def test_loss_of_accuracy_is_paired_row_by_row():
    before = np.array([True] * 90 + [False] * 10)
    after = before.copy()
    after[:4] = False
    after[95] = True
    loss, error = accuracy_lost(before, after)
    assert loss == pytest.approx(0.03)
    lost = np.array([1.0] * 4 + [0.0] * 91 + [-1.0] + [0.0] * 4)
    assert error == pytest.approx(lost.std() / 10)
    assert accuracy_lost(before, before) == (0.0, 0.0)


def test_candidates_are_measured_against_the_rows_of_the_networks_own_head(rows):
    train, val, _ = rows
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(len(val.labels), 5))
    logits[np.arange(400), val.labels[:400]] += 20  # right on the first 400 rows
    stage = MaCCal(tolerance=1.0, **FEW).fit(*train, val, reference_logits=logits)
    right = logits.argmax(axis=1) == val.labels
    found = stage.predict_proba(val.features).argmax(axis=1) == val.labels
    chosen = stage.plain_
    if not stage.plain_chosen_:
        (chosen,) = [p for p in stage.kappa_curve_ if p.kappa == stage.kappa_]
    lost = right.astype(float) - found
    assert chosen.loss == pytest.approx(lost.mean())
    assert chosen.loss_error == pytest.approx(lost.std() / len(lost) ** 0.5)
    assert chosen.accuracy == pytest.approx(found.mean())


@pytest.mark.parametrize("bottleneck", [False, True])
def test_candidates_are_shares_of_the_kappa_that_takes_no_connection_away(bottleneck, memorised):
    train, val, _ = memorised
    settings = {"epochs": 6, "batch_size": 64, "bottleneck": bottleneck, "hidden": 64}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        stage = MaCCal(tolerance=1.0, **settings).fit(*train, val)
    unmasked = MaCCal(kappa=1.0, initial_retention=1.0, adaptation="none", **settings).fit(*train)
    last = unmasked.history_[-1]
    expected = [share * last.confidence / last.accuracy for share in SHARES]
    assert [p.kappa for p in stage.kappa_curve_] == pytest.approx(expected, rel=1e-3)
    assert [p.share for p in stage.kappa_curve_] == list(SHARES)
    assert stage.kappa_curve_[0].retention > 0.9 > stage.kappa_curve_[-1].retention
    # No two of them are one head.
    assert len({p.nll for p in stage.kappa_curve_}) == len(SHARES)


def test_where_no_kappa_keeps_the_accuracy_the_plain_head_is_kept(rows):
    train, val, _ = rows
    two = {"bottleneck": True, "hidden": 2, "epochs": 6}
    with pytest.warns(CalibrationWarning, match="backed off to plain retraining"):
        stage = MaCCal(kappas=(0.5, 0.4), **two).fit(*train, val)
    control = HeadRetraining(epochs=6, learning_rate=stage.learning_rate).fit(*train)
    np.testing.assert_array_equal(probabilities(stage, rows), probabilities(control, rows))
    assert stage.kappa_ == 1.0
    assert stage.plain_chosen_
    assert {record.retention for record in stage.history_} == {1.0}
    assert max(p.accuracy for p in stage.kappa_curve_) < stage.plain_.accuracy - stage.tolerance
    with pytest.warns(CalibrationWarning, match="kappa 0.5 loses"):
        given = MaCCal(kappa=0.5, **two).fit(*train, val)
    assert given.kappa_ == 0.5
    assert len(given.head_) == 3  # its own head all the same


def test_collapse_is_said():
    train, _, _ = memorised_features(1000, 10, seed=1)
    stage = MaCCal(
        kappa=0.2, hidden=16, bottleneck=True, epochs=25, learning_rate=1.0, batch_size=32
    )
    with pytest.warns(CalibrationWarning, match="collapsed"):
        stage.fit(*train)
    assert any("raise kappa" in note for note in stage.notes_)


@short
def test_without_held_out_rows_some_are_split_off_and_that_is_said(rows):
    with pytest.warns(CalibrationWarning, match="60 rows held out"):
        stage = MaCCal(bottleneck=True, hidden=8, kappas=(1.0, 0.9), **FEW).fit(*rows[0])
    assert len(stage.kappa_curve_) == 2


# --- scale, determinism, kinds -----------------------------------------------------------------


@short
@pytest.mark.parametrize("method", SECOND_STAGES)
def test_scale_and_offset_of_the_features_do_not_matter(method, rows):
    train, val, test = rows
    plain = quick(method).fit(train.features, train.labels, tuple(val))

    def moved(features):
        return 1000 * features + 30

    other = quick(method).fit(
        moved(train.features), train.labels, (moved(val.features), val.labels)
    )
    expected = plain.predict_proba(test.features)
    np.testing.assert_allclose(other.predict_proba(moved(test.features)), expected, atol=1e-6)
    assert expected.std(axis=0).max() > 0.01  # it did learn


def test_unscaled_features_do_matter_if_so_asked(rows):
    train, _, test = rows
    one = quick("retrain", standardise=False).fit(*train)
    two = quick("retrain", standardise=False).fit(3 * train.features, train.labels)
    apart = one.predict_proba(test.features) - two.predict_proba(3 * test.features)
    assert np.abs(apart).max() > 0.01


def test_scaling_gives_centred_rows_of_the_length_asked_for_and_folds():
    rng = np.random.default_rng(0)
    features = torch.from_numpy(rng.normal(size=(500, 6)) * 4 + 1e4)
    source = FeatureRows(features, torch.zeros(500, dtype=torch.int64), 2)
    scaling = FeatureScaling.of(source).longer(0.5)
    scaled = scaling.apply(features)
    assert torch.allclose(scaled.mean(0), torch.zeros(6).double(), atol=1e-9)
    assert float(scaled.square().sum(1).mean()) == pytest.approx(0.25)
    layer = nn.Linear(6, 3).double()
    expected = layer(scaled)
    scaling.fold_into(layer)
    torch.testing.assert_close(layer(features), expected)


@pytest.mark.parametrize("method", SECOND_STAGES)
def test_same_seed_same_head_and_prediction_is_deterministic(method, rows):
    one, two = (quick(method).fit(*rows[0]) for _ in range(2))
    np.testing.assert_array_equal(probabilities(one, rows), probabilities(two, rows))
    np.testing.assert_array_equal(probabilities(one, rows), probabilities(one, rows))
    other = quick(method, seed=2).fit(*rows[0])
    assert not np.array_equal(probabilities(one, rows), probabilities(other, rows))
    torch_state = torch.get_rng_state()
    quick(method).fit(*rows[0])
    assert torch.equal(torch_state, torch.get_rng_state())


@pytest.mark.parametrize("method", SECOND_STAGES)
def test_probabilities_come_back_as_the_kind_that_went_in(method, rows):
    stage = quick(method).fit(rows[0].features.astype(np.float32), rows[0].labels)
    probs = probabilities(stage, rows)
    assert isinstance(probs, np.ndarray)
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-5)
    tensor = stage.predict_proba(torch.from_numpy(rows[2].features))
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_allclose(tensor.numpy(), probs, atol=1e-6)


# --- saving ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", SECOND_STAGES)
def test_every_fit_says_what_one_temperature_would_have_done(method, rows):
    train, val, _ = rows
    old = quick("retrain", seed=7, epochs=8).fit(*train).logits(val.features)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        stage = quick(method).fit(*train, val, reference_logits=old)
    found = stage.beside_temperature_
    scaling = TemperatureScaling().fit(old, val.labels)
    assert found.temperature == pytest.approx(scaling.temperature_)
    scaled = evaluate(scaling.predict_proba(old), val.labels, resamples=20)
    new = evaluate(stage.predict_proba(val.features), val.labels, resamples=20)
    for name in ("accuracy", "ece", "nll"):
        assert found.scaled[name].value == pytest.approx(scaled[name].value)
        apart = new[name].value - scaled[name].value
        assert found.differences[name].value == pytest.approx(apart, abs=1e-6)
    assert f"network's head (T = {found.temperature:.3g}" in str(found)
    assert quick("retrain").fit(*train, val).beside_temperature_ is None


def test_better_and_worse_are_said_where_the_paired_interval_says_so(rows):
    labels = rows[1].labels
    rng = np.random.default_rng(0)
    good = rng.normal(size=(500, 5)) + 3 * np.eye(5)[labels]
    bad = rng.normal(size=(500, 5)) + np.eye(5)[labels]
    old, new = (Predictions.from_logits(logits, labels) for logits in (bad, good))
    assert beside_temperature(old, old, new).better[-1] == "NLL"
    assert "The new head is better in accuracy" in str(beside_temperature(old, old, new))
    assert beside_temperature(new, new, old).worse[-1] == "NLL"
    same = beside_temperature(new, new, Predictions.from_logits(
        good / TemperatureScaling().fit(good, labels).temperature_, labels
    ))  # fmt: skip
    assert same.better == same.worse == []
    assert "can't be told apart" in str(same)


@pytest.mark.parametrize("method", SECOND_STAGES)
def test_saved_head_is_a_module_that_gives_the_same_logits(method, rows, tmp_path):
    path = tmp_path / "head.safetensors"
    stage = quick(method).fit(*rows[0])
    stage.save(path)
    module = load_head(path)
    assert isinstance(module, nn.Module)
    assert not module.training
    given = torch.from_numpy(rows[2].features)
    with torch.no_grad():
        torch.testing.assert_close(module(given), stage.head_(given), atol=0, rtol=0)


def test_files_that_are_no_heads_are_refused(rows, tmp_path):
    from safetensors.torch import load_file, save_file

    path = tmp_path / "head.safetensors"
    with pytest.raises(NotFittedError):
        MaCCal().save(path)
    stage = quick("maccal").fit(*rows[0])
    with pytest.raises(InputError, match=r"saved as \.safetensors"):
        stage.save(tmp_path / "head.pkl")
    with pytest.raises(CalibratorFileError, match="no such file"):
        load_head(tmp_path / "none.safetensors")
    stage.save(path)
    state = load_file(path)
    header = {"format": "calibrant-head", "format_version": "1", "dtype": "float64"}

    def refused(match: str, architecture: object, tensors=state, **more: str) -> None:
        bad = tmp_path / "bad.safetensors"
        save_file(tensors, bad, header | {"architecture": json.dumps(architecture)} | more)
        with pytest.raises(CalibratorFileError, match=match):
            load_head(bad)

    good = [["linear", 12, 16], ["relu"], ["linear", 16, 5]]
    refused("doesn't fit", [["linear", 12, 5]])
    refused("doesn't fit", [["os.system", 12, 5]])
    refused("sizes", [["linear", 1 << 20, 1 << 20]])
    refused("sizes", [["balanced", 200, 1, 1]])
    refused("601 layers", [["linear", 12, 16]] * 601)
    refused("ask for 832 numbers", [["linear", 12, 16]] * 4)
    refused("no finite logits", good, {name: 1e300 * value for name, value in state.items()},
            dtype="float32")  # fmt: skip
    refused("version '2'", good, format_version="2")
    refused("not a head", good, format="calibrant")
    broken = {name: value * np.nan for name, value in state.items()}
    refused("NaN or infinity", good, tensors=broken)
    path.write_bytes(b"nothing")
    with pytest.raises(CalibratorFileError, match="not a readable"):
        load_head(path)


def test_no_header_reserves_memory_for_more_than_the_file_holds(monkeypatch, rows):
    from calibrant.training.second_stages import heads

    made = []
    for name, kind in list(heads.KINDS.items()):
        recorded = lambda *sizes, kind=kind: made.append(sizes) or kind.make(*sizes)  # noqa: E731
        monkeypatch.setitem(heads.KINDS, name, replace(kind, make=recorded))
    for layers in ([["linear", 100, 100]] * 2, [["relu"]] * 17, [["variational", 100, 20, 3, 10]]):
        with pytest.raises(ValueError, match=r"sizes of the layers|17 layers"):
            heads.build(layers, 10_100)
    assert not made
    for method in SECOND_STAGES:  # a head asks for just what its file holds
        stage = quick(method).fit(*rows[0])
        elements = sum(value.numel() for value in stage.head_.state_dict().values())
        heads.build(heads.describe(stage.head_), elements)
        with pytest.raises(ValueError, match="sizes of the layers"):
            heads.build(heads.describe(stage.head_), elements - 1)


def test_layers_that_do_not_fit_one_another_are_refused(tmp_path):
    from safetensors.torch import save_file

    layers = nn.Sequential(nn.Linear(3, 4), nn.Linear(5, 2))
    header = {"format": "calibrant-head", "format_version": "1", "dtype": "float32"}
    header["architecture"] = json.dumps([["linear", 3, 4], ["linear", 5, 2]])
    save_file(layers.state_dict(), tmp_path / "bad.safetensors", header)
    with pytest.raises(CalibratorFileError, match="the header doesn't fit the parameters"):
        load_head(tmp_path / "bad.safetensors")


# --- through the network -----------------------------------------------------------------------


@short
@pytest.mark.parametrize("method", SECOND_STAGES)
def test_network_and_loader_give_the_head_that_cached_features_give(method, rows):
    train, val, _ = rows
    network = network_of(12, 5)
    network(torch.from_numpy(train.features).float())  # moves the running statistics
    inputs = torch.from_numpy(train.features).float()
    labels = torch.from_numpy(train.labels)
    data = TensorDataset(inputs, labels)
    size = quick(method).batch_size
    loader = DataLoader(data, batch_size=size, sampler=SeededShuffle(len(data), FEW["seed"]))
    held = DataLoader(
        TensorDataset(torch.from_numpy(val.features).float(), torch.from_numpy(val.labels)),
        batch_size=100,
    )
    through = quick(method).fit_network(network, loader, held)
    network.eval()
    with torch.no_grad():
        cached, held_features = (network[:4](x) for x in (inputs, held.dataset.tensors[0]))
    direct = quick(method).fit(cached, labels, (held_features, val.labels))
    torch.testing.assert_close(
        through.predict_proba(held_features),
        direct.predict_proba(held_features),
        atol=2e-5,
        rtol=1e-3,
    )


def test_frozen_network_keeps_parameters_buffers_and_modes(rows):
    network = network_of(12, 5)
    network.train()
    network[3].eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    modes = [module.training for module in network.modules()]
    data = TensorDataset(
        torch.from_numpy(rows[0].features).float(), torch.from_numpy(rows[0].labels)
    )
    stage = quick("maccal").fit_network(network, DataLoader(data, batch_size=50, shuffle=True))
    assert [module.training for module in network.modules()] == modes
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(parameter.grad is None for parameter in network.parameters())
    network.eval()
    with torch.no_grad():
        features = network[:4](data.tensors[0])
        expected = stage.head_(features)
        assert replace_head(network, stage.head_) is network
        torch.testing.assert_close(network(data.tensors[0]), expected)


def test_a_network_with_nan_among_its_weights_is_refused(rows):
    network = network_of(12, 5)
    with torch.no_grad():
        network[0].weight[0, 0] = torch.nan
    features = torch.from_numpy(rows[0].features).float()
    loader = DataLoader(TensorDataset(features, torch.from_numpy(rows[0].labels)), batch_size=50)
    with pytest.raises(InputError, match="layer '4' is given NaN or infinity as features"):
        quick("retrain").fit_network(network, loader)


def test_augmenting_loader_gives_new_features_in_every_epoch(rows):
    network = network_of(12, 5)
    labels = torch.from_numpy(rows[0].labels)
    inputs = torch.from_numpy(rows[0].features).float()
    seen = []

    class Augmenting:
        def __iter__(self):
            seen.append(len(seen))
            for part, truth in zip(inputs.split(100), labels.split(100), strict=True):
                yield part + len(seen), truth

    quick("retrain").fit_network(network, Augmenting())
    # One pass for the scale, one for the dtype, one for each epoch.
    assert len(seen) >= FEW["epochs"] + 1


def test_head_of_a_network_is_found_or_missed_plainly():
    network = network_of(4, 3)
    assert find_head(network).name == "4"
    assert find_head(network, "0").layer is network[0]
    with pytest.raises(InputError, match="no linear layer 'fc'; its last ones are: 0, 4"):
        find_head(network, "fc")
    with pytest.raises(InputError, match="the network has no linear layer"):
        find_head(nn.Conv2d(1, 1, 1))
    with pytest.raises(InputError, match="kappa is chosen on rows"):
        MaCCal(epochs=1).fit_network(network, [(torch.zeros(2, 4), torch.tensor([0, 1]))])


# --- bad input ---------------------------------------------------------------------------------


def test_bad_input_is_refused_in_a_sentence(rows):
    features, labels = rows[0]
    with pytest.raises(InputError, match="kappa must be a number above 0 and at most 1"):
        MaCCal(kappa=1.5).fit(features, labels)
    with pytest.raises(InputError, match="kappa must be"):
        MaCCal(kappa="high").fit(features, labels)
    with pytest.raises(InputError, match="hidden must be"):
        MaCCal(kappa=1.0, hidden=0).fit(features, labels)
    with pytest.raises(InputError, match="smallest_step"):
        MaCCal(kappa=1.0, smallest_step=0.2).fit(features, labels)
    with pytest.raises(InputError, match="epochs must be"):
        MaCCal(kappa=1.0, epochs=0).fit(features, labels)
    with pytest.raises(InputError, match="shape"):
        MaCCal(kappa=1.0).fit(features[:, 0], labels)
    with pytest.raises(InputError, match="entries"):
        MaCCal(kappa=1.0).fit(features, labels[:-1])
    with pytest.raises(InputError, match="pass n_classes"):
        MaCCal(kappa=1.0).fit(features, np.where(labels == 2, 3, labels))
    with pytest.raises(InputError, match="validation rows: have 3 features"):
        MaCCal().fit(features, labels, (features[:, :3], labels))
    with pytest.raises(InputError, match="the same in every"):
        MaCCal(kappa=1.0).fit(np.ones_like(features), labels)
    with pytest.raises(InputError, match="kappas must hold at least one"):
        MaCCal(kappas=()).fit(features, labels)
    with pytest.raises(InputError, match="reference_logits belong to the validation rows"):
        MaCCal().fit(features, labels, reference_logits=features)
    with pytest.raises(InputError, match="reference_logits: have 12 classes, but the training"):
        MaCCal().fit(features, labels, (features, labels), reference_logits=features)
    with pytest.raises(InputError, match=r"reference_logits: .* 9 rows"):
        MaCCal().fit(features, labels, (features, labels), reference_logits=features[:9, :5])
    with pytest.raises(InputError, match="there is only one"):
        MaCCal().fit(features[:1], labels[:1], n_classes=5)
    single = [(torch.zeros(1, 12), torch.tensor([0])), (torch.ones(1, 12), torch.tensor([1]))]
    with pytest.raises(InputError, match="batches of at least two rows"):
        BalCAL(epochs=1).fit_network(network_of(12, 5), single)
    with pytest.raises(InputError, match="no second stage is called 'dropout'"):
        make_second_stage("dropout")
    with pytest.raises(InputError, match="trains the whole network"):
        make_second_stage("plp")
    with pytest.raises(InputError, match="no argument 'rate'"):
        make_second_stage("maccal", rate=1)
    with pytest.raises(InputError, match="bottleneck must be true or false"):
        make_second_stage("maccal", bottleneck="no")
    with pytest.raises(NotFittedError):
        MaCCal().predict_proba(features)


def test_a_rate_that_blows_up_is_said(rows):
    for method in ("maccal", "retrain"):
        stage = quick(method, learning_rate=1e30, epochs=2, batch_size=16)
        with pytest.raises(InputError, match="no longer finite"):
            stage.fit(*rows[0], rows[1])


def test_classes_that_no_training_row_has_can_be_said(rows):
    features, labels = rows[0]
    stage = quick("retrain").fit(features, np.minimum(labels, 3), n_classes=6)
    assert stage.predict_proba(features).shape == (len(features), 6)


def test_heads_are_reached_from_the_package():
    assert calibrant.training.second_stages.MaCCal is MaCCal


def test_a_head_learns_where_gradients_were_turned_off(rows):
    with torch.no_grad():  # as around the features of a network
        inside = quick("retrain").fit(*rows[0])
    outside = quick("retrain").fit(*rows[0])
    np.testing.assert_array_equal(probabilities(inside, rows), probabilities(outside, rows))
