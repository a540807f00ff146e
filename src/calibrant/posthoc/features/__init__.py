"""Calibrators that see the features of a row: what the network knew before its last layer."""
