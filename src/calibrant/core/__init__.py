"""What everything else stands on: arrays, checks, errors, threads, settings, text."""
