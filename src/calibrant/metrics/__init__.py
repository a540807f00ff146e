"""Metrics of calibration: pure functions of arrays, a family a module."""
