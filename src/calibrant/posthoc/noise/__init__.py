"""Maps that take the network to see the logits through noise."""
