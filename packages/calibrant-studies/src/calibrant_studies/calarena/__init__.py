"""CalArena's benchmark: its files of probabilities, its protocol, its published results."""
