"""TST and V-TST: a deeper head, plain or variational, trained on frozen features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from calibrant.core.arguments import argument
from calibrant.training.second_stages.heads import (
    VariationalHead,
    divergence_from_standard_normal,
)
from calibrant.training.second_stages.learning import (
    ModuleLearner,
    train,
)
from calibrant.training.second_stages.sources import (
    INITIAL_WEIGHTS,
    NOISE,
    FeatureSource,
    generator_for,
    random_state_kept,
)
from calibrant.training.second_stages.stage import Given, SecondStage


def initialise(module: nn.Module, seed: int) -> None:
    """Give linear and convolutional layers torch's usual start, but from a seed of their own."""
    layers = [part for part in module.modules() if isinstance(part, (nn.Linear, nn.Conv2d))]
    for position, layer in enumerate(layers):
        generator = generator_for(INITIAL_WEIGHTS, seed, position)
        bound = layer.weight[0].numel() ** -0.5
        for values in layer.parameters(recurse=False):
            with torch.no_grad():
                drawn = torch.rand(values.shape, generator=generator, dtype=torch.float64)
                values.copy_((2 * drawn - 1) * bound)


@dataclass(eq=False)
class TwoStageTraining(SecondStage):
    """TST: freeze the body, train a new head Linear(D, 3Z), ReLU, Linear(3Z, Z), Linear(Z, K).

    Trained by cross-entropy; with validation rows, the epoch of the lowest held-out NLL is kept.
    The defaults are the authors'; MaC-Cal's comparison used ``optimizer="sgd"`` at rate 0.1.

    Attributes:
        latent: Z.
        optimizer: ``"adam"``, or ``"sgd"`` with momentum 0.9 and decay 5e-4.

    References:
        Jordahn, Olmos: Decoupling Feature Extraction and Classification Layers for Calibrated
        Neural Networks. ICML 2024.
    """

    method: ClassVar[str] = "tst"
    words: ClassVar[str] = "a deeper head"

    learning_rate: float = argument(1e-4, above=0)
    batch_size: int = argument(256, at_least=1)
    latent: int = argument(10, at_least=1)
    optimizer: Literal["adam", "sgd"] = argument("adam", choices=("adam", "sgd"))

    def _module(self, source: FeatureSource) -> nn.Module:
        return nn.Sequential(
            nn.Linear(source.width, 3 * self.latent),
            nn.ReLU(),
            nn.Linear(3 * self.latent, self.latent),
            nn.Linear(self.latent, source.n_classes),
        )

    def _loss(self, module: nn.Module, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = module(features)
        return logits, functional.cross_entropy(logits, labels)

    def _first_layers(self, module: nn.Module) -> list[nn.Linear]:
        return [cast(Any, module)[0]]

    def _fit(self, given: Given) -> None:
        source = given.source
        # Features of unit variance, as Adam's rate was chosen for.
        scaling = self._scaling(source, source.width**0.5)
        with random_state_kept():
            module = self._module(source)
        initialise(module, self.seed)
        device, dtype = source.place
        module.to(device=device, dtype=dtype)
        learner = ModuleLearner(
            module,
            make_optimizer(self.optimizer, module, self.learning_rate),
            lambda features, labels: self._loss(module, features, labels),
            scaling,
            given.validation,
        )
        train(source, [learner], self.epochs, self.batch_size, given.progress)
        head = learner.finish()
        for layer in self._first_layers(head):
            scaling.fold_into(layer)
        self._keep(head, learner.history)
        if learner.best_epoch is not None:
            self.notes_.append(f"kept epoch {learner.best_epoch}, the best held-out likelihood")


@dataclass(eq=False)
class VariationalTwoStageTraining(TwoStageTraining):
    """V-TST: like TST, but the code is Gaussian, and its probabilities are averaged over samples.

    The loss is cross-entropy of one sample a row plus KL(N(mu, s) || N(0, 1)) / Z. Use is
    deterministic: the noise of the samples is drawn once and saved with the head.

    Attributes:
        samples: how many samples are averaged.

    References:
        As for TST.
    """

    method: ClassVar[str] = "v-tst"
    words: ClassVar[str] = "a deeper variational head, which draws the code of a row at random"

    samples: int = argument(10, at_least=1)

    def _module(self, source: FeatureSource) -> nn.Module:
        module = VariationalHead(source.width, self.latent, source.n_classes, self.samples)
        self._generator = generator_for(NOISE, self.seed)
        module.noise.copy_(torch.randn(self.samples, self.latent, generator=self._generator))
        return module

    def _loss(self, module: nn.Module, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        assert isinstance(module, VariationalHead)
        mean, log_variance = module.encode(features)
        noise = torch.randn(mean.shape, generator=self._generator, dtype=torch.float32).to(mean)
        logits = module.classifier(mean + (log_variance / 2).exp() * noise)
        divergence = divergence_from_standard_normal(mean, log_variance).mean() / self.latent
        return logits, functional.cross_entropy(logits, labels) + divergence

    def _first_layers(self, module: nn.Module) -> list[nn.Linear]:
        assert isinstance(module, VariationalHead)
        return [cast(Any, part)[0] for part in (module.mean, module.spread)]


def make_optimizer(
    name: Literal["adam", "sgd"], module: nn.Module, learning_rate: float
) -> torch.optim.Optimizer:
    """Return Adam, or SGD with momentum 0.9 and decay 5e-4, for all parameters of a module."""
    if name == "adam":
        return torch.optim.Adam(module.parameters(), lr=learning_rate)
    return torch.optim.SGD(module.parameters(), lr=learning_rate, momentum=0.9, weight_decay=5e-4)
