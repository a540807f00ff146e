"""A text classifier that is trained to be calibrated."""
