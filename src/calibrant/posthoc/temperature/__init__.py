"""Maps that scale logits by temperatures: one for all rows, or one a row."""
