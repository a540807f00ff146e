"""Programs that show the package at work."""
