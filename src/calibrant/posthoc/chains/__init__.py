"""One step behind another."""
