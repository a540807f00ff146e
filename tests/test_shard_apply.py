"""A calibrator applied to many files: names and formats kept, whole files, and resumed."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_shards import CLASSES, WRITERS, rows

import calibrant as cb
from calibrant.core.errors import InputError, PredictionsError
from calibrant.files.formats import open_writer
from calibrant.files.rewriting import written_as
from calibrant.scale.shards import RECORD

ONE = cb.Engine(workers=1)


def fitted(seed: int) -> cb.Calibrator:
    truth = cb.synthetic.tempered(500, CLASSES, temperature=1.5, seed=seed)
    return cb.TemperatureScaling().fit_predictions(truth.predictions)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Eleven files of as many formats."""
    inside = tmp_path / "in"
    inside.mkdir()
    for i, (name, write) in enumerate(WRITERS.items()):
        write(rows(10 + i, seed=i), inside / name)
    return inside


@pytest.fixture
def scaling() -> cb.Calibrator:
    return fitted(99)


def test_every_format_stays_what_it_is(folder: Path, scaling: cb.Calibrator) -> None:
    out = folder.parent / "out"
    done = scaling.apply_predictions(cb.Shards(folder), str(out), engine=ONE)
    assert (len(done.written), done.before, done.rows) == (11, 0, 165)
    wanted = {name.replace("f-logits", "f-probs").replace("i.pt", "i.npz") for name in WRITERS}
    assert {p.name for p in out.iterdir()} == wanted | {"f-labels.npy", RECORD}
    after = list(cb.Shards(out).batches())
    before = list(cb.Shards(folder).batches())
    for old, new in zip(before, after, strict=True):
        expected = scaling.apply_predictions(old)
        np.testing.assert_allclose(new.scores, expected.scores, rtol=1e-6)
        np.testing.assert_array_equal(new.labels, old.labels)
        np.testing.assert_allclose(np.asarray(new.scores, np.float64).sum(axis=1), 1.0, atol=1e-6)


def test_batches_and_features_are_written_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calibrant.scale.shards.BATCH_NUMBERS", 3 * CLASSES)
    some = rows(20)
    features = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    for name in ("a.npz", "b.safetensors", "c-logits.npy", "d.parquet"):
        held = cb.Predictions.from_logits(some.scores, some.labels, features)
        (tmp_path / "in").mkdir(exist_ok=True)
        cb.write_predictions(held, tmp_path / "in" / name)
    plain = cb.make_calibrator("none").fit_predictions(some)
    plain.apply_predictions(cb.Shards(tmp_path / "in"), str(tmp_path / "out"), engine=ONE)
    for name in ("a.npz", "b.safetensors", "c-probs.npy", "d.parquet"):
        found = cb.read_predictions(tmp_path / "out" / name)
        np.testing.assert_allclose(found.scores, some.probs, rtol=1e-6)
        np.testing.assert_array_equal(found.features, features)
        np.testing.assert_array_equal(found.labels, some.labels)


def test_rows_without_labels_and_other_forms_are_applied_to(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    np.savez(tmp_path / "in" / "a.npz", logits=rows(5).scores)
    scaling = fitted(99)
    shards = cb.Shards(tmp_path / "in", labelled=False)
    scaling.apply_predictions(shards, str(tmp_path / "out"), engine=ONE)
    assert cb.read_predictions(tmp_path / "out" / "a.npz", labelled=False).known_labels is None
    top = cb.synthetic.top_label(300).predictions
    (tmp_path / "top").mkdir()
    cb.write_predictions(top, tmp_path / "top" / "a.csv")
    isotonic = cb.make_calibrator("isotonic").fit_predictions(top)
    done = isotonic.apply_predictions(cb.Shards(tmp_path / "top"), str(tmp_path / "o"), engine=ONE)
    assert cb.read_predictions(done.written[0]).kind == "toplabel"


def test_what_is_there_is_left_and_what_is_missing_is_made(
    folder: Path, scaling: cb.Calibrator
) -> None:
    out = folder.parent / "out"
    shards = cb.Shards(folder)
    scaling.apply_predictions(shards, str(out), engine=ONE)
    kept = (out / "a.npz").stat().st_mtime_ns
    (out / "e.csv").unlink()
    (out / "d.safetensors").write_bytes(b"half")
    again = scaling.apply_predictions(shards, str(out), engine=ONE)
    assert [Path(name).name for name in again.written] == ["d.safetensors", "e.csv"]
    assert again.before == 9
    assert (out / "a.npz").stat().st_mtime_ns == kept


def test_another_calibrator_or_other_files_are_not_mixed_in(
    folder: Path, scaling: cb.Calibrator
) -> None:
    out, shards = folder.parent / "out", cb.Shards(folder)
    scaling.apply_predictions(shards, str(out), engine=ONE)
    other = fitted(98)
    with pytest.raises(InputError, match="was begun with another calibrator"):
        other.apply_predictions(shards, str(out), engine=ONE)
    with pytest.raises(InputError, match=r"a.npz: is read by this command"):
        scaling.apply_predictions(shards, str(folder), engine=ONE)
    taken = folder.parent / "taken"
    taken.mkdir()
    (taken / "b.parquet").write_text("mine")
    with pytest.raises(InputError, match=r"b.parquet: exists already"):
        scaling.apply_predictions(shards, str(taken), engine=ONE)
    assert (taken / "b.parquet").read_text() == "mine"


def test_a_failed_shard_leaves_no_file(folder: Path, scaling: cb.Calibrator) -> None:
    bad = rows(10)
    bad.scores[9] = np.nan
    np.savez(folder / "a.npz", logits=bad.scores, labels=bad.labels)
    out, shards = folder.parent / "out", cb.Shards(folder)
    with pytest.raises(PredictionsError, match=r"a.npz: .* row 9"):
        scaling.apply_predictions(shards, str(out), engine=ONE)
    assert [p.name for p in out.iterdir()] == [RECORD]
    done = scaling.apply_predictions(shards, str(out), engine=ONE, skip_broken=True)
    assert (len(done.written), len(done.broken)) == (10, 1)
    assert "row 9" in str(done)


def test_a_url_takes_what_is_written(folder: Path, scaling: cb.Calibrator) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    try:
        shards = cb.Shards([folder / "a.npz", folder / "b.parquet", folder / "f-logits.npy"])
        done = scaling.apply_predictions(shards, "memory://calibrated/x", engine=ONE)
        assert done.written[0] == "memory://calibrated/x/a.npz"
        assert cb.Shards("memory://calibrated/x").rows == 10 + 11 + 15
        again = scaling.apply_predictions(shards, "memory://calibrated/x", engine=ONE)
        assert again.before == 3
    finally:
        memory.rm("/calibrated", recursive=True)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("a/val.npz", "a/val.npz"),
        ("val-logits.npy", "val-probs.npy"),
        ("x.pt", "x.npz"),
        ("folder", "folder/probs.npy"),
    ],
)
def test_names_are_kept(name: str, wanted: str) -> None:
    assert written_as(name, "probs") == wanted


def test_folders_below_a_common_one_are_kept(tmp_path: Path, scaling: cb.Calibrator) -> None:
    for part in ("x", "y"):
        (tmp_path / "in" / part).mkdir(parents=True)
        cb.write_predictions(rows(4), tmp_path / "in" / part / "a.npz")
    shards = cb.Shards(sorted((tmp_path / "in").rglob("*.npz")))
    scaling.apply_predictions(shards, str(tmp_path / "out"), engine=ONE)
    assert (tmp_path / "out" / "y" / "a.npz").is_file()


def test_very_many_classes_go_into_one_column_of_lists(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    probs = np.random.default_rng(0).dirichlet(np.ones(300), size=4)
    with open_writer(str(tmp_path / "a.parquet"), 4, "probs") as writer:
        writer.write({"probs": probs, "labels": np.arange(4)})
    (batch,) = cb.Shards(tmp_path / "a.parquet").batches()
    np.testing.assert_array_equal(batch.scores, probs)


KILLED = """
import sys
import calibrant as cb
from calibrant.posthoc import shards as applying

if __name__ == "__main__":
    def slowly(work, calibrator, wanted, real=applying.apply_to):
        import time
        done = real(work, calibrator, wanted)
        print(work.about, flush=True)
        time.sleep(60 if work.about.endswith("3.npz") else 0)
        return done

    applying.apply_to = slowly
    scaling = cb.load(sys.argv[1])
    shards = cb.Shards(sys.argv[2])
    scaling.apply_predictions(shards, sys.argv[3], engine=cb.Engine(workers=1))
"""


def test_after_a_kill_it_goes_on_with_what_is_missing(
    tmp_path: Path, scaling: cb.Calibrator
) -> None:
    (tmp_path / "in").mkdir()
    for i in range(6):
        cb.write_predictions(rows(20, seed=i), tmp_path / "in" / f"{i}.npz")
    scaling.save(tmp_path / "t.safetensors")
    words = [tmp_path / "t.safetensors", tmp_path / "in", tmp_path / "out"]
    running = subprocess.Popen(
        [sys.executable, "-c", KILLED, *map(str, words)], stdout=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    for line in running.stdout:
        if "3.npz" in line:
            break
    running.send_signal(signal.SIGKILL if os.name == "posix" else signal.SIGTERM)
    running.wait()
    running.stdout.close()
    again = scaling.apply_predictions(cb.Shards(tmp_path / "in"), str(words[2]), engine=ONE)
    assert (again.before, len(again.written)) == (4, 2)
    assert cb.Shards(tmp_path / "out").rows == 120


def test_what_was_written_below_folders_is_measured_with_the_rest(
    tmp_path: Path, scaling: cb.Calibrator
) -> None:
    for name in ("a.npz", "b/data.npz", "c/deeper/d.npz"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        cb.write_predictions(rows(8), tmp_path / "in" / name)
    where = [str(tmp_path / "in" / name) for name in ("a.npz", "b/data.npz", "c/deeper/d.npz")]
    scaling.apply_predictions(cb.Shards(where), str(tmp_path / "out"), engine=ONE)
    assert cb.Shards(tmp_path / "out").rows == 24


def test_groups_say_which_files_were_left_out(tmp_path: Path) -> None:
    for name in ("a.npz", "b.npz"):
        cb.write_predictions(rows(200), tmp_path / name)
    (tmp_path / "c.npz").write_bytes(b"cut short")
    shards = cb.Shards(tmp_path, skip_broken=True)
    found = cb.evaluate_by(shards, "label", resamples=5, engine=ONE, skip_broken=True)
    assert "1 file couldn't be read:\nleft out: " in str(found)
    (left,) = found.as_dict()["shards_left_out"]
    assert left["shard"].endswith("c.npz")
    assert found["0"].as_dict()["shards_left_out"] == []


def test_a_manifest_with_a_step_upwards_writes_nothing_outside(
    tmp_path: Path, scaling: cb.Calibrator
) -> None:
    for name in ("here/p0.npz", "evil/p1.npz"):
        (tmp_path / name).parent.mkdir()
        cb.write_predictions(rows(10), tmp_path / name)
    (tmp_path / "here" / "all.txt").write_text("p0.npz\n../evil/p1.npz\n")
    out = tmp_path / "far" / "away" / "out"
    done = scaling.apply_predictions(cb.Shards(tmp_path / "here" / "all.txt"), out, engine=ONE)
    inside = out.resolve()
    assert [Path(p).resolve().relative_to(inside).as_posix() for p in done.written] == [
        "here/p0.npz",
        "evil/p1.npz",
    ]
    assert {p.name for p in (tmp_path / "far" / "away").iterdir()} == {"out"}


def test_a_url_with_a_step_upwards_is_refused(tmp_path: Path, scaling: cb.Calibrator) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    cb.write_predictions(rows(10), tmp_path / "a.npz")
    try:
        memory.pipe("/sources/b.npz", (tmp_path / "a.npz").read_bytes())
        shards = cb.Shards([tmp_path / "a.npz"])
        (one,) = shards.shards
        shards.shards = (one, dataclasses.replace(one, where="memory://sources/../b.npz"))
        with pytest.raises(InputError, match=r"a URL with '\.\.' in it"):
            scaling.apply_predictions(shards, tmp_path / "out", engine=ONE)
    finally:
        memory.rm("/sources", recursive=True)


@pytest.mark.parametrize("same_time", [True, False])
def test_outputs_of_changed_inputs_are_made_anew(
    folder: Path, scaling: cb.Calibrator, same_time: bool
) -> None:
    out = folder.parent / "out"
    scaling.apply_predictions(cb.Shards(folder), out, engine=ONE)
    # As many rows of the same size in bytes, and even the time of the last change.
    before = (folder / "a.npz").stat()
    cb.write_predictions(rows(10, seed=77), folder / "a.npz")
    if same_time:
        os.utime(folder / "a.npz", ns=(before.st_atime_ns, before.st_mtime_ns))
    again = scaling.apply_predictions(cb.Shards(folder), out, engine=ONE)
    assert [Path(name).name for name in again.written] == ["a.npz"]
    expected = scaling.apply_predictions(cb.read_predictions(folder / "a.npz"))
    found = cb.read_predictions(out / "a.npz")
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-6)
    assert scaling.apply_predictions(cb.Shards(folder), out, engine=ONE).before == 11


def test_a_kill_after_a_change_leaves_no_output_of_the_old_input(
    folder: Path, scaling: cb.Calibrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = folder.parent / "out"
    scaling.apply_predictions(cb.Shards(folder), out, engine=ONE)
    cb.write_predictions(rows(10, seed=77), folder / "a.npz")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("calibrant.posthoc.shards.through", killed)
        with pytest.raises(KeyboardInterrupt):
            scaling.apply_predictions(cb.Shards(folder), out, engine=ONE)
    again = scaling.apply_predictions(cb.Shards(folder), out, engine=ONE)
    assert [Path(name).name for name in again.written] == ["a.npz"]


def test_tuples_of_arrays_are_refused_with_what_to_pass(scaling: cb.Calibrator) -> None:
    some = rows(10)
    for call in (cb.TemperatureScaling().fit_predictions, scaling.apply_predictions):
        with pytest.raises(PredictionsError, match=r"Predictions\.from_logits\(logits, labels\)"):
            call((some.logits, some.labels))
