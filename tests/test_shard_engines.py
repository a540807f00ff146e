"""The same whole numbers from every engine, also where workers are killed in the middle."""

from __future__ import annotations

import functools
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_shard_sums import assert_same

import calibrant as cb
from calibrant.core.errors import InputError, PredictionsError
from calibrant.evaluation.cell_sample import CellSample, plan_of
from calibrant.evaluation.sample_sources import summarised, summed

PLAN = plan_of(None)
GUIDE = Path(__file__).parent.parent / "docs" / "appendix" / "scale.md"


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> cb.Shards:
    folder = tmp_path_factory.mktemp("shards")
    whole = cb.synthetic.tempered(4000, 4, temperature=1.5, seed=1).predictions
    for i in range(8):
        cb.write_predictions(whole.take(slice(500 * i, 500 * (i + 1))), folder / f"{i}.npz")
    return cb.Shards(folder)


@pytest.fixture(scope="module")
def alone(shards: cb.Shards) -> CellSample:
    return summed(shards, PLAN, cb.Engine(workers=1))


def killed_once(shard: Any, marker: str) -> CellSample:
    """Summarise a shard; whoever comes first to the third dies of it."""
    if shard.where.endswith("3.npz") and not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
    return summarised(shard, PLAN)


def always_killed(_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def gathered(engine: cb.Engine, shards: cb.Shards, function: Any) -> CellSample:
    found = [sums for _, sums in engine.run(function, shards.shards)]
    return functools.reduce(cb.scale.merge, found)


def test_two_processes_say_what_one_says(shards: cb.Shards, alone: CellSample) -> None:
    assert_same(summed(shards, PLAN, cb.Engine(workers=2)), alone)


@pytest.mark.skipif(os.name != "posix", reason="kills by a signal")
def test_a_killed_process_changes_nothing(
    shards: cb.Shards, alone: CellSample, tmp_path: Path
) -> None:
    function = functools.partial(killed_once, marker=str(tmp_path / "killed"))
    assert_same(gathered(cb.Engine(workers=2), shards, function), alone)
    assert (tmp_path / "killed").exists()


@pytest.mark.skipif(os.name != "posix", reason="kills by a signal")
def test_processes_that_are_always_killed_end_in_a_sentence(shards: cb.Shards) -> None:
    with pytest.raises(InputError, match="was killed again and again"):
        list(cb.Engine(workers=2).run(always_killed, shards.shards[:2]))


def test_an_error_of_a_process_is_what_it_was(shards: cb.Shards, tmp_path: Path) -> None:
    bad = np.zeros((5, 4))
    bad[4, 0] = np.inf
    for i in range(2):
        np.savez(tmp_path / f"{i}.npz", logits=bad, labels=np.zeros(5))
    with pytest.raises(PredictionsError, match=r"npz: 'logits' must be finite, but row 4"):
        cb.evaluate(cb.Shards(tmp_path), engine=cb.Engine(workers=2))


@pytest.mark.skipif(os.name != "posix", reason="kills by a signal")
@pytest.mark.filterwarnings("ignore")  # what a cluster says of a worker that died
def test_a_cluster_says_the_same_with_a_worker_killed_in_the_middle(
    shards: cb.Shards, alone: CellSample, tmp_path: Path
) -> None:
    distributed = pytest.importorskip("distributed")
    function = functools.partial(killed_once, marker=str(tmp_path / "killed"))
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None
    ) as cluster:
        engine = cb.Engine("dask", scheduler=cluster.scheduler_address)
        assert_same(gathered(engine, shards, function), alone)
        assert (tmp_path / "killed").exists()
        found = cb.evaluate(shards, resamples=20, engine=engine)
    direct = cb.evaluate(shards, resamples=20, engine=cb.Engine(workers=1))
    assert found.as_dict() == direct.as_dict()


@pytest.mark.filterwarnings("ignore")
def test_a_scheduler_that_doesnt_answer_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("calibrant.scale.engines.ANSWER_SECONDS", 1)
    with pytest.raises(InputError, match="no Dask scheduler answers at"):
        list(cb.Engine("dask", scheduler="tcp://127.0.0.1:9").run(str, ["a"]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "spark"}, "engine must be one of processes, dask"),
        ({"workers": 0}, "workers must be at least 1"),
        ({"scheduler": "tcp://x"}, "goes with the engine dask only"),
    ],
)
def test_engines_that_dont_exist_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        cb.Engine(**arguments)


@pytest.mark.parametrize(("heading", "module"), [("Ray", "ray"), ("Spark", "pyspark")])
def test_the_guides_lines_for_other_engines_run(
    shards: cb.Shards, alone: CellSample, heading: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(module)
    section = GUIDE.read_text(encoding="utf-8").partition(f"### {heading}\n")[2]
    found = re.search(r"```python\n(.*?)```", section, flags=re.S)
    assert found is not None
    monkeypatch.chdir(Path(shards.shards[0].where).parent)
    names: dict[str, Any] = {}
    exec(found[1].replace('"predictions/"', '"."'), names)
    assert_same(names["sums"], alone)
