"""SMART, the margin-aware temperature: calibrator, objectives, indicators and theory."""
