"""What training losses do to calibration, before and after rescaling."""
