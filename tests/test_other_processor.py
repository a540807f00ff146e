"""The settings under which the laws are tried as on another kind of processor."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "scripts/other_processor.py"


def test_the_settings_are_understood_and_leave_the_widest_instructions_out():
    spec = importlib.util.spec_from_file_location("other_processor", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert all((script.TESTS / name).is_file() for name in script.FILES)
    settings = script.other_settings()
    ask = "import numpy as n; print(*n.show_config(mode='dicts')['SIMD Extensions']['found'])"
    # A name that NumPy doesn't know is a warning, and an error here.
    left = subprocess.run(
        [sys.executable, "-W", "error", "-c", ask],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert not set(left) & set(settings.get("NPY_DISABLE_CPU_FEATURES", "").split())
