"""Calibrators: maps from a trained network's logits to honest probabilities."""
