"""SMART, the margin-aware temperature: calibrator, objectives, indicators and theory."""

from calibrant.posthoc.temperature.smart.calibrator import SMART

__all__ = ["SMART"]
