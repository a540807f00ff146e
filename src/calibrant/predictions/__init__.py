"""What a model said and what was true, and what one pass over its rows leaves."""

from calibrant.core.lazy import public_face

__getattr__, __dir__ = public_face(__name__, __file__)
