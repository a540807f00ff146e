"""Calibrant where scikit-learn is at home: a wrapper of any classifier, and a display.

    from calibrant.sklearn import Calibrated, ReliabilityDisplay

    honest = Calibrated(RandomForestClassifier()).fit(X, y)
    honest.predict_proba(X_new)
    ReliabilityDisplay.from_estimator(honest, X_test, y_test)

It needs scikit-learn, which `import calibrant` doesn't. The public names stand in `__init__.pyi`;
each is imported when it is first used.
"""

from importlib import import_module as _import_module

from calibrant.core.errors import MissingDependencyError
from calibrant.core.lazy import public_face

try:
    _import_module("sklearn")
except ImportError as error:
    raise MissingDependencyError(
        "calibrant.sklearn needs scikit-learn: pip install 'calibrant[sklearn]'"
    ) from error

__getattr__, __dir__ = public_face(__name__, __file__)
