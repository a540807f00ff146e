"""Predictions in many files, measured, fitted to and calibrated in bounded memory."""
