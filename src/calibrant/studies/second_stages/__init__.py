"""What second stages do to calibration, on networks of `calibrant train`: docs/second-stages.md."""
