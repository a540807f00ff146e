"""How honest a trained network is on its test images, and what one temperature makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrant.core.text import wrap
from calibrant.evaluation.evaluate import evaluate
from calibrant.evaluation.formatting import with_interval, with_unit
from calibrant.evaluation.results import Evaluation
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import softmax
from calibrant.predictions.temperature import warn_of
from calibrant.training.run.settings import RunSettings
from calibrant.training.run.trained import Trained


@dataclass(frozen=True, kw_only=True, eq=False)
class RunOutcome:
    """A finished run, measured. Prints as a table with what one temperature would give.

    Attributes:
        settings: of the run.
        folder: of the run.
        history: a row for every epoch.
        test: all metrics on the test images.
        temperature: T that fits the validation images best.
        rescaled: ECE and NLL on the test images with logits divided by it.
    """

    settings: RunSettings
    folder: Path
    history: list[dict[str, float]]
    test: Evaluation
    temperature: float
    rescaled: Evaluation

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON takes it; fractions and nats."""
        return {
            "settings": vars(self.settings),
            "folder": str(self.folder),
            "history": self.history,
            "test": self.test.as_dict(),
            "temperature": self.temperature,
            "test_after_temperature": self.rescaled.as_dict(),
        }

    def __str__(self) -> str:
        settings, ece, nll = self.settings, self.rescaled["ece"], self.rescaled["nll"]
        return (
            f"{settings.net} trained with {settings.loss} for {settings.total_epochs} epochs, in "
            f"{self.folder}\n\n{self.test}\n\n"
            + wrap(
                f"With the temperature that fits the validation rows best, {self.temperature:.3f}, "
                f"the ECE is {with_interval(ece.metric, ece.ends)} and the NLL "
                f"{with_unit(nll.metric, nll.value)}."
            )
        )


def evaluate_run(settings: RunSettings, trained: Trained) -> RunOutcome:
    """Measure a trained network on its test images, as it is and with one temperature.

    Args:
        settings: of the run.
        trained: what `train` gave.
    """
    test, fit = trained.test, trained.validation.temperature
    warn_of(fit.warning)
    rescaled = Predictions.from_probs(
        softmax(test.logits, fit.beta), test.labels, source=f"{test.source}, rescaled"
    )
    return RunOutcome(
        settings=settings,
        folder=trained.folder,
        history=trained.history,
        test=evaluate(test),
        temperature=fit.temperature,
        rescaled=evaluate(rescaled, metrics=["ece", "nll"]),
    )
