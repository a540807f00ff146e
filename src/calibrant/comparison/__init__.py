"""Methods fitted on one set and measured on another, side by side."""
