"""What a model said and what was true, and what one pass over its rows leaves."""
