"""Laws that every loss keeps: shapes, ignored targets, precision, reductions, gradients, state."""

from __future__ import annotations

import copy
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from calibrant.core.errors import InputError, UnknownMethodError
from calibrant.training.losses import (
    LOSSES,
    AdaFocal,
    CalibrationLoss,
    CrossEntropy,
    FeDLaS,
    Focal,
    GateRecorder,
    focal_gamma,
    make_loss,
)
from calibrant.training.losses.registry import list_of_losses

CLASSES = 5
SAMPLES = 24
EVERY = [*LOSSES, "mmce unweighted", "soft-ece label-binned", "rankmixup m-ndcg", "acls min"]
SETTINGS: dict[str, dict[str, Any]] = {
    "mmce unweighted": {"form": "unweighted"},
    "soft-ece": {"temperature": 0.1},
    "soft-ece label-binned": {"temperature": 0.1, "form": "label-binned"},
    "rankmixup m-ndcg": {"form": "m-ndcg"},
    "acls": {"margin": 1.0},
    "acls min": {"margin": 1.0, "reference": "min"},
    "mbls": {"margin": 1.0},
    "fedlas-mbls": {"margin": 1.0},
    "crl": {"samples": SAMPLES},
}


def make(case: str, **arguments: Any) -> CalibrationLoss:
    torch.manual_seed(1)
    loss = make_loss(case.split()[0], CLASSES, **SETTINGS.get(case, {}), **arguments).double()
    if hasattr(loss, "times_right"):
        loss.times_right.random_(0, 5)
        loss.epochs.fill_(5)
    if isinstance(loss, AdaFocal):
        loss.gammas.uniform_(-2, 5)
    if isinstance(loss, FeDLaS):
        loss.running_mean.fill_(4)
        loss.running_std.fill_(2)
    return loss


class Batch:
    """Logits, targets and whatever else a loss may ask for, rows along the first axis."""

    def __init__(self, rows: int = 12, seed: int = 0) -> None:
        draw = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=draw, dtype=torch.float64)

        self.logits = 3 * normal(rows, CLASSES)
        self.target = torch.randint(CLASSES, (rows,), generator=draw)
        # Half of the rows are right, so that no statistic is empty.
        self.target[::2] = self.logits.argmax(1)[::2]
        self.features = normal(rows, 7)
        self.index = torch.randperm(SAMPLES, generator=draw)[:rows]
        self.mixed_logits = 3 * normal(3, rows, CLASSES)
        self.mixed_target = torch.rand(3, rows, CLASSES, generator=draw).double().softmax(2)

    def take(self, rows: Tensor | slice) -> Batch:
        part = copy.copy(self)
        for name in ("logits", "target", "features", "index"):
            setattr(part, name, getattr(self, name)[rows])
        part.mixed_logits = self.mixed_logits[:, rows]
        part.mixed_target = self.mixed_target[:, rows]
        return part

    def loss(self, loss: CalibrationLoss, logits: Tensor | None = None) -> Tensor:
        extra: dict[str, Tensor] = {}
        if "index" in loss.needs:
            extra["index"] = self.index
        if "mixed" in loss.needs:
            extra |= {"mixed_logits": self.mixed_logits, "mixed_target": self.mixed_target}
        features = self.features if "features" in loss.needs else None
        given = self.logits if logits is None else logits
        return loss(given, self.target, features, **extra)


def gradient(batch: Batch, loss: CalibrationLoss) -> Tensor:
    logits = batch.logits.clone().requires_grad_()
    batch.loss(loss, logits).backward()
    return logits.grad


# By definition the gradient of ACLS leaves out a part; it is tested below.
@pytest.mark.parametrize("case", [case for case in EVERY if not case.startswith("acls")])
def test_gradient_is_the_derivative(case):
    loss, batch = make(case).eval(), Batch(6)
    logits = batch.logits.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: batch.loss(loss, z), (logits,))


@pytest.mark.parametrize("reference", ["raw", "min"])
def test_gradient_of_acls(reference):
    loss, batch = make("acls", reference=reference), Batch()
    z = batch.logits
    top = z.argmax(1)
    rows = torch.arange(len(z))
    is_top = torch.nn.functional.one_hot(top, CLASSES).double()
    floor = z.amin(1) if reference == "min" else 0
    peak = (z[rows, top] - floor - 1).relu()[:, None]
    others = (z[rows, top][:, None] - z - 1).relu()
    by_penalty = 2 * peak * is_top - 0.1 * 2 * others * (1 - is_top) / (CLASSES - 1)
    by_entropy = z.softmax(1) - torch.nn.functional.one_hot(batch.target, CLASSES)
    expected = (by_entropy + 0.1 * by_penalty) / len(z)
    torch.testing.assert_close(gradient(batch, loss), expected)
    shifted = batch.loss(loss, z + 100)
    assert torch.isclose(shifted, batch.loss(loss)) == (reference == "min")


@pytest.mark.parametrize(
    ("name", "neutral"),
    [
        ("label-smoothing", {"alpha": 0.0}),
        ("confidence-penalty", {"beta": 0.0}),
        ("focal", {"gamma": 0.0}),
        ("flsd", {"gammas": (0.0, 0.0, 0.0)}),
        ("dual-focal", {"gamma": 0.0}),
        ("mbls", {"alpha": 0.0}),
        ("acls", {"alpha": 0.0}),
        ("cpc", {"discrimination": 0.0, "exclusion": 0.0}),
        ("mmce", {"weight": 0.0}),
        ("mdca", {"weight": 0.0, "base": "cross-entropy"}),
        ("soft-ece", {"weight": 0.0}),
        ("soft-avuc", {"weight": 0.0}),
        ("crl", {"weight": 0.0, "samples": SAMPLES}),
        ("rankmixup", {"weight": 0.0}),
        ("fedlas-ls", {"alpha": 0.0}),
        ("fedlas-mbls", {"alpha": 0.0}),
    ],
)
def test_neutral_setting_is_cross_entropy(name, neutral):
    loss, batch = make_loss(name, CLASSES, **neutral).double(), Batch()
    plain = torch.nn.functional.cross_entropy(batch.logits, batch.target)
    torch.testing.assert_close(batch.loss(loss), plain, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient(batch, loss), gradient(batch, CrossEntropy()))


def test_adafocal_without_exponents_is_cross_entropy():
    loss, batch = AdaFocal(), Batch()
    loss.gammas.zero_()
    torch.testing.assert_close(batch.loss(loss), batch.loss(CrossEntropy()))


@pytest.mark.parametrize("base", ["ls", "mbls"])
def test_fedlas_without_sensitivity_is_convex_in_its_base(base):
    loss, batch = FeDLaS(CLASSES, base, alpha=0.2, beta=0.0, margin=1.0), Batch()
    entropy = torch.nn.functional.cross_entropy(batch.logits, batch.target)
    if base == "ls":
        regulariser = -batch.logits.log_softmax(1).mean()
    else:
        gaps = batch.logits.amax(1, keepdim=True) - batch.logits
        regulariser = (gaps - 1).relu().mean()
    torch.testing.assert_close(batch.loss(loss), 0.8 * entropy + 0.2 * regulariser)


PLAIN = [case for case in EVERY if not case.startswith(("crl", "rankmixup"))]


@pytest.mark.parametrize("case", PLAIN)
def test_dense_is_flattened(case):
    batch = Batch(12)
    flat = batch.loss(make(case))

    def dense(rows: Tensor) -> Tensor:
        return rows.reshape(2, 3, 2, -1).movedim(-1, 1)

    arguments = dense(batch.logits), batch.target.reshape(2, 3, 2), dense(batch.features)
    torch.testing.assert_close(make(case)(*arguments), flat, rtol=1e-12, atol=0)
    rowwise = make(case, reduction="none")(*arguments)
    assert rowwise.shape == (2, 3, 2)
    expected = batch.loss(make(case, reduction="none"))
    torch.testing.assert_close(rowwise.flatten(), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("ignore", [-100, 255])
@pytest.mark.parametrize("case", EVERY)
def test_ignored_rows_count_nowhere(case, ignore):
    batch = Batch(12)
    kept = torch.ones(12, dtype=torch.bool)
    kept[[0, 3, 4, 11]] = False
    batch.target[~kept] = ignore
    few, all_rows = make(case), make(case, ignore_index=ignore)
    part = batch.take(kept)
    expected = gradient(part, few)
    # Whatever ignored rows hold, infinities included, mustn't leak into value or gradient.
    batch.logits[3], batch.features[3] = float("inf"), float("nan")
    batch.mixed_logits[:, 3], batch.mixed_target[:, 3] = 0, 1
    found = gradient(batch, all_rows)
    torch.testing.assert_close(found[kept], expected, rtol=1e-9, atol=1e-12)
    assert (found[~kept] == 0).all()
    few, all_rows = make(case), make(case, ignore_index=ignore)
    torch.testing.assert_close(batch.loss(all_rows), part.loss(few), rtol=1e-9, atol=1e-12)
    for left, right in zip(few.state_dict().values(), all_rows.state_dict().values(), strict=True):
        torch.testing.assert_close(left, right)


@pytest.mark.parametrize("case", EVERY)
def test_a_batch_that_is_all_ignored_gives_zero(case):
    batch, loss = Batch(4), make(case)
    batch.target[:] = -100
    before = copy.deepcopy(loss.state_dict())
    logits = batch.logits.clone().requires_grad_()
    value = batch.loss(loss, logits)
    value.backward()
    assert value == 0
    assert (logits.grad == 0).all()
    for name, left in loss.state_dict().items():
        torch.testing.assert_close(left, before[name])


@pytest.mark.parametrize("case", EVERY)
def test_batches_of_no_row_and_of_one(case):
    loss = make(case)
    for rows in (0, 1):
        batch = Batch(12).take(slice(0, rows))
        logits = batch.logits.clone().requires_grad_()
        value = batch.loss(loss, logits)
        value.backward()
        assert torch.isfinite(value)
        assert torch.isfinite(logits.grad).all()
        assert (value == 0) == (rows == 0)


@pytest.mark.parametrize("case", EVERY)
def test_two_classes(case):
    loss, batch = make_loss(case.split()[0], 2, **SETTINGS.get(case, {})).double(), Batch()
    batch.logits, batch.target = batch.logits[:, :2], batch.target % 2
    batch.mixed_logits = batch.mixed_logits[..., :2]
    batch.mixed_target = batch.mixed_target[..., :2].softmax(2)
    found = gradient(batch, loss)
    assert torch.isfinite(found).all()
    assert (found != 0).any()


@pytest.mark.parametrize("case", EVERY)
def test_a_used_loss_can_be_copied(case):
    loss, batch = make(case), Batch()
    batch.loss(loss)
    for other in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert batch.loss(other.eval()) == batch.loss(loss.eval())


@pytest.mark.parametrize("case", EVERY)
def test_reductions_agree(case):
    batch = Batch()
    batch.target[2] = -100
    mean, total, rows = (
        batch.loss(make(case, reduction=reduction)) for reduction in ("mean", "sum", "none")
    )
    assert rows.shape == batch.target.shape
    assert rows[2] == 0
    torch.testing.assert_close(total, 11 * mean, rtol=1e-12, atol=0)
    torch.testing.assert_close(rows.sum(), total, rtol=1e-12, atol=0)


@pytest.mark.parametrize("case", EVERY)
def test_autocast_is_left_for_the_loss(case):
    batch, loss = Batch(), make(case).float()
    batch.features, batch.mixed_logits = batch.features.float(), batch.mixed_logits.float()
    half = batch.logits.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = batch.loss(loss.eval(), half)
    outside = batch.loss(loss.eval(), half.float())
    assert inside.dtype == torch.float32
    assert inside == outside


@pytest.mark.parametrize("case", EVERY)
def test_state_goes_through_a_checkpoint(case):
    used, batch = make(case), Batch()
    fresh = make_loss(case.split()[0], CLASSES, **SETTINGS.get(case, {}))
    batch.loss(used)
    used.end_epoch()
    if isinstance(used, AdaFocal):
        used.update_from_validation(batch.logits, batch.target)
    fresh.double().load_state_dict(used.state_dict())
    assert batch.loss(fresh) == batch.loss(used)


@pytest.mark.parametrize("case", EVERY)
def test_eval_mode_and_frozen_leave_the_state_alone(case):
    loss, batch = make(case), Batch()
    before = copy.deepcopy(loss.state_dict())
    with loss.frozen():
        frozen = batch.loss(loss)
    assert frozen == batch.loss(loss.eval())
    for name, left in loss.state_dict().items():
        assert torch.equal(left, before[name])


@pytest.mark.parametrize("case", EVERY)
def test_gradients_of_micro_batches_add_up_or_are_said_not_to(case):
    loss, batch = make(case).eval(), Batch(12)
    whole = gradient(batch, loss)
    halves = [gradient(batch.take(slice(*ends)), loss) / 2 for ends in ((0, 6), (6, 12))]
    additive = torch.allclose(torch.cat(halves), whole, rtol=1e-9, atol=1e-12)
    # The ranking of RankMixup is within a row; it is refused for mixing on other grounds.
    assert additive == (loss.per_sample or case.startswith("rankmixup"))


@pytest.mark.parametrize("case", EVERY)
def test_no_value_is_asked_for_on_the_way(case):
    """On the meta device there are no values: whatever would wait for an accelerator fails."""
    loss, batch = make(case).to("meta"), Batch(12)
    for name in ("logits", "target", "features", "index", "mixed_logits", "mixed_target"):
        setattr(batch, name, getattr(batch, name).to("meta"))
    logits = batch.logits.clone().requires_grad_()
    batch.loss(loss, logits).backward()
    assert logits.grad.shape == logits.shape
    if case.startswith("mmce"):
        loss.max_rows = 5
        batch.loss(loss, logits).backward()
    if isinstance(loss, FeDLaS):
        recorder = GateRecorder(SAMPLES, device="meta")
        recorder.record(loss, batch.index, logits, batch.target)
        assert loss.last.share(1).shape == ()


def test_float16_features_keep_large_norms():
    features = torch.full((4, 8192), 20.0, dtype=torch.float16)
    loss = FeDLaS(CLASSES, theta=1.0)
    loss(torch.zeros(4, CLASSES, dtype=torch.float16), torch.zeros(4, dtype=torch.long), features)
    assert loss.running_mean == 20 * 8192


@pytest.mark.parametrize("case", ["cross-entropy", "confidence-penalty", "focal", "mbls", "brier"])
def test_extreme_logits_stay_finite(case):
    logits = torch.tensor([[1e4, 0.0, -1e4], [-1e4, 0.0, 1e4]], requires_grad=True)
    loss = make_loss(case, 3)(logits, torch.tensor([0, 0]))
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("case", EVERY)
def test_compiles_in_one_graph(case):
    torch._dynamo.reset()
    batch = Batch()
    loss, compiled = make(case), make(case)
    program = torch.compile(compiled, backend="aot_eager", fullgraph=True)
    program.needs = loss.needs
    for _ in range(2):
        logits = batch.logits.clone().requires_grad_()
        batch.loss(program, logits).backward()
        torch.testing.assert_close(logits.grad, gradient(batch, loss))
    for name, buffer in loss.state_dict().items():
        torch.testing.assert_close(compiled.state_dict()[name], buffer)
    if isinstance(loss, FeDLaS):
        torch.testing.assert_close(compiled.last.alpha, loss.last.alpha)


@pytest.mark.skipif(shutil.which("g++") is None, reason="the default compiler needs g++")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # of its own parts, by its compiler
def test_the_default_compiler_computes_the_same():
    torch._dynamo.reset()
    batch = Batch()
    loss, compiled = make("fedlas-ls"), make("fedlas-ls")
    program = torch.compile(compiled)
    program.needs = loss.needs
    logits = batch.logits.clone().requires_grad_()
    batch.loss(program, logits).backward()
    torch.testing.assert_close(logits.grad, gradient(batch, loss))


@pytest.mark.parametrize(
    ("logits", "target"),
    [((4,), (4,)), ((4, 3), (3,)), ((4, 3, 2), (4,)), ((2, 3, 4, 4), (2, 4, 3))],
)
def test_shapes_that_do_not_fit(logits, target):
    with pytest.raises(InputError, match="logits must be"):
        CrossEntropy()(torch.zeros(logits), torch.zeros(target, dtype=torch.long))


def test_targets_that_are_no_classes():
    with pytest.raises(InputError, match="whole numbers"):
        CrossEntropy()(torch.zeros(2, 3), torch.zeros(2))
    with pytest.raises(InputError, match="features must be"):
        FeDLaS(3)(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long), torch.zeros(3, 4))
    with pytest.raises(InputError, match="needs features="):
        FeDLaS(3)(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))
    with pytest.raises(InputError, match="made for 4 classes"):
        FeDLaS(4)(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long), torch.zeros(2, 4))


def test_what_a_loss_needs_in_training():
    logits, target = torch.zeros(2, 3), torch.zeros(2, dtype=torch.long)
    for loss in (make_loss("crl", 3, samples=2), make_loss("rankmixup", 3)):
        with pytest.raises(InputError, match="needs"):
            loss(logits, target)
        assert loss.eval()(logits, target) == CrossEntropy()(logits, target)


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("fedlas-ls", {"alpha": 0.6}, "alpha must be .* at most 0.5"),
        ("fedlas-ls", {"theta": 0.0}, "theta must be .* above 0"),
        ("fedlas-ls", {"gate": "open"}, "gate must be one of learnt"),
        ("focal", {"gamma": -1.0}, "gamma must be .* at least 0"),
        ("focal", {"gamma": {5: 1.0}}, "from epoch 0"),
        ("flsd", {"gammas": (1.0,)}, "one more"),
        ("flsd", {"boundaries": 0.5}, "boundaries must be several numbers, not 0.5"),
        ("label-smoothing", {"alpha": "much"}, "alpha must be a finite number"),
        ("cross-entropy", {"reduction": "average"}, "reduction must be one of"),
        ("cross-entropy", {"alpha": 0.1}, "no argument 'alpha'"),
        ("crl", {}, "needs the argument 'samples'"),
        ("mdca", {"base": "fedlas-ls"}, "not to FeDLaS"),
        ("mdca", {"base": "mmce"}, "not to MMCE"),
        ("mdca", {"base_gamma": 3.0}, "needs base="),
    ],
)
def test_arguments_are_checked(name, arguments, words):
    with pytest.raises(InputError, match=words):
        make_loss(name, CLASSES, **arguments)


def test_registry():
    with pytest.raises(UnknownMethodError, match="did you mean 'focal'"):
        make_loss("focl", 10)
    with pytest.raises(UnknownMethodError, match="no data set is called 'mnist'"):
        make_loss("focal", 10, dataset="mnist")
    assert make_loss("mdca", 10, base="focal", base_gamma=3.0).base.gamma == 3
    assert isinstance(make_loss("soft-ece", 10, base="focal").base, Focal)
    fine = make_loss("fedlas-mbls", 200, dataset="cub", theta=0.3)
    assert (fine.alpha, fine.beta, fine.margin, fine.theta) == (0.05, 0.5, 10, 0.3)
    hundred = make_loss("fedlas-ls", 100, dataset="cifar100")
    assert (hundred.alpha, hundred.beta, hundred.theta) == (0.1, 4, 0.5)


def test_gamma_of_equal_pull():
    for probability in (0.05, 0.2, 0.25, 0.4):
        gamma, p = focal_gamma(probability), torch.tensor(probability, dtype=torch.float64)
        p.requires_grad_()
        (-((1 - p) ** gamma) * p.log()).backward()
        # Cross-entropy has the slope -1 / p.
        assert p.grad.item() == pytest.approx(-1 / probability, rel=1e-9)
        assert gamma > 0
    with pytest.raises(InputError, match="below 1/2"):
        focal_gamma(0.5)


def test_the_list_in_the_guide_is_what_the_losses_say_of_themselves():
    guide = (Path(__file__).parent.parent / "docs/appendix/losses.md").read_text(encoding="utf-8")
    listed = [line for line in guide.splitlines() if line.startswith("| `")]
    shown = [tuple(cell.strip() for cell in line[1:-1].split(" |")) for line in listed]
    told = [(f"`{name}`", f"`{kind}`", *rest) for name, kind, *rest in list_of_losses()]
    assert shown[: len(told)] == told
