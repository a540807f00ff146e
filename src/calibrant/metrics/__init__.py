"""Metrics of calibration: pure functions of arrays, a family a module."""

from calibrant.core.lazy import public_face

__getattr__, __dir__ = public_face(__name__, __file__)
