"""Calibrators: maps from a trained network's logits to calibrated probabilities."""

from calibrant.core.lazy import public_face

__getattr__, __dir__ = public_face(__name__, __file__, ("CalibratedModule",))
