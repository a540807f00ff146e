"""Several runs or dates side by side."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import calibrant as cb
from calibrant.cli.app import app
from calibrant.evaluation.history import History


def day(n: int, sharper: float, seed: int) -> cb.Predictions:
    rng = np.random.default_rng(seed)
    log_odds = rng.normal(size=n) * 2
    labels = rng.random(n) < 1 / (1 + np.exp(-log_odds))
    return cb.Predictions.from_binary(sharper * log_odds, labels.astype(int), kind="logit")


def history(*days: cb.Predictions) -> History:
    return History({f"day {i}": cb.evaluate(rows, resamples=200) for i, rows in enumerate(days, 1)})


def test_a_change_for_the_worse_is_found_and_noise_is_not() -> None:
    honest, again, sharp = day(3_000, 1, 0), day(2_500, 1, 1), day(3_000, 3, 2)
    worse = history(honest, sharp)
    assert worse.change().low > 0
    assert "higher" in worse.headline()
    assert "can't be told from that in day 1" in history(honest, again).headline()


def test_the_interval_of_a_change_is_that_of_two_independent_sets() -> None:
    found = history(day(3_000, 1, 0), day(3_000, 1, 1))
    first, last = (each["nll"] for each in found.evaluations.values())
    spread = np.hypot(first.replicates.std(), last.replicates.std())
    change = found.change("nll")
    assert change.value == pytest.approx(last.value - first.value)
    assert (change.high - change.low) / (2 * 1.96) == pytest.approx(spread, rel=0.2)


def test_sets_of_other_sizes_keep_their_order_and_numbers(tmp_path: Path) -> None:
    found = history(day(400, 1, 0), day(900, 2, 1), day(600, 3, 2))
    assert [row[1] for row in found.as_table().rows] == ["400", "900", "600"]
    found.to_html(tmp_path / "h.html")
    page = (tmp_path / "h.html").read_text(encoding="utf-8")
    assert page.count("<svg") == len(found.metrics)
    drawn = page[page.index("<svg") :]
    assert drawn.index("day 1") < drawn.index("day 2") < drawn.index("day 3")
    assert "<script" not in page


def test_long_names_are_drawn_by_what_tells_them_apart(tmp_path: Path) -> None:
    folder = "predictions of a long experiment/of the"
    names = [f"{folder} {number}th of October in the year.npz" for number in (4, 5, 16, 17, 18, 19)]
    found = cb.evaluate(day(300, 1, 0), metrics=["ece"], resamples=20)
    History(dict.fromkeys(names, found)).to_html(tmp_path / "h.html")
    page = (tmp_path / "h.html").read_text(encoding="utf-8")
    assert all(f">…{number}…<" in page for number in (4, 5, 16, 17, 18, 19))


def test_one_set_is_no_history() -> None:
    with pytest.raises(cb.InputError, match="at least two"):
        history(day(300, 1, 0))


def test_the_command_line_writes_the_page_of_several_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, sharper in (("monday.npz", 1), ("tuesday.npz", 3)):
        cb.write_predictions(day(2_000, sharper, 3), name)
    files = ["monday.npz", "tuesday.npz"]
    more = ["--each", "--resamples", "50", "--report", "p.html"]
    done = CliRunner().invoke(app, ["measure", *files, *more])
    assert done.exit_code == 0, done.output
    assert "higher" in done.stdout
    assert "In percent: confidence; accuracy; ECE. Floor 95 %: " in done.stdout
    assert "tuesday.npz" in done.stdout
    assert "monday.npz" in Path("p.html").read_text(encoding="utf-8")
    done = CliRunner().invoke(app, ["measure", *files, *more, "--by", "class"])
    assert "leave out --by" in str(done.exception)
