"""Predictions in many files, measured, fitted to and calibrated in bounded memory."""

from calibrant.core.lazy import public_face

__getattr__, __dir__ = public_face(__name__, __file__)
