"""Linear maps of the logits, from a factor for each class to a whole matrix."""

from calibrant.posthoc.linear.base import LinearMap
from calibrant.posthoc.linear.class_temperatures import (
    ClassTemperatureScaling,
    GradientClassTemperatureScaling,
)
from calibrant.posthoc.linear.matrix import DirichletCalibration, MatrixScaling
from calibrant.posthoc.linear.structured import StructuredMatrixScaling, StructuredVectorScaling
from calibrant.posthoc.linear.vector import VectorScaling

__all__ = [
    "ClassTemperatureScaling",
    "DirichletCalibration",
    "GradientClassTemperatureScaling",
    "LinearMap",
    "MatrixScaling",
    "StructuredMatrixScaling",
    "StructuredVectorScaling",
    "VectorScaling",
]
