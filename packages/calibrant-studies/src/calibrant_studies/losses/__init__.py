"""What training losses do to calibration, before and after rescaling: docs/losses-compared.md."""
