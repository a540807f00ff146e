"""Run the laws of the methods and the reference values as another kind of processor computes them.

    python scripts/other_processor.py [PYTEST_ARGUMENT ...]

NumPy, OpenBLAS and torch choose their loops by what the processor can, so the same sum is rounded
differently elsewhere. Here they are told to leave out the widest instructions that this processor
has: what it computes then is what an older one computes. Results that hang on the last bit of a sum
show up as failures of laws.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np

TESTS = Path(__file__).parents[1] / "tests"
# Laws, examples, and numbers known from elsewhere; the rest computes little that is iterated.
FILES = [
    "test_docstrings.py",
    "test_laws_of_methods.py",
    "test_quality.py",
    "test_confidence_maps.py",
    "test_features.py",
    "test_linear_fit.py",
    "test_matrix.py",
    "test_parameterised.py",
    "test_probit.py",
    "test_smart.py",
    "test_smart_steps.py",
    "test_structured.py",
    "test_chains.py",
    "test_temperature.py",
    "test_top_rest.py",
]


def other_settings() -> dict[str, str]:
    """Return the environment in which NumPy, OpenBLAS and torch compute as elsewhere."""
    config = cast(dict[str, Any], np.show_config(mode="dicts"))
    # From the narrowest to the widest; NumPy warns of names that it doesn't know.
    found = cast(list[str], config.get("SIMD Extensions", {}).get("found", []))
    wide = [name for name in found if "AVX512" in name or name == "X86_V4"]
    without = wide or found[-1:]
    settings = {"NPY_DISABLE_CPU_FEATURES": " ".join(without)} if without else {}
    if wide:
        settings |= {"OPENBLAS_CORETYPE": "Haswell", "ATEN_CPU_CAPABILITY": "avx2"}
    elif any(name in ("X86_V3", "AVX2", "FMA3") for name in found):
        settings |= {"OPENBLAS_CORETYPE": "Nehalem", "ATEN_CPU_CAPABILITY": "default"}
    return settings


def main() -> int:
    """Run the tests, and return pytest's exit code."""
    settings = other_settings()
    print(" ".join(f"{name}='{value}'" for name, value in settings.items()), flush=True)
    files = [str(TESTS / name) for name in FILES]
    command = [sys.executable, "-m", "pytest", *files, *sys.argv[1:]]
    return subprocess.run(command, env=os.environ | settings, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
