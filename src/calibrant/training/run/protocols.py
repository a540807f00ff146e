"""How a network is trained, by name: what papers hold fixed while they compare losses.

================  ==========================================================================
``mukhoti``       Mukhoti et al., NeurIPS 2020, CIFAR: sum of the losses of a batch
``mukhoti-tiny``  the same for Tiny-ImageNet
``acls``          Liu et al. CVPR 2022 (MbLS), Park et al. ICCV 2023 (ACLS), FeDLaS; CIFAR
``acls-tiny``     the same for Tiny-ImageNet
``plp``           Wang and Zhang, ICML 2024: layers are frozen from the top, nothing is clipped
``quick``         one learning-rate cycle, for a small network on a CPU
================  ==========================================================================

``quick+plp``, and any other with ``+plp``, freezes layers from the top, else as it is.

SGD with momentum 0.9 and weight decay on every parameter; each step clips the gradient of the
network (not of the loss's own parameters) to a norm, but for ``plp``. With a sum, that norm is
exceeded during most of the training, so that steps have nearly one length: results differ from
those with a mean.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from calibrant.core.arguments import named

MOMENTUM = 0.9
WARM_UP = 0.2  # of a cycle
PEELED = "+plp"


@dataclass(frozen=True)
class Protocol:
    """A recipe of training.

    Attributes:
        epochs: how many; `milestones` are stretched with it.
        batch_size: images a step, over all devices together.
        rate: learning rate; the peak of a cycle.
        milestones: epochs at which the rate falls to a tenth; none: one cycle, linear up and down.
        early: the rate falls one epoch early, as it did in the reference code, which moved its
            schedule on at the start of each epoch.
        summed: the objective is the sum of the losses of a batch, not their mean.
        weight_decay: of every parameter.
        nesterov: SGD's form of momentum.
        clip: largest norm of the gradient.
        drop_last: leave out a last batch that isn't full.
        padding: of the random crop.
        plain_share: of the epochs, at the end, that see images as they are, neither cropped nor
            mirrored.
        split_seed: of the validation rows; None: the seed of the run.
        split_by_class: hold out a tenth of each class rather than of all rows.
        test_for_validation: where there are no official test images, validate on the images that
            stand in for them. What is then chosen or fitted on validation data has seen the test.
        select: which weights count: those of the last epoch, or of the best validation accuracy.
        peels: layers are frozen from the top, stage by stage: PLP.
    """

    epochs: int
    batch_size: int
    rate: float
    milestones: tuple[int, ...] = ()
    early: bool = False
    summed: bool = False
    weight_decay: float = 5e-4
    nesterov: bool = False
    clip: float = 2.0
    drop_last: bool = False
    padding: int = 4
    plain_share: float = 0.0
    split_seed: int | None = 1
    split_by_class: bool = False
    test_for_validation: bool = False
    select: Literal["last", "best"] = "last"
    peels: bool = False


PROTOCOLS = {
    "mukhoti": Protocol(350, 128, 0.1, (150, 250), early=True, summed=True),
    "mukhoti-tiny": Protocol(
        100, 64, 0.1, (40, 60), early=True, summed=True, test_for_validation=True
    ),
    "acls": Protocol(350, 128, 0.1, (150, 250), drop_last=True, split_seed=None, select="best"),
    "acls-tiny": Protocol(
        100, 64, 0.1, (40, 60), split_seed=None, split_by_class=True, select="best"
    ),
    "plp": Protocol(350, 128, 0.1, (150, 250), clip=inf, peels=True),
    "quick": Protocol(18, 128, 0.2, nesterov=True, drop_last=True, padding=2, plain_share=1 / 6),
}


def protocol_named(name: str) -> Protocol:
    """Return a protocol, with ``+plp`` behind its name one that freezes layers from the top.

    Raises:
        UnknownMethodError: there is none of this name.
    """
    if name.endswith(PEELED):
        return replace(protocol_named(name.removesuffix(PEELED)), peels=True)
    return named(PROTOCOLS, name, "protocol")


def rate_at(protocol: Protocol, step: int, steps_per_epoch: int, epochs: int, peak: float) -> float:
    """Return the learning rate of a step, counted from 0 over all epochs."""
    if not protocol.milestones:
        total = epochs * steps_per_epoch
        return peak * min((step + 1) / (WARM_UP * total), (total - step) / ((1 - WARM_UP) * total))
    epoch = step // steps_per_epoch + protocol.early
    passed = sum(epoch >= milestone * epochs / protocol.epochs for milestone in protocol.milestones)
    return peak * 0.1**passed
