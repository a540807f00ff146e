"""NumPy's namespace is the array-API standard's, however little of it is loaded."""

from __future__ import annotations

import array_api_compat.numpy as standard
import numpy as np
import pytest

from calibrant.core import numpy_namespace as xnp


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "bounds", [(0.0, 1.0), (None, np.float64(0.5)), (np.array([0.1, -1.0, 0.0]), None)]
)
def test_bounds_leave_the_type_of_what_they_bound(bounds, dtype):
    x = np.array([[-1.0, 0.3, 2.0], [0.05, 0.5, -0.2]], dtype=dtype)
    found, wanted = xnp.clip(x, *bounds), standard.clip(x, *bounds)
    assert found.dtype == wanted.dtype == dtype
    assert np.array_equal(found, wanted)


def test_sorts_are_stable_and_may_descend():
    x = np.array([[2.0, 1.0, 2.0, 3.0] * 8])
    assert np.array_equal(xnp.argsort(x, axis=1), np.argsort(x, axis=1, kind="stable"))
    assert np.array_equal(xnp.sort(x, axis=1, descending=True), -np.sort(-x, axis=1))


@pytest.mark.parametrize("name", ["astype", "isdtype", "permute_dims", "concat", "vecdot", "take"])
def test_it_has_what_the_standard_asks_for(name):
    assert callable(getattr(xnp, name))


def test_what_nobody_has_is_refused():
    with pytest.raises(AttributeError):
        xnp.nonsense  # noqa: B018
