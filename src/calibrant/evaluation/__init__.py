"""Metrics of one set of predictions, with intervals and floors."""
