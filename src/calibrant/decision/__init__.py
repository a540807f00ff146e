"""What is done with calibrated confidences: answers, costs and sets, with their promises."""

from calibrant.core.lazy import public_face

__getattr__, __dir__ = public_face(__name__, __file__)
