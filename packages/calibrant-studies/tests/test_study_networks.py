"""Studies of trained networks: FeDLaS's and MaC-Cal's tables and figures."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibrant as cb
import calibrant_studies as studies
from calibrant.core.errors import InputError
from calibrant.files import read_predictions
from calibrant.training.data import read_data_set
from calibrant_studies.cells import cells_of
from calibrant_studies.inputs import Inputs, inputs_of
from calibrant_studies.networks.plans import Plan, plan_of
from calibrant_studies.networks.sources import source_of
from calibrant_studies.networks.trained import fitted_stage, kept_head
from calibrant_studies.significance import paired

pytest.importorskip("lightning")
ONE = cb.Engine(workers=1)
NAMES = [name for name in studies.names() if name.startswith(("fedlas", "maccal"))]
RESULTS = Path(__file__).parents[3] / "docs/results/losses.json"


def published(name: str, metric: str) -> dict[tuple[str, ...], float]:
    study = studies.study_named(name)
    return {tuple(p.at.values()): p.value for p in study.published if p.metric == metric}


def test_all_tables_and_figures_are_declared() -> None:
    tables = [f"fedlas-table-{i}" for i in range(1, 5)] + [f"maccal-table-{i}" for i in range(1, 6)]
    figures = ["fedlas-figure-1c", "fedlas-figure-3", "fedlas-controls"]
    figures += [f"maccal-figure-{i}" for i in (1, 2, 4, 5, 6, 7, 8)]
    assert sorted(NAMES) == sorted(tables + figures)


def test_the_split_ece_of_the_paper_adds_up_to_its_ece() -> None:
    """Table 4 is Table 1's ResNet-50, split; a footnote has what is left by rounding."""
    over, under = (published("fedlas-table-4", f"{side}confidence") for side in ("over", "under"))
    whole = published("fedlas-table-1", "ece")
    assert len(over) == 15
    for (data, network, method), value in over.items():
        other = under[data, network, method]
        assert value + other == pytest.approx(whole[data, network, method], abs=0.021)


def test_the_ranks_of_the_paper_are_those_of_its_numbers() -> None:
    """As its footnote prints them."""
    whole = published("fedlas-table-1", "ece")
    assert len(whole) == 16 * 6
    by_setting: dict[Any, dict[str, float]] = defaultdict(dict)
    for (data, network, method), value in whole.items():
        by_setting[data, network][method] = value
    ranks: dict[str, list[float]] = defaultdict(list)
    for values in by_setting.values():
        for method, value in values.items():
            ranks[method].append(1 + sum(other < value for other in values.values()))
    mean = {method: np.mean(found) for method, found in ranks.items()}
    assert mean["fedlas-mbls"] == pytest.approx(1.83, abs=0.01)
    assert mean["mbls"] == pytest.approx(4.33, abs=0.01)
    assert mean["cross-entropy"] == pytest.approx(14.0, abs=0.01)
    assert mean["mdca"] == pytest.approx(14.17, abs=0.01)


def test_the_ends_of_the_ablation_are_densenet_in_table_1() -> None:
    first, steps = published("maccal-table-1", "ece"), published("maccal-table-5", "ece")
    assert len(first) == 16 * 9
    for data in ("cifar10", "cifar100"):
        for step, method in (("cross-entropy", "cross-entropy"), ("decaying-adaptation", "maccal")):
            assert steps[data, "densenet121", step] == first[data, "densenet121", method]


def test_the_means_of_table_3_are_those_of_table_1() -> None:
    """Of the first stages, but for what rounding and the paper's slips leave."""
    first, third = published("maccal-table-1", "ece"), published("maccal-table-3", "ece")
    apart: dict[str, float] = {}
    for (data, method, stage), value in third.items():
        if stage == "baseline":
            networks = [v for (d, _, m), v in first.items() if (d, m) == (data, method)]
            apart[f"{data} {method}"] = abs(value - np.mean(networks))
    assert len(apart) == 30
    beyond_rounding = {name for name, gap in apart.items() if gap > 0.03}
    assert beyond_rounding == {"tiny-imagenet mixup", "cifar100 mit", "cifar100 dual-focal"}


def test_ratios_of_costs_are_those_of_the_seconds() -> None:
    ratio, seconds = (published("maccal-table-4", metric) for metric in ("ratio", "seconds"))
    assert len(seconds) == 9 * 6
    for (data, network, method), value in ratio.items():
        base = seconds[data, network, "cross-entropy"]
        assert value == pytest.approx(seconds[data, network, method] / base, abs=5e-4)


def write_images(folder: Path, classes: int = 4, rows: int = 64, side: int = 32) -> Path:
    """Write a data set as arrays."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)
    for name in ("train", "test"):
        labels = np.arange(rows) % classes
        images = rng.integers(0, 256, (rows, side, side, 3), dtype=np.uint8)
        np.savez(folder / f"{name}.npz", images=images, labels=labels)
    return folder


def test_a_run_that_is_there_is_not_trained_again(tmp_path: Path) -> None:
    data = write_images(tmp_path / "images")
    options: dict[str, Any] = {
        "only": {"input": ["cifar10"], "network": ["resnet8"], "method": ["cross-entropy"]},
        "settings": {"epochs": 1, "batch_size": 16, "n_classes": 4, "resamples": 40},
        "seeds": [3],
        "engine": ONE,
    }
    first = studies.run("fedlas-table-1", data=f"cifar10={data}", out=tmp_path / "out", **options)
    assert first.failed == []
    (run,) = (path.parent for path in (tmp_path / "out/work").glob("run-*/val.npz"))
    # Found by its settings beside the images, and by its name without them.
    renamed = tmp_path / "runs" / "cifar10-resnet8-cross-entropy-3"
    renamed.parent.mkdir()
    run.rename(renamed)
    for i, given in enumerate(([f"cifar10={data}", str(renamed.parent)], [str(renamed.parent)])):
        place = tmp_path / f"again-{i}"
        again = studies.run("fedlas-table-1", data=given, out=place, **options)
        assert [r["value"] for r in again.records()] == [r["value"] for r in first.records()]
        assert not list((place / "work").glob("run-*"))
    # Predictions alone do as well, by the name; a calibrator behind them is fitted to the first.
    for part in ("val", "test"):
        (tmp_path / "files").mkdir(exist_ok=True)
        target = tmp_path / "files" / f"cifar10-resnet8-cross-entropy-3-{part}.npz"
        target.write_bytes((renamed / f"{part}.npz").read_bytes())
    options["only"]["method"] = ["cross-entropy", "cross-entropy-temperature"]
    files = studies.run(
        "fedlas-table-1", data=str(tmp_path / "files"), out=tmp_path / "third", **options
    )
    assert {r["method"] for r in files.records()} == {"cross-entropy", "cross-entropy-temperature"}
    # What needs the network itself says so.
    options["settings"] = {"n_classes": 4, "most": 10}
    options["only"] = {"method": ["cross-entropy"], "unknown": ["shuffled-tiles"]}
    options["only"] |= {"input": ["cifar10"], "network": ["resnet8"]}
    unknown = studies.run(
        "fedlas-table-3", data=str(tmp_path / "files"), out=tmp_path / "third", **options
    )
    ((_, error),) = unknown.failed
    assert "only predictions are given" in error
    given = [f"cifar10={data}", str(renamed.parent)]
    options["settings"] |= {"epochs": 1, "batch_size": 16}
    unknown = studies.run("fedlas-table-3", data=given, out=tmp_path / "fourth", **options)
    assert unknown.failed == []
    assert unknown.records()
    assert not list((tmp_path / "fourth/work").glob("run-*"))
    # Which of two runs of one network is meant can't be known; the same run twice is one.
    copied = shutil.copytree(renamed, renamed.parent / "one")
    shutil.move(renamed, renamed.parent / "two")
    given = [f"cifar10={data}", str(renamed.parent)]
    assert studies.run("fedlas-table-3", data=given, out=tmp_path / "fourth", **options).ran
    found = read_predictions(copied / "test.npz")
    np.savez(copied / "test.npz", logits=2 * np.asarray(found.logits), labels=found.labels)
    with pytest.raises(InputError, match=r"one and .*two: both are runs of cifar10-resnet8-cross"):
        studies.run("fedlas-table-3", data=given, out=tmp_path / "fifth", **options)


def test_a_run_under_a_wrong_name_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "cifar10-resnet8-focal-0"
    folder.mkdir()
    for name in ("val.npz", "test.npz"):
        np.savez(folder / name, logits=np.zeros((3, 2)), labels=np.zeros(3, int))
    (folder / "config.json").write_text('{"net": "resnet8", "loss": "acls"}')
    only = {"input": ["cifar10"], "network": ["resnet8"], "method": ["focal"]}
    with pytest.raises(InputError, match="is a run with loss 'acls', not 'focal'"):
        studies.run("fedlas-table-1", data=str(tmp_path), only=only, out=tmp_path / "out")


def test_a_network_may_see_no_images_as_they_are() -> None:
    study = studies.study_named("losses-longer")
    cell = cells_of(study)[0]
    for share, wanted in ((-1.0, None), (0.0, 0.0), (0.5, 0.5)):
        asked = replace(cell, settings={**cell.settings, "plain_share": share})
        # 0 had stood for the protocol's share, a sixth.
        assert plan_of(asked).run["plain_share"] == wanted


def test_a_method_that_is_called_otherwise_is_what_its_settings_say() -> None:
    cell = cells_of(studies.study_named("losses-longer"))[0]
    named = replace(cell, settings={**cell.settings, "method": "acls"})
    assert (cell.method, plan_of(cell).line) == ("cross-entropy", "cross-entropy")
    assert plan_of(named).line == "acls"


def test_what_goes_by_the_name_of_two_networks_is_neither(tmp_path: Path) -> None:
    folder = tmp_path / "cifar10-resnet8-cross-entropy-0"
    folder.mkdir()
    only = {"input": ["cifar10"], "network": ["resnet8"], "method": ["cross-entropy"]}
    asked: dict[str, Any] = {"only": only, "seeds": [0], "out": tmp_path / "out", "engine": ONE}
    rng = np.random.default_rng(0)
    for part in ("val", "test"):
        rows = {"logits": rng.normal(size=(40, 3)), "labels": rng.integers(3, size=40)}
        np.savez(folder / f"{part}.npz", **rows)
        np.savez(tmp_path / f"{folder.name}-{part}.npz", **rows)
    study = studies.study_named("losses-longer")
    short = next(plan_of(c) for c in cells_of(study) if c.at["epochs"] == "18")
    (folder / "config.json").write_text(json.dumps({**short.run, "data": "/gone/pictures"}))
    # A run of 18 epochs had stood in the row of 54 as well, by its name.
    with pytest.raises(InputError, match="is a run with epochs None, not 54; what is called"):
        studies.run("losses-longer", data=f"{folder.name}={folder}", **asked)
    # Predictions say nothing of that.
    files = ",".join(str(tmp_path / f"{folder.name}-{part}.npz") for part in ("val", "test"))
    with pytest.raises(InputError, match="called cifar10-resnet8-cross-entropy-0: epochs is None"):
        studies.run("losses-longer", data=f"{folder.name}={files}", **asked)
    only["epochs"] = ["54"]
    found = studies.run("losses-longer", data=f"{folder.name}={files}", **asked)
    assert {record["epochs"] for record in found.records()} == {"54"}


def test_a_run_on_other_images_stands_in_for_nothing(tmp_path: Path) -> None:
    study = studies.study_named("fedlas-table-1")
    cell = next(c for c in cells_of(study) if (c.input, c.at["network"]) == ("cifar10", "resnet8"))
    plan = plan_of(cell)
    folder = tmp_path / "some-run"
    folder.mkdir()
    for name in ("val.npz", "test.npz"):
        np.savez(folder / name, logits=np.zeros((3, 2)), labels=np.zeros(3, int))

    def found(data: str, asked: Plan = plan) -> bool:
        (folder / "config.json").write_text(json.dumps({**plan.run, "data": data}))
        return source_of(asked, inputs_of([str(folder)])[0]) is not None

    assert found("/gone/cifar10")
    assert found("/gone/cifar10.npz")
    assert found("/gone/cifar10-python")
    # Its name begins in the same way, and without the images nothing else tells them apart.
    assert not found("/gone/cifar100")
    assert not found("/gone/cifar100.npz")
    # Nor is a network for images as they are one for those that are stretched.
    assert not found("/gone/cifar10", replace(plan, run={**plan.run, "image_size": 16}))


def test_unknown_images_are_a_data_set_and_no_row(tmp_path: Path) -> None:
    known = write_images(tmp_path / "known")
    others = write_images(tmp_path / "others", classes=7)
    found = studies.run(
        "fedlas-table-3",
        data=[f"cifar10={known}", f"svhn={others}"],
        only={"network": ["resnet8"], "method": ["cross-entropy"], "unknown": ["svhn"]},
        settings={"epochs": 1, "batch_size": 16, "n_classes": 4},
        seeds=[0],
        out=tmp_path / "out",
        engine=ONE,
    )
    assert found.failed == []
    assert {(r["input"], r["unknown"]) for r in found.records()} == {("cifar10", "svhn")}
    assert [missing.input for missing in found.missing] == ["cifar100"]


@pytest.mark.parametrize(
    ("study", "data", "network", "method", "side", "classes", "instead"),
    [
        ("maccal-table-1", "cifar10", "densenet121", "maccal", 32, 10, ""),
        # Its own network, resnet50-tiny, takes half a minute for these images.
        ("fedlas-table-1", "tiny-imagenet", "resnet50", "fedlas-mbls", 64, 2, "resnet20"),
    ],
)
def test_the_full_tables_run_on_files_of_the_true_layouts(
    tmp_path: Path,
    study: str,
    data: str,
    network: str,
    method: str,
    side: int,
    classes: int,
    instead: str,
) -> None:
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(2)
    place = tmp_path / data
    place.mkdir()
    if data == "cifar10":  # the binary version: a byte of the label, then three planes
        for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
            rows = rng.integers(0, 256, (4, 3073), dtype=np.uint8)
            rows[:, 0] = np.arange(4) % classes
            (place / f"{name}.bin").write_bytes(rows.tobytes())
        (place / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n")
    else:  # a folder for each class
        for part, count in (("train", 10), ("val", 1)):
            for label in range(classes):
                folder = place / part / f"n{label:08}"
                folder.mkdir(parents=True)
                for i in range(count):
                    pixels = rng.integers(0, 256, (side, side, 3), dtype=np.uint8)
                    image.fromarray(pixels).save(folder / f"{i}.png")
    found = studies.run(
        study,
        data=f"{data}={place}",
        only={"input": [data], "network": [network], "method": [method]},
        settings={"epochs": 1, "batch_size": 9, "stage_epochs": 1, "resamples": 40}
        | ({"net": instead, "variant": ""} if instead else {}),
        seeds=[1],
        out=tmp_path / "out",
        engine=ONE,
    )
    assert found.failed == []
    (run,) = (tmp_path / "out/work").glob("run-*/config.json")
    settings = json.loads(run.read_text())
    protocol = {"cifar10": "mukhoti", "tiny-imagenet": "acls-tiny"}[data]
    assert (settings["net"], settings["protocol"]) == (instead or network, protocol)
    (whole,) = (
        cell
        for cell in cells_of(studies.study_named(study))
        if (cell.input, cell.at["network"], cell.method, cell.seed) == (data, network, method, 1)
    )
    assert plan_of(whole).run["net"] == {"densenet121": network}.get(network, "resnet50-tiny")
    assert all(r["published"] is not None for r in found.records() if r["metric"] == "ece")


def test_a_method_is_a_loss_unless_it_brings_a_mixture_or_a_stage_along():
    study = studies.study_named("heads-after-losses")
    lines = {cell.method: plan_of(cell).line for cell in cells_of(study)}
    mixed = {name: name.replace("-", " alpha=") for name in lines if name.startswith("mixup")}
    assert lines == {name: name for name in lines} | mixed
    # Whatever stands behind it, the first stage is the same.
    stages = {(cell.method, plan_of(cell).line) for cell in cells_of(study)}
    assert stages == set(lines.items())
    table = studies.study_named("maccal-table-1")
    lines = {cell.method: plan_of(cell).line for cell in cells_of(table)}
    assert lines["maccal"] == lines["retrain"] == "cross-entropy"
    assert lines["focal"] == "focal"


def test_a_head_is_trained_once_for_all_studies(tmp_path: Path) -> None:
    found = {
        name: studies.run(
            name, small=True, only=only, settings={"stage_epochs": 2}, out=tmp_path, engine=ONE
        )
        for name, only in {
            "maccal-figure-8": {},
            "maccal-table-1": {"method": ["maccal-linear", "cross-entropy"]},
            "maccal-table-2": {"method": ["maccal-linear"]},
        }.items()
    }
    assert all(each.failed == [] for each in found.values())
    (file,) = (tmp_path / "work").glob("head-*.safetensors")
    # What the file gives is what a fit gives.
    (run,) = (path.parent for path in (tmp_path / "work").glob("run-*/val.npz"))
    training = read_predictions(next((tmp_path / "work").glob("train-*.npz")))
    validation, test = (read_predictions(run / f"{part}.npz") for part in ("val", "test"))
    study = studies.study_named("maccal-table-1").reduced()
    study = replace(study, settings={**study.settings, "stage_epochs": 2})
    (plan,) = (plan_of(cell) for cell in cells_of(study) if cell.method == "maccal-linear")
    stage, head = fitted_stage(plan, training, validation, test), kept_head(file)
    np.testing.assert_array_equal(head.logits(test.features), stage.logits(test.features))
    assert head.history == [record.as_dict() for record in stage.history_]
    assert head.notes == stage.notes_


def test_plp_is_the_protocol_with_layers_frozen(tmp_path: Path) -> None:
    for name in ("maccal-table-1", "maccal-table-2", "maccal-figure-4"):
        told = {
            (plan.input, plan.network): (plan.run["loss"], plan.run["protocol"], plan.name)
            for plan in map(plan_of, cells_of(studies.study_named(name)))
            if plan.line == "plp"
        }
        assert told["cifar10", "resnet50"] == (
            "cross-entropy",
            "mukhoti+plp",
            "cifar10-resnet50-plp-1",
        )
        assert told["cifar10", "resnet8"][1] == "quick+plp"
    found = studies.run(
        "maccal-table-1",
        small=True,
        only={"method": ["plp"]},
        out=tmp_path,
        engine=ONE,
    )
    assert found.failed == []
    (run,) = (tmp_path / "work").glob("run-*/config.json")
    assert json.loads(run.read_text())["protocol"] == "quick+plp"


def write_published_files(place: Path, rows: int = 20) -> list[str]:
    """Write CIFAR-10, CIFAR-100, CIFAR-10-C and SVHN as they are published, but for their size."""
    scipy_io = pytest.importorskip("scipy.io")
    rng = np.random.default_rng(4)
    for name in ("cifar10", "cifar100", "cifar10-c", "svhn"):
        (place / name).mkdir()
    ten = rng.integers(0, 256, (rows, 3073), dtype=np.uint8)
    ten[:, 0] = np.arange(rows) % 10
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (place / "cifar10" / f"{name}.bin").write_bytes(ten.tobytes())
    (place / "cifar10" / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n")
    hundred = rng.integers(0, 256, (rows, 3074), dtype=np.uint8)
    hundred[:, :2] = np.stack([np.arange(rows) % 20, np.arange(rows) % 100], axis=1)
    for name in ("train", "test"):
        (place / "cifar100" / f"{name}.bin").write_bytes(hundred.tobytes())
    names = "\n".join(f"class{i}" for i in range(100))
    (place / "cifar100" / "fine_label_names.txt").write_text(names + "\n")
    np.save(place / "cifar10-c" / "labels.npy", np.tile(ten[:, 0], 5))
    for name in ("fog", "gaussian_noise"):
        images = rng.integers(0, 256, (5 * rows, 32, 32, 3), dtype=np.uint8)
        np.save(place / "cifar10-c" / f"{name}.npy", images)
    for name in ("train", "test"):
        digits = {"X": rng.integers(0, 256, (32, 32, 3, rows), dtype=np.uint8)}
        digits["y"] = (np.arange(rows) % 10 + 1).astype(np.uint8)[:, None]
        scipy_io.savemat(place / "svhn" / f"{name}_32x32.mat", digits)
    return [f"{name}={place / name}" for name in ("cifar10", "cifar100", "cifar10-c", "svhn")]


def test_unknown_and_corrupted_images_are_read_as_published(tmp_path: Path) -> None:
    data = write_published_files(tmp_path)
    digits = read_data_set(tmp_path / "svhn")
    assert digits.test.labels.tolist() == [*range(1, 10), 0] * 2
    settings = {"net": "resnet8", "epochs": 1, "batch_size": 10, "stage_epochs": 1}
    rows: dict[str, list[dict[str, Any]]] = {}
    for study, only in {
        "fedlas-table-3": {"unknown": ["svhn", "cifar100"], "method": ["cross-entropy"]},
        "maccal-table-2": {"method": ["cross-entropy", "maccal"]},
        "maccal-figure-5": {"method": ["cross-entropy"], "severity": ["1", "5"]},
        "maccal-table-4": {"method": ["cross-entropy", "mit", "maccal"]},
        "maccal-figure-6": {"method": ["mixup"], "alpha": ["0.2"]},
    }.items():
        found = studies.run(
            study,
            data=data,
            only={"input": ["cifar10"], "network": ["resnet50"], **only},
            settings=settings,
            seeds=[1],
            out=tmp_path / "out",
            engine=ONE,
        )
        assert (found.failed, found.missing) == ([], [])
        rows[study] = found.records()
    assert [r["published"] for r in rows["fedlas-table-3"] if r["metric"] == "auroc"] == [
        91.37,
        87.82,
    ]
    assert {r["published"] for r in rows["maccal-table-2"]} >= {88.07, 88.91}
    # The images of the strongest severity are others than those of the mildest.
    mild, strong = (
        [r["value"] for r in rows["maccal-figure-5"] if r["severity"] == severity]
        for severity in ("1", "5")
    )
    assert len(mild) == len(strong) == 2
    assert mild != strong
    cells = [json.loads(p.read_text()) for p in (tmp_path / "out/cells").glob("*.json")]
    corrupted = [c["result"]["corruptions"] for c in cells if c["kind"] == "corrupted-images"]
    assert [set(each) for each in corrupted] == [{"fog", "gaussian_noise"}] * 2
    for row in rows["maccal-figure-5"]:
        assert row["low"] <= row["value"] <= row["high"]
        assert (row["floor"] is not None) == (row["metric"] == "ece")
    ratios = {r["method"]: r["value"] for r in rows["maccal-table-4"] if r["metric"] == "ratio"}
    assert ratios["cross-entropy"] == 1 < ratios["maccal"]
    # The control that the ratio is to, the baseline of Figure 6 and MIT: three trainings by the
    # protocol of the full size; FeDLaS's has another.
    runs = [json.loads(p.read_text()) for p in (tmp_path / "out/work").glob("run-*/config.json")]
    told = sorted((run["protocol"], run["mixing"]) for run in runs)
    expected = [("acls", "none"), *(("mukhoti", name) for name in ("mit", "mixup", "none"))]
    assert told == expected


def test_numbers_that_were_kept_stand_in_for_networks_that_are_gone() -> None:
    document = json.loads(RESULTS.read_text())
    inputs: Inputs = inputs_of([str(RESULTS)])[0]
    study = studies.study_named("fedlas-table-1")
    found = 0
    for cell in cells_of(study):
        source = source_of(plan_of(cell), inputs, recorded=True)
        if source is None:
            continue
        assert source.recorded is not None
        assert (cell.input, cell.at["network"]) == ("cifar10", "resnet8")
        after = "temperature" if cell.method == "cross-entropy-temperature" else "none"
        line = cell.method.removesuffix("-temperature")
        (run,) = (
            run for run in document["runs"] if (run["line"], run["seed"]) == (line, cell.seed)
        )
        assert source.recorded.values == run["after"][after]
        found += 1
        assert source_of(plan_of(cell), inputs) is None
    assert found == 27  # nine methods of the table, three seeds


def test_a_mean_over_corruptions_is_resampled_by_images(tmp_path: Path) -> None:
    """Heads behind one network share what it says of the images, and differ by paired resamples."""
    found = studies.run(
        "maccal-figure-5",
        small=True,
        settings={"most": 40, "resamples": 60},
        only={"severity": ["1"], "method": ["cross-entropy", "maccal-linear"]},
        out=tmp_path,
        engine=ONE,
    )
    assert found.failed == []
    first, second = (
        [ran.result for ran in found.ran if ran.cell.method == name]
        for name in (
            "cross-entropy",
            "maccal-linear",
        )
    )
    for (result,) in (first, second):
        each = result["corruptions"]
        assert result["values"]["accuracy"]["value"] == pytest.approx(
            np.mean([of["accuracy"] for of in each.values()])
        )
        # Images are drawn, not corruptions: 40 of them know an accuracy to some percent.
        assert len(result["replicates"]["accuracy"]) == 60
        assert 0 < np.std(result["replicates"]["accuracy"]) < 0.15
    assert paired(first, second, "ece") is not None
