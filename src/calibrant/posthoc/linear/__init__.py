"""Linear maps of the logits, from a factor for each class to a whole matrix."""
