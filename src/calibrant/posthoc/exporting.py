"""What all calibrators have to leave Python with: intervals as pure functions, ONNX, torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast

from numpy.typing import NDArray

from calibrant.core.arrays import Array, FloatArray, to_numpy
from calibrant.core.errors import InputError, NotApplicableError
from calibrant.files.atomic import StrPath
from calibrant.posthoc.applying import apply_map

if TYPE_CHECKING:
    from calibrant.export.torch_module import CalibratorModule


class Exported:
    """The way out of a calibrator, and what its map says of the confidence beside probabilities."""

    method: ClassVar[str]

    def interval_arrays(self, level: float) -> dict[str, NDArray[Any]] | None:
        """Return the arrays that `interval` reads, for intervals of a level; None without any."""
        return None

    def interval(
        self, xp: Any, logits: Array, learnt: Mapping[str, Array], *, masks: bool = True
    ) -> tuple[Array, Array]:
        """Return the (n,) lower and upper ends, in float64, for the confidence of each row.

        A pure function of arrays, as `transform` is; only of methods with `interval_arrays`.
        """
        raise NotApplicableError(f"method '{self.method}' has no interval for a row")

    def bare(self) -> Self:
        """Return a calibrator of the same arguments and parts that has learnt nothing."""
        of_whole = cast(Any, self)
        other = type(self)(**of_whole.get_params())
        for name in ("n_classes_", "form_"):
            setattr(other, name, getattr(of_whole, name))
        cast(Any, other).restore_parts(
            {name: part.bare() for name, part in of_whole.parts().items()}
        )
        return other

    def to_torch(
        self,
        path: StrPath | None = None,
        *,
        dtype: Literal["float32", "float64"] = "float32",
    ) -> CalibratorModule:
        """Return the calibrator as a torch module, and write it as a program if there is a path.

        The module runs the same `transform` as `predict_proba`; what was learnt are its buffers.
        It can be moved, cast, compiled, exported and differentiated by the logits. Behind a network
        put it by `calibrant.CalibratedModule`, whose `state_dict` safetensors saves and loads.

        Args:
            path: a file (.pt2) to write what `torch.export` makes of the module, for any number of
                rows. `torch.export.load` reads it, without unpickling and without Calibrant. None
                writes nothing.
            dtype: of the logits, and the features, that the program takes.

        Raises:
            NotFittedError: `fit` has not been called.
            NotApplicableError: the map is too large, or torch can't follow it.
            InputError: another extension or dtype.
            MissingDependencyError: torch isn't installed.

        Examples:
            >>> import calibrant as cb
            >>> import torch
            >>> scaling = cb.TemperatureScaling().fit_predictions(cb.load_sample("validation"))
            >>> _ = scaling.to_torch("calibrator.pt2")
            >>> program = torch.export.load("calibrator.pt2").module()
            >>> program(torch.zeros(1, 10))[0, :2]
            tensor([0.1000, 0.1000])
        """
        from calibrant.export.torch_module import CalibratorModule, write_program

        module = CalibratorModule(cast(Any, self))
        if path is not None:
            write_program(module, path, dtype)
        return module

    # Parameters: they are the user's choices, each by itself, and the command line's options.
    def to_onnx(
        self,
        path: StrPath | None = None,
        *,
        kind: Literal["logits", "probs"] = "logits",
        dtype: Literal["float32", "float64"] = "float32",
        level: float = 0.95,
        masks: bool = True,
        class_names: Sequence[str] | None = None,
        behind: StrPath | None = None,
        output: str | None = None,
        features_output: str | None = None,
    ) -> Any:
        """Return the calibrator as an ONNX model, and write it to a file if there is a path.

        The graph is traced from `transform`, the map that `predict_proba` applies, so it gives the
        same numbers: within 1e-6 in float32. It takes any number of rows and checks none of them:
        NaN in gives NaN out. Outputs: ``probs`` (N, K), ``label`` (N,), the predicted class,
        ``confidence`` (N,), its probability, and for methods with an interval for each row ``low``
        and ``high`` (N,). Metadata: method, version, classes, class names, form, kind and level.
        What was fitted to binary predictions takes two columns, [0, z] of log odds z or [1 - p, p];
        of the top-label form they are the log odds of the confidence, and class 1 is "right".

        Args:
            path: file to write (.onnx), whole or not at all; None writes nothing.
            kind: what the input (N, K) is: ``"logits"``, which is its name as well, or ``"probs"``,
                and its name is ``probs_in``. Methods that read features have an input ``features``
                (N, D), too.
            dtype: type of inputs and outputs.
            level: probability of the intervals, where the method has a choice.
            masks: whether a logit may be minus infinity; a graph that may rule it out has fewer
                nodes.
            class_names: K names for the metadata, by default those of the calibrator.
            behind: an ONNX file of the network; then both are joined to one graph with the
                network's inputs, whose own outputs come last.
            output: name of the network's output that is the logits (or probs); None finds it by its
                shape. features_output: the same for the features.

        Raises:
            NotFittedError: `fit` has not been called.
            NotApplicableError: the map can't be a graph, or is too large for a file.
            InputError: an option is out of range, or the network has no output of the right shape.
            MissingDependencyError: the package `onnx` isn't installed.

        Examples:
            >>> import calibrant as cb
            >>> scaling = cb.TemperatureScaling().fit_predictions(cb.load_sample("validation"))
            >>> model = scaling.to_onnx("calibrator.onnx")
            >>> [output.name for output in model.graph.output]
            ['probs', 'label', 'confidence']
        """
        from calibrant.export.onnx_file import GraphOptions, to_onnx
        from calibrant.export.onnx_network import Behind

        for name, named in (("output", output), ("features_output", features_output)):
            if named is not None and behind is None:
                raise InputError(
                    f"{name} '{named}' is an output of a network, but there is none: give its file "
                    f"as behind, or leave out {name}"
                )
        return to_onnx(
            cast(Any, self),
            path,
            GraphOptions(kind, dtype, level, masks),
            class_names=class_names,
            behind=None if behind is None else Behind(behind, output, features_output),
        )


def intervals_of(
    calibrator: Exported, logits: Array, level: float = 0.95
) -> tuple[FloatArray, FloatArray]:
    """Return the (N,) ends of `Exported.interval` for checked (N, K) logits, as NumPy."""

    def of(xp: Any, rows: Array, _: None, learnt: Mapping[str, Array], *, masks: bool) -> Array:
        return xp.stack(list(calibrator.interval(xp, rows, learnt, masks=masks)), axis=1)

    arrays = calibrator.interval_arrays(level)
    if arrays is None:
        raise NotApplicableError(f"method '{calibrator.method}' has no interval for a row")
    low, high = to_numpy(apply_map(of, logits, None, arrays)).T
    return low, high
