"""How methods compare over sizes of the fit set: docs/calibration-size.md."""
