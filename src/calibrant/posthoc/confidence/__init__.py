"""Maps of the confidence alone, a method a module; `base` is what they share."""
