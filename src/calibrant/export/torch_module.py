"""A map as a torch module, alone or behind the network whose logits it reads."""

from __future__ import annotations

import re
from collections.abc import Callable
from os import fspath
from pathlib import Path
from typing import Any, cast

from calibrant.core.arguments import within
from calibrant.core.errors import (
    InputError,
    MissingDependencyError,
    NotApplicableError,
    PredictionsError,
)
from calibrant.core.outputs import StrPath, replacing
from calibrant.export.exportable import Exportable, Outputs, needs_features, read_kind, ready
from calibrant.predictions.binary import as_logits

try:
    import array_api_compat.torch as xt
    import torch
    from torch import Tensor, nn
except ImportError as error:
    raise MissingDependencyError(
        "torch modules need the package torch: pip install 'calibrant[torch]'"
    ) from error

# Narrower than what probabilities are computed in.
NARROW = (torch.float16, torch.bfloat16)
# Rows that a program may be given at once.
MOST_ROWS = 1 << 24


class CalibratorModule(nn.Module):
    """The map of a fitted calibrator as a module: (N, K) scores in, probabilities out.

    What was learnt are buffers in float64, which stay so whatever the module is cast to: a
    temperature in half precision would be another one. Rows of float16 and bfloat16 are computed
    and returned in float32, as `predict_proba` does. It can be moved, compiled with ``fullgraph``,
    exported, and differentiated by the logits; nothing is checked but shapes. Nothing in it is
    trained. Devices without float64, such as MPS, can't hold it.

    Args:
        calibrator: a fitted calibrator. The module takes copies.
        kind: what it is given, ``"logits"`` or ``"probs"``; None for what it was fitted to.

    Raises:
        NotFittedError: it has not been fitted.

    Examples:
        >>> import calibrant as cb
        >>> import torch
        >>> scaling = cb.TemperatureScaling().fit_predictions(cb.load_sample("validation"))
        >>> module = scaling.to_torch()
        >>> module.half()(torch.zeros(1, 10, dtype=torch.float16))[0, :2]
        tensor([0.1000, 0.1000])
    """

    def __init__(self, calibrator: Exportable, kind: str | None = None) -> None:
        super().__init__()
        arrays = ready(calibrator)
        self._map = calibrator.bare()
        self.method, self.n_classes = calibrator.method, calibrator.n_classes_
        self.kind, self.of_rows = read_kind(calibrator, kind), calibrator.form_ == "rows"
        self.placing = calibrator.placing_
        self.feature_width = calibrator.feature_width if needs_features(calibrator) else None
        self._names: dict[str, str] = {}
        for name, array in arrays.items():
            place = re.sub(r"\W", "_", name.replace("/", "__"))
            while hasattr(self, place):
                place += "_"
            self._names[name] = place
            self.register_buffer(place, torch.tensor(array).contiguous())

    def extra_repr(self) -> str:
        """Return the text in a printed module's brackets."""
        return f"method='{self.method}', classes={self.n_classes}"

    def forward(self, scores: Tensor, features: Tensor | None = None) -> Tensor:
        """Return (N, K) probabilities of (N, K) scores, or (K,) of one row of (K,).

        Args:
            scores: logits, in which minus infinity masks a class that a row can't be, or
                probabilities; of binary predictions also (N,), and none of these is a single row;
                or (N,) scores that are no probabilities, if it was fitted to some.
            features: (N, D), for methods that read them.

        Raises:
            PredictionsError: another number of classes or features, or no features.
        """
        if scores.ndim == 1 and self.of_rows:
            return self.forward(scores[None], None if features is None else features[None])[0]
        if scores.ndim == 2 and scores.shape[1] == 1 and not self.of_rows:
            scores = scores[:, 0]
        self._check(scores, features)
        if scores.dtype in NARROW:
            scores = scores.float()
        elif not scores.is_floating_point():
            scores = scores.double()
        logits = as_logits(xt, scores, self.kind, self.placing)
        learnt = {name: getattr(self, place) for name, place in self._names.items()}
        transform = self._map.transform
        if logits.device.type != "meta" and torch.is_autocast_enabled(logits.device.type):
            with torch.autocast(logits.device.type, enabled=False):
                return transform(xt, logits, features, learnt)
        return transform(xt, logits, features, learnt)

    def _check(self, scores: Tensor, features: Tensor | None) -> None:
        width = self.n_classes
        one, rows = scores.ndim == 1, scores.ndim == 2 and scores.shape[1] == width
        if self.kind == "score" and not one:
            raise PredictionsError(
                f"this '{self.method}' calibrator was fitted to scores of shape (N,), not "
                f"{tuple(scores.shape)}"
            )
        if not (rows or (one and not self.of_rows)):
            raise PredictionsError(
                f"this '{self.method}' calibrator was fitted for {width} classes and "
                f"needs {self.kind} of shape (N, {width}), not {tuple(scores.shape)}"
            )
        width = self.feature_width
        if width is None:
            return
        if features is None:
            raise PredictionsError(
                f"this '{self.method}' calibrator needs features of shape (N, {width}) beside the "
                "logits"
            )
        if features.ndim != 2 or features.shape[1] != width:
            raise PredictionsError(
                f"this '{self.method}' calibrator was fitted for {width} features and needs "
                f"features of shape (N, {width}), not {tuple(features.shape)}"
            )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> CalibratorModule:
        def moved(tensor: Tensor) -> Tensor:
            found = fn(tensor)
            return found if found.dtype == tensor.dtype else tensor.to(found.device)

        return cast(Any, super())._apply(moved, recurse)


class CalibratedModule(nn.Module):
    """A network followed by a calibrator: the network's inputs in, probabilities out.

    Its `state_dict` has the network's weights and the calibrator's numbers, so that safetensors
    saves and loads both without pickle.

    Args:
        network: gives (N, K) logits, or logits and (N, D) features as the first two of a tuple, or
            something with ``logits`` (and ``features``) as attributes.
        calibrator: fitted to the network's logits, or a module that `to_torch` made of it.

    Examples:
        >>> import calibrant as cb
        >>> import torch
        >>> network = torch.nn.Linear(64, 10)
        >>> scaling = cb.TemperatureScaling().fit_predictions(cb.load_sample("validation"))
        >>> model = cb.posthoc.CalibratedModule(network, scaling)
        >>> model(torch.zeros(1, 64)).shape
        torch.Size([1, 10])
        >>> sorted(model.state_dict())
        ['calibrator.beta_', 'network.bias', 'network.weight']
    """

    def __init__(self, network: nn.Module, calibrator: Exportable | CalibratorModule) -> None:
        super().__init__()
        self.network = network
        self.calibrator = (
            calibrator if isinstance(calibrator, CalibratorModule) else CalibratorModule(calibrator)
        )

    def forward(self, *inputs: Any, **more: Any) -> Tensor:
        """Return (N, K) probabilities for what the network takes.

        Raises:
            PredictionsError: the network doesn't give logits, or gives other classes than the
                calibrator's.
        """
        logits, features = _logits_and_features(self.network(*inputs, **more))
        return self.calibrator(logits, features)


def _logits_and_features(given: Any) -> tuple[Tensor, Tensor | None]:
    if isinstance(given, Tensor):
        return given, None
    if hasattr(given, "logits"):
        return given.logits, getattr(given, "features", None)
    parts = cast(tuple[Any, ...], given) if type(given) in (tuple, list) else ()
    if parts and all(isinstance(part, Tensor) for part in parts[:2]):
        return parts[0], parts[1] if len(parts) > 1 else None
    raise PredictionsError(
        "a network must give logits, logits and features, or something with 'logits', not "
        f"{type(given).__name__}"
    )


class DecidedModule(nn.Module):
    """A calibrator as a module, and behind it what a decision makes of each row.

    It gives a dict: ``probs`` (N, K), and what the decision adds to rows, such as ``answer`` (N,).

    Args:
        calibrator: a module of it; decided: what is decided of probabilities and confidences.
    """

    def __init__(self, calibrator: CalibratorModule, decided: Outputs, top_only: bool) -> None:
        super().__init__()
        self.calibrator, self._decided, self.top_only = calibrator, decided, top_only
        self.method, self.kind = calibrator.method, calibrator.kind
        self.n_classes, self.feature_width = calibrator.n_classes, calibrator.feature_width

    def forward(self, scores: Tensor, features: Tensor | None = None) -> dict[str, Tensor]:
        """Return what is decided of rows, as `CalibratorModule` takes them; never a single row."""
        if scores.ndim == 1 and self.calibrator.of_rows:
            raise PredictionsError(
                f"a decision takes rows of shape (N, {self.n_classes}), not {tuple(scores.shape)}"
            )
        probs = self.calibrator(scores, features)
        said = probs[:, 1] if self.top_only else torch.amax(probs, dim=1)
        return {"probs": probs, **cast(dict[str, Tensor], self._decided(xt, probs, said))}


def write_program(module: CalibratorModule | DecidedModule, path: StrPath, dtype: str) -> None:
    """Write a module as a program that torch alone runs (`torch.export`), for any number of rows.

    Raises:
        InputError: another extension, dtype, or a folder that doesn't exist.
    """
    if isinstance(path, torch.nn.Module):
        raise InputError(
            "to_torch takes a path; to put a calibrator behind a network, use "
            "CalibratedModule(network, calibrator)"
        )
    if Path(path).suffix != ".pt2":
        raise InputError(f"{fspath(path)}: a torch program is saved as .pt2")
    within("dtype", dtype, choices=("float32", "float64"))
    shapes = [() if module.kind == "score" else (module.n_classes,)]
    shapes += [] if module.feature_width is None else [(module.feature_width,)]
    given = tuple(torch.zeros(3, *shape, dtype=getattr(torch, dtype)) for shape in shapes)
    free = torch.export.Dim("rows", min=1, max=MOST_ROWS)
    names = ("scores", "features")[: len(given)]
    try:
        program = torch.export.export(
            module, given, dynamic_shapes={name: {0: free} for name in names}
        )
    except Exception as error:
        raise NotApplicableError(
            f"method '{module.method}' can't be exported: torch can't follow its map ({error})"
        ) from error
    with replacing(path) as temporary:
        torch.export.save(program, temporary)
