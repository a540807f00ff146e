"""What the comparison with an earlier code decides, of made-up seconds; nothing is timed."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

import pytest
from benchmarks import gate

SAME = [(1.0, 1.0 + wobble / 100) for wobble in (-4, 3, -2, 1, 0, 4, -3, 2, -1)]


def slower(by: float) -> list[gate.Pair]:
    return [(old, new * by) for old, new in SAME]


@pytest.mark.parametrize(
    ("by", "outcome"), [(0.5, "kept"), (1.0, "kept"), (1.14, "kept"), (1.17, "lost"), (3, "lost")]
)
def test_a_kernel_is_lost_above_the_limit_and_kept_below_it(by, outcome):
    found = gate.Ratio.of(slower(by))
    assert found.ratio == pytest.approx(by)
    assert found.low < found.ratio < found.high
    assert found.outcome(1.15) == outcome


def test_a_median_above_the_limit_whose_interval_holds_one_is_unclear():
    pairs = [(1.0, ratio) for ratio in (0.7, 0.8, 0.9, 0.95, 1.3, 1.4, 1.5, 1.6, 1.7)]
    assert gate.Ratio.of(pairs).outcome(1.15) == "unclear"


def test_a_drift_that_meets_both_codes_alike_is_no_loss():
    pairs = [(speed, 1.02 * speed) for speed in (1.0, 5.0, 2.0, 9.0, 1.5, 3.0, 7.0, 1.1, 4.0)]
    found = gate.Ratio.of(pairs)
    assert found.outcome(1.15) == "kept"
    assert found.ratio == pytest.approx(1.02)


def test_the_interval_is_that_of_the_sign_test():
    found = gate.Ratio.of([(1.0, float(k)) for k in range(1, 10)])
    # Fewer than two of nine numbers are below their median in 1.95 % of runs.
    assert (found.low, found.ratio, found.high) == (2.0, 5.0, 8.0)
    few = gate.Ratio.of([(1.0, 2.0), (1.0, 3.0)])
    assert (few.low, few.high) == (2.0, 3.0)


class Measuring:
    """Gives made-up pairs: first some, then others."""

    def __init__(self, *answers: Sequence[gate.Pair]) -> None:
        self.answers, self.asked = list(answers), list[int]()

    def __call__(self, turns: int) -> Sequence[gate.Pair]:
        self.asked.append(turns)
        return self.answers[len(self.asked) - 1]


def test_what_is_quick_enough_is_measured_once():
    measure = Measuring(SAME)
    assert gate.judged(measure, 9).outcome() == "kept"
    assert measure.asked == [9]


def test_what_looks_slower_is_measured_again_and_all_turns_count():
    chance = Measuring(slower(1.3), SAME * 3)
    assert gate.judged(chance, 9).outcome() == "kept"
    assert chance.asked == [9, 27]
    real = Measuring(slower(1.3), slower(1.3) * 3)
    assert gate.judged(real, 9).outcome() == "lost"


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [([], 0), (["kept"] * 3, 0), (["kept", "lost"], 1), (["unclear", "kept"], 1)],
)
def test_one_kernel_that_lost_its_speed_fails_the_run(outcomes, code):
    assert gate.exit_code(outcomes) == code


def test_without_a_release_the_refusal_names_the_command(tmp_path, monkeypatch):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="--against REVISION"):
        gate.newest_release()


def test_every_kernel_has_a_name_of_its_own_and_a_size():
    assert all(rows >= 0 and classes >= 0 for rows, classes in gate.KERNELS.values())
    compile(gate.WORKER, "worker", "exec")
